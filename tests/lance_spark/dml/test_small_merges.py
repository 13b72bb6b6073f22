"""Merges in a single task, without Spark, compared with a model in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import lance_spark
from lance_spark.dml import merge as merge_module
from lance_spark.dml import source as merge_source
from lance_spark.errors import MergeError
from tests.support import inline_rows

KEYS = {
    pa.int32(): st.integers(-3, 12),
    pa.int64(): st.integers(-3, 12),
    pa.string(): st.sampled_from(["", "a", "b'c", "é", "`d`", "e"]),
}
PLAIN = (pa.int8(), pa.int64())


@st.composite
def merges(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(KEYS)))
    keys = st.one_of(st.none(), KEYS[kind])
    source_kind = draw(st.sampled_from(PLAIN)) if pa.types.is_integer(kind) else kind
    return {
        "kind": kind,
        "table": draw(st.lists(keys, max_size=12)),
        "source": draw(st.lists(keys, max_size=8)),
        "type": source_kind,
        "whole": draw(st.booleans()),
        "updates": (updates := draw(st.booleans())),
        "inserts": draw(st.booleans()) or not updates,
        "stable": draw(st.booleans()),
        "indexed": draw(st.booleans()),
        "gone": draw(st.sets(st.integers(0, 11))),
        "is_staged": draw(st.booleans()),
    }


@given(merge=merges())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_small_merge_is_that_of_rows_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, merge: dict[str, Any]
) -> None:
    uri = str(tmp_path_factory.mktemp("merge") / "t")
    keys, updates, inserts = merge["table"], merge["updates"], merge["inserts"]
    table = pa.table(
        {
            "k": pa.array(keys, merge["kind"]),
            "n": pa.array(range(len(keys)), pa.int64()),
            "s": pa.array(["x"] * len(keys), pa.string()),
        }
    )
    lance.write_dataset(table, uri, max_rows_per_file=5, enable_stable_row_ids=merge["stable"])
    if merge["indexed"] and keys:
        lance.dataset(uri).create_scalar_index("k", "BTREE")
    deleted = {i for i in merge["gone"] if i < len(keys)}
    if deleted:
        lance.dataset(uri).delete(f"n IN ({', '.join(map(str, deleted))})")
    source = pa.table(
        {
            "k": pa.array(merge["source"], merge["type"]),
            "n": pa.array(range(100, 100 + len(merge["source"])), pa.int64()),
        }
    )
    if merge["whole"]:
        source = source.append_column("s", pa.array(["y"] * len(source), pa.string()))
    expected, added, changed = [], [], 0
    twice = False
    source_rows = source.to_pylist()
    for number, key in enumerate(keys):
        if number in deleted:
            continue
        matching = (
            [row for row in source_rows if key is not None and row["k"] == key] if updates else []
        )
        twice |= len(matching) > 1
        changed += bool(matching)
        expected.append({"k": key, "n": number, "s": "x"} | (matching[0] if matching else {}))
    present_keys = {
        key for number, key in enumerate(keys) if number not in deleted and key is not None
    }
    if inserts:
        added = [{"s": None, **row} for row in source_rows if row["k"] not in present_keys]
    version = lance.dataset(uri).version
    sent_bytes = patch.object(merge_source, "_SENT_BYTES", -1 if merge["is_staged"] else 1 << 20)
    if twice:
        event("two rows of the source match one")
        with (
            sent_bytes,
            pytest.raises(MergeError, match="Several rows of the source match the row"),
        ):
            inline_rows.merge_small(uri, "k", source, updates=updates, inserts=inserts)
        assert lance.dataset(uri).version == version
        return
    with sent_bytes:
        result = inline_rows.merge_small(uri, "k", source, updates=updates, inserts=inserts)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (
        len(added),
        changed,
        0,
    )
    dataset = lance.dataset(uri)
    dataset.validate()
    assert dataset.version == version + bool(added or changed)
    order = [("k", "ascending"), ("n", "ascending")]
    expected_table = pa.Table.from_pylist([*expected, *added], table.schema)
    assert (
        dataset.to_table().sort_by(order).to_pylist() == expected_table.sort_by(order).to_pylist()
    )


def test_a_merge_of_few_keys_into_many_fragments_counts_their_rows_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The third merge has too many fragments for a task, and Spark joins its keys: a session is missing."""
    uri = str(tmp_path / "t.lance")
    keys = [*range(30), 5]
    lance.write_dataset(
        pa.table({"k": keys, "n": keys}), uri, max_rows_per_file=3, enable_stable_row_ids=True
    )
    monkeypatch.setattr(merge_module, "TASK_BYTES", 7 << 19)
    source = pa.table({"k": [5, 99], "n": [-1, -2]})
    result = inline_rows.merge_small(uri, "k", source, updates=True, inserts=True)
    assert (result.rows_inserted, result.rows_updated) == (1, 2)
    source = pa.table({"k": pa.array([None], pa.int64()), "n": [-3]})
    assert inline_rows.merge_small(uri, "k", source, updates=True, inserts=True).rows_inserted == 1
    with pytest.raises(AttributeError):
        inline_rows.merge_small(
            uri, "k", pa.table({"k": range(9), "n": range(9)}), updates=True, inserts=True
        )
    rows = sorted(lance.dataset(uri).to_table()["n"].to_pylist())
    assert rows == sorted([n for n in range(30) if n != 5] + [-1, -1, -2, -3])


