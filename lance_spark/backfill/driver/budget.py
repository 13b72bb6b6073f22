"""The budget of a job: calls, cost and time that the user allows. Runs on the driver.

A task gets a share of the budget with its description, and ends at its share. The unused part of a
share returns to the budget at the end of the task. So all tasks together never exceed the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from lance_spark.backfill.driver.running_tasks import RunningTask
from lance_spark.backfill.task.messages import Task, TaskLimits

_ROUNDING = 1e-9
"""Part of a cost that is a rounding error: shares are quotients, and costs are sums."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """A budget, and the spent part. Belongs to the job's thread.

    Attributes:
        max_calls: Maximum number of rows for the UDF; None is no limit.
        max_cost: Maximum cost of the rows for the UDF; None is no limit.
        max_seconds: Maximum duration of the job, by the clock of the driver; None is no limit.
        calls: Rows for the UDF in ended tasks.
        cost: Cost of these rows.
    """

    max_calls: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None
    calls: int = 0
    cost: float = 0.0
    clock: Callable[[], float] = time.time
    began: float = field(init=False)
    _is_share_too_small: bool = False
    _is_over: bool = False

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def is_limited(self) -> bool:
        """Whether the user limits the job."""
        return (self.max_calls, self.max_cost, self.max_seconds) != (None, None, None)

    def spend(self, ended: RunningTask) -> None:
        """Adds the calls and the cost of an ended task."""
        self.calls += ended.calls
        self.cost += ended.cost
        share = ended.limits.cost
        # A share of the cost may be too small for a single row. The next task gets the whole rest.
        self._is_share_too_small = share is not None and bool(ended.leftovers) and not ended.calls
        if self._is_share_too_small and (share or 0.0) >= ((self.max_cost or 0.0) - self.cost) * (
            1 - _ROUNDING
        ):
            self._is_over = True

    def limits_of(
        self, tasks: Sequence[Task], running: Collection[RunningTask], *, at_once: int
    ) -> list[TaskLimits]:
        """Returns the limits of the first tasks that may start now: none after the budget.

        Args:
            tasks: The next tasks.
            running: The running tasks with their shares.
            at_once: Maximum number of running tasks.
        """
        if not self.is_limited:
            return [TaskLimits()] * len(tasks)
        calls, cost = self._free(running)
        most = min(
            len(tasks), at_once - len(running), 1 if self._is_share_too_small else len(tasks)
        )
        if calls is not None:
            most = min(most, calls)
        if most < 1 or self._is_used_up(calls, cost) or (self._is_share_too_small and running):
            return []
        share = TaskLimits(
            calls=None if calls is None else calls // most,
            cost=None if cost is None else cost / most,
            deadline=None if self.max_seconds is None else self.began + self.max_seconds,
        )
        return [share] * most

    def limit_text(self) -> str:
        """Returns the limit that ended the job, for messages."""
        if self._is_time_up:
            return f"max_seconds={self.max_seconds:g}"
        if self.max_calls is not None and self.calls >= self.max_calls:
            return f"max_calls={self.max_calls}"
        return f"max_cost={self.max_cost:g}"

    @property
    def _is_time_up(self) -> bool:
        return self.max_seconds is not None and self.clock() >= self.began + self.max_seconds

    def _free(self, running: Collection[RunningTask]) -> tuple[int | None, float | None]:
        """Returns the calls and the cost that no task has spent or may spend."""
        calls, cost = self.max_calls, self.max_cost
        if calls is not None:
            calls -= self.calls + sum(task.limits.calls or 0 for task in running)
        if cost is not None:
            cost -= self.cost + sum(task.limits.cost or 0.0 for task in running)
        return calls, cost

    def _is_used_up(self, calls: int | None, cost: float | None) -> bool:
        if self._is_over or self._is_time_up:
            return True
        is_cost_used = cost is not None and cost <= (self.max_cost or 0.0) * _ROUNDING
        return is_cost_used or (calls is not None and calls < 1)
