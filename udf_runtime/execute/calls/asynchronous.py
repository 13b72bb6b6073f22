"""Async UDFs: calls run concurrently on the event loop of the process, and results keep the order.

A call of single rows is a task of the loop. A call of a whole batch is a task that a thread of the
runner waits for, so the runner works on several batches at once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from udf_runtime.errors import UdfDefinitionError, UdfOutputError
from udf_runtime.event_loop import Coroutines
from udf_runtime.execute.attempts import Attempts
from udf_runtime.execute.call_context import CallContext, load_function, passes_through
from udf_runtime.execute.calls.vector import BatchBisection
from udf_runtime.execute.conversion.inputs import (
    has_large_rows,
    scalar_columns,
    scalar_rows,
    vector_arguments,
)
from udf_runtime.execute.result import BatchResult, RowFailure, find_cause


class AsyncCall:
    """A single call of an async function, within the limits of time and of concurrent calls."""

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        self._function = load_function(context.udf)
        self._limit_s = context.udf.timeout
        self._gate = context.gate
        self._slots = context.call_slots or asyncio.Semaphore(context.udf.calls_in_flight)

    async def __call__(self, *arguments: object) -> object:
        """Returns the awaited result of the function.

        Raises:
            TimeoutError: The call took too long, and is cancelled.
            ServiceUnavailableError: The service of the UDF was given up.
            BaseException: Any error of the function.
        """
        async with self._slots:
            if self._gate is None:
                return await self._call_in_time(arguments)
            await self._gate.admit_async(*arguments)
            result = await self._call_in_time(arguments)
            self._gate.health.note_success()
            return result

    async def _call_in_time(self, arguments: tuple[object, ...]) -> object:
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                result = self._function(*arguments)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"the call took longer than the timeout of {self._limit_s} s"
            ) from None


class AsyncCalls:
    """Calls of an async function, and the coroutines of the batches in progress."""

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        self.context = context
        self.call = AsyncCall(context)
        self.output = context.output()
        self.coroutines = Coroutines()

    def stop(self) -> None:
        """Cancels the calls of all batches; the threads of the batches get an error."""
        self.coroutines.stop()

    def resume(self) -> None:
        """Allows new calls, after all stopped threads have ended."""
        self.coroutines.resume()


class AsyncScalarCalls(AsyncCalls):
    """Calls an async function once per row; only a `Retry` calls a failed row again.

    A batch has at most `max_in_flight` tasks. Calls of several batches share the limit. Memory: the
    arguments and the results of a batch. Thread-safe.

    Attributes:
        batches_at_once: Batches in progress. The calls of the second batch fill the free places
            while the last calls of the first batch run.
    """

    batches_at_once = 2

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error. The
                other calls of the batch are cancelled.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
        """
        return _AsyncBatch(self, batch).run()


class _AsyncBatch:
    """The state of a batch in progress."""

    __slots__ = (
        "_batch",
        "_calls",
        "_columns",
        "_context",
        "_failures",
        "_results",
        "_retries",
        "_waiting_rows",
    )

    def __init__(self, calls: AsyncScalarCalls, batch: pa.RecordBatch) -> None:
        self._calls = calls
        self._context = calls.context
        self._batch = batch
        self._columns = _make_columns(calls.context, batch)
        self._waiting_rows: Iterator[int] = iter(range(batch.num_rows))
        self._results: list[object] = [None] * batch.num_rows
        self._failures: list[RowFailure] = []
        self._retries = 0

    def run(self) -> BatchResult:
        start_s = self._context.clock()
        run = self._calls.coroutines.run
        run(self._call_rows())
        values = self._calls.output.from_rows(
            self._results, misfit=lambda row, error: run(self._settle(row, error))
        )
        return self._context.result(values, self._failures, retries=self._retries, start_s=start_s)

    async def _call_rows(self) -> None:
        """Calls every row; the first error that the policy does not forgive cancels the others."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._context.udf.calls_in_flight, self._batch.num_rows)):
                    group.create_task(self._call_waiting_rows())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def _call_waiting_rows(self) -> None:
        for row in self._waiting_rows:
            if _is_cancelling():  # the function caught the error of its cancelled call
                raise asyncio.CancelledError
            try:
                self._results[row] = await self._calls.call(*self._make_arguments(row))
            except BaseException as error:  # the policy handles any error of a UDF
                if _is_cancelled(error) or passes_through(error):
                    raise
                failed: BaseException = error
            else:
                continue
            self._results[row] = await self._settle(row, failed)

    def _make_arguments(self, row: int) -> tuple[object, ...]:
        if self._columns is None:
            return self._make_fresh_arguments(row)
        return tuple(column[row] for column in self._columns)

    def _make_fresh_arguments(self, row: int) -> tuple[object, ...]:
        return next(scalar_rows(self._batch.slice(row, 1), self._context.udf.parameters))

    async def _settle(self, row: int, error: BaseException) -> object:
        """Returns the value of a failed row: from a later attempt, or None if skipped."""
        attempts = Attempts(self._context)
        while True:
            decision = await attempts.decide_async(error)
            if decision.action == "fail":
                raise self._context.failed(error, row=row, attempt=attempts.count) from find_cause(
                    error
                )
            if decision.action in ("skip", "give_up"):
                self._failures.append(attempts.describe(error, decision, row=row))
                return None
            self._retries += 1
            try:
                # Fresh, because the previous attempt may have changed a list or read a file.
                result = await self._calls.call(*self._make_fresh_arguments(row))
                self._calls.output.from_rows([result])
            except UdfOutputError as again:
                error = again.at_row(row)
            except BaseException as again:  # as in _call_waiting_rows
                if _is_cancelled(again) or passes_through(again):
                    raise
                error = again
            else:
                return result


class AsyncBatchCalls(AsyncCalls):
    """Calls an async function once per batch, with halves as for other UDFs over batches.

    Thread-safe: the threads of the runner wait for the calls of their batches.

    Attributes:
        batches_at_once: Batches in progress, a call for each. `batch_size` cuts them out of the
            runner's batches.
    """

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        super().__init__(context)
        self.batches_at_once = context.udf.calls_in_flight

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
        """
        start_s = self.context.clock()
        bisection = BatchBisection(self.context, self._call_batch)
        values = bisection.run(batch)
        return bisection.result(values, start_s)

    def _call_batch(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        arguments = vector_arguments(self.context.udf.kind, batch)
        return self.output.from_batch(self.coroutines.run(self.call(*arguments)), batch.num_rows)


def _make_columns(context: CallContext, batch: pa.RecordBatch) -> list[Sequence[object]] | None:
    """Returns the Python values of a batch; None if each call makes its own.

    That is, the rows are large, or a row's conversion fails, for its policy.
    """
    is_by_row = has_large_rows(batch)
    try:
        columns = scalar_columns(batch.slice(0, 0) if is_by_row else batch, context.udf.parameters)
    except UdfDefinitionError:
        raise
    except Exception:  # noqa: BLE001 - the row with the failed conversion raises again, and its policy decides
        return None
    return None if is_by_row else columns


def _is_cancelled(error: BaseException) -> bool:
    """Tells whether this task is cancelled; a function may raise a CancelledError of its own."""
    return isinstance(error, asyncio.CancelledError) and _is_cancelling()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
