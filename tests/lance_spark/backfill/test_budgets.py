"""A job ends at its budget of calls, cost or time, and a later job continues without a repeated call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_spark
from lance_spark import Table
from lance_spark.backfill.driver.budget import Budget
from lance_spark.backfill.driver.running_tasks import RunningTasks
from lance_spark.backfill.driver.scheduler import Scheduler
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.task import allowance
from lance_spark.backfill.task.allowance import Allowance, StopRequest
from lance_spark.backfill.task.messages import (
    FragmentRows,
    FragmentWork,
    RangeOutcome,
    Task,
    TaskLimits,
)
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.rows.row_set import RowSet
from tests.support.inline_jobs import CUT, WHOLE, InlineLab, values
from udf_runtime import ServiceUnavailableError, skip_on_error, udf
from udf_runtime.checkpoint import CheckpointStore

pytestmark = pytest.mark.sample(1, tests=3)

ROWS = 60


@pytest.fixture
def lab(tmp_path: Path) -> InlineLab:
    """A folder for a table whose tasks run in threads of this process, with the real scheduler."""
    return InlineLab(tmp_path)


def table_of(lab: InlineLab, rows_per_file: int, **settings: Any) -> Table:
    table = lab.make(pa.table({"id": range(ROWS)}), rows_per_file=rows_per_file)
    called = lab.called()

    def f(id: int) -> int | None:
        called(id)
        if id == 3:
            raise ValueError(f"row {id}")
        return None if id % 7 == 4 else id

    table.add_columns({"v": udf(f, version="1", name="f", on_error=skip_on_error(), **settings)})
    return table


EXPECTED = {i: (None if i == 3 or i % 7 == 4 else i,) for i in range(ROWS)}


@pytest.mark.parametrize(
    ("rows_per_file", "settings"),
    [(1000, WHOLE), (1000, CUT), (7, WHOLE)],
    ids=["fragment", "ranges", "fragments"],
)
def test_jobs_within_a_budget_of_calls_call_each_row_once(
    rows_per_file: int, settings: Any, lab: InlineLab
):
    table = table_of(lab, rows_per_file)
    calls: list[int] = []
    for number in range(1, 10):
        result = table.backfill("v", max_calls=23, **settings)
        new_calls = lab.calls()
        assert len(new_calls) <= 23
        # Each job calls the skipped row again.
        calls += [row for row in new_calls if row != 3 or number == 1]
        if result.status == "DONE":
            break
        assert len(new_calls) == 23, "the budget is used up"
        assert (result.status, result.rows_failed) == ("PARTIAL", 0)
        assert 0 < result.rows_remaining <= ROWS - result.rows_computed
        assert result.message is not None
        assert "The budget max_calls=23 is used up" in result.message
        assert f"at most {result.rows_remaining} rows remain" in result.message
        job = table.get_job(result.job_id)
        assert (job.status, job.rows_remaining, job.message) == (
            "PARTIAL",
            result.rows_remaining,
            result.message,
        )
    assert number == 3
    assert sorted(calls) == [*range(ROWS)]
    assert values(table, "v") == EXPECTED


def test_costs_of_rows_are_known_before_their_calls(lab: InlineLab):
    texts = ["x" * (1 + i % 5) if i % 6 else None for i in range(ROWS)]
    table = lab.make(pa.table({"id": range(ROWS), "text": texts}), rows_per_file=40)
    called = lab.called()

    def f(id: int, text: str) -> int:
        called(id)
        return id

    priced = udf(f, version="1", cost=lambda _, text: pc.multiply(pc.utf8_length(text), 0.1))
    table.add_columns({"v": priced})
    costs = [0.1 * len(text) if text else 0.0 for text in texts]
    calls: list[int] = []
    spent = 0.0
    for _ in range(100):
        result = table.backfill("v", max_cost=4.25, **CUT)
        new_calls = lab.calls()
        assert result.cost == pytest.approx(sum(costs[row] for row in new_calls))
        assert result.cost <= 4.25 + 1e-6
        spent, calls = spent + result.cost, calls + new_calls
        if result.status == "DONE":
            break
        assert result.cost > 4.25 - 0.5, "less than the cost of a row is left"
        assert "max_cost=4.25 is used up" in (result.message or "")
    assert sorted(calls) == [*range(ROWS)]
    assert spent == pytest.approx(sum(costs))


def test_a_row_above_the_budget_of_costs_ends_the_job_without_a_call(lab: InlineLab):
    table = table_of(lab, 10, cost=5)
    result = table.backfill("v", max_cost=4)
    assert (result.status, result.rows_remaining, lab.calls()) == ("PARTIAL", ROWS, [])
    result = table.backfill("v", max_cost=16)
    assert (len(lab.calls()), result.cost) == (3, 15)


def test_no_batch_begins_after_the_budget_of_time(lab: InlineLab):
    table = table_of(lab, 30)
    lab.at(20, lambda: time.sleep(1.0))
    result = table.backfill("v", max_seconds=1.0, **WHOLE)
    # Rows 20 to 24 are the batch at the deadline.
    assert (result.status, lab.calls()) == ("PARTIAL", [*range(25)])
    assert "max_seconds=1 is used up" in (result.message or "")
    assert table.backfill("v", **WHOLE).status == "DONE"
    assert lab.calls() == [3, *range(25, ROWS)]


@pytest.mark.parametrize(
    "wrong",
    [{"max_calls": 0}, {"max_calls": 1.5}, {"max_cost": 0}, {"max_cost": "1"}, {"max_seconds": -1}],
)
def test_a_budget_is_a_number_above_zero(wrong: dict[str, Any], lab: InlineLab):
    table = table_of(lab, 30)
    with pytest.raises(lance_spark.errors.OptionError, match=f"{next(iter(wrong))}.* number"):
        table.backfill("v", **wrong)
    assert lab.calls() == []


def test_an_absent_service_ends_the_job_and_keeps_all_values(lab: InlineLab):
    table = lab.make(pa.table({"id": range(ROWS)}), rows_per_file=10)
    called, switch = lab.called(), lab.switch

    def f(id: int) -> int:
        called(id)
        if id >= 27 and not switch.exists():
            raise ServiceUnavailableError(udf="f", reason="HTTP 503 for 600 s")
        return id

    table.add_columns({"v": udf(f, version="1", name="f")})
    with pytest.raises(
        lance_spark.BackfillIncompleteError, match="service of UDF 'f' does not answer"
    ) as caught:
        table.backfill("v", **WHOLE)
    result = caught.value.result
    assert isinstance(result, BackfillJobResult)
    assert (result.status, result.rows_computed) == ("PARTIAL", 25)
    calls = lab.calls()
    assert len(calls) <= 25 + 2 * 5, (
        "no range waits for the service after the first range, and each task has one batch"
    )
    switch.write_text("0")
    assert table.backfill("v", **WHOLE).status == "DONE"
    assert len(lab.calls()) == ROWS - 25
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


def test_a_slow_task_leaves_its_rows_to_free_slots(lab: InlineLab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allowance, "SPLIT_AFTER_S", 0.01)
    monkeypatch.setattr(allowance, "SPLIT_REST_S", 0.1)
    table = lab.make(pa.table({"id": range(ROWS)}))
    called = lab.called()

    def f(id: int) -> int:
        called(id)
        time.sleep(0.01)
        return id

    table.add_columns({"v": udf(f, version="1", name="f")})
    tasks: list[list[tuple[int, int]]] = []
    submit = Scheduler._submit

    def note(self: Scheduler, submitted: Any) -> list[RangeOutcome]:
        tasks.append([(work.start, work.stop) for task in submitted for work in task.work])
        return submit(self, submitted)

    monkeypatch.setattr(Scheduler, "_submit", note)
    result = table.backfill("v", task_size=1000)
    assert (result.status, result.rows_computed, lab.calls()) == ("DONE", ROWS, [*range(ROWS)])
    assert tasks == [[(0, 60)], [(9, 34), (34, 60)], [(0, 60)]], (
        "two slots share the rows after two batches"
    )


def test_running_tasks_end_soon_after_a_request(lab: InlineLab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allowance, "_LOOK_S", 0.05)
    table = table_of(lab, 30)
    spec = prepare(DatasetRef.at(lab.uri), BackfillRequest(columns=("v",)), checkpoints=None).spec
    request, running = StopRequest.of(spec), StopRequest.of(spec)
    function = udf(lambda x: x, data_type=pa.int64(), version="1")
    task = Allowance(TaskLimits(), function, 4, running.look)
    taken = deque[Any]()

    def batches() -> Iterator[pa.RecordBatch]:
        for row in range(4):
            taken.append(np.array([row]))
            yield pa.record_batch({"id": [row]})

    given = task.within(batches(), taken)
    assert next(given).num_rows == 1
    request.make()
    time.sleep(0.06)
    assert list(given) == []
    assert (task.is_over, task.settle()["spent_calls"]) == (True, 1)
    assert table.version == 2


def test_the_rest_of_a_lost_task_has_the_rest_of_its_share():
    budget, running = Budget(max_calls=10, max_cost=5.0), RunningTasks()
    ranges = tuple(
        FragmentWork(
            fragment_id=i, start=0, stop=9, ranges=((0, 9),), done=FragmentRows(), search=False
        )
        for i in range(2)
    )
    task = Task(number=0, work=ranges)
    (limits,) = budget.limits_of([task], running.all, at_once=2)
    assert (limits.calls, limits.cost) == (10, 5.0)
    running.begin(replace(task, limits=limits))
    assert budget.limits_of([task], running.all, at_once=2) == [], (
        "the running task has all of the budget"
    )
    outcome = RangeOutcome(fragment_id=0, start=0, stop=9, spent_calls=4, spent_cost=1.5)
    assert running.answer(outcome) is None
    rest = running.rest(task)
    assert rest is not None
    assert (rest.limits.calls, rest.limits.cost, rest.work) == (6, 3.5, ranges[1:])
    outcome = RangeOutcome(fragment_id=1, start=0, stop=5, spent_calls=2, left=RowSet.of([5, 7]))
    ended = running.answer(outcome)
    assert ended is not None
    budget.spend(ended)
    assert [
        (leftover.work.start, leftover.work.stop, leftover.size) for leftover in ended.leftovers
    ] == [(5, 9, 2)]
    assert [limits.calls for limits in budget.limits_of([task, task, task], [], at_once=2)] == [
        2,
        2,
    ]


@pytest.mark.parametrize("rows_per_file", [1000, 7], ids=["fragment", "fragments"])
def test_the_sample_of_a_plan_is_kept_and_extrapolated(rows_per_file: int, lab: InlineLab):
    table = lab.make(pa.table({"id": range(ROWS)}), rows_per_file=rows_per_file)
    called = lab.called()

    def f(id: int) -> int:
        called(id)
        time.sleep(0.01)
        return id

    table.add_columns({"v": udf(f, version="1", name="f", cost=0.5)})
    version = table.version
    plan = table.plan_backfill("v", sample=20, concurrency=2)
    sample = lab.calls()
    assert len(sample) == 20
    assert {row // 8 for row in sample} >= {0, 3, 6}, "the sample is from the whole table"
    assert (table.version, plan.sampled_rows, plan.rows_from_checkpoint) == (version, 20, 20)
    assert plan.estimated_cost == pytest.approx(0.5 * 40)
    assert plan.estimated_seconds is not None
    assert 0.01 * 40 / 2 <= plan.estimated_seconds < 2
    assert "cost 20, by a sample of 20 rows" in plan.explain()
    assert table.list_jobs()[0].status == "PARTIAL"
    result = table.backfill("v")
    assert (result.status, result.rows_from_checkpoint, result.cost) == ("DONE", 20, 20)
    assert sorted(sample + lab.calls()) == [*range(ROWS)]
    assert table.plan_backfill("v", sample=20).estimated_seconds is None, "no row is left"


def test_a_checkpoint_that_cannot_be_written_at_the_budget_fails_its_fragment(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no such checkpoint")

    table = table_of(lab, 30)
    with monkeypatch.context() as patches:
        patches.setattr(CheckpointStore, "write", refuse)
        with pytest.raises(
            lance_spark.BackfillIncompleteError, match="fragment 0: OSError: no such checkpoint"
        ):
            table.backfill("v", max_calls=10, checkpoint_size=5, task_size=1000)
    assert table.backfill("v").status == "DONE"


def test_a_further_attempt_spends_no_budget_for_files_of_earlier_jobs(lab: InlineLab):
    table = table_of(lab, 20)
    with lab.dying_at_commit():
        table.backfill("v", task_size=1000)
    assert len(lab.calls()) == ROWS
    prepared = prepare(
        DatasetRef.at(lab.uri), BackfillRequest(columns=("v",), task_size=1000), checkpoints=None
    )
    (*_, last) = (work for task in prepared.tasks(table._spark()) for work in task.work)
    prepared.spec.staging.open_job()
    task = Task(number=0, work=(last,), isolate=True, limits=TaskLimits(calls=5))
    (outcome,) = prepared.spec.value_source.run(prepared.spec, task)
    assert (outcome.counts.reused, outcome.spent_calls, outcome.complete) == (20, 0, True)


def test_the_estimate_has_the_waits_for_a_service(lab: InlineLab):
    table = table_of(lab, 20)
    plan = table.plan_backfill("v")
    seconds = {"compute": 3.0, "limit": 2.0}
    sample = replace(
        table.backfill("v", max_calls=6), rows_computed=6, rows_skipped=0, seconds=seconds
    )
    assert plan.with_sample(sample, 2).estimated_seconds == pytest.approx(10 * (3.0 / 2 + 2.0 / 2))
    assert plan.with_sample(sample, 32).estimated_seconds == pytest.approx(
        10 * (3.0 / 32 + 2.0 / 8)
    ), "of eight tasks"


@pytest.mark.parametrize("rows_per_file", [1, 20])
def test_a_sample_of_all_rows_commits_nothing(rows_per_file: int, lab: InlineLab):
    table = table_of(lab, rows_per_file)
    version = table.version
    assert table.plan_backfill("v", sample=1000).sampled_rows == ROWS
    assert (table.version, lab.calls()) == (version, [*range(ROWS)])
    assert table.backfill("v").status == "DONE"
    assert lab.calls() == [3], "only the skipped row is called again"
    with pytest.raises(lance_spark.errors.OptionError, match=r"sample.* whole number"):
        table.plan_backfill("v", sample=0)
