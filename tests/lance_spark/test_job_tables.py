"""The tables beside a table: many writers append at once, and none loses a row."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.dataset import DatasetRef
from lance_spark.jobs.tables import ERRORS, append_rows, read_rows

WRITERS = 4


def error_row(number: int) -> pa.Table:
    row = {field.name: None for field in ERRORS.schema} | {"error_id": str(number), "columns": ["x"]}
    return pa.Table.from_pylist([row], schema=ERRORS.schema)


@pytest.mark.parametrize("round_", range(5))
def test_writers_that_make_a_table_at_once_lose_no_row(round_: int, tmp_path: Path):
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    together = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        together.wait()
        append_rows(ref, ERRORS, error_row(number))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    assert sorted(read_rows(ref, ERRORS)["error_id"].to_pylist()) == [str(number) for number in range(WRITERS)]


def test_a_table_beside_the_data_is_one_that_every_reader_of_lance_can_open(tmp_path: Path):
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    append_rows(ref, ERRORS, error_row(1))
    there = lance.dataset(f"{ref.uri}/{ERRORS.name}")
    assert there.data_storage_version != "0.1"
    assert there.to_table().schema.equals(ERRORS.schema)
