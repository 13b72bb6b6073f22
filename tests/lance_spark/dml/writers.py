"""Changes by concurrent writers to the table of `tables.make`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import lance
import pyarrow as pa

from tests.lance_spark.dml.tables import rows
from tests.support import inline_rows

Act = Callable[[str], object]


def rewrite_in_place(uri: str, column: str, ids: str) -> None:
    """Acts like a backfill: one fragment gets a new file of a column."""
    inline_rows.update(uri, f"id {ids}", **{column: f"{column} + 100"})


def fill_new_column(uri: str) -> None:
    dataset = lance.dataset(uri)
    dataset.add_columns(pa.schema([("n", pa.int64())]))
    inline_rows.update(uri, None, n="id")


def clean_up(uri: str) -> None:
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)


def delete_and_clean_up(uri: str) -> None:
    lance.dataset(uri).delete("id IN (1, 12)")
    lance.write_dataset(rows(range(100, 104)), uri, mode="append")
    clean_up(uri)


CONCURRENT_CHANGES: dict[str, Act] = {
    "append": lambda uri: lance.write_dataset(rows(range(100, 104)), uri, mode="append"),
    "delete the same": lambda uri: lance.dataset(uri).delete("id IN (2, 4, 13)"),
    "delete others": lambda uri: lance.dataset(uri).delete("id IN (25, 27)"),
    "delete a fragment": lambda uri: lance.dataset(uri).delete("id < 10"),
    "update the same": lambda uri: lance.dataset(uri).update(
        {"a": "a + 50"}, where="id IN (2, 4, 13)"
    ),
    "update others": lambda uri: lance.dataset(uri).update({"a": "a + 50"}, where="id IN (25, 27)"),
    "update what is read": lambda uri: lance.dataset(uri).update(
        {"s": "'s7'"}, where="id IN (1, 2, 3)"
    ),
    "merge": lambda uri: (
        lance.dataset(uri)
        .merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(rows(range(8, 12)).append_column("z", pa.nulls(4)).drop_columns("z"))
    ),
    "rewrite the same": lambda uri: rewrite_in_place(uri, "a", "< 6"),
    "rewrite others": lambda uri: rewrite_in_place(uri, "a", ">= 24"),
    "compact": lambda uri: lance.dataset(uri).optimize.compact_files(),
    "delete and compact": lambda uri: (
        lance.dataset(uri).delete("id = 2"),
        lance.dataset(uri).optimize.compact_files(),
    ),
    "index": lambda uri: lance.dataset(uri).create_scalar_index("a", "BTREE"),
    "fill a new column": fill_new_column,
    "drop another column": lambda uri: lance.dataset(uri).drop_columns(["v"]),
    "drop the column": lambda uri: lance.dataset(uri).drop_columns(["a"]),
    "drop what is read": lambda uri: lance.dataset(uri).drop_columns(["s"]),
    "rename the column": lambda uri: lance.dataset(uri).alter_columns({"path": "a", "name": "aa"}),
    "cast the column": lambda uri: lance.dataset(uri).alter_columns(
        {"path": "a", "data_type": pa.int64()}
    ),
    "overwrite": lambda uri: lance.write_dataset(rows(range(0, 40, 3)), uri, mode="overwrite"),
    "restore": lambda uri: lance.dataset(uri, version=1).restore(),
}
