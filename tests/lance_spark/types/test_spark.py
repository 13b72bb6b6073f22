"""Types and values through Spark itself: its JVM makes the Arrow data for writes, and takes the data of reads."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any

import lance
import lance.arrow
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.strategies import facts

WRITABLE: dict[str, tuple[str, pa.DataType]] = {
    "void": ("null", pa.null()),
    "boolean": ("true", pa.bool_()),
    "tinyint": ("-128Y", pa.int8()),
    "smallint": ("32767S", pa.int16()),
    "int": ("-2147483648", pa.int32()),
    "bigint": ("9223372036854775807L", pa.int64()),
    "float": ("cast('-0.0' as float)", pa.float32()),
    "double": ("double('NaN')", pa.float64()),
    "decimal": (
        "cast('99999999999999999999999999999999999999' as decimal(38,0))",
        pa.decimal128(38, 0),
    ),
    "string": ("'\u00e9\U0001f98e'", pa.string()),
    "collated": ("'a' collate UNICODE_CI", pa.string()),
    "varchar": ("cast('ab' as varchar(5))", pa.string()),
    "binary": ("X'00FF'", pa.binary()),
    "date": ("date'0001-01-01'", pa.date32()),
    "timestamp": ("timestamp'9999-12-31 23:59:59.999999'", pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("timestamp_ntz'1582-10-05 00:00:00'", pa.timestamp("us")),
    "time": ("time'23:59:59.999999'", pa.time64("ns")),
    "day_time": ("interval '-1 02:03:04.5' day to second", pa.duration("us")),
    "array": ("array(1, null)", pa.list_(pa.int32())),
    "empty": ("array()", pa.list_(pa.null())),
    "map": ("map('a', array(1S), 'b', null)", pa.map_(pa.string(), pa.list_(pa.int16()))),
    "struct": (
        "named_struct('a', 1, 'b', named_struct('x y', 'z'))",
        pa.struct([("a", pa.int32()), ("b", pa.struct([("x y", pa.string())]))]),
    ),
    "no_fields": ("struct()", pa.struct([])),
}


@pytest.fixture(scope="module", autouse=True)
def time_type(spark: SparkSession) -> Iterator[None]:
    """Spark 4.3 refuses TIME expressions unless this setting is on; its default is off."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.fixture(scope="module")
def every_type(spark: SparkSession) -> DataFrame:
    """A row with a value of each type, and a row of NULLs; a struct without fields cannot be NULL in Lance."""
    columns = [f"{value} AS {name}" for name, (value, _) in WRITABLE.items()]
    first = spark.sql("SELECT " + ", ".join(columns))
    filled = spark.range(2).crossJoin(first)
    return filled.selectExpr(
        *(n if n == "no_fields" else f"if(id = 0, {n}, null) AS {n}" for n in first.columns)
    )


def test_every_spark_type_is_written_and_read(
    spark: SparkSession, every_type: DataFrame, table_path: str
):
    every_type.coalesce(1).write.format("lance").mode("append").save(table_path)
    stored = lance.dataset(table_path).schema
    assert {field.name: field.type for field in stored} == {
        name: kind for name, (_, kind) in WRITABLE.items()
    }
    assert all(field.nullable and not field.metadata for field in stored)

    read = spark.read.format("lance").load(table_path)
    original_rows = [str(row) for row in every_type.collect()]
    assert sorted(str(row) for row in read.collect()) == sorted(original_rows)


@pytest.mark.skipif(pyspark.__version__ < "4.2", reason="Spark 4.1 has its geometries switched off")
def test_types_that_spark_lays_out_as_structs_are_written_and_read(
    spark: SparkSession, table_path: str
):
    point = "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040', 4326)"
    df = spark.sql(
        f"SELECT parse_json('{{\"a\": [1, null]}}') AS v, array(parse_json('1')) AS vs, {point} AS g"
    )
    df.write.format("lance").mode("append").save(table_path)
    read = spark.read.format("lance").load(table_path)
    assert [f.dataType.simpleString() for f in read.schema] == [
        f.dataType.simpleString() for f in df.schema
    ]
    query = "to_json(v) AS v", "to_json(vs[0]) AS w", "hex(st_asbinary(g)) AS g"
    assert read.selectExpr(*query).collect() == df.selectExpr(*query).collect()


@pytest.mark.parametrize("value", ["interval '1-2' year to month", "make_interval(1, 2, 3)"])
def test_a_type_that_cannot_go_is_refused(spark: SparkSession, table_path: str, value: str):
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"SELECT {value} AS span").write.format("lance").mode("append").save(table_path)
    # Spark itself refuses calendar intervals in any table before anybody asks us.
    assert "UnsupportedTypeError" in str(caught.value) or "INTERVAL" in str(caught.value)


