"""A commit lands, and the store fails during the checks after the commit."""

from __future__ import annotations

import functools
import itertools
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction
from pyspark.sql.types import LongType

import lance_spark
from lance_spark.commit import app_transaction, column_commit, column_plan, schema_change, verify
from lance_spark.commit.attempt import Landed, Lost, Unknown
from lance_spark.commit.rows import append_commit, compaction_commit, row_commit
from lance_spark.commit.rows.compaction_commit import Basis, Compacted, commit_compacted
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    TableNotFoundError,
)
from lance_spark.staging.data_files import delete_unnamed_files
from tests.lance_spark.commit import column_commits
from tests.lance_spark.write import appends
from tests.lance_spark.write.backfills import (
    Backfill,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)

MOST = 1000
"""More failures than a commit has checks."""

TRANSACTION: dict[str, Any] = {"txn_app_id": "nightly", "txn_version": 7}


def fail(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, times: int) -> None:
    """Makes the first calls of a function fail."""
    real, numbers = getattr(owner, name), itertools.count()

    def call(*arguments: Any) -> Any:
        if next(numbers) < times:
            raise OSError("Too many open files (os error 24)")
        return real(*arguments)

    monkeypatch.setattr(owner, name, call)


@pytest.fixture
def table(jobs: Any, tmp_path: Path) -> lance_spark.Table:
    db = lance_spark.connect(str(tmp_path), jobs, progress=False)
    return db.create_table("t", [{"id": i, "n": 0} for i in range(4)])


