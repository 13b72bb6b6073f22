"""Types of loaded values: a new column has the source's type, an existing column keeps its own, and all values stay
exact.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from pathlib import Path
from typing import Any

import hypothesis
import lance
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from tests import strategies
from tests.lance_spark.load.loads import (
    assert_same,
    left_join,
    load,
    make_table,
    numbered,
    write_file,
)
from tests.strategies import facts

pytestmark = pytest.mark.long

COLUMNS: dict[str, pa.Array[Any]] = {
    "vector": pa.array([[1.0, 2.0], None, [-0.0, float("nan")]], pa.list_(pa.float32(), 2)),
    "bytes_of_pixels": pa.array([[1, 255], [0, 0], None], pa.list_(pa.uint8(), 2)),
    "small": pa.array([255, 0, None], pa.uint8()),
    "large": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "half": pa.array([1.5, None, 0.0], pa.float32()).cast(pa.float16()),
    "moment": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
    "elsewhere": pa.array([0, 1000, None], pa.timestamp("ms", "Asia/Kathmandu")),
    "local": pa.array([-1, 1, None], pa.timestamp("us")),
    "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)], pa.date32()),
    "clock": pa.array([1, None, 86_399_999_999], pa.time64("us")),
    "span": pa.array([1, None, -5], pa.duration("us")),
    "price": pa.array(
        [decimal.Decimal("0.01"), None, decimal.Decimal("-99999999.99")], pa.decimal128(10, 2)
    ),
    "long_price": pa.array(
        [decimal.Decimal("1.5"), None, decimal.Decimal(-1)], pa.decimal256(38, 10)
    ),
    "text": pa.array(["", None, "ж" * 1000], pa.string()),
    "long_text": pa.array(["", None, "🦎"], pa.large_string()),
    "raw": pa.array([b"", None, b"\x00\xff"], pa.binary()),
    "id_of_16": pa.array([b"0123456789abcdef", None, b"\x00" * 16], pa.binary(16)),
    "label": pa.array(["a", None, "b"], pa.string()).dictionary_encode(),
    "tags": pa.array([["a", None], [], None], pa.list_(pa.string())),
    "place": pa.array(
        [{"lat": 1.5, "names": ["x"]}, None, {"lat": None, "names": None}],
        pa.struct([("lat", pa.float64()), ("names", pa.list_(pa.string()))]),
    ),
    "counts": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    "flag": pa.array([True, None, False], pa.bool_()),
}
IDS = [4, 29, 11]


def source_of_all(first: int = 0) -> pa.Table:
    return pa.table({"id": pa.array([i + first for i in IDS], pa.int64()), **COLUMNS})


@pytest.mark.parametrize("kind", ["Arrow", "an Arrow file", "Parquet", "a Lance table"])
def test_new_columns_have_the_types_and_values_of_the_source_and_keep_them_in_a_second_load(
    kind: str, db: Connection, files: Path
) -> None:
    table = make_table(db, numbered())
    data = source_of_all()
    source: Any = data
    if kind == "an Arrow file":
        source = write_file(data, files / "x.arrow")
    elif kind == "Parquet":
        # Parquet has no half floats for all readers, and this reader returns its dictionaries.
        data = data.drop_columns(["half"])
        source = write_file(data, files / "x.parquet")
    elif kind == "a Lance table":
        source = str(files / "x.lance")
        lance.write_dataset(data, source, data_storage_version="2.2")
        data = lance.dataset(source).to_table()
    names = data.schema.names[1:]
    before = table.to_arrow()
    result = load(table, source, "id", names)
    once = left_join(before, data, "id", names)
    assert result.status == "DONE"
    assert_same(table.to_arrow(), once)
    if kind == "Arrow":
        second = source_of_all(first=-4)
        load(table, second, "id", names)
        assert_same(table.to_arrow(), left_join(once, second, "id", names))


@pytest.mark.parametrize("kind", ["Arrow", "a file", "pandas"])
def test_moments_are_the_same_in_a_session_of_another_time_zone(
    kind: str, db: Connection, files: Path, spark: SparkSession
) -> None:
    table = make_table(
        db, numbered(at=pa.array(range(0, 30_000_000, 1_000_000), pa.timestamp("us")))
    )
    names = ["moment", "elsewhere", "local", "day"]
    # The hour that New York skips.
    local = pa.array([1_773_541_800_000_000, -1, None], pa.timestamp("us"))
    data = pa.table(
        {"at": pa.array([4_000_000, 29_000_000, 0], pa.timestamp("us")), **COLUMNS}
    ).select(["at", *names])
    data = data.set_column(3, "local", local)
    if kind == "pandas":
        # ORC has no such days.
        data, names = data.drop_columns(["day"]), names[:-1]
    source: Any = {"Arrow": data, "pandas": data.to_pandas()}.get(kind)
    source = write_file(data, files / "x.parquet") if source is None else source
    before = table.to_arrow()
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        load(table, source, "at", names)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    after = table.to_arrow()
    expected = left_join(before, data, "at", names)
    for name in names:
        kind_of = (
            pa.date32() if name == "day" else pa.timestamp("ns")
        )  # pandas has nanoseconds only
        assert facts(after[name].cast(kind_of)) == facts(expected[name].cast(kind_of)), name


def test_a_dataframe_gives_the_types_that_spark_has(db: Connection, spark: SparkSession) -> None:
    table = make_table(db, numbered())
    frame = spark.sql(
        "SELECT id, CAST(id AS TINYINT) a, CAST(id / 3 AS DECIMAL(9, 3)) b, array(id) c, named_struct('x', id) d, "
        "timestamp_micros(id) e, CAST(CAST(id AS STRING) AS BINARY) f, CAST(NULL AS STRING) g FROM range(30)"
    )
    table.load_columns(frame, "id", ["a", "b", "c", "d", "e", "f", "g"])
    schema = table.to_lance().schema
    assert schema.field("a").type == pa.int8() and schema.field("b").type == pa.decimal128(9, 3)
    assert (
        schema.field("e").type == pa.timestamp("us", "UTC")
        and schema.field("g").type == pa.string()
    )
    rows = table.to_arrow().to_pylist()
    assert all(
        (row["a"], row["c"], row["d"]) == (row["id"], [row["id"]], {"x": row["id"]}) for row in rows
    )


def test_an_existing_column_keeps_its_type_where_values_of_another_one_fit(db: Connection) -> None:
    table = make_table(
        db,
        numbered(
            a=pa.array([1] * 30, pa.int16()),
            b=pa.array(["x"] * 30, pa.large_string()),
            c=[1.0] * 30,
        ),
    )
    schema = table.to_lance().schema
    source = pa.table(
        {
            "id": IDS,
            "a": pa.array([7, 8, None], pa.int8()),
            "b": ["p", None, "q"],
            "c": [1.5, 2.5, None],
        }
    )
    before = table.to_arrow()
    load(table, source, "id", ["a", "b", "c"])
    assert table.to_lance().schema == schema
    assert_same(table.to_arrow(), left_join(before, source, "id", ["a", "b", "c"]))


@pytest.mark.parametrize("format", ["2.1", "2.2"])
def test_blobs_are_loaded_as_bytes_and_those_without_a_match_stay(
    format: Any, db: Connection, files: Path
) -> None:
    blob = {"lance-encoding:blob": "true"}
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64()),
        pa.field("b", pa.large_binary(), metadata=blob),
    ]
    data = pa.table(
        {"id": range(6), "b": [f"old {i}".encode() for i in range(6)]}, schema=pa.schema(fields)
    )
    lance.write_dataset(data, f"{db.uri}/t.lance", max_rows_per_file=3, data_storage_version=format)
    table = db.open_table("t")
    before = table.to_lance().schema
    source = pa.table(
        {"id": [1, 4, 5], "b": pa.array([b"new 1", b"x" * 100_000, None], pa.large_binary())}
    )
    assert load(table, write_file(source, files / "x.parquet"), "id", ["b"]).status == "DONE"
    dataset = table.to_lance()
    assert dataset.schema == before
    blobs_read = dict(dataset.read_blobs("b", indices=list(range(6))))
    assert list(blobs_read.values()) == [
        b"old 0",
        b"new 1",
        b"old 2",
        b"old 3",
        b"x" * 100_000,
        None,
    ]


_NUMBERS = itertools.count()


@hypothesis.settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    derandomize=True,
)
@hypothesis.given(data=st.data())
def test_any_values_of_any_types_by_any_keys_are_those_of_a_left_join(
    data: st.DataObject, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    number = next(_NUMBERS)
    folder = tmp_path_factory.mktemp(f"any-{number}")
    db = lance_spark.connect(str(folder / "db"), spark, progress=False)
    keys = st.integers(-3, 25)
    of_table = data.draw(
        st.lists(st.one_of(st.none(), keys), min_size=1, max_size=25), label="keys of the table"
    )
    of_source = data.draw(
        st.lists(keys, unique=True, min_size=1, max_size=25), label="keys of the source"
    )
    stored = st.sampled_from(
        [kind for kind in strategies.LANCE_LEAVES if not pa.types.is_null(kind)]
    )
    schema = data.draw(strategies.schemas(types=stored, most_columns=8), label="schema")
    schema = pa.schema([field.with_nullable(True) for field in schema])
    rows = strategies.tables(schema, fewest_rows=len(of_source), most_rows=len(of_source))
    source = data.draw(rows, label="values").append_column("k", pa.array(of_source, pa.int64()))
    table = make_table(db, pa.table({"k": pa.array(of_table, pa.int64())}), fragment_rows=7)
    load_source: Any = (
        source
        if data.draw(st.booleans(), label="in memory")
        else write_file(source, folder / "x.arrow")
    )
    rule: Any = data.draw(st.sampled_from(["carry", "null"]), label="rule")
    before = table.to_arrow()
    load(table, load_source, "k", schema.names, on_missing=rule)
    assert_same(table.to_arrow(), left_join(before, source, "k", schema.names, rule))
