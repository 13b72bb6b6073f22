"""UDFs in child processes: a row that kills its process costs a row instead of the job."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pyarrow as pa

from udf_runtime.definition import UDF
from udf_runtime.errors import UdfProcessDiedError, UdfRuntimeError
from udf_runtime.execute.call_context import CallContext
from udf_runtime.execute.casts import nulls
from udf_runtime.execute.isolation import process_pool
from udf_runtime.execute.isolation.process import ProcessEndedError, ProcessSpec, UdfProcess
from udf_runtime.execute.result import BatchResult, RowFailure, join_parts, renumber_error, row_failure
from udf_runtime.policies import Fail

_log = logging.getLogger(__name__)


class IsolatedCalls:
    """Runs batches in child processes, a process per thread; a child serves many batches.

    When a child dies, its batch is halved, and the halves run in fresh children, until the fatal
    rows are alone: k fatal rows of n cost O(k log n) children. Successful halves keep their
    results. A row that kills its process alone goes to the error policy as
    :class:`UdfProcessDiedError`. Without a matcher for this error, the row is recorded as crashed
    and stays NULL; only a `Fail` that names UdfProcessDiedError ends the job. All other errors of a
    UDF are handled by the same policy inside the child.
    """

    def __init__(self, context: CallContext, processes: ProcessSpec) -> None:
        """Pickles the UDF; starts no process yet."""
        self.context = context
        self._processes = processes
        self._payload = context.udf.dumps()
        folder = context.chunks
        place = None if folder is None else (folder.root, folder.job)
        # Processes of an environment serve other tasks, too.
        self._key = None if processes == ProcessSpec() else (processes, UDF.payload_digest(self._payload), place)
        self._idle: list[UdfProcess] = []
        self._busy: set[UdfProcess] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the values of a batch.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
            UdfProcessDiedError: The process died before the load of the UDF, or for a row whose
                policy names this error in a `Fail`.
        """
        start_s = self.context.clock()
        parts = _BatchRun(self, batch)
        values = parts.run()
        return BatchResult(
            values=values,
            failures=tuple(parts.failures),
            retries=parts.retries,
            seconds=self.context.clock() - start_s,
            batch_rows=self.context.row_limit.most,
            limit_s=parts.limit_s,
        )

    def call(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the result of a call in an idle child, or in a new child."""
        process = self._take_process()
        serves_on = False
        try:
            result = process.call(batch)
            serves_on = True
        except ProcessEndedError as error:
            if self._stopped:
                raise _StoppedError from None
            _log.info("the process %d of UDF %r ended with %d", process.pid, self.context.udf.name, error.exit_code)
            raise
        except UdfRuntimeError:
            serves_on = process.loaded
            raise
        finally:
            with self._lock:
                self._busy.discard(process)
                # A process stopped at the moment of its answer is about to end; no later row must
                # be blamed.
                serves_on = serves_on and not self._stopped
                if serves_on:
                    self._idle.append(process)
            if not serves_on:
                process.kill()
        return result

    def _take_process(self) -> UdfProcess:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None and self._key is not None:
            process = process_pool.take(self._key)
        if process is not None and not process.alive:
            process.kill()
            process = None
        if process is None:
            process = UdfProcess(self.context.udf, self._payload, self._processes, self.context.chunks)
        with self._lock:
            if not self._stopped:
                self._busy.add(process)
                return process
        process.kill()
        raise _StoppedError

    def stop(self) -> None:
        """Kills the busy children; waiting threads get an error and start no new children."""
        with self._lock:
            self._stopped = True
            for process in self._busy:
                process.terminate()

    def resume(self) -> None:
        """Allows new children, after all stopped threads have ended."""
        with self._lock:
            self._stopped = False

    def close(self) -> None:
        """Ends all children; idle children of an environment are kept for the next task."""
        with self._lock:
            processes = list(self._idle)
            self._idle.clear()
            self._stopped = True
            for process in self._busy:
                process.terminate()
        for process in processes:
            if self._key is None:
                process.close()
            else:
                process_pool.keep(self._key, process)


class _BatchRun:
    """A batch in progress: as a whole, or in halves after a death."""

    __slots__ = ("_batch", "_calls", "_context", "failures", "limit_s", "retries")

    def __init__(self, calls: IsolatedCalls, batch: pa.RecordBatch) -> None:
        self._calls = calls
        self._context = calls.context
        self._batch = batch
        self.failures: list[RowFailure] = []
        self.retries = 0
        self.limit_s = 0.0

    def run(self) -> pa.Array[Any]:
        # A new process learns from earlier processes how many rows fit into memory.
        slices = self._context.row_limit.slices(self._batch.num_rows)
        parts = [part for start, rows in slices for part in self._run(start, rows, 0)]
        return join_parts(parts, self._context.udf.name)

    def _run(self, start: int, rows: int, depth: int) -> list[pa.Array[Any]]:
        attempt = 0
        while True:
            attempt += 1
            try:
                result = self._calls.call(self._batch.slice(start, rows))
            except ProcessEndedError as error:
                died = self._make_death(error, start if rows == 1 else None)
                if not error.loaded:
                    raise died from None
            except UdfRuntimeError as error:
                raise renumber_error(error, start) from error.__cause__
            else:
                self.failures.extend(failure.renumber(rows=start, depth=depth) for failure in result.failures)
                self.retries += result.retries
                if result.batch_rows is not None:
                    self._context.row_limit.lower(result.batch_rows)
                self.limit_s += result.limit_s
                return [result.values]
            if rows > 1:
                half = rows // 2
                return [*self._run(start, half, depth + 1), *self._run(start + half, rows - half, depth + 1)]
            if not self._retry_row(died, attempt):
                self._record(died, start, attempt, depth)
                return [nulls(1, self._context.udf.result_type)]

    def _make_death(self, ended: ProcessEndedError, row: int | None) -> UdfProcessDiedError:
        udf, output = self._context.udf.name, ended.output
        if ended.loaded:
            return UdfProcessDiedError(udf=udf, exit_code=ended.exit_code, row=row, output=output)
        died = UdfProcessDiedError(udf=udf, exit_code=ended.exit_code, row=None, output=output)
        last_output = f" It said: {output}" if output else ""
        died.add_note(f"It died while the UDF was loaded or before: no row is to blame.{last_output}")
        return died

    def _retry_row(self, died: UdfProcessDiedError, attempt: int) -> bool:
        """Tells whether a row that killed its process is called again; a `Fail` raises."""
        decision = self._context.policy.decide(died, attempt=attempt, rng=self._context.rng)
        if decision.action == "retry":
            self._context.sleep(decision.delay_s)
            self.retries += 1
            return True
        if isinstance(decision.matcher, Fail) and UdfProcessDiedError in decision.matcher.exceptions:
            raise died
        return False

    def _record(self, died: UdfProcessDiedError, row: int, attempt: int, depth: int) -> None:
        policy = self._context.policy
        skipped = policy.decide_finally(died).action == "skip"
        self.failures.append(
            row_failure(
                died,
                row=row,
                attempt=attempt,
                max_attempts=policy.max_attempts(died),
                bisect_depth=depth,
                outcome="skipped" if skipped else "crashed",
            )
        )


class _StoppedError(Exception):
    """A batch was abandoned because its run has ended."""
