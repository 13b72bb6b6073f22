"""Tasks of a backfill in processes of their own, without Spark: two attempts at once, a killed attempt, and a machine
without the driver's files and packages.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import cloudpickle
import lance
import pyarrow as pa
import pytest

from lance_spark import Table, cleanup
from lance_spark.backfill.driver import job, scheduler
from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome, Task
from lance_spark.spark_jobs.codec import decode
from tests.cluster.places import make_environment
from tests.object_stores.stores import StorePlace, strays
from tests.support.faults import BATCH, SETTINGS, Orders, counting_udf, unused_files, wrong_rows
from tests.support.inline_jobs import InlineScheduler, open_table
from tests.support.processes import SPARK_HOME
from tests.support.waiting import eventually

ROWS, FRAGMENT_ROWS, HELD = 80, 40, 15

CHILD = """
import pickle, sys
spec, task = pickle.load(sys.stdin.buffer)
from lance_spark.spark_jobs.codec import encode
print(encode([*spec.value_source.run(spec, task)]))
"""

RunTask = Callable[[BackfillSpec, Task], Sequence[RangeOutcome]]


def start(
    spec: BackfillSpec,
    task: Task,
    *,
    python: str = sys.executable,
    folder: Path,
    variables: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Starts an attempt of a task in a process."""
    process = subprocess.Popen(
        [python, "-P", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **variables},
    )
    assert process.stdin is not None
    process.stdin.write(cloudpickle.dumps((spec, task)))
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[bytes]) -> list[RangeOutcome]:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()[-3000:]
    return decode(list[RangeOutcome], out)


def run_again(spec: BackfillSpec, task: Task) -> list[RangeOutcome]:
    """Runs a second attempt of a task in this process, as Spark does; its UDF runs in a child process."""
    return [*spec.value_source.run(spec, scheduler._isolated(task))]


@contextlib.contextmanager
def first_task(run_task: RunTask) -> Iterator[None]:
    """Runs the first task of a job with a function, and the other tasks in this process."""

    class FirstTask(InlineScheduler):
        def run(
            self, tasks: Sequence[Task], refresh_s: float
        ) -> Generator[list[RangeOutcome], None, None]:
            yield [*run_task(self._spec, tasks[0])]
            yield from super().run(tasks[1:], refresh_s)

    with patch.object(job, "Scheduler", FirstTask):
        yield


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(home=tmp_path)


@pytest.fixture
def table(orders: Orders) -> Table:
    uri = f"{orders.home}/t.lance"
    rows = pa.table({"x": pa.array(range(ROWS), pa.int64())})
    lance.write_dataset(rows, uri, max_rows_per_file=FRAGMENT_ROWS, enable_stable_row_ids=True)
    new_table = open_table(uri)
    new_table.add_columns({"v": counting_udf(str(orders.home))})
    return new_table


def backfill(table: Table, run_task: RunTask) -> None:
    with first_task(run_task):
        assert (
            table.backfill("v", **SETTINGS, task_size=FRAGMENT_ROWS, commit_granularity=1).status
            == "DONE"
        )


def assert_no_strays(table: Table) -> None:
    assert unused_files(table.uri) == set()
    assert strays(StorePlace(uri=table.uri, storage={})) == set()


@pytest.mark.long
def test_an_attempt_that_outlives_its_job_repeats_a_batch_and_leaves_only_checkpoints_for_the_cleanup(
    table: Table, orders: Orders
) -> None:
    attempts: list[subprocess.Popen[bytes]] = []

    def run_copy(spec: BackfillSpec, task: Task) -> list[RangeOutcome]:
        orders.order({HELD: "hold the first"})
        attempts.append(start(spec, task, folder=orders.home, variables={}))
        eventually(lambda: orders.waits_at(HELD))
        return run_again(spec, task)

    backfill(table, run_copy)
    assert wrong_rows(table) == []
    assert orders.new_calls() == Counter(range(ROWS)) + Counter(range(BATCH, HELD + 1))
    orders.pardon()
    attempts[0].communicate(timeout=60)
    assert set(orders.new_calls()) <= set(range(HELD + 1, FRAGMENT_ROWS))
    assert wrong_rows(table) == []
    assert table.get_errors() == [], "its end is no error of the job"
    assert unused_files(table.uri) == set()
    cleanup(table.uri, older_than=timedelta(0))
    assert_no_strays(table)


def test_a_killed_attempt_costs_a_batch_and_leaves_no_file(table: Table, orders: Orders) -> None:
    def run_twice(spec: BackfillSpec, task: Task) -> list[RangeOutcome]:
        orders.order({HELD: "wait"})
        attempt = start(spec, task, folder=orders.home, variables={})
        eventually(lambda: orders.waits_at(HELD))
        attempt.kill()
        attempt.communicate()
        orders.pardon()
        return run_again(spec, task)

    backfill(table, run_twice)
    assert wrong_rows(table) == []
    assert orders.new_calls() == Counter(range(ROWS)) + Counter(range(BATCH, HELD + 1))
    assert_no_strays(table)


def test_a_task_runs_in_another_environment_without_the_drivers_files(
    table: Table, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "machine"
    driver = tmp_path / "driver"
    for folder in (machine, driver):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(driver))
    make_environment(machine)
    modules = [f"{machine}/own.zip", *map(str, (SPARK_HOME / "python" / "lib").glob("*.zip"))]
    variables = {
        "HOME": str(machine),
        "TMPDIR": str(machine),
        "PYTHONPATH": os.pathsep.join(modules),
    }

    def run_elsewhere(spec: BackfillSpec, task: Task) -> list[RangeOutcome]:
        python = str(machine / "environment/bin/python")
        driver.rmdir()  # nothing is in it
        return finish(start(spec, task, python=python, folder=machine, variables=variables))

    backfill(table, run_elsewhere)
    assert wrong_rows(table) == []
    assert orders.new_calls() == Counter(range(ROWS))
    assert_no_strays(table)
