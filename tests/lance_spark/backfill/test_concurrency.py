"""How many tasks and threads compute at once, and when results become visible."""

from __future__ import annotations

import inspect
from pathlib import Path

import pyarrow as pa
import pytest

from lance_spark import Connection, Table
from tests.support.logs import Log, flag_file, most_at_once, values, with_column
from tests.support.waiting import eventually
from udf_runtime import UDF, udf

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=2)]

SLOTS = 2
"""Slots of the session of these tests."""


def meeting(folder: Path, calls: int, **options: int) -> UDF:
    """A UDF whose calls wait for each other, at most a minute; its result is the number of concurrent calls.

    Each call makes a file named after its process and thread; batches have one row.
    """
    folder.mkdir()
    place = str(folder)

    def meet(x: int) -> int:
        import os
        import threading
        import time

        with open(f"{place}/{os.getpid()}-{threading.get_ident()}", "w", encoding="utf-8"):
            pass
        deadline = time.monotonic() + 60
        while len(os.listdir(place)) < calls and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(os.listdir(place))

    return udf(meet, min_checkpoint_size=1, max_checkpoint_size=1, **options)


def timed(log: Log, **options: int) -> UDF:
    """A UDF over arrays that logs the begin and end of each call."""
    path = log.path

    def spans(x: pa.Array) -> pa.Array:
        import time

        began = time.monotonic()
        time.sleep(0.03)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{began}:{time.monotonic()}\n")
        return x

    return udf(spans, data_type=pa.int64(), min_checkpoint_size=10, **options)


@pytest.mark.guarantee("B16")
def test_one_process_at_a_time_where_concurrency_is_one(db: Connection, log: Log) -> None:
    table = with_column(db, timed(log), rows=60, fragments=6)
    assert table.backfill("y", concurrency=1, task_size=10).status == "DONE"
    assert len(log.lines()) == 6
    assert most_at_once(log) == 1


@pytest.mark.guarantee("B16")
def test_two_processes_at_a_time_where_concurrency_is_two(db: Connection, tmp_path: Path) -> None:
    table = with_column(db, meeting(tmp_path / "met", 2), rows=2, fragments=2)
    table.backfill("y", concurrency=2)
    assert values(table) == {0: 2, 1: 2}
    assert len({name.name.split("-")[0] for name in (tmp_path / "met").iterdir()}) == 2


@pytest.mark.guarantee("B17")
@pytest.mark.parametrize("method", ["backfill", "backfill_async"])
def test_concurrency_is_eight_by_default(method: str) -> None:
    assert inspect.signature(getattr(Table, method)).parameters["concurrency"].default == 8


@pytest.mark.guarantee("B18")
def test_more_concurrency_than_the_cluster_has_uses_all_of_it(
    db: Connection, tmp_path: Path
) -> None:
    table = with_column(db, meeting(tmp_path / "met", SLOTS), rows=4, fragments=4)
    result = table.backfill("y", concurrency=160, task_size=1)
    assert result.status == "DONE"
    assert set(values(table).values()) == {SLOTS}


@pytest.mark.guarantee("B19")
def test_a_udf_that_needs_all_processors_runs_once_at_a_time(db: Connection, log: Log) -> None:
    table = with_column(db, timed(log, num_cpus=SLOTS), rows=40, fragments=4)
    table.backfill("y", concurrency=8, task_size=10)
    assert len(log.lines()) == 4
    assert most_at_once(log) == 1


@pytest.mark.guarantee("B20")
def test_as_many_threads_of_one_process_compute_as_asked_for(
    db: Connection, tmp_path: Path
) -> None:
    table = with_column(db, meeting(tmp_path / "met", 3), rows=3, fragments=1)
    table.backfill("y", concurrency=1, intra_applier_concurrency=3, task_size=100)
    assert set(values(table).values()) == {3}
    assert len({name.name.split("-")[0] for name in (tmp_path / "met").iterdir()}) == 1


@pytest.mark.guarantee("B21")
def test_one_thread_computes_by_default(db: Connection, log: Log) -> None:
    assert inspect.signature(Table.backfill).parameters["intra_applier_concurrency"].default == 1
    table = with_column(db, timed(log, max_checkpoint_size=10), rows=40, fragments=1)
    table.backfill("y", task_size=100)
    assert len(log.lines()) == 4
    assert most_at_once(log) == 1


@pytest.mark.guarantee("B22")
def test_more_threads_than_processors_are_accepted(db: Connection, tmp_path: Path) -> None:
    table = with_column(db, meeting(tmp_path / "met", 20), rows=20, fragments=1)
    assert (
        table.backfill("y", concurrency=1, intra_applier_concurrency=20, task_size=100).status
        == "DONE"
    )
    assert set(values(table).values()) == {20}


@pytest.mark.guarantee("B23")
def test_processes_and_threads_multiply(db: Connection, tmp_path: Path) -> None:
    table = with_column(db, meeting(tmp_path / "met", 4), rows=4, fragments=2)
    table.backfill("y", concurrency=2, intra_applier_concurrency=2, task_size=2)
    assert set(values(table).values()) == {4}
    processes = [name.name.split("-")[0] for name in (tmp_path / "met").iterdir()]
    assert sorted(processes.count(process) for process in set(processes)) == [2, 2]


@pytest.mark.guarantee("B27")
def test_fragments_that_were_computed_are_not_computed_again(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    task_rows = []
    for num_frags in (1, 1, 3, None, None):
        table.backfill("y", num_frags=num_frags)
        task_rows.append(log.take())
    assert task_rows == [list(range(10)), [], list(range(10, 30)), list(range(30, 40)), []]


@pytest.mark.guarantee("B28")
def test_a_commit_comes_as_soon_as_the_granularity_is_reached(
    db: Connection, log: Log, flag: str
) -> None:
    table = with_column(db, log.waiting(35, flag))
    before = table.version
    with flag_file(flag):
        job = table.backfill_async("y", task_size=10, refresh_status_secs=0.2, commit_granularity=3)
        eventually(lambda: table.version > before, 60)
        assert table.count_rows("y is not null") == 30
        assert not job.done()
    assert len(job.result().versions) == 2
