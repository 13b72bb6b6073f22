"""The list of promises and the tests of this folder are the same list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.promises.promises import BACKFILLING, FINDINGS, LATER, PROMISES, TABLE_API

HERE = Path(__file__).parent
NAMED = re.compile(r"test_([A-Z]\d\d)_[a-z0-9_]+")


def found_tests() -> list[tuple[str, str]]:
    """Returns (file, name) of every test of this folder, but for this file's."""
    found = []
    for path in sorted(HERE.glob("test_*.py")):
        if path.name == Path(__file__).name:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [
            (path.name, node.name)
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        ]
    return found


def test_every_promise_has_a_test() -> None:
    tested = {match[1] for _, name in found_tests() if (match := NAMED.fullmatch(name))}
    assert sorted(set(PROMISES) - tested) == []


def test_every_test_names_a_promise() -> None:
    strays = [
        f"{file}: {name}" for file, name in found_tests() if not ((m := NAMED.fullmatch(name)) and m[1] in PROMISES)
    ]
    assert strays == []


def test_no_test_is_hidden_by_another_of_its_name() -> None:
    names = found_tests()
    assert sorted(names) == sorted(set(names))


def test_ids_are_numbered_without_gaps() -> None:
    assert list(BACKFILLING) == [f"B{n:02}" for n in range(1, len(BACKFILLING) + 1)]
    assert list(TABLE_API) == [f"T{n:02}" for n in range(1, len(TABLE_API) + 1)]
    assert sorted([*FINDINGS, *LATER]) == [f"F{n:02}" for n in range(1, 13)]