@pytest.mark.parametrize("times", [1, MOST])
@pytest.mark.parametrize("kind", ["add", "update"])
def test_a_repeated_write_finds_its_commit(
    table: lance_spark.Table, kind: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = append_commit.attempt_commit

    def attempt_late(*arguments: Any, **more: Any) -> Any:
        lance.write_dataset(pa.table({"id": [9], "n": [0]}), table.uri, mode="append")
        return attempt(*arguments, **more)

    if kind == "add":
        write: Any = functools.partial(table.add, [{"id": 4, "n": 1}], **TRANSACTION)
        monkeypatch.setattr(append_commit, "attempt_commit", attempt_late)
    else:
        write = functools.partial(table.update, "id = 1", values_sql={"n": "n + 1"}, **TRANSACTION)
    fail(monkeypatch, app_transaction if kind == "add" else row_commit, "fresh_events", times)
    if times == 1:
        write()
    else:
        with pytest.raises(CommitOutcomeUnknownError):
            write()
    monkeypatch.undo()
    version = lance.dataset(table.uri).version
    write()
    assert lance.dataset(table.uri).version == version
    assert sum(row["n"] for row in lance.dataset(table.uri).to_table().to_pylist()) == 1


def test_an_update_whose_version_was_cleaned_up_is_not_repeated(
    table: lance_spark.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, check = row_commit.attempt_commit, row_commit.fresh_events

    def append() -> None:
        lance.write_dataset(pa.table({"id": [9], "n": [0]}), table.uri, mode="append")

    def attempt_late(*arguments: Any, **more: Any) -> Any:
        append()
        return attempt(*arguments, **more)

    def clean_up(*arguments: Any) -> Any:
        monkeypatch.setattr(row_commit, "fresh_events", check)
        append()
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
        raise OSError("Too many open files (os error 24)")

    monkeypatch.setattr(row_commit, "attempt_commit", attempt_late)
    monkeypatch.setattr(row_commit, "fresh_events", clean_up)
    with pytest.raises(CommitOutcomeUnknownError, match="a cleanup deleted the version"):
        table.update("id = 1", values_sql={"n": "n + 1"})
    assert sum(row["n"] for row in lance.dataset(table.uri).to_table().to_pylist()) == 1


@pytest.mark.parametrize("times", [1, MOST])
def test_a_compaction_keeps_its_files(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(
        pa.table({"id": range(4)}), uri, max_rows_per_file=1, enable_stable_row_ids=True
    )
    dataset = lance.dataset(uri)
    (task,) = Compaction.plan(dataset, {}).tasks
    part = Compacted(olds=tuple(task.fragments), rewrite=task.execute(dataset).json())
    commit = functools.partial(
        commit_compacted,
        DatasetRef.at(uri),
        Basis.of(dataset),
        [part],
        missing=lambda _: frozenset(),
    )
    fail(monkeypatch, compaction_commit, "first_unknown", times)
    if times == 1:
        assert commit().version == lance.dataset(uri).version
    else:
        with pytest.raises(CommitOutcomeUnknownError):
            commit()
    delete_unnamed_files(DatasetRef.at(uri).pin(1), part.files)
    assert len(lance.dataset(uri).get_fragments()) == 1
    assert lance.dataset(uri).to_table()["id"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("times", [1, MOST])
def test_a_commit_of_column_files_is_known_or_unknown(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t.lance")
    column_commits.make_table(uri, 1)
    name = column_commits.stage(uri, 7)
    fail(monkeypatch, column_commits.NoStage, "missing", times)
    if times == 1:
        assert column_commits.commit(uri, 0, name, "job").version == 3
    else:
        with pytest.raises(CommitOutcomeUnknownError, match="version 3"):
            column_commits.commit(uri, 0, name, "job")
    assert set(lance.dataset(uri).to_table()["v"].to_pylist()) == {7}


VALUES = {key: key * 10 for key in range(30)}


def write_new_column(path: str, **options: str) -> tuple[Backfill, Any]:
    """Returns a write of a new column `n` before its commit, and the answer of its task."""
    job = Backfill(path, "n", LongType(), options={"input_columns": "text", **options})
    return job, job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])


@pytest.mark.parametrize("times", [1, MOST])
def test_an_addition_of_columns_is_checked_or_unknown(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    job, message = write_new_column(path)
    add = column_plan.add_null_columns

    def add_beside(*arguments: Any) -> Any:
        lance.dataset(path).update_config({"a": "b"})
        return add(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(column_plan, "add_null_columns", add_beside)
        fail(patches, verify, "fresh_events", times)
        if times == 1:
            job.commit(message)
        else:
            with pytest.raises(
                CommitOutcomeUnknownError, match=r"'n' were added as all NULL.*Too many open files"
            ):
                job.commit(message)
            assert set(column(path, "n").values()) == {None}
    if times > 1:
        job, message = write_new_column(path)
        job.commit(message)
    assert column(path, "n") == VALUES


@pytest.mark.parametrize("lands", [True, False])
def test_an_addition_of_columns_without_an_answer_is_found(
    tmp_path: Path, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    job, message = write_new_column(path)
    add, calls = lance.LanceDataset.add_columns, list[int]()

    def add_without_answer(dataset: lance.LanceDataset, *arguments: Any) -> None:
        calls.append(dataset.version)
        if lands or len(calls) > 1:
            add(dataset, *arguments)
        if len(calls) == 1:
            raise OSError("connection reset by peer")

    monkeypatch.setattr(lance.LanceDataset, "add_columns", add_without_answer)
    job.commit(message)
    assert len(calls) == 1 + (not lands)
    assert column(path, "n") == VALUES


@pytest.mark.parametrize("kind", ["fields", "expression", "cast"])
def test_new_fields_that_undo_a_commit_without_a_transaction_are_reported(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    table = lance_spark.connect(str(tmp_path), progress=False).open_table("t")
    attempt, calls = schema_change.attempt, itertools.count()

    def attempt_late(uri: str, storage: Any, change: Any) -> Any:
        return attempt(uri, storage, lambda: act_beside(change))

    def act_beside(change: Any) -> Any:
        """A writer deletes a row, another makes a version without conflicts, and a cleanup removes the deletion's."""
        if next(calls) == 0:
            dataset = lance.dataset(path)
            dataset.tags.create("base", dataset.version)
            dataset.delete("id = 1")
            lance.dataset(path).update_config({"a": "b"})
            older = {"delete_unverified": True, "error_if_tagged_old_versions": False}
            lance.dataset(path).cleanup_old_versions(timedelta(0), **older)
        return change()

    changes: dict[str, Any] = {
        "fields": lambda: table.add_columns(pa.field("n", pa.int64())),
        "expression": lambda: table.add_columns({"n": "c + 1"}),
        "cast": lambda: table.alter_columns({"path": "c", "data_type": pa.float64()}),
    }
    with monkeypatch.context() as patches:
        patches.setattr(schema_change, "attempt", attempt_late)
        with pytest.raises(CommitOutcomeUnknownError, match="may have undone earlier commits"):
            changes[kind]()


@pytest.mark.parametrize("prefix", appends.STORES.values(), ids=appends.STORES)
def test_a_conflict_after_a_failed_check_of_an_addition_is_certain(
    tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    job, message = write_new_column(f"{prefix}{path}")
    add = column_plan.add_null_columns

    def add_beside(*arguments: Any) -> Any:
        lance.dataset(path).update_config({"a": "b"})
        return add(*arguments)

    def lose(*_: Any, **__: Any) -> Lost:
        lance.dataset(path).drop_columns(["n"])
        lance.dataset(path).add_columns({"n": "cast(5 as bigint)"})
        return Lost(race=True, error=OSError("another writer came first"))

    monkeypatch.setattr(column_plan, "add_null_columns", add_beside)
    monkeypatch.setattr(column_commit, "attempt_commit", lose)
    fail(monkeypatch, verify, "fresh_events", 1)
    with pytest.raises(CommitConflictError, match="'n'"):
        job.commit(message)
    assert set(column(path, "n").values()) == {5}
    assert orphans(path) == set()


@pytest.mark.parametrize("prefix", appends.STORES.values(), ids=appends.STORES)
@pytest.mark.parametrize("ending", ["conflict", "races", "failure"])
def test_a_failure_after_an_addition_without_an_answer_is_certain(
    ending: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round finds the new columns, so no request may still arrive."""
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    job, message = write_new_column(f"{prefix}{path}", commit_max_retries="1")
    add = column_plan.add_null_columns

    def add_without_answer(*arguments: Any) -> Any:
        assert add(*arguments) is None
        return Unknown(error=OSError("connection reset by peer"))

    def lose(*_: Any, **__: Any) -> Lost:
        if ending == "conflict":
            lance.dataset(path).drop_columns(["n"])
            lance.dataset(path).add_columns({"n": "cast(5 as bigint)"})
        elif ending == "failure":
            monkeypatch.setattr("lance_spark.commit.commit_loop.open_head", unreachable)
        return Lost(race=ending != "races", error=OSError("another writer came first"))

    def unreachable(_: Any) -> Any:
        raise OSError("connection reset by peer")

    monkeypatch.setattr(column_plan, "add_null_columns", add_without_answer)
    monkeypatch.setattr(column_commit, "attempt_commit", lose)
    text = {
        "conflict": "'n'",
        "races": "Other writers kept committing",
        "failure": "failed before the commit",
    }[ending]
    with pytest.raises(
        CommitConflictError if ending != "failure" else CommitError, match=text
    ) as caught:
        job.commit(message)
    assert not isinstance(caught.value, CommitOutcomeUnknownError)
    assert set(column(path, "n").values()) == {5 if ending == "conflict" else None}
    assert orphans(path) == set()


@pytest.mark.parametrize("prefix", appends.STORES.values(), ids=appends.STORES)
def test_a_conflict_in_the_round_that_finds_an_addition_is_certain(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    job, message = write_new_column(f"{prefix}{path}")
    add = column_plan.add_null_columns

    def add_without_answer(*arguments: Any) -> Any:
        lance.dataset(path).update_config({"a": "b"})
        assert add(*arguments) is None
        lance.dataset(path).alter_columns({"path": "n", "name": "w"})
        return Unknown(error=OSError("connection reset by peer"))

    monkeypatch.setattr(column_plan, "add_null_columns", add_without_answer)
    with pytest.raises(CommitImpossibleError, match="dropped or renamed after this job had added"):
        job.commit(message)
    assert set(column(path, "w").values()) == {None}
    assert orphans(path) == set()


def test_an_addition_of_columns_that_failed_needs_no_check_of_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    make_table(path, c=pa.int64())
    job, message = write_new_column(path)
    add, calls = lance.LanceDataset.add_columns, list[int]()

    def add_at_second_call(dataset: lance.LanceDataset, *arguments: Any) -> None:
        calls.append(dataset.version)
        if len(calls) == 1:
            lance.dataset(path).update_config({"a": "b"})
            raise OSError("connection reset by peer")
        add(dataset, *arguments)
        lance.dataset(path).cleanup_old_versions(timedelta(0), delete_unverified=False)

    monkeypatch.setattr(lance.LanceDataset, "add_columns", add_at_second_call)
    job.commit(message)
    assert calls[1] == calls[0] + 1
    assert column(path, "n") == VALUES


def act_beside_append(
    monkeypatch: pytest.MonkeyPatch, act: Any, *, loses_answer: bool = False
) -> None:
    """Lets another writer act right before the first commit of an append, whose answer may be lost."""
    attempt, numbers = append_commit.attempt_commit, itertools.count()

    def attempt_late(*arguments: Any, **more: Any) -> Any:
        number = next(numbers)
        if number == 0:
            act()
        outcome = attempt(*arguments, **more)
        if number == 0 and loses_answer:
            assert isinstance(outcome, Landed)
            return Unknown(error=OSError("connection reset by peer"))
        return outcome

    monkeypatch.setattr(append_commit, "attempt_commit", attempt_late)


@pytest.fixture(params=appends.STORES.values(), ids=appends.STORES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a table with the row 0, on a store of each kind."""
    monkeypatch.setattr(appends, "prefix", request.param)
    folder = tmp_path / "t.lance"
    appends.write(folder, 0)
    return folder


def test_an_append_that_a_second_look_takes_back_is_certain(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_beside_append(
        monkeypatch, lambda: lance.dataset(str(path)).drop_columns(["s"]), loses_answer=True
    )
    with pytest.raises(
        CommitConflictError, match=r"Columns 's' were dropped.*Nothing was committed"
    ):
        appends.write(path, 1)
    assert appends.ids_in(path) == [0]


def test_an_append_whose_table_is_dropped_during_the_check_makes_no_table(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = {"txn_app_id": "nightly", "txn_version": "7"}
    act_beside_append(monkeypatch, lambda: lance.dataset(str(path)).update_config({"a": "b"}))

    def drop(*_: object) -> None:
        shutil.rmtree(path)
        raise TableNotFoundError(str(path))

    monkeypatch.setattr(app_transaction, "fresh_events", drop)
    with pytest.raises(CommitConflictError, match="The table was deleted right after the commit"):
        appends.write(path, 1, **transaction)
    assert not (path / "_versions").exists()
    assert not list(path.glob("data/*"))


def test_an_append_without_an_answer_makes_no_table_after_a_drop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = append_commit.attempt_commit

    def attempt_then_drop(*arguments: Any, **more: Any) -> Any:
        attempt(*arguments, **more)
        shutil.rmtree(path)
        return Unknown(error=OSError("connection reset by peer"))

    monkeypatch.setattr(append_commit, "attempt_commit", attempt_then_drop)
    with pytest.raises(CommitOutcomeUnknownError if appends.prefix else CommitConflictError):
        appends.write(path, 1)
    assert not (path / "_versions").exists()
