"""An append on an object store with a second attempt of a task: failed, or perhaps still running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.staging import area
from tests.lance_spark.write import appends
from tests.lance_spark.write.appends import (
    STORES,
    batches,
    ids_in,
    plan,
    sleeping,
    unused_files,
    with_markers,
    write,
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location of a table with a row on an object store."""
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    write(tmp_path / "table.lance", 0)
    return tmp_path / "table.lance"


def failing_rows() -> Iterator[pa.RecordBatch]:
    yield from batches(1, 2, 3)
    raise OSError("the source failed")


@pytest.mark.parametrize("marked", [True, False])
def test_a_failed_attempt_deletes_its_files_so_the_commit_waits_for_none(
    marked: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(path, max_rows_per_file="1")
    job = with_markers(job) if marked else job
    with pytest.raises(OSError, match="the source failed"):
        job.write(failing_rows())
    assert unused_files(path) == {f"{job.staging.folder}/open"}
    waits: list[float] = []
    monkeypatch.setattr(area, "time", sleeping(waits.append))
    job.commit([job.write(batches(1))])
    assert waits == []
    assert (ids_in(path), unused_files(path)) == ([0, 1], set())


def test_the_end_of_a_job_waits_for_another_attempt_after_the_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area, "CHECK_S", 60.0)
    job = plan(path, max_rows_per_file="1")
    other = job.staging.begin_attempt()
    files = [other.open_data_file(pa.schema([("id", pa.int64())]), version="2.2") for _ in range(2)]
    versions: list[int] = []

    def finish_file(seconds: float) -> None:
        assert 0 < seconds <= area.CHECK_S
        versions.append(lance.dataset(str(path)).version)
        files[1].close()  # the last check of the attempt still holds, and then its process dies

    files[0].close()
    message = job.write(batches(1))
    monkeypatch.setattr(area, "time", sleeping(finish_file))
    job.commit([message])
    assert versions == [2], "the commit did not wait"
    assert (ids_in(path), unused_files(path)) == ([0, 1], set())
