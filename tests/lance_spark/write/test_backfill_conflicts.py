"""What becomes of a backfill when somebody else commits between its read and its commit; every row of the table in docs/commits.md."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.dataset import Transaction
from lance.file import LanceFileWriter
from lance.fragment import DataFile
from pyspark.sql.types import DoubleType, LongType

from lance_spark import dataset
from lance_spark.commit.conflicts.history import last_commit
from lance_spark.errors import CommitConflictError, CommitError, CommitImpossibleError, LanceSparkError
from tests.lance_spark.write.backfills import (
    Backfill,
    between_look_and_commit,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)

Change = Callable[[str], object]


@pytest.fixture
def path(tmp_path: Any) -> str:
    return str(tmp_path / "table.lance")


def append(path: str) -> None:
    schema = lance.dataset(path).schema
    values = {"id": 1000, "text": "new", "other": 5}
    lance.write_dataset(
        pa.Table.from_pylist([{k: values.get(k) for k in schema.names}], schema=schema), path, mode="append"
    )


def delete_rows(path: str) -> None:
    lance.dataset(path).delete("id % 5 = 1")


def delete_a_fragment(path: str) -> None:
    lance.dataset(path).delete("id < 10")


def update_by_row_rewrite(path: str) -> None:
    lance.dataset(path).update({"text": "'changed'"}, where="id in (3, 4, 25)")


def upsert(path: str) -> None:
    head = lance.dataset(path)
    rows = [{**dict.fromkeys(head.schema.names), "id": i, "text": "up", "other": 0} for i in (5, 6, 1000)]
    source = pa.Table.from_pylist(rows, schema=head.schema)
    head.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


def rewrite_in_place(path: str, name: str, values: pa.Array, ids: list[int] | None = None) -> None:
    source = pa.table({"id": pa.array(ids or [5, 6], pa.int64()), name: values})
    lance.dataset(path).merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source)


def rewrite_an_input_in_place(path: str) -> None:
    rewrite_in_place(path, "text", pa.array(["u", "u"]))


def rewrite_another_column_in_place(path: str) -> None:
    rewrite_in_place(path, "other", pa.array([7, 7], pa.int64()))


def rewrite_the_target_in_place(path: str) -> None:
    rewrite_in_place(path, "c", pa.array([-5, -6], pa.int64()))


def compact(path: str) -> None:
    assert lance.dataset(path).optimize.compact_files().fragments_removed


def replace_column(path: str, name: str, value: int, fragment_id: int = 0) -> None:
    head = lance.dataset(path)
    rows = head.get_fragment(fragment_id).metadata.physical_rows
    schema = pa.schema([(name, pa.int64())])
    file = f"by-somebody-{name}-{value}.lance"
    with LanceFileWriter(f"{path}/data/{file}", schema, version=head.data_storage_version) as writer:
        writer.write_batch(pa.record_batch([pa.array([value] * rows, pa.int64())], schema=schema))
    groups = [LanceOperation.DataReplacementGroup(fragment_id, DataFile.create(head, file))]
    operation = LanceOperation.DataReplacement(groups)
    lance.LanceDataset.commit(head, Transaction(read_version=head.version, operation=operation))


def backfill_another_column(path: str) -> None:
    Backfill(path, "d", LongType()).run(computed(snapshot_rows(path), lambda k: k + 7))


def add_a_column(path: str) -> None:
    lance.dataset(path).add_columns({"plus": "id + 1"})


def drop_another_column(path: str) -> None:
    lance.dataset(path).drop_columns(["other"])


def rename_another_column(path: str) -> None:
    lance.dataset(path).alter_columns({"path": "other", "name": "renamed"})


def index_an_input(path: str) -> None:
    lance.dataset(path).create_scalar_index("id", "BTREE")


def set_config(path: str) -> None:
    lance.dataset(path).update_config({"somebody": "else"})


def drop_the_column(path: str) -> None:
    lance.dataset(path).drop_columns(["c"])


def drop_the_column_and_reuse_its_id(path: str) -> None:
    before = {field.name(): field.id() for field in lance.dataset(path).lance_schema.fields()}
    lance.dataset(path).drop_columns(["c"])
    lance.dataset(path).add_columns(pa.schema([("innocent", pa.int64())]))
    after = {field.name(): field.id() for field in lance.dataset(path).lance_schema.fields()}
    assert after["innocent"] == before["c"], "Lance does not use field ids again any more: this test proves nothing"


def cast_the_column(path: str) -> None:
    lance.dataset(path).alter_columns({"path": "c", "data_type": pa.int32()})


def rename_the_column(path: str) -> None:
    lance.dataset(path).alter_columns({"path": "c", "name": "cc"})


def overwrite(path: str) -> None:
    lance.write_dataset(lance.dataset(path).to_table(), path, mode="overwrite")


def restore_past(path: str) -> None:
    lance.dataset(path, version=1).restore()


COMMITTED: list[Change] = [
    append,
    delete_rows,
    delete_a_fragment,
    update_by_row_rewrite,
    upsert,
    compact,
    rewrite_an_input_in_place,
    backfill_another_column,
    add_a_column,
    rename_another_column,
    index_an_input,
    set_config,
]
COMMITTED_WITH_INPUTS: list[Change] = [rewrite_another_column_in_place, drop_another_column]
"""These change a column that is no input; which ones are, the option says."""

REFUSED_EXISTING: list[tuple[Change, type[LanceSparkError], str]] = [
    (drop_the_column, CommitImpossibleError, "column 'c': it was dropped"),
    (drop_the_column_and_reuse_its_id, CommitImpossibleError, "column 'c'"),
    (cast_the_column, CommitImpossibleError, "its type changed from int64 to int32"),
    (overwrite, CommitError, "Overwrite at version"),
    (restore_past, CommitImpossibleError, "Restore at version"),
]
REFUSED_NEW: list[tuple[Change, type[LanceSparkError], str]] = [
    (
        lambda path: lance.dataset(path).add_columns(pa.schema([("c", pa.int64())])),
        CommitConflictError,
        "by a concurrent writer",
    ),
    (lambda path: lance.dataset(path).add_columns({"c": "id"}), CommitConflictError, "by a concurrent writer"),
    (overwrite, CommitImpossibleError, "Overwrite at version"),
]


def contents(path: str) -> list[dict[str, Any]]:
    return lance.dataset(path).to_table().to_pylist()


CHANGED: dict[Change, set[int]] = {
    update_by_row_rewrite: {3, 4, 25},
    upsert: {5, 6},
    rewrite_an_input_in_place: {5, 6},
}
"""Rows whose inputs an operation changes."""


def check_values(path: str, other: Change) -> None:
    """Each row has its own value; rows that came meanwhile, and those whose inputs changed, have none."""
    nulls = CHANGED.get(other, set()) | {1000}
    assert column(path, "c") == {key: None if key in nulls else key * 10 for key in column(path, "text")}


@pytest.mark.parametrize("exclusive", [False, True], ids=["runs", "direct"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
@pytest.mark.parametrize("other", [*COMMITTED, *COMMITTED_WITH_INPUTS], ids=lambda f: f.__name__)
def test_values_are_committed_on_top_of(other: Change, is_new: bool, exclusive: bool, path: str) -> None:
    make_table(path, **({} if is_new else {"c": pa.int64()}))
    options = {"input_columns": "id,text"} if other in COMMITTED_WITH_INPUTS else {}
    job = Backfill(path, "c", LongType(), options=options, spec={"exclusive": exclusive})
    rows = computed(snapshot_rows(path))
    messages = [
        job.task([job.batch(*zip(*part, strict=True))]) for part in ((rows,) if exclusive else (rows[::2], rows[1::2]))
    ]
    other(path)
    theirs = contents(path)
    result = job.commit(*messages)
    check_values(path, other)
    ours = [{k: v for k, v in row.items() if k != "c"} for row in contents(path)]
    assert ours == [{k: v for k, v in row.items() if k != "c"} for row in theirs], "another writer's work changed"
    assert orphans(path) == set()
    assert result.version == lance.dataset(path).version
    assert last_commit(path) == result
    written = {row["id"] for row in contents(path) if row["c"] is not None}
    assert result.rows == len(written) and result.rows + result.rows_gone + result.rows_nulled == 30
    assert result.rows_nulled == len(CHANGED.get(other, ()))


def test_a_fragment_that_was_deleted_is_dropped_and_reported(path: str) -> None:
    make_table(path)
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    delete_a_fragment(path)
    result = job.commit(message)
    assert (result.fragments_gone, result.rows_gone, result.rows, result.fragments) == ((0,), 10, 20, 2)


def test_rows_whose_inputs_an_update_changed_do_not_keep_the_copied_value(path: str) -> None:
    make_table(path)
    Backfill(path, "c", LongType()).run(computed(snapshot_rows(path), lambda k: -k))
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    update_by_row_rewrite(path)
    result = job.commit(message)
    assert (result.rows_gone, result.rows_nulled, result.new_rows) == (0, 3, 0)
    assert column(path, "c") == {k: None if k in {3, 4, 25} else k * 10 for k in range(30)}


@pytest.mark.parametrize(
    "other", [rewrite_the_target_in_place, lambda path: replace_column(path, "c", 99)], ids=["some", "all"]
)
def test_values_that_are_written_win_over_what_somebody_wrote_meanwhile(other: Change, path: str) -> None:
    make_table(path, c=pa.int64())
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)[:6]), strict=True))])
    other(path)
    theirs = column(path, "c")
    result = job.commit(message)
    assert column(path, "c") == {k: k * 10 if k < 6 else theirs[k] for k in range(30)}
    assert (result.rows, result.rows_carried) == (6, 6)


@pytest.mark.parametrize("exclusive", [False, True], ids=["runs", "direct"])
@pytest.mark.parametrize("token", [False, True], ids=["their-column", "our-column"])
@pytest.mark.parametrize(("other", "error", "text"), REFUSED_EXISTING, ids=range(len(REFUSED_EXISTING)))
def test_values_for_an_existing_column_are_refused_after(
    other: Change, error: type[LanceSparkError], text: str, token: bool, exclusive: bool, path: str
) -> None:
    make_table(path, **({} if token else {"c": pa.int64()}))
    if token:
        if other is drop_the_column_and_reuse_its_id:
            # Field ids are used again only where no data file holds the column.
            job = Backfill(path, "c", LongType())
            job.commit()
        else:
            Backfill(path, "c", LongType()).run(computed(snapshot_rows(path), lambda k: -k))
    job = Backfill(path, "c", LongType(), spec={"exclusive": exclusive})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    other(path)
    refuses(job, message, path, error, text)


@pytest.mark.parametrize(("other", "error", "text"), REFUSED_NEW, ids=range(len(REFUSED_NEW)))
def test_values_for_a_new_column_are_refused_after(
    other: Change, error: type[LanceSparkError], text: str, path: str
) -> None:
    make_table(path)
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    other(path)
    refuses(job, message, path, error, text)


def refuses(job: Backfill, message: Any, path: str, error: type[LanceSparkError], text: str) -> None:
    before, version, orphaned = contents(path), lance.dataset(path).version, orphans(path)
    assert orphaned, "nothing was staged"
    with pytest.raises(error, match=text) as caught:
        job.commit(message)
    assert path in str(caught.value)
    assert contents(path) == before and lance.dataset(path).version == version
    assert orphans(path) == set()
    job.writer.abort([message])
    assert contents(path) == before


def test_other_fragments_of_the_same_column_may_be_filled_by_somebody_else(path: str) -> None:
    make_table(path, c=pa.int64())
    rows = computed(snapshot_rows(path))
    first, second = Backfill(path, "c", LongType()), Backfill(path, "c", LongType())
    one = first.task([first.batch(*zip(*rows[:10], strict=True))])
    two = second.task([second.batch(*zip(*rows[10:], strict=True))])
    first.commit(one)
    second.commit(two)
    assert column(path, "c") == {k: k * 10 for k in range(30)}


def test_two_backfills_of_the_same_new_column_do_not_mix(path: str) -> None:
    make_table(path)
    rows = snapshot_rows(path)
    first, second = Backfill(path, "c", LongType()), Backfill(path, "c", LongType())
    one = first.task([first.batch(*zip(*computed(rows), strict=True))])
    two = second.task([second.batch(*zip(*computed(rows, lambda k: -k), strict=True))])
    first.commit(one)
    with pytest.raises(CommitConflictError):
        second.commit(two)
    assert column(path, "c") == {k: k * 10 for k in range(30)}


def test_a_column_that_a_dead_job_added_and_never_filled_is_taken_over(path: str) -> None:
    make_table(path)
    job, dead = Backfill(path, "c", LongType()), Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    dead.commit()
    assert set(column(path, "c").values()) == {None}
    job.commit(message)
    assert column(path, "c") == {k: k * 10 for k in range(30)}


@pytest.mark.parametrize("remembered", [True, False], ids=["same-process", "new-process"])
def test_what_was_cleaned_up_is_not_guessed_about(remembered: bool, path: str) -> None:
    make_table(path, c=pa.int64())
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    lance.dataset(path).drop_columns(["c"])
    lance.dataset(path).add_columns(pa.schema([("c", pa.int64())]))
    lance.dataset(path).cleanup_old_versions(older_than=timedelta(0))
    if not remembered:
        dataset._open_pinned.cache_clear()
    before = contents(path)
    with pytest.raises(CommitImpossibleError, match="not known any more"):
        job.commit(message)
    assert contents(path) == before


def test_a_repeated_commit_returns_the_first_result(path: str) -> None:
    make_table(path)
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    first = job.commit(message)
    append(path)
    version = lance.dataset(path).version
    assert job.commit(message) == first
    assert lance.dataset(path).version == version
    job.writer.abort([message])
    assert column(path, "c") == {**{k: k * 10 for k in range(30)}, 1000: None}


def test_a_reply_that_was_lost_does_not_commit_twice(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(path, c=pa.int64())
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    real = lance.LanceDataset.commit

    def lossy(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(lance.LanceDataset, "commit", real)
        real(*args, **kwargs)
        raise OSError("connection reset")

    version = lance.dataset(path).version
    monkeypatch.setattr(lance.LanceDataset, "commit", lossy)
    result = job.commit(message)
    assert result.version == lance.dataset(path).version == version + 1
    assert column(path, "c") == {k: k * 10 for k in range(30)}
    assert orphans(path) == set()


@pytest.mark.parametrize("was_filled", [False, True], ids=["null-before", "filled-before"])
def test_an_input_rewritten_between_look_and_commit_leaves_no_stale_value(
    was_filled: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(path, c=pa.int64())
    if was_filled:
        Backfill(path, "c", LongType()).run(computed(snapshot_rows(path), lambda k: -k))
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    between_look_and_commit(monkeypatch, lambda: rewrite_an_input_in_place(path))
    result = job.commit(message)
    assert result.rows_nulled == 2 and result.version == lance.dataset(path).version
    assert column(path, "c") == {k: None if k in {5, 6} else k * 10 for k in range(30)}
    assert column(path, "text")[5] == "u", "the other writer's work was lost"
    for version in lance.dataset(path).versions():
        lance.dataset(path, version=version["version"]).to_table()
    assert last_commit(path) == result
    assert orphans(path) == set()


def test_an_input_rewritten_between_look_and_commit_takes_the_commit_back_where_that_is_an_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(path, c=pa.int64())
    Backfill(path, "c", LongType()).run(computed(snapshot_rows(path), lambda k: -k))
    job = Backfill(path, "c", LongType(), options={"on_stale": "error"})
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    before = column(path, "c")
    between_look_and_commit(monkeypatch, lambda: rewrite_an_input_in_place(path))
    with pytest.raises(CommitConflictError, match="taken back") as caught:
        job.commit(message)
    assert caught.value.fragments == (0,)
    assert column(path, "c") == before
    assert column(path, "text")[5] == "u", "the other writer's work was lost"


@pytest.mark.parametrize(
    "other", [append, delete_rows, index_an_input, set_config, update_by_row_rewrite, delete_a_fragment]
)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
def test_harmless_commits_between_look_and_commit_do_no_harm(
    other: Change, is_new: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(path, **({} if is_new else {"c": pa.int64()}))
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    between_look_and_commit(monkeypatch, lambda: other(path))
    job.commit(message)
    check_values(path, other)


@pytest.mark.parametrize("other", [append, delete_rows, add_a_column, update_by_row_rewrite], ids=lambda f: f.__name__)
def test_a_commit_beside_the_new_column_loses_nothing(
    other: Change, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(path)
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    real = lance.LanceDataset.add_columns
    done: list[bool] = []

    def late(self: lance.LanceDataset, transforms: Any, *args: Any, **kwargs: Any) -> Any:
        if not done:
            done.append(True)
            other(path)
        return real(self, transforms, *args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "add_columns", late)
    result = job.commit(message)
    assert result.retries == 1
    check_values(path, other)
    assert {"add_a_column": "plus" in lance.dataset(path).schema.names}.get(other.__name__, True)


def test_deleted_rows_stay_deleted_whatever_the_file_holds(path: str) -> None:
    make_table(path, c=pa.int64())
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    lance.dataset(path).delete("id in (0, 9, 15)")
    result = job.commit(message)
    assert column(path, "c") == {k: k * 10 for k in range(30) if k not in (0, 9, 15)}
    assert (result.rows, result.rows_gone) == (27, 3)


def test_an_index_on_the_column_does_not_return_old_values(path: str) -> None:
    make_table(path)
    Backfill(path, "c", LongType()).run(computed(snapshot_rows(path), lambda k: -k))
    lance.dataset(path).create_scalar_index("c", "BTREE")
    Backfill(path, "c", LongType()).run(computed(snapshot_rows(path)[:10]))
    head = lance.dataset(path)
    assert head.to_table(filter="c = -5").num_rows == 0
    assert head.to_table(filter="c = 50")["id"].to_pylist() == [5]
    assert head.to_table(filter="c = -15")["id"].to_pylist() == [15]


def test_a_type_that_is_cast_meanwhile_is_not_written_under_the_old_id(path: str) -> None:
    make_table(path, c=pa.float64())
    job = Backfill(path, "c", DoubleType())
    message = job.task([job.batch(*zip(*computed(snapshot_rows(path), float), strict=True))])
    lance.dataset(path).alter_columns({"path": "c", "data_type": pa.float32()})
    with pytest.raises(CommitImpossibleError, match="double to float"):
        job.commit(message)


def test_an_input_overlay_or_rewrite_in_another_fragment_is_no_conflict(path: str) -> None:
    make_table(path, c=pa.int64())
    rows = computed(snapshot_rows(path))[10:]
    job = Backfill(path, "c", LongType())
    message = job.task([job.batch(*zip(*rows, strict=True))])
    rewrite_an_input_in_place(path)
    job.commit(message)
    assert column(path, "c") == {k: k * 10 if k >= 10 else None for k in range(30)}
    assert np.unique(list(column(path, "text").values())).size == 29
