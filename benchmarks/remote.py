"""Counts the requests of each operation to an object store, and their serial round trips: `python
-m benchmarks.remote [--fragments 10 100] [--latency 20 50] [--many 1000] [--show]`.

The store is the S3 server of the tests, on this machine. The server logs every request of all
processes, and delays each reply by the latency. The number of serial round trips is the time with
at least one request in flight, divided by the latency. pylance runs the same operation on a twin of
the table, where pylance has this operation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.report import describe_machine, make_parser, write_report
from lance_spark import UDF, udf
from tests.object_stores.counted_operations import (
    OPERATIONS,
    CountedOperation,
    RemoteTable,
    add_column_with_pylance,
)
from tests.object_stores.request_counts import METHODS, count_requests
from tests.object_stores.servers import TABLES, fail, s3_server

PEER = "pylance"
MANY_SLOTS = 8
"""Number of concurrent tasks on the table of many fragments."""
_MANY_LATENCY_MS = 50
_MANY_ROWS = 10

Numbers = dict[str, Any]


def main() -> None:
    """Runs the parts, and writes `remote.json`."""
    parser = make_parser("remote", __doc__)
    parser.add_argument(
        "--fragments", type=int, nargs="*", default=[10, 100], help="fragments of the tables"
    )
    parser.add_argument(
        "--latency", type=int, nargs="*", default=[20, 50], help="milliseconds per request"
    )
    parser.add_argument(
        "--many", type=int, default=1000, help="fragments of the table with small files, or 0"
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results of the last run"
    )
    arguments = parser.parse_args()
    if not arguments.show:
        for report in measure(arguments.fragments, arguments.latency, arguments.many):
            write_report(arguments, "remote", report)
    show(json.loads((arguments.out / "remote.json").read_text()))


def measure(fragments: list[int], latencies: list[int], many: int) -> Iterator[Numbers]:
    """Yields the numbers after each part, so that an interrupted run keeps its results."""
    report: Numbers = {
        "machine": {**describe_machine(), "load": os.getloadavg()[0]},
        "versions": {"pylance": lance.__version__, "pyspark": pyspark.__version__},
        "requests": {},
        "round_trips": {},
    }
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        spark = session(2, folder)
        for count in fragments:
            report["requests"][count] = run(
                spark, Path(folder), OPERATIONS, fragments=count, latency_ms=0
            )
            yield report
        for latency in latencies:
            results = run(
                spark, Path(folder), OPERATIONS, fragments=min(fragments), latency_ms=latency
            )
            report["round_trips"][latency] = results
            yield report
        spark.stop()
        if many:
            spark = session(MANY_SLOTS, folder)
            report["many"] = measure_many(spark, Path(folder), many)
            spark.stop()
            yield report


def session(slots: int, folder: str) -> SparkSession:
    """Returns a session with the settings of `configure`."""
    builder = (
        SparkSession.builder.master(f"local[{slots}]")
        .appName("remote")
        .config("spark.driver.memory", "2g")
    )
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.local.dir", f"{folder}/local"
    )
    builder = builder.config("spark.sql.shuffle.partitions", "2").config(
        "spark.sql.session.timeZone", "UTC"
    )
    spark = lance_spark.configure(
        builder.config("spark.ui.showConsoleProgress", "false")
    ).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(
    spark: SparkSession,
    folder: Path,
    operations: Mapping[str, CountedOperation],
    *,
    latency_ms: int,
    fragments: int,
    rows: int = 100,
) -> Numbers:
    """Runs the operations on a new table in a new store, with pylance and the package in turn."""
    results: Numbers = {}
    with s3_server(folder) as storage:
        small = RemoteTable(spark=spark, root=f"s3://{TABLES}", storage=storage, fragments=2)
        small.make()
        small.append(small.read())
        remote = RemoteTable(
            spark=spark, root=f"s3://{TABLES}", storage=storage, fragments=fragments, rows=rows
        )
        remote.make()
        for name, operation in operations.items():
            operation.prepare(remote)
            result = results[name] = {"ours": measure_call(remote, operation.act, latency_ms)}
            if operation.peer is not None:
                result[PEER] = measure_call(remote, operation.peer, latency_ms)
            print(f"{fragments} fragments, {latency_ms} ms, {name}: {result}", flush=True)
    return results


def measure_call(
    remote: RemoteTable, act: Callable[[RemoteTable], object], latency_ms: int
) -> Numbers:
    """Returns the numbers of a call."""
    latency_s = latency_ms / 1000
    fail(remote.storage, latency_s=latency_s)
    began = time.time()
    call = count_requests(
        remote.storage, lambda: (act(remote), time.time())[1], latency_s=latency_s
    )
    fail(remote.storage)
    first_call = first_call_s(remote)
    numbers = {
        "requests": call.total,
        "by_method": call.by_method,
        "read_bytes": call.read_bytes,
        "written_bytes": call.written_bytes,
        "seconds": round(call.result - began, 2),
    }
    if latency_s:
        numbers["round_trips"] = round(call.busy_s() / latency_s)
        if first_call is not None and first_call > began:
            numbers["round_trips_before_first_call"] = round(
                call.busy_s(until=first_call) / latency_s
            )
    return numbers


def first_call_s(remote: RemoteTable) -> float | None:
    """Returns the time of the first call of the UDF."""
    path = note_of(remote)
    return float(path.read_text()) if path.exists() else None


def note_of(remote: RemoteTable) -> Path:
    return Path(tempfile.gettempdir()) / f"lance-spark-remote-{os.getpid()}-{remote.number}"


def noting_letters(remote: RemoteTable) -> UDF:
    """Returns a UDF that notes the time of its first call."""
    path = str(note_of(remote))

    @udf(data_type=pa.int64(), version="1")
    def letters(text: pa.Array) -> pa.Array:
        import contextlib
        import time

        with contextlib.suppress(FileExistsError), open(path, "x") as note:
            note.write(str(time.time()))
        return pc.cast(pc.utf8_length(text), "int64")

    return letters


MANY = {
    "count(*)": OPERATIONS["count(*)"],
    "DataFrame backfill": OPERATIONS["DataFrame backfill"],
    "first backfill": CountedOperation(
        prepare=lambda remote: remote.table.add_columns({"letters": noting_letters(remote)}),
        act=lambda remote: remote.table.backfill("letters"),
    ),
    "backfill, nothing to do": OPERATIONS["backfill, nothing to do"],
    "update of one row": OPERATIONS["update of one row"],
    # The twin has no column of the first backfill: as many files make a comparison of compactions.
    "compact_files": dataclasses.replace(
        OPERATIONS["compact_files"], prepare=add_column_with_pylance
    ),
}


def measure_many(spark: SparkSession, folder: Path, fragments: int) -> Numbers:
    """Returns the numbers of a table with many small fragments."""
    results = run(
        spark, folder, MANY, fragments=fragments, rows=_MANY_ROWS, latency_ms=_MANY_LATENCY_MS
    )
    for note in Path(tempfile.gettempdir()).glob(f"lance-spark-remote-{os.getpid()}-*"):
        note.unlink()
    return {
        "fragments": fragments,
        "slots": MANY_SLOTS,
        "latency_ms": _MANY_LATENCY_MS,
        "operations": results,
    }


def show(report: Numbers) -> None:
    """Prints the tables of the page."""
    counts = report["requests"]
    methods = " / ".join(METHODS)
    print(
        "| operation |",
        " | ".join(f"{count} fragments | pylance" for count in counts),
        f"| {methods} |",
    )
    print("| --- |", " --- | --- |" * len(counts), "--- |", sep="")
    largest = list(counts)[-1]
    for name in counts[largest]:
        cells = [cell for count in counts for cell in pair(counts[count].get(name, {}), "requests")]
        by_method = counts[largest][name]["ours"]["by_method"]
        print(
            f"| {name} |",
            " | ".join(cells),
            "|",
            " / ".join(str(by_method.get(m, 0)) for m in METHODS),
            "|",
        )
    print()
    latencies = report["round_trips"]
    print(
        "| operation |",
        " | ".join(f"{latency} ms | pylance | s | pylance" for latency in latencies),
        "|",
    )
    print("| --- |", " --- | --- | --- | --- |" * len(latencies), sep="")
    for name in OPERATIONS:
        results = [result[name] for result in latencies.values()]
        print(
            f"| {name} |",
            " | ".join(" | ".join(pair(r, "round_trips") + pair(r, "seconds")) for r in results),
            "|",
        )
    if many := report.get("many"):
        print(f"\n{many['fragments']} fragments, {many['latency_ms']} ms, {many['slots']} slots:")
        print(
            "| operation | requests | pylance | serial round trips | pylance | before the first call |"
        )
        print("| --- | --- | --- | --- | --- | --- |")
        for name, result in many["operations"].items():
            first_call = result["ours"].get("round_trips_before_first_call", "")
            print(
                f"| {name} |",
                " | ".join(pair(result, "requests") + pair(result, "round_trips")),
                f"| {first_call} |",
            )


def pair(result: Numbers, number: str) -> list[str]:
    """Returns a number of the package and of pylance, as texts."""
    return [str(result.get(who, {}).get(number, "")) for who in ("ours", PEER)]


if __name__ == "__main__":
    main()
