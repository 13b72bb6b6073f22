"""Driver processes of the tests: `python -m tests.cluster.jobs JOB MASTER PATH`.

Each prints one line of JSON at its end. A process can have only one Spark context, and the tests need their own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import pandas_udf

import lance_spark
from lance_spark import EnvironmentBuildError, Manifest
from tests.support.device_log import device_table, device_udf
from tests.support.java_classes import JVM_OPTIONS
from udf_runtime import UDF, RateLimit, udf

ROWS = 4000
PARTITIONS = 4
PROPERTIES, BEGUN, EVENTS, SERVICE = "properties.json", "begun", "events", "service"
"""Names of files and a folder in the home of a job."""

PADDING = 2000
"""Characters that make a batch larger than the buffers between JVM and Python, so a batch reaches the writer at
once.
"""


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr(
        "id", f"concat('text ', id, repeat('x', {PADDING})) AS text"
    )


def slowly(df: DataFrame, seconds: float) -> DataFrame:
    """Returns the same rows, each batch after a pause, to let concurrent writers act."""

    def pause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, 100):
                time.sleep(seconds)
                yield batch.slice(start, 100)

    return df.mapInArrow(pause, df.schema)


def backfill(spark: SparkSession, path: str, *, pause: float = 0.0) -> None:
    @pandas_udf("string")
    def upper(text: pd.Series) -> pd.Series:
        time.sleep(pause)
        return text.str.upper()

    df = spark.read.format("lance").option("with_row_address", True).load(path)
    values = df.select("_rowaddr", upper("text").alias("upper"))
    values.write.format("lance").mode("append").option("mode", "backfill").option(
        "input_columns", "text"
    ).save(path)


def walk_through(spark: SparkSession, path: str) -> dict[str, object]:
    """Writes, reads with a filter, appends, backfills, and reads back."""
    rows(spark).write.format("lance").mode("append").option("max_rows_per_file", 500).save(path)
    df = spark.read.format("lance").load(path)
    filtered = [row.id for row in df.filter("id >= 10 AND id < 13").orderBy("id").collect()]
    rows(spark).filter("id < 5").write.format("lance").mode("append").save(path)
    backfill(spark, path)
    after = spark.read.format("lance").load(path)
    return {
        "first": df.count(),
        "filtered": filtered,
        "rows": after.count(),
        "wrong": after.filter("upper IS NULL OR upper != upper(text)").count(),
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }


def write_slowly(spark: SparkSession, path: str) -> dict[str, object]:
    slowly(rows(spark), 0.4).write.format("lance").mode("append").save(path)
    return {}


def backfill_slowly(spark: SparkSession, path: str) -> dict[str, object]:
    backfill(spark, path, pause=0.7)
    return {}


def environments(spark: SparkSession, path: str) -> dict[str, object]:
    """Fills two columns with two versions of a package, and a third column with a missing package."""

    def version_of(packages: list[str]) -> UDF:
        @udf(
            data_type=pa.string(),
            task_size=10,
            manifest=Manifest.create_pip(str(packages)).pip(packages).build(),
        )
        def version(id: int) -> str:
            import time

            import packaging

            time.sleep(0.01)
            return str(packaging.__version__)

        assert isinstance(version, UDF)
        return version

    table = lance_spark.connect(path, spark, progress=False).create_table(
        "t", [{"id": i} for i in range(400)]
    )
    old, new = version_of(["packaging==23.2"]), version_of(["packaging==24.2"])
    table.add_columns(
        {"old": old, "new": new, "broken": version_of(["no-such-package-of-lance-spark==1"])}
    )
    computed = [table.backfill(column).rows_computed for column in ("old", "new")]
    try:
        table.backfill("broken")
    except EnvironmentBuildError as error:
        refused = "no-such-package-of-lance-spark" in error.reason
    right = table.count_rows("old = '23.2' AND new = '24.2' AND broken IS NULL")
    return {
        "computed": computed,
        "right": right,
        "refused": refused,
        "checksums": [checksum(old), checksum(new)],
    }


def sql(spark: SparkSession, path: str) -> dict[str, object]:
    """Makes, changes and reads a table in SQL, by tasks of the cluster."""
    lance_spark.catalog(spark, "c", path)
    columns = f"id, 0L AS n, concat('text ', id, repeat('x', {PADDING})) AS text"
    spark.sql(
        f"CREATE TABLE c.t TBLPROPERTIES ('max_rows_per_file' = '500') AS SELECT {columns} FROM range({ROWS})"
    )
    spark.udf.register("twice", lambda number: number * 2, "bigint")
    before = files = spark.sql("SELECT sum(data_files) FROM c.t.fragments").first()[0]
    for statement in (
        "UPDATE c.t SET n = twice(id) WHERE id % 2 = 0",
        "DELETE FROM c.t WHERE id IN (SELECT id FROM c.t WHERE id >= 3000)",
        (
            "MERGE INTO c.t t USING (SELECT id + 2990 AS id FROM range(20)) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET n = -1 WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, -2)"
        ),
    ):
        spark.sql(statement).collect()
        files = max(files, spark.sql("SELECT sum(data_files) FROM c.t.fragments").first()[0])
    rows = spark.sql("SELECT count(*), sum(n), count_if(n = -1), count_if(n = -2) FROM c.t").first()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # type: ignore[union-attr]
    return {"rows": list(rows), "column files": files > before, "executors": executors}


def devices(spark: SparkSession, path: str) -> dict[str, object]:
    """Fills a column with a share of a device per process, then another column of another table with whole devices."""
    answers = []
    for name, share in (("shares", 0.5), ("whole", 1)):
        home = Path(path, name)
        home.mkdir(parents=True)
        function = device_udf(home / "log", num_gpus=share, seconds=0.5)
        table = device_table(home, spark, function, rows=80, fragments=16)
        (home / "kill").touch()
        table.backfill("v", task_size=5, concurrency=None)
        answers.append(table.count_rows("v = 10 * x"))
    return {"right": answers}


def reservations(spark: SparkSession, path: str) -> dict[str, object]:
    """Fills three columns: with two cores and with much memory per process, and with one task at a time."""
    answers = []
    reserved: dict[str, tuple[dict[str, object], int | None]] = {
        "cores": ({"num_cpus": 2}, None),
        "memory": ({"memory": 400 << 20}, None),
        "one": ({}, 1),
    }
    for name, (options, concurrency) in reserved.items():
        home = Path(path, name)
        home.mkdir(parents=True)
        function = device_udf(home / "log", seconds=0.3, **options)
        table = device_table(home, spark, function, rows=80, fragments=16)
        table.backfill("v", task_size=5, concurrency=concurrency)
        answers.append(table.count_rows("v = 10 * x"))
    return {"right": answers}


def rate_limit(spark: SparkSession, path: str) -> dict[str, object]:
    """Calls a service at the location in a file, 20 times at once and 10 times a second, from all executors."""
    url = Path(path, SERVICE).read_text()

    @udf(data_type=pa.int64(), version="1", rate_limit=RateLimit(calls_per_minute=600))
    def double(x: int) -> int:
        import urllib.request

        with urllib.request.urlopen(f"{url}/{x}", timeout=30) as response:
            return int(response.read())

    assert isinstance(double, UDF)
    table = device_table(Path(path), spark, double, rows=80, fragments=16)
    result = table.backfill("v", task_size=5, concurrency=None)
    return {
        "status": result.status,
        "right": table.count_rows("v = 2 * x"),
        "waited": result.seconds["limit"] > 0,
    }


def vended_credentials(spark: SparkSession, home: str) -> dict[str, object]:
    """Fills a column for about a minute, over a namespace whose properties are in a file, and makes a view."""

    @udf(data_type=pa.int64(), version="1")
    def twice(id: int) -> int:
        time.sleep(0.5)
        return 2 * id

    properties = json.loads(Path(home, PROPERTIES).read_text())
    db = lance_spark.connect(
        namespace_client_impl="rest",
        namespace_client_properties=properties,
        spark=spark,
        progress=False,
    )
    table = db.create_table("t", spark.range(240).repartition(4))
    table.add_columns({"twice": (twice, ["id"])})
    Path(home, BEGUN).touch()
    result = table.backfill("twice", task_size=60, commit_granularity=1, checkpoint_size=10)
    view = db.create_materialized_view("v", table.search(None).select(["id", "twice"]))
    frame = db.open_table("t").to_spark()
    return {
        "computed": result.rows_computed,
        "right": frame.where("twice = 2 * id").count(),
        "viewed": view.refresh().rows_added,
        "statuses": [job.status for job in table.list_jobs()],
        "plan": frame._jdf.queryExecution().toString(),
    }


def checksum(function_udf: UDF) -> str | None:
    return None if function_udf.manifest is None else function_udf.manifest.checksum


JOBS = {
    job.__name__: job
    for job in (
        write_slowly,
        backfill_slowly,
        environments,
        sql,
        devices,
        reservations,
        rate_limit,
        vended_credentials,
    )
}


def settings_of(job: str, path: str) -> dict[str, str]:
    """Returns the settings of the application of a job."""
    match job:
        case "devices":
            return {"spark.executor.resource.gpu.amount": "1"}
        case "reservations":
            return {"spark.executor.cores": "4"}
        case "vended_credentials":
            folder = Path(path, EVENTS).as_uri()
            return {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": folder,
                "spark.eventLog.compress": "false",
            }
        case _:
            return {}


def main(job: str, master: str, path: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .appName(job)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "800m")
        .config("spark.executor.memory", "900m")
        .config("spark.executor.extraJavaOptions", JVM_OPTIONS)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config(map=settings_of(job, path))
        .getOrCreate()
    )
    lance_spark.enable_pushdown(spark)
    try:
        print(json.dumps(JOBS[job](spark, path)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
