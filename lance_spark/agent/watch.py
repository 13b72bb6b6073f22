"""Keeps a computed column up to date in a thread of this process: :class:`Watch`."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from lance_spark.agent.agent import Agent, RunObserver
from lance_spark.agent.looks import KeptTable, WatchedTables
from lance_spark.agent.plan import AgentPlan, AgentStep
from lance_spark.agent.settings import AgentSettings
from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import JobTimeoutError
from lance_spark.jobs.handle import longest_wait_s
from lance_spark.jobs.results import BackfillJobResult

_LOG = logging.getLogger(__name__)

_MOST_RESULTS = 100

_LONGEST_STOP_S = 60.0
"""Seconds that `stop` waits for the thread. A request to a store without answers takes minutes."""


class _WatchState(RunObserver):
    """The looks, results and last error of a watch. The thread of the watch writes them.

    Attributes:
        changed: Notified after each look, and at the end of the watch.
        results: Results of the last backfills with work.
        error: Error of the last backfill or look; None after a success.
        looks: Number of ended looks, without looks that only wait for the next try.
        is_over: Whether the watch was stopped, or the thread has ended.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.results: list[BackfillJobResult] = []
        self.error: Exception | None = None
        self.looks = 0
        self.is_over = False
        self._has_failed = False

    def end_step(self, step: AgentStep, error: Exception | None) -> None:
        super().end_step(step, error)
        if step.status != "done":
            self._has_failed = True
            self.error = error or self.error
            return
        self.error = None
        result = step.result
        if isinstance(result, BackfillJobResult) and (result.rows_selected or result.versions):
            self.results = [*self.results[1 - _MOST_RESULTS :], result]

    def fail_look(self, error: Exception) -> None:
        super().fail_look(error)
        self.error, self._has_failed = error, True

    def end_look(self, plan: AgentPlan) -> None:
        is_waiting = any(step.status == "waiting" for step in plan.steps)
        if not is_waiting and not self._has_failed:
            self.error = None
        self._has_failed = False
        with self.changed:
            self.looks += not is_waiting
            self.changed.notify_all()

    def end(self) -> None:
        """Notes the end of the watch, or of its thread."""
        with self.changed:
            self.is_over = True
            self.changed.notify_all()


@ARGUMENTS.methods
class Watch:
    """Keeps a column up to date in a thread of this process until :meth:`stop`.

    The thread runs an :class:`~lance_spark.Agent` for the column alone. A watch takes no lease: two
    watches of a column may both call the UDF for new rows, as two backfills at once do.

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

    def __init__(
        self, name: str, table: KeptTable, columns: tuple[str, ...], trigger: timedelta
    ) -> None:
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
        source = WatchedTables(
            list_tables=lambda: [(name,)],
            open_table=lambda _: table,
            find_session=lambda: None,
            only=columns,
        )
        self._uri = table.ref.uri
        self._state = _WatchState()
        self._agent = Agent(source, settings, self._state)
        self._thread = threading.Thread(target=self._run, name="lance-spark-watch", daemon=True)
        self._thread.start()

    @property
    def results(self) -> list[BackfillJobResult]:
        """Results of the last backfills with work, at most 100, the newest last."""
        return self._state.results

    @property
    def error(self) -> Exception | None:
        """The error of the last backfill; None after a success. A later look tries again."""
        return self._state.error

    @property
    def is_active(self) -> bool:
        """Whether the watch is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the watch. A running backfill commits complete fragments, and ends.

        Waits for the end, a minute at most. A watch whose store does not answer ends after the
        answer, and is active until then.
        """
        self._agent.stop()
        self._state.end()  # a hanging store may delay the end of the thread
        self._thread.join(_LONGEST_STOP_S)
        if self.is_active:
            _LOG.warning(
                "The watch of %s has not ended yet. It starts no further backfill.", self._uri
            )

    def await_look(self, timeout: timedelta = timedelta(minutes=10)) -> None:
        """Waits until the watch has looked at the table again, and has filled the column.

        A look that only waits for the next try after a failure does not count.

        Raises:
            JobTimeoutError: The watch has not looked in that time.
        """
        state = self._state
        # The running look may have begun before the change that the caller waits for.
        target = state.looks + 2
        with state.changed:
            if not state.changed.wait_for(
                lambda: state.looks >= target or state.is_over, longest_wait_s(timeout)
            ):
                raise JobTimeoutError(
                    f"The watch of {self._uri} has not looked at it within {timeout}. Wait longer, or see .error.",
                    job=self,
                )

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._agent.run()
        finally:
            self._state.end()
