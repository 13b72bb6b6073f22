"""Vectors whose leading elements suffice for a query."""

from __future__ import annotations

from collections.abc import Callable

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's functions are F everywhere

from lance_spark.read.transfer import leading_elements, prefix_schema, take_prefixes

pytestmark = pytest.mark.sample(4)

SIZE = 16

Vectors = list[list[float | None] | None]


@given(
    st.lists(
        st.none()
        | st.lists(st.none() | st.floats(width=32, allow_nan=False), min_size=4, max_size=4),
        max_size=12,
    ),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_shortened_vectors_are_their_leading_elements(vectors: Vectors, elements: int, start: int):
    batch = pa.record_batch(
        {"v": pa.array(vectors, pa.list_(pa.float32(), 4)), "i": range(len(vectors))}
    )
    schema = prefix_schema(batch.schema, {"v": elements})
    assert schema.field("v").type == pa.list_(pa.float32(), elements)
    pieces = [batch.slice(0, start), batch.slice(start)]
    rows = pa.Table.from_batches(take_prefixes(pieces, schema, {"v": elements}), schema)
    rows.validate(full=True)
    assert rows["v"].to_pylist() == [
        None if vector is None else vector[:elements] for vector in vectors
    ]
    assert rows["i"].to_pylist() == list(range(len(vectors)))


def test_vectors_are_shortened_to_half_at_most():
    sizes = {"v": 768, "w": 16}
    assert leading_elements(sizes, {"v": 384, "w": 8, "list": 1}) == {"v": 384, "w": 8}
    assert leading_elements(sizes, {"v": 385, "w": 17}) == {}


@pytest.fixture
def table(spark: SparkSession, plain_spark: SparkSession, table_path: str) -> str:
    vectors: Vectors = [
        None
        if row % 5 == 1
        else [None if (row + place) % 7 == 0 else row + place / 8 for place in range(SIZE)]
        for row in range(40)
    ]
    columns = {
        "id": pa.array(range(40), pa.int64()),
        "v": pa.array(vectors, pa.list_(pa.float32(), SIZE)),
        "h": pa.array(
            [vector and [0 if x is None else int(x) for x in vector] for vector in vectors],
            pa.list_(pa.int16(), SIZE),
        ),
        "l": pa.array(vectors, pa.list_(pa.float32())),
    }
    lance.write_dataset(pa.table(columns), table_path, max_rows_per_file=16).delete("id = 7")
    for session in (spark, plain_spark):
        session.read.format("lance").load(table_path).createOrReplaceTempView("leading")
    return table_path


QUERIES = {
    "SELECT id, v[0] FROM leading": "v[:1]",
    "SELECT sum(v[0]), max(v[3]), sum(size(v)), count(v[1]) FROM leading": "v[:4]",
    "SELECT id % 3, avg(v[1]), count(*) FROM leading WHERE v[2] > 3 OR v IS NULL GROUP BY id % 3": "v[:3]",
    "SELECT size(v), cardinality(h), array_size(h), v IS NULL FROM leading WHERE id > 3": "v[:1]",
    "SELECT element_at(v, 8), try_element_at(h, 2), get(h, 1) FROM leading": "v[:8]",
    "SELECT v[id], v[0] FROM leading WHERE id < 3": "v]",
    "SELECT v[0], v FROM leading": "v]",
    "SELECT element_at(v, -1), l[0], h[0] FROM leading": "h[:1]",
    "SELECT v[8] FROM leading": "[v]",
    "SELECT get(v, 16), get(v, -1) FROM leading": "[v]",
    "SELECT a.v[0], b.v[1] FROM leading a JOIN leading b ON a.id = b.id + 1 WHERE a.v[2] > 2": "v]",
    "SELECT DISTINCT v[0], size(l) FROM leading": "v[:1]",
    "SELECT size(v) AS n, count(*) FROM leading GROUP BY size(v) HAVING max(h[2]) > 0": "h[:3]",
    "SELECT id FROM leading WHERE v[0] = (SELECT max(v[0]) FROM leading)": "v[:1]",
    "SELECT x[0], n FROM (SELECT v AS x, size(v) AS n FROM leading WHERE size(v) = 16)": "v[:1]",
}


@pytest.mark.parametrize("query", QUERIES)
def test_queries_give_the_same_as_without_the_rule(
    spark: SparkSession, plain_spark: SparkSession, table: str, query: str
):
    quick, slow = spark.sql(query), plain_spark.sql(query)
    assert quick.schema == slow.schema
    assert sorted(map(repr, quick.collect())) == sorted(map(repr, slow.collect()))
    assert (
        QUERIES[query]
        in quick._jdf.queryExecution().optimizedPlan().collectLeaves().head().scan().description()
    )


def test_the_size_of_no_vector_is_what_the_session_says(spark: SparkSession, table: str):
    spark.conf.set("spark.sql.legacy.sizeOfNull", True)
    spark.conf.set("spark.sql.ansi.enabled", False)
    try:
        sizes = spark.sql("SELECT DISTINCT size(v) AS n FROM leading ORDER BY n").collect()
    finally:
        spark.conf.unset("spark.sql.legacy.sizeOfNull")
        spark.conf.unset("spark.sql.ansi.enabled")
    assert sizes == [(-1,), (SIZE,)]
    assert spark.sql("SELECT DISTINCT size(v) AS n FROM leading ORDER BY n").collect() == [
        (None,),
        (SIZE,),
    ]


def test_an_element_beyond_the_end_fails_as_it_does_without_the_rule(
    spark: SparkSession, table: str
):
    with pytest.raises(PySparkException, match="INVALID_ARRAY_INDEX"):
        spark.sql("SELECT v[16] FROM leading").collect()


@pytest.mark.parametrize(
    "change",
    [lambda df: df.where("v[1] > 3"), lambda df: df.limit(30), lambda df: df.orderBy("id")],
)
def test_dataframes_that_use_elements_further_up(
    spark: SparkSession,
    plain_spark: SparkSession,
    table: str,
    change: Callable[[DataFrame], DataFrame],
):
    quick, slow = (
        change(session.table("leading"))
        .groupBy()
        .agg(F.sum(F.col("v")[0]), F.max(F.size("v")))
        .collect()
        for session in (spark, plain_spark)
    )
    assert quick == slow
