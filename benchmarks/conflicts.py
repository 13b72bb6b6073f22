"""Measures a backfill with concurrent writers: the same table, UDF and timing for every operation,
with counted UDF calls.

    python -m benchmarks.conflicts

The table has 8 fragments of 2,000 rows. The UDF takes record batches, computes `s = 2 * id + v`,
and runs on one slot. A
concurrent writer, a separate pylance process, acts as soon as 5,600 of the 16,000 rows are
computed. Each operation runs with a
single commit of 64 fragments at the end, and with a commit per fragment. Then the same backfill
runs again. Results:
benchmarks/results/conflicts.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import lance_spark
from udf_runtime import UDF, udf

FRAGMENTS, ROWS = 8, 2000
ACT_AT = 5600
RESULTS = Path(__file__).parent / "results" / "conflicts.json"


def counting(log: str) -> UDF:
    """Returns a UDF that logs each row of its input."""

    def computed(batch: pa.RecordBatch) -> pa.Array[Any]:
        import os
        import time

        time.sleep(batch.num_rows * 0.0001)
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, "".join(f"{i}\n" for i in batch.column("id").to_pylist()).encode())
        os.close(file)
        return pc.add(pc.multiply(batch.column("id"), 2), batch.column("v"))

    computed.__annotations__ = {"batch": pa.RecordBatch, "return": pa.Array}
    return udf(data_type=pa.int64(), version="1", name="computed")(computed)


def _rows(ids: range, **more: Any) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"t{i}" for i in ids],
            "v": pa.array(ids, pa.int64()),
            **more,
        }
    )


def _merge(uri: str) -> Any:
    return lance.dataset(uri).merge_insert("id").when_matched_update_all()


def _in_place(uri: str) -> None:
    ids = range(7000, 7400)
    source = pa.table(
        {"id": pa.array(ids, pa.int64()), "v": pa.array([i + 1 for i in ids], pa.int64())}
    )
    _merge(uri).write_mode("rewrite_columns").execute(source)


def _deleted_and_compacted(uri: str) -> None:
    lance.dataset(uri).delete("id % 100 = 0")
    lance.dataset(uri).optimize.compact_files(materialize_deletions_threshold=0.0)


def _upsert(uri: str) -> None:
    ids = range(3900, 4300)
    schema = lance.dataset(uri).schema
    source = _rows(ids, s=pa.nulls(len(ids), pa.int64())).select(schema.names).cast(schema)
    _merge(uri).execute(source.set_column(2, "v", pa.array([i + 1 for i in ids], pa.int64())))


def _restore(uri: str) -> None:
    old: Any = lance.dataset(uri, version=FRAGMENTS + 1)
    old.restore()


OPERATIONS: dict[str, Callable[[str], object]] = {
    "nothing": lambda uri: None,
    "append 1,000 rows": lambda uri: lance.write_dataset(
        _rows(range(16000, 17000)), uri, mode="append"
    ),
    "upsert of 400 rows in 2 fragments": _upsert,
    "update of an input, 1 % of every fragment": lambda uri: lance.dataset(uri).update(
        {"v": "v + 1"}, where="id % 100 = 0"
    ),
    "in-place rewrite of an input, 400 rows": _in_place,
    "delete 1 % of every fragment": lambda uri: lance.dataset(uri).delete("id % 100 = 0"),
    "delete a whole fragment": lambda uri: lance.dataset(uri).delete("id >= 14000"),
    "compaction of all into one": lambda uri: lance.dataset(uri).optimize.compact_files(),
    "compaction in pairs": lambda uri: lance.dataset(uri).optimize.compact_files(
        target_rows_per_fragment=4000
    ),
    "delete 1 %, then compaction": _deleted_and_compacted,
    "add another column": lambda uri: lance.dataset(uri).add_columns({"more": "id + 1"}),
    "drop another column": lambda uri: lance.dataset(uri).drop_columns(["text"]),
    "index on the target": lambda uri: lance.dataset(uri).create_scalar_index("s", "BTREE"),
    "drop of the target": lambda uri: lance.dataset(uri).drop_columns(["s"]),
    "restore to after the column was added": _restore,
    "overwrite without the column": lambda uri: lance.write_dataset(
        _rows(range(8000)), uri, mode="overwrite"
    ),
}


def _act(name: str, uri: str, ready: Any, go: Any) -> None:
    lance.dataset(uri).count_rows()
    ready.set()
    go.wait()
    OPERATIONS[name](uri)


def _lines(log: str) -> list[int]:
    return [int(line) for line in Path(log).read_text().split()] if os.path.exists(log) else []


def run(spark: SparkSession, name: str, granularity: int) -> dict[str, Any]:
    """Runs an operation concurrently with a backfill, then the backfill again."""
    home = tempfile.mkdtemp()
    log = f"{home}/calls"
    try:
        db = lance_spark.connect(home, spark, progress=False)
        table = db.create_table("t", _rows(range(ROWS)))
        for number in range(1, FRAGMENTS):
            table.add(_rows(range(number * ROWS, (number + 1) * ROWS)))
        table.add_columns({"s": counting(log)})
        context = multiprocessing.get_context("spawn")
        ready, go = context.Event(), context.Event()
        writer = context.Process(target=_act, args=(name, table.uri, ready, go))
        writer.start()
        ready.wait()

        def meddle() -> None:
            while len(_lines(log)) < ACT_AT:
                time.sleep(0.01)
            go.set()

        watcher = threading.Thread(target=meddle, daemon=True)
        watcher.start()
        began = time.perf_counter()
        outcome = _backfill(table, granularity)
        seconds = time.perf_counter() - began
        writer.join()
        first = len(_lines(log))
        state = _state(table.uri)
        os.unlink(log)
        again = _backfill(db.open_table("t"), granularity)
        return {
            "operation": name,
            "granularity": granularity,
            "outcome": outcome,
            **state,
            "calls": first,
            "again": again,
            "calls_again": len(_lines(log)),
            "final": _state(table.uri),
            "seconds": round(seconds, 2),
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _backfill(table: lance_spark.Table, granularity: int) -> str:
    try:
        return table.backfill(
            "s",
            concurrency=1,
            commit_granularity=granularity,
            checkpoint_size=100,
            min_checkpoint_size=100,
        ).status
    except lance_spark.LanceSparkError as error:
        return type(error).__name__


def _state(uri: str) -> dict[str, Any]:
    dataset = lance.dataset(uri)
    if "s" not in dataset.schema.names:
        return {"null": "column gone", "wrong": "column gone"}
    rows = dataset.to_table(columns=["id", "v", "s"])
    right = pc.add(pc.multiply(rows["id"], 2), rows["v"])
    return {
        "null": rows["s"].null_count,
        "wrong": rows.filter(pc.not_equal(rows["s"], right)).num_rows,
    }


def main() -> None:
    """Runs all operations, and prints a table."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    results = []
    for name in OPERATIONS:
        for granularity in (64, 1):
            result = run(spark, name, granularity)
            results.append(result)
            print(
                f"| {name} | {granularity} | {result['outcome']} | {result['null']} | {result['wrong']} | {result['calls']:,} | {result['calls_again']:,} |",
                flush=True,
            )
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
