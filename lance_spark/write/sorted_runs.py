"""Sorted runs.

What tasks leave behind where the rows of one fragment arrive in any order and in any number of
tasks.

A task sorts what fits into memory by row address and writes it as a private file, a *run*, with an
index of how many rows of which fragment it holds. The committing process merges the runs fragment
by fragment, reading a bounded number of rows of all runs at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.rows.merge import distinct
from lance_spark.rows.row_addresses import (
    DUPLICATE,
    ROW_ADDRESS,
    Addresses,
    Rejected,
    SnapshotRows,
    Verifier,
    fragments_of,
)

if TYPE_CHECKING:
    from lance.file import LanceFileReader, LanceFileSession

    from lance_spark.staging.area import Attempt, Staging

RUN_BYTES = 64 << 20
"""Arrow bytes that a task sorts in memory; a run is about as large."""

MERGE_BYTES = 64 << 20
"""Arrow bytes of all runs together that the merge reads at a time."""

LEAST_MERGE_ROWS = 1024
"""Rows that the merge reads at a time even if they are larger than :data:`MERGE_BYTES`."""

_OPEN_RUNS = 128
_WRITTEN_ROWS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One sorted file of rows. Picklable; about 12 bytes a fragment.

    Attributes:
        path: Its path, relative to the table.
        fragments: Ids of the fragments that it has rows of, ascending.
        counts: How many rows of each, in the same order.
        bytes: Size of its rows in Arrow.
    """

    path: str
    fragments: NDArray[np.uint32]
    counts: NDArray[np.int64]
    bytes: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())


class RunWriter:
    """Sorts rows into runs.

    Belongs to one task; holds at most :data:`RUN_BYTES` of rows and a sorted copy of them.
    """

    def __init__(
        self,
        attempt: Attempt,
        rows: SnapshotRows,
        schema: pa.Schema,
        rejected: Rejected,
        *,
        verifier: Verifier,
        run_bytes: int = RUN_BYTES,
    ) -> None:
        self._attempt = attempt
        self._rows = rows
        self._schema = pa.schema([pa.field(ROW_ADDRESS, pa.uint64(), nullable=False), *schema])
        self._names = schema.names
        self._rejected = rejected
        self._verifier = verifier
        self._run_bytes = run_bytes
        self._addresses: list[Addresses] = []
        self._values: list[pa.RecordBatch] = []
        self._bytes = 0
        self._runs: list[Run] = []

    def append(self, addresses: Addresses, values: pa.RecordBatch) -> None:
        """Adds rows in any order.

        Whether they are in the snapshot is looked at when they are sorted.
        """
        self._addresses.append(addresses)
        self._values.append(values)
        self._bytes += values.nbytes + addresses.nbytes
        if self._bytes >= self._run_bytes:
            self._spill()

    def finish(self) -> tuple[Run, ...]:
        """Writes the last run, and returns all of them."""
        self._spill()
        return tuple(self._runs)

    def _spill(self) -> None:
        if not self._addresses:
            return
        addresses = np.concatenate(self._addresses)
        values = pa.Table.from_batches(self._values)
        size, self._addresses, self._values, self._bytes = self._bytes, [], [], 0
        order = np.argsort(addresses, kind="stable")
        ordered = addresses[order]
        usable = self._rows.usable(ordered, self._rejected)
        twice = np.zeros(len(ordered), dtype=np.bool_)
        twice[1:] = ordered[1:] == ordered[:-1]
        twice &= usable
        self._rejected.add(DUPLICATE, int(twice.sum()), ordered[twice])
        usable &= ~twice
        order, ordered = order[usable], ordered[usable]
        if len(ordered) == 0:
            return
        values = values.take(order)
        equal = self._verifier.equal(ordered, values, self._rejected)
        values = values.select(self._names)
        if not equal.all():
            ordered, values = ordered[equal], values.filter(pa.array(equal))
        if len(ordered):
            self._runs.append(self._write(ordered, values, size))

    def _write(self, ordered: Addresses, values: pa.Table, size: int) -> Run:
        path = self._attempt.next_run_file()
        writer = self._attempt.staging.session.open_writer(path, schema=self._schema, version=None)
        table = pa.Table.from_arrays([pa.chunked_array([pa.array(ordered)]), *values.columns], schema=self._schema)
        for batch in table.to_batches(max_chunksize=_WRITTEN_ROWS):
            writer.write_batch(batch)
        writer.close()
        fragments, counts = np.unique(fragments_of(ordered), return_counts=True)
        return Run(path=path, fragments=fragments.astype(np.uint32), counts=counts.astype(np.int64), bytes=size)


