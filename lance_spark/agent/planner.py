"""Makes the plans of an agent: :class:`Planner`. Belongs to the thread of the agent."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.errors import PySparkException

from lance_spark.agent.ledger import Ledger, sum_jobs
from lance_spark.agent.looks import (
    ColumnGroups,
    KeptTable,
    TableLook,
    VersionKey,
    WatchedTables,
    in_order,
    key_of,
    sort_groups,
)
from lance_spark.agent.plan import AgentPlan, AgentStep, StepKey
from lance_spark.agent.settings import AgentSettings, join_names
from lance_spark.errors import LanceSparkError, TableNotFoundError
from lance_spark.jobs.records import JobRecord
from lance_spark.session.catalogs import allows_stored_code
from lance_spark.views.refresh_base import RefreshBase
from lance_spark.views.state import JOB_TYPE, is_settled
from udf_runtime.errors import UdfRuntimeError

_EXPECTED_ERRORS = (LanceSparkError, UdfRuntimeError, PySparkException)
"""Errors with a message for users."""

_MOST_DEBOUNCES = 10
"""Steady commits delay a step by this number of debounce times at most."""

BUDGET_IS_SPENT = "The budget of the last hour is used up"
_NO_STORED_CODE = "The agent runs no stored code of this table. Name the table in `allow` if you trust its writers."
_OTHER_PRODUCT = (
    "Another product has a UDF for the column. Name the column in `claim` if only this agent fills "
    "the column."
)


@dataclass(slots=True)
class PlannedVersion:
    """The last plan of a table.

    Attributes:
        version: The version of the table in the plan.
        source_version: The version of the source of a view.
        last_fragment: Highest id of the fragments of the version.
        groups: The columns of the agent, as in :class:`TableLook`.
        unfinished: Keys of steps that are not done yet.
        own_versions: Versions that the agent's jobs have committed since.
    """

    version: VersionKey
    source_version: VersionKey | None
    last_fragment: int
    groups: ColumnGroups
    unfinished: set[StepKey]
    own_versions: set[int] = field(default_factory=set)

    def is_chained(self, step: AgentStep) -> bool:
        """Tells whether a step reads columns of the agent, and follows no refresh of its table."""
        is_after_refresh = any(action == "refresh" for _, action, _ in step.after_keys)
        return bool(self.groups.get(step.columns)) and not is_after_refresh


@dataclass(slots=True)
class Planner:
    """Makes plans, and remembers the up-to-date versions of tables.

    Attributes:
        source: The tables.
        settings: The settings of the agent.
        ledger: Budgets and failures.
    """

    source: WatchedTables
    settings: AgentSettings
    ledger: Ledger
    _tables: dict[tuple[str, ...], KeptTable] = field(default_factory=dict)
    _memories: dict[str, PlannedVersion] = field(default_factory=dict)
    _unsettled_since: dict[str, float] = field(default_factory=dict)

    def plan(self, *, sample: int | None = None) -> AgentPlan:
        """Returns a plan of everything, with counted rows and estimates."""
        return AgentPlan(steps=tuple(self._plan(_ExactJudge(sample), is_quick=False)))

    def plan_changes(self) -> AgentPlan:
        """Returns a plan of the tables with changes since the last plan, without counts."""
        return AgentPlan(steps=tuple(self._plan(_QuickJudge(), is_quick=True)))

    def plan_due(self) -> AgentPlan:
        """Returns a plan of everything, without counts."""
        return AgentPlan(steps=tuple(self._plan(_QuickJudge(), is_quick=False)))

    def table_of(self, step: AgentStep) -> KeptTable:
        """Returns the table of a step.

        Raises:
            TableNotFoundError: The table was dropped.
        """
        for table in self._tables.values():
            if table.ref.uri == step.table_uri:
                return table
        raise TableNotFoundError(step.table_uri)

    def planned_version(self, step: AgentStep) -> PlannedVersion:
        """Returns the last plan of the table of a step. A new job reads this or a later version."""
        return self._memories[step.table_uri]

    def note_done(self, step: AgentStep, planned: PlannedVersion, *, is_complete: bool) -> None:
        """Remembers that a step is done; if complete, the planned version has no more work for it.

        Commits of the step cause no new plan. A plan of a later version, made while the job was
        running, keeps its steps.
        """
        if is_complete:
            planned.unfinished.discard(step.key)
        memory = self._memories.get(step.table_uri)  # None after a drop during the job
        if step.result is not None and memory is not None:
            memory.own_versions.update(step.result.versions)

    def _plan(self, judge: _Judge, *, is_quick: bool) -> list[AgentStep]:
        steps: list[AgentStep] = []
        looks: list[TableLook] = []
        for path in self._list_tables():
            name = join_names(path)
            try:
                looks.append(TableLook.of(name, self._open_table(path), self.source.only))
            except Exception as error:  # noqa: BLE001 - other tables continue
                # A listed table may be dropped concurrently. The table of a watch must exist.
                if self.source.only is not None or not isinstance(error, TableNotFoundError):
                    uri = self._tables[path].ref.uri if path in self._tables else ""
                    steps.append(self._unreadable(name, uri, error))
        versions = {look.uri: look.version for look in looks}
        for look in in_order(looks):
            if not look.has_work:
                continue
            if not self._is_allowed(look):
                steps += _refused_steps(look)
                continue
            try:
                table_look = _with_source(look, versions)
                own = list(self._steps_of(table_look, steps, judge, is_quick=is_quick))
            except Exception as error:  # noqa: BLE001 - other tables continue
                steps.append(self._unreadable(look.name, look.uri, error))
                continue
            self._remember(table_look, own)
            steps += own
        return steps

    def _list_tables(self) -> list[tuple[str, ...]]:
        """Returns the names of the tables, and forgets everything about dropped tables."""
        paths = list(self.source.list_tables())
        for dropped_path in self._tables.keys() - set(paths):
            del self._tables[dropped_path]
        uris = {table.ref.uri for table in self._tables.values()}
        for uri in (self._memories.keys() | self._unsettled_since.keys()) - uris:
            self._memories.pop(uri, None)
            self._unsettled_since.pop(uri, None)
        self.ledger.forget_dropped(uris)
        return paths

    def _open_table(self, path: tuple[str, ...]) -> KeptTable:
        if path not in self._tables:
            self._tables[path] = self.source.open_table(path)
        return self._tables[path]

    def _steps_of(
        self, look: TableLook, earlier: Sequence[AgentStep], judge: _Judge, *, is_quick: bool
    ) -> Iterator[AgentStep]:
        """Yields the steps of a table."""
        if self.settings.has_budget and look.uri not in self._memories:
            self.ledger.note_history(look.table.list_jobs())
        is_unchanged = is_quick and self._is_unchanged(look)
        due_steps: list[AgentStep] = []
        for candidate in _candidates(look, sort_groups(look.groups), earlier):
            upstream = [
                step
                for step in (*earlier, *due_steps)
                if step.key in candidate.after_keys and _is_open(step)
            ]
            step = replace(
                candidate,
                after=tuple(step.name for step in upstream),
                after_keys=tuple(step.key for step in upstream),
            )
            if look.foreign.intersection(step.columns) and not self.settings.claims(
                _names_of(step)
            ):
                yield replace(step, status="other product", reason=_OTHER_PRODUCT)
                continue
            if is_unchanged and not upstream:
                continue
            judged = self._judge(look, step, judge, upstream, is_quick=is_quick)
            if judged is not None:
                due_steps.append(judged)
                yield judged

    def _judge(
        self,
        look: TableLook,
        step: AgentStep,
        judge: _Judge,
        upstream: Sequence[AgentStep],
        *,
        is_quick: bool,
    ) -> AgentStep | None:
        """Returns the step with its status; None if everything is up to date."""
        failures, wait_s = self.ledger.backoff(step.key)
        if wait_s > 0:
            text = f"The job failed {failures} times. The next try is in {wait_s:,.0f} s"
            return replace(step, status="waiting", reason=text)
        if is_quick and self.ledger.remaining().is_nothing:
            return replace(step, status="waiting", reason=BUDGET_IS_SPENT)
        try:
            judged = judge.judge(look, step)
        except Exception as error:  # noqa: BLE001 - other steps continue
            self.ledger.note_failure(step.key, error)
            return replace(step, status="failed", reason=describe(error))
        if judged is None and not upstream:
            return None
        judged = judged or step
        reason = self._reason_to_wait(look, upstream, is_quick=is_quick)
        return judged if reason is None else replace(judged, status="waiting", reason=reason)

    def _reason_to_wait(
        self, look: TableLook, upstream: Sequence[AgentStep], *, is_quick: bool
    ) -> str | None:
        if self.ledger.remaining().is_nothing:
            return BUDGET_IS_SPENT
        waiting_inputs = [step.name for step in upstream if step.status != "due"]
        if waiting_inputs:
            return f"The inputs are not up to date: {', '.join(waiting_inputs)}"
        age_s = time.time() - look.committed_at.timestamp()
        debounce_s = self.settings.debounce.total_seconds()
        since = self._unsettled_since.setdefault(look.uri, time.time())
        if is_quick and age_s < debounce_s and time.time() - since < _MOST_DEBOUNCES * debounce_s:
            return f"The last commit is {max(0.0, age_s):,.1f} s old, and more commits may follow"
        return None

    def _unreadable(self, name: str, uri: str, error: Exception) -> AgentStep:
        reason = describe(error)
        step = AgentStep(
            table_name=name, table_uri=uri, action="open", status="failed", reason=reason
        )
        self.ledger.note_error(step.key, error)
        return step

    def _is_allowed(self, look: TableLook) -> bool:
        spark = self.source.find_session()
        return self.settings.allows(look.name) or (
            spark is not None and allows_stored_code(spark, look.uri.rpartition("/")[0])
        )

    def _is_unchanged(self, look: TableLook) -> bool:
        """Tells whether only the agent's own jobs have changed a table since its last plan."""
        memory = self._memories.get(look.uri)
        if memory is None or memory.unfinished or memory.source_version != look.source_version:
            return False
        if memory.version == look.version:
            return True
        first, last = memory.version[0] + 1, look.version[0]
        return 0 <= last - first < len(memory.own_versions) and memory.own_versions.issuperset(
            range(first, last + 1)
        )

    def _remember(self, look: TableLook, steps: Sequence[AgentStep]) -> None:
        unfinished = {step.key for step in steps if step.status in ("due", "waiting", "failed")}
        if not any(step.status == "waiting" for step in steps):
            self._unsettled_since.pop(look.uri, None)
        memory = self._memories.get(look.uri)
        if memory is not None and (memory.version, memory.source_version) == (
            look.version,
            look.source_version,
        ):
            memory.unfinished = unfinished
        else:
            self._memories[look.uri] = PlannedVersion(
                look.version, look.source_version, look.last_fragment, look.groups, unfinished
            )


