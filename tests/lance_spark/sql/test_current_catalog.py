"""The catalog as the session's default catalog, and as the current catalog after `USE`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.read.ranking.functions import register_functions
from lance_spark.session.sessions import active_in_thread
from tests.lance_spark.sql.conftest import NAME, Sql

pytestmark = pytest.mark.classic


@pytest.fixture
def default(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session with a Lance catalog as its default from the first statement on."""
    root = str(tmp_path / "home")
    lance_spark.catalog(spark, "home", root)
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.home", "lancespark.LanceCatalog")
    session.conf.set("spark.sql.defaultCatalog", "home")
    with active_in_thread(session):
        yield session


@pytest.fixture
def current(sql: Sql, spark: SparkSession) -> Iterator[Sql]:
    """Runs statements with the catalog as the current one."""
    sql("USE {c}")
    yield sql
    spark.catalog.setCurrentCatalog("spark_catalog")


@pytest.mark.long
def test_the_default_catalog_of_a_session_is_ours(default: SparkSession, tmp_path: Path) -> None:
    assert lance_spark.enable_pushdown(default)
    assert default.sql("SELECT current_catalog()").first() == ("home",)
    default.sql("CREATE TABLE t AS SELECT id, array(1F, 2F) AS v FROM range(3)")
    default.sql("UPDATE t SET id = id + 1 WHERE id = 2")
    distance = "SELECT sum(id), max(l2_distance(v, array(1, 2))) FROM t"
    if default.version >= "4.2":
        assert default.sql(distance).first() == (4, 0.0)
    else:
        with pytest.raises(AnalysisException, match=r"UNRESOLVED_ROUTINE.*`l2_distance`"):
            default.sql(distance)
    assert default.sql("SELECT count(*) FROM home.t TIMESTAMP AS OF now()").first() == (3,)
    table = lance_spark.connect(str(tmp_path / "home"), default).open_table("t")
    assert table.to_spark().count() == 3
    for _ in range(2):  # the session of configure() has the table functions, too
        register_functions(default)
        with pytest.raises(
            AnalysisException, match=r"a column of vectors, but .*t\.lance has none"
        ):
            default.sql(f"SELECT * FROM lance_vector_search('{table.uri}', array(1F, 2F))")


@pytest.mark.long
def test_files_are_read_by_format_and_path_beside_tables(
    current: Sql, spark: SparkSession, tmp_path: Path
) -> None:
    current("CREATE NAMESPACE n")
    current("CREATE TABLE n.t AS SELECT 7 AS id")
    for suffix in ("parquet", "json", "orc", "csv"):
        spark.range(3).write.format(suffix).save(f"{tmp_path}/files/{suffix}")
    for place in ("{c}", "{c}.n"):
        current(f"USE {place}")
        for suffix in ("parquet", "json", "orc", "csv"):
            assert current(f"SELECT count(*) FROM {suffix}.`{tmp_path}/files/{suffix}`") == [(3,)]
        with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
            current(f"SELECT * FROM parquet.`{tmp_path}/none`")
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            current(f"SELECT * FROM noformat.`{tmp_path}/files/csv`")
        assert current("SELECT * FROM range(1)") == [(0,)] and current(
            "SELECT id FROM {c}.n.t"
        ) == [(7,)]
    assert current("SELECT id FROM t") == [(7,)]


def test_statements_name_tables_without_the_catalog(current: Sql, spark: SparkSession) -> None:
    current("CREATE TABLE t AS SELECT id, 0L AS v FROM range(4)")
    current("UPDATE t SET v = 1 WHERE id > 2")
    current(
        "MERGE INTO t USING (SELECT 9L AS k) s ON k = id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, 5)"
    )
    current("DELETE FROM t WHERE id = 0")
    assert current("SELECT sum(v), count(*) FROM t") == [(6, 4)]
    assert current(
        "SELECT count(*) FROM t TIMESTAMP AS OF current_timestamp() + INTERVAL 1 DAY"
    ) == [(4,)]
    with pytest.raises(AnalysisException, match="No statement sets the row column _rowid"):
        current("UPDATE t SET _rowid = 1")
    for query in (
        "SELECT nope(1)",
        "SELECT nope(id) FROM t",
        "UPDATE t SET v = nope(id)",
        "SELECT lance.nope(1)",
    ):
        with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
            current(query)
    assert spark.catalog.functionExists("abs") and not spark.catalog.functionExists("nope")
    current("CREATE NAMESPACE n")
    current("CREATE TABLE n.u AS SELECT 1 AS id")
    assert [table.name for table in spark.catalog.listTables(f"{NAME}.n")] == ["u"]


