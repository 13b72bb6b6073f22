"""The JVM connector and this package change tables of one REST namespace: `make test-long`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.jvm import JvmConnector, LeftOutError
from tests.lance_spark.namespaces.conftest import Rest

CONNECTOR_SCRIPT = """
import sys

from pyspark.sql import SparkSession

uri, api_key, classpath, step = sys.argv[1:]
settings = {
    "spark.driver.extraClassPath": classpath,
    "spark.ui.enabled": "false",
    "spark.sql.extensions": "org.lance.spark.extensions.LanceSparkSessionExtensions",
    "spark.sql.catalog.lance": "org.lance.spark.LanceNamespaceSparkCatalog",
    "spark.sql.catalog.lance.impl": "rest",
    "spark.sql.catalog.lance.uri": uri,
    "spark.sql.catalog.lance.headers.x-api-key": api_key,
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
if step == "create":
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lance.connector")
    spark.sql("CREATE TABLE lance.connector.theirs (id BIGINT, s STRING)")
    spark.sql("INSERT INTO lance.connector.theirs VALUES (1, 'a'), (2, 'b')")
else:
    rows = {name: spark.table(f"lance.connector.{name}").collect() for name in ("theirs", "ours")}
    assert sorted(map(tuple, rows["theirs"])) == [(1, "x"), (2, "b"), (3, "c")], rows
    assert sorted(map(tuple, rows["ours"])) == [(1, "q")], rows
    spark.sql("INSERT INTO lance.connector.ours VALUES (9, 'z')")
"""


@pytest.mark.long
def test_the_jvm_connector_and_this_package_change_the_same_tables(rest: Rest, tmp_path: Path):
    try:
        connector = JvmConnector.install(tmp_path / "connector")
    except LeftOutError as error:
        pytest.skip(f"the JVM connector cannot be installed: {error}")

    def run(step: str) -> None:
        arguments = [rest.uri, rest.properties["headers.x-api-key"], connector.classpath, step]
        subprocess.run(
            [connector.python, "-c", CONNECTOR_SCRIPT, *arguments], check=True, timeout=300
        )

    run("create")
    db = rest.connect()
    theirs = db.open_table("theirs", namespace=["connector"])
    assert theirs.to_arrow().to_pylist() == [{"id": 1, "s": "a"}, {"id": 2, "s": "b"}]
    theirs.add([{"id": 3, "s": "c"}])
    theirs.update("id = 1", values={"s": "x"})
    db.create_table("ours", [{"id": 1, "s": "q"}], namespace=["connector"])
    run("read and insert")
    ours = db.open_table("ours", namespace=["connector"])
    assert sorted(ours.to_arrow()["id"].to_pylist()) == [1, 9]
