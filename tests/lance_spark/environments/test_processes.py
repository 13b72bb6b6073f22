"""Processes of UDFs with a state or an environment: they serve many tasks and jobs, and end with a call that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from lance_spark import Manifest, Table, udf
from tests.lance_spark.environments.conftest import VERSIONS, packaging, rows
from tests.support.waiting import eventually
from udf_runtime import UDF

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=2)]

OLD = VERSIONS[0]


def noting(log: Path, manifest: Manifest | None, *, wait_at: int | None = None) -> UDF:
    """Returns a UDF that logs its process and a child process, and waits at a row until a file exists.

    The waiting process is logged too. It has loaded the UDF, so its death is a death in a row.
    """

    class Noting:
        def __init__(self, log: str, wait_at: int | None) -> None:
            self.log, self.wait_at = log, wait_at

        def setup(self) -> None:
            sleeper = subprocess.Popen(["sleep", "1000"])
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {sleeper.pid} {os.getppid()}\n")

        def __call__(self, id: int) -> int:
            import time

            if id == self.wait_at:
                with open(f"{self.log}.waiting", "w", encoding="utf-8") as file:
                    file.write(f"{os.getpid()}\n")
            while id == self.wait_at and not os.path.exists(f"{self.log}.go"):
                time.sleep(0.05)
            return 2 * id

    noting_udf = udf(data_type=pa.int64(), manifest=manifest, task_size=5, min_checkpoint_size=5)(
        Noting
    )(str(log), wait_at)
    assert isinstance(noting_udf, UDF)
    return noting_udf


def logged_processes(log: Path) -> list[list[int]]:
    return (
        [[int(number) for number in line.split()] for line in log.read_text().splitlines()]
        if log.exists()
        else []
    )


def lives(process: int | psutil.Process) -> bool:
    """Whether a process runs. A process number may be reused, so waiting tests keep the process object."""
    try:
        candidate = psutil.Process(process) if isinstance(process, int) else process
        return candidate.is_running() and candidate.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers() -> list[psutil.Process]:
    """The Python workers of Spark below this process.

    The command lines of Spark's JVM and of Spark's Python daemon name the daemon's module too.
    """
    family = [process for process in psutil.Process().children(recursive=True) if lives(process)]
    pythons = [process for process in family if "java" not in process.name()]
    daemons = [
        process
        for process in pythons
        if any(part.endswith(".daemon") for part in process.cmdline())
    ]
    return [process for process in daemons if process.ppid() in {daemon.pid for daemon in daemons}]


@pytest.mark.parametrize("where", ["worker", "environment"])
def test_processes_outlive_tasks_and_workers_and_serve_the_next_job(
    table: Table, tmp_path: Path, where: str
):
    log = tmp_path / "log"
    table.add_columns({"v": noting(log, packaging(OLD) if where == "environment" else None)})
    assert table.backfill("v").rows_computed == 60  # 12 tasks of 5 rows
    processes = logged_processes(log)
    assert 1 <= len(processes) <= 2 and all(
        lives(pid) for process in processes for pid in process[:2]
    )
    for worker in workers():
        worker.kill()
    table.add(rows(60))
    assert table.backfill("v").rows_computed == 20
    assert logged_processes(log) == processes, "the second job loaded the UDF"
    assert table.count_rows("v = 2 * id") == 80


@pytest.mark.sample(2)
@pytest.mark.parametrize("victim", ["worker", "process"])
def test_nothing_is_left_of_what_is_killed_and_the_job_goes_on(
    table: Table, tmp_path: Path, victim: str
):
    log = tmp_path / "log"
    table.add_columns({"v": noting(log, packaging(OLD), wait_at=33)})
    job = table.backfill_async("v")
    waiting = Path(f"{log}.waiting")
    eventually(lambda: waiting.exists() and waiting.read_text().endswith("\n"), 60)
    numbers = next(line for line in logged_processes(log) if line[0] == int(waiting.read_text()))
    process, sleeper = map(psutil.Process, numbers[:2])
    for killed in workers() if victim == "worker" else [process]:
        killed.kill()
    eventually(lambda: not lives(process) and not lives(sleeper))
    Path(f"{log}.go").touch()
    result = job.result()  # type: ignore[union-attr]
    assert result.status == "DONE" and table.count_rows("v = 2 * id") == 60


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_no_process(tmp_path: Path, environments: Path):
    log = tmp_path / "log"
    program = f"""
import pyarrow as pa, lance_spark
from pathlib import Path
from pyspark.sql import SparkSession
from tests.lance_spark.environments.conftest import packaging
from tests.lance_spark.environments.test_processes import noting
spark = lance_spark.configure(SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.lance.environments.dir", {str(environments)!r})).getOrCreate()
db = lance_spark.connect({str(tmp_path / "db")!r}, spark, progress=False)
table = db.create_table("t", pa.table({{"id": pa.array(range(60), pa.int64())}}))
table.add_columns({{"v": noting(Path({str(log)!r}), packaging({OLD!r}), wait_at=0)}})
table.backfill("v")
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], start_new_session=True
    )
    try:
        eventually(lambda: bool(logged_processes(log)), 90)
        family = psutil.Process(driver.pid).children(recursive=True)
        assert any("java" in member.name() for member in family)
        for member in [
            psutil.Process(driver.pid),
            *(member for member in family if "java" in member.name()),
        ]:
            member.kill()
        eventually(
            lambda: not any(lives(pid) for process in logged_processes(log) for pid in process[:2]),
            30,
        )
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
