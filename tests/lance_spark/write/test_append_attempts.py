"""Attempts of an append: late, killed, and after the end of their job."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.errors import CommitError
from lance_spark.staging import area, data_files
from lance_spark.staging.attempt import LateAttemptError
from lance_spark.staging.orphans import remove_orphans
from lance_spark.write.append_writer import LanceAppendWriter
from tests.lance_spark.write import appends
from tests.lance_spark.write.appends import (
    STORES,
    batches,
    child_environment,
    files_in,
    ids_in,
    plan,
    sleeping,
    unused_files,
    uri_of,
    with_markers,
    write,
)

pytestmark = pytest.mark.sample(1, tests=2)

LATER = timedelta(0)
"""An age that every job has reached, since ids count whole seconds."""


def test_attempts_that_spark_forgets_leave_nothing_behind(path: Path) -> None:
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    job.write(batches(1, 2))  # a complete attempt that was lost

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(3, 4)
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="input is gone"):
        job.write(failing())
    killed = _killed_task(path, job)
    assert killed < 0
    assert appends.prefix or any(
        ".tmp" in name for name in files_in(path)
    )  # leftovers of a killed process
    job.commit([job.write(batches(1, 2))])

    assert ids_in(path) == [0, 1, 2]
    assert unused_files(path) == set()
    assert appends.prefix or not (path / "_lance_spark").exists()


def _killed_task(path: Path, job: LanceAppendWriter) -> int:
    """Runs the job's task in another process, which kills itself after two and a half files."""
    script = textwrap.dedent("""
        import os, pickle, signal, sys
        from pathlib import Path
        import pyarrow as pa
        def batches():
            for i in range(3):
                yield pa.record_batch({"id": pa.array([100 + i]), "s": pa.array(["x"])})
            # The writer opens the third file when it gets the third batch; a batch of two rows keeps the fourth open.
            os.kill(os.getpid(), signal.SIGKILL)
        job = pickle.loads(Path(sys.argv[1]).read_bytes())
        object.__setattr__(job, "options", type(job.options)(path=job.options.path, max_rows_per_file=2))
        job.write(batches())
    """)
    sent = path.parent / "job.pickle"
    sent.write_bytes(pickle.dumps(job))
    process = subprocess.run(
        [sys.executable, "-c", script, str(sent)],
        env=child_environment(),
        check=False,
        capture_output=True,
    )
    sent.unlink()
    return process.returncode


def test_an_attempt_that_closes_its_file_while_the_job_sweeps_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(path)
    message = job.write(batches(1))
    late = job.staging.begin_attempt().open_data_file(
        pa.schema([("id", pa.int64())]), version="2.2"
    )
    late.write_batch(pa.record_batch({"id": pa.array([2])}))
    find = area.find_data_files

    def find_then_close(*arguments: Any, **options: Any) -> dict[str, list[str]]:
        files = find(*arguments, **options)
        with pytest.raises(CommitError, match="came too late"):
            late.close()
        return files

    monkeypatch.setattr(area, "find_data_files", find_then_close)
    job.commit([message])
    assert ids_in(path) == [1]
    assert unused_files(path) == set()


def test_an_attempt_that_notices_the_end_of_its_job_first_leaves_the_others_to_be_found(
    path: Path,
) -> None:
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    message = job.write(batches(1, 2))
    late = job.staging.begin_attempt().open_data_file(
        pa.schema([("id", pa.int64())]), version="2.2"
    )
    late.write_batch(pa.record_batch({"id": pa.array([3])}))
    assert not job.staging.close_job()  # the first step of an abort
    with pytest.raises(CommitError, match="came too late"):
        late.close()
    job.abort([message])
    assert ids_in(path) == [0]
    assert unused_files(path) == set()
    assert appends.prefix or not (path / "_lance_spark").exists()


def test_the_end_of_a_job_waits_for_attempts_that_rely_on_their_last_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 1.0)
    path = tmp_path / "table.lance"
    write(path, 0)
    job = with_markers(plan(path))
    attempt = job.staging.begin_attempt()
    schema = pa.schema([("id", pa.int64())])
    files = [attempt.open_data_file(schema, version="2.2") for _ in range(3)]
    files[0].write_batch(pa.record_batch({"id": [1]}))
    assert not job.staging.close_job()  # the first step of an abort
    assert files[0].close() == 1, "the check at the begin of the attempt still holds"
    began = time.monotonic()
    job.abort([])
    assert time.monotonic() - began >= 1.0
    assert unused_files(path) == set()
    files[2].write_batch(pa.record_batch({"id": [2]}))
    with pytest.raises(CommitError, match="came too late"):
        files[2].close()
    assert unused_files(path) == set()


@pytest.mark.parametrize("check_s", [0.0, 60.0])
def test_an_attempt_without_a_marker_deletes_its_files_at_its_end_if_its_job_has_ended(
    check_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", check_s)
    monkeypatch.setattr(area, "time", sleeping(lambda _: None))
    path = tmp_path / "table.lance"
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    message = job.write(batches(1))

    def late_rows() -> Iterator[pa.RecordBatch]:
        yield from batches(2, 3)
        job.commit([message])
        assert (ids_in(path), unused_files(path)) == ([0, 1], set()), (
            "the end of the job finds the first file"
        )
        yield from batches(4, 5)

    with pytest.raises(CommitError, match="came too late"):
        job.write(late_rows())
    assert (ids_in(path), unused_files(path)) == ([0, 1], set())


def test_an_attempt_that_goes_on_after_an_abort_deletes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.lance"
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.3)  # the time for which an attempt relies on a check
    write(path, 0)
    job = plan(path)
    attempt = job.staging.begin_attempt()
    file = attempt.open_data_file(pa.schema([("id", pa.int64())]), version="2.2")
    file.write_batch(pa.record_batch({"id": [1]}))
    job.abort([])
    with pytest.raises(LateAttemptError):
        file.close()
    assert unused_files(path) == set()


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("end", ["abort", "cleanup"])
def test_files_of_an_attempt_are_found_beside_its_unfinished_files(
    end: str, marked: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    write(path, 0)
    job = with_markers(plan(path)) if marked else plan(path)
    attempt = job.staging.begin_attempt()
    schema = pa.schema([("id", pa.int64())])
    files = [attempt.open_data_file(schema, version="2.2") for _ in range(area.OPEN_FILES)]
    files[-1].write_batch(pa.record_batch({"id": [1]}))
    files[-1].close()  # and then its process dies
    assert len(unused_files(path)) == 2 + marked, "the file and the markers"
    if end == "abort":
        job.abort([])
    else:
        assert remove_orphans(uri_of(path), older_than=LATER) == 1
    assert unused_files(path) == set()


def test_many_attempts_are_swept_by_one_listing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "_PROBED_ATTEMPTS", 2)
    job = plan(path, max_rows_per_file="1")
    for i in range(4):
        job.write(batches(i, i + 10))
    job.commit([job.write(batches(7, 8))])
    assert ids_in(path) == [7, 8]
    assert unused_files(path) == set()
