"""A concurrent writer deletes the table, or makes it again, at the moment of a commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction
from pyspark.sql.types import LongType

import lance_spark
from lance_spark.commit import dropped
from lance_spark.errors import CommitConflictError, CommitImpossibleError, CommitOutcomeUnknownError
from lance_spark.namespaces.errors import NamespaceError
from lance_spark.storage.objects import LanceObjects
from tests.lance_spark.write import appends
from tests.lance_spark.write.backfills import Backfill, computed, make_table, snapshot_rows


def act_at_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Runs an action right before Lance's first commit of any kind."""
    actions = [act]

    def beside(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def commit(*arguments: Any, **more: Any) -> Any:
            for action in [actions.pop()] if actions else []:
                action()
            return real(*arguments, **more)

        monkeypatch.setattr(owner, name, commit)

    beside(lance.LanceDataset, "commit")
    beside(lance.LanceDataset, "add_columns")
    beside(Compaction, "commit")


def backfill(path: Path, name: str) -> None:
    job = Backfill(f"{appends.prefix}{path}", name, LongType(), options={"input_columns": "text"})
    job.commit(job.task([job.batch(*zip(*computed(snapshot_rows(str(path))), strict=True))]))


def append(table: lance_spark.Table) -> None:
    table.add([{"id": 100, "text": "t100", "other": 1, "c": None}])


WRITES: dict[str, Callable[[lance_spark.Table], object]] = {
    "append": append,
    "transaction": lambda table: table.add(
        [{"id": 100, "text": "t", "other": 1, "c": None}], txn_app_id="nightly", txn_version=7
    ),
    "update": lambda table: table.update("id = 1", values_sql={"other": "other + 1"}),
    "delete": lambda table: table.delete("id = 1"),
    "column": lambda table: table.add_columns(pa.field("n", pa.int64())),
    "drop": lambda table: table.drop_columns(["other"]),
}


@pytest.fixture(params=appends.STORES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table at version 4."""
    monkeypatch.setattr(appends, "prefix", appends.STORES[request.param])
    path = tmp_path / "t.lance"
    make_table(str(path), c=pa.int64())
    return path


def files_below(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_leaves_nothing_at_the_place_of_a_deleted_table(
    kind: str, path: Path, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = lance_spark.connect(f"{appends.prefix}{path.parent}", jobs, progress=False)
    table = db.open_table("t")
    act_at_commit(monkeypatch, lambda: shutil.rmtree(path))
    with pytest.raises(
        CommitConflictError, match=r"deleted at the moment of the commit.*Nothing was committed"
    ):
        WRITES[kind](table)
    assert not [file for file in files_below(path) if "_lance_spark" not in file.parts]
    assert db.table_names() == []


@pytest.mark.parametrize("name", ["c", "n"])
def test_a_backfill_leaves_nothing_at_the_place_of_a_deleted_table(
    name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_at_commit(monkeypatch, lambda: shutil.rmtree(path))
    with pytest.raises(
        CommitImpossibleError, match=r"deleted .* the commit.*Nothing was committed"
    ):
        backfill(path, name)
    assert files_below(path) == []


@pytest.mark.parametrize("versions", [1, 4])
def test_a_write_beside_the_new_creation_of_its_table_keeps_the_new_rows(
    versions: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check, the version of the write takes the place of the new rows."""
    rows = pa.table({"id": [7], "s": ["new"]})

    def make_again() -> None:
        shutil.rmtree(path)
        for number in range(versions):
            lance.write_dataset(rows, str(path), mode="append" if number else "create")

    shutil.rmtree(path)
    for number in range(4):
        appends.write(path, number)
    act_at_commit(monkeypatch, make_again)
    with pytest.raises(CommitConflictError, match="deleted at the moment of the commit"):
        appends.write(path, 5)
    monkeypatch.undo()
    assert (
        lance.dataset(str(path)).to_table() == pa.concat_tables([rows] * versions).combine_chunks()
    )
    lance.write_dataset(rows, str(path), mode="append")
    assert lance.dataset(str(path)).version == versions + 1


def act_before_check(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Runs an action between a commit and its check."""
    real = dropped.refuse_dropped

    def check(*arguments: Any) -> None:
        act()
        real(*arguments)

    monkeypatch.setattr("lance_spark.commit.commit_loop.refuse_dropped", check)


def test_a_write_beside_a_cleanup_of_its_version_is_committed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_before_check(
        monkeypatch,
        lambda: lance.dataset(str(path)).cleanup_old_versions(
            older_than=None, retain_versions=1, delete_unverified=False
        ),
    )
    shutil.rmtree(path)
    for number in range(3):
        appends.write(path, number)
    assert appends.ids_in(path) == [0, 1, 2]
    assert [version["version"] for version in lance.dataset(str(path)).versions()] == [3]


def test_a_table_made_again_after_the_commit_keeps_all_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new table has a version of the number of the commit, and no version is of the commit."""
    rows = pa.table({"id": [7], "s": ["new"]})

    def make_again() -> None:
        shutil.rmtree(path)
        for number in range(2):
            lance.write_dataset(rows, str(path), mode="append" if number else "create")

    shutil.rmtree(path)
    appends.write(path, 0)
    act_before_check(monkeypatch, make_again)
    appends.write(path, 1)
    assert lance.dataset(str(path)).version == 2
    assert lance.dataset(str(path)).to_table() == pa.concat_tables([rows, rows]).combine_chunks()


def test_a_table_of_this_process_that_takes_the_place_keeps_all_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = path.with_name("new.lance")

    def swap() -> None:
        shutil.rmtree(path)
        new.rename(path)

    shutil.rmtree(path)
    for number in range(4):
        appends.write(new, number)
    appends.write(path, 10)
    act_before_check(monkeypatch, swap)
    appends.write(path, 11)
    assert appends.ids_in(path) == [0, 1, 2, 3]
    assert lance.dataset(str(path)).version == 4


def test_a_commit_without_an_answer_to_a_deleted_table_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lance.LanceDataset.commit
    moments = ["drop"]

    def commit(*arguments: Any, **more: Any) -> lance.LanceDataset:
        if not moments:
            return real(*arguments, **more)
        moments.clear()
        shutil.rmtree(path)
        real(*arguments, **more)
        raise OSError("connection reset by peer")

    shutil.rmtree(path)
    appends.write(path, 0)
    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(commit))
    with pytest.raises(CommitConflictError, match="deleted at the moment of the commit"):
        appends.write(path, 1)
    assert not [file for file in files_below(path) if "_lance_spark" not in file.parts]


def test_a_commit_stays_whose_files_a_compaction_and_a_cleanup_replace(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look_for_files = dropped._look_for_files

    def compact_and_look(*arguments: Any) -> list[bool]:
        if not looks:
            lance.dataset(str(path)).optimize.compact_files()
            lance.dataset(str(path)).cleanup_old_versions(
                older_than=timedelta(0), delete_unverified=True
            )
        looks.append(look_for_files(*arguments))
        return looks[-1]

    shutil.rmtree(path)
    for number in range(3):
        appends.write(path, number)
    act_before_check(
        monkeypatch,
        lambda: lance.dataset(str(path)).cleanup_old_versions(older_than=None, retain_versions=1),
    )
    monkeypatch.setattr(dropped, "_look_for_files", compact_and_look)
    appends.write(path, 3)
    assert [any(look) for look in looks] == [False, True], (
        "the files of the version were gone, and those of the next one are there"
    )
    assert sorted(appends.ids_in(path)) == [0, 1, 2, 3]


def test_a_version_that_cannot_be_deleted_is_named_and_no_check_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(path)
    appends.write(path, 0)
    monkeypatch.setattr(LanceObjects, "delete", lambda *_: None)
    act_at_commit(monkeypatch, lambda: shutil.rmtree(path))
    with pytest.raises(
        CommitOutcomeUnknownError, match=r"still there.*then delete _versions/\d+\.manifest"
    ):
        appends.write(path, 1)


def test_a_namespace_that_refuses_after_a_commit_makes_the_outcome_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise NamespaceError("the namespace lacks the table by now")

    shutil.rmtree(path)
    appends.write(path, 0)
    monkeypatch.setattr(dropped, "is_managed", refuse)
    with pytest.raises(
        CommitOutcomeUnknownError, match="made a version, and the namespace refused"
    ):
        appends.write(path, 1)
    assert appends.ids_in(path) == [0, 1]


def test_a_check_without_an_answer_is_repeated_or_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError("connection reset by peer")]

    def fail(*_: Any) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr("lance_spark.commit.commit_loop.refuse_dropped", fail)
    shutil.rmtree(path)
    appends.write(path, 0)
    appends.write(path, 1)
    assert failures == []
    failures.append(OSError("connection reset by peer"))
    with pytest.raises(
        CommitOutcomeUnknownError, match="before the check that the table still exists"
    ):
        appends.write(path, 2, commit_max_retries="0")
    assert appends.ids_in(path) == [0, 1, 2]
