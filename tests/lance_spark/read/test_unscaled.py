"""Decimals that a scan returns as integers."""

from __future__ import annotations

from decimal import Decimal

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from lance_spark.read.transfer import decimals_to_longs, long_schema, unscaled_columns

LARGEST = 10**18 - 1


@given(
    st.lists(st.none() | st.integers(-LARGEST, LARGEST), max_size=12),
    st.integers(0, 18),
    st.integers(0, 6),
    st.integers(0, 12),
)
def test_numbers_come_without_their_point(
    numbers: list[int | None], scale: int, start: int, length: int
):
    values = [None if number is None else Decimal(number).scaleb(-scale) for number in numbers]
    batch = pa.record_batch(
        {"i": range(len(values)), "d": pa.array(values, pa.decimal128(18, scale))}
    )
    result = decimals_to_longs(batch.slice(start, length), ["d"])
    result.validate(full=True)
    assert result.schema.field("d").type == pa.int64()
    assert result.column("d").to_pylist() == numbers[start : start + length]
    assert result.column("i").to_pylist() == list(range(len(values)))[start : start + length]


def test_only_decimals_that_fit_are_given_so():
    columns = StructType(
        [
            StructField("a", DecimalType(18, 2), True, {"m": 1}),
            StructField("b", DecimalType(19, 2)),
            StructField("c", StringType()),
            StructField("s", StructType([StructField("a", DecimalType(5, 2))])),
        ]
    )
    assert unscaled_columns(columns) == ("a",)
    result_schema = long_schema(columns, ("a",))
    assert result_schema["a"] == StructField("a", LongType(), True, {"m": 1})
    assert result_schema.fields[1:] == columns.fields[1:]


QUERIES = [
    "SELECT * FROM decimals",
    "SELECT d, count(*) FROM decimals GROUP BY d",
    "SELECT sum(d), avg(n), min(d), max(t), sum(d * n), count(d), approx_count_distinct(n) FROM decimals",
    "SELECT id FROM decimals WHERE d < 1 OR n = -5 OR t IS NULL",
    "SELECT id FROM decimals WHERE d IN (0, 12.34) ORDER BY d DESC, id LIMIT 3",
    "SELECT a.id, b.id FROM decimals a JOIN decimals b ON a.d = b.n WHERE a.t > -1",
    "SELECT cast(d AS string), d + 1, round(n), d IS NULL FROM decimals WHERE id > 2",
    "SELECT d FROM decimals UNION SELECT n FROM decimals",
    "SELECT (SELECT max(d) FROM decimals) - d FROM decimals WHERE t <> 0",
    "SELECT d, sum(n) OVER (PARTITION BY d ORDER BY id) FROM decimals",
]


@pytest.fixture(scope="module")
def table(
    spark: SparkSession, plain_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> str:
    path = str(tmp_path_factory.mktemp("decimals") / "t.lance")
    numbers = [None, 0, 1234, -500, LARGEST, -LARGEST, 1, None, -1, 500]
    columns: dict[str, pa.Array] = {"id": pa.array(range(10), pa.int64())}
    for name, precision, scale in (("d", 18, 2), ("n", 18, 0), ("t", 18, 18), ("w", 38, 10)):
        values = [None if number is None else Decimal(number).scaleb(-scale) for number in numbers]
        columns[name] = pa.array(values, pa.decimal128(precision, scale))
    lance.write_dataset(pa.table(columns), path, max_rows_per_file=4)
    for session in (spark, plain_spark):
        session.read.format("lance").load(path).createOrReplaceTempView("decimals")
    return path


@pytest.mark.sample(3)
@pytest.mark.parametrize("query", QUERIES)
def test_queries_give_the_same_as_without_the_rule(
    spark: SparkSession, plain_spark: SparkSession, table: str, query: str
):
    quick, slow = spark.sql(query), plain_spark.sql(query)
    assert quick.schema == slow.schema
    assert sorted(map(repr, quick.collect())) == sorted(map(repr, slow.collect()))
    plans = [str(df._jdf.queryExecution().optimizedPlan().toString()) for df in (quick, slow)]
    assert ["MakeDecimal(" in plan for plan in plans] == [True, False]


@pytest.mark.long
def test_decimals_are_written_as_they_were_read(
    spark: SparkSession, table: str, tmp_path_factory: pytest.TempPathFactory
):
    copy = str(tmp_path_factory.mktemp("decimals") / "copy.lance")
    spark.sql("SELECT * FROM decimals").write.format("lance").mode("append").save(copy)
    assert lance.dataset(copy).to_table().sort_by("id").equals(lance.dataset(table).to_table())
