"""How much a backfill reads, persists and commits at once, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import lance.blob
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, OptionError, Table
from lance_spark.backfill.request import blob_buffer_of
from tests.support.logs import Log, doubled, flag_file, values, with_column
from tests.support.waiting import eventually
from udf_runtime import UDF, udf

pytestmark = pytest.mark.sample(1, tests=5)

ONE_TASK = 1000


def batches(
    db: Connection, log: Log, *, rows: int = 60, fragments: int = 1, **options: Any
) -> list[int]:
    """Backfills a table as one task per fragment, and returns the sizes of the batches in order."""
    table = with_column(db, log.sizes(), rows=rows, fragments=fragments)
    assert table.backfill("y", task_size=ONE_TASK, **options).rows_computed == rows
    return list(map(int, log.lines()))


def dying(log: Log, row: int, flag: str, **options: Any) -> UDF:
    """A UDF that doubles, and kills its process at one row, once: the process removes a file before its death."""
    path = log.path

    def double(x: int) -> int:
        import os

        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        if x == row and os.path.exists(flag):
            os.unlink(flag)
            os._exit(1)
        return 2 * x

    return udf(double, min_checkpoint_size=5, max_checkpoint_size=5, **options)


def with_blobs(db: Connection, log: Log, *, rows: int = 12) -> Table:
    """Makes a table of one fragment with blobs of ten bytes, and a UDF for their text with a log of batch sizes."""
    path = log.path

    def text(data: pa.Array) -> pa.Array:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{len(data)}\n")
        return pa.array(
            [None if value is None else value.decode() for value in data.to_pylist()], pa.string()
        )

    contents = [None if x == 5 else f"blob-{x:05}".encode() for x in range(rows)]
    schema = pa.schema([pa.field("x", pa.int64()), lance.blob.blob_field("data")])
    data = pa.table([pa.array(range(rows)), lance.blob.blob_array(contents)], schema=schema)
    table = db.create_table("blobs", data, data_storage_version="2.2")
    table.add_columns({"y": udf(text, data_type=pa.string(), min_checkpoint_size=100)})
    return table


TEXTS = {x: None if x == 5 else f"blob-{x:05}" for x in range(12)}


@pytest.mark.guarantee("T39")
def test_the_minimum_of_the_call_is_the_lower_bound(db: Connection, log: Log) -> None:
    sizes = batches(db, log, min_checkpoint_size=9)
    assert sizes[0] == 9
    assert all(size >= 9 for size in sizes[:-1])


@pytest.mark.guarantee("T40")
def test_the_maximum_also_bounds_what_the_udf_gets_at_once(db: Connection, log: Log) -> None:
    assert batches(db, log, max_checkpoint_size=8, checkpoint_size=50) == [8] * 7 + [4]


@pytest.mark.long
@pytest.mark.guarantee("T41")
@pytest.mark.spark
@pytest.mark.spark
def test_with_a_long_interval_a_sudden_death_costs_all_that_was_not_persisted(
    db: Connection, log: Log, flag: str
) -> None:
    table = with_column(db, dying(log, 13, flag), rows=20, fragments=1)
    Path(flag).touch()
    result = table.backfill("y", task_size=ONE_TASK, batch_checkpoint_flush_interval_seconds=1000)
    assert log.rows() == sorted([*range(14), *range(20)])
    assert (result.status, values(table)) == ("DONE", doubled(range(20)))


@pytest.mark.long
@pytest.mark.guarantee("T42")
@pytest.mark.spark
def test_with_an_interval_of_zero_it_costs_the_unfinished_batch_only(
    db: Connection, log: Log, flag: str
) -> None:
    table = with_column(db, dying(log, 13, flag), rows=20, fragments=1)
    Path(flag).touch()
    result = table.backfill("y", task_size=ONE_TASK, batch_checkpoint_flush_interval_seconds=0)
    assert log.rows() == sorted([*range(14), *range(10, 20)])
    assert (result.status, values(table)) == ("DONE", doubled(range(20)))


@pytest.mark.long
@pytest.mark.spark
def test_tasks_give_a_udf_full_calls_over_small_fragments(db: Connection, log: Log) -> None:
    table = with_column(db, log.sizes(batch_size=64), rows=1000, fragments=100)
    result = table.backfill("y")
    sizes = list(map(int, log.lines()))
    assert (sum(sizes), result.rows_computed, result.fragments_done) == (1000, 1000, 100)
    incomplete_calls = len(sizes) - sizes.count(64)
    assert incomplete_calls <= table.plan_backfill("y", where="1=1").total_tasks
    assert values(table) == {x: x for x in range(1000)}


@pytest.mark.guarantee("T43")
def test_metrics_are_kept_with_the_table_by_default(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    result = table.backfill("y")
    job_info = table.get_job(result.job_id)
    assert (job_info.status, job_info.rows_computed, job_info.rows_selected, job_info.versions) == (
        "DONE",
        40,
        40,
        result.versions,
    )


@pytest.mark.guarantee("T43")
def test_metrics_are_only_in_memory_on_request(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    result = table.backfill("y", _enable_job_tracker_saves=False)
    assert (result.status, result.rows_computed) == ("DONE", 40)
    assert table.list_jobs() == []
    job_files = [
        path
        for path in (Path(table.uri) / "_lance_spark").rglob("*")
        if path.is_file() and "job" in str(path)
    ]
    assert job_files == []


@pytest.mark.sample(3)
@pytest.mark.guarantee("T44")
@pytest.mark.parametrize("strategy", ["auto", "legacy", "range"])
def test_every_strategy_gives_the_same_bytes(db: Connection, log: Log, strategy: Any) -> None:
    table = with_blobs(db, log)
    table.backfill("y", blob_read_strategy=strategy)
    assert values(table) == TEXTS


@pytest.mark.guarantee("T45")
def test_another_strategy_is_refused(db: Connection, log: Log) -> None:
    table = with_blobs(db, log)
    with pytest.raises(OptionError, match=r"blob_read_strategy.*auto, legacy or range"):
        table.backfill("y", blob_read_strategy="magic")  # type: ignore[arg-type]


@pytest.mark.guarantee("T46")
@pytest.mark.parametrize("strategy", ["auto", "range"])
def test_a_strategy_does_not_depend_on_the_scheme(
    spark: SparkSession, tmp_path: Path, log: Log, strategy: Any
) -> None:
    table = with_blobs(lance_spark.connect(f"file-object-store://{tmp_path}/store", spark), log)
    table.backfill("y", blob_read_strategy=strategy)
    assert values(table) == TEXTS


@pytest.mark.guarantee("T47")
def test_the_buffer_bounds_the_bytes_of_a_batch(db: Connection, log: Log) -> None:
    table = with_blobs(db, log)
    table.backfill("y", blob_read_buffer_size=30, task_size=ONE_TASK)
    assert values(table) == TEXTS
    assert list(map(int, log.lines())) == [3, 4, 3, 2], (
        "three blobs of ten bytes fit, and a NULL takes no bytes"
    )


@pytest.mark.guarantee("T47")
def test_a_blob_that_is_larger_than_the_buffer_comes_alone(db: Connection, log: Log) -> None:
    table = with_blobs(db, log)
    table.backfill("y", blob_read_buffer_size=1, task_size=ONE_TASK)
    assert values(table) == TEXTS
    assert max(map(int, log.lines())) <= 2


@pytest.mark.guarantee("T48")
def test_the_environment_decides_about_the_buffer(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_blobs(db, log)
    assert blob_buffer_of(None) == 512 << 20
    monkeypatch.setenv("LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE", "30")
    table.backfill("y", task_size=ONE_TASK)
    assert list(map(int, log.lines())) == [3, 4, 3, 2]
    monkeypatch.setenv("LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE", "much")
    with pytest.raises(OptionError, match="LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE"):
        table.backfill("y")


@pytest.mark.guarantee("T57")
def test_batch_size_is_the_deprecated_name(db: Connection, log: Log) -> None:
    with pytest.warns(DeprecationWarning, match="checkpoint_size"):
        sizes = batches(db, log, batch_size=20)
    assert sizes == [20] * 3


@pytest.mark.guarantee("T58")
def test_a_batch_size_of_zero_takes_all_rows_of_a_fragment(db: Connection, log: Log) -> None:
    with pytest.warns(DeprecationWarning, match="checkpoint_size"):
        sizes = batches(db, log, rows=60, fragments=2, batch_size=0)
    assert sizes == [30, 30]


@pytest.mark.guarantee("T59")
def test_a_checkpoint_has_at_most_so_many_rows(db: Connection, log: Log) -> None:
    assert max(batches(db, log, checkpoint_size=7)) == 7


@pytest.mark.guarantee("T59")
def test_checkpoints_lie_in_the_store_batch_by_batch(db: Connection, log: Log, flag: str) -> None:
    table = with_column(db, log.breaking(53, flag), rows=60, fragments=1)
    with flag_file(flag), pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill(
            "y", checkpoint_size=7, task_size=ONE_TASK, batch_checkpoint_flush_interval_seconds=0
        )
    assert table.plan_backfill("y").rows_from_checkpoint == 49
    log.take()
    table.backfill("y", checkpoint_size=60, task_size=ONE_TASK)
    assert log.take() == list(range(49, 60)), "another size of checkpoints reuses the old ones"


@pytest.mark.guarantee("T81")
def test_smaller_checkpoints_show_progress_while_a_task_still_runs(
    db: Connection, log: Log, flag: str
) -> None:
    table = with_column(db, log.waiting(13, flag), rows=20, fragments=1)
    with flag_file(flag):
        options: dict[str, Any] = {
            "min_checkpoint_size": 5,
            "checkpoint_size": 5,
            "task_size": ONE_TASK,
        }
        job = table.backfill_async("y", batch_checkpoint_flush_interval_seconds=0, **options)
        eventually(lambda: log.rows() == list(range(14)), 60)
        assert table.plan_backfill("y").rows_from_checkpoint == 10
    assert job.result().rows_computed == 20


@pytest.mark.guarantee("T60")
def test_an_explicit_size_is_the_first_one(db: Connection, log: Log) -> None:
    assert batches(db, log, checkpoint_size=20)[0] == 20


@pytest.mark.guarantee("T60")
def test_else_the_lower_bound_is_the_first_one(db: Connection, log: Log) -> None:
    assert batches(db, log, min_checkpoint_size=4)[0] == 4
