"""Queries over one table: selected columns, filter and limits. Reads nothing until `to_*`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.columns.adding import Computed, parse_transforms
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    OptionError,
    RegistrationError,
    UnsupportedOperationError,
)
from lance_spark.jvm.gateway import is_classic
from lance_spark.read.blob_frames import BlobColumns, BlobMode, check_blob_mode
from lance_spark.read.columns import ROW_ID
from lance_spark.read.filtering import check_filter, conjunction
from lance_spark.read.polars_frames import to_frame
from lance_spark.read.ranking.ranking import read_scanner, search_errors, stored_field
from lance_spark.read.streams import stream_of
from lance_spark.search.ordering import (
    ColumnOrdering,
    check_ordering,
    lance_ordering,
    spark_ordering,
)
from lance_spark.search.timeouts import QueryDeadline
from lance_spark.session.sessions import session_or_local
from lance_spark.types.fields import quote_identifier
from lance_spark.types.pandas_values import (
    check_levels,
    flatten_structs,
    to_models,
    to_pandas,
    to_rows,
)
from udf_runtime import UDF, UnpackedUDF

if TYPE_CHECKING:
    import lance
    import pandas as pd
    import polars as pl

_Table_co = TypeVar("_Table_co", covariant=True)
_Query = TypeVar("_Query", bound="Query")
_Model = TypeVar("_Model")

_Function: TypeAlias = (
    "UDF | Callable[..., object]"  # callable to mypy: a UDF of PySpark or of a class
)
Selection: TypeAlias = "Sequence[str | UDF | UnpackedUDF] | Mapping[str, str | _Function | tuple[_Function, list[str]]]"


@runtime_checkable
class ViewMaker(Protocol[_Table_co]):
    """Creates materialized views, as :class:`lance_spark.Connection` does."""

    def create_materialized_view(
        self, name: str, query: Query, *, auto_refresh: bool = False
    ) -> _Table_co:
        """Creates a materialized view."""


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query over a table. Each shaping method returns a new query, and reads no data.

    :meth:`lance_spark.Table.search` starts a query. The methods `to_*` read the rows: `to_spark`
    with Spark tasks, the other methods with Lance in this process.

    Attributes:
        source: The table.
        columns: Names of the selected columns, with expressions in Lance SQL; None selects all.
        computed: Selected UDF columns.
        condition: The filter in Lance SQL.
        most_rows: Argument of `limit`.
        skipped_rows: Argument of `offset`.
        row_ids: Whether the result has row ids.
        ordering: Argument of `order_by`.
        spark: Returns the session for `to_spark`.

    Example:
        ```python
        import lance_spark

        docs = lance_spark.connect("tables").open_table("docs")
        query = docs.search().where("stock > 0").select(["id", "price"]).limit(5)
        rows = query.to_list()
        ```
    """

    source: DatasetRef
    columns: tuple[tuple[str, str], ...] | None = None
    computed: tuple[Computed, ...] = ()
    condition: str | None = None
    most_rows: int | None = None
    skipped_rows: int = 0
    row_ids: bool = False
    ordering: tuple[ColumnOrdering, ...] = ()
    spark: Callable[[], SparkSession] = field(
        default=lambda: session_or_local(None), compare=False, repr=False
    )

    # Shape of the result

    def select(self: _Query, columns: Selection) -> _Query:
        """Selects columns.

        Args:
            columns: A list of names in the order of the result, or a dict of names. A list may also
                hold UDFs with the return type `Columns[T]`, or `UnpackedUDF`. The values of a dict
                are expressions in Lance SQL, UDFs with parameters named like columns of the table,
                or `(udf, ["a", "b"])`, which binds the parameters to these columns in order. UDF
                columns are for materialized views.

        Raises:
            OptionError: The argument is not a list or dict, or is empty.
            RegistrationError: A value of the dict has another type.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            names = docs.search().select(["id", "text"]).to_arrow()
            totals = docs.search().select({"id": "id", "total": "price * stock"}).to_arrow()
            ```
        """
        if isinstance(columns, Mapping) and columns:
            sql, computed = parse_transforms(columns)
            return replace(self, columns=tuple(sql.items()), computed=tuple(computed))
        if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
            raise OptionError(
                "select", columns, "a list of columns, or a dict of names and expressions"
            )
        names: list[tuple[str, str]] = []
        udf_columns: list[Computed] = []
        for column in columns:
            if isinstance(column, str):
                names.append((column, quote_identifier(column)))
            else:
                udf_columns += parse_transforms(column)[1]
        return replace(self, columns=tuple(names), computed=tuple(udf_columns))

    def where(self: _Query, condition: str) -> _Query:
        """Selects the rows that match a condition in Lance SQL.

        Repeated calls combine their conditions with AND.

        Raises:
            OptionError: The condition is not a string.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search().where("price > 10").where("stock > 0").to_arrow()
            ```
        """
        if not isinstance(condition, str) or not condition.strip():
            raise OptionError("where", condition, "a condition in Lance SQL")
        return replace(
            self,
            condition=condition
            if self.condition is None
            else conjunction(self.condition, condition),
        )

    def limit(self: _Query, rows: int | None) -> _Query:
        """Limits the number of rows. Materialized views do not support a limit.

        Args:
            rows: Maximum number of rows. None or a negative number is no limit,
                except in a search.

        Raises:
            OptionError: The argument is not an integer, is 0, or is no limit of a search.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            sample = docs.search().limit(5).to_list()
            ```
        """
        is_unlimited = not self._is_ranked and (rows is None or rows < 0)
        return replace(self, most_rows=None if is_unlimited else _count("limit", rows, 1))

    def offset(self: _Query, rows: int) -> _Query:
        """Skips the first rows. Materialized views do not support an offset.

        Raises:
            OptionError: The argument is not an integer, or is negative.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            second_page = docs.search().offset(5).limit(5).to_list()
            ```
        """
        return replace(self, skipped_rows=_count("offset", rows, 0))

    def with_row_id(self: _Query, with_row_id: bool = True) -> _Query:
        """Adds the column `_rowid` with the row ids. Stable row ids never change.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            ids = docs.search().select(["id"]).with_row_id().to_arrow()["_rowid"]
            ```
        """
        return replace(self, row_ids=with_row_id)

    def order_by(self: _Query, ordering: Sequence[ColumnOrdering] | None) -> _Query:
        """Orders the rows by columns, the first column first.

        The order of a search concerns the best rows only: the search finds as many rows as its
        `limit`, and the result has these rows in the order of the columns.

        Args:
            ordering: The columns; None is the order of the table, or of the ranking.

        Raises:
            OptionError: A value is no :class:`lance_spark.ColumnOrdering`, or a column occurs
                twice.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            dearest_first = lance_spark.ColumnOrdering("price", ascending=False)
            rows = docs.search().order_by([dearest_first]).limit(3).to_list()
            ```
        """
        return replace(self, ordering=check_ordering(ordering))

    # Rows of the result

    def to_batches(
        self, batch_size: int | None = None, timeout: timedelta | None = None
    ) -> pa.RecordBatchReader:
        """Returns the rows as a stream of Arrow batches. Lance reads them in this process.

        The memory holds a few batches. A query is an Arrow stream itself, for all libraries with
        the Arrow PyCapsule interface.

        Args:
            batch_size: Maximum number of rows per batch. None uses Lance's default.
            timeout: Maximum time from this call to the last batch. The other methods that read rows
                in this process have the same parameter.

        Raises:
            QueryTimeoutError: The rows did not arrive in time. Raised during the read.
            FilterError: The condition is not valid, or fails on a value.
            ColumnNotFoundError: A column does not exist.
            SearchError: Lance does not support the search.
            TableUnreadableError: A file is missing or damaged.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = sum(batch.num_rows for batch in docs.search().to_batches(1024))
            ```
        """
        if batch_size is not None:
            _count("batch_size", batch_size, 1)
        deadline = QueryDeadline.of(timeout, self.source.uri)
        return self._stream(self._opened(), deadline, batch_size)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def to_arrow(self, *, timeout: timedelta | None = None) -> pa.Table:
        """Returns the rows as an Arrow table in this process.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            prices = docs.search().select(["price"]).to_arrow()["price"]
            ```
        """
        return self.to_batches(timeout=timeout).read_all()

    def to_pandas(
        self,
        flatten: bool | int | None = None,
        *,
        blob_mode: BlobMode = "lazy",
        timeout: timedelta | None = None,
        **arguments: Any,  # noqa: ANN401 - arguments of PyArrow
    ) -> pd.DataFrame:
        """Returns the rows as a pandas DataFrame in this process.

        Args:
            flatten: Levels of structs whose fields become columns, called `struct.field`; True is
                all levels.
            blob_mode: As in :meth:`lance_spark.Table.to_pandas`.
            timeout: As in :meth:`to_batches`.
            arguments: Arguments of `pyarrow.Table.to_pandas`.

        Raises:
            OptionError: `flatten` is 0 or negative, or `blob_mode` is unknown.
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            average = docs.search().where("stock > 0").to_pandas()["price"].mean()
            ```
        """
        check_levels(flatten)
        mode, deadline = check_blob_mode(blob_mode), QueryDeadline.of(timeout, self.source.uri)
        dataset = self._opened()
        blobs = BlobColumns.of(dataset, self.columns, mode)
        query = self if blobs is None else replace(self, row_ids=True)
        rows = query._rows(dataset, deadline)  # noqa: SLF001 - its own

        def convert(table: pa.Table) -> pd.DataFrame:
            has_more = query._has_row_ids() != self._has_row_ids()  # noqa: SLF001 - its own
            chosen = table.drop_columns([ROW_ID]) if has_more else table
            return to_pandas(flatten_structs(chosen, flatten), arguments)

        return convert(rows) if blobs is None else blobs.to_pandas(rows, convert)

    def to_polars(self, *, timeout: timedelta | None = None) -> pl.DataFrame:
        """Returns the rows as a Polars DataFrame in this process.

        Raises:
            UnsupportedOperationError: Polars is not installed.
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            average = docs.search().where("stock > 0").to_polars()["price"].mean()
            ```
        """
        return to_frame(self.to_arrow(timeout=timeout))

    def to_list(self, *, timeout: timedelta | None = None) -> list[dict[str, Any]]:
        """Returns the rows as a list of dicts in this process.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            for row in docs.search().where("id < 3").to_list():
                print(row["id"], row["text"])
            ```
        """
        return to_rows(self.to_arrow(timeout=timeout))

    def to_pydantic(self, model: type[_Model], *, timeout: timedelta | None = None) -> list[_Model]:
        """Returns the rows as objects of a class of pydantic, with the fields of the class.

        Raises:
            OptionError: The argument is no class of pydantic.
            SchemaMismatchError: A row does not fit the class.
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark
            from pydantic import BaseModel


            class Doc(BaseModel):
                id: int
                text: str


            docs = lance_spark.connect("tables").open_table("docs")
            first = docs.search().limit(1).to_pydantic(Doc)[0]
            print(first.text)
            ```
        """
        names = getattr(model, "model_fields", None)
        if not isinstance(names, dict):
            raise OptionError("model", model, "a class of pydantic")
        return to_models(self.to_list(timeout=timeout), model)

    def output_schema(self) -> pa.Schema:
        """Returns the Arrow schema of the rows. Reads no rows.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            assert docs.search().select(["id"]).output_schema().names == ["id"]
            ```
        """
        return self._schema(self._opened())

    def to_spark(self) -> DataFrame:
        """Returns the rows as a Spark DataFrame, pinned to one version.

        Spark tasks read the rows. A search runs in one task and keeps the rank order.

        Raises:
            UnsupportedOperationError: The query has an expression or an offset.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            frame = docs.search().where("price > 10").to_spark()
            frame.groupBy("stock").count().show()
            ```
        """
        self._refuse_expressions("to_spark()")
        spark, ref = self.spark(), self.source
        if ref.version is None and not is_classic(spark):
            ref = ref.pin(None)  # On Spark Connect, the first use resolves a DataFrame.
        options = ref.storage_settings | self._read_options()
        hidden = self._hidden_columns()
        if self.columns is not None:
            options["columns"] = json.dumps([*self._selected_names(), *hidden])
        if self.condition is not None:
            options["filter"] = self.condition
        if self._has_row_ids():
            options["with_row_id"] = "true"
        if ref.version is not None:
            options["version"] = str(ref.version)
        frame = spark.read.format("lance").options(**options).load(ref.uri)
        return self._order_frame(frame).drop(*hidden) if self.ordering else frame

    def explain_plan(self, verbose: bool = False) -> str:
        """Describes Lance's plan: the indexes in use, and the scans.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            print(docs.search().where("id = 7").explain_plan())
            ```
        """
        dataset = self._opened()
        with search_errors(dataset, self.condition):
            return self._plan(dataset, lambda scanner: scanner.explain_plan(verbose))

    def analyze_plan(self) -> str:
        """Runs the query, and describes Lance's plan with the rows, bytes and time of each step.

        Raises:
            LanceSparkError: As in :meth:`to_batches`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            assert "output_rows=1" in docs.search().where("id = 7").analyze_plan()
            ```
        """
        dataset = self._opened()
        with search_errors(dataset, self.condition):
            return self._plan(dataset, lambda scanner: scanner.analyze_plan())

    # Materialized views

    def create_materialized_view(
        self, db: ViewMaker[_Table_co], name: str, *, auto_refresh: bool = False
    ) -> _Table_co:
        """Creates a materialized view: `db.create_materialized_view(name, query)`.

        An agent refreshes a view with `auto_refresh`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("tables")
            query = db.open_table("docs").search().where("stock > 0").select(["id", "price"])
            view = query.create_materialized_view(db, "in_stock")
            ```
        """
        return db.create_materialized_view(name, self, auto_refresh=auto_refresh)

    def check_view(self) -> None:
        """Checks that a materialized view can follow this query.

        Raises:
            RegistrationError: The query has a limit or an offset, or ranks rows.
            UnsupportedOperationError: The query reads an older version.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            docs.search().where("stock > 0").check_view()
            ```
        """
        if self.source.version is not None:
            raise UnsupportedOperationError(
                f"A view follows the latest version of {self.source.uri}, but version {self.source.version} is checked "
                "out. Call checkout_latest()."
            )
        if self.ordering:
            raise RegistrationError(
                f"A materialized view of {self.source.uri} has no order. Apply order_by to queries over the view."
            )
        bounds = (("limit", self.most_rows), ("offset", self.skipped_rows or None))
        for bound, rows in bounds:
            if rows is not None:
                raise RegistrationError(
                    f"A materialized view of {self.source.uri} cannot have {bound}({rows}). The first rows change with "
                    "every added or deleted row, so a refresh could not tell which rows to keep. Select rows with "
                    f"where(...), or apply the {bound} to queries over the view."
                )

    # Overridden by searches

    _is_ranked: ClassVar[bool] = False

    def _read_options(self) -> dict[str, str]:
        if self.skipped_rows:
            raise UnsupportedOperationError(
                "to_spark() cannot skip rows, because Spark reads rows in no order. Use orderBy(...).offset(...) of "
                "the DataFrame."
            )
        return {} if self.most_rows is None or self.ordering else {"limit": str(self.most_rows)}

    def _order_frame(self, frame: DataFrame) -> DataFrame:
        ordered = frame.orderBy(*spark_ordering(self.ordering))
        return ordered if self.most_rows is None else ordered.limit(self.most_rows)

    def _rows(self, dataset: lance.LanceDataset, deadline: QueryDeadline) -> pa.Table:
        return self._stream(dataset, deadline).read_all()

    def _stream(
        self, dataset: lance.LanceDataset, deadline: QueryDeadline, batch_size: int | None = None
    ) -> pa.RecordBatchReader:
        batches = deadline.read(lambda: self._batches(dataset, batch_size))
        return stream_of(self._schema(dataset), batches, batch_size)

    def _batches(
        self, dataset: lance.LanceDataset, batch_size: int | None
    ) -> Iterator[pa.RecordBatch]:
        with search_errors(dataset, self.condition):
            scanner = self._scanner(dataset, batch_size)
        names = [
            name for name in scanner.projected_schema.names if name != ROW_ID or self._has_row_ids()
        ]
        for batch in read_scanner(scanner, dataset, self.condition):
            yield batch if len(names) == batch.num_columns else batch.select(names)

    def _schema(self, dataset: lance.LanceDataset) -> pa.Schema:
        with search_errors(dataset, self.condition):
            schema = self._scanner(dataset, None).projected_schema
        return (
            schema
            if ROW_ID not in schema.names or self._has_row_ids()
            else _without_row_ids(schema)
        )

    def _plan(
        self, dataset: lance.LanceDataset, describe: Callable[[lance.LanceScanner], str]
    ) -> str:
        return describe(self._scanner(dataset, None))

    # Helpers

    def _scanner(self, dataset: lance.LanceDataset, batch_size: int | None) -> lance.LanceScanner:
        columns = self._projection(dataset)
        if self.ordering:
            columns = {
                **dict(columns),
                ROW_ID: ROW_ID,
            }  # Lance fetches other columns after the sort
        return dataset.scanner(
            columns=columns,
            filter=self.condition,
            order_by=lance_ordering(self.ordering),
            limit=self.most_rows,
            offset=self.skipped_rows or None,
            batch_size=batch_size,
        )

    def _opened(self) -> lance.LanceDataset:
        """Opens the version of the query, and validates the query."""
        self._refuse_computed()
        dataset = self.source.open()
        if self.condition is not None:
            check_filter(dataset, self.condition, self.source.uri, "descriptor")
        for column in self.ordering:
            stored_field(dataset, column.column_name, self.source.uri)
        for name, expression in self.columns or ():
            if expression == quote_identifier(name) and name in self._selected_names():
                stored_field(dataset, name, self.source.uri)
        return dataset

    def _selected_names(self) -> list[str]:
        """Returns the names of the selected table columns."""
        return [name for name, _ in self.columns or () if name != ROW_ID]

    def _hidden_columns(self) -> list[str]:
        """Returns the columns of the order that the result lacks."""
        selected_names = {name for name, _ in self.columns or ()}
        names = () if self.columns is None else (column.column_name for column in self.ordering)
        return [name for name in names if name not in selected_names]

    def _has_row_ids(self) -> bool:
        return self.row_ids or any(name == ROW_ID for name, _ in self.columns or ())

    def _projection(self, dataset: lance.LanceDataset) -> Any:  # noqa: ANN401 - a list or a dict, as pylance takes them
        selected_names = self._selected_names()
        chosen = ((name, quote_identifier(name)) for name in dataset.schema.names)
        if self.columns is not None:
            chosen = (
                (name, expression) for name, expression in self.columns if name in selected_names
            )
        return {**dict(chosen), **({ROW_ID: ROW_ID} if self._has_row_ids() else {})} or []

    def _refuse_expressions(self, reader: str) -> None:
        """Raises an error unless every selected column is a column of the table."""
        self._refuse_computed()
        if any(expression != quote_identifier(name) for name, expression in self.columns or ()):
            raise UnsupportedOperationError(
                f"{reader} cannot read expressions in Lance SQL. Select columns by name, and compute with "
                "DataFrame.select."
            )

    def _refuse_computed(self) -> None:
        if self.computed:
            names = ", ".join(name for transform in self.computed for _, name in transform.columns)
            raise UnsupportedOperationError(
                f"A query of {self.source.uri} cannot compute columns of UDFs ({names}); a materialized view can. Call "
                "create_materialized_view, or select other columns."
            )


def attributes_of(query: Query) -> dict[str, Any]:
    """Returns the attributes of a query, for a search with the same shape."""
    return {attribute.name: getattr(query, attribute.name) for attribute in fields(query)}


def _without_row_ids(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index(ROW_ID))


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(name, value, f"a number of rows, {least} or more")
    return value
