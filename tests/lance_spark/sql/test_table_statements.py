"""Statements beyond Spark's own parser: REFRESH COLUMN, OPTIMIZE, VACUUM, tags, branches, history, ..."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

import lance_spark
from java import build
from lance_spark import Connection, udf
from lance_spark.jvm.jar import load
from tests.lance_spark.sql.conftest import NAME, Sql
from tests.support.parsers import parse_plan
from tests.support.processes import environment
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.classic, pytest.mark.sample(1, tests=5)]

OTHER_SOURCE = Path(__file__).parents[2] / "support" / "other" / "OtherExtensions.java"


@udf
def twice(id: int) -> int:
    """A column of a table."""
    return id * 2


@pytest.fixture
def filled(sql: Sql, db: Connection) -> Connection:
    """A catalog with a table `t` of two fragments and a computed column."""
    sql("CREATE TABLE {c}.t (id BIGINT NOT NULL, s STRING)")
    sql("INSERT INTO {c}.t SELECT /*+ COALESCE(1) */ id, cast(id AS STRING) FROM range(20)")
    sql("INSERT INTO {c}.t SELECT /*+ COALESCE(1) */ id, cast(id AS STRING) FROM range(20, 30)")
    db.open_table("t").add_columns({"twice": twice})
    return db


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("id < 5", 5),  # Lance evaluates the condition
        ("t.id >= 25 AND length(s) = 2", 5),  # Spark does
        ("id IN (SELECT max(id) FROM {c}.t) OR s = 'with (a = 1)'", 1),
    ],
)
def test_refresh_column_takes_conditions_of_spark(
    filled: Connection, sql: Sql, condition: str, rows: int
) -> None:
    ((job, computed, skipped, version, status, remaining),) = sql(
        f"REFRESH COLUMN twice ON {{c}}.t WHERE {condition}"
    )
    table = filled.open_table("t")
    assert (computed, skipped, version, status, remaining) == (rows, 0, table.version, "DONE", 0)
    assert table.get_job(job).rows_computed == rows
    assert sql("SELECT count(twice), sum(twice - 2 * id) FROM {c}.t") == [(rows, 0)]


def test_refresh_column_has_the_defaults_and_options_of_the_table_api(
    filled: Connection, sql: Sql
) -> None:
    assert sql("EXPLAIN REFRESH COLUMN twice ON {c}.t")[0][0].count("backfill") == 1
    assert filled.open_table("t").plan_backfill("twice").rows_to_compute == 30
    assert sql("REFRESH COLUMN twice ON {c}.t WITH (num_frags = 1, concurrency = 1)")[0][1] == 20
    assert sql("REFRESH COLUMN twice ON {c}.t WITH ('checkpoint_size' = 4);")[0][1] == 10
    assert sql("REFRESH COLUMN twice ON {c}.t")[0][1] == 0
    # An explicit condition recomputes.
    assert sql("REFRESH COLUMN twice ON {c}.t WHERE true")[0][1] == 30
    assert sql("REFRESH COLUMN twice ON {c}.t WHERE 1 = 2")[0][1] == 0
    for statement, error in {
        "REFRESH COLUMN twice ON {c}.t WHERE rand() < 0.5": "OptionError: Option 'where'",
        "REFRESH COLUMN twice ON {c}.t WITH (nope = 1)": "UNRECOGNIZED_PARAMETER_NAME",
        "REFRESH COLUMN twice ON {c}.t WITH (num_frags = -1)": "OptionError: Option 'num_frags'",
        "REFRESH COLUMN twice ON {c}.t WHERE nope = 1": "UNRESOLVED_COLUMN",
        "REFRESH COLUMN s ON {c}.t": "RegistrationError",
        "REFRESH COLUMN twice ON {c}.nope": "TableNotFoundError",
    }.items():
        with pytest.raises(AnalysisException, match=error):
            sql(statement)
    with pytest.raises(ParseException, match="PARSE_SYNTAX_ERROR"):
        sql("REFRESH COLUMN twice ON {c}.t WHERE id >")


@pytest.mark.long
def test_vacuum_keeps_the_versions_that_a_stream_needs(
    filled: Connection, sql: Sql, spark: SparkSession, tmp_path: Path
) -> None:
    table = filled.open_table("t")
    rows = spark.readStream.format("lance").option("startingVersion", "latest").load(table.uri)
    sink = rows.writeStream.format("noop").option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    query = sink.trigger(processingTime="1 second").start()
    try:
        eventually(lambda: list(Path(table.uri, "_lance_spark/streams").glob("*")), 60)
    finally:
        query.stop()
    needed = table.version
    sql("INSERT INTO {c}.t (id, s) VALUES (30, 'x')")
    sql("INSERT INTO {c}.t (id, s) VALUES (31, 'y')")
    assert sql("VACUUM {c}.t WITH (keep_for_streams = true) RETAIN 0 HOURS")[0][0] == needed - 1
    assert [version["version"] for version in table.to_lance().versions()] == [
        needed,
        needed + 1,
        needed + 2,
    ]
    with pytest.warns(UserWarning, match=r"removed versions that a stream needs"):
        assert sql("VACUUM {c}.t WITH (keep_for_streams = false) RETAIN 0 HOURS")[0][0] == 2


def test_a_condition_is_evaluated_in_the_session_that_runs_the_statement(
    filled: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    lance_spark.catalog(session, NAME, str(tmp_path), allow_stored_code=True)
    session.sql("SELECT 3L AS id").createTempView("chosen")
    statement = f"REFRESH COLUMN twice ON {NAME}.t WHERE id IN (SELECT id FROM chosen)"
    assert session.sql(statement).collect()[0].computed == 1
    with pytest.raises(AnalysisException, match="chosen"):
        spark.sql(statement)


def test_upkeep_statements_do_what_the_table_api_does(filled: Connection, sql: Sql) -> None:
    sql("CREATE INDEX by_id ON {c}.t USING BTREE (id)")
    sql("INSERT INTO {c}.t (id, s) VALUES (30, 'x')")
    table = filled.open_table("t")
    assert table.index_stats("by_id").num_unindexed_rows == 1
    assert sql("OPTIMIZE INDEX by_id ON {c}.t") == [("by_id", table.version)]
    assert table.index_stats("by_id").num_unindexed_rows == 0
    assert sql(
        "OPTIMIZE {c}.t WITH (target_rows_per_fragment = 1000, materialize_deletions = false)"
    )[0][:2] == (3, 1)
    assert sql("OPTIMIZE {c}.t") == [(0, 0, table.version)]
    version_count = len(table.versions)
    assert sql("VACUUM {c}.t") == [(0, 0)] and len(table.versions) == version_count
    assert (
        sql("VACUUM {c}.t RETAIN 0 HOURS")[0][0] == version_count - 1 and len(table.versions) == 1
    )
    sql("INSERT INTO {c}.t (id, s) VALUES (31, 'y')")
    sql("ALTER TABLE {c}.t CREATE TAG first AS OF VERSION " + str(table.version - 1))
    with pytest.raises(AnalysisException, match="CommitError: A version with a tag"):
        sql("VACUUM {c}.t RETAIN 0 HOURS")
    assert sql("VACUUM {c}.t WITH (error_if_tagged_old_versions = false) RETAIN 0 HOURS")[0][0] == 0
    for statement in ("VACUUM {c}.t RETAIN -1 HOURS", "VACUUM {c}.t WITH (retain_hours = -1)"):
        with pytest.raises(
            AnalysisException, match=r"OptionError: Option 'retain_hours' = -1.0 .* 0 or more"
        ):
            sql(statement)
    with pytest.raises(AnalysisException, match="IndexNotFoundError"):
        sql("OPTIMIZE INDEX nope ON {c}.t")


@pytest.mark.sample(1)
def test_tags_branches_and_versions(filled: Connection, sql: Sql) -> None:
    table = filled.open_table("t")
    assert sql("ALTER TABLE {c}.t CREATE TAG 'v1'") == [("v1", 4)]
    assert sql("alter table {c}.t create tag old as of version 2") == [("old", 2)]
    assert sql("ALTER TABLE {c}.t CREATE TAG IF NOT EXISTS old AS OF 3") == [("old", 2)]
    assert table.tags.list() == {"old": 2, "v1": 4}
    assert (
        sql("SHOW TAGS FROM {c}.t")
        == sql("SELECT * FROM {c}.t.tags")
        == [("old", "main", 2), ("v1", "main", 4)]
    )
    assert (
        sql("ALTER TABLE {c}.t DROP TAG old")
        == sql("ALTER TABLE {c}.t DROP TAG IF EXISTS old")
        == [("old",)]
    )
    assert sql("ALTER TABLE {c}.t CREATE BRANCH b AS OF v1") == [("b", 4)]
    assert sql("ALTER TABLE {c}.t CREATE BRANCH IF NOT EXISTS b") == [("b", 4)]
    assert [row[0] for row in sql("SHOW BRANCHES IN {c}.t")] == ["b"]
    assert (
        sql("ALTER TABLE {c}.t DROP BRANCH b")
        == sql("ALTER TABLE {c}.t DROP BRANCH IF EXISTS b")
        == [("b",)]
    )
    assert table.branches.list() == {}
    history = sql("DESCRIBE HISTORY {c}.t")
    assert [row[0] for row in history] == [4, 3, 2, 1] and history == sql("DESC HISTORY {c}.t")
    assert sql("RESTORE TABLE {c}.t TO VERSION AS OF 2") == [(5,)]
    assert sql("SELECT count(*) FROM {c}.t") == [(20,)]
    assert sql("RESTORE {c}.t TO VERSION AS OF 'v1'") == [(6,)]
    for statement, error in {
        "ALTER TABLE {c}.t CREATE TAG v1": "OptionError: Option 'name'",
        "ALTER TABLE {c}.t DROP TAG nope": "VersionNotFoundError",
        "ALTER TABLE {c}.t DROP BRANCH nope": "VersionNotFoundError",
        "RESTORE TABLE {c}.t TO VERSION AS OF 99": "VersionNotFoundError",
        "SHOW TAGS FROM {c}.nope": "TABLE_OR_VIEW_NOT_FOUND.*nope",
    }.items():
        with pytest.raises(AnalysisException, match=error):
            sql(statement)


def test_show_uses_the_table_even_if_a_folder_has_its_name(filled: Connection, sql: Sql) -> None:
    sql("CREATE NAMESPACE {c}.t")
    sql("CREATE TABLE {c}.t.tags AS SELECT 1 AS other")
    assert sql("SELECT * FROM {c}.t.tags") == [(1,)]
    assert sql("SHOW TAGS FROM {c}.t") == []


def test_a_primary_key_is_set_once(filled: Connection, sql: Sql) -> None:
    assert sql("ALTER TABLE {c}.t SET UNENFORCED PRIMARY KEY (id)") == [("id", 5)]
    assert sql("ALTER TABLE {c}.t SET UNENFORCED PRIMARY KEY (id)") == [("id", 5)]
    assert filled.open_table("t").to_lance().lance_schema.field("id").is_unenforced_primary_key()
    sql("CREATE TABLE {c}.two (a BIGINT NOT NULL, b STRING NOT NULL, c INT)")
    assert sql("ALTER TABLE {c}.two SET UNENFORCED PRIMARY KEY (b, a)") == [("b, a", 2)]
    for statement, error in {
        "ALTER TABLE {c}.two SET UNENFORCED PRIMARY KEY (a)": r"has the primary key \(b, a\)",
        "ALTER TABLE {c}.t SET UNENFORCED PRIMARY KEY (s)": r"has the primary key \(id\)",
        "ALTER TABLE {c}.two SET UNENFORCED PRIMARY KEY (a, a)": "OptionError: Option 'columns'",
    }.items():
        with pytest.raises(AnalysisException, match=error):
            sql(statement)
    sql("CREATE TABLE {c}.no (a BIGINT, b STRUCT<x: INT> NOT NULL)")
    for column, error in {"a": "may be NULL", "b": "is nested", "z": "ColumnNotFoundError"}.items():
        with pytest.raises(AnalysisException, match=error):
            sql(f"ALTER TABLE {{c}}.no SET UNENFORCED PRIMARY KEY ({column})")


def test_names_are_those_of_spark(sql: Sql, spark: SparkSession, db: Connection) -> None:
    sql("CREATE NAMESPACE {c}.`a.b`")
    sql("CREATE TABLE {c}.`a.b`.`x``y z` AS SELECT 1 AS id")
    sql("CREATE TABLE {c}.`index` AS SELECT 1 AS id")
    sql("CREATE TABLE {c}.history AS SELECT 1 AS id")
    name = "{c}.`a.b`.`x``y z`"
    counts = (0, 0, 1)
    for statement in (
        f"OPTIMIZE {name}",
        f"optimize\n\t {name} ; ;",
        f"/* OPTIMIZE t */ Optimize -- t\n {name.replace('.`x', ' . /* in */ `x')}",
        "OPTIMIZE {c}.index",
        f"CALL {{c}}.system.compact(table => '{name}')",
        f"CALL {{c}}.system.compact('{name.removeprefix('{c}.')}')",
    ):
        assert sql(statement) == [counts], statement
    assert spark.sql(f"ALTER TABLE {NAME}.index CREATE TAG :tag", args={"tag": "it"}).collect() == [
        ("it", 1)
    ]
    assert spark.sql(f"EXECUTE IMMEDIATE 'VACUUM {NAME}.index RETAIN 5 HOURS'").collect() == [
        (0, 0)
    ]
    spark.sql(f"BEGIN EXECUTE IMMEDIATE 'ALTER TABLE {NAME}.index CREATE TAG two'; END").collect()
    assert db.open_table("index").tags.list() == {"it": 1, "two": 1}
    sql("USE {c}")
    try:
        assert sql("OPTIMIZE index") == [counts]
        # The table `history` has a column `id`, and no table has the name `id`.
        assert sql("DESCRIBE history id")[0] == ("col_name", "id")
        sql("USE {c}.`a.b`")
        assert sql("OPTIMIZE `x``y z`") == [counts]
    finally:
        sql("USE spark_catalog.default")


def parsed(spark: SparkSession, parser: Any, statement: str) -> str:
    """Returns the plan of a parser as text, or its error."""
    try:
        return str(parse_plan(spark, parser, statement).toString())
    except Exception as error:  # noqa: BLE001 - compared, of whatever class
        return str(error)


STATEMENTS = (
    "OPTIMIZE {t}",
    "VACUUM {t} RETAIN 5 HOURS",
    "REFRESH COLUMN c ON {t} WHERE id >",
    "SHOW TAGS FROM {t}",
    "RESTORE TABLE {t} TO VERSION AS OF 1",
    "ALTER TABLE {t} CREATE TAG x",
    "DESCRIBE HISTORY {t}",
    "EXPLAIN OPTIMIZE {t}",
)


def test_tables_of_other_catalogs_are_for_the_next_parser(sql: Sql, spark: SparkSession) -> None:
    sql("CREATE TABLE {c}.t AS SELECT 1 AS id")
    own = spark._jvm.org.apache.spark.sql.execution.SparkSqlParser()
    for table in ("t", "spark_catalog.default.t", "nocatalog.t", "default.t"):
        for statement in (statement.replace("{t}", table) for statement in STATEMENTS):
            of_session = spark._jsparkSession.sessionState().sqlParser()
            plans = (
                re.sub(r"#\d+", "", parsed(spark, parser, statement))
                for parser in (of_session, own)
            )
            assert len(set(plans)) == 1, statement


@pytest.fixture(scope="module")
def other_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes of a foreign extension with the same keywords."""
    folder = tmp_path_factory.mktemp("other")
    build.compile_sources([OTHER_SOURCE], build.installed_jars(), folder)
    return folder


