"""Ends of jobs during a store failure are written later, to the table of the job."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection
from lance_spark.commit import commit_loop
from lance_spark.dataset import DatasetRef
from lance_spark.errors import JobNotFoundError, TableNotFoundError, TableUnwritableError
from lance_spark.jobs import history
from lance_spark.jobs import history as late_ends
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.tables import JOBS, append_rows, read_rows
from tests.support.records import job_record
from tests.support.waiting import eventually


@pytest.fixture
def db(tmp_path: Path, jobs: Any, monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setattr(late_ends, "_RETRY_S", 0.05)
    monkeypatch.setattr(
        late_ends, "_ends", {}
    )  # without ends of earlier tests, whose stores do not answer
    db = lance_spark.connect(str(tmp_path), jobs, progress=False)
    db.create_table("t", pa.table({"id": [1]}))
    return db


def start(db: Connection, job_id: str) -> tuple[JobHistory, Any]:
    ends = JobHistory(DatasetRef.at(f"{db.uri}/t.lance"))
    record = job_record(job_id)
    ends.save(dataclasses.replace(record, status="RUNNING"))
    return ends, record


def end_later(
    db: Connection,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[], object] = lambda: None,
    before: Callable[[JobHistory], object] = lambda _: None,
) -> JobHistory:
    """Ends a job while the store fails, and waits until nothing of the end is left to write."""
    ends, record = start(db, "late")
    before(ends)
    append = history.append_rows
    is_away = [True]

    def fail(*arguments: Any, **keywords: Any) -> None:
        if is_away:
            raise TableUnwritableError("t", "the store is away")
        append(*arguments, **keywords)

    monkeypatch.setattr(history, "append_rows", fail)
    ends.save(record)
    assert "late" in [job_end.job_id for job_end in late_ends.kept_ends(ends.ref.uri)]
    meanwhile()
    is_away.clear()
    eventually(lambda: not late_ends.kept_ends(ends.ref.uri))
    return ends


def test_an_end_is_written_when_the_store_answers_again(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [job.status for job in end_later(db, monkeypatch).jobs()] == ["DONE"]


def test_the_end_of_an_inner_job_is_written_with_the_end_of_its_job(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, record = start(db, "outer")
    inner, inner_record = JobHistory(outer.ref, outer=outer), job_record("outer-0")
    inner.save(dataclasses.replace(inner_record, status="RUNNING"))
    append = Mock(wraps=history.append_rows)
    monkeypatch.setattr(history, "append_rows", append)
    inner.save(inner_record)
    assert {job.job_id: job.status for job in outer.jobs()} == {
        "outer": "RUNNING",
        "outer-0": "RUNNING",
    }
    outer.save(record)
    assert append.call_count == 1
    assert {job.job_id: job.status for job in outer.jobs()} == {"outer": "DONE", "outer-0": "DONE"}


def test_the_end_of_a_short_job_opens_no_version_and_moves_no_row(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that started in between is younger than the job, and stays unfinished."""
    with monkeypatch.context() as patch:
        patch.setattr("lance_spark.jobs.merging_append._ABSORBED_ROWS", 0)
        ends, record = start(db, "short")
        start(db, "other")
    open_head = Mock(wraps=commit_loop.open_head)
    monkeypatch.setattr(commit_loop, "open_head", open_head)
    ends.save(record)
    assert open_head.call_count == 0
    statuses = [(row["job_id"], row["status"]) for row in read_rows(ends.ref, JOBS).to_pylist()]
    assert statuses == [("short", "RUNNING"), ("other", "RUNNING"), ("short", "DONE")]
    assert [job.job_id for job in ends.unfinished_jobs("true")] == ["other"]


