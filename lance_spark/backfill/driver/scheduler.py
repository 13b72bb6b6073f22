"""Runs a backfill's tasks on Spark: few Spark jobs of many tasks, within the allowed concurrency.

Spark has no limit on the running tasks of a job. If the cluster has at most as many slots as the
limit, the scheduler submits all tasks together. Otherwise half of the allowed tasks wait in Spark
while the other half run.

A Spark job returns the outcomes of its tasks at its end. Before the end each task writes its
outcomes into the store, those of finished files into their checkpoints. The driver reads them from
time to time. So the scheduler also works over Spark Connect, without accumulators.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

from lance_spark.backfill.driver.budget import Budget
from lance_spark.backfill.driver.running_tasks import RunningTasks
from lance_spark.backfill.planning.fragment_plan import LeftoverRange, divide
from lance_spark.backfill.planning.planner import slots_of
from lance_spark.backfill.reuse.round_context import store_of
from lance_spark.backfill.task.allowance import StopRequest
from lance_spark.backfill.task.computation import fail_ranges, record_ranges
from lance_spark.backfill.task.messages import (
    BackfillSpec,
    FragmentWork,
    RangeKey,
    RangeOutcome,
    Task,
    TaskLimits,
)
from lance_spark.backfill.task.task_files import read_reported
from lance_spark.errors import TableUnwritableError, rebuild
from lance_spark.jobs.history import every
from lance_spark.session.sessions import known_slots
from lance_spark.spark_jobs.codec import decode, encode
from lance_spark.spark_jobs.failures import SparkFailure, is_error
from lance_spark.spark_jobs.run import CANCEL_INTERVAL_S, SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import MAX_JOB_TASKS, LostTask, TaskGroup, TaskQueue
from lance_spark.spark_jobs.tasks import ANSWER, answer, read_answer, task_numbers
from lance_spark.staging.area import new_id
from lance_spark.storage.objects import objects_beside
from lance_spark.storage.parallel_calls import in_parallel
from udf_runtime import ArtifactError, EnvironmentBuildError
from udf_runtime.checkpoint import CheckpointEntry

_LOG = logging.getLogger(__name__)

_LOOK_S = 2.0
"""Minimum seconds between looks, and before the first look."""


class InFlightRows:
    """The checkpoints of a job's running tasks: the progress of long ranges, and finished files.

    The job's thread lists the checkpoints. Any thread may read the rows.
    """

    def __init__(self, spec: BackfillSpec) -> None:
        self._spec = spec
        self._by_source: dict[str, int] = {}
        self._of_files: list[CheckpointEntry] = []
        self._taken: set[str] = set()
        self._next_look = time.monotonic() + _LOOK_S

    def look(self, *, at_once: bool = False) -> None:
        """Lists the checkpoints `at_once`, or at most every few seconds.

        Raises:
            OSError: The store failed, and the checkpoints are needed `at_once`.
        """
        began = time.monotonic()
        if began < self._next_look and not at_once:
            return
        try:
            entries = store_of(self._spec).list_entries(self._spec.key)
        except OSError as error:
            if at_once:
                raise
            _LOG.debug("checkpoints of %s cannot be listed: %s", self._spec.snapshot.uri, error)
            return
        rows = Counter[str]()
        for entry in entries:
            rows[entry.source] += entry.rows if entry.job_id == self._spec.job_id else 0
        self._by_source = rows
        self._of_files = [
            entry
            for entry in entries
            if entry.job_id == self._spec.job_id and entry.kind == "references"
        ]
        # Listings of many checkpoints are slow, and must not occupy the driver.
        self._next_look = time.monotonic() + max(_LOOK_S, 20 * (time.monotonic() - began))

    def count(self, answered: Collection[str]) -> int:
        """Returns the rows of fragments without an answered range."""
        return sum(rows for source, rows in self._by_source.items() if source not in answered)

    def take_files(self) -> list[CheckpointEntry]:
        """Returns the checkpoints of files of the last look, without those of earlier calls."""
        entries = [entry for entry in self._of_files if entry.path not in self._taken]
        self._taken.update(entry.path for entry in entries)
        return entries

    def clear(self) -> None:
        """Forgets the rows at the end of a round."""
        self._by_source = {}

    def next_round(self, spec: BackfillSpec) -> InFlightRows:
        """Returns the checkpoints of a further round, whose reports are not those of this round."""
        following = InFlightRows(spec)
        following._taken = self._taken
        return following


def make_environment(
    spark: SparkSession,
    spec: BackfillSpec,
    jobs: SparkJobs,
    refresh_s: float,
    check: Callable[[], object],
) -> None:
    """Builds the UDF's environment on an executor, before any row is read. Runs on the driver.

    The other executors build theirs with their first task. If an earlier job built the environment,
    the function returns at once. Calls `check` at least every `refresh_s` seconds. If `jobs` were
    stopped, the function returns without an environment: the job was cancelled.

    Raises:
        EnvironmentBuildError: The environment cannot be built.
    """
    environment = spec.environment
    if environment is None or environment.is_known(spark):
        return
    running = jobs.poll_spark_job(lambda: environment.probe(spark), refresh_s)
    while True:
        try:
            next(running)
        except StopIteration as end:
            rows = end.value
            break
        check()
    if jobs.is_stopped:
        return
    if isinstance(rows, SparkFailure):
        raise EnvironmentBuildError(
            manifest=environment.manifest.name,
            reason=rows.text,
            hint="look into the logs of the executors",
        )
    environment.check(spark, rows)


def raise_if_fatal(outcome: RangeOutcome, spec: BackfillSpec) -> None:
    """Raises the error of a range if every other range fails with the same error.

    Raises:
        TableUnwritableError: The store is full, or denies access.
        EnvironmentBuildError: An executor cannot build the UDF's environment.
        ArtifactError: An executor cannot copy an artifact of the UDF.
    """
    message = str(outcome.error).removeprefix(f"{outcome.error_type}: ")
    if is_error(outcome.error_type, TableUnwritableError):
        raise rebuild(TableUnwritableError, (message,), {"uri": spec.snapshot.uri})
    if is_error(outcome.error_type, ArtifactError):
        raise ArtifactError.parse(message)
    if is_error(outcome.error_type, EnvironmentBuildError) and spec.environment is not None:
        reason = message.removeprefix("The environment cannot be made: ").partition(" Manifest: ")[
            0
        ]
        name = spec.environment.manifest.name
        raise EnvironmentBuildError(
            manifest=name, reason=f"on one executor: {reason}", hint="look at that machine"
        )


_MOST_ROW_BYTES = 32 << 20
"""Bytes of sets of rows in the descriptions of one Spark job's tasks."""

