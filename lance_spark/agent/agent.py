"""Runs the plans of an agent: :class:`Agent`."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from lance_spark.agent.lease import Lease
from lance_spark.agent.ledger import JOB_PREFIX, WATCH_PREFIX, Ledger
from lance_spark.agent.looks import KeptTable, WatchedTables, find_groups
from lance_spark.agent.plan import AgentPlan, AgentStep, StepKey, StepStatus
from lance_spark.agent.planner import (
    BUDGET_IS_SPENT,
    PlannedVersion,
    Planner,
    describe,
    is_expected,
)
from lance_spark.agent.settings import AgentSettings
from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import OptionError
from lance_spark.jobs.handle import Job
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult
from udf_runtime.arguments import is_whole_number

_LOG = logging.getLogger(__name__)

_LOOK_AT_JOBS_S = 0.5
"""Seconds between looks at running jobs and at `stop`."""

_ROWS_MOVED = (
    "All rows moved to new fragments since the last look. The next look plans the step again"
)
_INPUTS_CHANGED = (
    "The column has other inputs since the last look. The next look plans the step again"
)


class RunObserver:
    """Observes :meth:`Agent.run`, in its thread. Writes ended and failed steps to the log."""

    def end_step(self, step: AgentStep, error: Exception | None) -> None:
        """Notes an ended, failed or held step."""
        trace = None if error is None or is_expected(error) else error
        _LOG.log(
            logging.INFO if step.status == "done" else logging.WARNING, "%s", step, exc_info=trace
        )

    def fail_look(self, error: Exception) -> None:
        """Notes an error of the list of the tables."""
        trace = None if is_expected(error) else error
        _LOG.warning(
            "The tables cannot be looked at, and the next look tries again. %s",
            error,
            exc_info=trace,
        )

    def end_look(self, plan: AgentPlan) -> None:
        """Notes the end of all jobs since a look. The plan is the plan of the look."""


@dataclass(frozen=True, slots=True)
class _PendingStep:
    """A step that waits for its start.

    Attributes:
        last_fragment: Highest id of the fragments that the jobs of the inputs cover.
        ended: Keys of inputs that ended since the step waits. A repetition of an ended input delays
            no waiting step, else a steady writer of the inputs would delay the step forever.
    """

    step: AgentStep
    last_fragment: int
    ended: frozenset[StepKey] = frozenset()

    @property
    def inputs(self) -> frozenset[StepKey]:
        """Keys of the steps that have to end first."""
        return frozenset(self.step.after_keys) - self.ended


@dataclass(frozen=True, slots=True)
class _RunningStep:
    """A step with a job.

    Attributes:
        last_fragment: As in :class:`_PendingStep`.
        planned: The plan of the step.
        is_complete: Whether the job leaves nothing of the plan to a later job.
    """

    step: AgentStep
    last_fragment: int
    planned: PlannedVersion
    is_complete: bool
    job: Job[BackfillJobResult] | Job[RefreshJobResult]


@ARGUMENTS.methods
class Agent:
    """Keeps columns with `auto_backfill` and views with `auto_refresh` up to date.

    Made by :meth:`lance_spark.Connection.agent`. One thread calls `plan`, `run_once` and `run`; any
    thread may call `stop`.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf(auto_backfill=True)
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        db.agent(allow=["books"]).run_once()
        assert books.count_rows("double IS NOT NULL") == 10
        ```
    """

    def __init__(
        self, source: WatchedTables, settings: AgentSettings, observer: RunObserver | None = None
    ) -> None:
        self._settings = settings
        self._is_watch = source.only is not None
        self._observer = observer or RunObserver()
        self._owner = uuid.uuid4().hex
        self._ledger = Ledger(settings)
        self._planner = Planner(source, settings, self._ledger)
        self._pending: dict[StepKey, _PendingStep] = {}
        self._running: dict[StepKey, _RunningStep] = {}
        self._leases: dict[str, Lease] = {}
        self._over = threading.Event()

    def plan(self, *, sample: int | None = None) -> AgentPlan:
        """Returns the outdated columns and views, in the order of dependencies.

        Runs no job without a sample.

        The plan includes later steps with outdated inputs. Rows are counted in the present version.

        Args:
            sample: Rows to compute for an estimate of time and cost, for each column without an
                earlier job, as in :meth:`lance_spark.Table.plan_backfill`. Without a sample, only
                earlier jobs give estimates.

        Raises:
            LanceSparkError: The tables cannot be listed.
            OptionError: `sample` is not valid.

        Example:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf(auto_backfill=True)
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            print(db.agent(allow=["books"]).plan().explain())
            ```
        """
        if sample is not None and not is_whole_number(sample):
            raise OptionError("sample", sample, "a whole number of rows, 1 or more")
        return self._planner.plan(sample=sample)

    def run_once(self) -> AgentPlan:
        """Brings everything up to date once, and returns the steps with their results.

        A failed step raises nothing: see `status`, `reason` and `result` of the steps.

        Raises:
            LanceSparkError: The tables cannot be listed.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            query = books.search(None).select(["id"]).where("price > 50")
            db.create_materialized_view("expensive", query, auto_refresh=True)
            steps = db.agent(allow=["*"]).run_once().steps
            assert steps[0].result.rows_added == 4
            ```
        """
        plan = self._planner.plan_due()
        self._await_start(plan)
        ended: dict[StepKey, AgentStep] = {}
        try:
            while self._pending or self._running:
                ended |= {step.key: step for step in self._advance(_LOOK_AT_JOBS_S)}
        finally:
            self._finish()
        return AgentPlan(steps=tuple(ended.get(step.key, step) for step in plan.steps))

    def run(self) -> None:
        """Watches the tables, and brings them up to date, until :meth:`stop`.

        Errors of tables and jobs go to the log, and are tried again. The end of a job is a record
        of level INFO of the logger `lance_spark.agent.agent`.

        Example:
            ```python
            import threading

            import lance_spark

            agent = lance_spark.connect("library").agent(allow=["*"])
            threading.Timer(2, agent.stop).start()
            agent.run()
            ```
        """
        try:
            while not self._over.is_set():
                plan = self._look()
                self._work(plan, time.monotonic() + self._settings.trigger.total_seconds())
        finally:
            self._finish()

    def stop(self) -> None:
        """Ends :meth:`run` and :meth:`run_once`. Running jobs commit complete fragments, and end.

        Returns at once. `run` returns after the end of the jobs.

        Example:
            ```python
            import threading

            import lance_spark

            agent = lance_spark.connect("library").agent(allow=["*"])
            thread = threading.Thread(target=agent.run)
            thread.start()
            agent.stop()
            thread.join()
            ```
        """
        self._over.set()

    def _look(self) -> AgentPlan:
        """Looks at the tables, and returns the plan of the look."""
        try:
            plan = self._planner.plan_changes()
        except Exception as error:  # noqa: BLE001 - the next look tries again
            self._observer.fail_look(error)
            return AgentPlan()
        self._await_start(plan)
        for step in plan.steps:
            if step.status == "failed":
                self._note(step)
        return plan

    def _await_start(self, plan: AgentPlan) -> None:
        """Replaces the pending steps by the due steps of a plan.

        Steps that already wait start first, and wait for new inputs, too. The job of an input
        covers at least the fragments of the look before its start.
        """
        due = {
            step.key: step
            for step in plan.steps
            if step.status == "due" and step.key not in self._running
        }
        steps: dict[StepKey, _PendingStep] = {}
        for key, step in due.items():
            planned = self._planner.planned_version(step)
            waiting = self._pending.get(key) or _PendingStep(step, planned.last_fragment)
            pending = replace(waiting, step=step)
            inputs = (steps.get(number) or self._running.get(number) for number in pending.inputs)
            covered = [
                entry.last_fragment
                for entry in inputs
                if entry and entry.step.table_uri == step.table_uri
            ]
            steps[key] = replace(pending, last_fragment=min([pending.last_fragment, *covered]))
        self._pending = {key: steps[key] for key in self._pending if key in steps} | steps

    def _work(self, plan: AgentPlan, next_look: float) -> None:
        """Runs the steps of a look until the next look, and waits for its time.

        The next look waits while no place is free for a job. A step that waited for a place starts
        after that look, because its column and its inputs may have changed since the last look.
        Steps start after each look, however short the time between looks is.
        """
        while self._pending or self._running:
            if self._over.is_set():
                return
            for step in self._advance(_LOOK_AT_JOBS_S):
                self._note(step)
            is_full = len(self._running) >= self._settings.max_jobs
            if time.monotonic() >= next_look and not is_full:
                return
        self._observer.end_look(plan)
        self._over.wait(max(0.0, next_look - time.monotonic()))

    def _note(self, step: AgentStep) -> None:
        self._observer.end_step(
            step, None if step.status == "done" else self._ledger.error_of(step.key)
        )

    def _advance(self, timeout_s: float) -> list[AgentStep]:
        """Starts steps, waits for the end of a job, and returns the steps that ended."""
        ended = self._hold_all("The agent stops") if self._over.is_set() else self._start_steps()
        if self._pending and not self._running and not ended:
            ended = self._hold_all(
                "The inputs are not up to date"
            )  # no later call could start a step
        if self._over.is_set():
            for running in self._running.values():
                running.job.cancel()
        if self._running and not ended:
            futures: list[Future[Any]] = [running.job.future for running in self._running.values()]
            wait(futures, timeout_s, FIRST_COMPLETED)
        for key, running in list(self._running.items()):
            if running.job.future.done():
                del self._running[key]
                ended += self._end(running)
                self._pending = {
                    later_key: replace(later, ended=later.ended | (later.inputs & {key}))
                    for later_key, later in self._pending.items()
                }
        self._release_leases()
        return ended

    def _start_steps(self) -> list[AgentStep]:
        """Starts steps with ended inputs, and returns the steps without a job."""
        ended: list[AgentStep] = []
        for key, pending in list(self._pending.items()):
            if len(self._running) >= self._settings.max_jobs:
                break
            if key in self._pending and self._has_inputs(pending):
                del self._pending[key]
                ended += self._start(pending)
        return ended

    def _has_inputs(self, pending: _PendingStep) -> bool:
        """Tells whether all steps with the inputs of a step have ended."""
        return not any(map(self._is_open, pending.inputs))

    def _is_open(self, key: StepKey) -> bool:
        """Tells whether a step waits or has a job."""
        return key in self._pending or key in self._running

    def _hold_all(self, reason: str) -> list[AgentStep]:
        steps = [
            replace(pending.step, status="waiting", reason=reason)
            for pending in self._pending.values()
        ]
        self._pending.clear()
        return steps

    def _hold(self, step: AgentStep, status: StepStatus, reason: str) -> list[AgentStep]:
        """Returns a step without a complete result, and the steps with this input."""
        steps = [replace(step, status=status, reason=reason)]
        for key, later in list(self._pending.items()):
            if step.key in later.inputs and self._pending.pop(key, None) is not None:
                text = f"The inputs are not up to date: {step.name}"
                steps += self._hold(later.step, "waiting", text)
        return steps

    def _start(self, pending: _PendingStep) -> list[AgentStep]:
        """Starts the job of a step. Returns the steps without a start."""
        step = pending.step
        job_id = f"{WATCH_PREFIX if self._is_watch else JOB_PREFIX}{uuid.uuid4().hex}"
        try:
            table = self._planner.table_of(step)
            holder = self._take_lease(table)
            if holder:
                return self._hold(step, "waiting", f"The agent in {holder} works on the table")
            if self._ledger.remaining().is_nothing:
                return self._hold(step, "waiting", BUDGET_IS_SPENT)
            planned = self._planner.planned_version(step)
            if not self._has_planned_inputs(step, table, planned):
                return self._hold(step, "waiting", _INPUTS_CHANGED)
            share = self._ledger.reserve(job_id, self._settings.max_jobs - len(self._running))
            # Rows that arrive while the jobs of the inputs run have no inputs yet.
            last_fragment = pending.last_fragment if planned.is_chained(step) else None
            is_complete = last_fragment in (None, planned.last_fragment) and not any(
                map(self._is_open, step.after_keys)
            )
            job: Job[BackfillJobResult] | Job[RefreshJobResult] | None
            if step.action == "refresh":
                job = table.start_refresh(job_id, share)
            else:
                job = table.start_backfill(step.columns, job_id, share, last_fragment)
        except Exception as error:  # noqa: BLE001 - other steps continue
            self._ledger.release(job_id)
            self._ledger.note_failure(step.key, error)
            return self._hold(step, "failed", describe(error))
        if job is None:
            self._ledger.release(job_id)
            return self._hold(step, "waiting", _ROWS_MOVED)
        self._running[step.key] = _RunningStep(
            step, pending.last_fragment, planned, is_complete, job
        )
        return []

    def _has_planned_inputs(
        self, step: AgentStep, table: KeptTable, planned: PlannedVersion
    ) -> bool:
        """Tells whether the columns of a step still read the columns of the look."""
        if self._is_watch or step.action == "refresh":
            return True
        groups = find_groups(table.ref.open_latest())
        return groups.get(step.columns) == planned.groups.get(step.columns)

    def _take_lease(self, table: KeptTable) -> str:
        """Takes the lease of a table. Returns the process of its other agent, else no text."""
        uri = table.ref.uri
        # A watch is concurrent with agents and other watches, as any backfill is.
        if self._is_watch or uri in self._leases:
            return ""
        lease = Lease(table.ref, self._owner)
        if lease.take():
            self._leases[uri] = lease
            if self._settings.has_budget:
                # Another agent may have spent a part of the budget.
                self._ledger.note_history(table.list_jobs())
        return lease.holder

    def _end(self, running: _RunningStep) -> list[AgentStep]:
        """Returns the step of an ended job with its result, and held steps with this input."""
        step, job_id = running.step, running.job.job_id
        result, error = _outcome_of(running.job)
        self._ledger.note_end(job_id, result)
        step = replace(step, result=result)
        if error is not None:
            if not self._over.is_set():
                self._ledger.note_failure(step.key, error)
            return self._hold(step, "failed", describe(error))
        if result.status != "DONE":
            # The job ended early: at its budget, or without the service of the UDF.
            if not (result.rows_processed or result.rows_computed):
                self._ledger.note_failure(step.key)
            return self._hold(step, "waiting", str(result.message))
        self._ledger.note_success(step.key)
        self._planner.note_done(step, running.planned, is_complete=running.is_complete)
        return [replace(step, status="done")]

    def _release_leases(self) -> None:
        busy = {running.step.table_uri for running in self._running.values()}
        for uri in self._leases.keys() - busy:
            self._leases.pop(uri).release()

    def _finish(self) -> None:
        """Cancels the running jobs, waits for their end, and releases the leases."""
        self._pending.clear()
        for running in self._running.values():
            running.job.cancel()
        while self._running:
            for step in self._advance(_LOOK_AT_JOBS_S):
                self._note(step)
        self._release_leases()


def _outcome_of(
    job: Job[BackfillJobResult] | Job[RefreshJobResult],
) -> tuple[BackfillJobResult | RefreshJobResult, Exception | None]:
    """Returns the result and the error of an ended job. A failed job has spent calls, too."""
    try:
        return job.result(), None
    except Exception as error:  # noqa: BLE001 - the job of one table must not end the agent
        return job.progress(), error