@pytest.fixture(scope="module")
def other_extension(spark: SparkSession, other_classes: Path) -> Any:
    """The foreign extension, in the JVM of the session."""
    jvm = spark._jvm
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.net.URL(f"{other_classes.as_uri()}/")
    loader = jvm.java.net.URLClassLoader(urls, jvm.Thread.currentThread().getContextClassLoader())
    return loader.loadClass("other.OtherExtensions").newInstance()


@pytest.mark.parametrize("ours_first", [True, False])
def test_statements_beside_another_extension_with_the_same_words(
    sql: Sql, spark: SparkSession, other_extension: Any, ours_first: bool
) -> None:
    sql("CREATE TABLE {c}.t AS SELECT 1 AS id")
    jvm = spark._jvm
    extensions = jvm.org.apache.spark.sql.SparkSessionExtensions()
    applied = [
        load(spark.sparkContext._gateway, "lancespark.LanceExtensions").newInstance(),
        other_extension,
    ]
    for extension in applied if ours_first else reversed(applied):
        extension.apply(extensions)
    own = jvm.org.apache.spark.sql.execution.SparkSqlParser()
    parser = extensions.buildParser(spark._jsparkSession, own)
    for statement in ("OPTIMIZE {t}", "VACUUM {t}", "SHOW TAGS FROM {t}"):
        ours, foreign_table = (
            parse_plan(spark, parser, statement.replace("{t}", table)).toString()
            for table in (f"{NAME}.t", "other.t")
        )
        assert "Call" in ours or ".tags" in ours, ours
        assert "other AS parser" in foreign_table, foreign_table
    with pytest.raises(Exception, match=r"other: OPTIMIZE other\.broken"):
        parse_plan(spark, parser, "OPTIMIZE other.broken")
    for text in ("SELECT 1 + 1", "ALTER TABLE a.b ADD COLUMNS (c INT)"):
        assert parse_plan(spark, parser, text).toString() == own.parsePlan(text).toString()


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_session_with_two_extensions(
    tmp_path: Path, other_classes: Path, ours_first: bool
) -> None:
    classes = ["lancespark.LanceExtensions", "other.OtherExtensions"]
    script = f"""
import lance_spark
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraClassPath", {str(other_classes)!r})
builder = builder.config("spark.sql.extensions", {",".join(classes if ours_first else reversed(classes))!r})
spark = lance_spark.configure(builder, catalogs={{"lance": {str(tmp_path / "tables")!r}}}).getOrCreate()
spark.sql("CREATE TABLE lance.t (id INT)")
rows = [tuple(spark.sql("OPTIMIZE " + name).first()) for name in ("lance.t", "other.t")]
print("seen", rows, spark.sql("SHOW TAGS FROM other.t").columns, spark.sql("SHOW TAGS FROM lance.t").columns)
"""
    process = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(),
        check=False,
    )
    expected_line = "seen [(0, 0, 1), ('other',)] ['parser'] ['tag', 'branch', 'version']"
    assert expected_line in process.stdout, process.stderr[-4000:]


