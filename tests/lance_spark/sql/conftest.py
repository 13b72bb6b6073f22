"""A catalog of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection

Sql = Callable[[str], list[tuple[Any, ...]]]

_numbers = itertools.count()


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Connection:
    """A catalog, named by `cat`, as a connection."""
    return lance_spark.catalog(spark, f"c{next(_numbers)}", str(tmp_path))


@pytest.fixture
def sql(db: Connection, spark: SparkSession) -> Sql:
    """Runs a statement in which `{c}` is the catalog, and returns its rows."""
    name = next(
        key.split(".")[3]
        for key, value in spark.conf.getAll.items()
        if key.startswith("spark.sql.catalog.") and key.endswith(".root") and value == db.uri
    )

    def run(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text.replace("{c}", name)).collect()]

    return run
