"""Running backfills: windows, versions, sizes, visible progress, waiting, and the counters of the result."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import BackfillIncompleteError, BackfillJobResult, Connection, Job, Table
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.table.conftest import make_table
from tests.support.waiting import eventually
from udf_runtime import UDF, Skip, udf

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=5)]

ALL = list(range(30))


@pytest.fixture
def ready(table: Table, call_log: CallLog) -> Table:
    """The table with an empty computed column."""
    table.add_columns({"double": call_log.times(2)})
    return table


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file for which gated UDFs wait. The fixture makes the file at its end, so that no call waits forever."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def gated(call_log: CallLog, gate: Path, *, first: int = 0) -> UDF:
    """Returns a UDF that waits for the gate at rows from `first` on."""
    note, path = call_log.noter(), str(gate)

    @udf(data_type=pa.int64(), name="gated")
    def gated(id: int) -> int:
        import os
        import time

        note(id)
        while id >= first and not os.path.exists(path):
            time.sleep(0.01)
        return id * 2

    return gated


def filled(table: Table) -> list[int]:
    return table.to_arrow(["id"], "double = id * 2")["id"].to_pylist()


# Windows


@pytest.mark.guarantee("B25", "B26", "T63")
def test_windows_are_positions_of_fragments_and_finished_ones_count(
    ready: Table, call_log: CallLog
):
    assert ready.backfill("double", num_frags=1).rows_computed == 10 and call_log.take() == ALL[:10]
    assert ready.backfill("double", num_frags=1).rows_computed == 0 and call_log.take() == []
    assert (
        ready.backfill("double", skip_frags=2, num_frags=5).rows_computed == 10
        and call_log.take() == ALL[20:]
    )
    assert (
        ready.backfill("double", num_frags=2).rows_computed == 10 and call_log.take() == ALL[10:20]
    )
    assert filled(ready) == ALL


def test_a_plan_says_what_a_window_leaves_out(ready: Table, call_log: CallLog):
    plan = ready.plan_backfill("double", skip_frags=1, num_frags=1)
    assert (plan.fragments, plan.total_fragments, plan.total_rows_pending, plan.rows_outside) == (
        1,
        3,
        10,
        20,
    )
    assert "20 rows in fragments that num_frags and skip_frags leave out" in plan.explain()
    ready.backfill("double", num_frags=1)
    plan = ready.plan_backfill("double", num_frags=1)
    assert not plan.has_work and plan.rows_outside == 20 and plan.skipped_rows == 10


def test_positions_are_of_the_fragments_that_are_there(db: Connection, call_log: CallLog):
    table = make_table(db, "t", fragments=4)
    table.to_lance().delete("id < 10")
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double", num_frags=1)
    assert call_log.take() == list(range(10, 20))
    table.backfill("double", skip_frags=2)
    assert call_log.take() == list(range(30, 40))


# Versions


@pytest.mark.guarantee("T54")
def test_an_older_version_is_read_as_it_was_and_rows_that_came_later_are_left(
    ready: Table, call_log: CallLog
):
    version = ready.version
    ready.add([{"id": 30, "text": "x"}])
    result = ready.backfill("double", read_version=version)
    assert result.rows_computed == 30 and result.read_version == version and result.new_rows == 1
    assert (
        call_log.take() == ALL and filled(ready) == ALL and ready.count_rows("double IS NULL") == 1
    )
    assert ready.backfill("double").rows_computed == 1 and call_log.take() == [30]


def test_rows_that_were_deleted_since_the_version_that_is_read_stay_deleted(ready: Table):
    version = ready.version
    ready.to_lance().delete("id < 15")
    ready.backfill("double", read_version=version)
    assert filled(ready) == ALL[15:] and ready.count_rows() == 15


# Sizes


@pytest.mark.parametrize(("task_size", "tasks"), [(1, 30), (4, 9), (10, 3), (15, 3), (1000, 1)])
def test_a_task_size_cuts_fragments_or_packs_them_and_nothing_is_computed_twice(
    ready: Table, call_log: CallLog, task_size: int, tasks: int
):
    assert ready.plan_backfill("double", task_size=task_size).total_tasks == tasks
    result = ready.backfill("double", task_size=task_size)
    assert (
        call_log.take() == ALL
        and filled(ready) == ALL
        and (result.rows_computed, result.fragments_done) == (30, 3)
    )


@pytest.mark.long
def test_every_size_and_interval_gives_the_same_column(ready: Table, call_log: CallLog):
    for number, sizes in enumerate(
        [
            {"checkpoint_size": 1, "batch_checkpoint_flush_interval_seconds": 0},
            {"min_checkpoint_size": 3, "max_checkpoint_size": 3, "task_size": 7},
            {"intra_applier_concurrency": 3, "checkpoint_size": 2},
            {"concurrency": 1, "refresh_status_secs": 0.05},
            {"concurrency": None, "commit_granularity": None},
        ]
    ):
        ready.add_columns({f"c{number}": call_log.times(2)})
        ready.backfill(f"c{number}", **sizes)  # type: ignore[arg-type]
        assert call_log.take() == ALL and ready.count_rows(f"c{number} = id * 2") == 30, sizes


# Visible progress


@pytest.mark.sample(5)
@pytest.mark.guarantee("B28")
@pytest.mark.parametrize(("granularity", "versions"), [(1, 3), (2, 2), (3, 1), (64, 1), (None, 1)])
def test_a_commit_is_made_for_so_many_fragments(
    ready: Table, granularity: int | None, versions: int
):
    before = ready.version
    result = ready.backfill(
        "double",
        commit_granularity=granularity,
        concurrency=1,
        task_size=10,
        refresh_status_secs=0.05,
    )
    assert (
        len(result.versions) <= versions
        and ready.version == before + len(result.versions) == result.versions[-1]
    )
    assert filled(ready) == ALL


@pytest.mark.guarantee("B24")
def test_finished_fragments_are_visible_to_others_while_the_job_runs(
    table: Table, call_log: CallLog, gate: Path, spark: SparkSession
):
    table.add_columns({"double": gated(call_log, gate, first=20)})
    job = table.backfill_async(
        "double", commit_granularity=1, task_size=10, refresh_status_secs=0.05
    )
    assert isinstance(job, Job)
    eventually(lambda: filled(table) == ALL[:20])
    assert not job.done() and job.status == "RUNNING"
    assert table.to_spark(filter="double IS NOT NULL").count() == 20
    progress = job.progress()
    assert (
        progress.status,
        progress.rows_computed,
        progress.fragments_done,
        progress.fragments_left,
    ) == (
        "RUNNING",
        20,
        2,
        1,
    )
    assert progress.completed_at is None and len(progress.versions) >= 1
    assert table.get_job(job.job_id).status == "RUNNING"
    gate.touch()
    result = job.result(60)
    assert filled(table) == ALL and result.versions[-1] == table.version and call_log.take() == ALL
    assert job.progress() == result and job.status == "DONE"


@pytest.mark.guarantee("T53")
def test_nothing_is_visible_before_the_end_where_there_is_one_commit(
    table: Table, call_log: CallLog, gate: Path
):
    table.add_columns({"double": gated(call_log, gate, first=20)})
    job = table.backfill_async(
        "double", commit_granularity=None, task_size=10, refresh_status_secs=0.05
    )
    assert isinstance(job, Job)
    eventually(lambda: job.progress().rows_computed == 20)
    assert filled(table) == [] and table.version == 4
    gate.touch()
    assert len(job.result(60).versions) == 1 and filled(table) == ALL


def test_progress_never_goes_back(db: Connection, call_log: CallLog):
    table = make_table(db, "t", fragments=6)
    table.add_columns({"double": call_log.times(2)})
    job = table.backfill_async("double", task_size=10, commit_granularity=2, concurrency=1)
    assert isinstance(job, Job)
    looks = []
    while not job.done(0.02):
        looks.append(job.progress())
    looks.append(job.progress())
    for numbers in (
        [x.rows_computed for x in looks],
        [x.fragments_done for x in looks],
        [len(x.versions) for x in looks],
    ):
        assert numbers == sorted(numbers)
    assert looks[-1].rows_computed == 60 and looks[-1].fragments_done == 6


# Waiting


@pytest.mark.guarantee("T66")
def test_a_blocking_call_that_waits_too_long_raises_and_the_job_goes_on(
    table: Table, call_log: CallLog, gate: Path
):
    table.add_columns({"double": gated(call_log, gate)})
    began = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"job\.cancel\(\)") as error:
        table.backfill("double", timeout=timedelta(seconds=0.5), job_id="slow")
    assert time.perf_counter() - began < 20 and "slow" in str(error.value)
    assert table.get_job("slow").status == "RUNNING" and filled(table) == []
    gate.touch()
    eventually(lambda: table.get_job("slow").status == "DONE")
    assert filled(table) == ALL and call_log.take() == ALL


@pytest.mark.guarantee("T26")
def test_done_and_status_never_wait_and_result_waits_as_long_as_it_may(
    table: Table, call_log: CallLog, gate: Path
):
    table.add_columns({"double": gated(call_log, gate)})
    job = table.backfill_async("double")
    assert isinstance(job, Job)
    eventually(lambda: os.path.exists(call_log.path))
    began = time.perf_counter()
    for _ in range(100):
        assert not job.done() and job.status == "RUNNING" and "RUNNING" in repr(job)
    assert time.perf_counter() - began < 5
    assert not job.done(0.05)
    for timeout in (0.05, timedelta(seconds=0.05)):
        with pytest.raises(TimeoutError, match="continues"):
            job.result(timeout)
    assert job.table_name == "words" and job.column_names == ("double",)
    gate.touch()
    assert job.done(None) and job.result().rows_computed == 30 and "DONE" in repr(job)
    assert job.result() is job.result()


@pytest.mark.guarantee("T27")
def test_a_future_of_the_standard_library_can_be_had(ready: Table):
    future = ready.backfill_async("double", _return_future=True)
    assert isinstance(future, Future)
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    assert (
        isinstance(future.result(60), BackfillJobResult)
        and called.wait(60)
        and filled(ready) == ALL
    )


@pytest.mark.guarantee("T25")
def test_a_mistake_is_raised_by_the_call_and_not_by_the_future(ready: Table):
    with pytest.raises(lance_spark.ColumnNotFoundError):
        ready.backfill_async("nope", _return_future=True)


def test_a_cancelled_job_says_so_and_the_next_one_goes_on(
    table: Table, call_log: CallLog, gate: Path
):
    table.add_columns({"double": gated(call_log, gate, first=20)})
    job = table.backfill_async(
        "double", commit_granularity=1, task_size=10, refresh_status_secs=0.05
    )
    assert isinstance(job, Job)
    eventually(lambda: filled(table) == ALL[:20])
    began = time.perf_counter()
    job.cancel()
    with pytest.raises(BackfillIncompleteError) as error:
        job.result(30)
    assert time.perf_counter() - began < 15
    result = error.value.result
    assert isinstance(result, BackfillJobResult) and result.status == job.status == "CANCELLED"
    assert table.get_job(job.job_id).status == "CANCELLED" and filled(table) == ALL[:20]
    gate.touch()
    call_log.take()
    assert (
        table.backfill("double").status == "DONE"
        and filled(table) == ALL
        and set(call_log.take()) <= set(ALL[20:])
    )


# Numbers


@pytest.mark.guarantee("F10")
def test_the_result_has_real_numbers(ready: Table):
    result = ready.backfill("double", job_id="numbers", where="id < 25", task_size=10)
    assert (result.job_id, result.status, result.table_name, result.table_uri) == (
        "numbers",
        "DONE",
        "words",
        ready.uri,
    )
    assert (result.rows_selected, result.rows_computed, result.rows_from_checkpoint) == (25, 25, 0)
    assert (
        result.rows_skipped,
        result.rows_failed,
        result.rows_gone,
        result.new_rows,
        result.retries,
    ) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert (
        result.fragments_total,
        result.fragments_done,
        result.fragments_left,
        dict(result.fragments_failed),
    ) == (
        3,
        3,
        0,
        {},
    )
    assert result.rows_processed == 25 and result.where == "id < 25" and result.read_version == 4
    assert result.versions == (ready.version,) and result.completed_at is not None
    assert result.launched_at < result.completed_at
    assert set(result.seconds) >= {"read", "compute", "checkpoint", "write", "commit", "total"}
    assert all(
        result.seconds[stage] > 0 for stage in ("read", "compute", "write", "commit", "total")
    )
    assert result.seconds["total"] >= result.seconds["commit"]
    column = result.columns["double"]
    assert (column.udf_name, column.rows_processed, column.rows_skipped, column.input_columns) == (
        "times",
        25,
        0,
        ("id",),
    )
    assert column.udf_version


def test_skipped_and_retried_rows_are_counted(table: Table, call_log: CallLog, tmp_path: Path):
    note, flaky = call_log.noter(), str(tmp_path)
    from udf_runtime import Retry

    @udf(
        data_type=pa.int64(),
        on_error=[Retry(ConnectionError, max_attempts=3, backoff="fixed"), Skip(ValueError)],
    )
    def picky(id: int) -> int:
        import os

        note(id)
        if id % 10 == 3:
            raise ValueError("three")
        if id == 7:
            try:
                os.close(os.open(f"{flaky}/seven", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return 14
            raise ConnectionError("once")
        return id * 2

    table.add_columns({"double": picky})
    result = table.backfill("double")
    assert (result.status, result.rows_selected, result.rows_computed, result.rows_skipped) == (
        "DONE",
        30,
        27,
        3,
    )
    assert result.retries == 1 and result.rows_failed == 0 and call_log.take() == sorted([*ALL, 7])
    assert result.columns["double"].rows_skipped == 3
    assert table.count_rows("double IS NULL") == 3


def test_values_from_checkpoints_are_counted_apart(table: Table, call_log: CallLog, gate: Path):
    note, path = call_log.noter(), str(gate)

    @udf(data_type=pa.int64())
    def stumbling(id: int) -> int:
        import os

        note(id)
        if id == 17 and not os.path.exists(path):
            raise RuntimeError("not yet")
        return id * 2

    table.add_columns({"double": stumbling})
    with pytest.raises(BackfillIncompleteError, match="not yet"):
        table.backfill(
            "double", task_size=30, checkpoint_size=5, batch_checkpoint_flush_interval_seconds=0
        )
    assert set(call_log.take()) >= {*ALL[:18], *ALL[20:]} and filled(table) == ALL[:10] + ALL[20:]
    gate.touch()
    plan = table.plan_backfill("double")
    assert (plan.total_rows_pending, plan.rows_from_checkpoint, plan.rows_to_compute) == (10, 5, 5)
    result = table.backfill("double")
    assert call_log.take() == ALL[15:20] and filled(table) == ALL
    assert (result.rows_selected, result.rows_computed, result.rows_from_checkpoint) == (10, 5, 5)
    assert result.rows_processed == 10 and result.columns["double"].rows_processed == 10


def test_progress_bars_are_shown_where_they_are_asked_for_and_nowhere_else(
    folder: str,
    spark: SparkSession,
    ready: Table,
    call_log: CallLog,
    capsys: pytest.CaptureFixture[str],
):
    ready.backfill("double", num_frags=1)
    assert "rows" not in capsys.readouterr().err
    watched = lance_spark.connect(folder, spark, progress=True).open_table("words")
    watched.backfill("double")
    output = capsys.readouterr().err
    assert (
        "words.double" in output
        and "rows computed" in output
        and "2 of 2 fragments committed" in output
    )


def test_python_waits_for_a_job_which_goes_on_as_before():
    script = """
import time
from concurrent.futures import ThreadPoolExecutor
from lance_spark.jobs.handle import Job

class Work:
    def run(self):
        time.sleep(1)
        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(lambda: "was done").result())

Job(Work(), "id", "table", ("column",)).start()
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout == "was done\n", process.stderr
