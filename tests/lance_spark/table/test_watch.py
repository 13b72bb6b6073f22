"""A computed column is kept up to date during concurrent writes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

from lance_spark import AgentStep, ColumnNotFoundError, Connection, OptionError, Table, TableNotFoundError
from lance_spark.agent.planner import Planner
from lance_spark.backfill.driver.checkpoint_upkeep import protect, release, remove_expired
from lance_spark.dataset import DatasetRef
from lance_spark.table.connections.agents import AgentTable
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
            [{"id": 77, "text": "new"}], schema=pa.schema([("id", pa.int64()), ("text", pa.string())])
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
        # The watch waits longer after each failure.
        eventually(lambda: watch.error is None)
        assert values(table) == {i: i * 2 for i in range(30)}


def test_a_watch_looks_at_a_version_that_came_right_after_a_backfill_that_found_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"double": doubled()})
    table.backfill("double")
    judge, calls = Planner._judge, list[int]()

    def judge_before_an_append(*arguments: Any, **options: Any) -> AgentStep | None:
        step = judge(*arguments, **options)
        calls.append(len(calls))
        if len(calls) == 1:
            lance.write_dataset(pa.table({"id": pa.array([100], pa.int64())}), table.uri, mode="append")
        return step

    monkeypatch.setattr(Planner, "_judge", judge_before_an_append)
    with table.watch("double", trigger=SOON) as watch:
        eventually(lambda: values(table).get(100) == 200)
        watch.await_look()
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


@pytest.mark.parametrize("error", [RuntimeError("the session has ended"), TypeError("a fault")], ids=["known", "any"])
def test_a_watch_goes_on_after_any_error(table: Table, error: Exception, monkeypatch: pytest.MonkeyPatch):
    table.add_columns({"double": doubled()})
    with monkeypatch.context() as patch:
        patch.setattr(AgentTable, "start_backfill", Mock(side_effect=error))
        watch = table.watch("double", trigger=SOON)
        eventually(lambda: watch.error is error)
    with watch:
        eventually(lambda: watch.error is None)
        assert values(table) == {i: i * 2 for i in range(30)}


def test_a_dropped_table_is_an_error_of_its_watch(db: Connection, table: Table):
    table.add_columns({"double": doubled()})
    with table.watch("double", trigger=SOON) as watch:
        watch.await_look()
        db.drop_table(table.name)
        eventually(lambda: isinstance(watch.error, TableNotFoundError))
