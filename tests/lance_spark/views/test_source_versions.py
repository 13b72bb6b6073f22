"""Refreshes to other versions of a source, and sources that a view cannot follow."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from lance_spark import Connection
from lance_spark.errors import StableRowIdsError, VersionNotFoundError, ViewError, ViewSourceError
from tests.lance_spark.views.views import clean, compact, make_source, nothing_changes, rows_of, watched
from tests.support.logs import Log

pytestmark = pytest.mark.sample(3)

# Versions of the source


@pytest.mark.long
def test_older_versions_by_the_same_rules(db: Connection, log: Log) -> None:
    made = watched(db, log)
    made.source.add(rows_of(range(20, 24)))
    made.change({"x": "x + 1"}, "k = 2")
    made.change({"p": "-1"}, "k = 4")
    made.delete("k = 6")
    compact(made.source)
    made.refresh([200, 220, 21])
    result = made.refresh([20, 60], src_version=1)
    assert (result.rows_added + result.rows_recomputed, result.rows_removed) == (3, 2)
    made.refresh([200, 220, 21])
    made.refresh([20, 60], src_version=2)


@pytest.mark.long
def test_versions_in_any_order(db: Connection, log: Log) -> None:
    made = watched(db, log, refreshed=False)
    made.source.add(rows_of(range(20, 24)))
    made.change({"p": "p + 1"}, "k < 6")
    made.delete("k < 3")
    for version, calls in ((3, 12), (1, 0), (4, 2), (2, 2), (3, 0)):
        before = made.log.take()
        assert before == []
        made.view.refresh(src_version=version)
        made.check(version)
        assert len(made.log.take()) == calls


def test_an_unknown_version_is_refused(db: Connection, log: Log) -> None:
    made = watched(db, log)
    with nothing_changes(made.view), pytest.raises(VersionNotFoundError, match="99"):
        made.view.refresh(src_version=99)


@pytest.mark.long
def test_a_restored_source(db: Connection, log: Log) -> None:
    made = watched(db, log)
    made.source.add(rows_of(range(20, 24)))
    made.change({"x": "x + 1"}, "k = 2")
    made.refresh([21, 200, 220])
    lance.dataset(made.source.uri, version=1).restore()
    made.refresh([20])
    made.source.add(rows_of(range(30, 34)))
    made.refresh([300, 320])
    made.refresh([21, 200, 220], src_version=3)


def test_versions_of_the_source_that_were_cleaned_up(db: Connection, log: Log) -> None:
    made = watched(db, log)
    made.source.add(rows_of(range(20, 24)))
    made.change({"x": "x + 1"}, "k = 2")
    clean(made.source)
    assert made.view.plan_refresh().rebuilds
    made.refresh()
    assert not made.view.plan_refresh().rebuilds
    made.refresh([])
    made.change({"x": "x + 1"}, "k = 2")
    made.refresh([22])


def test_the_version_shown_is_kept_by_a_tag_and_those_after_it_are_cleaned_up(db: Connection, log: Log) -> None:
    made = watched(db, log)
    made.source.to_lance().tags.create("kept", 1)
    made.source.add(rows_of(range(20, 24)))
    compact(made.source)
    made.change({"x": "x + 1"}, "k = 2")
    made.delete("k = 4")
    clean(made.source)
    made.refresh([21, 200, 220])


# A source that cannot be followed


def test_a_source_without_stable_row_ids_is_shown_once(db: Connection, log: Log) -> None:
    with pytest.warns(UserWarning, match="no stable ids"):
        made = watched(db, log, enable_stable_row_ids=False)
    made.refresh([])
    made.source.add(rows_of([20]))
    with nothing_changes(made.view), pytest.raises(StableRowIdsError, match="no stable ids") as caught:
        made.view.refresh()
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(StableRowIdsError):
        made.view.plan_refresh()
    made.refresh([], src_version=1)


def test_a_source_that_was_dropped(db: Connection, log: Log) -> None:
    made = watched(db, log)
    db.drop_table("s")
    for act in (made.view.refresh, made.view.plan_refresh, made.view.refresh_async):
        with nothing_changes(made.view), pytest.raises(ViewSourceError, match="not there any more"):
            act()


@pytest.mark.parametrize("versions", [1, 9])
def test_a_source_that_was_made_anew(versions: int, db: Connection, log: Log) -> None:
    made = watched(db, log, refreshed=False)
    for k in range(20, 24):
        made.source.add(rows_of([k]))
    made.refresh()
    db.drop_table("s")
    source = make_source(db, range(100, 104))
    for k in range(1, versions):
        source.add(rows_of([200 + k]))
    with nothing_changes(made.view), pytest.raises(ViewSourceError, match="anew"):
        made.view.refresh()
    with pytest.raises(ViewSourceError, match="anew"):
        made.view.plan_refresh()
    assert made.log.take() == []


def test_a_source_that_was_overwritten(db: Connection, log: Log) -> None:
    made = watched(db, log)
    made.source.add(rows_of([30]), mode="overwrite")
    made.source.add(rows_of([32]))
    with nothing_changes(made.view), pytest.raises(ViewSourceError, match="overwritten at version 2"):
        made.view.refresh()
    made.refresh([], src_version=1)


def test_a_view_of_an_overwritten_source_is_not_led_back_before_that(db: Connection, log: Log) -> None:
    made = watched(db, log, refreshed=False)
    made.source.add(rows_of([30]), mode="overwrite")
    made.refresh([300])
    with nothing_changes(made.view), pytest.raises(ViewSourceError, match="overwritten"):
        made.view.refresh(src_version=1)


@pytest.mark.parametrize(("column", "act"), [("k", "drop"), ("x", "rename"), ("p", "cast"), ("x", "anew")])
def test_a_used_column_that_is_not_what_it_was(column: str, act: str, db: Connection, log: Log) -> None:
    made = watched(db, log)
    dataset = made.source.to_lance()
    if act in ("drop", "anew"):
        dataset.drop_columns([column])
    if act == "anew":
        dataset.add_columns({column: "u"})
    if act == "rename":
        dataset.alter_columns({"path": column, "name": "other"})
    if act == "cast":
        dataset.alter_columns({"path": column, "data_type": pa.int32()})
    with nothing_changes(made.view), pytest.raises(ViewSourceError, match=repr(column)):
        made.view.refresh()
    assert made.log.take() == []
    lance.dataset(made.source.uri, version=1).restore()
    made.refresh([])


def test_a_column_that_the_view_does_not_use_may_go(db: Connection, log: Log) -> None:
    made = watched(db, log)
    made.source.to_lance().drop_columns(["u"])
    made.refresh([])
    made.source.to_lance().add_columns({"w": "k"})
    made.refresh([])


def test_a_table_that_is_no_view(db: Connection) -> None:
    table = make_source(db)
    with pytest.raises(ViewError, match="no materialized view"):
        table.refresh()
