"""Processes killed with `kill -9` during a load: the driver, after which the same call resumes, and a worker in the
join.

A driver takes ten seconds to start on a busy machine. So a single driver runs several loads, stops each at another
point, and dies with all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table
from lance_spark.load import join
from lance_spark.load.join import CheckpointSink
from tests.lance_spark.load.loads import (
    load,
    make_table,
    numbered,
    of_ids,
    old_files_stay,
    values,
    write_file,
)
from tests.support.drivers import driver
from tests.support.faults import unused_files
from tests.support.load_driver import IN_JOIN

ROWS, FRAGMENT_ROWS = 240, 80
SETTINGS = {"checkpoint_size": 10, "refresh_status_secs": 0.2}
MATCHED = [i for i in range(ROWS) if i % 4]

POINTS: dict[str, tuple[int, int]] = {
    # Point: fewest and most rows from checkpoints in the next call.
    IN_JOIN: (20, 170),
    "in_column_file": (180, 180),
    "after_column_file": (180, 180),
    "before_commit": (180, 180),
    "before_record": (0, 180),
}


def source(home: Path, *, factor: int = 10) -> str:
    return write_file(of_ids(MATCHED, factor=factor), home / "x.parquet")


def opened(home: Path, spark: SparkSession) -> Table:
    return lance_spark.connect(str(home), spark, progress=False).open_table("t")


@pytest.fixture(scope="module")
def killed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tables with one load each, all of the same driver, which a test killed while every load waited at its
    point.
    """
    homes = {point: tmp_path_factory.mktemp(point) for point in POINTS}
    for home in homes.values():
        db = lance_spark.connect(str(home), spark, progress=False)
        old = pa.array([-i for i in range(ROWS)], pa.int64())
        make_table(db, numbered(rows=ROWS, v=old), fragment_rows=FRAGMENT_ROWS)
        source(home)
    jobs: dict[str, tuple[Path, dict[str, Any]]] = {
        point: (home, {}) for point, home in homes.items()
    }
    # Two of the jobs hold a slot each, or more.
    with driver(
        jobs, master="local[8]", module="tests.support.load_driver", common=SETTINGS
    ) as started:
        started.wait_for(lambda: all((home / "held").exists() for home in homes.values()))
        started.kill()
    shutil.copytree(homes["before_commit"], homes["before_commit"] / "copy")
    return homes


def right(rule: str = "carry", factor: int = 10) -> dict[int, int | None]:
    return {i: factor * i if i % 4 else -i if rule == "carry" else None for i in range(ROWS)}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed_while_it_loads_goes_on_with_the_same_call(
    point: str, killed: dict[str, Path], spark: SparkSession
) -> None:
    home, (fewest, most) = killed[point], POINTS[point]
    table = opened(home, spark)
    (dead,) = table.list_jobs()
    assert (dead.job_id, dead.status, dead.job_type) == (point, "DEAD", "load_columns")
    before = values(table)
    assert before == (right() if point == "before_record" else {i: -i for i in range(ROWS)})
    with old_files_stay(table):
        result = load(table, str(home / "x.parquet"), "id", ["v"], **SETTINGS)
    assert result.status == "DONE" and values(table) == right()
    assert fewest <= result.rows_from_checkpoint <= most
    assert result.rows_computed + result.rows_from_checkpoint == len(MATCHED)
    again = load(table, str(home / "x.parquet"), "id", ["v"], **SETTINGS)
    assert (again.rows_from_checkpoint, again.rows_computed) == (0, len(MATCHED)), (
        "a finished load begins anew"
    )
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert unused_files(table.uri) == set()
    assert values(table) == right()


@pytest.mark.long
@pytest.mark.slow
def test_checkpoints_of_a_killed_load_serve_no_other_rule_and_no_file_that_was_written_again(
    killed: dict[str, Path], spark: SparkSession, tmp_path: Path
) -> None:
    path = killed["before_commit"] / "x.parquet"
    copies = [
        shutil.copytree(killed["before_commit"] / "copy", tmp_path / name)
        for name in ("same", "rule", "file")
    ]
    same, rule, file = (opened(copy, spark) for copy in copies)
    assert load(same, str(path), "id", ["v"], **SETTINGS).rows_from_checkpoint == 180
    result = load(rule, str(path), "id", ["v"], on_missing="null", **SETTINGS)
    assert result.rows_from_checkpoint == 0 and values(rule) == right("null")
    content, when = path.read_bytes(), path.stat()
    source(path.parent, factor=-7)
    result = load(file, str(path), "id", ["v"], **SETTINGS)
    assert result.rows_from_checkpoint == 0 and values(file) == right(factor=-7)
    path.write_bytes(content)
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(0, marks=pytest.mark.long, id="at its beginning"),
        pytest.param(10, id="after some rows"),
    ],
)
def test_a_worker_that_is_killed_in_the_join_costs_an_attempt_and_nothing_else(
    rows: int, db: Connection, files: Path
) -> None:
    table = make_table(db, numbered(rows=90))
    flag = str(files / "killed")

    def sink(**values: Any) -> Any:
        real_sink = CheckpointSink(**values)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import os
            import signal

            def dying() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    first = batch.slice(0, rows)
                    if first.num_rows:
                        yield first
                    if not os.path.exists(flag):
                        open(flag, "x").close()
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield batch.slice(rows)

            yield from real_sink(dying())

        return run

    path = write_file(of_ids(range(0, 90, 2)), files / "x.parquet")
    with old_files_stay(table), patch.object(join, "CheckpointSink", sink):
        result = load(table, path, "id", ["v"], checkpoint_size=5)
    assert Path(flag).exists()
    assert (
        result.status,
        result.rows_computed + result.rows_from_checkpoint,
        result.rows_skipped,
    ) == ("DONE", 45, 45)
    assert values(table) == {i: None if i % 2 else 10 * i for i in range(90)}
    assert unused_files(table.uri) == set()
