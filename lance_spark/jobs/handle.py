"""The handle of a running job."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its hook has to be there before the one below
import dataclasses
import math
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import BackfillIncompleteError, JobTimeoutError, OptionError, counted
from lance_spark.jobs.model import BackfillJobResult, RefreshJobResult, Status

_R = TypeVar("_R", bound=BackfillJobResult | RefreshJobResult)
_R_co = TypeVar("_R_co", bound=BackfillJobResult | RefreshJobResult, covariant=True)


class Runnable(Protocol[_R_co]):
    """What a handle holds: a job that one thread runs."""

    def run(self) -> _R_co:
        """Runs it to its end."""

    def cancel(self) -> None:
        """Ends it early."""

    def snapshot(self) -> _R_co:
        """Returns how it stands."""


@ARGUMENTS.methods
class Job(Generic[_R]):
    """A job that runs in a thread of this process. Python waits for it before it exits.

    Every method may be called from any thread.
    """

    def __init__(
        self, job: Runnable[_R], job_id: str, table_name: str, columns: tuple[str, ...], job_type: str = "backfill"
    ) -> None:
        self._job = job
        self._future: Future[_R] = Future()
        self._job_id = job_id
        self._table_name = table_name
        self._columns = columns
        self._job_type = job_type
        self._thread = threading.Thread(target=self._run, name=f"lance-spark-{job_id}", daemon=False)

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self._job_id

    @property
    def table_name(self) -> str:
        """Name of the table."""
        return self._table_name

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that it fills."""
        return self._columns

    @property
    def future(self) -> Future[_R]:
        """The result as a future of the standard library."""
        return self._future

    @property
    def status(self) -> Status:
        """How the job stands: RUNNING, DONE, PARTIAL, FAILED or CANCELLED. Never waits."""
        return self.progress().status

    def start(self) -> Job[_R]:
        """Starts the thread, and returns the handle."""
        _running[self._thread] = self
        self._thread.start()
        return self

    def done(self, timeout: float | None = 0) -> bool:
        """Tells whether the job has ended.

        Args:
            timeout: Seconds to wait for it; by default none at all. None waits for the end.

        Raises:
            OptionError: `timeout` is no number.
        """
        self._thread.join(longest_wait_s(timeout))
        return self._future.done()

    def progress(self) -> _R:
        """Returns what the job has done so far, or in the end."""
        if not self._future.done():
            return self._job.snapshot()
        error = self._future.exception()
        if error is None:
            return self._future.result()
        now = self._job.snapshot()
        if isinstance(error, BackfillIncompleteError) and isinstance(error.result, type(now)):
            return error.result
        status: Status = "PARTIAL" if now.versions else "FAILED"
        return dataclasses.replace(now, status=status)

    def cancel(self) -> None:
        """Ends the job, and returns at once.

        Its tasks stop within seconds, complete fragments are committed, checkpoints stay.
        """
        self._job.cancel()

    def result(self, timeout: float | timedelta | None = None) -> _R:
        """Waits for the job's end, and returns what it did.

        Args:
            timeout: Longest wait, in seconds or as a `timedelta`; None waits for the end.

        Raises:
            OptionError: `timeout` is no number.
            JobTimeoutError: The job has not ended in time. It goes on; the error has the job.
            BackfillIncompleteError: Selected rows have neither a value nor were skipped by a
                policy.
            LanceSparkError, UdfRuntimeError: The job could not go on.
        """
        seconds = longest_wait_s(timeout)
        try:
            return self._future.result(seconds)
        except TimeoutError:
            if self._future.done():
                return self._future.result()  # it has ended at the last moment, or the error is its own
        raise JobTimeoutError(
            f"job {self._job_id} did not end within {seconds:g} s "
            f"- {self._job_type} of {', '.join(self._columns)} in {self._table_name} "
            "- it goes on; job.result() waits again, and job.cancel() ends it (this error has the job as .job)",
            job=self,
        )

    def __repr__(self) -> str:
        now = self.progress()
        return (
            f"Job({self._job_id!r}, {now.status}, {', '.join(self._columns)} of {self._table_name}: "
            f"{counted(now.rows_processed, 'row')}, {now.fragments_done} of {counted(now.fragments_total, 'fragment')})"
        )

    def _repr_html_(self) -> str:
        """Returns how the job stands, as an HTML table."""
        return self.progress()._repr_html_()

    def _run(self) -> None:
        if not self._future.set_running_or_notify_cancel():
            return  # the future was cancelled before the thread began
        try:
            self._future.set_result(self._job.run())
        except BaseException as error:  # noqa: BLE001 - result() raises it
            self._future.set_exception(error)
        finally:
            _running.pop(self._thread, None)


def running_job(job_id: str, table_name: str) -> Job[Any] | None:
    """Returns the handle of a job that runs in this process, or None."""
    jobs = list(_running.values())
    return next((job for job in jobs if job.job_id == job_id and job.table_name == table_name), None)


def longest_wait_s(timeout: float | timedelta | None) -> float | None:
    """Returns a timeout as Python's locks take it: in seconds, and no more than these can count.

    Raises:
        OptionError: The timeout is no number.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is None:
        return None
    if math.isnan(seconds):
        raise OptionError("timeout", seconds, "a number of seconds")
    return min(seconds, threading.TIMEOUT_MAX)


def _wait_for_all() -> None:
    for thread in list(_running):
        thread.join()


_running: dict[threading.Thread, Job[Any]] = {}
# Python waits for threads anyway, but before that its pools of threads refuse work, which a job
# still has. Of their hooks the last one is called first.
threading._register_atexit(_wait_for_all)  # type: ignore[attr-defined]  # noqa: SLF001


def wait(job: Job[_R], timeout: timedelta | None) -> _R:
    """Waits for a job as a blocking call does.

    Ctrl-C cancels it, and what is complete is committed before the interrupt goes on.

    Raises:
        JobTimeoutError, BackfillIncompleteError: As :meth:`Job.result` says.
        KeyboardInterrupt: The user interrupted.
    """
    try:
        return job.result(timeout)
    except KeyboardInterrupt:
        job.cancel()
        job.done(None)
        raise


JobFuture = Job
"""The name that the handle of a job has in Geneva."""
