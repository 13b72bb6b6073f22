"""Measures operations on tables that are extreme in one thing: `python -m benchmarks.extremes
[--scale 1.0] [--only columns ...] [--show]`.

Five tables: 100,000 fragments, 10,000 versions of 10 fragments, 5,000 columns in 10 fragments,
1,000 jobs in the history, and 200 tags with 50 branches. Each operation runs once on each table,
and once on a table of a quarter of the size. The growth is the exponent of the CPU seconds between
the two sizes: 0 for a constant cost, 1 for a linear cost, 2 for a quadratic cost. The CPU seconds
and the peak memory cover the driver, the JVM and Spark's Python workers.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lance_spark
from benchmarks.report import add_scale, describe_machine, make_parser, write_report
from benchmarks.table_api_memory import cpu_seconds, spark_kind, watched
from lance_spark import Table, udf

_FRAGMENTS, _ROWS = 10, 10
_MOST_LINKS = 30_000
"""Hard links to one file. File systems allow 65,000."""

_QUARTER = 4
_STEEP, _LEAST_S = 1.5, 2.0
"""A growth above this exponent is reported if the operation takes at least this many CPU seconds."""

Operation = Callable[[], object]
Numbers = dict[str, Any]


def main() -> None:
    """Measures all tables, and writes `extremes.json`."""
    parser = make_parser("extremes", __doc__)
    add_scale(parser, "100,000 fragments, ...")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(TABLES),
        help="measure only this table; repeatable",
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results of the last run"
    )
    arguments = parser.parse_args()
    file = arguments.out / "extremes.json"
    report: Numbers = json.loads(file.read_text()) if file.exists() else {}
    for name in () if arguments.show else arguments.only or TABLES:
        report[name] = compare(name, arguments.scale)
        write_report(arguments, "extremes", report)
    print_tables(report)


def compare(name: str, scale: float) -> Numbers:
    """Measures a table, and the same table with a quarter of its size."""
    size = max(_QUARTER, int(TABLES[name][0] * scale))
    quarter, whole = (_in_new_process(name, part) for part in (size // _QUARTER, size))
    cases = {
        case: {**numbers, "growth": _growth(quarter[case], numbers)}
        for case, numbers in whole.items()
    }
    return {"size": size, "machine": describe_machine(), "cases": cases, "quarter": quarter}


def _growth(quarter: Numbers, whole: Numbers) -> float | None:
    if "error" in quarter or "error" in whole or not quarter["cpu_s"]:
        return None
    return round(math.log(max(whole["cpu_s"], 0.01) / quarter["cpu_s"], _QUARTER), 2)


def _in_new_process(name: str, size: int) -> dict[str, Numbers]:
    """Measures in a process with its own session, so that no other table counts."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name, size).result()


def measure(name: str, size: int) -> dict[str, Numbers]:
    """Returns the numbers of each operation on a table."""
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        spark = _start_session(folder)
        _warm_up(spark, folder)
        began = time.perf_counter()
        table = TABLES[name][1](spark, folder, size)
        print(f"{name} of {size:,}: made in {time.perf_counter() - began:.1f} s", flush=True)
        cases = {
            case: _run(f"{name} of {size:,}: {case}", operation)
            for case, operation in operations(spark, table)
        }
        spark.stop()
    return cases


def _run(title: str, operation: Operation) -> Numbers:
    began, cpu = time.perf_counter(), cpu_seconds(os.getpid())
    numbers: Numbers = {}
    with watched([os.getpid()], spark_kind) as peaks:
        try:
            operation()
        except Exception as error:  # noqa: BLE001 - further operations still run
            numbers["error"] = f"{type(error).__name__}: {error}"[:300]
    numbers["seconds"] = round(time.perf_counter() - began, 3)
    numbers["cpu_s"] = round(cpu_seconds(os.getpid()) - cpu, 3)
    numbers["mib"] = {kind: peaks.largest(kind) >> 20 for kind in ("driver", "jvm", "worker")}
    print(f"{title:70} {numbers}", flush=True)
    return numbers


def _start_session(folder: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("extremes")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
    )
    spark = lance_spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lance_spark.catalog(spark, "lake", folder)
    return spark


def _warm_up(spark: SparkSession, folder: str) -> None:
    """Runs all operations on a small table, so that the JVM and the workers are warm."""
    _write(f"{folder}/warm.lance", 3)
    for _, operation in operations(
        spark, lance_spark.connect(folder, spark, progress=False).open_table("warm")
    ):
        operation()


# Tables


def _rows(first: int, count: int, columns: int = 0) -> pa.Table:
    ids = np.arange(first, first + count)
    more = {f"c{number}": ids * 1.0 for number in range(columns)}
    return pa.table(
        {"id": ids, "x": ids * 0.5, "text": [f"text {number}" for number in ids], **more}
    )


