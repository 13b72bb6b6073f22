"""What others do beside a job, at a moment of a test's choice: in a call of the UDF, or when the job looks at the head."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError, BackfillJobResult, Table
from lance_spark.backfill.driver import job
from lance_spark.backfill.driver.rounds import Following
from lance_spark.commit import column_commit as column_commits
from lance_spark.commit.attempt import Landed, Unknown
from lance_spark.errors import CommitImpossibleError
from tests.lance_spark.backfill.review.lab import Lab
from tests.waiting import eventually
from udf_runtime import UDF, Columns, skip_on_error, udf
from udf_runtime.checkpoint import CheckpointStore

ROWS = 40
SETTINGS: dict[str, Any] = {
    "min_checkpoint_size": 5,
    "checkpoint_size": 5,
    "batch_checkpoint_flush_interval_seconds": 0,
    "task_size": 10,
}

ACTS: dict[int, list[Callable[[], object]]] = {}
"""What is done when the UDF is called for a value, once."""

CALLS: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    ACTS.clear()
    CALLS.clear()


def times_ten() -> UDF:
    def f(x: int) -> int:
        from tests.lance_spark.backfill.review.test_others import ACTS, CALLS

        CALLS.append(x)
        for act in ACTS.pop(x, []):
            act()
        return x * 10

    return udf(f, data_type=pa.int64(), version="1", name="times_ten")


def make(lab: Lab, *, stable: bool = True) -> Table:
    """A table of four fragments of ten rows, with a column `v` of the UDF."""
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    table = lab.table()
    table.add_columns({"v": times_ten()})
    return table


def run(table: Table, **settings: Any) -> BackfillJobResult:
    result = table.backfill("v", **{**SETTINGS, **settings})
    assert result.status == "DONE"
    return result


def wrong(uri: str) -> list[dict[str, Any]]:
    """Rows whose value is not that of their input."""
    rows = lance.dataset(uri).to_table(columns=["id", "x", "v"]).to_pylist()
    return [row for row in rows if row["v"] != row["x"] * 10]


def rewrite(uri: str, column: str, values: dict[int, int]) -> None:
    source = pa.table({"id": pa.array(values, pa.int64()), column: pa.array(values.values(), pa.int64())})
    lance.dataset(uri).merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source)


def clean_up(uri: str, **options: Any) -> None:
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), **options)


def test_files_of_a_commit_whose_answer_was_lost_stay(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real, lost = column_commits.attempt_commit, list[Any]()

    def attempt(*args: Any, **kwargs: Any) -> Any:
        outcome = real(*args, **kwargs)
        if lost or not isinstance(outcome, Landed):
            return outcome
        lost.append(outcome)
        return Unknown(error=OSError("timed out"))

    monkeypatch.setattr(column_commits, "attempt_commit", attempt)
    result = run(make(lab))
    assert lost and result.versions == (lance.dataset(lab.uri).version,)
    assert (result.rows_computed, result.fragments_done, wrong(lab.uri)) == (40, 4, [])


def when_committed(uri: str, act: Callable[[], object]) -> Callable[[], None]:
    """Does something when the job has committed its first fragment."""

    def wait_and_act() -> None:
        eventually(lambda: lance.dataset(uri).count_rows("v IS NOT NULL") >= 10)
        act()

    return wait_and_act


def compact(uri: str) -> None:
    lance.dataset(uri).optimize.compact_files()


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_inputs_that_changed_are_noticed_though_the_file_of_their_old_values_was_cleaned_up(
    stable: bool, compacted: bool, lab: Lab
) -> None:
    table = make(lab, stable=stable)

    def act() -> None:
        lance.dataset(lab.uri).update({"x": "x + 1001"}, where="id < 10")
        if compacted:
            compact(lab.uri)
        clean_up(lab.uri)

    ACTS[35] = [when_committed(lab.uri, act)]
    result = run(table, commit_granularity=1)
    assert wrong(lab.uri) == []
    if stable:
        assert (len(CALLS), result.rows_recomputed, result.rows_kept) == (50, 10, 0)


def test_a_compaction_and_a_cleanup_beside_commits_cost_no_call(lab: Lab) -> None:
    table = make(lab)
    ACTS[35] = [when_committed(lab.uri, lambda: (compact(lab.uri), clean_up(lab.uri)))]
    result = run(table, commit_granularity=1)
    assert wrong(lab.uri) == []
    assert (len(CALLS), result.rows_recomputed, result.rows_kept, result.rows_gone) == (40, 0, 0, 0)


def update_columns(uri: str, values: dict[int, int]) -> None:
    """Rewrites `x` in place by the call of Lance that does not say so of the rows."""
    dataset = lance.dataset(uri)
    source = pa.table({"id": pa.array(values, pa.int64()), "x": pa.array(values.values(), pa.int64())})
    fragment, fields = dataset.get_fragments()[0].update_columns(source, left_on="id")
    change = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
    lance.LanceDataset.commit(dataset, change, read_version=dataset.version)


def test_what_changed_in_place_before_a_compaction_is_found_by_comparing_where_the_old_version_is_kept(
    lab: Lab,
) -> None:
    table = make(lab)

    def act() -> None:
        update_columns(lab.uri, {1: 1001, 2: 1002})
        compact(lab.uri)
        lance.dataset(lab.uri).update_config({"any": "thing"})
        clean_up(lab.uri, error_if_tagged_old_versions=False)

    ACTS[35] = [act]
    assert run(table, protect_snapshot=True).rows_recomputed == 2
    assert (wrong(lab.uri), len(CALLS)) == ([], 42)


def test_stale_rows_are_found_by_comparing_with_a_version_that_a_tag_keeps(lab: Lab) -> None:
    table = make(lab)
    run(table)
    dataset = lance.dataset(lab.uri)
    dataset.tags.create("release", dataset.version)
    update_columns(lab.uri, {1: 1001, 2: 1002})
    compact(lab.uri)
    lance.dataset(lab.uri).update_config({"any": "thing"})
    clean_up(lab.uri, error_if_tagged_old_versions=False)
    assert table.plan_backfill("v", stale=True).rows_stale == 2
    assert run(table, stale=True).rows_computed == 2
    assert (wrong(lab.uri), len(CALLS)) == ([], 42)


@pytest.mark.parametrize("moved", [False, True], ids=["", "moved"])
def test_a_deletion_and_a_cleanup_beside_a_job_leave_it_to_go_on(moved: bool, lab: Lab) -> None:
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
    lance.dataset(lab.uri).delete("id IN (3, 13, 23, 33)")
    table = lab.table()
    table.add_columns({"v": times_ten()})
    others = f"""
