"""A driver of a streaming query: `python -m tests.lance_spark.streaming.stream_driver WAY HOME`.

Writes each file of HOME/in as a micro-batch to HOME/t.lance, and ends after the last file. WAY is `jar` or `no jar`,
which append rows, `complete`, which replaces the counts of all rows, or `update`, which merges the last row of each key.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import lance_spark

KEYS = 50
"""Number of keys of `update`: a multiple of the rows of a micro-batch, which must have no key twice."""


def main(way: str, home: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "800m")
    builder = builder.config("spark.sql.shuffle.partitions", "2")  # of the counts
    builder = builder.config("spark.log.level", "OFF").config(
        "spark.sql.files.maxPartitionBytes", "40"
    )
    spark: SparkSession = (
        builder if way == "no jar" else lance_spark.configure(builder)
    ).getOrCreate()
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).csv(f"{home}/in")
    if way == "complete":
        rows = rows.groupBy("id").count()
    if way == "update":
        rows = rows.selectExpr(f"id % {KEYS} AS id", "id AS last")
    write = rows.writeStream.format("lance").option("checkpointLocation", f"{home}/checkpoint")
    if way in ("complete", "update"):
        write = write.outputMode(way)
    if way == "update":
        write = write.option("merge_on", "id")
    write.trigger(availableNow=True).start(f"{home}/t.lance").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
