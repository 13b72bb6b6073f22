"""Types and field metadata of columns across every statement that keeps the columns."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import lance
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from lance_spark import Connection
from tests.lance_spark.sql.conftest import Sql
from udf_runtime import udf

pytestmark = [pytest.mark.classic, pytest.mark.sample(1, tests=3)]

EVOLVES, EVOLVES_BRANCHES = pyspark.__version__ >= "4.2", pyspark.__version__ >= "4.3"
needs_evolution = pytest.mark.skipif(
    not EVOLVES, reason="Spark 4.1 has no schema evolution of a table's choice"
)

_WIDE = "x DECIMAL(10,3), d DOUBLE, at TIMESTAMP, local TIMESTAMP_NTZ, n BIGINT, st STRUCT<a: BIGINT>, ar ARRAY<BIGINT>"
_ROW = (
    "1.234, 0.1, timestamp'2024-01-01 12:34:56', timestamp_ntz'2024-01-01 12:34:56', 5000000000, "
    "named_struct('a', 5000000000), array(5000000000)"
)
_NARROW = (
    "CAST(1 AS DECIMAL(3,0)) AS x, CAST(0.5 AS FLOAT) AS d, date'2024-01-02' AS at, date'2024-01-02' AS local, 7 AS n, "
    "named_struct('a', 7) AS st, array(7) AS ar"
)


@needs_evolution
def test_schema_evolution_adds_columns_and_keeps_the_types_of_the_others(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql(f"CREATE TABLE {{c}}.t (id BIGINT, {_WIDE})")
    sql(f"INSERT INTO {{c}}.t VALUES (1, {_ROW})")
    table = db.open_table("t")
    before, first = table.schema, table.to_arrow()
    sql(f"INSERT WITH SCHEMA EVOLUTION INTO {{c}}.t BY NAME SELECT 2 AS id, {_NARROW}, 'new' AS e")
    sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {{c}}.t t USING (SELECT 3 AS id, {_NARROW}, 'm' AS f) s ON s.id = t.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    name = sql("SHOW CREATE TABLE {c}.t")[0][0].split()[2].rsplit(".", 1)[0]
    spark.sql(f"SELECT 4 AS id, {_NARROW}, 1 AS g").writeTo(f"{name}.t").option(
        "mergeSchema", "true"
    ).append()
    table = db.open_table("t")
    assert table.schema.names == [*before.names, "e", "f", "g"]
    assert [table.schema.field(field.name).type for field in before] == [
        field.type for field in before
    ]
    rows = table.to_arrow().sort_by("id").select(before.names)
    assert (
        rows.slice(0, 1) == first
        and rows["n"].to_pylist()[1:] == [7, 7, 7]
        and rows["d"].to_pylist()[1:] == [0.5] * 3
    )


@needs_evolution
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "true AS n, 1 AS e",
            r"column n has the type BIGINT and cannot store values of the type BOOLEAN",
        ),
        ("named_struct('a', 1, 'b', 2) AS st, 1 AS e", r"cannot add the field st.b to a struct"),
    ],
)
def test_schema_evolution_that_cannot_work_changes_nothing(
    sql: Sql, db: Connection, source: str, message: str
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT, n BIGINT, st STRUCT<a: BIGINT>)")
    version = db.open_table("t").version
    with pytest.raises(AnalysisException, match=message):
        sql(f"INSERT WITH SCHEMA EVOLUTION INTO {{c}}.t BY NAME SELECT 2 AS id, {source}")
    assert db.open_table("t").version == version


@pytest.mark.skipif(EVOLVES, reason="Spark 4.2 evolves the table")
def test_schema_evolution_changes_nothing_with_spark_4_1(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT, x DECIMAL(10,3))")
    sql("INSERT INTO {c}.t VALUES (1, 1.234)")
    name = sql("SHOW CREATE TABLE {c}.t")[0][0].split()[2]
    frame = spark.sql("SELECT 1 AS id, CAST(1 AS DECIMAL(3,0)) AS x, 'new' AS e")
    frame.createOrReplaceTempView("evolving_rows")
    merge = "MERGE WITH SCHEMA EVOLUTION INTO {c}.t t USING evolving_rows s ON s.id = t.id WHEN MATCHED THEN UPDATE SET *"
    for write in (
        lambda: sql(merge),
        lambda: sql(f"EXPLAIN {merge}"),
        lambda: frame.writeTo(name).option("mergeSchema", "true").append(),
        lambda: frame.write.option("mergeSchema", "true").insertInto(name),
        lambda: (
            frame.write.format("lance")
            .mode("append")
            .option("mergeSchema", "true")
            .saveAsTable(name)
        ),
    ):
        with pytest.raises(AnalysisException, match=r"(?i)nothing was changed"):
            write()
    with pytest.raises(AnalysisException, match="PARSE_SYNTAX_ERROR"):
        sql("INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT * FROM evolving_rows")
    spark.catalog.dropTempView("evolving_rows")
    table = db.open_table("t")
    assert table.version == 2 and table.to_arrow()["x"].to_pylist() == [Decimal("1.234")]


@needs_evolution
def test_explain_of_schema_evolution_adds_no_column(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT)")
    for statement in (
        "INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 1L AS id, 2 AS e",
        "INSERT WITH SCHEMA EVOLUTION OVERWRITE {c}.t BY NAME SELECT 1L AS id, 2 AS e",
        "WITH s AS (SELECT 1L AS id, 2 AS e) INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT * FROM s",
        "MERGE WITH SCHEMA EVOLUTION INTO {c}.t t USING (SELECT 1L AS id, 2 AS e) s ON s.id = t.id WHEN MATCHED THEN UPDATE SET *",
        "WITH s AS (SELECT 1L AS id, 2 AS e) MERGE WITH SCHEMA EVOLUTION INTO {c}.t t USING s ON s.id = t.id WHEN MATCHED THEN UPDATE SET *",
    ):
        for explain in ("EXPLAIN", "EXPLAIN EXTENDED"):
            with pytest.raises(
                AnalysisException, match="Explain the statement without WITH SCHEMA EVOLUTION"
            ):
                sql(f"{explain} {statement}")
    table = db.open_table("t")
    assert table.version == 1 and table.schema.names == ["id"]


@needs_evolution
def test_columns_of_a_statement_that_fails_are_taken_back(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT)")
    sql("INSERT INTO {c}.t VALUES (1)")
    name = sql("SHOW CREATE TABLE {c}.t")[0][0].split()[2].rsplit(".", 1)[0]
    failing = "SELECT id, 1 div (id - 1) AS e, 'x' AS f FROM range(0, 3, 1, 1)"
    merge = f"MERGE WITH SCHEMA EVOLUTION INTO {{c}}.t t USING ({failing}) s ON s.id = t.id WHEN"
    branch = db.open_table("t").branches.create("dev")
    ways = [
        lambda: sql(f"INSERT WITH SCHEMA EVOLUTION INTO {{c}}.t BY NAME {failing}"),
        lambda: sql(f"INSERT WITH SCHEMA EVOLUTION OVERWRITE {{c}}.t BY NAME {failing}"),
        lambda: sql(f"{merge} MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"),
        lambda: sql(f"{merge} NOT MATCHED AND s.e > -9 THEN INSERT *"),
        lambda: spark.sql(failing).writeTo(f"{name}.t").option("mergeSchema", "true").append(),
    ]
    if EVOLVES_BRANCHES:
        evolving = (
            spark.sql(failing)
            .writeTo(f"{name}.t")
            .option("mergeSchema", "true")
            .option("branch", "dev")
        )
        ways.append(evolving.append)
    for fail in ways:
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            fail()
        for table in (db.open_table("t"), branch):
            table.checkout_latest()
            assert table.schema.names == ["id"] and table.to_arrow()["id"].to_pylist() == [1]
    sql("INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 2L AS id, 'text' AS e")
    assert sql("SELECT id, e FROM {c}.t ORDER BY id") == [(1, None), (2, "text")]


@needs_evolution
def test_columns_of_a_statement_that_fails_stay_after_a_commit_of_another_writer(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT)")
    uri = db.open_table("t").uri

    def write_then_fail(number):  # type: ignore[no-untyped-def]
        lance.write_dataset(
            pa.table({"id": [9], "e": pa.array([7], pa.int32())}), uri, mode="append"
        )
        raise ValueError("a wrong value")

    spark.udf.register("write_then_fail", sf.udf(write_then_fail, "int"))
    with pytest.raises(Exception, match="a wrong value"):
        sql(
            "INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT id, write_then_fail(id) AS e FROM range(1)"
        )
    assert sql("SELECT id, e FROM {c}.t") == [(9, 7)]


@needs_evolution
def test_an_error_of_the_analyzer_leaves_the_columns_of_schema_evolution(
    sql: Sql, db: Connection
) -> None:
    """Spark adds the columns during the analysis of the statement, and reports a failed analysis to no catalog."""
    sql("CREATE TABLE {c}.t (id BIGINT NOT NULL)")
    with pytest.raises(AnalysisException, match="CANNOT_FIND_DATA"):
        sql("INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 1 AS e")
    assert db.open_table("t").schema.names == ["id", "e"]
    sql("INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 1L AS id, 2 AS e")
    assert sql("SELECT * FROM {c}.t") == [(1, 2)]


@udf(data_type=pa.int32())
def doubled(n: int) -> int:
    return n * 2


_CHANGES = {
    "INSERT": "INSERT INTO {c}.t (id, n) VALUES (3, 3)",
    "UPDATE": "UPDATE {c}.t SET s = 'u' WHERE id = 3",
    "DELETE": "DELETE FROM {c}.t WHERE id = 3",
    "MERGE": "MERGE INTO {c}.t t USING (SELECT 2 AS id, 'm' AS s) s ON s.id = t.id WHEN MATCHED THEN UPDATE SET s = s.s",
    "schema evolution": "INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 4 AS id, 4 AS n, 1 AS extra"
    if EVOLVES
    else "ALTER TABLE {c}.t ADD COLUMN extra INT",
    "a dropped column": "ALTER TABLE {c}.t DROP COLUMN extra",
    "a renamed column": "ALTER TABLE {c}.t RENAME COLUMN s TO text",
    "another type": "ALTER TABLE {c}.t ALTER COLUMN v TYPE BIGINT",
    "another type of another column": "ALTER TABLE {c}.t ALTER COLUMN w TYPE DOUBLE",
    "another comment": "ALTER TABLE {c}.t ALTER COLUMN text COMMENT 'text'",
    "an overwrite": "INSERT OVERWRITE {c}.t SELECT * FROM {c}.t",
    "an overwrite by name": "INSERT OVERWRITE {c}.t BY NAME SELECT * FROM {c}.t",
    "a replacement": "CREATE OR REPLACE TABLE {c}.t AS SELECT * FROM {c}.t",
}


def test_field_metadata_survives_every_change_that_keeps_the_column(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id INT NOT NULL, n INT, s STRING, w FLOAT COMMENT 'weight')")
    sql("INSERT INTO {c}.t VALUES (1, 1, 'a', 1.5), (2, 2, 'b', 2.5)")
    table = db.open_table("t")
    table.add_columns({"v": doubled})
    custom = {"comment": "twice", "mine": "1", "lance-encoding:compression": "zstd"}
    table.to_lance().update_field_metadata({"v": custom, "id": {"comment": "key"}})
    assert table.backfill("v").rows_computed == 2

    def metadata() -> dict[str, Any]:
        reopened = db.open_table("t")
        public = {key: reopened.schema.field("v").metadata[key.encode()].decode() for key in custom}
        return {
            "v": public,
            "w": reopened.schema.field("w").metadata[b"comment"],
            "id": (
                reopened.schema.field("id").metadata[b"comment"],
                reopened.schema.field("id").nullable,
            ),
            "udf": b"lance-spark:udf" in reopened.schema.field("v").metadata,
        }

    before = {"v": custom, "w": b"weight", "id": (b"key", False), "udf": True}
    for change, statement in _CHANGES.items():
        sql(statement)
        assert metadata() == before, change
    path = db.open_table("t").uri
    spark.sql("SELECT 9 AS id, 9 AS n, CAST(NULL AS BIGINT) AS v").write.format("lance").mode(
        "overwrite"
    ).save(path)
    table = db.open_table("t")
    assert table.backfill("v").rows_computed == 1 and table.to_arrow()["v"].to_pylist() == [18]


def test_a_merge_keeps_not_null_columns_that_it_does_not_set(sql: Sql) -> None:
    sql("CREATE TABLE {c}.t (pk INT NOT NULL, salary INT, dep STRUCT<a: INT NOT NULL> NOT NULL)")
    sql(
        "INSERT INTO {c}.t SELECT id, 100 * id, named_struct('a', int(id)) FROM VALUES (1), (2), (3) AS s(id)"
    )
    sql(
        "MERGE INTO {c}.t t USING (SELECT * FROM VALUES (2, 0), (3, 1), (9, 1) AS s(pk, keep)) s ON t.pk = s.pk "
        "WHEN MATCHED AND s.keep = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET t.salary = t.salary + 1 "
        "WHEN NOT MATCHED THEN INSERT (pk, salary, dep) VALUES (s.pk, 0, named_struct('a', 9)) "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert sql("SELECT pk, salary, dep.a FROM {c}.t ORDER BY pk") == [(3, 301, 3), (9, 0, 9)]


_PARTS = {
    "DAY": ("INTERVAL '1' DAY", "INTERVAL '2' DAY"),
    "HOUR": ("INTERVAL '5' HOUR", "INTERVAL '6' HOUR"),
    "MINUTE": ("INTERVAL '7' MINUTE", "INTERVAL '8' MINUTE"),
    "SECOND": ("INTERVAL '1.5' SECOND", "INTERVAL '2.5' SECOND"),
    "DAY TO HOUR": ("INTERVAL '1 2' DAY TO HOUR", "INTERVAL '3 4' DAY TO HOUR"),
    "DAY TO MINUTE": ("INTERVAL '1 2:03' DAY TO MINUTE", "INTERVAL '4 5:06' DAY TO MINUTE"),
    "DAY TO SECOND": ("INTERVAL '1 2:03:04' DAY TO SECOND", "INTERVAL '5 6:07:08' DAY TO SECOND"),
    "HOUR TO MINUTE": ("INTERVAL '1:02' HOUR TO MINUTE", "INTERVAL '3:04' HOUR TO MINUTE"),
    "HOUR TO SECOND": ("INTERVAL '1:02:03' HOUR TO SECOND", "INTERVAL '4:05:06' HOUR TO SECOND"),
    "MINUTE TO SECOND": ("INTERVAL '1:02' MINUTE TO SECOND", "INTERVAL '3:04' MINUTE TO SECOND"),
}


def test_intervals_take_values_of_their_own_parts(sql: Sql, spark: SparkSession) -> None:
    columns = {f"c{number}": kind for number, kind in enumerate(_PARTS)}
    declared = ", ".join(f"{name} INTERVAL {kind}" for name, kind in columns.items())
    sql(f"CREATE TABLE {{c}}.t (id INT, {declared}, s STRUCT<a: INTERVAL DAY>)")
    first, second = (list(values) for values in zip(*_PARTS.values(), strict=True))
    sql(f"INSERT INTO {{c}}.t SELECT 1, {', '.join(first)}, named_struct('a', INTERVAL '1' DAY)")
    assert sql(f"SELECT {', '.join(columns)} FROM {{c}}.t") == [
        tuple(spark.sql(f"SELECT {', '.join(first)}").first())
    ]  # type: ignore[arg-type]
    sql(
        f"UPDATE {{c}}.t SET {', '.join(f'{name} = {value}' for name, value in zip(columns, second, strict=True))}"
    )
    assert sql(f"SELECT {', '.join(columns)} FROM {{c}}.t") == [
        tuple(spark.sql(f"SELECT {', '.join(second)}").first())
    ]  # type: ignore[arg-type]
    kinds = dict(row[:2] for row in sql("DESCRIBE {c}.t"))
    assert {name: kinds[name].upper() for name in columns} == {
        name: f"INTERVAL {kind}" for name, kind in columns.items()
    }


def test_lengths_of_text_are_kept_and_enforced(sql: Sql) -> None:
    sql(
        "CREATE TABLE {c}.t (id INT, c CHAR(3), v VARCHAR(3) COMMENT 'short', n STRUCT<a: VARCHAR(2)>, ar ARRAY<CHAR(2)>)"
    )
    sql("INSERT INTO {c}.t VALUES (1, 'a', 'abc', named_struct('a', 'xy'), array('z'))")
    assert sql("SELECT length(c), c = 'a', v, n.a, ar[0] FROM {c}.t WHERE c = 'a'") == [
        (3, True, "abc", "xy", "z ")
    ]
    sql("ALTER TABLE {c}.t ADD COLUMN w VARCHAR(2)")
    sql("ALTER TABLE {c}.t ALTER COLUMN v TYPE VARCHAR(5)")
    sql("UPDATE {c}.t SET v = 'abcde'")
    sql("INSERT OVERWRITE {c}.t SELECT * FROM {c}.t")
    sql("CREATE TABLE {c}.u AS SELECT c, v FROM {c}.t")
    for statement in (
        "INSERT INTO {c}.t (id, c) VALUES (2, 'abcd')",
        "INSERT INTO {c}.t (id, n) VALUES (2, named_struct('a', 'xyz'))",
        "INSERT INTO {c}.t (id, ar) VALUES (2, array('xyz'))",
        "INSERT INTO {c}.t (id, w) VALUES (2, 'xyz')",
        "UPDATE {c}.t SET v = 'abcdef'",
        "MERGE INTO {c}.t t USING (SELECT 1 AS id) s ON s.id = t.id WHEN MATCHED THEN UPDATE SET v = 'abcdef'",
        "INSERT INTO {c}.u VALUES ('a', 'abcdef')",
    ):
        with pytest.raises(Exception, match="EXCEED_LIMIT_LENGTH"):
            sql(statement)
    assert sql("SELECT id, v, w FROM {c}.t") == [(1, "abcde", None)] and sql(
        "SELECT v FROM {c}.u"
    ) == [("abcde",)]
    assert "v VARCHAR(5)" in sql("SHOW CREATE TABLE {c}.t")[0][0]


@pytest.mark.long
def test_lengths_of_text_are_enforced_by_writes_that_know_no_catalog(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT, c CHAR(3), v VARCHAR(3), ar ARRAY<VARCHAR(2)>)")
    table = db.open_table("t")
    frame = spark.createDataFrame(
        [(1, "a", "äöü", ["xy"])], "id bigint, c string, v string, ar array<string>"
    )
    frame.write.format("lance").mode("append").save(table.uri)
    table.add([{"id": 2, "c": "b"}])
    table.merge_insert("id").when_not_matched_insert_all().execute(
        pa.table({"id": [3], "c": ["c"], "v": ["x"], "ar": [["x"]]})
    )
    stored = [(1, "a  ", "äöü"), (2, "b  ", None), (3, "c  ", "x")]
    assert sql("SELECT id, c, v FROM {c}.t WHERE length(c) = 3 ORDER BY id") == stored
    assert table.to_arrow(["c"])["c"].to_pylist() == [c for _, c, _ in stored]
    version = table.version
    addresses = spark.read.format("lance").option("with_row_address", True).load(table.uri)
    for write in (
        lambda: frame.selectExpr("id", "'abcd' AS c").write.format("lance").mode("append").save(table.uri),
        lambda: frame.selectExpr("id", "array('abc') AS ar").write.format("lance").mode("append").save(table.uri),
        lambda: addresses.selectExpr("_rowaddr", "'abcd' AS v")
        .write.format("lance").mode("append").option("mode", "backfill").save(table.uri),
        lambda: table.add([{"id": 4, "v": "abcd"}]),
        lambda: table.merge_insert("id").when_matched_update_all().execute(
            pa.table({"id": [3], "c": ["c"], "v": ["abcd"], "ar": [["x"]]})
        ),
        lambda: table.update("id = 1", {"v": "abcd"}),
        lambda: table.update("id = 1", values_sql={"v": "'abcd'"}),
        lambda: table.load_columns(pa.table({"id": [1], "v": ["abcd"]}), "id", ["v"]),
    ):  # fmt: skip
        with pytest.raises(Exception, match=r"char\([23]\)"):
            write()
    assert db.open_table("t").version == version


def test_collations_are_refused(sql: Sql) -> None:
    sql("CREATE TABLE {c}.t (s STRING)")
    for statement in (
        "CREATE TABLE {c}.u (s STRING COLLATE UTF8_LCASE)",
        "CREATE TABLE {c}.u (s STRUCT<a: ARRAY<STRING COLLATE UNICODE_CI>>)",
        "CREATE TABLE {c}.u AS SELECT 'a' COLLATE UTF8_LCASE AS s",
        "CREATE OR REPLACE TABLE {c}.t (s STRING COLLATE UTF8_LCASE)",
        "ALTER TABLE {c}.t ADD COLUMN u STRING COLLATE UTF8_LCASE",
    ):
        with pytest.raises(AnalysisException, match="keeps no collation"):
            sql(statement)
    assert sql("SHOW TABLES IN {c}") == [("", "t", False)]


def test_column_options_do_what_they_say(sql: Sql, db: Connection) -> None:
    sql(
        "CREATE TABLE {c}.t (h ARRAY<FLOAT>, f FLOAT, l STRING, p STRING) TBLPROPERTIES ('team' = 'us', "
        "'h.arrow.fixed-size-list.size' = '2', 'h.arrow.float16' = 'true', 'f.arrow.float16' = 'true', "
        "'l.arrow.large_var_char' = 'true', 'p.lance.compression' = 'zstd', 'p.lance.compression-level' = '3', "
        "'file_format_version' = '2.1')"
    )
    sql("INSERT INTO {c}.t VALUES (array(1f, 2f), 0.5f, 'a', 'b')")
    dataset = db.open_table("t").to_lance()
    kinds = [field.type for field in dataset.schema]
    assert kinds == [pa.list_(pa.float16(), 2), pa.float16(), pa.large_string(), pa.string()]
    assert dataset.schema.field("p").metadata == {
        b"lance-encoding:compression": b"zstd",
        b"lance-encoding:compression-level": b"3",
    }
    assert dataset.data_storage_version == "2.1" and dataset.config()["team"] == "us"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE {c}.u (v ARRAY<FLOAT>) TBLPROPERTIES ('v.arrow.fixed-size-list.sise' = '2')",
        "CREATE TABLE {c}.u (v ARRAY<FLOAT>) TBLPROPERTIES ('v.lance.structural' = 'x')",
        "CREATE TABLE {c}.u (v INT) TBLPROPERTIES ('data_storage_versoin' = '2.1')",
        "CREATE TABLE {c}.u (v INT) OPTIONS ('nonsense' = '2')",
        "CREATE TABLE {c}.u (v INT) TBLPROPERTIES ('v.arrow.float16' = 'true')",
        "CREATE TABLE {c}.u (v FLOAT) TBLPROPERTIES ('v.arrow.float16' = 'no')",
        "ALTER TABLE {c}.t SET TBLPROPERTIES ('data_storage_version' = '2.0')",
        "ALTER TABLE {c}.t SET TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2')",
        "ALTER TABLE {c}.t UNSET TBLPROPERTIES ('rows')",
    ],
)
def test_a_property_that_does_nothing_is_refused(sql: Sql, db: Connection, statement: str) -> None:
    db.create_table("t", pa.table({"v": [1]}))
    with pytest.raises(AnalysisException, match="OptionError"):
        sql(statement)
    assert db.table_names() == ["t"] and db.open_table("t").version == 1
