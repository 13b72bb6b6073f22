"""What Spark's tasks do in a search for many vectors: :class:`FindNearest`, :class:`TakeNearest`.

    queries x parts of the table      each query goes to all parts, and to one share of the index
      the nearest rows of a part      :class:`FindNearest`: rows that an index lacks are compared
      by query and distance           by Spark, on disk where memory ends
      the nearest rows of all         :class:`TakeNearest`: they are read, and put beside the query

A query's own columns travel with one of its copies.
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
from lance_spark.queries import VectorQuery
from lance_spark.read.columns import ROW_ID, Projection
from lance_spark.read.plan import ScanTask
from lance_spark.read.scan import read_batches
from lance_spark.read.search.ranking import DISTANCE, nearest_of, search_errors
from lance_spark.read.search.vectors import is_searchable
from lance_spark.search.comparing import NearestRows, Numbers, numbers_of
from lance_spark.types import ReadConverter
from lance_spark.types.fields import Array, Kind

PART, QUERY, VECTOR, OWN, ROW = "part", "query", "vector", "own", "row"
"""Columns between the tasks: number of a part, number of a query, its vector and its columns, and
the id of a row."""

_KEPT_NUMBERS = 1 << 22
"""Rows found that a task holds at once, of all queries together."""

_INDEX_QUERIES = 256
"""Queries that an index answers at once."""

_ANSWER_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FindNearest:
    """Finds the rows of a part that are nearest to each query; for Spark's `mapInArrow`.

    Memory: a batch of queries (`spark.sql.execution.arrow.maxRecordsPerBatch`, 10,000 by default),
    a batch of vectors, 64 MiB of rows found and 50 MiB of distances. A part is read once for as
    many queries as that allows: 4,194,304 / k, and at most a batch.

    Attributes:
        ref: The table at a version.
        search: What is asked for, with its column and its metric; its vector means nothing.
        element: The type of the elements of the column.
        size: How many elements a vector has.
        filter: The rows among which, in Lance SQL, where the index answers.
        parts: Rows that are compared; a part of a higher number is a share of the queries that the
            index answers.
    """

    ref: DatasetRef
    search: VectorQuery
    element: Kind
    size: int
    filter: str | None
    parts: tuple[ScanTask, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the queries with their columns, and rows with their distances. Runs on executors.

        Raises:
            OptionError: A query's vector does not fit the column.
            SearchError: Lance cannot search so.
            FilterError: The filter failed on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        for batch in batches:
            carriers = batch.filter(batch.column(OWN).is_valid())
            own = carriers.column(OWN)
            empty = len(own)
            yield _answer(carriers.column(QUERY), pa.nulls(empty, pa.float32()), pa.nulls(empty, pa.int64()), own)
            asked = batch.filter(batch.column(VECTOR).is_valid())
            numbers: NDArray[np.int64] = asked.column(PART).to_numpy()
            for part in np.unique(numbers).tolist():
                some = asked.filter(pa.array(numbers == part))
                step = min(_INDEX_QUERIES, self._most) if part >= len(self.parts) else self._most
                for first in range(0, some.num_rows, step):
                    yield from self._found(part, some.slice(first, step), own.type)

    @property
    def _most(self) -> int:
        return max(1, _KEPT_NUMBERS // self.search.k)

    def _found(self, part: int, queries: pa.RecordBatch, own: Kind) -> Iterator[pa.RecordBatch]:
        given = queries.column(VECTOR)
        self._check(given)
        asked = queries.column(QUERY)
        find = self._indexed(given) if part >= len(self.parts) else self._compared(self.parts[part], given)
        for numbers, distances, rows in find:
            for first in range(0, len(rows), _ANSWER_ROWS):
                some = slice(first, first + _ANSWER_ROWS)
                row = pa.array(rows[some])
                distance = pa.array(distances[some].astype(np.float32))
                yield _answer(asked.take(_numbers(numbers[some])), distance, row, pa.nulls(len(row), own))

    def _check(self, vectors: Array) -> None:
        """Refuses vectors that cannot be compared with the column's."""
        lengths = pc.unique(pc.list_value_length(vectors)).to_pylist()
        for length in lengths:
            if length != self.size:
                accepted = f"vectors of {self.size} numbers, as column {self.search.column!r} has"
                raise OptionError("query", f"a vector of {length}", accepted)
        values = vectors.flatten().to_numpy(zero_copy_only=False)
        if not np.isfinite(values).all():
            raise OptionError("query", "a vector with NULL, NaN or an infinite value", "vectors of finite numbers")
        if pa.types.is_uint8(self.element) and not ((values == values.astype(np.uint8)).all()):
            raise OptionError("query", "a vector of other numbers", "vectors of bytes, of 0 to 255")

    def _compared(self, task: ScanTask, vectors: Array) -> Iterator[tuple[Any, ...]]:
        column, metric = self.search.column, self.search.metric
        assert column is not None and metric is not None
        nearest = NearestRows(numbers_of(vectors, self.element), self.search.k, metric)
        for batch in read_batches(self.ref, task, columns=[column, ROW_ID], blobs="descriptor"):
            there = batch.filter(pa.array(is_searchable(batch.column(0))))
            stored: Any = there.column(0)
            stored = getattr(stored, "storage", stored)
            nearest.add(numbers_of(stored, self.element), there.column(1).to_numpy().view(np.int64))
        yield nearest.found()

    def _indexed(self, vectors: Array) -> Iterator[tuple[Any, ...]]:
        """Yields rows that the index finds; those that it lacks are parts."""
        dataset = self.ref.open()
        kind = self.element.to_pandas_dtype()
        values: Numbers = vectors.flatten().to_numpy(zero_copy_only=False).astype(kind)
        with search_errors(dataset, self.filter):
            found = dataset.scanner(
                columns=[ROW_ID, DISTANCE],
                nearest=nearest_of(self.search, values.reshape(len(vectors), self.size)),
                filter=self.filter,
                prefilter=None if self.filter is None else True,
                fast_search=True,
                disable_scoring_autoprojection=True,
            ).to_table()
        rows = found[ROW_ID].to_numpy().view(np.int64)
        single = "query_index" not in found.schema.names
        queries = np.zeros(len(rows), np.int64) if single else found["query_index"].to_numpy().astype(np.int64)
        yield queries, found[DISTANCE].to_numpy(), rows


