"""Spark's Java classes, parsed once for all JVMs of the tests: `python -m tests.support.java_classes` writes the archive.

A JVM spends half of its start on reading classes (measured: 5.2 instead of 10.8 seconds of processor time up to the first query). One whose
class path is another, or that is another version, ignores the archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")

_PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Most queries of tests run once, and the second compiler costs more than it gains: half of a session's processor time (measured)."""

JVM_OPTIONS = (
    f"{_PLAIN} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else _PLAIN
)
"""Options of every JVM that tests start."""


def write_archive() -> None:
    """Runs typical queries in a JVM that writes what it has loaded when it ends."""
    made = ARCHIVE.with_suffix(".tmp")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{_PLAIN} -Xlog:disable -XX:ArchiveClassesAtExit={made}",
    }
    command = [sys.executable, "-m", __spec__.name, "train"]
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=True, timeout=300)
    made.replace(ARCHIVE)


def train() -> None:
    """Uses what most tests use: a Connect server has the classes of a classic session and its own."""
    import tempfile

    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    with tempfile.TemporaryDirectory() as folder:
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        frame = spark.range(100).select("id", F.col("id").cast("string").alias("s"), F.array("id").alias("a"))
        for name in ("parquet", "lance"):
            frame.write.format(name).mode("append").save(f"{folder}/t.{name}")
            read = spark.read.format(name).load(f"{folder}/t.{name}")
            read.where("id > 5 AND s LIKE '1%'").groupBy("s").agg(F.sum("id"), F.count("*")).orderBy("s").toPandas()
            read.join(frame, "id").limit(3).collect()
            read.createOrReplaceTempView("t")
            spark.sql("SELECT max(id), min(s) FROM t WHERE id IN (SELECT id FROM t WHERE a[0] < 9)").collect()
        twice = F.pandas_udf(lambda values: pd.Series(values) * 2, "long")
        frame.select(twice("id")).toArrow()
        frame.mapInArrow(lambda batches: batches, frame.schema).collect()
        spark.stop()


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else write_archive()
