"""A connection to an empty folder, a table of three fragments, and a log of UDF calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection, Table
from tests.lance_spark.table.call_log import CallLog


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder without tables."""
    return str(tmp_path / "db")


@pytest.fixture
def db(folder: str, jobs: Any) -> Connection:
    """A connection to the folder, without progress bars."""
    return lance_spark.connect(folder, jobs, progress=False)


@pytest.fixture
def table(db: Connection) -> Table:
    """Thirty rows of `id` and `text` in three fragments."""
    return make_table(db)


@pytest.fixture
def call_log(tmp_path: Path) -> CallLog:
    """An empty log of calls."""
    return CallLog(str(tmp_path / "calls"))


def make_table(
    db: Connection, name: str = "words", *, fragments: int = 3, rows: int = 10, **options: object
) -> Table:
    """Makes a table of `id` 0, 1, ... and `text`."""
    for fragment in range(fragments):
        ids = list(range(fragment * rows, (fragment + 1) * rows))
        data = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"word {i}" for i in ids]})
        if fragment == 0:
            table = db.create_table(name, data, **options)  # type: ignore[arg-type]
        else:
            table.add(data)
    return table
