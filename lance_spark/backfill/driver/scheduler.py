"""Runs a backfill's tasks on Spark: few Spark jobs of many tasks, within the allowed concurrency.

Spark has no limit on the running tasks of one job. Where the cluster is known to be no larger than
the limit, all tasks are submitted together; else half of what it allows while the other half runs.

A Spark job brings its tasks' answers when it ends. Until then each task leaves what it has done in
the table's store, which the driver reads from time to time; so this works over Spark Connect as
well, where there are no accumulators.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_spark.backfill.driver.spark_failure import MAX_ATTEMPTS, SparkFailure, failure_of
from lance_spark.backfill.task.error_log import fail_ranges, record_ranges
from lance_spark.backfill.task.messages import (
    BackfillSpec,
    FragmentWork,
    RangeOutcome,
    Task,
    dump_outcomes,
    load_outcomes,
)
from lance_spark.backfill.task.range_task import run_task
from lance_spark.jobs.periodic import every
from lance_spark.objects import objects_beside
from lance_spark.session.sessions import cancel, known_slots, tagged
from lance_spark.staging.area import new_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_LOG = logging.getLogger(__name__)

Key: TypeAlias = "tuple[int, int, bool]"
"""What tells the work on a range from the others of a round."""

_ANSWER = pa.schema([pa.field("outcomes", pa.binary())])
_MOST_TASKS = 2000
"""Tasks of one Spark job: their descriptions travel to every executor."""

_MOST_ROW_BYTES = 32 << 20
"""Bytes of sets of rows in the descriptions of one Spark job's tasks."""

_TASKS_PER_SLOT = 16
_FEWEST_TASKS = 64
"""The same where the size of the cluster is known."""

_PARALLEL_JOBS = 16
"""Spark jobs of one backfill at once, at most."""

_STOP_S = 0.5
"""Seconds between attempts to stop Spark jobs when a job ends early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A task that never answered, and why, on one line."""

    task: Task
    error: str


