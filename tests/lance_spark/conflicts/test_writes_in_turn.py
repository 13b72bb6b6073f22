"""DataFrame writes in cases outside the table of conflicts: writes of some rows, two concurrent writes, missing data,
lost replies.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter
from pyspark.sql.types import LongType

from lance_spark import dataset
from lance_spark.errors import (
    CommitConflictError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    SnapshotError,
)
from tests.lance_spark.conflicts.cases import Moment
from tests.lance_spark.conflicts.jobs import slipping_in
from tests.lance_spark.conflicts.others import (
    STEP,
    Act,
    append,
    clean_up,
    clean_up_all,
    column,
    compact,
    delete_fragment,
    delete_rows,
    delete_table,
    one_after_another,
    rename_target,
    rewrite,
    rewrite_input,
    rewrite_target,
)
from tests.lance_spark.conflicts.writes import Layout, make, old, ours, write_while
from tests.lance_spark.write.backfills import (
    Backfill,
    ColumnsWritten,
    Rows,
    computed,
    orphans,
    snapshot_rows,
)

OLD = {i: old(i) for i in range(40)}
OURS = {i: ours(i) for i in range(40)}

MOMENT = pytest.mark.parametrize("moment", ["before", "slipped"])
LAYOUTS = pytest.mark.parametrize(
    ("moment", "stable", "layout"),
    [
        ("before", True, "runs"),
        ("before", False, "direct"),
        ("slipped", True, "direct"),
        ("slipped", False, "runs"),
    ],
)


def staged(path: str, rows: Rows | None = None) -> tuple[Backfill, ColumnsWritten]:
    """Returns a write of `v` after its only task, and the message of the task."""
    job = Backfill(path, "v", LongType(), options={"input_columns": "x"})
    rows_written = computed(snapshot_rows(path, key="x"), ours) if rows is None else rows
    return job, job.task([job.batch(*zip(*rows_written, strict=True))])


# Some of the rows


@pytest.mark.parametrize(("moment", "stable"), [("before", True), ("slipped", False)])
def test_rows_that_were_not_written_keep_their_value_through_a_compaction(
    moment: Moment, stable: bool, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    outcome = write_while(path, compact, moment, layout="runs", rows=lambda x: x % 3 == 0)
    assert outcome.counters("rows_carried", "rows") == {"rows_carried": 14, "rows": 14}
    outcome.check({i: old(i) for i in range(40) if i % 3}, rows=14)


def replace_target(uri: str) -> None:
    """Rewrites all values of the first fragment, in a new file."""
    head = lance.dataset(uri)
    schema = pa.schema([("v", pa.int64())])
    with LanceFileWriter(
        f"{uri}/data/others.lance", schema, version=head.data_storage_version
    ) as writer:
        writer.write_batch(pa.record_batch([pa.array([99] * 10, pa.int64())], schema=schema))
    file = lance.fragment.DataFile.create(head, "others.lance")
    operation = lance.LanceOperation.DataReplacement(
        [lance.LanceOperation.DataReplacementGroup(0, file)]
    )
    lance.LanceDataset.commit(head, operation, read_version=head.version)


@pytest.mark.parametrize("act", [rewrite_target, replace_target])
@LAYOUTS
def test_values_that_others_gave_rows_that_were_not_written_are_kept(
    act: Act, moment: Moment, stable: bool, layout: Layout, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    outcome = write_while(path, act, moment, layout=layout, rows=lambda x: x < 7 or x > 37)
    foreign_values = {i: old(i) for i in range(7, 38)}
    foreign_values |= {35: -35} if act is rewrite_target else dict.fromkeys(range(7, 10), 99)
    assert outcome.result.rows_carried == (9 if act is rewrite_target else 7)
    outcome.check(foreign_values, rows=9)


def test_an_input_that_is_rewritten_in_a_fragment_without_written_rows_is_no_conflict(
    path: str,
) -> None:
    make(path, kind="theirs")
    outcome = write_while(
        path, lambda uri: rewrite(uri, "x", {5: 5 + STEP}), "before", rows=lambda x: x >= 10
    )
    assert outcome.counters("rows_carried", "rows_nulled") == {"rows_carried": 0, "rows_nulled": 0}
    outcome.check(dict.fromkeys(range(10)), rows=30)


def test_a_write_without_rows_beside_a_compaction_commits_nothing(path: str) -> None:
    make(path)
    job = Backfill(path, "v", LongType(), options={"input_columns": "x"})
    message = job.task([])
    compact(path)
    job.commit(message)
    assert column(path) == OLD


def test_a_write_leaves_a_fragment_that_a_restore_brings_back(path: str) -> None:
    """Without stable row ids the former place of its rows is unknown, and irrelevant."""
    make(path, stable=False)
    before = lance.dataset(path).version
    delete_fragment(path)
    remaining_ids = [i for i in range(40) if not 30 <= i < 40]

    def act(uri: str) -> None:
        lance.dataset(uri).delete("id = 3")
        lance.dataset(uri, version=before).restore()
        lance.dataset(uri).delete("id = 4")

    outcome = write_while(path, act, "before")
    values = column(path)
    assert values == {i: ours(i) if i in remaining_ids else old(i) for i in range(40) if i != 4}
    assert outcome.counters("rows", "rows_gone") == {"rows": 29, "rows_gone": 1}


def test_a_target_that_was_renamed_before_the_read_is_written_under_its_name(path: str) -> None:
    make(path, indexed=True)
    rename_target(path)
    Backfill(path, "w", LongType()).run(computed(snapshot_rows(path, key="x"), ours))
    assert column(path, "w") == OURS


def test_an_index_on_the_column_does_not_return_old_values(path: str) -> None:
    make(path, indexed=True)
    Backfill(path, "v", LongType()).run(computed(snapshot_rows(path, key="x")[:10], ours))
    head = lance.dataset(path)
    assert head.to_table(filter="v = -6").num_rows == 0
    assert head.to_table(filter="v = 50")["id"].to_pylist() == [5]
    assert head.to_table(filter="v = -16")["id"].to_pylist() == [15]


# Rebuilt commits


def test_deleted_rows_stay_deleted_if_the_commit_is_rebuilt(path: str) -> None:
    make(path, indexed=True)
    first = one_after_another(
        delete_rows, lambda uri: lance.dataset(uri).add_columns({"late": "y"})
    )
    second = one_after_another(
        lambda uri: lance.dataset(uri).delete("id = 17"), lambda uri: rewrite(uri, "v", {8: -8})
    )
    with slipping_in(path, second):
        write_while(path, first, "slipped")
    assert column(path) == {i: ours(i) for i in range(40) if i not in (3, 4, 17, 21, 35)}


@pytest.mark.parametrize("stable", [True, False])
def test_a_write_never_brings_a_deleted_row_back(stable: bool, path: str) -> None:
    """Deletions after the committer's look affect the fragment of the new file."""
    make(path, stable=stable, indexed=True)
    deleted = [0, 9, 10, 11, 12, 39]

    def act(uri: str) -> None:
        for i in deleted:
            lance.dataset(uri).delete(f"id = {i}")

    outcome = write_while(path, act, "slipped")
    assert set(outcome.others.rows) == set(range(40)) - set(deleted)
    assert lance.dataset(path).count_rows() == 34
    outcome.check()
    live = {f.fragment_id: f.metadata.num_deletions for f in lance.dataset(path).get_fragments()}
    assert live == {0: 2, 1: 3, 2: 0, 3: 1}


