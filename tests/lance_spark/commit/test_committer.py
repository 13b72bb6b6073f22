"""Commits of rows, and the loop around every commit, on real tables."""

from __future__ import annotations

import itertools
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError as LanceConflict
from lance.file import LanceFileSession
from lance.fragment import DataFile, FragmentMetadata
from lance.schema import LanceSchema

from lance_spark.commit import commit_loop
from lance_spark.commit.attempt import Lost
from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.history import last_commit
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.rows import append_commit
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    TableNotFoundError,
)

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64())])
_numbers = itertools.count()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table.lance")


def staged(path: str, *values: int) -> FragmentMetadata:
    """Writes rows (v, -v) as an unreferenced file."""
    name = f"staged-{next(_numbers)}.lance"
    writer = LanceFileSession(path).open_writer(f"data/{name}", schema=SCHEMA, version="2.1")
    writer.write_batch(
        pa.record_batch([pa.array(values), pa.array([-v for v in values])], schema=SCHEMA)
    )
    writer.close()
    return FragmentMetadata(
        0, [DataFile(name, [0, 1], [0, 1], 2, 1, writer.size_bytes)], len(values)
    )


def rows(
    path: str, *values: int, mode: Any = "append", read_version: int | None = None
) -> RowsToCommit:
    return RowsToCommit(
        mode=mode,
        schema=SCHEMA,
        fields=field_identities(LanceSchema.from_pyarrow(SCHEMA)),
        fragments=(staged(path, *values),),
        rows=len(values),
        read_version=read_version,
        commit_message="a message",
    )


def ids(path: str) -> list[int]:
    return sorted(lance.dataset(path).to_table()["id"].to_pylist())


def commit(path: str, change: RowsToCommit, job: str = "job", **policy: Any) -> CommitResult:
    return commit_rows(DatasetRef.at(path), change, job_id=job, policy=CommitPolicy(**policy))


def test_an_append_creates_a_table_that_is_not_there(path: str) -> None:
    result = commit(path, rows(path, 1, 2))
    assert (result.operation, result.version, result.rows, result.read_version) == (
        "create",
        1,
        2,
        None,
    )
    assert ids(path) == [1, 2] and lance.dataset(path).has_stable_row_ids
    assert last_commit(path) == result
    properties = lance.dataset(path).read_transaction(1).transaction_properties
    assert properties["__lance_commit_message"] == "a message"


def test_an_append_to_a_table_that_a_concurrent_writer_made_joins_it(path: str) -> None:
    first, second = rows(path, 1), rows(path, 2)
    commit(path, first, "one")
    result = commit(path, second, "two")
    assert (result.operation, result.version) == ("append", 2)
    assert ids(path) == [1, 2]


def test_a_table_made_meanwhile_with_other_columns_is_left_alone(path: str) -> None:
    change = rows(path, 1)
    lance.write_dataset(pa.table({"x": [5], "id": [6]}), path)
    with pytest.raises(CommitConflictError, match="'id', 'x'"):
        commit(path, change)
    assert lance.dataset(path).to_table().to_pylist() == [{"x": 5, "id": 6}]


def test_an_overwrite_keeps_old_versions_and_goes_on_top_of_anything(path: str) -> None:
    commit(path, rows(path, 1), "one")
    change = rows(path, 2, mode="overwrite", read_version=1)
    lance.write_dataset(pa.table({"id": [7], "x": [7]}), path, mode="append")
    result = commit(path, change, "two")
    assert (result.operation, result.version) == ("overwrite", 3)
    assert ids(path) == [2]
    assert lance.dataset(path, version=2).count_rows() == 2


def test_threads_that_create_and_append_at_once_lose_no_row(path: str) -> None:
    changes = [rows(path, n) for n in range(12)]
    results: list[CommitResult] = []
    start = threading.Barrier(len(changes))

    def work(n: int) -> None:
        start.wait()
        results.append(commit(path, changes[n], f"job {n}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(changes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.version for r in results) == list(range(1, 13))
    assert [r.operation for r in results].count("create") == 1
    assert ids(path) == list(range(12))


@pytest.mark.parametrize(
    "change_values",
    [
        lambda d: d.drop_columns(["x"]),
        lambda d: d.alter_columns({"path": "x", "data_type": pa.int32()}),
        lambda d: d.alter_columns({"path": "x", "name": "y"}),
    ],
    ids=["drop", "cast", "rename"],
)
@pytest.mark.parametrize("when", ["before the look", "after the look"])
def test_rows_whose_column_changed_meanwhile_are_refused(
    change_values: Callable[[Any], object], when: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1), "one")
    change = rows(path, 2, read_version=1)
    if when == "before the look":
        change_values(lance.dataset(path))
    else:
        before_the_commit(monkeypatch, lambda: change_values(lance.dataset(path)))
    with pytest.raises(CommitConflictError, match=r"'x' .*(Project|Merge) at version 2"):
        commit(path, change, "two")
    assert ids(path) == [1]
    last = last_commit(path)
    assert last is not None and last.job_id == "one"
    assert commit_loop.find_job(lance.dataset(path), "two", after=0) is None


def before_the_commit(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    real = append_commit.attempt_commit
    is_done: list[bool] = []

    def late(*args: Any, **kwargs: Any) -> Any:
        if not is_done:
            is_done.append(True)
            change()
        return real(*args, **kwargs)

    monkeypatch.setattr(append_commit, "attempt_commit", late)


@pytest.mark.parametrize(
    "change_table",
    [
        lambda d: d.delete("id = 1"),
        lambda d: d.add_columns({"z": "id + 1"}),
        lambda d: d.update({"x": "9"}, where="id = 1"),
        lambda d: lance.write_dataset(pa.table({"id": [5], "x": [5]}), d.uri, mode="append"),
    ],
    ids=["delete", "add column", "update", "append"],
)
def test_rows_are_appended_on_top_of(
    change_table: Callable[[Any], object], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1, 3), "one")
    before_the_commit(monkeypatch, lambda: change_table(lance.dataset(path)))
    commit(path, rows(path, 2, read_version=1), "two")
    table = lance.dataset(path).to_table()
    assert {"id": 2, "x": -2}.items() <= table.to_pylist()[-1].items()
    assert {2, 3} <= set(ids(path))


def answers(monkeypatch: pytest.MonkeyPatch, *errors: Exception, after: bool = False) -> None:
    """Makes the first calls of pylance's commit fail, before or after they did their work."""
    real = lance.LanceDataset.commit
    remaining_errors = list(errors)

    def commit(*args: Any, **kwargs: Any) -> Any:
        if not remaining_errors:
            return real(*args, **kwargs)
        error = remaining_errors.pop(0)
        if after:
            real(*args, **kwargs)
        raise error

    monkeypatch.setattr(lance.LanceDataset, "commit", commit)


def test_a_lost_reply_is_found_and_nothing_is_committed_twice(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1), "one")
    answers(monkeypatch, OSError("connection reset by peer"), after=True)
    result = commit(path, rows(path, 2, read_version=1), "two")
    assert result.version == lance.dataset(path).version == 2
    assert ids(path) == [1, 2]