class Scheduler:
    """Submits the tasks of one round, and collects what they answer.

    Used by the job's thread; :meth:`stop` by any.
    """

    def __init__(self, spark: SparkSession, spec: BackfillSpec, *, limit: int | None, description: str) -> None:
        self._spark = spark
        self._spec = spec
        self._description = description
        self._tag = f"lance-spark-{spec.staging.job_id}"
        self._objects = objects_beside(spec.home)
        slots = known_slots(spark)
        self._limit = None if limit is not None and slots is not None and slots <= limit else limit
        # Spark runs the tasks of one job before those of the next: what assembles a fragment must
        # not wait for hours of others.
        few_tasks = _MOST_TASKS if slots is None else max(_TASKS_PER_SLOT * slots, _FEWEST_TASKS)
        self._most_tasks = min(_MOST_TASKS, few_tasks)
        self._stopped = threading.Event()
        self._queue: list[Task] = []
        self._attempts: dict[int, int] = {}
        self._running: dict[Future[list[bytes]], list[Task]] = {}
        self._answered: set[Key] = set()
        self._read: set[str] = set()

    def add(self, work: FragmentWork) -> None:
        """Submits further work, before what waits already.

        Called by what consumes :meth:`run`, between two of its answers.
        """
        task = Task(number=len(self._attempts), work=(work,))
        self._attempts[task.number] = 0
        self._queue.insert(0, task)

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Kills running tasks within seconds, and submits no further ones."""
        self._stopped.set()
        cancel(self._spark, self._tag)

    def run(self, tasks: Sequence[Task], refresh_s: float) -> Generator[list[RangeOutcome | Lost], None, None]:
        """Runs tasks, and yields their answers as they come: one for each range.

        Yields at least every `refresh_s` seconds, then maybe nothing. A task whose process died is
        submitted again, with the UDF in a process of its own. Closing the generator waits until
        nothing of the job runs any more.
        """
        self._queue = list(tasks)
        self._attempts = {task.number: 0 for task in tasks}
        running = self._running
        with ThreadPoolExecutor(_PARALLEL_JOBS, thread_name_prefix="lance-spark-job") as pool:
            try:
                while self._queue or running:
                    while not self._stopped.is_set() and (batch := self._next_batch()):
                        del self._queue[: len(batch)]
                        running[pool.submit(self._submit, batch)] = batch
                    if self._stopped.is_set():
                        self._queue = []
                        # Again: a Spark job may have been on its way when the job was stopped.
                        cancel(self._spark, self._tag)
                    if not running:
                        break
                    done, _ = wait(running, timeout=refresh_s, return_when=FIRST_COMPLETED)
                    answers: list[RangeOutcome | Lost] = [] if done else [*self._new(self._reports())]
                    for future in done:
                        answers += self._ended(future, running.pop(future))
                    yield answers
            finally:
                while wait(running, timeout=0 if not running else _STOP_S).not_done:
                    cancel(self._spark, self._tag)

    def run_alone(
        self, frame: Callable[[], DataFrame], refresh_s: float
    ) -> Generator[list[RangeOutcome | Lost], None, list[Row] | SparkFailure]:
        """Runs one Spark job that is none of tasks, and returns its rows, or why there are none.

        Yields nothing, at least every `refresh_s` seconds. A job whose tasks died is submitted
        again.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="lance-spark-job") as pool:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                future = pool.submit(self._collect, frame)
                try:
                    while wait([future], timeout=_STOP_S if self._stopped.is_set() else refresh_s).not_done:
                        if self._stopped.is_set():
                            cancel(self._spark, self._tag)
                        yield []
                finally:
                    while wait([future], timeout=0 if future.done() else _STOP_S).not_done:
                        cancel(self._spark, self._tag)
                error = future.exception()
                if error is None:
                    return future.result()
                failure = failure_of(error)
                if self._stopped.is_set() or not failure.retryable or attempt == MAX_ATTEMPTS:
                    return failure
                _LOG.warning("a Spark job of %s failed, and is submitted again: %s", self._description, failure.message)
        raise AssertionError

    def _collect(self, frame: Callable[[], DataFrame]) -> list[Row]:
        with tagged(self._spark, self._tag, self._description):
            return frame().collect()

    def _next_batch(self) -> list[Task]:
        """Returns the tasks that make the next Spark job; none where it has to wait.

        Which task made a Spark job fail is not known: all of them are tried again in ever smaller
        groups, the last time one by one, so that a bad task takes no other one with it.
        """
        if not self._queue:
            return []
        if self._limit is None:
            size = self._most_tasks if len(self._running) < 2 else 0
        else:
            busy = sum(len(batch) for batch in self._running.values())
            size = min(math.ceil(self._limit / 2), self._limit - busy) if len(self._running) < _PARALLEL_JOBS else 0
        tried = self._attempts[self._queue[0].number]
        size = min(size, max(1, _MOST_TASKS >> 4 * tried) if tried < MAX_ATTEMPTS - 1 else 1)
        batch = list(takewhile(lambda task: self._attempts[task.number] == tried, self._queue[:size]))
        # A bit for each row of a fragment that is put together, at most.
        sizes = itertools.accumulate(sum(one.stop // 8 for one in task.work if one.assembles) for task in batch)
        return batch[: max(1, sum(size <= _MOST_ROW_BYTES for size in sizes))]

    def _submit(self, tasks: Sequence[Task]) -> list[bytes]:
        """Runs one Spark job to its end."""
        runner = TaskRunner(spec=self._spec, tasks=tuple(tasks))
        with tagged(self._spark, self._tag, self._description):
            frame = self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(runner, "outcomes binary")
            return [bytes(row[0]) for row in frame.collect()]

    def _ended(self, future: Future[list[bytes]], batch: list[Task]) -> list[RangeOutcome | Lost]:
        """Returns what a Spark job answered; if it failed, what its tasks have left.

        Tasks to submit again go into the queue.
        """
        error = future.exception()
        if error is None:
            return [*self._new([outcome for payload in future.result() for outcome in load_outcomes(payload)])]
        answers: list[RangeOutcome | Lost] = [*self._new(self._reports())]
        if self._stopped.is_set():
            return answers
        failure = failure_of(error)
        _LOG.warning("a Spark job of the backfill of %s failed: %s", self._spec.snapshot.uri, failure.message)
        if not failure.retryable:
            # A task's own exception is its answer; this one comes from what all tasks share.
            batch = [*batch, *self._queue]
            self._queue = []
        lost = []
        for task in (_rest(task, self._answered) for task in batch):
            self._attempts[task.number] += 1
            if task.work and failure.retryable and self._attempts[task.number] < MAX_ATTEMPTS:
                self._queue.append(task)
            elif task.work:
                lost.append(task)
        record_ranges(
            self._spec,
            [work for task in lost for work in task.work],
            error_type=failure.error_type,
            message=failure.message,
            trace=failure.trace,
        )
        return [*answers, *(Lost(task=task, error=_why_lost(failure)) for task in lost)]

    def _reports(self) -> list[RangeOutcome]:
        """Returns what running tasks have left in the store since the last look."""
        outcomes = []
        for path in self._objects.list(_reports_of(self._spec)):
            if path in self._read:
                continue
            self._read.add(path)
            if (payload := self._objects.get(path)) is not None:
                outcomes += load_outcomes(payload)
                # It is read once, and each listing of what is left takes longer.
                with suppress(OSError):
                    self._objects.delete(path)
        return outcomes

    def _new(self, outcomes: Sequence[RangeOutcome]) -> list[RangeOutcome]:
        """Returns the outcomes of ranges that have not answered before."""
        fresh: dict[Key, RangeOutcome] = {}
        for outcome in outcomes:
            if outcome.key not in self._answered:
                fresh.setdefault(outcome.key, outcome)
        self._answered.update(fresh)
        return list(fresh.values())


def _reports_of(spec: BackfillSpec) -> str:
    # What an earlier round left is no answer, though it may have read the same version.
    return f"jobs/{spec.staging.job_id}/reports/{spec.round}"


def _why_lost(failure: SparkFailure) -> str:
    if failure.retryable:
        return f"its task died in {MAX_ATTEMPTS} attempts: {failure.message}"
    needs = "; executors run the Python that PYSPARK_PYTHON names, which needs the packages of the driver's"
    is_import = failure.error_type in ("ModuleNotFoundError", "ImportError")
    return f"executors cannot run its task: {failure.error_type}: {failure.message}{needs if is_import else ''}"


def _rest(task: Task, answered: Collection[Key] = ()) -> Task:
    """Returns the unanswered ranges of a task that died, as a task.

    The UDF gets a process of its own, and checkpoints that the task has left are searched for.
    """
    work = [replace(one, search=True) for one in task.work if one.key not in answered]
    return replace(task, work=tuple(work), isolate=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRunner:
    """What Spark runs on executors: a row with a task's number becomes a row with its answer."""

    spec: BackfillSpec
    tasks: tuple[Task, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the answer of each task."""
        for batch in batches:
            for index in batch.column(0).to_numpy():
                yield self._answer(self.tasks[int(index)])

    def _answer(self, task: Task) -> pa.RecordBatch:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            # Spark runs it again where its process died: the UDF may have killed it.
            task = _rest(task)
        outcomes: list[RangeOutcome] = []
        reported = 0

        def report() -> None:
            nonlocal reported
            if unreported := outcomes[reported:]:
                self._report(task, unreported)
                reported += len(unreported)

        # A thread, because the range after those that are done may take hours.
        with every(self.spec.report_s, report):
            try:
                for outcome in run_task(self.spec, task):
                    outcomes.append(outcome)  # noqa: PERF402 - the thread sees each as it comes
            except Exception as error:  # noqa: BLE001 - it would end the same way in the next attempt
                outcomes += fail_ranges(self.spec, task.work[len(outcomes) :], error)
        if len(self.tasks) > 1:
            # Spark hands over no answer before the last task of its job has ended, and that may be
            # hours after a quick one.
            report()
        return pa.RecordBatch.from_pylist([{"outcomes": dump_outcomes(outcomes)}], schema=_ANSWER)

    def _report(self, task: Task, outcomes: list[RangeOutcome]) -> None:
        spec, objects = self.spec, objects_beside(self.spec.home)
        path = f"{_reports_of(spec)}/{task.number}-{new_id()}"
        try:
            objects.put(path, dump_outcomes(outcomes))
            if not spec.staging.is_open():
                # The job is over, and has removed its folder already.
                objects.delete(path)
        except OSError as error:
            # Spark hands over the same answer when its job ends.
            _LOG.warning("what a task of the backfill of %s has done is not reported yet: %s", spec.snapshot.uri, error)
