"""The page on performance has the budgets of requests, and each budget belongs to an operation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.object_stores.counted_operations import BIG_FILES, OPERATIONS

HERE = Path(__file__).parent
BUDGETS = tomllib.loads((HERE / "request_budgets.toml").read_text())
SIZES = ("10 fragments", "100 fragments")


def test_each_operation_has_a_budget() -> None:
    for size in SIZES:
        assert list(BUDGETS[size]) == list(OPERATIONS)
    assert list(BUDGETS["megabyte of files of 100 MB"]) == list(BIG_FILES)


def test_the_page_on_performance_has_the_budgets() -> None:
    page = (
        (HERE.parents[1] / "docs" / "performance.md")
        .read_text()
        .partition("## Requests to an object store")[2]
    )
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \| [\d,]* \| ([\d,]+) \|", page, re.MULTILINE)
    numbers = {
        name: (int(few.replace(",", "")), int(many.replace(",", ""))) for name, few, many in rows
    }
    sums = {name: tuple(sum(BUDGETS[size][name].values()) for size in SIZES) for name in OPERATIONS}
    assert numbers == sums
