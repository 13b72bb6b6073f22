"""Lance tables in Spark's session catalog: `lance_spark.catalog(spark, "spark_catalog", root)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.jvm.jar import load
from lance_spark.session.sessions import active_in_thread
from tests.lance_spark.sql.conftest import Sql

pytestmark = pytest.mark.classic

DATABASE = "features"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session whose current database is in the extended session catalog."""
    forget_catalog(spark)  # a page of the documentation may have registered the catalog
    session = spark.newSession()
    lance_spark.catalog(session, "spark_catalog", str(tmp_path))
    with active_in_thread(session):
        session.sql(f"CREATE DATABASE {DATABASE} LOCATION '{tmp_path / 'warehouse'}'")
        session.sql(f"USE {DATABASE}")
        yield session
        session.sql("USE default")
        session.sql(f"DROP DATABASE IF EXISTS {DATABASE} CASCADE")
    forget_catalog(spark)


def forget_catalog(spark: SparkSession) -> None:
    load(spark.sparkContext._gateway, "lancespark.LanceRegistry").newInstance().register(
        "spark_catalog", {}
    )


@pytest.fixture
def run(session: SparkSession) -> Sql:
    """Runs a statement, and returns its rows."""
    return lambda text: [tuple(row) for row in session.sql(text).collect()]


