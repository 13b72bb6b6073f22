"""Every promise of the specification is shown by at least one test, which says so by a marker: `@pytest.mark.promise("B12")`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.promises import BACKFILLING, CHANGES, FINDINGS, INDEXES, LOADS, PROMISES, TABLE_API, UPKEEP, VIEWS

TESTS = Path(__file__).parent


def markers() -> Iterator[tuple[str, str]]:
    """Yields the place of every marker of a promise, and the promise's id."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                        for name in mark.args:
                            yield f"{path.name}: {node.name}", ast.literal_eval(name)


def test_every_promise_has_a_test() -> None:
    assert sorted(set(PROMISES) - {name for _, name in markers()}) == []


def test_every_marker_names_a_promise() -> None:
    assert [place for place, name in markers() if name not in PROMISES] == []


def test_ids_are_numbered_without_gaps() -> None:
    assert list(BACKFILLING) == [f"B{n:02}" for n in range(1, len(BACKFILLING) + 1)]
    assert list(TABLE_API) == [f"T{n:02}" for n in range(1, len(TABLE_API) + 1)]
    assert list(LOADS) == [f"L{n:02}" for n in range(1, len(LOADS) + 1)]
    assert list(VIEWS) == [f"V{n:02}" for n in range(1, len(VIEWS) + 1)]
    assert list(CHANGES) == [f"C{n:02}" for n in range(1, len(CHANGES) + 1)]
    assert list(INDEXES) == [f"I{n:02}" for n in range(1, len(INDEXES) + 1)]
    assert list(UPKEEP) == [f"U{n:02}" for n in range(1, len(UPKEEP) + 1)]
    assert sorted(FINDINGS) == [f"F{n:02}" for n in range(1, 13)]
