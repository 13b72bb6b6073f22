"""At least one test shows each guarantee of `docs/guarantees.md`, with a marker: `@pytest.mark.guarantee("B12")`."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import left_out_of

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "guarantees.md"

GUARANTEES = re.findall(r"^\| ([A-Z]\d\d) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


LONG_GUARANTEES = {"F09", "L04", "T41", "T42", "U09", "V11", "W05"}
"""Guarantees that only `make test-long` shows: kills of processes, loads in several parts, and jobs at once."""


@functools.cache
def markers() -> list[tuple[str, str, bool]]:
    return list(find_markers())


def find_markers() -> Iterator[tuple[str, str, bool]]:
    """Yields the place of every marker, the id of its guarantee, and whether the quick suite runs the test."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                is_quick = "pytest.mark.long" not in [
                    ast.unparse(mark) for mark in node.decorator_list
                ]
                for mark in node.decorator_list:
                    if (
                        isinstance(mark, ast.Call)
                        and ast.unparse(mark.func) == "pytest.mark.guarantee"
                    ):
                        for name in mark.args:
                            yield f"{path.name}: {node.name}", ast.literal_eval(name), is_quick


def test_every_guarantee_has_a_test() -> None:
    assert sorted(set(GUARANTEES) - {name for _, name, _ in markers()}) == []


def test_the_quick_suite_shows_every_guarantee() -> None:
    quick = {name for _, name, is_quick in markers() if is_quick}
    assert set(GUARANTEES) - quick == LONG_GUARANTEES


class SampledCase:
    """A case of a test, as the selection of the quick suite sees it."""

    def __init__(self, nodeid: str, *own_markers: pytest.Mark) -> None:
        self.nodeid = nodeid
        self.own_markers = own_markers

    def get_closest_marker(self, name: str) -> pytest.Mark:
        of_module = pytest.mark.sample(2, tests=3).mark
        return next((marker for marker in self.own_markers if marker.name == name), of_module)


def test_a_sample_of_a_module_leaves_out_no_guarantee() -> None:
    guarantee, every_case = pytest.mark.guarantee("B01").mark, pytest.mark.sample(1).mark
    shown = [SampledCase(f"m::shown[{n}]", guarantee) for n in range(4)]
    chosen = [SampledCase(f"m::chosen[{n}]", every_case) for n in range(4)]
    others = [[SampledCase(f"m::other_{test}[{n}]") for n in range(4)] for test in range(6)]
    left_out = left_out_of([shown, chosen, *others])  # type: ignore[list-item]
    assert [len(set(cases) - set(left_out)) for cases in (shown, chosen)] == [2, 4]
    kept = sorted(len(set(cases) - set(left_out)) for cases in others)
    assert kept[:4] == [0] * 4, "one test in three is kept, and one case in two of this test"
    assert set(kept) <= {0, 2}


def test_every_marker_names_a_guarantee() -> None:
    assert [place for place, name, _ in markers() if name not in GUARANTEES] == []


def test_ids_are_numbered_without_gaps() -> None:
    for letter, names in itertools.groupby(GUARANTEES, key=lambda name: name[0]):
        ids = list(names)
        assert ids == [f"{letter}{number:02}" for number in range(1, len(ids) + 1)]
    assert len(GUARANTEES) == len(set(GUARANTEES)) > 200