@pytest.fixture
def tables(run: Sql) -> Sql:
    """Makes a Lance table `docs` and a Parquet table `sizes`."""
    run("CREATE TABLE docs (id BIGINT, t STRING) USING lance")
    run("INSERT INTO docs VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    run("CREATE TABLE sizes (id BIGINT, size INT DEFAULT 7) USING parquet")
    run("INSERT INTO sizes (id) VALUES (2)")
    return run


def test_lance_tables_are_beside_tables_of_spark(tables: Sql, tmp_path: Path) -> None:
    run = tables
    assert run("SELECT * FROM docs JOIN sizes USING (id)") == [(2, "b", 7)]
    run("MERGE INTO docs USING sizes ON docs.id = sizes.id WHEN MATCHED THEN UPDATE SET t = 'm'")
    run("DELETE FROM docs WHERE id = 3")
    assert run(f"SELECT * FROM spark_catalog.{DATABASE}.docs ORDER BY id") == [(1, "a"), (2, "m")]
    assert run("SELECT count(*) FROM docs VERSION AS OF 2") == [(3,)]
    assert {row[1] for row in run("SHOW TABLES")} == {"docs", "sizes"}
    assert lance_spark.connect(str(tmp_path / DATABASE)).table_names() == ["docs"]
    assert run("OPTIMIZE docs")
    run("DROP TABLE sizes")
    run("DROP TABLE docs")
    assert run("SHOW TABLES") == []
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        run("DROP TABLE docs")


@pytest.mark.long
def test_a_name_is_one_table(tables: Sql, session: SparkSession) -> None:
    """Neither Spark nor Lance makes a second table or view of a name."""
    run = tables
    for statement in (
        "CREATE TABLE docs (a INT) USING parquet",
        "CREATE TABLE DOCS (a INT) USING parquet",
        "CREATE TABLE Sizes (a INT) USING lance",
        "CREATE TABLE docs USING parquet AS SELECT 1 AS a",
        "CREATE TABLE docs LIKE sizes",
        "CREATE VIEW docs AS SELECT 1",
        "CREATE TABLE sizes (a INT) USING lance",
        "CREATE TABLE sizes USING lance AS SELECT 1 AS a",
        *(
            ["CREATE TABLE sizes LIKE docs"] if session.version >= "4.2" else []
        ),  # 4.1 looks only for tables of Spark
        "ALTER TABLE docs RENAME TO sizes",
        "ALTER TABLE sizes RENAME TO docs",
    ):
        with pytest.raises(AnalysisException, match=r"ALREADY_EXISTS"):
            run(statement)
    for statement in (
        "CREATE TABLE IF NOT EXISTS docs (a INT) USING parquet",
        "CREATE TABLE IF NOT EXISTS DOCS USING parquet AS SELECT 1 AS a",
        "CREATE TABLE IF NOT EXISTS docs USING lance AS SELECT 1 AS a",
        "CREATE TABLE IF NOT EXISTS sizes (a INT) USING lance",
        "CREATE TABLE IF NOT EXISTS docs LIKE sizes",
        "CREATE VIEW IF NOT EXISTS docs AS SELECT 1",
    ):
        assert run(statement) == []
        assert run("SELECT sum(id), (SELECT sum(size) FROM sizes) FROM docs") == [(6, 7)]
    for mode in ("error", "append", "overwrite"):
        with pytest.raises(AnalysisException, match=r"ALREADY_EXISTS|not support|cannot|Cannot"):
            session.range(3).write.format("parquet").mode(mode).saveAsTable("docs")
    with pytest.raises(
        AnalysisException, match=r"own catalog has a table of this name.*DROP TABLE it first"
    ):
        run("CREATE OR REPLACE TABLE sizes USING lance AS SELECT 1 AS a")
    run("CREATE TEMPORARY VIEW docs AS SELECT 9 AS nine")
    assert run("SELECT * FROM docs") == [(9,)]
    run("DROP VIEW docs")
    assert run("SELECT count(*), sum(id) FROM Docs") == [(3, 6)]
    run("INSERT INTO DOCS VALUES (4, 'd')")
    run("ALTER TABLE Docs RENAME TO Papers")
    assert {row[1] for row in run("SHOW TABLES")} == {"papers", "sizes"}
    run("ALTER TABLE papers RENAME TO docs")
    assert run("SELECT * FROM sizes") == [(2, 7)]


@pytest.mark.long
def test_every_way_of_making_a_lance_table(
    tables: Sql, session: SparkSession, tmp_path: Path
) -> None:
    run = tables
    makers: dict[str, Callable[[], Any]] = {
        "query": lambda: run("CREATE TABLE query USING lance AS SELECT id FROM range(3)"),
        "replaced": lambda: run(
            "CREATE OR REPLACE TABLE replaced USING lance AS SELECT id FROM range(3)"
        ),
        "saved": lambda: session.range(3).write.format("lance").saveAsTable("saved"),
        "written": lambda: session.range(3).writeTo("written").using("lance").create(),
    }
    for name, make in makers.items():
        make()
        assert session.table(name).count() == 3
        session.range(2).write.insertInto(name)
        assert session.table(name).count() == 5
    session.range(3).write.format("lance").mode("append").saveAsTable("saved")
    assert session.table("saved").count() == 8
    if session.version >= "4.2":
        run("CREATE TABLE twin LIKE docs")
        assert run("SELECT * FROM twin") == []
        makers["twin"] = lambda: None
    assert sorted(lance_spark.connect(str(tmp_path / DATABASE)).table_names()) == sorted(
        {"docs", *makers}
    )


@pytest.mark.long
def test_entries_and_files_of_spark(tables: Sql, session: SparkSession, tmp_path: Path) -> None:
    run = tables
    other = tmp_path / "other.lance"
    session.range(3).write.format("lance").mode("append").save(str(other))
    run(f"CREATE TABLE placed (id BIGINT) USING lance LOCATION '{other}'")
    run("UPDATE placed SET id = id + 10 WHERE id = 2")
    run("ALTER TABLE placed ADD COLUMNS (n INT)")
    assert run("SELECT sum(id), count(n) FROM placed") == [(13, 0)]
    assert run("SELECT sum(id) FROM placed VERSION AS OF 1") == [(3,)]
    assert run("DESCRIBE HISTORY placed")
    with pytest.raises(AnalysisException, match="LOCATION without a Lance table"):
        run(f"CREATE TABLE nothing (id INT) USING lance LOCATION '{tmp_path / 'nothing'}'")
    run("DROP TABLE placed")
    assert session.read.format("lance").load(str(other)).count() == 3
    run("CREATE TABLE copy USING parquet AS SELECT * FROM docs")
    run("ANALYZE TABLE copy COMPUTE STATISTICS")
    assert run("SELECT count(*) FROM copy") == [(3,)]
    db = lance_spark.connect(str(tmp_path / DATABASE))
    db.create_table("Copy", [{"id": 1}])
    assert run("SELECT count(*) FROM copy") == [(3,)]
    assert "Copy" not in {row[1] for row in run("SHOW TABLES")}
    db.drop_table("Copy")
    path = tmp_path / "files"
    session.range(4).write.parquet(str(path))
    assert run(f"SELECT count(*) FROM parquet.`{path}`") == [(4,)]
    with pytest.raises(ParseException, match="OPTIMIZE"):
        run("OPTIMIZE copy")
    with pytest.raises(AnalysisException, match="DEFAULT, GENERATED and IDENTITY columns"):
        run("CREATE TABLE wrong (a INT DEFAULT 3) USING lance")


@pytest.mark.long
def test_databases_are_those_of_spark(tables: Sql, tmp_path: Path) -> None:
    run = tables
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        run("CREATE TABLE missing.t (id INT) USING lance")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        run(f"DROP DATABASE {DATABASE}")
    run("CREATE TABLE default.kept (id INT) USING lance")
    with pytest.raises(AnalysisException, match="DROP_DATABASE"):
        run("DROP DATABASE default CASCADE")
    assert run("SELECT * FROM default.kept") == []
    run("DROP TABLE default.kept")
    run(f"CREATE TABLE {DATABASE.upper()}.second (id INT) USING lance")
    assert not (tmp_path / DATABASE.upper()).exists()
    assert {row[1] for row in run(f"SHOW TABLES IN {DATABASE.upper()}")} == {
        "docs",
        "second",
        "sizes",
    }
    run("USE default")
    db = lance_spark.connect(str(tmp_path / DATABASE))
    db.create_table("Hidden", [{"id": 1}])
    with pytest.raises(AnalysisException, match="has capitals in its name"):
        run(f"DROP DATABASE {DATABASE} CASCADE")
    assert {"Hidden", "docs"} <= set(db.table_names())
    db.drop_table("Hidden")
    run(f"DROP DATABASE {DATABASE} CASCADE")
    assert not (tmp_path / DATABASE).exists()


@pytest.mark.long
def test_a_session_cannot_change_the_root(tables: Sql, tmp_path: Path) -> None:
    run = tables
    run(f"SET spark.sql.catalog.spark_catalog.root={tmp_path / 'elsewhere'}")
    for statement in ("SELECT * FROM docs", "CREATE TABLE other (id INT) USING lance"):
        with pytest.raises(AnalysisException, match="was SET in the session"):
            run(statement)
    run("RESET spark.sql.catalog.spark_catalog.root")
    assert run("SELECT count(*) FROM docs") == [(3,)]
