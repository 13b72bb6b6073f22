"""Keeps a computed column up to date in a thread of this process: :class:`Watch`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta

from lance_spark.agent.agent import Agent, RunObserver
from lance_spark.agent.looks import KeptTable, WatchedTables
from lance_spark.agent.plan import AgentPlan, AgentStep
from lance_spark.agent.settings import AgentSettings
from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import JobTimeoutError
from lance_spark.jobs.handle import longest_wait_s
from lance_spark.jobs.results import BackfillJobResult

_MOST_RESULTS = 100


class _Observer(RunObserver):
    """The state of a watch: its looks, results and last error.

    Attributes:
        changed: Notified after each look, and at the end of the thread.
        looks: Number of ended looks.
        is_idle: Whether the agent waits for the next look.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.results: list[BackfillJobResult] = []
        self.error: Exception | None = None
        self.looks = 0
        self.is_idle = False
        self._is_open = False

    def begin_look(self) -> None:
        with self.changed:
            self.is_idle = self._is_open = False

    def end_step(self, step: AgentStep) -> None:
        super().end_step(step)
        self.error = step.error or self.error
        self._is_open |= step.status != "done"
        result = step.result
        if isinstance(result, BackfillJobResult) and (result.rows_selected or result.versions):
            self.results = [*self.results[1 - _MOST_RESULTS :], result]

    def fail_look(self, error: Exception) -> None:
        super().fail_look(error)
        self.error, self._is_open = error, True

    def end_look(self, plan: AgentPlan) -> None:
        # A step that waits for another try keeps its error.
        if not self._is_open and all(step.status == "due" for step in plan.steps):
            self.error = None
        self.note_end()

    def note_end(self) -> None:
        """Notes the end of a look or of the thread."""
        with self.changed:
            self.looks += 1
            self.is_idle = True
            self.changed.notify_all()


@ARGUMENTS.methods
class Watch:
    """Keeps a column up to date in a thread of this process until :meth:`stop`.

    The thread runs an :class:`~lance_spark.Agent` for the column alone.

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

    def __init__(self, name: str, table: KeptTable, trigger: timedelta) -> None:
        self._name = name
        self._table = table
        self._trigger_s = trigger.total_seconds()
        self._observer = _Observer()
        self._over = threading.Event()
        settings = AgentSettings(
            allow=("*",),
            claim=("*",),
            max_jobs=1,
            max_calls=None,
            max_seconds=None,
            max_cost=None,
            trigger=trigger,
            debounce=timedelta(0),
        )
        source = WatchedTables(list_tables=self._list_tables, open_table=lambda _: table, find_session=lambda: None)
        self._agent = Agent(source, settings, self._observer)
        self._thread = threading.Thread(target=self._run, name="lance-spark-watch", daemon=True)
        self._thread.start()

    @property
    def results(self) -> list[BackfillJobResult]:
        """Results of the last backfills with work, at most 100, the newest last."""
        return self._observer.results

    @property
    def error(self) -> Exception | None:
        """The error of the last backfill; None after a success. A later look tries again."""
        return self._observer.error

    @property
    def is_active(self) -> bool:
        """Whether the watch is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the watch, after the end of a running backfill."""
        self._over.set()
        with self._observer.changed:
            self._observer.changed.wait_for(lambda: self._observer.is_idle or not self.is_active)
            self._agent.stop()
        self._thread.join()

    def await_look(self, timeout: timedelta = timedelta(minutes=10)) -> None:
        """Waits until the watch has looked at the table again, and has filled the column.

        Raises:
            JobTimeoutError: The watch has not looked in that time.
        """
        observer = self._observer
        with observer.changed:
            # The running look may have begun before the change that the caller waits for.
            target = observer.looks + 2
            is_over = lambda: observer.looks >= target or not self.is_active  # noqa: E731
            if not observer.changed.wait_for(is_over, longest_wait_s(timeout)):
                raise JobTimeoutError(
                    f"The watch of {self._table.ref.uri} has not looked at it within {timeout}. Wait longer, or see "
                    ".error.",
                    job=self,
                )

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._agent.run()
            except Exception as error:  # noqa: BLE001 - a watch must not stop silently
                self._observer.fail_look(error)
                self._observer.note_end()
                self._over.wait(self._trigger_s)

    def _list_tables(self) -> Iterable[tuple[str, ...]]:
        self._table.ref.open_latest()  # a dropped table is an error of the watch
        return [(self._name,)]
