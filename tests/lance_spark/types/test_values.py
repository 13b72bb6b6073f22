"""Values that do not fit raise an error with column and row, without other effects; fitting values are exact."""

from __future__ import annotations

import decimal
import math
import pickle
from typing import Any

import lance
import lance.arrow
import lance.blob
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from lance_spark.errors import SchemaMismatchError, ValueConversionError
from lance_spark.types import ReadConverter, WriteConverter, check_writable, leaves, to_spark_schema
from tests.lance_spark.types.oracle import demanded_schema
from tests.strategies import facts

D = decimal.Decimal
LONG, DOUBLE, TEXT, BINARY = T.LongType(), T.DoubleType(), T.StringType(), T.BinaryType()
FLOATS = T.ArrayType(T.FloatType())


def write(
    source: T.DataType, values: list[Any], target: pa.DataType, *, nullable: bool = True
) -> pa.Array:
    """Converts one column like a DataFrame's writer; a good batch goes first, so rows are counted over batches."""
    schema = T.StructType([T.StructField("c", source)])
    converter = WriteConverter(schema, pa.schema([pa.field("c", target, nullable=nullable)]))
    sent = pa.schema([pa.field("c", arrow_of(source))])
    converter.convert(pa.record_batch([pa.array([], sent.field(0).type)], schema=sent))
    return converter.convert(
        pa.record_batch([pa.array(values, sent.field(0).type)], schema=sent)
    ).column(0)


def arrow_of(source: T.DataType) -> pa.DataType:
    """Returns the type of Spark's JVM for a column type."""
    return demanded_schema(T.StructType([T.StructField("c", source)])).field(0).type


POINT = T.StructType([T.StructField("x", LONG), T.StructField("y", T.ArrayType(LONG))])
ARROW_POINT = pa.struct([("x", pa.uint8()), ("y", pa.list_(pa.int8()))])

BAD_WRITES: list[tuple[T.DataType, list[Any], pa.DataType, str, int]] = [
    (LONG, [1, 300, 300], pa.uint8(), "c", 1),
    (LONG, [1, None, -1], pa.uint32(), "c", 2),
    (LONG, [2**32], pa.uint32(), "c", 0),
    (LONG, [127, 128], pa.int8(), "c", 1),
    (T.DecimalType(20, 0), [D(1), D(2**64)], pa.uint64(), "c", 1),
    (T.DecimalType(20, 0), [D(-1)], pa.uint64(), "c", 0),
    (T.DecimalType(20, 1), [D("1.5")], pa.int64(), "c", 0),
    (T.DecimalType(10, 3), [D("1.230"), D("1.234")], pa.decimal128(10, 2), "c", 1),
    (T.DecimalType(10, 2), [D("1000.00")], pa.decimal128(5, 2), "c", 0),
    (LONG, [1000], pa.decimal128(5, 2), "c", 0),
    (DOUBLE, [1.0, math.nan], pa.int64(), "c", 1),
    (DOUBLE, [math.inf], pa.int64(), "c", 0),
    (DOUBLE, [1.5], pa.int32(), "c", 0),
    (DOUBLE, [2.0**63], pa.int64(), "c", 0),
    (LONG, [2**53, 2**53 + 1], pa.float64(), "c", 1),
    (LONG, [2**24 + 1], pa.float32(), "c", 0),
    (DOUBLE, [1.0, 1e300], pa.float32(), "c", 1),
    (T.FloatType(), [65504.0, 65520.0], pa.float16(), "c", 1),
    (T.FloatType(), [1.0, 3.4e38], lance.arrow.BFloat16Type(), "c", 1),
    (BINARY, [b"abc", None, b"ab"], pa.binary(3), "c", 2),
    (T.TimestampType(), [0, 1_500_000], pa.timestamp("s", "UTC"), "c", 1),
    (T.TimestampNTZType(), [2**62], pa.timestamp("ns"), "c", 0),
    (T.DayTimeIntervalType(), [1], pa.duration("ms"), "c", 0),
    (T.TimeType(), [1_000], pa.time32("ms"), "c", 0),
    (FLOATS, [[1.0, 2.0], None, [1.0]], pa.list_(pa.float32(), 2), "c", 2),
    (FLOATS, [[1.0, 2.0], [1.0, 2.0, 3.0]], pa.list_(pa.float32(), 2), "c", 1),
    (FLOATS, [[1.0, 2.0], [1.0, 1e30]], pa.list_(pa.float16(), 2), "c.element", 1),
    (
        FLOATS,
        [[1.0, 2.0], None, [None, 1.0]],
        pa.list_(pa.field("item", pa.float32(), False), 2),
        "c.element",
        2,
    ),
    (T.ArrayType(LONG), [[], [1, 2], None, [3, 300]], pa.large_list(pa.uint8()), "c.element", 3),
    (POINT, [None, (1, [1]), (256, [])], ARROW_POINT, "c.x", 2),
    (POINT, [None, (1, [1]), (2, [1, 1000])], ARROW_POINT, "c.y.element", 2),
    (
        T.MapType(TEXT, LONG),
        [[], [("a", 1), ("b", 300)]],
        pa.map_(pa.string(), pa.uint8()),
        "c.value",
        1,
    ),
    (TEXT, [f"v{i}" for i in range(300)], pa.dictionary(pa.int8(), pa.string()), "c", 128),
    (TEXT, ["{}", None, "nonsense"], pa.json_(), "c", 2),
    (TEXT, ["1", ""], pa.json_(), "c", 1),
    (TEXT, ["[1e400]"], pa.json_(), "c", 0),
    (TEXT, ["[123456789012345678901]"], pa.json_(), "c", 0),
    (TEXT, ['{"a": 1, "a": 2}'], pa.json_(), "c", 0),
    (TEXT, ["[NaN]"], pa.json_(), "c", 0),
]


