"""UDFs of single rows: a tight loop per batch, and retry and skip row by row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa

from udf_runtime.errors import UdfDefinitionError, UdfOutputError
from udf_runtime.execute.calls.time_limit import TimeLimit
from udf_runtime.execute.inputs import scalar_columns, scalar_rows
from udf_runtime.execute.outputs import Output
from udf_runtime.execute.result import BatchResult, RowFailure, cause_of, row_failure
from udf_runtime.execute.setting import Setting, load_function, passes_through


class ScalarCalls:
    """Calls a function once per row; only a `Retry` calls a failed row again.

    Thread-safe if the user's function is.
    """

    def __init__(
        self, setting: Setting, *, function: Callable[..., object] | None = None, output: Output | None = None
    ) -> None:
        """Loads the UDF in this process, unless `function` replaces the UDF."""
        self.setting = setting
        self.function = load_function(setting.udf) if function is None else function
        self.output = setting.output() if output is None else output
        self.time_limit = (
            None if setting.udf.timeout is None else TimeLimit(setting.udf.name, self.function, setting.udf.timeout)
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

    __slots__ = ("batch", "calls", "failures", "retries", "setting")

    def __init__(self, calls: ScalarCalls, batch: pa.RecordBatch) -> None:
        self.calls = calls
        self.setting = calls.setting
        self.batch = batch
        self.failures: list[RowFailure] = []
        self.retries = 0

    def run(self) -> BatchResult:
        start_s = self.setting.clock()
        rows = self.batch.num_rows
        results: list[object] = []
        call_the_rest = self._caller(self.batch, results)
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
                results.append(self._settled(len(results), failed or StopIteration("raised by the function")))
        values = self.calls.output.from_rows(results, misfit=self._settled)
        self.failures.sort(key=lambda failure: failure.row)
        return BatchResult(
            values=values, failures=tuple(self.failures), retries=self.retries, seconds=self.setting.clock() - start_s
        )

    def _caller(self, batch: pa.RecordBatch, results: list[object]) -> Callable[[], None]:
        """Returns a function that calls the remaining rows, and continues after a failed row."""
        parameters = self.setting.udf.parameters
        try:
            columns = scalar_columns(batch, parameters)
        except UdfDefinitionError:
            raise
        except Exception:  # noqa: BLE001 - the row with the failed conversion raises again, and its policy decides
            return self._extender(scalar_rows(batch, parameters), results)
        if self.calls.time_limit is not None:
            return self._extender(zip(*columns, strict=True) if columns else iter([()] * batch.num_rows), results)
        function = self.calls.function
        # `map` has consumed a row's arguments before the function raises, and `extend` keeps
        # earlier results. So earlier rows are kept, the next call continues with the next row, and
        # the loop itself runs in C.
        calls = map(function, *columns) if columns else map(lambda _: function(), range(batch.num_rows))  # noqa: C417 - a generator would end
        return lambda: results.extend(calls)

    def _extender(self, rows: Iterator[tuple[object, ...]], results: list[object]) -> Callable[[], None]:
        """Returns a function that calls rows, under the time limit if set."""
        limit = self.calls.time_limit
        if limit is not None:
            return lambda: limit.extend(results, rows)
        calls = itertools.starmap(self.calls.function, rows)
        return lambda: results.extend(calls)

    def _settled(self, row: int, error: BaseException) -> object:
        """Returns the value of a failed row: from a later attempt, or None if skipped."""
        policy, attempt = self.setting.policy, 1
        while True:
            decision = policy.decide(error, attempt=attempt, rng=self.setting.rng)
            if decision.action == "fail":
                raise self.setting.failed(error, row=row, attempt=attempt) from _cause(error)
            if decision.action == "skip":
                most = policy.max_attempts(error)
                self.failures.append(row_failure(error, row=row, attempt=attempt, max_attempts=most))
                return None
            self.setting.sleep(decision.delay_s)
            self.retries += 1
            attempt += 1
            # The arguments are made again: the previous attempt may have changed a list or read a
            # file to its end.
            results: list[object] = []
            try:
                self._caller(self.batch.slice(row, 1), results)()
                if results:
                    self.calls.output.from_rows(list(results))
                    return results[0]
                error = StopIteration("raised by the function")
            except UdfOutputError as again:
                error = UdfOutputError(str(again).replace("row 0 of", f"row {row} of"), udf=again.udf, row=row)
            except BaseException as again:  # as in run
                if passes_through(again):
                    raise
                error = again


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ if isinstance(error, UdfOutputError) else cause_of(error)
