"""Jobs that end early: tasks stop within seconds, complete fragments are committed, and the next run resumes."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.jobs.results import Status
from tests.support.drivers import driver
from tests.support.faults import (
    BATCH,
    SETTINGS,
    SLOTS,
    Lab,
    checkpoint_files,
    run,
    unused_files,
    values_of,
    wrong_rows,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=3)]

STOPS_S = 15.0
"""Spark gives a Python worker two seconds before a kill, and this machine may be busy."""


def start(table: lance_spark.Table, **more: object) -> lance_spark.Job:
    job = table.backfill_async("v", **{**SETTINGS, **more})  # type: ignore[arg-type]
    assert isinstance(job, lance_spark.Job)
    return job


def filled(table: lance_spark.Table) -> set[int]:
    """Returns the fragments with values."""
    return {x // 40 for x, v in values_of(table).items() if v is not None}


def finished_files(table: lance_spark.Table) -> list[Path]:
    """Returns the records of fragment files that are finished and uncommitted."""
    return [path for path in checkpoint_files(table) if path.suffix == ".ref"]


def ends(job: lance_spark.Job) -> float:
    """Waits for the end of a job, and returns the waiting time."""
    began = time.monotonic()
    assert job.done(60), "it did not end"
    return time.monotonic() - began


def status_of(job: lance_spark.Job, table: lance_spark.Table) -> Status:
    assert table.get_job(job.job_id).status == job.status
    return job.status


@pytest.mark.long
@pytest.mark.parametrize(
    "task_size",
    [pytest.param(40, marks=pytest.mark.long), 120],
    ids=["a task per fragment", "one task"],
)
def test_fragments_are_visible_while_a_later_one_is_still_computed(lab: Lab, task_size: int):
    table = lab.table()
    lab.order({95: "wait"})
    job = start(table, task_size=task_size, commit_granularity=1)
    eventually(lambda: lab.waits_at(95))
    try:
        eventually(lambda: filled(table) == {0, 1}, 10)
        progress = job.progress()
        assert (progress.status, progress.fragments_done, progress.rows_selected) == (
            "RUNNING",
            2,
            80,
        )
        assert not job.done()
    finally:
        lab.pardon()
    assert job.result(60).status == "DONE"
    assert len(job.result().versions) >= 2
    assert lab.new_calls() == Counter(range(120))


@pytest.mark.parametrize(
    "task_size",
    [40, pytest.param(120, marks=pytest.mark.long)],
    ids=["a task per fragment", "one task"],
)
def test_cancel_ends_tasks_commits_what_is_complete_and_keeps_checkpoints(
    lab: Lab, task_size: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lance_spark.jobs.history.HEARTBEAT_S", 0.1)
    table = lab.table()
    lab.order({95: "wait"})
    job = start(table, task_size=task_size, commit_granularity=None)
    eventually(lambda: lab.waits_at(95))
    # Tasks report their progress ten times a second here.
    eventually(lambda: job.progress().rows_selected == 80)
    # Other processes see the progress in the history.
    eventually(lambda: table.get_job(job.job_id).rows_computed >= 80)
    assert (table.get_job(job.job_id).status, table.get_job(job.job_id).rows_selected) == (
        "RUNNING",
        120,
    )
    began = time.monotonic()
    job.cancel()
    assert time.monotonic() - began < 5, "it returns at once"
    assert ends(job) < STOPS_S
    assert status_of(job, table) == "CANCELLED"
    with pytest.raises(
        lance_spark.BackfillIncompleteError, match="the job was cancelled; 2 of 3 fragments"
    ) as error:
        job.result()
    assert "concurrent" not in str(error.value)
    assert filled(table) == {0, 1}
    lab.wait_for_death_at(95)
    assert lab.new_calls() == Counter(range(96))
    lab.pardon()
    result = run(table)
    # Rows 90 to 95 are in the cancelled batch.
    assert lab.new_calls() == Counter(range(90, 120))
    assert (result.status, result.rows_from_checkpoint) == ("DONE", 10)
    assert wrong_rows(table) == []
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert unused_files(table.uri) == set()


@pytest.mark.long
def test_cancel_in_one_of_many_ranges_keeps_the_others(lab: Lab):
    table = lab.table(120, 120)
    lab.order({65: "wait"})
    job = start(table, task_size=30)
    eventually(lambda: lab.waits_at(65) and lab.calls() == 96)
    job.cancel()
    assert ends(job) < STOPS_S
    assert status_of(job, table) == "CANCELLED"
    assert set(values_of(table).values()) == {None}
    lab.wait_for_death_at(65)
    lab.pardon()
    calls = lab.new_calls()
    run(table, task_size=30)
    again = lab.new_calls()
    assert set(again) >= set(range(60, 70))
    assert sum((calls + again).values()) - 120 <= SLOTS * BATCH
    assert wrong_rows(table) == []


def test_cancel_right_after_the_start_is_not_lost(lab: Lab):
    table = lab.table()
    lab.order(dict.fromkeys(range(120), "wait"))
    job = start(table, task_size=40)
    job.cancel()
    assert ends(job) < STOPS_S
    assert status_of(job, table) == "CANCELLED"
    lab.pardon()
    lab.new_calls()
    assert run(table).status == "DONE"
    assert wrong_rows(table) == []


@pytest.mark.long
@pytest.mark.parametrize("moment_s", [0.05, 0.2, 0.5])
def test_cancel_at_any_moment_is_not_lost(lab: Lab, moment_s: float):
    table = lab.table()
    lab.order(dict.fromkeys(range(0, 120, 40), "wait"))
    job = start(table, task_size=40)
    assert not job.done(moment_s)
    job.cancel()
    assert ends(job) < STOPS_S
    assert status_of(job, table) == "CANCELLED"
    lab.pardon()
    run(table)
    assert wrong_rows(table) == []


def test_cancelling_twice_and_after_the_end_changes_nothing(lab: Lab):
    table = lab.table()
    lab.order({95: "wait"})
    job = start(table, task_size=40)
    eventually(lambda: lab.waits_at(95))
    job.cancel()
    job.cancel()
    assert ends(job) < STOPS_S
    job.cancel()
    assert status_of(job, table) == "CANCELLED"
    lab.pardon()
    ended_job = start(table)
    assert ended_job.result(60).status == "DONE"
    ended_job.cancel()
    assert status_of(ended_job, table) == "DONE"
    assert wrong_rows(table) == []


def test_cancelling_one_job_leaves_another_one_alone(lab: Lab, tmp_path: Path, spark: SparkSession):
    (tmp_path / "other").mkdir()
    other_lab = Lab(home=tmp_path / "other", spark=spark)
    table, other_table = lab.table(40, 40), other_lab.table(40, 40)
    lab.order({5: "wait"})
    other_lab.order({5: "wait"})
    job, their_job = start(table, task_size=40), start(other_table, task_size=40)
    eventually(lambda: lab.waits_at(5) and other_lab.waits_at(5))
    job.cancel()
    assert ends(job) < STOPS_S
    assert not their_job.done()
    other_lab.pardon()
    assert their_job.result(60).status == "DONE"
    assert other_lab.new_calls() == Counter(range(40))
    assert job.status == "CANCELLED"


@pytest.mark.long
def test_ctrl_c_cancels_the_job_of_a_waiting_call(lab: Lab):
    table = lab.table()
    lab.order({95: "wait"})
    with driver({"job": (lab.home, {"task_size": 40, "commit_granularity": None})}) as started:
        started.wait_for(lambda: lab.waits_at(95) and len(finished_files(table)) == 2)
        time.sleep(1)  # tasks report and the driver reads, but the test cannot observe either
        began = time.monotonic()
        started.interrupt()
        answer = started.answer()
        took = time.monotonic() - began
    assert answer == {"interrupted": True}
    assert took < 2 * STOPS_S
    assert table.get_job("job").status == "CANCELLED"
    assert filled(table) == {0, 1}
    lab.wait_for_death_at(95)
    assert lab.new_calls() == Counter(range(96))
    lab.pardon()
    run(table)
    assert lab.new_calls() == Counter(range(90, 120))
    assert wrong_rows(table) == []


def test_a_timeout_does_not_end_the_job(lab: Lab):
    table = lab.table()
    lab.order({95: "wait"})
    with pytest.raises(TimeoutError, match="cancel"):
        run(table, task_size=40, timeout=timedelta(seconds=3), job_id="slow")
    assert table.get_job("slow").status == "RUNNING"
    lab.pardon()
    eventually(lambda: table.get_job("slow").status == "DONE")
    assert lance.dataset(table.uri).count_rows("v IS NULL") == len(
        [x for x in range(120) if x % 7 == 3]
    )
    assert lab.new_calls() == Counter(range(120))
