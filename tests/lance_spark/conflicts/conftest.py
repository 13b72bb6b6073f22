"""One place to work for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lance_spark.conflicts.jobs import Lab


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(home=tmp_path, spark=spark)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")
