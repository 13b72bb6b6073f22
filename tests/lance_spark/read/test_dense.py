"""Vectors split into two columns by a scan: without NULL elements, and with some."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's functions are F everywhere
from pyspark.sql.types import ArrayType, FloatType, StringType, StructField, StructType

from lance_spark.read.transfer import SUFFIX, dense_columns, split_batch, split_schema, vector_sizes

pytestmark = pytest.mark.sample(5)

SIZE = 16
FULL = [float(i) for i in range(SIZE)]
GAPS: list[float | None] = [None, *FULL[1:]]
VECTORS = [FULL, None, GAPS, [None] * SIZE, FULL, None, FULL[::-1], GAPS]

COLUMNS = StructType(
    [
        StructField("s", StringType()),
        StructField("v", ArrayType(FloatType()), metadata={"a": 1}),
        StructField("w", ArrayType(FloatType())),
    ]
)


@given(
    vectors=st.lists(
        st.none() | st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=4),
        max_size=12,
    ),
    start=st.integers(0, 4),
    stop=st.integers(5, 12),
)
def test_each_vector_is_in_one_column_and_the_first_has_no_null_element(
    vectors: list[list[float | None] | None], start: int, stop: int
) -> None:
    batch = pa.record_batch(
        {"v": pa.array(vectors, pa.list_(pa.float32())), "i": range(len(vectors))}
    )
    halves = split_batch(batch.slice(start, max(0, stop - start)), ["v"])
    halves.validate(full=True)
    expected = vectors[start:stop]
    assert halves.schema.names == ["v", "i", "v" + SUFFIX]
    assert not halves.schema.field("v").type.value_field.nullable
    whole = [v if v is not None and None not in v else None for v in expected]
    assert halves.column(0).to_pylist() == whole
    assert halves.column(2).to_pylist() == [
        v if v is not None and None in v else None for v in expected
    ]


def test_hidden_elements_of_a_null_row_do_not_matter() -> None:
    values = pa.array([1.0, None, 2.0, 3.0], pa.float32())
    column = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), values, mask=pa.array([True, False])
    )
    halves = split_batch(pa.record_batch({"v": column}), ["v"])
    assert halves.to_pydict() == {"v": [None, [2.0, 3.0]], "v" + SUFFIX: [None, None]}


def test_only_long_vectors_of_numbers_are_dense(table_path: str) -> None:
    def column(kind: pa.DataType, size: int) -> pa.Array:
        return pa.array([None], pa.list_(kind, size))

    table = pa.table(
        {
            "v": column(pa.float32(), 16),
            "half": column(pa.float16(), 16),
            "bytes": column(pa.uint8(), 64),
            "short": column(pa.float32(), 15),
            "flags": column(pa.bool_(), 16),
            "list": pa.array([None], pa.list_(pa.float32())),
            "taken": column(pa.float32(), 16),
            "taken" + SUFFIX: pa.array(["x"]),
        }
    )
    dataset = lance.write_dataset(table, table_path)
    columns = [StructField(n, ArrayType(FloatType())) for n in table.schema.names]
    every, some = StructType(columns), StructType(columns[1:3])
    assert dense_columns(every, vector_sizes(dataset, every)) == ("v", "half", "bytes", "flags")
    assert vector_sizes(dataset, some) == {"half": 16, "bytes": 64}


def test_dense_columns_are_given_twice() -> None:
    twice = split_schema(COLUMNS, ("v", "w"))
    assert twice.names == ["s", "v", "w", "v" + SUFFIX, "w" + SUFFIX]
    assert [f.dataType.containsNull for f in twice.fields[1:]] == [False, False, True, True]  # type: ignore[attr-defined]
    assert split_schema(COLUMNS, ()) == COLUMNS


@pytest.fixture
def path(table_path: str) -> str:
    """Two fragments of eight rows with vectors of all kinds, and a deleted row."""
    ids = pa.array(range(16), pa.int64())
    vector, reversed_vector = (
        pa.array(VECTORS * 2, pa.list_(pa.float32(), SIZE)),
        pa.array(VECTORS[::-1] * 2, pa.list_(pa.int16(), SIZE)),
    )
    dataset = lance.write_dataset(
        pa.table({"id": ids, "v": vector, "w": reversed_vector}),
        table_path,
        max_rows_per_file=8,
        enable_stable_row_ids=True,
    )
    dataset.delete("id = 4")
    return table_path


def load(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("lance").options(**options).load(path)


def check_both_ways(spark: SparkSession, plain: SparkSession, path: str, query: Any) -> list[Any]:
    """Checks that a query gives equal rows with and without the rule, and that the rule split the vectors."""
    quick, slow = query(load(spark, path)), query(load(plain, path))
    assert SUFFIX in quick._jdf.queryExecution().optimizedPlan().toString()
    assert SUFFIX not in slow._jdf.queryExecution().optimizedPlan().toString()
    assert quick.schema == slow.schema
    rows = sorted(map(repr, quick.collect()))
    assert rows == sorted(map(repr, slow.collect()))
    return rows


QUERIES: dict[str, Any] = {
    "all": lambda df: df,
    "one": lambda df: df.select("w"),
    "renamed": lambda df: df.select(F.col("v").alias("x"), "id"),
    "filtered by it": lambda df: df.where("v[0] IS NULL AND v IS NOT NULL").select("id", "v"),
    "filtered": lambda df: df.where("id > 5 AND id < 12"),
    "limited": lambda df: df.orderBy("id").limit(3),
    "elements": lambda df: (
        df.select("id", F.explode("v").alias("e")).groupBy("id").agg(F.count("e"), F.sum("e"))
    ),
    "sizes": lambda df: df.select(F.size("v"), F.array_contains("w", 3)),
    "joined with itself": lambda df: df.alias("a").join(df.alias("b"), "id").select("a.v", "b.w"),
    "united": lambda df: df.select("v").union(df.where("id < 3").select("v")),
    "grouped": lambda df: df.groupBy("v").count(),
    "computed": lambda df: df.select(
        F.transform("v", lambda x: F.coalesce(x, F.lit(-1.0))).alias("y")
    ),
    "sub-query": lambda df: df.where(F.col("id").isin(1, 2)).select("v", "w").distinct(),
}


@pytest.mark.parametrize("name", QUERIES)
def test_queries_give_the_same_as_without_the_rule(
    name: str, spark: SparkSession, plain_spark: SparkSession, path: str
) -> None:
    assert check_both_ways(spark, plain_spark, path, QUERIES[name])


def test_every_vector_comes_back_as_it_was_written(spark: SparkSession, path: str) -> None:
    rows = load(spark, path).orderBy("id").collect()
    expected = [(i, VECTORS[i % 8], VECTORS[::-1][i % 8]) for i in range(16) if i != 4]
    assert [tuple(row) for row in rows] == expected


@pytest.mark.long
def test_a_backfill_from_a_vector_gives_the_values_of_its_rows(
    spark: SparkSession, path: str
) -> None:
    df = load(spark, path, with_row_address=True)
    sums = F.aggregate(
        "v", F.lit(0.0), lambda total, x: total + F.coalesce(x.cast("double"), F.lit(0.0))
    )
    query = df.select("_rowaddr", sums.alias("total"))
    query.write.format("lance").mode("append").option("mode", "backfill").save(path)
    totals = {
        i: None if VECTORS[i % 8] is None else sum(x for x in VECTORS[i % 8] or [] if x is not None)
        for i in range(16)
        if i != 4
    }
    assert {
        row.id: row.total for row in load(spark, path).select("id", "total").collect()
    } == totals
