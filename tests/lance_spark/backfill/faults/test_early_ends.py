"""Tasks on Spark that end early: slow tasks leave rows to other processes, and budgets hold after a death."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.support.faults import BATCH, SLOTS, Lab, run, wrong_rows
from udf_runtime import UDF, udf

pytestmark = [pytest.mark.spark]


def sleeping(log: Path) -> UDF:
    """Returns a UDF of 50 ms that logs its process and its interval."""

    def sleep(id: int) -> int:
        import os
        import time

        began = time.time()
        time.sleep(0.05)
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{id} {os.getpid()} {began} {time.time()}\n".encode())
        os.close(file)
        return id

    return udf(sleep, version="1")


def start_workers(spark: SparkSession) -> None:
    """Starts a Python process for each slot, because the start takes seconds on a busy machine."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(1)
        yield from batches

    assert spark.range(0, SLOTS, 1, SLOTS).mapInArrow(wait, "id bigint").count() == SLOTS


@pytest.mark.parametrize("rows", [140, pytest.param(4000, marks=pytest.mark.long)])
def test_the_rows_of_a_slow_task_use_all_slots(rows: int, jobs: SparkSession, tmp_path: Path):
    start_workers(jobs)
    table = lance_spark.connect(str(tmp_path), jobs, progress=False).create_table(
        "t", pa.table({"id": range(rows)})
    )
    table.add_columns({"v": sleeping(tmp_path / "log")})
    result = table.backfill("v", task_size=rows)
    assert (result.status, result.rows_computed) == ("DONE", rows)
    calls = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(int(row) for row, *_ in calls) == [*range(rows)]
    by_process: dict[str, list[tuple[float, float]]] = {}
    for _, process, began, ended in calls:
        by_process.setdefault(process, []).append((float(began), float(ended)))
    overlapping = [
        (a, b)
        for first, second in itertools.combinations(by_process.values(), 2)
        for a, b in itertools.product(first, second)
        if a[0] < b[1] and b[0] < a[1]
    ]
    assert len(by_process) == SLOTS
    # On a busy machine the second process begins seconds later.
    assert min(map(len, by_process.values())) > rows / 10
    assert len(overlapping) > rows / 20, "the processes call at the same time"
    assert table.to_arrow(["v"])["v"].to_pylist() == [*range(rows)]


@pytest.mark.slow
@pytest.mark.long
def test_a_budget_holds_after_the_death_of_a_process(lab: Lab):
    table = lab.table(120, 120)
    lab.order({25: "once kill"})
    result = run(table, max_calls=60)
    calls = lab.new_calls()
    assert result.status == "PARTIAL"
    assert 60 - BATCH <= len(calls) <= 60
    assert calls.total() <= 60 + SLOTS * BATCH, "only the batches of killed processes are repeated"
    kept_rows = set(calls)
    result = run(table)
    assert (result.status, result.rows_from_checkpoint) == ("DONE", len(kept_rows))
    assert lab.new_calls() == dict.fromkeys({*range(120)} - kept_rows, 1)
    assert wrong_rows(table) == []
