"""Statements with a cached table, and with a version committed during their planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import lance
import pytest
from pyspark.sql import SparkSession

from lance_spark import Connection
from lance_spark.sql import statements
from tests.lance_spark.sql.conftest import Sql

pytestmark = pytest.mark.classic


@pytest.fixture(autouse=True)
def no_caches(spark: SparkSession) -> Iterator[None]:
    yield
    spark.catalog.clearCache()
    spark.catalog.dropTempView("total")


CHANGES = {
    "UPDATE {c}.t SET a = 100 WHERE id = 1": (6, 114),
    "DELETE FROM {c}.t WHERE id IN (SELECT 5)": (5, 109),
    "CALL {c}.system.restore(table => 't', version => '2')": (6, 114),
    "MERGE INTO {c}.t USING (SELECT 1L AS id) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET a = 0": (
        6,
        14,
    ),
    "INSERT INTO {c}.t REPLACE WHERE id < 3 SELECT 7L, 7L": (4, 19),
}
"""Rows and sum after each of these statements."""


@pytest.mark.parametrize("most", [3, pytest.param(len(CHANGES), marks=pytest.mark.long)])
def test_a_cached_table_is_refreshed_by_its_statements(sql: Sql, db: Connection, most: int) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(6)")
    sql("CACHE TABLE {c}.t")
    sql("CACHE TABLE total AS SELECT count(*) AS n, sum(a) AS a FROM {c}.t")
    for statement, expected in list(CHANGES.items())[:most]:
        sql(statement)
        assert (
            sql("SELECT count(*), sum(a) FROM {c}.t") == [expected] == sql("SELECT * FROM total")
        ), statement


@pytest.mark.long
def test_a_statement_reads_nothing_that_is_cached_of_its_table(sql: Sql, db: Connection) -> None:
    """Cached rows belong to one version; old addresses of moved rows would change the wrong rows."""
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(6)")
    sql("CACHE TABLE {c}.t")
    sql("CACHE TABLE total AS SELECT max(a) AS a FROM {c}.t")
    dataset = lance.dataset(db.open_table("t").uri)

    def change_rows(where: str, value: int) -> None:
        dataset.update({"a": str(value)}, where=where)
        dataset.optimize.compact_files()

    change_rows("id = 5", 50)
    sql("UPDATE {c}.t SET a = (SELECT max(a) + 1 FROM {c}.t) WHERE id = 1")
    change_rows("id = 4", 60)
    sql("UPDATE {c}.t SET a = (SELECT a + 1 FROM total) WHERE id IN (SELECT min(id) FROM {c}.t)")
    change_rows("id = 3", 70)
    sql(
        "MERGE INTO {c}.t USING (SELECT id + 1 AS id, a FROM {c}.t) n ON t.id = n.id AND n.a = 70 WHEN MATCHED THEN DELETE"
    )
    change_rows("id = 2", 80)
    sql("DELETE FROM {c}.t WHERE a % 80 = (SELECT count(*) - 5 FROM {c}.t)")
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(0, 61), (1, 51), (3, 70), (5, 50)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {c}.t SET a = -a WHERE id % 4 = 1",
        pytest.param("DELETE FROM {c}.t WHERE id % 4 = 1 AND a + 0 = id", marks=pytest.mark.long),
    ],
)
def test_a_version_that_comes_while_a_statement_is_planned(
    sql: Sql, db: Connection, statement: str
) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(8)")
    dataset = lance.dataset(db.open_table("t").uri)
    acted = with_commit_before_planning(
        lambda: sql(statement), lambda: (dataset.delete("id = 0"), dataset.optimize.compact_files())
    )
    assert acted == [1]
    sign = -1 if statement.startswith("UPDATE") else 0
    expected = [(i, i * sign if i % 4 == 1 else i) for i in range(1, 8) if sign or i % 4 != 1]
    assert sql("SELECT * FROM {c}.t ORDER BY id") == expected


def with_commit_before_planning(
    act: Callable[[], object], change: Callable[[], object]
) -> list[int]:
    """Lets another writer commit once, after a statement has chosen its version and before Spark plans the
    statement.
    """
    real, acted = statements.describe_version, list[int]()

    def acting(*arguments: Any, **more: Any) -> Any:
        opened = real(*arguments, **more)
        if not acted:
            acted.append(1)
            change()
        return opened

    with patch.object(statements, "describe_version", acting):
        act()
    return acted
