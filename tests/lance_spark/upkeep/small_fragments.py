"""A table of many small fragments, and concurrent changes during its compaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa

from lance_spark import Connection, Table
from lance_spark.commit.rows import compaction_commit
from lance_spark.upkeep import compaction
from tests.lance_spark.conflicts.others import rewrite

FRAGMENTS, FRAGMENT_ROWS = 6, 10
ROWS = FRAGMENTS * FRAGMENT_ROWS

TWO_IN_ONE: dict[str, Any] = {"target_rows_per_fragment": 2 * FRAGMENT_ROWS}
"""Pairs of fragments become one: three tasks."""

Act = Callable[[str], object]
"""A change by another writer; the argument is the table's location."""


def rows(first: int = 0, count: int = ROWS) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array(ids, pa.int64()),
            "text": [f"w {i}" for i in ids],
        }
    )


def make(db: Connection, *, stable: bool = True, name: str = "t") -> Table:
    lance.write_dataset(
        rows(),
        f"{db.uri}/{name}.lance",
        max_rows_per_file=FRAGMENT_ROWS,
        enable_stable_row_ids=stable,
    )
    return db.open_table(name)


def content(uri: str) -> list[dict[str, object]]:
    """The rows, in order of their ids."""
    dataset = lance.dataset(uri)
    rows_read: list[dict[str, object]] = dataset.to_table().to_pylist()
    return sorted(rows_read, key=lambda row: row.get("id", -1))  # type: ignore[arg-type, return-value]


def fragment_rows(uri: str) -> list[int]:
    return [fragment.count_rows() for fragment in lance.dataset(uri).get_fragments()]


def assert_indexes_are_right(uri: str) -> None:
    """Asserts that lookups agree with and without the table's indexes."""
    dataset = lance.dataset(uri)
    for column in {"id", "x"} & set(dataset.schema.names):
        for value in (0, 3, 11, 25, 38, 59):
            test = f"{column} = {value}"
            matches = dataset.to_table(filter=test).to_pylist()
            assert (
                matches
                == dataset.scanner(filter=test, use_scalar_index=False).to_table().to_pylist()
            ), test


# Changes by other writers


def append(uri: str) -> None:
    lance.write_dataset(rows(1000, 3), uri, mode="append")


def delete_rows(uri: str) -> None:
    lance.dataset(uri).delete("id IN (3, 25)")


def delete_a_fragment(uri: str) -> None:
    lance.dataset(uri).delete("id < 10")


def update(uri: str) -> None:
    lance.dataset(uri).update({"x": "x + 1000"}, where="id = 11")


def rewrite_in_place(uri: str) -> None:
    rewrite(uri, "x", {5: -5, 35: -35})


def add_null_column(uri: str) -> None:
    lance.dataset(uri).add_columns(pa.schema([("late", pa.int64())]))


def add_column(uri: str) -> None:
    lance.dataset(uri).add_columns({"late": "x * 2"})


def rename_column(uri: str) -> None:
    lance.dataset(uri).alter_columns({"path": "x", "name": "renamed"})


def cast_column(uri: str) -> None:
    lance.dataset(uri).alter_columns({"path": "x", "data_type": pa.int32()})


def drop_column(uri: str) -> None:
    lance.dataset(uri).drop_columns(["text"])


def build_index(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("x", "BTREE", name="late index")


def build_index_by_value(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("x", "BITMAP", name="late index")


def index_some_fragments(uri: str) -> None:
    dataset = lance.dataset(uri)
    parts = [
        dataset.create_index_uncommitted("x", "BITMAP", name="some", fragment_ids=[number])
        for number in (0, 2)
        if dataset.get_fragment(number) is not None
    ]
    dataset.commit_existing_index_segments("some", "x", parts)


def append_and_update_indexes(uri: str) -> None:
    append(uri)
    lance.dataset(uri).optimize.optimize_indices()


def compact(uri: str) -> None:
    lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=3 * FRAGMENT_ROWS)


def overwrite(uri: str) -> None:
    lance.write_dataset(rows(100, 30), uri, mode="overwrite", max_rows_per_file=FRAGMENT_ROWS)


def restore(uri: str) -> None:
    """Restores a version with the present fragments, after later versions."""
    version = lance.dataset(uri).version
    delete_rows(uri)
    lance.dataset(uri, version=version).restore()


def configure(uri: str) -> None:
    lance.dataset(uri).update_config({"another": "writer"})


def cleanup(uri: str) -> None:
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))


def delete_and_clean_up(uri: str) -> None:
    """Deletes rows, and then the history of the deletion."""
    delete_rows(uri)
    configure(uri)
    cleanup(uri)


def clean_up_all(uri: str) -> None:
    """Deletes every unreferenced file."""
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


LOSES: dict[Act, int] = {
    append: 0,
    delete_rows: 2,
    delete_a_fragment: 1,
    update: 1,
    rewrite_in_place: 2,
    add_null_column: 0,
    add_column: 3,
    rename_column: 0,
    cast_column: 3,
    drop_column: 0,
    overwrite: 3,
    compact: 3,
    restore: 0,
    configure: 0,
    cleanup: 0,
    delete_and_clean_up: 2,
    clean_up_all: 3,
}
"""Number of tasks, out of three, whose work an earlier commit destroys."""

ON_INDEXES: dict[Act, int] = {
    build_index: 3,
    build_index_by_value: 3,
    index_some_fragments: 2,
    append_and_update_indexes: 0,
}
"""The same for changes of indexes, in a table without indexes."""


@contextlib.contextmanager
def before_commit(act: Callable[[], object], *, after_look: bool = False) -> Iterator[None]:
    """Lets something happen once, before a compaction's first commit, or after its look at the latest version."""
    acts = [act]

    def acting(real: Callable[..., Any]) -> Callable[..., Any]:
        def once(*arguments: Any, **more: Any) -> Any:
            if acts:
                acts.pop()()
            return real(*arguments, **more)

        return once

    owner, name = (
        (compaction_commit, "_attempt") if after_look else (compaction, "commit_compacted")
    )
    with patch.object(owner, name, acting(getattr(owner, name))):
        yield
    assert not acts, "it was not committed"


def unnamed_files(uri: str) -> set[str]:
    """Data files without a reference in any version."""
    dataset = lance.dataset(uri)
    referenced_files = {
        file.path
        for version in dataset.versions()
        for fragment in dataset.checkout_version(version["version"]).get_fragments()
        for file in fragment.data_files()
    }
    return {path.name for path in Path(uri, "data").iterdir() if path.is_file()} - referenced_files
