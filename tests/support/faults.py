"""A table with a computed column whose UDF counts its calls, and fails at rows chosen by a test.

The UDF reads its orders from a folder. So the stored UDF never changes, and its version is fixed.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.dataset import FOLDER
from tests.support.waiting import eventually
from udf_runtime import UDF, udf
from udf_runtime.policies import ErrorPolicy

BATCH = 10
"""Rows of a checkpoint in all tests without a size of their own."""

SLOTS = 2

SETTINGS: dict[str, Any] = {
    "min_checkpoint_size": BATCH,
    "checkpoint_size": BATCH,
    "batch_checkpoint_flush_interval_seconds": 0,
    "refresh_status_secs": 0.2,
}
"""Each batch of exactly this size becomes a checkpoint, so a dead process loses a single batch."""


def value(x: int) -> int | None:
    """The result of the UDF; NULL for some rows."""
    return None if x % 7 == 3 else x * 10


def counting_function(folder: str) -> Callable[[int], int | None]:
    """Returns the function of the UDF. Each call appends its row to `folder/calls`, and then follows the order in
    `folder/faults/<row>`.
    """

    def computed(x: int) -> int | None:
        import ctypes
        import os
        import signal
        import time

        log = os.open(f"{folder}/calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{x}\n".encode())
        os.close(log)
        order = f"{folder}/faults/{x}"
        if os.path.exists(order):
            with open(order) as file:
                what = file.read()
            if what.startswith("once "):
                os.unlink(order)
                what = what.removeprefix("once ")
            if what == "raise":
                raise ValueError(f"row {x} is bad")
            if what == "exit":
                os._exit(7)
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "segfault":
                ctypes.string_at(0)
            if what == "hold the first":
                order = f"{folder}/faults/first-{x}"
                os.rename(f"{folder}/faults/{x}", order)
            if what in ("wait", "hold the first"):
                with open(f"{folder}/waiting-{x}", "w") as file:
                    file.write(str(os.getpid()))
                while os.path.exists(order):
                    time.sleep(0.02)
        if os.path.exists(f"{folder}/slow"):
            mark = f"{folder}/slow/{os.getpid()}"
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT))
            at_once = len(os.listdir(f"{folder}/slow"))
            time.sleep(0.005)
            os.unlink(mark)
            log = os.open(f"{folder}/at_once", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(log, f"{at_once}\n".encode())
            os.close(log)
        return None if x % 7 == 3 else x * 10

    return computed


def counting_udf(folder: str, on_error: ErrorPolicy | list[Any] | None = None, **more: Any) -> UDF:
    """Returns the UDF of `counting_function`."""
    function = counting_function(folder)
    return udf(data_type=pa.int64(), version="1", name="computed", on_error=on_error, **more)(
        function
    )


@dataclass(kw_only=True)
class Orders:
    """The folder with the orders for the UDF, and the reports of the UDF.

    Attributes:
        home: The folder.
    """

    home: Path
    _seen: int = 0

    def __post_init__(self) -> None:
        (self.home / "faults").mkdir()

    def order(self, rows: dict[int, str]) -> None:
        """Gives the UDF orders for rows."""
        for row, what in rows.items():
            (self.home / "faults" / str(row)).write_text(what)

    def pardon(self) -> None:
        """Makes the UDF do no more than compute."""
        for path in (self.home / "faults").iterdir():
            path.unlink()

    def new_calls(self) -> Counter[int]:
        """Returns the calls since the last look, by row."""
        lines = self._lines()
        fresh, self._seen = lines[self._seen :], len(lines)
        return Counter(map(int, fresh))

    def slow_down(self) -> None:
        """Makes calls take some milliseconds, and record the number of concurrent calls."""
        (self.home / "slow").mkdir()

    def hurry_up(self) -> None:
        (self.home / "slow").rename(self.home / "was-slow")

    def most_at_once(self) -> int:
        """Returns the highest number of concurrent slow calls."""
        return max(map(int, (self.home / "at_once").read_text().split()))

    def calls(self) -> int:
        """Returns the number of calls."""
        return len(self._lines())

    def waits_at(self, row: int) -> bool:
        """Tells whether the UDF waits at a row."""
        path = self.home / f"waiting-{row}"
        return path.exists() and bool(path.read_text())

    def pid_at(self, row: int) -> int:
        """Returns the process that waits at a row."""
        return int((self.home / f"waiting-{row}").read_text())

    def wait_for_death_at(self, row: int) -> None:
        """Waits until the process at a row is dead. Spark gives its workers two seconds."""
        pid = self.pid_at(row)
        eventually(lambda: not is_running(pid), 60)

    def _lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.home / "calls").read_text().splitlines()
        return []


@dataclass(kw_only=True)
class Lab(Orders):
    """The place of a test.

    Attributes:
        home: Folder of tables, and of files for the orders and reports of the UDF.
        spark: The session.
    """

    spark: SparkSession
    connection: lance_spark.Connection = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.connection = lance_spark.connect(str(self.home), self.spark, progress=False)

    def table(
        self,
        rows: int = 120,
        fragment_rows: int = 40,
        *,
        name: str = "t",
        stable_row_ids: bool = True,
        on_error: ErrorPolicy | list[Any] | None = None,
    ) -> lance_spark.Table:
        """Makes a table with the computed column `v`, whose right values are `value(x)`."""
        data = pa.table({"x": pa.array(range(rows), pa.int64())})
        lance.write_dataset(
            data,
            f"{self.home}/{name}.lance",
            max_rows_per_file=fragment_rows,
            max_rows_per_group=fragment_rows,
            enable_stable_row_ids=stable_row_ids,
        )
        table = self.connection.open_table(name)
        table.add_columns({"v": counting_udf(str(self.home), on_error)})
        return table


def is_running(pid: int) -> bool:
    """Tells whether a process runs. An orphan may stay a zombie for a while, which counts as dead."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run(table: lance_spark.Table, **more: Any) -> lance_spark.BackfillJobResult:
    """Runs a backfill with small checkpoints."""
    return table.backfill("v", **{**SETTINGS, **more})


