"""Casts of columns with concurrent writers: one commit with the values of all rows, or no change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import RegistrationError, Table
from lance_spark.columns import cast_files
from lance_spark.columns.cast_files import CastFile, CastTask
from tests.support.cast_driver import POINTS
from tests.support.waiting import eventually

VECTOR = pa.list_(pa.float32(), 2)


def rows_of(ids: range) -> pa.Table:
    return pa.table({"id": ids, "v": [[float(i), 0.5] for i in ids]})


def make_table(folder: Path, spark: SparkSession | None = None) -> Table:
    uri = str(folder / "t.lance")
    lance.write_dataset(rows_of(range(12)), uri, max_rows_per_file=4, enable_stable_row_ids=True)
    return lance_spark.connect(str(folder), spark).open_table("t")


def files_without_version(table: Table) -> set[str]:
    """Returns data files without a reference in any version."""
    dataset = table.to_lance()
    handles = (dataset.checkout_version(version["version"]) for version in dataset.versions())
    paths = {
        file.path
        for handle in handles
        for part in handle.get_fragments()
        for file in part.data_files()
    }
    return {path.name for path in Path(table.uri, "data").iterdir()} - paths


def unreferenced(table: Table) -> set[str]:
    """Returns data files without a reference in any version, and files of jobs."""
    files = (path for path in Path(table.uri, "_lance_spark").rglob("*") if path.is_file())
    history = Path(table.uri, "_lance_spark", "jobs.lance")
    return files_without_version(table) | {
        path.name for path in files if history not in path.parents
    }


CHANGES: dict[str, tuple[Callable[[lance.LanceDataset], object], list[int], list[int]]] = {
    "append": (
        lambda t: lance.write_dataset(rows_of(range(12, 14)), t.uri, mode="append"),
        [*range(14)],
        [0, 1, 2, 3],
    ),
    "delete": (lambda t: t.delete("id = 5"), [i for i in range(12) if i != 5], [0, 1, 2]),
    "delete a fragment": (lambda t: t.delete("id < 4"), [*range(4, 12)], [0, 1, 2]),
    "add a column": (lambda t: t.add_columns({"n": "id"}), [*range(12)], [0, 1, 2]),
    "compact": (lambda t: t.optimize.compact_files(), [*range(12)], [0, 1, 2, 3]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_lists_become_vectors_beside_other_writers(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, ids, expected_fragments = CHANGES[change]
    table, run, fragments = make_table(tmp_path), CastTask.run, list[int]()
    versions = []

    def run_beside(task: CastTask) -> CastFile:
        file = run(task)
        fragments.append(task.fragment_id)
        if len(fragments) == 3:
            act(lance.dataset(table.uri))
            versions.append(table.version)
        return file

    monkeypatch.setattr(CastTask, "run", run_beside)
    version = table.alter_columns({"path": "v", "data_type": VECTOR}).version
    assert fragments == expected_fragments, (
        "a fragment of other writers is cast, and no fragment twice"
    )
    assert (version, table.schema.field("v").type) == (versions[0] + 1, VECTOR)
    rows = table.to_arrow(["id", "v"]).to_pylist()
    assert sorted(row["id"] for row in rows) == ids
    assert all(row["v"] == [row["id"], 0.5] for row in rows)
    assert table.search([7.0, 0.5]).limit(1).to_list()[0]["id"] == 7
    assert unreferenced(table) == set()


def test_a_restored_row_has_its_value_after_a_cast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, run, fragments = make_table(tmp_path), CastTask.run, list[int]()
    table.to_lance().delete("id = 5")

    def run_beside(task: CastTask) -> CastFile:
        file = run(task)
        fragments.append(task.fragment_id)
        if len(fragments) == 3:
            lance.dataset(table.uri, version=1).restore()
        return file

    monkeypatch.setattr(CastTask, "run", run_beside)
    table.alter_columns({"path": "v", "data_type": VECTOR})
    assert fragments == [0, 1, 2, 1], "the file of the fragment has no value of the deleted row"
    assert table.to_arrow(["id", "v"]).to_pylist() == [
        {"id": i, "v": [float(i), 0.5]} for i in range(12)
    ]
    assert unreferenced(table) == set()


def test_a_cast_after_a_drop_takes_a_new_field_id(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.add_columns({"n": "id + 1"})
    table.drop_columns("n")
    table.alter_columns({"path": "v", "data_type": VECTOR})
    assert [row["v"] for row in table.to_arrow().to_pylist()] == [[i, 0.5] for i in range(12)]


def test_a_list_of_another_length_leaves_no_file(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.add([{"id": 12, "v": [1.0, 2.0, 3.0]}])
    with pytest.raises(
        RegistrationError, match=r"A value of column 'v' does not fit fixed_size_list.*\[2\]"
    ):
        table.alter_columns({"path": "v", "data_type": VECTOR})
    assert table.version == 2 and unreferenced(table) == set()


@pytest.mark.long
def test_tasks_of_spark_cast_a_large_table(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cast_files, "_LOCAL_BYTES", 0)
    table = make_table(tmp_path, spark)
    table.delete("id = 5")

    def refuse(*_: Any) -> None:
        raise AssertionError("the driver reads no value")

    monkeypatch.setattr(CastTask, "_convert", refuse)  # executors import the unpatched class
    assert table.alter_columns({"path": "v", "data_type": VECTOR}).version == 3
    assert all(row["v"] == [row["id"], 0.5] for row in table.to_arrow().to_pylist())
    assert unreferenced(table) == set()
    with pytest.raises(RegistrationError, match="does not fit"):
        table.alter_columns({"path": "v", "data_type": pa.list_(pa.float32(), 3)})
    assert table.version == 3 and unreferenced(table) == set()
    failed, done = table.list_jobs()
    assert (done.job_type, done.status, done.columns, done.versions) == (
        "alter_columns",
        "DONE",
        ("v",),
        (3,),
    )
    assert (done.read_version, done.fragments_done, done.fragments_total) == (2, 3, 3)
    assert (failed.status, failed.versions) == ("FAILED", ()) and "does not fit" in (
        failed.message or ""
    )
    assert table.get_job(done.job_id).status == "DONE"


def die(master: str, point: str, folder: Path) -> None:
    """Runs a cast in a process, which is killed at a point with all its children."""
    command = [sys.executable, "-m", "tests.support.cast_driver", master, point, str(folder)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        eventually(lambda: (folder / "held").exists() or process.poll() is not None, seconds=90)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize(
    ("master", "point"),
    [
        *(("none", point) for point in POINTS),
        # Executors write the files.
        *(("local[2]", point) for point in POINTS if point != "in a file"),
    ],
)
def test_a_driver_that_is_killed_in_a_cast(
    tmp_path: Path, master: str, point: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(tmp_path)
    die(master, point, tmp_path)
    table = lance_spark.connect(str(tmp_path), spark, progress=False).open_table("t")
    is_cast = point == "after the commit"
    assert (table.version, table.schema.field("v").type == VECTOR) == (
        (2, True) if is_cast else (1, False)
    )
    jobs = table.list_jobs()
    assert [(job.job_type, job.status) for job in jobs] == [("alter_columns", "DEAD")] * (
        master != "none"
    )
    monkeypatch.setattr(
        cast_files, "_LOCAL_BYTES", cast_files._LOCAL_BYTES if master == "none" else 0
    )
    if not is_cast:
        table.alter_columns({"path": "v", "data_type": VECTOR})
        assert [job.status for job in table.list_jobs()] == [*(["DONE", "DEAD"] if jobs else [])]
    assert [row["v"] for row in table.to_arrow().to_pylist()] == [[i, 0.5] for i in range(12)]
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert table.version == 2 and files_without_version(table) == set()
