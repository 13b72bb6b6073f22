"""A connection to an empty folder on the session, and a place for files of sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection


@pytest.fixture
def db(tmp_path: Path, spark: SparkSession) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), spark, progress=False)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "files"
    folder.mkdir()
    return folder
