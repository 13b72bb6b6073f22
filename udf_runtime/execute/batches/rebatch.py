"""Record batches of requested sizes, from batches of any sizes."""

from __future__ import annotations

import bisect
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa


class Rebatcher:
    """Joins and slices record batches; rows keep their order, and each row is returned once.

    Slices share memory with their source batches; only a batch joined from several batches is
    copied. Not thread-safe.
    """

    __slots__ = ("_batches", "_held", "_max_bytes", "_max_joined_bytes", "_size_of")

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        max_bytes: int | None = None,
        max_joined_bytes: int | None = None,
        size_of: Callable[[pa.RecordBatch], int] = operator.attrgetter("nbytes"),
    ) -> None:
        """Begins with the first row.

        Args:
            batches: Batches of a single schema; consumed only as far as `take` needs.
            max_bytes: Maximum bytes per batch, unless a single row has more; None: no limit.
            max_joined_bytes: Maximum bytes of a batch joined from several batches, because a join
                holds all rows twice; None: `max_bytes`.
            size_of: Returns the bytes of a batch, by default of its Arrow data.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(
                f"The argument max_bytes={max_bytes} of Rebatcher is not possible. Give a number of bytes from 1, or "
                "None."
            )
        self._batches = iter(batches)
        self._held: deque[pa.RecordBatch] = deque()
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._max_joined_bytes = self._max_bytes if max_joined_bytes is None else max_joined_bytes
        self._size_of = size_of

    def take(self, rows: int) -> pa.RecordBatch | None:
        """Returns the next rows, fewer if `max_bytes` is reached; None at the end."""
        if rows < 1:
            raise ValueError(
                f"Rebatcher.take cannot return a batch of {rows} rows. Give a number of rows from 1."
            )
        parts = list(self._take_parts(rows))
        if len(parts) < 2:
            return parts[0] if parts else None
        # A single batch, unless the text of all parts exceeds an array. In this case, the rest
        # waits for the next call.
        first, *rest = pa.Table.from_batches(parts).combine_chunks().to_batches()
        self._held.extendleft(reversed(rest))
        return first

    def _take_parts(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yields slices with at most `rows` rows together; a first row may exceed `max_bytes`."""
        missing_rows, taken_bytes, most_bytes = rows, 0, self._max_bytes
        while missing_rows > 0 and taken_bytes < most_bytes:
            batch = self._take_batch()
            if batch is None:
                return
            most_rows = min(missing_rows, batch.num_rows)
            count = self._count_rows_within(batch, most_rows, most_bytes - taken_bytes)
            if count == 0 and missing_rows == rows:
                count = 1  # a single row may exceed the limit
            if count < batch.num_rows:
                self._held.appendleft(batch.slice(count))
            if count:
                part = batch.slice(0, count)
                yield part
                taken_bytes += self._size_of(part)
            if count < most_rows:
                return
            missing_rows -= count
            most_bytes = min(self._max_bytes, self._max_joined_bytes)

    def _take_batch(self) -> pa.RecordBatch | None:
        if self._held:
            return self._held.popleft()
        return next((batch for batch in self._batches if batch.num_rows > 0), None)

    def _count_rows_within(self, batch: pa.RecordBatch, rows: int, limit_bytes: float) -> int:
        """Returns the number of first rows with at most `limit_bytes`, counted as in slices."""
        if self._size_of(batch.slice(0, rows)) <= limit_bytes:
            return rows
        sizes = range(1, rows)
        return bisect.bisect_right(
            sizes, limit_bytes, key=lambda count: self._size_of(batch.slice(0, count))
        )