@dataclass(frozen=True, slots=True)
class _QuickJudge:
    """Judges steps by bounds and records, without counts."""

    def judge(self, look: TableLook, step: AgentStep) -> AgentStep | None:
        """Returns a step with possible work, or None."""
        if step.action == "refresh":
            return step if _needs_refresh(look) else None
        plan = look.table.plan_backfill(step.columns, exact=False)
        return step if plan.has_work else None


@dataclass(frozen=True, slots=True)
class _ExactJudge:
    """Counts the rows of steps, and estimates time and cost.

    Attributes:
        sample: Rows to compute for an estimate of a column without earlier jobs, or None.
    """

    sample: int | None

    def judge(self, look: TableLook, step: AgentStep) -> AgentStep | None:
        """Returns a step with work, with rows and estimates, or None."""
        if step.action == "refresh":
            return self._judge_refresh(look, step) if _needs_refresh(look) else None
        plan = look.table.plan_backfill(step.columns, exact=True)
        if not plan.has_work:
            return None
        udf = (plan.udf_name, plan.udf_version)
        jobs = [job for job in look.table.list_jobs() if (job.udf_name, job.udf_version) == udf]
        step = replace(step, rows=plan.total_rows_pending)
        computed = sum(job.rows_computed for job in jobs)
        step = _estimate(step, [(plan.rows_to_compute, computed)], jobs)
        if self.sample is None or step.estimated_seconds is not None or not plan.rows_to_compute:
            return step
        plan = look.table.plan_backfill(step.columns, exact=True, sample=self.sample)
        return replace(
            step, estimated_seconds=plan.estimated_seconds, estimated_cost=plan.estimated_cost
        )

    def _judge_refresh(self, look: TableLook, step: AgentStep) -> AgentStep | None:
        plan = look.table.plan_refresh()
        if not plan.has_work:
            return None
        rows = plan.rows_added + plan.rows_recomputed
        step = replace(step, rows=rows + plan.rows_removed + plan.rows_pending)
        jobs = look.table.list_jobs()
        refreshes = {job.job_id: job for job in jobs if job.job_type == JOB_TYPE}
        backfills = [job for job in jobs if job.job_id.rpartition("-")[0] in refreshes]
        ended_rows = _count_rows(
            refreshes.values(), backfills, chunks=look.view is not None and look.view.makes_chunks
        )
        computed = sum(job.rows_computed for job in refreshes.values())
        parts = [(rows, ended_rows), (plan.rows_pending, computed)]
        parts = [part for part in parts if part[0]] or parts[:1]
        return _estimate(step, parts, [*refreshes.values(), *backfills])


