"""A session of the benchmarks TPC-H and TPC-DS: `python -m benchmarks.tpch_child CONFIGURATION FOLDER
ROUNDS QUERY..`, run by `benchmarks.tpch` and `benchmarks.tpcds`.

The folder holds the tables as `generated/<table>.parquet`, and the queries as `queries/<query>.sql`.
Prints a line of JSON per query. With the configuration `load`, it writes the tables instead. Each
configuration has a separate process, because the settings of a session apply at the start of its JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from benchmarks.table_api_memory import cpu_seconds

_FORMATS = {"parquet": "parquet", "lance-spark": "lance"}
_CATALOG = "catalog"
"""Contestant of the configuration `configure`: the same Lance tables, read through a SQL catalog.
"""


def main() -> None:
    """Loads the tables, or runs queries."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    configuration, folder, rounds, *names = sys.argv[1:]
    spark = session(configuration, Path(folder))
    if configuration == "load":
        load(spark, Path(folder))
    else:
        queries = {
            name: Path(folder, "queries", f"{name}.sql").read_text(encoding="utf-8")
            for name in names
        }
        for line in measured(
            spark, views(spark, Path(folder), configuration), int(rounds), queries
        ):
            print(json.dumps(line), file=answers, flush=True)
    spark.stop()


def session(configuration: str, folder: Path) -> SparkSession:
    """Returns a session: with Spark's defaults, with the planner rule, or from `configure`."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("tpch")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    )
    if configuration == "configure":
        builder = lance_spark.configure(builder, catalogs={_CATALOG: str(folder / "lance")})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if configuration == "enable_pushdown":
        lance_spark.enable_pushdown(spark)
    return spark


def tables(folder: Path) -> list[str]:
    """Returns the names of the generated tables."""
    return sorted(file.stem for file in (folder / "generated").glob("*.parquet"))


def load(spark: SparkSession, folder: Path) -> None:
    """Writes the generated tables with Spark, as Parquet and as Lance."""
    for table in tables(folder):
        generated = spark.read.parquet(str(folder / "generated" / f"{table}.parquet"))
        for format_ in _FORMATS.values():
            generated.write.format(format_).mode("append").save(str(folder / format_ / table))


def views(spark: SparkSession, folder: Path, configuration: str) -> dict[str, dict[str, DataFrame]]:
    """Returns the tables of each contestant."""
    tables_by_contestant = {
        contestant: {
            table: spark.read.format(kind).load(str(folder / kind / table))
            for table in tables(folder)
        }
        for contestant, kind in _FORMATS.items()
    }
    if configuration == "configure":
        tables_by_contestant[_CATALOG] = {
            table: spark.table(f"{_CATALOG}.`{folder}/lance/{table}`") for table in tables(folder)
        }
    return tables_by_contestant


def measured(
    spark: SparkSession,
    views: dict[str, dict[str, DataFrame]],
    rounds: int,
    queries: dict[str, str],
) -> Iterator[dict[str, object]]:
    """Warms each query up once, then runs the contestants in turn. Yields seconds and CPU seconds
    of all processes, or the reason if Spark does not accept the query."""

    def run(contestant: str, name: str) -> tuple[object, float, float]:
        for table, frame in views[contestant].items():
            frame.createOrReplaceTempView(table)
        cpu, began = cpu_seconds(os.getpid()), time.perf_counter()
        answer = spark.sql(queries[name])
        rows = answer.collect()
        seconds = time.perf_counter() - began
        return (answer.schema, rows), seconds, cpu_seconds(os.getpid()) - cpu

    for name in queries:
        try:
            first, *results = (run(contestant, name)[0] for contestant in views)
        except AnalysisException as error:
            yield {"query": name, "refused": str(error).strip().partition("\n")[0]}
            continue
        if any(first != result for result in results):
            raise AssertionError(f"{name} gives other rows on Lance than on Parquet")
        times: dict[str, list[float]] = {contestant: [] for contestant in views}
        cpu: dict[str, list[float]] = {contestant: [] for contestant in views}
        for _ in range(rounds):
            for contestant in views:
                _, seconds, spent = run(contestant, name)
                times[contestant].append(seconds)
                cpu[contestant].append(spent)
        yield {"query": name, "seconds": times, "cpu_seconds": cpu}


if __name__ == "__main__":
    main()