def test_a_lost_reply_is_found_even_where_no_retry_is_allowed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1), "one")
    answers(monkeypatch, OSError("connection reset by peer"), after=True)
    assert commit(path, rows(path, 2, read_version=1), "two", max_retries=0).version == 2


def test_a_local_store_that_refuses_is_a_commit_that_did_not_happen(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1), "one")
    answers(monkeypatch, *[OSError("Permission denied")] * 9)
    with pytest.raises(CommitError, match="Permission denied") as caught:
        commit(path, rows(path, 2, read_version=1), "two", max_retries=2)
    assert not isinstance(caught.value, CommitOutcomeUnknownError)
    assert ids(path) == [1]


def test_a_store_that_takes_no_more_ends_the_commit_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a full disk by a limit on the size of files."""
    commit(path, rows(path, 1), "one")
    change = rows(path, 2, read_version=1)
    attempts: list[Any] = []
    real = lance.LanceDataset.commit

    def counting_attempt(*args: Any, **kwargs: Any) -> Any:
        attempts.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "commit", counting_attempt)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(CommitError, match=r"too large.*space") as caught:
            commit(path, change, "two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not isinstance(caught.value, (CommitConflictError, CommitOutcomeUnknownError))
    assert len(attempts) == 1 and ids(path) == [1]


def test_where_even_looking_fails_the_outcome_is_unknown(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1), "one")
    change = rows(path, 2, read_version=1)
    answers(monkeypatch, OSError("gone"))
    looks = iter([DatasetRef.at(path).open_latest()])

    def look(_: DatasetRef) -> Any:
        try:
            return next(looks)
        except StopIteration:
            raise OSError("gone") from None

    monkeypatch.setattr(commit_loop, "open_head", look)
    with pytest.raises(CommitOutcomeUnknownError, match="last_commit"):
        commit(path, change, "two", max_retries=0)


def test_conflicts_without_progress_end_with_a_retryable_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(path, rows(path, 1), "one")
    answers(monkeypatch, *[LanceConflict("preempted by a concurrent transaction")] * 99)
    with pytest.raises(CommitConflictError, match="gave up after 2 retries") as caught:
        commit(path, rows(path, 2, read_version=1), "two", max_retries=2)
    assert caught.value.retryable
    assert ids(path) == [1]


def test_lost_races_do_not_count(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(path, rows(path, 1), "one")
    monkeypatch.setattr("lance_spark.commit.commit_loop._LONGEST_WAIT_S", 0.001)
    answers(monkeypatch, *[LanceConflict("Failed to commit the transaction after 0 retries.")] * 30)
    assert commit(path, rows(path, 2, read_version=1), "two", max_retries=0).retries == 30


def test_pylance_still_says_a_lost_race_as_it_is_recognised(path: str) -> None:
    """Only the text of the error distinguishes a lost race from a conflict of contents, so a new wording in pylance
    must be noticed.
    """
    commit(path, rows(path, 1), "one")
    commit(path, rows(path, 2), "two")
    base = lance.dataset(path, version=1)
    operation = lance.LanceOperation.Overwrite(SCHEMA, [staged(path, 3)])
    outcome = append_commit.attempt_commit(
        base, operation, read_version=1, properties={}, storage_options={}
    )
    assert isinstance(outcome, Lost) and outcome.race


def test_there_is_no_last_commit_of_other_peoples_tables(path: str) -> None:
    with pytest.raises(TableNotFoundError):
        last_commit(path)
    lance.write_dataset(pa.table({"id": [1]}), path)
    assert last_commit(path) is None


def test_the_last_commit_is_found_behind_other_peoples(path: str) -> None:
    result = commit(path, rows(path, 1))
    lance.dataset(path).delete("id = 1")
    lance.dataset(path).update_config({"a": "b"})
    assert last_commit(path) == result