# Two writes


@LAYOUTS
def test_the_last_of_two_writes_of_a_column_wins(
    moment: Moment, stable: bool, layout: Layout, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    rows = snapshot_rows(path, key="x")

    def other_write(uri: str) -> None:
        Backfill(uri, "v", LongType()).run(computed(rows, lambda x: x + 7))

    write_while(path, other_write, moment, layout=layout).check()


def test_other_fragments_of_the_same_column_may_be_filled_by_another_write(path: str) -> None:
    make(path, kind="theirs")
    rows = computed(snapshot_rows(path, key="x"), ours)
    (first, message_one), (second, message_two) = staged(path, rows[:10]), staged(path, rows[10:])
    first.commit(message_one)
    second.commit(message_two)
    assert column(path) == OURS


def test_two_writes_of_the_same_new_column_do_not_mix(path: str) -> None:
    make(path, kind="new")
    (first, message_one), (second, message_two) = (
        staged(path),
        staged(path, computed(snapshot_rows(path, key="x"), old)),
    )
    first.commit(message_one)
    with pytest.raises(CommitConflictError):
        second.commit(message_two)
    assert column(path) == OURS


def test_a_column_that_a_dead_write_added_and_never_filled_is_taken_over(path: str) -> None:
    make(path, kind="new")
    job, message = staged(path)
    Backfill(path, "v", LongType()).commit()
    assert set(column(path).values()) == {None}
    job.commit(message)
    assert column(path) == OURS


def test_values_of_a_column_whose_id_another_column_has_are_refused(path: str) -> None:
    """Lance reuses a field id only if no data file holds the column."""
    make(path, kind="new")
    Backfill(path, "v", LongType()).commit()
    before = {field.name(): field.id() for field in lance.dataset(path).lance_schema.fields()}
    job, message = staged(path)
    lance.dataset(path).drop_columns(["v"])
    lance.dataset(path).add_columns(pa.schema([("innocent", pa.int64())]))
    after = {field.name(): field.id() for field in lance.dataset(path).lance_schema.fields()}
    assert after["innocent"] == before["v"], (
        "Lance does not use field ids again any more: this test proves nothing"
    )
    with pytest.raises(CommitImpossibleError, match="column 'v'"):
        job.commit(message)
    assert set(column(path, "innocent").values()) == {None}


# Lost answers


def test_a_repeated_commit_returns_the_first_result(path: str) -> None:
    make(path, kind="new")
    job, message = staged(path)
    first = job.commit(message)
    append(path)
    version = lance.dataset(path).version
    assert job.commit(message) == first
    assert lance.dataset(path).version == version
    job.writer.abort([message])
    assert column(path) == {**OURS, 1000: None, 1001: None}


def test_a_reply_that_was_lost_does_not_commit_twice(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(path, kind="theirs")
    job, message = staged(path)
    real = lance.LanceDataset.commit

    def lossy(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(lance.LanceDataset, "commit", real)
        real(*args, **kwargs)
        raise OSError("connection reset")

    version = lance.dataset(path).version
    monkeypatch.setattr(lance.LanceDataset, "commit", lossy)
    result = job.commit(message)
    assert result.version == lance.dataset(path).version == version + 1
    assert column(path) == OURS
    assert orphans(path) == set()


# Missing data


@MOMENT
def test_the_deletion_of_the_table_is_reported(moment: Moment, path: str) -> None:
    make(path)
    with pytest.raises(CommitImpossibleError, match="deleted"):
        write_while(path, delete_table, moment)


def test_a_task_whose_version_was_cleaned_up_says_so(path: str) -> None:
    make(path)
    job = Backfill(path, "v", LongType(), options={"input_columns": "x"})
    rows = computed(snapshot_rows(path, key="x"), ours)
    append(path)
    clean_up(path)
    dataset._open_pinned.cache_clear()  # as in the process of a task
    with pytest.raises(SnapshotError, match=r"cleaned up while .* write") as caught:
        job.task([job.batch(*zip(*rows, strict=True))])
    assert path in str(caught.value) and "Tag the version" in str(caught.value)


def test_without_history_a_recreated_column_is_an_error(path: str) -> None:
    make(path, kind="theirs")
    job, message = staged(path)
    lance.dataset(path).drop_columns(["v"])
    lance.dataset(path).add_columns(pa.schema([("v", pa.int64())]))
    lance.dataset(path).cleanup_old_versions(older_than=timedelta(0))
    dataset._open_pinned.cache_clear()  # as in the process of a commit
    before = lance.dataset(path).to_table()
    with pytest.raises(CommitImpossibleError, match="may have been dropped and recreated"):
        job.commit(message)
    assert lance.dataset(path).to_table() == before


def test_a_file_deleted_at_the_moment_of_the_commit_is_reported_with_the_version_to_restore(
    path: str,
) -> None:
    make(path)
    version = lance.dataset(path).version + 1  # the version of the cleanup
    with pytest.raises(
        CommitOutcomeUnknownError, match=rf"4 fragments \(0, 1, 2, 3\).*restore version {version}"
    ) as caught:
        write_while(path, clean_up_all, "slipped")
    assert path in str(caught.value)
    lance.dataset(path, version=version).restore()
    assert column(path) == OLD


def test_a_cleanup_that_deletes_written_files_is_reported(path: str) -> None:
    make(path, indexed=True)
    with pytest.raises(LanceSparkError, match=r"not there|missing|clean") as caught:
        write_while(path, clean_up_all, "before")
    assert path in str(caught.value)
    assert column(path) == OLD
    assert orphans(path) == set()


@pytest.mark.parametrize("act", [delete_rows, rewrite_input])
def test_a_commit_that_is_cleaned_up_while_a_column_is_added_is_not_passed_over(
    act: Act, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance adds the column to the version before that commit, which was cleaned up."""
    make(path, kind="new")
    job, message = staged(path)
    real, acts = lance.LanceDataset.add_columns, [act, clean_up]

    def late(self: lance.LanceDataset, *arguments: Any, **more: Any) -> Any:
        while acts:
            acts.pop(0)(path)
        return real(self, *arguments, **more)

    monkeypatch.setattr(lance.LanceDataset, "add_columns", late)
    with pytest.raises(
        CommitOutcomeUnknownError, match=r"undone earlier commits .*cleaned up at the same moment"
    ):
        job.commit(message)
