"""A small table with columns of many kinds, its contents, and another writer that acts while a statement commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa

from lance_spark.commit.rows import row_commit
from lance_spark.dml import rounds

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.int32()),
        ("s", pa.string()),
        ("v", pa.list_(pa.float32(), 2)),
        ("t", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)


def rows(ids: range) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "a": None if i % 7 == 3 else i,
                "s": f"s{i}",
                "v": [i, -i],
                "t": {"x": i, "y": None},
            }
            if i % 5
            else {"id": i}
            for i in ids
        ],
        schema=SCHEMA,
    )


def make(uri: str, *, stable: bool = True, fragments: int = 3, version: str = "stable") -> None:
    table = rows(range(fragments * 10))
    if version == "2.0":  # version 2.0 has no NULL structs
        table = table.set_column(
            4,
            SCHEMA.field("t"),
            pa.array([{"x": i, "y": None} for i in range(len(table))], SCHEMA.field("t").type),
        )
    lance.write_dataset(
        table,
        uri,
        max_rows_per_file=10,
        enable_stable_row_ids=stable,
        data_storage_version=version,  # type: ignore[arg-type]
    )


def content(uri: str) -> list[dict[str, Any]]:
    dataset = lance.dataset(uri)
    dataset.validate()
    rows: list[dict[str, Any]] = sorted(dataset.to_table().to_pylist(), key=lambda row: row["id"])
    assert len({row["id"] for row in rows}) == len(rows)
    return rows


def lineage(uri: str) -> dict[int, tuple[int, int, int]]:
    """Returns row id, version of birth and version of the last update of rows, by `id`."""
    names = ["_row_created_at_version", "_row_last_updated_at_version"]
    table = lance.dataset(uri).scanner(columns=["id", *names], with_row_id=True).to_table()
    values = (table[name].to_pylist() for name in ("_rowid", *names))
    return dict(zip(table["id"].to_pylist(), zip(*values, strict=True), strict=True))


@contextmanager
def acting_once(moment: str, act: Callable[[], object]) -> Iterator[list[int]]:
    """Lets another writer act once: `before` the look at the latest version, or `after` it."""
    owner, name = (rounds, "commit_edits") if moment == "before" else (row_commit, "attempt_commit")
    real, acted = getattr(owner, name), list[int]()

    def acting(*arguments: Any, **more: Any) -> Any:
        if not acted:
            acted.append(1)
            act()
        return real(*arguments, **more)

    with patch.object(owner, name, acting):
        yield acted
