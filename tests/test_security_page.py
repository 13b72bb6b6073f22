"""SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    file, named = "", 0
    for path, name in NAMED.findall(text):
        file = path or file
        if not (path or name):
            continue
        named += 1
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{file} has no {name}"
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith("` |")]
    assert named >= len(rows) > 5
    assert all("`tests/" in row for row in rows), "a promise without a test"
