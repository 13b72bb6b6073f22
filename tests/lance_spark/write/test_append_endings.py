"""Endings of an append: aborts, lost answers, and the death of the process that commits."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_spark.errors import CommitError, CommitOutcomeUnknownError, TableUnwritableError
from lance_spark.staging import area, processes
from lance_spark.staging.orphans import remove_orphans
from lance_spark.storage.objects import LanceObjects
from lance_spark.write import row_write
from tests.lance_spark.write import appends
from tests.lance_spark.write.appends import (
    STORES,
    batches,
    child_environment,
    files_in,
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


def test_an_abort_of_a_creation_leaves_no_folder(local_path: Path) -> None:
    job = plan(local_path)
    message = job.write(batches(1))
    assert files_in(local_path)
    job.abort([message, None])
    assert not local_path.parent.exists()
    assert local_path.parent.parent.exists()


def test_an_abort_keeps_folders_that_were_there_before(local_path: Path) -> None:
    local_path.mkdir(parents=True)
    job = plan(local_path)
    job.write(batches(1))
    job.abort([])
    assert list(local_path.iterdir()) == []


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("end", ["abort", "cleanup"])
def test_files_are_deleted_in_a_store_that_refuses_markers(
    end: str, marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.lance"
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    write(path, 0)
    job = with_markers(plan(path)) if marked else plan(path)
    job.write(batches(1))

    def refuse(objects: LanceObjects, name: str, data: bytes) -> None:
        raise TableUnwritableError(objects.uri, "quota exceeded")

    monkeypatch.setattr(LanceObjects, "put", refuse)
    if end == "abort":
        job.abort([])
    else:
        assert remove_orphans(uri_of(path), older_than=LATER) == 1
    assert unused_files(path) == set()


def test_a_commit_that_is_repeated_doubles_nothing(path: Path) -> None:
    job = plan(path)
    message = job.write(batches(1))
    job.commit([message])
    job.commit([message])
    assert ids_in(path) == [1]
    job.abort([message])  # Spark reports this if the reply of the commit was lost
    assert ids_in(path) == [1]


def test_a_lost_answer_keeps_the_files_and_an_abort_keeps_them_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 0)
    job = plan(path)
    message = job.write(batches(1))

    def no_answer(*_: object, **__: object) -> object:
        raise CommitOutcomeUnknownError("no answer", uri=str(path))

    with monkeypatch.context() as patch:
        patch.setattr(row_write, "commit_rows", no_answer)
        with pytest.raises(CommitOutcomeUnknownError):
            job.commit([message])
    job.abort([message])
    assert {f"data/{name}" for name in message.file_names} <= files_in(path)
    # The commit may still land, and then all its files must exist.
    job.staging.open_job()
    job.commit([message])
    assert ids_in(path) == [0, 1]
    assert unused_files(path) == set()


def test_an_abort_after_a_commit_keeps_the_version_and_deletes_the_rest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 0)
    job = plan(path)
    job.write(batches(1))  # a duplicate
    message = job.write(batches(1))
    with monkeypatch.context() as patch:
        patch.setattr(row_write, "finish", lambda *_, **__: None)
        patch.setattr(row_write, "finish_closed", lambda *_, **__: None)
        job.commit([message])  # and then its process dies, so Spark takes the job for failed
    assert unused_files(path)
    job.abort([message])
    assert ids_in(path) == [0, 1]
    assert unused_files(path) == set()


def test_an_abort_after_the_death_of_the_commit_process_deletes_uncommittable_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area, "LONGEST_COMMIT", timedelta(0))
    write(path, 0)
    job = plan(path)
    message = job.write(batches(1))
    script = (
        "import os, pickle, sys; pickle.load(sys.stdin.buffer).staging.begin_commit(); os._exit(9)"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(job),
        env=child_environment(),
        check=False,
    )
    assert "_lance_spark" in {name.split("/")[0] for name in files_in(path)}
    job.abort([message])
    if appends.prefix:
        # The last request of the dead process may still be on its way to the store.
        assert {f"data/{name}" for name in message.file_names} <= files_in(path)
        assert remove_orphans(uri_of(path), older_than=LATER) == 1
    assert unused_files(path) == set()


DEAD = 1 << 30
"""A number above the numbers of all processes."""


@pytest.mark.parametrize(
    ("changes", "is_over"),
    [
        ({"pid": DEAD}, True),
        ({"started": "0"}, True),
        ({"started": None}, False),
        ({"pid": DEAD, "host": "another"}, False),
        ({"pid": DEAD, "boot": "another"}, False),
        ({"pid": DEAD, "pid_namespace": "pid:[1]"}, False),
        ({"pid": DEAD, "pid_namespace": None}, False),
    ],
    ids=[
        "dead",
        "later process",
        "unknown start",
        "other host",
        "other boot",
        "other container",
        "no container",
    ],
)
def test_only_a_death_in_the_same_container_ends_a_commit(
    changes: dict[str, Any], is_over: bool, tmp_path: Path
) -> None:
    staging = plan(tmp_path / "table.lance").staging
    staging.begin_commit()
    owner = {**processes.this_owner(), **changes}
    staging.objects.put(f"{staging.folder}/committing", json.dumps(owner).encode())
    assert staging.close_job() is not is_over


def test_the_marker_of_an_earlier_release_proves_no_death(tmp_path: Path) -> None:
    staging = plan(tmp_path / "table.lance").staging
    owner = {"host": processes.this_owner()["host"], "pid": DEAD}
    staging.objects.put(f"{staging.folder}/committing", json.dumps(owner).encode())
    assert staging.close_job()
    staging.note_end()
    assert staging.close_job()


def test_a_commit_whose_files_were_cleaned_up_is_refused(path: Path) -> None:
    write(path, 0)
    job = plan(path)
    message = job.write(batches(1))
    (path / "data" / message.file_names[0]).unlink()
    with pytest.raises(CommitError, match="1 of 1 data files"):
        job.commit([message])
    assert (lance.dataset(str(path)).version, unused_files(path)) == (1, set())
