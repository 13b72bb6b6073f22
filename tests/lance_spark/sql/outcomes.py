"""Statements of Spark's own suites for catalogs, by topic, and of the documentation of Lance's JVM connector, each with
its outcome.

`python -m tests.lance_spark.sql.outcomes` writes them to docs/sql-statements.md; `test_outcomes.py` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "sql-statements.md"

_HEAD = """# What each statement of SQL does

A test runs these statements in order, in a catalog with the name `lance`, and this page is generated from its list.
The first lines fill the catalog.
The first part has the statements of Spark's own suites for catalogs, by topic.
The second part has the statements in the documentation of Lance's JVM connector.
See [SQL](sql.md) for the details of each statement.
"""


@dataclass(frozen=True, slots=True)
class StatementCase:
    """A statement and its outcome.

    Attributes:
        statement: The statement; `{c}` is the catalog.
        fails: Pattern of the error; empty for success.
        says: Its replacement, or the reason for the error.
        since: The first release of Spark with the statement.
    """

    statement: str
    fails: str = ""
    says: str = ""
    since: str = "4.1"


def page() -> str:
    """Returns the text of the page."""
    lines = [_HEAD]
    for part, topics in PARTS.items():
        lines.append(f"## {part}\n")
        for topic, cases in topics.items():
            lines += [f"### {topic}\n", "| statement | outcome |", "| --- | --- |"]
            lines += [f"| `{_display(case.statement)}` | {_outcome(case)} |" for case in cases]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _display(statement: str) -> str:
    return statement.replace("{c}", "lance").replace("|", "\\|").replace("`", "")


def _outcome(case: StatementCase) -> str:
    since = "" if case.since == "4.1" else f", with Spark {case.since}"
    outcome = f"refused: {case.says}" if case.fails else f"works{since}"
    return f"{outcome}: {case.says}" if case.says and not case.fails else outcome


SPARK = {
    "Namespaces": (
        StatementCase("CREATE NAMESPACE {c}.a"),
        StatementCase("CREATE NAMESPACE IF NOT EXISTS {c}.a.b"),
        StatementCase("CREATE NAMESPACE {c}.a", "SCHEMA_ALREADY_EXISTS", "it exists"),
        StatementCase("SHOW NAMESPACES IN {c}"),
        StatementCase("DESCRIBE NAMESPACE EXTENDED {c}.a"),
        StatementCase("USE {c}.a"),
        StatementCase("SHOW CURRENT NAMESPACE"),
        StatementCase("CREATE TABLE inside (id BIGINT)"),
        StatementCase("SELECT * FROM inside"),
        StatementCase("USE spark_catalog.default"),
        StatementCase(
            "ALTER NAMESPACE {c}.a SET PROPERTIES ('k' = 'v')",
            "propert",
            "folders have no properties",
        ),
        StatementCase(
            "COMMENT ON NAMESPACE {c}.a IS 'text'", "propert|comment", "folders have no properties"
        ),
        StatementCase(
            "CREATE NAMESPACE {c}.z COMMENT 'text'", "propert|comment", "folders have no properties"
        ),
        StatementCase(
            "DROP NAMESPACE {c}.a", "SCHEMA_NOT_EMPTY|not empty", "it is not empty; write CASCADE"
        ),
        StatementCase("DROP NAMESPACE {c}.a CASCADE"),
        StatementCase("DROP NAMESPACE IF EXISTS {c}.a"),
    ),
    "Tables are made, replaced and dropped": (
        StatementCase(
            "CREATE TABLE {c}.t (id BIGINT NOT NULL COMMENT 'key', s STRING, d DECIMAL(9, 2), p STRUCT<x: INT, y: STRING>) COMMENT 'a table'"
        ),
        StatementCase(
            "CREATE TABLE {c}.nested (p STRUCT<x: INT NOT NULL, q: STRUCT<y: STRING NOT NULL> NOT NULL>)"
        ),
        StatementCase("INSERT INTO {c}.nested VALUES (NULL)"),
        StatementCase(
            "INSERT INTO {c}.nested SELECT named_struct('x', CAST(NULL AS INT), 'q', named_struct('y', 'a'))",
            "NULL",
            "x is NOT NULL",
        ),
        StatementCase("CREATE TABLE IF NOT EXISTS {c}.t (id BIGINT)"),
        StatementCase(
            "CREATE TABLE {c}.t (id BIGINT)", "TABLE_OR_VIEW_ALREADY_EXISTS", "it exists"
        ),
        StatementCase("CREATE TABLE {c}.u (id BIGINT) USING lance TBLPROPERTIES ('team' = 'us')"),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT) USING parquet",
            "parquet",
            "a catalog of Lance has Lance tables",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT) PARTITIONED BY (id)",
            "partition",
            "leave it out; fragments and indexes serve",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT) CLUSTERED BY (id) INTO 4 BUCKETS",
            "bucket",
            "leave it out; fragments and indexes serve",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT) CLUSTER BY (id)",
            "PARTITIONED BY or CLUSTERED BY",
            "write with ORDER BY",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT) LOCATION '/elsewhere'",
            "LOCATION|location",
            "a table lies in the folder of its catalog",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT, n INT DEFAULT 5)",
            "DEFAULT|default",
            "Lance has no default values",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT, n BIGINT GENERATED ALWAYS AS (id + 1))",
            "generated|GENERATED",
            "make a computed column with add_columns",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT GENERATED ALWAYS AS IDENTITY)",
            "IDENTITY|identity",
            "use _rowid",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT, CHECK (id > 0))",
            "CONSTRAINT|constraint",
            "Lance has no constraints",
        ),
        StatementCase(
            "CREATE TABLE {c}.v (id BIGINT PRIMARY KEY)",
            "CONSTRAINT|constraint",
            "Lance has no constraints",
        ),
        StatementCase(
            "CREATE TABLE {c}.n (i INTERVAL DAY TO SECOND, v VARIANT, m MAP<STRING, INT>)"
        ),
        StatementCase(
            "CREATE TABLE {c}.v (i INTERVAL YEAR TO MONTH)", "month", "store months as a number"
        ),
        StatementCase("CREATE TABLE {c}.w AS SELECT id, cast(id AS STRING) AS s FROM range(10)"),
        StatementCase("CREATE TABLE IF NOT EXISTS {c}.w AS SELECT 1 AS other"),
        StatementCase("CREATE OR REPLACE TABLE {c}.w AS SELECT * FROM {c}.w WHERE id < 5"),
        StatementCase("REPLACE TABLE {c}.w AS SELECT id, s FROM {c}.w WHERE id < 4"),
        StatementCase(
            "REPLACE TABLE {c}.none AS SELECT 1 AS id",
            "TABLE_OR_VIEW_NOT_FOUND",
            "it does not exist",
        ),
        StatementCase("CREATE OR REPLACE TABLE {c}.u (id BIGINT, s STRING)"),
        StatementCase("DROP TABLE {c}.u"),
        StatementCase("DROP TABLE {c}.u", "TABLE_OR_VIEW_NOT_FOUND", "it does not exist"),
        StatementCase("DROP TABLE IF EXISTS {c}.u"),
        StatementCase("CREATE TABLE {c}.x AS SELECT 1 AS id"),
        StatementCase("DROP TABLE {c}.x PURGE"),
        StatementCase(
            "CREATE TABLE {c}.alike LIKE {c}.t TBLPROPERTIES ('team' = 'them')", since="4.2"
        ),
    ),
    "Tables are described": (
        StatementCase("SHOW TABLES IN {c}"),
        StatementCase("SHOW TABLES IN {c} LIKE 't*'"),
        StatementCase("SHOW TABLE EXTENDED IN {c} LIKE 't*'"),
        StatementCase("SHOW COLUMNS IN {c}.t"),
        StatementCase("SHOW TBLPROPERTIES {c}.t"),
        StatementCase("SHOW CREATE TABLE {c}.t"),
        StatementCase("SHOW PARTITIONS {c}.t", "PARTITION", "there are no partitions"),
        StatementCase("DESCRIBE {c}.t"),
        StatementCase("DESCRIBE EXTENDED {c}.t"),
        StatementCase("DESCRIBE {c}.t id"),
        StatementCase(
            "DESCRIBE EXTENDED {c}.t AS JSON",
            "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE",
            "Spark has it for no table of a catalog like this",
        ),
        StatementCase("ANALYZE TABLE {c}.t COMPUTE STATISTICS"),
        StatementCase("REFRESH TABLE {c}.t"),
        StatementCase("EXPLAIN EXTENDED SELECT s FROM {c}.t WHERE id = 1"),
    ),
    "Tables are altered": (
        StatementCase("ALTER TABLE {c}.t ADD COLUMN n INT COMMENT 'a number'"),
        StatementCase("ALTER TABLE {c}.t ADD COLUMNS (f FLOAT, a ARRAY<STRING>)"),
        StatementCase(
            "ALTER TABLE {c}.t ADD COLUMN n INT",
            "FIELD_ALREADY_EXISTS|FIELDS_ALREADY_EXISTS",
            "it exists",
        ),
        StatementCase(
            "ALTER TABLE {c}.t ADD COLUMN m INT NOT NULL",
            "NOT NULL|NULL",
            "rows that are there would be NULL",
        ),
        StatementCase("ALTER TABLE {c}.t ADD COLUMN r STRUCT<x: INT NOT NULL>"),
        StatementCase("ALTER TABLE {c}.t ALTER COLUMN r.x DROP NOT NULL"),
        StatementCase(
            "ALTER TABLE {c}.t ADD COLUMN m INT FIRST",
            "FIRST",
            "columns come last; a query gives the order",
        ),
        StatementCase(
            "ALTER TABLE {c}.t ADD COLUMN m INT AFTER id",
            "AFTER",
            "columns come last; a query gives the order",
        ),
        StatementCase(
            "ALTER TABLE {c}.t ADD COLUMN m INT DEFAULT 5", "DEFAULT|default", "add it, then UPDATE"
        ),
        StatementCase(
            "ALTER TABLE {c}.t ADD COLUMN p.z INT", "struct|p", "make a column of its own"
        ),
        StatementCase("ALTER TABLE {c}.t ALTER COLUMN n TYPE BIGINT"),
        StatementCase("ALTER TABLE {c}.t ALTER COLUMN n TYPE STRING"),
        StatementCase("ALTER TABLE {c}.t ALTER COLUMN n COMMENT 'a larger number'"),
        StatementCase("ALTER TABLE {c}.t ALTER COLUMN id DROP NOT NULL"),
        StatementCase(
            "ALTER TABLE {c}.t ALTER COLUMN id SET NOT NULL",
            "nullable|NULL",
            "Spark has it for no table",
        ),
        StatementCase(
            "ALTER TABLE {c}.t ALTER COLUMN n SET DEFAULT 5",
            "DEFAULT|default",
            "Lance has no default values",
        ),
        StatementCase("ALTER TABLE {c}.t RENAME COLUMN n TO number"),
        StatementCase("ALTER TABLE {c}.t RENAME COLUMN p.y TO z"),
        StatementCase("ALTER TABLE {c}.t DROP COLUMN number"),
        StatementCase("ALTER TABLE {c}.t DROP COLUMNS IF EXISTS (number, f)"),
        StatementCase("ALTER TABLE {c}.t DROP COLUMN number", "number", "it does not exist"),
        StatementCase(
            "ALTER TABLE {c}.t REPLACE COLUMNS (id BIGINT)",
            "REPLACE COLUMNS",
            "ADD, DROP or RENAME COLUMN, or CREATE OR REPLACE TABLE … AS SELECT",
        ),
        StatementCase("ALTER TABLE {c}.t SET TBLPROPERTIES ('k' = 'v')"),
        StatementCase("ALTER TABLE {c}.t UNSET TBLPROPERTIES IF EXISTS ('k')"),
        StatementCase("COMMENT ON TABLE {c}.t IS 'text'"),
        StatementCase(
            "ALTER TABLE {c}.t SET LOCATION '/elsewhere'",
            "LOCATION|location",
            "a table lies in the folder of its catalog",
        ),
        StatementCase(
            "ALTER TABLE {c}.t ADD PARTITION (id = 1)",
            "PARTITION|partition",
            "there are no partitions",
        ),
        StatementCase(
            "ALTER TABLE {c}.t ADD CONSTRAINT positive CHECK (id > 0)",
            "CONSTRAINT|constraint",
            "Lance has no constraints",
        ),
        StatementCase("ALTER TABLE {c}.t CLUSTER BY (id)", "ClusterBy", "write with ORDER BY"),
        StatementCase("ALTER TABLE {c}.w RENAME TO renamed"),
        StatementCase("ALTER TABLE {c}.renamed RENAME TO {c}.w"),
    ),
    "Rows are inserted": (
        StatementCase("CREATE OR REPLACE TABLE {c}.t (id BIGINT NOT NULL, s STRING, n INT)"),
        StatementCase("INSERT INTO {c}.t VALUES (1, 'a', 1), (2, 'b', NULL)"),
        StatementCase("INSERT INTO {c}.t (n, id) VALUES (3, 3)"),
        StatementCase("INSERT INTO {c}.t BY NAME SELECT 4L AS id, 4 AS n"),
        StatementCase("INSERT INTO {c}.t TABLE {c}.t"),
        StatementCase(
            "WITH more AS (SELECT 5L AS id) INSERT INTO {c}.t SELECT id, 'e', 5 FROM more"
        ),
        StatementCase(
            "INSERT INTO {c}.t VALUES (6, 'f')", "NOT_ENOUGH_DATA_COLUMNS|ARITY", "name the columns"
        ),
        StatementCase(
            "INSERT INTO {c}.t VALUES (6, 'f', 6, 6)",
            "TOO_MANY_DATA_COLUMNS|ARITY",
            "name the columns",
        ),
        StatementCase("INSERT INTO {c}.t VALUES (NULL, 'f', 6)", "NULL", "id is NOT NULL"),
        StatementCase(
            "INSERT INTO {c}.t VALUES (6, 'f', 'six')",
            "CAST|cast",
            "the value does not fit the type",
        ),
        StatementCase("INSERT INTO {c}.t REPLACE WHERE id = 4 SELECT 4L, 'd', 44"),
        StatementCase(
            "INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 7L AS id, 7.5 AS price",
            since="4.2",
        ),
        StatementCase(
            "INSERT INTO {c}.t PARTITION (id = 1) SELECT 'a', 1",
            "PARTITION|partition",
            "there are no partitions",
        ),
        StatementCase(
            "INSERT OVERWRITE {c}.t PARTITION (id) SELECT 1L, 'a', 1",
            "PARTITION|partition",
            "there are no partitions",
        ),
        StatementCase("INSERT OVERWRITE {c}.w SELECT id, 's' FROM range(20)"),
        StatementCase("TRUNCATE TABLE {c}.w"),
        StatementCase("INSERT INTO {c}.w SELECT id, cast(id AS STRING) FROM range(20)"),
        StatementCase(
            "LOAD DATA INPATH '/elsewhere' INTO TABLE {c}.w",
            "LOAD DATA|LOAD",
            "INSERT INTO … SELECT",
        ),
    ),
    "Rows are changed": (
        StatementCase("DELETE FROM {c}.w WHERE id = 19"),
        StatementCase("DELETE FROM {c}.w AS x WHERE x.id > 17 AND x.s LIKE '1%'"),
        StatementCase("DELETE FROM {c}.w WHERE id IN (SELECT max(id) FROM {c}.w)"),
        StatementCase(
            "DELETE FROM {c}.w WHERE NOT EXISTS (SELECT 1 FROM {c}.t WHERE t.id = w.id) AND id > 10"
        ),
        StatementCase(
            "DELETE FROM {c}.w WHERE id = rand()",
            "DETERMINISTIC|deterministic",
            "Spark changes rows by what is certain",
        ),
        StatementCase("UPDATE {c}.w SET s = upper(s)"),
        StatementCase(
            "UPDATE {c}.w AS x SET x.s = concat(x.s, '!') WHERE x.id < (SELECT avg(id) FROM {c}.w)"
        ),
        StatementCase("UPDATE {c}.w SET s = DEFAULT WHERE id = 1"),
        StatementCase("UPDATE {c}.w SET none = 1", "UNRESOLVED_COLUMN", "it has no such column"),
        StatementCase(
            "MERGE INTO {c}.w USING (SELECT id, 'new' AS s FROM range(5, 30)) n ON w.id = n.id "
            "WHEN MATCHED AND n.id = 6 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ),
        StatementCase(
            "MERGE INTO {c}.w USING (SELECT 1L AS id) n ON w.id = n.id WHEN MATCHED THEN UPDATE SET s = 'one' "
            "WHEN NOT MATCHED BY SOURCE AND w.id > 25 THEN DELETE WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = 'rest'"
        ),
        StatementCase(
            "WITH n AS (SELECT 2L AS id) MERGE INTO {c}.w USING n ON w.id = n.id WHEN MATCHED THEN DELETE"
        ),
        StatementCase(
            "MERGE INTO {c}.w USING (SELECT 1L AS id UNION ALL SELECT 1L) n ON w.id = n.id WHEN MATCHED THEN UPDATE SET s = 'two'",
            "MERGE_CARDINALITY_VIOLATION",
            "two rows of the source match one row",
        ),
        StatementCase(
            "MERGE WITH SCHEMA EVOLUTION INTO {c}.w USING (SELECT 1L AS id, 'x' AS s, 2 AS extra) n ON w.id = n.id WHEN MATCHED THEN UPDATE SET *",
            since="4.2",
        ),
        StatementCase("SELECT extra FROM {c}.w WHERE extra = 2", since="4.2"),
    ),
    "Tables are queried": (
        StatementCase("SELECT * FROM {c}.w VERSION AS OF 1"),
        StatementCase("SELECT * FROM {c}.w TIMESTAMP AS OF current_timestamp()"),
        StatementCase(
            "SELECT * FROM {c}.w VERSION AS OF 100000", "100000", "there is no such version"
        ),
        StatementCase(
            "SELECT now.id FROM {c}.w now JOIN {c}.w VERSION AS OF 1 old ON now.id = old.id"
        ),
        StatementCase("SELECT _rowid, _rowaddr, id FROM {c}.w"),
        StatementCase("SELECT version, operation FROM {c}.w.versions"),
        StatementCase("SELECT * FROM {c}.w TABLESAMPLE (50 PERCENT)"),
        StatementCase("FROM {c}.w |> WHERE id > 3 |> AGGREGATE count(*)"),
        StatementCase("CREATE TEMPORARY VIEW of_outcomes AS SELECT id FROM {c}.w"),
        StatementCase("SELECT count(*) FROM of_outcomes"),
        StatementCase("CACHE TABLE cached_outcomes AS SELECT * FROM {c}.w"),
        StatementCase("UNCACHE TABLE cached_outcomes"),
        StatementCase(
            "CREATE VIEW {c}.v AS SELECT id FROM {c}.w",
            "VIEW",
            "a temporary view, or create_materialized_view",
        ),
        StatementCase(
            "CREATE FUNCTION {c}.f AS 'a.b.C'", "FUNCTION|function", "a temporary function"
        ),
        StatementCase("EXECUTE IMMEDIATE 'SELECT count(*) FROM {c}.w WHERE id > ?' USING 3"),
        StatementCase(
            "BEGIN DECLARE n BIGINT; SET n = (SELECT count(*) FROM {c}.w); DELETE FROM {c}.w WHERE id > n; END"
        ),
        StatementCase("CALL {c}.system.tag(table => 'w', name => 'kept')"),
        StatementCase("CALL {c}.system.create_branch(table => 'w', name => 'b')"),
        StatementCase("SELECT count(*) FROM {c}.w VERSION AS OF 'b'"),
        StatementCase("SELECT name, parent, parent_version FROM {c}.w.branches"),
        StatementCase("CALL {c}.system.drop_branch(table => 'w', name => 'b')"),
        StatementCase("SHOW PROCEDURES IN {c}.system"),
        StatementCase("CREATE INDEX by_id ON {c}.w USING BTREE (id)"),
        StatementCase("DROP INDEX by_id ON {c}.w"),
    ),
    "Feature engineering": (
        StatementCase(
            "REFRESH COLUMN s ON {c}.w WHERE id < 5",
            "RegistrationError",
            "only columns of UDFs are refreshed",
        ),
        StatementCase("SHOW JOBS FROM {c}.w"),
        StatementCase("DESCRIBE HISTORY {c}.w"),
        StatementCase("RESTORE TABLE {c}.w TO VERSION AS OF 1"),
        StatementCase(
            "RESTORE TABLE {c}.w TO VERSION AS OF 100000",
            "VersionNotFoundError",
            "there is no such version",
        ),
        StatementCase("EXPLAIN OPTIMIZE {c}.w"),
        StatementCase(
            "OPTIMIZE spark_catalog.default.w",
            "PARSE_SYNTAX_ERROR",
            "the table is not in a catalog of Lance",
        ),
        StatementCase(
            "CREATE MATERIALIZED VIEW {c}.mv AS SELECT id, upper(s) AS loud FROM {c}.w WHERE id > 1"
        ),
        StatementCase(
            "CREATE MATERIALIZED VIEW IF NOT EXISTS {c}.mv AS SELECT id FROM {c}.w WITH DATA"
        ),
        StatementCase("REFRESH MATERIALIZED VIEW {c}.mv"),
        StatementCase(
            "CREATE MATERIALIZED VIEW {c}.x AS SELECT count(*) AS n FROM {c}.w",
            "RegistrationError",
            "a view computes each row by itself",
        ),
        StatementCase("DROP MATERIALIZED VIEW {c}.mv"),
        StatementCase("CALL {c}.system.optimize_indices('w')"),
    ),
}

JVM = {
    "Tables": (
        StatementCase(
            "CREATE TABLE {c}.e (id INT NOT NULL, v ARRAY<FLOAT>, b BINARY, h ARRAY<FLOAT>, l STRING) USING lance TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2', 'b.lance.encoding' = 'blob', 'h.arrow.fixed-size-list.size' = '4', 'h.arrow.float16' = 'true', 'l.arrow.large_var_char' = 'true')"
        ),
        StatementCase(
            "INSERT INTO {c}.e VALUES (1, array(1, 2), X'00', array(1, 2, 3, 4), 'a'), (2, array(3, 4), X'01', NULL, 'b')"
        ),
        StatementCase("SELECT id, v, h, l FROM {c}.e"),
        StatementCase(
            "SELECT id, b__blob_pos, b__blob_size FROM {c}.e",
            "UNRESOLVED_COLUMN",
            "a blob is read as a struct: b.position, b.size",
        ),
        StatementCase("ALTER TABLE {c}.e SET TBLPROPERTIES ('k' = 'v')"),
        StatementCase("ALTER TABLE {c}.e ADD COLUMNS (score FLOAT, label STRING)"),
        StatementCase("ALTER TABLE {c}.e RENAME COLUMN label TO tag"),
        StatementCase("ALTER TABLE {c}.e DROP COLUMN tag"),
        StatementCase("UPDATE {c}.e SET score = 1.5 WHERE id = 1"),
        StatementCase("DELETE FROM {c}.e WHERE id = 2"),
        StatementCase("SELECT id FROM {c}.e VERSION AS OF 2"),
        StatementCase(
            "SELECT id FROM {c}.e TIMESTAMP AS OF 4102444800",
            says="seconds, as `CAST` has it, where the connector counts microseconds",
        ),
        StatementCase("SELECT id FROM {c}.e TIMESTAMP AS OF 4102444800000000"),
        StatementCase(
            "SELECT id, length(b) FROM {c}.e WITH ('blob_handling' = 'bytes')", since="4.3"
        ),
        StatementCase("DESCRIBE TABLE {c}.e"),
        StatementCase("SHOW TBLPROPERTIES {c}.e"),
    ),
    "Statements of its own parser": (
        StatementCase(
            "ALTER TABLE {c}.w CREATE INDEX i USING btree (id)",
            "PARSE_SYNTAX_ERROR",
            "CREATE INDEX i ON lance.w USING BTREE (id)",
        ),
        StatementCase(
            "ALTER TABLE {c}.w CREATE INDEX i USING fts (s) WITH (base_tokenizer = 'simple')",
            "PARSE_SYNTAX_ERROR",
            "CREATE INDEX i ON lance.w USING FTS (s) OPTIONS (base_tokenizer = 'simple')",
        ),
        StatementCase(
            "ALTER TABLE {c}.w DROP INDEX i", "PARSE_SYNTAX_ERROR", "DROP INDEX i ON lance.w"
        ),
        StatementCase("CREATE INDEX i ON {c}.w USING BTREE (id)"),
        StatementCase("SHOW INDEXES IN {c}.w"),
        StatementCase("OPTIMIZE INDEX i ON {c}.w", says="the connector has no such statement"),
        StatementCase("OPTIMIZE {c}.w WITH (target_rows_per_fragment = 1000)"),
        StatementCase("VACUUM {c}.w WITH (error_if_tagged_old_versions = false) RETAIN 168 HOURS"),
        StatementCase(
            "VACUUM {c}.w WITH (before_version = 1)",
            "UNRECOGNIZED_PARAMETER_NAME",
            "VACUUM lance.w RETAIN 168 HOURS",
        ),
        StatementCase(
            "CREATE TEMPORARY VIEW some_view AS SELECT _rowaddr, upper(s) AS loud, lower(s) AS s FROM {c}.w"
        ),
        StatementCase("ALTER TABLE {c}.w ADD COLUMNS loud FROM some_view"),
        StatementCase("ALTER TABLE {c}.w UPDATE COLUMNS s FROM some_view"),
        StatementCase("ALTER TABLE {c}.w CREATE TAG 'v1'"),
        StatementCase("SHOW TAGS {c}.w"),
        StatementCase("ALTER TABLE {c}.w DROP TAG 'v1'"),
        StatementCase("ALTER TABLE {c}.w CREATE BRANCH b AS OF VERSION 1"),
        StatementCase("SHOW BRANCHES IN {c}.w"),
        StatementCase("ALTER TABLE {c}.w DROP BRANCH b"),
        StatementCase("CREATE TABLE {c}.keyed (id BIGINT NOT NULL)"),
        StatementCase("ALTER TABLE {c}.keyed SET UNENFORCED PRIMARY KEY (id)"),
    ),
}

PARTS = {"Spark": SPARK, "The JVM connector": JVM}

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
