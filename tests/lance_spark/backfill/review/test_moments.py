"""What others do in an unlucky moment of a job is looked at, and costs no call and no value."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import Tags
from lance_spark.backfill.notes import Noted, Notes

import lance_spark
from lance_spark.backfill.driver import job
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.backfill.driver.rounds import Following
from lance_spark.backfill.driver.scheduler import Cluster
from lance_spark.backfill.driver.snapshot_tag import protect
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.round_context import source_of, store_of
from lance_spark.backfill.task.messages import DoneRows, FragmentWork
from lance_spark.backfill.watch import Watch
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnwritableError
from lance_spark.rows.merge import FilePiece, MissingFileError
from lance_spark.rows.row_set import RowSet
from tests.lance_spark.backfill.review.lab import CUT, WHOLE, Death, Lab, values
from udf_runtime import skip_on_error
from udf_runtime.checkpoint import CheckpointEntry

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def test_a_watch_looks_at_a_version_that_came_right_after_a_backfill_that_found_nothing(lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    found: list[lance_spark.BackfillJobResult] = []

    def backfill() -> lance_spark.BackfillJobResult:
        found.append(table.backfill("v", stale=True))
        if len(found) == 1:
            lance.write_dataset(pa.table({"id": [100]}), lab.uri, mode="append")
        return found[-1]

    with Watch(DatasetRef.at(lab.uri), timedelta(seconds=0.05), backfill) as watch:
        for _ in range(4):
            watch.await_look(timedelta(seconds=60))
        assert watch.error is None
    assert values(table, "v")[100] == (100,)
    assert [result.rows_computed for result in found] == [0, 1, 0], "the last one looks at the version of the second"


def die(*_: object) -> None:
    raise Death


def no_version_names(uri: str) -> list[Path]:
    named = {file.path for fragment in lance.dataset(uri).get_fragments() for file in fragment.metadata.files}
    return [path for path in Path(uri, "data").iterdir() if path.name not in named]


def left_by_another_job(lab: Lab, *parts: range, factor: int = 1) -> list[Any]:
    """Puts checkpoints into the first fragment as another job does; returns acts that take them away."""
    prepared = prepare(DatasetRef.at(lab.uri), BackfillRequest(columns=("v",)), checkpoints=None)
    store, spec = store_of(prepared.spec), prepared.spec
    source = source_of(spec, prepared.dataset.get_fragments()[0].metadata)

    def leave(rows: range) -> CheckpointEntry:
        given = pa.array([row * factor for row in rows])
        return store.write(spec.key, source, job_id="other", offsets=pa.array(rows), values=given)

    entries = [leave(rows) for rows in parts]
    return [lambda entry=entry: store.delete(entry) for entry in entries]


def test_a_row_that_was_skipped_before_a_file_vanished_is_called_and_counted_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(pa.table({"id": range(10)}))
    table.add_columns({"v": lab.udf(bad=frozenset({2}), on_error=skip_on_error())})
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommits, "commit", die)
        with pytest.raises(Death):
            table.backfill("v", where="id >= 5", **WHOLE)
    lab.calls()
    lab.at(0, lambda: [path.unlink() for path in no_version_names(lab.uri)])
    result = table.backfill("v", **WHOLE)
    assert lab.calls() == [0, 1, 2, 3, 4]
    assert values(table, "v") == {i: (None if i == 2 else i,) for i in range(10)}
    counted = (result.rows_selected, result.rows_computed, result.rows_from_checkpoint, result.rows_skipped)
    assert counted == (10, 4, 5, 1)
    assert result.status == "DONE"


def test_rows_that_become_null_do_so_once_where_a_file_vanished_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    table = lab.make(pa.table({"id": range(10), "a": range(10)}))
    table.add_columns({"v": (lab.udf(), ["a"])})
    commit, chunks, seen = GroupCommits.commit, FilePiece.chunks, list[str]()

    def commit_late(self: Any, outcomes: Any) -> None:
        if not seen:
            lab.rewrite("a", pa.array([500, *range(1, 10)]))
        commit(self, outcomes)

    def chunks_of_the_second(self: FilePiece, session: Any, **options: Any) -> Any:
        seen.append(self.file)
        if len(seen) == 1:
            raise MissingFileError(self.file)
        return chunks(self, session, **options)

    monkeypatch.setattr(GroupCommits, "commit", commit_late)
    monkeypatch.setattr(FilePiece, "chunks", chunks_of_the_second)
    result = table.backfill("v", on_stale="null", **WHOLE)
    assert seen, "the second round takes values from the file of the first"
    assert values(table, "v") == {i: (i or None,) for i in range(10)}
    assert (result.status, result.rows_nulled, result.rows_carried) == ("DONE", 1, 9)
    assert lab.calls() == [*range(10)]


def test_checkpoints_that_vanish_while_a_job_runs_are_computed_and_nothing_else_is(lab: Lab):
    table = lab.make(pa.table({"id": range(10)}))
    table.add_columns({"v": lab.udf()})
    first, _ = left_by_another_job(lab, range(5, 8), range(8, 10))
    lab.at(0, first)
    result = table.backfill("v", **WHOLE)
    assert lab.calls() == [*range(8)]
    assert (result.status, result.rows_computed, result.rows_from_checkpoint) == ("DONE", 8, 2)
    assert values(table, "v") == {i: (i,) for i in range(10)}


def two_jobs(lab: Lab, table: lance_spark.Table, rows: int, at: int, **settings: Any) -> list[Any]:
    """Runs a job that waits in the call for a row until another one, which found its checkpoints, calls for the same row; then it ends first."""
    waits, goes_on, results = threading.Event(), threading.Event(), list[Any]()

    def wait() -> None:
        waits.set()
        assert goes_on.wait(60)

    def let_it_end() -> None:
        goes_on.set()
        one.join(60)

    lab.at(at, wait, let_it_end)
    one = threading.Thread(target=lambda: results.append(table.backfill("v", **settings)))
    one.start()
    assert waits.wait(60)
    results.append(table.backfill("v", **settings))
    one.join(60)
    assert values(table, "v") == {i: (i,) for i in range(rows)}
    return results


def test_a_job_whose_checkpoints_another_one_found_may_commit_and_drop_them(lab: Lab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf()})
    one, other = two_jobs(lab, table, 20, 15, **WHOLE)
    assert (one.status, one.rows_computed, one.rows_from_checkpoint) == ("DONE", 20, 0)
    assert (other.status, other.rows_computed, other.rows_from_checkpoint) == ("DONE", 5, 15)
    assert lab.calls() == sorted([*range(20), *range(15, 20)]), "but for what both computed at once"


def test_whoever_assembles_a_fragment_finds_what_another_job_committed_meanwhile(lab: Lab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf()})
    one, other = two_jobs(lab, table, 20, 15, **CUT)
    assert (one.status, one.rows_computed) == ("DONE", 20)
    assert (other.status, other.rows_computed, other.rows_from_checkpoint) == ("DONE", 5, 15)
    assert lab.calls() == sorted([*range(20), *range(15, 20)])


def test_a_row_that_fails_when_its_checkpoint_is_gone_is_not_recorded_as_computed(lab: Lab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf(bad=frozenset({3}), on_error=skip_on_error())})
    (vanish,) = left_by_another_job(lab, range(5))
    lab.at(19, vanish)
    result = table.backfill("v", **CUT)
    assert lab.calls() == [*range(20)]
    assert (result.status, result.rows_skipped) == ("DONE", 1)
    lab.switch.write_text("0")
    assert table.backfill("v").rows_computed == 1
    assert lab.calls() == [3]
    assert values(table, "v") == {i: (i,) for i in range(20)}


def test_a_round_takes_no_answers_of_another_one_that_read_the_same_version(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf()})
    commit, rounds = GroupCommits.commit, list[GroupCommits]()

    def commit_after_a_cleanup(self: GroupCommits, outcomes: Any) -> None:
        if not rounds:
            lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
        if self not in rounds:
            rounds.append(self)
        commit(self, outcomes)

    monkeypatch.setattr(job, "Cluster", Cluster)
    monkeypatch.setattr(GroupCommits, "commit", commit_after_a_cleanup)
    # The second round takes so long that the driver looks for reports meanwhile.
    lab.at(0, lambda: None, lambda: time.sleep(0.5))
    settings = {**CUT, "batch_checkpoint_flush_interval_seconds": 1000}
    result = table.backfill("v", refresh_status_secs=0.1, commit_granularity=None, **settings)
    assert len(rounds) == 2
    assert (result.status, len(result.versions)) == ("DONE", 1)
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
    assert lab.calls() == sorted(2 * [*range(ROWS)]), "all files were lost, and each was computed again once"


def test_a_round_takes_no_notes_of_another_one_that_read_the_same_version(lab: Lab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf()})
    spec = prepare(DatasetRef.at(lab.uri), BackfillRequest(columns=("v",)), checkpoints=None).spec
    ranges, nothing = ((0, 10), (10, 20)), Noted(computed=RowSet.empty(), failed=RowSet.empty(), nulled=0)
    first, second = (
        FragmentWork(fragment_id=0, start=start, stop=stop, ranges=ranges, done=DoneRows(), search=True)
        for start, stop in ranges
    )
    Notes(spec, first).leave(nothing)
    later = replace(spec, round=1)
    Notes(later, second).leave(nothing)
    assert Notes(later, second).all() is None
    Notes(later, first).leave(nothing)
    assert Notes(later, second).all() == nothing


def refuse(*_: object) -> None:
    raise ValueError("Ref conflict: the store said no")


def test_a_job_runs_although_an_expired_tag_of_somebody_cannot_be_removed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    left = protect(DatasetRef.at(lab.uri).pin(None), "a" * 40, now=0.0)
    monkeypatch.setattr(Tags, "delete", refuse)
    assert table.backfill("v").status == "DONE"
    assert "expired tags" in caplog.text and "the store said no" in caplog.text
    assert list(lance.dataset(lab.uri).tags.list()) == [left]


def test_a_snapshot_that_cannot_be_protected_is_said_in_an_error_of_ours(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    monkeypatch.setattr(Tags, "create", refuse)
    with pytest.raises(TableUnwritableError, match=r"version 2 cannot be tagged .* the store said no - at"):
        table.backfill("v", protect_snapshot=True)
    assert lab.calls() == []


def between_rounds(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> None:
    """Lets something happen before each look at the head, when the tasks of a round have ended and all is committed."""
    next_round, left = Following.next_round, list(acts)

    def act_first(self: Following, *given: Any) -> Any:
        if left:
            left.pop(0)()
        return next_round(self, *given)

    monkeypatch.setattr(Following, "next_round", act_first)


@pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["one range", "two ranges"])
def test_rows_that_became_null_in_two_rounds_are_counted_together(
    settings: dict[str, Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(pa.table({"id": range(20), "a": range(20)}))
    table.add_columns({"v": (lab.udf(), ["a"])})
    between_rounds(
        monkeypatch,
        lambda: lab.rewrite("a", pa.array([500, *range(1, 20)])),
        lambda: lab.rewrite("a", pa.array([500, 501, *range(2, 20)])),
    )
    result = table.backfill("v", on_stale="null", **settings)
    assert values(table, "v") == {i: (i if i > 1 else None,) for i in range(20)}
    assert (result.status, result.rows_nulled, result.rows_computed) == ("DONE", 2, 20)
    assert lab.calls() == [*range(20)]


def test_a_skipped_row_that_gets_a_value_when_its_inputs_change_is_counted_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(pa.table({"id": range(20), "a": range(20)}))
    table.add_columns({"v": (lab.udf(bad=frozenset({2}), on_error=skip_on_error()), ["a"])})
    between_rounds(monkeypatch, lambda: lab.rewrite("a", pa.array([0, 1, 1002, *range(3, 20)])))
    result = table.backfill("v", **CUT)
    assert values(table, "v") == {i: (i if i != 2 else 1002,) for i in range(20)}
    assert lab.calls() == [*range(20), 1002]
    counted = (result.rows_selected, result.rows_computed, result.rows_recomputed, result.rows_skipped)
    assert counted == (20, 20, 0, 0)
    assert (result.status, result.rows_failed, result.rows_gone) == ("DONE", 0, 0)


def test_ranges_of_a_fragment_that_a_cleanup_took_away_count_once(lab: Lab):
    table = lab.make(IDS, rows_per_file=20)
    table.add_columns({"v": lab.udf()})

    def compact_and_clean_up() -> None:
        table.to_lance().optimize.compact_files(target_rows_per_fragment=40)
        lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0))

    lab.at(2, compact_and_clean_up)
    result = table.backfill("v", **CUT)
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
    assert lab.calls() == [*range(ROWS)]
    assert (result.rows_selected, result.rows_computed, result.rows_gone) == (ROWS, ROWS, 0)
    assert (result.status, result.rows_failed) == ("DONE", 0)
