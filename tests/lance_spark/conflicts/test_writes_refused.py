"""Backfills by a DataFrame write that cannot be committed, or not as a whole: what is said, what stays, and how to go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql.types import LongType

from lance_spark import dataset
from lance_spark.errors import (
    CommitConflictError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    SnapshotError,
)
from tests.lance_spark.conflicts.others import (
    Act,
    append,
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
    rename_target,
    restore_past,
    rewrite_input,
    unused_files,
    update_input,
    update_other,
    work_of_others,
)
from tests.lance_spark.conflicts.writes import When, make, ours, write_while
from tests.lance_spark.write.backfills import Backfill, computed, orphans, snapshot_rows

REFUSED: list[tuple[Act, str]] = [
    (drop_target, r"Project|drop"),
    (drop_and_reuse_id, r"Project|drop"),
    (cast_target, r"type|cast"),
    (overwrite, r"Overwrite|overwritten"),
    (restore_past, r"Restore|restored"),
]

MOMENT = pytest.mark.parametrize("when", ["before", "slipped"])


def refused(path: str, act: Act, when: When, error: type[LanceSparkError], said: str, **more: Any) -> LanceSparkError:
    """Asserts that a write is refused, and that the table is as the others left it, with no file of ours."""
    left: list[Any] = []

    def noted(uri: str) -> None:
        left.append(lance.dataset(uri).version)
        act(uri)
        left.append(lance.dataset(uri).version)
        left.append((work_of_others(uri), lance.dataset(uri).to_table().to_pylist()))

    with pytest.raises(error, match=said) as caught:
        write_while(path, noted, when, **more)
    assert path in str(caught.value)
    head = lance.dataset(path)
    assert (work_of_others(path), head.to_table().to_pylist()) == left[2]
    assert orphans(path) == set() and unused_files(path) == set()
    if error is CommitImpossibleError:
        assert head.version == left[1], "something was committed"
        assert_says_what_happened(str(caught.value), path, range(left[0] + 1, left[1] + 1))
    return caught.value


@MOMENT
@pytest.mark.parametrize(("act", "said"), REFUSED, ids=[name_of(act) for act, _ in REFUSED])
def test_what_cannot_be_applied_any_more_is_refused(when: When, act: Act, said: str, path: str) -> None:
    make(path, stable=when == "before")
    assert not refused(path, act, when, CommitImpossibleError, said).retryable


@MOMENT
def test_an_overwrite_leaves_no_room_for_a_new_column(when: When, path: str) -> None:
    make(path, is_new=True)
    refused(path, overwrite, when, CommitImpossibleError, "Overwrite|overwritten")
    assert lance.dataset(path).schema.names == ["id", "x", "y"] or when == "slipped"


@MOMENT
def test_a_table_that_was_deleted_is_said_to_be(when: When, path: str) -> None:
    make(path)
    with pytest.raises(CommitImpossibleError, match="deleted"):
        write_while(path, one_after_another(lambda uri: shutil.move(uri, f"{uri}-gone")), when)


@MOMENT
@pytest.mark.parametrize(("act", "fragments"), [(update_input, {0, 2, 3}), (rewrite_input, {0, 3})])
@pytest.mark.parametrize("is_new", [False, True], ids=["existing", "new"])
def test_changed_inputs_are_an_error_where_that_is_asked_for(
    is_new: bool, act: Act, fragments: set[int], when: When, path: str
) -> None:
    make(path, is_new=is_new)
    before = {} if is_new else column(path)
    error = refused(path, act, when, CommitConflictError, "input", options={"on_stale": "error"})
    assert isinstance(error, CommitConflictError) and error.retryable
    assert set(error.fragments) & (fragments | {4})
    now = column(path) if "v" in lance.dataset(path).schema.names else {}
    assert now == before or set(now.values()) == {None}


@MOMENT
def test_rows_that_moved_with_their_inputs_are_no_error_where_changed_ones_are(when: When, path: str) -> None:
    make(path, indexed=True)
    written = write_while(path, update_other, when, options={"on_stale": "error"})
    assert written.counted("rows_carried", "rows_nulled") == {"rows_carried": 5, "rows_nulled": 0}
    written.check()


@MOMENT
@pytest.mark.parametrize("exclusive", [False, True], ids=["runs", "direct"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("act", [compact, update_other, rewrite_input], ids=name_of)
def test_rows_that_may_have_moved_or_changed_before_a_cleanup_are_refused(
    act: Act, stable: bool, exclusive: bool, when: When, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    with pytest.raises((CommitImpossibleError, CommitConflictError), match=r"clean.*(again|tag)") as caught:
        write_while(path, one_after_another(act, clean_up), when, exclusive=exclusive)
    assert isinstance(caught.value, CommitImpossibleError) or "taken back" in str(caught.value)
    assert path in str(caught.value)
    assert column(path) == {i: -i - 1 for i in range(40)}
    assert orphans(path) == set()


def test_a_task_whose_version_was_cleaned_up_says_so(path: str) -> None:
    make(path)
    job = Backfill(path, "v", LongType(), options={"input_columns": "x"})
    rows = computed(snapshot_rows(path, key="x"), ours)
    append(path)
    clean_up(path)
    dataset._open_pinned.cache_clear()  # as in the process of a task
    with pytest.raises(SnapshotError, match=r"cleaned up while .* write") as caught:
        job.task([job.batch(*zip(*rows, strict=True))])
    assert path in str(caught.value) and "tag" in str(caught.value)


def test_a_target_that_is_renamed_before_the_commit_is_a_conflict(path: str) -> None:
    make(path)
    error = refused(path, rename_target, "before", CommitConflictError, "renamed to 'w'")
    assert isinstance(error, CommitConflictError) and error.retryable


def test_an_input_that_is_cast_under_another_name_leaves_no_value_of_old_inputs(path: str) -> None:
    make(path)
    refused(path, cast_input_and_rename, "before", CommitImpossibleError, "input column 'x'.*another name")


def test_a_file_that_is_deleted_in_the_moment_of_the_commit_is_said_with_the_version_to_restore(path: str) -> None:
    make(path)
    version = lance.dataset(path).version + 1  # the cleanup makes one
    with pytest.raises(
        CommitOutcomeUnknownError, match=rf"4 fragments \(0, 1, 2, 3\).*restore version {version}"
    ) as caught:
        write_while(path, lambda uri: clean_up(uri, unverified=True), "slipped")
    assert path in str(caught.value)
    lance.dataset(path, version=version).restore()
    assert column(path) == {i: -i - 1 for i in range(40)}


def test_a_cleanup_that_deletes_what_was_written_is_said(path: str) -> None:
    make(path, indexed=True)
    with pytest.raises(LanceSparkError, match=r"not there|missing|clean") as caught:
        write_while(path, lambda uri: clean_up(uri, unverified=True), "before")
    assert path in str(caught.value)
    assert column(path) == {i: -i - 1 for i in range(40)}
    assert orphans(path) == set()


@MOMENT
def test_more_than_may_be_carried_over_is_a_conflict_that_says_to_write_again(when: When, path: str) -> None:
    make(path, indexed=True)
    with pytest.raises(CommitConflictError, match=r"carry_over_max_bytes allows 16.* write again") as caught:
        write_while(path, compact, when, options={"carry_over_max_bytes": "16"})
    assert caught.value.retryable and caught.value.fragments and path in str(caught.value)
    assert column(path) == {i: -i - 1 for i in range(40)}
    assert orphans(path) == set()


def test_a_write_without_rows_beside_a_compaction_commits_nothing_wrong(path: str) -> None:
    make(path)
    job = Backfill(path, "v", LongType(), options={"input_columns": "x"})
    message = job.task([])
    compact(path)
    job.commit(message)
    assert column(path) == {i: -i - 1 for i in range(40)}
    assert snapshot_rows(path) and computed([], ours) == [] and Path(path).exists()
