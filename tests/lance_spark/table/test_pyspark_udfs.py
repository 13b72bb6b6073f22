"""A UDF of PySpark as a computed column has the values of `df.select(udf(...))`, or is refused."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf, pandas_udf
from pyspark.sql.functions import udf as spark_udf
from pyspark.sql.types import LongType

import lance_spark
from lance_spark import Connection, RegistrationError, Table
from lance_spark.columns.pyspark_udfs import bind_to_columns, to_udf
from tests.support.inline_jobs import NoSpark, inline_tasks
from udf_runtime import UDF
from udf_runtime.fingerprint import first_digest

ZONE = "spark.sql.session.timeZone"

MOMENT = dt.datetime(2020, 1, 1, 3, 30, 0, 123456, tzinfo=dt.UTC)
_STRUCT = pa.struct([("x", pa.float64()), ("t", pa.timestamp("us", "UTC"))])
COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), 7),
    "uint8": (pa.uint8(), 200),
    "int32": (pa.int32(), 70_000),
    "int64": (pa.int64(), 2**53 + 1),
    "uint64": (pa.uint64(), 2**63 + 1),
    "float16": (pa.float16(), 1.5),
    "float32": (pa.float32(), 0.1),
    "float64": (pa.float64(), 0.1),
    "text": (pa.string(), "é"),
    "large": (pa.large_string(), "large"),
    "bytes": (pa.binary(), b"\x00\xff"),
    "decimal": (pa.decimal128(10, 2), Decimal("1.50")),
    "date": (pa.date32(), dt.date(1850, 2, 3)),
    "stamp": (pa.timestamp("us", "UTC"), MOMENT),
    "fine_stamp": (pa.timestamp("ns", "UTC"), MOMENT),
    "naive": (pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
    "time": (pa.time64("ns"), dt.time(1, 2, 3, 5)),
    "length": (pa.duration("us"), dt.timedelta(days=1, microseconds=5)),
    "ints": (pa.list_(pa.int32()), [1, None, 2]),
    "vector": (pa.list_(pa.float32(), 2), [1.5, 2.5]),
    "texts": (pa.list_(pa.string()), ["a", None]),
    "stamps": (pa.list_(pa.timestamp("us", "UTC")), [MOMENT, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
    "map_of_stamps": (pa.map_(pa.string(), pa.timestamp("us", "UTC")), [("a", MOMENT)]),
    "struct": (_STRUCT, {"x": 1.5, "t": MOMENT}),
    "structs": (pa.list_(_STRUCT), [{"x": 1.5, "t": MOMENT}]),
    "nested": (
        pa.struct([("m", pa.map_(pa.string(), _STRUCT))]),
        {"m": [("k", {"x": None, "t": MOMENT})]},
    ),
}
"""Columns of the table: a type, and the value of the first of two rows; the second row is NULL."""

Shape = tuple[str, Callable[..., Any], str]
"""A name, a UDF of PySpark, and the input column."""


def describe(value: object) -> str:
    return f"{type(value).__name__} {value!r}"


def shown_series(values: pd.Series) -> pd.Series:
    return pd.Series([f"{values.dtype} {describe(value)}" for value in values])


def shown_frame(frame: pd.DataFrame) -> pd.Series:
    columns = [shown_series(frame[name]) for name in frame.columns]
    return pd.Series([f"{list(frame.columns)} {row}" for row in zip(*columns, strict=True)])


def shown_array(values: pa.Array) -> pa.Array:
    kind = (
        str(values.type).replace(" not null", "").replace("<item:", "<element:")
    )  # names of items are free
    return pa.array([f"{kind} {value}" for value in values])


def input_shapes() -> Iterator[Shape]:
    for column, (kind, _) in COLUMNS.items():
        yield f"row_{column}", spark_udf(describe, "string", useArrow=False), column
        yield f"arrow_row_{column}", spark_udf(describe, "string", useArrow=True), column
        yield (
            f"pandas_{column}",
            _shown_frame() if pa.types.is_struct(kind) else _shown_series(),
            column,
        )
        yield f"arrow_{column}", _arrow_udf(shown_array), column


def _shown_frame() -> Any:
    @pandas_udf("string")
    def frame(values: pd.DataFrame) -> pd.Series:
        return shown_frame(values)

    return frame


def _shown_series() -> Any:
    @pandas_udf("string")
    def series(values: pd.Series) -> pd.Series:
        return shown_series(values)

    return series


def _arrow_udf(function: Callable[..., Any]) -> Any:
    @arrow_udf("string")
    def arrays(values: pa.Array) -> pa.Array:
        return function(values)

    return arrays


_RETURNS = {
    "stamp": "timestamp",
    "naive": "timestamp_ntz",
    "date": "date",
    "time": "time",
    "length": "interval day to second",
    "decimal": "decimal(10,2)",
    "bytes": "binary",
    "ints": "array<int>",
    "stamps": "array<timestamp>",
    "map": "map<string,bigint>",
    "map_of_stamps": "map<string,timestamp>",
    "struct": "struct<x:double,t:timestamp>",
    "structs": "array<struct<x:double,t:timestamp>>",
}


def output_shapes() -> Iterator[Shape]:
    for column, returns in _RETURNS.items():
        for arrow in (False, True):
            identity = spark_udf(lambda value: value, returns, useArrow=arrow)
            yield f"row_{column}_back_{arrow}", identity, column
        yield f"pandas_{column}_back", _identity(COLUMNS[column][0], returns), column

    yield "dict", spark_udf(lambda t: {"t": t}, "struct<x:double,t:timestamp>"), "stamp"
    yield "tuple", spark_udf(lambda t: (1.0, t), "struct<x:double,t:timestamp>"), "stamp"
    yield "later", spark_udf(lambda t: t and t + dt.timedelta(hours=1), "timestamp"), "stamp"
    yield "aware", spark_udf(lambda t: MOMENT, "timestamp"), "stamp"

    @pandas_udf("timestamp")
    def day(values: pd.Series) -> pd.Series:
        return values.dt.floor("D")

    @pandas_udf("timestamp")
    def aware_day(values: pd.Series) -> pd.Series:
        return values.dt.tz_localize("Asia/Tokyo")

    @pandas_udf("bigint")
    def hours(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for values in parts:
            yield values.dt.hour

    @pandas_udf("struct<t:timestamp,n:int>")
    def frame(values: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"t": values, "n": 1})

    @arrow_udf("bigint")
    def minutes(parts: Iterator[pa.Array]) -> Iterator[pa.Array]:
        import pyarrow.compute as pc

        for values in parts:
            yield pc.hour(values)

    @arrow_udf("timestamp")
    def same(values: pa.Array) -> pa.Array:
        return values

    for function in (day, aware_day, hours, frame, minutes, same):
        yield function.func.__name__, function, "stamp"


def _identity(kind: pa.DataType, returns: str) -> Any:
    if pa.types.is_struct(kind):

        @pandas_udf(returns)
        def frame(values: pd.DataFrame) -> pd.DataFrame:
            return values

        return frame

    @pandas_udf(returns)
    def series(values: pd.Series) -> pd.Series:
        return values

    return series


REFUSED = {
    *(f"{kind}_{column}" for kind in ("row", "arrow_row") for column in ("uint64", "fine_stamp")),
    *(f"pandas_{column}" for column in ("stamps", "map_of_stamps", "structs", "nested")),
    *(f"pandas_{column}_back" for column in ("stamps", "map_of_stamps", "structs")),
}
SAMPLE = (
    "row_stamp",
    "arrow_row_nested",
    "row_map",
    "row_uint64",
    "pandas_int64",
    "pandas_struct",
    "arrow_stamp",
)
SAMPLE_BACK = (
    "row_struct_back_False",
    "row_stamps_back_True",
    "later",
    "dict",
    "day",
    "hours",
    "minutes",
    "frame",
)


def shapes(names: Sequence[str] = ()) -> list[Shape]:
    return [
        shape for shape in [*input_shapes(), *output_shapes()] if not names or shape[0] in names
    ]


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> Table:
    """A table with one column per type, and two rows."""
    db = lance_spark.connect(str(tmp_path / "db"), spark, progress=False)
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in COLUMNS.items())])
    first = {"id": 0, **{name: value for name, (_, value) in COLUMNS.items()}}
    return db.create_table("t", [first, {"id": 1}], schema=schema)


@pytest.fixture(params=["America/New_York", "+05:30"])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """The time zone of the session."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, request.param)
    yield request.param
    spark.conf.set(ZONE, before)


