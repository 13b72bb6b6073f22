"""A small table, and a check that a failure left the table unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.datasource import LanceDataSource
from lance_spark.errors import LanceSparkError

Refused = Callable[..., AbstractContextManager[None]]

ROWS = 40


def small_table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "text": pa.array([f"text {i}" for i in range(ROWS)], pa.string()),
            "small": pa.array([i % 100 for i in range(ROWS)], pa.int8()),
            "unsigned": pa.array(range(ROWS), pa.uint32()),
            "price": pa.array([None] * ROWS, pa.decimal128(6, 2)),
            "vec": pa.array([[0.0, 1.0, 2.0]] * ROWS, pa.list_(pa.float32(), 3)),
            "pair": pa.array([{"a": i, "b": str(i)} for i in range(ROWS)]),
        },
        schema=pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("text", pa.string()),
                pa.field("small", pa.int8()),
                pa.field("unsigned", pa.uint32()),
                pa.field("price", pa.decimal128(6, 2)),
                pa.field("vec", pa.list_(pa.float32(), 3)),
                pa.field("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ]
        ),
    )


def make_table(path: str, *, stable_row_ids: bool = True) -> str:
    """Makes a table of four fragments, one with deleted rows, in two versions."""
    dataset = lance.write_dataset(
        small_table(), path, max_rows_per_file=10, enable_stable_row_ids=stable_row_ids
    )
    dataset.delete("id IN (3, 17)")
    return path


def fingerprint(path: str) -> dict[str, str]:
    """Returns every file below a path with a hash of its bytes."""
    files = (entry for entry in Path(path).rglob("*") if entry.is_file())
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


@pytest.fixture
def table(tmp_path: Path) -> str:
    return make_table(str(tmp_path / "table.lance"))


@pytest.fixture
def check_refused(table: str) -> Refused:
    """Checks that the body fails with a typed error and the right message, and leaves the table unchanged."""

    @contextlib.contextmanager
    def check(
        error: type[LanceSparkError] | tuple[type[LanceSparkError], ...],
        *says: str,
        at: str = table,
    ) -> Iterator[None]:
        before = fingerprint(at)
        with pytest.raises(error) as caught:
            yield
        message = str(caught.value)
        assert " - " in message or re.search("[.?] ", message), (
            f"no 'what - where - what to do': {message}"
        )
        assert [text for text in says if text.lower() not in message.lower()] == [], message
        assert "Traceback" not in message
        assert fingerprint(at) == before

    return check


def read(options: dict[str, str]) -> int:
    """Reads a table like Spark's processes, but in sequence and without Spark; returns the number of rows."""
    source = LanceDataSource(options)
    reader = source.reader(source.schema())
    return sum(
        batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)
    )
