"""Materialized views in SQL, and columns with the values of a view of the session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, udf
from tests.lance_spark.sql.conftest import Sql
from tests.support.parsers import parse_plan

pytestmark = [pytest.mark.spark, pytest.mark.classic, pytest.mark.sample(1, tests=3)]


@udf
def twice(id: int) -> int:
    """A column of a table."""
    return id * 2


def test_a_view_is_made_empty_or_filled_refreshed_and_dropped(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.docs AS SELECT id, cast(id AS STRING) AS text FROM range(10)")
    select = "SELECT id, upper(text) AS loud FROM {c}.docs WHERE id > 4"
    assert (
        sql("EXPLAIN CREATE MATERIALIZED VIEW {c}.v AS " + select)[0][0].count(
            "create_materialized_view"
        )
        == 1
    )
    assert (
        "WITH DATA"
        not in sql(f"EXPLAIN CREATE MATERIALIZED VIEW {{c}}.v AS {select} WITH DATA")[0][0]
    )
    assert "v" not in db.table_names()
    assert sql(f"CREATE MATERIALIZED VIEW {{c}}.v AS {select}") == [("v", 1, 0)]
    assert sql("REFRESH MATERIALIZED VIEW {c}.v")[0][1:4] == (5, 0, 0)
    sql("INSERT INTO {c}.docs VALUES (10, 'ten')")
    sql("DELETE FROM {c}.docs WHERE id = 5")
    assert sql("refresh materialized view {c}.`v` WITH (concurrency = 1);")[0][1:4] == (1, 0, 1)
    assert sql("SELECT max(loud), count(*) FROM {c}.v") == [("TEN", 5)]

    filled = f"CREATE MATERIALIZED VIEW IF NOT EXISTS {{c}}.filled AS {select}"
    assert sql(f"{filled} -- rows\n WITH DATA ;")[0][2] == 5
    assert sql(filled)[0][2] == 5 and sql(f"{filled} WITH NO DATA")[0][2] == 5
    assert sql(f"CREATE MATERIALIZED VIEW {{c}}.none AS {select} WITH NO DATA")[0][2] == 0

    assert sql("DROP MATERIALIZED VIEW {c}.v") == [("v",)]
    assert sql("DROP MATERIALIZED VIEW IF EXISTS {c}.v") == [("v",)]
    assert db.table_names() == ["docs", "filled", "none"]
    sql("CREATE OR REPLACE TEMPORARY VIEW rows_of_docs AS SELECT id FROM {c}.docs")
    for statement, error in {
        "DROP MATERIALIZED VIEW {c}.v": "TableNotFoundError",
        "DROP MATERIALIZED VIEW {c}.docs": "ViewError: The table is no materialized view",
        "REFRESH MATERIALIZED VIEW {c}.docs": "ViewError",
        f"CREATE MATERIALIZED VIEW {{c}}.docs AS {select}": "TableExistsError",
        f"CREATE MATERIALIZED VIEW {{c}}.w COMMENT 'x' AS {select}": "takes no COMMENT",
        f"CREATE MATERIALIZED VIEW {{c}}.w TBLPROPERTIES ('a' = 'b') AS {select} WITH DATA": "takes no TBLPROPERTIES",
        "CREATE MATERIALIZED VIEW {c}.w AS SELECT count(*) AS n FROM {c}.docs": "RegistrationError",
        "CREATE MATERIALIZED VIEW {c}.w AS SELECT id FROM {c}.docs VERSION AS OF 1": "RegistrationError",
        "CREATE MATERIALIZED VIEW {c}.w AS SELECT nope FROM {c}.docs": "UNRESOLVED_COLUMN|RegistrationError",
        "CALL {c}.system.create_materialized_view('w', 'DROP TABLE {c}.docs')": "RegistrationError",
        "CREATE MATERIALIZED VIEW {c}.w AS SELECT id FROM rows_of_docs": "RegistrationError.*no table of a Lance catalog",
        "CREATE MATERIALIZED VIEW {c}.w AS SELECT id FROM {c}.nope": "RegistrationError.*TABLE_OR_VIEW_NOT_FOUND",
    }.items():
        with pytest.raises(AnalysisException, match=error):
            sql(statement)
    assert db.table_names() == ["docs", "filled", "none"]


@pytest.mark.long
def test_properties_mark_views_and_columns_for_an_agent(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.docs AS SELECT id, 'a' AS text FROM range(3)")
    select = "SELECT id FROM {c}.docs"
    marked = lambda table: dict(sql(f"SHOW TBLPROPERTIES {{c}}.{table}"))  # noqa: E731 - one expression
    sql(
        f"CREATE MATERIALIZED VIEW {{c}}.v TBLPROPERTIES ('auto_refresh' = 'TRUE') AS {select} WITH DATA"
    )
    sql(f"CREATE MATERIALIZED VIEW {{c}}.w TBLPROPERTIES ('auto_refresh' = 'false') AS {select}")
    assert [marked(view)["auto-refresh"] for view in "vw"] == ["true", "false"]
    sql("ALTER TABLE {c}.v UNSET TBLPROPERTIES ('auto_refresh')")
    sql("ALTER TABLE {c}.w SET TBLPROPERTIES ('auto_refresh' = 'true', 'k' = 'v')")
    assert [marked(view)["auto-refresh"] for view in "vw"] == ["false", "true"]
    assert marked("w")["k"] == "v" and "auto_refresh" not in marked("w")

    docs = db.open_table("docs")
    docs.add_columns({"twice": twice, "two": twice})
    sql(
        "ALTER TABLE {c}.docs SET TBLPROPERTIES ('twice.auto_backfill' = 'true', 'two.auto_backfill' = 'true')"
    )
    assert marked("docs")["auto-backfill-columns"] == "twice, two"
    sql("ALTER TABLE {c}.docs SET TBLPROPERTIES ('twice.auto_backfill' = 'false')")
    sql("ALTER TABLE {c}.docs UNSET TBLPROPERTIES ('two.auto_backfill')")
    assert marked("docs")["auto-backfill-columns"] == ""
    sql(
        "CALL {c}.system.add_column('docs', 'more', source => 'docs', source_column => 'twice', auto_backfill => true)"
    )
    assert marked("docs")["auto-backfill-columns"] == "more"
    assert [step.name for step in db.agent(allow=["docs", "w"]).plan().steps] == ["docs.more", "w"]

    versions = [db.open_table(name).version for name in ("docs", "v")]
    for statement, error in {
        "ALTER TABLE {c}.v SET TBLPROPERTIES ('auto_refresh' = 'yes')": "'true' or 'false'",
        "ALTER TABLE {c}.docs SET TBLPROPERTIES ('k' = 'v', 'auto_refresh' = 'true')": "ViewError",
        "ALTER TABLE {c}.docs SET TBLPROPERTIES ('k' = 'v', 'text.auto_backfill' = 'true')": "has no UDF",
        "ALTER TABLE {c}.docs SET TBLPROPERTIES ('nope.auto_backfill' = 'true')": "nope",
        "ALTER TABLE {c}.docs SET TBLPROPERTIES ('twice.auto_backfill' = '1')": "'true' or 'false'",
        "CREATE TABLE {c}.x (id BIGINT) TBLPROPERTIES ('id.auto_backfill' = 'true')": "has no effect",
        "CREATE TABLE {c}.x (id BIGINT) TBLPROPERTIES ('auto_refresh' = 'true')": "has no effect",
        f"CREATE MATERIALIZED VIEW {{c}}.x TBLPROPERTIES ('auto_refresh' = 'x') AS {select}": "takes no TBLPROPERTIES",
    }.items():
        with pytest.raises(AnalysisException, match=error):
            sql(statement)
    assert [db.open_table(name).version for name in ("docs", "v")] == versions
    assert "x" not in db.table_names()


@pytest.mark.long
def test_columns_of_a_view_may_name_the_catalog_and_the_namespace(sql: Sql) -> None:
    sql("CREATE NAMESPACE {c}.`a b`")
    for number, table in enumerate(("{c}.docs", "{c}.`a b`.docs")):
        # A column with the name of the catalog: Spark prefers the qualifier.
        other = "named_struct('docs', named_struct('id', -1), 'a b', named_struct('docs', named_struct('id', -1)))"
        sql(
            f"CREATE TABLE {table} AS SELECT id, named_struct('a', id) AS s, {other} AS `lance` FROM range(5)"
        )
        select = f"SELECT {table}.id, -{table}.s.a AS b, {table}.* EXCEPT (docs.id, {table}.`lance`) FROM {table} "
        select += f"WHERE {table}.id % 2 = 0 AND abs({table}.s.a) < 4"
        sql(f"CREATE MATERIALIZED VIEW {{c}}.v{number} AS {select} WITH DATA")
        assert sql(f"SELECT * EXCEPT (__source_row_id) FROM {{c}}.v{number} ORDER BY id") == sql(
            select
        )


def test_views_of_other_catalogs_are_sparks(sql: Sql, spark: SparkSession) -> None:
    own = spark._jvm.org.apache.spark.sql.execution.SparkSqlParser()
    parser = spark._jsparkSession.sessionState().sqlParser()
    text = "CREATE MATERIALIZED VIEW default.v AS SELECT 1 AS id"
    plans = {
        re.sub(r"#\d+", "", parse_plan(spark, statement_parser, text).toString())
        for statement_parser in (parser, own)
    }
    assert len(plans) == 1, plans
    with pytest.raises(Exception, match=r"(?i)pipeline"):
        spark.sql(text)
    # A pipeline of Spark takes the node from the parser, also for a view in a catalog of Lance.
    text = text.replace("default.v", "lance.v")
    assert (
        parse_plan(spark, parser, text).getClass().getSimpleName()
        == "CreateMaterializedViewAsSelect"
    )


@pytest.mark.sample(1)
def test_a_refresh_runs_stored_code_and_reads_other_folders_only_with_permission(
    sql: Sql, db: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    sql("CREATE TABLE {c}.docs AS SELECT id FROM range(3)")
    docs = db.open_table("docs")
    db.create_materialized_view("computed", docs.search(None).select({"id": "id", "twice": twice}))
    lance_spark.catalog(spark, "untrusted_views", str(tmp_path))
    with pytest.raises(AnalysisException, match="StoredUdfError"):
        spark.sql("REFRESH MATERIALIZED VIEW untrusted_views.computed")
    assert sql("REFRESH MATERIALIZED VIEW {c}.computed")[0][1] == 3
    lance_spark.catalog(spark, "inner_views", str(tmp_path / "inner"))
    create = "CREATE MATERIALIZED VIEW {}.v AS SELECT id FROM untrusted_views.docs WITH DATA"
    assert spark.sql(create.format("untrusted_views")).first()[2] == 3
    with pytest.raises(AnalysisException, match="outside the folder of the catalog 'inner_views'"):
        spark.sql(create.format("inner_views"))


def test_columns_come_from_a_view_of_the_session(
    sql: Sql, db: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, cast(id AS STRING) AS s FROM range(6)")
    session = spark.newSession()
    lance_spark.catalog(session, "lance", str(tmp_path), allow_stored_code=True)
    session.sql(
        "CREATE TEMPORARY VIEW made AS SELECT _rowaddr, shiftright(_rowaddr, 32) AS _fragid, id * 2 AS two, s AS `a b`, "
        "concat(s, '!') AS s FROM lance.t WHERE id < 4"
    )
    assert session.sql("ALTER TABLE lance.t ADD COLUMNS two, `a b` FROM made").collect() == [
        ("two, a b", 3)
    ]
    assert session.sql("ALTER TABLE lance.t UPDATE COLUMNS s FROM made;").collect() == [("s", 4)]
    assert sql("SELECT * FROM {c}.t WHERE id IN (3, 4) ORDER BY id") == [
        (3, "3!", 6, "3"),
        (4, "4", None, None),
    ]
    session.sql("CREATE TEMPORARY VIEW bare AS SELECT id AS three FROM lance.t")
    for statement, error in {
        "ALTER TABLE lance.t ADD COLUMNS two FROM made": "ColumnExistsError",
        "ALTER TABLE lance.t UPDATE COLUMNS three FROM made": "ColumnNotFoundError",
        "ALTER TABLE lance.t ADD COLUMNS three FROM made": "OptionError: Option 'columns'",
        "ALTER TABLE lance.t ADD COLUMNS x, X FROM made": "OptionError: Option 'columns'",
        "ALTER TABLE lance.t ADD COLUMNS three FROM bare": "_rowaddr",
        "ALTER TABLE lance.t ADD COLUMNS three FROM nope": "TABLE_OR_VIEW_NOT_FOUND",
        "ALTER TABLE lance.nope ADD COLUMNS two FROM made": "TableNotFoundError",
    }.items():
        with pytest.raises(AnalysisException, match=error):
            session.sql(statement)
    assert db.open_table("t").version == 4
    with pytest.raises(AnalysisException, match="made"):
        sql("ALTER TABLE {c}.t ADD COLUMNS other FROM made")
