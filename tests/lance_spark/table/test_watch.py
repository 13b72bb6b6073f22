"""A computed column is kept up to date during concurrent writes."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

from lance_spark import (
    AgentStep,
    ColumnNotFoundError,
    Connection,
    Job,
    JobTimeoutError,
    OptionError,
    Table,
    TableNotFoundError,
)
from lance_spark.agent import watch as watching
from lance_spark.agent.lease import Lease
from lance_spark.agent.looks import TableLook
from lance_spark.agent.planner import Planner
from lance_spark.backfill.driver.checkpoint_upkeep import protect, release, remove_expired
from lance_spark.dataset import DatasetRef
from lance_spark.table.agent_table import AgentTable
from tests.support.logs import Log, flag_file
from tests.support.waiting import eventually
from udf_runtime import UDF, udf

SOON = timedelta(seconds=0.1)


def doubled() -> UDF:
    @udf(data_type=pa.int64())
    def double(id: int) -> int:
        return id * 2

    return double


def values(table: Table) -> dict[int, int | None]:
    rows = lance.dataset(table.uri).to_table(columns=["id", "double"])
    return dict(zip(rows["id"].to_pylist(), rows["double"].to_pylist(), strict=True))


def test_a_watched_column_is_filled_and_kept_up_to_date(table: Table):
    table.add_columns({"double": doubled()})
    with table.watch("double", trigger=SOON) as watch:
        watch.await_look()
        assert values(table) == {i: i * 2 for i in range(30)}
        lance.dataset(table.uri).update({"id": "id + 1000"}, where="id < 3")
        head = lance.dataset(table.uri)
        new = pa.Table.from_pylist(
            [{"id": 77, "text": "new"}],
            schema=pa.schema([("id", pa.int64()), ("text", pa.string())]),
        )
        lance.write_dataset(new, table.uri, mode="append")
        watch.await_look()
        assert values(table) == {i: i * 2 for i in [*range(3, 30), 1000, 1001, 1002, 77]}
        # A look may come between the update and the append.
        assert [result.rows_computed for result in watch.results] in ([30, 4], [30, 3, 1])
        assert watch.error is None
        settled = lance.dataset(table.uri).version
        watch.await_look()
        assert lance.dataset(table.uri).version == settled > head.version
    assert not watch.is_active


def test_a_watch_goes_on_after_a_failure(table: Table):
    table.add_columns({"double": doubled()})
    with table.watch("double", trigger=SOON) as watch:
        watch.await_look()
        table.drop_columns("double")
        watch.await_look()
        assert isinstance(watch.error, ColumnNotFoundError) and watch.is_active
        table.add_columns({"double": doubled()})
        watch.await_look()
        assert watch.error is None
        assert values(table) == {i: i * 2 for i in range(30)}


def test_a_watch_looks_at_a_version_that_came_right_after_a_look_without_work(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"double": doubled()})
    table.backfill("double")
    judge, looks = Planner._judge, list[int]()

    def judge_before_an_append(*arguments: Any, **options: Any) -> AgentStep | None:
        step = judge(*arguments, **options)
        looks.append(len(looks))
        if len(looks) == 1:
            lance.write_dataset(
                pa.table({"id": pa.array([100], pa.int64())}), table.uri, mode="append"
            )
        return step

    monkeypatch.setattr(Planner, "_judge", judge_before_an_append)
    with table.watch("double", trigger=SOON) as watch:
        watch.await_look()
        watch.await_look()
        assert values(table)[100] == 200
        assert [result.rows_computed for result in watch.results] == [1]


def test_mistakes_are_found_before_a_watch_begins(table: Table):
    with pytest.raises(ColumnNotFoundError):
        table.watch("nothing")
    table.add_columns({"double": doubled()})
    with pytest.raises(OptionError, match="trigger"):
        table.watch("double", trigger=timedelta(0))


def test_tags_of_dead_jobs_expire(table: Table):
    ref = DatasetRef.at(table.uri).pin(None)
    stale_tag, own_tag = protect(ref, "a" * 40, begin_s=0.0), protect(ref, "b" * 40)
    lance.dataset(table.uri).tags.create("theirs", 1)
    remove_expired(lance.dataset(table.uri))
    assert set(lance.dataset(table.uri).tags.list()) == {own_tag, "theirs"}
    release(ref, own_tag)
    release(ref, stale_tag)
    assert set(lance.dataset(table.uri).tags.list()) == {"theirs"}


def test_a_watch_goes_on_after_any_error(table: Table, monkeypatch: pytest.MonkeyPatch):
    error = TypeError("a fault")
    table.add_columns({"double": doubled()})
    with monkeypatch.context() as patch:
        patch.setattr(AgentTable, "start_backfill", Mock(side_effect=error))
        watch = table.watch("double", trigger=SOON)
        eventually(lambda: watch.error is error)
    with watch:
        watch.await_look()
        assert watch.error is None and values(table) == {i: i * 2 for i in range(30)}


def test_a_dropped_table_is_an_error_of_its_watch(db: Connection, table: Table):
    table.add_columns({"double": doubled()})
    with table.watch("double", trigger=SOON) as watch:
        watch.await_look()
        db.drop_table(table.name)
        eventually(lambda: isinstance(watch.error, TableNotFoundError))
        assert watch.is_active


def test_a_failing_column_waits_longer_after_each_failure(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"double": doubled()})
    start = Mock(side_effect=RuntimeError("the session has ended"))
    monkeypatch.setattr(AgentTable, "start_backfill", start)
    with table.watch("double", trigger=timedelta(seconds=0.01)) as watch:
        eventually(lambda: start.call_count >= 3)
        with pytest.raises(JobTimeoutError):
            watch.await_look(timedelta(seconds=0.05))  # the next try is in 0.08 s
    assert start.call_count < 8


def test_watches_of_two_columns_wait_for_no_lease(table: Table, monkeypatch: pytest.MonkeyPatch):
    table.add_columns({"double": doubled()})
    table.add_columns({"other": doubled()})
    monkeypatch.setattr(Lease, "take", Mock(side_effect=AssertionError("a watch takes no lease")))
    with table.watch("double", trigger=SOON) as watch, table.watch("other", trigger=SOON) as second:
        watch.await_look()
        second.await_look()
        assert watch.error is second.error is None
    assert table.count_rows("double = other") == 30
    assert {job.job_id[:5] for job in table.list_jobs()} == {"watch"}


def test_jobs_of_a_watch_and_of_users_use_up_no_budget_of_an_agent(db: Connection, table: Table):
    table.add_columns({"double": doubled()}, auto_backfill=True)
    with table.watch("double", trigger=SOON) as watch:
        watch.await_look()
    table.backfill("double", where="id < 5", job_id="agent-nightly")
    table.add([{"id": 100, "text": "new"}])
    (step,) = db.agent(allow=["*"], max_calls=1).run_once().steps
    assert step.status == "done" and values(table)[100] == 200


def test_a_stop_cancels_a_running_backfill_and_returns(
    table: Table, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = Log(str(tmp_path / "log"))
    cancelled: list[str] = []
    monkeypatch.setattr(Job, "cancel", lambda job: cancelled.append(job.job_id))
    table.add_columns({"double": (log.waiting(5, flag), ["id"])})
    with flag_file(flag):
        watch = table.watch("double", trigger=SOON)
        eventually(lambda: 5 in log.rows())
        monkeypatch.setattr(watching, "_LONGEST_STOP_S", 0.7)
        watch.stop()
        assert cancelled and watch.is_active  # the job ends after its call
    eventually(lambda: not watch.is_active)
    watch.await_look()


def test_a_stop_does_not_wait_for_a_store_without_answers(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"double": doubled()})
    has_answer, has_begun = threading.Event(), threading.Event()
    look_of = TableLook.of

    def look(*arguments: Any) -> TableLook:
        has_begun.set()
        has_answer.wait(60)
        return look_of(*arguments)

    monkeypatch.setattr(TableLook, "of", look)
    monkeypatch.setattr(watching, "_LONGEST_STOP_S", 0.1)
    watch = table.watch("double", trigger=SOON)
    has_begun.wait(60)
    waiting = threading.Thread(target=watch.await_look)
    waiting.start()
    watch.stop()
    waiting.join(60)
    assert watch.is_active and not waiting.is_alive()  # the look has no answer yet
    has_answer.set()
    eventually(lambda: not watch.is_active)
    assert table.list_jobs() == []