_Judge = _QuickJudge | _ExactJudge


def _count_rows(
    refreshes: Iterable[JobRecord], backfills: Iterable[JobRecord], *, chunks: bool
) -> int:
    """Returns the rows of earlier refreshes as a plan counts its rows."""
    if not chunks:
        return sum(job.rows_selected for job in refreshes)
    # The rows of a plan are rows of the source, and the selected rows of a job are chunks.
    return sum(job.rows_computed for job in refreshes) - sum(job.rows_computed for job in backfills)


def _estimate(
    step: AgentStep, parts: Sequence[tuple[int, int]], jobs: Sequence[JobRecord]
) -> AgentStep:
    """Returns a step with estimates by the spending of earlier jobs.

    Each part has a number of rows, and the number of such rows in the earlier jobs.
    """
    if any(ended_rows <= 0 for _, ended_rows in parts):
        return step
    share = sum(rows / ended_rows for rows, ended_rows in parts)
    spending = [spent for _, spent in sum_jobs(jobs).values()]
    seconds = sum(spent.seconds or 0.0 for spent in spending)
    cost = sum(spent.cost or 0.0 for spent in spending)
    return replace(step, estimated_seconds=share * seconds, estimated_cost=share * cost)


def _with_source(look: TableLook, versions: Mapping[str, VersionKey]) -> TableLook:
    """Returns a look with the version of the source of a view."""
    if look.view is None:
        return look
    key = versions.get(look.source_uri or "") or key_of(look.view.pin_source(look.ref, None).open())
    return replace(look, source_version=key)