def _write(uri: str, fragments: int, columns: int = 0) -> None:
    rows = _rows(0, fragments * _ROWS, columns)
    lance.write_dataset(rows, uri, max_rows_per_file=_ROWS, enable_stable_row_ids=True)


def _open(spark: SparkSession, folder: str) -> Table:
    return lance_spark.connect(folder, spark, progress=False).open_table("table")


def make_fragments(spark: SparkSession, folder: str, size: int) -> Table:
    """Makes a table of many fragments. Their files are hard links to a few files of ten rows.

    The first fragment has its own ids, so that a condition on them has one row.
    """
    uri = f"{folder}/table.lance"
    _write(uri, 1)
    rows = _rows(_ROWS, _ROWS)
    fragments: list[FragmentMetadata] = []
    for first in range(1, size, _MOST_LINKS):
        template = lance.LanceFragment.create(uri, rows, fragment_id=0)
        path, description = template.files[0].path, template.to_json()
        for number in range(first, min(first + _MOST_LINKS, size)):
            name = f"{number:040x}.lance"
            os.link(f"{uri}/data/{path}", f"{uri}/data/{name}")
            files = [{**description["files"][0], "path": name}]
            fragments.append(
                FragmentMetadata.from_json(json.dumps({**description, "files": files}))
            )
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=1)
    return _open(spark, folder)


def make_versions(spark: SparkSession, folder: str, size: int) -> Table:
    """Makes a table of many versions."""
    uri = f"{folder}/table.lance"
    _write(uri, _FRAGMENTS)
    dataset = lance.dataset(uri)
    for number in range(size - 1):
        dataset.update_config({"number": str(number)})
    return _open(spark, folder)


def make_columns(spark: SparkSession, folder: str, size: int) -> Table:
    """Makes a table of many columns."""
    _write(f"{folder}/table.lance", _FRAGMENTS, size)
    return _open(spark, folder)


def make_jobs(spark: SparkSession, folder: str, size: int) -> Table:
    """Makes a table with many jobs of one row each in its history."""
    _write(f"{folder}/table.lance", _FRAGMENTS)
    table = _open(spark, folder)
    table.add_columns({"earlier": letters})
    for number in range(size):
        table.backfill("earlier", where=f"id = {number % (_FRAGMENTS * _ROWS)}")
    return table


def make_names(spark: SparkSession, folder: str, size: int) -> Table:
    """Makes a table of many tags, and of a branch for every fourth tag."""
    uri = f"{folder}/table.lance"
    _write(uri, _FRAGMENTS)
    for number in range(size):
        dataset = lance.dataset(uri)
        dataset.update_config({"number": str(number)})
        dataset.tags.create(f"tag{number}", dataset.version)
        if number % 4 == 0:
            dataset.create_branch(f"branch{number}", dataset.version)
    return _open(spark, folder)


TABLES: Mapping[str, tuple[int, Callable[[SparkSession, str, int], Table]]] = {
    "fragments": (100_000, make_fragments),
    "versions": (10_000, make_versions),
    "columns": (5_000, make_columns),
    "jobs": (1_000, make_jobs),
    "names": (200, make_names),
}


# Operations


@udf(data_type=pa.int64())
def letters(text: pa.Array) -> pa.Array:
    """Returns the lengths of texts."""
    return pc.cast(pc.utf8_length(text), "int64")


def operations(spark: SparkSession, table: Table) -> Iterator[tuple[str, Operation]]:
    """Yields the operations of docs/performance.md in an order in which each has work to do."""
    yield from _reads(spark, table)
    yield from _writes(spark, table)
    yield from _backfills(table)
    yield from _statements(spark, table, "", 8)
    yield "create_scalar_index", lambda: table.create_scalar_index("id")
    yield from _statements(spark, table, ", index", 6)
    yield from _views(spark, table)
    yield from _history(spark, table)
    yield from _upkeep(table)


def _load(spark: SparkSession, table: Table, **options: str) -> DataFrame:
    return spark.read.format("lance").options(**options).load(table.uri)


def _reads(spark: SparkSession, table: Table) -> Iterator[tuple[str, Operation]]:
    yield "load", lambda: _load(spark, table).schema
    yield "count(*)", lambda: _load(spark, table).count()
    yield "sum of one column", lambda: _load(spark, table).selectExpr("sum(x)").collect()
    yield "filter, one column", lambda: _load(spark, table).filter("id = 3").select("x").collect()
    yield "limit 10", lambda: _load(spark, table).limit(10).collect()


def _writes(spark: SparkSession, table: Table) -> Iterator[tuple[str, Operation]]:
    new = spark.range(0, 20, 1, 2).selectExpr(
        "id + 100000000 AS id", "id * 0.5D AS x", "'new' AS text"
    )
    insert = f"INSERT INTO lake.{table.name} (id, x) VALUES (200000000, 1.0)"

    def fill() -> None:
        length = _load(spark, table, with_row_address="true").select(
            "_rowaddr", sf.length("text").alias("length")
        )
        length.write.format("lance").mode("append").option("mode", "backfill").save(table.uri)

    yield "append of 2 tasks", lambda: new.write.format("lance").mode("append").save(table.uri)
    yield "SQL INSERT VALUES", lambda: spark.sql(insert)
    yield "DataFrame backfill", fill


