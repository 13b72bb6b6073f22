"""Changes by other writers to a table of `id`, `x` (the input), `y` and `v` (the target): one function per kind of
change, each on a location.

Ids are 0 to 39, ten in each of four fragments; `x` is the id. Changes affect rows of the first fragments, which a job
may already have committed, and rows of the last fragments.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql.types import LongType

import lance_spark
from tests.lance_spark.write.backfills import Backfill, computed, snapshot_rows
from tests.support import inline_rows

Act = Callable[[str], object]
"""A change; the argument is the table's location."""

ROWS = 40
FRAGMENT_ROWS = 10
STEP = 1001
"""The increment of `x` for a changed input: neither the old nor the new input has the result NULL."""


def make_table(uri: str, *, stable: bool) -> None:
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, uri, max_rows_per_file=FRAGMENT_ROWS, enable_stable_row_ids=stable)


def value(x: int) -> int | None:
    """The result of a job; NULL for some rows."""
    return None if x % 7 == 3 else x * 10


def rows_of(uri: str, rows: Mapping[int, int], **more: Any) -> pa.Table:
    """Returns rows as a source, by id and `x`."""
    schema = lance.dataset(uri).schema
    return pa.Table.from_pylist(
        [
            {name: {"id": i, "x": x, "y": i, **more}.get(name) for name in schema.names}
            for i, x in rows.items()
        ],
        schema=schema,
    )


def append(uri: str) -> None:
    lance.write_dataset(rows_of(uri, {1000: 1000, 1001: 1001}), uri, mode="append")


def append_with_values(uri: str) -> None:
    lance.write_dataset(rows_of(uri, {1000: 1000, 1001: 1001}, v=-1), uri, mode="append")


def insert_only(uri: str) -> None:
    source = rows_of(uri, {3: 777, 1000: 1000, 1001: 1001})
    lance.dataset(uri).merge_insert("id").when_not_matched_insert_all().execute(source)


def change_columns(uri: str) -> None:
    """Adds, renames and drops unrelated columns, and renames the input."""
    lance.dataset(uri).add_columns({"sum": "x + y"})
    lance.dataset(uri).add_columns(pa.schema([("empty", pa.int64())]))
    lance.dataset(uri).alter_columns({"path": "x", "name": "renamed_x"})
    lance.dataset(uri).alter_columns({"path": "sum", "name": "total"})
    lance.dataset(uri).drop_columns(["y"])


def rename_target(uri: str) -> None:
    lance.dataset(uri).alter_columns({"path": "v", "name": "w"})


def change_settings(uri: str) -> None:
    """Makes and drops indexes, and changes configuration and metadata."""
    lance.dataset(uri).create_scalar_index("id", "BTREE", name="of id")
    lance.dataset(uri).create_scalar_index("y", "BITMAP", name="of y")
    lance.dataset(uri).drop_index("of y")
    lance.dataset(uri).tags.create("theirs", lance.dataset(uri).version)
    lance.dataset(uri).update_config({"another": "writer"})
    lance.dataset(uri).update_metadata({"about": "numbers"})


def delete_rows(uri: str) -> None:
    lance.dataset(uri).delete("id IN (3, 4, 21, 35)")


def delete_fragment(uri: str) -> None:
    lance.dataset(uri).delete("id >= 30")


def update_other(uri: str) -> None:
    """Moves rows with unchanged inputs."""
    lance.dataset(uri).update({"y": "y + 500"}, where="id IN (5, 6, 10, 25, 35)")


def update_input(uri: str) -> None:
    """Moves rows with changed inputs."""
    lance.dataset(uri).update({"x": f"x + {STEP}"}, where="id IN (5, 25, 35)")


def update_other_of_the_left(uri: str) -> None:
    """Moves rows with unchanged inputs: a committed row, and two computed but uncommitted rows."""
    lance.dataset(uri).update({"y": "-y"}, where="id IN (5, 21, 22)")


def our_update_of_other(uri: str) -> None:
    """The same, by this package."""
    assert (
        inline_rows.update(
            uri, "id IN (5, 6, 10, 25, 35)", x="x", id="id", y="y + 500"
        ).rows_updated
        == 5
    )
    assert len(lance.dataset(uri).get_fragments()) > 4


def our_update_of_input(uri: str) -> None:
    """Moves rows with changed inputs, like :func:`update_input`."""
    assert inline_rows.update(uri, "id IN (5, 25, 35)", x=f"x + {STEP}").rows_updated == 3
    assert len(lance.dataset(uri).get_fragments()) > 4


def our_rewrite_of_input(uri: str) -> None:
    """Writes the input in place, as :func:`rewrite_input` does."""
    fragments = len(lance.dataset(uri).get_fragments())
    changed = f"x + {STEP} * CAST(id % 5 = 0 AS BIGINT)"
    assert inline_rows.update(uri, "id IN (5, 6, 7, 35, 36, 37)", x=changed).rows_updated == 6
    assert len(lance.dataset(uri).get_fragments()) == fragments