def test_tables_of_the_root_are_listed_by_sql(current: Sql, spark: SparkSession) -> None:
    """Spark parses the empty namespace of each table that its `listTables` finds in the root of a catalog."""
    current("CREATE TABLE t AS SELECT 1 AS id")
    listed = [("", "t", False)]
    assert (
        current("SHOW TABLES IN {c}")
        == current("SHOW TABLES")
        == current("SHOW TABLES IN {c} LIKE 't*'")
        == listed
    )
    assert spark.catalog.tableExists(f"{NAME}.t")
    for list_tables in (lambda: spark.catalog.listTables(NAME), spark.catalog.listTables):
        with pytest.raises(ParseException, match="PARSE_EMPTY_STATEMENT"):
            list_tables()


def test_the_time_of_a_version_is_any_expression(sql: Sql, spark: SparkSession) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(2)")
    sql("INSERT INTO {c}.t VALUES (2)")
    latest = ("current_timestamp()", "now()", "current_timestamp() + INTERVAL 1 DAY", "to_timestamp('2099-01-01')",
              "CAST('2099-01-01' AS TIMESTAMP)", "DATE'2099-01-01'", "'2099-01-01'",
              "(SELECT max(timestamp) FROM {c}.t.versions)")  # fmt: skip
    for expression in latest:
        assert sql(f"SELECT count(*) FROM {{c}}.t TIMESTAMP AS OF {expression}") == [(3,)], (
            expression
        )
    first = "(SELECT min(timestamp) FROM {c}.t.versions)"
    assert sql(
        f"WITH old AS (SELECT * FROM {{c}}.t TIMESTAMP AS OF {first}) SELECT count(*) FROM old"
    ) == [(2,)]
    assert sql(
        f"SELECT (SELECT count(*) FROM {{c}}.t TIMESTAMP AS OF {first}), count(*) FROM {{c}}.t"
    ) == [(2, 3)]
    sql(f"INSERT INTO {{c}}.t SELECT id + 100 FROM {{c}}.t TIMESTAMP AS OF {first}")
    assert sql("SELECT count(*) FROM {c}.t") == [(5,)]
    for wrong, reason in {
        "nope(1)": "nope",
        "nix": "columns",
        "rand()": "TIME_TRAVEL|rand|cast",
    }.items():
        with pytest.raises(AnalysisException, match=reason):
            sql(f"SELECT * FROM {{c}}.t TIMESTAMP AS OF {wrong}")


def test_a_name_of_another_case_is_another_table(sql: Sql, spark: SparkSession) -> None:
    sql("CREATE TABLE {c}.Big AS SELECT 1 AS a")
    for statement in ("SELECT * FROM {c}.big", "UPDATE {c}.big SET a = 1", "DELETE FROM {c}.BIG"):
        with pytest.raises(
            AnalysisException,
            match=r"TABLE_OR_VIEW_NOT_FOUND.* A table `Big` exists.*case-sensitive",
        ):
            sql(statement)
    assert not spark.catalog.tableExists(f"{NAME}.big") and spark.catalog.tableExists(f"{NAME}.Big")
    sql("DROP TABLE IF EXISTS {c}.big")
    with pytest.raises(AnalysisException, match=r"TABLE_OR_VIEW_NOT_FOUND.*`lance`.`nix`"):
        sql("SELECT * FROM {c}.nix")
    sql("CREATE TABLE IF NOT EXISTS {c}.big AS SELECT 2 AS a")
    spark.sql("SELECT 3 AS a").write.format("lance").saveAsTable(f"{NAME}.BIG")
    assert [sql(f"SELECT a FROM {{c}}.{name}") for name in ("Big", "big", "BIG")] == [
        [(1,)],
        [(2,)],
        [(3,)],
    ]
