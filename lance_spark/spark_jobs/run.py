"""Submits Spark jobs, retries them, and cancels them: :class:`SparkJobs`. Runs on the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lance_spark.session.sessions import active_in_thread, cancel, tagged
from lance_spark.spark_jobs.failures import SparkFailure
from lance_spark.spark_jobs.task_queue import LostTask, TaskQueue
from lance_spark.spark_jobs.tasks import ANSWER, RunTasks, SparkTask, read_answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_LOG = logging.getLogger(__name__)

CANCEL_INTERVAL_S = 0.5
"""Seconds between attempts to cancel Spark jobs, because a job may be on its way to Spark."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Task = TypeVar("Task", bound=SparkTask[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJobTag:
    """Marks the Spark jobs of a job: `tag` cancels them, the Spark UI shows the description."""

    tag: str
    description: str

    @staticmethod
    def of(job_id: str, description: str) -> SparkJobTag:
        """Returns the tag of a job by the job's id."""
        return SparkJobTag(tag=f"lance-spark-{job_id}", description=description)


class SparkJobs:
    """The Spark jobs of a job. All methods work from any thread.

    Spark itself retries the tasks of a job. A job fails if a task failed too often, and in plain
    `local[N]` if the process of a task died. Then the job is submitted again.
    """

    def __init__(
        self,
        spark: SparkSession,
        tag: SparkJobTag,
        *,
        check: Callable[[], None] = lambda: None,
        answers_errors: bool = False,
    ) -> None:
        """Takes the session and the tag.

        Args:
            spark: The session.
            tag: Tag and description.
            check: Raises if no further Spark job may start.
            answers_errors: Whether tasks answer with errors of lance-spark instead of raising them.
        """
        self._spark = spark
        self._tag = tag
        self._check = check
        self._answers_errors = answers_errors
        self._stopped = threading.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Kills running tasks within seconds, and submits no job again.

        Repeat the call until all jobs have ended, because a job may be on its way to Spark.
        """
        self._stopped.set()
        self.cancel()

    def cancel(self) -> None:
        """Cancels the running Spark jobs."""
        cancel(self._spark, self._tag.tag)

    def collect(self, frame: Callable[[], DataFrame]) -> list[Row]:
        """Submits a Spark job once, and returns its rows."""
        with (
            active_in_thread(self._spark),
            tagged(self._spark, self._tag.tag, self._tag.description),
        ):
            return frame().collect()

    def run_spark_job(self, frame: Callable[[], DataFrame]) -> list[Row]:
        """Runs a Spark job in this thread, and returns its rows. An interrupt cancels the job.

        Args:
            frame: Returns the DataFrame of an attempt.
        """
        (rows,) = self._submit_all([frame], lambda frames: frames[0]())
        if isinstance(rows, LostTask):
            raise rows.failure.raised
        return rows

    def poll_spark_job(
        self, frame: Callable[[], DataFrame], refresh_s: float
    ) -> Generator[list[Any], None, list[Row] | SparkFailure]:
        """Runs a Spark job in another thread, and returns its rows, or why the job failed.

        Yields an empty list at least every `refresh_s` seconds. Closing the generator cancels the
        job, and waits for its end.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="lance-spark-job") as pool:
            future = pool.submit(self.run_spark_job, frame)
            try:
                while wait(
                    [future], timeout=CANCEL_INTERVAL_S if self.is_stopped else refresh_s
                ).not_done:
                    if self.is_stopped:
                        self.cancel()
                    yield []
            finally:
                while not future.done():
                    self.stop()
                    wait([future], timeout=CANCEL_INTERVAL_S)
        error = future.exception()
        return future.result() if error is None else SparkFailure.of(error)

    def answers(self, frame: Callable[[], DataFrame], kind: type[Result]) -> list[Result]:
        """Runs a Spark job as :meth:`run_spark_job` does, and returns the results of its tasks.

        Args:
            frame: Returns the DataFrame of an attempt: the answers of the tasks.
            kind: Type of a result.

        Raises:
            LanceSparkError: A task answered with the error.
        """
        return [read_answer(kind, row[0]) for row in self.run_spark_job(frame)]

    def run(
        self, tasks: Sequence[Task], kind: type[Result], at_once: int | None = None
    ) -> Iterator[Result | LostTask[Task]]:
        """Runs tasks in this thread, and yields their results and the lost tasks, in any order.

        An interrupt cancels the running tasks.

        Args:
            tasks: The tasks.
            kind: Type of a result.
            at_once: Maximum number of running tasks.

        Raises:
            LanceSparkError: A task answered with the error.
        """

        def frame(group: tuple[Task, ...]) -> DataFrame:
            runner, count = RunTasks(tasks=group, answers_errors=self._answers_errors), len(group)
            return self._spark.range(0, count, 1, min(count, at_once or count)).mapInArrow(
                runner, ANSWER
            )

        for rows in self._submit_all(tasks, frame):
            if isinstance(rows, LostTask):
                yield rows
            else:
                yield from (read_answer(kind, row[0]) for row in rows)

    def results(self, tasks: Sequence[Task], kind: type[Result]) -> list[Result]:
        """Runs tasks as :meth:`run` does, and returns their results in any order.

        Raises:
            LanceSparkError: A task answered with the error.
            PySparkException: Spark's exception for a lost task.
        """
        results: list[Result] = []
        for result in self.run(tasks, kind):
            if isinstance(result, LostTask):
                raise result.failure.raised
            results.append(result)
        return results

    def _submit_all(
        self, tasks: Sequence[Item], frame: Callable[[tuple[Item, ...]], DataFrame]
    ) -> Iterator[list[Row] | LostTask[Item]]:
        """Submits tasks until each has answered or is lost, and yields the rows of each group."""
        queue = TaskQueue(tasks)
        while queue:
            self._check()
            group = queue.take()
            try:
                rows = self.collect(lambda tasks=group.tasks: frame(tasks))  # type: ignore[misc]
            except Exception as error:
                if self.is_stopped:
                    raise
                failure = SparkFailure.of(error)
                # The caller gets an error that is not retried.
                level = logging.WARNING if failure.retryable else logging.INFO
                _LOG.log(
                    level, "a Spark job (%s) failed: %s", self._tag.description, failure.message
                )
                # First, because `results` ends with the first lost task: if all tasks die, after
                # MAX_ATTEMPTS jobs.
                yield from queue.put_back(group, failure, first=True)
            except BaseException:  # the user interrupted
                self.cancel()
                raise
            else:
                yield rows
