"""Backfills of the table API on a real standalone cluster with dying parts, with more slots than allowed for the job,
and over Spark Connect.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.cluster.conftest import StandaloneCluster
from tests.cluster.jobs import ROWS as WALKED
from tests.connect.conftest import connect_log as connect_log  # noqa: PLC0414 - a fixture
from tests.connect.conftest import connect_url as connect_url  # noqa: PLC0414 - a fixture
from tests.support.drivers import driver
from tests.support.faults import (
    BATCH,
    SLOTS,
    Lab,
    checkpoint_files,
    is_running,
    run,
    unused_files,
    wrong_rows,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROWS, FRAGMENT_ROWS = 240, 80
SMALL = {"checkpoint_size": 4, "min_checkpoint_size": 4}

Loss = Callable[[StandaloneCluster, psutil.Process], None]


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(home=tmp_path, spark=spark)


def settings(**more: Any) -> dict[str, Any]:
    return {"task_size": 40, "commit_granularity": 1, **more}


def lose_executor(cluster: StandaloneCluster, worker: psutil.Process) -> None:
    os.kill(cluster.executor_of(worker).pid, signal.SIGKILL)


def lose_python_worker(cluster: StandaloneCluster, worker: psutil.Process) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def lose_machine(cluster: StandaloneCluster, worker: psutil.Process) -> None:
    cluster.lose_machine_of(worker)


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lose_executor, marks=pytest.mark.long),
        pytest.param(lose_python_worker, marks=pytest.mark.long),
        pytest.param(lose_machine, marks=pytest.mark.long),
    ],
    ids=lambda lose: lose.__name__,
)
def test_dataframes_are_written_read_and_backfilled_and_a_backfill_ends_well_after_the_loss_of(
    lose: Loss, cluster: StandaloneCluster, lab: Lab
):
    table = lab.table(ROWS, FRAGMENT_ROWS)
    lab.order({115: "wait"})
    with driver(
        {"job": (lab.home, settings())}, master=cluster.url, module="tests.cluster.driver"
    ) as started:
        started.wait_for(lambda: lab.waits_at(115))
        worker = psutil.Process(lab.pid_at(115))
        lose(cluster, worker)
        # Another attempt may wait at the row by now.
        eventually(lambda: not is_running(worker.pid), 60)
        lab.pardon()
        walked, answers = started.answers(2)
    assert walked == {
        "first": WALKED,
        "filtered": [10, 11, 12],
        "rows": WALKED + 5,
        "wrong": 0,
        "executors": 2,
    }
    assert unused_files(f"{lab.home}/walked.lance") == set()
    answer = answers["job"]
    assert (answer["complete"], answer["status"], answer["processed"], answer["failed"]) == (
        True,
        "DONE",
        ROWS,
        0,
    )
    assert wrong_rows(table) == []
    calls = lab.new_calls()
    assert set(calls) == set(range(ROWS))
    assert max(calls.values()) <= 2
    assert sum(calls.values()) - ROWS <= BATCH * SLOTS
    assert table.get_errors("job") == []
    assert table.get_job("job").status == "DONE"
    assert unused_files(table.uri) == set()
    assert checkpoint_files(table) == []


@pytest.mark.long
def test_a_killed_driver_of_a_cluster_is_resumed(cluster: StandaloneCluster, lab: Lab):
    table = lab.table(ROWS, FRAGMENT_ROWS)
    lab.order({115: "wait"})
    with driver({"job": (lab.home, settings())}, master=cluster.url) as started:
        started.wait_for(lambda: lab.waits_at(115))
        started.kill()
    # The executors notice the death of their driver, and end.
    lab.wait_for_death_at(115)
    lab.pardon()
    assert table.get_job("job").status == "DEAD"
    calls = lab.new_calls()
    assert run(table, **settings()).status == "DONE"
    calls += lab.new_calls()
    assert wrong_rows(table) == []
    assert sum(calls.values()) - ROWS <= BATCH * SLOTS
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert unused_files(table.uri) == set()


@pytest.mark.long
def test_rows_that_kill_their_worker_are_found_on_a_cluster(cluster: StandaloneCluster, lab: Lab):
    table = lab.table(ROWS, FRAGMENT_ROWS)
    lab.order({200: "segfault"})
    with driver({"job": (lab.home, settings(**SMALL))}, master=cluster.url) as started:
        answer = started.answer()["job"]
    assert answer == {
        "complete": False,
        "status": "PARTIAL",
        "processed": ROWS - 1,
        "skipped": 0,
        "failed": 1,
    }
    assert wrong_rows(table) == [200]
    assert table.get_failed_row_addresses("job", "v") == [2 << 32 | 40]
    assert {e.outcome for e in table.get_errors("job")} == {"crashed"}
    assert set(lab.new_calls()) == set(range(ROWS))


def labs_of(
    home: Path, spark: SparkSession, limits: dict[str, int | None], *, rows: int
) -> dict[str, Lab]:
    labs = {}
    for name in limits:
        (home / name).mkdir()
        labs[name] = Lab(home=home / name, spark=spark)
        labs[name].table(rows, 20)
        labs[name].slow_down()
    return labs


@pytest.mark.long
def test_no_more_tasks_than_allowed_run_at_once_on_a_cluster(
    cluster: StandaloneCluster, tmp_path: Path, spark: SparkSession
):
    labs = labs_of(tmp_path, spark, {"one": 1}, rows=80)
    with driver(
        {"one": (labs["one"].home, settings(task_size=20, concurrency=1))}, master=cluster.url
    ) as started:
        assert started.answer()["one"]["status"] == "DONE"
    assert labs["one"].most_at_once() == 1
    assert labs["one"].new_calls() == Counter(range(80))


@pytest.mark.long
def test_no_more_tasks_than_allowed_run_at_once_where_there_are_more_slots(
    tmp_path: Path, spark: SparkSession
):
    limits = {"one": 1, "two": 2, "three": 3, "all": None}
    labs = labs_of(tmp_path, spark, limits, rows=400)
    jobs = {
        name: (labs[name].home, settings(task_size=20, concurrency=limit))
        for name, limit in limits.items()
    }
    with driver(jobs, master="local[10]") as started:
        answers = started.answer()
    assert {answer["status"] for answer in answers.values()} == {"DONE"}
    for name, limit in limits.items():
        assert labs[name].new_calls() == Counter(range(400))
        most = labs[name].most_at_once()
        assert most <= (limit or 10)
        assert most >= min(limit or 3, 2), "and those that may run do"


@pytest.mark.long
def test_a_backfill_over_connect_computes_resumes_and_finds_killers(
    connect_url: str, tmp_path: Path, spark: SparkSession
):
    labs = {}
    for name in ("plain", "failing", "killing"):
        (tmp_path / name).mkdir()
        labs[name] = Lab(home=tmp_path / name, spark=spark)
        labs[name].table()
    labs["failing"].order({65: "raise"})
    labs["killing"].order({13: "exit"})
    jobs = {name: (lab.home, settings(concurrency=2, **SMALL)) for name, lab in labs.items()}
    with driver(jobs, master=connect_url) as started:
        answers = started.answer()
    tables = {name: lab.connection.open_table("t") for name, lab in labs.items()}
    assert answers["plain"] == {
        "complete": True,
        "status": "DONE",
        "processed": 120,
        "skipped": 0,
        "failed": 0,
    }
    assert labs["plain"].new_calls() == Counter(range(120))
    assert wrong_rows(tables["plain"]) == []

    assert (answers["failing"]["complete"], answers["failing"]["status"]) == (False, "PARTIAL")
    assert labs["failing"].new_calls() == Counter(x for x in range(120) if not 65 < x < 80)
    labs["failing"].pardon()
    with driver({"again": (labs["failing"].home, settings())}, master=connect_url) as started:
        assert started.answer()["again"]["status"] == "DONE"
    assert labs["failing"].new_calls() == Counter(range(64, 80))
    assert wrong_rows(tables["failing"]) == []

    assert answers["killing"] == {
        "complete": False,
        "status": "PARTIAL",
        "processed": 119,
        "skipped": 0,
        "failed": 1,
    }
    assert tables["killing"].get_failed_row_addresses("killing", "v") == [13]
    assert wrong_rows(tables["killing"]) == [13]


@pytest.mark.long
def test_ctrl_c_over_connect_ends_the_tasks_on_the_server(connect_url: str, lab: Lab):
    table = lab.table()
    lab.order({95: "wait"})
    with driver(
        {"job": (lab.home, settings(commit_granularity=None))}, master=connect_url
    ) as started:
        # The other tasks too: how soon they begin depends on the machine.
        started.wait_for(lambda: lab.waits_at(95) and len(lab._lines()) == 96)
        started.interrupt()
        assert started.answer() == {"interrupted": True}
    lab.wait_for_death_at(95)
    assert table.get_job("job").status == "CANCELLED"
    assert lab.new_calls() == Counter(range(96))
    lab.pardon()
    run(table)
    assert lab.new_calls() == Counter(range(90, 120))
    assert wrong_rows(table) == []