@pytest.mark.parametrize(
    ("source", "values", "target", "column", "row"), BAD_WRITES, ids=lambda v: str(v)[:40]
)
def test_a_value_that_does_not_fit_names_column_and_row(
    source: T.DataType, values: list[Any], target: pa.DataType, column: str, row: int
):
    with pytest.raises(ValueConversionError) as caught:
        write(source, values, target)
    assert (caught.value.column, caught.value.row) == (column, row)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


GOOD_WRITES: list[tuple[T.DataType, list[Any], pa.DataType, list[Any]]] = [
    (LONG, [0, 255, None], pa.uint8(), [0, 255, None]),
    (T.DecimalType(20, 0), [D(2**64 - 1), None], pa.uint64(), [2**64 - 1, None]),
    (T.DecimalType(10, 2), [D("5.00")], pa.int8(), [5]),
    (LONG, [-(10**18)], pa.decimal128(38, 18), [D(-(10**18))]),
    (DOUBLE, [-0.0, 3.0, None], pa.int32(), [0, 3, None]),
    (LONG, [2**53, -(2**53)], pa.float64(), [2.0**53, -(2.0**53)]),
    (DOUBLE, [0.1, math.inf, -0.0], pa.float32(), [float(np.float32(0.1)), math.inf, -0.0]),
    (
        T.FloatType(),
        [0.1, 65519.0, -math.inf],
        pa.float16(),
        [float(np.float16(0.1)), 65504.0, -math.inf],
    ),
    (DOUBLE, [0.1], pa.float16(), [float(np.float16(0.1))]),
    (T.FloatType(), [16_777_216.0], pa.float64(), [16_777_216.0]),
    (T.IntegerType(), [7], pa.int64(), [7]),
    (T.NullType(), [None, None], pa.list_(pa.float32(), 2), [None, None]),
    (T.NullType(), [None], pa.struct([("a", pa.json_())]), [None]),
    (TEXT, ["", None, "é" * 1000], pa.large_string(), ["", None, "é" * 1000]),
    (
        TEXT,
        ["a", None, "a", "b"],
        pa.dictionary(pa.uint8(), pa.large_string()),
        ["a", None, "a", "b"],
    ),
    (
        TEXT,
        [str(i) for i in range(256)],
        pa.dictionary(pa.uint8(), pa.string()),
        [str(i) for i in range(256)],
    ),
    (
        TEXT,
        ['{"a": [1, 2.5, "x"]}', None, "18446744073709551615"],
        pa.json_(),
        ['{"a": [1, 2.5, "x"]}', None, "18446744073709551615"],
    ),
    (BINARY, [b"abc", None], pa.binary(3), [b"abc", None]),
    (
        FLOATS,
        [None, [1.0, 2.0], None, [3.0, 4.0]],
        pa.list_(pa.float32(), 2),
        [None, [1.0, 2.0], None, [3.0, 4.0]],
    ),
    (FLOATS, [[None, 2.0]], pa.list_(pa.float32(), 2), [[None, 2.0]]),
    (FLOATS, [None, None], pa.list_(pa.field("item", pa.float16(), False), 3), [None, None]),
    (
        FLOATS,
        [None, [1.0, 2.0]],
        pa.list_(pa.field("item", pa.float32(), False), 2),
        [None, [1.0, 2.0]],
    ),
    (FLOATS, [], pa.list_(pa.float32(), 2), []),
    (T.DateType(), [0, None, -1], pa.date64(), [0, None, -86_400_000]),
    (T.TimestampType(), [1_000_000, None], pa.timestamp("s", "Asia/Kathmandu"), [1, None]),
]


