"""Many threads use a table at once: jobs fill its columns, and callers read it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_spark import Connection, Table
from tests.lance_spark.table.conftest import make_table
from udf_runtime import UDF, udf

pytestmark = pytest.mark.spark

COLUMNS = [f"plus_{number}" for number in range(8)]
LOOKING_THREADS = 4


def plus(number: int) -> UDF:
    @udf(data_type=pa.int64(), version=str(number))
    def add(id: pa.Array) -> pa.Array:
        return pc.add(id, number)

    return add


def fill_all_columns_at_once(table: Table) -> list[BaseException]:
    """Runs a job for each column while other threads read; returns the errors of the readers."""
    over, errors = threading.Event(), list[BaseException]()

    def look(number: int) -> None:
        looks: list[Callable[[], object]] = [
            lambda: table.plan_backfill(COLUMNS[number]),
            table.count_rows,
            table.list_jobs,
        ]
        while not over.is_set():
            try:
                for each in looks:
                    each()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test fails with it
                errors.append(error)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(LOOKING_THREADS)]
    for thread in threads:
        thread.start()
    try:
        jobs = [
            table.backfill_async(name, concurrency=1, task_size=20, commit_granularity=4)
            for name in COLUMNS
        ]
        for job in jobs:
            assert job.result(300).status == "DONE"
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return errors


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.long)])
def test_eight_jobs_and_four_looking_threads_on_one_table_do_not_disturb_each_other(
    db: Connection, rounds: int
):
    for number in range(rounds):
        table = make_table(db, f"words{number}", fragments=8, rows=20)
        table.add_columns({name: plus(at) for at, name in enumerate(COLUMNS)})
        assert fill_all_columns_at_once(table) == []
        rows = table.to_arrow(["id", *COLUMNS])
        for at, name in enumerate(COLUMNS):
            assert rows[name].equals(pc.add(rows["id"], at))
