"""A job inspects concurrent changes at the end of its tasks, without extra calls and without losing values."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError, BackfillJobResult, Table
from lance_spark.backfill.driver import job
from lance_spark.backfill.driver.scheduler import Scheduler
from lance_spark.commit import column_commit
from lance_spark.commit.attempt import Landed, Unknown
from tests.support.inline_jobs import (
    CUT,
    WHOLE,
    InlineLab,
    values,
)
from tests.support.waiting import eventually
from udf_runtime import skip_on_error, udf
from udf_runtime.checkpoint import CheckpointStore

pytestmark = pytest.mark.sample(1, tests=5)

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def make(lab: InlineLab, *, stable: bool = True) -> Table:
    """A table of four fragments of ten rows, with a column `v` of the UDF."""
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    table = lab.table()
    table.add_columns({"v": lab.times_ten()})
    return table


def run(table: Table, **settings: Any) -> BackfillJobResult:
    result = table.backfill("v", **{**CUT, **settings})
    assert result.status == "DONE"
    return result


def wrong(uri: str) -> list[dict[str, Any]]:
    """Rows whose value differs from the result for their input."""
    rows = lance.dataset(uri).to_table(columns=["id", "x", "v"]).to_pylist()
    return [row for row in rows if row["v"] != row["x"] * 10]


def clean_up(uri: str, **options: Any) -> None:
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), **options)


def when_committed(uri: str, act: Callable[[], object]) -> Callable[[], None]:
    """Does something when the job has committed its first fragment."""

    def wait_and_act() -> None:
        eventually(lambda: lance.dataset(uri).count_rows("v IS NOT NULL") >= 10)
        act()

    return wait_and_act


def compact(uri: str) -> None:
    lance.dataset(uri).optimize.compact_files()


def update_columns(uri: str, values: dict[int, int]) -> None:
    """Rewrites `x` in place by the call of Lance that does not update row versions."""
    dataset = lance.dataset(uri)
    source = pa.table(
        {"id": pa.array(values, pa.int64()), "x": pa.array(values.values(), pa.int64())}
    )
    fragment, fields = dataset.get_fragments()[0].update_columns(source, left_on="id")
    change = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
    lance.LanceDataset.commit(dataset, change, read_version=dataset.version)


def test_files_of_a_commit_whose_answer_was_lost_stay(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = column_commit.attempt_commit, list[Any]()

    def attempt(*args: Any, **kwargs: Any) -> Any:
        outcome = real(*args, **kwargs)
        if lost or not isinstance(outcome, Landed):
            return outcome
        lost.append(outcome)
        return Unknown(error=OSError("timed out"))

    monkeypatch.setattr(column_commit, "attempt_commit", attempt)
    result = run(make(lab))
    assert lost and result.versions == (lance.dataset(lab.uri).version,)
    assert (result.rows_computed, result.fragments_done, wrong(lab.uri)) == (40, 4, [])


def test_inputs_changed_in_place_before_a_compaction_are_found_if_the_old_version_is_kept(
    lab: InlineLab,
) -> None:
    table = make(lab)

    def act() -> None:
        update_columns(lab.uri, {1: 1001, 2: 1002})
        compact(lab.uri)
        lance.dataset(lab.uri).update_config({"any": "thing"})
        clean_up(lab.uri, error_if_tagged_old_versions=False)

    lab.at(35, act)
    assert run(table, protect_snapshot=True).rows_recomputed == 2
    assert (wrong(lab.uri), len(lab.calls())) == ([], 42)


def test_stale_rows_are_found_by_comparing_with_a_version_that_a_tag_keeps(lab: InlineLab) -> None:
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
    assert (wrong(lab.uri), len(lab.calls())) == ([], 42)


@pytest.mark.parametrize("is_moved", [False, True], ids=["", "moved"])
def test_a_job_continues_after_a_concurrent_deletion_and_cleanup(
    is_moved: bool, lab: InlineLab
) -> None:
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
    lance.dataset(lab.uri).delete("id IN (3, 13, 23, 33)")
    table = lab.table()
    table.add_columns({"v": lab.times_ten()})
    script = f"""
