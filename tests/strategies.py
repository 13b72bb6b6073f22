"""Hypothesis strategies for Arrow types, arrays, schemas and tables that Lance can store, and a comparison of values.

The values are hard cases: NULL at every depth, NaN and -0.0, empty and long strings, text outside ASCII, the first and
last moments, and the longest decimals. By default Python and Spark can represent them (`calendar`), and Spark has an
exact counterpart (`fitting`).
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Kinds: TypeAlias = Literal["spark", "lance"]
"""`spark`: types of Spark, which Parquet and Lance read back unchanged; `lance`: all types of Lance."""

SPARK_LEAVES: tuple[pa.DataType, ...] = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal128(18, 0),
    pa.decimal128(38, 0),
    pa.decimal128(38, 38),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
)
LANCE_LEAVES: tuple[pa.DataType, ...] = (
    *SPARK_LEAVES,
    pa.null(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float16(),
    pa.decimal128(10, -3),
    pa.decimal128(3, 5),
    pa.decimal256(38, 10),
    pa.decimal256(12, 2),
    pa.large_string(),
    pa.large_binary(),
    pa.binary(1),
    pa.binary(5),
    pa.date64(),
    *(
        pa.timestamp(unit, zone)
        for unit in ("s", "ms", "ns")
        for zone in (None, "UTC", "Asia/Kathmandu")
    ),
    pa.timestamp("us", "+05:45"),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
    pa.dictionary(pa.uint16(), pa.int64()),
)
VECTOR_ITEMS: tuple[pa.DataType, ...] = (
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.int8(),
    pa.uint8(),
    pa.int64(),
    pa.bool_(),
)
"""Element types of fixed-size lists. Lance requires elements of a fixed width."""

_DAY_MS = 86_400_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, in seconds since 1970."""
_FIRST_DAY, _LAST_DAY = _FIRST_SECOND // 86_400, _LAST_SECOND // 86_400
_EXACT = decimal.Context(prec=100)


def leaf_types(kinds: Kinds = "lance") -> st.SearchStrategy[pa.DataType]:
    """Types without nesting."""
    return st.sampled_from(SPARK_LEAVES if kinds == "spark" else LANCE_LEAVES)


def arrow_types(kinds: Kinds = "lance", *, most_leaves: int = 5) -> st.SearchStrategy[pa.DataType]:
    """Types of any depth."""
    return st.recursive(
        leaf_types(kinds), lambda inner: _nested_types(inner, kinds), max_leaves=most_leaves
    )


def _nested_types(
    inner: st.SearchStrategy[pa.DataType], kinds: Kinds
) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(
        st.sampled_from(("a", "b", "C", "ж", "x y")), min_size=1, max_size=3, unique=True
    )
    structs = names.flatmap(
        lambda chosen: st.tuples(*(_fields(name, inner, kinds) for name in chosen)).map(
            lambda fields: pa.struct(list(fields))
        )
    )
    item = _fields("item", inner, kinds)
    keys = st.sampled_from((pa.string(), pa.int32(), pa.date32()))
    maps = st.tuples(keys, _fields("value", inner, kinds)).map(lambda kv: pa.map_(kv[0], kv[1]))
    lists = item.map(pa.list_)
    if kinds == "spark":
        return st.one_of(structs, lists, maps)
    vectors = st.tuples(st.sampled_from(VECTOR_ITEMS), st.booleans(), st.integers(1, 5)).map(
        lambda t: pa.list_(pa.field("item", t[0], t[1]), t[2])
    )
    return st.one_of(structs, lists, item.map(pa.large_list), maps, vectors)


def _fields(
    name: str, types: st.SearchStrategy[pa.DataType], kinds: Kinds
) -> st.SearchStrategy[pa.Field[Any]]:
    required = st.just(False) if kinds == "spark" else st.integers(0, 4).map(lambda n: n == 0)
    return st.tuples(types, required).map(
        lambda t: pa.field(name, t[0], nullable=pa.types.is_null(t[0]) or not t[1])
    )


def schemas(
    kinds: Kinds = "lance",
    *,
    most_columns: int = 5,
    types: st.SearchStrategy[pa.DataType] | None = None,
) -> st.SearchStrategy[pa.Schema]:
    """Schemas of at most `most_columns` columns `c0`, `c1`, ..., nullable or (with kinds `lance`) not."""
    of = arrow_types(kinds) if types is None else types
    return st.integers(1, most_columns).flatmap(
        lambda n: st.tuples(*(_fields(f"c{i}", of, kinds) for i in range(n))).map(
            lambda fields: pa.schema(list(fields))
        )
    )


