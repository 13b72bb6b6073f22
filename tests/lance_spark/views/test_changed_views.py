"""Refreshes of changed views: their columns, rows and files, and views of views."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark import Connection
from lance_spark.errors import LanceSparkError, ViewError
from tests.lance_spark.views.views import (
    ID,
    clean,
    compact,
    make_source,
    rows_of,
    rows_shown,
    selected,
    watched,
)
from tests.support.logs import Log
from udf_runtime import udf

pytestmark = pytest.mark.sample(6, tests=3)

# Columns of the view


@pytest.mark.long
def test_where_a_udf_returned_null_it_is_called_again_only_if_the_row_is_written_anew(
    db: Connection, log: Log
) -> None:
    path = log.path

    @udf
    def nothing(x: int) -> int | None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        return None

    source = make_source(db)
    view = source.search(None).select({"p": "p", "y": nothing}).create_materialized_view(db, "v")
    view.refresh()
    assert len(log.take()) == 20
    view.refresh()
    assert log.take() == []
    source.to_lance().update({"p": "p + 1"}, where="k < 5")
    view.refresh()
    assert [row["p"] for row in rows_shown(view)][:6] == [1, 2, 3, 4, 5, 5]
    assert len(log.take()) == 5


@pytest.mark.long
def test_two_udfs_with_inputs_of_their_own(db: Connection, tmp_path: Path) -> None:
    log_one, log_two = Log(str(tmp_path / "one")), Log(str(tmp_path / "other"))
    source = make_source(db)
    query = source.search(None).select(
        {"a": log_one.doubling(), "b": (log_two.doubling(factor=3), ["p"])}
    )
    view = query.create_materialized_view(db, "v")

    def check(a: list[int], b: list[int]) -> None:
        view.refresh()
        rows = source.to_lance().to_table(with_row_id=True).to_pylist()
        expected = sorted((row["_rowid"], 2 * row["x"], 3 * row["p"]) for row in rows)
        assert [(row[ID], row["a"], row["b"]) for row in rows_shown(view)] == expected
        assert (log_one.take(), log_two.take()) == (a, b)

    check([10 * k for k in range(20)], list(range(20)))
    source.to_lance().update({"x": "x + 1"}, where="k = 3")
    source.to_lance().update({"p": "p + 50"}, where="k = 4")
    check([31], [54])
    source.to_lance().update({"x": "x + 1", "p": "p + 1"}, where="k IN (3, 4)")
    source.to_lance().update({"u": "0"})
    check([32, 41], [4, 55])


def test_a_view_with_columns_of_its_own(db: Connection, log: Log, tmp_path: Path) -> None:
    own = Log(str(tmp_path / "own"))
    pair = watched(db, log)
    pair.view.add_columns({"z": (own.doubling(), ["p2"])})
    pair.view.backfill("z")
    own.take()
    pair.change({"p": "100"}, "k = 2")
    pair.change({"x": "1"}, "k = 4")
    pair.source.add(rows_of([20]))
    pair.delete("k = 6")
    pair.view.refresh()
    assert log.take() == [1, 200]
    pair.view.backfill("z")
    rows = rows_shown(pair.view)
    assert [row["z"] for row in rows] == [2 * row["p2"] for row in rows]
    assert set(own.take()) >= {40, 200}
    assert [{key: row[key] for key in (ID, "k", "p2", "y")} for row in rows] == pair.at()


def test_a_backfill_of_a_views_udf_reads_the_version_shown(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"x": "x + 1"})
    pair.view.backfill("y")
    assert log.take() == []
    pair.check(1)
    pair.refresh([10 * k + 1 for k in range(0, 20, 2)])


def test_columns_of_a_view_that_are_renamed_and_dropped(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.view.alter_columns({"path": "p2", "name": "twice"}, {"path": "y", "name": "doubled"})
    pair.view.drop_columns("k")
    pair.change({"x": "x + 1"}, "k = 2")
    pair.change({"p": "p + 1"}, "k = 4")
    pair.source.add(rows_of([20]))
    pair.view.refresh()
    assert log.take() == [21, 200]
    expected = [{ID: row[ID], "twice": row["p2"], "doubled": row["y"]} for row in pair.at()]
    assert [
        {key: row[key] for key in (ID, "twice", "doubled")} for row in rows_shown(pair.view)
    ] == expected


def test_a_column_of_a_view_that_is_cast(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    before = pair.view.version
    pair.view.alter_columns({"path": "p2", "data_type": pa.int32()})
    pair.change({"p": "p + 1"}, "k = 4")
    with pytest.raises(ViewError, match=r"'p2'.*cast"):
        pair.view.refresh()
    lance.dataset(pair.view.uri, version=before).restore()
    pair.source.add(rows_of([20]))
    pair.refresh([200])


def test_the_column_of_row_ids_does_not_go_unnoticed(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"x": "x + 1"}, "k = 2")
    with pytest.raises(LanceSparkError, match=ID):  # noqa: PT012 - either may refuse
        pair.view.drop_columns(ID)
        pair.view.refresh()


# Changes of the view


@pytest.mark.long
def test_a_compacted_view(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 30)))
    pair.refresh()
    compact(pair.view)
    pair.refresh([])
    pair.delete("k = 2")
    pair.change({"x": "x + 1"}, "k = 4")
    pair.change({"p": "0"}, "k = 24")
    pair.refresh([41])
    compact(pair.view)
    clean(pair.view)
    pair.change({"p": "0"}, "k = 26")
    pair.refresh([])


def test_a_cleaned_up_view(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    for step in range(2):
        clean(pair.view)
        assert not pair.view.plan_refresh().has_work
        pair.refresh([])
        pair.source.add(rows_of([20 + step * 2]))
        pair.change({"x": "x + 1"}, "k = 2")
        compact(pair.view)
        clean(pair.view)
        pair.refresh([200 + step * 20, 21 + step])


@pytest.mark.long
def test_a_restored_view_is_brought_up_to_date_from_what_it_shows_now(
    db: Connection, log: Log
) -> None:
    pair = watched(db, log)
    first = pair.view.version
    pair.source.add(rows_of([20]))
    pair.change({"x": "x + 1"}, "k = 2")
    pair.refresh([21, 200])
    for version in range(first, pair.view.version + 1, 2):
        lance.dataset(pair.view.uri, version=version).restore()
        pair.refresh()
    lance.dataset(pair.view.uri, version=1).restore()
    pair.refresh(None)


def test_rows_that_were_deleted_from_a_view_come_back_when_they_change(
    db: Connection, log: Log
) -> None:
    pair = watched(db, log)
    pair.view.to_lance().delete("k < 6")
    pair.change({"x": "x + 1"}, "k IN (2, 8)")
    pair.view.refresh()
    assert sorted(row["k"] for row in rows_shown(pair.view)) == [2, 6, 8, 10, 12, 14, 16, 18]
    assert log.take() == [21, 81]


def test_an_indexed_view_and_source(db: Connection, log: Log) -> None:
    pair = watched(db, log, refreshed=False)
    pair.source.to_lance().create_scalar_index("k", "BTREE")
    pair.refresh(selected(range(20)))
    pair.view.to_lance().create_scalar_index(ID, "BTREE")
    pair.source.add(rows_of(range(20, 26)))
    pair.change({"p": "0"}, "k = 2")
    pair.refresh([200, 220, 240])
    pair.change({"p": "1"}, "k IN (4, 22)")
    pair.delete("k = 24")
    pair.refresh([])
    pair.view.to_lance().optimize.optimize_indices()
    pair.change({"p": "1"}, "k IN (4, 22)")
    pair.refresh([])


# Views of views


@pytest.mark.long
def test_a_chain_of_three_views(db: Connection, tmp_path: Path) -> None:
    logs = [Log(str(tmp_path / name)) for name in ("a", "b", "c")]
    source = make_source(db)
    a = source.search(None).select({"k": "k", "x": "x", "a": logs[0].doubling()}).where("k < 18")
    a = a.create_materialized_view(db, "a")
    b = a.search(None).select({"k": "k", "b": (logs[1].doubling(), ["a"])}).where("k >= 2")
    b = b.create_materialized_view(db, "b")
    c = b.search(None).select({"k": "k", "c": (logs[2].doubling(), ["b"])}).where("k % 2 = 0")
    c = c.create_materialized_view(db, "c")

    def check(*calls: int) -> None:
        for view in (a, b, c):
            view.refresh()
        rows = source.to_lance().to_table().to_pylist()
        expected = sorted(
            (row["k"], 8 * row["x"]) for row in rows if 2 <= row["k"] < 18 and row["k"] % 2 == 0
        )
        assert sorted((row["k"], row["c"]) for row in rows_shown(c)) == expected
        assert tuple(len(log_.take()) for log_ in logs) == calls

    check(18, 16, 8)
    source.to_lance().update({"x": "x + 1"}, where="k IN (3, 4)")
    source.to_lance().update({"u": "0"})
    check(2, 2, 1)
    source.to_lance().delete("k IN (6, 7)")
    compact(source)
    compact(a)
    compact(b)
    check(0, 0, 0)
    source.add(rows_of([-2, 2]))
    check(2, 1, 1)
    for view in (a, b, c):
        clean(view)
    source.to_lance().update({"k": "16"}, where="k = 17")
    for view in (a, b, c):
        view.refresh()
    assert sorted(row["k"] for row in rows_shown(c)) == [2, 2, 4, 8, 10, 12, 14, 16, 16]
