"""Rows that fail repeatedly cost calls, but no stored data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import lance_spark
from lance_spark.backfill.task import computation, task_files
from lance_spark.backfill.task.computation import ErrorLog
from lance_spark.commit import column_commit
from udf_runtime import Skip, udf


@pytest.mark.parametrize("task_size", [1000, 3], ids=["whole", "ranges"])
def test_a_run_in_which_every_row_is_skipped_makes_no_version(
    task_size: int, db: lance_spark.Connection
):
    table = db.create_table("t", [{"id": i} for i in range(10)])

    def f(id: int) -> int:
        if id in (3, 7):
            raise ValueError("no")
        return id

    table.add_columns({"v": udf(f, on_error=[Skip(ValueError)])})
    first = table.backfill("v", task_size=task_size)
    assert (first.status, first.rows_computed, first.rows_skipped, len(first.versions)) == (
        "DONE",
        8,
        2,
        1,
    )
    again = table.backfill("v", task_size=task_size)
    assert (again.status, again.rows_computed, again.rows_skipped, again.versions) == (
        "DONE",
        0,
        2,
        (),
    )
    assert len(table.get_errors(again.job_id)) == 2
    assert table.to_arrow(["v"]).column(0).to_pylist() == [
        i if i not in (3, 7) else None for i in range(10)
    ]
    forced = table.backfill("v", where="id = 7", task_size=task_size)
    assert (forced.status, forced.rows_skipped) == ("DONE", 1)


def test_failures_of_many_rows_are_not_held_until_the_range_ends(monkeypatch: pytest.MonkeyPatch):
    record_sizes: list[int] = []
    monkeypatch.setattr(
        computation,
        "append_rows",
        lambda _ref, _table, rows, **_: record_sizes.append(rows.num_rows),
    )
    monkeypatch.setattr(computation, "_HELD_RECORDS", 10)
    spec: Any = SimpleNamespace(
        staging=SimpleNamespace(job_id="s"),
        job_id="j",
        snapshot=SimpleNamespace(uri="t", version=1),
        home=SimpleNamespace(uri="t"),
        outputs=(("", "v"),),
        key=SimpleNamespace(udf_name="f", udf_version="1"),
        input_names=("id",),
    )
    log = ErrorLog(spec, 0)
    for offset in range(25):
        log.add_error(ValueError("no"), offset)
    assert record_sizes == [10, 10]
    log.write()
    assert record_sizes == [10, 10, 5]


def test_a_job_that_ends_between_a_commit_and_its_note_keeps_the_committed_files(
    db: lance_spark.Connection, monkeypatch: pytest.MonkeyPatch
):
    table = db.create_table("t", [{"id": i} for i in range(10)])

    def double(id: int) -> int:
        return 2 * id

    table.add_columns({"v": udf(double)})

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(column_commit, "refuse_lost_files", fail)
    monkeypatch.setattr(task_files.TaskFiles, "_save", lambda _: None)
    with pytest.raises(lance_spark.BackfillIncompleteError, match="MemoryError"):
        table.backfill("v")
    assert table.to_arrow(["v"]).column(0).to_pylist() == [2 * i for i in range(10)]
