"""Reads through Spark, from the view of a user."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import lance_spark
from tests.lance_spark.read.conftest import MakeTable

pytestmark = pytest.mark.sample(1, tests=2)


def load(spark: SparkSession, path: str, **options: object) -> DataFrame:
    return spark.read.format("lance").options(**options).load(path)


@pytest.fixture(params=["with the rule", "without the rule"])
def session(request: pytest.FixtureRequest) -> SparkSession:
    return request.getfixturevalue("spark" if request.param == "with the rule" else "plain_spark")


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, df.collect()), key=repr)


@pytest.mark.sample(2)
def test_a_table_is_read_as_it_is(session: SparkSession, make_table: MakeTable, table_path: str):
    table = make_table().to_table()
    expected = sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)
    assert rows(load(session, table_path)) == expected
    assert rows(load(session, table_path, target_partition_bytes=4000)) == expected
    assert load(session, table_path, target_partition_bytes=4000).rdd.getNumPartitions() > 10


def test_a_table_of_small_fragments_has_a_partition_per_slot(
    spark: SparkSession, table_path: str, monkeypatch: pytest.MonkeyPatch
):
    lance.write_dataset(pa.table({"id": range(128)}), table_path, max_rows_per_file=1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    slots = spark.sparkContext.defaultParallelism
    assert slots > 1
    assert load(spark, table_path).rdd.getNumPartitions() == slots
    assert load(spark, table_path, parallelism=4).rdd.getNumPartitions() == 4
    plain = spark.newSession()
    lance_spark.disable_pushdown(plain)
    assert load(plain, table_path).rdd.getNumPartitions() == slots, (
        "the gateway plans without the rule"
    )


def test_spark_filters_on_top_of_the_option_filter(
    session: SparkSession, make_table: MakeTable, table_path: str
):
    live = make_table().to_table().to_pylist()
    df = load(session, table_path, filter="even", target_partition_bytes=4000)
    got = [r["id"] for r in df.where("id > 300 AND word = 'word-3'").select("id").collect()]
    assert sorted(got) == [
        r["id"] for r in live if r["even"] and r["id"] > 300 and r["word"] == "word-3"
    ]
    assert df.count() == sum(r["even"] for r in live)


def test_the_option_limit_comes_before_sparks_filter(
    session: SparkSession, make_table: MakeTable, table_path: str
):
    live = make_table().to_table().to_pylist()
    df = load(session, table_path, limit=100, target_partition_bytes=4000)
    assert df.count() == 100
    assert df.where("id > 50").count() == sum(r["id"] > 50 for r in live[:100])
    assert df.agg(F.max("id")).first()[0] == live[99]["id"]
    filtered = load(session, table_path, filter="even", limit=30)
    assert [r["id"] for r in filtered.collect()] == [r["id"] for r in live if r["even"]][:30]


def test_counting_and_limiting(session: SparkSession, make_table: MakeTable, table_path: str):
    dataset = make_table()
    df = load(session, table_path, target_partition_bytes=4000)
    assert df.count() == dataset.count_rows()
    assert len(df.limit(17).collect()) == 17
    assert df.limit(5000).count() == dataset.count_rows()
    assert len(df.where("even").limit(20).collect()) == 20
    assert df.select(F.lit(1)).count() == dataset.count_rows()
    assert df.agg(F.min("word"), F.max("id"), F.count("word")).first() == (
        "moved",
        max(dataset.to_table()["id"].to_pylist()),
        len(dataset.to_table()["word"].drop_null()),
    )


@pytest.mark.sample(2)
def test_a_dataframe_is_a_snapshot(session: SparkSession, make_table: MakeTable, table_path: str):
    dataset = make_table()
    df, before = load(session, table_path), dataset.count_rows()
    dataset.delete("id < 500")
    assert df.count() == before
    assert load(session, table_path).count() < before
    assert load(session, table_path, version=dataset.version - 1).count() == before


def test_row_addresses_survive_a_query_with_their_snapshot(
    session: SparkSession, make_table: MakeTable, table_path: str
):
    dataset = make_table()
    df = (
        load(session, table_path, with_row_address=True)
        .where("id % 2 = 0")
        .select("_rowaddr", "id")
    )
    assert "lance.table" in df.schema["_rowaddr"].metadata
    expected = dataset.scanner(columns=["_rowaddr", "id"], filter="even").to_table()
    assert rows(df) == sorted(
        zip(*(c.to_pylist() for c in expected.columns), strict=True), key=repr
    )


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"columns": "id,wrod"}, "ColumnNotFoundError", "Did you mean 'word'"),
        ({"filter": "split(word, 'a') = 1"}, "FilterError", "Use split, a function of Spark"),
        ({"filter": "id IN ()"}, "FilterError", "the list after IN is empty"),
        ({"fragments": "0,77"}, "OptionError", "missing fragments \\(77\\)"),
    ],
)
def test_wrong_options_are_errors_when_the_dataframe_is_made(
    spark: SparkSession,
    make_table: MakeTable,
    table_path: str,
    options: dict[str, str],
    error: str,
    match: str,
):
    make_table()
    with pytest.raises(PySparkException, match=f"(?s){error}.*{match}"):
        load(spark, table_path, **options)


@pytest.mark.sample(1)
def test_a_damaged_file_fails_the_query_with_our_error(
    spark: SparkSession, make_table: MakeTable, table_path: str
):
    dataset = make_table(dirty=False)
    df = load(spark, table_path)
    file = dataset.get_fragment(1).metadata.files[0].path
    with open(f"{table_path}/data/{file}", "r+b") as handle:
        handle.truncate(100)
    with pytest.raises(PySparkException, match=r"(?s)TableUnreadableError.*fragment 1"):
        df.select("word").collect()


def test_a_query_that_stops_early_leaves_no_trace(
    spark: SparkSession, make_table: MakeTable, table_path: str
):
    make_table(rows=50_000, per_file=50_000, dirty=False)
    df = load(spark, table_path, batch_size=100, target_partition_bytes="64k")
    for _ in range(3):
        assert len(df.take(5)) == 5
    assert df.count() == 50_000


def test_an_indexed_look_up_is_one_task(
    session: SparkSession, make_table: MakeTable, table_path: str
):
    dataset = make_table(rows=5000, per_file=100, dirty=False)
    dataset.create_scalar_index("id", "BTREE")
    df = load(session, table_path, filter="id = 4321")
    assert df.rdd.getNumPartitions() == 1
    assert [r["id"] for r in df.collect()] == [4321]


def test_blobs_read_as_bytes(spark: SparkSession, table_path: str):
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    values = [b"x" * 100_000, None, b""]
    lance.write_dataset(
        pa.table([pa.array(values, pa.large_binary())], schema=pa.schema([field])), table_path
    )
    assert [r["b"] for r in load(spark, table_path, blob_handling="bytes").collect()] == values
    assert [
        r["n"] for r in load(spark, table_path).select(F.col("b.size").alias("n")).collect()
    ] == [100_000, None, 0]
