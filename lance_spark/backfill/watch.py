"""Keeps a computed column up to date: a backfill for each new version of the table."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import DatasetRef
from lance_spark.errors import JobTimeoutError
from lance_spark.jobs.handle import longest_wait_s
from lance_spark.jobs.results import BackfillJobResult

_LOG = logging.getLogger(__name__)


@ARGUMENTS.methods
class Watch:
    """Keeps a column up to date in a thread of this process until :meth:`stop`.

    Attributes:
        results: Results of the last backfills with work, at most 100, the newest last.
        error: The error of the last backfill; None after a success. The next look tries again.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        with books.watch("double") as watch:
            books.add([{"id": 10, "price": 100}])
        print(watch.error)  # None
        ```
    """

    def __init__(self, ref: DatasetRef, trigger: timedelta, backfill: Callable[[], BackfillJobResult]) -> None:
        self.results: list[BackfillJobResult] = []
        self.error: Exception | None = None
        self._ref = ref
        self._trigger = trigger
        self._backfill = backfill
        self._seen = 0
        self._looks = 0
        self._over = threading.Event()
        self._looked = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="lance-spark-watch", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the watch is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the watch, after the end of a running backfill."""
        self._over.set()
        self._thread.join()

    def await_look(self, timeout: timedelta = timedelta(minutes=10)) -> None:
        """Waits until the watch has looked at the table again, and has filled the column.

        Raises:
            JobTimeoutError: The watch has not looked in that time.
        """
        with self._looked:
            # The running look may have begun before the change that the caller waits for.
            target = self._looks + 2
            if not self._looked.wait_for(lambda: self._looks >= target or not self.is_active, longest_wait_s(timeout)):
                raise JobTimeoutError(
                    f"The watch of {self._ref.uri} has not looked at it within {timeout}. Wait longer, or see .error.",
                    job=self,
                )

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._over.is_set():
            self._look()
            with self._looked:
                self._looks += 1
                self._looked.notify_all()
            self._over.wait(self._trigger.total_seconds())
        with self._looked:
            self._looked.notify_all()

    def _look(self) -> None:
        try:
            version = self._ref.open_latest().version
            if version == self._seen:
                return
            result = self._backfill()
            self.error = None
            # The next look includes the versions of this backfill, because other commits may have
            # come before or between them.
            self._seen = version
            if result.rows_selected or result.versions:
                self.results = [*self.results[-99:], result]
        except Exception as error:  # noqa: BLE001 - a watch must not stop silently
            self.error = error
            _LOG.warning("keeping a column of %s up to date failed, and is tried again: %s", self._ref.uri, error)
