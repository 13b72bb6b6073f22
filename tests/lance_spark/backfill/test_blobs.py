"""Computed columns of blobs: written next to the data files where the format demands, and kept unless recomputed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lance_spark
from udf_runtime import UDF, udf

pytestmark = pytest.mark.sample(1, tests=2)

ROWS = 60
BLOB = {"lance-encoding:blob": "true"}


def blob_of(id: int) -> bytes | None:
    """Blobs of every kind: NULL, empty, inline, packed, and in a file of its own."""
    if id % 7 == 0:
        return None
    if id == 59:
        return b"x" * (5 << 20)
    return bytes([id]) * (id - 1) * 3000


def blob_udf() -> UDF:
    def blob(id: int):
        if id % 7 == 0:
            return None
        if id == 59:
            return b"x" * (5 << 20)
        return bytes([id]) * (id - 1) * 3000

    return udf(blob, data_type=pa.large_binary(), field_metadata=BLOB)


def blobs(table: lance_spark.Table) -> list[bytes | None]:
    dataset = table.to_lance()
    return [
        value for _, value in dataset.read_blobs("b", indices=list(range(dataset.count_rows())))
    ]


@pytest.mark.parametrize("format", ["2.1", "2.2"])
@pytest.mark.parametrize("task_size", [1000, 13], ids=["whole", "ranges"])
def test_a_udf_computes_blobs(format: str, task_size: int, db: lance_spark.Connection):
    table = db.create_table("t", [{"id": i} for i in range(ROWS)], data_storage_version=format)
    table.add_columns({"b": blob_udf()})
    assert table.backfill("b", task_size=task_size).rows_computed == ROWS
    assert blobs(table) == [blob_of(i) for i in range(ROWS)]
    again = table.backfill("b", task_size=task_size)
    assert (again.rows_computed, again.versions) == (0, ())


@pytest.mark.parametrize("format", ["2.1", "2.2"])
def test_blobs_that_are_not_selected_stay(format: str, db: lance_spark.Connection):
    table = db.create_table("t", [{"id": i} for i in range(ROWS)], data_storage_version=format)
    table.add_columns({"b": blob_udf()})
    table.backfill("b")
    table.to_lance().delete("id = 20")
    result = table.backfill("b", where="id BETWEEN 15 AND 30")
    assert result.rows_computed == 15
    assert blobs(table) == [blob_of(i) for i in range(ROWS) if i != 20]


@pytest.mark.parametrize("format", ["2.1", "2.2"])
def test_rows_are_added_to_a_table_with_computed_blobs(format: str, db: lance_spark.Connection):
    table = db.create_table("t", [{"id": i} for i in range(3)], data_storage_version=format)
    table.add_columns({"b": blob_udf()})
    table.backfill("b")
    table.add(
        pa.table({"id": pa.array([3], pa.int64()), "b": pa.array([b"given"], pa.large_binary())})
    )
    assert blobs(table) == [*map(blob_of, range(3)), b"given"]


@pytest.mark.parametrize("format", ["2.1", "2.2"])
def test_blobs_that_were_computed_before_a_failure_are_not_computed_again(
    format: str, db: lance_spark.Connection
):
    table = db.create_table("t", [{"id": i} for i in range(ROWS)], data_storage_version=format)

    def half(id: int):
        if id == 40:
            raise ValueError("not yet")
        return bytes([id])

    def whole(id: int):
        return bytes([id])

    kind = pa.large_binary()
    table.add_columns({"b": udf(half, data_type=kind, field_metadata=BLOB, version="1", name="b")})
    with pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill("b", task_size=1000, checkpoint_size=10, min_checkpoint_size=10)
    good = udf(whole, data_type=kind, field_metadata=BLOB, version="1", name="b")
    result = table.backfill("b", udf=good, task_size=1000)
    assert (result.rows_computed, result.rows_from_checkpoint) == (ROWS - 40, 40)
    assert blobs(table) == [bytes([i]) for i in range(ROWS)]


def test_blobs_in_a_format_without_null_blobs_are_refused(db: lance_spark.Connection):
    table = db.create_table("t", [{"id": 1}], data_storage_version="2.0")
    with pytest.raises(TypeError, match="does not tell which blobs are NULL"):
        table.add_columns({"b": blob_udf()})
    assert table.version == 1
