"""Batches of Arrow data from Lance to Spark, and from Spark to Lance.

They run on executors, one converter per task and stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_spark.errors import SchemaMismatchError, ValueConversionError
from lance_spark.types.fields import Array, plain_type
from lance_spark.types.layout import aligned, nulls, relabel_batch
from lance_spark.types.leaves import BadValue, TooLarge
from lance_spark.types.mapping import arrow_type, raw_type, spark_arrow_schema
from lance_spark.types.mismatch import side_by_side
from lance_spark.types.tree import Node, Planner, pair_names

_READ_HINT = "leave the column out with option 'columns', or change it in the table"
_WRITE_HINT = "correct the value, or write to a column that can hold it"
_SPLIT_HINT = "read with a smaller option 'batch_size'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column of the target: where it comes from (None: missing, all NULL), and how."""

    source: int | None
    node: Node
    missing_as: pa.DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How batches of one schema become batches of another."""

    source: pa.Schema
    columns: tuple[_Column, ...]
    as_is: bool

    def run(self, columns: list[Array], rows: int) -> list[Array]:
        return [
            nulls(rows, column.missing_as) if column.source is None else column.node.run(columns[column.source])
            for column in self.columns
        ]


def _plan(source: pa.Schema, target: pa.Schema, planner: Planner) -> _Plan:
    found = pair_names(source.names, target.names)
    columns = []
    for wanted in target:
        at = found.get(wanted.name)
        if at is None:
            if not planner.writing:
                planner.problems[wanted.name] = "the table has no such column"
            elif not wanted.nullable:
                planner.problems[wanted.name] = "is missing, and the column is not nullable"
            node = Node(path=wanted.name)
        else:
            node = planner.plan(source.field(at), wanted, wanted.name)
        columns.append(_Column(source=at, node=node, missing_as=plain_type(wanted.type)))
    if planner.writing:
        for position, name in enumerate(source.names):
            if position not in found.values():
                twice = source.names.count(name) > 1
                planner.problems[name] = "is there twice" if twice else "the table has no such column"
    in_place = [column.source for column in columns] == list(range(len(source.names)))
    as_is = in_place and all(column.node.trivial for column in columns)
    return _Plan(source=source, columns=tuple(columns), as_is=as_is)


class ReadConverter:
    """Makes batches of a Lance scan into what Spark expects of a reader.

    Columns that are laid out alike are passed on without copying or looking at them. Runs on
    executors; picklable; not for several threads.
    """

    def __init__(self, source: pa.Schema, target: StructType) -> None:
        """Plans the conversion.

        Args:
            source: What the scan yields; it may hold more than `target`, and its columns in another
                order.
            target: Spark's columns, perhaps with fewer nested fields than the table has.

        Raises:
            SchemaMismatchError: The table does not have the columns that Spark planned with, or
                they changed their types since.
        """
        self.schema: pa.Schema = spark_arrow_schema(target)
        self._plan = self._planned(source)
        self._rows = 0

    def _planned(self, source: pa.Schema) -> _Plan:
        planner = Planner(writing=False)
        plan = _plan(source, self.schema, planner)
        if planner.problems:
            raise SchemaMismatchError(
                "the table no longer has the columns that the DataFrame was made with - "
                + "; ".join(f"{path}: {text}" for path, text in planner.problems.items())
                + " - load it again; for a catalog table say REFRESH TABLE, a temporary view has to be made anew"
            )
        return plan

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with exactly the schema `to_arrow_schema(target, timezone="UTC")`.

        It has as many rows, also without columns.

        Raises:
            ValueConversionError: A value does not fit Spark's type, or the batch has more than 2
                GiB of text in one column (see :meth:`convert_split`).
        """
        try:
            return self._convert(batch)
        except TooLarge as error:
            raise ValueConversionError(
                "*",
                self._rows,
                "a batch has more text or elements in one column than Spark's Arrow types can hold",
                hint=_SPLIT_HINT,
            ) from error

    def convert_split(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the batch converted, in parts where it is too large for Spark's Arrow types.

        It is halved until no column has more than 2 GiB of text or 2^31 elements.

        Raises:
            ValueConversionError: As in :meth:`convert`; of the size only where a single row is too
                large.
        """
        try:
            converted = self._convert(batch)
        except TooLarge:
            half = batch.num_rows // 2
            if half == 0:
                yield self.convert(batch)
                return
            yield from self.convert_split(batch.slice(0, half))
            yield from self.convert_split(batch.slice(half))
        else:
            yield converted

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self._plan.source, check_metadata=True):
            self._plan = self._planned(batch.schema)
        if not self._plan.as_is:
            batch = _run(self._plan, batch, self._rows, _READ_HINT)
        self._rows += batch.num_rows
        return relabel_batch(batch, self.schema)


class WriteConverter:
    """Makes batches of a DataFrame, or Arrow data, into the exact types of a Lance table.

    Every value is checked; columns that are laid out alike are not copied, except for single
    buffers that lie at addresses at which Lance would panic. Runs on executors; picklable; not for
    several threads.
    """

    def __init__(self, source: StructType | pa.Schema, target: pa.Schema) -> None:
        """Plans the conversion.

        Args:
            source: Schema of the DataFrame, or of Arrow data of this process.
            target: Schema of the table, or of those of its columns that are written.

        Raises:
            SchemaMismatchError: As in :func:`check_writable`.
            UnsupportedTypeError: Lance cannot store a column.
        """
        self._rows_of = "the data"
        if isinstance(source, StructType):
            check_writable(source, target)
            source = _written_schema(source)
            self._rows_of = "its task"
        self.schema = target
        self._plan = self._planned(source)
        self._rows = 0

    def convert(self, batch: pa.RecordBatch, *, first_row: int | None = None) -> pa.RecordBatch:
        """Returns the batch with exactly the target's columns, in order; missing ones are all NULL.

        Args:
            batch: The rows.
            first_row: Position of the first row for errors; by default that in the stream.

        Raises:
            ValueConversionError: A value does not fit, or is NULL where that is not allowed; names
                column and row.
        """
        if not batch.schema.equals(self._plan.source, check_metadata=True):
            # Time zones are those of the session, and large types depend on its settings.
            self._plan = self._planned(batch.schema)
        first_row = self._rows if first_row is None else first_row
        batch = _run(self._plan, batch, first_row, _WRITE_HINT, self._rows_of)
        self._rows += batch.num_rows
        return batch if batch.schema.equals(self.schema, check_metadata=True) else relabel_batch(batch, self.schema)

    def _planned(self, source: pa.Schema) -> _Plan:
        planner = Planner(writing=True)
        plan = _plan(source, self.schema, planner)
        if planner.problems:
            table = self.schema.to_string(show_field_metadata=False, show_schema_metadata=False)
            raise SchemaMismatchError(
                f"the data does not fit the table: {_listed(planner)} - nothing was written - give the data the "
                f"columns and types of the table:\n{table}"
            )
        return plan


class LengthEnforcer:
    """Enforces `CHAR(n)` and `VARCHAR(n)` of columns whose values have the table's types already.

    Runs on executors; one per stream.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Plans the checks.

        Args:
            schema: The columns as the table has them. Columns without a length cost nothing.
        """
        declared = [field for field in schema if raw_type(field) is not None]
        self._converter = WriteConverter(pa.schema(declared), pa.schema(declared)) if declared else None

    def enforce(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with the values of `CHAR(n)` columns padded.

        Raises:
            ValueConversionError: A text is too long. `row` is the position in the batch.
        """
        if self._converter is None:
            return batch
        names = self._converter.schema.names
        checked = self._converter.convert(batch.select(names), first_row=0)
        columns = [checked.column(name) if name in names else batch.column(name) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _listed(planner: Planner) -> str:
    return "; ".join(f"{path}: {text}" for path, text in planner.problems.items())


def check_writable(schema: StructType, target: pa.Schema, *, uri: str | None = None) -> None:
    """Checks that a DataFrame can be written into a table, before anything is.

    Runs on the driver; pure. Columns are found by name; those that the table has and the DataFrame
    does not must be nullable. A NULL for a column that is not nullable, and a value that does not
    fit, are found when the values are there, before they are committed.

    Args:
        schema: Schema of the DataFrame.
        target: Schema of the columns that are written.
        uri: The table, for the message.

    Raises:
        SchemaMismatchError: A column is unknown, missing, or of a type that is not converted. Shows
            both schemas side by side.
        UnsupportedTypeError: Lance cannot store a column.
    """
    if not schema.fields:
        raise SchemaMismatchError(
            "the DataFrame has no columns - nothing was written - select the columns of the table"
        )
    planner = Planner(writing=True)
    source = _written_schema(schema)
    _plan(source, target, planner)
    if not planner.problems:
        return
    raise SchemaMismatchError(
        f"the DataFrame does not fit the table{'' if uri is None else f' {uri}'} - {_listed(planner)} - nothing was "
        "written; select, cast or rename the columns\n" + side_by_side(schema, target, planner.problems)
    )


def _written_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema of a DataFrame.

    Time zones and names of nested fields differ, which makes no difference here.
    """
    return pa.schema([pa.field(f.name, arrow_type(f.dataType, f.name), f.nullable) for f in schema.fields])


def _run(plan: _Plan, batch: pa.RecordBatch, rows_before: int, hint: str, rows_of: str = "its task") -> pa.RecordBatch:
    columns = batch.columns
    try:
        arrays = plan.run(columns, batch.num_rows)
    except BadValue as error:
        row = rows_before + error.index
        raise ValueConversionError(error.path or "*", row, error.reason, hint=hint, rows=rows_of) from error
    if not arrays:
        return batch.select([])
    moved = [aligned(array) for array in arrays]
    if len(moved) == len(columns) and all(new is old for new, old in zip(moved, columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(moved, names=[str(i) for i in range(len(moved))])
