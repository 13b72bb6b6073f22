"""The running tasks of a round, with their unanswered ranges and their leftover rows. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from lance_spark.backfill.planning.fragment_plan import LeftoverRange
from lance_spark.backfill.task.messages import (
    FragmentWork,
    RangeKey,
    RangeOutcome,
    Task,
    TaskLimits,
)


@dataclass(slots=True, kw_only=True)
class RunningTask:
    """A submitted task without an answer for each of its ranges.

    Attributes:
        task: The task, as the first attempt got it.
        unanswered: Its ranges without an outcome.
        calls: Rows for the UDF, by the outcomes so far.
        cost: Cost of these rows.
        leftovers: Rows that the task left at its early end.
    """

    task: Task
    unanswered: dict[RangeKey, FragmentWork]
    calls: int = 0
    cost: float = 0.0
    leftovers: list[LeftoverRange] = field(default_factory=list)

    @property
    def limits(self) -> TaskLimits:
        """The limits of the task."""
        return self.task.limits

    def add(self, outcome: RangeOutcome) -> None:
        """Adds the outcome of a range."""
        work = self.unanswered.pop(outcome.key)
        self.calls += outcome.spent_calls
        self.cost += outcome.spent_cost
        if outcome.error is None and outcome.stop < work.stop:
            self.leftovers.append(
                LeftoverRange(work=work.cut(outcome.stop, work.stop), rows=outcome.left)
            )

    def rest(self) -> Task:
        """Returns the unanswered ranges with the rest of the limits, for another attempt."""
        calls, cost = self.limits.calls, self.limits.cost
        limits = replace(
            self.limits,
            calls=None if calls is None else max(0, calls - self.calls),
            cost=None if cost is None else max(0.0, cost - self.cost),
        )
        return replace(self.task, work=tuple(self.unanswered.values()), limits=limits)


class RunningTasks:
    """The running tasks of a round. Belongs to the job's thread."""

    def __init__(self) -> None:
        self._tasks: dict[int, RunningTask] = {}
        self._numbers: dict[RangeKey, int] = {}
        self._ended: set[int] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def all(self) -> Collection[RunningTask]:
        """The running tasks."""
        return self._tasks.values()

    def begin(self, task: Task) -> None:
        """Notes a submitted task. A further attempt of a running task changes nothing."""
        if task.number not in self._tasks:
            unanswered = {work.key: work for work in task.work}
            self._tasks[task.number] = RunningTask(task=task, unanswered=unanswered)
            self._numbers.update(dict.fromkeys(unanswered, task.number))

    def answer(self, outcome: RangeOutcome) -> RunningTask | None:
        """Notes the first outcome of a range, and returns its task if the task has ended."""
        number = self._numbers.pop(outcome.key, None)
        if number is None:
            return None
        running = self._tasks[number]
        running.add(outcome)
        if running.unanswered:
            return None
        self._ended.add(number)
        return self._tasks.pop(number)

    def rest(self, task: Task) -> Task | None:
        """Returns the rest of a task without an answer; None if all its ranges have outcomes."""
        if task.number in self._ended:
            return None
        running = self._tasks.get(task.number)
        return task if running is None else running.rest()

    def lose(self, task: Task) -> RunningTask | None:
        """Removes a task without a further attempt. The task has spent its whole share."""
        running = self._tasks.pop(task.number, None)
        if running is not None:
            running.calls, running.cost = (
                running.limits.calls or running.calls,
                running.limits.cost or running.cost,
            )
            for key in running.unanswered:
                self._numbers.pop(key, None)
        return running
