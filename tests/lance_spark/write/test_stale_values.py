"""Rows whose inputs changed during a write: values that the write cannot compute become NULL, and are counted row by
row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField

from lance_spark import last_commit
from lance_spark.errors import CommitConflictError
from tests.lance_spark.write.backfills import (
    Backfill,
    ColumnsWritten,
    between_look_and_commit,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)

CHANGED = {3, 4, 25}


@pytest.fixture
def path(tmp_path: Any) -> str:
    return str(tmp_path / "table.lance")


def update_inputs(path: str) -> None:
    lance.dataset(path).update({"text": "'changed'"}, where="id in (3, 4, 25)")


def update_a_whole_fragment_too(path: str) -> None:
    lance.dataset(path).update({"text": "'changed'"}, where="id in (3, 4, 25) or id < 10")


def update_and_compact(path: str) -> None:
    update_inputs(path)
    lance.dataset(path).optimize.compact_files(materialize_deletions_threshold=0.0)


def two_columns(path: str, second: str, **options: str) -> tuple[Backfill, ColumnsWritten]:
    """Writes two columns: `a`, which exists with values of an earlier write, and another column."""
    job = Backfill(
        path,
        "a",
        LongType(),
        options={"input_columns": "text", **options},
        extra=[StructField(second, LongType())],
    )
    rows = snapshot_rows(path)
    return job, job.task(
        [job.batch([at for at, _ in rows], [k * 10 for _, k in rows], [k * 100 for _, k in rows])]
    )


@pytest.mark.parametrize("act", [update_inputs, update_a_whole_fragment_too, update_and_compact])
def test_a_column_that_is_there_loses_old_copies_where_another_one_is_new(
    act: Callable[[str], None], path: str
) -> None:
    make_table(path, a=pa.int64())
    Backfill(path, "a", LongType()).run(computed(snapshot_rows(path), lambda k: -k - 1))
    job, message = two_columns(path, "n")
    act(path)
    result = job.commit(message)
    lost = CHANGED | set(range(10)) if act is update_a_whole_fragment_too else CHANGED
    assert column(path, "a") == {k: None if k in lost else k * 10 for k in range(30)}
    assert column(path, "n") == {k: None if k in lost else k * 100 for k in range(30)}
    assert (result.rows, result.rows_nulled, result.rows_gone) == (30 - len(lost), len(lost), 0)
    assert orphans(path) == set()


def filled(path: str, **options: str) -> tuple[Backfill, ColumnsWritten]:
    """Makes a table with two filled columns, `a` and `b`, and writes both."""
    make_table(path, a=pa.int64(), b=pa.int64())
    first = Backfill(path, "a", LongType(), extra=[StructField("b", LongType())])
    rows = snapshot_rows(path)
    first.commit(
        first.task(
            [first.batch([at for at, _ in rows], [-k for _, k in rows], [-k for _, k in rows])]
        )
    )
    return two_columns(path, "b", **options)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_row_is_compared_as_a_whole(compacted: bool, path: str) -> None:
    """A value written together with the new inputs, in any column, assigns the row to the other writer."""
    job, message = filled(path)
    lance.dataset(path).update({"text": "'new'", "a": "-777"}, where="id in (3, 25)")
    lance.dataset(path).update({"text": "'new'"}, where="id = 4")
    lance.dataset(path).update({"text": "'new'", "a": "-777", "b": "-888"}, where="id = 5")
    lance.dataset(path).update({"text": "'new'", "a": "NULL", "b": "NULL"}, where="id = 6")
    if compacted:
        lance.dataset(path).optimize.compact_files(materialize_deletions_threshold=0.0)
    result = job.commit(message)
    expected = {3: (-777, -3), 25: (-777, -25), 4: (None, None), 5: (-777, -888), 6: (None, None)}
    right = {k: expected.get(k, (k * 10, k * 100)) for k in range(30)}
    assert {k: (v, column(path, "b")[k]) for k, v in column(path, "a").items()} == right
    assert (result.rows, result.rows_nulled) == (25, 2), "rows without a value are counted"


def test_a_repair_removes_only_values_of_its_own_write(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = filled(path)

    def slip_in() -> None:
        source = pa.table({"id": pa.array([5, 6], pa.int64()), "text": ["u", "u"]})
        lance.dataset(path).merge_insert("id").when_matched_update_all().write_mode(
            "rewrite_columns"
        ).execute(source)

    between_look_and_commit(monkeypatch, slip_in)
    assert job.commit(message).rows_nulled == 2
    for name, factor in (("a", 10), ("b", 100)):
        assert column(path, name) == {k: None if k in {5, 6} else k * factor for k in range(30)}


@pytest.mark.parametrize(
    ("stable", "in_place", "deleted"),
    [
        (True, False, 0),
        (True, True, 0),
        (False, True, 0),
        (True, False, 30),
        (False, True, 30),
        (True, True, 10),
    ],
    ids=[
        "moved",
        "in place",
        "addresses",
        "moved and deleted",
        "addresses and deleted",
        "some deleted",
    ],
)
def test_a_write_that_leaves_no_value_leaves_its_counts(
    in_place: bool, stable: bool, deleted: int, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = pa.array(range(30), pa.int64())
    lance.write_dataset(
        pa.table({"id": ids, "text": ["t"] * 30, "other": ids}), path, enable_stable_row_ids=stable
    )
    job = Backfill(path, "n", LongType(), options={"input_columns": "text"})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    if in_place:
        rewrite = (
            lance.dataset(path)
            .merge_insert("id")
            .when_matched_update_all()
            .write_mode("rewrite_columns")
        )
        rewrite.execute(pa.table({"id": ids, "text": ["u"] * 30}))
    else:
        lance.dataset(path).update({"text": "'u'"})
    if deleted:
        lance.dataset(path).delete(f"id < {deleted}")
    result = job.commit(message)
    assert (result.rows, result.rows_nulled, result.rows_gone) == (0, 30 - deleted, deleted)
    assert last_commit(path) == result and result.version == lance.dataset(path).version
    assert "The write of n left no value" in caplog.text and path in caplog.text
    assert column(path, "n") == dict.fromkeys(range(deleted, 30)) and orphans(path) == set()


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
@pytest.mark.parametrize(
    "statement", ["true", "id >= 0", "id < 10"], ids=["truncated", "deleted", "one fragment"]
)
def test_a_write_whose_rows_were_all_deleted_leaves_its_counts(
    stable: bool, statement: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = pa.array(range(30), pa.int64())
    lance.write_dataset(
        pa.table({"id": ids}), path, enable_stable_row_ids=stable, max_rows_per_file=10
    )
    rows = 10 if statement == "id < 10" else 30
    job = Backfill(path, "n", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)[:rows]), strict=True))])
    lance.dataset(path).delete(statement)
    result = job.commit(message)
    assert (result.rows, result.rows_nulled, result.rows_gone) == (0, 0, rows)
    assert last_commit(path) == result and "The write of n left no value" in caplog.text
    assert column(path, "n") == dict.fromkeys(range(rows, 30)) and orphans(path) == set()


HALF = pa.float16()
NESTED = {
    "plain": (HALF, lambda half: half),
    "list": (pa.list_(HALF), lambda half: [half]),
    "vector": (pa.list_(HALF, 2), lambda half: [half, half]),
    "struct": (pa.struct([("x", HALF)]), lambda half: {"x": half}),
}


@pytest.mark.parametrize("kind", NESTED)
def test_half_precision_inputs_are_compared_as_single_precision_ones_are(
    kind: str, path: str
) -> None:
    type_, value_of = NESTED[kind]

    def table(*halves: float) -> pa.Table:
        values = pa.array([value_of(np.float16(half)) for half in halves] + [None], type_)
        return pa.table({"id": pa.array(range(5), pa.int64()), "h": values})

    lance.write_dataset(table(1.5, float("nan"), 0.0, 3.0), path, enable_stable_row_ids=True)
    job = Backfill(path, "c", LongType(), options={"input_columns": "h"})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    inputs = table(2.5, float("nan"), -0.0, 3.0)
    lance.dataset(path).merge_insert("id").when_matched_update_all().execute(inputs)
    assert job.commit(message).rows_nulled == 1
    assert column(path, "c") == {0: None, 1: 10, 2: 20, 3: 30, 4: 40}


@pytest.mark.parametrize("moment", ["before", "slipped"])
def test_a_column_that_may_not_be_null_and_has_rows_with_changed_inputs_is_refused(
    moment: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("text", pa.string()), pa.field("a", pa.int64(), nullable=False)]
    )
    values = {"id": range(20), "text": ["t"] * 20, "a": [-k for k in range(20)]}
    lance.write_dataset(
        pa.table(values, schema=schema), path, max_rows_per_file=10, enable_stable_row_ids=True
    )
    job = Backfill(path, "a", LongType(), options={"input_columns": "text"})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])

    def rewrite() -> None:
        source = pa.table({"id": pa.array([3, 15], pa.int64()), "text": ["u", "u"]})
        lance.dataset(path).merge_insert("id").when_matched_update_all().write_mode(
            "rewrite_columns"
        ).execute(source)

    if moment == "before":
        rewrite()
    else:
        between_look_and_commit(monkeypatch, rewrite)
    with pytest.raises(CommitConflictError, match=r"1 row changed.*'a' may not be NULL.*nullable"):
        job.commit(message)
    assert column(path, "a") == {k: -k for k in range(20)}
    assert orphans(path) == set()
