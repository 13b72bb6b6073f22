"""UDFs of whole batches: a call per batch, with retries, and halving to isolate rows for a skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from udf_runtime.errors import UdfOutputError
from udf_runtime.execute.attempts import Attempts
from udf_runtime.execute.call_context import CallContext, load_function, passes_through
from udf_runtime.execute.conversion.casts import nulls
from udf_runtime.execute.conversion.inputs import vector_arguments
from udf_runtime.execute.memory import free_memory, is_out_of_memory
from udf_runtime.execute.result import BatchResult, RowFailure, cause_of, join_parts, renumber_error
from udf_runtime.policies.error_policy import Decision


class VectorCalls:
    """Calls a function once per batch. Thread-safe if the user's function is."""

    def __init__(self, context: CallContext) -> None:
        """Loads the UDF in this process."""
        self.context = context
        loaded = load_function(context.udf)
        self.function = loaded if context.gate is None else context.gate.observe(loaded)
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
        return bisection.result(values, start_s)

    def _call(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        arguments = vector_arguments(self.context.udf.kind, batch)
        gate = self.context.gate
        if gate is not None:
            gate.admit(*arguments)
        return self.output.from_batch(self.function(*arguments), batch.num_rows)


class BatchBisection:
    """A batch under an error policy: first as a whole, then in halves.

    A failed batch runs again as a whole while a `Retry` allows. If the policy then skips the error,
    the batch is halved until the failing rows are alone. A successful half is never repeated, so k
    bad rows of n take O(k log n) calls. Halves are not retried before they are halved again; a
    single row is.

    A batch that ran out of memory is halved without the policy, which decides about a row that runs
    out of memory alone. If no row of a halved batch did, the size of the batch was at fault, and
    the context's `row_limit` limits later calls to the size that worked.
    """

    __slots__ = ("_call", "_context", "_large_rows", "failures", "retries")

    def __init__(
        self, context: CallContext, call: Callable[[pa.RecordBatch], pa.Array[Any]]
    ) -> None:
        self._context = context
        self._call = call
        self._large_rows = 0  # rows that ran out of memory alone
        self.failures: list[RowFailure] = []
        self.retries = 0

    def run(self, batch: pa.RecordBatch, error: BaseException | None = None) -> pa.Array[Any]:
        """Returns the values of a batch.

        Args:
            batch: At least a row.
            error: The error of the first call, if already made.
        """
        parts = (
            self._run_slices(batch, 0, 0) if error is None else self._run_part(batch, 0, 0, error)
        )
        return join_parts(parts, self._context.udf.name)

    def result(self, values: pa.Array[Any], start_s: float) -> BatchResult:
        """Returns values of `run` with the recorded failures."""
        return self._context.result(values, self.failures, retries=self.retries, start_s=start_s)

    def _run_slices(self, batch: pa.RecordBatch, start: int, depth: int) -> list[pa.Array[Any]]:
        """Returns the values of a part of the batch, with calls of at most `row_limit` rows."""
        values: list[pa.Array[Any]] = []
        for row, rows in self._context.row_limit.slices(batch.num_rows):
            values += self._run_part(batch.slice(row, rows), start + row, depth)
        return values

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
            if rows > 1 and is_out_of_memory(error):
                free_memory(error)
                del error
                return self._run_smaller(batch, start, depth)
            decision = self._decide(error, attempts, is_half=depth > 0 and rows > 1)
            if decision.action == "fail":
                self._fail(error, rows, start, attempts.count)
            if decision.action != "retry":
                break
            self.retries += 1
            error = None
        if rows == 1 or decision.action == "give_up":
            self._large_rows += is_out_of_memory(error)
            error = renumber_error(error, start) if isinstance(error, UdfOutputError) else error
            self.failures += [
                attempts.describe(error, decision, row=start + row, depth=depth)
                for row in range(rows)
            ]
            return [nulls(rows, self._context.udf.data_type)]
        # The error is dropped before the halves run, because its traceback holds the batch and the
        # function's objects.
        del error
        return self._run_halves(batch, start, depth)

    def _run_halves(self, batch: pa.RecordBatch, start: int, depth: int) -> list[pa.Array[Any]]:
        middle = batch.num_rows // 2
        return [
            *self._run_slices(batch.slice(0, middle), start, depth + 1),
            *self._run_slices(batch.slice(middle), start + middle, depth + 1),
        ]

    def _run_smaller(self, batch: pa.RecordBatch, start: int, depth: int) -> list[pa.Array[Any]]:
        """Returns the values of a part that ran out of memory, and limits the rows of later calls.

        A row that runs out of memory alone explains the errors of the parts around this row.
        """
        large_rows = self._large_rows
        values = self._run_halves(batch, start, depth)
        if self._large_rows == large_rows:
            self._context.row_limit.lower(batch.num_rows - batch.num_rows // 2)
        return values

    def _decide(self, error: BaseException, attempts: Attempts, *, is_half: bool) -> Decision:
        """Returns the decision of the policy; a half is halved before it is retried."""
        if is_half and not attempts.is_refusal(error):
            final = self._context.policy.decide_finally(error)
            if final.action == "skip":
                return final
        return attempts.decide(error)

    def _fail(self, error: BaseException, rows: int, start: int, attempt: int) -> None:
        if isinstance(error, UdfOutputError):
            raise renumber_error(error, start)
        row = start if rows == 1 else None
        raise self._context.failed(error, row=row, attempt=attempt) from cause_of(error)
