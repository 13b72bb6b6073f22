"""Values in every type, by every way into a table: stored exactly, or refused with nothing changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Table
from lance_spark.errors import LanceSparkError, OptionError, ValueConversionError
from tests.strategies import facts
from tests.support.buffers import shifted
from udf_runtime import UDF, Kind

pytestmark = pytest.mark.sample(1, tests=5)

MIDNIGHT = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - naive on purpose
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("i", pa.int64()),
        ("l", pa.list_(pa.int64())),
        ("st", pa.struct([("x", pa.int32())])),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("mk", pa.map_(pa.date32(), pa.int64())),
        ("h", pa.float16()),
        ("f", pa.float32()),
        ("v", pa.list_(pa.float32(), 2)),
        ("dec", pa.decimal128(5, 2)),
        ("d", pa.date32()),
        ("s", pa.timestamp("s")),
        ("us", pa.timestamp("us")),
        ("ti", pa.time32("s")),
        ("du", pa.duration("s")),
        ("bo", pa.bool_()),
        ("u", pa.uint64()),
        ("dbl", pa.float64()),
        ("te", pa.string()),
        ("bi", pa.binary(2)),
        ("z", pa.timestamp("us", "UTC")),
        ("ms", pa.date64()),
    ]
)
NANOSECOND = pd.Timestamp("2020-01-01 00:00:00.000000999")
MISFITS: dict[str, object] = {
    "i": 1.5,
    "l": [1.5],
    "st": {"x": 1.5},
    "m": {"k": 1.5},
    "mk": {MIDNIGHT.replace(hour=5): 1},
    "h": 1e300,
    "f": 1e300,
    "v": [1e300, 1.0],
    "dec": Decimal("1.555"),
    "d": MIDNIGHT.replace(hour=23),
    "s": MIDNIGHT.replace(microsecond=999_999),
    "us": NANOSECOND,
    "ti": dt.time(1, 2, 3, 999_999),
    "du": dt.timedelta(milliseconds=999),
    "bo": 1,
    "u": -1,
    "dbl": 2**53 + 1,
    "te": 1,
    "bi": b"abc",
    "z": NANOSECOND.tz_localize("UTC"),
    "ms": MIDNIGHT.replace(hour=5),
}
FITS: dict[str, object] = {
    "i": 2.0,
    "l": np.array([1, 2]),
    "st": (7,),
    "m": {"k": 2.0},
    "mk": {dt.date.max: 1},
    "h": float("inf"),
    "f": float("-inf"),
    "v": [float("inf"), 0.5],
    "dec": Decimal("1.500"),
    "d": MIDNIGHT,
    "s": dt.datetime.min,  # noqa: DTZ901 - likewise
    "us": dt.datetime.max,  # noqa: DTZ901 - likewise
    "ti": dt.time(1, 2, 3),
    "du": dt.timedelta(days=-1),
    "bo": np.True_,
    "u": 2**64 - 1,
    "dbl": float("nan"),
    "te": "ж",
    "bi": b"ab",
    "z": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    "ms": dt.date.max,
}
STORED: dict[str, object] = FITS | {
    "i": 2,
    "l": [1, 2],
    "st": {"x": 7},
    "m": [("k", 2)],
    "mk": [(dt.date.max, 1)],
    "dec": Decimal("1.50"),
    "d": dt.date(2020, 1, 1),
    "bo": True,
    "z": dt.datetime(1, 1, 1, tzinfo=ZoneInfo("UTC")),
}
NULLS: dict[str, object] = dict.fromkeys(FITS)
IN_ALL_WAYS = ("i", "m", "f", "d")
"""Columns whose misfits reach tasks of Spark in the quick test."""


@pytest.fixture
def table(db: Connection) -> Table:
    """A table of every type with the row 2, whose values are NULL."""
    return db.create_table("t", [{"k": 2}], schema=SCHEMA)


def ways(
    db: Connection, table: Table, column: str, value: object
) -> dict[str, Callable[[], object]]:
    """Returns every call of this process that stores a value in a column."""
    schema = pa.schema([SCHEMA.field("k"), SCHEMA.field(column)])
    new, old = [{"k": 3, column: value}], [{"k": 2, column: value}]
    frame = pd.DataFrame({"k": [3], column: pd.Series([value], dtype=object)})
    return {
        "create_table": lambda: db.create_table(f"new_{column}", new, schema=schema),
        "create_table of pandas": lambda: db.create_table(f"new_{column}", frame, schema=schema),
        "add": lambda: table.add(new),
        "add columns": lambda: table.add({"k": [3], column: [value]}),
        "add pandas": lambda: table.add(frame),
        "merge, inserted": lambda: (
            table.merge_insert("k").when_not_matched_insert_all().execute(new)
        ),
        "merge, updated": lambda: table.merge_insert("k").when_matched_update_all().execute(old),
        "update": lambda: table.update("k = 2", {column: value}),
    }


@pytest.mark.parametrize("column", MISFITS)
def test_a_value_that_does_not_fit_is_refused_by_every_way_and_changes_nothing(
    db: Connection, table: Table, column: str
) -> None:
    for way, store in ways(db, table, column, MISFITS[column]).items():
        with pytest.raises(ValueConversionError, match=f"column '{column}") as caught:
            store()
        assert caught.value.column == column and caught.value.row == (
            None if way == "update" else 0
        ), way
    assert db.table_names() == ["t"] and table.version == 1


def test_values_that_fit_are_stored_as_they_are(db: Connection, table: Table) -> None:
    rows = [{"k": 3, **FITS}]
    created = db.create_table("created", rows, schema=SCHEMA)
    table.add(rows)
    merged = table.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
    merged.execute([{"k": 2, **FITS}, {"k": 4, **FITS}])
    updated = db.create_table("updated", [{"k": 3}], schema=SCHEMA)
    updated.update("k = 3", FITS)
    emptied = db.create_table("emptied", rows, schema=SCHEMA)
    emptied.update("k = 3", NULLS)
    assert emptied.to_arrow().to_pylist() == [{"k": 3, **NULLS}]
    for stored, keys in ((created, [3]), (table, [2, 3, 4]), (updated, [3])):
        stored_rows = sorted(stored.to_arrow().to_pylist(), key=lambda row: row["k"])
        assert [str(row) for row in stored_rows] == [str({"k": key, **STORED}) for key in keys]
        assert stored.schema.types == SCHEMA.types


@pytest.mark.parametrize("column", IN_ALL_WAYS)
def test_tasks_of_spark_refuse_values_that_do_not_fit(
    spark: SparkSession, folder: str, column: str
) -> None:
    check_refused_by_tasks(spark, folder, column)


@pytest.mark.long
@pytest.mark.parametrize("column", sorted({*MISFITS} - {*IN_ALL_WAYS}))
def test_tasks_of_spark_refuse_values_that_do_not_fit_in_any_type(
    spark: SparkSession, folder: str, column: str
) -> None:
    check_refused_by_tasks(spark, folder, column)


def check_refused_by_tasks(spark: SparkSession, folder: str, column: str) -> None:
    schema = pa.schema([SCHEMA.field("k"), SCHEMA.field(column)])
    table = lance_spark.connect(folder, spark, progress=False).create_table(
        "t", [{"k": 2}], schema=schema
    )
    rows = [{"k": 2, column: MISFITS[column]}]
    with pytest.raises((LanceSparkError, PySparkException), match=f"column '{column}|{column}: "):
        table.load_columns(rows, pk="k", columns=[column])
    if column not in ("us", "z", "u", "ms"):  # Spark itself drops nanoseconds of Python values
        with pytest.raises(
            (LanceSparkError, PySparkException), match=f"column '{column}|{column}: "
        ):
            spark.createDataFrame(rows).write.format("lance").mode("append").save(table.uri)
    assert table.to_arrow().to_pylist() == [{"k": 2, column: None}]
    fits = pa.Table.from_pylist([{"k": 2, column: STORED[column]}], schema=schema)
    table.load_columns(fits, pk="k", columns=[column])
    assert str(table.to_arrow().to_pylist()) == str([{"k": 2, column: STORED[column]}])


def test_an_expression_of_an_update_becomes_the_columns_type_exactly(db: Connection) -> None:
    schema = pa.schema(
        [
            ("k", pa.float64()),
            ("f", pa.float32()),
            ("i", pa.int8()),
            ("d", pa.date32()),
            ("t", pa.timestamp("us")),
        ]
    )
    table = db.create_table(
        "t", [{"k": 1e300, "f": 0.5, "i": 1, "t": MIDNIGHT.replace(hour=5)}], schema=schema
    )
    for column, expression in {"f": "k", "i": "k", "d": "t"}.items():
        with pytest.raises(ValueConversionError, match=f"column '{column}'"):
            table.update(None, values_sql={column: expression})
    assert table.version == 1
    table.update(None, values_sql={"f": "k / 1e290", "i": "f * 4"})
    assert table.to_arrow(["f", "i"]).to_pylist() == [{"f": float(np.float32(1e10)), "i": 2}]


EXTREMES = pa.table(
    {
        "k": pa.array([1, 2, 3], pa.int64()),
        "f": pa.array([float("nan"), float("-inf"), None], pa.float32()),
        "dbl": pa.array([-0.0, float("inf"), None], pa.float64()),
        "v": pa.array([[float("-inf"), -0.0], [0.5, 1.0], None], pa.list_(pa.float32(), 2)),
        "d": pa.array([3_663_500, -5_000_000, None], pa.int32()).cast(pa.date32()),
        "s": pa.array([2**40, -(2**40), None], pa.int64()).cast(pa.timestamp("s")),
        "us": pa.array([2**58, -(2**58), None], pa.int64()).cast(pa.timestamp("us")),
        "z": pa.array([2**58, -(2**58), None], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "du": pa.array([2**40, -(2**40), None], pa.int64()).cast(pa.duration("s")),
        "dec": pa.array([Decimal("999.99"), Decimal("-0.01"), None], pa.decimal128(5, 2)),
        "u": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "te": pa.array(["", "ж" * 20, None]),
    }
)
"""NaN, infinities, moments without an object in Python, the limits of types, and NULL."""


def extreme_facts(stored: pa.Table) -> dict[str, list[object]]:
    rows = stored.sort_by("k")
    return {name: facts(rows[name]) for name in EXTREMES.column_names}


@pytest.mark.parametrize("by", [0, 4, 8])
def test_arrow_values_at_the_ends_of_types_are_stored_by_every_way(db: Connection, by: int) -> None:
    data = EXTREMES.combine_chunks()
    data = pa.table([shifted(column.chunk(0), by) for column in data.columns], schema=data.schema)
    absent = pa.table({"k": EXTREMES["k"]})
    added = db.create_table("added", schema=data.schema)
    added.add(data)
    streamed = db.create_table("streamed", schema=data.schema)
    streamed.add(iter(data.to_batches()))
    inserted = db.create_table("inserted", schema=data.schema)
    inserted.merge_insert("k").when_not_matched_insert_all().execute(data)
    merged = db.create_table("merged", schema=data.schema)
    merged.add(absent)
    merged.merge_insert("k").when_matched_update_all().execute(data)
    for table in (db.create_table("created", data), added, streamed, inserted, merged):
        assert extreme_facts(table.to_arrow()) == extreme_facts(EXTREMES), table.name


@pytest.mark.parametrize("kind", [Kind.ARROW, Kind.RECORD_BATCH])
def test_arrow_values_at_the_ends_of_types_are_stored_by_udfs(db: Connection, kind: Kind) -> None:
    table = db.create_table("t", pa.table({"k": EXTREMES["k"]}))
    for name in EXTREMES.column_names[1:]:
        column = EXTREMES[name].combine_chunks()

        def values(rows: Any, column: Any = column) -> pa.Array:
            keys = rows if isinstance(rows, pa.Array) else rows.column("k")
            return column.take(pc.subtract(keys, 1))

        inputs = ["k"] if kind is Kind.ARROW else None
        values_udf = UDF.define(
            values, kind=kind, data_type=column.type, input_columns=inputs, name=name
        )
        table.add_columns({name: values_udf})
        table.backfill(name)
    assert extreme_facts(table.to_arrow()) == extreme_facts(EXTREMES)


def test_tasks_of_spark_store_values_of_every_type_and_at_the_ends_of_types(
    spark: SparkSession, folder: str
) -> None:
    db = lance_spark.connect(folder, spark, progress=False)
    loaded = db.create_table("loaded", schema=EXTREMES.schema)
    loaded.add(pa.table({"k": EXTREMES["k"]}))
    loaded.load_columns(EXTREMES, pk="k", columns=EXTREMES.column_names[1:])
    written_table = db.create_table("written", schema=EXTREMES.schema)
    spark.read.format("lance").load(loaded.uri).write.format("lance").mode("append").save(
        written_table.uri
    )
    assert (
        extreme_facts(loaded.to_arrow())
        == extreme_facts(written_table.to_arrow())
        == extreme_facts(EXTREMES)
    )
    every = db.create_table("every", [{"k": 1, **FITS}, {"k": 2}], schema=SCHEMA)
    copied = db.create_table("copied", [{"k": 1}, {"k": 2}], schema=SCHEMA)
    copied.load_columns(every.to_arrow(), pk="k", columns=SCHEMA.names[1:])
    appended = db.create_table("appended", schema=SCHEMA)
    spark.read.format("lance").load(every.uri).write.format("lance").mode("append").save(
        appended.uri
    )
    expected = [str({"k": 1, **STORED}), str({"k": 2, **NULLS})]
    for table in (copied, appended):
        assert list(map(str, table.to_arrow().sort_by("k").to_pylist())) == expected


def test_arrow_data_of_other_writers_is_stored_from_any_address(db: Connection) -> None:
    """Arrow C++ before version 22, and Java, align buffers to 8 bytes; Lance takes decimals and views from 16."""
    decimals = pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(9, 2))
    texts = pa.array(["a text longer than 12 bytes", None, ""], pa.string_view())
    columns = {"k": pa.array([1, 2, 3]), "d": shifted(decimals, 8), "t": shifted(texts, 8)}
    data = pa.table(columns)
    table = db.create_table("t", data)
    table.add(data.set_column(0, "k", pa.array([4, 5, 6])))
    table.add(iter(data.set_column(0, "k", pa.array([7, 8, 9])).to_batches()))
    merge = table.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(data.set_column(0, "k", pa.array([9, 10, 11])))
    table.update("k = 5", {"d": Decimal("7.00")})
    stored_rows = sorted(table.to_arrow().to_pylist(), key=lambda row: row["k"])
    rows = list(zip(decimals.to_pylist(), texts.to_pylist(), strict=True))
    expected = [*rows, *rows, *rows[:2], *rows]
    expected[4] = (Decimal("7.00"), None)
    assert [(row["d"], row["t"]) for row in stored_rows] == expected


def test_arrow_data_is_converted_to_the_tables_types_as_a_dataframe_is(db: Connection) -> None:
    table = db.create_table("t", schema=pa.schema([("k", pa.int16()), ("f", pa.float32())]))
    table.add(pa.table({"k": pa.array([1], pa.int64()), "f": [0.5]}))
    table.merge_insert("k").when_not_matched_insert_all().execute(pa.table({"k": [2], "f": [1.5]}))
    assert table.to_arrow().to_pylist() == [{"k": 1, "f": 0.5}, {"k": 2, "f": 1.5}]
    for data in (pa.table({"k": [3], "f": [1e300]}), pa.table({"k": [2**20], "f": [1.0]})):
        for store in (table.add, table.merge_insert("k").when_not_matched_insert_all().execute):
            with pytest.raises(ValueConversionError, match="row 0 of the data"):
                store(data)
    assert table.count_rows() == 2
    with pytest.raises(OptionError):
        table.update(None, values_sql={"f": "'text' || k"})
