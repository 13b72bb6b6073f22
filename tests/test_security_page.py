"""SECURITY.md names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    file, references = "", 0
    for path, name in REFERENCE.findall(text):
        file = path or file
        if not (path or name):
            continue
        references += 1
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{file} has no {name}"
    assert references > 20


def test_every_promise_stands_in_a_table_and_has_a_test():
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    promises, is_in_table = 0, False
    for before, line in zip(["", *lines], lines, strict=False):
        if line == "| promise | test |":
            is_in_table = True
        elif not line.startswith("|"):
            is_in_table = False
        elif is_in_table and line != "| --- | --- |":
            promises += 1
            assert before.startswith("|") and re.search(r"\| `tests/.*` \|$", line), line
        elif "`tests/" in line:
            raise AssertionError(f"this line is in no table of promises: {line}")
    assert promises > 20
