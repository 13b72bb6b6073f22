"""Writes and deletes rows in a refresh: :class:`RowTasks` runs the tasks from the driver."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from lance_spark.errors import CommitConflictError, TableUnreadableError
from lance_spark.lance_compat import plain
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.session.sessions import known_slots
from lance_spark.spark_jobs.failures import SparkFailure
from lance_spark.spark_jobs.run import SparkJobs
from lance_spark.spark_jobs.task_queue import at_most, pack_fragments
from lance_spark.spark_jobs.tasks import ANSWER, SparkTask
from lance_spark.views.chunked.calls import Chunked
from lance_spark.views.chunked.rows import ChunkPlacement
from lance_spark.views.definition import SOURCE_ROW_ID
from lance_spark.views.placement import (
    DELETED,
    SPILL_SCHEMA,
    PlacementSpec,
    ReadSpill,
    RefreshTaskResult,
    RewriteFewRows,
    RewriteRows,
    SpillDeletedRows,
    WriteNewRows,
)
from lance_spark.views.spark.rows import SparkRows
from lance_spark.views.table_function import TableCall
from udf_runtime.checkpoint.chunks import ChunksLostError

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

FILTERED_ROWS = 10_000
"""Spilled rows that a filter looks up in the view, with a scalar index where there is one."""

SEARCHED_ROWS = 1_000_000
SEARCHED_VIEW_ROWS = 100_000_000
"""Spilled rows that this process looks for in a view of at most so many rows, in its column of row
ids: 24 MB, and half a second for 10 M rows of the view. More are joined by Spark."""

_UNMATCHED_PARTS = 32


class RowTasks:
    """The Spark jobs of a refresh. Belongs to a single thread of the driver."""

    def __init__(
        self, spark: SparkSession, jobs: SparkJobs, *, uri: str, concurrency: int | None
    ) -> None:
        """Takes the view and the maximum of concurrent tasks. Tasks of a join are not limited."""
        self._spark = spark
        self._jobs = jobs
        self._uri = uri
        self._concurrency = concurrency

    def write_new(
        self, spec: PlacementSpec, fragments: Sequence[tuple[int, int]]
    ) -> RefreshTaskResult:
        """Writes new rows of fragments of the source, given with rows, and spills changed rows."""
        packs = self._packs(fragments, spec.max_rows)
        spec = replace(spec, tasks=len(packs))
        return self._run([WriteNewRows(spec=spec, fragments=pack) for pack in packs])

    def spill_deleted(
        self, spec: PlacementSpec, fragments: Sequence[tuple[int, int]]
    ) -> RefreshTaskResult:
        """Spills deleted rows of fragments of the shown version, given with rows."""
        packs = self._packs(fragments, spec.max_rows)
        spec = replace(spec, tasks=len(packs))
        return self._run([SpillDeletedRows(spec=spec, fragments=pack) for pack in packs])

    def query(self, rows: SparkRows, fragments: Sequence[tuple[int, int]]) -> RefreshTaskResult:
        """Writes the results of a Spark query over new and changed rows of the source."""
        packs = self._packs(fragments, rows.spec.max_rows)
        return (
            self._total(lambda: rows.answers(self._spark, packs)) if packs else RefreshTaskResult()
        )

    def write_chunks(
        self, chunked: Chunked, fragments: Sequence[tuple[int, int]]
    ) -> RefreshTaskResult:
        """Writes the chunks of rows of fragments of the source, given with rows.

        Raises:
            CommitConflictError: Chunks are missing, because another refresh of the view has ended
                or because of a cleanup.
        """
        packs = self._packs(fragments, chunked.selects.placement.max_rows)
        placement = replace(chunked.selects.placement, tasks=len(packs))
        tasks = [
            ChunkPlacement(
                calls=chunked.calls,
                fragments=pack,
                selects=replace(chunked.selects, placement=placement),
                skipped=chunked.skipped,
                columns=chunked.columns,
            )
            for pack in packs
        ]
        try:
            return self._run(tasks)
        except Exception as error:
            failure = SparkFailure.of(error)
            if failure.is_a(ChunksLostError):
                raise CommitConflictError(failure.message, uri=self._uri) from error
            raise

    def call_table(self, call: TableCall) -> RefreshTaskResult:
        """Calls a table function in a single task."""
        return self._run([call])

    def _packs(self, fragments: Sequence[tuple[int, int]], most_rows: int) -> list[tuple[int, ...]]:
        """Packs fragments into tasks, at most as many as may run at the same time."""
        slots = known_slots(self._spark) or self._concurrency or 1
        rows = max(1, min(sum(rows for _, rows in fragments) // slots // 2, most_rows))
        packs = at_most(pack_fragments(fragments, rows), self._concurrency)
        return [tuple(itertools.chain(*pack)) for pack in packs]

    def rewrite(self, spec: PlacementSpec, placed: RefreshTaskResult) -> RefreshTaskResult:
        """Deletes spilled rows of the view, and writes the changed rows of the source."""
        searches = (
            placed.spilled <= SEARCHED_ROWS and spec.view.open().count_rows() <= SEARCHED_VIEW_ROWS
        )
        parts = _looked_up(spec, placed) if searches or placed.spilled <= FILTERED_ROWS else None
        # A row of the source may be any number of rows of the view.
        if parts is not None and sum(part.num_rows for part in parts) <= SEARCHED_ROWS:
            rewrite = RewriteRows(spec=spec)
            return self._run(
                [
                    RewriteFewRows(rewrite=rewrite, parts=some)
                    for some in at_most(parts, self._concurrency)
                ]
            )
        return self._total(lambda: self._joined(spec, placed))

    def _joined(self, spec: PlacementSpec, placed: RefreshTaskResult) -> DataFrame:
        reader = _reader_of(spec, placed)
        count = len(reader.parts)
        numbers = self._spark.range(0, count, 1, min(count, self._concurrency or count))
        spilled = numbers.mapInArrow(reader, "id long, change long")
        options = spec.view.storage_settings
        options |= {
            "version": str(spec.view.version),
            "columns": json.dumps([SOURCE_ROW_ID, ROW_ADDRESS]),
        }
        view = self._spark.read.format("lance").options(**options).load(spec.view.uri)
        joined = spilled.join(view, spilled["id"] == view[SOURCE_ROW_ID], "left").select(
            ROW_ADDRESS, "id", "change"
        )
        is_placed = sf.col(ROW_ADDRESS).isNotNull() | (sf.col("change") != DELETED)
        # Rows absent from the view come in separate parts.
        part = sf.coalesce(
            sf.shiftright(ROW_ADDRESS, 32), -1 - sf.pmod(sf.col("id"), sf.lit(_UNMATCHED_PARTS))
        )
        parts = joined.where(is_placed).repartition(part).sortWithinPartitions(ROW_ADDRESS)
        return parts.mapInArrow(RewriteRows(spec=spec), ANSWER)

    def _run(self, tasks: Sequence[SparkTask[RefreshTaskResult]]) -> RefreshTaskResult:
        return sum(self._jobs.results(tasks, RefreshTaskResult), RefreshTaskResult())

    def _total(self, frame: Callable[[], DataFrame]) -> RefreshTaskResult:
        return sum(self._jobs.answers(frame, RefreshTaskResult), RefreshTaskResult())


def _reader_of(spec: PlacementSpec, placed: RefreshTaskResult) -> ReadSpill:
    return ReadSpill(staging=spec.staging, parts=(*placed.spills, *placed.few_spilled))


def _looked_up(spec: PlacementSpec, placed: RefreshTaskResult) -> tuple[pa.RecordBatch, ...]:
    """Returns spilled rows by fragment of the view: the input of :class:`RewriteRows`."""
    reader = _reader_of(spec, placed)
    spilled = pa.Table.from_batches(
        [batch for number in range(len(reader.parts)) for batch in reader.read(number)],
        schema=SPILL_SCHEMA,
    )
    ids, change = (spilled.column(name).to_numpy() for name in ("id", "change"))
    order = np.argsort(ids, kind="stable")
    found_ids, addresses = find_rows(spec.view.open(), ids[order])
    at = order[np.searchsorted(ids[order], found_ids)]
    by_address = np.argsort(addresses)
    addresses, at = addresses[by_address], at[by_address]
    unmatched = np.setdiff1d(np.flatnonzero(change != DELETED), at)
    cuts = np.flatnonzero(np.diff(addresses >> 32)) + 1
    parts = [
        (pa.array(some), rows)
        for some, rows in zip(np.split(addresses, cuts), np.split(at, cuts), strict=True)
    ]
    nowhere: Any = pa.nulls(len(unmatched), pa.int64())
    parts.append((nowhere, unmatched))
    return tuple(
        pa.RecordBatch.from_arrays(
            [some, pa.array(ids[rows]), pa.array(change[rows])],
            names=["address", *SPILL_SCHEMA.names],
        )
        for some, rows in parts
        if len(rows)
    )


def find_rows(view: lance.LanceDataset, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row ids present in the view, with their addresses. `ids` are ascending."""
    text = (
        f"{SOURCE_ROW_ID} IN ({', '.join(map(str, ids.tolist()))})"
        if len(ids) <= FILTERED_ROWS
        else None
    )
    matches = [np.empty((2, 0), dtype=np.int64)]
    try:
        for batch in view.scanner(
            columns=[SOURCE_ROW_ID], filter=text, with_row_address=True
        ).to_reader():
            some, addresses = (
                batch.column(name).to_numpy().astype(np.int64)
                for name in (SOURCE_ROW_ID, ROW_ADDRESS)
            )
            is_requested = ids[np.minimum(np.searchsorted(ids, some), len(ids) - 1)] == some
            matches.append(np.stack([some[is_requested], addresses[is_requested]]))
    except (ValueError, OSError, RuntimeError) as error:
        hint = "a data file is missing or damaged, or the store refused: check the storage"
        raise TableUnreadableError(view.uri, plain(error), hint=hint) from error
    known_ids, addresses = np.concatenate(matches, axis=1)
    return known_ids, addresses
