"""Parses a SELECT in Spark SQL for a view. Runs on the driver.

The SELECT becomes nested blocks of text. Spark compares the analysed plans of the SELECT and of the
blocks over the same leaf.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, LongType, NullType, StructField, StructType

from lance_spark.dataset import DatasetRef
from lance_spark.errors import RegistrationError, UnsupportedTypeError, ViewError
from lance_spark.jvm.gateway import is_classic
from lance_spark.types import to_lance_schema, to_spark_schema
from lance_spark.types.fields import is_blob, quote_identifier
from lance_spark.views.definition import SOURCE_ROW_ID, UsedField, used_fields
from lance_spark.views.spark.form import ROW_ID, Block, SparkForm, settings_of
from lance_spark.views.spark.text import (
    FULL_REFRESH,
    Select,
    check_expression,
    names_in,
    parse,
    shorten_qualifiers,
    starred,
)

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

FindTable: TypeAlias = Callable[[tuple[str, ...]], tuple[DatasetRef, tuple[str, ...]]]
"""Finds a table by the parts of its name in a query. Returns the table with its full name."""

_NO_ROWS = ("MISSING_GROUP_BY", "MISSING_AGGREGATION", "GROUP_BY")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkQuery:
    """A parsed and checked query of Spark over a single table.

    Attributes:
        source: The table, at its latest version.
        schema: The schema of the result in Lance.
        used: The used columns of the source.
    """

    source: DatasetRef
    form: SparkForm
    schema: pa.Schema
    used: tuple[UsedField, ...]


def text_query(spark: SparkSession, text: str, find_table: FindTable) -> SparkQuery:
    """Parses a SELECT over a table.

    Raises:
        RegistrationError: The SELECT cannot be a view, or the table does not exist.
        UnsupportedTypeError: Lance cannot store a column.
    """
    selects, table = parse(text)
    with _explained(text):
        source, full_name = find_table(table.parts)
        dataset = source.pin(None).open()
        if not table.is_aliased:
            text = shorten_qualifiers(text, selects[0].span, full_name, dataset.schema.names)
            selects, table = parse(text)
        first, end = table.span
        with _stand_in(spark, dataset, names_in(text)) as view:
            alias = "" if table.is_aliased else f" AS {quote_identifier(table.parts[-1])}"
            whole = spark.sql(
                f"{text[:first]}{quote_identifier(view)}{alias}{text[end:]}".rstrip().rstrip(";")
            )
            blocks = _checked_blocks(spark.table(view), selects, whole, text)
            used = used_fields(
                dataset, [expression for block in blocks for expression in block.texts]
            )
            form = SparkForm(blocks=blocks, settings=settings_of(spark))
            _refuse_unreadable(dataset, used)
            _prove(spark, dataset, form, used, whole.schema)
            return SparkQuery(
                source=source, form=form, schema=to_lance_schema(whole.schema, {}), used=used
            )


def _checked_blocks(
    leaf: DataFrame, selects: Sequence[Select], whole: DataFrame, text: str
) -> tuple[Block, ...]:
    """Returns the blocks of a SELECT without unused columns.

    Args:
        leaf: A DataFrame with the columns of the source.
        selects: The SELECT and its inner SELECTs, the innermost first.
        whole: The SELECT over the leaf, analysed by Spark.
        text: The SELECT as text, for messages.
    """
    functions = own_functions(leaf.sparkSession)
    blocks: list[Block] = []
    names_by_block: list[list[str]] = []
    frame = leaf
    for select in selects:
        items = _without_stars(select.items, frame.columns, select.alias)
        block = Block(alias=select.alias, where=select.where, select=items)
        _check_block(block, frame, functions)
        frame = block.over(frame)
        blocks.append(block)
        names_by_block.append(list(frame.columns))
        if ROW_ID in {name.lower() for name in names_by_block[-1]}:
            raise RegistrationError(
                f"{ROW_ID!r} cannot be the name of a view's column. Text: {text!r}. Select it under another name."
            )
    if not frame.sameSemantics(whole) or frame.columns != whole.columns:
        raise RegistrationError(
            "The query cannot be written as nested SELECTs over its source without a change of its meaning. "
            f"Text: {text!r}. Write it simpler, with columns and expressions of one table, and conditions."
        )
    _refuse_aggregates(leaf, blocks)
    return _pruned(blocks, names_by_block)


def _check_block(block: Block, frame: DataFrame, functions: Callable[[str], bool]) -> None:
    """Checks the expressions of a SELECT over a DataFrame."""
    columns = {field.name.lower(): field.dataType.simpleString() for field in frame.schema.fields}
    for text in block.texts:
        check_expression(text, is_own=functions, columns=columns)


def check_stored_query(form: SparkForm, frame: DataFrame, view_uri: str) -> None:
    """Checks the stored query of a view as at its creation, over a DataFrame with row ids.

    A classic session also checks the analyzed plan: the query reads only the DataFrame, and each
    value follows from its row.

    Raises:
        ViewError: The query cannot be a view.
    """
    functions = own_functions(frame.sparkSession)
    try:
        for block in form.blocks:
            _check_block(block, frame, functions)
            frame = block.over(frame, ROW_ID)
    except (RegistrationError, PySparkException) as error:
        raise _refused(str(error), view_uri) from error
    if is_classic(frame.sparkSession):
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows plans as text alone
        if not plan.deterministic() or not plan.subqueriesAll().isEmpty():
            raise _refused(
                "The query reads another table, or calls a function of more than the row's columns.",
                view_uri,
            )


def _refused(reason: str, view_uri: str) -> ViewError:
    return ViewError(
        f"The stored query of the view {view_uri} is one that no view can have. Nothing was changed. Make the view "
        f"again. Reason: {reason}",
        uri=view_uri,
    )


def own_functions(spark: SparkSession) -> Callable[[str], bool]:
    """Returns a predicate for names of Spark's own functions, except replaced functions."""

    @functools.cache
    def names() -> set[str]:
        own, user_functions = (
            {row[0].lower() for row in spark.sql(f"SHOW {kind} FUNCTIONS").collect()}
            for kind in ("SYSTEM", "USER")
        )
        return own - user_functions

    return lambda name: name in names()


