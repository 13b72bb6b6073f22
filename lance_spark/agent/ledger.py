"""Budgets and failures of an agent: :class:`Ledger`. Belongs to the thread of the agent."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from lance_spark.agent.plan import StepKey
from lance_spark.agent.settings import AgentSettings
from lance_spark.backfill.spending import Spending, count_calls
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult
from lance_spark.views.state import JOB_TYPE

JOB_PREFIX = "agent"
"""Beginning of the job ids of an agent. A later agent finds its predecessor's jobs by it."""

WATCH_PREFIX = "watch"
"""Beginning of the job ids of a watch, which use up no budget of an agent."""

_JOB_ID = re.compile(rf"{JOB_PREFIX}[0-9a-f]{{32}}(-.*)?", re.DOTALL)
_HOUR_S = 3600.0
_MOST_DOUBLINGS = 10


def is_of_agent(record: JobRecord) -> bool:
    """Tells whether an agent started a job, by its id."""
    return _JOB_ID.fullmatch(record.job_id) is not None


def sum_jobs(records: Iterable[JobRecord]) -> dict[str, tuple[float, Spending]]:
    """Returns the last sign of life and the spending of jobs, a refresh with its backfills."""
    by_id = {record.job_id: record for record in records}
    refreshes = {job_id for job_id, record in by_id.items() if record.job_type == JOB_TYPE}
    parts: dict[str, list[JobRecord]] = {}
    for job_id, record in by_id.items():
        refresh_id = job_id.rpartition("-")[0]
        if refresh_id in refreshes:
            parts.setdefault(refresh_id, []).append(record)
        else:
            parts.setdefault(job_id, [])
    return {job_id: _sum_job(by_id[job_id], backfills) for job_id, backfills in parts.items()}


def _sum_job(job: JobRecord, backfills: list[JobRecord]) -> tuple[float, Spending]:
    """Returns the last sign of life and the spending of a job and its backfills.

    The record of a refresh has the calls and the cost of its ended backfills, too. Records of
    earlier releases lack the cost.
    """
    ended = [record for record in backfills if job.completed_at or record.completed_at]
    running = [record for record in backfills if record not in ended]
    spending = Spending(
        calls=max(job.rows_computed, _sum(ended, "rows_computed"))
        + _sum(running, "rows_computed")
        + _sum([job, *backfills], "rows_skipped"),
        seconds=max(_seconds_of(job), sum(map(_seconds_of, backfills))),
        cost=max(job.cost, _sum(ended, "cost")) + _sum(running, "cost"),
    )
    return max(record.updated_at.timestamp() for record in (job, *backfills)), spending


def _sum(records: Iterable[JobRecord], name: str) -> Any:  # noqa: ANN401 - the type of the field
    return sum(getattr(record, name) for record in records)


def _seconds_of(record: JobRecord) -> float:
    """Returns the duration of a job, for a running or killed job until its last sign of life."""
    seconds = float(record.seconds.get("total", 0.0))
    if record.completed_at is not None:
        return seconds
    return max(seconds, (record.updated_at - record.launched_at).total_seconds())


@dataclass(slots=True)
class Ledger:
    """The ended jobs of the last hour, and the failures of each step.

    Attributes:
        settings: The settings of the agent.
    """

    settings: AgentSettings
    _own_jobs: dict[str, tuple[float, Spending]] = field(default_factory=dict)
    _other_jobs: dict[str, tuple[float, Spending]] = field(default_factory=dict)
    _reserved: dict[str, Spending] = field(default_factory=dict)
    _failures: dict[StepKey, tuple[int, float]] = field(default_factory=dict)
    _errors: dict[StepKey, Exception] = field(default_factory=dict)

    def note_history(self, records: Iterable[JobRecord]) -> None:
        """Adds the jobs of other agents, which count for the budget of the hour.

        A later record of a job replaces its earlier record.
        """
        own = {*self._reserved, *self._own_jobs}
        jobs = sum_jobs(record for record in records if is_of_agent(record))
        self._other_jobs |= {
            job_id: job
            for job_id, job in jobs.items()
            if own.isdisjoint((job_id, job_id.rpartition("-")[0]))
        }

    def note_end(self, job_id: str, result: BackfillJobResult | RefreshJobResult) -> None:
        """Adds an ended job of this agent."""
        self._reserved.pop(job_id, None)
        seconds = result.seconds.get("total", 0.0)
        spent = Spending(calls=count_calls(result), seconds=seconds, cost=result.cost)
        self._own_jobs[job_id] = (time.time(), spent)

    def note_failure(self, key: StepKey, error: Exception | None = None) -> None:
        """Counts a failure of a step."""
        count, _ = self._failures.get(key, (0, 0.0))
        self._failures[key] = (count + 1, time.time())
        if error is not None:
            self.note_error(key, error)

    def note_error(self, key: StepKey, error: Exception) -> None:
        """Notes the last error of a step."""
        self._errors[key] = error

    def error_of(self, key: StepKey) -> Exception | None:
        """Returns the last error of a step since its last success."""
        return self._errors.get(key)

    def note_success(self, key: StepKey) -> None:
        """Forgets the failures of a step."""
        self._failures.pop(key, None)
        self._errors.pop(key, None)

    def forget_dropped(self, uris: Container[str]) -> None:
        """Forgets the failures of all tables but the tables of these locations."""
        self._failures = {
            key: failures for key, failures in self._failures.items() if key[0] in uris
        }
        self._errors = {key: error for key, error in self._errors.items() if key[0] in uris}

    def backoff(self, key: StepKey) -> tuple[int, float]:
        """Returns the failures of a step in a row, and the seconds until its next try.

        The wait begins with the time between looks, doubles with each failure, and is an hour at
        most.
        """
        count, at = self._failures.get(key, (0, 0.0))
        if not count:
            return 0, 0.0
        wait = min(
            self.settings.trigger.total_seconds() * 2.0 ** min(count, _MOST_DOUBLINGS), _HOUR_S
        )
        return count, at + wait - time.time()

    def remaining(self) -> Spending:
        """Returns the rest of the budget of the last hour that no running job has reserved."""
        since = time.time() - _HOUR_S
        self._own_jobs = {job_id: job for job_id, job in self._own_jobs.items() if job[0] > since}
        self._other_jobs = {
            job_id: job for job_id, job in self._other_jobs.items() if job[0] > since
        }
        ended = (*self._own_jobs.values(), *self._other_jobs.values())
        spent = [*(spending for _, spending in ended), *self._reserved.values()]
        settings = self.settings
        return Spending(
            calls=None
            if settings.max_calls is None
            else settings.max_calls - sum(part.calls or 0 for part in spent),
            seconds=_rest(settings.max_seconds, (part.seconds for part in spent)),
            cost=_rest(settings.max_cost, (part.cost for part in spent)),
        )

    def reserve(self, job_id: str, free_jobs: int) -> Spending:
        """Reserves a share of the rest of the budget for a job, for one of the free places."""
        rest = self.remaining()
        share = Spending(
            calls=None if rest.calls is None else max(1, rest.calls // free_jobs),
            seconds=None if rest.seconds is None else rest.seconds / free_jobs,
            cost=None if rest.cost is None else rest.cost / free_jobs,
        )
        self._reserved[job_id] = share
        return share

    def release(self, job_id: str) -> None:
        """Frees the share of a job that did not start, or has no result."""
        self._reserved.pop(job_id, None)


def _rest(most: float | None, spent: Iterable[float | None]) -> float | None:
    return None if most is None else most - sum(part or 0.0 for part in spent)
