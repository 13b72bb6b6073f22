"""Streaming queries whose processes die, stop and come back: each row is in the table once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
import pytest

import lance_spark
from tests.lance_spark.streaming.stream_driver import KEYS
from tests.support.faults import unused_files
from tests.support.processes import environment
from udf_runtime import udf

pytestmark = pytest.mark.long
both_ways = pytest.mark.parametrize("way", ["jar", "no jar"])
all_ways = pytest.mark.parametrize("way", ["jar", "no jar", "complete", "update"])

ROWS = 10
ROOT = Path(__file__).parents[3]


@udf
def double(id: int) -> int:
    return 2 * id


class Stream:
    """The home of a query with a file of rows per micro-batch, and the processes of its drivers."""

    def __init__(self, way: str, home: Path, batches: int, module: str = "stream_driver") -> None:
        self.way = way
        self.module = module
        self.home = home
        self.table = str(home / "t.lance")
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.ids = list(range(batches * ROWS))
        began = time.time() - batches
        (home / "in").mkdir()
        for batch in range(batches):
            rows = self.ids[batch * ROWS : (batch + 1) * ROWS]
            file = home / "in" / f"{batch:04}.csv"
            file.write_text("".join(f"{row:08}\n" for row in rows))
            os.utime(
                file, (began + batch, began + batch)
            )  # Spark reads files in the order of their times
        if way == "update":
            empty = pa.table({name: pa.array([], pa.int64()) for name in ("id", "last")})
            lance.write_dataset(empty, self.table, enable_stable_row_ids=True)

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            f"tests.lance_spark.streaming.{self.module}",
            self.way,
            str(self.home),
        ]
        variables = {**environment(), "PYTHONPATH": str(ROOT)}
        with (self.home / "log").open("ab") as log:
            driver = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True
            )

        self.drivers.append(driver)
        return driver

    def end(self) -> None:
        """Kills all processes of all drivers."""
        for driver in self.drivers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def rows(self) -> int:
        """Returns the number of rows of the source up to the last micro-batch, or 0 without a table."""
        with contextlib.suppress(ValueError):
            rows = lance.dataset(self.table)
            if self.way != "update":
                return int(rows.count_rows())
            return 1 + max(rows.to_table(["last"])["last"].to_pylist(), default=-1)
        return 0

    def check(self) -> None:
        """Compares the table with the source."""
        rows: list[dict[str, Any]] = lance.dataset(self.table).to_table().to_pylist()
        if self.way == "update":
            # A micro-batch that came again after a later one would bring back older rows.
            last = {row % KEYS: row for row in self.ids}
            assert sorted((row["id"], row["last"]) for row in rows) == sorted(last.items())
        else:
            assert sorted(row["id"] for row in rows) == self.ids
        if self.way == "complete":
            assert {row["count"] for row in rows} == {1}

    def run_to_the_end(self) -> None:
        assert self.start().wait(300) == 0, (self.home / "log").read_text()[-3000:]


def make_pipeline(way: str, home: Path, batches: int) -> Stream:
    """Returns a stream that fills a table, and from this table another table."""
    lance.write_dataset(
        pa.table({"id": pa.array([], pa.int64())}),
        home / "source.lance",
        enable_stable_row_ids=True,
    )
    return Stream(way, home, batches, module="pipeline_driver")


@contextlib.contextmanager
def started(stream: Stream) -> Iterator[subprocess.Popen[bytes]]:
    """A driver, and the death of all its processes at the end."""
    driver = stream.start()
    try:
        yield driver
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def family(driver: subprocess.Popen[bytes]) -> dict[str, list[psutil.Process]]:
    """Returns the processes of a driver: Python, the JVM, and workers of the JVM."""
    victims: dict[str, list[psutil.Process]] = {"driver": [], "jvm": [], "worker": []}
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(driver.pid)
        victims["driver"].append(process)
        for child in process.children(recursive=True):
            victims["jvm" if child.name() == "java" else "worker"].append(child)
    return victims


def kill_somebody(driver: subprocess.Popen[bytes], dice: random.Random) -> None:
    processes = family(driver)[dice.choice(["driver", "jvm", "worker", "worker"])]
    if processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            dice.choice(processes).kill()


def run_with_deaths(
    stream: Stream, dice: random.Random, between: Callable[[], object] = lambda: None
) -> None:
    """Runs drivers, and kills their processes at random moments, until a driver reaches the end."""
    deadline = time.monotonic() + 1800
    deaths = 0
    while True:
        driver = stream.start()
        deadly = time.monotonic() + dice.uniform(4, 25)
        while driver.poll() is None and time.monotonic() < deadly:
            time.sleep(0.05)
        between()
        if driver.poll() == 0:
            break
        kill_somebody(driver, dice)
        deaths += 1
        # Sometimes a second driver starts before the processes of the first have noticed the death.
        if dice.random() < 0.7:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(dice.uniform(0, 20))
        assert time.monotonic() < deadline
    assert deaths > 0
    stream.end()
    stream.check()
    assert {name for name in unused_files(stream.table) if "staging" in name} == set()


@pytest.mark.slow
@all_ways
@pytest.mark.parametrize("seed", [1])
def test_deaths_of_any_process_at_any_moment(way: str, seed: int, tmp_path: Path) -> None:
    run_with_deaths(Stream(way, tmp_path, batches=200), random.Random(seed))


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("seed", [2])
def test_deaths_at_both_ends_of_a_stream_from_table_to_table(
    way: str, seed: int, jobs: Any, tmp_path: Path
) -> None:
    stream = make_pipeline(way, tmp_path, batches=30)
    source = lance_spark.connect(str(tmp_path), jobs, progress=False).open_table("source")
    cleanups: list[int] = []

    def clean_up() -> None:
        done = source.cleanup_old_versions(timedelta(0), keep_for_streams=True)
        cleanups.append(done.old_versions)

    run_with_deaths(stream, random.Random(seed), clean_up)
    rows = lance.dataset(stream.table).to_table()
    assert rows["twice"].to_pylist() == [2 * row for row in rows["id"].to_pylist()]
    assert sorted(source.to_arrow()["id"].to_pylist()) == stream.ids
    assert sum(cleanups) > 0
    assert len(lance.dataset(stream.table).get_fragments()) < 25, "the stream compacts"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jar", "no jar", "complete", "update", "table to table"])
def test_a_stopped_driver_that_goes_on_after_a_second_driver(way: str, tmp_path: Path) -> None:
    dice = random.Random(5)
    if way == "table to table":
        stream = make_pipeline("jar", tmp_path, batches=24)
    else:
        stream = Stream(way, tmp_path, batches=24)
    for part in range(3):
        with started(stream) as stopped:
            while stream.rows() < ROWS * (1 + 6 * part) and stopped.poll() is None:
                time.sleep(0.02)
            time.sleep(dice.uniform(0, 1))
            os.killpg(stopped.pid, signal.SIGSTOP)
            with started(stream) as second:
                while stream.rows() < ROWS * (5 + 6 * part) and second.poll() is None:
                    time.sleep(0.02)
                os.killpg(stopped.pid, signal.SIGCONT)
                time.sleep(8)
    stream.run_to_the_end()
    stream.check()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jar", "no jar", "update"])
def test_concurrent_backfills_and_compactions(way: str, jobs: Any, tmp_path: Path) -> None:
    stream = Stream(way, tmp_path, batches=20)
    if way != "update":
        lance.write_dataset(
            pa.table({"id": pa.array([], pa.int64())}), stream.table, enable_stable_row_ids=True
        )
    table = lance_spark.connect(str(tmp_path), jobs, progress=False).open_table("t")
    table.add_columns({"double": double})
    driver = stream.start()
    backfills = compactions = 0
    while driver.poll() is None:
        table.backfill("double")
        backfills += 1
        with contextlib.suppress(OSError, RuntimeError):  # a backfill of this moment
            compactions += bool(
                lance.dataset(stream.table).optimize.compact_files().fragments_removed
            )
        time.sleep(0.2)
    assert driver.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    table.backfill("double")
    assert min(backfills, compactions) > 1
    stream.check()
    assert all(row["double"] == 2 * row["id"] for row in table.to_arrow().to_pylist())


@pytest.mark.slow
def test_concurrent_compactions_in_complete_mode(tmp_path: Path) -> None:
    # The rows of complete mode have no column of a UDF, so no backfill runs at the same time.
    stream = Stream("complete", tmp_path, batches=20)
    driver = stream.start()
    compactions = 0
    while driver.poll() is None:
        with contextlib.suppress(
            OSError, RuntimeError, ValueError
        ):  # no table yet, or a concurrent micro-batch
            compactions += bool(
                lance.dataset(stream.table).optimize.compact_files().fragments_removed
            )
        time.sleep(0.1)
    assert driver.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    stream.check()
    assert compactions > 0
