"""A backfill of the table API, on object stores, with a concurrent commit during its computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import BackfillJobResult, Job, Table
from lance_spark.errors import CommitImpossibleError
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.write.backfills import make_table
from tests.object_stores.others import (
    ALL,
    COMMITTED,
    IMPOSSIBLE,
    Scenario,
    on_stores,
    work_of_others,
)
from tests.object_stores.stores import Store, StorePlace
from tests.support.waiting import eventually
from udf_runtime import UDF, udf

pytestmark = [pytest.mark.cluster, pytest.mark.sample(5)]


@pytest.fixture
def place(store: Store) -> StorePlace:
    new_place = store.place()
    make_table(new_place.uri, storage=new_place.storage)
    return new_place


@pytest.fixture
def call_log(tmp_path: Path) -> CallLog:
    return CallLog(str(tmp_path / "calls"))


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file for which the last row waits. The fixture makes the file at its end, so that no call waits forever."""
    path = tmp_path / "gate"
    yield path
    path.touch()


@pytest.fixture
def table(place: StorePlace, call_log: CallLog, gate: Path, spark: SparkSession) -> Table:
    new_table = lance_spark.connect(place.folder, spark, place.storage, progress=False).open_table(
        place.name
    )
    new_table.add_columns({"c": waiting_udf(call_log, gate)})
    return new_table


def waiting_udf(call_log: CallLog, gate: Path) -> UDF:
    """Returns a UDF whose result shows a changed input. The UDF logs its calls, and waits for the gate at the last
    row.
    """
    note, path = call_log.noter(), str(gate)

    @udf(data_type=pa.int64(), name="held")
    def waiting_udf(id: int, text: str) -> int:
        import os
        import time

        note(id)
        while id == 29 and not os.path.exists(path):
            time.sleep(0.01)
        return id * 10 + (text != f"t{id}")

    return waiting_udf


def computing(table: Table, call_log: CallLog) -> Job:
    """Starts a job, and waits until the job has computed all rows but one, without a commit."""
    job = table.backfill_async("c", task_size=10, refresh_status_secs=0.05)
    assert isinstance(job, Job)

    def has_called_all() -> bool:
        assert not job.done(), f"the job ended: {job.status}"
        return Path(call_log.path).exists() and len(Path(call_log.path).read_text().split()) == len(
            ALL
        )

    eventually(has_called_all, seconds=60)
    return job


@on_stores("scenario", [(scenario,) for scenario in COMMITTED])
def test_values_are_committed_beside(
    scenario: Scenario, place: StorePlace, table: Table, call_log: CallLog, gate: Path
):
    job = computing(table, call_log)
    scenario.act(place)
    foreign_work = work_of_others(place)
    gate.touch()
    result = job.result(60)
    assert isinstance(result, BackfillJobResult) and result.status == "DONE"
    assert place.column("c") == scenario.values(lambda i: i * 10 + 1)
    assert work_of_others(place) == foreign_work, "another writer's work changed"
    assert call_log.take() == sorted([*ALL, *scenario.changed]), "a value was not computed once"
    numbers = (result.new_rows, result.rows_gone, result.rows_carried, result.rows_recomputed)
    new, deleted_count, changed = (
        len(list(rows)) for rows in (scenario.new, scenario.deleted, scenario.changed)
    )
    assert numbers == (new, deleted_count, scenario.carried, changed)
    assert place.orphans() == set()


@on_stores("act, text", IMPOSSIBLE)
def test_values_are_refused_after(
    act: Callable[[StorePlace], None],
    text: str,
    place: StorePlace,
    table: Table,
    call_log: CallLog,
    gate: Path,
):
    job = computing(table, call_log)
    act(place)
    version, foreign_contents = place.open().version, place.contents()
    gate.touch()
    with pytest.raises(CommitImpossibleError, match=text) as caught:
        job.result(60)
    assert place.uri in str(caught.value)
    assert place.open().version == version and place.contents() == foreign_contents
