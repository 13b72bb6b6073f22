"""A job or a lease ends with its process only as seen in the same boot and the same container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark.agent import lease
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.history import JobHistory
from lance_spark.staging import processes
from tests.support.records import job_record
from tests.support.waiting import eventually

DEAD = 1 << 30
"""A number above the numbers of all processes."""

CASES = [
    ({"pid": DEAD}, True),
    ({"started": "0"}, True),
    ({"pid": DEAD, "pid_namespace": "pid:[1]"}, False),
    ({"pid": DEAD, "boot": "another"}, False),
    ({"pid": DEAD, "host": "another"}, False),
]
IDS = ["dead", "later process", "other container", "other boot", "other host"]


@pytest.fixture
def ref(tmp_path: Path) -> DatasetRef:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": [1]}), uri)
    return DatasetRef.at(uri)


def process(**changes: Any) -> str:
    return json.dumps({**processes.this_owner(), **changes})


def process_of_an_earlier_release(pid: int) -> str:
    owner = processes.this_owner()
    return json.dumps({"host": owner["host"], "pid": pid, "started": "1"})


def status(ref: DatasetRef, text: str, *, age_s: float = 0.0) -> str:
    record = job_record(
        "job",
        status="RUNNING",
        process=text,
        updated_at=datetime.now(UTC) - timedelta(seconds=age_s),
    )
    JobHistory(ref).save(record)
    return JobHistory(ref).job("job").status


@pytest.mark.parametrize(("changes", "is_dead"), CASES, ids=IDS)
def test_a_job_of_another_container_is_dead_only_without_signs_of_life(
    changes: dict[str, Any], is_dead: bool, ref: DatasetRef
) -> None:
    assert status(ref, process(**changes)) == ("DEAD" if is_dead else "RUNNING")
    assert status(ref, process(**changes), age_s=100) == "DEAD"


def test_a_job_of_this_process_lives_without_signs_of_life(ref: DatasetRef) -> None:
    assert status(ref, process(), age_s=100) == "RUNNING"


def test_a_record_of_an_earlier_release_counts_by_its_signs_of_life(ref: DatasetRef) -> None:
    assert status(ref, process_of_an_earlier_release(DEAD)) == "RUNNING"
    assert status(ref, process_of_an_earlier_release(DEAD), age_s=100) == "DEAD"


@pytest.mark.parametrize(("changes", "is_dead"), CASES, ids=IDS)
def test_a_lease_of_another_container_lasts_until_its_time(
    changes: dict[str, Any], is_dead: bool, ref: DatasetRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobHistory(ref).save(job_record("job"))
    with monkeypatch.context() as patches:
        patches.setattr(lease, "this_process", lambda: process(**changes))
        assert lease.Lease(ref, "other")._write(until=lease.time.time() + lease.LEASE_S)
    assert lease.Lease(ref, "this")._write(until=lease.time.time() + lease.LEASE_S) is is_dead


@pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="the system has no states of processes"
)
def test_a_process_that_its_parent_has_not_waited_for_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        owner = {
            **processes.this_owner(),
            "pid": child.pid,
            "started": processes.find_process_start(child.pid),
        }
        eventually(lambda: processes.has_ended(owner), 30)
        assert processes.is_running(child.pid)
    finally:
        child.wait()
