"""The command `lance-spark agent` and watches as processes: a plan, a stop by a signal, and a standby after `kill -9`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection, Table
from lance_spark.agent.lease import _find_holder
from tests.support.agents import BATCH, ROOT, ROWS, WAIT_S, WATCHING, AgentProcess, slow
from tests.support.logs import Log, make, values
from tests.support.processes import environment
from tests.support.waiting import eventually


@pytest.fixture
def db(tmp_path: Path) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), progress=False)


@pytest.fixture
def table(db: Connection, log: Log) -> Table:
    table = make(db, rows=ROWS, fragments=2)
    table.add_columns({"y": slow(log)})
    db.create_materialized_view("v", table.search(None).select(["x", "y"]), auto_refresh=True)
    return table


@pytest.fixture
def processes() -> Iterator[list[AgentProcess]]:
    started: list[AgentProcess] = []
    yield started
    for process in started:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


def is_filled(table: Table, view: Table, rows: range | list[int]) -> bool:
    expected = {x: 2 * x for x in rows}
    return values(table) == expected and values(view) == expected


def leftovers(table: Table) -> list[str]:
    named = {
        file.path
        for version in lance.dataset(table.uri).versions()
        for fragment in lance.dataset(table.uri, version=version["version"]).get_fragments()
        for file in fragment.metadata.files
    }
    jobs = Path(table.uri) / "_lance_spark" / "jobs"
    files = [path.name for path in (Path(table.uri) / "data").iterdir() if path.name not in named]
    return files + [str(path) for path in jobs.rglob("*") if path.is_file()]


@pytest.mark.long
def test_a_dry_run_shows_the_plan_and_runs_nothing(table: Table, db: Connection, tmp_path: Path):
    process = AgentProcess(db.uri, tmp_path / "out", "--dry-run")
    assert process.process.wait(WAIT_S) == 0
    text = process.log.read_text()
    assert "t.y" in text and "due" in text and "60" in text and table.list_jobs() == []
    command = [
        sys.executable,
        "-m",
        "lance_spark.cli",
        "agent",
        "--namespace",
        "dir",
        "--property",
        f"root={db.uri}",
    ]
    out = subprocess.run(
        [*command, "--dry-run"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "t.y" in out and "not allowed" in out


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_agent_and_no_file_is_left(
    table: Table,
    db: Connection,
    log: Log,
    tmp_path: Path,
    processes: list[AgentProcess],
    number: int,
):
    processes.append(AgentProcess(db.uri, tmp_path / "out", *WATCHING))
    eventually(lambda: len(log.lines()) > 2 * BATCH, WAIT_S)
    assert processes[0].end(number) == 0, processes[0].log.read_text()
    assert len(log.lines()) < ROWS and {job.status for job in table.list_jobs()} == {"CANCELLED"}
    assert leftovers(table) == []
    assert _find_holder(lance.dataset(f"{table.uri}/_lance_spark/jobs.lance").config()) == ""


@pytest.mark.guarantee("W05")
@pytest.mark.long
def test_a_standby_continues_after_a_kill_and_repeats_only_rows_outside_of_checkpoints(
    table: Table, db: Connection, log: Log, tmp_path: Path, processes: list[AgentProcess]
):
    view = db.open_table("v")
    processes += [AgentProcess(db.uri, tmp_path / f"out{n}", *WATCHING) for n in range(2)]
    eventually(lambda: len(log.lines()) >= 6 * BATCH, WAIT_S)
    (running,) = (job for job in table.list_jobs() if job.status == "RUNNING")
    killed = next(process for process in processes if process.process.pid == running.driver.pid)
    killed.end(signal.SIGKILL)
    eventually(lambda: is_filled(table, view, range(ROWS)), WAIT_S)
    # At most a batch of each of the two tasks, and the batch of the checkpoint that the kill prevented.
    assert len(log.lines()) <= ROWS + 4 * BATCH, log.rows()
    assert {job.status for job in table.list_jobs()} == {"DEAD", "DONE"}
    lance.write_dataset(pa.table({"x": pa.array([100], pa.int64())}), table.uri, mode="append")
    eventually(lambda: is_filled(table, view, [*range(ROWS), 100]), WAIT_S)
    (standby,) = (process for process in processes if process is not killed)
    assert standby.end(signal.SIGTERM) == 0, standby.log.read_text()
    assert log.rows().count(100) == 1


@pytest.mark.long
def test_two_agents_at_once_compute_each_row_once(
    table: Table, db: Connection, log: Log, tmp_path: Path, processes: list[AgentProcess]
):
    view = db.open_table("v")
    processes += [AgentProcess(db.uri, tmp_path / f"out{n}", *WATCHING) for n in range(2)]
    eventually(lambda: is_filled(table, view, range(ROWS)), WAIT_S)
    time.sleep(3)
    for number in range(100, 103):
        lance.write_dataset(
            pa.table({"x": pa.array([number], pa.int64())}), table.uri, mode="append"
        )
    eventually(lambda: is_filled(table, view, [*range(ROWS), 100, 101, 102]), WAIT_S)
    assert log.rows() == [*range(ROWS), 100, 101, 102]
    for process in processes:
        assert process.end(signal.SIGTERM) == 0, process.log.read_text()


@pytest.mark.guarantee("W04")
@pytest.mark.long
def test_an_agent_that_wakes_after_the_end_of_its_lease_changes_no_value(
    table: Table, db: Connection, log: Log, tmp_path: Path, processes: list[AgentProcess]
):
    view = db.open_table("v")
    module = "tests.support.short_leases"
    processes += [
        AgentProcess(db.uri, tmp_path / f"out{n}", *WATCHING, module=module) for n in range(2)
    ]
    eventually(lambda: len(log.lines()) >= 4 * BATCH, WAIT_S)
    (running,) = (job for job in table.list_jobs() if job.status == "RUNNING")
    paused = next(process for process in processes if process.process.pid == running.driver.pid)
    os.killpg(paused.process.pid, signal.SIGSTOP)  # with its JVM and its workers
    try:
        eventually(lambda: is_filled(table, view, range(ROWS)), WAIT_S)
    finally:
        os.killpg(paused.process.pid, signal.SIGCONT)
    eventually(lambda: table.get_job(running.job_id).completed_at is not None, WAIT_S)
    lance.write_dataset(pa.table({"x": pa.array([100], pa.int64())}), table.uri, mode="append")
    eventually(lambda: is_filled(table, view, [*range(ROWS), 100]), WAIT_S)
    assert len(log.lines()) <= 2 * ROWS + 1, log.rows()
    for process in processes:
        assert process.end(signal.SIGTERM) == 0, process.log.read_text()
    assert leftovers(table) == []


@pytest.mark.long
def test_watches_in_processes_fill_columns_at_once_and_after_a_kill(
    db: Connection, log: Log, tmp_path: Path
):
    def start(*columns: str) -> subprocess.Popen[str]:
        process = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.watching", db.uri, "w", *columns],
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        ends.callback(kill, process)
        assert process.stdout is not None and process.stdout.readline() == "watching\n"
        return process

    def kill(process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def is_complete(rows: list[int], *columns: str) -> bool:
        is_idle = not any(job.status == "RUNNING" for job in table.list_jobs())
        return is_idle and all(
            values(table, column) == {x: 2 * x for x in rows} for column in columns
        )

    table = make(db, rows=20, fragments=2, name="w")
    table.add_columns({"y": slow(log)})
    table.add_columns({"z": log.doubling()})
    with contextlib.ExitStack() as ends:
        killed, other = start("y", "z"), start("y")
        eventually(lambda: is_complete([*range(20)], "y", "z"), WAIT_S)
        # Two watches of a column may both call the UDF.
        assert max(Counter(log.take()).values()) <= 3
        kill(killed)
        append = pa.table({"x": pa.array([100], pa.int64())})
        lance.write_dataset(append, table.uri, mode="append")
        eventually(lambda: is_complete([*range(20), 100], "y"), WAIT_S)
        assert log.take() == [100]
        next_watch = start("z")
        eventually(lambda: is_complete([*range(20), 100], "y", "z"), WAIT_S)
        assert log.rows() == [100]
        for process in (other, next_watch):
            process.communicate("")
            assert process.returncode == 0
        assert {job.job_id[:5] for job in table.list_jobs()} == {"watch"}
