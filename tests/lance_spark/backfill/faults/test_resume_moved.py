"""Compaction and changes by other writers between two runs: computed values are found again with their rows."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter
from lance.fragment import DataFile

import lance_spark
from tests.support.faults import (
    SETTINGS,
    Lab,
    counting_udf,
    run,
    run_and_fail,
    unused_files,
    values_of,
    wrong_rows,
)
from tests.support.waiting import eventually
from udf_runtime.policies import skip_on_error

pytestmark = pytest.mark.sample(1, tests=3)

either_row_ids = pytest.mark.parametrize(
    "stable_row_ids", [True, False], ids=["stable row ids", "row addresses"]
)


def compact(table: lance_spark.Table, rows: int = 1000) -> None:
    before = table.version
    table.to_lance().optimize.compact_files(target_rows_per_fragment=rows)
    assert table.version > before


def set_in_place(
    table: lance_spark.Table, fragment_id: int, column: str, values: dict[int, int | None]
) -> None:
    """Puts values into a fragment by another column file, as another tool may; rows keep their places."""
    dataset = table.to_lance()
    fragment = dataset.get_fragment(fragment_id)
    current = fragment.to_table(columns=[column]).column(column).to_pylist()
    assert len(current) == fragment.physical_rows
    changed = pa.table(
        {column: pa.array([values.get(i, v) for i, v in enumerate(current)], pa.int64())}
    )
    name = f"others-{dataset.version}.lance"
    with LanceFileWriter(f"{table.uri}/data/{name}", changed.schema) as writer:
        writer.write_batch(changed)
    file = DataFile.create(dataset, name)
    operation = lance.LanceOperation.DataReplacement(
        [lance.LanceOperation.DataReplacementGroup(fragment_id, file)]
    )
    lance.LanceDataset.commit(table.uri, operation, read_version=dataset.version)


@pytest.mark.sample(4)
@either_row_ids
@pytest.mark.parametrize("task_size", [30, 1000], ids=["ranges", "whole fragments"])
def test_compaction_after_a_failed_run_causes_no_call(
    lab: Lab, stable_row_ids: bool, task_size: int
):
    table = lab.table(stable_row_ids=stable_row_ids)
    lab.order({65: "raise"})
    run_and_fail(table, task_size=task_size)
    lab.new_calls()
    lab.pardon()
    compact(table)
    assert len(table.to_lance().get_fragments()) == 1
    run(table, task_size=task_size)
    # Row 60 begins the second range of its fragment, so only the failed batch of ten is missing.
    assert lab.new_calls() == Counter(range(60, 80))
    assert wrong_rows(table) == []
    run(table)
    assert lab.new_calls() == Counter(), "rows computed as NULL are known after the compaction too"
    assert unused_files(table.uri) == set()


@either_row_ids
def test_deletions_and_compactions_between_runs_cause_no_call(lab: Lab, stable_row_ids: bool):
    table = lab.table(160, 20, stable_row_ids=stable_row_ids)
    lab.order({35: "raise", 95: "raise"})
    run_and_fail(table, commit_granularity=None)
    lab.new_calls()
    table.to_lance().delete("x IN (1, 21, 36, 100) OR x % 20 = 13")
    compact(table, 40)
    table.to_lance().delete("x % 20 = 14")
    run_and_fail(table)
    assert lab.new_calls() <= Counter([*range(30, 40), *range(90, 100)])
    lab.pardon()
    compact(table)
    run(table)
    assert lab.new_calls() == Counter(
        x for x in [*range(30, 40), *range(90, 100)] if x % 20 not in (13, 14) and x != 36
    )
    assert wrong_rows(table) == []
    run(table)
    assert lab.new_calls() == Counter()


def test_compaction_and_cleanup_of_old_versions_after_a_failed_run_keep_the_table_right(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    compact(table)
    table.to_lance().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    run(table)
    # The history of the compaction is gone, so exactly the rows without a value are called again.
    calls = lab.new_calls()
    assert set(range(60, 80)) <= set(calls) <= {x for x in range(120) if 40 <= x < 80 or x % 7 == 3}
    assert max(calls.values()) == 1
    assert wrong_rows(table) == []


def test_cleanup_of_old_versions_alone_leaves_checkpoints_useful(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    table.to_lance().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    run(table)
    assert lab.new_calls() == Counter(range(60, 80))
    assert wrong_rows(table) == []


@either_row_ids
def test_skipped_rows_are_called_again_after_a_compaction_and_no_others(
    lab: Lab, stable_row_ids: bool
):
    table = lab.table(stable_row_ids=stable_row_ids, on_error=skip_on_error())
    lab.order({5: "raise", 50: "raise"})
    run(table)
    lab.new_calls()
    lab.pardon()
    compact(table)
    run(table)
    assert lab.new_calls() == Counter([5, 50])
    assert wrong_rows(table) == []


@either_row_ids
def test_a_compaction_while_a_job_runs_loses_nothing(lab: Lab, stable_row_ids: bool):
    table = lab.table(stable_row_ids=stable_row_ids)
    lab.order({95: "wait"})
    job = table.backfill_async("v", **_async(task_size=40, commit_granularity=None))
    assert isinstance(job, lance_spark.Job)
    eventually(lambda: lab.waits_at(95))
    compact(table)
    lab.pardon()
    try:
        job.result(60)
    except lance_spark.BackfillIncompleteError:
        assert job.status in ("PARTIAL", "FAILED")
    run(table)
    assert wrong_rows(table) == []
    assert lab.new_calls() == Counter(range(120)), "each row once, in both runs together"


def test_a_value_that_another_writer_set_to_null_is_restored_without_a_call(lab: Lab):
    table = lab.table()
    run(table)
    lab.new_calls()
    set_in_place(table, 1, "v", {5: None, 6: None, 13: None})
    assert wrong_rows(table) == [46, 53], "row 45 was computed as NULL"
    result = run(table)
    assert lab.new_calls() == Counter()
    # The writer of that file may have intended the NULLs of other rows too, so the job looks up all of them.
    assert (result.rows_computed, result.rows_from_checkpoint) == (0, 7)
    assert wrong_rows(table) == []


def test_rows_whose_value_is_missing_after_their_input_changed_are_called(lab: Lab):
    table = lab.table()
    run(table)
    lab.new_calls()
    set_in_place(table, 1, "x", {5: 1005})
    set_in_place(table, 1, "v", {5: None, 6: None})
    run(table)
    assert 1005 in lab.new_calls(), "the old value is not that of the new input"
    assert wrong_rows(table) == []


def test_checkpoints_of_rows_whose_inputs_changed_are_not_used_and_others_are(lab: Lab):
    table = lab.table(40, 40)
    lab.order({35: "raise"})
    run_and_fail(table, task_size=1000)
    lab.new_calls()
    lab.pardon()
    set_in_place(table, 0, "x", {5: 1005, 6: 1006})
    run(table)
    calls = lab.new_calls()
    assert {1005, 1006, *range(35, 40)} <= set(calls) <= {1005, 1006, *range(30, 40)} and max(
        calls.values()
    ) == 1
    assert wrong_rows(table) == []


def test_rows_that_an_update_moved_are_called_only_if_they_have_no_value(lab: Lab):
    table = lab.table(on_error=skip_on_error())
    lab.order({5: "raise", 50: "raise"})
    run(table)
    lab.new_calls()
    lab.pardon()
    table.to_lance().update({"x": "x + 1000"}, where="x IN (5, 6)")
    run(table)
    assert lab.new_calls() == Counter([1005, 50])
    assert values_of(table)[1005] == 10050


def test_a_column_that_was_dropped_and_added_again_uses_its_checkpoints_but_no_value_of_another(
    lab: Lab,
):
    table = lab.table(40, 40)
    lab.order({35: "raise"})
    run_and_fail(table, task_size=1000)
    lab.new_calls()
    lab.pardon()
    table.drop_columns("v")
    table.add_columns({"v": counting_udf(str(lab.home))})
    run(table)
    assert set(range(30, 40)) <= set(lab.new_calls())
    assert wrong_rows(table) == []


def test_a_restored_version_is_filled_again_from_what_was_computed(lab: Lab):
    table = lab.table()
    before = table.version
    run(table)
    lab.new_calls()
    old = lance.dataset(table.uri, version=before)
    old.restore()
    assert set(values_of(table).values()) == {None}
    run(table)
    assert lab.new_calls() == Counter()
    assert wrong_rows(table) == []


def _async(**more: object) -> dict[str, object]:
    return {**SETTINGS, **more}


@pytest.mark.long
def test_random_compactions_and_failures_call_each_row_once_but_for_batches_that_failed(lab: Lab):
    random = np.random.default_rng(11)
    table = lab.table(200, 20)
    bad = [int(x) for x in random.choice(200, 5, replace=False)]
    lab.order(dict.fromkeys(bad, "raise"))
    calls: Counter[int] = Counter()
    while bad:
        run_and_fail(table)
        calls += lab.new_calls()
        (lab.home / "faults" / str(bad.pop())).unlink()
        if random.random() < 0.7 and len(table.to_lance().get_fragments()) > 1:
            compact(table, int(random.choice([40, 60, 1000])))
    run(table)
    calls += lab.new_calls()
    assert wrong_rows(table) == []
    assert set(calls) == set(range(200))
    again = [x for x, count in calls.items() if count > 1]
    # Fragments of 20 rows are cut into two ranges or none, so a failure costs its batch of ten at most, each time.
    assert sum(calls.values()) - 200 <= 5 * 6 * 10
    assert len(again) <= 5 * 10
