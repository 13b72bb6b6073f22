"""Rows whose vectors have a NULL, NaN or infinite coordinate: no kind of search finds them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table

SIZE = 4
ORDINARY = 60
KINDS = {
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "uint8": pa.uint8(),
}


def _vectors(kind: pa.DataType) -> pa.Array[Any]:
    """Returns vectors around 0: odd vectors first and between ordinary vectors, of which each is searchable."""
    whole = kind == pa.uint8()
    odd = [
        [None, 0, 0, 0],
        None,
        [None] * SIZE,
        *([] if whole else [[math.nan, 0, 0, 0], [math.inf, 0, 0, 0]]),
    ]
    values = np.random.default_rng(1).integers(1, 100, (ORDINARY, SIZE)).tolist()
    rows = [*odd, *values[:30], *odd, *values[30:]]
    typed = [
        None if row is None else [None if v is None else kind.to_pandas_dtype()(v) for v in row]
        for row in rows
    ]
    return pa.array(typed, pa.list_(kind, SIZE))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _metric(kind: str) -> str:
    return "hamming" if kind == "uint8" else "l2"


def _make(db: Connection, kind: str) -> Table:
    vec = _vectors(KINDS[kind])
    data = pa.table(
        {"id": range(len(vec)), "even": [n % 2 == 0 for n in range(len(vec))], "vec": vec}
    )
    lance.write_dataset(
        data.append_column("text", pa.array(["plum"] * len(vec))), f"{db.uri}/t.lance", max_rows_per_file=20,
        enable_stable_row_ids=True,
    )  # fmt: skip
    return db.open_table("t")


def _ranked(table: Table, *, only: Callable[[int], bool] = lambda _: True) -> list[float]:
    """Returns the distances of the searchable rows from 0, by comparing all."""
    distances = []
    for row in table.to_arrow(["id", "vec"]).to_pylist():
        if (
            row["vec"] is not None
            and all(v is not None and math.isfinite(v) for v in row["vec"])
            and only(row["id"])
        ):
            bits = table.schema.field("vec").type.value_type == pa.uint8()
            distances.append(sum(int(v).bit_count() if bits else v * v for v in row["vec"]))
    return sorted(distances)


def _distances(result: pa.Table) -> list[float]:
    return [float(value) for value in result["_distance"].to_pylist()]


def test_a_search_finds_no_row_without_all_its_coordinates(
    tmp_path: Any, jobs: Any, kind: str
) -> None:
    table = _make(lance_spark.connect(str(tmp_path), jobs, progress=False), kind)
    search = table.search([0] * SIZE)
    expected, even = _ranked(table), _ranked(table, only=lambda number: number % 2 == 0)
    assert len(expected) == ORDINARY
    assert _distances(search.limit(5).to_arrow()) == expected[:5]
    assert _distances(search.limit(1000).to_arrow()) == expected
    assert (
        _distances(search.limit(7).offset(4).select({"twice": "id * 2"}).to_arrow())
        == expected[4:11]
    )
    assert _distances(search.limit(5).where("even").to_arrow()) == even[:5]
    assert _distances(search.limit(9).where("even", prefilter=False).to_arrow()) == [
        row["_distance"] for row in search.limit(9).to_list() if row["even"]
    ]
    table.create_fts_index("text")
    hybrid = (
        table.search(query_type="hybrid").vector([0] * SIZE).text("plum").limit(1000).to_arrow()
    )
    assert (
        sorted(value for value in hybrid["_distance"].to_pylist() if value is not None) == expected
    )
    assert hybrid.num_rows == table.count_rows()
    table.create_index(_metric(kind), 1, vector_column_name="vec", index_type="IVF_FLAT")
    assert _distances(search.limit(1000).to_arrow()) == expected
    lance.write_dataset(table.to_arrow(), table.uri, mode="append")  # `add` refuses NaN
    assert _distances(search.limit(1000).to_arrow()) == sorted([*expected, *expected])


@pytest.mark.spark
@pytest.mark.classic
@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_searches_of_spark_find_no_row_without_all_its_coordinates(
    tmp_path: Any, spark: SparkSession, kind: str
) -> None:
    table = _make(lance_spark.connect(str(tmp_path), spark, progress=False), kind)
    expected = _ranked(table)[:9]
    query = f"array({', '.join(['0'] * SIZE)})"
    routes = {
        "a table function": f"SELECT _distance FROM lance_vector_search('{table.uri}', {query}, k => 9)",
        "LATERAL": f"SELECT _distance FROM (SELECT {query} AS q) s, LATERAL lance_vector_search('{table.uri}', s.q, k => 9)",
        "a view": "SELECT _distance FROM searched_vectors",
    }
    nearest = f'{{"column": "vec", "q": [{", ".join(["0"] * SIZE)}], "k": 9}}'
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW searched_vectors USING lance OPTIONS (path '{table.uri}', nearest '{nearest}')"
    )
    for route, text in routes.items():
        assert sorted(row[0] for row in spark.sql(text).collect()) == expected, route
    queries = spark.sql(f"SELECT {query} AS q")
    for _ in range(2):
        hits = table.search(queries, "vec").limit(9).to_spark().collect()
        assert sorted(row["_distance"] for row in hits) == expected
        table.create_index(_metric(kind), 1, vector_column_name="vec", index_type="IVF_FLAT")