def test_the_counts_of_an_inner_job_stay_until_the_history_has_its_end(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "HEARTBEAT_S", 0.01)
    outer, record = start(db, "outer")
    inner, inner_record = JobHistory(outer.ref, outer=outer), job_record("outer-0")
    inner.save(dataclasses.replace(inner_record, status="RUNNING"))
    heartbeats = Path(db.uri, "t.lance/_lance_spark/jobs")
    counts = SimpleNamespace(rows_computed=40)
    with inner.beating(inner_record.staging_id, lambda: counts):
        eventually(lambda: list(heartbeats.glob("*/heartbeat")), 30)
        counts.rows_computed = 50
    inner.save(inner_record)
    # Another process charges the calls if the driver dies now.
    assert {job.job_id: job.rows_computed for job in outer.jobs()}["outer-0"] == 50
    outer.save(record)
    assert not list(heartbeats.glob("*/*"))


def test_the_end_of_an_inner_job_is_kept_with_the_end_of_its_job(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_inner(outer: JobHistory) -> None:
        inner, record = JobHistory(outer.ref, outer=outer), job_record("late-0")
        inner.save(dataclasses.replace(record, status="RUNNING"))
        inner.save(record)

    ends = end_later(db, monkeypatch, before=end_inner)
    assert {job.job_id: job.status for job in ends.jobs()} == {"late": "DONE", "late-0": "DONE"}


def test_an_end_is_not_written_to_another_table_of_the_same_name(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_anew() -> None:
        db.drop_table("t")
        db.create_table("t", pa.table({"id": [1]}))
        with pytest.raises(JobNotFoundError):
            db.open_table("t").get_job("late")

    assert end_later(db, monkeypatch, make_anew).jobs() == []
    assert not (Path(db.uri) / "t.lance/_lance_spark/jobs.lance").exists()


@pytest.mark.parametrize("status", ["FAILED", "CANCELLED", "PARTIAL"])
@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_job_of_a_dropped_table_leaves_no_end(
    db: Connection, status: Any, is_made_anew: bool
) -> None:
    ends, record = start(db, "failed")
    db.drop_table("t")
    if is_made_anew:
        lance.write_dataset(pa.table({"id": [1]}), f"{db.uri}/t.lance")
    ends.save(dataclasses.replace(record, status=status))
    assert not (Path(db.uri) / "t.lance/_lance_spark").exists()
    assert late_ends.kept_ends(ends.ref.uri) == []
    with contextlib.nullcontext() if is_made_anew else pytest.raises(TableNotFoundError):
        assert ends.jobs() == []


def test_a_job_is_earlier_than_a_done_job_if_its_row_and_its_clock_say_so(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite of the last rows may move the rows of a job behind the start of a later job."""
    monkeypatch.setattr("lance_spark.jobs.merging_append._ABSORBED_ROWS", 0)
    jobs, later = start(db, "later")
    for seconds, job_id in ((2, "earlier"), (1, "done")):
        launched_at = later.launched_at - timedelta(seconds=seconds)
        record = job_record(job_id, launched_at=launched_at)
        jobs.save(dataclasses.replace(record, status="RUNNING"))
    jobs.save(record)
    assert [job.job_id for job in jobs.unfinished_jobs("true")] == ["later"]


@pytest.mark.parametrize("moment", [None, 1 << 62])
def test_a_damaged_time_in_the_history_hides_no_unfinished_job(
    db: Connection, moment: int | None
) -> None:
    jobs, _ = start(db, "unfinished")
    damaged = pa.Table.from_pylist([job_record("damaged").to_row()], schema=JOBS.schema)
    times = pa.array([moment], pa.int64()).cast(JOBS.schema.field("launched_at").type)
    place = JOBS.schema.get_field_index("launched_at")
    append_rows(jobs.ref, JOBS, damaged.set_column(place, JOBS.schema.field(place), times))
    done = job_record("done", launched_at=datetime.now(UTC) - timedelta(days=1))
    jobs.save(dataclasses.replace(done, status="RUNNING"))
    jobs.save(done)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the damaged row
        assert [job.job_id for job in jobs.unfinished_jobs("true")] == ["unfinished"]
