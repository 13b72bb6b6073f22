"""Queries of Spark's golden SQL files, over Lance tables in place of Spark's tables and views of `VALUES`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from lance_spark import Connection
from tests.lance_spark.sql.conftest import NAME
from tests.lance_spark.sql.golden.differences import DIFFERENCES, LEFT_OUT, SPARK_ROWS
from tests.lance_spark.sql.golden.files import GoldenFile, get_test_jar, list_files, read_file
from tests.lance_spark.sql.golden.runs import GoldenRun

pytestmark = pytest.mark.classic

SAMPLE = (
    "subquery/in-subquery/not-in-unit-tests-multi-column-literal.sql",
    "subexp-elimination.sql",
    "count.sql",
)

PARTS = 16
"""Parts of the long test: each part runs every sixteenth file."""

Texts = dict[str, dict[int, str]]
"""Texts by file and position of the statement."""


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keeps PySpark from writing every expected error to the log."""
    logger = logging.getLogger("SQLQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def list_files_over_relations() -> list[str]:
    """Returns the names of the files with queries over tables and views of `VALUES`."""
    names = [name for name in list_files() if not name.startswith(tuple(LEFT_OUT))]
    return [name for name in names if read_file(name).list_queries()]


def check(spark: SparkSession, names: list[str]) -> None:
    """Runs files, and compares the queries with another outcome, and the rows kept by Spark, with the lists."""
    differences: Texts = {}
    spark_rows: Texts = {}
    for number, name in enumerate(names):
        differences[name], spark_rows[name] = run(spark, name, number)
    problems = [
        *list_problems(
            "DIFFERENCES", differences, {name: DIFFERENCES.get(name, {}) for name in names}
        ),
        *list_problems(
            "SPARK_ROWS", spark_rows, {name: SPARK_ROWS.get(name, {}) for name in names}
        ),
    ]
    assert not problems, "\n\n".join(problems)


def run(spark: SparkSession, name: str, number: int) -> tuple[dict[int, str], dict[int, str]]:
    """Runs a file. Returns the queries with another outcome, and the statements whose rows Lance cannot store.

    If an outcome differs from the golden file, Spark's own tables decide, because the files belong to another release.
    """
    differences: dict[int, str] = {}
    file = read_file(name)
    spark.sql(f"CREATE NAMESPACE {NAME}.lance{number}")
    ours = GoldenRun(spark, file, f"lance{number}", NAME)
    spark_run = GoldenRun(spark, file, f"spark{number}")
    with ours.open():
        outcomes = {position: ours.query(position) for position in file.list_queries()}
        different = {
            at: out for at, out in outcomes.items() if out != file.outcomes.get(file.statements[at])
        }
        assert ours.list_lance_tables() == sorted(ours.tables)
        assert ours.tables or ours.spark_rows, f"{name} made no Lance table"
    if different:
        with spark_run.open():
            for position, outcome in different.items():
                if outcome != (expected := spark_run.query(position)):
                    statement = file.statements[position]
                    differences[position] = (
                        f"{statement}\n--- expected\n{expected}\n--- outcome\n{outcome}"
                    )
    return differences, ours.spark_rows


def list_problems(title: str, actual: Texts, listed: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Returns a sentence for each missing entry of a list, and for each obsolete entry."""
    unlisted = [
        f"{title} lacks {name}, statement {position}: {text}"
        for name, texts in actual.items()
        for position, text in texts.items()
        if position not in listed[name]
    ]
    settled = [
        f"{name}, statement {position} no longer applies. Remove the entry from {title}."
        for name, reasons in listed.items()
        for position in reasons.keys() - actual[name]
    ]
    return unlisted + settled


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_golden_files_have_the_same_outcomes_over_lance_tables(
    part: int, db: Connection, spark: SparkSession, quiet: None
) -> None:
    check(spark, list_files_over_relations()[part::PARTS])


@pytest.mark.long
def test_the_golden_files_have_thousands_of_queries_over_tables_and_views() -> None:
    names = list_files_over_relations()
    assert set(DIFFERENCES) | set(SPARK_ROWS) <= set(names)
    assert sum(len(read_file(name).list_queries()) for name in names) > 4000


def test_queries_over_tables_and_views_of_values_are_recognised() -> None:
    statements = [
        "CREATE OR REPLACE TEMPORARY VIEW a AS VALUES (1)",
        "create temp view if not exists `b` as select * from (values (1)) s(x)",
        "CREATE VIEW c(x) AS VALUES (1)",
        "CREATE TEMPORARY VIEW IDENTIFIER('d') AS VALUES (1)",
        "ALTER VIEW e AS VALUES (2)",
        "CREATE TABLE IF NOT EXISTS f (x INT) USING parquet",
        "CREATE TABLE IDENTIFIER('g') (x INT)",
        "CREATE VIEW h AS SELECT * FROM F",
        "CREATE TABLE s.i (x INT)",
        "CREATE OR REPLACE TEMPORARY FUNCTION s.j() RETURNS TABLE (x INT) RETURN SELECT * FROM i",
        *(f"SELECT * FROM {name}" for name in "abcdefgh"),
        "SELECT * FROM s.i",
        "SELECT * FROM s.J",
        "EXPLAIN SELECT * FROM a",
        "SELECT input_file_name() FROM f",
        "INSERT INTO f SELECT * FROM a",
        "WITH s AS (SELECT 1)\nINSERT INTO f SELECT * FROM s",
    ]
    queries = GoldenFile("a.sql", {}, statements, {}).list_queries()
    assert [statements[position][-1] for position in queries] == [
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        "h",
        "i",
        "J",
    ]


def test_the_lists_of_differences_can_only_shrink() -> None:
    assert list_problems("LIST", {"a.sql": {1: "SELECT 1"}}, {"a.sql": {1: "reason"}}) == []
    assert list_problems("LIST", {"a.sql": {1: "SELECT 1"}}, {"a.sql": {2: "reason"}}) == [
        "LIST lacks a.sql, statement 1: SELECT 1",
        "a.sql, statement 2 no longer applies. Remove the entry from LIST.",
    ]


@pytest.mark.long
def test_a_sample_of_golden_files_has_the_same_outcomes_over_lance_tables(
    db: Connection, spark: SparkSession, quiet: None
) -> None:
    try:
        get_test_jar()
    except OSError as error:
        pytest.skip(f"Maven Central does not answer: {error}")
    check(spark, list(SAMPLE))
