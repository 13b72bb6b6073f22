"""Calls, seconds and cost of jobs: :class:`Spending`."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Calls, seconds and cost: of a job, or left for jobs. None is no limit."""

    calls: int | None = None
    seconds: float | None = None
    cost: float | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether a limit leaves nothing for a job."""
        return any(
            amount is not None and amount <= 0 for amount in (self.calls, self.seconds, self.cost)
        )

    def after(self, result: BackfillJobResult | RefreshJobResult) -> Spending:
        """Returns the rest after a job with this result."""
        calls, seconds = count_calls(result), result.seconds.get("total", 0.0)
        return Spending(
            calls=None if self.calls is None else self.calls - calls,
            seconds=None if self.seconds is None else self.seconds - seconds,
            cost=None if self.cost is None else self.cost - result.cost,
        )


def count_calls(result: BackfillJobResult | RefreshJobResult) -> int:
    """Returns the rows for UDFs: rows with a result, and rows skipped by a policy.

    A refresh includes its backfills.
    """
    backfills = (
        {}
        if isinstance(result, BackfillJobResult)
        else {job.job_id: job for job in result.backfills.values()}
    )
    skipped = result.rows_skipped + sum(job.rows_skipped for job in backfills.values())
    return result.rows_computed + skipped


UNLIMITED = Spending()

REFRESH_AT_BUDGET = "The budget of the refresh is used up. Computed values are kept, and the next refresh continues."
"""The message of a refresh that ended at its budget."""
