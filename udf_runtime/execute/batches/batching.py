"""The batches of a UDF's calls: rows of a larger batch, sorted and cut to the size of a call."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from udf_runtime.errors import UdfOutputError, UdfRuntimeError
from udf_runtime.execute.call_context import CallContext, passes_through
from udf_runtime.execute.conversion.inputs import check_inputs
from udf_runtime.execute.result import BatchResult, RowFailure, cause_of, join_parts, renumber_error
from udf_runtime.policies.batch_size import FixedSize, ThroughputSize

CallBatch: TypeAlias = Callable[[pa.RecordBatch], BatchResult]
CallStream: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[BatchResult]]


class CallBatches:
    """Gives the calls of a UDF batches of `batch_size` rows, in the order of `sort_batch_by`.

    The rows of a call always come from a single batch of the runner, because its result is a
    checkpoint. Results return to the order of the runner's batch. Memory: a sorted copy of a batch
    with `sort_batch_by`, and the results of its calls. Thread-safe.
    """

    def __init__(self, context: CallContext) -> None:
        """Takes the settings of the context's UDF. An automatic size outlives the runner."""
        udf = context.udf
        self._context = context
        self._size: FixedSize | ThroughputSize
        if udf.batch_size == "auto":
            self._size = _find_size(udf.name, udf.version, udf.input_columns, context.clock)
        else:
            self._size = FixedSize(udf.batch_size)

    def run(self, batch: pa.RecordBatch, call: CallBatch) -> BatchResult:
        """Returns the result of a batch from one call or several.

        Raises:
            UdfRuntimeError: As in `call`. The row of the error is counted in `batch`.
        """
        start_s = self._context.clock()
        batch_rows = self._sort(batch)
        results = _JoinedResults(self._context.udf.name, batch_rows)
        while not results.is_complete:
            rows = batch_rows.slice(results.count, self._next_rows())
            try:
                result = call(rows)
            except UdfRuntimeError as error:
                raise results.renumber(error) from error.__cause__
            self._size.record(rows.num_rows, result.seconds)
            results.add(result)
        return results.join(self._context.clock() - start_s)

    def run_stream(
        self, batches: Iterable[pa.RecordBatch], call: CallStream
    ) -> Iterator[BatchResult]:
        """Yields a result per batch, from a single stream of calls.

        Raises:
            UdfRuntimeError: As in `call`. The row of the error is counted in the first batch
                without a result.
        """
        pending: deque[_JoinedResults] = deque()
        results = call(self._cut(batches, pending))
        while True:
            try:
                result = next(results)
            except StopIteration:
                return
            except UdfRuntimeError as error:
                raise (pending[0].renumber(error) if pending else error) from error.__cause__
            first = pending[0]
            self._size.record(len(result.values), result.seconds)
            first.add(result)
            if first.is_complete:
                pending.popleft()
                yield first.join(first.seconds)

    def _cut(
        self, batches: Iterable[pa.RecordBatch], pending: deque[_JoinedResults]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of each call, and appends each batch to `pending` before its rows."""
        for batch in batches:
            check_inputs(self._context.udf, batch)
            batch_rows = self._sort(batch)
            pending.append(_JoinedResults(self._context.udf.name, batch_rows))
            first = 0
            while first == 0 or first < batch.num_rows:
                rows = batch_rows.slice(first, self._next_rows())
                yield rows
                first += max(rows.num_rows, 1)

    def _next_rows(self) -> int | None:
        """Returns the rows of the next call, at most as many as fit into memory."""
        limits = [
            rows
            for rows in (self._size.next_rows(), self._context.row_limit.most)
            if rows is not None
        ]
        return min(limits, default=None)

    def _sort(self, batch: pa.RecordBatch) -> _BatchRows:
        """Returns the rows of a batch in the order of their calls.

        Raises:
            UdfFailedError: The function of `sort_batch_by` raised.
            UdfOutputError: The function returned no array with a key per row.
        """
        key = self._context.udf.sort_key
        if key is None or batch.num_rows < 2:
            return _BatchRows(batch=batch)
        order = self._order(key, batch)
        return _BatchRows(batch=batch.take(order), order=order)

    def _order(self, key: Callable[..., object], batch: pa.RecordBatch) -> pa.Array[Any]:
        udf = self._context.udf
        try:
            keys = key(batch) if udf.kind.takes_batches else key(*batch.columns)
            keys = (
                keys
                if isinstance(keys, (pa.Array, pa.ChunkedArray))
                else pa.array(cast("Any", keys))
            )
            order: pa.Array[Any] = pc.sort_indices(keys)  # stable, and NULL comes last
        except BaseException as error:
            if passes_through(error):
                raise
            error.add_note(f"It was raised by sort_batch_by of UDF {udf.name!r}.")
            raise self._context.failed(error, row=None, attempt=1) from cause_of(error)
        if len(order) != batch.num_rows:
            raise UdfOutputError(
                f"The function sort_batch_by of UDF {udf.name!r} returned {len(order)} keys for a batch of "
                f"{batch.num_rows} rows. Return an array with one key per row.",
                udf=udf.name,
            )
        return order


@functools.lru_cache(maxsize=64)
def _find_size(
    name: str, version: str, columns: tuple[str, ...] | None, clock: Callable[[], float]
) -> ThroughputSize:
    """Returns the automatic size of a UDF, which all runners of this process share."""
    del name, version, columns  # the key of the cache
    return ThroughputSize(clock=clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchRows:
    """The rows of a batch in the order of their calls.

    Attributes:
        order: Positions of the rows in the runner's batch; None: unchanged.
    """

    batch: pa.RecordBatch
    order: pa.Array[Any] | None = None

    def slice(self, first: int, rows: int | None) -> pa.RecordBatch:
        return self.batch.slice(first, rows)

    def distance(self, position: int) -> int:
        """Returns the place of a row in the runner's batch, minus its place in the calls' order."""
        return 0 if self.order is None else int(self.order[position].as_py()) - position

    def restore(self, values: pa.Array[Any]) -> pa.Array[Any]:
        """Returns values in the order of the runner's batch."""
        return values if self.order is None else values.take(pc.sort_indices(self.order))


class _JoinedResults:
    """The results of a batch's calls so far.

    Attributes:
        count: Number of rows with a result.
        seconds: Time of the calls.
    """

    def __init__(self, udf: str, rows: _BatchRows) -> None:
        self.count = 0
        self.seconds = 0.0
        self._udf = udf
        self._rows = rows
        self._values: list[pa.Array[Any]] = []
        self._failures: list[RowFailure] = []
        self._retries = 0
        self._most_rows: int | None = None
        self._limit_s = 0.0

    @property
    def is_complete(self) -> bool:
        return bool(self._values) and self.count >= self._rows.batch.num_rows

    def add(self, result: BatchResult) -> None:
        """Adds the result of the next call."""
        self._failures += [
            failure.renumber(
                rows=self.count + self._rows.distance(self.count + failure.row), depth=0
            )
            for failure in result.failures
        ]
        self._values.append(result.values)
        self._retries += result.retries
        self._most_rows = result.batch_rows
        self._limit_s += result.limit_s
        self.count += len(result.values)
        self.seconds += result.seconds

    def renumber(self, error: UdfRuntimeError) -> UdfRuntimeError:
        """Returns the error of the next call with its row counted in the runner's batch."""
        row = getattr(error, "row", None)
        return (
            error
            if row is None
            else renumber_error(error, self.count + self._rows.distance(self.count + row))
        )

    def join(self, seconds: float) -> BatchResult:
        """Returns the result of the batch."""
        return BatchResult(
            values=self._rows.restore(join_parts(self._values, self._udf)),
            failures=tuple(sorted(self._failures, key=lambda failure: failure.row)),
            retries=self._retries,
            seconds=seconds,
            batch_rows=self._most_rows,
            limit_s=self._limit_s,
        )
