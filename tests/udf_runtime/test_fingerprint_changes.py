"""Changes that affect the digest of a function, and changes without effect: orders, attributes, modules, formatting."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import textwrap
import types
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime import fingerprint_sources
from tests.udf_runtime.fingerprint_sources import digest, notebook
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.fingerprint import fingerprint, first_digest, is_first_digest

pytestmark = pytest.mark.sample(1, tests=2)

ROOT = Path(__file__).parents[2]
Files = Callable[..., None]


@pytest.mark.parametrize(
    "seeds", [("4711",), pytest.param(("0", "1", "4711"), marks=pytest.mark.long)]
)
def test_one_source_has_one_digest_in_processes_with_other_hash_seeds(
    seeds: tuple[str, ...],
) -> None:
    command = [sys.executable, "-m", "tests.udf_runtime.fingerprint_sources"]
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for seed in seeds
    ]
    digests = [json.loads(process.communicate()[0]) for process in processes]
    assert digests == [fingerprint_sources.all_digests()] * len(seeds)


@pytest.mark.parametrize(("old", "new"), fingerprint_sources.PYDANTIC_CHANGES)
def test_a_changed_model_of_pydantic_changes_the_digest(old: str, new: str) -> None:
    pytest.importorskip("pydantic")
    assert fingerprint_sources.PYDANTIC.count(old) == 1
    assert digest(fingerprint_sources.PYDANTIC.replace(old, new)) != digest(
        fingerprint_sources.PYDANTIC
    )


@pytest.mark.parametrize(("old", "new"), fingerprint_sources.ATTRS_CHANGES)
def test_a_changed_class_of_attrs_changes_the_digest(old: str, new: str) -> None:
    pytest.importorskip("attrs")
    assert fingerprint_sources.ATTRS.count(old) == 1
    assert digest(fingerprint_sources.ATTRS.replace(old, new)) != digest(fingerprint_sources.ATTRS)


@pytest.mark.parametrize(("old", "new"), fingerprint_sources.DATACLASS_CHANGES)
def test_a_changed_dataclass_changes_the_digest(old: str, new: str) -> None:
    assert fingerprint_sources.DATACLASSES.count(old) == 1
    assert digest(fingerprint_sources.DATACLASSES.replace(old, new)) != digest(
        fingerprint_sources.DATACLASSES
    )


def test_using_a_model_changes_no_digest() -> None:
    pytest.importorskip("pydantic")
    scope = notebook(fingerprint_sources.PYDANTIC)
    before = fingerprint(scope["f"])
    scope["f"]('{"label": "X", "many": []}')  # type: ignore[operator]
    assert fingerprint(scope["f"]) == before


@pytest.mark.parametrize(
    "source",
    [
        "RULES = {{{}}}\ndef f(x): return RULES\n|'a': 1, 'b': 2|'b': 2, 'a': 1",
        "import types\nRULES = types.SimpleNamespace({})\ndef f(x): return RULES\n|a=1, b=2|b=2, a=1",
        "def f(x, y={{{}}}): return y\n|1: 2, 3: 4|3: 4, 1: 2",
        "class Rules:\n    {}\ndef f(x): return list(vars(Rules))\n|a = 1; b = 2|b = 2; a = 1",
        "import enum\nclass Rules(enum.Enum):\n    {}\ndef f(x): return list(Rules)\n|A = 1; B = 2|B = 2; A = 1",
        "import collections\nCount = collections.Counter('{}')\ndef f(x): return Count\n|ab|ba",
        "import types\nRULES = types.MappingProxyType({{{}}})\ndef f(x): return RULES\n|'a': 1, 'b': 2|'b': 2, 'a': 1",
        "import pandas as pd\nKINDS = pd.CategoricalDtype([{}])\ndef f(x): return KINDS\n|'a', 'b'|'b', 'a'",
        "import pandas as pd\nS = pd.Series(['a'], dtype=pd.CategoricalDtype([{}]))\ndef f(x): return S\n|'a', 'b'|'b', 'a'",
        "import pandas as pd\nC = pd.Categorical(['a'], [{}])\ndef f(x): return C\n|'a', 'b'|'b', 'a'",
        "import pandas as pd\nI = pd.CategoricalIndex(['a'], [{}])\ndef f(x): return I\n|'a', 'b'|'b', 'a'",
        "import pandas as pd\nC = pd.Categorical(['a'], ordered={})\ndef f(x): return pd.Series(C), C\n|True|False",
        "import pyarrow as pa\nD = pa.DictionaryArray.from_arrays([0], {})\ndef f(x): return D\n|['a', 'b']|['a', 'c']",
        "import numpy as np\nA = np.{}(np.arange(6).reshape(2, 3))\ndef f(x): return A\n|ascontiguousarray|asfortranarray",
        "import numpy as np\nA = np.array([[1, 'a'], [2, 'b']], object, order={})\ndef f(x): return A\n|'C'|'F'",
        "import numpy as np\nT = np.dtype((np.int32, {}))\ndef f(x): return T\n|(2, 1)|(1, 2)",
    ],
)
def test_the_order_of_dicts_class_bodies_categories_and_memory_counts(source: str) -> None:
    source, first_part, second_part = source.split("|")
    assert digest(source.format(first_part)) != digest(source.format(second_part))
    assert digest(source.format(first_part)) == digest(source.format(first_part))


def test_attributes_of_functions_count_except_for_the_state_that_the_function_keeps_in_them() -> (
    None
):
    source = "def f(x): return helper(x)\ndef helper(x):\n    helper.calls = 1\n    return x * helper.rate\nhelper.rate = {}\nhelper.calls = {}\n"
    assert digest(source.format(1, 0)) == digest(source.format(1, 7)) != digest(source.format(2, 0))


def test_annotations_that_build_a_class_count_with_and_without_future_annotations() -> None:
    source = "import typing\nclass Row(typing.TypedDict):\n    a: {}\ndef f(x): return Row\n"
    future = "from __future__ import annotations\n"
    assert (
        digest(source.format("int"))
        == digest(future + source.format("int"))
        != digest(source.format("str"))
    )


class Time:
    """An object whose pickled form changes each time."""

    count = 0

    def __reduce__(self) -> tuple[object, ...]:
        Time.count += 1
        return (Time, (), {"made": Time.count})


class Addressed:
    """An object with its own address as a text."""

    def __init__(self) -> None:
        self.name = f"<Addressed at {id(self):#x}>"


@pytest.mark.parametrize("make", [Time, Addressed])
def test_an_object_without_a_stable_form_is_an_error_that_asks_for_a_version(make: type) -> None:
    value = make()
    with pytest.raises(UdfDefinitionError, match=r"version="):
        fingerprint(lambda: value)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Writes new modules, and unloads the modules of the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if name.startswith("own_"):
                del sys.modules[name]
        for cache in tmp_path.rglob("__pycache__"):
            for file in cache.iterdir():
                file.unlink()

    def write(**texts: str) -> None:
        forget()
        for name, text in texts.items():
            path = tmp_path / (name.replace("__", "/", 1) + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield write
    forget()


WAYS = {
    "import_inside": "def f(x):\n    import own_pricing\n    return own_pricing.gross(x)\n",
    "from_inside": "def f(x):\n    from own_pricing import gross\n    return gross(x)\n",
    "import_as_inside_of_a_helper": "def g(x):\n    import own_pricing as p\n    return p.gross(x)\ndef f(x): return g(x)\n",
    "inside_of_a_method": "class C:\n    def m(self, x):\n        import own_pricing\n        return own_pricing.gross(x)\ndef f(x): return C().m(x)\n",
    "star_of_a_package": "def f(x):\n    import own_pack\n    return own_pack.gross(x)\n",
    "from_a_package": "def f(x):\n    from own_pack import gross\n    return gross(x)\n",
    "submodule": "def f(x):\n    import own_pack.inner\n    return own_pack.inner.gross(x)\n",
    "below_folders_without_init": "def f(x):\n    import own_space.team.prices\n    return own_space.team.prices.gross(x)\n",
    "importlib": "import importlib\ndef f(x): return importlib.import_module('own_pricing').gross(x)\n",
    "dunder_import": "def f(x): return __import__('own_pricing').gross(x)\n",
    "global_module": "import own_pricing\ndef f(x): return own_pricing.gross(x)\n",
    "global_module_by_name": "import own_pricing\ndef f(x): return getattr(own_pricing, 'gross')(x)\n",
    "global_module_in_a_dict": "import own_pricing\nMODULES = {1: own_pricing}\ndef f(x): return MODULES[1].gross(x)\n",
    "global_package": "import own_pack\ndef f(x): return own_pack.gross(x)\n",
    "global_submodule": "import own_pack.inner\ndef f(x): return own_pack.inner.gross(x)\n",
    "global_function": "from own_pricing import gross\ndef f(x): return gross(x)\n",
    "global_function_of_a_package": "from own_pack import gross\ndef f(x): return gross(x)\n",
    "module_in_a_closure": "import own_pricing\ndef make(m): return lambda x: m.gross(x)\nf = make(own_pricing)\n",
}

MODULES = {
    "own_rates": '"""Rates."""\nRATE = {rate}\n',
    "own_pricing": "import own_rates\ndef gross(x):\n    {doc}\n    return round(x * own_rates.RATE, 2)\n",
    "own_pack____init__": "from .inner import *\n",
    "own_pack__inner": "from . import deep\ndef gross(x): return deep.gross(x)\n",
    "own_space__team/prices": "from own_pricing import gross\n",
    "own_pack__deep": "def gross(x):\n    from own_pricing import gross\n    return gross(x)\n",
}


def modules(rate: str = "1.19", doc: str = "'''Gross.'''") -> dict[str, str]:
    return {name: text.format(rate=rate, doc=doc) for name, text in MODULES.items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_of_ones_own_counts_however_it_is_reached(files: Files, way: str) -> None:
    def changed(**change: str) -> str:
        files(**modules(**change))
        return digest(WAYS[way])

    before = changed()
    assert changed(doc="# another comment\n\n") == before
    assert changed(rate="1.50") != before
    assert changed() == before


def test_a_hook_of_imports_changes_no_digest(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hook:
        find_spec = staticmethod(PathFinder.find_spec)

    files(**modules())
    source = WAYS["below_folders_without_init"]
    before = digest(source)
    monkeypatch.setattr(sys, "meta_path", [Hook, *sys.meta_path])
    assert digest(source) == before


def test_a_module_in_a_zip_file_counts_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for i, text in enumerate(["VALUE = 1", "VALUE  =  1  # comment", "VALUE = 2"]):
        path = tmp_path / f"{i}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("own_zipped.py", text)
        with monkeypatch.context() as context:
            context.syspath_prepend(str(path))
            digests.append(
                digest("def f(x):\n    import own_zipped\n    return own_zipped.VALUE\n")
            )
    assert digests[0] == digests[1] != digests[2]


def test_a_digest_imports_no_module(files: Files) -> None:
    files(
        own_boom="raise AssertionError",
        own_late__part="import own_boom",
        own_late____init__="import own_boom",
    )
    assert digest(
        "def f(x):\n    import own_boom\n    from own_late.part import g\n    return g(x)\n"
    )
    assert not {"own_boom", "own_late"} & set(sys.modules)


def test_a_module_that_has_moved_to_another_folder_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_moved.py").write_text("def gross(x): return x * 2\n")
        with monkeypatch.context() as context:
            context.syspath_prepend(str(tmp_path / folder))
            source = "import own_moved\nfrom own_moved import gross\ndef f(x):\n    import own_moved as m\n    return own_moved.gross(x) + gross(x)\n"
            digests.add(digest(source))
            del sys.modules["own_moved"]
    assert len(digests) == 1


TEST = st.sampled_from(["a", "b == 1", "not c", "f(a)", "b > c"])
CONDITION = st.tuples(
    st.sampled_from([" and ", " or "]), st.lists(TEST, min_size=1, max_size=3)
).map(lambda operands: "(" + operands[0].join(operands[1]) + ")")
BODY = st.recursive(
    st.sampled_from(
        ["a = b", "pass", "return a", "a += 1", "a = f(a); b = g(b)", "raise a", "assert a, b"]
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda c, x, y: f"if {c}:\n{_indent(x)}\nelse:\n{_indent(y)}", CONDITION, inner, inner
        ),
        st.builds(lambda c, x: f"while {c}:\n{_indent(x)}", CONDITION, inner),
        st.builds(lambda c, x: f"for i in {c}:\n{_indent(x)}", CONDITION, inner),
        st.builds(
            lambda x, y: f"try:\n{_indent(x)}\nexcept E as e:\n{_indent(y)}\nfinally:\n    a",
            inner,
            inner,
        ),
        st.builds(lambda c, x: f"with {c} as d:\n{_indent(x)}", CONDITION, inner),
        st.builds(lambda c: f"a = [x for x in b if {c}]", CONDITION),
        st.builds(lambda c: f"return (1 if {c} else 2)", CONDITION),
        st.builds(
            lambda x: (
                f"class C:\n    '''Doc.'''\n    def m(self):\n        '''Doc.'''\n{_indent(_indent(x))}"
            ),
            inner,
        ),
        st.builds(lambda x, y: f"{x}\n{y}", inner, inner),
    ),
    max_leaves=5,
)


def _indent(text: str) -> str:
    return textwrap.indent(text, "    ")


def _stretch(source: str) -> str:
    """Returns the source with a line break at each place within brackets where the grammar allows a break."""
    return source.replace("(", "(\n").replace(" and ", "\n# comment\nand ").replace(" or ", "\nor ")


@given(BODY)
@settings(deadline=None, max_examples=60)
def test_formatting_comments_and_docstrings_change_no_digest(body: str) -> None:
    source = f"def f(a, b, c):\n{_indent(body)}\n"
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.body = [
                statement for statement in node.body if not isinstance(statement, ast.Expr)
            ] or [ast.Pass()]
    assert digest(source) == digest("# moved\n\n" + ast.unparse(tree)) == digest(_stretch(source))


@pytest.mark.parametrize(
    ("modules", "least"),
    [([textwrap], 15), pytest.param([zipfile, subprocess], 150, marks=pytest.mark.long)],
)
def test_formatting_changes_the_digests_of_few_functions_of_the_standard_library(
    modules: list[types.ModuleType], least: int
) -> None:
    functions = differing = 0
    for module in modules:
        source = inspect.getsource(module)
        pairs = zip(
            *(_codes(text) for text in (source, ast.unparse(ast.parse(source)))), strict=True
        )
        for original, reformatted in pairs:
            functions += 1
            differing += fingerprint(original) != fingerprint(reformatted)
    assert (functions >= least, differing <= functions * 0.01) == (True, True), (
        functions,
        differing,
    )


def _codes(source: str) -> list[types.CodeType]:
    codes = [compile(source, "<source>", "exec", dont_inherit=True)]
    for code in codes:
        codes.extend(
            constant for constant in code.co_consts if isinstance(constant, types.CodeType)
        )
    return codes[1:]


def test_a_digest_has_the_number_of_its_scheme_and_digests_of_the_first_scheme_stay() -> None:
    assert fingerprint(1).startswith("2-")
    first = first_digest({"b": 1, "a": [2.5, None, "x"]}, ("q", b"z"), what="a value")
    assert first == "adb248e7d2aa340addaadda16c8338df"
    assert (is_first_digest(first), is_first_digest(fingerprint(1))) == (True, False)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="digests hold bytecode of one release of Python"
)
def test_a_function_has_the_digest_under_the_first_scheme_that_earlier_releases_stored() -> None:
    assert (
        first_digest(notebook(fingerprint_sources.EVERYTHING)["f"], what="f")
        == "2d4b78c62874c929afa4c442c002c13f"
    )
