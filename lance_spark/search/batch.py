"""Searches for many vectors at once, by Spark's tasks: :class:`BatchSearch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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
from lance_spark.options import ReadOptions
from lance_spark.queries import DEFAULT_K, Metric, VectorQuery
from lance_spark.read.columns import ROW_ID, table_schema
from lance_spark.read.plan import ScanTask
from lance_spark.read.request import plan_scan
from lance_spark.read.search.ranking import DISTANCE, Ranking, vector_column, vector_size
from lance_spark.read.sizes import measure_row
from lance_spark.read.spec import ScanSpec
from lance_spark.search.batch_tasks import OWN, PART, QUERY, ROW, VECTOR, FindNearest, TakeNearest
from lance_spark.search.query import Query, quoted
from lance_spark.search.ranked import Search
from lance_spark.session.sessions import known_slots

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame

INDEX_NUMBERS = 100_000_000
"""Numbers in the vectors of an index from which it is asked: measured on one core, comparing a
query with so many takes 10 ms, and Lance answers it from an index in 2 to 4 ms, however many."""

_SHARES = 16
"""Tasks that ask an index, where the size of the cluster is not known."""

_VECTOR_BYTES = 8 << 20
_TAKEN_BYTES = 32 << 20
_TAKEN_ROWS = 8192


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch(Search):
    """A search for each vector of a Spark DataFrame: its nearest rows, 10 where no `limit` says.

    Made by :meth:`lance_spark.Table.search` of a DataFrame. The result is a DataFrame: the columns
    of the queries, the selected columns of the table, and `_distance` (float, smaller is nearer);
    a query has as many rows as were found for it, in no certain order of queries. One whose vector
    is NULL has none. Vectors of queries are arrays of numbers, in the column that has the name of
    the table's, else in the only one there is.

    All runs on executors. Rows are compared with all queries, exactly, in parts of about the
    session's `target_partition_bytes`; where an index has vectors of 100,000,000 numbers or more
    and measures as is asked for, it answers instead for the rows that it serves. What is shuffled
    are the vectors of the queries, once for each part, and `limit` rows of ids for each query and
    part. Memory of a worker: some 550 MiB, a batch of queries (Spark's `arrow.maxRecordsPerBatch`,
    10,000 rows), and rows of the result of 32 MiB.

    Attributes:
        queries: The DataFrame.
    """

    queries: DataFrame = field(compare=False)

    # Its shape

    def where(self, condition: str, prefilter: bool = True) -> BatchSearch:
        """Searches among the rows that match a condition in Lance SQL.

        Raises:
            OptionError: It is no text.
            UnsupportedOperationError: It is to come after the search.
        """
        if not prefilter:
            raise UnsupportedOperationError(
                "a filter after the search is one of its result - in a search for many vectors - call where() of the "
                "DataFrame that to_spark() returns"
            )
        # A class with slots is made anew, which `super()` without arguments does not know.
        return replace(self, condition=Query.where(self, condition).condition)

    def rerank(self, reranker: object, query_string: str | None = None) -> BatchSearch:  # noqa: ARG002 - as inherited
        """Refuses it: rerankers order the rows of one query, in one process.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            "a reranker orders the rows of one query - in a search for many vectors - search for one, or order the "
            "DataFrame that to_spark() returns"
        )

    # Its rows

    def to_spark(self) -> DataFrame:
        """Returns queries with their rows as a DataFrame, pinned to one version of the table.

        Raises:
            UnsupportedOperationError: An expression is selected.
            OptionError: The queries have no vectors, or columns of one name with the table's.
            ColumnNotFoundError, FilterError: As in any search.
        """
        self._refuse_computed()
        if any(expression != quoted(name) for name, expression in self.columns or ()):
            raise UnsupportedOperationError(
                "Spark reads columns, and no expressions in Lance SQL - in a search for many vectors - select columns "
                "by name, and compute with DataFrame.select"
            )
        plan = self._planned()
        vector = self._vectors(plan.search.column)
        read = self._read_columns(plan)
        names = [*self.queries.columns, *read.names, DISTANCE]
        result = StructType(
            [*self.queries.schema.fields, *read.fields, StructField(DISTANCE, FloatType(), nullable=False)]
        )
        _refuse_two_of_one_name(names)
        width = max(1.0, measure_row(plan.ref.open(), read.names, plan.ref.storage_options)) if read.names else 1.0
        most = plan.search.k - self.skipped_rows
        take = TakeNearest(
            ref=plan.ref,
            first=self.skipped_rows,
            most=most,
            queries=tuple(self.queries.columns),
            columns=read,
            rows=max(1, min(_TAKEN_ROWS, int(_TAKEN_BYTES / width))),
        )
        found = self._sent(vector, plan).mapInArrow(plan.find, _found(self.queries.schema))
        return (
            found.repartition(QUERY)
            .sortWithinPartitions(QUERY, sf.col(OWN).isNull(), DISTANCE, ROW)
            .mapInArrow(take, result)
        )

    def to_arrow(self) -> pa.Table:
        """Returns queries with their rows in this process's memory, as Arrow.

        Raises:
            LanceSparkError: As in :meth:`to_spark`.
        """
        rows: pa.Table = self.to_spark().toArrow()
        return rows

    def to_batches(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the batches of :meth:`to_arrow`.

        Args:
            batch_size: Most rows of a batch, or None as Spark has it.

        Raises:
            LanceSparkError: As in :meth:`to_spark`.
        """
        return iter(self.to_arrow().to_batches(max_chunksize=batch_size))

    def explain_plan(self, verbose: bool = False) -> str:  # noqa: ARG002 - as inherited
        """Returns how the rows are found: which index serves, and how many rows are compared.

        Raises:
            LanceSparkError: As in :meth:`to_spark`.
        """
        plan = self._planned()
        served = [] if plan.index is None else [f"index: {plan.index}, rows: {plan.served}, tasks: {plan.shares}"]
        rows = sum(task.rows for task in plan.parts)
        compared = f"compared: rows: {rows}, tasks: {len(plan.parts)}"
        asked = f"metric: {plan.search.metric}, k: {plan.search.k}"
        return "; ".join([f"{plan.ref.uri}@{plan.ref.version}", asked, *served, compared])

    # How

    def _planned(self) -> _Plan:
        """Plans the parts of the table, and which index serves."""
        ref = self.source if self.source.version is not None else self.source.pin(None)
        dataset = replace(self, source=ref)._opened()  # noqa: SLF001 - its own
        settings: dict[str, Any] = dict(self.settings)
        column = vector_column(dataset, settings.pop("column", None))
        kind = dataset.schema.field(column).type if column in dataset.schema.names else None
        size = vector_size(kind) if kind is not None else None
        if kind is None or size is None:
            raise OptionError("vector_column_name", column, "a top-level column of vectors")
        k = (self.most_rows or DEFAULT_K) + self.skipped_rows
        query = VectorQuery(q=(0,) * size, column=column, k=k, **settings)
        index = _index_of(dataset, column, query.metric)
        if index is not None and query.metric is None and query.use_index:
            query = replace(query, metric=index.metric)
        query = Ranking(vector=query).checked(dataset).vector or query
        query = replace(query, metric=query.metric or "l2")
        if index is not None and (not query.use_index or index.metric != query.metric):
            index = None
        served, left = 0, None
        if index is not None:
            live = {one.fragment_id: one.metadata.num_rows for one in dataset.get_fragments()}
            served = sum(rows for number, rows in live.items() if number in index.fragments)
            left = tuple(sorted(live.keys() - index.fragments))
            if served * size < INDEX_NUMBERS:
                index, served, left = None, 0, None
        element = getattr(kind, "storage_type", kind).value_type
        options = ReadOptions(path=ref.uri, filter=self.condition, fragments=left, columns=(column,))
        parts: tuple[ScanTask, ...] = ()
        if left != ():
            scan = plan_scan(ref, options, ScanSpec(), table_schema(dataset, ref, options))
            rows = max(1, _VECTOR_BYTES // (size * 4))
            parts = tuple(replace(task, batch_rows=rows) for task in scan.tasks)
        find = FindNearest(
            ref=ref,
            # Distances of rows that an index has compressed are compared with exact ones.
            search=replace(query, refine_factor=query.refine_factor or 1),
            element=element,
            size=size,
            filter=self.condition,
            parts=parts,
        )
        shares = 0 if index is None else known_slots(self.queries.sparkSession) or _SHARES
        return _Plan(find=find, index=None if index is None else index.name, served=served, shares=shares)

    def _vectors(self, column: str | None) -> str:
        """Returns the name of the queries' column of vectors."""
        fields = self.queries.schema.fields
        found = [
            one.name
            for one in fields
            if isinstance(one.dataType, ArrayType) and isinstance(one.dataType.elementType, NumericType)
        ]
        if column in found:
            return str(column)
        if len(found) != 1:
            has = f"has {', '.join(found)}" if found else "has none"
            raise OptionError(
                "query",
                f"a DataFrame of {', '.join(one.name for one in fields)}",
                f"one that has vectors, arrays of numbers, in {column!r}, or in one column alone",
                problem=f"{has}",
            )
        return found[0]

    def _read_columns(self, plan: _Plan) -> StructType:
        names = tuple(self._names())
        dataset = plan.ref.open()
        options = ReadOptions(path=plan.ref.uri, columns=names or None, with_row_id=self._has_row_ids())
        fields = table_schema(dataset, plan.ref, options).fields
        if self.columns is not None and not names:
            fields = [one for one in fields if one.name == ROW_ID]
        return StructType(fields)

    def _sent(self, vector: str, plan: _Plan) -> DataFrame:
        """Returns each query once for each part that it goes to; one of them has its columns."""
        count = len(plan.parts)
        places = [f"c{number}" for number in range(len(self.queries.columns))]
        at = places[self.queries.columns.index(vector)]
        element = "double" if pa.types.is_float64(plan.find.element) else "float"
        numbered = self.queries.toDF(*places).select(
            sf.monotonically_increasing_id().alias(QUERY),
            sf.col(at).cast(f"array<{element}>").alias(VECTOR),
            sf.struct(*places).alias(OWN),
        )
        parts = sf.sequence(sf.lit(0), sf.lit(count - 1)) if count else sf.array().cast("array<int>")
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
    name: str
    metric: Metric
    fragments: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Where the rows are found.

    Attributes:
        find: What finds them.
        index: Name of the index that answers.
        served: Rows that it does for.
        shares: Into how many shares queries are cut for it.
    """

    find: FindNearest
    index: str | None
    served: int
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


def _index_of(dataset: lance.LanceDataset, column: str, metric: Metric | None) -> _Index | None:
    """Returns an index of a column that measures so, or else in any way."""
    found = []
    for one in dataset.describe_indices():
        measured = str((one.details or {}).get("metric_type", "")).lower()
        if one.index_type.startswith("IVF") and list(one.field_names) == [column] and measured:
            served = frozenset(number for segment in one.segments for number in segment.fragment_ids)
            found.append(_Index(name=one.name, metric=measured, fragments=served))  # type: ignore[arg-type]  # Lance's
    return next((one for one in found if one.metric == metric), found[0] if found else None)


def _found(queries: StructType) -> StructType:
    own = StructType([_renamed(one, f"c{number}") for number, one in enumerate(queries.fields)])
    return StructType(
        [
            StructField(QUERY, LongType(), nullable=False),
            StructField(DISTANCE, FloatType()),
            StructField(ROW, LongType()),
            StructField(OWN, own),
        ]
    )


def _renamed(one: StructField, name: str) -> StructField:
    return StructField(name, one.dataType, one.nullable)


def _refuse_two_of_one_name(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise OptionError(
                "query",
                f"a DataFrame with {name!r}",
                "columns whose names are not those that the search gives: rename them (withColumnRenamed), or select "
                "other columns of the table",
                problem=f"gives two columns the name {name!r}",
            )
        seen.add(name.lower())


def batch_search_of(queries: DataFrame, base: Query, vector_column_name: str | None) -> BatchSearch:
    """Returns the search that a DataFrame of queries begins."""
    shape = {one.name: getattr(base, one.name) for one in dataclasses.fields(base)}
    settings = () if vector_column_name is None else (("column", vector_column_name),)
    return BatchSearch(**shape, kind="vector", settings=settings, queries=queries)
