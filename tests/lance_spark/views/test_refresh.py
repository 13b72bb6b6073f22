"""Refreshes: a view shows the result of its query on a version, and no UDF is called twice for a row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import Connection
from lance_spark.views import row_tasks
from tests.lance_spark.views.views import (
    ID,
    WHERE,
    SourceAndView,
    clean,
    compact,
    make_source,
    nothing_changes,
    rows_of,
    rows_shown,
    selected,
    upsert,
    watched,
)
from tests.support.logs import Log
from udf_runtime import udf

pytestmark = pytest.mark.sample(4, tests=8)

# Changes


def test_the_first_refresh_makes_all_rows_and_calls_the_udf_once_for_each(
    db: Connection, log: Log
) -> None:
    pair = watched(db, log, refreshed=False)
    assert pair.view.count_rows() == 0
    result = pair.refresh(selected(range(20)))
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (10, 0, 0)
    assert pair.view.schema.names == [ID, "k", "p2", "y"]


def test_a_second_refresh_does_nothing(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    with nothing_changes(pair.view):
        result = pair.refresh([])
    assert (result.rows_processed, result.versions, result.previous_version) == (0, (), 1)


def test_appended_rows_are_added(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 30)))
    plan = pair.view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.rows_removed, plan.untouched_fragments) == (
        5,
        0,
        0,
        1,
    )
    result = pair.refresh(selected(range(20, 30)))
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (5, 0, 0)


def test_a_change_of_an_input_calls_the_udf_for_that_row_alone(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"x": "x + 1"}, "k IN (3, 4)")
    result = pair.refresh([41])
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (0, 1, 0)


def test_a_change_of_another_selected_column_calls_no_udf(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"p": "p + 100"}, "k < 10")
    result = pair.refresh([])
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (0, 5, 0)


def test_a_change_of_a_column_that_the_view_does_not_use_changes_no_row(
    db: Connection, log: Log
) -> None:
    pair = watched(db, log)
    before = pair.view.to_lance().get_fragments()[0].metadata.to_json()
    pair.change({"u": "u + 1"})
    result = pair.refresh([])
    assert result.rows_processed == 0
    assert pair.view.to_lance().get_fragments()[0].metadata.to_json() == before


def test_a_compaction_of_the_source_changes_no_row(db: Connection, log: Log) -> None:
    pair = watched(db, log, range(10))
    pair.source.add(rows_of(range(10, 20)))
    pair.delete("k = 3")
    pair.refresh()
    compact(pair.source)
    assert len(pair.source.to_lance().get_fragments()) == 1
    assert not pair.view.plan_refresh().has_work
    assert pair.refresh([]).rows_processed == 0


def test_deleted_rows_are_removed(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.delete("k < 5")
    plan = pair.view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed) == (0, 0)
    result = pair.refresh([])
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (0, 0, 3)


def test_rows_come_and_go_as_they_match_the_condition(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"k": "k + 1"}, "k IN (4, 5, 7)")
    plan = pair.view.plan_refresh()
    result = pair.refresh([50, 70])
    assert (result.rows_added + result.rows_recomputed, result.rows_removed) == (2, 1)
    assert plan.rows_added + plan.rows_recomputed == 2


def test_a_condition_on_a_column_that_is_not_selected(db: Connection, log: Log) -> None:
    source = make_source(db)
    view = (
        source.search(None)
        .select({"y": log.doubling()})
        .where("u >= 15")
        .create_materialized_view(db, "v")
    )
    view.refresh()
    assert [row["y"] for row in rows_shown(view)] == [300, 320, 340, 360, 380]
    log.take()
    source.to_lance().update({"u": "0"}, where="k = 15")
    source.to_lance().update({"u": "99"}, where="k = 1")
    view.refresh()
    assert sorted(row["y"] for row in rows_shown(view)) == [20, 320, 340, 360, 380]
    assert log.take() == [10]


def test_everything_at_once(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 24)))
    pair.change({"x": "x + 1"}, "k = 2")
    pair.change({"p": "-1"}, "k IN (4, 20)")
    pair.delete("k = 6")
    compact(pair.source)
    pair.change({"u": "-1"})
    upsert(pair.source, [{"k": k, "x": -k, "p": k, "u": k} for k in (8, 9, 40, 41)])
    result = pair.refresh([200, 220, 21, -8, -40])
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (3, 3, 1)


def test_all_rows_go_and_all_come_back(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.delete("true")
    assert pair.refresh([]).rows_removed == 10
    assert pair.rows_shown() == []
    pair.source.add(rows_of(range(4)))
    pair.refresh([0, 20])
    pair.refresh(selected(range(20)), src_version=1)


def test_all_rows_change(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"x": "x + 1", "p": "p + 1"})
    pair.refresh([10 * k + 1 for k in range(0, 20, 2)])


def test_an_empty_source_and_an_empty_result(db: Connection, log: Log) -> None:
    source = make_source(db, [])
    query = source.search(None).select({"k": "k", "p2": "p * 2", "y": log.doubling()}).where(WHERE)
    pair = SourceAndView(source=source, view=db.create_materialized_view("v", query), log=log)
    pair.refresh([])
    pair.refresh([])
    pair.source.add(rows_of([1, 3]))
    pair.refresh([])
    pair.source.add(rows_of([2]))
    pair.refresh([20])
    pair.refresh([], src_version=1)


def test_rows_that_were_deleted_before_the_first_refresh(db: Connection, log: Log) -> None:
    pair = watched(db, log, refreshed=False)
    pair.delete("k < 4")
    pair.change({"x": "x + 5"}, "k = 6")
    pair.refresh([40, 65, *selected(range(8, 20))])
    pair.delete("k = 8")
    pair.change({"p": "7"}, "k = 6")
    pair.refresh([])


@pytest.mark.long
def test_values_that_are_null(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.change({"p": "NULL"}, "k = 2")
    pair.change({"k": "NULL"}, "k = 4")
    pair.refresh([])
    pair.change({"p": "5"}, "p IS NULL")
    pair.change({"k": "4"}, "k IS NULL")
    pair.refresh([40])


# Updates in place


def test_a_column_that_is_rewritten_in_place(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    dataset = pair.source.to_lance()
    new = pa.table({"k": pa.array([2, 4], pa.int64()), "x": pa.array([7, 40], pa.int64())})
    metadata, changed = dataset.get_fragments()[0].update_columns(new, left_on="k", right_on="k")
    operation = lance.LanceOperation.Update(updated_fragments=[metadata], fields_modified=changed)
    lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
    pair.refresh([7])


def test_columns_that_a_merge_rewrites(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    upsert(pair.source, [{"k": 2, "x": 7, "p": 9, "u": 1}])
    pair.refresh([7])
    merge = pair.source.to_lance().merge_insert("k").when_matched_update_all()
    merge.execute(pa.table({"k": pa.array([4], pa.int64()), "p": pa.array([-4], pa.int64())}))
    pair.refresh([])
    merge = pair.source.to_lance().merge_insert("k").when_matched_update_all()
    merge.execute(pa.table({"k": pa.array([6], pa.int64()), "x": pa.array([-6], pa.int64())}))
    pair.refresh([-6])


def test_a_computed_column_of_the_source(db: Connection, log: Log, tmp_path: Path) -> None:
    of_source = Log(str(tmp_path / "source"))
    source = make_source(db)
    source.add_columns({"c": of_source.doubling()})

    @udf
    def up(c: int | None) -> int | None:
        return None if c is None else c + 1

    view = source.search(None).select({"c": "c", "d": up}).create_materialized_view(db, "v")
    view.refresh()
    assert all((row["c"], row["d"]) == (None, None) for row in rows_shown(view))
    source.backfill("c", where="k < 10")
    view.refresh()
    source.backfill("c")
    compact(source)
    view.refresh()
    assert sorted((row["c"], row["d"]) for row in rows_shown(view)) == [
        (20 * k, 20 * k + 1) for k in range(20)
    ]


# Parameters


@pytest.mark.parametrize(
    "rows", [3, pytest.param(1, marks=pytest.mark.long), pytest.param(1000, marks=pytest.mark.long)]
)
def test_fragments_of_the_view_have_so_many_rows_at_most(
    rows: int, db: Connection, log: Log
) -> None:
    pair = watched(db, log, refreshed=False)
    pair.source.add(rows_of(range(20, 30)))
    pair.refresh(selected(range(30)), max_rows_per_fragment=rows, concurrency=1)
    assert (
        max(fragment.metadata.physical_rows for fragment in pair.view.to_lance().get_fragments())
        <= rows
    )
    pair.change({"x": "x + 1"}, "k < 10")
    pair.refresh(
        [1, 21, 41, 61, 81], max_rows_per_fragment=rows, concurrency=1, intra_applier_concurrency=2
    )
    assert (
        max(fragment.metadata.physical_rows for fragment in pair.view.to_lance().get_fragments())
        <= rows
    )
    pair.delete("k < 25")
    pair.refresh([], concurrency=None)


@pytest.mark.parametrize(
    ("filtered", "searched"),
    [(1000, 1000), (3, 1000), pytest.param(3, 3, marks=pytest.mark.long)],
    ids=["filter", "search", "join"],
)
def test_changed_rows_are_found_in_the_view(
    filtered: int, searched: int, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tasks, "FILTERED_ROWS", filtered)
    monkeypatch.setattr(row_tasks, "SEARCHED_ROWS", searched)
    pair = watched(db, log, range(60))
    pair.source.add(rows_of(range(60, 120)))
    pair.refresh(max_rows_per_fragment=7)
    pair.change({"x": "x + 1"}, "k % 3 = 0")
    pair.change({"k": "k + 1000"}, "k % 5 = 0")
    pair.change({"k": "k + 1"}, "k % 7 = 0")
    pair.delete("k % 11 = 0")
    before = pair.inputs(pair.view.plan_refresh().previous_version)
    inputs_now = pair.inputs()
    pair.refresh([x for row, x in inputs_now.items() if row not in before or before[row] != x])


@pytest.mark.slow
def test_more_changed_rows_than_are_looked_up(db: Connection) -> None:
    rows = 24_000
    data = pa.table(
        {"k": pa.array(range(rows), pa.int64()), "p": pa.array(range(rows), pa.int64())}
    )
    source = db.create_table("s", data)
    view = (
        source.search(None)
        .select({"k": "k", "p": "p"})
        .where("p >= 0")
        .create_materialized_view(db, "v")
    )
    view.refresh(max_rows_per_fragment=5000)
    source.to_lance().update({"p": "p + 1"}, where="k < 11000")
    source.to_lance().update({"p": "-1"}, where="k >= 23000")
    source.to_lance().delete("k >= 20000 AND k < 21000")
    result = view.refresh()
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (0, 11_000, 2000)
    expected_rows = source.to_lance().to_table(with_row_id=True, filter="p >= 0").to_pylist()
    assert [(row[ID], row["k"], row["p"]) for row in rows_shown(view)] == sorted(
        (row["_rowid"], row["k"], row["p"]) for row in expected_rows
    )


def test_refresh_async_and_its_handle(db: Connection, log: Log) -> None:
    pair = watched(db, log, refreshed=False)
    job = pair.view.refresh_async()
    result = job.result()
    pair.check()
    assert result.rows_added == 10
    (record,) = [
        job_record for job_record in pair.view.list_jobs() if job_record.job_type == "refresh"
    ]
    assert (record.status, record.rows_computed, record.job_id) == ("DONE", 10, result.job_id)


# Random histories


def change_at_random(pair: SourceAndView, dice: random.Random, fresh: Any) -> str:
    """Changes the source at random, and returns the name of the change."""
    first = dice.randrange(30)
    where = f"k >= {first} AND k < {first + dice.randrange(1, 12)}"
    act = dice.choice(
        ["append", "x", "p", "u", "k", "delete", "compact", "upsert", "restore", "columns"]
    )
    if act == "append":
        pair.source.add([{**row, "x": next(fresh)} for row in rows_of(range(first, first + 5))])
    elif act in ("x", "p", "u"):
        pair.change({act: f"{act} + {next(fresh)}"}, where)
    elif act == "k":
        pair.change({"k": "k + 1"}, where)
    elif act == "delete":
        pair.delete(where)
    elif act == "compact":
        compact(pair.source)
    elif act == "upsert":
        # pylance refuses duplicate keys with several matches.
        keys = range(first + 100, first + 104)
        upsert(pair.source, [{**row, "x": next(fresh)} for row in rows_of(keys)])
    elif act == "columns":
        merge = pair.source.to_lance().merge_insert("u").when_matched_update_all()
        keys = [row["u"] for row in pair.source.to_lance().to_table(filter=where).to_pylist()]
        once = [k for k in set(keys) if pair.source.count_rows(f"u = {k}") == 1]
        column = dice.choice(["x", "p"])
        if once:
            new = pa.table(
                {
                    "u": pa.array(once, pa.int64()),
                    column: pa.array([next(fresh) for _ in once], pa.int64()),
                }
            )
            merge.execute(new)
    else:
        versions = [version.version for version in pair.source.versions]
        lance.dataset(pair.source.uri, version=dice.choice(versions)).restore()
    return act


def check_random_history(db: Connection, log: Log, seed: int, steps: int) -> None:
    dice, fresh = random.Random(seed), iter(range(1000, 1_000_000, 7))
    pair = watched(db, log)
    at = 1
    story = []
    for _ in range(steps):
        story.extend(change_at_random(pair, dice, fresh) for _ in range(dice.randrange(1, 4)))
        newest = pair.source.version
        version = dice.choice([None, None, None, dice.randrange(1, newest + 1)])
        story.append(f"refresh({version})")
        before, after = pair.inputs(at), pair.inputs(version)
        called = [x for row, x in after.items() if row not in before or before[row] != x]
        view = dice.choice([None, None, compact, clean])
        if view is not None:
            view(pair.view)
            story.append(f"view {view.__name__}")
        at = version or newest
        plan = pair.view.plan_refresh(src_version=version)
        result = pair.view.refresh(
            src_version=version, max_rows_per_fragment=dice.choice([None, 4])
        )
        text = f"seed {seed}: {', '.join(story)}"
        assert result.source_version == at
        assert rows_shown(pair.view) == pair.at(at), text
        assert log.take() == sorted(called), text
        assert (plan.rows_added, plan.rows_recomputed) == (
            result.rows_added,
            result.rows_recomputed,
        ), text


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_random_histories(seed: int, db: Connection, log: Log) -> None:
    check_random_history(db, log, seed, 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_histories(seed: int, db: Connection, log: Log) -> None:
    check_random_history(db, log, seed, 12)
