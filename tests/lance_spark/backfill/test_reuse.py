"""Available values serve the row, column, inputs and UDF of their computation, without calls for further rows."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import BackfillIncompleteError
from lance_spark.backfill.driver import job
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.backfill.reuse import computed_rows
from lance_spark.backfill.task.messages import RangeOutcome, Task
from tests.support.inline_jobs import (
    CUT,
    WHOLE,
    Death,
    InlineLab,
    InlineScheduler,
    die,
    leave_checkpoints,
    no_version_names,
    opposite,
    values,
)
from udf_runtime import skip_on_error, udf
from udf_runtime.checkpoint import CheckpointEntry, CheckpointStore

pytestmark = pytest.mark.sample(1, tests=5)

ALL = {"where": "id >= 0"}

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def test_a_job_id_that_is_used_for_other_rows_leaves_none_of_them_out(lab: InlineLab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    table.backfill("v", where="id < 5", job_id="nightly")
    lab.calls()
    table.backfill("v", where="id >= 35", job_id="nightly")
    assert lab.calls() == [35, 36, 37, 38, 39]
    table.backfill("v", where="id >= 30", job_id="nightly")
    assert lab.calls() == [30, 31, 32, 33, 34], "the job has computed the others"


@pytest.mark.long
def test_a_run_without_work_does_not_count_values_of_other_runs_with_its_id(lab: InlineLab):
    table = lab.make(pa.table({"id": range(10), "y": range(10)}))
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    lab.calls()
    assert table.backfill("v", job_id="nightly").rows_selected == 0
    more = pa.table({"id": range(10, 20), "y": range(10), "v": pa.nulls(10, pa.int64())})
    lance.write_dataset(more, lab.uri, mode="append")
    with lab.dying_at_commit():
        lab.table().backfill("v", job_id="nightly")
    assert lab.calls() == [*range(10, 20)]
    lance.dataset(lab.uri).update({"y": "y + 100"}, where="id >= 10")
    assert lab.table().backfill("v").rows_from_checkpoint == 10
    assert lab.calls() == []


def test_a_run_with_nothing_to_do_hides_no_unfinished_one_of_its_id(lab: InlineLab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    lab.calls()
    with lab.dying_at_commit():
        lab.table().backfill("v", where="id < 10", job_id="nightly", **WHOLE)
    assert lab.calls() == [*range(10)]
    assert lab.table().backfill("v", where="id > 1000", job_id="nightly").rows_selected == 0
    lab.table().backfill("v", where="id < 10")
    assert lab.calls() == []


def test_a_job_that_commits_leaves_the_checkpoints_of_rows_that_it_did_not_compute(lab: InlineLab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf(bad=frozenset({35}))})
    sizes: dict[str, Any] = {"task_size": 1000, "checkpoint_size": 1, "min_checkpoint_size": 1}
    with pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill("v", where="id % 5 = 0", **sizes)
    table.backfill("v", where="id % 5 != 0", **sizes)
    lab.calls()
    lab.switch.write_text("0")
    table.backfill("v", where="id % 5 = 0", **sizes)
    assert lab.calls() == [35]


def test_the_end_of_a_job_that_failed_takes_no_longer_than_its_checkpoints_are_many(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf(bad=frozenset({35}))})
    compared: list[CheckpointEntry] = []
    monkeypatch.setattr(CheckpointEntry, "__eq__", lambda entry, _: compared.append(entry))
    with pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill("v", **WHOLE)
    assert not compared, "each one with each other one"
    lab.calls()
    table.backfill("v", where="id < 35")
    assert lab.calls() == [], "they were kept"


def test_a_job_that_dies_twice_finds_its_first_checkpoints_behind_a_compaction(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf(bad=frozenset({39}))})
    with lab.dying_at_commit():
        table.backfill("v", job_id="j")
    table.to_lance().optimize.compact_files()
    with monkeypatch.context() as patch:
        patch.setattr(InlineScheduler, "run", die)
        with pytest.raises(Death):
            table.backfill("v", job_id="j")
    lab.calls()
    lab.switch.write_text("0")
    table.backfill("v", job_id="j")
    assert lab.calls() == [39]


@pytest.mark.parametrize("task_size", [1000, 10], ids=["one range", "four ranges"])
def test_values_recomputed_by_a_filter_replace_the_old_ones(task_size: int, lab: InlineLab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v", task_size=task_size)
    lab.switch.write_text("1000")
    assert table.backfill("v", where="1=1", task_size=task_size).rows_computed == ROWS
    assert values(table, "v") == {i: (i + 1000,) for i in range(ROWS)}


def test_checkpoints_of_compacted_rows_do_not_serve_inputs_that_were_rewritten_since(
    lab: InlineLab,
):
    table = lab.make(pa.table({"id": range(ROWS), "a": range(ROWS)}), rows_per_file=10)
    table.add_columns({"v": (lab.udf(), ["a"])})
    with lab.dying_at_commit():
        table.backfill("v")
    table.to_lance().optimize.compact_files()
    lab.rewrite("a", pa.array([i + 500 for i in range(ROWS)]))
    lab.calls()
    table.backfill("v")
    assert values(table, "v") == {i: (i + 500,) for i in range(ROWS)}
    assert lab.calls() == [i + 500 for i in range(ROWS)]


def test_values_of_another_udf_after_a_compaction_are_replaced_and_values_of_a_writer_stay(
    lab: InlineLab,
):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": opposite(pa.int64())})
    table.alter_columns({"path": "v", "udf": lab.udf()})
    table.backfill("v")
    table.to_lance().optimize.compact_files()
    table.backfill("v", udf=opposite(pa.int64()), where="1=1")
    assert values(table, "v") == {i: (-i,) for i in range(ROWS)}
    lab.calls()
    table.backfill("v")
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
    lab.rewrite("v", pa.array([-i for i in range(ROWS)]))
    table.backfill("v")
    assert values(table, "v") == {i: (-i,) for i in range(ROWS)}


def test_a_filter_selects_rows_with_a_value_after_the_udf_of_their_column_was_replaced(
    lab: InlineLab,
):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": opposite(pa.int64())})
    table.alter_columns({"path": "v", "udf": lab.udf()})
    table.backfill("v")
    lab.calls()
    assert table.plan_backfill("v", where="id >= 35").total_rows_pending == 5
    assert table.backfill("v", where="id >= 35").rows_selected == 5
    assert lab.calls() == [35, 36, 37, 38, 39]
    assert table.backfill("v").versions == ()


def test_a_checkpoint_that_vanishes_while_it_is_read_leaves_no_row_without_a_value(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf(bad=frozenset({39}))})
    with pytest.raises(lance_spark.BackfillIncompleteError) as error:
        table.backfill(
            "v",
            task_size=1000,
            checkpoint_size=10,
            min_checkpoint_size=10,
            batch_checkpoint_flush_interval_seconds=0,
        )
    lab.switch.write_text("0")
    lab.calls()
    first: Any = error.value.result
    read = CheckpointStore.read

    def read_others(self, entry, key, source):
        return None if entry.job_id == first.job_id else read(self, entry, key, source)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "read", read_others)
        result = table.backfill("v", task_size=1000)
    assert (result.status, result.rows_computed) == ("DONE", ROWS)
    assert lab.calls() == [*range(ROWS)]
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


def test_a_row_that_was_skipped_before_a_file_vanished_is_called_and_counted_once(lab: InlineLab):
    table = lab.make(pa.table({"id": range(10)}))
    table.add_columns({"v": lab.udf(bad=frozenset({2}), on_error=skip_on_error())})
    with lab.dying_at_commit():
        table.backfill("v", where="id >= 5", **WHOLE)
    lab.calls()
    lab.at(0, lambda: [path.unlink() for path in no_version_names(lab.uri)])
    result = table.backfill("v", **WHOLE)
    assert lab.calls() == [0, 1, 2, 3, 4]
    assert values(table, "v") == {i: (None if i == 2 else i,) for i in range(10)}
    counters = (
        result.rows_selected,
        result.rows_computed,
        result.rows_from_checkpoint,
        result.rows_skipped,
    )
    assert counters == (10, 4, 5, 1)
    assert result.status == "DONE"


def test_a_later_job_resumes_an_unfinished_job_whatever_the_clocks_of_their_drivers(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=1)

    table = lab.make(pa.table({"id": range(10)}))
    table.add_columns({"v": lab.udf()})
    with monkeypatch.context() as patch:
        patch.setattr(job, "datetime", Ahead)
        table.backfill("v", **ALL, **WHOLE)
    with lab.dying_at_commit():
        table.backfill("v", **ALL, **WHOLE)
    lab.calls()
    assert table.backfill("v", **ALL, **WHOLE).rows_from_checkpoint == 10
    assert lab.calls() == []
    assert table.backfill("v", **ALL, **WHOLE).rows_computed == 10


def test_checkpoints_that_vanish_while_a_job_runs_are_computed_and_nothing_else_is(lab: InlineLab):
    table = lab.make(pa.table({"id": range(10)}))
    table.add_columns({"v": lab.udf()})
    first, _ = leave_checkpoints(lab, range(5, 8), range(8, 10))
    lab.at(0, first)
    result = table.backfill("v", **WHOLE)
    assert lab.calls() == [*range(8)]
    assert (result.status, result.rows_computed, result.rows_from_checkpoint) == ("DONE", 8, 2)
    assert values(table, "v") == {i: (i,) for i in range(10)}


def two_jobs(
    lab: InlineLab, table: lance_spark.Table, rows: int, at: int, **settings: Any
) -> list[Any]:
    """Runs a job with a wait in the call for a row. A second job, with the checkpoints of the first, calls for the same
    row. Then the first job ends first.
    """
    waits, goes_on, results = threading.Event(), threading.Event(), list[Any]()

    def wait() -> None:
        waits.set()
        assert goes_on.wait(60)

    def let_it_end() -> None:
        goes_on.set()
        first_job.join(60)

    lab.at(at, wait, let_it_end)
    first_job = threading.Thread(target=lambda: results.append(table.backfill("v", **settings)))
    first_job.start()
    assert waits.wait(60)
    results.append(table.backfill("v", **settings))
    first_job.join(60)
    assert values(table, "v") == {i: (i,) for i in range(rows)}
    return results


def test_a_job_whose_checkpoints_another_one_found_may_commit_and_drop_them(lab: InlineLab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf()})
    first_result, second_result = two_jobs(lab, table, 20, 15, **WHOLE)
    assert (first_result.status, first_result.rows_computed, first_result.rows_from_checkpoint) == (
        "DONE",
        20,
        0,
    )
    assert (
        second_result.status,
        second_result.rows_computed,
        second_result.rows_from_checkpoint,
    ) == ("DONE", 5, 15)
    assert lab.calls() == sorted([*range(20), *range(15, 20)]), "but for what both computed at once"


def test_the_assembly_of_a_fragment_finds_values_committed_by_a_concurrent_job(lab: InlineLab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf()})
    first_result, second_result = two_jobs(lab, table, 20, 15, **CUT)
    assert (first_result.status, first_result.rows_computed) == ("DONE", 20)
    assert (
        second_result.status,
        second_result.rows_computed,
        second_result.rows_from_checkpoint,
    ) == ("DONE", 5, 15)
    assert lab.calls() == sorted([*range(20), *range(15, 20)])


def test_a_row_that_fails_when_its_checkpoint_is_gone_is_not_recorded_as_computed(lab: InlineLab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf(bad=frozenset({3}), on_error=skip_on_error())})
    (vanish,) = leave_checkpoints(lab, range(5))
    lab.at(19, vanish)
    result = table.backfill("v", **CUT)
    assert lab.calls() == [*range(20)]
    assert (result.status, result.rows_skipped) == ("DONE", 1)
    lab.switch.write_text("0")
    assert table.backfill("v").rows_computed == 1
    assert lab.calls() == [3]
    assert values(table, "v") == {i: (i,) for i in range(20)}


@pytest.mark.parametrize(
    "options",
    [
        {**WHOLE, "stale": True},
        {**WHOLE, **ALL, "stale": True},
        pytest.param({**CUT, "stale": True}, marks=pytest.mark.long),
    ],
)
def test_a_stale_backfill_that_only_skips_rows_again_commits_nothing(
    lab: InlineLab, options: dict[str, Any]
):
    def backfill() -> tuple[str, int, bool]:
        version = table.version
        result = table.backfill("v", **options)
        assert bool(result.versions) == (table.version > version)
        return result.status, result.rows_skipped, bool(result.versions)

    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf(bad=frozenset({3}), on_error=skip_on_error())})
    assert backfill() == ("DONE", 1, True)
    assert backfill() == ("DONE", 1, False)
    # The value of a skipped row goes with a commit.
    lab.rewrite("id", pa.array([3, *range(1, 20)]))
    assert backfill() == ("DONE", 2, True)
    assert table.count_rows("v IS NULL") == 2
    assert backfill() == ("DONE", 2, False)
    lab.switch.write_text("0")
    assert table.backfill("v").rows_computed == 2 and table.count_rows("v = id") == 20


def test_a_plan_decodes_few_records_of_each_fragment(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    def f(id: int) -> int | None:
        return None if id == 7 else id

    table = lab.make(pa.table({"id": range(40)}), rows_per_file=5)
    table.add_columns({"v": udf(f)})
    table.backfill("v")
    lance.dataset(lab.uri).update({"id": "id + 100"}, where="id = 8")
    decoded = Mock(side_effect=computed_rows._intact)
    monkeypatch.setattr(computed_rows, "_intact", decoded)
    assert table.plan_backfill("v", stale=True).total_rows_pending == 1
    numbers = [call.args[1]["fragment_id"] for call in decoded.call_args_list]
    assert set(numbers) <= set(range(8)) and len(numbers) <= 17


def test_a_backfill_with_a_filter_over_skipped_rows_alone_commits_nothing(lab: InlineLab):
    table = lab.make(pa.table({"id": range(20)}))
    table.add_columns({"v": lab.udf(bad=frozenset({3}), on_error=skip_on_error())})
    table.backfill("v")
    version = table.version
    result = table.backfill("v", where="id = 3", **WHOLE)
    assert (result.status, result.rows_skipped, result.versions) == ("DONE", 1, ())
    assert table.version == version
    lab.switch.write_text("0")
    assert table.backfill("v", where="id = 3", **WHOLE).rows_computed == 1
    assert table.count_rows("v = id") == 20


def test_a_row_computed_as_null_that_is_skipped_later_is_called_again(lab: InlineLab):
    called, switch = lab.called(), lab.switch

    def f(id: int) -> int | None:
        called(id)
        if switch.exists():
            raise ValueError
        return None if id == 5 else id

    table = lab.make(pa.table({"id": range(10)}))
    table.add_columns({"v": udf(f, version="1", on_error=skip_on_error())})
    table.backfill("v")
    lab.rewrite("id", pa.array([*range(5), 25, *range(6, 10)]))
    switch.touch()
    assert table.backfill("v", stale=True).rows_skipped == 1
    switch.unlink()
    lab.calls()
    table.backfill("v")
    assert lab.calls() == [25] and table.count_rows("v = id") == 10


def test_cleanup_deletes_a_finished_file_of_a_deleted_fragment_next_to_committed_files(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    """A checkpoint with references to both files stays, because the other fragment exists."""
    table = lab.make(IDS.slice(0, 20), rows_per_file=10)
    table.add_columns({"v": lab.udf()})
    commit, commits = GroupCommits.commit, list[object]()

    def die_at_second_commit(*arguments: Any) -> None:
        commits.append(arguments)
        return die() if len(commits) == 2 else commit(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(GroupCommits, "commit", die_at_second_commit)
        with pytest.raises(Death):
            table.backfill("v", commit_granularity=1)
    lance.dataset(lab.uri).delete("id >= 10")
    assert len(no_version_names(lab.uri)) == 2, "the inputs and the values of the deleted fragment"
    assert lance_spark.cleanup(table.uri, older_than=timedelta(0)) == 1
    assert not Path(lab.uri, "_lance_spark", "staging").exists()
    assert table.backfill("v").rows_computed == 0
    assert values(table, "v") == {i: (i,) for i in range(10)}


def test_a_task_that_ran_twice_leaves_no_file_after_a_failure(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    """The first attempt died before its report, and left references to its files."""

    class DyingScheduler(InlineScheduler):
        def run(
            self, tasks: Sequence[Task], refresh_s: float
        ) -> Generator[list[RangeOutcome], None, None]:
            for task in tasks:
                list(self._spec.value_source.run(self._spec, task))
            again = [
                replace(task, work=tuple(work.searched() for work in task.work)) for task in tasks
            ]
            yield from super().run(again, refresh_s)

    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf(bad=frozenset([35]))})
    with monkeypatch.context() as patches:
        patches.setattr(job, "Scheduler", DyingScheduler)
        with pytest.raises(BackfillIncompleteError, match="3 of 4 fragments done"):
            table.backfill("v")
    assert no_version_names(lab.uri) == [] and not Path(lab.uri, "_lance_spark", "staging").exists()
    assert set(range(30)) <= set(lab.calls())
    lab.switch.write_text("0")
    assert table.backfill("v").status == "DONE"
    assert set(lab.calls()) <= set(range(30, 40))
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


def test_cleanup_leaves_finished_files_that_a_later_job_can_commit(lab: InlineLab):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf()})
    with lab.dying_at_commit():
        table.backfill("v")
    assert lance_spark.cleanup(table.uri, older_than=timedelta(0)) == 0
    lab.calls()
    table.backfill("v")
    assert lab.calls() == []
    assert no_version_names(lab.uri) == [], "the job that used them has removed them"
    assert lance_spark.cleanup(table.uri, older_than=timedelta(0)) == 0
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
