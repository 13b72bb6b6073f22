"""The command `lance-spark agent` over tables of an object store: a standby continues after `kill -9`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from tests.object_stores.stores import Store, StorePlace, strays
from tests.support.agents import BATCH, ROWS, WAIT_S, WATCHING, AgentProcess, slow
from tests.support.logs import Log, make, values
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture
def agents() -> Iterator[list[AgentProcess]]:
    started: list[AgentProcess] = []
    yield started
    for agent in started:
        if agent.process.poll() is None:
            agent.end(signal.SIGKILL)


def test_a_standby_fills_a_table_of_a_store_after_a_kill(
    s3: Store, tmp_path: Path, agents: list[AgentProcess]
):
    log, count = Log(str(tmp_path / "log")), 2 * ROWS
    folder = s3.place().folder
    db = lance_spark.connect(folder, storage_options=s3.storage, progress=False)
    table = make(db, rows=count, fragments=2)
    table.add_columns({"y": slow(log)})
    view = db.create_materialized_view(
        "v", table.search(None).select(["x", "y"]), auto_refresh=True
    )
    options = [
        text for key, value in s3.storage.items() for text in ("--storage", f"{key}={value}")
    ]
    assert table.list_jobs() == []
    agents += [AgentProcess(folder, tmp_path / f"out{n}", *WATCHING, *options) for n in range(2)]
    eventually(lambda: len(log.lines()) >= 4 * BATCH, WAIT_S)
    (running,) = (job for job in table.list_jobs() if job.status == "RUNNING")
    killed = next(agent for agent in agents if agent.process.pid == running.driver.pid)
    killed.end(signal.SIGKILL)

    def shows(rows: list[int]) -> bool:
        return values(table) == values(view) == {x: 2 * x for x in rows}

    eventually(lambda: shows([*range(count)]), WAIT_S)
    # Each of two tasks repeats the rows since its last flush, the batch in progress, and a checkpoint in writing.
    assert len(log.lines()) <= count + 2 * 3 * BATCH, log.rows()
    new_rows = pa.table({"x": pa.array([1000], pa.int64())})
    lance.write_dataset(new_rows, table.uri, mode="append", storage_options=s3.storage)
    eventually(lambda: shows([*range(count), 1000]), WAIT_S)
    (standby,) = (agent for agent in agents if agent is not killed)
    assert standby.end(signal.SIGTERM) == 0, standby.log.read_text()
    assert log.rows().count(1000) == 1
    assert {job.status for job in table.list_jobs()} == {"DEAD", "DONE"}
    secrets = [value for key, value in s3.storage.items() if "secret" in key]
    assert not any(secret in agent.log.read_text() for agent in agents for secret in secrets)
    # The files of the dead job next to the data stay until a cleanup.
    (dead,) = (job for job in table.list_jobs() if job.status == "DEAD")
    names = {
        name
        for each in (table, view)
        for name in strays(StorePlace(uri=each.uri, storage=s3.storage))
    }
    assert {name for name in names if dead.staging_id not in name} == set()
    assert not any(name.startswith("data/") for name in names)
