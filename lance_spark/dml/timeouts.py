"""Timeouts of merges: :class:`MergeDeadline`. Runs on the driver."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from lance_spark.errors import LanceSparkError
from lance_spark.search.timeouts import Deadline
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


class MergeDeadline(Deadline):
    """The time at which the commit of a merge must have begun."""

    __slots__ = ()

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
            threading.Thread(
                target=self._stop_late, args=(jobs, over), name="lance-spark-merge", daemon=True
            ).start()
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
        over.wait(self.remaining_s)
        while not over.is_set():
            jobs.stop()
            over.wait(CANCEL_INTERVAL_S)
