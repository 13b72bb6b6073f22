"""A driver of two chained queries: `python -m tests.lance_spark.streaming.pipeline_driver WAY HOME`.

Appends each file of HOME/in as a micro-batch to HOME/source.lance, reads this table as a stream, computes a column, and
appends the rows to HOME/t.lance. Ends after the last row. WAY is `jar` or `no jar`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf
from pyspark.sql.streaming import StreamingQuery

import lance_spark


def double_all(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for numbers in batches:
        yield numbers * 2


def start(spark: SparkSession, home: str) -> tuple[StreamingQuery, StreamingQuery]:
    """Starts the query that fills the source, and the query that reads it."""
    files = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).csv(f"{home}/in")
    filling = (
        files.writeStream.format("lance").option("compact_after", 15).trigger(availableNow=True)
    )
    filling = filling.option("checkpointLocation", f"{home}/filling")
    double = pandas_udf(double_all, "bigint")  # type: ignore[call-overload]
    reader = spark.readStream.format("lance")
    if spark.version >= "4.2":  # Spark 4.1 has no limits
        reader = reader.option("maxVersionsPerTrigger", 2)
    computed = reader.load(f"{home}/source.lance").select("id", double("id").alias("twice"))
    copying = computed.writeStream.format("lance").option("compact_after", 15)
    copying = copying.option("checkpointLocation", f"{home}/copying")
    return filling.start(f"{home}/source.lance"), copying.start(f"{home}/t.lance")


def main(way: str, home: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "800m")
    builder = builder.config("spark.log.level", "OFF").config(
        "spark.sql.files.maxPartitionBytes", "40"
    )
    spark: SparkSession = (
        lance_spark.configure(builder) if way == "jar" else builder
    ).getOrCreate()
    filling, copying = start(spark, home)
    filling.awaitTermination()
    copying.processAllAvailable()
    copying.stop()
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
