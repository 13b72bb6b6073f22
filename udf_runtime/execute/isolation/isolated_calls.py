"""UDFs in their own processes: a row that kills its process costs a row instead of the job."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from udf_runtime.errors import UdfProcessDiedError, UdfRuntimeError
from udf_runtime.execute.call_context import CallContext, HungCallsError
from udf_runtime.execute.conversion.casts import nulls
from udf_runtime.execute.isolation.process import (
    ProcessEndedError,
    ProcessSpec,
    UdfConnection,
    WorkAhead,
)
from udf_runtime.execute.isolation.process_source import ProcessSource
from udf_runtime.execute.isolation.protocol.shared_batch import SharedBatch, share
from udf_runtime.execute.result import (
    BatchResult,
    RowFailure,
    join_parts,
    renumber_error,
    row_failure,
)
from udf_runtime.policies import Fail

_MOST_LOST = 3
"""Processes that may end between two calls, until a row is blamed."""

_log = logging.getLogger(__name__)


class IsolatedCalls:
    """Runs batches in processes of the UDF.

    A shared process is taken from the registry, and left idle there at the end: it serves all
    threads of this task, each over its own connection. Otherwise each thread has a process of its
    own, which ends with the calls.

    When a process dies, its batch is halved, and the halves run in fresh processes, until the fatal
    rows are alone: k fatal rows of n cost O(k log n) processes. Successful halves keep their
    results. During that time no other thread calls a shared process, so the death has a single
    suspect. A row that kills its process alone goes to the error policy as
    :class:`UdfProcessDiedError`. Without a matcher for this error, the row is recorded as crashed
    and stays NULL; only a `Fail` that names UdfProcessDiedError ends the job. All other errors of a
    UDF are handled by the same policy inside the process.
    """

    def __init__(
        self, context: CallContext, processes: ProcessSpec, *, is_shared: bool, threads: int
    ) -> None:
        """Pickles the UDF; starts no process yet.

        Args:
            context: The UDF.
            processes: Python, devices and owner of the processes.
            is_shared: Whether the threads share a process; it outlives the calls.
            threads: Maximum number of concurrent calls.
        """
        self.context = context
        self.has_many_suspects = is_shared and threads > 1
        self._source = ProcessSource(context, processes, is_shared=is_shared)
        self._turns = _Turns()
        self._idle: list[UdfConnection] = []
        self._busy: set[UdfConnection] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._load_error: UdfRuntimeError | None = None
        self._shared: SharedBatch | None = None

    def share(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the next batch in memory that the process reads, or the batch itself."""
        self._drop_shared()
        self._shared = share(batch)
        return batch if self._shared is None else self._shared.batch

    def run(self, batch: pa.RecordBatch, work_ahead: WorkAhead | None = None) -> BatchResult:
        """Returns the values of a batch. `work_ahead` runs while the process computes.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function returned a misfit, and the policy does not forgive the
                error.
            UdfProcessDiedError: The process died before the load of the UDF, or for a row whose
                policy names this error in a `Fail`.
        """
        start_s = self.context.clock()
        parts = _BatchRun(self, batch, work_ahead)
        values = parts.run()
        return BatchResult(
            values=values,
            failures=tuple(parts.failures),
            retries=parts.retries,
            seconds=self.context.clock() - start_s,
            batch_rows=self.context.row_limit.most,
            limit_s=parts.limit_s,
        )

    def call(
        self, batch: pa.RecordBatch, *, is_alone: bool, work_ahead: WorkAhead | None = None
    ) -> BatchResult:
        """Returns the result of a call in a process.

        Args:
            batch: The rows.
            is_alone: Whether other threads wait, so a death of the process is due to this batch.
            work_ahead: Runs while the process computes.
        """
        with self._turns.alone() if is_alone else self._turns.together():
            return self._call(batch, work_ahead)

    def _call(self, batch: pa.RecordBatch, work_ahead: WorkAhead | None) -> BatchResult:
        connection = self._take_connection()
        shared = self._shared
        payload = shared if shared is not None and shared.batch is batch else batch
        serves_on, was_served = False, connection.is_served
        try:
            gate = self.context.gate
            limiter = None if gate is None else gate.limiter
            result = connection.call(payload, limiter, work_ahead)
            serves_on = True
            self._source.note_answer()
            if not was_served:
                self.context.load_time.add(connection.load_s)
        except ProcessEndedError as error:
            reason = self._find_reason(error)
            try:
                raise reason from reason.__cause__
            finally:
                del reason  # a cycle with its traceback would keep the batch
        except UdfRuntimeError as error:
            self._load_error = None if connection.is_served else error
            serves_on = connection.is_served and not isinstance(error, HungCallsError)
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)
                # A process stopped at the moment of its answer is about to end; no later row must
                # be blamed.
                serves_on = serves_on and not self._stopped
                if serves_on:
                    self._idle.append(connection)
            if not serves_on:
                self._source.kill(connection)
        return result

    def _find_reason(self, ended: ProcessEndedError) -> Exception:
        """Returns the error for a call of an ended process."""
        if self._stopped:
            return _StoppedError()
        _log.info("a process of UDF %r ended with %d", self.context.udf.name, ended.exit_code)
        # The receiver of the load's error has killed the process.
        return ended if ended.loaded or self._load_error is None else self._load_error

    def _take_connection(self) -> UdfConnection:
        connection = None
        while connection is None:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                began_s = self.context.clock()
                connection = self._source.connect()
                self.context.load_time.add(self.context.clock() - began_s)
            elif not connection.process.alive:
                self._source.kill(connection)
                connection = None
        with self._lock:
            if not self._stopped:
                self._busy.add(connection)
                return connection
        self._source.kill(connection)
        raise _StoppedError

    def stop(self) -> None:
        """Kills the busy processes; waiting threads get an error and start no new processes."""
        with self._lock:
            self._stopped = True
            for connection in self._busy:
                connection.process.terminate()

    def resume(self) -> None:
        """Allows new processes, after all stopped threads have ended."""
        with self._lock:
            self._stopped = False

    def close(self) -> None:
        """Ends the processes; leaves a shared process idle for other tasks."""
        self._drop_shared()
        with self._lock:
            connections = list(self._idle)
            self._idle.clear()
            self._stopped = True
            is_busy = bool(self._busy)
            for connection in self._busy:
                connection.process.terminate()
        self._source.close(connections, is_busy=is_busy)

    def _drop_shared(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()


class _Turns:
    """Calls together, or a single call alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._together = 0
        self._is_alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._is_alone)
            self._together += 1
        try:
            yield
        finally:
            with self._condition:
                self._together -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._is_alone)
            self._is_alone = True
            self._condition.wait_for(lambda: not self._together)
        try:
            yield
        finally:
            with self._condition:
                self._is_alone = False
                self._condition.notify_all()


class _BatchRun:
    """A batch in progress: as a whole, or in halves after a death."""

    __slots__ = (
        "_batch",
        "_calls",
        "_context",
        "_is_alone",
        "_work_ahead",
        "failures",
        "limit_s",
        "retries",
    )

    def __init__(
        self, calls: IsolatedCalls, batch: pa.RecordBatch, work_ahead: WorkAhead | None
    ) -> None:
        self._calls = calls
        self._context = calls.context
        self._batch = batch
        self._work_ahead = work_ahead
        self._is_alone = False  # after a death by an unknown row
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
                is_whole = rows == self._batch.num_rows
                result = self._call(self._batch if is_whole else self._batch.slice(start, rows))
            except ProcessEndedError as error:
                died = self._make_death(error, start if rows == 1 else None)
                if not error.loaded:
                    raise died from None
            except UdfRuntimeError as error:
                raise renumber_error(error, start) from error.__cause__
            else:
                self._add(result, start, depth)
                return [result.values]
            if rows > 1:
                half = rows // 2
                return [
                    *self._run(start, half, depth + 1),
                    *self._run(start + half, rows - half, depth + 1),
                ]
            if not self._retry_row(died, attempt):
                self._record(died, start, attempt, depth)
                return [nulls(1, self._context.udf.result_type)]

    def _call(self, rows: pa.RecordBatch) -> BatchResult:
        """Returns the result of rows, also after deaths that are not certainly due to these rows.

        Raises:
            ProcessEndedError: One of the rows is to blame, or the load of the UDF.
            UdfRuntimeError: The error of the UDF.
        """
        deaths_while_idle = 0
        while True:
            try:
                return self._calls.call(rows, is_alone=self._is_alone, work_ahead=self._work_ahead)
            except ProcessEndedError as error:
                if not error.loaded:
                    raise
                if not error.called and deaths_while_idle < _MOST_LOST:
                    deaths_while_idle += 1
                elif self._is_alone or not self._calls.has_many_suspects:
                    raise
                else:
                    self._is_alone = True

    def _add(self, result: BatchResult, start: int, depth: int) -> None:
        self.failures.extend(
            failure.renumber(rows=start, depth=depth) for failure in result.failures
        )
        self.retries += result.retries
        if result.batch_rows is not None:
            self._context.row_limit.lower(result.batch_rows)
        self.limit_s += result.limit_s

    def _make_death(self, ended: ProcessEndedError, row: int | None) -> UdfProcessDiedError:
        udf, output = self._context.udf.name, ended.output
        if ended.loaded:
            return UdfProcessDiedError(udf=udf, exit_code=ended.exit_code, row=row, output=output)
        died = UdfProcessDiedError(udf=udf, exit_code=ended.exit_code, row=None, output=output)
        last_output = f" It said: {output}" if output else ""
        died.add_note(
            f"It died while the UDF was loaded or before: no row is to blame.{last_output}"
        )
        return died

    def _retry_row(self, died: UdfProcessDiedError, attempt: int) -> bool:
        """Tells whether a fatal row is tried again; a `Fail` raises."""
        decision = self._context.policy.decide(died, attempt=attempt, rng=self._context.rng)
        if decision.action == "retry":
            self._context.sleep(decision.delay_s)
            self.retries += 1
            return True
        if (
            isinstance(decision.matcher, Fail)
            and UdfProcessDiedError in decision.matcher.exceptions
        ):
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
