"""LanceDB's habits in lance-spark, and next to the newest LanceDB."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.lancedb_habits import searches, tables  # noqa: F401 - registers the habits
from tests.lancedb_habits.habit import HABITS, Habit, Helpers, Jobs, agree
from tests.support.inline_jobs import NoSpark, inline_tasks

ROOT = Path(__file__).parents[2]
LEAST_SHARE = 0.8
"""Least share of habits with LanceDB's result."""


def no_spark() -> SparkSession:
    raise AssertionError("this habit needs no Spark")


def index_text(table: Any, column: str) -> None:
    table.to_lance().create_scalar_index(
        column, "INVERTED", with_position=True, stem=False, remove_stop_words=False, replace=True
    )


HELPERS = Helpers(names=lance_spark, is_lancedb=False, index_text=index_text)


def cases(jobs: Jobs) -> list[Any]:
    return [
        pytest.param(case, id=name.replace(" ", "-"))
        for name, case in HABITS.items()
        if case.jobs == jobs
    ]


@pytest.mark.parametrize("case", cases("none"))
def test_a_habit_without_jobs(case: Habit, tmp_path: Path) -> None:
    db = lance_spark.connect(str(tmp_path), no_spark)
    assert agree(case.act(db, HELPERS), case.expected)


@pytest.mark.parametrize("case", cases("inline"))
def test_a_habit_with_inline_jobs(case: Habit, tmp_path: Path) -> None:
    with inline_tasks():
        db: Any = lance_spark.connect(str(tmp_path), NoSpark())  # type: ignore[arg-type]  # in place of Spark
        assert agree(case.act(db, HELPERS), case.expected)


@pytest.mark.long
@pytest.mark.parametrize("case", cases("spark"))
def test_a_habit_with_spark(case: Habit, tmp_path: Path, spark: SparkSession) -> None:
    db = lance_spark.connect(str(tmp_path), spark)
    assert agree(case.act(db, HELPERS), case.expected)


@pytest.fixture(scope="module")
def lancedbs_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all habits in the newest LanceDB, in an environment of its own."""
    folder = tmp_path_factory.mktemp("lancedb")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert uv is not None, "uv, of the extra test, makes the environment"
    python = folder / "env" / "bin" / "python"
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
        "lancedb",
        "pandas",
        "pylance",
    ]
    for command in ([uv, "venv", "--quiet", str(folder / "env")], install):
        subprocess.run(command, check=True)
    run = [str(python), "-m", "tests.lancedb_habits.lancedb_run", str(folder / "tables")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.mark.long
def test_most_habits_are_lancedbs(lancedbs_results: dict[str, Any]) -> None:
    same = [
        case.name for case in HABITS.values() if agree(case.expected, lancedbs_results[case.name])
    ]
    listed_as_same = [case.name for case in HABITS.values() if case.differs is None]
    assert same == listed_as_same, "a habit has another result than listed"
    assert len(same) >= LEAST_SHARE * len(HABITS)