@pytest.mark.parametrize("is_lost", [False, True], ids=["reply", "lost reply"])
@pytest.mark.parametrize("slips", ["delete", "append"])
def test_an_insert_only_merge_beside_another_tool_at_the_moment_of_the_commit_is_serializable(
    slips: str, is_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other tool commits between the look and the commit; the reply to the commit may be lost, too."""
    uri, commit, moments = str(tmp_path / "t.lance"), lance.LanceDataset.commit, iter([True])
    lance.write_dataset(pa.table({"id": [1, 2], "x": [0, 9]}), uri, enable_stable_row_ids=True)

    def slipping(*arguments: Any, **more: Any) -> lance.LanceDataset:
        if not next(moments, False):
            return commit(*arguments, **more)
        if slips == "delete":
            lance.dataset(uri).delete("x > 5")
        else:
            lance.write_dataset(pa.table({"id": [10], "x": [7]}), uri, mode="append")
        landed = commit(*arguments, **more)
        if is_lost:
            raise OSError("the reply was lost")
        return landed

    monkeypatch.setattr(lance.LanceDataset, "commit", slipping)
    inline_rows.merge_small(
        uri, "id", pa.table({"id": [2, 10], "x": [9, 9]}), updates=False, inserts=True
    )
    rows = sorted((row["id"], row["x"]) for row in lance.dataset(uri).to_table().to_pylist())
    # The merge first, or the other tool first.
    orders = {
        "delete": [[(1, 0)], [(1, 0), (2, 9), (10, 9)]],
        "append": [[(1, 0), (2, 9), (10, 7), (10, 9)], [(1, 0), (2, 9), (10, 7)]],
    }
    assert rows in orders[slips]


@pytest.mark.parametrize("has_key", [False, True], ids=["no key", "primary key"])
@pytest.mark.parametrize("rows", [0, 2])
def test_two_merges_at_once_insert_a_key_once(
    rows: int, has_key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second merge commits between the look of the first merge and its commit."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])
    table = lance_spark.connect(tmp_path).create_table(
        "t", pa.table({"id": range(rows), "x": [0] * rows}, schema)
    )
    if has_key:
        table.set_unenforced_primary_key("id")
    commit, moments, results = lance.LanceDataset.commit, iter([True]), []

    def merge(x: int) -> None:
        source = pa.table({"id": [1, 7], "x": [x, x]}, schema)
        results.append(inline_rows.merge_small(table.uri, "id", source, updates=True, inserts=True))

    def commit_second(*arguments: Any, **more: Any) -> lance.LanceDataset:
        if next(moments, False):
            merge(2)
        return commit(*arguments, **more)

    monkeypatch.setattr(lance.LanceDataset, "commit", commit_second)
    version = table.version
    merge(1)
    expected = [{"id": 0, "x": 0}] * (rows > 0) + [{"id": 1, "x": 1}, {"id": 7, "x": 1}]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    second, first = results
    assert (first.rows_updated, first.rows_inserted, first.version) == (2, 0, version + 2)
    assert second.rows_updated + second.rows_inserted == 2 and second.version == version + 1
