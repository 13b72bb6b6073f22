"""Jobs whose values cannot be applied any more, and jobs beside a cleanup: nothing computed is lost, and what happened is said."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.errors import CommitImpossibleError, CommitOutcomeUnknownError
from tests.lance_spark.conflicts.jobs import ALL, Lab, When, counting_udf, filled
from tests.lance_spark.conflicts.others import (
    Act,
    assert_says_what_happened,
    cast_input_and_rename,
    cast_target,
    clean_up,
    column,
    compact,
    drop_and_reuse_id,
    drop_target,
    name_of,
    one_after_another,
    overwrite,
    restore_past,
    update_input,
    update_other,
    value,
    work_of_others,
)

REFUSED: list[tuple[Act, str]] = [
    (drop_target, r"Project|drop"),
    (drop_and_reuse_id, r"Project|drop"),
    (cast_target, r"type|cast"),
    (overwrite, r"Overwrite|overwritten"),
    (restore_past, r"Restore|restored"),
    (cast_input_and_rename, r"input column 'x'.*another name.*run the backfill again"),
]


def refused(lab: Lab, act: Act, when: When, said: str) -> None:
    """Asserts that a job says what happened, at which version and when, how to go on, and leaves the table as it is."""
    before: list[int] = []

    def noted(uri: str) -> None:
        before.append(lance.dataset(uri).version)
        act(uri)
        before.append(lance.dataset(uri).version)

    with pytest.raises(CommitImpossibleError, match=said) as caught:
        lab.run_while(noted, when)
    assert_says_what_happened(str(caught.value), lab.uri, range(before[0] + 1, before[1] + 1))
    assert lance.dataset(lab.uri).version == before[1], "something was committed"
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("when", "act", "said"),
    [*(("staged", *case) for case in REFUSED), *(("slipped", *case) for case in (REFUSED[0], REFUSED[3]))],
    ids=[*(name_of(act) for act, _ in REFUSED), "slipped-drop_target", "slipped-overwrite"],
)
def test_what_cannot_be_applied_any_more_is_refused_with_what_happened_and_when(
    when: When, act: Act, said: str, lab: Lab
):
    lab.table(stable=when == "staged")
    refused(lab, act, when, said)
    theirs = work_of_others(lab.uri)
    assert {i: row["z" if act is cast_input_and_rename else "x"] for i, row in theirs.items()} == {
        i: i for i in range(40)
    }
    assert lab.calls() == ALL


@pytest.mark.parametrize("when", ["staged", "slipped"])
def test_a_table_that_was_deleted_is_said_to_be(when: When, lab: Lab):
    lab.table()
    with pytest.raises(CommitImpossibleError, match="deleted") as caught:
        lab.run_while(lambda uri: shutil.move(uri, f"{uri}-gone"), when)
    assert lab.calls() == ALL
    assert ("and the folder" in str(caught.value)) == (when == "slipped"), "Lance commits to a folder that is gone"


@pytest.mark.parametrize("when", ["staged", "slipped"])
def test_a_table_that_was_made_anew_is_left_as_it_is_or_is_once_the_error_is_followed(when: When, lab: Lab):
    lab.table()

    def make_anew(uri: str) -> None:
        shutil.move(uri, f"{uri}-gone")
        lance.write_dataset(pa.table({"id": [1], "x": [2]}), uri)

    with pytest.raises(CommitImpossibleError) as caught:
        lab.run_while(make_anew, when)
    if when == "slipped":
        Path(lab.uri, str(caught.value).partition("gone; delete ")[2].split(",")[0]).unlink()
    assert lance.dataset(lab.uri).to_table().to_pylist() == [{"id": 1, "x": 2}]


@pytest.mark.parametrize(
    ("when", "act"),
    [("staged", drop_target), ("slipped", drop_target), ("staged", restore_past), ("slipped", cast_target)],
)
def test_checkpoints_stay_and_serve_when_the_column_is_back(when: When, act: Act, lab: Lab):
    table = lab.table()
    with pytest.raises(CommitImpossibleError):
        lab.run_while(act, when)
    assert lab.calls() == ALL
    if act is cast_target:
        drop_target(lab.uri)
    table.add_columns({"v": counting_udf(str(lab.home))})
    result = lab.run()
    assert lab.calls() == Counter(), "what was computed is served from checkpoints"
    assert (result.rows_computed, result.rows_from_checkpoint) == (0, 40)
    assert column(lab.uri) == {i: value(i) for i in range(40)}
    lab.run()
    assert lab.calls() == Counter()


@pytest.mark.parametrize("when", ["staged", "slipped"])
def test_checkpoints_serve_when_a_restore_is_restored(when: When, lab: Lab):
    snapshot = lab.table().version
    with pytest.raises(CommitImpossibleError):
        lab.run_while(restore_past, when)
    lance.dataset(lab.uri, version=snapshot).restore()
    lab.calls()
    lab.run()
    assert lab.calls() == Counter()
    assert column(lab.uri) == {i: value(i) for i in range(40)}


def test_what_was_committed_before_a_drop_does_not_come_back_as_another_column(lab: Lab):
    lab.table()
    with pytest.raises(CommitImpossibleError):
        lab.run_while(drop_and_reuse_id, "between")
    assert lance.dataset(lab.uri).schema.names == ["id", "x", "y", "innocent"]
    assert set(column(lab.uri, "innocent").values()) == {None}


@pytest.mark.parametrize("when", ["staged", "slipped"])
def test_a_column_that_has_got_another_udf_takes_no_values_of_the_old_one(when: When, lab: Lab):
    lab.table()

    def act(_: str) -> None:
        other = counting_udf(str(lab.home), version="2", factor=3)
        lab.connection.open_table("t").alter_columns({"path": "v", "udf": other})

    with pytest.raises(CommitImpossibleError, match="another UDF"):
        lab.run_while(act, when)
    lab.calls()
    lab.run()
    assert lab.calls() == ALL
    assert column(lab.uri) == {i: None if i % 7 == 3 else i * 3 for i in range(40)}


# Cleanup beside the job


@pytest.mark.parametrize(
    ("when", "stable", "unverified"),
    [
        ("before", True, True),
        ("between", False, False),
        ("staged", True, False),
        ("staged", False, True),
        ("slipped", False, False),
    ],
)
def test_a_cleanup_of_all_versions_but_the_last_breaks_nothing(when: When, stable: bool, unverified: bool, lab: Lab):
    """Also of the job's snapshot; and of files that no version names, which is what a job has finished and not committed."""
    lab.table(stable=stable, indexed=True)
    seen = lab.run_while(lambda uri: clean_up(uri, unverified=unverified), when)
    assert seen.counted("rows_gone", "new_rows") == {"rows_gone": 0, "new_rows": 0}
    lab.check(seen)


