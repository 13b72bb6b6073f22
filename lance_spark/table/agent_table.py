"""A table for agents and watches: :class:`AgentTable`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.planning.explain import BackfillPlan
from lance_spark.backfill.request import DEFAULT_CONCURRENCY
from lance_spark.backfill.spending import Spending
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.handle import Job
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult
from lance_spark.views.plan import RefreshPlan
from lance_spark.views.request import RefreshRequest

if TYPE_CHECKING:
    from lance_spark.table.table import Table


@dataclass(frozen=True, slots=True)
class AgentTable:
    """A table of an agent or a watch.

    Attributes:
        concurrency: Maximum number of concurrent tasks of a backfill.
    """

    table: Table
    concurrency: int | None = DEFAULT_CONCURRENCY

    @property
    def ref(self) -> DatasetRef:
        """The table, at its latest version."""
        return self.table._latest  # noqa: SLF001 - a part of the facade

    def list_jobs(self) -> list[JobRecord]:
        """Returns the jobs, newest first."""
        return self.table.list_jobs()

    def plan_backfill(
        self, columns: tuple[str, ...], *, exact: bool, sample: int | None = None
    ) -> BackfillPlan:
        """Plans a backfill of outdated rows and rows without a value."""
        return self.table.plan_backfill(list(columns), stale=True, exact=exact, sample=sample)

    def plan_refresh(self) -> RefreshPlan:
        """Plans a refresh."""
        return self.table.plan_refresh()

    def start_backfill(
        self, columns: tuple[str, ...], job_id: str, budget: Spending, last_fragment: int | None
    ) -> Job[BackfillJobResult] | None:
        """Starts a backfill of outdated rows and rows without a value.

        Returns None if all fragments have ids above `last_fragment`.
        """
        version = num_frags = None
        if last_fragment is not None:
            # The count holds for a single version: any compaction changes the places of fragments.
            dataset = self.ref.open_latest()
            version = dataset.version
            num_frags = sum(number <= last_fragment for number in dataset.fragment_ids())
            if not num_frags:
                return None
        return self.table.backfill_async(
            list(columns),
            stale=True,
            read_version=version,
            num_frags=num_frags,
            concurrency=self.concurrency,
            job_id=job_id,
            max_calls=budget.calls,
            max_seconds=budget.seconds,
            max_cost=budget.cost,
        )

    def start_refresh(self, job_id: str, budget: Spending) -> Job[RefreshJobResult]:
        """Starts a refresh."""
        return self.table._start_refresh(RefreshRequest(), job_id, budget)  # noqa: SLF001 - a part of the facade
