"""Ends of concurrent jobs: abort and commit, cleanup, failing stores, and forbidden contents of a table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from lance_spark.commit import commit_loop
from lance_spark.commit.commit_loop import CommitPolicy, Rounds
from lance_spark.commit.rows import append_commit
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    OptionError,
    SchemaMismatchError,
    TableUnreadableError,
)
from lance_spark.staging import area, column_file, processes
from lance_spark.staging.orphans import remove_orphans
from lance_spark.storage.objects import LanceObjects
from lance_spark.write.append_writer import LanceAppendWriter
from tests.lance_spark.write.appends import batches, ids_in, plan, unused_files, write
from tests.lance_spark.write.backfills import (
    Backfill,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.lance"


def append_job(path: Path) -> tuple[LanceAppendWriter, Any]:
    write(path, 0)
    job = plan(path)
    return job, job.write(batches(1))


def backfill_job(path: Path) -> tuple[Any, Any]:
    make_table(str(path))
    job = Backfill(str(path), "c", LongType())
    return job.writer, job.task([job.batch(*zip(*computed(snapshot_rows(str(path))), strict=True))])


JOBS = {"append": append_job, "backfill": backfill_job}


def assert_readable_and_clean(path: Path) -> None:
    for version in lance.dataset(str(path)).versions():
        lance.dataset(str(path), version=version["version"]).to_table()
    assert orphans(str(path)) == set()


@pytest.mark.parametrize("kind", JOBS)
def test_a_commit_after_an_abort_commits_nothing(kind: str, path: Path) -> None:
    job, message = JOBS[kind](path)
    version = lance.dataset(str(path)).version
    job.abort([message])
    with pytest.raises(CommitError):
        job.commit([message])
    assert lance.dataset(str(path)).version == version
    assert_readable_and_clean(path)


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("where", ["before the marker", "after the marker", "before the version"])
def test_an_abort_during_a_commit_leaves_all_or_nothing(
    kind: str, where: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = JOBS[kind](path)
    version = lance.dataset(str(path)).version
    aborted: list[bool] = []

    def abort() -> None:
        if not aborted:
            aborted.append(True)
            job.abort([message])

    put, commit = LanceObjects.put, lance.LanceDataset.commit

    def put_beside(objects: LanceObjects, name: str, data: bytes) -> None:
        if where == "before the marker" and name.endswith("/committing"):
            abort()
        put(objects, name, data)
        if where == "after the marker" and name.endswith("/committing"):
            abort()

    def commit_beside(*args: Any, **kwargs: Any) -> Any:
        if where == "before the version":
            abort()
        return commit(*args, **kwargs)

    monkeypatch.setattr(LanceObjects, "put", put_beside)
    monkeypatch.setattr(lance.LanceDataset, "commit", commit_beside)
    try:
        job.commit([message])
    except CommitError:
        assert where != "before the version"
        assert lance.dataset(str(path)).version == version
    else:
        assert where == "before the version"
        assert lance.dataset(str(path)).version > version
    assert aborted
    monkeypatch.undo()
    assert_readable_and_clean(path)


@pytest.mark.parametrize("kind", JOBS)
def test_an_abort_after_the_committed_version_was_cleaned_up_keeps_the_files(
    kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = JOBS[kind](path)
    with monkeypatch.context() as patch:
        patch.setattr(area.Staging, "sweep", lambda *_, **__: 0)
        job.commit([message])
    rows = lance.dataset(str(path)).count_rows()
    lance.dataset(str(path)).delete("id = 0")
    lance.dataset(str(path)).cleanup_old_versions(older_than=timedelta(0))
    monkeypatch.setattr(processes, "is_running", lambda _: False)
    job.abort([message])
    assert len(lance.dataset(str(path)).to_table()) == rows - 1
    assert_readable_and_clean(path)


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_has_committed_does_not_fail_because_its_leftovers_cannot_be_deleted(
    kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, message = JOBS[kind](path)
    version = lance.dataset(str(path)).version

    def refuse(*_: object, **__: object) -> int:
        raise OSError("permission denied")

    monkeypatch.setattr(area.Staging, "sweep", refuse)
    job.commit([message])
    assert lance.dataset(str(path)).version > version


def test_a_deletion_that_stops_halfway_is_finished_by_cleanup(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    message = job.write(batches(1, 2, 3, 4, 5))
    delete, deleted = area.delete_data_file, []

    def two_only(objects: Any, name: str) -> None:
        if len(deleted) == 2:
            raise OSError("connection reset")
        deleted.append(name)
        delete(objects, name)

    with monkeypatch.context() as patch:
        patch.setattr(area, "delete_data_file", two_only)
        with pytest.raises(OSError, match="connection reset"):
            job.abort([message])
    assert remove_orphans(str(path), older_than=timedelta(0)) == 3
    assert unused_files(path) == set()


def test_a_malformed_number_of_retries_is_found_before_any_row_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES", "many")
    with pytest.raises(OptionError, match="many"):
        plan(path)
    assert not path.exists()


def test_a_store_that_fails_after_a_commit_without_an_answer_leaves_the_outcome_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 0)
    ref = DatasetRef.at(f"file-object-store://{path}").pin(None)
    opened: list[bool] = []

    def open_head(ref: DatasetRef) -> lance.LanceDataset | None:
        opened.append(True)
        if len(opened) > 1:
            raise TableUnreadableError(ref.uri, "no answer", hint="wait")
        return ref.open_latest()

    monkeypatch.setattr(commit_loop, "open_head", open_head)
    monkeypatch.setattr(commit_loop, "Rounds", functools.partial(Rounds, sleep=lambda _: None))
    with pytest.raises(CommitOutcomeUnknownError):
        commit_loop.commit_job(
            ref,
            "job",
            1,
            lambda *_: commit_loop.Unknown(error=OSError("timeout")),
            CommitPolicy(),
        )


def rows_with_null() -> Any:
    return iter(
        [pa.record_batch({"id": pa.array([1], pa.int64()), "s": pa.array([None], pa.string())})]
    )


def forbid_null(path: Path) -> None:
    lance.dataset(str(path)).alter_columns({"path": "s", "nullable": False})


def overwrite_with_another_column(path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("s", pa.string()), pa.field("z", pa.int64(), nullable=False)]
    )
    lance.write_dataset(
        pa.table({"id": [9], "s": ["x"], "z": [1]}, schema=schema), str(path), mode="overwrite"
    )


@pytest.mark.parametrize(
    "change", [forbid_null, overwrite_with_another_column], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("slips", [False, True], ids=["before", "between"])
def test_rows_are_refused_by_a_table_that_does_not_take_their_nulls_any_more(
    change: Callable[[Path], None], slips: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 0)
    job = plan(path)
    message = job.write(rows_with_null())
    if slips:
        real = append_commit.attempt_commit
        todo = [change]

        def late(*args: Any, **kwargs: Any) -> Any:
            while todo:
                todo.pop()(path)
            return real(*args, **kwargs)

        monkeypatch.setattr(append_commit, "attempt_commit", late)
    else:
        change(path)
    with pytest.raises(CommitError, match=r"null|NULL"):
        job.commit([message])
    assert 1 not in ids_in(path)


def test_a_backfill_is_refused_by_a_column_that_may_not_be_null_any_more(path: Path) -> None:
    make_table(str(path))
    job = Backfill(str(path), "other", LongType())
    message = job.task(
        [job.batch(*zip(*[(a, None) for a, _ in snapshot_rows(str(path))], strict=True))]
    )
    lance.dataset(str(path)).alter_columns({"path": "other", "nullable": False})
    with pytest.raises(CommitImpossibleError, match="NULL"):
        job.commit(message)
    assert column(str(path), "other") == {k: k * 2 for k in range(30)}


def test_a_struct_without_some_of_the_columns_fields_is_refused(path: Path) -> None:
    table = pa.table({"id": [1], "s": pa.array([[{"x": 1, "y": 2}]])})
    lance.write_dataset(table, str(path), enable_stable_row_ids=True)
    with pytest.raises(SchemaMismatchError, match="lacks the fields 'y'"):
        Backfill(str(path), "s", ArrayType(StructType([StructField("x", LongType())])))


@pytest.mark.parametrize("new_columns", ["all rows", "some rows"])
@pytest.mark.parametrize("state", ["one is new", "one was never filled", "a fragment lacks one"])
def test_columns_of_which_fragments_have_files_of_some_are_filled_at_once(
    state: str, new_columns: str, path: Path
) -> None:
    """Lance replaces or adds files of a fragment, but never both in one operation."""
    at = str(path)
    make_table(at, **({} if state == "one is new" else {"n": pa.int64()}))
    if state == "a fragment lacks one":
        rows = snapshot_rows(at)
        Backfill(at, "n", LongType()).run([(a, k) for a, k in rows if a >> 32 != 1])
    old = {k: k * 2 for k in range(30)}
    before = column(at, "n") if state != "one is new" else dict.fromkeys(old)
    job = Backfill(at, "other", LongType(), extra=[StructField("n", LongType())])
    rows = [(a, k) for a, k in snapshot_rows(at) if new_columns == "all rows" or k % 3 == 0]
    message = job.task(
        [job.batch([a for a, _ in rows], [k * 10 for _, k in rows], [-k for _, k in rows])]
    )
    result = job.commit(message)
    chosen = {k for _, k in rows}
    assert result.rows == len(rows)
    assert column(at, "other") == {k: k * 10 if k in chosen else old[k] for k in range(30)}
    assert column(at, "n") == {k: -k if k in chosen else before[k] for k in range(30)}
    assert_readable_and_clean(path)


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
def test_an_answer_that_was_lost_while_gaps_were_filled_loses_nothing(
    landed: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = str(path)
    make_table(at, n=pa.int64())
    job = Backfill(at, "other", LongType(), extra=[StructField("n", LongType())])
    rows = snapshot_rows(at)
    message = job.task(
        [job.batch([a for a, _ in rows], [k * 10 for _, k in rows], [-k for _, k in rows])]
    )
    real = lance.LanceDataset.commit

    def lossy(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(lance.LanceDataset, "commit", real)
        if landed:
            real(*args, **kwargs)
        raise OSError("connection reset")

    monkeypatch.setattr(lance.LanceDataset, "commit", lossy)
    job.commit(message)
    assert column(at, "other") == {k: k * 10 for k in range(30)}
    assert column(at, "n") == {k: -k for k in range(30)}
    assert_readable_and_clean(path)


@pytest.mark.parametrize("cleaned", [False, True], ids=["", "snapshot cleaned up"])
def test_a_target_that_was_renamed_is_a_conflict_before_one_that_is_new_is_added(
    cleaned: bool, path: Path
) -> None:
    at = str(path)
    make_table(at)
    job = Backfill(at, "other", LongType(), extra=[StructField("n", LongType())])
    addresses, values = zip(*computed(snapshot_rows(at)), strict=True)
    message = job.task([job.batch(addresses, values, [-value for value in values])])
    lance.dataset(at).alter_columns({"path": "other", "name": "renamed"})
    if cleaned:
        lance.dataset(at).cleanup_old_versions(older_than=timedelta(0))
    before = lance.dataset(at).to_table()
    with pytest.raises(CommitConflictError, match="renamed to 'renamed'"):
        job.commit(message)
    assert lance.dataset(at).to_table() == before
    assert_readable_and_clean(path)


def test_old_values_are_read_in_windows_of_what_they_take_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, size = 4000, 20_000
    table = pa.table(
        {"id": pa.array(range(rows), pa.int64()), "wide": pa.array(["x" * size] * rows)}
    )
    lance.write_dataset(table, str(path), enable_stable_row_ids=True, max_rows_per_file=rows)
    read: list[int] = []
    real = column_file.ColumnFile._read_old

    def counting_read(self: Any, start: int, count: int) -> pa.Table:
        old_rows = real(self, start, count)
        read.append(old_rows.nbytes)
        return old_rows

    monkeypatch.setattr(column_file.ColumnFile, "_read_old", counting_read)
    job = Backfill(str(path), "wide", StringType())
    job.run([(7, "new")])
    assert sum(read) >= rows * size * 0.9
    assert max(read) <= column_file._WINDOW_BYTES * 1.1
    assert column(str(path), "wide")[7] == "new"
