"""Spark's Java classes, parsed once for all JVMs of the tests: `python -m tests.support.java_classes` writes the
archive.

A JVM spends half of its start on reading classes (measured: 5.2 instead of 10.8 seconds of processor time up to the
first query). A JVM with another class path or another version ignores the archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")

_PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms512m -XX:NewRatio=1 -XX:MetaspaceSize=256m"
"""Most queries of tests run once, and the second compiler costs more than it gains: half of a session's processor time
(measured).

With the default sizes of heap and metaspace, a JVM collects all of its heap four times before its first query: 3 of 11
seconds of processor time (measured).
"""

JVM_OPTIONS = (
    f"{_PLAIN} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={ARCHIVE}"
    if ARCHIVE.exists()
    else _PLAIN
)
"""Options of every JVM started by tests."""

LONG_JVM = "-Xms1g -XX:ReservedCodeCacheSize=128m"
"""More options for the JVM of a session with hundreds of tests.

With half the heap, and with 48 MB for compiled code (the default of `TieredStopAtLevel=1`), the JVM collects garbage
and compiles methods repeatedly: a twentieth of its processor time (measured).
"""


def write_archive() -> None:
    """Runs typical queries in a JVM that archives its loaded classes at its end."""
    temporary = ARCHIVE.with_suffix(".tmp")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{_PLAIN} -Xlog:disable -XX:ArchiveClassesAtExit={temporary}",
    }
    command = [sys.executable, "-m", __spec__.name, "train"]
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=True, timeout=300)
    temporary.replace(ARCHIVE)


def train() -> None:
    """Runs a single query: with more, writing the archive takes longer than it saves."""
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    spark.range(10).selectExpr("sum(id)").collect()
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    # The JVM writes the archive at its end.
    jvm.stdin.close()
    jvm.wait(120)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else write_archive()
