"""Sorted runs: the output of tasks if a fragment's rows come in any order, in any task.

A task sorts rows in memory by row address and writes each full buffer as a private file, a *run*.
The commit process merges the runs, and reads a bounded number of rows of all runs at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from lance_spark.errors import refusals_as_errors
from lance_spark.rows.merge import Chunk, merge
from lance_spark.rows.row_addresses import (
    DUPLICATE,
    ROW_ADDRESS,
    Addresses,
    Mask,
    Rejected,
    SnapshotRows,
    Verifier,
)
from lance_spark.types.layout import from_start

if TYPE_CHECKING:
    from lance_spark.staging.area import Staging
    from lance_spark.staging.attempt import Attempt

RUN_BYTES = 64 << 20
"""Arrow bytes sorted in memory by a task; a run has about the same size."""

MERGE_BYTES = 64 << 20
"""Arrow bytes of all runs together that the merge reads at a time."""

LEAST_MERGE_ROWS = 1024
"""Rows that the merge reads at a time even if they are larger than :data:`MERGE_BYTES`."""

_OPEN_RUNS = 128
_WRITTEN_ROWS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A sorted file of rows, by its path relative to the table, and its size in Arrow."""

    path: str
    rows: int
    bytes: int


class RunWriter:
    """Sorts rows into runs, for a single task; holds at most :data:`RUN_BYTES` and a copy."""

    def __init__(
        self,
        attempt: Attempt,
        rows: SnapshotRows,
        schema: pa.Schema,
        rejected: Rejected,
        verifier: Verifier,
    ) -> None:
        self._attempt = attempt
        self._rows = rows
        self._schema = pa.schema([pa.field(ROW_ADDRESS, pa.uint64(), nullable=False), *schema])
        self._names = schema.names
        self._rejected = rejected
        self._verifier = verifier
        self._addresses: list[Addresses] = []
        self._values: list[pa.RecordBatch] = []
        self._bytes = 0
        self._runs: list[Run] = []

    def append(self, addresses: Addresses, values: pa.RecordBatch) -> None:
        """Adds rows in any order; sorting checks that the snapshot has the rows."""
        self._addresses.append(addresses)
        self._values.append(values)
        self._bytes += values.nbytes + addresses.nbytes
        if self._bytes >= RUN_BYTES:
            self._spill()

    def finish(self) -> tuple[Run, ...]:
        """Writes the last run, and returns all runs."""
        self._spill()
        return tuple(self._runs)

    def _spill(self) -> None:
        if not self._addresses:
            return
        addresses = np.concatenate(self._addresses)
        values = pa.Table.from_batches(self._values)
        size, self._addresses, self._values, self._bytes = self._bytes, [], [], 0
        order = np.argsort(addresses, kind="stable")
        order = order[self._rows.usable(addresses[order], self._rejected)]
        order = order[first_of_each(addresses[order], self._rejected)]
        if len(order) == 0:
            return
        ordered, values = addresses[order], values.take(order)
        equal = self._verifier.equal(ordered, values, self._rejected)
        values = values.select(self._names)
        if not equal.all():
            ordered, values = ordered[equal], values.filter(pa.array(equal))
        if len(ordered):
            self._runs.append(self._write(ordered, values, size))

    def _write(self, ordered: Addresses, values: pa.Table, size: int) -> Run:
        path = self._attempt.next_run_file()
        table = pa.Table.from_arrays(
            [pa.chunked_array([pa.array(ordered)]), *values.columns], schema=self._schema
        )
        with refusals_as_errors(self._attempt.staging.uri):
            writer = self._attempt.staging.session.open_writer(
                path, schema=self._schema, version=None
            )
            for batch in table.to_batches(max_chunksize=_WRITTEN_ROWS):
                writer.write_batch(from_start(batch))
            writer.close()
        return Run(path=path, rows=len(ordered), bytes=size)


def first_of_each(addresses: Addresses, rejected: Rejected) -> Mask:
    """Masks the first of each sorted address, and counts the repetitions."""
    first = np.ones(len(addresses), dtype=np.bool_)
    first[1:] = addresses[1:] != addresses[:-1]
    rejected.add(DUPLICATE, int((~first).sum()), addresses[~first])
    return first


def merge_runs(
    staging: Staging, runs: Sequence[Run], columns: Sequence[str]
) -> Iterator[tuple[Addresses, pa.RecordBatch]]:
    """Yields the rows of all runs in ascending order of their addresses, with bounded memory.

    Runs in the commit process. Equal addresses of several runs are adjacent.
    """
    if not runs:
        return
    open_run = functools.lru_cache(maxsize=_OPEN_RUNS)(
        functools.partial(staging.session.open_reader, columns=[ROW_ADDRESS, *columns])
    )
    # Width of the widest run, because a read may touch only that run.
    row_bytes = max(run.bytes // max(run.rows, 1) for run in runs) + 1
    chunk_rows = max(max(MERGE_BYTES // row_bytes, LEAST_MERGE_ROWS) // len(runs), 1)

    def chunks(run: Run) -> Iterator[Chunk]:
        for start in range(0, run.rows, chunk_rows):
            rows = min(chunk_rows, run.rows - start)
            # The cache is asked for the reader each time: more runs than open files take turns.
            table = (
                open_run(run.path)
                .read_range(start, rows, batch_size=rows, batch_readahead=1)
                .to_table()
            )
            (batch,) = table.combine_chunks().to_batches()
            yield batch.column(0).to_numpy().view(np.int64), batch.to_struct_array()

    for rows, values in merge([chunks(run) for run in runs]):
        batch = pa.RecordBatch.from_struct_array(cast("pa.StructArray", values))
        yield rows.view(np.uint64), batch.select(list(columns))