def _without_stars(
    items: tuple[str, ...], names: Sequence[str], qualifier: str | None
) -> tuple[str, ...]:
    """Returns the items with columns in place of stars, because the source may get columns."""
    columns: list[str] = []
    for item in items:
        left_out = starred(item, qualifier)
        if left_out is None:
            columns.append(item)
        else:
            lower = {name.lower() for name in left_out}
            columns += [quote_identifier(name) for name in names if name.lower() not in lower]
    return tuple(columns)


def _refuse_aggregates(leaf: DataFrame, blocks: Sequence[Block]) -> None:
    """Refuses aggregates: they have no value next to the id of a row."""
    frame = leaf.select(sf.lit(0).cast("long").alias(ROW_ID), "*")
    try:
        for block in blocks:
            frame = block.over(frame, ROW_ID)
        frame.schema  # noqa: B018 - over Connect it is only analysed now
    except PySparkException as error:
        if not any(name in (error.getCondition() or "") for name in _NO_ROWS):
            raise
        raise RegistrationError(
            "A materialized view computes columns row by row, so it cannot have aggregates. "
            f"{FULL_REFRESH} Spark: {_first_line(error)}"
        ) from error


def _prove(
    spark: SparkSession,
    dataset: lance.LanceDataset,
    form: SparkForm,
    used: Sequence[UsedField],
    query_schema: StructType,
) -> None:
    """Refuses a query with another meaning, or without a meaning, in the session of a refresh.

    The session of a refresh has no variables and no user functions.
    """
    session = form.new_session(spark) if is_classic(spark) else spark
    columns = to_spark_schema(
        pa.schema([dataset.schema.field(field.name) for field in used])
    ).fields
    rows = session.createDataFrame([], StructType([StructField(ROW_ID, LongType()), *columns]))
    try:
        fields = form.over(rows, ROW_ID).schema.fields[1:]
    except PySparkException as error:
        raise RegistrationError(
            f"Another session cannot read the query over {dataset.uri}. Use neither variables nor functions of the "
            f"session. Spark: {_first_line(error)}"
        ) from error
    for field, expected in zip(fields, query_schema.fields, strict=True):
        if field.dataType.simpleString() != expected.dataType.simpleString():
            raise RegistrationError(
                f"Column {expected.name!r} would be {field.dataType.simpleString()} in a refresh, and is "
                f"{expected.dataType.simpleString()} in the query over {dataset.uri}. Cast it in the query."
            )


