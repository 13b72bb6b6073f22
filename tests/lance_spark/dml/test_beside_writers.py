"""Statements with concurrent commits: the result equals some serial order of both."""

from __future__ import annotations

import itertools
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pytest

from lance_spark.commit.rows import row_commit
from lance_spark.commit.schema_change import change_schema
from lance_spark.dataset import DatasetRef, _open_pinned
from lance_spark.dml import rounds
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError, LanceSparkError
from lance_spark.staging import orphans
from tests.lance_spark.dml.tables import acting_once, content, make, rows
from tests.lance_spark.dml.writers import CONCURRENT_CHANGES, Act, clean_up, delete_and_clean_up
from tests.support import inline_rows

STATEMENTS: dict[str, Act] = {
    "update many": lambda uri: inline_rows.update(uri, "id % 2 = 0", a="a + 1000"),
    "update few": lambda uri: inline_rows.update(
        uri, "id IN (2, 13)", s="concat(s, '+')", v="v", t="t", a="a + 1000"
    ),
    "update where": lambda uri: inline_rows.update(uri, "s IN ('s1', 's2', 's3', 's17')", a="7"),
    "update all": lambda uri: inline_rows.update(uri, None, a="coalesce(a, 0) * 2"),
    "delete": lambda uri: inline_rows.delete(uri, "a % 2 = 0"),
    "delete a fragment": lambda uri: inline_rows.delete(uri, "id >= 10 AND id < 21"),
}


def outcome(uri: str, *acts: Act) -> list[dict[str, Any]] | None:
    """Returns the rows after some acts; None if an act fails."""
    try:
        for act in acts:
            act(uri)
    except (LanceSparkError, OSError, ValueError):
        return None
    return content(uri)


QUICK = {
    ("update many", True, "before"),
    ("update few", True, "after"),
    ("update where", False, "before"),
    ("delete", True, "after"),
}


@pytest.mark.sample(4)
@pytest.mark.guarantee("C05")
@pytest.mark.parametrize(
    ("statement", "stable", "moment"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
        for case in itertools.product(STATEMENTS, (True, False), ("before", "after"))
    ],
)
def test_a_statement_and_another_commit_are_as_one_after_the_other(
    tmp_path: Path, statement: str, stable: bool, moment: str
):
    first = str(tmp_path / "first")
    make(first, stable=stable)
    lance.dataset(first).delete("id = 5")
    for number, (name, change) in enumerate(CONCURRENT_CHANGES.items()):
        uris = [str(tmp_path / f"{number}-{kind}") for kind in ("both", "ours", "theirs")]
        for uri in uris:
            shutil.copytree(first, uri)
        act = STATEMENTS[statement]
        orders = [outcome(uris[1], act, change), outcome(uris[2], change, act)]
        with acting_once(moment, lambda change=change, uri=uris[0]: change(uri)) as acted:  # type: ignore[misc]
            both = outcome(uris[0], act)
        if both is None:  # failed: only the other writer's change is in the table
            assert orders[1] is None, name
            continue
        assert acted and both in orders, name
        assert not list(Path(uris[0], "_lance_spark").glob("staging/*")), name
        referenced_files = {
            file.path
            for fragment in lance.dataset(uris[0]).get_fragments()
            for file in fragment.metadata.files
        }
        assert {
            path for path in referenced_files if not Path(uris[0], "data", path).exists()
        } == set(), name


def test_only_what_changed_is_looked_at_again(tmp_path: Path):
    uri = str(tmp_path / "t")
    make(uri, fragments=10)
    fragments_read: list[tuple[int, ...]] = []
    real = inline_rows.run

    def recorded(self: Any, tasks: Any, kind: Any) -> Any:
        fragments_read.append(tuple(number for task in tasks for number in task.fragments))
        return real(self, tasks, kind)

    with (
        patch.object(inline_rows, "run", recorded),
        acting_once("before", lambda: lance.dataset(uri).delete("id IN (41, 42)")),
    ):
        result = inline_rows.delete(uri, "id % 10 = 2")
    assert result.rows_deleted == 9
    # Two tasks have five fragments each; the task with fragment 4 runs again.
    assert fragments_read == [tuple(range(10)), tuple(range(5))]


def files_of_versions(path: Path) -> set[str]:
    """Returns the data files of all versions."""
    numbers = [version["version"] for version in lance.dataset(str(path)).versions()]
    versions = [lance.dataset(str(path), version=number) for number in numbers]
    return {
        file.path
        for version in versions
        for handle in version.get_fragments()
        for file in handle.metadata.files
    }


