"""The rows of a task's ranges as one stream of batches for the UDF.

A UDF over batches gets full batches over many small fragments, and the results are split by
fragment. A thread reads the inputs ahead of the calls. The other kinds get batches of one fragment.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.backfill.request import WHOLE_FRAGMENT_ROWS
from lance_spark.backfill.task.computation import Computation, UdfCalls
from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.backfill.task.overlap import ReadAhead
from lance_spark.locations import is_local
from lance_spark.rows.input_reader import BATCH_BYTES
from lance_spark.rows.merge import Chunk
from lance_spark.rows.row_addresses import (
    Addresses,
    SnapshotRows,
    fragments_of,
    offsets_of,
    runs_of,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.types.fields import is_blob
from udf_runtime.errors import ServiceUnavailableError
from udf_runtime.execute import BatchResult, Rebatcher
from udf_runtime.policies import AdaptiveSize

_READ_ROWS = 1 << 15
_READ_BYTES = 32 << 20
"""Maximum rows and bytes of a read without blobs."""

_JOINED_BLOB_BYTES = 16 << 20
"""Maximum bytes of blobs from several reads in a batch. A join holds the rows twice."""

_COPIED_BLOB_BYTES = 32 << 20
"""Part of the buffer for blobs that exist twice: in a read, and in a join of reads."""

_READS_AT_ONCE = 16
"""Maximum number of ranges that a task reads at once from an object store, of at most `_READ_BYTES`
together."""

_SMALL_READ_BYTES = _READ_BYTES // 4
"""Maximum bytes of a range that is read at once with other ranges."""


@dataclass(slots=True, kw_only=True, eq=False)
class StreamedRange:
    """A range with rows in the stream.

    Attributes:
        todo: Rows without a result.
        own: Rows of earlier rounds.
        chunks: Values for the consumer.
        unread_rows: Rows that are not in a batch yet.
        pending_rows: Rows in batches without a result.
        is_read: Whether all rows are in batches.
        is_alone: Whether the batches have no rows of other ranges.
        error: The error that ended the calls.
        read_error: The error that ended the reading; the rows before have values.
    """

    fragment_id: int
    computation: Computation
    todo: RowSet
    own: RowSet
    chunks: deque[Chunk] = field(default_factory=deque)
    unread_rows: int = 0
    pending_rows: int = 0
    is_read: bool = False
    is_alone: bool = False
    error: Exception | None = None
    read_error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether no further value follows."""
        return self.error is not None or (self.is_read and not self.pending_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The size of a batch for the UDF in bytes, and its limit.

    Attributes:
        blobs: Positions of the inputs with blobs.
        most_bytes: Maximum bytes of blobs, or of Arrow data without blobs.
        most_joined_bytes: Maximum bytes of a batch from several reads.
    """

    blobs: tuple[int, ...]
    most_bytes: int
    most_joined_bytes: int

    @staticmethod
    def of(spec: BackfillSpec, *, read_bytes: int, is_single: bool) -> BatchSize:
        """Returns the size of a job's batches.

        Args:
            spec: The job.
            read_bytes: Maximum bytes of blobs in a read.
            is_single: Whether the UDF has a single batch at a time.
        """
        schema, names = spec.input_source.table(spec).open().schema, spec.input_names
        blobs = tuple(
            position for position, name in enumerate(names) if is_blob(schema.field(name))
        )
        if not blobs:
            return BatchSize(blobs=(), most_bytes=BATCH_BYTES, most_joined_bytes=BATCH_BYTES)
        joined_bytes = min(spec.blob_buffer_bytes if is_single else read_bytes, _JOINED_BLOB_BYTES)
        return BatchSize(
            blobs=blobs, most_bytes=max(read_bytes, joined_bytes), most_joined_bytes=joined_bytes
        )

    def measure(self, batch: pa.RecordBatch) -> int:
        """Returns the bytes of a batch. Without blobs, `BATCH_BYTES` is the limit."""
        if not self.blobs:
            return batch.nbytes
        columns: list[Any] = [batch.column(position) for position in self.blobs]
        other_bytes = batch.nbytes - sum(column.nbytes for column in columns)
        blob_bytes: int = sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)
        scaled_bytes: int = other_bytes * self.most_bytes // BATCH_BYTES
        return max(blob_bytes, scaled_bytes)


_Part: TypeAlias = "tuple[StreamedRange, pa.RecordBatch | Exception | None, float]"
"""A part of a range with the seconds of its reading; None or an error at the end of the range."""

_JoinedBatch: TypeAlias = "tuple[pa.RecordBatch, Addresses]"


class RowStream:
    """Runs the UDF over the rows of ranges, in the order of their addition. Belongs to one task.

    Memory: `prefetch_batches` reads of at most 32 MiB, the batches of the UDF, the next batch for a
    process of the UDF, and the values of a batch. Blobs of reads and batches together fit the
    buffer for blobs.

    Attributes:
        calls: The calls of the UDF.
        select_more: Selects the rows of a further range, and adds them; False without such a range.
    """

    def __init__(self, spec: BackfillSpec, calls: UdfCalls) -> None:
        self.select_more: Callable[[], bool] = lambda: False
        self._spec = spec
        self.calls = calls
        self._spans = calls.spans and spec.sizes[1] < WHOLE_FRAGMENT_ROWS
        most_batches = calls.prefetch_batches + calls.runner.most_batches
        buffer_bytes = max(spec.blob_buffer_bytes // 2, spec.blob_buffer_bytes - _COPIED_BLOB_BYTES)
        blob_bytes = max(1, buffer_bytes // most_batches)
        self._read_spec = replace(spec, blob_buffer_bytes=blob_bytes)
        self._least_rows = spec.sizes[0]
        self._sizer = self._make_sizer()
        self._ranges: dict[int, StreamedRange] = {}
        self._unread: deque[StreamedRange] = deque()
        self._parts: deque[_Part] = deque()
        self._taken: deque[Addresses] = deque()
        self._joined: Iterator[_JoinedBatch] = iter(())
        self._next: _JoinedBatch | Exception | None = None
        self._results: Iterator[BatchResult] | None = None
        self._service_error: ServiceUnavailableError | None = None
        self._requests: SimpleQueue[StreamedRange | None] = SimpleQueue()
        self._reader: ReadAhead[list[_Part]] | None = None
        self._input_s = 0.0
        self._reads_at_once = 1 if is_local(spec.input_source.table(spec).uri) else _READS_AT_ONCE
        self._row_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether the UDF gets no further row: the allowance is over, or a service given up."""
        return self.calls.allowance.is_over or self._service_error is not None

    def contains(self, fragment_id: int) -> bool:
        """Tells whether a range of a fragment is in the stream."""
        return fragment_id in self._ranges

    def has_calls(self, fragment_id: int) -> bool:
        """Tells whether the UDF has a batch with rows of a fragment, without a result yet."""
        return any(fragment_id in fragments_of(addresses) for addresses in list(self._taken))

    def add(
        self, fragment_id: int, computation: Computation, todo: RowSet, own: RowSet
    ) -> StreamedRange:
        """Adds the rows of a range. Rows of `own`, of earlier rounds, count as recomputed."""
        streamed = StreamedRange(
            fragment_id=fragment_id, computation=computation, todo=todo, own=own
        )
        self._ranges[fragment_id] = streamed
        self._request(streamed)
        return streamed

    def values_of(self, streamed: StreamedRange) -> Iterator[Chunk]:
        """Yields the values of a range. Failed rows are NULL.

        Without a further row for the UDF, the last rows have no value.

        Raises:
            UdfRuntimeError: The error policy does not forgive an error of the UDF.
            ServiceUnavailableError: The service of the UDF was given up. Computed values are kept.
            TableUnreadableError: A file is missing or damaged.
        """
        while True:
            while streamed.chunks:
                yield streamed.chunks.popleft()
            if streamed.error is not None:
                raise streamed.error
            if streamed.is_done or not self._advance(streamed):
                break
        if streamed.computation.service_error is not None:
            raise streamed.computation.service_error
        if streamed.read_error is not None:
            raise streamed.read_error

    def remove(self, streamed: StreamedRange) -> None:
        """Removes a range. Rows without a result are not computed."""
        if self._ranges.get(streamed.fragment_id) is streamed:
            del self._ranges[streamed.fragment_id]
            if not streamed.is_read or streamed.pending_rows:
                self._restart()

    def close(self) -> None:
        """Ends the calls and the reading thread."""
        results, self._results = self._results, None
        if results is not None and hasattr(results, "close"):
            results.close()
        self._joined, self._next = iter(()), None
        reader, self._reader = self._reader, None
        if reader is not None:
            self._requests.put(None)
            reader.close()

    def _make_sizer(self) -> AdaptiveSize:
        _, most, first = self._spec.sizes
        return AdaptiveSize(
            minimum=self._least_rows,
            maximum=most,
            initial=first,
            call_rows=self._spec.call_rows,
        )

    def _request(self, streamed: StreamedRange) -> None:
        """Requests the rows of a range from the reading thread."""
        streamed.unread_rows, streamed.pending_rows = len(streamed.todo), 0
        streamed.is_read, streamed.read_error = not streamed.todo, None
        if streamed.is_read:
            return
        if self._reader is None:
            self._requests = SimpleQueue()
            self._reader = ReadAhead(self._read(self._requests), self.calls.prefetch_batches)
        self._unread.append(streamed)
        self._requests.put(streamed)

    def _restart(self) -> None:
        """Begins again with the rows without a result, after the end of the calls."""
        self.close()
        self._unread.clear()
        self._parts.clear()
        self._taken.clear()
        if self.is_over:
            return
        for streamed in self._ranges.values():
            if streamed.error is None and (not streamed.is_read or streamed.pending_rows):
                self._request(streamed)

    # In the reading thread.

    def _read(self, requests: SimpleQueue[StreamedRange | None]) -> Iterator[list[_Part]]:
        """Yields the parts of requested ranges, of about a batch together."""
        parts: list[_Part] = []
        rows, read_bytes = 0, 0
        with contextlib.closing(self._read_ranges(requests)) as ranges:
            for part, is_last_range in ranges:
                parts.append(part)
                if isinstance(part[1], pa.RecordBatch):
                    rows, read_bytes = rows + part[1].num_rows, read_bytes + part[1].nbytes
                    self._row_bytes = max(
                        self._row_bytes, part[1].nbytes // max(1, part[1].num_rows)
                    )
                is_last = not isinstance(part[1], pa.RecordBatch) and is_last_range
                # A part has at most half of the bytes of a read.
                if is_last or rows >= self._sizer.next_rows() or read_bytes >= _READ_BYTES // 2:
                    yield parts
                    parts, rows, read_bytes = [], 0, 0

    def _read_ranges(
        self, requests: SimpleQueue[StreamedRange | None]
    ) -> Generator[tuple[_Part, bool], None, None]:
        """Yields the parts of requested ranges in order, and whether no range follows now.

        Small ranges are read at once.
        """
        reads: deque[tuple[Iterator[_Part] | Future[Iterator[_Part]], int]] = deque()
        is_closed = False
        with ThreadPoolExecutor(self._reads_at_once) as pool:
            while True:
                while not is_closed and (
                    not reads or (self._has_room(reads) and not requests.empty())
                ):
                    streamed = requests.get()
                    if streamed is None:
                        is_closed = True
                    elif self._is_small(streamed):
                        reads.append(
                            (
                                pool.submit(self._begin_range, streamed),
                                self._expected_bytes(streamed),
                            )
                        )
                    else:
                        reads.append((self._read_range(streamed), 0))
                if not reads:
                    return
                read, _ = reads.popleft()
                for part in read.result() if isinstance(read, Future) else read:
                    yield part, not reads and requests.empty()

    def _has_room(self, reads: Collection[tuple[object, int]]) -> bool:
        """Tells whether another small range may be read at once with reads of expected sizes."""
        expected_bytes = sum(size for _, size in reads)
        return (
            len(reads) < self._reads_at_once and expected_bytes + _SMALL_READ_BYTES <= _READ_BYTES
        )

    def _expected_bytes(self, streamed: StreamedRange) -> int:
        """Estimates the bytes of a range by the size of earlier rows."""
        return len(streamed.todo) * self._row_bytes

    def _begin_range(self, streamed: StreamedRange) -> Iterator[_Part]:
        """Reads a small range. A range that is larger than expected is read on in its turn."""
        parts, begun_parts, read_bytes = self._read_range(streamed), list[_Part](), 0
        most_bytes = max(self._expected_bytes(streamed), _READ_BYTES // self._reads_at_once)
        for part in parts:
            begun_parts.append(part)
            read_bytes += part[1].nbytes if isinstance(part[1], pa.RecordBatch) else 0
            if read_bytes > most_bytes:
                break
        return itertools.chain(begun_parts, parts)

    def _is_small(self, streamed: StreamedRange) -> bool:
        """Tells whether a range is small, by the size of earlier rows."""
        if self._reads_at_once == 1 or not self._row_bytes:
            return False
        return self._expected_bytes(streamed) <= _SMALL_READ_BYTES and not self._has_blobs

    @functools.cached_property
    def _has_blobs(self) -> bool:
        """Whether an input has blobs, whose reads share a buffer."""
        schema = self._spec.input_source.table(self._spec).open().schema
        return any(is_blob(schema.field(name)) for name in self._spec.input_names)

    def _read_range(self, streamed: StreamedRange) -> Iterator[_Part]:
        """Yields the parts of a range, and its end."""
        began = time.perf_counter()
        try:
            for batch in self._batches_of(streamed):
                yield streamed, batch, time.perf_counter() - began
                began = time.perf_counter()
        except Exception as error:  # noqa: BLE001 - the consumer of the range raises the error
            yield streamed, error, time.perf_counter() - began
        else:
            yield streamed, None, time.perf_counter() - began

    def _batches_of(self, streamed: StreamedRange) -> Iterator[pa.RecordBatch]:
        # Another thread has the datasets of the range.
        rows = SnapshotRows(self._spec.snapshot.open())
        fragment = rows.fragment(streamed.fragment_id)
        assert fragment is not None
        reader = self._spec.input_source.reader(self._read_spec, rows, fragment)
        most_rows = min(self._spec.sizes[1], _READ_ROWS)
        # The batches for the UDF join the parts.
        yield from reader.batches(
            streamed.todo.to_numpy(), most_rows, most_bytes=_READ_BYTES // 2, joins=False
        )

    # In the main thread, within the calls.

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yields batches for the UDF, and appends their addresses to `_taken`."""
        self._joined = self._join_parts()
        while True:
            following, self._next = self._next or next(self._joined, None), None
            if following is None:
                return
            if isinstance(following, Exception):
                raise following
            batch, addresses = following
            self._taken.append(addresses)
            for fragment_id, _, _ in runs_of(fragments_of(addresses)):
                self._ranges[fragment_id].computation.begin()
            del following
            yield batch

    def _work_ahead(self) -> None:
        """Joins and shares the next batch while the UDF computes, as soon as its rows are read."""
        try:
            if self._next is None and self._has_next():
                input_s = self._input_s
                batch, addresses = next(self._joined)
                self._input_s = input_s  # the UDF computed in this time
                self._next = self.calls.runner.share(batch), addresses
        except Exception as error:  # noqa: BLE001 - raised by the request for the batch
            self._next = error

    def _has_next(self) -> bool:
        """Tells whether the rows of the next batch are read, and its size is settled."""
        if not self._spans or not self._sizer.is_settled or self._has_blobs:
            return False
        unread_rows = sum(streamed.unread_rows for streamed in self._unread)
        rows = min(self._sizer.next_rows(), unread_rows)
        while True:
            batches = [part for _, part, _ in self._parts if isinstance(part, pa.RecordBatch)]
            if sum(batch.num_rows for batch in batches) >= rows:
                return rows > 0
            if sum(batch.nbytes for batch in batches) >= BATCH_BYTES:
                return True
            if self._reader is None or not self._reader.has_item:
                return False
            self._parts.extend(self._reader.take())

    def _join_parts(self) -> Iterator[_JoinedBatch]:
        """Yields batches for the UDF with the addresses of their rows."""
        read_bytes, is_single = (
            self._read_spec.blob_buffer_bytes,
            self.calls.runner.most_batches == 1,
        )
        size = BatchSize.of(self._spec, read_bytes=read_bytes, is_single=is_single)
        while self._has_unread():
            if not self._spans or self._unread[0].is_alone:
                self._sizer = self._make_sizer()
            source = Rebatcher(
                self._read_group(),
                max_bytes=size.most_bytes,
                max_joined_bytes=size.most_joined_bytes,
                size_of=size.measure,
            )
            # No local name keeps a batch during its call, next to a shared copy.
            yield from iter(functools.partial(self._take, source), None)

    def _while_available(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields batches until the service of the UDF is given up."""
        while self._service_error is None and (batch := next(batches, None)) is not None:
            yield batch

    def _take(self, source: Rebatcher) -> _JoinedBatch | None:
        began = time.perf_counter()
        try:
            batch = source.take(self._sizer.next_rows())
        finally:
            self._input_s += time.perf_counter() - began
        if batch is None:
            return None
        *columns, addresses = batch.columns
        inputs = pa.RecordBatch.from_arrays(columns, names=batch.schema.names[:-1])
        return inputs, addresses.to_numpy()

    def _has_unread(self) -> bool:
        """Selects enough rows for the reading thread, and tells whether any row is left."""
        wanted_rows = (self.calls.prefetch_batches + 1) * self._sizer.next_rows()
        while (
            sum(streamed.unread_rows for streamed in self._unread) < wanted_rows
            or len(self._unread) < self._reads_at_once
        ) and self.select_more():
            pass
        return bool(self._unread)

    def _read_group(self) -> Iterator[pa.RecordBatch]:
        """Yields parts of consecutive ranges that may share a batch."""
        first: StreamedRange | None = None
        while self._has_unread():
            streamed = self._unread[0]
            is_separate = (
                not self._spans or streamed.is_alone or (first is not None and first.is_alone)
            )
            if first is not None and streamed is not first and is_separate:
                return
            first = first or streamed
            batch = self._next_part(streamed)
            if isinstance(batch, pa.RecordBatch):
                streamed.unread_rows -= batch.num_rows
                streamed.pending_rows += batch.num_rows
                yield batch
                continue
            self._unread.popleft()
            streamed.unread_rows, streamed.is_read, streamed.read_error = 0, True, batch

    def _next_part(self, streamed: StreamedRange) -> pa.RecordBatch | Exception | None:
        if not self._parts:
            assert self._reader is not None
            with streamed.computation.timed("wait"):
                self._parts.extend(self._reader.take())
        _, batch, seconds = self._parts.popleft()
        streamed.computation.seconds["read"] += seconds
        return batch

    def _advance(self, current: StreamedRange) -> bool:
        """Runs the UDF for another batch. Returns False without another batch."""
        began, input_s = time.perf_counter(), self._input_s
        try:
            if self._results is None:
                if self.is_over:
                    return False
                batches = self._while_available(
                    self.calls.allowance.within(self._batches(), self._taken)
                )
                self._results = iter(self.calls.runner.run(batches, self._work_ahead))
            result = next(self._results)
        except StopIteration:
            self._results = None
            return False
        except Exception as error:  # noqa: BLE001 - the consumer of a range raises the error
            self._fail(current, error)
            return True
        seconds = time.perf_counter() - began - (self._input_s - input_s)
        current.computation.add_time(
            seconds, load_s=self.calls.runner.take_load_s(), limit_s=result.limit_s
        )
        self._split(result)
        return True

    def _split(self, result: BatchResult) -> None:
        """Gives the ranges of a batch their parts of its result."""
        addresses = self._taken.popleft()
        # A small first batch shows early that the function works.
        least, most, _ = self._spec.sizes
        self._least_rows = min(max(least, self.calls.runner.least_rows), most)
        self._sizer.minimum = self._least_rows
        self._sizer.record(len(addresses), result.seconds)
        runs = runs_of(fragments_of(addresses))
        self._ranges[runs[0][0]].computation.add_calls(result)
        has_failed = False
        for fragment_id, first, end in runs:
            streamed = self._ranges[fragment_id]
            offsets, values = (
                offsets_of(addresses[first:end]),
                result.values.slice(first, end - first),
            )
            failures = [
                (failure, failure.row - first)
                for failure in result.failures
                if first <= failure.row < end
            ]
            streamed.todo -= RowSet.of(offsets)
            streamed.pending_rows -= len(offsets)
            try:
                streamed.computation.add(
                    self.calls.policy, (offsets, values), failures, streamed.own
                )
            except Exception as error:  # noqa: BLE001 - the consumer of the range raises the error
                streamed.error = error
                has_failed = True
            else:
                streamed.chunks.append((offsets, values))
            self._service_error = self._service_error or streamed.computation.service_error
        if has_failed:
            self._restart()

    def _fail(self, current: StreamedRange, error: Exception) -> None:
        """Ends the range of an error, or repeats the batch of an error range by range.

        A call of a whole batch does not tell the row of its error.
        """
        self._results = None
        touched = [current]
        if self._taken:
            # Results come in the order of the batches. The first batch without a result failed.
            addresses = self._taken[0]
            touched = [
                self._ranges[fragment_id] for fragment_id, _, _ in runs_of(fragments_of(addresses))
            ]
        if isinstance(error, ServiceUnavailableError):
            self._service_error = error
        if len(touched) > 1 and self._service_error is None:
            for streamed in touched:
                streamed.is_alone = True
        else:
            touched[0].error = error
            row: Any = getattr(error, "row", None)
            if self._taken and row is not None and row < len(self._taken[0]):
                touched[0].computation.failed_offset = int(
                    offsets_of(np.asarray(self._taken[0][row : row + 1]))[0]
                )
        self._restart()
