"""The values that describe indexes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from lance_spark import IndexConfig


def test_descriptions_of_indexes_are_compared_and_hashed_with_lists_of_columns() -> None:
    config = IndexConfig(
        name="i",
        index_type="BTREE",
        columns=["a", "b.c"],
        index_uuid="u",
        num_indexed_rows=1,
        num_unindexed_rows=0,
        num_segments=1,
        size_bytes=None,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        index_version=0,
        index_details={"a": []},
    )
    same = dataclasses.replace(config, columns=["a", "b.c"])
    other = dataclasses.replace(config, columns=["a"])
    assert config == same and config != other and {config, same, other} == {config, other}
    assert config.columns == ["a", "b.c"] == config["columns"]
