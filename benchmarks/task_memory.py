"""Measures the memory of tasks with large rows: `python -m benchmarks.task_memory [--gigabytes 1.0]
[--buffers 512 128] [--only NAME ...]`.

Each table has a single fragment. A backfill of a row number shows the memory of a worker without
large rows, and the next backfills read the large rows: as Arrow arrays, and as a Python value per
call. A separate process makes the table.

The last case is the largest row that a DataFrame copies into a new column, with a driver's heap of 4 GiB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.report import add_only, describe_machine, is_chosen, make_parser, write_report
from benchmarks.table_api_memory import spark_kind, watched
from lance_spark import UDF, udf

_BLOB = {"lance-encoding:blob": "true"}
_LIST_SIZE = 100_000
_WRITTEN_BYTES = 50_000_000

ROW_BYTES = {
    "blobs of 50 KB": 50_000,
    "blobs of 50 KB, format 2.2": 50_000,
    "blobs of 10 MB": 10_000_000,
    "texts of 10 MB": 10_000_000,
    "images of 300 KB": 300_000,
    "lists of 100,000 numbers": 8 * _LIST_SIZE,
    "a row of 500 MB": 500_000_000,
}

LARGEST_ROW = "largest row of a DataFrame"
_ROW_MB = (400, 800, 1000, 1500, 1800, 2100)
_HEAP = "4g"


def schema_of(name: str) -> pa.Schema:
    """Returns the schema of a case's table."""
    column = pa.field("value", pa.large_binary())
    if name == "blobs of 50 KB, format 2.2":
        column = lance.blob.blob_field("value")
    elif name.startswith("blobs"):
        column = pa.field("value", pa.large_binary(), metadata=_BLOB)
    elif name.startswith("texts"):
        column = pa.field("value", pa.large_string())
    elif name.startswith("lists"):
        column = pa.field("value", pa.list_(pa.float64()))
    return pa.schema([pa.field("id", pa.int64()), column])


def make_table(name: str, path: str, rows: int) -> None:
    """Makes a table with a single fragment."""
    schema, size = schema_of(name), ROW_BYTES[name]
    random = np.random.default_rng(0)
    step = max(1, _WRITTEN_BYTES // size)
    content = random.bytes(size + rows)

    def make_values(ids: range) -> Any:
        if name.startswith("lists"):
            offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * _LIST_SIZE)
            return pa.ListArray.from_arrays(
                offsets, pa.array(random.standard_normal(len(ids) * _LIST_SIZE))
            )
        if name.startswith("texts"):
            return pa.array([content[i : i + size // 2].hex() for i in ids], pa.large_string())
        values = [content[i : i + size] for i in ids]
        return (
            lance.blob.blob_array(values)
            if name.endswith("2.2")
            else pa.array(values, pa.large_binary())
        )

    def make_batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, step):
            ids = range(first, min(rows, first + step))
            yield pa.record_batch([pa.array(ids, pa.int64()), make_values(ids)], schema=schema)

    version = "2.2" if name.endswith("2.2") else "2.1"
    lance.write_dataset(
        make_batches(),
        path,
        schema=schema,
        max_rows_per_file=max(rows, 1),
        max_bytes_per_file=1 << 50,
        data_storage_version=version,
        enable_stable_row_ids=True,
    )


def length_udfs(name: str) -> dict[str, UDF]:
    """Returns UDFs with the length of the large values, by the form of their argument."""
    kind = list[float] if name.startswith("lists") else str if name.startswith("texts") else bytes

    def count(value: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        lengths: Any = (
            pc.list_value_length(value) if pa.types.is_list(value.type) else pc.binary_length(value)
        )
        return lengths.cast(pa.int64())

    def length(value: Any) -> int:
        return len(value)

    length.__annotations__ = {"value": kind, "return": int}
    return {"arrow": udf(count, data_type=pa.int64()), "python": udf(length)}


def measure(
    spark: SparkSession, folder: str, name: str, gigabytes: float, buffers: list[int]
) -> dict[str, int]:
    """Returns the peak megabytes of the largest worker by backfill."""
    rows = max(1, int(gigabytes * 1e9 / ROW_BYTES[name]))
    if name.startswith("a row"):
        rows = 1
    path = f"{folder}/t.lance"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.task_memory", "--make", name, path, str(rows)],
        check=True,
    )
    table = lance_spark.connect(folder, spark, progress=False).open_table("t")

    def number(id: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return id

    report = {"idle": _peak_of(table, "idle", udf(number, data_type=pa.int64()), {})}
    for buffer_mib in buffers if name.startswith("blobs") else [512]:
        for form, function in length_udfs(name).items():
            column = f"{form}_{buffer_mib}"
            report[column] = _peak_of(
                table, column, function, {"blob_read_buffer_size": buffer_mib << 20}
            )
    return report


def _peak_of(table: lance_spark.Table, column: str, function: UDF, options: dict[str, Any]) -> int:
    table.add_columns({column: function})
    with watched([os.getpid()], spark_kind) as peaks:
        table.backfill(column, **options)
    return peaks.largest("worker") // 1_000_000


def copy_row(folder: str, megabytes: int) -> None:
    """Writes a row, and copies its bytes into a new column by a DataFrame."""
    path = f"{folder}/{megabytes}.lance"
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.large_binary())])
    row = pa.table([[0], [bytes(megabytes * 1_000_000)]], schema=schema)
    lance.write_dataset(row, path, enable_stable_row_ids=True)
    spark = start_session(_HEAP)
    rows = spark.read.format("lance").option("with_row_address", True).load(path)
    copy = rows.selectExpr("_rowaddr", "value AS copy")
    copy.write.format("lance").mode("append").option("mode", "backfill").save(path)
    spark.stop()


