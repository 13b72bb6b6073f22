from __future__ import annotations

import copy
import threading
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime.fingerprint_sources import digest, notebook
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.fingerprint import fingerprint

BASE = """
import functools
FACTOR = 2
WORDS = frozenset({"a", "b"})
class Scale:
    by = 3
    def apply(self, x): return x * self.by
def deep(x): return x + 1
def helper(x): return deep(x)
@functools.lru_cache
def cached(x): return x - 1
def make(n):
    def f(x, y=5, *, z=6):
        \"\"\"Scales.\"\"\"
        return helper(x) * FACTOR + n + y + z + (x in {"p", "q"}) + (x in WORDS) + Scale().apply(x) + cached(x)
    return f
f = make(7)
"""

CHANGES = [
    ("+ n + y", "- n + y"),  # the body
    ('{"p", "q"}', '{"p", "r"}'),  # a constant of the body
    ("make(7)", "make(8)"),  # the closure
    ("y=5", "y=4"),
    ("z=6", "z=7"),
    ("FACTOR = 2", "FACTOR = 2.0"),
    ('{"a", "b"})', '{"a", "c"})'),
    ("deep(x): return x + 1", "deep(x): return x + 2"),  # an indirect call
    ("by = 3", "by = 4"),
    ("return x * self.by", "return x / self.by"),
    ("cached(x): return x - 1", "cached(x): return x - 2"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_change_of_what_is_computed_changes_the_digest(old: str, new: str):
    assert BASE.count(old) == 1
    assert digest(BASE.replace(old, new)) != digest(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Scales.", "Scales a value."),
        ("FACTOR = 2", "\n\n# a comment\nFACTOR = 2\nUNUSED = 3"),
        ("import functools", "from __future__ import annotations\nimport functools"),
        ('{"p", "q"}', '{"q", "p"}'),
        ("def make", "def unused(x): return x\ndef make"),
    ],
)
def test_what_changes_no_result_changes_no_digest(old: str, new: str):
    assert old in BASE
    assert digest(BASE.replace(old, new)) == digest(BASE)


def test_running_a_function_changes_no_digest():
    source = """
    import functools
    model = None
    @functools.lru_cache
    def cached(x): return x
    def f(x):
        global model
        if model is None:
            model = object()
        return cached(x)
    """
    scope = notebook(source)
    before = fingerprint(scope["f"])
    for x in range(200):  # enough for the interpreter to specialise the bytecode
        scope["f"](x)  # type: ignore[operator]
    assert fingerprint(scope["f"]) == before == digest(source)


def test_a_helper_that_is_defined_later_counts_from_then_on():
    scope = notebook("def f(x): return later(x)")
    without = fingerprint(scope["f"])
    exec("def later(x): return x", scope)
    assert fingerprint(scope["f"]) != without


@pytest.mark.parametrize(
    "make",
    [
        lambda n: np.array([0] * 3000 + [n] + [0] * 3000),
        lambda n: np.array(["a", n], dtype=object),
        np.float32,
        np.array,
        lambda n: pa.array([0] * 3000 + [n] + [0] * 3000),
        lambda n: pa.chunked_array([[1], [n, None]]),
        lambda n: pa.table({"a": ["x", str(n)]}),
        lambda n: pa.record_batch({"a": [[1], [n]]}),
        lambda n: pa.array([{"a": 1}, {"a": n}]),
        lambda n: pa.array([{"a": 1}, {"a": n}], pa.map_(pa.string(), pa.int64())),
        lambda n: pa.array([[1, 2], [n, 4]], pa.list_(pa.int8(), 2)),
        lambda n: pa.array([b"x", bytes([n])]).dictionary_encode(),
        lambda n: pa.array([True, n == 1, None]),
        pa.scalar,
        lambda n: pa.schema({"a": pa.int8()}, metadata={"n": str(n)}),
        lambda n: pa.list_(pa.int8(), n),
        lambda n: pd.DataFrame({"a": range(1000), "b": [0] * 999 + [n]}),
        lambda n: pd.Series(["x", str(n)]),
        lambda n: pd.Index([0, n]),
        lambda n: {"a": [1, {2, n}]},
        lambda n: types.SimpleNamespace(inner=(n,)),
    ],
)
def test_data_counts_with_its_full_content(make):
    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))


