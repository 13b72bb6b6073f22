"""A driver of a streaming query: `python -m tests.lance_spark.streaming.stream_driver WAY HOME`.

Appends each file of HOME/in as a micro-batch to HOME/t.lance, and ends after the last file. WAY is `jar` or `no jar`,
or `update`, which merges the micro-batches into the table.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import lance_spark


def main(way: str, home: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "800m")
    builder = builder.config("spark.log.level", "OFF").config("spark.sql.files.maxPartitionBytes", "40")
    spark: SparkSession = (builder if way == "no jar" else lance_spark.configure(builder)).getOrCreate()
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).csv(f"{home}/in")
    write = rows.writeStream.format("lance").option("checkpointLocation", f"{home}/checkpoint")
    if way == "update":
        write = write.outputMode("update").option("merge_on", "id")
    write.trigger(availableNow=True).start(f"{home}/t.lance").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