_TASKS_PER_SLOT = 16
_FEWEST_TASKS = 64
"""Tasks of one Spark job if the size of the cluster is known."""

_PARALLEL_JOBS = 16
"""Spark jobs of one backfill at once, at most."""

_MOST_TURNS = 5
"""How often a row is left to another task because its task takes long."""


class Scheduler:
    """Submits the tasks of a round, and collects their outcomes.

    Belongs to the job's thread; :meth:`stop` works from any thread.

    If slots are free, a slow task ends early, and further tasks share its rows.

    Attributes:
        spark_jobs: The Spark jobs of the round.
        in_flight: The checkpoints of running tasks.
        ended_files: Names of all data files of attempts that have ended without an error.
    """

    def __init__(
        self,
        spark: SparkSession,
        spec: BackfillSpec,
        *,
        limit: int | None,
        description: str,
        budget: Budget | None = None,
        profile: ResourceProfile | None = None,
        in_flight: InFlightRows | None = None,
    ) -> None:
        """Takes the session and the tasks' common description; submits nothing.

        Args:
            spark: The session.
            spec: The common description.
            limit: Maximum number of concurrent tasks; None for all slots.
            description: Text for the Spark UI.
            budget: The limits of the job; None for no limits.
            profile: The resources of each task; None for the profile of the application.
            in_flight: The checkpoints of running tasks; None without an earlier round.
        """
        self.spark_jobs = SparkJobs(spark, SparkJobTag.of(spec.staging.job_id, description))
        self.in_flight = InFlightRows(spec) if in_flight is None else in_flight
        self._spark = spark
        self._spec = spec
        self._profile = profile
        self._objects = objects_beside(spec.home)
        slots = known_slots(spark)
        self._slots = slots_of(spark, limit)
        self._budget = Budget() if budget is None else budget
        self._stop_request = StopRequest.of(spec)
        self._limit = None if limit is not None and slots is not None and slots <= limit else limit
        # Spark runs the tasks of one job before those of the next job: a task that assembles a
        # fragment must not wait for hours.
        few_tasks = MAX_JOB_TASKS if slots is None else max(_TASKS_PER_SLOT * slots, _FEWEST_TASKS)
        self._most_tasks = min(MAX_JOB_TASKS, few_tasks)
        self._queue: TaskQueue[Task] = TaskQueue(())
        self._task_count = 0
        self._running: dict[Future[list[RangeOutcome]], TaskGroup[Task]] = {}
        self._tasks = RunningTasks()
        self._answered: set[RangeKey] = set()
        self._read: set[str] = set()
        self._polls = 0
        self.ended_files: set[str] = set()

    def add(self, work: FragmentWork) -> None:
        """Submits further work, before the waiting tasks.

        For the consumer of :meth:`run`, between two answers.
        """
        self._queue.add_first(Task(number=self._task_count, work=(work,)))
        self._task_count += 1

    @property
    def is_unfinished(self) -> bool:
        """Whether tasks wait that :meth:`end_early` or the budget kept from starting."""
        return bool(self._queue)

    def end_early(self) -> None:
        """Submits no further calls of the UDF. Running tasks end after their batches.

        For the consumer of :meth:`run`, between two answers.
        """
        if self._stop_request.is_made:
            return
        self._stop_request.is_made = True
        try:
            self._stop_request.make()
        except OSError as error:
            _LOG.warning(
                "tasks of the backfill of %s run to their end: %s", self._spec.snapshot.uri, error
            )

    def stop(self) -> None:
        """Kills running tasks within seconds, and submits no further tasks."""
        self.spark_jobs.stop()

    def run(
        self, tasks: Sequence[Task], refresh_s: float
    ) -> Generator[list[RangeOutcome | LostTask[Task]], None, None]:
        """Runs tasks, and yields an outcome for each range as soon as possible.

        Yields at least every `refresh_s` seconds, then maybe an empty list. A task whose process
        died is submitted again, with the UDF in a process of its own. Closing the generator waits
        for the end of all Spark jobs.
        """
        self._queue, self._task_count, self._tasks = TaskQueue(tasks), len(tasks), RunningTasks()
        running, next_poll = self._running, time.monotonic() + refresh_s
        with ThreadPoolExecutor(_PARALLEL_JOBS, thread_name_prefix="lance-spark-job") as pool:
            try:
                while self._queue or running:
                    self._submit_groups(pool)
                    if not running:
                        break
                    futures, _ = wait(running, timeout=refresh_s, return_when=FIRST_COMPLETED)
                    answers: list[RangeOutcome | LostTask[Task]] = []
                    is_due = time.monotonic() >= next_poll and len(futures) < len(running)
                    if not futures or is_due:
                        answers += self._new(self._poll())
                        next_poll = time.monotonic() + refresh_s
                    for future in futures:
                        answers += self._ended(future, running.pop(future))
                    yield answers
            finally:
                while wait(running, timeout=0 if not running else CANCEL_INTERVAL_S).not_done:
                    self.spark_jobs.cancel()

    def _submit_groups(self, pool: ThreadPoolExecutor) -> None:
        """Submits as many Spark jobs as may start now; none after a stop."""
        while not self.spark_jobs.is_stopped and (group := self._next_group()):
            for task in group.tasks:
                self._tasks.begin(task)
            self._running[pool.submit(self._submit, group.tasks)] = group
        if self.spark_jobs.is_stopped:
            self._queue.clear()
            # Again: a Spark job may have been on its way when the job was stopped.
            self.spark_jobs.cancel()

    def _next_group(self) -> TaskGroup[Task] | None:
        """Returns the tasks of the next Spark job; None if no job may start now."""
        running = self._running
        if self._limit is None:
            # The shares of a budget end at any time.
            most_jobs = _PARALLEL_JOBS if self._budget.is_limited else 2
            most = self._most_tasks if len(running) < most_jobs else 0
        else:
            busy = sum(map(len, running.values()))
            most = (
                min(math.ceil(self._limit / 2), self._limit - busy)
                if len(running) < _PARALLEL_JOBS
                else 0
            )
        tasks = self._queue.peek(most)
        limits = self._limits_of(tasks)
        if not limits:
            return None
        tasks = tasks[: len(limits)]
        # At most a bit for each row of an assembled fragment.
        sizes = itertools.accumulate(
            sum(work.stop // 8 for work in task.work if work.assembles) for task in tasks
        )
        group = self._queue.take(max(1, sum(size <= _MOST_ROW_BYTES for size in sizes)))
        limited = zip(group.tasks, limits, strict=False)
        return replace(
            group,
            tasks=tuple(replace(task, limits=limits_of_task) for task, limits_of_task in limited),
        )

    def _limits_of(self, tasks: Sequence[Task]) -> list[TaskLimits]:
        """Returns the limits of the first tasks that may start now."""
        limited = [task.limits for task in itertools.takewhile(_has_limits, tasks)]
        if limited or not tasks:
            return limited
        if self._stop_request.is_made:
            return []
        fresh = [*itertools.takewhile(lambda task: not _has_limits(task), tasks)]
        limits = self._budget.limits_of(fresh, self._tasks.all, at_once=self._slots)
        splits = len(self._tasks) + len(limits) < self._slots
        pairs = zip(fresh, limits, strict=False)
        return [
            replace(limits_of_task, splits=splits and _can_split(task))
            for task, limits_of_task in pairs
        ]

    def _submit(self, tasks: Sequence[Task]) -> list[RangeOutcome]:
        """Runs a Spark job to its end."""
        runner = TaskRunner(spec=self._spec, tasks=tuple(tasks))
        count = len(tasks)
        rows = self.spark_jobs.collect(
            lambda: self._spark.range(0, count, 1, count).mapInArrow(
                runner, ANSWER, profile=self._profile
            )
        )
        return [outcome for row in rows for outcome in read_answer(list[RangeOutcome], row[0])]

    def _ended(
        self, future: Future[list[RangeOutcome]], group: TaskGroup[Task]
    ) -> list[RangeOutcome | LostTask[Task]]:
        """Returns the outcomes of a Spark job, or the reported outcomes of a failed job.

        Tasks to submit again return to the queue.
        """
        error = future.exception()
        if error is None:
            ended = future.result()
            if all(outcome.error is None for outcome in ended):
                self.ended_files.update(
                    outcome.file for outcome in ended if outcome.file is not None
                )
            return [*self._new(ended)]
        outcomes = self._new([*self._outcomes_of_files(at_once=True), *self._reports()])
        if self.spark_jobs.is_stopped:
            return [*outcomes]
        failure = SparkFailure.of(error)
        _LOG.warning(
            "a Spark job of the backfill of %s failed: %s", self._spec.snapshot.uri, failure.message
        )
        # Other tasks may wait for the share of these tasks.
        first = self._budget.is_limited
        lost = self._queue.put_back(group, failure, self._unanswered, first=first)
        for entry in lost:
            if (task := self._tasks.lose(entry.task)) is not None:
                self._budget.spend(task)
        record_ranges(
            self._spec,
            [work for entry in lost for work in entry.task.work],
            error_type=failure.error_type,
            message=failure.message,
            trace=failure.trace,
        )
        return [*outcomes, *lost]

    def _unanswered(self, task: Task) -> Task | None:
        """Returns the ranges of a task without an outcome; None if all ranges have outcomes."""
        rest = self._tasks.rest(task)
        return None if rest is None else _isolated(rest)

    def _poll(self) -> list[RangeOutcome]:
        """Returns new outcomes of running tasks: of files, or of ranges without a file, in turn.

        A poll makes one listing.
        """
        self._polls += 1
        return self._reports() if self._polls % 2 else self._outcomes_of_files(at_once=False)

    def _outcomes_of_files(self, *, at_once: bool) -> list[RangeOutcome]:
        """Returns the new outcomes of files, by a look at the checkpoints."""
        self.in_flight.look(at_once=at_once)
        return [*read_reported(self._spec, self.in_flight.take_files())]

    def _reports(self) -> list[RangeOutcome]:
        """Returns the new outcomes of ranges without a file."""
        paths = [
            path for path in self._objects.list(_reports_of(self._spec)) if path not in self._read
        ]
        self._read.update(paths)
        reports = in_parallel(self._objects.uri, self._read_report, paths)
        return [*itertools.chain.from_iterable(reports)]

    def _read_report(self, path: str) -> list[RangeOutcome]:
        """Returns the outcomes of a report, and deletes the report."""
        payload = self._objects.get(path)
        if payload is None:
            return []
        # Each remaining report makes the listings slower.
        with suppress(OSError):
            self._objects.delete(path)
        return decode(list[RangeOutcome], payload)

    def _new(self, outcomes: Sequence[RangeOutcome]) -> list[RangeOutcome]:
        """Returns the outcomes of ranges without an earlier outcome."""
        fresh: dict[RangeKey, RangeOutcome] = {}
        for outcome in outcomes:
            if outcome.key not in self._answered:
                fresh.setdefault(outcome.key, outcome)
        self._answered.update(fresh)
        for outcome in fresh.values():
            ended = self._tasks.answer(outcome)
            if ended is not None:
                self._budget.spend(ended)
                self._divide(ended.leftovers)
        return list(fresh.values())

    def _divide(self, leftovers: Sequence[LeftoverRange]) -> None:
        """Adds tasks for the rows that a task left, as many as slots are free."""
        if not leftovers:
            return
        free = max(1, self._slots - len(self._tasks) - len(self._queue))
        for work in divide(leftovers, free, self._spec.sizes[0]):
            self._queue.add_last(Task(number=self._task_count, work=work))
            self._task_count += 1


def _reports_of(spec: BackfillSpec) -> str:
    # A report of an earlier round is no answer, although both rounds may read the same version.
    return f"jobs/{spec.staging.job_id}/reports/{spec.round}"


def _has_limits(task: Task) -> bool:
    """Tells whether a task has limits already, or is an assembly, which calls no UDF."""
    return task.limits != TaskLimits() or any(work.assembles for work in task.work)


def _can_split(task: Task) -> bool:
    return max(work.turn for work in task.work) < _MOST_TURNS


def _isolated(task: Task) -> Task:
    """Returns a task whose process died, with the UDF in a process of its own.

    The task looks for the checkpoints of the attempt before.
    """
    return replace(task, work=tuple(work.searched() for work in task.work), isolate=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRunner:
    """Runs tasks on executors; a callable for Spark's `mapInArrow` over the numbers of tasks."""

    spec: BackfillSpec
    tasks: tuple[Task, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the answer of each task."""
        for number in task_numbers(batches):
            yield answer(self._run(self.tasks[number]))

    def _run(self, task: Task) -> list[RangeOutcome]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            # Spark retries the task after the death of its process, maybe killed by the UDF.
            task = _isolated(task)
        outcomes: list[RangeOutcome] = []
        reported = 0

        def report() -> None:
            nonlocal reported
            unreported = outcomes[reported:]
            # The checkpoints of files report the other outcomes.
            if without_file := [outcome for outcome in unreported if outcome.file is None]:
                self._report(task, without_file)
            reported += len(unreported)

        # A thread, because the next range may take hours.
        with every(self.spec.report_s, report):
            try:
                for _ in self.spec.value_source.run(self.spec, task, outcomes.append):
                    pass
            except Exception as error:  # noqa: BLE001 - the next attempt would fail, too
                ended = {outcome.key for outcome in outcomes}
                rest = [work for work in task.work if work.key not in ended]
                outcomes += fail_ranges(self.spec, rest, error)
        if len(self.tasks) > 1:
            # Spark returns no answer before the last task of the job has ended, maybe hours later.
            report()
        return outcomes

    def _report(self, task: Task, outcomes: list[RangeOutcome]) -> None:
        spec, objects = self.spec, objects_beside(self.spec.home)
        path = f"{_reports_of(spec)}/{task.number}-{new_id()}"
        try:
            objects.put(path, encode(outcomes).encode())
            if not spec.staging.is_open():
                # The job has ended, and has removed its folder already.
                objects.delete(path)
        except OSError as error:
            # Spark returns the same answer at the end of its job.
            _LOG.warning(
                "outcomes of a task of the backfill of %s are not reported yet: %s",
                spec.snapshot.uri,
                error,
            )
