"""A folder of Lance tables as a catalog: the table API sees the tables of SQL, and SQL sees the tables of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, FloatType, IntegerType, MapType, StructField, StructType

import lance_spark
from lance_spark import Connection, OptionError
from tests.lance_spark.sql.conftest import NAME, Sql

pytestmark = [pytest.mark.classic, pytest.mark.sample(1, tests=5)]


def test_a_table_is_made_as_it_is_declared(sql: Sql, db: Connection) -> None:
    sql(
        "CREATE TABLE {c}.t (id BIGINT NOT NULL COMMENT 'the key', name STRING, v ARRAY<FLOAT>, b BINARY) COMMENT 'ours' "
        "TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2', 'b.lance.encoding' = 'blob', 'team' = 'x', "
        "'data_storage_version' = '2.1')"
    )
    assert sql("SELECT id, name, v FROM {c}.t") == [] and sql("SELECT count(*) FROM {c}.t") == [
        (0,)
    ]
    dataset = db.open_table("t").to_lance()
    assert (
        dataset.schema.field("v").type == pa.list_(pa.float32(), 2)
        and not dataset.schema.field("id").nullable
    )
    assert (dataset.data_storage_version, dataset.has_stable_row_ids) == ("2.1", True)
    assert sql("DESCRIBE {c}.t")[0] == ("id", "bigint", "the key")
    properties = dict(sql("SHOW TBLPROPERTIES {c}.t"))
    assert (properties["team"], properties["current-version"], properties["rows"]) == (
        "x",
        str(dataset.version),
        "0",
    )
    # The listener of OpenLineage reads these.
    assert properties["openlineage.dataset.namespace"] == "file"
    assert properties["openlineage.dataset.name"] == dataset.uri
    extended = {row[0]: row[1] for row in sql("DESCRIBE EXTENDED {c}.t")}
    assert (
        extended["Provider"] == "lance"
        and extended["Location"] == dataset.uri
        and extended["Comment"] == "ours"
    )
    assert "name STRING" in sql("SHOW CREATE TABLE {c}.t")[0][0]
    assert sql("SHOW COLUMNS IN {c}.t") == [("id",), ("name",), ("v",), ("b",)]


def test_rows_are_inserted_by_place_and_by_name(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT NOT NULL, name STRING)")
    sql("INSERT INTO {c}.t VALUES (1, 'a')")
    sql("INSERT INTO {c}.t (name, id) VALUES ('b', 2)")
    sql("INSERT INTO {c}.t BY NAME SELECT 'c' AS name, 3L AS id")
    with pytest.raises(SparkRuntimeException, match="NOT_NULL_ASSERT_VIOLATION"):
        sql("INSERT INTO {c}.t VALUES (NULL, 'z')")
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]
    sql("INSERT OVERWRITE {c}.t SELECT id + 10, name FROM {c}.t WHERE id > 1")
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(12, "b"), (13, "c")]
    sql("INSERT INTO {c}.t REPLACE WHERE id = 12 SELECT 20L, 'r'")
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(13, "c"), (20, "r")]
    evolving = (
        "INSERT WITH SCHEMA EVOLUTION INTO {c}.t SELECT 30L AS id, 'e' AS name, 1.5D AS extra"
    )
    if spark.version >= "4.2":
        sql(evolving)
        assert sql("SELECT extra, id FROM {c}.t ORDER BY id") == [(None, 13), (None, 20), (1.5, 30)]
        merge_schema(spark, sql, db)
    else:
        with pytest.raises(ParseException):
            sql(evolving)
    sql("TRUNCATE TABLE {c}.t")
    assert db.open_table("t").count_rows() == 0


def merge_schema(spark: SparkSession, sql: Sql, db: Connection) -> None:
    """The option of a DataFrame acts like the statement, but only on Lance tables, and only if the option is true."""
    new, name = (
        spark.newSession(),
        "evolving",
    )  # the catalog of the other was set after its first query
    lance_spark.catalog(new, name, db.uri)
    rows = new.sql("SELECT 40L AS id, 'f' AS name, 2.5D AS extra, 'g' AS more")
    with pytest.raises(AnalysisException, match=r"TOO_MANY|EXTRA_COLUMNS|EXTRA|ARITY"):
        rows.writeTo(f"{name}.t").option("mergeSchema", "false").append()
    rows.writeTo(f"{name}.t").option("mergeSchema", "true").append()
    rows.withColumn("last", sf.lit(1)).write.option("mergeschema", True).insertInto(f"{name}.t")
    rows.withColumn("saved", sf.lit(2)).write.mode("append").option(
        "mergeSchema", True
    ).saveAsTable(f"{name}.t")
    evolved_rows = sql(
        "SELECT more, last, saved FROM {c}.t WHERE id >= 30 ORDER BY id, last, saved"
    )
    assert evolved_rows == [(None, None, None), ("g", None, None), ("g", None, 2), ("g", 1, None)]


@pytest.mark.parametrize("mode", [pytest.param("static", marks=pytest.mark.long), "dynamic"])
def test_an_overwrite_replaces_all_rows_whatever_the_mode_for_partitions(
    sql: Sql, db: Connection, spark: SparkSession, mode: str
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT NOT NULL, s STRING) TBLPROPERTIES ('team' = 'x')")
    sql("INSERT INTO {c}.t SELECT id, 'a' FROM range(4)")
    table, name = db.open_table("t"), f"{NAME}.t"
    with overwrites(spark, mode):
        sql("INSERT OVERWRITE {c}.t SELECT id + 10, s FROM {c}.t WHERE id > 1")
        assert sql("SELECT * FROM {c}.t ORDER BY id") == [(12, "a"), (13, "a")]
        sql("INSERT OVERWRITE {c}.t BY NAME SELECT 'b' AS s, id FROM {c}.t WHERE id = 12")
        assert sql("SELECT * FROM {c}.t") == [(12, "b")]
        for failing in ("SELECT id div 0, s FROM {c}.t", "SELECT CAST(NULL AS BIGINT), 'c'"):
            with pytest.raises(Exception, match=r"DIVIDE_BY_ZERO|NOT_NULL_ASSERT_VIOLATION"):
                sql(f"INSERT OVERWRITE {{c}}.t {failing}")
        sql("INSERT INTO {c}.t REPLACE WHERE id = 12 SELECT 20L, 'r'")
        spark.table(name).selectExpr("id + 1", "'i'").write.insertInto(name, overwrite=True)
        assert sql("SELECT * FROM {c}.t") == [(21, "i")]
        spark.table(name).selectExpr("'p' AS s", "id + 1 AS id").writeTo(name).overwritePartitions()
        assert sql("SELECT * FROM {c}.t") == [(22, "p")]
        sql("INSERT OVERWRITE {c}.t SELECT * FROM {c}.t WHERE id = 0")
    counts = [
        sql(f"SELECT count(*) FROM {{c}}.t VERSION AS OF {v}")
        for v in range(table.version - 6, table.version + 1)
    ]
    assert counts == [[(n,)] for n in (4, 2, 1, 1, 1, 1, 0)]
    assert not table.to_lance().schema.field("id").nullable and ("team", "x") in sql(
        "SHOW TBLPROPERTIES {c}.t"
    )


@contextmanager
def overwrites(spark: SparkSession, mode: str) -> Iterator[None]:
    """Sets the behaviour of INSERT OVERWRITE for partitions without new rows."""
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


@pytest.mark.parametrize(
    "most",
    [pytest.param(None, marks=pytest.mark.long, id="all"), pytest.param(4, id="the first doors")],
)
def test_not_null_of_fields_of_structs_holds_whatever_writes(
    sql: Sql, db: Connection, spark: SparkSession, most: int | None
) -> None:
    sql(
        "CREATE TABLE {c}.t (id BIGINT, s STRUCT<x: INT NOT NULL, y: STRING>, a ARRAY<STRUCT<z: INT NOT NULL>>)"
    )
    sql(
        "INSERT INTO {c}.t VALUES (1, named_struct('x', 1, 'y', NULL), array(named_struct('z', 1), NULL)), (2, NULL, NULL)"
    )
    sql("ALTER TABLE {c}.t ADD COLUMN more STRUCT<inner: STRUCT<w: INT NOT NULL> NOT NULL>")
    sql("INSERT INTO {c}.t (id, more) VALUES (3, named_struct('inner', named_struct('w', 1)))")
    table = db.open_table("t")
    lance_schema = table.to_lance().schema
    assert lance_schema.field("s").type == pa.struct(
        [pa.field("x", pa.int32(), nullable=False), ("y", pa.string())]
    )
    assert not lance_schema.field("a").type.value_field.type.field("z").nullable
    inner = lance_schema.field("more").type.field("inner")
    assert not inner.nullable and not inner.type.field("w").nullable
    assert "s STRUCT<x: INT NOT NULL, y: STRING" in sql("SHOW CREATE TABLE {c}.t")[0][0]
    version = table.version
    bad = spark.sql("SELECT 1L AS id, named_struct('x', CAST(NULL AS INT), 'y', 'y') AS s")
    bad.createOrReplaceTempView("bad")
    addressed = (
        spark.read.format("lance")
        .option("with_row_address", True)
        .load(table.uri)
        .select("_rowaddr", "id")
    )
    doors: dict[str, Callable[[], object]] = {
        "insert": lambda: sql("INSERT INTO {c}.t (id, s) SELECT * FROM bad"),
        "update": lambda: sql("UPDATE {c}.t SET s.x = NULL WHERE id = 1"),
        "backfill": lambda: addressed.join(bad, "id").select("_rowaddr", "s").write.format("lance").mode("append").option("mode", "backfill").save(table.uri),
        "update of the table API": lambda: table.update("id = 1", {"s": {"x": None, "y": "y"}}),
        "insert elements": lambda: sql("INSERT INTO {c}.t (id, a) VALUES (1, array(named_struct('z', CAST(NULL AS INT))))"),
        "insert deep": lambda: sql("INSERT INTO {c}.t (id, more) SELECT 1, named_struct('inner', if(id > 5, named_struct('w', 1), NULL)) FROM bad"),
        "overwrite": lambda: sql("INSERT OVERWRITE {c}.t (id, s) SELECT * FROM bad"),
        "replace where": lambda: sql("INSERT INTO {c}.t REPLACE WHERE id = 1 SELECT id, s, NULL, NULL FROM bad"),
        "update by a query": lambda: sql("UPDATE {c}.t SET s = (SELECT s FROM bad) WHERE id = 1"),
        "merge": lambda: sql("MERGE INTO {c}.t USING bad ON t.id = bad.id WHEN MATCHED THEN UPDATE SET s = bad.s"),
        "merge of new rows": lambda: sql(
            "MERGE INTO {c}.t USING bad ON t.id = bad.id + 9 WHEN NOT MATCHED THEN INSERT (id, s) VALUES (bad.id, bad.s)"
        ),
        "append": lambda: bad.write.format("lance").mode("append").save(table.uri),
        "add": lambda: table.add([{"id": 9, "s": {"x": None, "y": "y"}}]),
        "expression of the table API": lambda: table.update("id = 1", values_sql={"s": "named_struct('x', CAST(NULL AS INT), 'y', 'y')"}),
        "merge_insert": lambda: table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
            bad
        ),
    }  # fmt: skip
    for door, write in list(doors.items())[:most]:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's or ours
            write()
        assert "NULL" in str(failed.value).upper(), (door, str(failed.value))
        assert (door, table.version) == (door, version)
    assert sql("SELECT id, s, a, more.inner.w FROM {c}.t ORDER BY id") == [
        (1, (1, None), [(1,), None], None),
        (2, None, None, None),
        (3, None, None, 1),
    ]
    sql("UPDATE {c}.t SET s.x = 7, more = NULL WHERE id IN (1, 3)")
    sql("ALTER TABLE {c}.t ALTER COLUMN s.x DROP NOT NULL")
    sql("UPDATE {c}.t SET s = (SELECT s FROM bad) WHERE id = 1")
    assert sql("SELECT s FROM {c}.t WHERE id = 1") == [((None, "y"),)]
    sql("CREATE OR REPLACE TABLE {c}.t (s STRUCT<x: INT NOT NULL>)")
    assert not table.to_lance().schema.field("s").type.field("x").nullable


def test_columns_of_a_query_are_nullable_at_every_depth(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    """A query without NULLs declares no column NOT NULL."""
    query = "SELECT 1L AS id, array(1) AS a, named_struct('x', 1) AS s"
    assert not spark.sql(query).schema["a"].dataType.containsNull  # type: ignore[attr-defined]
    sql(f"CREATE TABLE {{c}}.t AS {query}")
    if spark.version >= "4.2":
        sql(f"INSERT WITH SCHEMA EVOLUTION INTO {{c}}.t SELECT *, a AS a2, s AS s2 FROM ({query})")
        sql("INSERT INTO {c}.t (a2, s2) VALUES (array(NULL), named_struct('x', NULL))")
    sql("INSERT INTO {c}.t (a, s) VALUES (array(NULL), named_struct('x', NULL))")
    assert sql("SELECT count(*) FROM {c}.t WHERE a[0] IS NULL AND s.x IS NULL AND id IS NULL") != [
        (0,)
    ]
    sql(f"CREATE OR REPLACE TABLE {{c}}.t AS {query}")
    sql("INSERT INTO {c}.t (a, s) VALUES (array(NULL), named_struct('x', NULL))")


def test_not_null_of_elements_and_of_values_of_maps(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    """SQL has no syntax for this, but the schema of a program has."""
    schema = StructType(
        [
            StructField("a", ArrayType(IntegerType(), False)),
            StructField("m", MapType(IntegerType(), IntegerType(), False)),
            StructField("v", ArrayType(FloatType(), False)),
        ]
    )
    options = {"v.arrow.fixed-size-list.size": "2", "data_storage_version": "2.2"}
    spark.catalog.createTable(f"{NAME}.t", source="lance", schema=schema, **options)
    sql("INSERT INTO {c}.t VALUES (array(1), map(7, 1), array(1, 2)), (NULL, NULL, NULL)")
    for wrong in ("array(CAST(NULL AS INT)), NULL, NULL", "NULL, map(7, CAST(NULL AS INT)), NULL"):
        with pytest.raises(Exception, match="NULL"):
            sql(f"INSERT INTO {{c}}.t SELECT {wrong}")
    sql(
        "INSERT INTO {c}.t VALUES (array(3), map(), array(NULL, 2))"
    )  # vectors have no NOT NULL for their elements
    assert sql("SELECT count(*), count(a), count(m), count(v) FROM {c}.t") == [(3, 2, 2, 2)]


def test_the_output_of_show_create_table_creates_the_table_again(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql(
        "CREATE TABLE {c}.t (id BIGINT NOT NULL COMMENT 'it''s the key', v ARRAY<FLOAT> COMMENT 'vector', b BINARY, "
        "s STRUCT<x: INT NOT NULL, e: ARRAY<DOUBLE>>, a ARRAY<STRUCT<z: STRING>>, d DECIMAL(9, 2), "
        "i INTERVAL DAY TO SECOND, j VARIANT, `odd name` STRING, h ARRAY<FLOAT>, l STRING, p STRING) COMMENT 'our \"table\"' TBLPROPERTIES ("
        "'v.arrow.fixed-size-list.size' = '2', 's.e.arrow.fixed-size-list.size' = '3', 'b.lance.encoding' = 'blob', "
        "'team' = 'it''s us', 'data_storage_version' = '2.1', 'h.arrow.fixed-size-list.size' = '2', "
        "'h.arrow.float16' = 'true', 'l.arrow.large_var_char' = 'true', 'p.lance.compression' = 'zstd', "
        "'p.lance.compression-level' = '3', "
        "'enable_stable_row_ids' = 'false')"
    )
    table = db.open_table("t")
    original = (
        table.to_lance().schema,
        table.to_lance().data_storage_version,
        table.to_lance().has_stable_row_ids,
    )
    table.tags.create("kept", 1)
    sql("INSERT INTO {c}.t (id, v, a) VALUES (1, array(1, 2), array(named_struct('z', 'q')))")
    sql("CREATE INDEX by_id ON {c}.t USING BTREE (id)")
    [(text,)] = sql("SHOW CREATE TABLE {c}.t")
    for informational in (
        "LOCATION",
        "OPTIONS",
        "current-version",
        "'rows'",
        "by_id",
        "fragments",
        "owner",
    ):
        assert informational not in text, text
    described = sql("DESCRIBE {c}.t")
    if spark.version >= "4.2":
        sql("CREATE TABLE {c}.alike LIKE {c}.t TBLPROPERTIES ('team' = 'them')")
        alike = db.open_table("alike").to_lance()
        assert (alike.schema, alike.data_storage_version, alike.has_stable_row_ids) == original
        assert alike.schema.equals(original[0], check_metadata=True) and alike.count_rows() == 0
        [(same,)] = sql("SHOW CREATE TABLE {c}.alike")
        assert same == text.replace(".t (", ".alike (").replace("it\\'s us", "them")
    else:
        with pytest.raises(AnalysisException, match="NOT_FOUND"):
            sql("CREATE TABLE {c}.alike LIKE {c}.t")
        assert db.table_names() == ["t"]
    sql("DROP TABLE {c}.t")
    sql(text)
    assert sql("SHOW CREATE TABLE {c}.t") == [(text,)] and sql("DESCRIBE {c}.t") == described
    again = db.open_table("t").to_lance()
    assert (again.schema, again.data_storage_version, again.has_stable_row_ids) == original
    assert again.schema.equals(original[0], check_metadata=True)
    properties = dict(sql("SHOW TBLPROPERTIES {c}.t"))
    assert (properties["team"], properties["rows"]) == ("it's us", "0")
    assert ("Comment", 'our "table"') in [row[:2] for row in sql("DESCRIBE EXTENDED {c}.t")]


def test_show_create_table_of_tables_that_others_made(sql: Sql, db: Connection) -> None:
    """Types without a name in Spark appear as the Spark types that hold them."""
    wide = pa.list_(pa.list_(pa.float32(), 2), 3)
    fields = [
        pa.field("n", pa.uint32()),
        pa.field("h", pa.list_(pa.float16(), 2)),
        pa.field("w", wide),
    ]
    lance.write_dataset(pa.schema(fields).empty_table(), f"{db.uri}/t.lance")
    [(text,)] = sql("SHOW CREATE TABLE {c}.t")
    sql("DROP TABLE {c}.t")
    sql(text)
    again = db.open_table("t").to_lance().schema
    assert again.types == [pa.int64(), pa.list_(pa.float16(), 2), pa.list_(pa.list_(pa.float32()))]


def test_a_query_makes_and_replaces_a_table_as_versions_of_it(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t TBLPROPERTIES ('team' = 'x') AS SELECT id, 'a' AS s FROM range(5)")
    table = db.open_table("t")
    assert table.count_rows() == 5 and ("team", "x") in sql("SHOW TBLPROPERTIES {c}.t")
    first = table.version
    sql("CREATE OR REPLACE TABLE {c}.t AS SELECT id * 2 AS twice FROM {c}.t WHERE id > 2")
    assert sql("SELECT * FROM {c}.t ORDER BY 1") == [(6,), (8,)]
    assert sql(f"SELECT count(*), max(s) FROM {{c}}.t VERSION AS OF {first}") == [(5, "a")]
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        sql("CREATE OR REPLACE TABLE {c}.t AS SELECT twice / 0 AS x FROM {c}.t")
    assert sql("SELECT sum(twice) FROM {c}.t") == [(14,)]
    sql("REPLACE TABLE {c}.t (z INT)")
    assert sql("SELECT * FROM {c}.t") == [] and table.to_lance().schema.names == ["z"]
    with pytest.raises(AnalysisException, match="already exists"):
        sql("CREATE TABLE {c}.t AS SELECT 1 AS x")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        sql("CREATE TABLE {c}.n AS SELECT id / 0 AS x FROM range(3)")
    assert db.table_names() == ["t"]


@pytest.mark.sample(1)
def test_columns_are_altered_on_the_table(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, cast(id AS int) AS n, id AS gone FROM range(3)")
    sql("ALTER TABLE {c}.t ADD COLUMNS (a INT COMMENT 'new', s STRUCT<x: INT, y: STRING>)")
    sql("ALTER TABLE {c}.t RENAME COLUMN a TO b")
    sql("ALTER TABLE {c}.t ALTER COLUMN n TYPE BIGINT")
    sql("ALTER TABLE {c}.t ALTER COLUMN n COMMENT 'wide'")
    sql("ALTER TABLE {c}.t DROP COLUMN gone")
    assert sql("DESCRIBE {c}.t")[:4] == [
        ("id", "bigint", None),
        ("n", "bigint", "wide"),
        ("b", "int", "new"),
        ("s", "struct<x:int,y:string>", None),
    ]
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(i, i, None, None) for i in range(3)]
    version = db.open_table("t").version
    for refused, reason in {
        "ADD COLUMN q INT FIRST": "the column comes last",
        "ADD COLUMN q INT NOT NULL": "existing rows are NULL",
        "ADD COLUMN s.z INT": "Make another column",
        "ALTER COLUMN n FIRST": "Keep the columns in their order",
        "SET TBLPROPERTIES ('rows' = '7')": "says what the table is",
    }.items():
        with pytest.raises(AnalysisException, match=reason):
            sql(f"ALTER TABLE {{c}}.t {refused}")
    assert db.open_table("t").version == version
    sql("ALTER TABLE {c}.t SET TBLPROPERTIES ('k' = 'v', 'l' = 'w')")
    sql("ALTER TABLE {c}.t UNSET TBLPROPERTIES ('l')")
    assert ("k", "v") in sql("SHOW TBLPROPERTIES {c}.t") and "l" not in dict(
        sql("SHOW TBLPROPERTIES {c}.t")
    )


def test_names(sql: Sql, db: Connection, tmp_path: Path) -> None:
    sql("CREATE NAMESPACE {c}.db")
    sql("CREATE TABLE {c}.db.t AS SELECT 1 AS x")
    assert sql("SHOW NAMESPACES IN {c}") == [("db",)] and sql("SHOW TABLES IN {c}.db") == [
        ("db", "t", False)
    ]
    assert lance_spark.connect(f"{tmp_path}/db").table_names() == ["t"]
    sql("ALTER TABLE {c}.db.t RENAME TO db.u")
    assert sql("SELECT * FROM {c}.db.u") == [(1,)]
    with pytest.raises(AnalysisException, match=r"cannot drop|SCHEMA_NOT_EMPTY|not empty"):
        sql("DROP NAMESPACE {c}.db")
    sql("CREATE NAMESPACE {c}.db.inner")
    foreign_file = tmp_path / "db" / "inner" / "photo.jpg"
    foreign_file.touch()
    for refused in ("{c}.db.inner", "{c}.db.inner CASCADE", "{c}.db CASCADE"):
        with pytest.raises(AnalysisException, match=r"photo\.jpg\. Nothing was dropped"):
            sql(f"DROP NAMESPACE {refused}")
    assert sql("SELECT * FROM {c}.db.u") == [(1,)]
    foreign_file.unlink()
    sql("DROP NAMESPACE {c}.db CASCADE")
    assert not (tmp_path / "db").exists()
    with pytest.raises(Exception, match="The folder of a catalog cannot be dropped"):
        sql("DROP NAMESPACE {c} CASCADE")
    for statement in (
        "SELECT * FROM {c}.nix",
        "DROP TABLE {c}.nix",
        "SHOW TABLES IN {c}.nix",
        "SELECT * FROM {c}.a.b",
    ):
        if statement.startswith("SHOW"):
            assert sql(statement) == []
        else:
            with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
                sql(statement)
    sql("DROP TABLE IF EXISTS {c}.nix")
    db.create_table("api", [{"x": 1}])
    assert sql("SELECT x FROM {c}.api") == [(1,)] and sql(
        f"SELECT x FROM {{c}}.`{tmp_path}/api.lance`"
    ) == [(1,)]
    sql(f"INSERT INTO {{c}}.`{tmp_path}/api.lance` VALUES (2)")
    assert db.open_table("api").count_rows() == 2
    sql("DROP TABLE {c}.api")
    assert db.table_names() == []
    sql(f"CREATE TABLE {{c}}.`{tmp_path}/elsewhere/plain` AS SELECT 1 AS x")
    sql(f"DROP TABLE {{c}}.`{tmp_path}/elsewhere/plain`")
    assert not (tmp_path / "elsewhere" / "plain").exists()
    with pytest.raises(AnalysisException, match=r"OptionError.*in one line"):
        sql("CREATE TABLE {c}.`a\nb` (x INT)")


def test_unsupported_table_options_are_refused_by_name(sql: Sql, db: Connection) -> None:
    for statement, reason in {
        "CREATE TABLE {c}.p (x INT) PARTITIONED BY (x)": "no partitions or buckets",
        "CREATE TABLE {c}.p (x INT) USING parquet": "are Lance tables",
        "CREATE TABLE {c}.p (x INT) LOCATION '/tmp/elsewhere'": "tables of this catalog are in",
        "CREATE TABLE {c}.nix.p (x INT)": "SCHEMA_NOT_FOUND|no namespace",
        "CREATE TABLE {c}.p (x INT) TBLPROPERTIES ('x.arrow.fixed-size-list.size' = '2')": "an array column",
        "CREATE NAMESPACE {c}.n COMMENT 'c'": "has no properties",
    }.items():
        with pytest.raises(Exception, match=reason):
            sql(statement)
    assert db.table_names() == []


def test_a_statement_sees_the_latest_version_and_keeps_it(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(4)")
    table = db.open_table("t")
    table.tags.create("one", 1)
    sql("INSERT INTO {c}.t SELECT id + 100 FROM range(3)")
    lance.dataset(table.uri).add_columns({"twice": "id * 2"})
    assert sql("SELECT count(*), sum(twice) FROM {c}.t") == [(7, 618)]
    for version in ("1", "'one'", "'main:1'"):
        assert sql(f"SELECT count(*) FROM {{c}}.t VERSION AS OF {version}") == [(4,)]
    joined = "SELECT count(*) FROM {c}.t VERSION AS OF 1 a JOIN {c}.t b ON a.id = b.id"
    assert sql(joined) == [(4,)]
    moment = lance.dataset(table.uri).versions()[0]["timestamp"].astimezone()
    stamp = moment.isoformat(timespec="microseconds")
    assert sql(f"SELECT count(*) FROM {{c}}.t TIMESTAMP AS OF timestamp'{stamp}'") == [(4,)]
    name = NAME
    for option, value in {
        "version": "one",
        "versionAsOf": "1",
        "timestamp": stamp,
        "timestampAsOf": stamp,
    }.items():
        read = spark.read.option(option, value)
        if spark.version < "4.3" and not option.endswith("AsOf"):
            with pytest.raises(
                Exception, match=f"the option `{option}` of a table of a catalog needs Spark 4.3"
            ):
                read.table(f"{name}.t").count()
        else:
            assert read.table(f"{name}.t").count() == 4
    with pytest.raises(AnalysisException, match="Version 99 does not exist"):
        sql("SELECT * FROM {c}.t VERSION AS OF 99")
    rows = sql(
        "SELECT id, _rowid, _rowaddr, _row_created_at_version FROM {c}.t WHERE id > 100 ORDER BY id"
    )
    assert [row[0] for row in rows] == [101, 102] and {row[3] for row in rows} == {2}
    frame = spark.table(f"{name}.t")
    assert "twice" in frame.columns and "_rowid" not in frame.columns


def test_scans_are_planned_as_those_of_load(sql: Sql) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id % 3 AS k, 'x' AS s FROM range(100)")
    plan = sql("EXPLAIN SELECT id FROM {c}.t WHERE k = 1 AND id > 5")[0][0]
    assert "columns: [id, k]" in plan and "`k` = 1" in plan
    assert "LocalTableScan" in sql("EXPLAIN SELECT count(*) FROM {c}.t")[0][0]
    assert sql("SELECT count(*) FROM {c}.t a JOIN {c}.t b ON a.id = b.id WHERE a.k = 1") == [(33,)]


def test_aggregates_of_other_columns_of_one_table_are_merged_as_for_parquet(
    sql: Sql, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sql(
        "CREATE TABLE {c}.t AS SELECT * FROM VALUES (1, 5, 'x'), (2, 6, NULL), (3, 7, 'z') AS s(a, b, c)"
    )
    path = tmp_path_factory.mktemp("parquet") / "t"
    spark.table(f"{NAME}.t").coalesce(1).write.parquet(str(path))

    def run(query: str) -> tuple[list[Row], int]:
        frame = spark.sql(query)
        rows = frame.collect()
        return rows, str(frame._jdf.queryExecution().executedPlan().toString()).count(
            "ReusedSubquery"
        )

    for query in (
        "SELECT sum(a) FROM {t} UNION ALL SELECT sum(b) FROM {t}",
        "SELECT (SELECT collect_list(a) FROM {t} WHERE b > 5), (SELECT collect_list(b) FROM {t} WHERE b > 5), b FROM {t}",
        "SELECT (SELECT max(a) FROM {t} WHERE b > 5), (SELECT count(c) FROM {t} WHERE b > 5), (SELECT max(b) FROM {t})",
    ):
        assert run(query.format(t=f"{NAME}.t")) == run(query.format(t=f"parquet.`{path}`")), query


def test_aggregates_of_two_versions_of_a_table_are_not_merged(sql: Sql) -> None:
    sql("CREATE TABLE {c}.t AS SELECT 1 AS a, 2 AS b")
    sql("INSERT INTO {c}.t VALUES (10, 20)")
    assert sql("SELECT (SELECT sum(a) FROM {c}.t VERSION AS OF 1), (SELECT sum(b) FROM {c}.t)") == [
        (1, 22)
    ]


def test_blobs_are_inserted_as_bytes_and_read_as_either(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT, b BINARY) TBLPROPERTIES ('b.lance.encoding' = 'blob')")
    sql("INSERT INTO {c}.t VALUES (1, X'0102'), (2, NULL)")
    sql("INSERT INTO {c}.t (b, id) VALUES (X'', 3)")
    sql("UPDATE {c}.t SET id = id * 10")
    assert sql("SELECT id, b.size FROM {c}.t ORDER BY id") == [(10, 2), (20, None), (30, 0)]
    assert db.open_table("t").to_arrow(blob_handling="bytes")["b"].to_pylist() == [
        b"\x01\x02",
        None,
        b"",
    ]
    overwriting = (
        "INSERT OVERWRITE {c}.t SELECT * FROM {c}.t WITH ('blob_handling' = 'bytes') WHERE id < 30"
    )
    if spark.version < "4.3":
        with pytest.raises(
            PySparkException,
            match=r"the option `blob_handling` of a table of a catalog needs Spark 4\.3",
        ):
            sql(overwriting)
        return
    sql(overwriting)
    rows = sql(
        "SELECT id, b FROM {c}.t WITH ('blob_handling' = 'bytes') WHERE id < 20 OR b IS NULL ORDER BY id"
    )
    assert [(number, data and bytes(data)) for number, data in rows] == [
        (10, b"\x01\x02"),
        (20, None),
    ]


def test_reads_and_writes_without_the_rule(sql: Sql, spark: SparkSession) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, struct(id AS x, 's' AS y) AS st, 'x' AS s FROM range(4)")
    expected = sql("SELECT st.x, _rowid FROM {c}.t WHERE id > 1 ORDER BY id")
    insert, by_size = (
        "EXPLAIN INSERT INTO {c}.t SELECT * FROM {c}.t",
        "AppendData lance.t (Python), batches end by the sizes",
    )
    assert by_size in sql(insert)[0][0]
    lance_spark.disable_pushdown(spark)
    try:
        assert "AppendData lance.t" in (plan := sql(insert)[0][0]) and by_size not in plan
        assert sql("SELECT st.x, _rowid FROM {c}.t WHERE id > 1 ORDER BY id") == expected
        assert sql("SELECT count(*) FROM {c}.t") == [(4,)]
        with pytest.raises(Exception, match=r"needs lance_spark\.enable_pushdown"):
            sql("UPDATE {c}.t SET s = 'y'")
    finally:
        lance_spark.enable_pushdown(spark)
    assert sql("SELECT max(s) FROM {c}.t") == [("x",)]


@pytest.mark.sample(1)
def test_features_that_lance_lacks_are_refused_before_a_change(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, 'x' AS s FROM range(4)")
    for statement in (
        "REPLACE COLUMNS (id BIGINT)",
        "SET LOCATION '/elsewhere'",
        "RENAME TO {c}.elsewhere.t",
    ):
        with pytest.raises(Exception, match=r"(?i)nothing was changed"):
            sql(f"ALTER TABLE {{c}}.t {statement}")
    assert db.open_table("t").version == 1
    sql("ALTER TABLE {c}.t RENAME TO {c}.u")
    sql("ALTER TABLE {c}.u RENAME TO t")
    assert sql("SHOW TABLES IN {c}") == [("", "t", False)]
    assert sql("SELECT count(*) FROM {c}.t TIMESTAMP AS OF 4102444800000000") == [(4,)]


@pytest.mark.long
def test_statements_of_others(sql: Sql, db: Connection) -> None:
    sql(
        "CREATE TABLE {c}.t TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2') "
        "AS SELECT id, 'ein Wort' AS s, array(1F, 2F) AS v FROM range(10)"
    )
    sql("ANALYZE TABLE {c}.t COMPUTE STATISTICS")
    sql("REFRESH TABLE {c}.t")
    assert sql("CALL {c}.system.tag('t', 'first')") == [("first", 1)]
    sql("DELETE FROM {c}.t WHERE id > 3")
    assert sql("CALL {c}.system.restore(table => 't', version => 'first')") == [(3,)]
    assert sql("SELECT count(*) FROM {c}.t") == [(10,)]
    assert sql("CALL {c}.system.create_index('t', 'id')")[0][0] == "id"
    sql(
        "CREATE INDEX words ON {c}.t USING fts (s) OPTIONS (with_position = 'false', language = 'German')"
    )
    sql("CREATE INDEX IF NOT EXISTS words ON {c}.t USING fts (s)")
    sql("CREATE INDEX near ON {c}.t USING ivf_flat (v OPTIONS (num_partitions = '1'))")
    assert sql("SELECT name, type, columns FROM {c}.t.indexes ORDER BY name") == [
        ("id_idx", "BTREE", ["id"]), ("near", "IVF_FLAT", ["v"]), ("words", "FTS", ["s"]),
    ]  # fmt: skip
    sql("DROP INDEX near ON {c}.t")
    sql("DROP INDEX IF EXISTS near ON {c}.t")
    for wrong, reason in {
        "CREATE INDEX words ON {c}.t (id)": "INDEX_ALREADY_EXISTS",
        "DROP INDEX near ON {c}.t": "INDEX_NOT_FOUND",
        "CREATE INDEX i ON {c}.t (id, s)": "Make an index for each column",
        "CREATE INDEX i ON {c}.t USING ivf_flat (v) OPTIONS (stem = 'true')": "for IVF_FLAT: metric",
        "CREATE INDEX i ON {c}.t USING hash (id)": "HASH",
    }.items():
        with pytest.raises(Exception, match=reason):
            sql(wrong)
    assert "id_idx" in dict(sql("SHOW TBLPROPERTIES {c}.t"))["indexes"]
    with pytest.raises(AnalysisException, match="Call a procedure of the namespace system"):
        sql("CALL {c}.system.nix('t')")


def test_one_name_is_one_folder(spark: SparkSession, tmp_path: Path) -> None:
    lance_spark.catalog(spark, "same", str(tmp_path))
    lance_spark.catalog(spark, "same", f"{tmp_path}/")
    with pytest.raises(OptionError, match="choose another name"):
        lance_spark.catalog(spark, "same", str(tmp_path / "other"))


def test_another_session_of_the_same_jvm(sql: Sql, db: Connection, spark: SparkSession) -> None:
    """The application knows the catalog, and the catalog brings the rule."""
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(10)")
    name = NAME
    other_session = spark.newSession()
    other_session.conf.set(f"spark.sql.catalog.{name}", "lancespark.LanceCatalog")
    other_session.sql(f"DELETE FROM {name}.t WHERE id IN (SELECT max(id) FROM {name}.t)")
    assert other_session.sql(f"SELECT count(*) FROM {name}.t").first() == (9,)
    spark.sql("SELECT 1").collect()


def test_branches_are_made_read_and_dropped(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(4)")
    assert sql("CALL {c}.system.create_branch('t', 'work')") == [("work", 1)]
    assert sql("CALL {c}.system.create_branch(table => 't', name => 'old', from_ref => '1')") == [
        ("old", 1)
    ]
    work = db.open_table("t", branch="work")
    work.add([{"id": 4}])
    work.tags.create("tagged", 2)
    joined = "SELECT count(*) FROM {c}.t a RIGHT JOIN {c}.t VERSION AS OF 'work:1' b USING (id) JOIN {c}.t VERSION AS OF 'work' c"
    assert sql(joined) == [(20,)]
    rows = sql(
        "SELECT name, parent, parent_version, created_at < current_timestamp() FROM {c}.t.branches ORDER BY name"
    )
    assert rows == [("old", "main", 1, True), ("work", "main", 1, True)]
    with pytest.raises(AnalysisException, match=r"the tags tagged"):
        sql("CALL {c}.system.drop_branch('t', 'work')")
    assert sql("CALL {c}.system.drop_branch('t', 'old')") == [("old",)]
    assert list(work.branches.list()) == ["work"]


@pytest.mark.long
def test_branches_are_read_and_changed_by_their_location_and_by_an_option(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(4)")
    table = db.open_table("t")
    work = table.branches.create("work")
    work.add([{"id": 4}])
    table.tags.create("tagged", "work:2")
    table.tags.create("first", "work:1")
    for version, rows in (("work", 5), ("work:1", 4), ("tagged", 5), ("first", 4), ("main:1", 4)):
        assert sql(f"SELECT count(*) FROM {{c}}.t VERSION AS OF '{version}'") == [(rows,)]
    assert sql("SELECT * FROM {c}.t.tags ORDER BY tag") == [
        ("first", "work", 1),
        ("tagged", "work", 2),
    ]
    sql(f"UPDATE {{c}}.`{work.uri}` SET id = id + 100 WHERE id IN (SELECT max(id) FROM {{c}}.t)")
    sql(f"INSERT INTO {{c}}.`{work.uri}` VALUES (7), (8)")
    sql(f"DELETE FROM {{c}}.`{work.uri}` WHERE id % 9 = 8")
    sql(
        f"MERGE INTO {{c}}.`{work.uri}` b USING {{c}}.t t ON b.id = t.id WHEN MATCHED THEN UPDATE SET id = b.id - 50"
    )
    assert sql("SELECT id FROM {c}.t VERSION AS OF 'work' ORDER BY id") == [
        (-50,),
        (-49,),
        (-48,),
        (4,),
        (7,),
        (103,),
    ]
    spark.createDataFrame([(8,)], "id bigint").writeTo(f"{NAME}.t").option(
        "branch", "work"
    ).append()
    assert sql("SELECT count(*), count_if(id = 8) FROM {c}.t VERSION AS OF 'work'") == [(7, 1)]
    assert table.count_rows() == 4
    if spark.version >= "4.3":
        read = spark.read.option("branch", "work").table(f"{NAME}.t")
        assert (read.count(), read.where("id = 8").count()) == (7, 1)
    with pytest.raises(AnalysisException, match=r"drop_branch"):
        sql(f"DROP TABLE {{c}}.`{work.uri}`")
    assert (
        sql("SELECT sum(id) FROM {c}.t") == [(6,)] and table.version == 1 and work.count_rows() >= 6
    )


@pytest.mark.long
def test_tables_about_a_table(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, 'x' AS s FROM range(10)")
    sql("DELETE FROM {c}.t WHERE id IN (SELECT 3)")
    table = db.open_table("t")
    table.tags.create("first", 1)
    table.create_scalar_index("id")
    versions = sql("SELECT version, operation, rows FROM {c}.t.versions ORDER BY version")
    assert [(row[0], row[2]) for row in versions] == [
        (1, 10),
        (2, 9),
        (3, 9),
    ] and "delete" in versions[1][1].lower()
    assert sql("SELECT rows, version FROM {c}.t.versions ORDER BY version DESC LIMIT 2") == [
        (9, 3),
        (9, 2),
    ]
    assert sql("SELECT version FROM {c}.t.versions WHERE rows = 9 ORDER BY version LIMIT 1") == [
        (2,)
    ]
    assert sql("SELECT version FROM {c}.t.versions ORDER BY rows DESC, version LIMIT 1") == [(1,)]
    assert sql("SELECT version FROM {c}.t.versions LIMIT 5 OFFSET 1") == [(2,), (3,)]
    assert sql("SELECT count(*), max(version) FROM {c}.t.versions") == [(3, 3)]
    assert sql("SELECT sum(rows), sum(deleted_rows), min(data_files) FROM {c}.t.fragments") == [
        (9, 1, 1)
    ]
    assert sql("SELECT name, columns, rows_indexed, rows_unindexed FROM {c}.t.indexes") == [
        ("id_idx", ["id"], 9, 0)
    ]
    assert sql("SELECT * FROM {c}.t.tags") == [("first", "main", 1)]
    assert (
        sql("SELECT count(*) FROM {c}.t.jobs") == [(0,)] == sql("SELECT count(*) FROM {c}.t.errors")
    )
    table.add_columns({"twice": twice})
    table.backfill("twice")
    assert sql("SELECT status, job_type FROM {c}.t.jobs WHERE status = 'DONE'") != []
    budgeted = sql("CALL {c}.system.backfill('t', 'twice', 'id < 5', max_calls => 1)")[0]
    assert (budgeted[1], budgeted[4:]) == (1, ("PARTIAL", 3))
    rest = sql("CALL {c}.system.backfill('t', 'twice', 'id < 5')")[0]
    assert (rest[1], rest[4:]) == (3, ("DONE", 0))
    once = "CALL {c}.system.backfill('t', 'twice', 'id < 5', txn_app_id => 'app', txn_version => 7)"
    assert [sql(once)[0][1] for _ in range(2)] == [4, 0]
    again = "REFRESH COLUMN twice ON {c}.t WHERE id < 5 WITH (txn_app_id = 'app', txn_version = 7)"
    assert sql(again)[0][1] == 0
    with pytest.raises(AnalysisException, match="txn_version"):
        sql("CALL {c}.system.backfill('t', 'twice', txn_app_id => 'app')")
    sql("CREATE TABLE {c}.more AS SELECT id + 100 AS id FROM range(3)")
    assert (
        sql(
            "CALL {c}.system.add_column('more', 'doubled', source => 't', source_column => 'twice')"
        )[0][0]
        == "doubled"
    )
    sql("CALL {c}.system.backfill('more', 'doubled')")
    assert sql("SELECT sum(doubled) FROM {c}.more") == [(606,)]
    with pytest.raises(AnalysisException, match="has no stored UDF"):
        sql("CALL {c}.system.add_column('more', 's', source => 't')")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM {c}.t.nix")
    with pytest.raises(AnalysisException):
        sql("INSERT INTO {c}.t.tags VALUES ('x', 1)")


@lance_spark.udf(data_type=pa.int64())
def twice(id: int) -> int:
    return id * 2