def our_delete(uri: str) -> None:
    """Deletes rows, as :func:`delete_rows` does."""
    assert inline_rows.delete(uri, "id IN (3, 4, 21, 35)").rows_deleted == 4


def our_delete_of_a_fragment(uri: str) -> None:
    assert inline_rows.delete(uri, "id >= 30").rows_deleted == 10


def update_input_of_the_left(uri: str) -> None:
    """Moves computed but uncommitted rows with changed inputs."""
    lance.dataset(uri).update({"x": f"x + {STEP}"}, where="id IN (20, 21)")


def rewrite_and_update_target(uri: str) -> None:
    rewrite_target(uri)
    lance.dataset(uri).update({"v": "-26"}, where="id = 26")


def delete_compact_and_delete(uri: str) -> None:
    delete_rows(uri)
    compact(uri)
    lance.dataset(uri).delete("id = 28")


def upsert(uri: str) -> None:
    """Moves rows of both kinds, and inserts a row."""
    # A writer that replaces whole rows, after reading the target.
    current_rows = (
        lance.dataset(uri).to_table(columns=["id", "v"]).to_pylist()
        if "v" in lance.dataset(uri).schema.names
        else []
    )
    values = {row["id"]: row["v"] for row in current_rows}
    source = rows_of(uri, {5: 5 + STEP, 6: 6, 25: 25 + STEP, 36: 36, 1000: 1000}).to_pylist()
    rows = [
        {**row, "y": -1, **({"v": values.get(row["id"])} if "v" in row else {})} for row in source
    ]
    table = pa.Table.from_pylist(rows, schema=lance.dataset(uri).schema)
    lance.dataset(uri).merge_insert(
        "id"
    ).when_matched_update_all().when_not_matched_insert_all().execute(table)


def rewrite(uri: str, column: str, values: Mapping[int, int | None]) -> None:
    """Gives rows values of a column in place, by id; they keep their places."""
    head = lance.dataset(uri)
    names = [*values]
    source = pa.table(
        {"id": names, column: pa.array(values.values(), head.schema.field(column).type)}
    )
    head.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source)


def rewrite_input(uri: str) -> None:
    """Rewrites the input's files of the first and the last fragment; two rows change."""
    rewrite(uri, "x", {5: 5 + STEP, 6: 6, 35: 35 + STEP, 36: 36})


def rewrite_other(uri: str) -> None:
    rewrite(uri, "y", {5: -5, 35: -35})


def rewrite_target(uri: str) -> None:
    rewrite(uri, "v", {5: -5, 35: -35})


def compact(uri: str, **more: Any) -> None:
    assert lance.dataset(uri).optimize.compact_files(**more).fragments_removed


def compact_in_rounds(uri: str) -> None:
    """Compacts twice, with deletions before, between and after."""
    lance.dataset(uri).delete("id IN (3, 21)")
    compact(uri, target_rows_per_fragment=20, materialize_deletions_threshold=0.0)
    lance.dataset(uri).delete("id IN (4, 22, 35)")
    compact(uri, materialize_deletions_threshold=0.0)
    lance.dataset(uri).delete("id IN (8, 36)")


IN_ROUNDS = {3, 4, 8, 21, 22, 35, 36}
"""Rows deleted by :func:`compact_in_rounds`."""


def compact_deferred(uri: str) -> None:
    """Compacts, and defers the remapping of indexes. Lance supports this only without stable row ids."""
    if not lance.dataset(uri).describe_indices():
        lance.dataset(uri).create_scalar_index("id", "BTREE")
    compact(uri, defer_index_remap=True)


def compact_and_update(uri: str) -> None:
    """Moves all rows, then some of them, and then all rows again."""
    compact(uri)
    update_input(uri)
    update_other(uri)
    compact(uri, materialize_deletions_threshold=0.0)


def restore_kept(uri: str) -> None:
    """Restores the version before an append."""
    before = lance.dataset(uri).version
    append(uri)
    lance.dataset(uri, version=before).restore()


def restore_unfilled(uri: str) -> None:
    """Restores the last version with an empty target."""
    versions = [version["version"] for version in lance.dataset(uri).versions()]
    unfilled = (
        n
        for n in reversed(versions)
        if not lance.dataset(uri, version=n).count_rows("v IS NOT NULL")
    )
    lance.dataset(uri, version=next(unfilled)).restore()


def restore_there_and_back(uri: str) -> None:
    """Restores the first version, without the column, and then the latest version."""
    before = lance.dataset(uri).version
    lance.dataset(uri, version=1).restore()
    lance.dataset(uri, version=before).restore()