@pytest.mark.parametrize(
    ("source", "values", "target", "expected"), GOOD_WRITES, ids=lambda v: str(v)[:40]
)
def test_a_value_that_fits_is_written_exactly_or_as_the_nearest_float(
    source: T.DataType, values: list[Any], target: pa.DataType, expected: list[Any]
):
    got = write(source, values, target)
    assert got.type == target
    got.validate(full=True)
    if all(value is None for value in expected):
        assert facts(got) == expected
        return
    storage = got.storage if isinstance(got, pa.ExtensionArray) else got
    moment = pa.types.is_temporal(target)
    expected_array = (
        pa.array(expected, pa.int64()).view(target) if moment else pa.array(expected, storage.type)
    )
    assert facts(got) == facts(expected_array)


def text_of(values: list[bytes | None], kind: pa.DataType = pa.string()) -> pa.Array:  # noqa: B008 - immutable
    """Returns text of any bytes, like Spark's JVM."""
    binary = pa.array(values, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(
        kind, len(binary), binary.buffers(), binary.null_count, binary.offset
    )


OTHER_BYTES = [b"a", None, b"", "é".encode(), b"\xc1"]
HALVES = ["é".encode()[:1], "é".encode()[1:]]
"""Two texts whose bytes together are one character."""

BAD_TEXTS: list[tuple[pa.Array, pa.DataType, str, int]] = [
    *((text_of(OTHER_BYTES, kind), kind, "c", 4) for kind in (pa.string(), pa.large_string())),
    *(
        (text_of(HALVES), kind, "c", 0)
        for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.utf8()))
    ),
    (text_of(OTHER_BYTES).slice(3), pa.string(), "c", 1),
    (text_of([b'"\xc1"']), pa.json_(), "c", 0),
    (text_of([b'"\xed\xa0\x80"']), pa.string(), "c", 0),
    (
        pa.DictionaryArray.from_arrays([1, 0, 2], text_of([b"a", b"b", b"\xff"])),
        pa.string(),
        "c",
        2,
    ),
    (
        pa.ListArray.from_arrays([0, 2, 2, 5], text_of(OTHER_BYTES)),
        pa.list_(pa.string()),
        "c.element",
        2,
    ),
    (
        pa.StructArray.from_arrays([text_of(OTHER_BYTES)], ["s"]),
        pa.struct([("s", pa.string())]),
        "c.s",
        4,
    ),
    (
        pa.MapArray.from_arrays([0, 1, 2], text_of([b"k", b"\x80"]), text_of([b"v", b"v"])),
        pa.map_(pa.string(), pa.string()),
        "c.key",
        1,
    ),
]


@pytest.mark.parametrize(
    ("values", "target", "column", "row"), BAD_TEXTS, ids=lambda v: str(v)[:40]
)
def test_text_of_other_bytes_than_utf8_names_column_and_row(
    values: pa.Array, target: pa.DataType, column: str, row: int
):
    batch = pa.record_batch([values], ["c"])
    with pytest.raises(ValueConversionError, match="not UTF-8") as caught:
        WriteConverter(batch.schema, pa.schema([pa.field("c", target)])).convert(batch)
    assert (caught.value.column, caught.value.row) == (column, row)


