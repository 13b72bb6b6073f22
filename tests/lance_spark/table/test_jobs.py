"""Handles of jobs, results, timeouts, plans and errors."""

from __future__ import annotations

import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_spark
from lance_spark import BackfillJobResult, BackfillPlan, Connection, ErrorRecord, Job, Table
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.tables import ERRORS, append_rows, read_rows
from tests.support.logs import Log, doubled, flag_file, values, with_column
from udf_runtime import UDF, Skip, udf

pytestmark = pytest.mark.sample(1, tests=2)

BAD = {3: "ValueError", 17: "KeyError", 25: "ValueError"}
"""Failing rows, with their error."""

ADDRESSES = [3, 1 << 32 | 7, 2 << 32 | 5]
"""Their addresses in four fragments of ten rows."""


def failing(log: Log, *, name: str = "fail", fixed: str | None = None) -> UDF:
    """A UDF that doubles, and whose policy skips the bad rows until a file shows that the cause is fixed."""
    path, bad = log.path, dict(BAD)

    def double(x: int) -> int:
        import builtins
        import os

        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        if x in bad and not (fixed is not None and os.path.exists(fixed)):
            raise getattr(builtins, bad[x])(f"row {x}")
        return 2 * x

    return udf(double, name=name, on_error=[Skip(ValueError, KeyError)])


def failed(db: Connection, log: Log, **options: Any) -> tuple[Table, BackfillJobResult]:
    table = with_column(db, failing(log, **options))
    return table, table.backfill("y")


@pytest.mark.guarantee("T25")
def test_a_job_is_returned_at_once(db: Connection, log: Log, flag: str) -> None:
    table = with_column(db, log.waiting(0, flag))
    with flag_file(
        flag
    ):  # the job cannot end inside this block, so a call that waited for the job would never return
        job = table.backfill_async("y")
        assert isinstance(job, Job)
        assert not job.done()
        assert job.status == "RUNNING"
        assert (job.table_name, job.column_names) == ("t", ("y",))
    assert job.done(60)
    assert job.status == "DONE"
    assert values(table) == doubled(range(40))


@pytest.mark.guarantee("T65")
def test_the_call_returns_when_the_job_has_ended(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    result = table.backfill("y")
    assert (result.status, result.table_name, result.versions) == ("DONE", "t", (table.version,))
    assert result.completed_at is not None
    assert values(table) == doubled(range(40))


@pytest.mark.guarantee("T67")
def test_without_a_timeout_the_call_waits(db: Connection, log: Log, flag: str) -> None:
    assert inspect.signature(Table.backfill).parameters["timeout"].default is None
    table = with_column(db, log.waiting(0, flag))
    with flag_file(flag):
        timer = threading.Timer(1.0, lambda: Path(flag).unlink(missing_ok=True))
        timer.start()
        began = time.monotonic()
        assert table.backfill("y").status == "DONE"
        assert time.monotonic() - began >= 0.9
        timer.join()


@pytest.mark.guarantee("T68")
def test_a_plan_counts_and_dispatches_nothing(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    version = table.version
    plan = table.plan_backfill("y", task_size=5)
    assert isinstance(plan, BackfillPlan)
    assert (plan.total_rows_pending, plan.total_tasks, plan.fragments, plan.has_work) == (
        40,
        8,
        4,
        True,
    )
    assert (log.rows(), table.version, table.list_jobs()) == ([], version, [])
    assert "40 of 40 rows" in plan.explain()


@pytest.mark.guarantee("T69")
def test_a_plan_says_what_the_backfill_then_does(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    for where in ("x < 15", None, "x % 7 = 0", None):
        plan = table.plan_backfill("y", where=where)
        result = table.backfill("y", where=where)
        assert (plan.total_rows_pending, plan.fragments) == (
            result.rows_selected,
            result.fragments_total,
        )
        assert plan.version == result.read_version
    assert not table.plan_backfill("y").has_work


@pytest.mark.guarantee("T70")
def test_a_plan_needs_no_session(db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with_column(db, log.doubling())

    def forbidden(spark: object) -> None:
        raise AssertionError("a session was asked for")

    monkeypatch.setattr("lance_spark.table.connections.connection.session_or_local", forbidden)
    table = lance_spark.connect(db.uri).open_table("t")
    assert table.plan_backfill("y", where="x < 3").total_rows_pending == 3


@pytest.mark.guarantee("T71")
def test_a_filters_rows_are_counted_or_bounded(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    exact = table.plan_backfill("y", where="x < 3")
    assert (exact.exact, exact.total_rows_pending, exact.fragments) == (True, 3, 1)
    bound = table.plan_backfill("y", where="x < 3", exact=False)
    assert (bound.exact, bound.total_rows_pending, bound.fragments) == (False, 40, 4)


@pytest.mark.guarantee("T72")
def test_a_plan_takes_what_a_backfill_takes(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    version = table.version
    table.add([{"x": 40}])
    assert table.plan_backfill("y", read_version=version).total_rows_pending == 40
    window = table.plan_backfill("y", num_frags=2, skip_frags=1)
    assert (window.total_rows_pending, window.fragments, window.rows_outside) == (20, 2, 21)
    assert table.plan_backfill("y", task_size=5).total_tasks == 9
    assert table.plan_backfill("y", udf=log.doubling(factor=3)).udf_version != window.udf_version
    names = list(inspect.signature(Table.plan_backfill).parameters)
    assert names[1:8] == [
        "col_name",
        "udf",
        "where",
        "read_version",
        "num_frags",
        "skip_frags",
        "task_size",
    ]


@pytest.mark.guarantee("T73")
def test_error_records_say_what_failed_where(db: Connection, log: Log) -> None:
    table, result = failed(db, log)
    errors = table.get_errors()
    assert all(isinstance(error, ErrorRecord) for error in errors)
    errors_by_address = {error.row_address: error for error in errors}
    assert sorted(errors_by_address) == ADDRESSES
    first = errors_by_address[3]
    assert first.error_type.rpartition(".")[2] == "ValueError"
    assert (first.error_message, first.job_id, first.column_name) == ("row 3", result.job_id, "y")
    assert (first.outcome, first.udf_name, first.input_columns) == ("skipped", "fail", ("x",))
    assert first.table_version == result.read_version
    assert "row 3" in (first.error_trace or "")
    assert result.rows_skipped == 3


@pytest.mark.guarantee("T73")
def test_tasks_that_make_the_table_of_errors_at_once_lose_none(tmp_path: Path) -> None:
    """Executors do this when the first rows of a table fail on several of them at the same moment."""
    writers = 4
    for attempt in range(5):
        ref = DatasetRef.at(str(tmp_path / f"{attempt}.lance"))
        together = threading.Barrier(writers)

        def append(
            number: int, ref: DatasetRef = ref, together: threading.Barrier = together
        ) -> None:
            together.wait()
            rows = [{"error_id": str(number)}]
            append_rows(ref, ERRORS, pa.Table.from_pylist(rows, schema=ERRORS.schema))

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(append, range(writers)))
        assert sorted(read_rows(ref, ERRORS)["error_id"].to_pylist()) == ["0", "1", "2", "3"]


@pytest.mark.guarantee("T75")
def test_errors_are_filtered_by_column(db: Connection, log: Log) -> None:
    table, _ = failed(db, log)
    table.add_columns({"z": failing(log, name="other")})
    table.backfill("z", where="x > 20")
    assert len(table.get_errors(column_name="y")) == 3
    assert [error.row_address for error in table.get_errors(column_name="z")] == [2 << 32 | 5]
    assert table.get_errors(column_name="x") == []
