"""UDFs of whole batches: a call per batch, with retries, and halving to isolate rows for a skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from udf_runtime.errors import UdfOutputError
from udf_runtime.execute.attempts import Attempts
from udf_runtime.execute.call_context import CallContext, load_function, passes_through
from udf_runtime.execute.casts import nulls
from udf_runtime.execute.inputs import vector_arguments
from udf_runtime.execute.result import BatchResult, RowFailure, cause_of, join_parts, renumber_error, row_failure
from udf_runtime.policies.error_policy import Decision


class VectorCalls:
    """Calls a function once per batch. Thread-safe if the user's function is."""

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        self.context = context
        self.function = load_function(context.udf)
        self.output = context.output()

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
        """
        start_s = self.context.clock()
        bisection = BatchBisection(self.context, self._call)
        values = bisection.run(batch)
        return bisection.result(values, self.context.clock() - start_s)

    def _call(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        return self.output.from_batch(self.function(*vector_arguments(self.context.udf.kind, batch)), batch.num_rows)


class BatchBisection:
    """A batch under an error policy: first as a whole, then in halves.

    A failed batch runs again as a whole while a `Retry` allows. If the policy then skips the error,
    the batch is halved until the failing rows are alone. A successful half is never repeated, so k
    bad rows of n take O(k log n) calls. Halves are not retried before they are halved again; a
    single row is.
    """

    __slots__ = ("_call", "_context", "failures", "retries")

    def __init__(self, context: CallContext, call: Callable[[pa.RecordBatch], pa.Array[Any]]) -> None:
        self._context = context
        self._call = call
        self.failures: list[RowFailure] = []
        self.retries = 0

    def run(self, batch: pa.RecordBatch, error: BaseException | None = None) -> pa.Array[Any]:
        """Returns the values of a batch.

        Args:
            batch: At least a row.
            error: The error of the first call, if already made.
        """
        return join_parts(self._run_part(batch, 0, 0, error), self._context.udf.name)

    def result(self, values: pa.Array[Any], seconds: float) -> BatchResult:
        """Returns values of `run` with the recorded failures."""
        return BatchResult(values=values, failures=tuple(self.failures), retries=self.retries, seconds=seconds)

    def _run_part(
        self, batch: pa.RecordBatch, start: int, depth: int, error: BaseException | None = None
    ) -> list[pa.Array[Any]]:
        """Returns the values of a part of the batch from a row on, in pieces, in order."""
        rows, attempts = batch.num_rows, Attempts(self._context)
        while True:
            if error is None:
                try:
                    return [self._call(batch)]
                except BaseException as raised:  # the policy handles any error of a UDF
                    if passes_through(raised):
                        raise
                    error = raised
            decision = self._decide(error, attempts, is_half=depth > 0 and rows > 1)
            if decision.action == "fail":
                self._fail(error, rows, start, attempts.count)
            if decision.action == "skip":
                break
            self._context.sleep(decision.delay_s)
            self.retries += 1
            error = None
        if rows == 1:
            self._skip(error, start, attempts.count, depth)
            return [nulls(1, self._context.udf.data_type)]
        # The error is dropped before the halves run, because its traceback holds the batch and the
        # function's objects.
        del error
        middle = rows // 2
        return [
            *self._run_part(batch.slice(0, middle), start, depth + 1),
            *self._run_part(batch.slice(middle), start + middle, depth + 1),
        ]

    def _decide(self, error: BaseException, attempts: Attempts, *, is_half: bool) -> Decision:
        """Returns the decision of the policy; a half is halved before it is retried."""
        final = self._context.policy.decide_finally(error) if is_half else None
        if final is not None and final.action == "skip":
            return final
        return attempts.decide(error)

    def _fail(self, error: BaseException, rows: int, start: int, attempt: int) -> None:
        if isinstance(error, UdfOutputError):
            raise renumber_error(error, start)
        row = start if rows == 1 else None
        raise self._context.failed(error, row=row, attempt=attempt) from cause_of(error)

    def _skip(self, error: BaseException, row: int, attempt: int, depth: int) -> None:
        most = self._context.policy.max_attempts(error)
        if isinstance(error, UdfOutputError):
            error = renumber_error(error, row)
        self.failures.append(row_failure(error, row=row, attempt=attempt, max_attempts=most, bisect_depth=depth))