def test_bytes_that_a_null_hides_do_not_reach_lance(tmp_path):
    binary = pa.array([b"a", b"\xc1", "é".encode()])
    valid = pa.py_buffer(b"\x05")
    for kind in (pa.string(), pa.list_(pa.string())):
        hidden = pa.Array.from_buffers(pa.string(), 3, [valid, *binary.buffers()[1:]])
        if kind != pa.string():
            every = pa.Array.from_buffers(pa.string(), 3, binary.buffers())
            hidden = pa.Array.from_buffers(
                kind, 3, [valid, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]], children=[every]
            )
        batch = pa.record_batch([hidden], ["c"])
        converted = WriteConverter(batch.schema, pa.schema([pa.field("c", kind)])).convert(batch)
        for version in ("2.0", "2.1", "2.2"):
            table = lance.write_dataset(
                pa.table(converted), tmp_path, mode="overwrite", data_storage_version=version
            )
            assert table.to_table()["c"].to_pylist() == hidden.to_pylist()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_is_the_nearest_one(values: list[float]):
    fitting = [v for v in values if not math.isfinite(v) or abs(v) < leaves._BFLOAT16_FINITE_BELOW]
    got = write(T.FloatType(), fitting, lance.arrow.BFloat16Type()).storage.to_pylist()
    for value, bits in zip(fitting, got, strict=True):
        near = [
            np.frombuffer((n & 0xFFFF).to_bytes(2, "little").rjust(4, b"\0"), np.float32)[0]
            for n in _neighbours(bits)
        ]
        expected_value = np.frombuffer(b"\0\0" + bits, np.float32)[0]
        if math.isnan(value):
            assert math.isnan(expected_value)
        elif math.isfinite(value):
            distances = [abs(float(n) - value) for n in near if math.isfinite(n)]
            assert abs(float(expected_value) - value) <= min(distances, default=math.inf)
        else:
            assert expected_value == value


def test_no_nan_becomes_a_number_as_bfloat16():
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    converter = WriteConverter(
        T.StructType([T.StructField("c", T.FloatType())]),
        pa.schema([("c", lance.arrow.BFloat16Type())]),
    )
    got = converter.convert(pa.record_batch({"c": pa.array(bits.view(np.float32))})).column(0)
    assert all(math.isnan(value) for value in read(got).to_pylist())


def _neighbours(bits: bytes) -> list[int]:
    number = int.from_bytes(bits, "little")
    return [number - 1, number + 1]


def read(column: pa.Array, *, rows_before: int = 0) -> pa.Array:
    schema = pa.schema([pa.field("c", column.type)])
    converter = ReadConverter(schema, to_spark_schema(schema))
    if rows_before:
        converter.convert(pa.record_batch([pa.nulls(rows_before, column.type)], schema=schema))
    return converter.convert(pa.record_batch([column], schema=schema)).column(0)


BAD_READS: list[tuple[pa.Array, str, int]] = [
    (pa.array([0, None, 1001], pa.timestamp("ns")), "c", 2),
    (pa.array([1001], pa.timestamp("ns", "UTC")), "c", 0),
    (pa.array([0, 2**62], pa.timestamp("s")), "c", 1),
    (pa.array([-(2**62)], pa.timestamp("ms", "UTC")), "c", 0),
    (pa.array([1], pa.duration("ns")), "c", 0),
    (pa.array([2**62], pa.duration("s")), "c", 0),
    (pa.array([0, 86_400_001], pa.date64()), "c", 1),
    (pa.array([86_400_000 * 2**31], pa.int64()).view(pa.date64()), "c", 0),
    (pa.array([[], [0, 1]], pa.list_(pa.timestamp("ns"))), "c.element", 1),
    (pa.array([[0, 0], [0, 1]], pa.list_(pa.timestamp("ns"), 2)), "c.element", 1),
    (pa.array([{"a": 1000}, {"a": 1}], pa.struct([("a", pa.timestamp("ns"))])), "c.a", 1),
    (
        pa.array([[("k", 1000)], [("k", 0), ("l", 7)]], pa.map_(pa.string(), pa.timestamp("ns"))),
        "c.value",
        1,
    ),
    (pa.array([0, 1001], pa.time64("ns")), "c", 1),
]


