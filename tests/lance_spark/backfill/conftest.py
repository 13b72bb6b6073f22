"""A connection to an empty folder, on the session of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> lance_spark.Connection:
    return lance_spark.connect(str(tmp_path / "db"), spark)