def restore_past(uri: str) -> None:
    lance.dataset(uri, version=1).restore()


def overwrite(uri: str) -> None:
    lance.write_dataset(lance.dataset(uri).to_table(), uri, mode="overwrite")


def drop_target(uri: str) -> None:
    lance.dataset(uri).drop_columns(["v"])


def drop_and_reuse_id(uri: str) -> None:
    """Drops the target, and adds another column with possibly the same field id."""
    drop_target(uri)
    lance.dataset(uri).add_columns(pa.schema([("innocent", pa.int64())]))


def add_target(uri: str) -> None:
    lance.dataset(uri).add_columns(pa.schema([("v", pa.int64())]))


def add_target_with_values(uri: str) -> None:
    lance.dataset(uri).add_columns({"v": "id"})


def cast_target(uri: str) -> None:
    lance.dataset(uri).alter_columns({"path": "v", "data_type": pa.int32()})


def cast_input(uri: str) -> None:
    lance.dataset(uri).alter_columns({"path": "x", "data_type": pa.int32()})


def cast_input_and_rename(uri: str) -> None:
    lance.dataset(uri).alter_columns({"path": "x", "name": "z", "data_type": pa.int32()})


def backfill_another(uri: str) -> None:
    """Fills another column, by a DataFrame write."""
    Backfill(uri, "other", LongType()).run(computed(snapshot_rows(uri)))


def drop_input(uri: str) -> None:
    lance.dataset(uri).drop_columns(["x"])


def rewrite_input_and_cast(uri: str) -> None:
    rewrite_input(uri)
    cast_input(uri)


def rewrite_input_as_it_was(uri: str) -> None:
    rewrite(uri, "x", {5: 5, 25: 25, 35: 35})


def rewrite_input_of_null(uri: str) -> None:
    """Changes the input of a row computed as NULL, and gives another row an input whose result is NULL."""
    rewrite(uri, "x", {3: 3 + STEP, 4: 10})


def rewrite_one_input(uri: str) -> None:
    rewrite(uri, "x", {5: 5 + STEP})


def rewrite_input_like_another(uri: str) -> None:
    """Gives rows the input of another row."""
    rewrite(uri, "x", {5: 7, 35: 7})


def rewrite_target_with_null(uri: str) -> None:
    rewrite(uri, "v", {5: None, 6: None, 35: None})


def update_and_compact(uri: str) -> None:
    """Moves a row with a changed input, and then all rows."""
    lance.dataset(uri).update({"x": f"x + {STEP}"}, where="id = 15")
    compact_deletions(uri)


def update_input_and_unset_target(uri: str) -> None:
    lance.dataset(uri).update({"x": f"x + {STEP}", "v": "cast(null as bigint)"}, where="id = 7")


def update_input_and_target(uri: str) -> None:
    """Moves rows with changed inputs, two of them with the other writer's own value."""
    lance.dataset(uri).update({"x": f"x + {STEP}", "v": "-777"}, where="id IN (5, 35)")
    lance.dataset(uri).update({"x": f"x + {STEP}"}, where="id = 25")


def update_input_and_delete(uri: str) -> None:
    update_input(uri)
    lance.dataset(uri).delete("id IN (5, 35, 36)")


def delete_and_add_column(uri: str) -> None:
    """Deletes rows before and after a new column. pylance then refuses a commit that was built before the column."""
    delete_rows(uri)
    lance.dataset(uri).add_columns({"late": "y"})
    lance.dataset(uri).delete("id = 17")


def compact_deletions(uri: str) -> None:
    compact(uri, materialize_deletions_threshold=0.0)


def rewrite_and_compact_the_first(uri: str) -> None:
    """Writes an input in place, and compacts the first two fragments."""
    rewrite_one_input(uri)
    compact(uri, excluded_fragment_ids=[2, 3])


def compact_the_first_and_rewrite(uri: str) -> None:
    compact(uri, excluded_fragment_ids=[2, 3])
    rewrite_one_input(uri)


def index_target(uri: str) -> None:
    """Makes an index of the target, or drops an existing index."""
    if "of v" in {index.name for index in lance.dataset(uri).describe_indices()}:
        lance.dataset(uri).drop_index("of v")
    else:
        lance.dataset(uri).create_scalar_index("v", "BTREE", name="of v")


def delete_table(uri: str) -> None:
    shutil.move(uri, f"{uri}-gone")


def make_table_anew(uri: str) -> None:
    delete_table(uri)
    lance.write_dataset(pa.table({"id": [1], "x": [2]}), uri)


def clean_up_all(uri: str) -> None:
    """Also removes unreferenced files."""
    clean_up(uri, unverified=True)


def clean_up_ours(uri: str) -> None:
    """Removes leftovers of this package's jobs."""
    lance_spark.cleanup(uri, older_than=timedelta(days=7))


