"""Concurrent writers that restore, rewrite or delete data of a running job. Each case failed once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import BackfillIncompleteError, Table
from lance_spark.backfill.driver.group_commit import GroupCommits
from tests.support.inline_jobs import CUT, WHOLE, InlineLab, values, without_spark
from udf_runtime import udf

pytestmark = pytest.mark.sample(1, tests=3)

ROWS = 40


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[InlineLab]:
    with without_spark(tmp_path) as lab_here:
        yield lab_here


def make(lab: InlineLab, *, stable: bool = True) -> Table:
    data = pa.table({"id": range(ROWS), "x": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    table = lab.table()
    table.add_columns({"v": lab.times_ten()})
    return table


def wrong(uri: str) -> list[dict[str, Any]]:
    rows = lance.dataset(uri).to_table(columns=["id", "x", "v"]).to_pylist()
    return [row for row in rows if row["v"] != row["x"] * 10]


def rewrite(uri: str, column: str, cells: dict[int, int | None]) -> None:
    """Writes a column of some rows in place, as Lance does."""
    source = pa.table(
        {"id": pa.array(cells, pa.int64()), column: pa.array(cells.values(), pa.int64())}
    )
    lance.dataset(uri).merge_insert("id").when_matched_update_all().write_mode(
        "rewrite_columns"
    ).execute(source)


def filled(uri: str) -> int:
    return lance.dataset(uri).count_rows("v IS NOT NULL")


# Filters


@pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["one range", "two ranges"])
def test_with_a_filter_every_selected_row_is_called_also_one_that_was_computed_as_null(
    settings: dict[str, Any], lab: InlineLab
):
    called = lab.called()

    def odd(id: int) -> int | None:
        called(id)
        return id if id % 2 else None

    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": udf(odd, data_type=pa.int64(), version="1")})
    for _ in range(2):
        plan = table.plan_backfill("v", where="1=1")
        assert (plan.total_rows_pending, plan.rows_to_compute) == (20, 20)
        assert table.backfill("v", where="1=1", **settings).rows_computed == 20
        assert lab.calls() == [*range(20)]
    assert table.plan_backfill("v", where="v IS NULL").rows_to_compute == 10
    assert table.backfill("v", where="v IS NULL", **settings).rows_computed == 10
    assert lab.calls() == [*range(0, 20, 2)]
    assert table.backfill("v", **settings).rows_selected == 0, "without a filter they are done"


def test_a_job_with_a_filter_that_was_interrupted_goes_on_where_it_was(lab: InlineLab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    lab.calls()
    with lab.dying_at_commit():
        table.backfill("v", where="1=1", **WHOLE)
    assert lab.calls() == [*range(20)]
    assert table.backfill("v", where="1=1", **WHOLE).rows_computed == 0


# Restores and values rewritten in place


@pytest.mark.parametrize("stable", [True, False])
def test_rows_that_a_restore_brought_back_are_computed_though_an_input_was_rewritten_since(
    stable: bool, lab: InlineLab
):
    table = make(lab, stable=stable)
    before = lance.dataset(lab.uri).version
    lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id < 4")
    assert table.backfill("v", **WHOLE).status == "DONE"
    lance.dataset(lab.uri, version=before).restore()
    lab.rewrite("x", pa.array([*range(9), 900]))
    lab.calls()
    assert table.backfill("v", **WHOLE).status == "DONE"
    assert wrong(lab.uri) == []
    assert lab.calls() == [0, 1, 2, 3, 900], (
        "the rows that were deleted in between, and the one that changed"
    )
    assert table.backfill("v", stale=True, **WHOLE).status == "DONE"
    assert wrong(lab.uri) == []


def test_values_removed_by_a_restore_come_back_without_a_call(lab: InlineLab):
    table = make(lab)
    before = lance.dataset(lab.uri).version
    with lab.after_commits(lambda n: n == 2 and lance.dataset(lab.uri, version=before).restore()):
        result = table.backfill("v", commit_granularity=1, **WHOLE)
    assert (result.status, wrong(lab.uri), len(lab.calls())) == ("DONE", [], ROWS)


def test_a_restore_right_after_the_last_commit_is_seen(lab: InlineLab):
    table = make(lab)
    before = lance.dataset(lab.uri).version
    with lab.after_commits(lambda n: n == 1 and lance.dataset(lab.uri, version=before).restore()):
        result = table.backfill("v", **WHOLE)
    assert (result.status, wrong(lab.uri), len(lab.calls())) == ("DONE", [], ROWS)


@pytest.mark.sample(1)
def test_nulls_that_are_written_over_what_the_job_has_committed_get_their_values_again(
    lab: InlineLab,
):
    table = make(lab)
    with lab.after_commits(lambda n: n == 1 and rewrite(lab.uri, "v", {3: None, 5: None})):
        result = table.backfill("v", commit_granularity=1, **WHOLE)
    assert (result.status, wrong(lab.uri), len(lab.calls())) == ("DONE", [], ROWS)


@pytest.mark.parametrize("where", [None, "1=1"])
def test_a_value_in_place_over_what_the_job_has_committed_stays_unless_a_filter_asked_for_its_row(
    where: str | None, lab: InlineLab
):
    table = make(lab)
    with lab.after_commits(lambda n: n == 1 and rewrite(lab.uri, "v", {3: -5})):
        result = table.backfill("v", where=where, commit_granularity=1, **WHOLE)
    assert (result.status, len(lab.calls())) == ("DONE", ROWS)
    assert [row["id"] for row in wrong(lab.uri)] == ([3] if where is None else [])


# Deleted data of a running job


def test_records_that_are_deleted_while_a_job_runs_hide_no_changed_input(lab: InlineLab):
    table = make(lab)

    def act(commit: int) -> None:
        if commit == 2:
            shutil.rmtree(f"{lab.uri}/_lance_spark/records.lance")
            lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id < 20")

    with lab.after_commits(act):
        result = table.backfill("v", commit_granularity=1, **WHOLE)
    assert (result.status, wrong(lab.uri)) == ("DONE", [])


# Counts of outdated values


def test_a_job_that_compared_the_rows_leaves_none_that_count_as_out_of_date(lab: InlineLab):
    table = make(lab)
    with lab.after_commits(lambda n: n == 1 and lab.rewrite("x", pa.array([700, *range(1, 10)]))):
        table.backfill("v", commit_granularity=1, **WHOLE)
    assert (wrong(lab.uri), len(lab.calls())) == ([], ROWS + 1)
    assert table.plan_backfill("v", stale=True).total_rows_pending == 0


def test_inputs_rewritten_before_the_first_commit_leave_no_row_that_counts_as_out_of_date(
    lab: InlineLab,
):
    table = make(lab)
    lab.at(35, lambda: lab.rewrite("x", pa.array([700, *range(1, 10)])))
    table.backfill("v", **WHOLE)
    assert (wrong(lab.uri), len(lab.calls())) == ([], ROWS + 1)
    assert table.plan_backfill("v", stale=True).total_rows_pending == 0


def test_values_committed_before_the_death_of_a_driver_are_not_outdated(
    lab: InlineLab, monkeypatch: Any
):
    table = make(lab)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GroupCommits, "_note", die)
        with pytest.raises(KeyboardInterrupt):
            table.backfill("v", **WHOLE)
    assert filled(lab.uri) == ROWS
    assert table.plan_backfill("v").rows_stale == 0
    lab.calls()
    assert table.backfill("v", stale=True, **WHOLE).rows_computed == 0


# Files, errors, messages


def test_files_of_a_job_that_ended_badly_go_with_the_next_that_ends_well(lab: InlineLab):
    table = lab.make(pa.table({"id": range(ROWS)}), rows_per_file=10)
    table.add_columns(
        {
            "v": lab.udf(
                on_error=lance_spark.skip_on_error(max_skip_count=3), bad=frozenset(range(30, 40))
            )
        }
    )
    with pytest.raises(lance_spark.SkipThresholdExceededError):
        table.backfill("v", commit_granularity=None, **WHOLE)
    assert lab.calls()
    unnamed = {path.name for path in Path(lab.uri, "data").iterdir()}
    lab.switch.write_text("0")
    result = table.backfill("v", **WHOLE)
    assert (result.status, result.rows_from_checkpoint) == ("DONE", 30)
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
    referenced_files = {
        file.path for f in lance.dataset(lab.uri).get_fragments() for file in f.metadata.files
    }
    unreferenced_files = {path.name for path in Path(lab.uri, "data").iterdir()} - referenced_files
    assert unnamed and unreferenced_files == set()


def test_an_error_that_nothing_expects_ends_a_job_with_an_error_of_ours(
    lab: InlineLab, monkeypatch: Any
):
    table = make(lab)

    def fail(*_: object) -> None:
        raise StopIteration

    monkeypatch.setattr(GroupCommits, "commit", fail)
    with pytest.raises(BackfillIncompleteError, match="StopIteration") as error:
        table.backfill("v", **WHOLE)
    assert isinstance(error.value.__cause__, (StopIteration, RuntimeError))


@pytest.mark.long
def test_a_branch_keeps_the_files_of_a_job_that_ended_badly(lab: InlineLab):
    table = lab.make(pa.table({"id": range(ROWS)}), rows_per_file=10)
    table.add_columns({"v": lab.udf(bad=frozenset({35}))})
    with pytest.raises(BackfillIncompleteError):
        table.backfill("v", **WHOLE)
    lance.dataset(lab.uri).create_branch("kept")
    lab.rewrite("v", pa.array(range(100, 110)))
    lab.switch.write_text("0")
    assert table.backfill("v", **WHOLE).status == "DONE"
    branch = lance.dataset(lab.uri).checkout_version(("kept", None))
    assert branch.to_table(columns=["v"], filter="id < 30")["v"].to_pylist() == [*range(30)]


@pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["one range", "two ranges"])
def test_a_row_that_is_skipped_when_its_inputs_have_changed_loses_the_value_of_the_old_ones(
    settings: dict[str, Any], lab: InlineLab
):
    called = lab.called()

    def positive(x: int) -> int:
        called(x)
        if x < 0:
            raise ValueError(x)
        return x * 10

    table = lab.make(pa.table({"id": range(40), "x": range(40)}), rows_per_file=20)
    table.add_columns(
        {
            "v": udf(
                positive, data_type=pa.int64(), version="1", on_error=lance_spark.skip_on_error()
            )
        }
    )
    lab.at(30, lambda: rewrite(lab.uri, "x", {3: -1}))
    result = table.backfill("v", commit_granularity=1, **settings)
    assert (result.rows_skipped, result.status) == (1, "DONE")
    assert values(table, "v")[3] == (None,)
    assert [row["id"] for row in wrong(lab.uri)] == [3]
