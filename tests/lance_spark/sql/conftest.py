"""A catalog named `lance`, as on all pages and as the data source, with a folder of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from lance_spark.jvm.jar import load

Sql = Callable[[str], list[tuple[Any, ...]]]

NAME = "lance"


@pytest.fixture
def catalog_name() -> str:
    """The catalog's name."""
    return NAME


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Iterator[Connection]:
    """The catalog as a connection."""
    forget_catalog(spark)  # a page of the documentation may have registered a catalog of this name
    yield lance_spark.catalog(spark, NAME, str(tmp_path), allow_stored_code=True)
    forget_catalog(spark)


def forget_catalog(spark: SparkSession) -> None:
    """Removes the options of the catalog. An application keeps a catalog with options for good."""
    load(spark.sparkContext._gateway, "lancespark.LanceRegistry").newInstance().register(NAME, {})


@pytest.fixture
def sql(db: Connection, spark: SparkSession) -> Sql:
    """Runs a statement with the catalog in place of `{c}`, and returns its rows."""

    def run(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text.replace("{c}", NAME)).collect()]

    return run
