"""The effect of a UDF's version on the values of a column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance_spark
from udf_runtime import UDF, udf


class Token:
    """An object whose pickled form changes each time."""

    count = 0

    def __reduce__(self) -> tuple[object, ...]:
        Token.count += 1
        return (_make_token, (Token.count,))


def _make_token(_: int) -> Token:
    return Token()


def _labels(rules: dict[str, str]) -> UDF:
    @udf(name="label")
    def label(text: str) -> str:
        return next((name for word, name in rules.items() if word in text), "other")

    return label


def _use(token: Token) -> Callable[..., int]:
    def use(number: int) -> int:
        return number if isinstance(token, Token) else -1

    return use


def test_a_udf_whose_pickled_form_differs_each_time_is_found_again(
    tmp_path: Path, jobs: Any
) -> None:
    table = lance_spark.connect(str(tmp_path), jobs, progress=False).create_table(
        "t", [{"id": i} for i in range(3)]
    )
    function = udf(_use(Token()), name="use", version="1")
    table.add_columns({"n": (function, ["id"])})
    table.backfill("n")
    table.alter_columns({"path": "n", "udf": function, "input_columns": ["id"]})
    assert table.backfill("n").rows_computed == 0
    table.add([{"id": 3}])
    assert table.backfill("n").rows_computed == 1
    assert table.to_arrow()["n"].to_pylist() == [0, 1, 2, 3]


def test_another_order_of_rules_is_another_version_and_computes_all_rows(
    tmp_path: Path, jobs: Any
) -> None:
    rows = [{"id": i, "text": "refund for order"} for i in range(4)]
    table = lance_spark.connect(str(tmp_path), jobs, progress=False).create_table("t", rows)
    table.add_columns({"label": _labels({"order": "ORDER", "refund": "REFUND"})})
    assert table.backfill("label").rows_computed == 4
    table.alter_columns({"path": "label", "udf": _labels({"order": "ORDER", "refund": "REFUND"})})
    assert table.backfill("label").rows_computed == 0
    table.alter_columns({"path": "label", "udf": _labels({"refund": "REFUND", "order": "ORDER"})})
    assert table.backfill("label").rows_computed == 4
    assert set(table.to_arrow()["label"].to_pylist()) == {"REFUND"}