def run_and_fail(table: lance_spark.Table, **more: Any) -> lance_spark.BackfillJobResult:
    """Runs a backfill that cannot complete, and returns its partial result."""
    with pytest.raises(lance_spark.BackfillIncompleteError) as caught:
        run(table, **more)
    result = caught.value.result
    assert isinstance(result, lance_spark.BackfillJobResult)
    return result


def wrong_rows(table: lance_spark.Table) -> list[int]:
    """Returns the rows with a wrong value."""
    rows = table.to_arrow()
    return [
        x
        for x, v in zip(rows["x"].to_pylist(), rows["v"].to_pylist(), strict=True)
        if v != value(x)
    ]


def values_of(table: lance_spark.Table) -> dict[int, int | None]:
    rows = table.to_arrow()
    return dict(zip(rows["x"].to_pylist(), rows["v"].to_pylist(), strict=True))


def checkpoint_files(table: lance_spark.Table) -> list[Path]:
    """Returns the files of checkpoints, oldest first."""
    files = [path for path in Path(table.uri, FOLDER, "checkpoints").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def unused_files(uri: str) -> set[str]:
    """Returns data files without a reference in any version, and the files of running jobs."""
    dataset = lance.dataset(uri)
    referenced_files = {
        file.path
        for version in dataset.versions()
        for fragment in dataset.checkout_version(version["version"]).get_fragments()
        for file in fragment.data_files()
    }
    data = {entry.name for entry in Path(uri, "data").iterdir()} - referenced_files
    staging = [path for path in Path(uri, FOLDER, "staging").rglob("*") if path.is_file()]
    jobs = [path for path in Path(uri, FOLDER, "jobs").rglob("*") if path.is_file()]
    return data | {os.path.relpath(path, uri) for path in [*staging, *jobs]}
