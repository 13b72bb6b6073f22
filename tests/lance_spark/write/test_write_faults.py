"""Real Spark applications with a death in the middle of a write: the table is unchanged or complete, never partial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import psutil
import pyarrow as pa
import pytest

from lance_spark.staging.orphans import remove_orphans
from tests.lance_spark.write.appends import unused_files
from tests.lance_spark.write.fault_jobs import PARTITIONS, ROWS
from tests.support.processes import daemons, free_port

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.parametrize("way", ["jar", "no jar"]),
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with one row, to which the jobs append."""
    rows = pa.table({"id": pa.array([-1], pa.int64()), "pad": ["x"]})
    lance.write_dataset(rows, tmp_path / "table.lance", enable_stable_row_ids=True)
    return tmp_path / "table.lance"


def start(way: str, scenario: str, table: Path, folder: Path) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [
        sys.executable,
        "-m",
        "tests.lance_spark.write.fault_jobs",
        way,
        scenario,
        str(table),
        str(folder),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(way: str, scenario: str, table: Path, folder: Path) -> dict[str, object]:
    job = start(way, scenario, table, folder)
    out, err = job.communicate(timeout=300)
    assert job.returncode == 0, err[-3000:]
    answer = json.loads(out.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def attempts(folder: Path) -> Counter[int]:
    """How often each partition was tried."""
    return Counter(int(line.split()[0]) for line in (folder / "attempts").read_text().splitlines())


def assert_complete(table: Path) -> None:
    dataset = lance.dataset(str(table))
    assert dataset.version == 2
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(-1, ROWS))


@pytest.mark.long
def test_a_task_that_fails_once_doubles_nothing_and_leaves_nothing(
    way: str, table: Path, tmp_path: Path
) -> None:
    run(way, "a task that fails once", table, tmp_path)
    assert attempts(tmp_path) == {0: 1, 1: 2, 2: 1, 3: 1}
    assert_complete(table)
    assert unused_files(table) == set()


@pytest.mark.long
def test_a_worker_that_is_killed_in_the_middle_of_a_write_leaves_nothing(
    way: str, table: Path, tmp_path: Path
) -> None:
    answer = run(way, "a worker that is killed", table, tmp_path)
    assert len(answer["killed"]) == 1  # type: ignore[arg-type]
    assert attempts(tmp_path)[1] == 2
    assert_complete(table)
    assert unused_files(table) == set()


@pytest.mark.cluster
@pytest.mark.long
def test_a_speculative_task_doubles_nothing_and_leaves_nothing(
    way: str, table: Path, tmp_path: Path
) -> None:
    with daemons(tmp_path) as started:
        url = f"spark://127.0.0.1:{free_port()}"
        master = (
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            url.rpartition(":")[2],
        )
        started.start(
            "master", *master, "--webui-port", str(free_port()), ready="I have been elected leader"
        )
        # Spark runs a speculative task only on another host than the first attempt, so these are two.
        for host in ("127.0.0.1", "127.0.0.2"):
            worker = (
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                host,
                "--webui-port",
                str(free_port()),
            )
            started.start(
                host,
                *worker,
                "-c",
                "1",
                "-m",
                "1g",
                "-d",
                str(tmp_path / host),
                url,
                ready="Successfully registered",
            )
        (tmp_path / "master").write_text(url)
        run(way, "a speculative task", table, tmp_path)
    assert attempts(tmp_path)[1] >= 2
    assert_complete(table)
    assert unused_files(table) == set()


@pytest.mark.long
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_driver_killed_during_its_commit_leaves_the_table_unchanged_or_complete(
    way: str, where: str, table: Path, tmp_path: Path
) -> None:
    job = start(way, f"a driver that is killed {where} its commit", table, tmp_path)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "held").exists():
            assert job.poll() is None, job.stderr.read()[-3000:] if job.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=30)
        job.communicate()

    files = -(-ROWS // PARTITIONS // 4000) * PARTITIONS
    if where == "before":
        assert lance.dataset(str(table)).to_table()["id"].to_pylist() == [-1]
        assert len([f for f in unused_files(table) if f.startswith("data/")]) == files
    else:
        assert_complete(table)
    assert any(f.startswith("_lance_spark/") for f in unused_files(table))
    assert remove_orphans(str(table), older_than=timedelta(days=1)) == 0
    assert remove_orphans(str(table), older_than=timedelta(0)) == (
        files if where == "before" else 0
    )
    assert unused_files(table) == set()
    if where == "after":
        assert_complete(table)
