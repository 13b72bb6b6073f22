"""Queries of Spark's golden SQL files, over Lance tables in place of views of `VALUES`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lance_spark import Connection
from tests.lance_spark.sql.conftest import NAME
from tests.lance_spark.sql.golden.differences import DIFFERENCES, LEFT_OUT
from tests.lance_spark.sql.golden.files import get_test_jar, list_files, read_file
from tests.lance_spark.sql.golden.runs import GoldenRun

pytestmark = pytest.mark.classic

SAMPLE = (
    "subquery/in-subquery/not-in-unit-tests-multi-column-literal.sql",
    "subexp-elimination.sql",
    "count.sql",
)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keeps PySpark from writing every expected error to the log."""
    logger = logging.getLogger("SQLQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def find_differences(spark: SparkSession, names: list[str]) -> tuple[dict[str, dict[int, str]], int]:
    """Runs files. Returns the queries with another outcome, and the number of all queries.

    If an outcome differs from the golden file, Spark's own views decide: the files are of
    another release.
    """
    differences: dict[str, dict[int, str]] = {}
    queries = 0
    for number, name in enumerate(names):
        file = read_file(name)
        spark.sql(f"CREATE NAMESPACE {NAME}.lance{number}")
        ours = GoldenRun(spark, file, f"lance{number}", NAME)
        theirs = GoldenRun(spark, file, f"spark{number}")
        with ours.open(), theirs.open():
            for position in file.list_queries():
                outcome, queries = ours.query(position), queries + 1
                if outcome != file.outcomes.get(file.statements[position]) and outcome != (
                    expected := theirs.query(position)
                ):
                    text = f"{file.statements[position]}\n--- expected\n{expected}\n--- found\n{outcome}"
                    differences.setdefault(name, {})[position] = text
    return differences, queries


def check(spark: SparkSession, names: list[str]) -> int:
    differences, queries = find_differences(spark, names)
    unlisted = [
        f"{name}, statement {position}: {text}"
        for name, found in differences.items()
        for position, text in found.items()
        if position not in DIFFERENCES.get(name, {})
    ]
    assert not unlisted, "\n\n".join(unlisted)
    settled = [
        f"{name}, statement {position}"
        for name in names
        for position in DIFFERENCES.get(name, {})
        if position not in differences.get(name, {})
    ]
    assert not settled, f"These queries no longer differ. Remove them from DIFFERENCES: {settled}"
    return queries


@pytest.mark.long
def test_golden_files_have_the_same_outcomes_over_lance_tables(
    db: Connection, spark: SparkSession, quiet: None
) -> None:
    names = [name for name in list_files() if not name.startswith(tuple(LEFT_OUT))]
    assert set(DIFFERENCES) <= set(names)
    assert check(spark, [name for name in names if read_file(name).list_queries()]) > 2000


def test_a_sample_of_golden_files_has_the_same_outcomes_over_lance_tables(
    db: Connection, spark: SparkSession, quiet: None
) -> None:
    try:
        get_test_jar()
    except OSError as error:
        pytest.skip(f"Maven Central does not answer: {error}")
    assert check(spark, list(SAMPLE)) > 0
