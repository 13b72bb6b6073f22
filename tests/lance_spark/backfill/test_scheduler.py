"""Tasks that end badly."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import lance_spark
from lance_spark.backfill.driver import scheduler
from lance_spark.backfill.driver.scheduler import InFlightRows, Scheduler
from lance_spark.backfill.task.messages import FragmentRows, FragmentWork, RangeOutcome, Task
from lance_spark.spark_jobs.run import SparkJobs
from lance_spark.spark_jobs.task_queue import LostTask
from tests.support.inline_jobs import (
    InlineLab,
)
from udf_runtime import UDF, UdfDefinitionError

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


class FailingScheduler(Scheduler):
    """A scheduler whose Spark jobs with a task fail with an error."""

    def __init__(self, number: int, error: Exception) -> None:
        table = SimpleNamespace(uri="t", storage_options=())
        spec: Any = SimpleNamespace(snapshot=table, home=table, staging=SimpleNamespace(job_id="s"))
        session: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "local[2]"))
        super().__init__(session, spec, limit=None, description="")
        self._number, self._error = number, error

    def _submit(self, tasks: Sequence[Task]) -> list[RangeOutcome]:
        if any(task.number == self._number for task in tasks):
            raise self._error
        return [RangeOutcome(fragment_id=task.number, start=0, stop=1) for task in tasks]

    def _outcomes_of_files(self, *, at_once: bool) -> list[RangeOutcome]:
        return []

    def _reports(self) -> list[RangeOutcome]:
        return []


@pytest.mark.parametrize(
    ("number", "error", "others"),
    [
        (7, RuntimeError("task 7 died"), range(1)),
        (0, PythonException("ModuleNotFoundError: No module named 'mine'"), range(800, 1000)),
    ],
    ids=["dies", "cannot be loaded"],
)
def test_a_failed_task_takes_other_tasks_with_it_only_if_they_share_the_cause(
    number: int, error: Exception, others: range, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SparkJobs, "cancel", lambda _: None)
    monkeypatch.setattr(scheduler, "record_ranges", lambda *_, **__: None)
    tasks = [
        Task(
            number=i,
            work=(
                FragmentWork(
                    fragment_id=i,
                    start=0,
                    stop=1,
                    ranges=((0, 1),),
                    done=FragmentRows(),
                    search=False,
                ),
            ),
        )
        for i in range(1000)
    ]
    answers = [
        answer for some in FailingScheduler(number, error).run(tasks, 1.0) for answer in some
    ]
    lost = [answer.task.number for answer in answers if isinstance(answer, LostTask)]
    done = [answer.fragment_id for answer in answers if isinstance(answer, RangeOutcome)]
    assert sorted(lost + done) == [*range(1000)], "each task has one answer"
    assert number in lost
    assert len(lost) - 1 in others


def test_checkpoints_of_files_are_taken_once_in_all_rounds_and_a_failed_look_for_them_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
):
    spec: Any = SimpleNamespace(job_id="j", key="k", snapshot=SimpleNamespace(uri="t"))
    names = ["a"]
    is_down = False

    def list_entries(_: str) -> list[Any]:
        if is_down:
            raise OSError("down")
        return [
            SimpleNamespace(path=name, job_id="j", kind="references", source=name, rows=1)
            for name in names
        ]

    monkeypatch.setattr(scheduler, "store_of", lambda _: SimpleNamespace(list_entries=list_entries))
    first = InFlightRows(spec)
    first.look(at_once=True)
    assert [entry.path for entry in first.take_files()] == ["a"] and first.take_files() == []
    names.append("b")
    second = first.next_round(spec)
    second.look(at_once=True)
    assert [entry.path for entry in second.take_files()] == ["b"]
    is_down = True
    second.look()
    with pytest.raises(OSError, match="down"):
        second.look(at_once=True)


def test_a_udf_that_cannot_be_loaded_is_reported_for_every_range_and_tried_once(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf()})
    loads = UDF.loads
    tries: list[bytes] = []

    def elsewhere(payload: bytes) -> UDF:
        tries.append(payload)
        if len(tries) == 1:
            return loads(payload)  # the driver has the module, but executors lack it
        raise UdfDefinitionError("No module named 'mine'")

    monkeypatch.setattr(UDF, "loads", staticmethod(elsewhere))
    with pytest.raises(
        lance_spark.BackfillIncompleteError,
        match=r"cannot be loaded on an executor: No module named 'mine'",
    ):
        table.backfill("v")
    assert lab.calls() == []
