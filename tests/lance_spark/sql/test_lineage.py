"""The identity of tables for OpenLineage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from java.maven import MavenJar
from lance_spark.sql.catalog.tables import LINEAGE_NAME, LINEAGE_NAMESPACE, lineage_properties
from tests.support.processes import environment

LISTENER = MavenJar(
    "io/openlineage/openlineage-spark_2.13/1.53.0/openlineage-spark_2.13-1.53.0.jar",
    "5d84b0ae7e72909b5aae7ed87df878bf06b28d9ac3005765c3529d0a66dbae6f",
)

PROGRAM = """
import sys

from pyspark.sql import SparkSession

import lance_spark

home, listener = sys.argv[1:]
builder = lance_spark.configure(SparkSession.builder.master("local[2]").config("spark.jars", listener))
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "800m")
builder = builder.config("spark.extraListeners", "io.openlineage.spark.agent.OpenLineageSparkListener")
builder = builder.config("spark.openlineage.transport.type", "file")
builder = builder.config("spark.openlineage.transport.location", f"{home}/events.json")
spark = builder.getOrCreate()
lance_spark.catalog(spark, "lake", home)
spark.sql("CREATE TABLE lake.source AS SELECT id, id * 2 AS v FROM range(10)").collect()
spark.sql("CREATE TABLE lake.target (id BIGINT, v BIGINT)").collect()
spark.sql("INSERT INTO lake.target SELECT id, v FROM lake.source WHERE id < 5").collect()
spark.stop()
"""


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/data/books.lance", "file", "/data/books.lance"),
        ("s3://bucket/data/books.lance", "s3://bucket", "data/books.lance"),
        ("gs://bucket/books.lance", "gs://bucket", "books.lance"),
        ("az://container/books.lance", "az://container", "books.lance"),
    ],
)
def test_a_location_has_a_namespace_and_a_name(uri: str, namespace: str, name: str):
    assert lineage_properties(uri) == {LINEAGE_NAMESPACE: namespace, LINEAGE_NAME: name}


@pytest.mark.long
@pytest.mark.slow
def test_the_listener_of_openlineage_names_the_tables_of_a_read_and_a_write(tmp_path: Path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(LISTENER.fetch())]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    events = [json.loads(line) for line in (tmp_path / "events.json").read_text().splitlines()]
    pairs = {
        (kind, dataset["namespace"], dataset["name"])
        for event in events
        for kind in ("inputs", "outputs")
        for dataset in event.get(kind, ())
        if event["eventType"] == "COMPLETE" and "append_data" in event["job"]["name"]
    }
    assert ("inputs", "file", str(tmp_path / "source.lance")) in pairs
    assert {name for kind, _, name in pairs if kind == "outputs"} == {
        str(tmp_path / "source.lance"),
        str(tmp_path / "target.lance"),
    }
