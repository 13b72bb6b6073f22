"""SQL catalogs in a Lance namespace."""

from __future__ import annotations

from urllib.parse import urlsplit

import lance
import lance_namespace
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

import lance_spark
from lance_spark import Connection
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError
from lance_spark.session import catalogs
from lance_spark.session.catalogs import register_catalog
from lance_spark.sql.catalog.lance_namespace import NamespaceLocation
from tests.lance_spark.namespaces.conftest import SECRET, Rest

pytestmark = pytest.mark.classic


@pytest.fixture
def catalog(rest: Rest, spark: SparkSession, space: list[str]) -> str:
    """The full name of a namespace of a catalog."""
    # A session keeps the properties of a catalog, and another server may follow in this process.
    remote = f"remote_{urlsplit(rest.properties['uri']).port}"
    db = lance_spark.catalog(
        spark, remote, namespace_client_impl="rest", namespace_client_properties=rest.properties
    )
    if "tests" not in db.list_namespaces():
        spark.sql(f"CREATE NAMESPACE {remote}.tests")
    name = ".".join((remote, *space))
    spark.sql(f"CREATE NAMESPACE {name}")
    return name


@pytest.mark.long
def test_namespaces_of_any_depth(catalog: str, spark: SparkSession):
    spark.sql(f"CREATE NAMESPACE {catalog}.a WITH DBPROPERTIES ('team' = 'Ada')")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.a.b")
    assert [
        row[0].rpartition(".")[2] for row in spark.sql(f"SHOW NAMESPACES IN {catalog}").collect()
    ] == ["a"]
    facts = {
        row[0]: row[1] for row in spark.sql(f"DESCRIBE NAMESPACE EXTENDED {catalog}.a").collect()
    }
    assert "Ada" in str(facts)
    with pytest.raises(AnalysisException, match=r"SCHEMA_NOT_EMPTY|not empty"):
        spark.sql(f"DROP NAMESPACE {catalog}.a")
    spark.sql(f"CREATE TABLE {catalog}.a.b.t AS SELECT 1 AS id")
    spark.sql(f"DROP NAMESPACE {catalog}.a CASCADE")
    assert spark.sql(f"SHOW NAMESPACES IN {catalog}").collect() == []
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql(f"SHOW TABLES IN {catalog}.a")


