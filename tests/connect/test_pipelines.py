"""Pipelines of Spark read and write tables of a catalog: `spark-pipelines run`, as a process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.connect.jvm_settings import settings
from tests.support.processes import SPARK_HOME, environment

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow]

SPECIFICATION = """
name: features
catalog: lance
database: live
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

STATEMENTS = """
CREATE MATERIALIZED VIEW lengths AS SELECT id, length(text) AS letters FROM documents;
CREATE STREAMING TABLE loud AS SELECT id, upper(text) AS text FROM STREAM documents;
"""

FUNCTIONS = """
from pyspark import pipelines
from pyspark.sql import SparkSession, functions

@pipelines.materialized_view
def totals():
    lengths = SparkSession.active().table("lengths")
    return lengths.agg(functions.sum("letters").alias("letters"))
"""

Run = Callable[[], None]


def documents(*texts: str, start: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + len(texts)), pa.int64()), "text": texts})


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The folder of the namespace `lance.live`."""
    folder = tmp_path / "tables" / "live"
    lance.write_dataset(
        documents("a", "bb", "ccc"), f"{folder}/documents.lance", enable_stable_row_ids=True
    )
    return folder


@pytest.fixture
def run(tmp_path: Path, tables: Path) -> Run:
    """Runs the pipeline once, for all rows of its source."""
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "statements.sql").write_text(STATEMENTS)
    (tmp_path / "transformations" / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path))
    # A pipeline has two JVMs, and hands only the file of defaults to the second one.
    (tmp_path / "conf").mkdir()
    pairs = [text.split("=", 1) for text in settings(tables.parent) if text.startswith("spark.")]
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in pairs)
    )

    def run_once() -> None:
        completed = subprocess.run(
            [str(SPARK_HOME / "bin" / "spark-pipelines"), "run"],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
            env=environment() | {"SPARK_CONF_DIR": str(tmp_path / "conf")},
            check=False,
        )
        assert completed.returncode == 0, (completed.stdout + completed.stderr)[-8000:]

    return run_once


def rows_of(tables: Path, name: str) -> list[dict[str, object]]:
    return lance.dataset(f"{tables}/{name}.lance").to_table().sort_by("id").to_pylist()


def test_a_pipeline_reads_and_writes_tables_of_the_catalog(run: Run, tables: Path) -> None:
    run()
    assert rows_of(tables, "loud") == documents("A", "BB", "CCC").to_pylist()
    lance.write_dataset(documents("dddd", start=3), f"{tables}/documents.lance", mode="append")
    run()
    assert rows_of(tables, "loud") == documents("A", "BB", "CCC", "DDDD").to_pylist()
    assert [row["letters"] for row in rows_of(tables, "lengths")] == [1, 2, 3, 4]
    assert lance.dataset(f"{tables}/totals.lance").to_table().to_pylist() == [{"letters": 10}]