def _pruned(blocks: Sequence[Block], names_by_block: Sequence[Sequence[str]]) -> tuple[Block, ...]:
    """Returns the SELECTs without columns unused by outer SELECTs."""
    pruned: list[Block] = []
    used_names: set[str] | None = None
    for block, names in zip(reversed(blocks), reversed(names_by_block), strict=True):
        needed = block
        if used_names is not None and len(block.select) == len(names):
            needed = replace(block, select=_needed(block.select, names, used_names))
        used_names = set[str]().union(*map(names_in, needed.texts))
        pruned.append(needed)
    return tuple(reversed(pruned))


def _needed(select: tuple[str, ...], names: Sequence[str], used_names: set[str]) -> tuple[str, ...]:
    """Returns the items with names used by the outer SELECT or by other items.

    Without used names, returns the first item.
    """
    keep: set[int] = set()
    while True:
        more = {i for i, name in enumerate(names) if name.lower() in used_names} - keep
        if not more:
            return tuple(select[i] for i in sorted(keep)) or select[:1]
        keep |= more
        used_names = used_names.union(*(names_in(select[i]) for i in more))


@contextmanager
def _stand_in(
    spark: SparkSession, dataset: lance.LanceDataset, names: Collection[str]
) -> Iterator[str]:
    """Creates an empty temporary view with the columns of a table."""
    name = f"lance_spark_{uuid.uuid4().hex}"
    spark.createDataFrame([], _leaf_schema(dataset, names)).createTempView(name)
    try:
        yield name
    finally:
        spark.catalog.dropTempView(name)


def _leaf_schema(dataset: lance.LanceDataset, names: Collection[str]) -> StructType:
    """Returns the columns of a table. Unreadable columns have a placeholder type.

    A view as source has a column of row ids. The column is included only if the query names it.
    """
    fields = []
    for field in dataset.schema:
        if is_blob(field):
            fields.append(StructField(field.name, BinaryType()))
        elif field.name != SOURCE_ROW_ID or field.name in names:
            try:
                fields += to_spark_schema(pa.schema([field])).fields
            except UnsupportedTypeError:
                fields.append(StructField(field.name, NullType()))
    return StructType(fields)


def _refuse_unreadable(dataset: lance.LanceDataset, used: Sequence[UsedField]) -> None:
    schema = dataset.schema
    for column in used:
        field: pa.Field[Any] = schema.field(column.name)
        if is_blob(field):
            raise RegistrationError(
                f"The query of a view in Spark SQL cannot use blobs, as in column {column.name!r}. Name the other "
                "columns. A UDF of table.search(None).select({...}) reads blobs."
            )
        to_spark_schema(pa.schema([field]))


def _first_line(error: PySparkException) -> str:
    """Returns the message of an error without the plan below."""
    return str(error).strip().partition("\n")[0].rstrip("; ")


@contextmanager
def _explained(text: str) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise RegistrationError(
            f"Spark refuses the query of the view: {_first_line(error)}. Text: {text!r}. Nothing was made."
        ) from error
