"""Commits whose reply is lost, and commits at the moment of a concurrent commit: no rows are lost, and all values are
right.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from lance_spark.commit import column_commit
from lance_spark.commit.attempt import Landed, Unknown
from lance_spark.commit.rows import append_commit
from lance_spark.commit.verify import add_null_columns
from lance_spark.errors import CommitConflictError, CommitImpossibleError, CommitOutcomeUnknownError
from tests.lance_spark.write.appends import batches, ids_in, plan, write
from tests.lance_spark.write.backfills import (
    Backfill,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)

ALL = {key: key * 10 for key in range(30)}


@pytest.fixture
def path(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    make_table(uri, c=pa.int64())
    return uri


def acts_beside(
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: dict[int, Callable[[], object]] | None = None,
    after: dict[int, Callable[[], object]] | None = None,
    lost: frozenset[int] = frozenset(),
) -> None:
    """Lets other writers act right before and after the first, second, ... commit, and loses the replies of some
    commits.
    """
    real = column_commit.attempt_commit
    number = 0

    def attempt(*args: Any, **kwargs: Any) -> Any:
        nonlocal number
        number += 1
        attempt_number = number
        (before or {}).get(attempt_number, lambda: None)()
        outcome = real(*args, **kwargs)
        (after or {}).get(attempt_number, lambda: None)()
        if attempt_number not in lost:
            return outcome
        assert isinstance(outcome, Landed)
        return Unknown(error=OSError("connection reset by peer"))

    monkeypatch.setattr(column_commit, "attempt_commit", attempt)


def staged(path: str, **options: str) -> tuple[Backfill, Any]:
    job = Backfill(path, "c", LongType(), options={"input_columns": "text", **options})
    return job, job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])


def rewrite(path: str, *keys: int, text: str = "other") -> None:
    source = pa.table({"id": pa.array(keys, pa.int64()), "text": [text] * len(keys)})
    lance.dataset(path).merge_insert("id").when_matched_update_all().write_mode(
        "rewrite_columns"
    ).execute(source)


def compact(path: str) -> None:
    assert lance.dataset(path).optimize.compact_files().fragments_removed


def without(*keys: int) -> dict[int, int | None]:
    return {key: None if key in keys else value for key, value in ALL.items()}


def test_values_that_were_carried_over_stay_where_the_answer_was_lost(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path)
    compact(path)
    acts_beside(monkeypatch, lost=frozenset({1}))
    result = job.commit(message)
    assert (result.rows_carried, result.version) == (30, lance.dataset(path).version)
    assert column(path, "c") == ALL
    assert orphans(path) == set()


def test_inputs_changed_during_a_commit_with_a_lost_reply_leave_no_stale_value(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path)
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 5, 6)}, lost=frozenset({1}))
    result = job.commit(message)
    assert (result.rows, result.rows_nulled) == (28, 2)
    assert column(path, "c") == without(5, 6)
    assert orphans(path) == set()


def test_a_repair_whose_answer_was_lost_stays(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, message = staged(path)
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 5, 6)}, lost=frozenset({2}))
    assert job.commit(message).rows_nulled == 2
    assert column(path, "c") == without(5, 6)
    assert orphans(path) == set()


def test_changes_during_a_repair_are_repaired_too(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path)
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 5), 2: lambda: rewrite(path, 17)})
    result = job.commit(message)
    assert (result.rows, result.rows_nulled) == (28, 2)
    assert column(path, "c") == without(5, 17)
    assert orphans(path) == set()


@pytest.mark.parametrize("lost", [frozenset(), frozenset({1})], ids=["answered", "answer lost"])
@pytest.mark.parametrize(
    ("act", "remaining"),
    [
        (compact, without(5, 6)),
        (
            lambda path: lance.dataset(path).delete("id < 10"),
            {key: key * 10 for key in range(10, 30)},
        ),
        (
            lambda path: lance.dataset(path).update({"text": "'moved'"}, where="id < 10"),
            without(*range(10)),
        ),
        (lambda path: lance.dataset(path).update({"other": "0"}, where="id < 10"), without(5, 6)),
    ],
    ids=["compacted", "deleted", "updated", "moved"],
)
def test_rows_of_changed_inputs_are_repaired_wherever_they_are_by_then(
    act: Callable[[str], object],
    remaining: dict[int, int | None],
    lost: frozenset[int],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, message = staged(path)
    acts_beside(
        monkeypatch,
        before={1: lambda: rewrite(path, 5, 6)},
        after={1: lambda: act(path)},
        lost=lost,
    )
    job.commit(message)
    assert column(path, "c") == remaining
    assert orphans(path) == set()


def test_a_commit_that_cannot_be_repaired_is_taken_back_for_any_reason(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path)
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 5, 6)})

    def fail(*_: object) -> None:
        raise RuntimeError("an executor died")

    monkeypatch.setattr("lance_spark.rebase.carry_over.CarryOver.__call__", fail)
    with pytest.raises(RuntimeError, match="executor died"):
        job.commit(message)
    assert column(path, "c") == without(*range(30))


def rewrite_the_target(path: str) -> None:
    source = pa.table({"id": pa.array([8], pa.int64()), "c": pa.array([-8], pa.int64())})
    lance.dataset(path).merge_insert("id").when_matched_update_all().write_mode(
        "rewrite_columns"
    ).execute(source)


@pytest.mark.parametrize(
    ("act", "remaining"),
    [
        (lambda path: lance.dataset(path).create_scalar_index("c", "BTREE"), set()),
        (
            lambda path: (rewrite(path, 25), lance.dataset(path).create_scalar_index("c", "BTREE")),
            set(),
        ),
        (rewrite_the_target, set(range(10))),
        (compact, set(range(30))),
    ],
    ids=["indexed", "rewritten elsewhere", "rewritten", "compacted"],
)
def test_a_commit_that_cannot_be_repaired_in_time_is_taken_back_or_says_what_is_left(
    act: Callable[[str], object], remaining: set[int], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path, commit_max_retries="0")
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 5, 6), 2: lambda: act(path)})
    with pytest.raises(CommitConflictError, match=r"gave up .* taken back") as caught:
        job.commit(message)
    match = re.search(r"except in fragments (\[.*?\])", str(caught.value))
    assert (match and match[1]) == (
        str(sorted({key // 10 for key in remaining})) if remaining else None
    )
    assert {key for key, value in column(path, "c").items() if value is not None} == remaining


def test_the_deletion_of_a_table_at_the_moment_of_the_commit_is_reported(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance creates a folder with a version whose files belong to the deleted table."""
    job, message = staged(path)
    acts_beside(monkeypatch, before={1: lambda: shutil.rmtree(path)})
    with pytest.raises(
        CommitImpossibleError, match="table was deleted at the moment of the commit"
    ):
        job.commit(message)
    assert not Path(path, "_versions").exists()