ARROW = st.sampled_from(
    [
        pa.array([1, None, 3]), pa.array(["a", None, "bc"]), pa.array(["a", None], pa.string_view()), pa.array([True, None]),
        pa.array([[1, None], None, []]), pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.array([{"a": 1, "b": "x"}, None]),
        pa.array([{"k": 1}, None], pa.map_(pa.string(), pa.int64())), pa.array(["a", None]).dictionary_encode(), pa.nulls(2),
        pa.array([[1], None], pa.list_view(pa.int8())), pa.RunEndEncodedArray.from_arrays([2, 3], [1, None]),
        pa.array([b"ab", None], pa.binary(2)), pa.array([1.5, None], pa.float16()), pa.array([0, None], pa.timestamp("ns")),
    ]
)  # fmt: skip


@given(ARROW, st.integers(0, 2), st.integers(0, 2))
def test_the_layout_of_arrow_data_does_not_count(array: pa.Array, before: int, after: int):
    parts = [array.slice(0, 1)] * before + [array] + [array.slice(0, 1)] * after
    shifted = pa.concat_arrays(parts).slice(before, len(array))
    assert fingerprint(shifted) == fingerprint(array)
    assert fingerprint(shifted.slice(1)) != fingerprint(array)


def test_values_under_nulls_do_not_count():
    first_array, second_array = (
        pa.Array.from_buffers(
            pa.int8(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(bytes([5, hidden]))]
        )
        for hidden in (7, 8)
    )
    assert first_array == second_array
    assert fingerprint(first_array) == fingerprint(second_array)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def canonical_text(value: object) -> str:
    """Returns a text that is equal for two plain values exactly if they are equal, with the same order."""
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{key!r}:{canonical_text(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + "(" + ",".join(map(canonical_text, value)) + ")"
    return repr(value)


@given(PLAIN, PLAIN)
@settings(max_examples=200)
def test_plain_values_have_one_digest_exactly_if_they_are_the_same(first: object, second: object):
    assert fingerprint(copy.deepcopy(first)) == fingerprint(first)
    assert (fingerprint(first) == fingerprint(second)) == (
        canonical_text(first) == canonical_text(second)
    )


@pytest.mark.parametrize(
    ("first_value", "second_value"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("a", b"a"),
        ([1], (1,)),
        ({1}, frozenset({1})),
        (["ab"], ["a", "b"]),
        ([[1], 2], [[1, 2]]),
        ("1", 1),
    ],
)
def test_values_that_only_look_alike_have_different_digests(
    first_value: object, second_value: object
):
    assert fingerprint(first_value) != fingerprint(second_value)


def test_things_that_contain_themselves_end():
    loop: list[object] = [1]
    loop.append(loop)
    second_list: list[object] = [2]
    second_list.append(second_list)
    assert fingerprint(loop) == fingerprint(copy.deepcopy(loop)) != fingerprint(second_list)


def test_a_set_that_leads_back_to_itself_ends():
    source = "WORDS = set()\ndef f(x): return g in WORDS\ndef g(x): return f(x), WORDS, {}\nWORDS.add(g)\n"
    assert digest(source.format(1)) == digest(source.format(1)) != digest(source.format(2))


@pytest.mark.parametrize(
    "value", ["threading.Lock()", "open('/dev/null')", "(i for i in range(3))", "threading.local()"]
)
def test_objects_without_content_are_an_error_that_asks_for_a_version(value: str):
    source = f"import threading\nresource = {value}\ndef f(x): return helper(x)\ndef helper(x): return resource\n"
    scope = notebook(source)
    with pytest.raises(UdfDefinitionError, match=r"global 'resource'.*version=") as caught:
        fingerprint(scope["f"], what="UDF 'f'")
    if hasattr(scope["resource"], "close"):
        scope["resource"].close()
    assert "UDF 'f': function f > global 'helper' > function helper" in str(caught.value)


def test_a_lock_that_nothing_uses_does_no_harm():
    assert digest("def f(x): return x", lock=threading.Lock())


def test_a_function_of_a_library_goes_by_its_name_and_what_it_wraps_by_content():
    wrapped = "import functools\ndef wraps(g): return functools.lru_cache(g)\n@functools.singledispatch\ndef h(x): return {}\n"
    source = wrapped + "def f(x): return h(x), functools.reduce\n"
    assert digest(source.format(1)) != digest(source.format(2))
