"""Views of chunks: each row's chunks are in the view once, and a chunker is called for what changed alone."""

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

SKIPS = skip_on_error()


def slow(value: str) -> Any:
    """A case that only the long tests have."""
    return pytest.param(value, marks=pytest.mark.long)


@pytest.fixture
def flag(tmp_path: Path) -> str:
    return str(tmp_path / "flag")


# What changes


def test_the_first_refresh_chunks_each_row_once(db: Connection, log: Log) -> None:
    made = chunked(db, log, refreshed=False)
    assert made.view.schema.names == [ID, INDEX, "k", "p2", "n", "text"]
    assert made.view.count_rows() == 0
    plan = made.view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.rows_removed, plan.has_work) == (10, 0, 0, True)
    result = made.refresh(selected(range(20)))
    assert (result.rows_added, result.rows_chunked, result.rows_removed) == (len(made.at()), 10, 0)


def test_a_row_without_chunks_is_done_and_a_second_refresh_does_nothing(db: Connection, log: Log) -> None:
    made = chunked(db, log, [0, 4, 8, 2])
    version = made.view.version
    assert made.view.count_rows() == 2
    result = made.refresh([])
    assert (result.versions, made.view.version) == ((), version)
    assert not made.view.plan_refresh().has_work
    # One of them changes in a column that is selected: it still has no chunks, and is not called.
    made.change({"p": "p + 1"}, "k = 4")
    assert made.refresh([]).rows_processed == 0


def test_appended_changed_and_deleted_rows(db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.source.add(rows_of(range(20, 26)))
    made.change({"x": "x + 10"}, "k IN (3, 4)")
    made.delete("k IN (10, 11)")
    plan = made.view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.untouched_fragments) == (3, 1, 0)
    result = made.refresh([50, *selected(range(20, 26))])
    assert (result.rows_chunked, result.rows_recomputed) == (4, 0)


