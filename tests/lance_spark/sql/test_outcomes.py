"""Statements of Spark's suites and of the JVM connector's documentation have the outcomes of docs/sql-statements.md."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from tests.lance_spark.sql.conftest import Sql
from tests.lance_spark.sql.outcomes import PAGE, PARTS, page

pytestmark = pytest.mark.classic


def test_the_page_lists_the_outcome_of_each_case() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m tests.lance_spark.sql.outcomes"
    )


@pytest.mark.long
def test_each_statement_has_its_outcome(sql: Sql, spark: SparkSession) -> None:
    wrong = []
    for case in (case for topics in PARTS.values() for cases in topics.values() for case in cases):
        if spark.version < case.since:
            continue
        try:
            sql(case.statement)
            outcome = ""
        except Exception as error:  # noqa: BLE001 - compared, of whatever class
            outcome = str(error)
        if not (re.search(case.fails, outcome) if case.fails else not outcome):
            wrong.append(f"{case.statement}\n    {outcome[:300] or 'works'}")
    assert not wrong, "\n".join(wrong)