def merge_runs(
    staging: Staging, runs: Sequence[Run], rejected: Rejected, *, columns: Sequence[str]
) -> Iterator[tuple[Addresses, pa.RecordBatch]]:
    """Yields the rows of all runs in ascending order of their addresses, with bounded memory.

    Runs in the committing process.

    Args:
        staging: The job's files.
        runs: The runs of all tasks.
        rejected: The account of rows that several runs hold; only the first of them is yielded.
        columns: The value columns to read; none to look for duplicates only.
    """
    if not runs:
        return
    names = [ROW_ADDRESS, *columns]
    open_run = functools.lru_cache(maxsize=_OPEN_RUNS)(functools.partial(_open, staging.session, tuple(names)))
    # Of the widest run: a piece may be of that one alone.
    row_bytes = max(run.bytes // max(run.rows, 1) for run in runs) + 1
    most_rows = max(MERGE_BYTES // row_bytes, LEAST_MERGE_ROWS)
    for fragments in _groups(runs, most_rows):
        spans = [(run, *_span(run, fragments)) for run in runs]
        spans = [span for span in spans if span[2]]
        for pieces in _pieces(staging, spans, most_rows):
            tables = [_read(open_run(run.path), start, rows) for run, start, rows in pieces]
            table = pa.concat_tables(tables)
            addresses = table.column(ROW_ADDRESS).to_numpy()
            order = np.argsort(addresses, kind="stable")
            addresses = addresses[order]
            twice = np.zeros(len(addresses), dtype=np.bool_)
            twice[1:] = addresses[1:] == addresses[:-1]
            if twice.any():
                rejected.add(DUPLICATE, int(twice.sum()), addresses[twice])
                order, addresses = order[~twice], addresses[~twice]
            sorted_rows = table.select(list(columns)).take(order).combine_chunks()
            start = 0
            for batch in sorted_rows.to_batches():
                yield addresses[start : start + batch.num_rows], batch
                start += batch.num_rows


def _open(session: LanceFileSession, columns: tuple[str, ...], path: str) -> LanceFileReader:
    return session.open_reader(path, list(columns))


def _read(reader: LanceFileReader, start: int, rows: int) -> pa.Table:
    return reader.read_range(start, rows, batch_size=rows, batch_readahead=1).to_table()


def _groups(runs: Sequence[Run], most_rows: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of fragment ids, first and last, of at most `most_rows` rows or one fragment."""
    fragments, inverse = np.unique(np.concatenate([run.fragments for run in runs]), return_inverse=True)
    counts = np.zeros(len(fragments), dtype=np.int64)
    np.add.at(counts, inverse, np.concatenate([run.counts for run in runs]))
    first, rows = 0, 0
    for at, count in enumerate(counts.tolist()):
        if rows and rows + count > most_rows:
            yield int(fragments[first]), int(fragments[at - 1])
            first, rows = at, 0
        rows += count
    yield int(fragments[first]), int(fragments[-1])


def _span(run: Run, fragments: tuple[int, int]) -> tuple[int, int]:
    """Returns the first row and the number of rows that a run has of a range of fragments."""
    ends = np.concatenate([[0], np.cumsum(run.counts)])
    low = int(np.searchsorted(run.fragments, fragments[0], side="left"))
    high = int(np.searchsorted(run.fragments, fragments[1], side="right"))
    return int(ends[low]), int(ends[high] - ends[low])


def _pieces(
    staging: Staging, spans: list[tuple[Run, int, int]], most_rows: int
) -> Iterator[list[tuple[Run, int, int]]]:
    """Cuts spans of many runs at common addresses, so that each piece has about `most_rows` rows.

    Rows of one address are never parted, so duplicates meet. Only the addresses are read for that:
        eight bytes a row.
    """
    total = sum(rows for _, _, rows in spans)
    if total <= most_rows:
        yield spans
        return
    held = [
        _read(_open(staging.session, (ROW_ADDRESS,), run.path), start, rows).column(0).to_numpy()
        for run, start, rows in spans
    ]
    cuts = distinct(np.sort(np.concatenate(held))[most_rows::most_rows])
    before = [0] * len(spans)
    for cut in [*cuts.tolist(), None]:
        piece = []
        for i, (run, start, _) in enumerate(spans):
            upto = len(held[i]) if cut is None else int(np.searchsorted(held[i], np.uint64(cut)))
            if upto > before[i]:
                piece.append((run, start + before[i], upto - before[i]))
            before[i] = upto
        if piece:
            yield piece