def _needs_refresh(look: TableLook) -> bool:
    """Tells whether a view does not show the latest version of its source, or lacks values."""
    if look.view is None:
        return False
    start = RefreshBase.of(look.ref.pin(None), look.view.pin_source(look.ref, None))
    if look.view.makes_table:
        return start.shows is None or start.shows.version != start.source.version
    if not start.is_current:
        return True
    # A commit of another job, such as a backfill of a column of the view, may change values.
    return (
        not is_settled(start.view, start.dataset, start.shows)
        and look.table.plan_refresh().has_work
    )


def _candidates(
    look: TableLook, groups: ColumnGroups, earlier: Sequence[AgentStep]
) -> Iterator[AgentStep]:
    """Yields the possible steps of a table, with the keys of their inputs."""
    make = functools.partial(
        AgentStep, table_name=look.name, table_uri=look.uri, version=look.version[0]
    )
    keys: dict[tuple[str, ...], StepKey] = {}
    refresh: tuple[StepKey, ...] = ()
    if look.view is not None:
        used = {column.name for column in look.view.used}
        from_source = (step for step in earlier if step.table_uri == look.source_uri)
        reads = (
            step.key for step in from_source if not step.columns or used.intersection(step.columns)
        )
        step = make(action="refresh", after_keys=tuple(reads))
        refresh = (step.key,)
        yield step
    for columns, inputs in groups.items():
        step = make(
            action="backfill",
            columns=columns,
            after_keys=(*refresh, *(keys[group] for group in inputs)),
        )
        keys[columns] = step.key
        yield step


def _refused_steps(look: TableLook) -> list[AgentStep]:
    """Returns the steps of a table that is not allowed. Their names need no order."""
    groups = dict.fromkeys(look.groups, frozenset[tuple[str, ...]]())
    steps = _candidates(look, groups, ())
    return [
        replace(step, status="not allowed", reason=_NO_STORED_CODE, after_keys=()) for step in steps
    ]


def _is_open(step: AgentStep) -> bool:
    """Tells whether a step will change inputs of later steps."""
    return step.status in ("due", "waiting", "failed")


def _names_of(step: AgentStep) -> list[str]:
    return [f"{step.table_name}.{join_names((column,))}" for column in step.columns]


def is_expected(error: Exception) -> bool:
    """Tells whether the message of an error is for users, without the class and the trace."""
    return isinstance(error, _EXPECTED_ERRORS)


def describe(error: Exception) -> str:
    """Returns the reason of a failed step."""
    return str(error) if is_expected(error) else f"{type(error).__name__}: {error}"
