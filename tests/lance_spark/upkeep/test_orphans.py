"""A cleanup reads each version once for all dead jobs, and deletes only files without a version."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.commit.conflicts import history
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.orphans import remove_orphans

ROWS = pa.table({"id": range(4)})


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def leave_file(path: str) -> str:
    """Returns the name of the data file of a job whose driver died."""
    staging = Staging(uri=path, job_id=new_id())
    staging.open_job()
    file = staging.begin_attempt().open_data_file(ROWS.schema, version="2.1")
    file.write_batch(ROWS.to_batches()[0])
    file.close()
    (name,) = staging.find_data_files()
    return str(name)


@pytest.mark.parametrize("jobs", [1, 5])
def test_each_version_is_read_once_for_all_dead_jobs(
    path: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        lance.write_dataset(ROWS, path, mode="append" if number else "create")
    names = [leave_file(path) for _ in range(jobs)]
    read_manifest, versions = history._named_in, Counter[int]()

    def count(dataset: lance.LanceDataset, version: int, sought: frozenset[str]) -> frozenset[str]:
        versions[version] += 1
        return read_manifest(dataset, version, sought)

    monkeypatch.setattr(history, "_named_in", count)
    assert remove_orphans(path, older_than=timedelta(0), needed=names[:1]) == jobs - 1
    assert versions == Counter(range(1, 7))
    assert [(Path(path) / "data" / name).exists() for name in names] == [True] + [False] * (
        jobs - 1
    )
    assert lance.dataset(path).count_rows() == 24