@pytest.mark.parametrize(
    ("column", "path", "row"), BAD_READS, ids=lambda v: str(getattr(v, "type", v))
)
def test_a_stored_value_that_spark_cannot_hold_names_column_and_row(
    column: pa.Array, path: str, row: int
):
    with pytest.raises(ValueConversionError) as caught:
        read(column, rows_before=100)
    assert (caught.value.column, caught.value.row) == (path, 100 + row)


def test_row_addresses_are_bigints_and_one_beyond_them_is_refused():
    schema, target = (
        pa.schema([("_rowaddr", pa.uint64())]),
        T.StructType([T.StructField("_rowaddr", LONG)]),
    )
    converter = ReadConverter(schema, target)
    good = converter.convert(pa.record_batch([pa.array([2**63 - 1], pa.uint64())], schema=schema))
    assert good.column(0).to_pylist() == [2**63 - 1]
    with pytest.raises(ValueConversionError, match="_rowaddr") as caught:
        converter.convert(pa.record_batch([pa.array([0, 2**63], pa.uint64())], schema=schema))
    assert caught.value.row == 2


def test_values_under_nulls_are_never_errors():
    bad = pa.array([1, 1000, 7, 2000], pa.timestamp("ns"))
    mask = pa.array([True, False])
    struct = pa.StructArray.from_arrays([bad.slice(0, 2)], ["a"], mask=mask)
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array([1, 1, 1000, 2000], pa.timestamp("ns")), 2, mask=mask
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), bad, mask=mask)
    nested = pa.StructArray.from_arrays([lists], ["l"], mask=pa.array([False, False]))
    for column in (struct, vectors, lists, nested):
        for part in (column, column.slice(0, 1), column.slice(1)):
            got = read(part)
            got.validate(full=True)
            assert got.null_count == part.null_count


@pytest.mark.parametrize(
    ("source", "values", "target", "column"),
    [
        (LONG, [1, None], pa.int64(), "c"),
        (
            T.StructType([T.StructField("a", LONG)]),
            [(1,), (None,)],
            pa.struct([pa.field("a", pa.int64(), False)]),
            "c.a",
        ),
        (
            T.ArrayType(LONG),
            [[1], [2, None]],
            pa.list_(pa.field("item", pa.int64(), False)),
            "c.element",
        ),
        (
            T.MapType(TEXT, LONG),
            [[], [("k", None)]],
            pa.map_(pa.string(), pa.field("value", pa.int64(), False)),
            "c.value",
        ),
    ],
    ids=str,
)
def test_a_null_in_a_column_that_is_not_nullable_is_an_error(
    source: T.DataType, values: list[Any], target: pa.DataType, column: str
):
    check_writable(
        T.StructType([T.StructField("c", source)]),
        pa.schema([pa.field("c", target, nullable=False)]),
    )
    with pytest.raises(ValueConversionError, match="NULL") as caught:
        write(source, values, target, nullable=False)
    assert (caught.value.column, caught.value.row) == (column, 1)


def test_a_null_below_a_null_is_no_error():
    mask = pa.array([True, False])
    hidden = pa.StructArray.from_arrays([pa.array([None, 1], pa.int64())], ["a"], mask=mask)
    kind = pa.struct([pa.field("a", pa.int64(), False)])
    source = T.StructType([T.StructField("c", T.StructType([T.StructField("a", LONG)]))])
    got = (
        WriteConverter(source, pa.schema([("c", kind)]))
        .convert(pa.record_batch({"c": hidden}))
        .column(0)
    )
    assert got.to_pylist() == [None, {"a": 1}]
    assert lance_takes(got, kind) == [None, {"a": 1}]


@pytest.mark.parametrize("values", [[None, None], [None, [1.0, 2.0], None]], ids=str)
@pytest.mark.parametrize(
    "item",
    [pa.float32(), pa.float16(), pa.list_(pa.field("item", pa.float32(), False), 1)],
    ids=str,
)
def test_lance_takes_null_vectors_whose_elements_cannot_be_null(
    values: list[Any], item: pa.DataType
):
    kind = pa.list_(pa.field("item", item, False), 2)
    nested = pa.types.is_fixed_size_list(item)
    source = T.ArrayType(FLOATS) if nested else FLOATS
    rows = [None if v is None else [[x] for x in v] if nested else v for v in values]
    got = write(source, rows, kind)
    assert lance_takes(got, kind) == rows


