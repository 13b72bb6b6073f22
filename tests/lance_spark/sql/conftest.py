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
from tests.support.catalogs import NAMES

Sql = Callable[[str], list[tuple[Any, ...]]]

_numbers = itertools.count()


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Connection:
    """A catalog, named by `cat`, as a connection."""
    name = f"c{next(_numbers)}"
    made = lance_spark.catalog(spark, name, str(tmp_path), allow_stored_code=True)
    NAMES[made.uri] = name
    return made


@pytest.fixture
def sql(db: Connection, spark: SparkSession) -> Sql:
    """Runs a statement in which `{c}` is the catalog, and returns its rows."""
    name = NAMES[db.uri]

    def run(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text.replace("{c}", name)).collect()]

    return run