def clean_up(uri: str, *, unverified: bool = False) -> None:
    """Makes a new version, and removes all versions before it."""
    lance.dataset(uri).update_config({"cleaned": "up"})
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=unverified)
    assert len(lance.dataset(uri).versions()) == 1


def one_after_another(*acts: Act) -> Act:
    def act(uri: str) -> None:
        for each_act in acts:
            each_act(uri)

    act.__name__ = " then ".join(name_of(each_act) for each_act in acts)
    return act


def name_of(act: object) -> str:
    return getattr(act, "__name__", repr(act))


# Contents of a table, and messages


def assert_says_what_happened(text: str, uri: str, versions: range) -> None:
    """Asserts that a message names one of the versions, a time, and the table, and gives advice."""
    versions_named = {int(number) for number in re.findall(r"version (\d+)", text)}
    assert versions_named & set(versions), f"{text!r} does not say which version it was"
    assert re.search(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", text), (
        f"{text!r} does not say when it happened"
    )
    assert uri in text and len(re.split(r" - |\. ", text)) >= 3, "what happened, where, what to do"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignState:
    """The foreign state of a table: all contents except the values of the target.

    Attributes:
        rows: The other columns, and the stable row ids, by id.
        columns: Names and types of the other columns.
        settings: Indexes, tags, configuration and metadata, by kind.
    """

    rows: Mapping[int, Mapping[str, Any]]
    columns: Mapping[str, str]
    settings: Mapping[str, Any]

    @classmethod
    def at(cls, uri: str) -> ForeignState:
        """Returns the state of the latest version; an empty state without a table."""
        if not Path(uri, "_versions").exists():
            return cls(rows={}, columns={}, settings={})
        head = lance.dataset(uri)
        settings = {
            "indexes": {index.name for index in head.describe_indices()},
            "tags": set(head.tags.list()),
            "config": dict(head.config()),
            "metadata": dict(head.metadata),
        }
        columns = {
            field.name: str(field.type) for field in head.schema if field.name not in TARGETS
        }
        return cls(rows=work_of_others(uri), columns=columns, settings=settings)

    def x(self, row: int) -> int:
        """Returns the input of a row under any of its names, or the id if the input was dropped."""
        values = self.rows[row]
        value: int = next(values[name] for name in (*INPUT_NAMES, "id") if name in values)
        return value


INPUT_NAMES = ("x", "renamed_x", "z")
"""Names of the input."""

TARGETS = ("v", "w")
"""Names of the target."""


def work_of_others(uri: str, targets: Iterable[str] = TARGETS) -> dict[int, dict[str, Any]]:
    """Returns everything but the target, by id, with the stable row ids."""
    head = lance.dataset(uri)
    columns = [name for name in head.schema.names if name not in targets]
    table = head.scanner(columns=columns, with_row_id=head.has_stable_row_ids).to_table()
    rows = {row["id"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows, "rows are there twice"
    return rows


def column(uri: str, name: str = "v", *, key: str = "id") -> dict[int, Any]:
    table = lance.dataset(uri).to_table(columns=[key, name])
    return dict(zip(table[key].to_pylist(), table[name].to_pylist(), strict=True))


def unused_files(uri: str) -> set[str]:
    """Returns data files without a reference in any version, and the files of running jobs."""
    dataset = lance.dataset(uri)
    referenced_files = {
        file.path
        for version in dataset.versions()
        for fragment in dataset.checkout_version(version["version"]).get_fragments()
        for file in fragment.data_files()
    }
    data = {
        entry.name for entry in Path(uri, "data").iterdir() if entry.is_file()
    } - referenced_files
    job_files = [
        path for part in ("staging", "jobs") for path in Path(uri, "_lance_spark", part).rglob("*")
    ]
    return data | {os.path.relpath(path, uri) for path in job_files if path.is_file()}


def assert_indexes_agree(uri: str, name: str = "v") -> None:
    """Asserts that scans find the right rows, with and without indexes."""
    values = column(uri, name)
    expected: dict[str, set[int]] = {
        f"{name} IS NULL": {i for i, v in values.items() if v is None},
        f"{name} IS NOT NULL": {i for i, v in values.items() if v is not None},
        f"{name} < 0": {i for i, v in values.items() if v is not None and v < 0},
        f"{name} IN (50, 60, 250, 350)": {i for i, v in values.items() if v in (50, 60, 250, 350)},
        f"{name} >= 200": {i for i, v in values.items() if v is not None and v >= 200},
    }
    head = lance.dataset(uri)
    for text, ids in expected.items():
        for use in (True, False):
            ids_found = (
                head.scanner(columns=["id"], filter=text, use_scalar_index=use)
                .to_table()["id"]
                .to_pylist()
            )
            assert sorted(ids_found) == sorted(ids), (
                f"{text}, {'with' if use else 'without'} the index"
            )