import lance
from datetime import timedelta
lance.dataset({lab.uri!r}).delete("id IN (4, 14, 24, 34)")
if {moved}:
    lance.dataset({lab.uri!r}).update({{"x": "x + 1001"}}, where="id = 5")
lance.dataset({lab.uri!r}).cleanup_old_versions(older_than=timedelta(0))
"""
    # In a process of its own: this one's caches would still have the deletion files.
    ACTS[15] = [lambda: subprocess.run([sys.executable, "-c", others], check=True)]
    result = run(table)
    assert (wrong(lab.uri), result.fragments_failed) == ([], {})
    assert lance.dataset(lab.uri).count_rows("v IS NULL") == 0


def at_each_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> list[int]:
    """Lets somebody act whenever the job is about to look at the head; returns the looks."""
    real, looks = Following.next_round, list[int]()

    def next_round(self: Following, *arguments: Any) -> Any:
        looks.append(len(looks) + 1)
        act(looks[-1])
        return real(self, *arguments)

    monkeypatch.setattr(Following, "next_round", next_round)
    return looks


def test_updates_of_rows_that_a_job_does_not_cover_are_none_of_its_business(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(lab)
    looks = at_each_look(monkeypatch, lambda _: lance.dataset(lab.uri).update({"y": "y + 1"}, where="id = 35"))
    result = run(table, num_frags=1)
    assert (len(looks), result.rows_computed, len(CALLS)) == (1, 10, 10)


def test_a_job_beside_steady_updates_ends_when_a_version_was_right(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(lab)
    looks = at_each_look(monkeypatch, lambda _: lance.dataset(lab.uri).update({"y": "y + 1"}, where="id = 5"))
    result = run(table)
    assert (len(looks), wrong(lab.uri), len(CALLS)) == (1, [], 40)
    assert (result.rows_selected, result.rows_gone, result.new_rows) == (40, 0, 0)


def test_a_job_beside_steady_updates_of_inputs_gives_up_in_the_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(lab)
    looks = at_each_look(monkeypatch, lambda _: lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id = 5"))
    with pytest.raises(BackfillIncompleteError, match="others kept changing it") as caught:
        run(table, commit_max_retries=3, commit_timeout=timedelta(seconds=0.01))
    assert len(looks) == 5
    assert [row["id"] for row in wrong(lab.uri)] == [5]
    assert (caught.value.result.status, caught.value.result.rows_recomputed) == ("PARTIAL", 4)


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_rows_that_somebody_appended_with_values_keep_them_though_older_versions_are_gone(
    stable: bool, lab: Lab
) -> None:
    table = make(lab, stable=stable)

    def act() -> None:
        data = {"id": [100, 101], "x": [100, 101], "y": [0, 0], "v": pa.array([-1, -1], pa.int64())}
        lance.write_dataset(pa.table(data), lab.uri, mode="append")
        clean_up(lab.uri)

    ACTS[35] = [when_committed(lab.uri, act)]
    result = run(table, commit_granularity=1)
    assert [(row["id"], row["v"]) for row in wrong(lab.uri)] == [(100, -1), (101, -1)]
    assert (len(CALLS), result.rows_recomputed, result.new_rows, result.rows_gone) == (40, 0, 2, 0)


class Parts(NamedTuple):
    a: int
    b: int


def make_siblings(lab: Lab) -> Table:
    """A table of two fragments of ten rows, with columns `a` and `b` of one UDF."""

    def parts(x: int) -> Columns[Parts]:
        from tests.lance_spark.backfill.review.test_others import ACTS, CALLS

        CALLS.append(x)
        for act in ACTS.pop(x, []):
            act()
        return Parts(x * 2, x * 3)

    data = pa.table({"id": range(20), "x": range(20)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
    table = lab.table()
    table.add_columns(udf(parts, version="1", name="parts"))
    return table


def siblings(uri: str) -> dict[int, tuple[int | None, ...]]:
    rows = lance.dataset(uri).to_table().to_pylist()
    return {row["id"]: (row["x"], row["a"], row["b"]) for row in rows}


@pytest.mark.parametrize("granularity", [1, None], ids=["committed", "staged"])
def test_of_several_siblings_what_somebody_gave_stays_and_what_was_copied_is_computed_again(
    granularity: int | None, lab: Lab
) -> None:
    table = make_siblings(lab)

    def act() -> None:
        if granularity:
            eventually(lambda: lance.dataset(lab.uri).count_rows("a IS NOT NULL") >= 10)
        lance.dataset(lab.uri).update({"x": "x + 1000", "a": "-777"}, where="id = 3")
        lance.dataset(lab.uri).update({"a": "-888"}, where="id = 4")
        rewrite(lab.uri, "b", {15: -999})

    ACTS[15] = [act]
    result = table.backfill("a", **SETTINGS, commit_granularity=granularity)
    assert (result.status, result.rows_recomputed, len(CALLS)) == ("DONE", 1, 21)
    expected = {x: (x, 2 * x, 3 * x) for x in range(20)}
    assert siblings(lab.uri) == {**expected, 3: (1003, -777, 3009), 4: (4, -888, 12), 15: (15, 30, -999)}


def test_siblings_that_had_values_before_a_job_are_replaced_together(lab: Lab) -> None:
    table = make_siblings(lab)
    rewrite(lab.uri, "b", dict.fromkeys(range(20), 5))
    ACTS[15] = [lambda: lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id IN (3, 13)")]
    assert table.backfill("a", **SETTINGS).status == "DONE"
    expected = {x: (x, 2 * x, 3 * x) for x in range(20)}
    assert siblings(lab.uri) == {**expected, 3: (1003, 2006, 3009), 13: (1013, 2026, 3039)}


def test_a_sibling_that_somebody_else_wrote_in_place_is_out_of_date(lab: Lab) -> None:
    table = make_siblings(lab)
    table.backfill("a", **SETTINGS)
    rewrite(lab.uri, "b", {1: -1, 2: -2})
    assert table.plan_backfill("a", stale=True).total_rows_pending > 0
    assert table.backfill("a", stale=True, **SETTINGS).status == "DONE"
    rows = lance.dataset(lab.uri).to_table().to_pylist()
    assert [(row["a"], row["b"]) for row in rows] == [(2 * x, 3 * x) for x in range(20)]
    assert len(CALLS) == 20, "values of old were at hand"


def test_checkpoints_are_listed_once_where_an_update_mixes_rows_of_many_fragments(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pa.table({"id": range(200), "x": range(200), "y": range(200)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=5, enable_stable_row_ids=True)
    table = lab.table()
    table.add_columns({"v": times_ten()})
    listed = list[int]()

    def act(look: int) -> None:
        if look == 1:
            lance.dataset(lab.uri).update({"y": "y + 1"}, where="id % 5 = 0")
            for name in ("find", "find_all"):
                real = getattr(CheckpointStore, name)
                monkeypatch.setattr(CheckpointStore, name, lambda *a, _real=real: (listed.append(1), _real(*a))[1])

    at_each_look(monkeypatch, act)
    run(table, task_size=100)
    assert wrong(lab.uri) == []
    assert 0 < len(listed) < 30


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
def test_a_column_that_got_the_field_id_of_a_dropped_input_is_not_read_in_its_place(compacted: bool, lab: Lab) -> None:
    lance.write_dataset(pa.table({"id": range(ROWS)}), lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
    table = lab.table()

    def first(id: int) -> int:
        return id

    table.add_columns({"v": udf(first, data_type=pa.int64(), version="0")})
    lance.dataset(lab.uri).add_columns({"x": "id + 0"})
    table.alter_columns({"path": "v", "udf": times_ten()})

    def act() -> None:
        lance.dataset(lab.uri).drop_columns(["x"])
        if compacted:
            compact(lab.uri)
        lance.dataset(lab.uri).add_columns({"z": "id * 7"})

    ACTS[15] = [act]
    with pytest.raises(CommitImpossibleError, match="input column 'x' was dropped"):
        run(table)
    assert set(CALLS) <= set(range(ROWS)) and len(CALLS) <= ROWS


def test_rows_that_were_named_by_address_and_moved_are_told(lab: Lab) -> None:
    table = make(lab)
    addresses = [0, 1, *(3 << 32 | row for row in range(4))]
    ACTS[0] = [lambda: (compact(lab.uri), clean_up(lab.uri))]
    with pytest.raises(BackfillIncompleteError, match="addresses are others") as caught:
        run(table, where=f"_rowaddr IN ({', '.join(map(str, addresses))})")
    assert caught.value.result.status in ("PARTIAL", "FAILED")
    assert caught.value.result.fragments_failed


@pytest.mark.parametrize("column", ["x", "y"])
def test_a_skipped_row_that_an_update_moves_is_not_gone(column: str, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lance.write_dataset(
        pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)}),
        lab.uri,
        max_rows_per_file=10,
        enable_stable_row_ids=True,
    )
    table = lab.table()

    def fails_on_two(x: int) -> int:
        if x == 2:
            raise ValueError("two")
        return x * 10

    table.add_columns({"v": udf(fails_on_two, data_type=pa.int64(), version="1", on_error=skip_on_error())})

    def act(look: int) -> None:
        if look == 1:
            lance.dataset(lab.uri).update({column: f"{column} + 1000"}, where="id = 2")

    at_each_look(monkeypatch, act)
    result = run(table)
    skipped = 0 if column == "x" else 1
    assert (result.rows_selected, result.rows_skipped, result.rows_gone) == (40, skipped, 0)
    assert len(wrong(lab.uri)) == skipped


def test_a_table_that_was_made_anew_is_not_taken_for_the_old_one(lab: Lab) -> None:
    for compacted in (False, True):
        shutil.rmtree(lab.uri, ignore_errors=True)
        CALLS.clear()
        lance.write_dataset(pa.table({"id": range(ROWS)}), lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
        lance.dataset(lab.uri).add_columns({"x": "id + 0"})
        table = lab.table()
        table.add_columns({"v": times_ten()})

        def act(compacted: bool = compacted) -> None:
            lance.dataset(lab.uri).drop_columns(["x"])
            if compacted:
                compact(lab.uri)

        ACTS[15] = [act]
        result = run(table)
        assert (len(CALLS), result.rows_computed, result.rows_gone) == (40, 40, 0)
        rows = lance.dataset(lab.uri).to_table(columns=["id", "v"]).to_pylist()
        assert all(row["v"] == 10 * row["id"] for row in rows)


def test_every_round_of_a_job_is_told_from_the_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(lab)
    at_each_look(monkeypatch, lambda look: look < 15 and lance.dataset(lab.uri).update({"x": "x + 50"}, where="id = 5"))
    rounds = list[int]()
    real = job.Cluster

    def cluster(spark: Any, spec: Any, **settings: Any) -> Any:
        rounds.append(spec.round)
        return real(spark, spec, **settings)

    monkeypatch.setattr(job, "Cluster", cluster)
    result = run(table)
    assert (rounds, wrong(lab.uri), result.rows_recomputed) == ([*range(15)], [], 14)
