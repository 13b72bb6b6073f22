"""Cleanups after the death of the driver of an append."""

from __future__ import annotations

import contextlib
import itertools
import os
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from lance_spark.errors import CommitError
from lance_spark.staging import area
from lance_spark.staging.area import Staging
from lance_spark.staging.orphans import remove_orphans
from lance_spark.storage.objects import LanceObjects
from lance_spark.write import row_write
from lance_spark.write.append_writer import LanceAppendWriter
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

pytestmark = pytest.mark.sample(1, tests=2)

LATER = timedelta(0)
"""An age that every job has reached, since ids count whole seconds."""


def remove_empty_folders(path: Path) -> None:
    """Deletes the empty folders of all jobs, which an object store would not have."""
    for folder, _, _ in os.walk(path / "_lance_spark", topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def test_a_cleanup_finds_the_files_of_attempts_without_markers_after_a_death_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    monkeypatch.setattr(area, "LONGEST_COMMIT", timedelta(0))
    path = tmp_path / "table.lance"
    write(path, 0)
    delete, deletions = LanceObjects.delete, itertools.count()

    def die(objects: LanceObjects, name: str) -> None:
        if next(deletions) == steps:
            raise KeyboardInterrupt
        delete(objects, name)

    for end in ("abort", "commit", "commit without rows"):
        for steps in range(8):
            job = plan(path)
            job.write(batches(1))  # a duplicate
            message = job.write(batches() if end == "commit without rows" else batches(1))
            deletions = itertools.count()
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(LanceObjects, "delete", die)
                job.abort([]) if end == "abort" else job.commit([message])
            remove_empty_folders(path)
            for _ in range(
                2
            ):  # the first cleanup notes the end of a job whose commit may be in progress
                remove_orphans(uri_of(path), older_than=LATER)
            assert unused_files(path) == set(), (end, steps)
    assert ids_in(path).count(1) >= 6


def test_a_cleanup_knows_the_files_of_attempts_until_it_closed_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.lance"
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    write(path, 0)
    job = with_markers(plan(path))
    messages, close_job = [job.write(batches(1))], Staging.close_job

    def close_late(staging: Staging) -> bool:
        if len(messages) == 1:
            messages.append(job.write(batches(2)))
            with monkeypatch.context() as patch:
                patch.setattr(row_write, "finish", lambda *_, **__: None)  # the driver is slow
                job.commit(messages)
        return close_job(staging)

    monkeypatch.setattr(Staging, "close_job", close_late)
    remove_orphans(uri_of(path), older_than=LATER)
    assert ids_in(path) == [0, 1, 2]


@pytest.mark.sample(1)
def test_cleanup_finds_what_a_dead_driver_left_and_spares_what_a_version_references(
    path: Path,
) -> None:
    old = write(path, 0)
    (old_file,) = lance.dataset(str(path)).get_fragments()[0].data_files()
    write(path, 7, overwrite=True)
    _leave_marker(path, old, old_file.path)  # only an old version references this file
    dead = plan(path)
    message = dead.write(batches(1))
    dead.write(batches(2))
    half = plan(path)
    half_done = half.write(batches(3))
    half.commit([half_done])
    _leave_marker(path, half, half_done.file_names[0])

    assert remove_orphans(uri_of(path), older_than=timedelta(hours=1)) == 0
    assert len(unused_files(path)) == (5 if appends.prefix else 7), (
        "files, markers of jobs, and of attempts"
    )
    assert remove_orphans(uri_of(path), older_than=LATER) == 2
    assert unused_files(path) == set()
    assert (ids_in(path, 1), ids_in(path, 2), ids_in(path)) == ([0], [7], [3, 7])
    with pytest.raises(CommitError, match="cleaned up"):
        dead.commit([message])


def test_cleanup_of_a_branch_spares_files_that_only_a_branch_of_it_references(path: Path) -> None:
    write(path, 0)
    parent = path / "tree" / "parent"
    lance.dataset(str(path)).create_branch("parent")
    job = write(parent, 5)
    child = lance.dataset(str(path)).create_branch("child", ("parent", None))
    write(parent, 9, overwrite=True)
    (
        parent / "_versions" / f"{2**64 - 1 - 2}.manifest"
    ).unlink()  # version 2 is gone from the parent
    (file,) = child.get_fragments()[1].data_files()
    _leave_marker(parent, job, file.path)

    assert (
        remove_orphans(uri_of(path), older_than=LATER)
        == 0
        == remove_orphans(uri_of(parent), older_than=LATER)
    )
    assert not [
        file for file in (parent / "_lance_spark").rglob("*") if file.is_file()
    ]  # the sweep inspected the file
    assert child.to_table()["id"].to_pylist() == [0, 5]


def test_cleanup_spares_files_that_only_a_branch_references(path: Path) -> None:
    write(path, 0)
    job = write(path, 5)
    branch = lance.dataset(str(path)).create_branch("other")
    write(path, 9, overwrite=True)
    (
        path / "_versions" / f"{2**64 - 1 - 2}.manifest"
    ).unlink()  # version 2 is gone from the main branch
    (file,) = branch.get_fragments()[1].data_files()
    _leave_marker(path, job, file.path)

    assert remove_orphans(uri_of(path), older_than=LATER) == 0
    assert branch.to_table()["id"].to_pylist() == [0, 5]


def _leave_marker(path: Path, job: LanceAppendWriter, file: str) -> None:
    """Simulates the death of a job's driver between its commit and its sweep."""
    marker = (
        path / "_lance_spark" / "staging" / job.staging.job_id / file.partition("-")[0] / "attempt"
    )
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text("{}")