@pytest.mark.parametrize("before", [(), (5,), (6,)])
def test_a_row_that_a_repair_finds_null_already_is_counted_once(
    before: tuple[int, ...], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path)
    if before:
        rewrite(path, *before)
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 6), 2: lambda: rewrite(path, 7)})
    result = job.commit(message)
    null = {*before, 6, 7}
    assert column(path, "c") == without(*null)
    assert (result.rows, result.rows_nulled, result.rows_carried) == (
        30 - len(null),
        len(null),
        10 - len(null),
    )


def with_column_of_a_dead_backfill(path: str) -> tuple[Backfill, Any]:
    """Writes a new column `n` that another backfill has added by the time of the commit and never filled."""
    job = Backfill(path, "n", LongType(), options={"input_columns": "text"})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    assert add_null_columns(lance.dataset(path), [pa.field("n", pa.int64())], "0" * 32) is None
    return job, message


def test_a_column_that_a_dead_backfill_has_added_stays_filled_where_something_slips_in(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = with_column_of_a_dead_backfill(path)
    acts_beside(monkeypatch, before={1: lambda: rewrite(path, 5)})
    assert job.commit(message).rows_nulled == 1
    assert column(path, "n") == without(5)


def test_a_new_column_renamed_during_its_commit_is_not_added_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = with_column_of_a_dead_backfill(path)

    def rewrite_and_rename() -> None:
        rewrite(path, 5)
        lance.dataset(path).alter_columns({"path": "n", "name": "w"})

    acts_beside(monkeypatch, before={1: rewrite_and_rename})
    with pytest.raises(CommitConflictError, match=r"renamed to 'w'.*taken back"):
        job.commit(message)
    assert "n" not in lance.dataset(path).schema.names
    assert column(path, "w") == without(*range(30))


@pytest.mark.parametrize("is_moved", [False, True])
def test_rows_of_a_dropped_column_are_taken_back_or_named(
    is_moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "rows.lance")
    write(uri, 1, 2)
    write(uri, 3, 4)
    job = plan(uri)
    message = job.write(batches(5, 6))
    real = append_commit.attempt_commit

    def attempt(*args: Any, **kwargs: Any) -> Any:
        lance.dataset(uri).drop_columns(["s"])
        outcome = real(*args, **kwargs)
        if is_moved:
            compact(uri)
        return outcome

    monkeypatch.setattr(append_commit, "attempt_commit", attempt)
    with pytest.raises(
        CommitOutcomeUnknownError if is_moved else CommitConflictError,
        match="moved" if is_moved else "'s'",
    ):
        job.commit([message])
    assert ids_in(uri) == [1, 2, 3, 4, *([5, 6] if is_moved else [])]


def test_a_writer_that_rewrites_inputs_at_each_commit_does_not_block_a_write_for_ever(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = staged(path, commit_timeout="1")
    before = column(path, "c")
    real, commits = column_commit.attempt_commit, list[int]()

    def attempt(*args: Any, **kwargs: Any) -> Any:
        commits.append(1)
        assert len(commits) < 100, "it does not end"
        rewrite(path, 5)
        return real(*args, **kwargs)

    monkeypatch.setattr(column_commit, "attempt_commit", attempt)
    with pytest.raises(
        CommitConflictError,
        match=r"beside each of \d+ commit.*commit_timeout.* The commit was taken back",
    ):
        job.commit(message)
    assert column(path, "c") == before
