"""UDFs of single rows: a tight loop per batch, and retry and skip row by row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa

from udf_runtime.errors import UdfDefinitionError, UdfOutputError
from udf_runtime.execute.attempts import Attempts
from udf_runtime.execute.call_context import CallContext, load_function, passes_through
from udf_runtime.execute.calls.time_limit import TimeLimit
from udf_runtime.execute.conversion.inputs import has_large_rows, scalar_columns, scalar_rows
from udf_runtime.execute.conversion.outputs import Output
from udf_runtime.execute.result import BatchResult, RowFailure, find_cause


class ScalarCalls:
    """Calls a function once per row; only a `Retry` calls a failed row again.

    Thread-safe if the user's function is.
    """

    def __init__(
        self,
        context: CallContext,
        *,
        function: Callable[..., object] | None = None,
        output: Output | None = None,
    ) -> None:
        """Loads the UDF in this process, unless `function` replaces the UDF."""
        self.context = context
        loaded = load_function(context.udf) if function is None else function
        self.function = loaded if context.gate is None else context.gate.observe(loaded)
        self.output = context.output() if output is None else output
        self.time_limit = (
            None
            if context.udf.timeout is None
            else TimeLimit(context.udf.name, self.function, context.udf.timeout)
        )

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
        """
        return _Batch(self, batch).run()

    def close(self) -> None:
        """Ends the threads of calls with a time limit."""
        if self.time_limit is not None:
            self.time_limit.close()


class _Batch:
    """The state of a batch in progress."""

    __slots__ = ("batch", "calls", "context", "failures", "retries")

    def __init__(self, calls: ScalarCalls, batch: pa.RecordBatch) -> None:
        self.calls = calls
        self.context = calls.context
        self.batch = batch
        self.failures: list[RowFailure] = []
        self.retries = 0

    def run(self) -> BatchResult:
        start_s = self.context.clock()
        rows = self.batch.num_rows
        results: list[object] = []
        call_the_rest = self._make_caller(self.batch, results)
        while len(results) < rows:
            failed: BaseException | None = None
            try:
                call_the_rest()
            except BaseException as error:  # the policy handles any error of a UDF
                if passes_through(error):
                    raise
                failed = error
            if len(results) < rows:
                # Without an exception, the function raised StopIteration, a normal end for
                # `extend`.
                results.append(
                    self._settle(len(results), failed or StopIteration("raised by the function"))
                )
        values = self.calls.output.from_rows(results, misfit=self._settle)
        return self.context.result(values, self.failures, retries=self.retries, start_s=start_s)

    def _make_caller(self, batch: pa.RecordBatch, results: list[object]) -> Callable[[], None]:
        """Returns a function that calls the remaining rows, and continues after a failed row."""
        parameters = self.context.udf.parameters
        is_by_row = has_large_rows(batch)
        try:
            columns = scalar_columns(batch.slice(0, 0) if is_by_row else batch, parameters)
        except UdfDefinitionError:
            raise
        except Exception:  # noqa: BLE001 - the row with the failed conversion raises again, and its policy decides
            is_by_row = True
        if is_by_row:
            return self._make_extender(scalar_rows(batch, parameters), results)
        if self.calls.time_limit is not None or self.context.gate is not None:
            return self._make_extender(
                zip(*columns, strict=True) if columns else iter([()] * batch.num_rows), results
            )
        function = self.calls.function
        # `map` has consumed a row's arguments before the function raises, and `extend` keeps
        # earlier results. So earlier rows are kept, the next call continues with the next row, and
        # the loop itself runs in C.
        rows = range(batch.num_rows)
        calls = map(function, *columns) if columns else map(lambda _: function(), rows)  # noqa: C417 - a generator would end
        return lambda: results.extend(calls)

    def _make_extender(
        self, rows: Iterator[tuple[object, ...]], results: list[object]
    ) -> Callable[[], None]:
        """Returns a function that calls rows, under the time limit and after the gate, if set."""
        limit, gate = self.calls.time_limit, self.context.gate
        if gate is not None:
            rows = gate.admit_rows(rows)
        if limit is not None:
            return lambda: limit.extend(results, rows)
        calls = itertools.starmap(self.calls.function, rows)
        return lambda: results.extend(calls)

    def _settle(self, row: int, error: BaseException) -> object:
        """Returns the value of a failed row: from a later attempt, or None if skipped."""
        attempts = Attempts(self.context)
        while True:
            decision = attempts.decide(error)
            if decision.action == "fail":
                raise self.context.failed(error, row=row, attempt=attempts.count) from find_cause(
                    error
                )
            if decision.action in ("skip", "give_up"):
                self.failures.append(attempts.describe(error, decision, row=row))
                return None
            self.retries += 1
            # The arguments are made again, because the previous attempt may have changed a list or
            # read a file to its end.
            results: list[object] = []
            try:
                self._make_caller(self.batch.slice(row, 1), results)()
                if results:
                    self.calls.output.from_rows(list(results))
                    return results[0]
                error = StopIteration("raised by the function")
            except UdfOutputError as again:
                error = again.at_row(row)
            except BaseException as again:  # as in run
                if passes_through(again):
                    raise
                error = again
