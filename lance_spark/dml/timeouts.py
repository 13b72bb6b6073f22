"""Timeouts of merges: :class:`MergeDeadline`. Runs on the driver."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from lance_spark.errors import LanceSparkError
from lance_spark.search.timeouts import check_timeout
from lance_spark.spark_jobs.run import CANCEL_INTERVAL_S, SparkJobs


class MergeTimeoutError(LanceSparkError, TimeoutError, RuntimeError):
    """A merge did not begin its commit in time. Nothing was changed.

    Example:
        ```python
        from datetime import timedelta

        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        merge = books.merge_insert("id").when_not_matched_insert_all()
        try:
            merge.execute([{"id": 10, "price": 1}], timeout=timedelta(0))
        except lance_spark.MergeTimeoutError as error:
            print(error)
        ```
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDeadline:
    """The time at which the commit of a merge must have begun.

    Attributes:
        began: Time of the call, by `time.monotonic`.
        timeout: The timeout; None waits for ever.
        uri: Location of the table, for the error.
    """

    began: float
    timeout: timedelta | None
    uri: str

    @staticmethod
    def of(timeout: timedelta | None, uri: str) -> MergeDeadline:
        """Returns the deadline of a call that begins now.

        Raises:
            OptionError: The timeout is negative.
        """
        check_timeout(timeout)
        return MergeDeadline(began=time.monotonic(), timeout=timeout, uri=uri)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None without a timeout."""
        if self.timeout is None:
            return None
        return max(0.0, self.began + self.timeout.total_seconds() - time.monotonic())

    def check(self) -> None:
        """Checks that the deadline has not passed.

        Raises:
            MergeTimeoutError: The deadline has passed.
        """
        if self.remaining_s == 0.0:
            raise self._expiry()

    @contextlib.contextmanager
    def limit(self, jobs: SparkJobs) -> Iterator[None]:
        """Stops the Spark jobs of the block at the deadline.

        Raises:
            MergeTimeoutError: The deadline has passed.
        """
        self.check()
        over = threading.Event()
        if self.timeout is not None:
            threading.Thread(target=self._stop_late, args=(jobs, over), name="lance-spark-merge", daemon=True).start()
        try:
            yield
        except LanceSparkError:
            raise
        except Exception as error:
            if jobs.is_stopped:
                raise self._expiry() from error
            raise
        finally:
            over.set()
        self.check()

    def _expiry(self) -> MergeTimeoutError:
        seconds = 0.0 if self.timeout is None else self.timeout.total_seconds()
        return MergeTimeoutError(
            f"The merge insert timed out after {seconds:g} s. Table: {self.uri}. Nothing was changed. Merge fewer rows "
            "at once, or give the merge more time."
        )

    def _stop_late(self, jobs: SparkJobs, over: threading.Event) -> None:
        over.wait(min(self.remaining_s or 0.0, threading.TIMEOUT_MAX))
        while not over.is_set():
            jobs.stop()
            over.wait(CANCEL_INTERVAL_S)