def _backfills(table: Table) -> Iterator[tuple[str, Operation]]:
    ids = np.arange(0, 1_000, 3)
    source = pa.table({"id": ids, "score": ids * 1.0})
    yield "add_columns", lambda: table.add_columns({"letters": letters})
    yield "plan_backfill", lambda: table.plan_backfill("letters")
    yield "first backfill", lambda: table.backfill("letters")
    yield "backfill where 1=1", lambda: table.backfill("letters", where="1=1")
    yield "backfill, nothing to do", lambda: table.backfill("letters")
    yield "load_columns", lambda: table.load_columns(source, pk="id", columns=["score"])


def _statements(
    spark: SparkSession, table: Table, suffix: str, deleted: int
) -> Iterator[tuple[str, Operation]]:
    name = f"lake.{table.name}"
    merge = (
        f"MERGE INTO {name} t USING (SELECT 4L AS id, 2.5D AS x) s ON t.id = s.id WHEN MATCHED THEN UPDATE "
        "SET x = s.x WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, s.x)"
    )
    upsert = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    yield (
        f"point look-up{suffix}",
        lambda: spark.sql(f"SELECT x FROM {name} WHERE id = 1").collect(),
    )
    yield f"t.update of one row{suffix}", lambda: table.update("id = 7", values_sql={"x": "x + 1"})
    yield f"t.delete of one row{suffix}", lambda: table.delete(f"id = {deleted}")
    yield f"t.merge_insert of one row{suffix}", lambda: upsert.execute([{"id": 9, "x": 1.5}])
    yield (
        f"SQL UPDATE of one row{suffix}",
        lambda: spark.sql(f"UPDATE {name} SET x = x + 1 WHERE id = 2"),
    )
    yield f"SQL MERGE of one row{suffix}", lambda: spark.sql(merge)


def _views(spark: SparkSession, table: Table) -> Iterator[tuple[str, Operation]]:
    folder = table.uri.rpartition("/")[0]
    db, name = lance_spark.connect(folder, spark, progress=False), f"view_of_{table.name}"
    query = table.search(None).select({"id": "id", "y": "x * 2", "length": letters})
    yield "create a view", lambda: query.create_materialized_view(db, name)
    yield "refresh, first", lambda: db.open_table(name).refresh()
    yield "refresh, nothing", lambda: db.open_table(name).refresh()
    lance.dataset(table.uri).update({"x": "x + 100"}, where="id = 5")
    yield "refresh, one row", lambda: db.open_table(name).refresh()


def _history(spark: SparkSession, table: Table) -> Iterator[tuple[str, Operation]]:
    moment = datetime.now(UTC).isoformat()
    newest = f"SELECT version FROM lake.{table.name}.versions ORDER BY version DESC LIMIT 3"
    yield "timestamp", lambda: _load(spark, table, timestamp=moment).count()
    yield "three newest versions", lambda: spark.sql(newest).collect()
    yield "list_jobs", table.list_jobs
    yield "list of tags and branches", lambda: (table.tags.list(), table.branches.list())
    yield "stats", table.stats


def _upkeep(table: Table) -> Iterator[tuple[str, Operation]]:
    yield (
        "cleanup of dead jobs",
        lambda: lance_spark.cleanup(table.uri, older_than=timedelta(days=7)),
    )
    yield "compact_files", table.compact_files
    yield "optimize_indices", table.optimize_indices


def print_tables(report: Numbers) -> None:
    """Prints a Markdown table for each table, and the operations with a steep growth."""
    for name, table in report.items():
        print(f"\n{table['size']:,} {name}\n")
        print(
            "| operation | s | CPU s | growth | driver MiB | JVM MiB | worker MiB |\n"
            + "| --- " * 7
            + "|"
        )
        for case, numbers in table["cases"].items():
            mib = numbers["mib"]
            cells = [case, numbers["seconds"], numbers["cpu_s"], numbers["growth"], *mib.values()]
            print(
                f"| {' | '.join(map(str, cells))} |"
                + (f" {numbers['error']}" if "error" in numbers else "")
            )
        steep = [case for case, numbers in table["cases"].items() if _is_steep(numbers)]
        print(f"\nsteeper than {_STEEP}: {', '.join(steep) or 'none'}")


def _is_steep(numbers: Numbers) -> bool:
    return (
        numbers["growth"] is not None
        and numbers["growth"] > _STEEP
        and numbers["cpu_s"] >= _LEAST_S
    )


if __name__ == "__main__":
    main()