@udf
def slow(id: int) -> int:
    """A slow column."""
    time.sleep(0.2)
    return id


def test_a_job_is_cancelled_by_its_id(sql: Sql, spark: SparkSession, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(600)")
    table = db.open_table("t")
    table.add_columns({"slow": slow})
    job = table.backfill_async("slow", job_id="j", checkpoint_size=5, concurrency=1)
    try:
        deadline = time.monotonic() + 60
        while (
            not any(record.job_id == "j" for record in table.list_jobs())
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert [(row[0],) for row in sql("SHOW JOBS FROM {c}.t")] == [("j",)]
        assert sql("CALL {c}.system.cancel_job('t', 'j')") == [("j", "CANCELLED")]
    finally:
        job.cancel()
        job.done(None)
    assert job.status == "CANCELLED"
    assert sql("CALL {c}.system.cancel_job('t', 'j')") == [("j", "CANCELLED")]
    with pytest.raises(AnalysisException, match=r"JobNotFoundError|no job"):
        sql("CALL {c}.system.cancel_job('t', 'nope')")


@pytest.mark.sample(1)
def test_stored_code_needs_the_permission_of_the_catalog(
    sql: Sql, filled: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    lance_spark.catalog(spark, "untrusted", str(tmp_path))
    with pytest.raises(
        AnalysisException, match="StoredUdfError: The catalog 'untrusted' does not let SQL run"
    ):
        spark.sql("REFRESH COLUMN twice ON untrusted.t")
    assert spark.sql("OPTIMIZE untrusted.t").first()[:2] == (2, 1)


def test_search_functions_take_the_name_of_a_table(sql: Sql, db: Connection) -> None:
    sql(
        "CREATE TABLE {c}.`d.x` (id BIGINT, v ARRAY<FLOAT>) TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2')"
    )
    sql("INSERT INTO {c}.`d.x` VALUES (1, array(0, 0)), (2, array(3, 3))")
    search = "lance_vector_search('{c}.`d.x`', array(3, 3), k => 1)"
    assert sql(f"SELECT id FROM {search}") == [(2,)]
    assert sql(f"SELECT x.id FROM (SELECT 2L AS id) x WHERE x.id IN (SELECT id FROM {search})") == [
        (2,)
    ]
    call = "lance_vector_search(path => '`d.x`', query_vector => q.v, k => 1)"
    sql("USE {c}")
    try:
        assert sql(f"SELECT f.id FROM (SELECT array(1F, 0F) AS v) q, LATERAL {call} f") == [(1,)]
    finally:
        sql("USE spark_catalog.default")
    with pytest.raises(
        AnalysisException,
        match=r"Option 'path' = 'lance\.nope' .* the name of a table of the catalog",
    ):
        sql("SELECT * FROM lance_vector_search('{c}.nope', array(3, 3), k => 1)")
