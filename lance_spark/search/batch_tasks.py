"""Tasks of a batch search: :class:`FindNearest`, :class:`TakeNearest`.

    queries x parts of the table      each query goes to all parts, and to one share of the index
      nearest rows of a part          :class:`FindNearest` compares the rows outside of the index
      sort by query and distance      by Spark, spilling to disk
      nearest rows of the table       :class:`TakeNearest` reads the rows and joins the queries

One copy of a query carries its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, TableUnreadableError
from lance_spark.lance_compat import take_known_rows
from lance_spark.queries.parameters import VectorQuery
from lance_spark.read.columns import ROW_ID, Projection
from lance_spark.read.planning.partitioning import ScanTask
from lance_spark.read.ranking.ranking import DISTANCE, is_searchable, nearest_of, search_errors
from lance_spark.read.scan import read_batches
from lance_spark.search.exact_knn import ExactKnn, Numbers, numbers_of
from lance_spark.types import ReadConverter
from lance_spark.types.fields import Array, Kind

PART, QUERY, VECTOR, OWN, ROW = "part", "query", "vector", "own", "row"
"""Columns between the tasks: part number, query number, query vector, query columns, and row id."""

_KEPT_NUMBERS = 1 << 22
"""Maximum number of matches that a task holds, over all queries."""

_INDEX_QUERIES = 256
"""Queries per index search."""

_ANSWER_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FindNearest:
    """Finds the nearest rows of a part for each query, for Spark's `mapInArrow`.

    Memory: a batch of queries (`spark.sql.execution.arrow.maxRecordsPerBatch`, 10,000 by default),
    a batch of vectors, 64 MiB of matches and 50 MiB of distances. A part is read once per group of
    queries. A group has 4,194,304 / k queries, and at most a batch.

    Attributes:
        ref: The table at a version.
        search: The search, with its column and metric. Its vector is a placeholder.
        element: The element type of the vector column.
        size: Number of elements per vector.
        filter: Filter in Lance SQL for the index search, or None.
        parts: Row ranges to compare. Higher part numbers are shares of the queries for the index.
    """

    ref: DatasetRef
    search: VectorQuery
    element: Kind
    size: int
    filter: str | None
    parts: tuple[ScanTask, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields query columns, and matching rows with distances. Runs on executors.

        Raises:
            OptionError: The vector of a query does not match the column.
            SearchError: Lance does not support the search.
            FilterError: The filter failed on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        for batch in batches:
            carriers = batch.filter(batch.column(OWN).is_valid())
            own = carriers.column(OWN)
            empty = len(own)
            yield _answer(
                carriers.column(QUERY),
                pa.nulls(empty, pa.float32()),
                pa.nulls(empty, pa.int64()),
                own,
            )
            queries = batch.filter(batch.column(VECTOR).is_valid())
            numbers: NDArray[np.int64] = queries.column(PART).to_numpy()
            for part in np.unique(numbers).tolist():
                some = queries.filter(pa.array(numbers == part))
                step = min(_INDEX_QUERIES, self._most) if part >= len(self.parts) else self._most
                for first in range(0, some.num_rows, step):
                    yield from self._find(part, some.slice(first, step), own.type)

    @property
    def _most(self) -> int:
        return max(1, _KEPT_NUMBERS // self.search.k)

    def _find(self, part: int, queries: pa.RecordBatch, own: Kind) -> Iterator[pa.RecordBatch]:
        vectors = queries.column(VECTOR)
        self._check(vectors)
        query_numbers = queries.column(QUERY)
        find = (
            self._indexed(vectors)
            if part >= len(self.parts)
            else self._compared(self.parts[part], vectors)
        )
        for numbers, distances, rows in find:
            for first in range(0, len(rows), _ANSWER_ROWS):
                some = slice(first, first + _ANSWER_ROWS)
                row = pa.array(rows[some])
                distance = pa.array(distances[some].astype(np.float32))
                yield _answer(
                    query_numbers.take(_as_int64(numbers[some])),
                    distance,
                    row,
                    pa.nulls(len(row), own),
                )

    def _check(self, vectors: Array) -> None:
        """Raises an error for vectors of another size or with invalid numbers."""
        lengths = pc.unique(pc.list_value_length(vectors)).to_pylist()
        for length in lengths:
            if length != self.size:
                accepted = f"vectors of {self.size} numbers, as column {self.search.column!r} has"
                raise OptionError("query", f"a vector of {length}", accepted)
        values = vectors.flatten().to_numpy(zero_copy_only=False)
        if not np.isfinite(values).all():
            raise OptionError(
                "query", "a vector with NULL, NaN or an infinite value", "vectors of finite numbers"
            )
        if pa.types.is_uint8(self.element) and not ((values == values.astype(np.uint8)).all()):
            raise OptionError("query", "a vector of other numbers", "vectors of bytes, of 0 to 255")

    def _compared(self, task: ScanTask, vectors: Array) -> Iterator[tuple[Any, ...]]:
        column, metric = self.search.column, self.search.metric
        assert column is not None and metric is not None
        nearest = ExactKnn(numbers_of(vectors, self.element), self.search.k, metric)
        for batch in read_batches(self.ref, task, columns=[column, ROW_ID], blobs="descriptor"):
            searchable = batch.filter(pa.array(is_searchable(batch.column(0))))
            stored: Any = searchable.column(0)
            stored = getattr(stored, "storage", stored)
            nearest.add(
                numbers_of(stored, self.element), searchable.column(1).to_numpy().view(np.int64)
            )
        yield nearest.matches()

    def _indexed(self, vectors: Array) -> Iterator[tuple[Any, ...]]:
        """Yields matches from the index. Rows outside of the index belong to other parts."""
        dataset = self.ref.open()
        kind = self.element.to_pandas_dtype()
        values: Numbers = vectors.flatten().to_numpy(zero_copy_only=False).astype(kind)
        with search_errors(dataset, self.filter):
            matches = dataset.scanner(
                columns=[ROW_ID, DISTANCE],
                nearest=nearest_of(self.search, values.reshape(len(vectors), self.size)),
                filter=self.filter,
                prefilter=None if self.filter is None else True,
                fast_search=True,
                disable_scoring_autoprojection=True,
            ).to_table()
        rows = matches[ROW_ID].to_numpy().view(np.int64)
        single = "query_index" not in matches.schema.names
        queries = (
            np.zeros(len(rows), np.int64)
            if single
            else matches["query_index"].to_numpy().astype(np.int64)
        )
        yield queries, matches[DISTANCE].to_numpy(), rows


def _answer(query: Array, distance: Array, row: Array, own: Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [query, distance, row, own], names=[QUERY, DISTANCE, ROW, OWN]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeNearest:
    """Reads the nearest rows of each query, for Spark's `mapInArrow`.

    The input is sorted by query and distance. The columns of a query precede its rows. Memory: a
    batch of matches, and `rows` rows of the table.

    Attributes:
        ref: The table at a version.
        first: Number of nearest rows to skip.
        most: Maximum number of rows per query after the skipped rows.
        queries: Names of the columns of the queries.
        columns: Columns of the table to read, in Spark's types.
        rows: Number of rows per read.
    """

    ref: DatasetRef
    first: int
    most: int
    queries: tuple[str, ...]
    columns: StructType
    rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the queries with their rows. Runs on executors.

        Raises:
            TableUnreadableError: A file is missing or damaged.
            ValueConversionError: A value does not fit Spark's type.
        """
        pending: pa.Table | None = None
        for batch in batches:
            table = pa.Table.from_batches([batch])
            pending = (
                table if pending is None else pa.concat_tables([pending, table]).combine_chunks()
            )
            queries = pending[QUERY].to_numpy()
            if not len(queries):
                continue
            # The last query may continue in the next batch.
            whole = int(np.searchsorted(queries, queries[-1]))
            yield from self._read_matches(pending.slice(0, whole))
            pending = pending.slice(whole)
        if pending is not None:
            yield from self._read_matches(pending)

    def _read_matches(self, matches: pa.Table) -> Iterator[pa.RecordBatch]:
        if not len(matches):
            return
        queries = matches[QUERY].to_numpy()
        starts = np.flatnonzero(np.r_[True, queries[1:] != queries[:-1]])
        own = np.repeat(starts, np.diff([*starts, len(queries)]))
        rank = np.arange(len(queries)) - own - 1
        selected = np.flatnonzero((rank >= self.first) & (rank < self.first + self.most))
        for first in range(0, len(selected), self.rows):
            some = selected[first : first + self.rows]
            rows = matches[ROW].combine_chunks().take(_as_int64(some))
            query_columns: Array = matches[OWN].combine_chunks().take(_as_int64(own[some]))
            distances = matches[DISTANCE].combine_chunks().take(_as_int64(some))
            emitted = 0
            for read in self._read(rows.to_numpy()):
                part = query_columns.slice(emitted, read.num_rows)
                # The struct of the columns of a query is never NULL here.
                arrays = [*part.flatten(), *read.columns, distances.slice(emitted, read.num_rows)]
                names = [*self.queries, *read.schema.names, DISTANCE]
                yield pa.RecordBatch.from_arrays(arrays, names=names)
                emitted += read.num_rows

    def _read(self, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yields rows of the table in the order of the ids. A repeated id repeats the row."""
        dataset = self.ref.open()
        ids, places = np.unique(rows, return_inverse=True)
        projection = Projection(dataset, self.columns, "descriptor", self.ref.uri, prune=False)
        requested = [*(path for path in projection.paths if path != ROW_ID), ROW_ID]
        with search_errors(dataset, None):
            table = take_known_rows(dataset, ids.view(np.uint64).tolist(), requested)
        order = np.argsort(table[ROW_ID].to_numpy())
        if len(table) != len(ids):
            raise TableUnreadableError(
                self.ref.uri,
                f"{len(ids) - len(table)} rows of the result are missing (version {self.ref.version})",
                hint="A data file is missing or damaged. Check the storage.",
            )
        if not projection.paths:
            nothing: Array = pa.StructArray.from_buffers(pa.struct([]), len(rows), [None])
            yield pa.RecordBatch.from_struct_array(nothing)
            return
        (batch,) = (
            table.select(projection.paths)
            .take(_as_int64(order[places]))
            .combine_chunks()
            .to_batches()
        )
        yield from ReadConverter(projection.source, self.columns).convert_split(
            projection.assemble(batch)
        )


def _as_int64(places: Numbers) -> pa.Int64Array:
    return cast(pa.Int64Array, pa.array(places.astype(np.int64)))