def largest_row() -> int:
    """Returns the megabytes of the largest row that a DataFrame copies, or 0 if none."""
    largest = 0
    for megabytes in _ROW_MB:
        with tempfile.TemporaryDirectory(prefix="lance-spark-memory-") as folder:
            command = [
                sys.executable,
                "-m",
                "benchmarks.task_memory",
                "--copy",
                folder,
                str(megabytes),
            ]
            if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
                break
        largest = megabytes
    return largest


def start_session(heap: str) -> SparkSession:
    """Returns a session with one core and a heap of this size."""
    builder = (
        SparkSession.builder.master("local[1]")
        .appName("task memory")
        .config("spark.driver.memory", heap)
    )
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.ui.showConsoleProgress", "false"
    )
    spark = lance_spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    """Runs the cases, and writes `task_memory.json`."""
    if sys.argv[1:2] == ["--make"]:
        make_table(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    if sys.argv[1:2] == ["--copy"]:
        copy_row(sys.argv[2], int(sys.argv[3]))
        return
    parser = make_parser("task_memory", __doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of each fragment")
    parser.add_argument(
        "--buffers", type=int, nargs="+", default=[512, 128], help="MiB of blob_read_buffer_size"
    )
    add_only(parser)
    arguments = parser.parse_args()
    spark = start_session("1g")
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "gigabytes": arguments.gigabytes,
        "peak_mb": {},
    }
    for name in ROW_BYTES:
        if is_chosen(name, arguments):
            with tempfile.TemporaryDirectory(prefix="lance-spark-memory-") as folder:
                report["peak_mb"][name] = measure(
                    spark, folder, name, arguments.gigabytes, arguments.buffers
                )
            print(name, report["peak_mb"][name], flush=True)
            write_report(arguments, "task_memory", report)
    spark.stop()
    if is_chosen(LARGEST_ROW, arguments):
        report["largest_row_mb"] = largest_row()
        print(LARGEST_ROW, report["largest_row_mb"], flush=True)
        write_report(arguments, "task_memory", report)


if __name__ == "__main__":
    main()
