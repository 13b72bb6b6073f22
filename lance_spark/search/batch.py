"""Vector searches for the rows of a DataFrame, run by Spark tasks: :class:`BatchSearch`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    FloatType,
    LongType,
    NumericType,
    StructField,
    StructType,
)

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.options.io_options import ReadOptions
from lance_spark.queries.parameters import DEFAULT_K, Metric, VectorQuery
from lance_spark.read.columns import ROW_ID, table_schema
from lance_spark.read.filtering import indexed_fragments
from lance_spark.read.planning.partitioning import ScanTask
from lance_spark.read.planning.pushdown_request import ScanSpec
from lance_spark.read.planning.scan_plan import plan_scan
from lance_spark.read.planning.sizes import measure_row
from lance_spark.read.ranking.ranking import DISTANCE, Ranking, vector_column, vector_size
from lance_spark.search.batch_tasks import OWN, PART, QUERY, ROW, VECTOR, FindNearest, TakeNearest
from lance_spark.search.query import Query, attributes_of
from lance_spark.search.search import Search
from lance_spark.search.timeouts import QueryDeadline
from lance_spark.session.sessions import known_slots
from lance_spark.types.fields import Kind

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame

INDEX_NUMBERS = 100_000_000
"""Minimum number of vector elements in an index for using the index. On one core, comparing a query
with 100,000,000 elements takes 10 ms. An index answers a query in 2 to 4 ms, regardless of its
size."""

_OF_ONE_VECTOR = ("maximum_nprobes", "lower_bound", "upper_bound")
"""Settings of a search for one vector only."""

_SHARES = 16
"""Number of index tasks if the size of the cluster is unknown."""

_VECTOR_BYTES = 8 << 20
_TAKEN_BYTES = 32 << 20
_TAKEN_ROWS = 8192


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch(Search):
    """A vector search for each row of a Spark DataFrame, 10 rows per query without a `limit`.

    :meth:`lance_spark.Table.search` makes a batch search from a DataFrame. The result is a
    DataFrame with the columns of the queries, the selected columns of the table, and `_distance`
    (float, smaller is nearer). Each query has a row per match, and the order of the queries is
    undefined. A query with a NULL vector has no rows. The query vectors are arrays of numbers.
    Their column has the name of the table's vector column, or is the only column of vectors.

    Executors do all of the work. Tasks compare rows with all queries exactly, in parts of about the
    session's `target_partition_bytes`. If the index has vectors of 100,000,000 elements or more and
    the requested metric, the index covers its rows instead. The shuffle moves the query vectors,
    once per part, and `limit` row ids per query and part. A worker needs about 550 MiB, a batch of
    queries (Spark's `arrow.maxRecordsPerBatch`, 10,000 rows), and 32 MiB of result rows.

    Attributes:
        queries: The DataFrame.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
        docs = lance_spark.connect("tables", spark=spark).open_table("docs")
        vectors = [(1, [0.1, 0.2]), (2, [0.9, 0.8])]
        queries = spark.createDataFrame(vectors, "query int, vec array<float>")
        nearest = docs.search(queries).limit(3).select(["id"]).to_spark()
        ```
    """

    queries: DataFrame = field(compare=False)

    # Shape of the result

    def where(self, condition: str, prefilter: bool = True) -> BatchSearch:
        """Filters the rows of the table before the search, with a condition in Lance SQL.

        Raises:
            OptionError: The condition is not a string.
            UnsupportedOperationError: `prefilter` is false.
        """
        if not prefilter:
            raise UnsupportedOperationError(
                "A search for many vectors cannot filter its result. Call where() of the DataFrame that to_spark() "
                "returns."
            )
        # A class with slots is created twice, and `super()` without arguments uses the first class.
        return replace(self, condition=Query.where(self, condition).condition)

    def rerank(
        self,
        reranker: object,  # noqa: ARG002 - as inherited
        query_string: str | None = None,  # noqa: ARG002
        *,
        normalize: Literal["score", "rank"] = "score",  # noqa: ARG002
    ) -> BatchSearch:
        """Raises an error: rerankers order the rows of a single query, in a single process.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            "A reranker orders the rows of one query, not of a search for many vectors. Search for one vector, or "
            "order the DataFrame that to_spark() returns."
        )

    # Rows of the result

    def to_spark(self) -> DataFrame:
        """Returns the queries with their nearest rows as a DataFrame, pinned to one table version.

        Raises:
            UnsupportedOperationError: The query selects an expression.
            OptionError: The queries have no vectors, or share a column name with the table.
            ColumnNotFoundError, FilterError: As in any search.
        """
        self._refuse_expressions("A search for many vectors")
        plan = self._planned()
        vector = self._vectors(plan.search.column)
        read = self._read_columns(plan)
        names = [*self.queries.columns, *read.names, DISTANCE]
        result = StructType(
            [
                *self.queries.schema.fields,
                *read.fields,
                StructField(DISTANCE, FloatType(), nullable=False),
            ]
        )
        _refuse_duplicate_names(names)
        width = (
            max(1.0, measure_row(plan.ref.open(), read.names, plan.ref.storage_options))
            if read.names
            else 1.0
        )
        most = plan.search.k - self.skipped_rows
        take = TakeNearest(
            ref=plan.ref,
            first=self.skipped_rows,
            most=most,
            queries=tuple(self.queries.columns),
            columns=read,
            rows=max(1, min(_TAKEN_ROWS, int(_TAKEN_BYTES / width))),
        )
        candidates = self._sent(vector, plan).mapInArrow(
            plan.find, _candidate_schema(self.queries.schema)
        )
        return (
            candidates.repartition(QUERY)
            .sortWithinPartitions(QUERY, sf.col(OWN).isNull(), DISTANCE, ROW)
            .mapInArrow(take, result)
        )

    def to_arrow(self, *, timeout: timedelta | None = None) -> pa.Table:
        """Returns the queries with their nearest rows as an Arrow table in this process.

        Raises:
            LanceSparkError: As in :meth:`to_spark`.
            UnsupportedOperationError: A timeout is given.
        """
        if timeout is not None:
            raise UnsupportedOperationError(
                "A search for the vectors of a DataFrame has no timeout, because Spark runs it. Leave timeout out, or "
                "cancel the Spark job."
            )
        rows: pa.Table = self.to_spark().toArrow()
        return rows

    def to_batches(
        self, batch_size: int | None = None, timeout: timedelta | None = None
    ) -> pa.RecordBatchReader:
        """Returns the batches of :meth:`to_arrow`, which Spark collects in this process.

        Args:
            batch_size: Maximum number of rows per batch. None uses Spark's batches.
            timeout: Not supported.

        Raises:
            LanceSparkError: As in :meth:`to_spark`.
        """
        return self.to_arrow(timeout=timeout).to_reader(max_chunksize=batch_size)

    def _rows(self, dataset: lance.LanceDataset, deadline: QueryDeadline) -> pa.Table:
        is_pinned = self.source.version is not None
        source = self.source if is_pinned else self.source.pin(dataset.version)
        return replace(self, source=source).to_arrow(timeout=deadline.timeout)

    def explain_plan(self, verbose: bool = False) -> str:  # noqa: ARG002 - as inherited
        """Describes the plan: the index, and the number of rows to compare.

        Raises:
            LanceSparkError: As in :meth:`to_spark`.
        """
        plan = self._planned()
        index = plan.index
        index_lines = (
            []
            if index is None
            else [f"index: {index.name}, rows: {index.rows}, tasks: {plan.shares}"]
        )
        rows = sum(task.rows for task in plan.parts)
        compared = f"compared: rows: {rows}, tasks: {len(plan.parts)}"
        request = f"metric: {plan.search.metric}, k: {plan.search.k}"
        return "; ".join([f"{plan.ref.uri}@{plan.ref.version}", request, *index_lines, compared])

    def analyze_plan(self) -> str:
        """Raises an error: Spark runs the search.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            "Spark runs a search for the vectors of a DataFrame. Call explain_plan(), or see the Spark UI."
        )

    # Planning

    def _planned(self) -> _BatchSearchPlan:
        """Plans the parts of the table, and selects the index."""
        if self.ordering:
            raise UnsupportedOperationError(
                "A search for the vectors of a DataFrame has no order_by. Order the rows of to_spark()."
            )
        ref = self.source if self.source.version is not None else self.source.pin(None)
        dataset = replace(self, source=ref)._opened()  # noqa: SLF001 - its own
        settings: dict[str, Any] = dict(self.settings)
        unsupported = [name for name in _OF_ONE_VECTOR if settings.pop(name, None) is not None]
        if unsupported or self.only_indexed:
            raise UnsupportedOperationError(
                f"A search for the vectors of a DataFrame has no {', '.join(unsupported) or 'fast_search'}. Nothing "
                "was read. Filter the result by _distance, or search for one vector."
            )
        column, element, size = _vector_column(dataset, settings.pop("column", None))
        k = (self.most_rows or DEFAULT_K) + self.skipped_rows
        query, index = _choose_index(
            dataset, VectorQuery(q=(0,) * size, column=column, k=k, **settings)
        )
        find = FindNearest(
            ref=ref,
            # Distances of compressed index rows are compared with exact distances.
            search=replace(query, refine_factor=query.refine_factor or 1),
            element=element,
            size=size,
            filter=self.condition,
            parts=self._parts(ref, column, size, None if index is None else index.other_fragments),
        )
        shares = 0 if index is None else known_slots(self.queries.sparkSession) or _SHARES
        return _BatchSearchPlan(find=find, index=index, shares=shares)

    def _parts(
        self, ref: DatasetRef, column: str, size: int, fragments: tuple[int, ...] | None
    ) -> tuple[ScanTask, ...]:
        """Returns the parts of some fragments, or of all fragments, to compare with the queries."""
        if fragments == ():
            return ()
        options = ReadOptions(
            path=ref.uri, filter=self.condition, fragments=fragments, columns=(column,)
        )
        scan = plan_scan(ref, options, ScanSpec(), table_schema(ref.open(), ref, options))
        rows = max(1, _VECTOR_BYTES // (size * 4))
        return tuple(replace(task, batch_rows=rows) for task in scan.tasks)

    def _vectors(self, column: str | None) -> str:
        """Returns the name of the vector column of the queries."""
        fields = self.queries.schema.fields
        vector_columns = [
            column_field.name
            for column_field in fields
            if isinstance(column_field.dataType, ArrayType)
            and isinstance(column_field.dataType.elementType, NumericType)
        ]
        if column in vector_columns:
            return str(column)
        if len(vector_columns) != 1:
            has = (
                f"has the vector columns {', '.join(vector_columns)}"
                if vector_columns
                else "has no vectors"
            )
            raise OptionError(
                "query",
                f"a DataFrame of {', '.join(column_field.name for column_field in fields)}",
                f"query vectors, arrays of numbers, in the column {column!r} or in a single column",
                problem=f"{has}",
            )
        return vector_columns[0]

    def _read_columns(self, plan: _BatchSearchPlan) -> StructType:
        names = tuple(self._selected_names())
        dataset = plan.ref.open()
        options = ReadOptions(
            path=plan.ref.uri, columns=names or None, with_row_id=self._has_row_ids()
        )
        fields = table_schema(dataset, plan.ref, options).fields
        if self.columns is not None and not names:
            fields = [column_field for column_field in fields if column_field.name == ROW_ID]
        return StructType(fields)

    def _sent(self, vector: str, plan: _BatchSearchPlan) -> DataFrame:
        """Sends each query to every part. One copy carries the columns of the query."""
        count = len(plan.parts)
        places = [f"c{number}" for number in range(len(self.queries.columns))]
        at = places[self.queries.columns.index(vector)]
        element = "double" if pa.types.is_float64(plan.find.element) else "float"
        numbered = self.queries.toDF(*places).select(
            sf.monotonically_increasing_id().alias(QUERY),
            sf.col(at).cast(f"array<{element}>").alias(VECTOR),
            sf.struct(*places).alias(OWN),
        )
        parts = (
            sf.sequence(sf.lit(0), sf.lit(count - 1)) if count else sf.array().cast("array<int>")
        )
        if plan.shares:
            share = sf.lit(count) + sf.pmod(sf.xxhash64(QUERY), sf.lit(plan.shares)).cast("int")
            parts = sf.concat(parts, sf.array(share))
        return (
            numbered.select("*", sf.posexplode(parts).alias("place", PART))
            .select(
                PART,
                QUERY,
                VECTOR,
                sf.when(sf.col("place") == 0, sf.col(OWN)).alias(OWN),
            )
            .repartitionById(max(1, count + plan.shares), sf.col(PART))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """An index of vectors.

    Attributes:
        name: Name of the index.
        metric: Metric of the index.
        rows: Number of rows covered by the index.
        other_fragments: Ids of the fragments that the index does not cover.
    """

    name: str
    metric: Metric
    rows: int
    other_fragments: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchSearchPlan:
    """The plan of a batch search.

    Attributes:
        find: Function of the tasks that find rows.
        index: The index, or None.
        shares: Number of shares into which the queries are split for the index.
    """

    find: FindNearest
    index: _Index | None
    shares: int

    @property
    def ref(self) -> DatasetRef:
        return self.find.ref

    @property
    def search(self) -> VectorQuery:
        return self.find.search

    @property
    def parts(self) -> tuple[ScanTask, ...]:
        return self.find.parts


def _vector_column(dataset: lance.LanceDataset, name: str | None) -> tuple[str, Kind, int]:
    """Returns the vector column of the search, and the type and number of its elements."""
    column = vector_column(dataset, name)
    kind: Any = dataset.schema.field(column).type if column in dataset.schema.names else None
    size = None if kind is None else vector_size(kind)
    if size is None:
        raise OptionError("vector_column_name", column, "a top-level column of vectors")
    return column, getattr(kind, "storage_type", kind).value_type, size


def _choose_index(
    dataset: lance.LanceDataset, query: VectorQuery
) -> tuple[VectorQuery, _Index | None]:
    """Returns the query with its metric, and a large index with this metric, or None."""
    index = _index_of(dataset, query.column, query.metric) if query.use_index else None
    if index is not None:
        query = replace(query, metric=index.metric)
    query = Ranking(vector=query).checked(dataset).vector or query
    is_large = index is not None and index.rows * len(query.q) >= INDEX_NUMBERS
    return replace(query, metric=query.metric or "l2"), index if is_large else None


def _index_of(
    dataset: lance.LanceDataset, column: str | None, metric: Metric | None
) -> _Index | None:
    """Returns an index of the column with the metric, or with any metric for None."""
    for index in dataset.describe_indices():
        measured = str((index.details or {}).get("metric_type", "")).lower()
        is_candidate = index.index_type.startswith("IVF") and list(index.field_names) == [column]
        if is_candidate and measured and metric in (None, measured):
            fragment_ids = indexed_fragments(index)
            rows = {
                fragment.fragment_id: fragment.metadata.num_rows
                for fragment in dataset.get_fragments()
            }
            return _Index(
                name=index.name,
                metric=cast(Metric, measured),
                rows=sum(count for number, count in rows.items() if number in fragment_ids),
                other_fragments=tuple(sorted(rows.keys() - fragment_ids)),
            )
    return None


def _candidate_schema(queries: StructType) -> StructType:
    own = StructType(
        [_renamed(column_field, f"c{number}") for number, column_field in enumerate(queries.fields)]
    )
    return StructType(
        [
            StructField(QUERY, LongType(), nullable=False),
            StructField(DISTANCE, FloatType()),
            StructField(ROW, LongType()),
            StructField(OWN, own),
        ]
    )


def _renamed(column_field: StructField, name: str) -> StructField:
    return StructField(name, column_field.dataType, column_field.nullable)


def _refuse_duplicate_names(names: list[str]) -> None:
    lower_names: set[str] = set()
    for name in names:
        if name.lower() in lower_names:
            raise OptionError(
                "query",
                f"a DataFrame with {name!r}",
                "queries and a result with different column names. Rename columns (withColumnRenamed), or select other "
                "columns of the table",
                problem=f"gives two columns the name {name!r}",
            )
        lower_names.add(name.lower())


def batch_search_of(queries: DataFrame, base: Query, vector_column_name: str | None) -> BatchSearch:
    """Returns the batch search for a DataFrame of queries."""
    settings = () if vector_column_name is None else (("column", vector_column_name),)
    return BatchSearch(**attributes_of(base), kind="vector", settings=settings, queries=queries)
