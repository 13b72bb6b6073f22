"""The share of the nearest rows in the results of an index, at the documented settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.read.planning.pushdown_request import NearestCall
from lance_spark.read.ranking.sort_pushdown import IndexedSort

SIZE, ROWS = 32, 8000


def clustered(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((80, SIZE))
    return (
        centres[random.integers(0, 80, count)] + 0.5 * random.standard_normal((count, SIZE))
    ).astype(np.float32)


def rows(vectors: Any, first: int) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)
    return pa.table({"id": pa.array(np.arange(first, first + len(vectors))), "vec": column})


KINDS: dict[str, dict[str, Any]] = {
    "IVF_PQ": {"num_partitions": 40, "num_sub_vectors": 8, "max_iterations": 10},
    "IVF_HNSW_SQ": {"num_partitions": 2, "max_iterations": 10},
}


@pytest.mark.long
@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_finds_nineteen_of_twenty_with_rows_that_it_lacks(
    kind: str, table_path: str, jobs: Any
):
    vectors = clustered(ROWS, 1)
    lance.write_dataset(
        rows(vectors[:7000], 0), table_path, max_rows_per_file=2000, enable_stable_row_ids=True
    )
    table = lance_spark.connect(str(Path(table_path).parent), jobs, progress=False).open_table(
        "table"
    )
    table.create_index(vector_column_name="vec", index_type=kind, **KINDS[kind])  # type: ignore[arg-type]
    lance.write_dataset(rows(vectors[7000:], 7000), table_path, mode="append")
    table.delete("id % 13 = 5")
    indexed_rows = np.flatnonzero(np.arange(ROWS) % 13 != 5)
    hits = unindexed = 0
    of_sort: dict[str | None, int] = {None: 0, "id % 50 = 3": 0}
    for query in clustered(60, 2):
        distances = ((vectors[indexed_rows] - query) ** 2).sum(axis=1)
        expected = set(indexed_rows[np.argsort(distances)[:10]].tolist())
        hit_ids = set(
            table.search(query)
            .nprobes(20)
            .refine_factor(10)
            .select(["id"])
            .to_arrow()["id"]
            .to_pylist()
        )
        hits += len(expected & hit_ids)
        unindexed += len({n for n in hit_ids if n >= 7000})
        for rows_of, condition in (
            (indexed_rows, None),
            (indexed_rows[indexed_rows % 50 == 3], "id % 50 = 3"),
        ):
            distances = ((vectors[rows_of] - query) ** 2).sum(axis=1)
            expected = set(rows_of[np.argsort(distances)[:10]].tolist())
            of_sort[condition] += len(expected & set(first_of_sort(table_path, query, condition)))
    assert hits >= 0.95 * 600 and unindexed > 20
    assert all(count >= 0.95 * 600 for count in of_sort.values())


def first_of_sort(path: str, query: Any, condition: str | None) -> list[int]:
    """Returns the candidates for the first rows of a sort by distance, in the order of their distances."""
    call = NearestCall(column="vec", q=tuple(query.tolist()), k=10, metric="l2", nulls_first=False)
    first_rows = IndexedSort(call=call, index="", most=1000).search(
        lance.dataset(path), ["id", "vec"], condition, "descriptor"
    )
    assert first_rows is not None
    return [n for batch in first_rows for n in batch.column("id").to_pylist()][:10]
