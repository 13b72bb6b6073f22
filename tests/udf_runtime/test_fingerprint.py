from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udf_runtime.errors import UdfDefinitionError
from udf_runtime.fingerprint import fingerprint

ROOT = Path(__file__).parents[2]


def notebook(source: str, **names: object) -> dict[str, object]:
    """Runs code as a notebook does: its functions belong to a module without a file."""
    scope: dict[str, object] = {"__name__": "__main__", **names}
    exec(compile(textwrap.dedent(source), "<cell>", "exec"), scope)
    return scope


def digest(source: str, **names: object) -> str:
    return fingerprint(notebook(source, **names)["f"])


EVERYTHING = """
import collections, dataclasses, decimal, enum, functools, logging, re, typing
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.compute as pc

class Color(enum.Enum):
    RED = frozenset({"x", "y", "z"})

class Pair(typing.NamedTuple):
    a: int
    b: str = "q"

@dataclasses.dataclass(frozen=True)
class Point:
    x: int = 3
    tags: list = dataclasses.field(default_factory=list)

class Base:
    __slots__ = ("m",)
    def __init__(self, m): self.m = m
    def __call__(self, x): return len(super().__repr__())
    @property
    def p(self): return 1
    @staticmethod
    def s(): return Base

class Model(Base):
    @functools.cached_property
    def weights(self): return helper(1)
    @classmethod
    def make(cls): return {"a", "b"}

@functools.lru_cache(maxsize=9)
def cached(x): return x
def traced(func):
    @functools.wraps(func)
    def inner(*args): return func(*args)
    return inner
@traced
def helper(x): return other(x) if x else 0
def other(x): return helper(x - 1)
WORDS = {"a", "b", (1, "q"), frozenset({"k", "l"}), Color.RED, Pair(1, "z"), str.upper}
TABLE = {word: i for i, word in enumerate(["p", "q", "r"])}
DATA = [np.arange(3), pa.table({"a": ["x", None]}), pd.DataFrame({"a": [1]}), decimal.Decimal("1.2"), re.compile("a+"),
        collections.OrderedDict(a=1), functools.partial(helper, 3), Point(4), Pair, "abc".upper, int | str, object(), np.sqrt]
DATA.append(DATA)
log = logging.getLogger("x")

def f(x, y=Pair(1, "b"), *, k={"a", "b"}):
    if x in {"a", "b", "c"}:
        return pc.add(x, 1), np.sqrt(x), [helper(i) for i in WORDS]
    return cached(x), Model("m"), TABLE, DATA, log, Color.RED, lambda z: z + other(z)
"""


def test_the_same_definition_has_the_same_digest_in_other_processes():
    script = EVERYTHING + "\nfrom udf_runtime.fingerprint import fingerprint\nprint(fingerprint(f))\n"
    found = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, cwd=ROOT
        )
        found.add(done.stdout.strip())
    assert found == {digest(EVERYTHING)}


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
    ("deep(x): return x + 1", "deep(x): return x + 2"),  # called by what is called
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
    moved = pa.concat_arrays(parts).slice(before, len(array))
    assert fingerprint(moved) == fingerprint(array)
    assert fingerprint(moved.slice(1)) != fingerprint(array)


def test_values_under_nulls_do_not_count():
    one, other = (
        pa.Array.from_buffers(pa.int8(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(bytes([5, hidden]))])
        for hidden in (7, 8)
    )
    assert one == other
    assert fingerprint(one) == fingerprint(other)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def written(value: object) -> str:
    """Returns a text that two plain values share exactly if they are the same; the order of a dict does not count."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{written(item)}" for key, item in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + "(" + ",".join(map(written, value)) + ")"
    return repr(value)


@given(PLAIN, PLAIN)
@settings(max_examples=200)
def test_plain_values_have_one_digest_exactly_if_they_are_the_same(one: object, other: object):
    assert fingerprint(copy.deepcopy(one)) == fingerprint(one)
    assert (fingerprint(one) == fingerprint(other)) == (written(one) == written(other))


@pytest.mark.parametrize(
    ("one", "other"),
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
def test_values_that_only_look_alike_have_different_digests(one: object, other: object):
    assert fingerprint(one) != fingerprint(other)


def test_things_that_contain_themselves_end():
    loop: list[object] = [1]
    loop.append(loop)
    other: list[object] = [2]
    other.append(other)
    assert fingerprint(loop) == fingerprint(copy.deepcopy(loop)) != fingerprint(other)


def test_a_set_that_leads_back_to_itself_ends():
    source = "WORDS = set()\ndef f(x): return g in WORDS\ndef g(x): return f(x), WORDS, {}\nWORDS.add(g)\n"
    assert digest(source.format(1)) == digest(source.format(1)) != digest(source.format(2))


@pytest.mark.parametrize(
    "value", ["threading.Lock()", "open('/dev/null')", "(i for i in range(3))", "threading.local()"]
)
def test_what_has_no_content_is_an_error_that_asks_for_a_version(value: str):
    source = f"import threading\nresource = {value}\ndef f(x): return helper(x)\ndef helper(x): return resource\n"
    scope = notebook(source)
    with pytest.raises(UdfDefinitionError, match=r"global 'resource'.*version=") as caught:
        fingerprint(scope["f"], what="UDF 'f'")
    if hasattr(scope["resource"], "close"):
        scope["resource"].close()
    assert "UDF 'f': function f > global 'helper' > function helper" in str(caught.value)


def test_a_lock_that_nothing_uses_does_no_harm():
    assert digest("def f(x): return x", lock=threading.Lock())


def test_own_modules_count_by_what_is_used_of_them_and_libraries_by_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "import {0}\nimport json\ndef f(x): return {0}.used(x), json.dumps(x)\n"
    digests = {}
    for name, text in {
        "own_a": "def used(x): return 1\ndef unused(x): return 2\n",
        "own_b": "def used(x): return 1\ndef unused(x): return 3\n",
        "own_c": "def used(x): return 9\ndef unused(x): return 2\n",
    }.items():
        # Under one name, as one module that changes between two sessions.
        (tmp_path / "own_module.py").write_text(text)
        monkeypatch.delitem(sys.modules, "own_module", raising=False)
        (tmp_path / "__pycache__").exists() and [p.unlink() for p in (tmp_path / "__pycache__").iterdir()]
        digests[name] = digest(source.format("own_module"))
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    assert digests["own_a"] == digests["own_b"] != digests["own_c"]


def test_an_import_inside_a_function_counts_by_its_file_loaded_or_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_late.py").write_text("VALUE = 1\n")
    scope = notebook("def f(x):\n    from own_late import VALUE\n    import json\n    return VALUE\n")
    before = fingerprint(scope["f"])
    assert scope["f"](0) == 1  # type: ignore[operator]
    assert fingerprint(scope["f"]) == before
    (tmp_path / "own_late.py").write_text("VALUE = 2\n")
    assert fingerprint(scope["f"]) != before
    monkeypatch.delitem(sys.modules, "own_late")


def test_a_function_of_a_library_goes_by_its_name_and_what_it_wraps_by_content():
    wrapped = "import functools\ndef wraps(g): return functools.lru_cache(g)\n@functools.singledispatch\ndef h(x): return {}\n"
    source = wrapped + "def f(x): return h(x), functools.reduce\n"
    assert digest(source.format(1)) != digest(source.format(2))
