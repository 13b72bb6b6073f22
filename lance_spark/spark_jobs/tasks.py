"""Tasks of Spark jobs, :class:`SparkTask`: their execution on executors, and their answers.

A task answers with a row: its result as JSON, or an error of lance-spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from lance_spark import errors
from lance_spark.errors import LanceSparkError, rebuild
from lance_spark.spark_jobs.codec import encode, from_json
from lance_spark.spark_jobs.failures import error_class

ANSWER = "answer string"
"""Spark's schema of the answers of tasks."""

ANSWER_TO_ALL_ROWS = StructType(
    [StructField("answer", StringType(), metadata={"lance.reads_all_rows": True})]
)
"""The schema of the answers of tasks that read all of their rows. The Arrow batches of such a task
end by row sizes (`LanceTransfer.java`), and a task with unread rows fails."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class SparkTask(Protocol[Result_co]):
    """A task of a Spark job. Picklable."""

    def run(self) -> Result_co:
        """Does the work, on an executor, and returns the result.

        Spark retries the task after an exception.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTasks:
    """Runs tasks on executors; a callable for Spark's `mapInArrow` over the numbers of tasks.

    Attributes:
        tasks: All tasks of the Spark job.
        answers_errors: Whether a task answers with errors of lance-spark instead of raising them.
    """

    tasks: tuple[SparkTask[object], ...]
    answers_errors: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the answer of each task."""
        for number in task_numbers(batches):
            task = self.tasks[number]
            yield answer_or_error(task.run) if self.answers_errors else answer(task.run())


def task_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yields the numbers of the tasks of this process. Runs on an executor."""
    for batch in batches:
        yield from batch.column(0).to_numpy().tolist()


def answer(result: object) -> pa.RecordBatch:
    """Returns the answer of a task with a result."""
    return _row({"result": result})


def answer_or_error(
    work: Callable[[], object], rows: Iterable[pa.RecordBatch] = ()
) -> pa.RecordBatch:
    """Returns the answer of a task: its result, or the error that ended the task.

    Only errors of `lance_spark.errors` are answers. Spark retries the task after other exceptions.
    Before an error is the answer, the rest of the task's rows is read.
    """
    try:
        return answer(work())
    except LanceSparkError as error:
        if type(error).__module__ != errors.__name__:
            raise
        for _ in rows:
            pass
        state = json.loads(json.dumps(error.__dict__, default=str))
        return _row({"error": (f"{errors.__name__}.{type(error).__name__}", str(error), state)})


def read_answer(kind: type[Result], text: str) -> Result:
    """Returns the result of a task from the text of its answer. Runs on the driver.

    Raises:
        LanceSparkError: The error that ended the task.
    """
    reply = json.loads(text)
    if "error" not in reply:
        return from_json(kind, reply["result"])
    error_type, message, state = reply["error"]
    error = error_class(error_type)
    assert error is not None and issubclass(error, LanceSparkError)
    raise rebuild(error, (message,), state)


def _row(reply: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode(reply)])], names=["answer"])
