"""A table of four fragments with a column for every kind of index, and small tasks."""

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
from lance_spark.indexes import definition

ROWS = 1200
FRAGMENT_ROWS = 300
SIZE = 8

KINDS: dict[str, str] = {
    "BTREE": "x",
    "BITMAP": "x",
    "ZONEMAP": "x",
    "BLOOMFILTER": "x",
    "NGRAM": "text",
    "LABEL_LIST": "tags",
    "FTS": "text",
    "IVF_FLAT": "vec",
    "IVF_PQ": "vec",
    "IVF_HNSW_SQ": "vec",
    "IVF_HNSW_PQ": "vec",
}


def vectors(count: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal(count * SIZE).astype("float32")
    return pa.FixedSizeListArray.from_arrays(pa.array(values), SIZE)


def rows(first: int, count: int, seed: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([i % 97 for i in ids], pa.int64()),
            "y": pa.array([0] * count, pa.int64()),
            "text": [f"word{i % 50} letter{i}" for i in ids],
            "tags": [[f"t{i % 5}", f"u{i % 3}"] for i in ids],
            "vec": vectors(count, seed),
        }
    )


def make(path: str, *, stable: bool = True) -> None:
    lance.write_dataset(
        rows(0, ROWS), path, max_rows_per_file=FRAGMENT_ROWS, enable_stable_row_ids=stable
    )


def create(table: Table, kind: str, **options: Any) -> None:
    """Makes an index `ix` of a kind."""
    if kind == "FTS":
        table.create_fts_index(KINDS[kind], **{"name": "ix", "replace": True, **options})
    elif kind.startswith("IVF"):
        numbers = {
            "num_partitions": 4,
            "num_sub_vectors": 4,
            "max_iterations": 5,
            "ef_construction": 50,
        }
        table.create_index(
            vector_column_name=KINDS[kind], index_type=kind, **{"name": "ix", **numbers, **options}
        )  # type: ignore[arg-type]
    else:
        table.create_scalar_index(KINDS[kind], index_type=kind, **{"name": "ix", **options})  # type: ignore[arg-type]


FILTERS = {
    "x": ["x = 5", "x = 500", "x > 90", "x IN (3, 501)", "x = 1003"],
    "text": ["contains(text, 'letter77')", "contains(text, 'new')"],
    "tags": ["array_has_any(tags, ['t1'])", "array_has_any(tags, ['q9'])"],
}


def wrong_answers(path: str, kind: str) -> list[Any]:
    """Returns queries whose results differ with and without the index."""
    dataset = lance.dataset(path)
    if kind == "FTS":
        return [word for word in ("word7", "new1", "letter77") if not _finds(dataset, word)]
    if kind.startswith("IVF"):
        return [seed for seed in range(4) if not _is_near(dataset, seed)]
    return [
        text
        for text in FILTERS[KINDS[kind]]
        if _matching_ids(dataset, text) != _matching_ids(dataset, text, False)
    ]


def _matching_ids(dataset: lance.LanceDataset, text: str, use_index: bool = True) -> list[int]:
    matching = dataset.scanner(columns=["id"], filter=text, use_scalar_index=use_index).to_table()
    return sorted(matching["id"].to_pylist())


def _finds(dataset: lance.LanceDataset, word: str) -> bool:
    hits = dataset.to_table(
        columns=["id", "_score"], full_text_query={"query": word, "columns": ["text"]}
    )
    texts = dataset.to_table(columns=["id", "text"]).to_pylist()
    return sorted(hits["id"].to_pylist()) == sorted(
        row["id"] for row in texts if word in row["text"].split()
    )


def _is_near(dataset: lance.LanceDataset, seed: int) -> bool:
    query = vectors(1, seed + 100)[0].as_py()
    search: dict[str, Any] = {
        "column": "vec",
        "q": query,
        "k": 20,
        "nprobes": 4,
        "refine_factor": 20,
        "ef": 400,
    }
    near = dataset.to_table(columns=["id"], nearest=search)["id"].to_pylist()
    exact = dataset.to_table(columns=["id"], nearest={**search, "use_index": False})[
        "id"
    ].to_pylist()
    return len(set(near)) == len(exact) and len(set(near) & set(exact)) >= 19


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of as few rows as a fragment has."""
    for kind in KINDS:
        monkeypatch.setitem(definition.TASK_ROWS, kind, FRAGMENT_ROWS)  # type: ignore[arg-type]


@pytest.fixture
def opened(table_path: str, jobs: Any) -> Callable[..., Table]:
    """Makes the table and opens it."""

    def opens(*, stable: bool = True) -> Table:
        make(table_path, stable=stable)
        folder = str(Path(table_path).parent)
        return lance_spark.connect(folder, jobs, progress=False).open_table("table")

    return opens
