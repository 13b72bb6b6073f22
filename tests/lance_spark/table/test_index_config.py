"""The column of `create_index(..., config=...)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import FTS, BTree, OptionError, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    names = ("vector", "price", "dot", "L2")
    lance.write_dataset(pa.table({name: [1] for name in names}), tmp_path / "t.lance")
    return lance_spark.open_table(tmp_path / "t.lance")


def indexed_column(
    table: Table, monkeypatch: pytest.MonkeyPatch, *arguments: str, **named: Any
) -> str:
    definitions: list[Any] = []
    monkeypatch.setattr(
        "lance_spark.table.indexes.build_index", lambda *values: definitions.append(values[-1])
    )
    table.create_index(*arguments, config=BTree(), **named)
    return str(definitions[0].column)


@pytest.mark.parametrize(
    ("arguments", "named", "column"),
    [
        (("price",), {}, "price"),
        (("dot",), {}, "dot"),
        (("L2",), {}, "L2"),
        ((), {"vector_column_name": "price"}, "price"),
    ],
)
def test_the_column_is_the_first_argument_or_named(
    arguments: tuple[str, ...],
    named: dict[str, str],
    column: str,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert indexed_column(table, monkeypatch, *arguments, **named) == column


@pytest.mark.parametrize("named", [{}, {"vector_column_name": "vector"}])
def test_the_default_column_is_the_vector(
    named: dict[str, str], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.drop_columns(["L2"])
    assert indexed_column(table, monkeypatch, **named) == "vector"


def test_a_choice_of_numbers_takes_numbers() -> None:
    assert FTS(block_size=256).block_size == 256
    with pytest.raises(OptionError, match="one of 128, 256"):
        FTS(block_size="256")  # type: ignore[arg-type]
