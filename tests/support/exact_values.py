"""Fitting and unfitting values of a type, at every depth, for every way into a column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from udf_runtime.execute.conversion.leaf_values import is_missing

ZONE = dt.timezone(dt.timedelta(hours=2))
NANOSECOND = pd.Timestamp("2020-01-01 00:00:00.000000999")
NAN, INFINITY = float("nan"), float("inf")
FIRST, LAST = dt.datetime.min, dt.datetime.max  # noqa: DTZ901 - naive on purpose
MIDNIGHT = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - likewise
EVENING = MIDNIGHT.replace(hour=23, minute=59)

FITS: dict[pa.DataType, list[object]] = {
    pa.int8(): [5, 2.0, np.int64(3), Decimal(4), Fraction(6, 2), np.float32(7)],
    pa.uint64(): [2**64 - 1, 2.0, np.uint64(2**64 - 1)],
    pa.float16(): [1.5, 2048, np.float32(0.5), NAN, INFINITY, -INFINITY, 65519.0],
    pa.float32(): [1.5, 2**24, np.float64(0.5), NAN, INFINITY, -INFINITY, 3.4e38],
    pa.float64(): [1e300, 2**53, NAN, INFINITY],
    pa.decimal128(5, 2): [Decimal("1.50"), Decimal("2.500"), 7],
    pa.string(): ["", "ж"],
    pa.binary(2): [b"ab"],
    pa.bool_(): [True, False],
    pa.date32(): [dt.date.min, dt.date.max, MIDNIGHT, pd.Timestamp("2020-01-01"), np.datetime64("2020-01-01")],
    pa.date64(): [dt.date.min, dt.date.max, MIDNIGHT],
    pa.timestamp("s"): [FIRST, LAST.replace(microsecond=0), np.datetime64("2020-01-01T00:00", "m")],
    pa.timestamp("ms"): [FIRST, LAST.replace(microsecond=999_000)],
    pa.timestamp("us"): [FIRST, LAST, pd.Timestamp("2020-01-01 00:00:00.000001"), pd.Timestamp("2020-01-01").as_unit("s")],
    pa.timestamp("us", "UTC"): [FIRST.replace(tzinfo=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=ZONE), LAST.replace(tzinfo=dt.timezone(-dt.timedelta(hours=14)))],
    pa.timestamp("ns"): [NANOSECOND, MIDNIGHT, np.datetime64("2020-01-01T00:00:00.000000999")],
    pa.time32("s"): [dt.time(1, 2, 3), dt.time.min],
    pa.time64("us"): [dt.time.max],
    pa.duration("s"): [dt.timedelta(days=-1, seconds=1), np.timedelta64(5, "m"), pd.Timedelta("5min").as_unit("s")],
    pa.duration("us"): [dt.timedelta(microseconds=1), pd.Timedelta(1000, "ns")],
    pa.duration("ns"): [pd.Timedelta(999, "ns")],
    pa.dictionary(pa.int8(), pa.int16()): [5, 2.0],
}  # fmt: skip

MISFITS: dict[pa.DataType, list[object]] = {
    pa.int8(): [1.5, 300, NAN, INFINITY, "1", True, np.True_, Decimal("1.5"), Fraction(3, 2), np.float32(1.5), np.timedelta64(9, "s")],
    pa.uint64(): [-1, 2**64, 0.5],
    pa.float16(): [1e300, 65520.0, 2049, "1", True, np.False_, np.float32(1e6)],
    pa.float32(): [False, np.True_, 1e300, -1e300, 2**24 + 1, np.float64(1e300)],
    pa.float64(): [2**53 + 1, "1", True, np.False_],
    pa.decimal128(5, 2): [Decimal("1.555"), Decimal("1e9"), 1.5, Decimal("NaN"), 10**5, True, np.True_],
    pa.string(): [1, b"\xff"],
    pa.binary(2): [b"abc"],
    pa.bool_(): [1, "true"],
    pa.date32(): [EVENING, dt.datetime(2020, 1, 1, tzinfo=ZONE), NANOSECOND, 1.5, pd.NaT,
                  np.datetime64("2020-01-01T05:00")],
    pa.date64(): [EVENING, 5],
    pa.timestamp("s"): [MIDNIGHT.replace(microsecond=999_999), LAST, NANOSECOND, 1.5, dt.date(2020, 1, 1),
                        np.datetime64("2020-01-01T00:00:00.5")],
    pa.timestamp("ms"): [LAST],
    pa.timestamp("us"): [NANOSECOND, "2020-01-01", np.True_],
    pa.timestamp("us", "UTC"): [NANOSECOND, dt.time(1)],
    pa.timestamp("ns"): [FIRST, LAST, np.datetime64("99999-01-01")],
    pa.time32("s"): [dt.time(1, 2, 3, 1), dt.time(1, tzinfo=ZONE), 86_400, 1.5],
    pa.time64("us"): [dt.time(1, tzinfo=ZONE), -1],
    pa.duration("s"): [dt.timedelta(milliseconds=999), np.timedelta64(999, "ms")],
    pa.duration("us"): [pd.Timedelta(999, "ns"), dt.timedelta.max],
    pa.duration("ns"): [dt.timedelta.max],
    pa.dictionary(pa.int8(), pa.int16()): [1.5, 2**20],
}  # fmt: skip
"""Values that a column of the type must refuse."""

DEPTHS: dict[
    str,
    tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], object], Callable[[Any], pa.Array]],
] = {
    "list": (pa.list_, lambda v: [v], lambda array: array.flatten()),
    "large list": (pa.large_list, lambda v: (v,), lambda array: array.flatten()),
    "vector": (lambda kind: pa.list_(kind, 1), lambda v: [v], lambda array: array.flatten()),
    "struct": (
        lambda kind: pa.struct({"f": kind}),
        lambda v: {"f": v},
        lambda array: array.field(0),
    ),
    "tuple": (
        lambda kind: pa.struct({"f": kind, "g": pa.int8()}),
        lambda v: (v, 1),
        lambda array: array.field(0),
    ),
    "map value": (
        lambda kind: pa.map_(pa.string(), kind),
        lambda v: {"k": v},
        lambda array: array.items,
    ),
    "map pair": (
        lambda kind: pa.map_(pa.string(), kind),
        lambda v: [("k", v)],
        lambda array: array.items,
    ),
    "map key": (lambda kind: pa.map_(kind, pa.int8()), lambda v: {v: 1}, lambda array: array.keys),
}
"""For each nesting: the type, a value, and the way back to the inner values."""

WIDE: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1.0, 1e300]), pa.float32()),
    (pa.array([1.0, -1e300]), pa.float16()),
    (pa.array([1.0, 1e6], pa.float32()), pa.float16()),
    (pa.array([1, 2049]), pa.float16()),
    (pa.array([1, 2**24 + 1]), pa.float32()),
    (pa.array([1.0, 1.5]), pa.int64()),
    (pa.array([1, 300]), pa.int8()),
    (pa.array([0.5, 0.25]), pa.decimal128(5, 1)),
    (pa.array([1, 10**6]), pa.decimal128(5, 1)),
    (pa.array([Decimal("1.50"), Decimal("1.55")]), pa.decimal128(5, 1)),
    (pa.array([Decimal(1), Decimal(10) ** 37], pa.decimal128(38, 0)), pa.float16()),
    (pa.array([1000, 999], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([1000, 999], pa.duration("ns")), pa.duration("us")),
    (pa.array([1000, 999], pa.time64("ns")), pa.time64("us")),
    (pa.array([0, 86_400_000], pa.int64()).view(pa.timestamp("s")), pa.timestamp("ns")),
    (pa.array(["ab", "abc"]).cast(pa.binary()), pa.binary(2)),
    (pa.array(["a", "b"]).dictionary_encode(), pa.string()),
    (pa.array([1.0, 1e300]).dictionary_encode(), pa.float32()),
    (pa.array([1.0, 1e300]), pa.dictionary(pa.int8(), pa.float32())),
]
"""Arrays of two values, and a narrower type that fits only the first value (in one case both values)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedValue:
    """A value within lists, structs and maps; `inner` is the value for a column of `inner_type`."""

    data_type: pa.DataType
    value: object
    inner_type: pa.DataType
    inner: object
    get: tuple[Callable[[Any], pa.Array], ...]


