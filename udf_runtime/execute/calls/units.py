"""UDFs of whole batches: one call per batch, and halving where rows are to be skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from udf_runtime.errors import UdfOutputError
from udf_runtime.execute.casts import nulls
from udf_runtime.execute.inputs import vector_arguments
from udf_runtime.execute.result import BatchResult, RowFailure, cause_of, row_failure
from udf_runtime.execute.setting import Setting, load_function, passes_through


class VectorCalls:
    """Calls a function once per batch. Safe for several threads if the user's function is."""

    def __init__(self, setting: Setting) -> None:
        """Loads the UDF in this process."""
        self.setting = setting
        self.function = load_function(setting.udf)
        self.output = setting.output()

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive it.
            UdfOutputError: The function returned something that does not fit, and the policy does
                not forgive it.
        """
        start_s = self.setting.clock()
        unit = Units(self.setting, self._call)
        values = unit.run(batch)
        return unit.result(values, self.setting.clock() - start_s)

    def close(self) -> None:
        """Does nothing: there is nothing to end."""

    def _call(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        return self.output.from_batch(self.function(*vector_arguments(self.setting.udf.kind, batch)), batch.num_rows)


class Units:
    """One batch under an error policy: as a whole at first, then in halves.

    A batch that fails is tried again as a whole as long as a `Retry` says so. If the error is then
    to be skipped, the batch is halved until the rows that fail are alone; a half that works is not
    called again, so k bad rows of n take O(k log n) calls. Halves on the way down are not tried
    again before they are halved; a row that is alone is.
    """

    __slots__ = ("_call", "_setting", "failures", "retries")

    def __init__(self, setting: Setting, call: Callable[[pa.RecordBatch], pa.Array[Any]]) -> None:
        self._setting = setting
        self._call = call
        self.failures: list[RowFailure] = []
        self.retries = 0

    def run(self, batch: pa.RecordBatch, error: BaseException | None = None) -> pa.Array[Any]:
        """Returns the values of a batch.

        Args:
            batch: At least one row.
            error: What its first call raised, if that was made already.
        """
        parts = self._parts(batch, 0, 0, error)
        if len(parts) == 1:
            return parts[0]
        try:
            return pa.concat_arrays(parts)
        except pa.ArrowInvalid as overflow:
            udf = self._setting.udf.name
            raise UdfOutputError(
                f"UDF {udf!r} returned too much for one array: {overflow} - in the batch "
                "- use a large_ type or smaller batches",
                udf=udf,
            ) from overflow

    def result(self, values: pa.Array[Any], seconds: float) -> BatchResult:
        """Returns values of `run` with what was recorded on the way."""
        return BatchResult(values=values, failures=tuple(self.failures), retries=self.retries, seconds=seconds)

    def _parts(
        self, batch: pa.RecordBatch, start: int, depth: int, error: BaseException | None = None
    ) -> list[pa.Array[Any]]:
        """Returns the values of a part of the batch that begins at a row, in pieces, in order."""
        rows = batch.num_rows
        policy, attempt = self._setting.policy, 0
        while True:
            if error is None:
                try:
                    return [self._call(batch)]
                except BaseException as raised:  # whatever a UDF raises is its policy's business
                    if passes_through(raised):
                        raise
                    error = raised
            attempt += 1
            between = depth > 0 and rows > 1
            if between and policy.decide_finally(error).action == "skip":
                break
            decision = policy.decide(error, attempt=attempt, rng=self._setting.rng)
            if decision.action == "fail":
                self._fail(error, rows, start, attempt)
            if decision.action == "skip":
                if rows > 1:
                    break
                most = policy.max_attempts(error)
                self.failures.append(
                    row_failure(error, row=start, attempt=attempt, max_attempts=most, bisect_depth=depth)
                )
                return [nulls(1, self._setting.udf.data_type)]
            self._setting.sleep(decision.delay_s)
            self.retries += 1
            error = None
        # The error is let go of before the halves run: its traceback holds the batch and what the
        # function made of it.
        del error
        middle = rows // 2
        return [
            *self._parts(batch.slice(0, middle), start, depth + 1),
            *self._parts(batch.slice(middle), start + middle, depth + 1),
        ]

    def _fail(self, error: BaseException, rows: int, start: int, attempt: int) -> None:
        row = start if rows == 1 else None
        if isinstance(error, UdfOutputError):
            if error.row is not None and start:
                at = error.row + start
                message = str(error).replace(f"row {error.row} of the batch", f"row {at} of the batch")
                raise UdfOutputError(message, udf=error.udf, row=at) from error.__cause__
            raise error
        raise self._setting.failed(error, row=row, attempt=attempt) from cause_of(error)
