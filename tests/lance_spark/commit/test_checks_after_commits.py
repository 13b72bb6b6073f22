"""A commit lands, and the store fails during the checks after the commit."""

from __future__ import annotations

import functools
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

import lance_spark
from lance_spark.commit import app_transaction
from lance_spark.commit.rows import append_commit, compaction_commit, row_commit
from lance_spark.commit.rows.compaction_commit import Basis, Compacted, commit_compacted
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitOutcomeUnknownError
from lance_spark.staging.data_files import delete_unnamed_files
from tests.lance_spark.commit import column_commits

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
def test_a_compaction_keeps_its_files(tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": range(4)}), uri, max_rows_per_file=1, enable_stable_row_ids=True)
    dataset = lance.dataset(uri)
    (task,) = Compaction.plan(dataset, {}).tasks
    part = Compacted(olds=tuple(task.fragments), rewrite=task.execute(dataset).json())
    commit = functools.partial(
        commit_compacted, DatasetRef.at(uri), Basis.of(dataset), [part], missing=lambda _: frozenset()
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