def tables(
    schema: st.SearchStrategy[pa.Schema] | pa.Schema | None = None,
    *,
    fewest_rows: int = 0,
    most_rows: int = 12,
    calendar: bool = True,
    fitting: bool = True,
) -> st.SearchStrategy[pa.Table]:
    """Tables with a single chunk.

    Args:
        schema: The schema, or a strategy of schemas; by default any schema that Lance can store.
        fewest_rows: Fewest rows.
        most_rows: Most rows.
        calendar: Only moments of the years 1 to 9999, as in Python's datetime.
        fitting: Only values with an exact counterpart in Spark: whole microseconds and days, no overflow.
    """

    @st.composite
    def build(draw: st.DrawFn) -> pa.Table:
        schema_drawn = (
            schema
            if isinstance(schema, pa.Schema)
            else draw(schemas() if schema is None else schema)
        )
        rows = draw(st.integers(fewest_rows, most_rows))
        columns = [
            _draw_array(draw, field, rows, calendar=calendar, fitting=fitting)
            for field in schema_drawn
        ]
        return pa.Table.from_arrays(columns, schema=schema_drawn)

    return build()


def arrays(
    field: pa.Field[Any], length: int, *, calendar: bool = True, fitting: bool = True
) -> st.SearchStrategy[pa.Array[Any]]:
    """Arrays of a field's type; with NULLs if the field is nullable."""

    @st.composite
    def build(draw: st.DrawFn) -> pa.Array[Any]:
        return _draw_array(draw, field, length, calendar=calendar, fitting=fitting)

    return build()


def _draw_array(draw: st.DrawFn, field: Any, length: int, *, calendar: bool, fitting: bool) -> Any:
    valid = draw(_validity(length)) if field.nullable else np.ones(length, bool)
    return _array(draw, field.type, valid, calendar=calendar, fitting=fitting)


def _validity(length: int) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    some = st.lists(st.booleans(), min_size=length, max_size=length).map(
        lambda bits: np.array(bits, bool)
    )
    return st.one_of(st.just(np.ones(length, bool)), some)


