"""Concurrent refreshes, refreshes with concurrent writers, and refreshes whose driver dies."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_spark import BackfillIncompleteError, CommitOutcomeUnknownError, Connection
from lance_spark.commit.rows import replace_commit
from lance_spark.views.refresh import RefreshJob
from lance_spark.views.row_tasks import RowTasks
from tests.lance_spark.views.views import (
    SourceAndView,
    clean,
    compact,
    rows_of,
    rows_shown,
    selected,
    watched,
)
from tests.support.drivers import driver
from tests.support.logs import Log, flag_file
from tests.support.waiting import eventually

pytestmark = pytest.mark.sample(5, tests=5)


class RefreshDeath(BaseException):
    """Stands for the end of the driver's process."""


def slow(*values: str) -> Any:
    """A case for the long tests."""
    return pytest.param(*values, marks=pytest.mark.long)


def die(*_: object) -> None:
    raise RefreshDeath


def waiting_view(db: Connection, log: Log, flag: str, row: int = 40) -> SourceAndView:
    """A view of its whole source, whose UDF waits at one row while the file exists."""
    return watched(db, log, doubling=log.waiting(row, flag))


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Any]) -> None:
    """Does something once, before the first call of a method of a refresh."""
    owner: Any = RefreshJob if hasattr(RefreshJob, name) else RowTasks
    real = getattr(owner, name)

    def acting(self: object, *arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        act()
        return real(self, *arguments, **more)

    monkeypatch.setattr(owner, name, acting)


# Two refreshes


@pytest.mark.long
def test_two_first_refreshes_at_once(db: Connection, log: Log) -> None:
    pair = watched(db, log, refreshed=False)
    for job in [pair.view.refresh_async() for _ in range(2)]:
        job.result()
    pair.check()
    log.take()
    pair.refresh([])


def test_a_death_before_rows_that_came_twice_were_taken_back(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two first refreshes of an empty view can both commit. The second takes its rows back unless it dies."""
    pair = watched(db, log, refreshed=False)
    both, landed = threading.Barrier(2), [threading.Event(), threading.Event()]
    real = replace_commit.attempt_commit

    def attempt(*arguments: Any, **more: Any) -> Any:
        if landed[1].is_set():
            return real(*arguments, **more)
        # In sequence: of two commits at the same moment one would lose the race, and look again.
        number = both.wait(60)
        if number == 1:
            landed[0].wait(60)
        try:
            return real(*arguments, **more)
        finally:
            landed[number].set()
            landed[1].wait(60)

    monkeypatch.setattr(replace_commit, "attempt_commit", attempt)
    monkeypatch.setattr(replace_commit, "take_back_rows", lambda *_, **__: die())
    jobs = [pair.view.refresh_async() for _ in range(2)]
    died = [isinstance(job.future.exception(), RefreshDeath) for job in jobs]
    monkeypatch.undo()
    assert sorted(died) == [False, True]
    assert pair.view.count_rows() == 20
    pair.refresh()
    pair.refresh([])


@pytest.mark.long
def test_two_refreshes_at_once_to_different_versions(db: Connection, log: Log) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of(range(20, 30)))
    pair.change({"x": "x + 1"}, "k < 6")
    pair.delete("k IN (8, 9)")
    jobs = [pair.view.refresh_async(src_version=version) for version in (2, 4, 3)]
    for job in jobs:
        job.result()
    assert any(pair.rows_shown() == pair.at(version) for version in (2, 3, 4))
    log.take()
    pair.refresh()
    pair.refresh([])


@pytest.mark.parametrize("change", ["append", "input", slow("delete"), slow("other")])
def test_a_refresh_that_another_one_comes_before(
    change: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    changes: dict[str, Callable[[], Any]] = {
        "append": lambda: pair.source.add(rows_of([20, 22])),
        "input": lambda: pair.change({"x": "x + 1"}, "k < 5"),
        "delete": lambda: pair.delete("k < 5"),
        "other": lambda: pair.change({"p": "p + 1"}, "k < 5"),
    }
    changes[change]()
    before(monkeypatch, "_commit", pair.view.refresh)
    result = pair.view.refresh()
    assert result.rows_processed == 0
    pair.check()
    assert len(log.take()) == {"append": 2, "input": 3}.get(change, 0)
    pair.refresh([])


def test_a_first_refresh_that_another_one_comes_before(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log, refreshed=False)
    before(monkeypatch, "_commit", pair.view.refresh)
    pair.view.refresh()
    pair.check()
    assert log.take() == selected(range(20))


def test_a_newer_version_is_shown_while_the_udf_of_an_older_one_runs(
    db: Connection, log: Log, flag: str
) -> None:
    pair = waiting_view(db, log, flag)
    pair.source.add(rows_of(range(20, 30)))
    pair.change({"x": "40"}, "k = 24")
    with flag_file(flag):
        older = pair.view.refresh_async()
        eventually(lambda: 40 in log.rows(), 60)
        pair.change({"x": "x + 1"}, "k IN (2, 22, 26)")
        pair.delete("k = 28")
        newer = pair.view.refresh_async()
        eventually(lambda: not pair.view.plan_refresh().rows_recomputed, 60)
    for job in (older, newer):
        job.result()
    pair.check()
    log.take()
    pair.refresh([])


def test_an_older_version_is_shown_while_the_udf_of_a_newer_one_runs(
    db: Connection, log: Log, flag: str
) -> None:
    pair = waiting_view(db, log, flag, row=999)
    pair.change({"x": "x + 1"}, "k < 8")
    pair.change({"x": "999"}, "k = 10")
    with flag_file(flag):
        newer = pair.view.refresh_async()
        eventually(lambda: 999 in log.rows(), 60)
        pair.view.refresh(src_version=1)
    newer.result()
    assert pair.rows_shown() == pair.at(1)
    log.take()
    pair.refresh()


@pytest.mark.long
def test_refreshes_and_writers_of_both_tables_at_once(db: Connection, log: Log) -> None:
    pair = watched(db, log)

    def change() -> None:
        for k in range(20, 44, 2):
            pair.source.add(rows_of([k, k + 1]))
            pair.change({"x": "x + 1"}, f"k = {k - 10}")
            pair.change({"p": "p + 1"}, f"k = {k - 12}")
            pair.delete(f"k = {k - 20}")
            if k % 3 == 0:
                compact(pair.source)

    def refresh() -> None:
        for _ in range(4):
            pair.view.refresh()

    def pack() -> None:
        for _ in range(8):
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                compact(pair.view)
            time.sleep(1)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(act) for act in (change, refresh, refresh, pack)]:
            job.result()
    log.take()
    pair.refresh()
    pair.refresh([])


# Other writers of the view


@pytest.mark.parametrize(
    "point", [slow("write_new"), slow("rewrite"), "_commit", slow("_note"), slow("_fill")]
)
def test_a_compaction_of_the_view_beside_a_refresh(
    point: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of([20, 22]))
    pair.refresh()
    pair.change({"x": "x + 1"}, "k = 2")
    pair.delete("k = 4")
    pair.source.add(rows_of([24]))
    before(monkeypatch, point, lambda: compact(pair.view))
    pair.refresh([21, 240])
    pair.refresh([])


@pytest.mark.parametrize(
    "point", [slow("write_new"), "rewrite", slow("_commit"), slow("_note"), slow("_fill")]
)
def test_the_source_is_compacted_and_changed_beside_a_refresh(
    point: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of([20, 22]))
    pair.change({"x": "x + 1"}, "k = 2")

    def act() -> None:
        compact(pair.source)
        pair.change({"x": "x + 1"}, "k IN (2, 20)")
        pair.delete("k = 4")

    before(monkeypatch, point, act)
    pair.refresh([21, 200, 220])
    pair.refresh([22, 201])


@pytest.mark.parametrize(
    ("point", "change"),
    [
        ("_commit", "append"),
        slow("_commit", "update"),
        ("_commit", "nothing"),
        slow("_note", "append"),
        ("_note", "update"),
        slow("_note", "nothing"),
    ],
)
def test_the_view_is_restored_beside_a_refresh(
    point: str, change: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    first = pair.view.version
    pair.source.add(rows_of([20, 22]))
    pair.refresh()
    if change == "append":
        pair.source.add(rows_of([24, 26]))
    if change == "update":
        pair.change({"x": "x + 1"}, "k < 5")
    if change == "nothing":
        pair.change({"u": "0"})
    before(monkeypatch, point, lambda: lance.dataset(pair.view.uri, version=first).restore())
    pair.view.refresh()
    # The next refresh reverts a final restore.
    pair.refresh()
    log.take()
    pair.refresh([])


@pytest.mark.long
def test_a_compaction_and_a_cleanup_before_a_refresh_is_noted(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This state cannot be distinguished from a restore that removed the rows."""
    pair = watched(db, log)
    pair.source.add(rows_of([20, 22]))

    def act() -> None:
        compact(pair.view)
        clean(pair.view)

    before(monkeypatch, "_note", act)
    with pytest.raises(CommitOutcomeUnknownError, match="A restore may have removed the rows"):
        pair.view.refresh()
    assert pair.view.list_jobs()[0].status == "PARTIAL"
    pair.refresh()
    pair.refresh([])


@pytest.mark.long
def test_a_cleanup_before_a_refresh_is_noted_whose_first_commit_was_taken_back(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view has the files of its last commit, and so its rows; the rows of the first commit are gone."""
    pair = watched(db, log, refreshed=False)
    pair.source.add(rows_of([20, 22]))
    real = replace_commit.attempt_commit

    def clean_up() -> None:
        for _ in range(2):
            pair.view.to_lance().update_config({"a": "b"})
        clean(pair.view)

    def attempt(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(replace_commit, "attempt_commit", real)
        pair.view.refresh(src_version=1)
        before(monkeypatch, "_note", clean_up)
        return real(*arguments, **more)

    monkeypatch.setattr(replace_commit, "attempt_commit", attempt)
    assert pair.view.refresh().rows_added == 2
    pair.check()
    log.take()
    pair.refresh([])


def test_a_refresh_beside_a_backfill_of_the_same_column(
    db: Connection, log: Log, flag: str
) -> None:
    pair = waiting_view(db, log, flag)
    pair.change({"x": "40"}, "k = 6")
    pair.change({"x": "x + 1"}, "k = 8")
    pair.view.add_columns({"z": "p2 + 1"})
    with flag_file(flag):
        first = pair.view.refresh_async()
        eventually(lambda: 40 in log.rows(), 60)
        second = pair.view.backfill_async("y")
    for job in (first, second):
        job.result()
    made_rows = [{key: row[key] for key in row if key != "z"} for row in rows_shown(pair.view)]
    assert made_rows == pair.at()


def test_a_refresh_beside_a_backfill_of_a_column_of_the_view(
    db: Connection, log: Log, flag: str, tmp_path: Path
) -> None:
    own = Log(str(tmp_path / "own"))
    pair = watched(db, log)

    pair.view.add_columns({"z": (own.waiting(8, flag), ["p2"])})
    with flag_file(flag):
        job = pair.view.backfill_async("z")
        eventually(lambda: 8 in own.rows(), 60)
        pair.change({"p": "p + 1"}, "k < 5")
        pair.change({"x": "x + 1"}, "k = 8")
        pair.delete("k = 6")
        pair.source.add(rows_of([20]))
        pair.view.refresh()
    job.result()
    pair.view.backfill("z")
    rows = rows_shown(pair.view)
    assert [row.pop("z") for row in rows] == [2 * row["p2"] for row in rows]
    assert rows == pair.at()


# Deaths


@pytest.mark.parametrize(
    "point", [slow("write_new"), slow("rewrite"), "_commit", slow("_note"), slow("_fill")]
)
def test_a_death_at_a_point_is_made_good_by_the_next_refresh(
    point: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of([20, 22]))
    pair.change({"x": "x + 1"}, "k = 2")
    pair.change({"p": "x + 1"}, "k = 6")
    pair.delete("k = 4")
    before(monkeypatch, point, die)
    with pytest.raises(RefreshDeath):
        pair.view.refresh()
    assert log.take() == []
    pair.refresh([21, 200, 220])
    pair.refresh([])


@pytest.mark.long
@pytest.mark.parametrize("point", ["_note", "_fill"])
def test_a_death_after_which_the_source_goes_on(
    point: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of([20, 22]))
    pair.change({"x": "x + 1"}, "k IN (2, 4)")
    before(monkeypatch, point, die)
    with pytest.raises(RefreshDeath):
        pair.view.refresh()
    pair.change({"x": "x + 1"}, "k IN (2, 20)")
    pair.change({"p": "x + 1"}, "k IN (4, 22)")
    pair.delete("k = 6")
    pair.refresh([22, 41, 201, 220])


@pytest.mark.parametrize(
    ("point", "then"),
    [
        ("_note", "clean"),
        ("_note", "refresh, clean"),
        slow("_fill", "clean"),
        slow("_fill", "refresh, clean"),
    ],
)
def test_a_death_and_a_cleanup_of_the_view(
    then: str, point: str, db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log)
    pair.source.add(rows_of([20, 22]))
    pair.delete("k = 4")
    before(monkeypatch, point, die)
    with pytest.raises(RefreshDeath):
        pair.view.refresh()
    if "refresh" in then:
        pair.refresh([200, 220])
    if "clean" in then:
        compact(pair.view)
        clean(pair.view)
    pair.refresh()
    pair.refresh([])
    pair.source.add(rows_of([24]))
    pair.refresh([240])


def test_a_death_in_the_first_refresh_and_a_cleanup_of_the_view(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = watched(db, log, refreshed=False)
    before(monkeypatch, "_note", die)
    with pytest.raises(RefreshDeath):
        pair.view.refresh()
    pair.view.to_lance().update_config({"a": "b"})
    clean(pair.view)
    pair.refresh()
    pair.refresh([])


def test_a_udf_that_fails_leaves_what_was_computed(db: Connection, log: Log, flag: str) -> None:
    pair = watched(db, log, doubling=log.breaking(40, flag), refreshed=False)
    with flag_file(flag), pytest.raises(BackfillIncompleteError, match="refresh"):
        pair.view.refresh(concurrency=1)
    first = log.take()
    assert 40 in first
    pair.view.refresh()
    pair.check()
    # Values of the failed batch are lost.
    assert set(log.take()) & set(first) <= {0, 20, 40, 60, 80}
    pair.refresh([])


def test_a_refresh_that_is_cancelled(db: Connection, log: Log, flag: str) -> None:
    pair = watched(db, log, doubling=log.waiting(40, flag), refreshed=False)
    with flag_file(flag):
        job = pair.view.refresh_async()
        eventually(lambda: 40 in log.rows(), 60)
        job.cancel()
        with pytest.raises(BackfillIncompleteError, match="cancelled"):
            job.result()
    assert [record.status for record in pair.view.list_jobs() if record.job_type == "refresh"] == [
        "CANCELLED"
    ]
    log.take()
    pair.refresh()
    pair.refresh([])


@pytest.mark.long
@pytest.mark.parametrize("point", ["_note", "_fill", "in the udf"])
def test_a_driver_that_is_killed(
    point: str, db: Connection, log: Log, flag: str, tmp_path: Path
) -> None:
    pair = watched(db, log, doubling=log.waiting(40, flag), refreshed=False)
    home = tmp_path / "db"
    with flag_file(flag):
        more: dict[str, Any] = {"module": "tests.support.refresh_driver", "common": {}}
        with driver(
            {"v": (home, {} if point == "in the udf" else {"point": point})}, **more
        ) as process:
            process.wait_for(
                lambda: 40 in log.rows() if point == "in the udf" else os.path.exists(home / "held")
            )
            process.kill()
    called_rows = log.take()
    if point != "in the udf":
        assert called_rows == []
    pair.source.add(rows_of([20]))
    pair.view.refresh()
    pair.check()
    assert sorted(set(log.take()) | set(called_rows)) == selected(range(22))
    pair.refresh([])