def select(
    spark: SparkSession, table: Table, chosen: list[Shape], folder: Path
) -> dict[str, list[object]]:
    """Returns the values of `df.select`, by the name of the shape."""
    expected: dict[str, list[object]] = {}
    by_kind = sorted(chosen, key=lambda shape: shape[1].evalType)  # type: ignore[attr-defined]
    for kind, group in groupby(by_kind, key=lambda shape: shape[1].evalType):  # type: ignore[attr-defined]
        frame = spark.read.format("lance").load(table.uri)
        columns = [function(frame[column]).alias(name) for name, function, column in group]
        uri = str(folder / f"selected_{kind}.lance")
        frame.select("id", *columns).coalesce(1).write.format("lance").mode("append").save(uri)
        rows = lance.dataset(uri).to_table().sort_by("id")
        expected |= {name: rows[name].to_pylist() for name in rows.schema.names}
    return expected


def register(table: Table, chosen: list[Shape]) -> set[str]:
    """Registers a column per shape, and returns the refused shapes."""
    refused = set()
    for name, function, column in chosen:
        try:
            table.add_columns({name: (function, [column])})
        except RegistrationError:
            refused.add(name)
    return refused


def check(spark: SparkSession, table: Table, chosen: list[Shape], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        refused = register(table, chosen)
    assert refused == REFUSED & {name for name, _, _ in chosen}
    chosen = [shape for shape in chosen if shape[0] not in refused]
    expected = select(spark, table, chosen, folder)
    spark.conf.set(ZONE, "Asia/Tokyo")  # the zone of a later session
    with inline_tasks():
        jobs: Connection = lance_spark.connect(
            table.uri.rpartition("/")[0], NoSpark(), progress=False
        )  # type: ignore[arg-type]
        for name, _, _ in chosen:
            jobs.open_table("t").backfill(name, task_size=2, checkpoint_size=2)  # one batch
    values = table.to_arrow().sort_by("id")
    assert {name: values[name].to_pylist() for name, _, _ in chosen} == {
        n: expected[n] for n, _, _ in chosen
    }


@pytest.mark.long
def test_every_shape_has_the_values_of_a_select_in_each_time_zone(
    spark: SparkSession, table: Table, zone: str, tmp_path: Path
) -> None:
    chosen = shapes()
    assert len(chosen) > 60
    check(spark, table, chosen, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("zone", ["America/New_York"], indirect=True)
def test_a_sample_of_shapes_has_the_values_of_a_select(
    spark: SparkSession, table: Table, zone: str, tmp_path: Path
) -> None:
    check(spark, table, shapes((*SAMPLE, *SAMPLE_BACK)), tmp_path)


def test_a_version_that_an_earlier_release_stored_is_kept_where_its_values_were_those_of_spark() -> (
    None
):
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    def bound(kind: pa.DataType) -> UDF:
        spark_udf = to_udf(pandas_udf(double, LongType()))
        assert spark_udf is not None
        schema = pa.schema([("id", kind)])
        return bind_to_columns(spark_udf.with_input_columns(["id"]), schema, lambda: "Asia/Tokyo")

    first = first_digest(double, ("pandas", ("value",), ("id",), False, pa.int64()), what="double")
    assert bound(pa.int64()).keep_version("double", first).version == first
    assert bound(pa.timestamp("us", "UTC")).keep_version("double", first).version != first
