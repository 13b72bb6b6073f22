"""Compares loads of columns with Spark's own join: `python -m benchmarks.load [--rows 20000000]
[--memory 4g]`.

A table of an id, a key and a text gets a score and a vector of 16 floats from Parquet files with as
many rows, matched by key. One case
uses another row order than the table, which shuffles values. The other case uses the same order,
without a shuffle. For comparison, Spark
joins the same rows as Parquet, and rewrites all of them as Parquet. Driver and executor share one
JVM of `--memory`. Each load runs in a
separate process, and the peak includes its Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.report import make_parser, write_report

_DIMENSIONS = 16
_FRAGMENTS = 20
_CASES = ("load, other order", "load, same order", "parquet, other order", "parquet, same order")


def main() -> None:
    """Makes the data, runs the cases in turn, and writes `load.json`."""
    parser = make_parser("load", __doc__)
    parser.add_argument(
        "--rows", type=int, default=20_000_000, help="rows of the table, and of the source"
    )
    parser.add_argument("--memory", default="4g", help="memory of the JVM")
    parser.add_argument(
        "--data", type=Path, help="keep the tables in this folder, and take those that are there"
    )
    parser.add_argument(
        "--only", action="append", choices=_CASES, help="run only this case; repeatable"
    )
    parser.add_argument("--case", choices=_CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run(arguments.case, arguments.data, arguments.memory)))
        return
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as temporary:
        folder = arguments.data or Path(temporary)
        if not (folder / "table.lance").exists():
            make(folder, arguments.rows)
        results = {}
        for case in arguments.only or _CASES:
            command = [
                sys.executable,
                "-m",
                "benchmarks.load",
                "--case",
                case,
                "--data",
                str(folder),
            ]
            environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
            process = subprocess.run(
                [*command, "--memory", arguments.memory],
                stdout=subprocess.PIPE,
                env=environment,
                check=True,
            )
            results[case] = json.loads(process.stdout.splitlines()[-1])
            print(f"{case:22} {results[case]}", flush=True)
    report = {
        "rows": arguments.rows,
        "memory": arguments.memory,
        "cpus": os.cpu_count(),
        "cases": results,
    }
    write_report(arguments, "load", report)


def make(folder: Path, rows: int) -> None:
    """Writes the table, as Lance and as Parquet, and the source in both orders."""
    import lance
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    step = rows // _FRAGMENTS
    shuffled = np.random.default_rng(1).permutation(rows)
    for kind in ("table.parquet", "same.parquet", "other.parquet"):
        (folder / kind).mkdir(exist_ok=True)
    for number in range(_FRAGMENTS):
        ids = np.arange(number * step, (number + 1) * step)
        table = pa.table({"id": ids, "text": pa.array(ids).cast(pa.string())})
        lance.write_dataset(
            table,
            folder / "new.lance",
            mode="append" if number else "create",
            enable_stable_row_ids=True,
        )
        pq.write_table(table, folder / "table.parquet" / f"{number:03}.parquet")
        for kind, keys in (("same", ids), ("other", shuffled[number * step : (number + 1) * step])):
            vectors = np.repeat(keys.astype(np.float32), _DIMENSIONS) + np.tile(
                np.arange(_DIMENSIONS), len(keys)
            )
            values = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.astype(np.float32)), _DIMENSIONS
            )
            source = pa.table({"id": keys, "score": keys * 0.5, "vector": values})
            pq.write_table(
                source, folder / f"{kind}.parquet" / f"{number:03}.parquet", row_group_size=200_000
            )
    (folder / "new.lance").rename(folder / "table.lance")


def run(case: str, folder: Path, memory: str) -> dict[str, Any]:
    """Runs a case in this process. Returns seconds, peak memory, and bytes written."""
    from pyspark.sql import SparkSession

    import lance_spark

    what, _, order = case.partition(", ")
    source = folder / f"{order.split()[0]}.parquet"
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-", dir=folder) as scratch:
        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", memory)
        builder = builder.config("spark.local.dir", f"{scratch}/spark").config(
            "spark.ui.enabled", "false"
        )
        spark = lance_spark.configure(
            builder.config("spark.ui.showConsoleProgress", "false")
        ).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        peak = Peak()
        if what == "load":
            shutil.copytree(folder / "table.lance", Path(scratch) / "table.lance")
            table = lance_spark.connect(scratch, spark, progress=False).open_table("table")
            before, began = _bytes(Path(table.uri)), time.perf_counter()
            job = table.load_columns_async(str(source), "id", ["score", "vector"])
            job_result = job.result()
            seconds = time.perf_counter() - began
            assert job_result.rows_computed == table.count_rows("score = id * 0.5"), job_result
            bytes_written = _bytes(Path(table.uri)) - before
        else:
            began = time.perf_counter()
            rows = spark.read.parquet(str(folder / "table.parquet")).join(
                spark.read.parquet(str(source)), "id", "left"
            )
            rows.write.parquet(f"{scratch}/joined.parquet")
            seconds = time.perf_counter() - began
            bytes_written = _bytes(Path(scratch) / "joined.parquet")
        return {
            "seconds": round(seconds, 1),
            "peak_mib": peak.stop(),
            "written_mib": bytes_written >> 20,
        }


class Peak:
    """Samples the memory of this process and its descendants every half second, and keeps the
    maximum."""

    def __init__(self) -> None:
        self._most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stops sampling, and returns MiB."""
        self._over.set()
        self._thread.join()
        return self._most >> 20

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._over.wait(0.5):
            used = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    used += process.memory_full_info().uss
                except psutil.Error:
                    continue
            self._most = max(self._most, used)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
