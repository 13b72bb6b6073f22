"""Runs a UDF over record batches: the entry point of this package."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import pyarrow as pa

from udf_runtime.checkpoint.chunks import ChunkFolder
from udf_runtime.definition import UDF, Kind
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.execute.batches.batching import CallBatches
from udf_runtime.execute.batches.distinct import DistinctCalls, FindValues
from udf_runtime.execute.call_context import CallContext
from udf_runtime.execute.calls.asynchronous import AsyncBatchCalls, AsyncCalls, AsyncScalarCalls
from udf_runtime.execute.calls.chunks import ChunkerCalls
from udf_runtime.execute.calls.scalar import ScalarCalls
from udf_runtime.execute.calls.stream import StreamCalls
from udf_runtime.execute.calls.vector import VectorCalls
from udf_runtime.execute.conversion.casts import nulls
from udf_runtime.execute.conversion.inputs import check_inputs
from udf_runtime.execute.isolation.isolated_calls import IsolatedCalls
from udf_runtime.execute.isolation.process import ProcessSpec, WorkAhead
from udf_runtime.execute.limits import CallGate, Limiter, ProcessLimiter
from udf_runtime.execute.memory import RowLimit, row_limit_of
from udf_runtime.execute.result import BatchResult
from udf_runtime.execute.service_health import ServiceHealth
from udf_runtime.policies import RetryHttp

_BatchCalls = (
    ScalarCalls | ChunkerCalls | VectorCalls | AsyncScalarCalls | AsyncBatchCalls | IsolatedCalls
)
_STOPPABLE = (AsyncCalls, CallGate, IsolatedCalls)

_TURNS_OF_SLOTS = 4
"""Minimum calls of each of the `max_in_flight` slots in a batch, if the next batch waits for the
last call of a batch."""


class UdfRunner:
    """Runs a UDF over batches, under its error policy, in this process or in child processes.

    The UDF is loaded once per process. The runner is a context manager: `close` ends threads and
    child processes. Only one `run` may be active.
    """

    def __init__(  # noqa: PLR0913 - the dependencies of a run
        self,
        udf: UDF,
        *,
        threads: int = 1,
        isolate: bool = False,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
        rng: random.Random | None = None,
        chunks: ChunkFolder | None = None,
        processes: ProcessSpec | None = None,
        job: str | None = None,
        find_values: FindValues | None = None,
        limiter: Limiter | None = None,
        call_slots: asyncio.Semaphore | None = None,
    ) -> None:
        """Prepares a run; loads no UDF, and starts no thread and no process.

        Args:
            udf: The UDF.
            threads: Maximum number of concurrent batches. UDFs over iterators run as a single
                stream, unless isolated.
            isolate: Whether the UDF runs in child processes of this runner, as many as `threads`,
                so a crash costs a row instead of this process.
            sleep: Waits a number of seconds between two attempts. Child processes use their own.
            clock: Returns seconds, for measurements. Child processes use their own.
            rng: Random numbers for waiting times; None: unseeded.
            chunks: Folder of a chunker's chunks; the results hold locations.
            processes: Python, devices and owner of child processes. Unless isolated, all threads
                share a process, which stays idle after `close` and serves later runners of the same
                UDF. None: the UDF runs in this process, unless isolated.
            job: Id of the job. After a call ran out of memory, all runners of the job in this
                process keep to the number of rows that fits, and so do their child processes. None:
                the number holds for this runner.
            find_values: Finds known values of equal inputs, for a UDF with `deduplicate="table"`.
            limiter: Grants calls of a UDF with a rate limit; None: the limit holds for this runner.
            call_slots: Slots of the concurrent calls of an async UDF, shared by the runners of this
                process; None: `max_in_flight` holds for this runner.

        Raises:
            UdfDefinitionError: `threads` is less than 1.
        """
        if threads < 1:
            raise UdfDefinitionError(
                f"The argument threads={threads} of UdfRunner is not possible. Give a number of threads from 1."
            )
        self._context = CallContext(
            udf=udf,
            sleep=sleep,
            clock=clock,
            rng=rng if rng is not None else random.Random(),  # noqa: S311 - waiting times are no secret
            chunks=chunks,
            row_limit=RowLimit() if job is None else row_limit_of(job),
            gate=_make_gate(udf, sleep, clock, limiter),
            call_slots=call_slots,
        )
        self._distinct = DistinctCalls(udf, find=find_values) if udf.deduplicate else None
        self._threads = threads
        self._isolate = isolate or processes is not None
        self._is_shared = not isolate
        self._processes = ProcessSpec() if processes is None else processes
        self._batches = CallBatches(self._context)
        self._calls: _BatchCalls | StreamCalls | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def most_batches(self) -> int:
        """Maximum number of batches in progress during a run, without a limit for calls of rows."""
        udf = self._context.udf
        if udf.is_async and not self._isolate and udf.kind is not Kind.SCALAR:
            return udf.calls_in_flight + 1
        at_once = (
            max(self._threads, AsyncScalarCalls.batches_at_once) if udf.is_async else self._threads
        )
        return 1 if at_once == 1 else at_once + 1

    @property
    def least_rows(self) -> int:
        """Minimum rows of a batch, so that few slots of an async UDF wait for its last calls.

        Batches in progress at once share the slots, so a slot of these waits for no call.
        """
        udf = self._context.udf
        waits = udf.is_async and not udf.kind.vectorised and self._isolate and self._threads == 1
        return _TURNS_OF_SLOTS * udf.calls_in_flight if waits else 1

    def load(self) -> None:
        """Loads the UDF in this process now instead of with the first batch, unless it is isolated.

        Raises:
            UdfFailedError: The class of a stateful UDF raised in its constructor or `setup`.
        """
        self._load_calls()

    def share(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the next batch in memory of the UDF's process, so its call begins sooner.

        For `work_ahead` of a run. The memory of an earlier shared batch is free after its call.
        """
        calls = self._load_calls()
        return calls.share(batch) if isinstance(calls, IsolatedCalls) else batch

    def run(
        self, batches: Iterable[pa.RecordBatch], work_ahead: WorkAhead | None = None
    ) -> Iterator[BatchResult]:
        """Yields a result per batch, in order.

        The first batch is read at the request for the first result, and at most `threads` + 1
        batches are in progress: for async UDFs of single rows at least 3, for other async UDFs the
        batches of `max_in_flight` + 1 calls. After an error no further batch is read; batches in
        other threads are awaited and dropped. Calls of an async UDF are cancelled, and no further
        call of a service begins. An error of the iterable follows the results of the batches
        before.

        Args:
            batches: Batches with exactly the UDF's inputs as columns, in parameter order; for a UDF
                over record batches, the batches for the function. A batch without rows gets a
                result without a call. A UDF over batches gets the rows of a batch in calls of its
                `batch_size`, sorted by its `sort_batch_by`.
            work_ahead: Prepares the next batch while a process computes, in the thread of the
                caller. Unused by several threads, in this process, and for a UDF with
                `deduplicate`.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
            UdfProcessDiedError: An isolated UDF died before its load, or its policy names this
                error in a `Fail`.
            UdfDefinitionError: A batch does not have the UDF's inputs.
        """
        if self._closed:
            raise UdfDefinitionError("The UdfRunner is closed. Make another runner.")
        self._load_calls()
        return (
            self._run_calls(batches, work_ahead)
            if self._distinct is None
            else self._distinct.run(batches, self._run_calls)
        )

    def close(self) -> None:
        """Ends threads and child processes; a second call is fine."""
        self._closed = True
        calls, self._calls = self._calls, None
        if isinstance(calls, (ScalarCalls, IsolatedCalls)):
            calls.close()

    def take_load_s(self) -> float:
        """Returns the seconds for processes and loads of the UDF since the last call."""
        return self._context.load_time.take()

    def _load_calls(self) -> _BatchCalls | StreamCalls:
        if self._calls is None:
            began_s = self._context.clock()
            self._calls = self._make_calls()
            self._context.load_time.add(self._context.clock() - began_s)
        return self._calls

    def _make_calls(self) -> _BatchCalls | StreamCalls:
        context, kind = self._context, self._context.udf.kind
        if self._isolate:
            return IsolatedCalls(
                context, self._processes, is_shared=self._is_shared, threads=self._threads
            )
        if context.udf.is_async:
            return AsyncScalarCalls(context) if kind is Kind.SCALAR else AsyncBatchCalls(context)
        if kind is Kind.CHUNKS:
            return ChunkerCalls(context)
        if kind is Kind.SCALAR:
            return ScalarCalls(context)
        return StreamCalls(context) if kind.iterates else VectorCalls(context)

    def _run_calls(
        self, batches: Iterable[pa.RecordBatch], work_ahead: WorkAhead | None = None
    ) -> Iterator[BatchResult]:
        calls = self._load_calls()
        if isinstance(calls, StreamCalls):
            return self._batches.run_stream(batches, calls.run)
        if isinstance(calls, AsyncBatchCalls):
            at_once = calls.batches_at_once
            return self._batches.run_stream(
                batches, lambda cut: self._run_concurrently(calls, iter(cut), at_once)
            )
        at_once = max(
            self._threads, calls.batches_at_once if isinstance(calls, AsyncScalarCalls) else 1
        )
        if at_once == 1:
            return (self._run_batch(calls, batch, work_ahead) for batch in batches)
        return self._run_concurrently(calls, iter(batches), at_once)

    def _run_batch(
        self, calls: _BatchCalls, batch: pa.RecordBatch, work_ahead: WorkAhead | None = None
    ) -> BatchResult:
        check_inputs(self._context.udf, batch)
        if batch.num_rows == 0:
            return BatchResult(values=nulls(0, self._context.udf.result_type))
        if isinstance(calls, IsolatedCalls):  # a child process has a runner of its own
            return calls.run(batch, work_ahead)
        return (
            self._batches.run(batch, calls.run)
            if isinstance(calls, VectorCalls)
            else calls.run(batch)
        )

    def _run_concurrently(
        self, calls: _BatchCalls, batches: Iterator[pa.RecordBatch], at_once: int
    ) -> Iterator[BatchResult]:
        pending: deque[Future[BatchResult]] = deque()
        finished = False
        stoppable = [part for part in (calls, self._context.gate) if isinstance(part, _STOPPABLE)]
        executor = ThreadPoolExecutor(at_once, thread_name_prefix=f"udf-{self._context.udf.name}")
        try:
            for future in self._submit_each(calls, batches, executor):
                pending.append(future)
                if len(pending) > at_once:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            finished = True
        finally:
            for future in pending:
                future.cancel()
            for part in stoppable if not finished else ():
                part.stop()
            executor.shutdown(wait=True, cancel_futures=True)
            for part in stoppable if not self._closed else ():
                part.resume()

    def _submit_each(
        self, calls: _BatchCalls, batches: Iterator[pa.RecordBatch], executor: ThreadPoolExecutor
    ) -> Iterator[Future[BatchResult]]:
        """Yields the result of each batch, and then the error of a read."""
        try:
            for batch in batches:
                yield executor.submit(self._run_batch, calls, batch)
        except Exception as error:  # noqa: BLE001 - raised by the result of the unread batch
            unread: Future[BatchResult] = Future()
            unread.set_exception(error)
            yield unread


def _make_gate(
    udf: UDF, sleep: Callable[[float], object], clock: Callable[[], float], limiter: Limiter | None
) -> CallGate | None:
    """Returns the place where the calls of a UDF wait; None for UDFs without a service."""
    limit, health = udf.rate_limit, ServiceHealth(udf.name, clock)
    if limit is not None:
        limiter = ProcessLimiter(limit, clock) if limiter is None else limiter
        return CallGate(health, sleep=sleep, clock=clock, limiter=limiter, tokens=limit.tokens)
    if any(isinstance(matcher, RetryHttp) for matcher in udf.on_error):
        return CallGate(health, sleep=sleep, clock=clock)
    return None
