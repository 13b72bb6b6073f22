"""A connection to an empty folder, and a log for UDFs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from tests.promises.logs import Log


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), spark, progress=False)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(str(tmp_path / "seen"))


@pytest.fixture
def flag(tmp_path: Path) -> str:
    """Path of a file that tests and UDFs tell each other something with."""
    return str(tmp_path / "flag")