def _array(
    draw: st.DrawFn, kind: Any, valid: np.ndarray[Any, Any], *, calendar: bool, fitting: bool
) -> Any:
    """Draws one array. Values under NULLs are drawn too, because Arrow allows any bytes in these slots."""
    n = len(valid)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())

    def child(field: Any, length: int) -> Any:
        return _draw_array(draw, field, length, calendar=calendar, fitting=fitting)

    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(kind, n, [bitmap], children=[child(f, n) for f in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(
            kind, n, [bitmap], children=[child(kind.value_field, n * kind.list_size)]
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        lengths = [draw(st.integers(0, 3)) if ok else 0 for ok in valid]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(
            np.int64 if pa.types.is_large_list(kind) else np.int32
        )
        total = int(offsets[-1])
        if pa.types.is_map(kind):
            keys = [key for count in lengths for key in draw(_keys(kind.key_type, count))]
            entries = pa.struct([kind.key_field, kind.item_field])
            item = child(kind.item_field, total)
            inner = pa.Array.from_buffers(
                entries, total, [None], children=[pa.array(keys, kind.key_type), item]
            )
        else:
            inner = child(kind.value_field, total)
        return pa.Array.from_buffers(
            kind, n, [bitmap, pa.py_buffer(offsets.tobytes())], children=[inner]
        )
    if pa.types.is_null(kind):
        return pa.nulls(n)
    if pa.types.is_dictionary(kind):
        plain = _array(draw, kind.value_type, valid, calendar=calendar, fitting=fitting)
        return plain.dictionary_encode().cast(kind)
    values = draw(
        st.lists(leaf_values(kind, calendar=calendar, fitting=fitting), min_size=n, max_size=n)
    )
    return _leaf_array(kind, [v if ok else None for v, ok in zip(values, valid, strict=True)])


def _keys(kind: Any, count: int) -> st.SearchStrategy[list[Any]]:
    values = texts() if pa.types.is_string(kind) else st.integers(-1000, 1000)
    return st.lists(values, min_size=count, max_size=count, unique=True)


def _leaf_array(kind: Any, values: Sequence[Any]) -> Any:
    if pa.types.is_temporal(kind):
        # By way of integers: Python has no objects for many of these moments.
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pa.types.is_decimal(kind):
        # By way of bytes: PyArrow's conversion refuses a scale above the precision.
        width = kind.byte_width
        unscaled = [0 if v is None else int(v.scaleb(kind.scale, _EXACT)) for v in values]
        data = pa.py_buffer(b"".join(n.to_bytes(width, "little", signed=True) for n in unscaled))
        bitmap = pa.py_buffer(
            np.packbits(
                np.array([v is not None for v in values], bool), bitorder="little"
            ).tobytes()
        )
        return pa.Array.from_buffers(kind, len(values), [bitmap, data])
    if pa.types.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    return pa.array(values, kind)


def texts() -> st.SearchStrategy[str]:
    """Text: empty, long, outside ASCII, and text that breaks SQL or file names."""
    odd = (
        "",
        " ",
        "\x00",
        "'",
        '"',
        "\\",
        "%",
        "_",
        "a%_\\b",
        "ß",
        "Straße",
        "İ",
        "日本語",
        "🦎",
        "e\u0301",
        "\ufeff",
        "NULL",
        "x" * 3000,
    )
    return st.one_of(st.sampled_from(odd), st.text(max_size=8))


def leaf_values(
    kind: Any, *, calendar: bool = True, fitting: bool = True
) -> st.SearchStrategy[Any]:
    """Values of a type without nesting, as Python objects; moments and durations as integers in the type's unit."""
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        high = low + 2**kind.bit_width - 1
        return _with_edges(low, high)
    if pa.types.is_floating(kind):
        width: Any = kind.bit_width
        return st.one_of(
            st.sampled_from((0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf)),
            st.floats(width=width),
        )
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return _with_edges(-most, most).map(
            lambda n: decimal.Decimal(n).scaleb(-kind.scale, _EXACT)
        )
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts()
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return st.one_of(st.sampled_from((b"", b"\x00", b"\xff" * 2000)), st.binary(max_size=8))
    return _moments(kind, calendar=calendar, fitting=fitting)


def _moments(kind: Any, *, calendar: bool, fitting: bool) -> st.SearchStrategy[int]:
    if pa.types.is_date32(kind):
        return _with_edges(_FIRST_DAY, _LAST_DAY) if calendar else _with_edges(-(2**31), 2**31 - 1)
    if pa.types.is_date64(kind):
        low, high = (_FIRST_DAY, _LAST_DAY) if calendar else (-(2**31), 2**31 - 1)
        return (
            _with_edges(low, high).map(lambda day: day * _DAY_MS)
            if fitting
            else _with_edges(-(2**63), 2**63 - 1)
        )
    per_second = _PER_SECOND[kind.unit]
    if pa.types.is_time(kind):
        times = _with_edges(0, 86_400 * per_second - 1)
        return times.map(lambda n: n // 1000 * 1000) if fitting and kind.unit == "ns" else times
    low, high = -(2**63), 2**63 - 1
    if calendar:
        first = _FIRST_SECOND if pa.types.is_timestamp(kind) else -86_400 * 999_999_999
        last = _LAST_SECOND if pa.types.is_timestamp(kind) else 86_400 * 999_999_999
        low, high = max(low, first * per_second), min(high, last * per_second)
    if fitting and per_second < 10**6:
        low, high = (
            max(low, -(2**63 * per_second // 10**6) + 1),
            min(high, 2**63 * per_second // 10**6 - 1),
        )
    if fitting and kind.unit == "ns":
        return _with_edges(-(-low // 1000), high // 1000).map(lambda n: n * 1000)
    return _with_edges(low, high)


def _with_edges(low: int, high: int) -> st.SearchStrategy[int]:
    edges = sorted(
        {
            low,
            low + 1,
            max(low, min(high, 0)),
            max(low, min(high, -1)),
            max(low, min(high, 1)),
            high - 1,
            high,
        }
    )
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


def facts(array: Any) -> list[Any]:
    """Returns an array's values as plain comparable objects, regardless of the names of nested fields.

    All NaNs are equal, and -0.0 differs from 0.0. Moments and durations become integers in the type's unit. Values
    under NULLs are dropped.
    """
    if isinstance(array, pa.ChunkedArray):
        return [fact for chunk in array.chunks for fact in facts(chunk)]
    if isinstance(array, pa.ExtensionArray):
        return facts(array.storage)
    kind: Any = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_dictionary(kind):
        return facts(array.dictionary_decode())
    if pa.types.is_struct(kind):
        rows = [facts(array.field(i)) for i in range(kind.num_fields)]
        return [tuple(column[i] for column in rows) if ok else None for i, ok in enumerate(valid)]
    if (
        pa.types.is_map(kind)
        or pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    ):
        return [facts(array[i].values) if ok else None for i, ok in enumerate(valid)]
    return [_fact(kind)(value) for value in _plain(array).to_pylist()]


def _plain(array: Any) -> Any:
    if pa.types.is_temporal(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array


def _fact(kind: Any) -> Callable[[Any], Any]:
    if pa.types.is_floating(kind):
        return lambda v: (
            None if v is None else "NaN" if math.isnan(v) else struct.pack(">d", float(v))
        )
    return lambda v: v
