"""Views of chunks: each row's chunks occur once, and only changed rows reach the chunker."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from lance_spark.errors import (
    BackfillIncompleteError,
    OptionError,
    RegistrationError,
    StableRowIdsError,
    TableExistsError,
    ViewError,
    ViewSourceError,
)
from lance_spark.views import row_tasks
from tests.lance_spark.views.chunked import INDEX, Chunk, chunked, chunking
from tests.lance_spark.views.views import ID, clean, compact, make_source, rows_of, selected, upsert
from tests.support.drivers import driver
from tests.support.hooks import _before
from tests.support.logs import Log, flag_file
from tests.support.waiting import eventually
from udf_runtime import SkipThresholdExceededError, chunker, skip_on_error, udf, udtf

pytestmark = pytest.mark.sample(1, tests=6)

SKIPS = skip_on_error()


def slow(value: str) -> Any:
    """A case for the long tests."""
    return pytest.param(value, marks=pytest.mark.long)


@pytest.fixture
def flag(tmp_path: Path) -> str:
    return str(tmp_path / "flag")


# Changes


def test_the_first_refresh_chunks_each_row_once(db: Connection, log: Log) -> None:
    pair = chunked(db, log, refreshed=False)
    assert pair.view.schema.names == [ID, INDEX, "k", "p2", "n", "text"]
    assert pair.view.count_rows() == 0
    plan = pair.view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.rows_removed, plan.has_work) == (
        10,
        0,
        0,
        True,
    )
    result = pair.refresh(selected(range(20)))
    assert (result.rows_added, result.rows_chunked, result.rows_removed) == (len(pair.at()), 10, 0)


def test_a_row_without_chunks_is_done_and_a_second_refresh_does_nothing(
    db: Connection, log: Log
) -> None:
    pair = chunked(db, log, [0, 4, 8, 2])
    version = pair.view.version
    assert pair.view.count_rows() == 2
    result = pair.refresh([])
    assert (result.versions, pair.view.version) == ((), version)
    assert not pair.view.plan_refresh().has_work
    # A selected column of the row changes: the row still has no chunks, and the chunker is never called.
    pair.change({"p": "p + 1"}, "k = 4")
    assert pair.refresh([]).rows_processed == 0


@pytest.mark.sample(1)
def test_appended_changed_and_deleted_rows(db: Connection, log: Log) -> None:
    pair = chunked(db, log)
    pair.source.add(rows_of(range(20, 26)))
    pair.change({"x": "x + 10"}, "k IN (3, 4)")
    pair.delete("k IN (10, 11)")
    plan = pair.view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.untouched_fragments) == (3, 1, 0)
    result = pair.refresh([50, *selected(range(20, 26))])
    assert (result.rows_chunked, result.rows_recomputed) == (4, 0)


def test_a_change_of_a_selected_column_moves_the_chunks_and_calls_nothing(
    db: Connection, log: Log
) -> None:
    pair = chunked(db, log)
    pair.change({"p": "p + 100"}, "k < 10")
    moved_count = sum(row["k"] < 10 for row in pair.at())
    result = pair.refresh([])
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (0, moved_count, 0)


def test_unused_columns_and_compactions_change_nothing(db: Connection, log: Log) -> None:
    pair = chunked(db, log, range(10))
    pair.source.add(rows_of(range(10, 20)))
    pair.refresh()
    before = [fragment.metadata.to_json() for fragment in pair.view.to_lance().get_fragments()]
    pair.change({"u": "u + 1"})
    compact(pair.source)
    assert pair.refresh([]).rows_processed == 0
    assert [
        fragment.metadata.to_json() for fragment in pair.view.to_lance().get_fragments()
    ] == before


def test_rows_come_and_go_with_the_condition(db: Connection, log: Log) -> None:
    pair = chunked(db, log)
    pair.change({"k": "k + 1"}, "k IN (4, 5, 7)")
    pair.refresh([50, 70])
    # The row stays, and its value in the condition changes. The row is chunked again, as documented.
    pair.change({"k": "k + 2"}, "k = 12")
    pair.refresh([120])


@pytest.mark.long
def test_older_versions_and_restores_by_the_same_rules(db: Connection, log: Log) -> None:
    pair = chunked(db, log)
    pair.change({"x": "x + 10"}, "k = 6")
    pair.source.add(rows_of([20]))
    pair.refresh([70, 200])
    pair.refresh([60], src_version=1)
    lance.dataset(pair.source.uri, version=2).restore()
    pair.refresh([70])
    pair.view.to_lance().checkout_version(2).restore()
    pair.check(1)
    pair.refresh()


def test_a_chunk_view_can_be_a_source_and_have_columns_of_its_own(db: Connection, log: Log) -> None:
    pair = chunked(db, log)

    @udf
    def loud(text: str) -> str:
        return text.upper() + "!"

    pair.view.add_columns({"loud": loud})
    pair.view.backfill("loud")
    longest = (
        pair.view.search(None).select({"at": "__child_index", "n": "n"}).where("__child_index > 0")
    )
    second = db.create_materialized_view("second", longest)
    chunks = pair.view.search(None).select({"row": ID, "parent": "text"})
    again = db.create_udtf_view("again", chunks, chunking(log, input_columns=["n"]))
    pair.source.add(rows_of([22, 26]))
    pair.delete("k < 4")
    pair.refresh([220, 260])
    assert pair.view.backfill("loud").rows_computed == 4
    second.refresh()
    again.refresh()
    rows = pair.view.to_arrow([INDEX, "n", "text", "loud"]).to_pylist()
    assert all(row["loud"] == row["text"] + "!" for row in rows)
    assert sorted(second.to_arrow(["n"])["n"].to_pylist()) == sorted(
        row["n"] for row in rows if row[INDEX] > 0
    )
    parents = [row["text"] for row in rows for _ in range(row["n"] // 10 % 4)]
    assert sorted(again.to_arrow(["parent"])["parent"].to_pylist()) == sorted(parents)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(40)]
)
def test_any_history_of_a_source(seed: int, db: Connection, log: Log) -> None:
    """The view shows each version of its refreshes, and the chunker is called for rows whose inputs differ from the
    shown inputs.
    """
    rng = random.Random(seed)
    pair = chunked(db, log, range(rng.randrange(1, 30)))
    shown_version, key = pair.source.version, 30
    for _ in range(6 if seed else 4):
        for _ in range(rng.randrange(1, 4)):
            where = f"k % {rng.randrange(2, 6)} = {rng.randrange(2)}"
            match rng.randrange(7):
                case 0:
                    added = rng.randrange(1, 8)
                    pair.source.add(rows_of(range(key, key + added)))
                    key += added
                case 1:
                    pair.change({rng.choice(["x", "p", "u"]): f"{rng.randrange(200)}"}, where)
                case 2:
                    pair.delete(where if rng.random() < 0.5 else f"k = {rng.randrange(key)}")
                case 3:
                    compact(pair.source)
                case 4:
                    upsert(pair.source, rows_of([rng.randrange(key)]))
                case 5:
                    pair.change({"k": "k + 1"}, where)
                case 6:
                    compact(pair.view)
        target = rng.choice([None, None, None, rng.randrange(1, pair.source.version + 1)])
        before = pair.inputs(shown_version)
        result = pair.refresh(src_version=target) if target else pair.refresh()
        after = pair.inputs(result.source_version)
        assert result.rows_chunked == sum(before.get(row) != value for row, value in after.items())
        shown_version = result.source_version
    pair.refresh([], src_version=shown_version)


@pytest.mark.parametrize("way", ["look up", slow("join")])
def test_chunks_that_go_are_found_in_the_view(
    way: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = chunked(db, log, range(40))
    if way == "join":
        monkeypatch.setattr(row_tasks, "FILTERED_ROWS", 0)
        monkeypatch.setattr(row_tasks, "SEARCHED_ROWS", 0)
    pair.change({"x": "x + 10"}, "k % 4 = 0")
    pair.change({"p": "p + 1"}, "k % 3 = 0")
    pair.delete("k IN (6, 30)")
    result = pair.refresh()
    assert result.rows_chunked == 10
    assert result.rows_recomputed > 0


# Failures


def test_a_row_that_is_skipped_has_no_chunks_and_is_tried_again(
    db: Connection, log: Log, flag: str
) -> None:
    pair = chunked(db, log, chunker=chunking(log, bad=61, flag=flag, on_error=SKIPS))
    pair.change({"x": "61"}, "k = 2")
    with flag_file(flag):
        result = pair.view.refresh()
    assert (result.status, result.rows_skipped) == ("DONE", 1)
    errors = pair.view.get_errors(job_id=result.job_id)
    assert [(error.outcome, error.error_type, error.error_message) for error in errors] == [
        ("skipped", "ValueError", "row 61 is bad")
    ]
    assert log.take() == [61]
    pair.check(without=(61,))
    with flag_file(flag):
        assert pair.view.refresh().rows_skipped == 1
    assert log.take() == [61]
    compact(pair.source)
    pair.refresh([61])
    pair.refresh([])


def test_too_many_skipped_rows_commit_nothing(db: Connection, log: Log, flag: str) -> None:
    policy = skip_on_error(max_skip_count=0)
    pair = chunked(
        db, log, refreshed=False, chunker=chunking(log, bad=60, flag=flag, on_error=policy)
    )
    with flag_file(flag), pytest.raises(SkipThresholdExceededError):
        pair.view.refresh()
    assert pair.view.count_rows() == 0
    pair.refresh()


def test_an_error_commits_nothing_and_keeps_finished_chunks(
    db: Connection, log: Log, flag: str
) -> None:
    pair = chunked(
        db,
        log,
        range(100),
        refreshed=False,
        chunker=chunking(log, bad=980, flag=flag, checkpoint_size=10),
    )
    with flag_file(flag), pytest.raises(BackfillIncompleteError, match="row 980 is bad") as caught:
        pair.view.refresh()
    assert caught.value.result.status == "FAILED"
    assert pair.view.version == 1
    first = log.take()
    assert 980 in first
    result = pair.view.refresh()
    pair.check()
    again = log.take()
    # The repeated rows belong to unfinished batches.
    assert set(first) | set(again) == set(selected(range(100)))
    assert result.rows_from_checkpoint == 50 - len(again) > 0
    assert len(set(first) & set(again)) <= 20
    pair.refresh([])
    assert not list(Path(pair.view.uri).rglob("*.chunks"))


def test_a_process_that_dies_costs_its_row(db: Connection, log: Log) -> None:
    path = log.path

    @chunker(on_error=SKIPS)
    def killing(x: int) -> Iterator[Chunk]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        yield Chunk(x, "")
        if x == 20:
            os.kill(os.getpid(), 9)

    source = make_source(db, range(4))
    view = db.create_udtf_view("c", source.search(None), killing)
    result = view.refresh()
    assert (result.status, result.rows_skipped, view.count_rows()) == ("DONE", 1, 3)
    assert view.schema.names == [ID, INDEX, "n", "text"]


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "in the chunker",
        *(
            pytest.param(moment, marks=pytest.mark.long)
            for moment in ("before the commit", "after it")
        ),
    ],
)
def test_a_driver_that_is_killed(
    point: str, db: Connection, log: Log, flag: str, tmp_path: Path
) -> None:
    sizes = {"checkpoint_size": 5, "task_size": 1000}
    pair = chunked(
        db, log, range(40), refreshed=False, chunker=chunking(log, waits=380, flag=flag, **sizes)
    )
    home = tmp_path / "db"
    settings = (
        {}
        if point == "in the chunker"
        else {"point": "_commit" if point == "before the commit" else "_note"}
    )
    more: dict[str, Any] = {"module": "tests.support.refresh_driver", "common": {}}
    with flag_file(flag), driver({"c": (home, settings)}, **more) as process:
        if point == "in the chunker":
            process.wait_for(
                lambda: list(Path(pair.view.uri).rglob("*.chunks")) and 380 in log.rows()
            )
        else:
            Path(flag).unlink()
            process.wait_for(lambda: os.path.exists(home / "held"))
        process.kill()
    called_rows = log.take()
    compact(pair.source)
    pair.source.add(rows_of([40]))
    result = pair.view.refresh()
    pair.check()
    again = log.take()
    assert result.status == "DONE"
    assert set(called_rows) | set(again) == set(selected(range(41)))
    if point != "in the chunker":
        assert again == [400]
    # Only the running batches of the two tasks are repeated.
    assert len(set(called_rows) & set(again)) <= 10
    pair.refresh([])


def test_two_refreshes_at_once_make_each_chunk_once(db: Connection, log: Log) -> None:
    pair = chunked(db, log, range(40), refreshed=False)
    jobs = [pair.view.refresh_async() for _ in range(2)]
    assert [job.result().status for job in jobs] == ["DONE", "DONE"]
    pair.check()
    log.take()
    pair.source.add(rows_of(range(40, 50)))
    pair.change({"x": "x + 10"}, "k < 6")
    jobs = [pair.view.refresh_async() for _ in range(2)]
    assert [job.result().status for job in jobs] == ["DONE", "DONE"]
    pair.check()


@pytest.mark.long
@pytest.mark.sample(4)
@pytest.mark.parametrize("what", ["compact", "checkpoints", slow("delete"), slow("source")])
def test_others_between_chunking_and_the_commit(what: str, db: Connection, log: Log) -> None:
    pair = chunked(db, log)
    pair.change({"x": "x + 10"}, "k < 6")
    pair.change({"p": "p + 1"}, "k = 10")
    once: list[int] = []

    def act(*_: object) -> None:
        if once:
            return
        once.append(1)
        if what == "compact":
            pair.view.to_lance().delete("k = 10")
            compact(pair.view)
        elif what == "delete":
            pair.view.to_lance().delete("k = 0")
        elif what == "source":
            pair.change({"x": "7"}, "k = 0")
        else:
            for part in Path(pair.view.uri).rglob("*.chunks"):
                part.unlink()

    target = pair.source.version
    with _before(row_tasks.RowTasks, "write_chunks", act):
        result = pair.view.refresh(src_version=target)
    assert result.status == "DONE"
    if what == "compact":
        assert all(row["k"] != 10 for row in pair.view.to_arrow(["k"]).to_pylist())
    else:
        pair.check(target)


# Definitions and refusals


def test_refused_chunk_views(db: Connection, log: Log) -> None:
    source = make_source(db)
    pair = chunking(log)
    query = source.search(None)
    with pytest.raises(OptionError, match="A query over one table"):
        db.create_udtf_view("c", source, pair)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="Decorate a function with @chunker"):
        db.create_udtf_view("c", query, log.doubling())
    with pytest.raises(RegistrationError, match="makes rows"):
        source.add_columns({"y": pair})
    with pytest.raises(RegistrationError, match="makes rows"):
        query.select({"y": pair})
    with pytest.raises(RegistrationError, match="cannot select UDFs"):
        db.create_udtf_view("c", query.select({"y": log.doubling()}), pair)
    with pytest.raises(RegistrationError, match="limit"):
        db.create_udtf_view("c", query.limit(3), pair)
    with pytest.raises(RegistrationError, match="columns that the table lacks: 'nothing'"):
        db.create_udtf_view("c", query, chunking(log, input_columns=["nothing"]))
    with pytest.raises(RegistrationError, match="'n'"):
        db.create_udtf_view("c", query.select({"n": "k"}), pair)
    with pytest.raises(RegistrationError, match="under another name"):
        db.create_udtf_view("c", query.select({INDEX: "k"}), pair)
    with pytest.raises(OptionError, match="Manifest"):
        db.create_udtf_view("c", query, pair, manifest=object())
    assert db.table_names() == ["s"]
    view = db.create_udtf_view("c", query, pair)
    with pytest.raises(TableExistsError):
        db.create_udtf_view("c", query, pair)
    with pytest.raises(RegistrationError, match="no UDF is registered"):
        view.backfill("text")
    view.to_lance().drop_columns([INDEX])
    with pytest.raises(ViewError, match=INDEX):
        view.refresh()


def test_columns_of_chunks_can_be_renamed_and_dropped(db: Connection, log: Log) -> None:
    pair = chunked(db, log)
    pair.view.to_lance().alter_columns({"path": "n", "name": "number"})
    pair.view.to_lance().drop_columns(["text"])
    pair.source.add(rows_of([22]))
    pair.change({"p": "p + 1"}, "k = 2")
    assert pair.view.refresh().status == "DONE"
    numbers = pair.view.to_arrow(["number"])["number"].to_pylist()
    assert sorted(numbers) == sorted(row["n"] for row in pair.at())
    pair.view.to_lance().alter_columns({"path": "p2", "data_type": pa.int32()})
    with pytest.raises(ViewError, match="cast or created again"):
        pair.view.refresh()


def test_a_source_without_stable_row_ids_or_that_is_gone(db: Connection, log: Log) -> None:
    with pytest.warns(UserWarning, match="no stable ids"):
        pair = chunked(db, log, enable_stable_row_ids=False)
    pair.source.add(rows_of([20]))
    with pytest.raises(StableRowIdsError):
        pair.view.refresh()
    db.drop_table("s")
    with pytest.raises(ViewSourceError, match="does not exist any more"):
        pair.view.refresh()


def test_after_a_cleanup_of_the_shown_version_all_chunks_are_recomputed(
    db: Connection, log: Log
) -> None:
    pair = chunked(db, log)
    pair.change({"x": "x + 10"}, "k = 0")
    clean(pair.source)
    assert pair.view.plan_refresh().rebuilds
    pair.refresh(sorted([10, *selected(range(2, 20))]))


def test_a_cancelled_refresh_keeps_finished_chunks(db: Connection, log: Log, flag: str) -> None:
    pair = chunked(
        db, log, refreshed=False, chunker=chunking(log, waits=180, flag=flag, checkpoint_size=2)
    )
    with flag_file(flag):
        job = pair.view.refresh_async()
        eventually(lambda: 180 in log.rows(), 60)
        job.cancel()
        with pytest.raises(BackfillIncompleteError, match="cancelled"):
            job.result()
    assert [(record.status, record.job_type) for record in pair.view.list_jobs()] == [
        ("CANCELLED", "refresh")
    ]
    assert pair.view.version == 1
    pair.refresh()


# Table functions


def test_a_table_function_is_called_with_the_whole_source_at_each_refresh(
    db: Connection, log: Log
) -> None:
    source, path = make_source(db), log.path

    @udtf(output_schema=pa.schema([("parity", pa.int64()), ("total", pa.int64())]))
    def totals(rows: Any) -> Iterator[pa.RecordBatch]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{rows.count_rows()}\n")
        assert rows.schema.names == ["parity", "x"]
        sums = rows.to_pandas().groupby("parity").x.sum().reset_index(name="total")
        yield pa.RecordBatch.from_pandas(sums)
        assert (
            sum(batch.num_rows for batch in rows.to_batches(batch_size=3))
            == rows.to_arrow().num_rows
        )

    query = source.search(None).select({"parity": "k % 2", "x": "x"}).where("k < 10")
    view = db.create_udtf_view("t", query, totals)
    assert view.schema.names == ["parity", "total"]
    assert view.refresh().rows_added == 2
    assert view.to_arrow().to_pylist() == [{"parity": 0, "total": 200}, {"parity": 1, "total": 250}]
    source.to_lance().update({"x": "x + 1"}, where="k = 0")
    assert view.plan_refresh().has_work
    result = view.refresh()
    assert (result.rows_added, result.rows_removed, result.source_version) == (2, 2, 2)
    assert view.to_arrow()["total"].to_pylist() == [201, 250]
    view.refresh(src_version=1)
    assert view.to_arrow()["total"].to_pylist() == [200, 250]
    assert log.take() == [10, 10, 10]


def test_a_table_function_that_fails_changes_nothing(db: Connection, flag: str) -> None:
    @udtf(output_schema=pa.schema([("a", pa.int64())]))
    def failing(rows: Any) -> Iterator[pa.Table]:
        yield pa.table({"a": [rows.count_rows()]})
        if os.path.exists(flag):
            raise KeyError("gone")

    view = db.create_udtf_view("t", make_source(db).search(None), failing)
    view.refresh()
    version = view.version
    with flag_file(flag), pytest.raises(BackfillIncompleteError, match="KeyError"):
        view.refresh()
    assert view.version == version
    assert len(list(Path(view.uri, "data").iterdir())) == 1
    assert [job.status for job in view.list_jobs()] == ["FAILED", "DONE"]


def test_a_view_of_chunks_knows_its_source_without_secrets(
    db: Connection, log: Log, spark: SparkSession
) -> None:
    make_source(db)
    other_db = lance_spark.connect(db.uri, spark, {"secret_key": "hush"}, progress=False)
    view = other_db.create_udtf_view("d", other_db.open_table("s").search(None), chunking(log))
    view.refresh()
    assert b"hush" not in b"".join(
        path.read_bytes() for path in Path(view.uri).rglob("*") if path.is_file()
    )
    assert view.count_rows() == 30
