"""A cleanup with a too short age next to a job that commits: no committed file is deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark.errors import CommitError, CommitOutcomeUnknownError
from lance_spark.staging import area, orphans
from lance_spark.staging.orphans import remove_orphans
from lance_spark.write import row_write
from tests.lance_spark.write import appends
from tests.lance_spark.write.appends import (
    STORES,
    batches,
    ids_in,
    plan,
    unused_files,
    uri_of,
    with_markers,
    write,
)
from tests.support.waiting import eventually

NOW = timedelta(0)
commit_rows = row_write.commit_rows


@pytest.fixture(params=STORES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location of a table with a row, on a local file system and on an object store."""
    monkeypatch.setattr(appends, "prefix", STORES[request.param])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    write(tmp_path / "table.lance", 0)
    return tmp_path / "table.lance"


def commit_while(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts in the place between the checks of an append and its commit."""

    def commit(*arguments: Any, **more: Any) -> Any:
        act()
        return commit_rows(*arguments, **more)

    monkeypatch.setattr(row_write, "commit_rows", commit)


def test_a_cleanup_before_the_commit_of_a_live_job_deletes_none_of_its_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(path)
    commit_while(lambda: remove_orphans(uri_of(path), older_than=NOW), monkeypatch)
    job.commit([job.write(batches(1))])
    assert (ids_in(path), unused_files(path)) == ([0, 1], set())


def test_a_cleanup_deletes_no_file_of_a_commit_that_lands_during_its_walk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(path)
    message = job.write(batches(1))
    job.staging.begin_commit()
    walk = orphans.referenced_files

    def walk_and_wait(*arguments: Any) -> set[str]:
        files = walk(*arguments)
        job.staging.open_job()  # the checks of the job came before the end by the cleanup
        job.commit([message])
        return files

    monkeypatch.setattr(orphans, "referenced_files", walk_and_wait)
    assert remove_orphans(uri_of(path), older_than=NOW) == 0
    assert ids_in(path) == [0, 1]


def test_files_of_an_unknown_commit_go_with_a_cleanup_a_day_after_the_end_of_the_job(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(path)

    def lose_answer(*_: object, **__: object) -> None:
        raise CommitOutcomeUnknownError("no answer", uri=str(path))

    with monkeypatch.context() as patch:
        patch.setattr(row_write, "commit_rows", lose_answer)
        with pytest.raises(CommitOutcomeUnknownError):
            job.commit([job.write(batches(1))])
    cleanups = [remove_orphans(uri_of(path), older_than=NOW) for _ in range(2)]
    monkeypatch.setattr(area, "LONGEST_COMMIT", timedelta(0))
    assert [*cleanups, remove_orphans(uri_of(path), older_than=NOW)] == [0, 0, 1]
    assert (ids_in(path), unused_files(path)) == ([0], set())


def test_a_job_ended_by_a_cleanup_before_its_commit_commits_nothing(path: Path) -> None:
    job = plan(path)
    message = job.write(batches(1))
    assert remove_orphans(uri_of(path), older_than=NOW) == 1
    with pytest.raises(CommitError, match="cleaned up"):
        job.commit([message])
    assert (lance.dataset(str(path)).version, unused_files(path)) == (1, set())


def test_a_cleanup_finds_a_file_that_an_attempt_finishes_before_its_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.3)
    path = tmp_path / "table.lance"
    write(path, 0)
    job = with_markers(plan(path))
    marker = path / job.staging.folder / "open"
    attempt = job.staging.begin_attempt()
    file = attempt.open_data_file(pa.schema([("id", pa.int64())]), version="2.2")

    def finish_file_late() -> None:
        eventually(lambda: not marker.exists())
        time.sleep(0.1)
        file.close()

    thread = threading.Thread(target=finish_file_late)
    thread.start()
    assert remove_orphans(uri_of(path), older_than=NOW) == 1
    thread.join()
    assert unused_files(path) == set()
