"""Indexes with concurrent writers during building and maintenance: queries agree with and without the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from lance_spark import (
    CommitConflictError,
    CommitImpossibleError,
    IndexExistsError,
    Table,
    last_commit,
)
from lance_spark.commit import schema_change
from lance_spark.indexes import build
from lance_spark.indexes import commit as committing
from tests.lance_spark.indexes.conftest import (
    FRAGMENT_ROWS,
    KINDS,
    ROWS,
    create,
    rows,
    vectors,
    wrong_answers,
)

pytestmark = pytest.mark.sample(2, tests=2)

Opened = Callable[..., Table]


def replace_column_file(path: str, column: str) -> None:
    """Rewrites a column of fragment 1 in place, as a backfill does."""
    dataset = lance.dataset(path)
    values = {
        "x": pa.array([500 + i % 3 for i in range(FRAGMENT_ROWS)], pa.int64()),
        "y": pa.array([1] * FRAGMENT_ROWS, pa.int64()),
        "text": pa.array([f"new{i % 3} text" for i in range(FRAGMENT_ROWS)]),
        "tags": pa.array([["q9"]] * FRAGMENT_ROWS),
        "vec": vectors(FRAGMENT_ROWS, 9),
    }[column]
    name = f"replaced-{column}-{dataset.version}.lance"
    with LanceFileWriter(
        f"{path}/data/{name}", pa.schema([pa.field(column, values.type)])
    ) as writer:
        writer.write_batch(pa.record_batch({column: values}))
    group = LanceOperation.DataReplacementGroup(1, DataFile.create(dataset, name))
    lance.LanceDataset.commit(
        dataset, LanceOperation.DataReplacement([group]), read_version=dataset.version
    )


def update(path: str) -> None:
    data = rows(500, 200, seed=3)
    data = data.set_column(1, "x", pa.array([501] * 200, pa.int64())).set_column(
        3, "text", pa.array(["new1 word7"] * 200)
    )
    lance.dataset(path).merge_insert("id").when_matched_update_all().execute(data)


def compact(path: str) -> None:
    lance.dataset(path).optimize.compact_files(target_rows_per_fragment=2 * FRAGMENT_ROWS)


CONCURRENT_CHANGES: dict[str, Callable[[str, str], object]] = {
    "appends": lambda path, _: lance.write_dataset(rows(ROWS, 100, 4), path, mode="append"),
    "deletes rows": lambda path, _: lance.dataset(path).delete("id % 7 = 0"),
    "deletes a fragment": lambda path, _: lance.dataset(path).delete(f"id < {FRAGMENT_ROWS}"),
    "updates": lambda path, _: update(path),
    "rewrites the column": replace_column_file,
    "rewrites another column": lambda path, _: replace_column_file(path, "y"),
    "compacts": lambda path, _: compact(path),
    "deletes and compacts": lambda path, _: (
        lance.dataset(path).delete("id % 5 = 0"),
        compact(path),
    ),
    "updates and compacts": lambda path, _: (update(path), compact(path)),
    "adds a column": lambda path, _: lance.dataset(path).add_columns({"z": "x + 1"}),
    "drops another column": lambda path, _: lance.dataset(path).drop_columns(["y"]),
    "renames another column": lambda path, _: lance.dataset(path).alter_columns(
        {"path": "y", "name": "yy"}
    ),
    "makes another index": lambda path, _: lance.dataset(path).create_scalar_index(
        "id", "BTREE", name="other"
    ),
}


def acting(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *acts: Callable[[], object]
) -> list[int]:
    """Lets something happen before each of the first calls of a function; counts the calls."""
    real, calls, remaining = getattr(owner, name), [0], list(acts)

    def acts_first(*arguments: Any, **more: Any) -> Any:
        calls[0] += 1
        if remaining:
            remaining.pop(0)()
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, acts_first)
    return calls


STABLE = {True: "stable ids", False: "addresses"}


def cases(quick: set[tuple[str, bool]]) -> list[Any]:
    """Returns each kind of index with both kinds of row ids; the cases outside `quick` are long."""
    return [
        pytest.param(
            kind,
            stable,
            id=f"{kind}, {STABLE[stable]}",
            marks=[] if (kind, stable) in quick else [pytest.mark.long],
        )
        for kind in KINDS
        for stable in STABLE
    ]


@pytest.mark.parametrize("change", CONCURRENT_CHANGES)
@pytest.mark.parametrize(("kind", "stable"), cases({("BTREE", True), ("IVF_FLAT", False)}))
def test_changes_by_other_writers_while_an_index_is_built(
    kind: str,
    stable: bool,
    change: str,
    opened: Opened,
    table_path: str,
    small_tasks: None,
    monkeypatch: Any,
):
    table = opened(stable=stable)
    acting(
        monkeypatch,
        build,
        "commit_index",
        lambda: CONCURRENT_CHANGES[change](table_path, KINDS[kind]),
    )
    create(table, kind)
    assert wrong_answers(table_path, kind) == []
    stats = table.index_stats("ix")
    added = {"appends": 100, "updates": 200, "updates and compacts": 0}.get(change, 0)
    assert stats.num_unindexed_rows == added, "rows that came later are left to optimize_indices"
    table.optimize_indices("ix")
    assert table.index_stats("ix").num_unindexed_rows == 0
    assert wrong_answers(table_path, kind) == []


@pytest.mark.guarantee("I04")
@pytest.mark.parametrize(
    ("kind", "stable"),
    cases(
        {("BTREE", True), ("BITMAP", False), ("FTS", True), ("LABEL_LIST", False), ("IVF_PQ", True)}
    ),
)
def test_an_index_stays_right_under_backfills_updates_deletions_and_upkeep(
    kind: str, stable: bool, opened: Opened, table_path: str, small_tasks: None
):
    table = opened(stable=stable)
    create(table, kind)
    for act in ("rewrites the column", "updates", "deletes rows", "compacts"):
        CONCURRENT_CHANGES[act](table_path, KINDS[kind])
        assert wrong_answers(table_path, kind) == [], act
        table.optimize_indices()
        assert wrong_answers(table_path, kind) == [], f"{act}, optimized"
        assert table.index_stats("ix").num_unindexed_rows == 0


def test_an_index_of_which_little_would_be_left_is_built_again(
    opened: Opened, table_path: str, small_tasks: None, monkeypatch: Any
):
    table = opened()
    calls = acting(monkeypatch, build, "commit_index", lambda: compact(table_path))
    create(table, "BTREE")
    assert calls == [2] and table.index_stats("ix").num_unindexed_rows == 0
    commit = last_commit(table_path)
    assert commit is not None and (commit.operation, commit.columns, commit.rows) == (
        "index",
        ("x",),
        ROWS,
    )


@pytest.mark.parametrize(
    "act",
    [
        lambda path: lance.dataset(path).drop_columns(["x"]),
        lambda path: lance.dataset(path).alter_columns({"path": "x", "data_type": pa.int32()}),
        lambda path: lance.write_dataset(rows(0, 10).drop(["x"]), path, mode="overwrite"),
    ],
    ids=["drops", "casts", "overwrites"],
)
@pytest.mark.parametrize("moment", ["before the look", "after the look"])
def test_a_column_that_goes_meanwhile_ends_it(
    moment: str, act: Any, opened: Opened, table_path: str, monkeypatch: Any
):
    table = opened()
    owner, name = (
        (build, "commit_index") if moment == "before the look" else (committing, "attempt_commit")
    )
    acting(monkeypatch, owner, name, lambda: act(table_path))
    with pytest.raises(CommitImpossibleError, match=r"'x' was dropped.*Nothing was committed"):
        create(table, "BTREE")
    assert table.list_indices() == []
    assert table.count_rows("id = 7") == 1


@pytest.mark.parametrize("change", ["rewrites the column", "compacts", "appends", "updates"])
def test_changes_between_look_and_commit_do_not_harm_an_index(
    change: str, opened: Opened, table_path: str, small_tasks: None, monkeypatch: Any
):
    table = opened()
    acting(
        monkeypatch,
        committing,
        "attempt_commit",
        lambda: CONCURRENT_CHANGES[change](table_path, "x"),
    )
    create(table, "BTREE")
    assert wrong_answers(table_path, "BTREE") == []


def test_an_index_that_landed_over_rewritten_rows_is_taken_out(
    opened: Opened, table_path: str, monkeypatch: Any
):
    table = opened()
    real = committing.attempt_commit

    def sends_later(head: Any, *arguments: Any, read_version: int, **more: Any) -> Any:
        if isinstance(arguments[0], LanceOperation.CreateIndex) and arguments[0].new_indices:
            replace_column_file(table_path, "x")  # hide the call from pylance
            return real(
                lance.dataset(table_path), *arguments, read_version=read_version + 1, **more
            )
        return real(head, *arguments, read_version=read_version, **more)

    monkeypatch.setattr(committing, "attempt_commit", sends_later)
    with pytest.raises(CommitConflictError, match="index was dropped"):
        create(table, "BTREE")
    assert table.list_indices() == [] and wrong_answers(table_path, "BTREE") == []


def test_of_two_that_make_one_index_the_last_one_stays(
    opened: Opened, table_path: str, monkeypatch: Any
):
    table = opened()
    acting(monkeypatch, build, "commit_index", lambda: create(table, "BITMAP"))
    create(table, "BTREE")
    assert [(index.name, index.index_type) for index in table.list_indices()] == [("ix", "BTree")]
    acting(monkeypatch, build, "commit_index", lambda: create(table, "BITMAP", name="second"))
    with pytest.raises(IndexExistsError):
        table.create_scalar_index("x", name="second", replace=False)


def test_an_index_is_dropped_and_optimized_beside_writers(
    opened: Opened, table_path: str, monkeypatch: Any
):
    table = opened()
    create(table, "BTREE")
    real = schema_change.attempt_commit

    def drops(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(schema_change, "attempt_commit", real)
        compact(table_path)
        return real(*arguments, **more)

    monkeypatch.setattr(schema_change, "attempt_commit", drops)
    table.drop_index("ix")
    assert schema_change.attempt_commit is real and table.list_indices() == []
    create(table, "BTREE")
    for number in range(3):
        lance.write_dataset(rows(ROWS + 100 * number, 100, 4 + number), table_path, mode="append")
    optimizer = type(lance.dataset(table_path).optimize)
    really = optimizer.optimize_indices

    def optimizes(self: Any, **options: Any) -> None:
        monkeypatch.setattr(optimizer, "optimize_indices", really)
        compact(table_path)
        really(self, **options)

    monkeypatch.setattr(optimizer, "optimize_indices", optimizes)
    table.optimize_indices()
    assert (
        table.index_stats("ix").num_unindexed_rows == 0 and wrong_answers(table_path, "BTREE") == []
    )
