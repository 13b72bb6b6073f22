"""Tables with difficulties for a scan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

MakeTable = Callable[..., lance.LanceDataset]


def noise(number: int) -> str:
    """Returns 512 letters with poor compression, because widths are estimated from the stored size."""
    return "".join(hashlib.sha512(f"{number}-{part}".encode()).hexdigest() for part in range(4))


@pytest.fixture
def make_table(table_path: str) -> MakeTable:
    """Makes a table of several fragments with deleted rows, and with rows moved into another fragment by an update."""

    def make(
        *,
        rows: int = 1000,
        per_file: int = 300,
        stable: bool = True,
        version: str = "2.2",
        dirty: bool = True,
    ):
        table = pa.table(
            {
                "id": pa.array(range(rows), pa.int64()),
                "even": pa.array([i % 2 == 0 for i in range(rows)]),
                "word": pa.array([None if i % 7 == 0 else f"word-{i % 13}" for i in range(rows)]),
                "wide": pa.array([noise(i) for i in range(rows)]),
            }
        )
        dataset = lance.write_dataset(
            table,
            table_path,
            max_rows_per_file=per_file,
            enable_stable_row_ids=stable,
            data_storage_version=version,
        )
        if dirty:
            dataset.delete("id % 5 = 3")
            dataset.update({"word": "'moved'"}, where="id % 50 = 10")
            dataset.delete("id >= 600 AND id < 620")
        return lance.dataset(table_path)

    return make
