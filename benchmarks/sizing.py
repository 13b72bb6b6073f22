"""Compares the model of a backfill's time and requests with measured jobs: `python -m
benchmarks.sizing [--show]`.

The store is the S3 server of the tests, on this machine, with delayed replies. A first job fills a
fragment, and its speed goes into the estimate of the other fragments.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.remote import session
from benchmarks.report import describe_machine, make_parser, write_report
from lance_spark import UDF, udf
from tests.object_stores.counted_operations import RemoteTable
from tests.object_stores.request_counts import count_requests
from tests.object_stores.servers import TABLES, fail, s3_server

_SLOTS = 8
_ACCURACY = 0.25
"""Maximum difference between estimate and measurement, as a share of the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRun:
    """A job with a single bottleneck.

    Attributes:
        fragments: Fragments of the table.
        rows: Rows per fragment.
        latency_s: Seconds of a request.
        row_s: Seconds of a row in the UDF.
        commit_granularity: Fragments per commit.
    """

    fragments: int
    rows: int
    latency_s: float
    row_s: float = 0.0
    commit_granularity: int = 64


RUNS = {
    "requests of many fragments": SizedRun(fragments=800, rows=10, latency_s=0.1),
    "calls of a slow UDF": SizedRun(fragments=40, rows=100, latency_s=0.02, row_s=0.04),
    "many commits": SizedRun(fragments=200, rows=10, latency_s=0.1, commit_granularity=4),
}


def make_sleeper(row_s: float) -> UDF:
    """Returns a UDF of some seconds per row."""

    @udf(data_type=pa.int64(), version="1", batch_size=20)
    def letters(text: pa.Array) -> pa.Array:
        time.sleep(row_s * len(text))
        return pa.array([len(value) for value in text.to_pylist()])

    return letters


def main() -> None:
    """Runs the jobs, and writes `sizing.json`."""
    parser = make_parser("sizing", __doc__)
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results of the last run"
    )
    arguments = parser.parse_args()
    if not arguments.show:
        report: dict[str, Any] = {
            "machine": {**describe_machine(), "load": os.getloadavg()[0]},
            "runs": {},
        }
        with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
            spark = session(_SLOTS, folder)
            for name, run in RUNS.items():
                report["runs"][name] = measure(spark, Path(folder), run)
                write_report(arguments, "sizing", report)
            spark.stop()
    show(json.loads((arguments.out / "sizing.json").read_text()))


def measure(spark: SparkSession, folder: Path, run: SizedRun) -> dict[str, float]:
    """Returns the estimate and the measurement of a job."""
    with s3_server(folder) as storage:
        root = f"s3://{TABLES}"
        remote = RemoteTable(
            spark=spark, root=root, storage=storage, fragments=run.fragments, rows=run.rows
        )
        remote.make()
        table = remote.table
        table.add_columns({"letters": make_sleeper(run.row_s)})
        fail(storage, latency_s=run.latency_s)
        table.backfill("letters", num_frags=1, concurrency=_SLOTS)
        plan = table.plan_backfill("letters", concurrency=_SLOTS)
        estimate = plan.estimate(
            slots=_SLOTS,
            latency_s=run.latency_s,
            jobs=table.list_jobs(),
            commit_granularity=run.commit_granularity,
        )
        began = time.perf_counter()
        call = count_requests(
            storage,
            lambda: table.backfill(
                "letters", concurrency=_SLOTS, commit_granularity=run.commit_granularity
            ),
            latency_s=run.latency_s,
        )
        seconds = time.perf_counter() - began
        fail(storage)
    requests = estimate.reads + estimate.writes
    return {
        "seconds": seconds,
        "estimated_seconds": estimate.seconds,
        "requests": call.total,
        "estimated_requests": requests,
        "round_trips": call.busy_s() / run.latency_s,
    }


def show(report: dict[str, Any]) -> None:
    """Prints the table of docs/sizing.md."""
    print("| job | seconds | estimate | requests | estimate | within 25 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, run in report["runs"].items():
        pairs = (
            (run["estimated_seconds"], run["seconds"]),
            (run["estimated_requests"], run["requests"]),
        )
        verdict = "yes" if all(abs(a - b) <= _ACCURACY * b for a, b in pairs) else "NO"
        print(
            f"| {name} | {run['seconds']:.1f} | {run['estimated_seconds']:.1f} | {run['requests']:,} | "
            f"{run['estimated_requests']:,} | {verdict} |"
        )


if __name__ == "__main__":
    main()
