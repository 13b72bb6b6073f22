"""Tasks of Spark jobs that fail: attempts, groups, lost tasks, and the classes of errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.errors.exceptions.connect import PythonException

from lance_spark.errors import SourceChangedError, SourceError, TableNotFoundError
from lance_spark.spark_jobs.failures import SparkFailure, error_class, is_error, raise_task_errors
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import LostTask, TaskQueue, at_most, pack_fragments
from tests.support.inline_jobs import NoSpark
from udf_runtime.checkpoint.chunks import ChunksLostError

TRACE = (
    'Traceback (most recent call last):\n  File "/x/pyspark/worker.py", line 75, in f\n    g()\n'
)


def python_error(last: str) -> PythonException:
    return PythonException(message=f"{TRACE}{last}\n SQLSTATE: 38000")


@dataclass(frozen=True, slots=True)
class Number:
    number: int

    def run(self) -> int:
        return self.number


class Deadly(SparkJobs):
    """Spark jobs that fail if they run one of some tasks."""

    def __init__(self, deadly: Sequence[int], error: Exception, **arguments: Any) -> None:
        session: Any = NoSpark()
        super().__init__(session, SparkJobTag.of("id", "a test"), **arguments)
        self.deadly = deadly
        self.error = error
        self.sizes: list[int] = []

    def collect(self, frame: Callable[[], Any]) -> list[Any]:
        made = frame()
        tasks = getattr(made._work, "tasks", ())
        self.sizes.append(len(tasks))
        if any(task.number in self.deadly for task in tasks) or not tasks:
            raise self.error
        rows: list[Any] = made.collect()
        return rows


def test_a_task_that_always_dies_is_lost_alone_and_the_others_have_results():
    jobs = Deadly([7], RuntimeError("died"))
    results = list(jobs.run([Number(number) for number in range(300)], int))
    lost = [result for result in results if isinstance(result, LostTask)]
    assert [task.task.number for task in lost] == [7]
    assert lost[0].error == "its task died in 4 attempts: RuntimeError: died"
    unnamed = LostTask(task=7, failure=SparkFailure.of(python_error("MemoryError")))
    assert unnamed.error == "its task died in 4 attempts: MemoryError"
    assert sorted(result for result in results if isinstance(result, int)) == [
        n for n in range(300) if n != 7
    ]
    assert jobs.sizes[0] == 300 and jobs.sizes[1] == 125 and 1 in jobs.sizes


def test_a_failure_that_repeats_is_tried_once_and_loses_all_tasks(caplog: pytest.LogCaptureFixture):
    jobs = Deadly([2], python_error("ModuleNotFoundError: No module named 'x'"))
    lost = list(jobs.run([Number(number) for number in range(5)], int))
    assert len(lost) == 5 and jobs.sizes == [5]
    assert all(isinstance(task, LostTask) and "PYSPARK_PYTHON" in task.error for task in lost)
    assert caplog.records == [], "the caller gets the error"
    with pytest.raises(PythonException) as caught:
        jobs.results([Number(2)], int)
    assert caught.value is jobs.error


def test_results_end_with_the_exception_of_the_first_lost_task():
    jobs = Deadly([1], RuntimeError("died"))
    with pytest.raises(RuntimeError, match="died"):
        jobs.results([Number(number) for number in range(3)], int)
    assert jobs.sizes == [3, 3, 3, 1, 1]


def test_results_end_soon_if_all_tasks_die():
    jobs = Deadly(range(400), RuntimeError("died"))
    with pytest.raises(RuntimeError, match="died"):
        jobs.results([Number(number) for number in range(400)], int)
    assert jobs.sizes == [400, 125, 7, 1]


def test_a_stopped_job_submits_nothing_again():
    jobs = Deadly([1], RuntimeError("died"))
    jobs.stop()
    with pytest.raises(RuntimeError):
        list(jobs.run([Number(1)], int))
    assert jobs.sizes == [1]


def test_no_job_starts_where_the_check_refuses_it():
    def check() -> None:
        raise TimeoutError

    jobs = Deadly([], RuntimeError("died"), check=check)
    with pytest.raises(TimeoutError):
        list(jobs.run([Number(1)], int))
    with pytest.raises(TimeoutError):
        jobs.run_spark_job(lambda: NoSpark().range(0, 1))  # type: ignore[arg-type, return-value]
    assert jobs.sizes == []


@pytest.mark.parametrize(
    ("error", "attempts"), [(RuntimeError("died"), 4), (python_error("ValueError: x"), 1)]
)
def test_a_spark_job_is_submitted_again_where_that_may_help(error: Exception, attempts: int):
    jobs = Deadly([], error)
    frame: Any = lambda: NoSpark().range(0, 1)  # noqa: E731 - of any type
    with pytest.raises(type(error)):
        jobs.run_spark_job(frame)
    assert len(jobs.sizes) == attempts
    jobs.sizes.clear()
    running = jobs.poll_spark_job(frame, 0.01)
    failure = None
    while failure is None:
        try:
            assert next(running) == []
        except StopIteration as end:
            failure = end.value
    assert (
        isinstance(failure, SparkFailure)
        and failure.raised is error
        and len(jobs.sizes) == attempts
    )


def test_an_interrupt_cancels_the_jobs():
    jobs = Deadly([1], RuntimeError())
    jobs.error = KeyboardInterrupt()  # type: ignore[assignment]
    cancelled: list[bool] = []
    with (
        patch.object(jobs, "cancel", lambda: cancelled.append(True)),
        contextlib.suppress(KeyboardInterrupt),
    ):
        list(jobs.run([Number(1)], int))
    with (
        patch.object(jobs, "cancel", lambda: cancelled.append(True)),
        contextlib.suppress(KeyboardInterrupt),
    ):
        jobs.run_spark_job(lambda: NoSpark().range(0, 1))  # type: ignore[arg-type, return-value]
    assert cancelled == [True, True]


def test_a_task_that_is_added_comes_first_and_what_is_answered_is_not_tried_again():
    queue = TaskQueue("abc")
    group = queue.take(2)
    assert not queue.put_back(
        group, SparkFailure.of(RuntimeError("x")), lambda task: None if task == "a" else task
    )
    queue.add_first("d")
    assert queue.peek() == ["d", "c"], "tasks with as many attempts"
    assert queue.clear() == ["d", "c", "b"] and not queue


@pytest.mark.parametrize(
    ("fragments", "packs"),
    [
        ([], ()),
        ([(1, 4), (2, 4), (3, 9), (4, 20), (5, 1)], ((1, 2), (3,), (4,), (5,))),
        ([(number, 0) for number in range(1001)], (tuple(range(1000)), (1000,))),
    ],
)
def test_fragments_are_packed_in_their_order(
    fragments: list[tuple[int, int]], packs: tuple[tuple[int, ...], ...]
):
    assert pack_fragments(fragments, 10) == packs


def test_runs_are_cut_as_spark_cuts_a_range():
    assert at_most("abcde", 2) == [("a", "b"), ("c", "d", "e")]
    assert at_most("ab", None) == at_most("ab", 5) == [("a",), ("b",)]
    assert at_most("", 3) == []


def test_names_of_errors_are_those_of_classes():
    assert error_class("OSError") is OSError
    assert error_class("lance_spark.errors.SourceChangedError") is SourceChangedError
    assert (
        error_class("mine.SourceChangedError") is None
        and error_class(None) is None
        and error_class("print") is None
    )
    assert is_error("lance_spark.errors.SourceChangedError", SourceError)
    assert not is_error("mine.TableNotFoundError", TableNotFoundError), (
        "a class of the user with the same name"
    )
    name = f"{ChunksLostError.__module__}.{ChunksLostError.__qualname__}"
    assert SparkFailure.of(python_error(f"{name}: gone")).is_a(ChunksLostError)


def test_an_error_that_ended_a_task_is_raised_as_what_it_was():
    with (
        pytest.raises(SourceChangedError, match=r"^it changed$") as caught,
        raise_task_errors(SourceError, source="s"),
    ):
        raise python_error("lance_spark.errors.SourceChangedError: it changed")
    assert caught.value.source == "s"
    with pytest.raises(PythonException), raise_task_errors(SourceError):
        raise python_error("lance_spark.errors.TableNotFoundError: x")