def test_statements_over_tables(catalog: str, rest: Rest, spark: SparkSession, space: list[str]):
    spark.sql(f"CREATE TABLE {catalog}.t (id BIGINT, text STRING)")
    spark.sql(f"INSERT INTO {catalog}.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    spark.sql(f"UPDATE {catalog}.t SET text = upper(text) WHERE id > 1")
    spark.sql(f"DELETE FROM {catalog}.t WHERE id = 1")
    spark.sql(
        f"MERGE INTO {catalog}.t t USING (SELECT 3L AS id, 'z' AS text UNION ALL SELECT 4L, 'd') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET text = s.text WHEN NOT MATCHED THEN INSERT *"
    )
    rows = [Row(id=2, text="B"), Row(id=3, text="z"), Row(id=4, text="d")]
    assert spark.sql(f"SELECT * FROM {catalog}.t ORDER BY id").collect() == rows
    assert spark.sql(f"SELECT count(*) FROM {catalog}.t VERSION AS OF 2").first() == (3,)
    spark.sql(f"ALTER TABLE {catalog}.t ADD COLUMNS (size INT)")
    spark.sql(f"CREATE OR REPLACE TABLE {catalog}.t AS SELECT id FROM {catalog}.t WHERE id > 2")
    assert rest.connect().open_table("t", namespace=space).to_arrow()["id"].to_pylist() == [3, 4]
    assert {
        row.version for row in spark.sql(f"SELECT version FROM {catalog}.t.versions").collect()
    } >= {1, 2}
    plan = spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {catalog}.t").first()
    shown = [str(row) for row in spark.sql(f"DESCRIBE EXTENDED {catalog}.t").collect()]
    assert (
        SECRET not in f"{plan} {shown} {spark.sql('SET -v').collect()} {spark.sql('SET').collect()}"
    )


def test_a_replacement_creates_a_table(catalog: str, spark: SparkSession):
    spark.sql(f"CREATE OR REPLACE TABLE {catalog}.t (id BIGINT)")
    assert spark.sql(f"SELECT count(*) FROM {catalog}.t").first() == (0,)


def test_names_without_a_table_leave_with_their_namespace(
    catalog: str, rest: Rest, spark: SparkSession, space: list[str]
):
    client = lance_namespace.connect("rest", rest.properties)
    client.declare_table(lance_namespace.DeclareTableRequest(id=[*space, "t"]))
    with pytest.raises(AnalysisException, match=r"SCHEMA_NOT_EMPTY|not empty"):
        spark.sql(f"DROP NAMESPACE {catalog}")
    spark.sql(f"DROP NAMESPACE {catalog} CASCADE")
    assert space[1] not in rest.connect().list_namespaces(space[:1])


def test_a_catalog_holds_tables_at_their_own_locations_only(
    rest: Rest, db: Connection, space: list[str]
):
    ref = db.create_table("t", [{"id": 1}], namespace=space)._ref
    other = db.create_table("other", [{"id": 1}], namespace=space)._ref
    location = NamespaceLocation.of_options("c", {"impl": "rest", **rest.properties}, ())
    assert location.holds(ref)
    assert not location.holds(DatasetRef.at(other.uri, ref.storage))


@pytest.mark.long
def test_a_view_of_a_namespace_has_no_source_in_another_catalog(
    catalog: str, rest: Rest, spark: SparkSession, space: list[str]
):
    lance_spark.catalog(
        spark, "second", namespace_client_impl="rest", namespace_client_properties=rest.properties
    )
    spark.sql(f"CREATE TABLE {catalog}.t AS SELECT id FROM range(6)")
    source = ".".join(("second", *space, "t"))
    with pytest.raises(Exception, match="a table of another catalog"):
        spark.sql(f"CREATE MATERIALIZED VIEW {catalog}.v AS SELECT id FROM {source}")


def test_drop_keeps_the_files_of_tables_of_others(
    catalog: str, rest: Rest, spark: SparkSession, space: list[str]
):
    lance.write_dataset(pa.table({"id": [1]}), str(rest.root / "of_others.lance"))
    db = rest.connect()
    db.register_table("r", "of_others.lance", namespace=space)
    assert spark.sql(f"SELECT * FROM {catalog}.r").collect() == [(1,)]
    spark.sql(f"DROP TABLE {catalog}.r")
    assert spark.sql(f"SHOW TABLES IN {catalog}").collect() == []
    assert lance.dataset(str(rest.root / "of_others.lance")).count_rows() == 1
    db.register_table("r", "of_others.lance", namespace=space)
    spark.sql(f"DROP TABLE {catalog}.r PURGE")
    assert not (rest.root / "of_others.lance").exists()
    spark.sql(f"CREATE TABLE {catalog}.own AS SELECT 1 AS id")
    location = rest.connect().open_table("own", namespace=space).uri
    spark.sql(f"DROP TABLE {catalog}.own")
    with pytest.raises(lance_spark.TableNotFoundError):
        lance_spark.open_table(location)


@pytest.mark.long
def test_location_registers_a_table_below_the_root(
    rest: Rest, spark: SparkSession, space: list[str]
):
    lance.write_dataset(pa.table({"id": [1, 2]}), str(rest.root / "located.lance"))
    db = lance_spark.catalog(
        spark,
        "directory",
        namespace_client_impl="dir",
        namespace_client_properties={"root": str(rest.root)},
    )
    db.create_namespace([space[1]])
    name = f"directory.{space[1]}.l"
    with pytest.raises(Exception, match="relative"):
        spark.sql(f"CREATE TABLE {name} LOCATION '/somewhere/else.lance'")
    spark.sql(f"CREATE TABLE {name} LOCATION '{rest.root}/located.lance'")
    assert spark.sql(f"SELECT count(*) FROM {name}").first() == (2,)


@pytest.mark.long
def test_only_registered_classes_are_namespaces_of_catalogs(spark: SparkSession, rest: Rest):
    with pytest.raises(OptionError, match="not registered"):
        lance_spark.catalog(
            spark, "code", namespace_client_impl="os.path", namespace_client_properties={}
        )
    provider = {**rest.properties, "dynamic_context_provider.impl": "os.path"}
    register_catalog(spark, "provided", {"impl": "rest", **provider})
    with pytest.raises(Exception, match=r"not registered|impl"):
        spark.sql("SHOW NAMESPACES IN provided")
    spark.conf.set("spark.sql.catalog.provided.uri", "http://127.0.0.1:1")
    try:
        with pytest.raises(Exception, match="SET in the session"):
            spark.sql("SHOW NAMESPACES IN provided")
    finally:
        spark.conf.unset("spark.sql.catalog.provided.uri")
    assert catalogs.setting_of("provided", "impl") == "spark.sql.catalog.provided.impl"


@pytest.mark.long
def test_a_view_of_a_namespace(catalog: str, spark: SparkSession):
    spark.sql(f"CREATE TABLE {catalog}.t AS SELECT id FROM range(6)")
    spark.sql(
        f"CREATE MATERIALIZED VIEW {catalog}.v AS SELECT id, id * 2 AS twice FROM {catalog}.t WHERE id > 2"
    )
    spark.sql(f"REFRESH MATERIALIZED VIEW {catalog}.v")
    assert spark.sql(f"SELECT sum(twice) FROM {catalog}.v").first() == (24,)
    spark.sql(f"DROP MATERIALIZED VIEW {catalog}.v")
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {catalog}").collect()] == ["t"]
