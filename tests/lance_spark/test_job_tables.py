"""The side tables of a table: concurrent writers append without losing a row."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.tables import ERRORS, SystemTable, append_rows, read_rows, replace_rows
from tests.object_stores.stores import StorePlace, strays

WRITERS = 4


def error_row(number: int) -> pa.Table:
    row = {field.name: None for field in ERRORS.schema} | {
        "error_id": str(number),
        "columns": ["x"],
    }
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
    assert sorted(read_rows(ref, ERRORS)["error_id"].to_pylist()) == [
        str(number) for number in range(WRITERS)
    ]
    assert strays(StorePlace(uri=f"{ref.uri}/{ERRORS.name}", storage={})) == set()


@pytest.mark.parametrize("earlier", [1, 0], ids=["append", "creation"])
def test_an_append_that_lands_late_keeps_its_file(
    earlier: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The store executes the first attempt after the next look, and a writer then takes the slot of the second."""
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    for number in range(earlier):
        append_rows(ref, ERRORS, error_row(number))
    late: list[functools.partial[Landed | Lost | Unknown]] = []

    def attempt(*args: Any, **kwargs: Any) -> Landed | Lost | Unknown:
        if not late:
            late.append(functools.partial(attempt_commit, *args, **kwargs))
            return Unknown(error=OSError("connection closed"))
        assert isinstance(late[0](), Landed)
        return Lost(race=True, error=OSError("the slot is taken"))

    with monkeypatch.context() as patch:
        patch.setattr("lance_spark.commit.schema_change.attempt_commit", attempt)
        append_rows(ref, ERRORS, error_row(earlier))
    assert sorted(read_rows(ref, ERRORS)["error_id"].to_pylist()) == ["0", "1"][: earlier + 1]


def test_an_append_rewrites_only_as_much_as_fits_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    with monkeypatch.context() as patch:
        patch.setattr("lance_spark.jobs.merging_append._ABSORBED_ROWS", 0)
        for number in range(4):
            append_rows(ref, ERRORS, error_row(number))
    path = f"{ref.uri}/{ERRORS.name}"
    sizes = [file.stat().st_size for file in Path(path, "data").iterdir()]
    monkeypatch.setattr("lance_spark.jobs.merging_append._ABSORBED_BYTES", 2 * max(sizes))
    append_rows(ref, ERRORS, error_row(4))
    assert [fragment.count_rows() for fragment in lance.dataset(path).get_fragments()] == [1, 1, 3]


def test_a_side_table_can_be_opened_by_every_lance_reader(tmp_path: Path):
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    append_rows(ref, ERRORS, error_row(1))
    side_table = lance.dataset(f"{ref.uri}/{ERRORS.name}")
    assert side_table.data_storage_version != "0.1"
    assert side_table.to_table().schema.equals(ERRORS.schema)


FULL_DISK = """
import resource, sys, time
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnwritableError
from lance_spark.jobs.tables import ERRORS, append_rows
from tests.lance_spark.test_job_tables import error_row
ref = DatasetRef.at(sys.argv[1])
append_rows(ref, ERRORS, error_row(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
began = time.monotonic()
try:
    append_rows(ref, ERRORS, error_row(2))
except TableUnwritableError as error:
    sys.exit(f"{time.monotonic() - began:.1f} s: {error}")
"""


def test_a_full_disk_is_no_lost_race(tmp_path: Path):
    """Files of the process may not exceed 100 bytes, and Lance receives the same error as for a full disk."""
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    process = subprocess.run(
        [sys.executable, "-c", FULL_DISK, ref.uri], check=False, capture_output=True, text=True
    )
    seconds, _, message = process.stderr.strip().rpartition("\n")[2].partition(" s: ")
    assert "cannot be written" in message and "File too large" in message and ERRORS.name in message
    assert float(seconds) < 10
    assert read_rows(ref, ERRORS)["error_id"].to_pylist() == ["1"]
    append_rows(ref, ERRORS, error_row(3))
    assert read_rows(ref, ERRORS)["error_id"].to_pylist() == ["1", "3"]


def test_a_table_of_an_earlier_release_keeps_its_columns(tmp_path: Path):
    ref = DatasetRef.at(str(tmp_path / "table.lance"))
    older = SystemTable(
        ERRORS.name, pa.schema([field for field in ERRORS.schema if field.name != "timestamp"])
    )
    append_rows(ref, older, error_row(1).drop_columns(["timestamp"]))
    append_rows(ref, ERRORS, error_row(2))
    assert read_rows(ref, ERRORS).select(["error_id", "timestamp"]).to_pylist() == [
        {"error_id": number, "timestamp": None} for number in ("1", "2")
    ]
    replace_rows(ref, ERRORS, error_row(3))
    assert read_rows(ref, ERRORS)["error_id"].to_pylist() == ["3"]
    assert lance.dataset(f"{ref.uri}/{ERRORS.name}").schema.equals(older.schema)