D = decimal.Decimal
STORED: dict[str, tuple[pa.Array, list[Any]]] = {
    "u8": (pa.array([255, None], pa.uint8()), [255, None]),
    "u16": (pa.array([65535, None], pa.uint16()), [65535, None]),
    "u32": (pa.array([2**32 - 1, None], pa.uint32()), [2**32 - 1, None]),
    "u64": (pa.array([2**64 - 1, None], pa.uint64()), [D(2**64 - 1), None]),
    "f16": (pa.array([0.5, None], pa.float16()), [0.5, None]),
    "bf16": (lance.arrow.bfloat16_array([1.5, None]), [1.5, None]),
    "d256": (pa.array([D("1.25"), None], pa.decimal256(30, 2)), [D("1.25"), None]),
    "neg": (pa.array([D("5E+3"), None], pa.decimal128(4, -3)), [D(5000), None]),
    "ls": (pa.array(["\u00e9", None], pa.large_string()), ["\u00e9", None]),
    "lb": (pa.array([b"x", None], pa.large_binary()), [b"x", None]),
    "fb": (pa.array([b"abc", None], pa.binary(3)), [b"abc", None]),
    "d64": (pa.array([86_400_000, None], pa.date64()), [dt.date(1970, 1, 2), None]),
    "ts_s": (
        pa.array([1, None], pa.timestamp("s")),
        [dt.datetime.fromisoformat("1970-01-01T00:00:01"), None],
    ),
    "ts_ns": (
        pa.array([1000, None], pa.timestamp("ns")),
        [dt.datetime.fromisoformat("1970-01-01T00:00:00.000001"), None],
    ),
    "t32": (pa.array([61, None], pa.time32("s")), [dt.time(0, 1, 1), None]),
    "t64": (pa.array([1000, None], pa.time64("ns")), [dt.time(0, 0, 0, 1), None]),
    "dur": (pa.array([1, None], pa.duration("s")), [dt.timedelta(seconds=1), None]),
    "vec": (pa.array([[1, 2], None], pa.list_(pa.float16(), 2)), [[1.0, 2.0], None]),
    "big": (pa.array([[1, None], None], pa.large_list(pa.uint8())), [[1, None], None]),
    "dict": (pa.array(["a", None]).dictionary_encode(), ["a", None]),
    "json": (
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None])),
        ['{"a":1}', None],
    ),
    "map": (pa.array([[("k", 200)], None], pa.map_(pa.string(), pa.uint8())), [{"k": 200}, None]),
}


def test_every_stored_type_is_read_and_survives_an_overwrite(
    spark: SparkSession, table_path: str, tmp_path
):
    table = pa.table({name: column for name, (column, _) in STORED.items()})
    fields = [
        field.with_metadata({"note": field.name}) if field.name == "u8" else field
        for field in table.schema
    ]
    table = table.cast(pa.schema(fields))
    lance.write_dataset(table, table_path)
    stored = lance.dataset(table_path)

    df = spark.read.format("lance").load(table_path)
    rows = df.collect()
    assert {name: [row[name] for row in rows] for name in df.columns} == {
        n: v for n, (_, v) in STORED.items()
    }

    copy = str(tmp_path / "copy.lance")
    df.write.format("lance").mode("append").save(copy)
    df.write.format("lance").mode("overwrite").save(copy)
    df.write.format("lance").mode("append").save(copy)
    copied = lance.dataset(copy)
    assert copied.schema.equals(stored.schema, check_metadata=True)
    original = stored.to_table()
    again = copied.to_table()
    for name in table.column_names:
        assert facts(again[name]) == facts(original[name]) * 2, name


def test_columns_keep_their_fields_through_a_query_and_lose_them_with_their_types(
    spark: SparkSession, table_path: str, tmp_path
):
    lance.write_dataset(
        pa.table({"a": pa.array([1, 2], pa.uint32()), "b": pa.array([1, 2], pa.uint32())}),
        table_path,
    )
    df = (
        spark.read.format("lance")
        .load(table_path)
        .where("a > 1")
        .selectExpr("a AS renamed", "cast(b AS string) AS b")
    )
    copy = str(tmp_path / "copy.lance")
    df.write.format("lance").mode("append").save(copy)
    assert lance.dataset(copy).schema == pa.schema([("renamed", pa.uint32()), ("b", pa.string())])


def test_timestamps_do_not_depend_on_the_session_time_zone(spark: SparkSession, table_path: str):
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
        df = spark.sql(
            "SELECT timestamp'2020-01-01 00:00:00' AS t, array(timestamp'2020-01-01 00:00:00') AS ts"
        )
        df.write.format("lance").mode("append").save(table_path)
        read = spark.read.format("lance").load(table_path)
        assert read.selectExpr("cast(t AS string)").first()[0] == "2020-01-01 00:00:00"
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    moment = dt.datetime(2019, 12, 31, 18, 15, tzinfo=dt.UTC)
    assert lance.dataset(table_path).to_table().to_pylist() == [{"t": moment, "ts": [moment]}]


def test_vectors_and_blobs_are_made_by_options(spark: SparkSession, table_path: str):
    df = spark.sql("SELECT array(1f, 2f) AS Vec, X'0102' AS data")
    options = {"Vec.arrow.fixed-size-list.size": "2", "data.lance.encoding": "blob"}
    df.write.format("lance").mode("append").options(**options).save(table_path)
    stored = lance.dataset(table_path)
    assert stored.schema.field("Vec").type == pa.list_(pa.float32(), 2)
    assert stored.scanner(blob_handling="all_binary").to_table()["data"].to_pylist() == [
        b"\x01\x02"
    ]
    read = spark.read.format("lance").option("blob_handling", "bytes").load(table_path)
    assert read.collect() == df.collect()


def test_large_variable_types_of_spark_are_written(spark: SparkSession, table_path: str):
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    try:
        spark.conf.set(name, "true")
        spark.sql("SELECT 'a' AS s, array(X'01') AS b").write.format("lance").mode("append").save(
            table_path
        )
    finally:
        spark.conf.unset(name)
    table = lance.dataset(table_path).to_table()
    assert table.to_pylist() == [{"s": "a", "b": [b"\x01"]}]
    assert table.schema.field("s").type == pa.string()
