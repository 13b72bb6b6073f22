"""UDFs over an iterator of batches: for example a model with a single setup."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from udf_runtime.errors import UdfOutputError
from udf_runtime.execute.call_context import (
    CallContext,
    close_results,
    load_function,
    passes_through,
)
from udf_runtime.execute.calls.vector import BatchBisection
from udf_runtime.execute.conversion.casts import nulls
from udf_runtime.execute.conversion.inputs import check_inputs, vector_arguments
from udf_runtime.execute.memory import free_memory, is_out_of_memory
from udf_runtime.execute.result import BatchResult, cause_of

MOST_READ_AHEAD = 4
"""Maximum number of batches read ahead of the first result; after these the function sees the
end of its input."""


class StreamCalls:
    """Feeds batches to a generator function, and takes a result per batch, in order.

    The generator lives from batch to batch. The generator may read a few batches ahead. If it reads
    more without a result (for example because it makes a list of its input), its input ends, and a
    new generator starts for the rest, so memory stays bounded. A generator is dead after an error,
    so a new generator starts. The batches without a result then run alone, each as its own stream,
    under the error policy (retry, or halving down to a row). A single stream, for any number of
    threads. Not thread-safe.
    """

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        self.context = context
        self.function = load_function(context.udf)
        self.output = context.output()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[BatchResult]:
        """Yields a result per batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: A result does not fit its batch, or the numbers of results and batches
                differ, and the policy does not forgive the error.
        """
        feed = _Feed(self.context, iter(batches))
        while feed.prepare():
            yield from self._run_stream(feed)
        yield from self._yield_empty(feed)

    def _run_stream(self, feed: _Feed) -> Iterator[BatchResult]:
        clock = self.context.clock
        results: Iterator[object] | None = None
        answered = 0
        try:
            while True:
                start_s, source_s = clock(), feed.source_s
                error: BaseException | None = None
                try:
                    if results is None:
                        results = iter(self._start(feed))
                    result = next(results)
                except StopIteration:
                    break
                except BaseException as raised:  # the policy handles any error of a UDF
                    if feed.broken is not None:
                        raise feed.broken from None
                    if passes_through(raised):
                        raise
                    error = raised
                if error is not None:
                    yield from self._run_each(feed, error)
                    return
                yield from self._yield_empty(feed)
                if not feed.taken:
                    raise self._make_count_error("gave more results than it had taken batches")
                if self.context.gate is not None:
                    self.context.gate.health.note_success()
                batch = feed.taken.popleft()
                answered += 1
                # The time for the input belongs to the reader.
                yield self._check_result(result, batch, start_s + feed.source_s - source_s)
            yield from self._finish(feed, answered)
        finally:
            close_results(results)

    def _finish(self, feed: _Feed, answered: int) -> Iterator[BatchResult]:
        """Yields the results of the batches without a result at the regular end of a generator."""
        unanswered = feed.unanswered()
        # An early end after a result for each batch is no error, and a new generator starts for
        # the rest.
        if unanswered:
            total = answered + unanswered
            yield from self._run_each(
                feed, self._make_count_error(f"ended after {answered} results for {total} batches")
            )

    def _start(self, feed: Iterable[object]) -> Iterable[object]:
        results = self.function(feed)
        if not isinstance(results, Iterable):
            raise UdfOutputError(
                f"UDF {self.context.udf.name!r} returned {type(results).__name__} instead of an iterator of results. "
                "Yield one result per batch.",
                udf=self.context.udf.name,
            )
        return results

    def _check_result(self, result: object, batch: pa.RecordBatch, start_s: float) -> BatchResult:
        """Returns the result of a batch; a misfit is an error of this batch alone."""
        bisection = BatchBisection(self.context, self._run_alone)
        try:
            values = self.output.from_batch(result, batch.num_rows)
        except UdfOutputError as error:
            values = bisection.run(batch, error)
        return bisection.result(values, start_s)

    def _run_each(self, feed: _Feed, error: BaseException) -> Iterator[BatchResult]:
        """Yields the results of the batches left by a dead generator, each computed alone."""
        yield from self._yield_empty(feed)
        if is_out_of_memory(error):
            free_memory(error)
        batches = feed.take_unanswered()
        if not batches:  # raised after its last result, so the error belongs to no batch
            raise self.context.failed(error, row=None, attempt=1) from cause_of(error)
        for batch in batches:
            start_s = self.context.clock()
            if batch.num_rows == 0:
                yield self._make_empty_result()
                continue
            bisection = BatchBisection(self.context, self._run_alone)
            if len(batches) > 1 and self._is_final(error):
                raise self.context.failed(error, row=None, attempt=1) from cause_of(error)
            # With several batches in progress, the generator does not show the fatal batch, so each
            # batch starts without a mark.
            values = bisection.run(batch, error if len(batches) == 1 else None)
            yield bisection.result(values, start_s)

    def _is_final(self, error: BaseException) -> bool:
        """Tells whether the error of several batches ends the run."""
        if is_out_of_memory(error):  # fewer rows may fit
            return False
        return self.context.policy.decide(error, attempt=1, rng=self.context.rng).action == "fail"

    def _run_alone(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        """Returns the values of a batch from its own generator."""
        if self.context.gate is not None:
            self.context.gate.admit()
        results = iter(self._start(iter([make_item(self.context, batch)])))
        try:
            for result in results:
                return self.output.from_batch(result, batch.num_rows)
        finally:
            close_results(results)
        raise self._make_count_error("ended after 0 results for 1 batches")

    def _yield_empty(self, feed: _Feed) -> Iterator[BatchResult]:
        """Yields results of the next batches without rows, which the function never sees."""
        while feed.taken and feed.taken[0].num_rows == 0:
            feed.taken.popleft()
            yield self._make_empty_result()

    def _make_empty_result(self) -> BatchResult:
        return BatchResult(values=nulls(0, self.context.udf.data_type))

    def _make_count_error(self, what: str) -> UdfOutputError:
        return UdfOutputError(
            f"UDF {self.context.udf.name!r} {what}. Yield exactly one result per batch.",
            udf=self.context.udf.name,
        )


class _Feed:
    """The iterator for the function, and its batches without a result."""

    def __init__(self, context: CallContext, source: Iterator[pa.RecordBatch]) -> None:
        self._context = context
        self._source = source
        self._next: pa.RecordBatch | None = None
        self.taken: deque[pa.RecordBatch] = deque()
        self.broken: BaseException | None = None
        self.source_s = 0.0

    def prepare(self) -> bool:
        """Ensures a batch for the start of a stream; False at the end."""
        if self._next is None:
            self._next = self._pull()
        return self._next is not None

    def unanswered(self) -> int:
        return sum(batch.num_rows > 0 for batch in self.taken) + (self._next is not None)

    def take_unanswered(self) -> list[pa.RecordBatch]:
        batches = [*self.taken, *([] if self._next is None else [self._next])]
        self.taken.clear()
        self._next = None
        return batches

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> object:
        if sum(batch.num_rows > 0 for batch in self.taken) >= MOST_READ_AHEAD:
            raise StopIteration
        batch = self._next if self._next is not None else self._pull()
        self._next = None
        if batch is None:
            raise StopIteration
        self.taken.append(batch)
        return make_item(self._context, batch)

    def _pull(self) -> pa.RecordBatch | None:
        """Returns the next batch with rows; empty batches go to `taken`, in order."""
        start_s = self._context.clock()
        try:
            for batch in self._source:
                check_inputs(self._context.udf, batch)
                if batch.num_rows:
                    return batch
                self.taken.append(batch)
        except BaseException as error:
            # The error passes through the user's generator, which must not be blamed.
            self.broken = error
            raise
        finally:
            self.source_s += self._context.clock() - start_s
        return None


def make_item(context: CallContext, batch: pa.RecordBatch) -> object:
    """Returns an item of the function's iterator: its argument, or a tuple of several arguments."""
    arguments = vector_arguments(context.udf.kind, batch)
    return arguments[0] if len(arguments) == 1 else arguments
