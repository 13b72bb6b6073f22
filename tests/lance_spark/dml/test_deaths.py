"""A statement whose process is killed: before or after the commit, never between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.dml import statement
from lance_spark.dml.edits import Edit
from lance_spark.dml.results import RowEditResult
from tests.lance_spark.dml.tables import content, make
from tests.support.statement_driver import POINTS, STATEMENTS, Inline
from tests.support.waiting import eventually

AT_COMMIT = ("before the commit", "in the commit", "after the commit")
CASES = [
    ("columns", "in a column file"),
    ("rows", "in a fragment"),
    ("delete", "in a deletion"),
    *((kind, point) for kind in ("columns", "rows", "delete") for point in AT_COMMIT),
]

QUICK = [("columns", "in a column file"), ("rows", "in the commit"), ("delete", "after the commit")]


def die(master: str, point: str, folder: Path, kind: str) -> None:
    """Runs a statement in a process, which is killed at a point with all its children."""
    command = [
        sys.executable,
        "-m",
        "tests.support.statement_driver",
        master,
        point,
        str(folder),
        kind,
    ]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        eventually(lambda: (folder / "held").exists() or process.poll() is not None, seconds=90)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(folder: Path, kind: str, *, committed: bool, again: Any) -> None:
    """The statement took effect completely or not at all. Run again, it takes effect, and no leftovers stay."""
    uri = f"{folder}/t.lance"
    is_changed = {
        "columns": lambda row: row["s"] == "new" or row["id"] % 2,
        "rows": lambda row: row["s"] == "new" or row["id"] not in (2, 13),
        "delete": lambda row: row["id"] % 3,
        "merge": lambda row: row["s"] == "new" or row["id"] not in (2, 77),
    }[kind]
    rows = content(uri)
    assert all(map(is_changed, rows)) == committed
    assert lance.dataset(uri).version == (2 if committed else 1)
    STATEMENTS[kind](again)
    assert all(map(is_changed, content(uri)))
    lance_spark.cleanup(uri, older_than=timedelta(0))
    referenced_files = {
        file.path
        for version in lance.dataset(uri).versions()
        for fragment in lance.dataset(uri, version=version["version"]).get_fragments()
        for file in fragment.metadata.files
    }
    assert {path.name for path in Path(uri, "data").iterdir()} == referenced_files


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        pytest.param(*case, id="-".join(case), marks=() if case in QUICK else pytest.mark.long)
        for case in CASES
    ],
)
def test_a_driver_that_is_killed(tmp_path: Path, kind: str, point: str):
    make(f"{tmp_path}/t.lance")
    die("none", point, tmp_path, kind)
    check(
        tmp_path, kind, committed=point == "after the commit", again=Inline(f"{tmp_path}/t.lance")
    )


@pytest.mark.long
@pytest.mark.parametrize("point", AT_COMMIT)
@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_driver_that_is_killed_with_its_jvm(
    tmp_path: Path, kind: str, point: str, spark: SparkSession
):
    make(f"{tmp_path}/t.lance")
    die("local[2]", point, tmp_path, kind)
    table = lance_spark.connect(str(tmp_path), spark, progress=False).open_table("t")
    check(tmp_path, kind, committed=point == "after the commit", again=table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Killer(Edit):
    """Kills the first worker of a task."""

    folder: str

    def run(self) -> RowEditResult:
        try:
            os.close(os.open(f"{self.folder}/killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return Edit.run(self)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.classic
def test_a_worker_that_is_killed_costs_its_tasks(tmp_path: Path, spark: SparkSession):
    make(f"{tmp_path}/t.lance")
    table = lance_spark.connect(str(tmp_path), spark, progress=False).open_table("t")
    with patch.object(statement, "Edit", lambda **more: Killer(folder=str(tmp_path), **more)):
        result = table.update("id % 2 = 0", {"s": "new"})
    assert (tmp_path / "killed").exists() and result.rows_updated == 15
    assert table.count_rows("s = 'new'") == 15


def test_points_are_all_used():
    assert {point for _, point in CASES} == set(POINTS)