def test_files_that_are_deleted_in_the_moment_of_the_commit_are_said_and_the_next_run_needs_no_call(lab: Lab):
    lab.table()
    with pytest.raises(CommitOutcomeUnknownError, match=r"restore version (\d+)") as caught:
        lab.run_while(lambda uri: clean_up(uri, unverified=True), "slipped")
    lance.dataset(lab.uri, version=int(str(caught.value).partition("restore version ")[2].split(":")[0])).restore()
    lab.run()
    assert column(lab.uri) == {i: value(i) for i in range(40)}


@pytest.mark.parametrize(
    ("when", "stable", "unverified"),
    [("before", True, True), ("between", False, False), ("staged", True, True), ("slipped", False, False)],
)
def test_a_cleanup_after_a_compaction_costs_one_more_call_of_each_row(
    when: When, stable: bool, unverified: bool, lab: Lab
):
    """The version that was read and the transaction that moved rows are gone: nothing is reconstructed."""
    lab.table(stable=stable, indexed=True)
    seen = lab.run_while(one_after_another(compact, lambda uri: clean_up(uri, unverified=unverified)), when)
    calls = lab.calls()
    assert set(calls) == set(range(40)) and max(calls.values()) <= 2
    assert seen.result.status == "DONE"
    lab.check(seen, calls={})


@pytest.mark.parametrize("when", ["before", "between", "slipped"])
def test_a_cleanup_after_updates_calls_for_changed_rows_only(when: When, lab: Lab):
    """The old inputs are gone with the versions: what the job read of them is enough to tell which rows changed."""
    lab.table()
    seen = lab.run_while(one_after_another(update_input, clean_up), when)
    calls = lab.calls()
    assert calls >= ALL + Counter([1006, 1026, 1036])
    assert sum(calls.values()) <= 40 + 3 + 2 * 3
    lab.check(seen, calls={})


def test_a_cleanup_after_updates_that_changed_no_input_loses_no_row(lab: Lab):
    lab.table()
    seen = lab.run_while(one_after_another(update_other, clean_up), "before")
    calls = lab.calls()
    assert calls >= ALL and set(calls) == set(range(40))
    assert {x for x, count in calls.items() if count > 1} <= {5, 6, 10, 25, 35}
    lab.check(seen, calls={})


def test_lance_sparks_own_cleanup_beside_a_job_breaks_nothing(lab: Lab):
    lab.table()
    seen = lab.run_while(lambda uri: lance_spark.cleanup(uri, older_than=timedelta(days=7)), "staged")
    lab.check(seen)


def test_a_failed_job_has_left_what_it_had_committed(lab: Lab):
    """A job that cannot go on has committed what it could, and the rest is served when it can."""
    snapshot = lab.table().version
    with pytest.raises(CommitImpossibleError):
        lab.run_while(restore_past, "between")
    committed = lance.dataset(lab.uri, version=lance.dataset(lab.uri).version - 1)
    committed.restore()
    assert committed.version > snapshot and filled(lab.uri) == {0, 1}
    lab.run()
    calls = lab.calls()
    assert set(calls) == set(range(40)) and all(calls[x] == 1 for x in range(20))
    # A job that is stopped loses what its two tasks had computed since their last checkpoint, at most.
    assert max(calls.values()) <= 2 and sum(calls.values()) <= 40 + 2 * 5
    assert column(lab.uri) == {i: value(i) for i in range(40)}
