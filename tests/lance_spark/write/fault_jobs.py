"""Spark applications in other processes, which the fault tests kill or disturb.

python -m tests.lance_spark.write.fault_jobs WAY SCENARIO TABLE FOLDER

Prints one line of JSON. WAY is `jar` or `no jar`: the gateway or processes of Spark plan and commit. FOLDER is for
messages between processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import lance_spark
from lance_spark.datasource import LanceDataSource
from lance_spark.sql import writes
from lance_spark.write import row_write
from lance_spark.write.append_writer import LanceAppendWriter
from lance_spark.write.planned import decode_writer

ROWS = 40_000
PARTITIONS = 4


@dataclass(frozen=True, kw_only=True)
class HeldWriter(LanceAppendWriter):
    """A writer that stops in its commit until the file `go` exists or a test kills the process."""

    folder: str
    where: str

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self.where == "before":
            self._hold()
            super().commit(messages)
            return
        sweep = row_write.Staging.sweep

        def held_sweep(staging: row_write.Staging, keep: Sequence[str] = (), **more: Any) -> int:
            self._hold()
            return sweep(staging, keep, **more)

        row_write.Staging.sweep = held_sweep  # type: ignore[method-assign, assignment]
        super().commit(messages)

    def _hold(self) -> None:
        Path(self.folder, "held").write_text(str(os.getpid()))
        while not Path(self.folder, "go").exists():
            time.sleep(0.02)


def hold_commits(folder: Path, where: str) -> None:
    """Stops the commits of the gateway, which run in this process."""

    def held_writer(text: str) -> HeldWriter:
        writer = decode_writer(text)
        assert isinstance(writer, LanceAppendWriter)
        return HeldWriter(
            **{f.name: getattr(writer, f.name) for f in fields(writer)},
            folder=str(folder),
            where=where,
        )

    writes.decode_writer = held_writer


class HeldSource(LanceDataSource):
    """`lance`, but its commit is held."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        folder, where = self.options.pop("folder"), self.options.pop("where")
        append_writer = super().writer(schema, overwrite)
        assert isinstance(append_writer, LanceAppendWriter)
        return HeldWriter(
            **{f.name: getattr(append_writer, f.name) for f in fields(append_writer)},
            folder=folder,
            where=where,
        )


def session(way: str, master: str, **conf: str) -> SparkSession:
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    for key, value in {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        **conf,
    }.items():
        builder = builder.config(key, value)
    spark = (lance_spark.configure(builder) if way == "jar" else builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def uneven_rows(spark: SparkSession, folder: Path, *, then: str) -> DataFrame:
    """Rows in many small batches. In its middle the first attempt of partition 1 fails, or waits for the file `released`."""

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        first = context.partitionId() == 1 and context.attemptNumber() == 0
        with Path(folder, "attempts").open("a") as notes:
            notes.write(f"{context.partitionId()} {context.attemptNumber()}\n")
        for number, batch in enumerate(batches):
            if first and number == 5 and then == "fail":
                raise OSError("the input is gone for a moment")
            deadline = time.monotonic() + 120
            while (
                first
                and number == 5
                and not Path(folder, "released").exists()
                and time.monotonic() < deadline
            ):
                time.sleep(0.05)
            # Wide rows fill Spark's buffers, so the writer has received some of them at that moment, and has a partial
            # file.
            yield pa.record_batch(
                {"id": batch.column(0), "pad": pa.array(["x" * 200] * batch.num_rows)}
            )

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    return spark.range(0, ROWS, 1, PARTITIONS).mapInArrow(attempt, "id bigint, pad string")


def kill_one_writer(table: Path, folder: Path, killed: list[int]) -> None:
    """Waits until a task has had the same file half written for two seconds, and kills its Python worker."""
    since: dict[Path, float] = {}
    while not killed:
        for half in table.glob("_lance_spark/staging/*/*/.tmp*"):
            if time.monotonic() - since.setdefault(half, time.monotonic()) > 2.0:
                pid = int(json.loads((half.parent / "attempt").read_text())["pid"])
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                (folder / "released").touch()
                break
        time.sleep(0.02)


def run(way: str, scenario: str, table: Path, folder: Path) -> dict[str, object]:
    if scenario == "a task that fails once":
        spark = session(way, "local[2,4]")
        uneven_rows(spark, folder, then="fail").write.format("lance").mode("append").save(
            str(table)
        )
        return {}
    if scenario == "a worker that is killed":
        spark = session(way, "local[2,4]")
        killed: list[int] = []
        threading.Thread(target=kill_one_writer, args=(table, folder, killed), daemon=True).start()
        rows = uneven_rows(spark, folder, then="wait")
        rows.write.format("lance").mode("append").option("max_rows_per_file", 1300).save(str(table))
        return {"killed": killed}
    if scenario == "a speculative task":
        conf = {
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
        }
        spark = session(
            way, (folder / "master").read_text(), **conf, **{"spark.executor.memory": "512m"}
        )
        rows = uneven_rows(spark, folder, then="wait")
        rows.write.format("lance").mode("append").option("max_rows_per_file", 1300).save(str(table))
        spark.stop()
        return {}
    where = scenario.removeprefix("a driver that is killed ").split(" ")[0]
    spark = session(way, "local[2]")
    rows = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "'' AS pad")
    if way == "jar":
        hold_commits(folder, where)
        write = rows.write.format("lance")
    else:
        spark.dataSource.register(HeldSource)
        write = rows.write.format("held").option("folder", str(folder)).option("where", where)
    write.mode("append").option("max_rows_per_file", 4000).save(str(table))
    return {}


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    print(
        json.dumps(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))), flush=True
    )