def _answer(query: Array, distance: Array, row: Array, own: Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([query, distance, row, own], names=[QUERY, DISTANCE, ROW, OWN])


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeNearest:
    """Reads the nearest rows of each query; for Spark's `mapInArrow`.

    What it gets is sorted by query and distance, and a query's columns come before its rows.
    Memory: a batch of what was found, and `rows` rows of the table.

    Attributes:
        ref: The table at a version.
        first: Nearest rows that are left out.
        most: Rows of a query, after those.
        queries: Names of the queries' columns.
        columns: Columns of the table that are read, in Spark's types.
        rows: Rows that are read at once.
    """

    ref: DatasetRef
    first: int
    most: int
    queries: tuple[str, ...]
    columns: StructType
    rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields queries with their rows. Runs on executors.

        Raises:
            TableUnreadableError: A file is missing or damaged.
            ValueConversionError: A value does not fit Spark's type.
        """
        held: pa.Table | None = None
        for batch in batches:
            table = pa.Table.from_batches([batch])
            held = table if held is None else pa.concat_tables([held, table]).combine_chunks()
            queries = held[QUERY].to_numpy()
            if not len(queries):
                continue
            # The last query may go on in the next batch.
            whole = int(np.searchsorted(queries, queries[-1]))
            yield from self._taken(held.slice(0, whole))
            held = held.slice(whole)
        if held is not None:
            yield from self._taken(held)

    def _taken(self, found: pa.Table) -> Iterator[pa.RecordBatch]:
        if not len(found):
            return
        queries = found[QUERY].to_numpy()
        starts = np.flatnonzero(np.r_[True, queries[1:] != queries[:-1]])
        own = np.repeat(starts, np.diff([*starts, len(queries)]))
        rank = np.arange(len(queries)) - own - 1
        kept = np.flatnonzero((rank >= self.first) & (rank < self.first + self.most))
        for first in range(0, len(kept), self.rows):
            some = kept[first : first + self.rows]
            rows = found[ROW].combine_chunks().take(_numbers(some))
            beside: Array = found[OWN].combine_chunks().take(_numbers(own[some]))
            distances = found[DISTANCE].combine_chunks().take(_numbers(some))
            done = 0
            for read in self._read(rows.to_numpy()):
                part = beside.slice(done, read.num_rows)
                # The columns of a query are never NULL as a whole here.
                arrays = [*part.flatten(), *read.columns, distances.slice(done, read.num_rows)]
                names = [*self.queries, *read.schema.names, DISTANCE]
                yield pa.RecordBatch.from_arrays(arrays, names=names)
                done += read.num_rows

    def _read(self, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yields rows of the table by their ids, in this order, each as often as it is named."""
        dataset = self.ref.open()
        ids, places = np.unique(rows, return_inverse=True)
        projection = Projection(dataset, self.columns, "descriptor", self.ref.uri, prune=False)
        wanted = [*(path for path in projection.paths if path != ROW_ID), ROW_ID]
        with search_errors(dataset, None):
            table = take_known_rows(dataset, ids.view(np.uint64).tolist(), wanted)
        order = np.argsort(table[ROW_ID].to_numpy())
        if len(table) != len(ids):
            raise TableUnreadableError(
                self.ref.uri,
                f"{len(ids) - len(table)} rows that were found cannot be read (version {self.ref.version})",
                hint="a data file is missing or damaged: check the storage",
            )
        if not projection.paths:
            nothing: Array = pa.StructArray.from_buffers(pa.struct([]), len(rows), [None])
            yield pa.RecordBatch.from_struct_array(nothing)
            return
        (batch,) = table.select(projection.paths).take(_numbers(order[places])).combine_chunks().to_batches()
        yield from ReadConverter(projection.source, self.columns).convert_split(projection.assemble(batch))


def _numbers(places: Numbers) -> pa.Int64Array:
    return cast(pa.Int64Array, pa.array(places.astype(np.int64)))
