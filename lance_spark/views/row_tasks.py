"""Runs the tasks of a refresh that place, list, and move rows: :class:`RowTasks`. On the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from lance_spark.backfill.driver.answers import NamedJob, collect_answers
from lance_spark.backfill.driver.spark_failure import SparkFailure
from lance_spark.errors import CommitConflictError, TableUnreadableError
from lance_spark.lance_compat import plain
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.session.sessions import known_slots
from lance_spark.views.chunked.calls import Chunked
from lance_spark.views.chunked.rows import ChunkPlacement
from lance_spark.views.definition import SOURCE_ROW_ID
from lance_spark.views.placement import (
    ANSWER,
    GONE,
    LISTED,
    Answer,
    ListedMoves,
    Moves,
    Placement,
    PlacementSpec,
    ReadLists,
)
from lance_spark.views.spark.rows import SparkRows
from lance_spark.views.table_function import TableCall
from udf_runtime.checkpoint.chunks import ChunksLostError

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

FILTERED_ROWS = 10_000
"""Listed rows that a filter looks up in the view, with a scalar index where there is one."""

SEARCHED_ROWS = 1_000_000
SEARCHED_VIEW_ROWS = 100_000_000
"""Listed rows that this process looks for in a view of at most so many rows, in its column of row
ids: 24 MB, and half a second for 10 M rows of the view. More are joined by Spark."""

_TASK_FRAGMENTS = 1000
_UNMATCHED_PARTS = 32


_Task: TypeAlias = "Placement | ChunkPlacement | TableCall | ListedMoves"


class RowTasks:
    """The Spark jobs of one refresh.

    `concurrency` bounds the tasks that run at once, but for a join; `check` raises where no further
    Spark job is to be started.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        uri: str,
        tag: str,
        description: str,
        concurrency: int | None,
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._spark = spark
        self._uri = uri
        self._tag = tag
        self._description = description
        self._concurrency = concurrency

    def place(self, spec: PlacementSpec, fragments: Sequence[tuple[int, int]], *, gone: bool = False) -> Answer:
        """Looks at fragments of the source, given with rows; of the old version, if `gone`."""
        units = self._units(fragments, spec.max_rows)
        return self._run(len(units), Placement(spec=spec, units=units, gone=gone)) if units else Answer()

    def query(self, rows: SparkRows, fragments: Sequence[tuple[int, int]]) -> Answer:
        """Writes what a Spark query selects of new and changed rows of fragments of the source."""
        units = self._units(fragments, rows.spec.max_rows)
        tasks = min(len(units), self._concurrency or len(units))
        return self._answers(lambda: rows.answers(self._spark, units, tasks)) if units else Answer()

    def place_chunks(self, chunked: Chunked, fragments: Sequence[tuple[int, int]]) -> Answer:
        """Writes the chunks of rows of fragments of the source, given with rows."""
        units = self._units(fragments, chunked.selects.placement.max_rows)
        placement = ChunkPlacement(
            calls=chunked.calls,
            units=units,
            selects=chunked.selects,
            skipped=chunked.skipped,
            columns=chunked.columns,
        )
        return self._run(len(units), placement) if units else Answer()

    def call_table(self, call: TableCall) -> Answer:
        """Calls a table function in one task."""
        return self._run(1, call)

    def _units(self, fragments: Sequence[tuple[int, int]], most: int) -> tuple[tuple[int, ...], ...]:
        slots = known_slots(self._spark) or self._concurrency or 1
        rows = max(1, min(sum(rows for _, rows in fragments) // slots // 2, most))
        return tuple(_packed(fragments, rows))

    def move(self, spec: PlacementSpec, done: Answer) -> Answer:
        """Takes listed rows out of the view, and writes those anew that come back."""
        searches = done.listed <= SEARCHED_ROWS and spec.view.open().count_rows() <= SEARCHED_VIEW_ROWS
        parts = _looked_up(spec, done) if searches or done.listed <= FILTERED_ROWS else None
        # A row of the source may be any number of rows of the view.
        if parts is not None and sum(part.num_rows for part in parts) <= SEARCHED_ROWS:
            return self._run(len(parts), ListedMoves(moves=Moves(spec=spec), parts=parts)) if parts else Answer()
        return self._answers(lambda: self._joined(spec, done))

    def _joined(self, spec: PlacementSpec, done: Answer) -> DataFrame:
        reader = ReadLists(staging=spec.staging, paths=tuple(done.lists))
        listed = self._frame(len(reader.paths), reader, "id long, change long")
        options = {f"storage.{key}": value for key, value in spec.view.storage.items()}
        options |= {"version": str(spec.view.version), "columns": json.dumps([SOURCE_ROW_ID, ROW_ADDRESS])}
        view = self._spark.read.format("lance").options(**options).load(spec.view.uri)
        joined = listed.join(view, listed["id"] == view[SOURCE_ROW_ID], "left").select(ROW_ADDRESS, "id", "change")
        there = sf.col(ROW_ADDRESS).isNotNull() | (sf.col("change") != GONE)
        # Rows that the view does not have yet come in parts of their own.
        part = sf.coalesce(sf.shiftright(ROW_ADDRESS, 32), -1 - sf.pmod(sf.col("id"), sf.lit(_UNMATCHED_PARTS)))
        parts = joined.where(there).repartition(part).sortWithinPartitions(ROW_ADDRESS)
        return parts.mapInArrow(Moves(spec=spec), ANSWER)

    def _run(self, count: int, task: _Task) -> Answer:
        return self._answers(lambda: self._frame(count, task, ANSWER))

    def _frame(self, count: int, task: _Task | ReadLists, schema: str) -> DataFrame:
        return self._spark.range(0, count, 1, min(count, self._concurrency or count)).mapInArrow(task, schema)

    def _answers(self, frame: Callable[[], DataFrame]) -> Answer:
        def explain(failure: SparkFailure) -> None:
            if failure.error_type.rpartition(".")[2] == ChunksLostError.__name__:
                # Another refresh of the view has ended meanwhile, or a cleanup.
                raise CommitConflictError(failure.message, uri=self._uri)

        named = NamedJob(tag=self._tag, description=self._description)
        return Answer.of(collect_answers(self._spark, frame, named, check=self._check, explain=explain))


def _looked_up(spec: PlacementSpec, done: Answer) -> tuple[pa.RecordBatch, ...]:
    """Returns listed rows by fragment of the view, as :class:`Moves` takes them."""
    listed = pa.Table.from_batches(
        [batch for path in done.lists for batch in ReadLists.read(spec.staging, path)], schema=LISTED
    )
    ids, change = (listed.column(name).to_numpy() for name in ("id", "change"))
    order = np.argsort(ids, kind="stable")
    found_ids, addresses = find_rows(spec.view.open(), ids[order])
    at = order[np.searchsorted(ids[order], found_ids)]
    by_address = np.argsort(addresses)
    addresses, at = addresses[by_address], at[by_address]
    missing = np.setdiff1d(np.flatnonzero(change != GONE), at)
    cuts = np.flatnonzero(np.diff(addresses >> 32)) + 1
    parts = [(pa.array(some), rows) for some, rows in zip(np.split(addresses, cuts), np.split(at, cuts), strict=True)]
    nowhere: Any = pa.nulls(len(missing), pa.int64())
    parts.append((nowhere, missing))
    return tuple(
        pa.RecordBatch.from_arrays(
            [some, pa.array(ids[rows]), pa.array(change[rows])], names=["address", *LISTED.names]
        )
        for some, rows in parts
        if len(rows)
    )


def find_rows(view: lance.LanceDataset, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of some ascending row ids the view has, and at which addresses."""
    text = f"{SOURCE_ROW_ID} IN ({', '.join(map(str, ids.tolist()))})" if len(ids) <= FILTERED_ROWS else None
    found = [np.empty((2, 0), dtype=np.int64)]
    try:
        for batch in view.scanner(columns=[SOURCE_ROW_ID], filter=text, with_row_address=True).to_reader():
            some, addresses = (batch.column(name).to_numpy().astype(np.int64) for name in (SOURCE_ROW_ID, ROW_ADDRESS))
            known = ids[np.minimum(np.searchsorted(ids, some), len(ids) - 1)] == some
            found.append(np.stack([some[known], addresses[known]]))
    except (ValueError, OSError, RuntimeError) as error:
        hint = "a data file is missing or damaged, or the store refused: check the storage"
        raise TableUnreadableError(view.uri, plain(error), hint=hint) from error
    known_ids, addresses = np.concatenate(found, axis=1)
    return known_ids, addresses


def _packed(fragments: Sequence[tuple[int, int]], rows: int) -> list[tuple[int, ...]]:
    """Packs fragments, with their rows, into tasks of about so many rows."""
    units: list[tuple[int, ...]] = []
    packed: list[int] = []
    held = 0
    for number, count in fragments:
        if packed and (held + count > rows or len(packed) >= _TASK_FRAGMENTS):
            units.append(tuple(packed))
            packed, held = [], 0
        packed.append(number)
        held += count
    return [*units, tuple(packed)] if packed else units
