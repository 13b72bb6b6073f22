"""Compares UDFs in an environment with UDFs in the executors' Python: `python -m
benchmarks.environments [--rows 4000000]`.

Each function fills a column with a backfill of two concurrent tasks, alternating between the
executors' Python and an existing
environment. Each function first runs once in both, to start workers and UDF processes.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.report import make_parser, write_report
from lance_spark import UDF, Manifest, Table, udf

_TURNS = 5


def main() -> None:
    """Runs all cases in sequence, and writes `environments.json`."""
    parser = make_parser("environments", __doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        report = {"rows": arguments.rows, "cpus": os.cpu_count(), **measure(folder, arguments.rows)}
    write_report(arguments, "environments", report)


def measure(folder: str, rows: int) -> dict[str, object]:
    """Returns the seconds for creating an environment, for a first backfill in an existing
    environment, and for each case."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("environments")
        .config("spark.ui.enabled", "false")
    )
    spark = lance_spark.configure(
        builder.config("spark.lance.environments.dir", f"{folder}/environments")
    ).getOrCreate()
    db = lance_spark.connect(folder, spark, progress=False)
    ids = pa.array(range(rows), pa.int64())
    text = pc.binary_join_element_wise(
        "text number", ids.cast(pa.string()), "of a table, in English", " "
    )
    table = db.create_table("texts", pa.table({"id": ids, "text": text}))
    manifest = Manifest.create_pip("benchmark").pip(["numpy==2.1.0"]).build()
    small = db.create_table("small", [{"id": 1}])

    @udf(data_type=pa.int64())
    def constant(id: int) -> int:
        return 1

    small.add_columns(
        {
            "own": constant,
            "made": constant.with_manifest(manifest),
            "there": constant.with_manifest(manifest),
        }
    )
    starts = {
        column: seconds(partial(small.backfill, column)) for column in ("own", "made", "there")
    }
    print(f"one row: {starts}", flush=True)
    cases = {name: compare(table, function, manifest) for name, function in functions().items()}
    spark.stop()
    return {"one row, seconds": starts, "cases": cases}


def functions() -> dict[str, UDF]:
    """Returns the functions by description."""

    @udf(data_type=pa.int64())
    def arithmetic(id: pa.Array) -> pa.Array:
        return pc.add(pc.multiply(id, 3), 1)

    @udf(data_type=pa.string())
    def upper(text: pa.Array) -> pa.Array:
        return pc.utf8_upper(text)

    @udf(data_type=pa.int64())
    def words(text: str) -> int:
        return len(text.split())

    @udf(data_type=pa.int64())
    def pattern(text: str) -> int:
        return len(re.findall(r"\w+", text.lower()))

    return {
        "vectorised, integers": arithmetic,
        "vectorised, texts": upper,
        "scalar, 0.3 microseconds a row": words,
        "scalar, a regular expression": pattern,
    }


def compare(table: Table, function: UDF, manifest: Manifest) -> dict[str, float]:
    """Returns the medians of both variants, and their ratio."""
    ways = {"own": function, "environment": function.with_manifest(manifest)}
    durations: dict[str, list[float]] = {way: [] for way in ways}
    for way, variant in ways.items():
        table.add_columns({f"{function.name}_{way}": variant})
        table.backfill(f"{function.name}_{way}", where="1=1")
    for _ in range(_TURNS):
        for way in ways:
            durations[way].append(
                seconds(partial(table.backfill, f"{function.name}_{way}", where="1=1"))
            )
    assert table.count_rows(f"{function.name}_own != {function.name}_environment") == 0
    medians = {way: round(statistics.median(some), 3) for way, some in durations.items()}
    summary = {**medians, "throughput": round(medians["own"] / medians["environment"], 3)}
    print(f"{function.name:12} {summary}", flush=True)
    return summary


def seconds(act: Callable[[], object]) -> float:
    """Returns the duration of a call."""
    began = time.perf_counter()
    act()
    return round(time.perf_counter() - began, 3)


if __name__ == "__main__":
    main()
