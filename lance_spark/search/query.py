"""Queries over one table: which columns of which rows. A description, until rows are taken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.columns.adding import Computed, parse_transforms
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    RegistrationError,
    UnsupportedOperationError,
)
from lance_spark.geneva import refusing
from lance_spark.pushdown.rule import is_classic
from lance_spark.read.columns import ROW_ID
from lance_spark.read.filtering import both, check_filter
from lance_spark.read.search.ranking import search_errors
from lance_spark.session.sessions import session_or_local
from lance_spark.types.pandas_values import to_pandas, to_rows
from udf_runtime import UDF, UnpackedUDF

if TYPE_CHECKING:
    import lance
    import pandas as pd

_Table_co = TypeVar("_Table_co", covariant=True)
_Query = TypeVar("_Query", bound="Query")

Selection: TypeAlias = "Sequence[str | UDF | UnpackedUDF] | Mapping[str, str | UDF | tuple[UDF, list[str]]]"


@runtime_checkable
class ViewMaker(Protocol[_Table_co]):
    """What makes views: a :class:`lance_spark.Connection`."""

    def create_materialized_view(self, name: str, query: Query) -> _Table_co:
        """Makes a materialized view."""


@refusing("GenevaQueryBuilder")
@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query over one table. Each method that shapes it returns another one, and reads nothing.

    Made by :meth:`lance_spark.Table.search`. `to_*` read its rows: `to_spark` by Spark's tasks, the
    others by Lance in this process.

    Attributes:
        source: The table.
        columns: Names of the selected columns, with expressions in Lance SQL; None selects all.
        computed: Selected columns of UDFs.
        condition: The filter in Lance SQL.
        most_rows: What was asked for with `limit`.
        skipped_rows: What was asked for with `offset`.
        row_ids: Whether rows come with their ids.
        spark: Gives the session for `to_spark`.
    """

    source: DatasetRef
    columns: tuple[tuple[str, str], ...] | None = None
    computed: tuple[Computed, ...] = ()
    condition: str | None = None
    most_rows: int | None = None
    skipped_rows: int = 0
    row_ids: bool = False
    spark: Callable[[], SparkSession] = field(default=lambda: session_or_local(None), compare=False, repr=False)

    # Its shape

    def select(self: _Query, columns: Selection) -> _Query:
        """Selects columns.

        Args:
            columns: Names, in the order of the result; a list may also have UDFs that return
                `Columns[T]`, or `UnpackedUDF`. Or a dict of names, each with an expression in Lance
                SQL, a UDF whose parameters are named like columns of the table, or `(udf, ["a",
                "b"])`, which binds its parameters to these columns in order. Columns of UDFs are
                for materialized views.

        Raises:
            OptionError: It is neither, or empty.
            RegistrationError: A value of the dict is none of these.
        """
        if isinstance(columns, Mapping) and columns:
            sql, computed = parse_transforms(columns)
            return replace(self, columns=tuple(sql.items()), computed=tuple(computed))
        if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
            raise OptionError("select", columns, "a list of columns, or a dict of names and expressions")
        names = [name for name in columns if isinstance(name, str)]
        computed = [one for udf in columns if not isinstance(udf, str) for one in parse_transforms(udf)[1]]
        return replace(self, columns=tuple((name, quoted(name)) for name in names), computed=tuple(computed))

    def where(self: _Query, condition: str) -> _Query:
        """Selects the rows that match a condition in Lance SQL.

        Several calls select the rows that match all conditions.

        Example:
            >>> table.search().where("price > 10").where("stock > 0").to_arrow()

        Raises:
            OptionError: It is no text.
        """
        if not isinstance(condition, str) or not condition.strip():
            raise OptionError("where", condition, "a condition in Lance SQL")
        return replace(self, condition=condition if self.condition is None else both(self.condition, condition))

    def limit(self: _Query, rows: int) -> _Query:
        """Takes at most so many rows; a materialized view refuses it.

        Raises:
            OptionError: It is no number of rows.
        """
        return replace(self, most_rows=_count("limit", rows, 1))

    def offset(self: _Query, rows: int) -> _Query:
        """Leaves so many rows out, the first ones; a materialized view refuses it.

        Raises:
            OptionError: It is no number of rows.
        """
        return replace(self, skipped_rows=_count("offset", rows, 0))

    def with_row_id(self: _Query, with_row_id: bool = True) -> _Query:
        """Adds the column `_rowid`: the ids of rows, which stay theirs where ids are stable."""
        return replace(self, row_ids=with_row_id)

    # Its rows

    def to_batches(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows as Arrow batches, read by Lance in this process as they are taken.

        Args:
            batch_size: Most rows of a batch, or None as Lance has it.

        Raises:
            FilterError: The condition is not valid, or fails on a value.
            ColumnNotFoundError: A column is not there.
            SearchError: Lance cannot search so.
            TableUnreadableError: A file is missing or damaged.
        """
        if batch_size is not None:
            _count("batch_size", batch_size, 1)
        dataset = self._opened()
        for batch in self._batches(dataset, batch_size):
            for start in range(0, batch.num_rows, batch_size or max(1, batch.num_rows)):
                yield batch.slice(start, batch_size)

    def to_arrow(self) -> pa.Table:
        """Returns the rows in this process's memory, as Arrow.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.
        """
        dataset = self._opened()
        return pa.Table.from_batches(self._batches(dataset, None), schema=self._schema(dataset))

    def to_pandas(self) -> pd.DataFrame:
        """Returns the rows in this process's memory, as pandas.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.
        """
        return to_pandas(self.to_arrow())

    def to_list(self) -> list[dict[str, Any]]:
        """Returns the rows in this process's memory, as dicts.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.
        """
        return to_rows(self.to_arrow())

    def to_spark(self) -> DataFrame:
        """Returns the rows as a Spark DataFrame, pinned to one version.

        Spark's tasks read them: those of a search one task, in the order of their rank.

        Raises:
            UnsupportedOperationError: It has an expression or an offset, which Spark cannot read.
        """
        self._refuse_computed()
        if any(expression != quoted(name) for name, expression in self.columns or ()):
            raise UnsupportedOperationError(
                "Spark reads columns, and no expressions in Lance SQL - in to_spark - select columns by name, and "
                "compute with DataFrame.select"
            )
        spark, ref = self.spark(), self.source
        if ref.version is None and not is_classic(spark):
            ref = ref.pin(None)  # over Connect a DataFrame is made where it is first used
        options = {f"storage.{key}": value for key, value in ref.storage.items()} | self._read_options()
        if self.columns is not None:
            options["columns"] = json.dumps(self._names())
        if self.condition is not None:
            options["filter"] = self.condition
        if self._has_row_ids():
            options["with_row_id"] = "true"
        if ref.version is not None:
            options["version"] = str(ref.version)
        return spark.read.format("lance").options(**options).load(ref.uri)

    def explain_plan(self, verbose: bool = False) -> str:
        """Returns how Lance finds the rows: which indexes serve, and what is scanned.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.
        """
        dataset = self._opened()
        with search_errors(dataset, self.condition):
            return self._plan(dataset, verbose)

    # A materialized view

    def create_materialized_view(self, db: ViewMaker[_Table_co], name: str) -> _Table_co:
        """Makes a materialized view of this query: `db.create_materialized_view(name, query)`."""
        return db.create_materialized_view(name, self)

    def check_view(self) -> None:
        """Refuses what no view can keep up to date.

        Raises:
            RegistrationError: The query has a limit or an offset, or ranks rows.
            UnsupportedOperationError: It is over an older version that is checked out.
        """
        if self.source.version is not None:
            raise UnsupportedOperationError(
                f"version {self.source.version} is checked out, and a view follows the latest version - "
                f"{self.source.uri} - call checkout_latest()"
            )
        bounds = (("limit", self.most_rows), ("offset", self.skipped_rows or None))
        for bound, rows in bounds:
            if rows is not None:
                raise RegistrationError(
                    f"a materialized view cannot have {bound}({rows}): which rows are the first ones changes with "
                    "every row that is added or deleted, so no refresh could tell what to keep - over "
                    f"{self.source.uri} - select rows with where(...), or leave the {bound} to queries over the view"
                )

    # What a search does otherwise

    def _read_options(self) -> dict[str, str]:
        if self.skipped_rows:
            raise UnsupportedOperationError(
                "Spark reads rows in no order, so that none are the first ones - in to_spark - use orderBy(...).offset "
                "of the DataFrame"
            )
        return {} if self.most_rows is None else {"limit": str(self.most_rows)}

    def _batches(self, dataset: lance.LanceDataset, batch_size: int | None) -> Iterator[pa.RecordBatch]:
        with search_errors(dataset, self.condition):
            reader = self._scanner(dataset, batch_size).to_reader()
        while True:
            with search_errors(dataset, self.condition):
                batch = next(reader, None)
            if batch is None:
                return
            yield batch

    def _schema(self, dataset: lance.LanceDataset) -> pa.Schema:
        with search_errors(dataset, self.condition):
            return self._scanner(dataset, None).projected_schema

    def _plan(self, dataset: lance.LanceDataset, verbose: bool) -> str:
        return self._scanner(dataset, None).explain_plan(verbose)

    # Helpers

    def _scanner(self, dataset: lance.LanceDataset, batch_size: int | None) -> lance.LanceScanner:
        return dataset.scanner(
            columns=self._projection(dataset),
            filter=self.condition,
            limit=self.most_rows,
            offset=self.skipped_rows or None,
            batch_size=batch_size,
        )

    def _opened(self) -> lance.LanceDataset:
        """Opens the version that is meant, and checks the query against it."""
        self._refuse_computed()
        dataset = self.source.open()
        if self.condition is not None:
            check_filter(dataset, self.condition, self.source.uri, "descriptor")
        for name, expression in self.columns or ():
            if expression == quoted(name) and name in self._names() and dataset.lance_schema.field(name) is None:
                hint = f"its columns are {', '.join(dataset.schema.names)}"
                raise ColumnNotFoundError(name, self.source.uri, hint=hint)
        return dataset

    def _names(self) -> list[str]:
        """Returns the selected columns that the table has, by name."""
        return [name for name, _ in self.columns or () if name != ROW_ID]

    def _has_row_ids(self) -> bool:
        return self.row_ids or any(name == ROW_ID for name, _ in self.columns or ())

    def _projection(self, dataset: lance.LanceDataset) -> Any:  # noqa: ANN401 - a list or a dict, as pylance takes them
        wanted = self._names()
        chosen = ((name, quoted(name)) for name in dataset.schema.names)
        if self.columns is not None:
            chosen = ((name, expression) for name, expression in self.columns if name in wanted)
        return {**dict(chosen), **({ROW_ID: ROW_ID} if self._has_row_ids() else {})} or []

    def _refuse_computed(self) -> None:
        if self.computed:
            names = ", ".join(name for one in self.computed for _, name in one.columns)
            raise UnsupportedOperationError(
                f"columns of UDFs ({names}) are computed by a materialized view - in a query of {self.source.uri} - "
                "call create_materialized_view, or select other columns"
            )


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(name, value, f"a number of rows, {least} or more")
    return value


def quoted(name: str) -> str:
    """Returns a column's name as an expression in Lance SQL."""
    return f"`{name}`"
