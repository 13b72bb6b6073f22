"""Tables for searches, and the results of an exhaustive comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Table

SIZE = 8
WORDS = ("apple", "pear", "plum", "fig", "lime")


def vectors(count: int, seed: int = 0, *, nulls: bool = True) -> Any:
    values = np.random.default_rng(seed).standard_normal((count, SIZE)).astype("float32").tolist()
    return pa.array(
        [None if nulls and i % 7 == 3 else v for i, v in enumerate(values)],
        pa.list_(pa.float32(), SIZE),
    )


def rows(first: int, count: int, seed: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([i % 5 for i in ids], pa.int32()),
            "text": [
                " ".join(WORDS[(i * n) % 5] for n in range(1, 4)) + f" number{i}" for i in ids
            ],
            "vec": vectors(count, seed),
        }
    )


def make(path: str, *, fragments: int = 4, fragment_rows: int = 100) -> None:
    data = rows(0, fragments * fragment_rows)
    lance.write_dataset(data, path, max_rows_per_file=fragment_rows, enable_stable_row_ids=True)


def nearest(
    path: str, q: Any, k: int, where: Callable[[dict[str, Any]], bool] = lambda _: True
) -> list[int]:
    """Returns the ids of the nearest rows, by comparing all of them."""
    candidates = [
        row
        for row in lance.dataset(path).to_table().to_pylist()
        if row["vec"] is not None and where(row)
    ]
    distance = {
        row["id"]: float(((np.array(row["vec"]) - np.array(q)) ** 2).sum()) for row in candidates
    }
    return sorted(distance, key=lambda number: (distance[number], number))[:k]


@pytest.fixture
def table(table_path: str, jobs: Any) -> Table:
    """400 rows in four fragments: `id`, `kind`, `text`, and `vec` with some NULLs."""
    make(table_path)
    return lance_spark.connect(str(Path(table_path).parent), jobs, progress=False).open_table(
        "table"
    )


@pytest.fixture
def q() -> list[float]:
    """A vector outside the table."""
    values: list[float] = vectors(1, 99, nulls=False)[0].as_py()
    return values
