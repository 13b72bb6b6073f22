"""Calls, seconds and cost of jobs: :class:`Spending`."""

from __future__ import annotations

from dataclasses import dataclass


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

    def without(self, *, calls: int, seconds: float, cost: float) -> Spending:
        """Returns the rest after some calls, seconds and cost."""
        return Spending(
            calls=None if self.calls is None else self.calls - calls,
            seconds=None if self.seconds is None else self.seconds - seconds,
            cost=None if self.cost is None else self.cost - cost,
        )


UNLIMITED = Spending()

REFRESH_AT_BUDGET = "The budget of the refresh is used up. Computed values are kept, and the next refresh continues."
"""The message of a refresh that ended at its budget."""
