"""The handle of a running job."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its hook must exist before the hook below
import dataclasses
import math
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import BackfillIncompleteError, JobTimeoutError, OptionError, counted
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult, Status

_R = TypeVar("_R", bound=BackfillJobResult | RefreshJobResult)
_R_co = TypeVar("_R_co", bound=BackfillJobResult | RefreshJobResult, covariant=True)


class Runnable(Protocol[_R_co]):
    """The job of a handle, run by a single thread."""

    def run(self) -> _R_co:
        """Runs the job to its end."""

    def cancel(self) -> None:
        """Ends the job early."""

    def snapshot(self) -> _R_co:
        """Returns the present result of the job."""


@ARGUMENTS.methods
class Job(Generic[_R]):
    """A job in a thread of this process. Python waits for the job before exiting.

    Any thread may call any method.

    Examples:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        job = books.backfill_async("double")
        while not job.done(timeout=60):
            print(job.progress())
        assert job.result().status == "DONE"
        ```
    """

    def __init__(
        self,
        job: Runnable[_R],
        job_id: str,
        table_name: str,
        columns: tuple[str, ...],
        job_type: str = "backfill",
    ) -> None:
        self._job = job
        self._future: Future[_R] = Future()
        self._job_id = job_id
        self._table_name = table_name
        self._columns = columns
        self._job_type = job_type
        self._thread = threading.Thread(
            target=self._run, name=f"lance-spark-{job_id}", daemon=False
        )

    @property
    def job_id(self) -> str:
        """Id of the job.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            job.result()
            assert books.get_job(job.job_id).status == "DONE"
            ```
        """
        return self._job_id

    @property
    def table_name(self) -> str:
        """Name of the table.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            assert job.table_name == "books"
            ```
        """
        return self._table_name

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of the job.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            assert job.column_names == ("double",)
            ```
        """
        return self._columns

    @property
    def future(self) -> Future[_R]:
        """The result as a future of the standard library.

        Examples:
            ```python
            from concurrent.futures import wait

            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            wait([job.future])
            assert job.future.result().rows_computed == 10
            ```
        """
        return self._future

    @property
    def status(self) -> Status:
        """Status of the job: RUNNING, DONE, PARTIAL, FAILED or CANCELLED. Never waits.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            assert job.status in ("RUNNING", "DONE")
            job.result()
            assert job.status == "DONE"
            ```
        """
        return self.progress().status

    def start(self) -> Job[_R]:
        """Starts the thread, and returns the handle.

        `backfill_async` and similar methods of a table return a started job.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            assert job.done(timeout=None)
            ```
        """
        _running[self._thread] = self
        self._thread.start()
        return self

    def done(self, timeout: float | None = 0) -> bool:
        """Tells whether the job has ended.

        Args:
            timeout: Seconds to wait for the end, by default 0. None waits until the end.

        Raises:
            OptionError: `timeout` is no number.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            assert job.done(timeout=None)
            ```
        """
        self._thread.join(longest_wait_s(timeout))
        return self._future.done()

    def progress(self) -> _R:
        """Returns the result so far, or the final result.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            job.done(timeout=None)
            assert job.progress().rows_computed == 10
            ```
        """
        if not self._future.done():
            return self._job.snapshot()
        error = self._future.exception()
        if error is None:
            return self._future.result()
        snapshot = self._job.snapshot()
        if isinstance(error, BackfillIncompleteError) and isinstance(error.result, type(snapshot)):
            return error.result
        status: Status = "PARTIAL" if snapshot.versions else "FAILED"
        return dataclasses.replace(snapshot, status=status)

    def cancel(self) -> None:
        """Cancels the job, and returns at once.

        Its tasks stop within seconds, complete fragments are committed, checkpoints stay.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            job.cancel()
            job.done(timeout=None)
            assert job.status in ("CANCELLED", "DONE")
            ```
        """
        self._job.cancel()

    def result(self, timeout: float | timedelta | None = None) -> _R:
        """Waits for the job's end, and returns its result.

        Args:
            timeout: Longest wait, in seconds or as a `timedelta`; None waits for the end.

        Raises:
            OptionError: `timeout` is no number.
            JobTimeoutError: The job has not ended in time. The job continues, and the error holds
                the job as `.job`.
            BackfillIncompleteError: Some selected rows neither have a value nor were skipped by a
                policy.
            LanceSparkError, UdfRuntimeError: The job could not continue.

        Examples:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            job = books.backfill_async("double")
            result = job.result(timeout=600)
            assert result.rows_computed == 10
            ```
        """
        seconds = longest_wait_s(timeout)
        try:
            return self._future.result(seconds)
        except TimeoutError:
            if self._future.done():
                return (
                    self._future.result()
                )  # the job ended at the last moment, or raised the error itself
        raise JobTimeoutError(
            f"Job {self._job_id} did not end within {seconds:g} s and continues: {self._job_type} of "
            f"{', '.join(self._columns)} in {self._table_name}. Call job.result() to wait again, or job.cancel() to "
            "end the job. This error has the job as .job.",
            job=self,
        )

    def __repr__(self) -> str:
        result = self.progress()
        return (
            f"Job({self._job_id!r}, {result.status}, {', '.join(self._columns)} of {self._table_name}: "
            f"{counted(result.rows_processed, 'row')}, "
            f"{result.fragments_done} of {counted(result.fragments_total, 'fragment')})"
        )

    def _repr_html_(self) -> str:
        """Returns the present result as an HTML table."""
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
    """Returns the handle of a job of this process, or None if no such job is running."""
    jobs = list(_running.values())
    return next(
        (job for job in jobs if job.job_id == job_id and job.table_name == table_name), None
    )


def longest_wait_s(timeout: float | timedelta | None) -> float | None:
    """Returns a timeout for Python's locks: in seconds, and at most the locks' limit.

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
# Python waits for threads anyway, but first its thread pools refuse work, and a job may still need
# a pool. The last hook runs first.
threading._register_atexit(_wait_for_all)  # type: ignore[attr-defined]  # noqa: SLF001


def wait(job: Job[_R], timeout: timedelta | None) -> _R:
    """Waits for a job in a blocking call.

    Ctrl-C cancels the job. Complete fragments are committed before the interrupt continues.

    Raises:
        JobTimeoutError, BackfillIncompleteError: See :meth:`Job.result`.
        KeyboardInterrupt: The user interrupted.
    """
    try:
        return job.result(timeout)
    except KeyboardInterrupt:
        job.cancel()
        job.done(None)
        raise


JobFuture = Job
"""Geneva's name for the handle of a job."""
