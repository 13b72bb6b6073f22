"""A commit of column files that is sent twice takes effect once, regardless of the fate of the first attempt."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import find_job, last_commit
from lance_spark.errors import CommitError
from tests.lance_spark.commit.column_commits import commit, commit_elsewhere, make_table, stage
from tests.lance_spark.write.backfills import Backfill, column, computed, orphans, snapshot_rows
from tests.lance_spark.write.backfills import make_table as make_text_table


@pytest.fixture
def path(tmp_path: Path) -> str:
    location = str(tmp_path / "table.lance")
    make_table(location, fragments=3)
    return location


def values(path: str) -> list[int | None]:
    """Returns the value of the first row of each ten."""
    return [column(path, "v")[number * 10] for number in range(3)]


def jobs(path: str) -> list[str]:
    """Returns the jobs of all versions, the oldest first."""
    dataset = lance.dataset(path)
    all_properties = [
        dataset.read_transaction(version["version"]).transaction_properties
        for version in dataset.versions()
    ]
    return [
        properties["lance-spark.job"]
        for properties in all_properties
        if "lance-spark.job" in (properties or {})
    ]


def append(path: str) -> None:
    table = pa.table({"id": pa.array([1000], pa.int64()), "v": pa.array([None], pa.int64())})
    lance.write_dataset(table, path, mode="append")


def delete(path: str) -> None:
    lance.dataset(path).delete("id = 15")


def compact(path: str) -> None:
    assert lance.dataset(path).optimize.compact_files().fragments_removed


def another_job(path: str) -> None:
    commit(path, 2, stage(path, 9), "another")


CONCURRENT_CHANGES = pytest.mark.parametrize("change", [None, append, delete, compact, another_job])


@CONCURRENT_CHANGES
def test_the_same_job_is_committed_once(change: Callable[[str], None] | None, path: str) -> None:
    name = stage(path, 5)
    first = commit(path, 1, name, "job")
    if change is not None:
        change(path)
    before = lance.dataset(path).version
    assert commit(path, 1, name, "job") == first
    assert lance.dataset(path).version == before
    assert (first.version, first.job_id, first.rows, first.fragments) == (3, "job", 10, 1)
    assert jobs(path).count("job") == 1 and values(path)[1] == 5


def test_the_file_of_the_first_commit_stays(path: str) -> None:
    first, second = stage(path, 5), stage(path, 6)
    assert commit(path, 1, first, "job") == commit(path, 1, second, "job")
    assert values(path) == [None, 5, None]


def test_jobs_of_other_names_are_other_commits(path: str) -> None:
    commit(path, 1, stage(path, 5), "job")
    assert commit(path, 2, stage(path, 6), "job-2").version == 4
    assert values(path) == [None, 5, 6] and jobs(path) == ["job", "job-2"]


def test_the_transaction_says_whose_it_is(path: str) -> None:
    result = commit(path, 1, stage(path, 5), "job")
    properties = lance.dataset(path).read_transaction(3).transaction_properties
    assert (
        properties["lance-spark.job"] == "job"
        and properties["__lance_commit_message"] == "a message"
    )
    assert CommitResult.from_json(properties["lance-spark.summary"], uri=path, version=3) == result
    assert last_commit(path) == result == find_job(lance.dataset(path), "job", after=2)
    assert find_job(lance.dataset(path), "job", after=3) is None


def answers(
    monkeypatch: pytest.MonkeyPatch, path: str, *replies: Callable[[str], None] | None
) -> list[int]:
    """Loses the replies of successful commits of column files, after changes by other writers; returns the calls."""
    real = lance.LanceDataset.commit
    remaining_replies, calls = list(replies), list[int]()

    def lost(base: Any, transaction: Any, *more: Any, **options: Any) -> Any:
        what = getattr(transaction, "operation", transaction)
        landed = real(base, transaction, *more, **options)
        if not isinstance(what, lance.LanceOperation.DataReplacement) or not remaining_replies:
            return landed
        calls.append(landed.version)
        change = remaining_replies.pop(0)
        if change is not None:
            change(path)
        raise OSError("connection reset by peer")

    monkeypatch.setattr(lance.LanceDataset, "commit", lost)
    return calls


@pytest.mark.parametrize("retries", [0, 10])
@pytest.mark.parametrize("change", [None, append, delete, compact])
def test_a_reply_that_was_lost_is_found(
    change: Callable[[str], None] | None, retries: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = answers(monkeypatch, path, change)
    name = stage(path, 5)
    result = commit(path, 1, name, "job", max_retries=retries)
    assert calls == [3] and result.version == 3
    assert commit(path, 1, name, "job") == result
    assert jobs(path) == ["job"] and values(path)[1] == 5


def test_a_write_whose_reply_was_lost_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "text.lance")
    make_text_table(path, c=pa.int64())
    job = Backfill(path, "c", LongType())
    rows = computed(snapshot_rows(path))
    messages = [job.task([job.batch(*zip(*rows, strict=True))])]
    answers(monkeypatch, path, None)
    result = job.commit(*messages)
    assert job.commit(*messages) == result
    assert column(path, "c") == {key: key * 10 for key in range(30)}
    assert orphans(path) == set() and len(jobs(path)) == 1


def test_a_commit_that_failed_is_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = stage(path, 5)
    with monkeypatch.context() as broken:

        def refuse(*_: Any, **__: Any) -> Any:
            raise OSError("Permission denied")

        broken.setattr(lance.LanceDataset, "commit", refuse)
        with pytest.raises(CommitError, match="Permission denied"):
            commit(path, 1, name, "job", max_retries=1)
    assert lance.dataset(path).version == 2
    assert commit(path, 1, name, "job").version == 3


@pytest.mark.parametrize("change", [pytest.param(None, marks=pytest.mark.long), compact])
def test_a_process_that_is_killed_when_its_commit_has_landed(
    change: Callable[[str], None] | None, path: str
) -> None:
    name = stage(path, 5)
    ended, report = commit_elsewhere(path, 1, name, "job", "die")
    assert ended == -signal.SIGKILL and report is None
    assert lance.dataset(path).version == 3 and values(path) == [None, 5, None]
    if change is not None:
        change(path)
    before = lance.dataset(path).version
    ended, report = commit_elsewhere(path, 1, name, "job")
    assert ended == 0 and report == find_job(lance.dataset(path, version=3), "job", after=2)
    assert report is not None and (report.version, report.rows) == (3, 10)
    assert lance.dataset(path).version == before and jobs(path) == ["job"]


def test_the_same_job_that_is_committed_several_times_at_once_is_there_once(path: str) -> None:
    """Spark may repeat a commit although the process of the first attempt is only unreachable."""
    from concurrent.futures import ThreadPoolExecutor

    name = stage(path, 5)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: commit(path, 1, name, "job"), range(4)))
    assert values(path)[1] == 5 and jobs(path) == ["job"]
    assert {(result.version, result.rows) for result in results} == {(3, 10)}