def test_a_change_of_a_selected_column_moves_the_chunks_and_calls_nothing(db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.change({"p": "p + 100"}, "k < 10")
    moved = sum(row["k"] < 10 for row in made.at())
    result = made.refresh([])
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (0, moved, 0)


def test_unused_columns_and_compactions_change_nothing(db: Connection, log: Log) -> None:
    made = chunked(db, log, range(10))
    made.source.add(rows_of(range(10, 20)))
    made.refresh()
    before = [fragment.metadata.to_json() for fragment in made.view.to_lance().get_fragments()]
    made.change({"u": "u + 1"})
    compact(made.source)
    assert made.refresh([]).rows_processed == 0
    assert [fragment.metadata.to_json() for fragment in made.view.to_lance().get_fragments()] == before


def test_rows_come_and_go_with_the_condition(db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.change({"k": "k + 1"}, "k IN (4, 5, 7)")
    made.refresh([50, 70])
    # A row that stays, and of which the condition reads another value, is chunked again: documented.
    made.change({"k": "k + 2"}, "k = 12")
    made.refresh([120])


@pytest.mark.long
def test_older_versions_and_restores_by_the_same_rules(db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.change({"x": "x + 10"}, "k = 6")
    made.source.add(rows_of([20]))
    made.refresh([70, 200])
    made.refresh([60], src_version=1)
    lance.dataset(made.source.uri, version=2).restore()
    made.refresh([70])
    made.view.to_lance().checkout_version(2).restore()
    made.check(1)
    made.refresh()


def test_a_chunk_view_can_be_a_source_and_have_columns_of_its_own(db: Connection, log: Log) -> None:
    made = chunked(db, log)

    @udf
    def loud(text: str) -> str:
        return text.upper() + "!"

    made.view.add_columns({"loud": loud})
    made.view.backfill("loud")
    longest = made.view.search(None).select({"at": "__child_index", "n": "n"}).where("__child_index > 0")
    second = db.create_materialized_view("second", longest)
    again = db.create_udtf_view("again", made.view.search(None).select({"row": ID}), chunking(log, input_columns=["n"]))
    made.source.add(rows_of([22, 26]))
    made.delete("k < 4")
    made.refresh([220, 260])
    assert made.view.backfill("loud").rows_computed == 4
    second.refresh()
    again.refresh()
    rows = made.view.to_arrow([INDEX, "n", "text", "loud"]).to_pylist()
    assert all(row["loud"] == row["text"] + "!" for row in rows)
    assert sorted(second.to_arrow(["n"])["n"].to_pylist()) == sorted(row["n"] for row in rows if row[INDEX] > 0)
    assert again.count_rows() == sum(row["n"] // 10 % 4 for row in rows)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(40)])
def test_any_history_of_a_source(seed: int, db: Connection, log: Log) -> None:
    """The view shows each version that it is refreshed to, and rows are called whose inputs are others than those shown."""
    rng = random.Random(seed)
    made = chunked(db, log, range(rng.randrange(1, 30)))
    shown, key = made.source.version, 30
    for _ in range(6 if seed else 4):
        for _ in range(rng.randrange(1, 4)):
            where = f"k % {rng.randrange(2, 6)} = {rng.randrange(2)}"
            match rng.randrange(7):
                case 0:
                    added = rng.randrange(1, 8)
                    made.source.add(rows_of(range(key, key + added)))
                    key += added
                case 1:
                    made.change({rng.choice(["x", "p", "u"]): f"{rng.randrange(200)}"}, where)
                case 2:
                    made.delete(where if rng.random() < 0.5 else f"k = {rng.randrange(key)}")
                case 3:
                    compact(made.source)
                case 4:
                    upsert(made.source, rows_of([rng.randrange(key)]))
                case 5:
                    made.change({"k": "k + 1"}, where)
                case 6:
                    compact(made.view)
        target = rng.choice([None, None, None, rng.randrange(1, made.source.version + 1)])
        before = made.inputs(shown)
        result = made.refresh(src_version=target) if target else made.refresh()
        after = made.inputs(result.source_version)
        assert result.rows_chunked == sum(before.get(row) != value for row, value in after.items())
        shown = result.source_version
    made.refresh([], src_version=shown)


@pytest.mark.parametrize("way", ["look up", slow("join")])
def test_chunks_that_go_are_found_in_the_view(
    way: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = chunked(db, log, range(40))
    if way == "join":
        monkeypatch.setattr(row_tasks, "FILTERED_ROWS", 0)
        monkeypatch.setattr(row_tasks, "SEARCHED_ROWS", 0)
    made.change({"x": "x + 10"}, "k % 4 = 0")
    made.change({"p": "p + 1"}, "k % 3 = 0")
    made.delete("k IN (6, 30)")
    result = made.refresh()
    assert result.rows_chunked == 10
    assert result.rows_recomputed > 0


# Failures


def test_a_row_that_is_skipped_has_no_chunks_and_is_tried_again(db: Connection, log: Log, flag: str) -> None:
    made = chunked(db, log, made=chunking(log, bad=61, flag=flag, on_error=SKIPS))
    made.change({"x": "61"}, "k = 2")
    with flag_file(flag):
        result = made.view.refresh()
    assert (result.status, result.rows_skipped) == ("DONE", 1)
    errors = made.view.get_errors(job_id=result.job_id)
    assert [(error.outcome, error.error_type, error.error_message) for error in errors] == [
        ("skipped", "ValueError", "row 61 is bad")
    ]
    assert log.take() == [61]
    made.check(without=(61,))
    with flag_file(flag):
        assert made.view.refresh().rows_skipped == 1
    assert log.take() == [61]
    compact(made.source)
    made.refresh([61])
    made.refresh([])


def test_too_many_skipped_rows_commit_nothing(db: Connection, log: Log, flag: str) -> None:
    policy = skip_on_error(max_skip_count=0)
    made = chunked(db, log, refreshed=False, made=chunking(log, bad=60, flag=flag, on_error=policy))
    with flag_file(flag), pytest.raises(SkipThresholdExceededError):
        made.view.refresh()
    assert made.view.count_rows() == 0
    made.refresh()


def test_an_error_commits_nothing_and_what_was_chunked_is_kept(db: Connection, log: Log, flag: str) -> None:
    made = chunked(db, log, range(100), refreshed=False, made=chunking(log, bad=980, flag=flag, checkpoint_size=10))
    with flag_file(flag), pytest.raises(BackfillIncompleteError, match="row 980 is bad") as caught:
        made.view.refresh()
    assert caught.value.result.status == "FAILED"
    assert made.view.version == 1
    first = log.take()
    assert 980 in first
    result = made.view.refresh()
    made.check()
    again = log.take()
    # What is called again are rows of batches that had not ended.
    assert set(first) | set(again) == set(selected(range(100)))
    assert result.rows_from_checkpoint == 50 - len(again) > 0
    assert len(set(first) & set(again)) <= 20
    made.refresh([])
    assert not list(Path(made.view.uri).rglob("*.chunks"))


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
    ["in the chunker", *(pytest.param(one, marks=pytest.mark.long) for one in ("before the commit", "after it"))],
)
def test_a_driver_that_is_killed(point: str, db: Connection, log: Log, flag: str, tmp_path: Path) -> None:
    sizes = {"checkpoint_size": 5, "task_size": 1000}
    made = chunked(db, log, range(40), refreshed=False, made=chunking(log, waits=380, flag=flag, **sizes))
    home = tmp_path / "db"
    settings = {} if point == "in the chunker" else {"point": "_commit" if point == "before the commit" else "_note"}
    more: dict[str, Any] = {"module": "tests.support.refresh_driver", "common": {}}
    with flag_file(flag), driver({"c": (home, settings)}, **more) as process:
        if point == "in the chunker":
            process.wait_for(lambda: list(Path(made.view.uri).rglob("*.chunks")) and 380 in log.rows())
        else:
            Path(flag).unlink()
            process.wait_for(lambda: os.path.exists(home / "held"))
        process.kill()
    seen = log.take()
    compact(made.source)
    made.source.add(rows_of([40]))
    result = made.view.refresh()
    made.check()
    again = log.take()
    assert result.status == "DONE"
    assert set(seen) | set(again) == set(selected(range(41)))
    if point != "in the chunker":
        assert again == [400]
    # Of two tasks the batches that were under way are all that is called again.
    assert len(set(seen) & set(again)) <= 10
    made.refresh([])


def test_two_refreshes_at_once_make_each_chunk_once(db: Connection, log: Log) -> None:
    made = chunked(db, log, range(40), refreshed=False)
    jobs = [made.view.refresh_async() for _ in range(2)]
    assert [job.result().status for job in jobs] == ["DONE", "DONE"]
    made.check()
    log.take()
    made.source.add(rows_of(range(40, 50)))
    made.change({"x": "x + 10"}, "k < 6")
    jobs = [made.view.refresh_async() for _ in range(2)]
    assert [job.result().status for job in jobs] == ["DONE", "DONE"]
    made.check()


@pytest.mark.sample(4)
@pytest.mark.parametrize("what", ["compact", "checkpoints", slow("delete"), slow("source")])
def test_others_between_chunking_and_the_commit(what: str, db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.change({"x": "x + 10"}, "k < 6")
    made.change({"p": "p + 1"}, "k = 10")
    once: list[int] = []

    def act(*_: object) -> None:
        if once:
            return
        once.append(1)
        if what == "compact":
            made.view.to_lance().delete("k = 10")
            compact(made.view)
        elif what == "delete":
            made.view.to_lance().delete("k = 0")
        elif what == "source":
            made.change({"x": "7"}, "k = 0")
        else:
            for part in Path(made.view.uri).rglob("*.chunks"):
                part.unlink()

    target = made.source.version
    with _before(row_tasks.RowTasks, "place_chunks", act):
        result = made.view.refresh(src_version=target)
    assert result.status == "DONE"
    if what == "compact":
        assert all(row["k"] != 10 for row in made.view.to_arrow(["k"]).to_pylist())
    else:
        made.check(target)


# Definitions and refusals


def test_what_is_refused(db: Connection, log: Log) -> None:
    source = make_source(db)
    made = chunking(log)
    query = source.search(None)
    with pytest.raises(OptionError, match="A query over one table"):
        db.create_udtf_view("c", source, made)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="decorate a function with @chunker"):
        db.create_udtf_view("c", query, log.doubling())
    with pytest.raises(RegistrationError, match="makes rows"):
        source.add_columns({"y": made})
    with pytest.raises(RegistrationError, match="makes rows"):
        query.select({"y": made})
    with pytest.raises(RegistrationError, match="cannot select UDFs"):
        db.create_udtf_view("c", query.select({"y": log.doubling()}), made)
    with pytest.raises(RegistrationError, match="limit"):
        db.create_udtf_view("c", query.limit(3), made)
    with pytest.raises(RegistrationError, match="columns that are not there: 'nothing'"):
        db.create_udtf_view("c", query, chunking(log, input_columns=["nothing"]))
    with pytest.raises(RegistrationError, match="'n'"):
        db.create_udtf_view("c", query.select({"n": "k"}), made)
    with pytest.raises(RegistrationError, match="under another name"):
        db.create_udtf_view("c", query.select({INDEX: "k"}), made)
    with pytest.raises(OptionError, match="Manifest"):
        db.create_udtf_view("c", query, made, manifest=object())
    assert db.table_names() == ["s"]
    view = db.create_udtf_view("c", query, made)
    with pytest.raises(TableExistsError):
        db.create_udtf_view("c", query, made)
    with pytest.raises(RegistrationError, match="no UDF is registered"):
        view.backfill("text")
    view.to_lance().drop_columns([INDEX])
    with pytest.raises(ViewError, match=INDEX):
        view.refresh()


def test_columns_of_chunks_can_be_renamed_and_dropped(db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.view.to_lance().alter_columns({"path": "n", "name": "number"})
    made.view.to_lance().drop_columns(["text"])
    made.source.add(rows_of([22]))
    made.change({"p": "p + 1"}, "k = 2")
    assert made.view.refresh().status == "DONE"
    numbers = made.view.to_arrow(["number"])["number"].to_pylist()
    assert sorted(numbers) == sorted(row["n"] for row in made.at())
    made.view.to_lance().alter_columns({"path": "p2", "data_type": pa.int32()})
    with pytest.raises(ViewError, match="cast or made anew"):
        made.view.refresh()


def test_a_source_without_stable_row_ids_or_that_is_gone(db: Connection, log: Log) -> None:
    with pytest.warns(UserWarning, match="no stable ids"):
        made = chunked(db, log, enable_stable_row_ids=False)
    made.source.add(rows_of([20]))
    with pytest.raises(StableRowIdsError):
        made.view.refresh()
    db.drop_table("s")
    with pytest.raises(ViewSourceError, match="not there any more"):
        made.view.refresh()


def test_a_version_that_was_cleaned_up_makes_all_chunks_anew(db: Connection, log: Log) -> None:
    made = chunked(db, log)
    made.change({"x": "x + 10"}, "k = 0")
    clean(made.source)
    assert made.view.plan_refresh().rebuilds
    made.refresh(sorted([10, *selected(range(2, 20))]))


def test_a_cancelled_refresh_keeps_what_was_chunked(db: Connection, log: Log, flag: str) -> None:
    made = chunked(db, log, refreshed=False, made=chunking(log, waits=180, flag=flag, checkpoint_size=2))
    with flag_file(flag):
        job = made.view.refresh_async()
        eventually(lambda: 180 in log.rows(), 60)
        job.cancel()
        with pytest.raises(BackfillIncompleteError, match="cancelled"):
            job.result()
    assert [(one.status, one.job_type) for one in made.view.list_jobs()] == [("CANCELLED", "refresh")]
    assert made.view.version == 1
    made.refresh()


# Table functions


def test_a_table_function_is_called_with_the_whole_source_at_each_refresh(db: Connection, log: Log) -> None:
    source, path = make_source(db), log.path

    @udtf(output_schema=pa.schema([("parity", pa.int64()), ("total", pa.int64())]))
    def totals(rows: Any) -> Iterator[pa.RecordBatch]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{rows.count_rows()}\n")
        assert rows.schema.names == ["parity", "x"]
        found = rows.to_pandas().groupby("parity").x.sum().reset_index(name="total")
        yield pa.RecordBatch.from_pandas(found)
        assert sum(batch.num_rows for batch in rows.to_batches(batch_size=3)) == rows.to_arrow().num_rows

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


def test_a_view_of_chunks_knows_its_source_without_secrets(db: Connection, log: Log, spark: SparkSession) -> None:
    make_source(db)
    other = lance_spark.connect(db.uri, spark, {"secret_key": "hush"}, progress=False)
    view = other.create_udtf_view("d", other.open_table("s").search(None), chunking(log))
    view.refresh()
    assert b"hush" not in b"".join(path.read_bytes() for path in Path(view.uri).rglob("*") if path.is_file())
    assert view.count_rows() == 30