def lance_takes(column: pa.Array, kind: pa.DataType) -> list[Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        lance.write_dataset(
            pa.Table.from_arrays([column], schema=pa.schema([("c", kind)])), f"{home}/t"
        )
        return list(lance.dataset(f"{home}/t").to_table()["c"].to_pylist())


def test_missing_columns_and_fields_become_null_and_order_is_the_tables():
    inner = pa.struct([("new", pa.list_(pa.float16(), 2)), ("b", pa.int8()), ("a", pa.int64())])
    target = pa.schema(
        [
            ("z", pa.dictionary(pa.int8(), pa.string())),
            ("s", inner),
            ("id", pa.int64()),
            ("j", pa.json_()),
        ]
    )
    source = T.StructType(
        [
            T.StructField("ID", LONG),
            T.StructField("s", T.StructType([T.StructField("a", LONG), T.StructField("B", LONG)])),
        ]
    )
    batch = pa.record_batch(
        {
            "ID": pa.array([1, 2]),
            "s": pa.array([(1, 2), None], pa.struct([("a", pa.int64()), ("B", pa.int64())])),
        }
    )
    got = WriteConverter(source, target).convert(batch)
    assert got.schema.equals(target, check_metadata=True)
    got.validate(full=True)
    assert got.column("id").to_pylist() == [1, 2]
    assert got.column("z").to_pylist() == [None, None]
    assert got.column("s").to_pylist() == [{"new": None, "b": 2, "a": 1}, None]


@pytest.mark.parametrize("kind", [lance.blob.BlobType(), pa.large_binary()], ids=str)
def test_bytes_are_written_into_blob_columns(kind: pa.DataType, tmp_path):
    field = pa.field(
        "c", kind, metadata={"lance-encoding:blob": "true"} if kind == pa.large_binary() else None
    )
    table = pa.schema([field])
    blob_column = write_field(field, [b"abc", None, b"", b"x" * 100_000])
    lance.write_dataset(
        pa.Table.from_batches([pa.record_batch([blob_column], schema=table)]), tmp_path / "t"
    )
    dataset = lance.dataset(tmp_path / "t")
    again = write_field(dataset.schema.field("c"), [b"more"])
    lance.write_dataset(
        pa.Table.from_batches([pa.record_batch([again], schema=dataset.schema)]),
        tmp_path / "t",
        mode="append",
    )
    stored = (
        lance.dataset(tmp_path / "t")
        .scanner(blob_handling="all_binary")
        .to_table()["c"]
        .to_pylist()
    )
    assert stored == [b"abc", None, b"", b"x" * 100_000, b"more"]


def write_field(field: pa.Field[Any], values: list[bytes | None]) -> pa.Array:
    converter = WriteConverter(T.StructType([T.StructField("c", BINARY)]), pa.schema([field]))
    return converter.convert(pa.record_batch({"c": pa.array(values, pa.binary())})).column(0)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_null_blob_has_a_null_descriptor(version: str, tmp_path):
    schema = pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    table = pa.Table.from_pylist([{"b": b"x"}, {"b": None}, {"b": b""}, {"b": None}], schema)
    lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    dataset = lance.dataset(tmp_path / "t")
    scanned = dataset.to_table()
    converter = ReadConverter(scanned.schema, to_spark_schema(dataset.schema))
    got = [
        row["b"] for batch in scanned.to_batches() for row in converter.convert(batch).to_pylist()
    ]
    assert [d and d["size"] for d in got] == [1, None, 0, None]


MISMATCHES: list[tuple[T.StructType, pa.Schema, list[str]]] = [
    (T.StructType([T.StructField("x", LONG)]), pa.schema([("y", pa.int64())]), ["x"]),
    (
        T.StructType([T.StructField("a", LONG)]),
        pa.schema([("a", pa.int64()), pa.field("b", pa.int8(), False)]),
        ["b"],
    ),
    (T.StructType([T.StructField("a", TEXT)]), pa.schema([("a", pa.int64())]), ["a"]),
    (T.StructType([T.StructField("a", BINARY)]), pa.schema([("a", pa.string())]), ["a"]),
    (
        T.StructType([T.StructField("a", T.TimestampType())]),
        pa.schema([("a", pa.timestamp("us"))]),
        ["a"],
    ),
    (
        T.StructType([T.StructField("a", T.TimestampNTZType())]),
        pa.schema([("a", pa.timestamp("us", "UTC"))]),
        ["a"],
    ),
    (
        T.StructType([T.StructField("a", T.NullType())]),
        pa.schema([pa.field("a", pa.int8(), False)]),
        ["a"],
    ),
    (
        T.StructType([T.StructField("a", T.ArrayType(TEXT))]),
        pa.schema([("a", pa.list_(pa.float32(), 2))]),
        ["a.element"],
    ),
    (T.StructType([T.StructField("a", DOUBLE)]), pa.schema([("a", pa.decimal128(10, 2))]), ["a"]),
    (
        T.StructType([T.StructField("a", LONG), T.StructField("a", LONG)]),
        pa.schema([("a", pa.int64())]),
        ["a"],
    ),
    (
        T.StructType([T.StructField("a", LONG), T.StructField("A", LONG)]),
        pa.schema([("a", pa.int64())]),
        ["A"],
    ),
    (T.StructType([]), pa.schema([("a", pa.int64())]), ["columns"]),
    (
        T.StructType([T.StructField("p", POINT)]),
        pa.schema([("p", pa.struct([("x", pa.int8())]))]),
        ["p.y"],
    ),
    (
        T.StructType([T.StructField("p", POINT), T.StructField("q", TEXT)]),
        pa.schema([("p", pa.struct([("x", pa.bool_()), ("y", pa.int8())])), ("q", pa.date32())]),
        ["p.x", "p.y", "q"],
    ),
]


@pytest.mark.parametrize(("source", "target", "paths"), MISMATCHES, ids=lambda v: str(v)[:60])
def test_a_dataframe_that_does_not_fit_is_refused_before_anything_is_written(
    source: T.StructType, target: pa.Schema, paths: list[str]
):
    with pytest.raises(SchemaMismatchError) as caught:
        check_writable(source, target)
    assert [path for path in paths if path not in str(caught.value)] == []
    with pytest.raises(SchemaMismatchError):
        WriteConverter(source, target)


def test_a_mismatch_shows_both_schemas_side_by_side():
    source = T.StructType(
        [T.StructField("id", LONG, False), T.StructField("p", POINT), T.StructField("x", TEXT)]
    )
    target = pa.schema(
        [
            pa.field("id", pa.uint8()),
            ("p", pa.struct([("x", pa.bool_()), ("y", pa.list_(pa.int8()))])),
        ]
    )
    with pytest.raises(SchemaMismatchError) as caught:
        check_writable(source, target)
    assert str(caught.value).splitlines()[1:] == [
        "  DataFrame                           | table",
        "  id: bigint not null                 | id: uint8",
        "! p: struct<x:bigint,y:array<bigint>> | p: struct<x: bool, y: list<item: int8>>",
        "!   x: bigint                         |   x: bool",
        "    y: array<bigint>                  |   y: list<item: int8>",
        "! x: string                           |",
    ]


def test_blob_descriptors_do_not_fit_a_blob_column():
    table = pa.schema([pa.field("b", lance.blob.BlobType())])
    with pytest.raises(SchemaMismatchError, match="blob_handling=bytes"):
        check_writable(to_spark_schema(table), table)
    check_writable(to_spark_schema(table, blob_handling="bytes"), table)


def test_a_table_whose_columns_changed_since_it_was_loaded_is_refused():
    loaded_schema = to_spark_schema(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    with pytest.raises(SchemaMismatchError, match="b: the table has no such column"):
        ReadConverter(pa.schema([("a", pa.int64())]), loaded_schema)
    with pytest.raises(SchemaMismatchError, match="a: string is not converted to int64"):
        ReadConverter(pa.schema([("a", pa.string()), ("b", pa.string())]), loaded_schema)
