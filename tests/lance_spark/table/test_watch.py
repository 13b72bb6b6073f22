"""A computed column is kept up to date during concurrent writes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillJobResult, ColumnNotFoundError, OptionError, Table
from lance_spark.backfill.driver.checkpoint_upkeep import protect, release, remove_expired
from lance_spark.backfill.watch import Watch
from lance_spark.dataset import DatasetRef
from tests.support import inline_jobs
from tests.support.inline_jobs import without_spark
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
        watch.await_look()
        assert watch.error is None
        assert values(table) == {i: i * 2 for i in range(30)}


def test_a_watch_looks_at_a_version_that_came_right_after_a_backfill_that_found_nothing(tmp_path: Path):
    with without_spark(tmp_path) as lab:
        table = lab.make(pa.table({"id": range(40)}))
        table.add_columns({"v": lab.udf()})
        table.backfill("v")
        results: list[BackfillJobResult] = []

        def backfill() -> BackfillJobResult:
            results.append(table.backfill("v", stale=True))
            if len(results) == 1:
                lance.write_dataset(pa.table({"id": [100]}), lab.uri, mode="append")
            return results[-1]

        with Watch(DatasetRef.at(lab.uri), timedelta(seconds=0.05), backfill) as watch:
            for _ in range(4):
                watch.await_look(timedelta(seconds=60))
            assert watch.error is None
        assert inline_jobs.values(table, "v")[100] == (100,)
        assert [result.rows_computed for result in results] == [0, 1, 0], (
            "the last one looks at the version of the second"
        )


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


def test_a_watch_goes_on_after_any_error(table: Table):
    tried: list[Exception] = []

    def fail() -> Any:
        tried.append(ConnectionError("nobody answers") if tried else RuntimeError("the session has ended"))
        raise tried[-1]

    with Watch(DatasetRef.at(table.uri, {}), SOON, fail) as watch:
        eventually(lambda: isinstance(watch.error, ConnectionError))
        assert watch.is_active
        assert isinstance(tried[0], RuntimeError)
