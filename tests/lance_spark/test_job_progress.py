"""Progress of running jobs in the history: other processes read the counts of heartbeats."""

from __future__ import annotations

import json
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.tables import JOBS
from tests.support.inline_jobs import without_spark
from tests.support.records import job_record
from tests.support.waiting import eventually

OTHER = json.dumps({"host": f"not-{socket.gethostname()}", "pid": 1, "started": "0"})


@pytest.fixture
def history(tmp_path: Path) -> JobHistory:
    db = lance_spark.connect(str(tmp_path))
    return JobHistory(DatasetRef.at(db.create_table("t", [{"id": 1}]).uri))


def begin(history: JobHistory, **changes: Any) -> str:
    """Records the start of a job long ago, and returns the id of its files."""
    began = datetime.now(UTC) - timedelta(hours=1)
    job = job_record(
        "a", status="RUNNING", launched_at=began, updated_at=began, rows_selected=100, **changes
    )
    history.save(job)
    return job.staging_id


@pytest.mark.parametrize(
    "process", [{}, {"process": OTHER}], ids=["this machine", "another machine"]
)
def test_a_heartbeat_renews_the_counts_of_a_running_job(
    history: JobHistory, process: dict[str, str]
):
    history.beat(
        begin(history, **process),
        SimpleNamespace(rows_computed=40, fragments_done=2, rows_carried=3),
    )
    (job,) = history.jobs()
    assert (job.status, job.rows_selected, job.rows_computed, job.fragments_done) == (
        "RUNNING",
        100,
        40,
        2,
    )
    assert (job.rows_carried, job.rows_skipped) == (3, 0)
    assert datetime.now(UTC) - job.updated_at < timedelta(minutes=5)


def test_a_job_whose_progress_cannot_be_read_keeps_its_heartbeats(
    history: JobHistory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lance_spark.jobs.history.HEARTBEAT_S", 0.01)
    staging_id = begin(history, process=OTHER)

    def progress() -> object:
        raise RuntimeError("dictionary changed size during iteration")

    with history.beating(staging_id, progress):
        eventually(
            lambda: history.jobs()[0].updated_at > datetime.now(UTC) - timedelta(minutes=5), 30
        )
        assert history.jobs()[0].status == "RUNNING"


def test_the_web_ui_shows_a_job_while_the_store_hangs(
    history: JobHistory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lance_spark.jobs.history.HEARTBEAT_S", 0.01)
    shown = list[object]()
    monkeypatch.setattr(
        "lance_spark.jobs.web_ui.show_job", lambda job: shown.append(job["rows_computed"])
    )
    answer, hangs = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        hangs.set()
        answer.wait(60)

    staging_id = begin(history)
    monkeypatch.setattr(type(history._objects), "put", hang)
    with history.beating(staging_id, lambda: SimpleNamespace(rows_computed=40)):
        assert hangs.wait(30)
        shown.clear()
        eventually(lambda: shown.count(40) > 3, 30)
        answer.set()


def test_the_web_ui_shows_a_job_after_an_error(
    history: JobHistory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lance_spark.jobs.history.HEARTBEAT_S", 0.01)
    staging_id, answers = begin(history), Mock(side_effect=[ValueError("a fault"), *[None] * 9999])
    monkeypatch.setattr("lance_spark.jobs.web_ui.show_job", answers)
    with history.beating(staging_id, lambda: SimpleNamespace(rows_computed=40)):
        eventually(lambda: answers.call_count > 1, 30)


def test_a_backfill_has_heartbeats_during_a_long_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lance_spark.jobs.history.HEARTBEAT_S", 0.01)
    folder = tmp_path / "t.lance/_lance_spark/jobs"
    counts = list[int]()

    def wait_for_heartbeat(_: int) -> None:
        for file in folder.glob("*/heartbeat"):
            file.unlink()
        eventually(lambda: list(folder.glob("*/heartbeat")), 30)
        (job,) = lab.table().list_jobs()
        assert job.status == "RUNNING"
        counts.append(job.rows_computed)

    with without_spark(tmp_path) as lab:
        table = lab.make(pa.table({"id": range(20)}))
        table.add_columns({"v": lab.udf()})
        with lab.after_commits(wait_for_heartbeat):
            table.backfill("v")
        (job,) = table.list_jobs()
    assert (counts, job.status, job.rows_computed) == ([20], "DONE", 20)
    assert not list(folder.glob("*/heartbeat"))


def test_a_dead_job_keeps_the_counts_of_its_last_heartbeat(history: JobHistory, tmp_path: Path):
    staging_id = begin(history, process=OTHER)
    history.beat(staging_id, SimpleNamespace(rows_computed=40))
    file = Path(history.ref.uri) / "_lance_spark/jobs" / staging_id / "heartbeat"
    file.write_text(json.dumps({"rows_computed": 40, "at": 1.0}))
    (job,) = history.jobs()
    assert (job.status, job.rows_computed) == ("DEAD", 40)


COUNTS = [
    '{"at": 1, "rows_computed": "many"}',
    '{"at": 1, "rows_computed": -5}',
    f'{{"at": 1, "retries": {10**400}}}',
]


@pytest.mark.parametrize("text", ["", "[]", '{"at": 1e300}', *COUNTS, '{"at": "x"}', "{"])
def test_a_forged_heartbeat_changes_no_count(history: JobHistory, text: str):
    staging_id = begin(history)
    history.beat(staging_id)
    (Path(history.ref.uri) / "_lance_spark/jobs" / staging_id / "heartbeat").write_text(text)
    (job,) = history.jobs()
    assert (job.status, job.rows_computed) == ("RUNNING", 0)


def test_a_history_of_an_earlier_release_has_no_counts_of_concurrent_commits(history: JobHistory):
    added = ("rows_carried", "rows_recomputed", "rows_nulled")
    old = pa.schema([field for field in JOBS.schema if field.name not in added])
    rows = pa.Table.from_pylist([job_record("old").to_row()], schema=JOBS.schema).select(old.names)
    lance.write_dataset(rows, f"{history.ref.uri}/{JOBS.name}")
    history.save(job_record("new", rows_carried=5))
    jobs = {job.job_id: job.rows_carried for job in history.jobs()}
    assert jobs == {"old": 0, "new": 0}
