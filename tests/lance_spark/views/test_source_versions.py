"""Refreshes to other versions of a source, and sources that a view cannot follow."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from lance_spark import Connection
from lance_spark.errors import StableRowIdsError, VersionNotFoundError, ViewError, ViewSourceError
from tests.lance_spark.views.views import (
    clean,
    compact,
    make_source,
    nothing_changes,
    rows_of,
    watched,
)
from tests.support.logs import Log

pytestmark = pytest.mark.sample(3, tests=3)

# Versions of the source


@pytest.mark.long
def test_older_versions_by_the_same_rules(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 24)))
    pair.change({"x": "x + 1"}, "k = 2")
    pair.change({"p": "-1"}, "k = 4")
    pair.delete("k = 6")
    compact(pair.source)
    pair.refresh([200, 220, 21])
    result = pair.refresh([20, 60], src_version=1)
    assert (result.rows_added + result.rows_recomputed, result.rows_removed) == (3, 2)
    pair.refresh([200, 220, 21])
    pair.refresh([20, 60], src_version=2)


@pytest.mark.long
def test_versions_in_any_order(db: Connection, log: Log) -> None:
    pair = watched(db, log, refreshed=False)
    pair.source.add(rows_of(range(20, 24)))
    pair.change({"p": "p + 1"}, "k < 6")
    pair.delete("k < 3")
    for version, calls in ((3, 12), (1, 0), (4, 2), (2, 2), (3, 0)):
        before = pair.log.take()
        assert before == []
        pair.view.refresh(src_version=version)
        pair.check(version)
        assert len(pair.log.take()) == calls


def test_an_unknown_version_is_refused(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    with nothing_changes(pair.view), pytest.raises(VersionNotFoundError, match="99"):
        pair.view.refresh(src_version=99)


@pytest.mark.long
def test_a_restored_source(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 24)))
    pair.change({"x": "x + 1"}, "k = 2")
    pair.refresh([21, 200, 220])
    lance.dataset(pair.source.uri, version=1).restore()
    pair.refresh([20])
    pair.source.add(rows_of(range(30, 34)))
    pair.refresh([300, 320])
    pair.refresh([21, 200, 220], src_version=3)


def test_versions_of_the_source_that_were_cleaned_up(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 24)))
    pair.change({"x": "x + 1"}, "k = 2")
    clean(pair.source)
    assert pair.view.plan_refresh().rebuilds
    pair.refresh()
    assert not pair.view.plan_refresh().rebuilds
    pair.refresh([])
    pair.change({"x": "x + 1"}, "k = 2")
    pair.refresh([22])


@pytest.mark.long
def test_the_version_shown_is_kept_by_a_tag_and_those_after_it_are_cleaned_up(
    db: Connection, log: Log
) -> None:
    pair = watched(db, log)
    pair.source.to_lance().tags.create("kept", 1)
    pair.source.add(rows_of(range(20, 24)))
    compact(pair.source)
    pair.change({"x": "x + 1"}, "k = 2")
    pair.delete("k = 4")
    clean(pair.source)
    pair.refresh([21, 200, 220])


# Sources that a view cannot follow


def test_a_source_without_stable_row_ids_is_shown_once(db: Connection, log: Log) -> None:
    with pytest.warns(UserWarning, match="no stable ids"):
        pair = watched(db, log, enable_stable_row_ids=False)
    pair.refresh([])
    pair.source.add(rows_of([20]))
    with (
        nothing_changes(pair.view),
        pytest.raises(StableRowIdsError, match="no stable ids") as caught,
    ):
        pair.view.refresh()
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(StableRowIdsError):
        pair.view.plan_refresh()
    pair.refresh([], src_version=1)


def test_a_source_that_was_dropped(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    db.drop_table("s")
    for act in (pair.view.refresh, pair.view.plan_refresh, pair.view.refresh_async):
        with (
            nothing_changes(pair.view),
            pytest.raises(ViewSourceError, match="does not exist any more"),
        ):
            act()


@pytest.mark.parametrize("versions", [1, 9])
def test_a_source_that_was_recreated(versions: int, db: Connection, log: Log) -> None:
    pair = watched(db, log, refreshed=False)
    for k in range(20, 24):
        pair.source.add(rows_of([k]))
    pair.refresh()
    db.drop_table("s")
    source = make_source(db, range(100, 104))
    for k in range(1, versions):
        source.add(rows_of([200 + k]))
    with nothing_changes(pair.view), pytest.raises(ViewSourceError, match="created again"):
        pair.view.refresh()
    with pytest.raises(ViewSourceError, match="created again"):
        pair.view.plan_refresh()
    assert pair.log.take() == []


def test_a_source_that_was_overwritten(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of([30]), mode="overwrite")
    pair.source.add(rows_of([32]))
    with (
        nothing_changes(pair.view),
        pytest.raises(ViewSourceError, match="overwritten at version 2"),
    ):
        pair.view.refresh()
    pair.refresh([], src_version=1)


def test_a_view_of_an_overwritten_source_is_not_led_back_before_that(
    db: Connection, log: Log
) -> None:
    pair = watched(db, log, refreshed=False)
    pair.source.add(rows_of([30]), mode="overwrite")
    pair.refresh([300])
    with nothing_changes(pair.view), pytest.raises(ViewSourceError, match="overwritten"):
        pair.view.refresh(src_version=1)


@pytest.mark.parametrize(
    ("column", "act"), [("k", "drop"), ("x", "rename"), ("p", "cast"), ("x", "anew")]
)
def test_a_used_column_that_was_replaced(column: str, act: str, db: Connection, log: Log) -> None:
    pair = watched(db, log)
    dataset = pair.source.to_lance()
    if act in ("drop", "anew"):
        dataset.drop_columns([column])
    if act == "anew":
        dataset.add_columns({column: "u"})
    if act == "rename":
        dataset.alter_columns({"path": column, "name": "other"})
    if act == "cast":
        dataset.alter_columns({"path": column, "data_type": pa.int32()})
    with nothing_changes(pair.view), pytest.raises(ViewSourceError, match=repr(column)):
        pair.view.refresh()
    assert pair.log.take() == []
    lance.dataset(pair.source.uri, version=1).restore()
    pair.refresh([])


def test_a_column_that_the_view_does_not_use_may_go(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.to_lance().drop_columns(["u"])
    pair.refresh([])
    pair.source.to_lance().add_columns({"w": "k"})
    pair.refresh([])


def test_a_table_that_is_no_view(db: Connection) -> None:
    table = make_source(db)
    with pytest.raises(ViewError, match="no materialized view"):
        table.refresh()
