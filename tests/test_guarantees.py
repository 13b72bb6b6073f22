"""At least one test shows each guarantee of `docs/guarantees.md`, with a marker: `@pytest.mark.guarantee("B12")`."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "guarantees.md"

GUARANTEES = re.findall(r"^\| ([A-Z]\d\d) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def markers() -> Iterator[tuple[str, str]]:
    """Yields the place of every marker, and the id of its guarantee."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee":
                        for name in mark.args:
                            yield f"{path.name}: {node.name}", ast.literal_eval(name)


def test_every_guarantee_has_a_test() -> None:
    assert sorted(set(GUARANTEES) - {name for _, name in markers()}) == []


def test_every_marker_names_a_guarantee() -> None:
    assert [place for place, name in markers() if name not in GUARANTEES] == []


def test_ids_are_numbered_without_gaps() -> None:
    for letter, names in itertools.groupby(GUARANTEES, key=lambda name: name[0]):
        ids = list(names)
        assert ids == [f"{letter}{number:02}" for number in range(1, len(ids) + 1)]
    assert len(GUARANTEES) == len(set(GUARANTEES)) > 200
