"""Waiting tasks: packed from fragments, grouped for Spark jobs, and retried. Pure decisions.

The driver cannot identify the task behind a failed Spark job. :class:`TaskQueue` submits all tasks
of the job again, in smaller groups with each attempt, and each task alone in the last attempt. So a
task that kills its process loses no other task.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lance_spark.spark_jobs.failures import MAX_ATTEMPTS, SparkFailure

MAX_JOB_TASKS = 2000
"""Tasks of one Spark job: their descriptions travel to every executor."""

_TASK_FRAGMENTS = 1000

Item = TypeVar("Item")
Task = TypeVar("Task")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTask(Generic[Task]):
    """A task without an answer after its last attempt."""

    task: Task
    failure: SparkFailure

    @property
    def error(self) -> str:
        """Why the task has no answer, on a single line."""
        failure = self.failure
        if failure.retryable:
            return f"its task died in {MAX_ATTEMPTS} attempts: {failure.text}"
        hint = ""
        if failure.is_a(ImportError):
            hint = "; executors run the Python that PYSPARK_PYTHON names, which needs the packages of the driver's"
        return f"executors cannot run its task: {failure.text}{hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup(Generic[Task]):
    """The tasks of a Spark job, and the number of attempts that each task had before."""

    tasks: tuple[Task, ...]
    attempts: int

    def __len__(self) -> int:
        return len(self.tasks)


class TaskQueue(Generic[Task]):
    """Tasks to submit. Belongs to one thread of the driver."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._waiting = [(task, 0) for task in tasks]

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add_first(self, task: Task) -> None:
        """Adds a task before all waiting tasks."""
        self._waiting.insert(0, (task, 0))

    def add_last(self, task: Task) -> None:
        """Adds a task after all waiting tasks."""
        self._waiting.append((task, 0))

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> list[Task]:
        """Removes and returns all waiting tasks."""
        waiting, self._waiting = self._waiting, []
        return [task for task, _ in waiting]

    def peek(self, most: int = MAX_JOB_TASKS) -> list[Task]:
        """Returns the tasks of the next Spark job, at most `most` tasks."""
        if not self._waiting or most < 1:
            return []
        attempts = self._waiting[0][1]
        most = min(
            most, max(1, MAX_JOB_TASKS >> 4 * attempts) if attempts < MAX_ATTEMPTS - 1 else 1
        )
        return [
            task
            for task, _ in itertools.takewhile(
                lambda entry: entry[1] == attempts, self._waiting[:most]
            )
        ]

    def take(self, most: int = MAX_JOB_TASKS) -> TaskGroup[Task]:
        """Removes and returns the tasks of :meth:`peek`."""
        group = TaskGroup(tasks=tuple(self.peek(most)), attempts=self._waiting[0][1])
        del self._waiting[: len(group)]
        return group

    def put_back(
        self,
        group: TaskGroup[Task],
        failure: SparkFailure,
        unanswered: Callable[[Task], Task | None] = lambda task: task,
        *,
        first: bool = False,
    ) -> list[LostTask[Task]]:
        """Adds the tasks of a failed Spark job again, and returns the lost tasks.

        A failure is not retryable if its cause is in the shared part of all tasks. Then all waiting
        tasks are lost, too.

        Args:
            group: The tasks of the job.
            failure: Why the job failed.
            unanswered: Returns the unanswered rest of a task, or None if all of the task is
                answered.
            first: Whether the tasks come before all waiting tasks.
        """
        tasks = group.tasks if failure.retryable else (*group.tasks, *self.clear())
        rests = [rest for task in tasks if (rest := unanswered(task)) is not None]
        attempts = group.attempts + 1
        if failure.retryable and attempts < MAX_ATTEMPTS:
            place = 0 if first else len(self._waiting)
            self._waiting[place:place] = [(task, attempts) for task in rests]
            return []
        return [LostTask(task=task, failure=failure) for task in rests]


def pack(
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    most: int,
    *,
    most_items: float = _TASK_FRAGMENTS,
) -> Iterator[list[Item]]:
    """Packs consecutive items, such as fragments, into tasks.

    Args:
        items: The items.
        size_of: Returns the size of an item, in rows or bytes.
        most: Maximum size of a task with several items.
        most_items: Maximum number of items of a task.
    """
    packed: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if packed and (total + size > most or len(packed) >= most_items):
            yield packed
            packed, total = [], 0
        packed.append(item)
        total += size
    if packed:
        yield packed


def pack_fragments(
    fragments: Iterable[tuple[int, int]], task_size: int
) -> tuple[tuple[int, ...], ...]:
    """Packs consecutive fragments, given with their sizes, into tasks as :func:`pack` does."""
    packs = pack(fragments, operator.itemgetter(1), task_size)
    return tuple(
        tuple(fragment_id for fragment_id, _ in fragments_of_task) for fragments_of_task in packs
    )


def at_most(items: Sequence[Task], count: int | None) -> list[tuple[Task, ...]]:
    """Cuts a sequence into at most `count` runs of about equal length; None cuts at each item."""
    count = min(len(items), count or len(items))
    bounds = [len(items) * number // count for number in range(count + 1)] if count else [0]
    return [tuple(items[start:stop]) for start, stop in itertools.pairwise(bounds)]
