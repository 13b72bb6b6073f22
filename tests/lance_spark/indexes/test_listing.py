"""The values that describe indexes."""

from __future__ import annotations

from lance_spark import IndexConfig


def test_descriptions_of_indexes_are_compared_and_hashed_with_lists_of_columns() -> None:
    config = IndexConfig(name="i", index_type="BTREE", columns=["a", "b.c"])
    same = IndexConfig(name="i", index_type="BTREE", columns=["a", "b.c"])
    other = IndexConfig(name="i", index_type="BTREE", columns=["a"])
    assert config == same and config != other and {config, same, other} == {config, other}
    assert config.columns == ["a", "b.c"] == config["columns"]