@pytest.mark.parametrize("change", ["append", "update the same", "compact"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_statement_on_an_object_store_ends_its_job_before_each_commit(
    change: str, moment: str, tmp_path: Path
):
    """The second evaluation of an outdated statement belongs to the same job."""
    path = tmp_path / "t"
    make(str(path))
    uri = f"file-object-store://{path}"
    with acting_once(moment, lambda: CONCURRENT_CHANGES[change](str(path))) as acted:
        both = outcome(uri, lambda uri: inline_rows.update(uri, "id IN (2, 13)", a="a + 1000"))
    assert acted and both is not None
    assert {file.name for file in path.glob("data/*.lance")} == files_of_versions(path)
    assert [file for file in path.rglob("_lance_spark/**/*") if file.is_file()] == []


def test_endless_changes_end_in_an_error_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES", "3")
    uri = str(tmp_path / "t")
    make(uri)
    real, rounds_begun = rounds.commit_edits, list[int]()

    def changed_first(*arguments: Any, **more: Any) -> Any:
        rounds_begun.append(1)
        lance.dataset(uri).update({"a": "a + 1"}, where="id = 2")
        return real(*arguments, **more)

    with (
        patch.object(rounds, "commit_edits", changed_first),
        pytest.raises(CommitConflictError, match="4 times"),
    ):
        inline_rows.update(uri, "id % 2 = 0", s="'x'")
    assert len(rounds_begun) == 4 and lance.dataset(uri).count_rows("s = 'x'") == 0
    referenced_files = {
        file.path
        for fragment in lance.dataset(uri).get_fragments()
        for file in fragment.metadata.files
    }
    for version in lance.dataset(uri).versions():
        for fragment in lance.dataset(uri, version=version["version"]).get_fragments():
            referenced_files.update(file.path for file in fragment.metadata.files)
    assert {path.name for path in Path(uri, "data").iterdir()} == referenced_files


def test_a_commit_over_a_cleaned_up_commit_is_an_error(tmp_path: Path):
    uri = str(tmp_path / "t")
    make(uri)
    with (
        acting_once("after", lambda: delete_and_clean_up(uri)),
        pytest.raises(
            CommitOutcomeUnknownError, match=r"cleaned up at the moment.*restore the version before"
        ),
    ):
        inline_rows.update(uri, "id % 2 = 0", s="'x'")


def test_a_repeated_commit_is_found(tmp_path: Path):
    """The store's answer is lost: the job finds its own commit, and does nothing twice."""
    uri = str(tmp_path / "t")
    make(uri)
    real = row_commit.attempt_commit

    def lost(*arguments: Any, **more: Any) -> Any:
        landed = real(*arguments, **more)
        return (
            row_commit.Unknown(error=OSError("no answer")) if hasattr(landed, "dataset") else landed
        )

    with patch.object(row_commit, "attempt_commit", lost):
        result = inline_rows.update(uri, "id % 2 = 0", a="a + 1")
    assert (result.version, result.rows_updated) == (2, 15) and lance.dataset(uri).version == 2


def test_a_recreated_or_deleted_table_is_noticed(tmp_path: Path):
    uri = str(tmp_path / "t")
    make(uri)

    def drop() -> None:
        shutil.rmtree(uri)

    with (
        acting_once("before", drop),
        pytest.raises(LanceSparkError, match=r"No Lance table|is gone|ended before"),
    ):
        inline_rows.delete(uri, "id = 1")
    make(uri)
    change_schema(DatasetRef.at(uri, {}), lambda dataset: dataset.drop_columns(["v"]))
    assert inline_rows.delete(uri, "id = 1").rows_deleted == 1


CLEANED = {
    "update": lambda uri: inline_rows.update(uri, "id % 2 = 0", s="'new'"),
    "delete": lambda uri: inline_rows.delete(uri, "id % 2 = 0"),
    "merge": lambda uri: inline_rows.merge_small(
        uri, "id", rows(range(28, 32)), updates=True, inserts=True
    ),
}


@pytest.mark.parametrize("deleted_part", ["version", "files"])
@pytest.mark.parametrize("statement", CLEANED)
def test_a_statement_whose_version_is_cleaned_up_before_its_tasks_open_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, deleted_part: str
):
    first, uri = str(tmp_path / "first"), str(tmp_path / "t")
    make(first)
    shutil.copytree(first, uri)
    acted = list[int]()

    def clean_up_first(real: Any) -> Any:
        def run(*arguments: Any) -> Any:
            if not acted:
                acted.append(1)
                lance.dataset(uri).delete("id = 1")
                lance.dataset(uri).optimize.compact_files()
                clean_up(uri)
                if (
                    deleted_part == "version"
                ):  # a task is another process, which has not opened the version
                    _open_pinned.cache_clear()
            return real(*arguments)

        return run

    monkeypatch.setattr(inline_rows, "run", clean_up_first(inline_rows.run))
    CLEANED[statement](uri)
    lance.dataset(first).delete("id = 1")
    CLEANED[statement](first)
    assert acted and content(uri) == content(first)
    assert not list(Path(uri, "_lance_spark").glob("staging/*"))


def test_a_cleanup_deletes_no_file_of_a_statement_that_is_evaluated_again(tmp_path: Path) -> None:
    make(str(tmp_path / "t"))
    uri = f"file-object-store://{tmp_path / 't'}"
    has_walked, has_committed = threading.Event(), threading.Event()
    referenced_files = orphans.referenced_files

    def walk_long(ref: DatasetRef, candidates: set[str]) -> set[str]:
        referenced = referenced_files(ref, candidates)
        has_walked.set()
        assert has_committed.wait(60)
        return referenced

    cleanup = threading.Thread(target=lambda: orphans.remove_orphans(uri, older_than=timedelta(0)))

    def act() -> None:
        CONCURRENT_CHANGES["update the same"](str(tmp_path / "t"))
        cleanup.start()
        assert has_walked.wait(60)

    with patch.object(orphans, "referenced_files", walk_long), acting_once("before", act):
        inline_rows.update(uri, "id IN (2, 13)", a="a + 1000")
        has_committed.set()
        cleanup.join()
    values = {row["id"]: row["a"] for row in content(uri)}
    assert values[2] > 1000 and values[13] > 1000
