"""A release of Spark for which the catalog's Java does not compile: tables are read and written by path as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.classic

SCRIPT = """
import sys
import lance_spark
from lance_spark.errors import UnsupportedOperationError
from lance_spark.pushdown import java_classes
from pyspark.sql import SparkSession

sources = java_classes._sources
java_classes._sources = lambda folder: {
    name: text + "class Broken extends NoClassOfSpark {}" if name == "LanceFolder.java" else text for name, text in sources(folder).items()
}
spark = lance_spark.configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate()
assert lance_spark.enable_pushdown(spark)
path = sys.argv[1]
spark.range(100).write.format("lance").mode("append").save(path)
df = spark.read.format("lance").load(path).where("id > 97")
assert "pushed: " in df._jdf.queryExecution().toString() and sorted(df.collect()) == [(98,), (99,)]
try:
    lance_spark.catalog(spark, "lance", path)
except UnsupportedOperationError as error:
    print(error)
"""


def test_tables_by_path_work_and_the_catalog_says_why_it_does_not(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "t.lance"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "its Java does not compile there" in run.stdout and "spark.read.format('lance').load(path)" in run.stdout
