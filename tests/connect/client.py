"""A client of Spark Connect, started by the tests: `python -m tests.connect.client URL PATH`. Prints one line of
JSON.
"""

from __future__ import annotations

import json
import sys

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

import lance_spark


def main(url: str, path: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    report: dict[str, object] = {"pushdown": lance_spark.enable_pushdown(spark)}
    rows = spark.range(1000).selectExpr("id", "concat('text ', id) AS text")
    rows.write.format("lance").mode("append").option("max_rows_per_file", 300).save(path)

    df = spark.read.format("lance").load(path)
    report["rows"] = df.count()
    report["filtered"] = [
        row.id for row in df.filter("id % 100 = 7 AND text LIKE 'text 1%'").orderBy("id").collect()
    ]
    by_hand = (
        spark.read.format("lance").option("columns", "id").option("filter", "id < 3").load(path)
    )
    report["by hand"] = [list(row) for row in by_hand.orderBy("id").collect()]
    spark.sql(f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{path}')")
    report["sql"] = spark.sql("SELECT max(id) FROM v").first()[0]

    @pandas_udf("bigint")
    def length(text: pd.Series) -> pd.Series:
        return text.str.len()

    addressed = spark.read.format("lance").option("with_row_address", True).load(path)
    # Shuffled, so the rows of a fragment arrive in several tasks, without a rule to regroup them.
    values = addressed.select("_rowaddr", length("text").alias("length")).repartition(3)
    values.write.format("lance").mode("append").option("mode", "backfill").save(path)
    after = spark.read.format("lance").load(path)
    report["columns"] = after.columns
    report["wrong"] = after.filter("length IS NULL OR length != length(text)").count()
    try:
        spark.read.format("lance").option("version", 99).load(path).count()
    except PySparkException as error:
        report["error"] = "VersionNotFoundError" in str(error)
    # DataFrames with an explicit version keep the version, regardless of the server's cache of plans.
    pinned = [
        spark.read.format("lance").option("version", 1).load(path),
        lance_spark.open_table(path, spark).to_spark(),
    ]
    rows.limit(5).write.format("lance").mode("append").save(path)
    for size in range(20):  # the cache has 16 plans
        spark.read.format("lance").option("batch_size", 100 + size).load(path).columns  # noqa: B018 - fills the cache
    report["pinned"] = [frame.count() for frame in (*pinned, spark.read.format("lance").load(path))]
    report["streamed"] = [stream(spark, path, f"{path}.copy.lance") for _ in range(2)]
    spark.stop()
    print(json.dumps(report))


def stream(spark: SparkSession, source: str, target: str) -> int:
    """Copies the new rows of a table to another table, and returns its number of rows."""
    rows = spark.readStream.format("lance").option("columns", "id,length").load(source)
    write = rows.writeStream.format("lance").option("checkpointLocation", f"{target}.checkpoint")
    assert write.trigger(availableNow=True).start(target).awaitTermination(300)
    return spark.read.format("lance").load(target).where("length = length").count()


if __name__ == "__main__":
    main(*sys.argv[1:])