import lance
from datetime import timedelta
lance.dataset({lab.uri!r}).delete("id IN (4, 14, 24, 34)")
if {is_moved}:
    lance.dataset({lab.uri!r}).update({{"x": "x + 1001"}}, where="id = 5")
lance.dataset({lab.uri!r}).cleanup_old_versions(older_than=timedelta(0))
"""
    # In another process, because the caches of this process would still hold the deletion files.
    lab.at(15, lambda: subprocess.run([sys.executable, "-c", script], check=True))
    result = run(table)
    assert (wrong(lab.uri), result.fragments_failed) == ([], {})
    assert lance.dataset(lab.uri).count_rows("v IS NULL") == 0


def test_updates_of_uncovered_rows_do_not_affect_a_job(lab: InlineLab) -> None:
    table = make(lab)
    with lab.after_commits(
        lambda _: lance.dataset(lab.uri).update({"y": "y + 1"}, where="id = 35")
    ) as versions:
        result = run(table, num_frags=1)
    assert (len(versions), result.rows_computed, len(lab.calls())) == (1, 10, 10)


def test_a_job_with_steady_concurrent_updates_ends_at_a_right_version(lab: InlineLab) -> None:
    table = make(lab)
    with lab.after_commits(
        lambda _: lance.dataset(lab.uri).update({"y": "y + 1"}, where="id = 5")
    ) as versions:
        result = run(table)
    assert (len(versions), wrong(lab.uri), len(lab.calls())) == (1, [], 40)
    assert (result.rows_selected, result.rows_gone, result.new_rows) == (40, 0, 0)


def test_a_job_with_steady_concurrent_updates_of_inputs_gives_up_in_the_end(lab: InlineLab) -> None:
    table = make(lab)
    update = lab.after_commits(
        lambda _: lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id = 5")
    )
    with (
        update as versions,
        pytest.raises(
            BackfillIncompleteError, match="concurrent commits kept changing it"
        ) as caught,
    ):
        run(table, commit_max_retries=3, commit_timeout=timedelta(seconds=0.01))
    assert len(versions) == 5
    assert [row["id"] for row in wrong(lab.uri)] == [5]
    assert (caught.value.result.status, caught.value.result.rows_recomputed) == ("PARTIAL", 4)


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_rows_that_were_appended_with_values_keep_them_though_older_versions_are_gone(
    stable: bool, lab: InlineLab
) -> None:
    table = make(lab, stable=stable)

    def act() -> None:
        data = {"id": [100, 101], "x": [100, 101], "y": [0, 0], "v": pa.array([-1, -1], pa.int64())}
        lance.write_dataset(pa.table(data), lab.uri, mode="append")
        clean_up(lab.uri)

    lab.at(35, when_committed(lab.uri, act))
    result = run(table, commit_granularity=1)
    assert [(row["id"], row["v"]) for row in wrong(lab.uri)] == [(100, -1), (101, -1)]
    assert (len(lab.calls()), result.rows_recomputed, result.new_rows, result.rows_gone) == (
        40,
        0,
        2,
        0,
    )


@pytest.mark.long
def test_checkpoints_are_listed_once_where_an_update_mixes_rows_of_many_fragments(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pa.table({"id": range(200), "x": range(200), "y": range(200)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=5, enable_stable_row_ids=True)
    table = lab.table()
    table.add_columns({"v": lab.times_ten()})
    listed = list[int]()

    def act(commit: int) -> None:
        if commit == 1:
            lance.dataset(lab.uri).update({"y": "y + 1"}, where="id % 5 = 0")
            for name in ("find", "find_all"):
                real = getattr(CheckpointStore, name)
                monkeypatch.setattr(
                    CheckpointStore, name, lambda *a, _real=real: (listed.append(1), _real(*a))[1]
                )

    with lab.after_commits(act):
        run(table, task_size=100)
    assert wrong(lab.uri) == []
    assert 0 < len(listed) < 100, "a few times per fragment, and not once per pair of fragments"


def test_a_task_over_many_fragments_has_one_attempt_and_few_checkpoints_of_its_files(
    lab: InlineLab,
) -> None:
    table = lab.make(pa.table({"id": range(200), "x": range(200)}), rows_per_file=5)
    table.add_columns({"v": lab.times_ten()})
    with lab.dying_at_commit():
        table.backfill("v", task_size=50)
    ours = Path(lab.uri, "_lance_spark")
    assert len(list(ours.glob("staging/*/*/attempt"))) == 4, "one of each task"
    assert 4 <= len(list(ours.glob("checkpoints/*/files.*.ref"))) < 40, (
        "one of each task per second"
    )
    assert len(lab.calls()) == table.plan_backfill("v").rows_from_checkpoint == 200
    result = table.backfill("v")
    assert (result.status, result.rows_from_checkpoint, lab.calls(), wrong(lab.uri)) == (
        "DONE",
        200,
        [],
        [],
    )
    assert not list(ours.glob("checkpoints/*/*"))


def test_moved_rows_of_a_filter_by_address_are_reported(lab: InlineLab) -> None:
    table = make(lab)
    addresses = [0, 1, *(3 << 32 | row for row in range(4))]
    lab.at(0, lambda: (compact(lab.uri), clean_up(lab.uri)))
    with pytest.raises(BackfillIncompleteError, match="addresses are others") as caught:
        run(table, where=f"_rowaddr IN ({', '.join(map(str, addresses))})")
    assert caught.value.result.status in ("PARTIAL", "FAILED")
    assert caught.value.result.fragments_failed


@pytest.mark.parametrize("column", ["x", "y"])
def test_a_skipped_row_that_an_update_moves_is_not_gone(column: str, lab: InlineLab) -> None:
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

    table.add_columns(
        {"v": udf(fails_on_two, data_type=pa.int64(), version="1", on_error=skip_on_error())}
    )

    def act(commit: int) -> None:
        if commit == 1:
            lance.dataset(lab.uri).update({column: f"{column} + 1000"}, where="id = 2")

    with lab.after_commits(act):
        result = run(table)
    assert (result.rows_selected, result.rows_skipped, result.rows_gone) == (40, 1, 0)
    assert len(wrong(lab.uri)) == (0 if column == "x" else 1), (
        "with other inputs it is called again"
    )


def test_a_recreated_table_is_not_mistaken_for_the_old_one(lab: InlineLab) -> None:
    for compacted in (False, True):
        shutil.rmtree(lab.uri, ignore_errors=True)
        lance.write_dataset(
            pa.table({"id": range(ROWS)}), lab.uri, max_rows_per_file=10, enable_stable_row_ids=True
        )
        lance.dataset(lab.uri).add_columns({"x": "id + 0"})
        table = lab.table()
        table.add_columns({"v": lab.times_ten()})

        def act(compacted: bool = compacted) -> None:
            lance.dataset(lab.uri).drop_columns(["x"])
            if compacted:
                compact(lab.uri)

        lab.at(15, act)
        result = run(table)
        assert (len(lab.calls()), result.rows_computed, result.rows_gone) == (40, 40, 0)
        rows = lance.dataset(lab.uri).to_table(columns=["id", "v"]).to_pylist()
        assert all(row["v"] == 10 * row["id"] for row in rows)


@pytest.mark.long
def test_a_job_takes_as_many_rounds_as_inputs_change(lab: InlineLab) -> None:
    table = make(lab)
    with lab.after_commits(
        lambda n: n < 15 and lance.dataset(lab.uri).update({"x": "x + 50"}, where="id = 5")
    ) as versions:
        result = run(table)
    assert (len(versions), wrong(lab.uri), result.rows_recomputed) == (15, [], 14)
    assert len(lab.calls()) == 40 + 14


def test_a_round_takes_no_answers_of_another_one_that_read_the_same_version(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf()})

    def clean_up() -> None:
        lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)

    monkeypatch.setattr(job, "Scheduler", Scheduler)
    lab.at(35, clean_up)
    # The second round is long enough for the driver to look for reports.
    lab.at(0, lambda: None, lambda: time.sleep(0.5))
    settings = {**CUT, "batch_checkpoint_flush_interval_seconds": 1000}
    result = table.backfill("v", refresh_status_secs=0.1, commit_granularity=None, **settings)
    assert (result.status, len(result.versions)) == ("DONE", 2)
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
    assert lab.calls() == sorted([*range(ROWS), *range(30)]), (
        "three files were lost, and each row was computed again once"
    )


@pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["one range", "two ranges"])
def test_rows_that_became_null_in_two_rounds_are_counted_together(
    settings: dict[str, Any], lab: InlineLab
):
    table = lab.make(pa.table({"id": range(20), "a": range(20)}))
    table.add_columns({"v": (lab.udf(), ["a"])})
    new_inputs = {1: [500, *range(1, 20)], 2: [500, 501, *range(2, 20)]}
    with lab.after_commits(lambda n: n in new_inputs and lab.rewrite("a", pa.array(new_inputs[n]))):
        result = table.backfill("v", on_stale="null", **settings)
    assert values(table, "v") == {i: (i if i > 1 else None,) for i in range(20)}
    assert (result.status, result.rows_nulled, result.rows_computed) == ("DONE", 2, 20)
    assert lab.calls() == [*range(20)]


def test_a_skipped_row_that_gets_a_value_when_its_inputs_change_is_counted_once(lab: InlineLab):
    table = lab.make(pa.table({"id": range(20), "a": range(20)}))
    table.add_columns({"v": (lab.udf(bad=frozenset({2}), on_error=skip_on_error()), ["a"])})
    with lab.after_commits(
        lambda n: n == 1 and lab.rewrite("a", pa.array([0, 1, 1002, *range(3, 20)]))
    ):
        result = table.backfill("v", **CUT)
    assert values(table, "v") == {i: (i if i != 2 else 1002,) for i in range(20)}
    assert lab.calls() == [*range(20), 1002]
    counters = (
        result.rows_selected,
        result.rows_computed,
        result.rows_recomputed,
        result.rows_skipped,
    )
    assert counters == (20, 20, 0, 1), "the row was skipped once, and computed once"
    assert (result.status, result.rows_failed, result.rows_gone) == ("DONE", 0, 0)


def test_ranges_of_a_fragment_that_a_cleanup_took_away_count_once(lab: InlineLab):
    table = lab.make(IDS, rows_per_file=20)
    table.add_columns({"v": lab.udf()})

    def compact_and_clean_up() -> None:
        table.to_lance().optimize.compact_files(target_rows_per_fragment=40)
        lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0))

    lab.at(2, compact_and_clean_up)
    result = table.backfill("v", **CUT)
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
    assert lab.calls() == sorted([*range(10), *range(ROWS)]), (
        "nothing tells any more where the first range went"
    )
    assert (result.rows_selected, result.rows_computed, result.rows_gone) == (ROWS, ROWS + 10, 0)
    assert (result.status, result.rows_failed) == ("DONE", 0)


def test_the_history_is_read_once_however_many_commits_a_job_makes(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    reads: list[int] = []
    read = lance.LanceDataset.read_transaction

    def counting(dataset: lance.LanceDataset, version: int) -> Any:
        reads.append(version)
        return read(dataset, version)

    monkeypatch.setattr(lance.LanceDataset, "read_transaction", counting)
    table = lab.make(IDS, rows_per_file=2)
    table.add_columns({"v": lab.udf()})
    reads.clear()
    assert len(table.backfill("v", commit_granularity=1, task_size=2).versions) == ROWS // 2
    assert len(reads) <= 2 * ROWS // 2, "two per commit, and not two per pair of commits"