@st.composite
def cases(draw: st.DrawFn, table: dict[pa.DataType, list[object]]) -> NestedValue:
    kind = inner_type = draw(st.sampled_from(sorted(table, key=str)))
    value = inner = draw(st.sampled_from(table[kind]))
    get: list[Callable[[Any], pa.Array]] = []
    for name in draw(st.lists(st.sampled_from(sorted(DEPTHS)), max_size=3)):
        if name == "map key" and (get or pa.types.is_dictionary(kind) or is_missing(value)):
            continue
        wrap, put, out = DEPTHS[name]
        kind, value, get = wrap(kind), put(value), [out, *get]
    return NestedValue(
        data_type=kind, value=value, inner_type=inner_type, inner=inner, get=tuple(get)
    )


def expected(case: NestedValue, *, nan_is_null: bool) -> pa.Array:
    """Returns a fitting value as PyArrow converts its plainest form."""
    plain = case.inner
    if isinstance(plain, np.datetime64):
        plain = pd.Timestamp(plain)
    elif isinstance(plain, (np.timedelta64, pd.Timedelta)):
        plain = pd.Timedelta(plain).as_unit("ns")
    elif isinstance(plain, (Fraction, np.floating)):
        plain = float(plain)
    return pa.array([None if nan_is_null and is_missing(plain) else plain], case.inner_type)
