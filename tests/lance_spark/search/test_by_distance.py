"""Sorts by distance answered by a search: the rows equal Spark's own, and Spark handles unsupported sorts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lance_spark
from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import ReadOptions
from lance_spark.read.planning.pushdown_request import NearestCall
from lance_spark.read.ranking.sort_pushdown import IndexedSort, plan_nearest

pytestmark = pytest.mark.classic

SETTING = "spark.lance.vectorSearch.enabled"
SIZE, ROWS = 8, 600
Q = [round(float(x), 3) for x in np.random.default_rng(0).standard_normal((500, SIZE))[0]]
"""The nearest vector, shared by a third of the first 500 rows."""

NEAR = f"l2_distance(vec, array({', '.join(map(str, Q))}))"
FLOATS = f"array({', '.join(f'{x}f' for x in Q)})"


def rows(first: int, count: int, *, nulls: bool = True) -> pa.Table:
    """Rows with repeated vectors; some vectors of `vec` are NULL, and no vector of `whole`."""
    random = np.random.default_rng(first)
    vectors = random.standard_normal((count, SIZE)).astype("float32")
    vectors[1::3] = vectors[0]
    ids = range(first, first + count)
    kind = pa.list_(pa.float32(), SIZE)
    whole = vectors.tolist()
    holes = [None if nulls and i % 7 == 3 else v for i, v in zip(ids, whole, strict=True)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([i % 5 for i in ids], pa.int32()),
            "vec": pa.array(holes, kind),
            "angle": pa.array(whole, kind),
            "product": pa.array(whole, kind),
            "whole": pa.array(whole, kind),
            "plain": pa.array(whole, kind),
        }
    )


def make(path: str, **partitions: int) -> None:
    """500 rows, some of them deleted, with an index of one partition; then 100 unindexed rows."""
    lance.write_dataset(rows(0, 500), path, max_rows_per_file=200)
    for column, metric in (("vec", "l2"), ("angle", "cosine"), ("product", "dot"), ("whole", "l2")):
        lance.dataset(path).create_index(
            column, "IVF_FLAT", metric=metric, num_partitions=partitions.get(column, 1)
        )
    lance.dataset(path).delete("id % 11 = 4")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = str(tmp_path_factory.mktemp("by_distance") / "t.lance")
    make(target, vec=4)
    lance.write_dataset(rows(500, 100), target, mode="append")
    return target


@pytest.fixture
def near(spark: SparkSession, path: str) -> Iterator[SparkSession]:
    """A session with searches for sorts by distance, and with the table as the view `near`."""
    spark.read.format("lance").load(path).createOrReplaceTempView("near")
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def searches(df: DataFrame) -> bool:
    return "; nearest: " in str(df._jdf.queryExecution().executedPlan().toString())


def both(spark: SparkSession, query: str) -> tuple[list[Any], list[Any]]:
    """Returns the rows of a query with and without a search."""
    frame = spark.sql(query)
    assert searches(frame), query
    search_rows = frame.collect()
    spark.conf.set(SETTING, "false")
    try:
        plain = spark.sql(query)
        assert not searches(plain)
        return search_rows, plain.collect()
    finally:
        spark.conf.set(SETTING, "true")


SEARCHABLE = [
    f"SELECT id FROM near WHERE vec IS NOT NULL AND kind < 3 ORDER BY {NEAR}, id LIMIT 10",
    f"SELECT id, {NEAR} AS d FROM near WHERE kind = 2 ORDER BY d NULLS LAST, id DESC LIMIT 30",
    f"SELECT * FROM near WHERE kind IN (1, 3) ORDER BY vector_l2_distance({FLOATS}, vec) NULLS LAST, id LIMIT 5 OFFSET 7",
    f"SELECT id FROM near ORDER BY vector_cosine_similarity(angle, {FLOATS}) DESC, id LIMIT 40",
    f"SELECT id, id + 1 FROM near WHERE id > 90 ORDER BY vector_inner_product(product, {FLOATS}) DESC, id LIMIT 40",
    f"SELECT sum(id), max(d) FROM (SELECT id, {NEAR} AS d FROM near WHERE kind = 0 ORDER BY d NULLS LAST, id LIMIT 9)",
    f"SELECT id FROM near WHERE kind = 4 ORDER BY {NEAR} NULLS LAST, id LIMIT 1000",
    f"SELECT id FROM near WHERE kind = 77 ORDER BY {NEAR} NULLS LAST, id LIMIT 3",
    f"SELECT id FROM near WHERE id < 8 ORDER BY {NEAR} NULLS LAST, id LIMIT 8",
    f"SELECT id, (SELECT id FROM near WHERE kind = 1 ORDER BY {NEAR} NULLS LAST, id LIMIT 1) FROM near WHERE id = 7",
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("query", SEARCHABLE)
def test_rows_are_those_that_comparing_all_gives(query: str, near: SparkSession):
    search_rows, expected = both(near, query)
    assert search_rows == expected


UNSEARCHABLE = {
    "no limit": f"SELECT id FROM near ORDER BY {NEAR} NULLS LAST",
    "farthest first": f"SELECT id FROM near ORDER BY {NEAR} DESC LIMIT 3",
    "least alike first": f"SELECT id FROM near ORDER BY vector_cosine_similarity(angle, {FLOATS}) NULLS LAST LIMIT 3",
    "NULL first": f"SELECT id FROM near ORDER BY {NEAR} LIMIT 3",
    "another metric": f"SELECT id FROM near ORDER BY l2_distance(angle, {FLOATS}) NULLS LAST LIMIT 3",
    "no index": f"SELECT id FROM near ORDER BY l2_distance(plain, {FLOATS}) NULLS LAST LIMIT 3",
    "another length": "SELECT id FROM near ORDER BY l2_distance(vec, array(1, 2)) NULLS LAST LIMIT 3",
    "a NULL in the vector": f"SELECT id FROM near ORDER BY l2_distance(vec, array({'0, ' * 7} NULL)) NULLS LAST LIMIT 3",
    "no vector of all": "SELECT id FROM near ORDER BY l2_distance(vec, angle) NULLS LAST LIMIT 3",
    "no angle": f"SELECT id FROM near ORDER BY vector_cosine_similarity(angle, array({'0f, ' * 7} 0f)) DESC LIMIT 3",
    "another key first": f"SELECT id FROM near ORDER BY kind, {NEAR} NULLS LAST LIMIT 3",
    "more than a search finds": f"SELECT id FROM near ORDER BY {NEAR} NULLS LAST LIMIT 10001",
    "a filter of Spark": f"SELECT id FROM near WHERE kind % 2 = 1 ORDER BY {NEAR} NULLS LAST LIMIT 3",
    "a filter by distance": f"SELECT id FROM near WHERE {NEAR} < 2 ORDER BY {NEAR} LIMIT 3",
    "not deterministic": f"SELECT id, monotonically_increasing_id() FROM near ORDER BY {NEAR} NULLS LAST LIMIT 3",
    "partitions alone": f"SELECT id FROM (SELECT * FROM near SORT BY {NEAR} NULLS LAST) LIMIT 3",
    "groups between": f"SELECT kind, d FROM (SELECT kind, min({NEAR}) AS d FROM near GROUP BY kind) ORDER BY d NULLS LAST LIMIT 3",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("reason", UNSEARCHABLE)
def test_a_search_does_not_serve(reason: str, near: SparkSession):
    assert not searches(near.sql(UNSEARCHABLE[reason]))


def test_it_is_a_choice_of_the_session_and_other_options_of_a_read_leave_all_to_spark(
    near: SparkSession, path: str
):
    near.conf.set(SETTING, "false")
    assert not searches(near.sql(SEARCHABLE[0]))
    near.conf.set(SETTING, "true")
    assert searches(near.sql(SEARCHABLE[0]))
    for option, value in (("limit", "50"), ("fragments", "0")):
        part = near.read.format("lance").option(option, value).load(path).where("vec IS NOT NULL")
        assert not searches(part.orderBy(sf.expr(NEAR)).limit(3)), option


def test_a_table_of_a_catalog_is_searched_at_the_version_of_its_query(
    near: SparkSession, path: str
):
    name = "by_distance"
    lance_spark.catalog(near, name, str(Path(path).parent))
    query = f"SELECT id FROM {name}.t {{}} WHERE vec IS NOT NULL AND kind = 1 ORDER BY {NEAR}, id LIMIT 6 OFFSET 3"
    for at in ("", "VERSION AS OF 6"):
        rows, expected = both(near, query.format(at))
        assert rows == expected and len(rows) == 6


def test_without_a_word_about_null_a_search_serves_where_none_is(
    near: SparkSession, path: str, table_path: str
):
    whole = f"l2_distance(whole, {FLOATS})"
    rows, expected = both(near, f"SELECT id FROM near ORDER BY {whole}, id LIMIT 20")
    assert rows == expected
    call = NearestCall(column="whole", q=tuple(Q), k=20, metric="l2", nulls_first=True)
    ref, options = DatasetRef.at(path), ReadOptions(path=path)
    size = {"row_bytes": 40.0, "vector_bytes": 1 << 40}
    assert "NULLS LAST" in str(plan_nearest(ref, options, call, **size)), "too much to look for one"
    assert "64 MiB" in str(
        plan_nearest(ref, options, replace(call, k=9000), row_bytes=8e3, vector_bytes=0)
    )
    never = pa.schema([pa.field("whole", pa.list_(pa.float32(), SIZE), nullable=False)])
    lance.write_dataset(lance.dataset(path).to_table(["whole"]).cast(never), table_path)
    lance.dataset(table_path).create_index("whole", "IVF_FLAT", metric="l2", num_partitions=1)
    assert isinstance(
        plan_nearest(DatasetRef.at(table_path), options, call, **size), IndexedSort
    ), "none can be"


def found(
    path: str, k: int, *, filter: str | None = None, most: int = 10_000, column: str = "vec"
) -> list[int] | None:
    call = NearestCall(column=column, q=tuple(Q), k=k, metric="l2", nulls_first=False)
    search = IndexedSort(call=call, index="", most=most)
    batches = search.search(lance.dataset(path), ["id", column], filter, "descriptor")
    return (
        None
        if batches is None
        else [n for batch in batches for n in batch.column("id").to_pylist()]
    )


def test_rows_at_equal_distance_are_all_read(path: str, table_path: str):
    everything = lance.dataset(path).to_table(["id", "vec", "kind"]).to_pylist()
    candidates = [row["id"] for row in everything if row["vec"] is not None and row["kind"] == 3]
    assert set(found(path, len(candidates), filter="kind = 3") or ()) == set(candidates)
    assert found(path, len(candidates) + 1, filter="kind = 3") is None, "fewer have a distance"
    assert len(found(path, 3) or ()) > 130, "rows of one distance come together"
    assert found(path, 3, most=100) is None
    broken = pa.array(
        [[0.5] * SIZE, [0.5, None] + [0.0] * 6, *[[4.0 + n] * SIZE for n in range(30)]],
        pa.list_(pa.float32(), SIZE),
    )
    lance.write_dataset(pa.table({"id": range(32), "vec": broken}), table_path)
    assert found(table_path, 3) is None, "Lance takes a NULL element for a number"


def test_l2_distance_is_that_of_spark_for_all_numbers_and_leaves_a_function_of_that_name(
    spark: SparkSession,
):
    row = spark.sql(
        "SELECT l2_distance(array(0, 0), array(3, 4.0)) AS a, l2_distance(array(1.5D), NULL) AS b"
    ).first()
    assert row is not None and (row.a, row.b) == (5.0, None)
    with pytest.raises(PySparkException, match="l2_distance takes two vectors, not 1"):
        spark.sql("SELECT l2_distance(array(1))")
    other_session = spark.newSession()
    other_session.udf.register("l2_distance", lambda a: f"mine {a}")
    assert lance_spark.enable_pushdown(other_session)
    assert other_session.sql("SELECT l2_distance('x') AS a").first() == ("mine x",)
