"""Values of two versions are compared in Arrow as in Python, except that NULL equals NULL and NaN equals NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.rows.row_addresses import equal_values

INTEGERS = st.sampled_from([0, 1, None])
FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), None])
HALVES = st.sampled_from(
    [np.float16(0), np.float16(-0.0), np.float16(1.5), np.float16("nan"), None]
)
TEXTS = st.sampled_from(["a", "b", None])
STRUCTS = st.none() | st.fixed_dictionaries(
    {"a": FLOATS, "b": st.none() | st.lists(FLOATS, max_size=2)}
)
STRUCT = pa.struct([("a", pa.float32()), ("b", pa.list_(pa.float64()))])


def lists_of(values: st.SearchStrategy[Any], *, size: int = 0) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(values, min_size=size, max_size=size or 2)


TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.int64(): INTEGERS,
    pa.float16(): HALVES,
    pa.float32(): FLOATS,
    pa.string(): TEXTS,
    pa.dictionary(pa.int8(), pa.string()): TEXTS,
    STRUCT: STRUCTS,
    pa.list_(pa.float16()): lists_of(HALVES),
    pa.list_(pa.float32(), 2): lists_of(FLOATS, size=2),
    pa.large_list(pa.string()): lists_of(TEXTS),
    pa.list_(pa.list_(pa.int64())): lists_of(lists_of(INTEGERS)),
    pa.list_(STRUCT): lists_of(STRUCTS),
    pa.map_(pa.string(), pa.int64()): lists_of(st.tuples(st.sampled_from("ab"), INTEGERS)),
}


def is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return all(is_equal(first[name], second[name]) for name in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(is_equal, first, second))
    if first is None or second is None:
        return first is second
    return bool(first == second) or (is_nan(first) and is_nan(second))


def is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_values_of_each_type_are_equal_where_python_says_so(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(TYPES)), "type")
    left_values = data.draw(st.lists(TYPES[kind], max_size=5))
    right_values = [
        value if data.draw(st.booleans()) else data.draw(TYPES[kind]) for value in left_values
    ]
    first = data.draw(st.integers(0, len(left_values)))
    left_array, right_array = (
        pa.array(values, kind)[first:] for values in (left_values, right_values)
    )
    assert equal_values(left_array, right_array).tolist() == list(
        map(is_equal, left_values[first:], right_values[first:])
    )
