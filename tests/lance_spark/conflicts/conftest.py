"""A folder for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lance_spark.conflicts.jobs import ConflictLab, SparkLab
from tests.support.inline_jobs import inline_tasks


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ConflictLab]:
    """A folder for a table whose jobs run in this process."""
    with inline_tasks():
        yield ConflictLab(home=tmp_path)


@pytest.fixture
def spark_lab(spark: SparkSession, tmp_path: Path) -> SparkLab:
    """A folder for a table whose jobs run on Spark."""
    return SparkLab(home=tmp_path, spark=spark)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")
