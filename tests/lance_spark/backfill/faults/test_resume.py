"""A backfill after a failure calls the UDF only for missing rows; every test counts the calls."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.faults import (
    BATCH,
    Lab,
    checkpoint_files,
    counting_udf,
    run,
    run_and_fail,
    unused_files,
    values_of,
    wrong_rows,
)
from udf_runtime.policies import skip_on_error

pytestmark = pytest.mark.sample(1, tests=5)

WHOLE = {"task_size": 1000}
NULLS = [x for x in range(120) if x % 7 == 3]


def once(*rows: int | range) -> Counter[int]:
    """Returns one call of each row."""
    return Counter(x for row in rows for x in (row if isinstance(row, range) else [row]))


@pytest.mark.sample(1)
def test_after_an_error_at_one_row_the_same_call_computes_only_what_is_missing(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    result = run_and_fail(table)
    assert (result.status, result.fragments_done, result.rows_computed) == ("PARTIAL", 2, 100)
    # Rows 60 to 64 are in the batch of the bad row, and the rest of its fragment is never tried.
    assert lab.new_calls() == once(range(66), range(80, 120))
    assert {x for x, v in values_of(table).items() if v is not None} == {
        x for x in range(120) if not 40 <= x < 80 and x not in NULLS
    }
    lab.pardon()
    result = run(table)
    assert lab.new_calls() == once(range(60, 80))
    assert wrong_rows(table) == []
    assert (result.status, result.rows_computed, result.rows_from_checkpoint) == ("DONE", 20, 20)
    assert unused_files(table.uri) == set()


def test_after_an_error_in_one_of_many_ranges_of_a_fragment_only_that_range_is_computed(lab: Lab):
    table = lab.table(120, 120)
    lab.order({65: "raise"})
    result = run_and_fail(table, task_size=30)
    assert (result.status, result.fragments_done) == ("FAILED", 0)
    assert lab.new_calls() == once(range(66), range(90, 120))
    assert set(values_of(table).values()) == {None}
    lab.pardon()
    run(table, task_size=30)
    assert lab.new_calls() == once(range(60, 90))
    assert wrong_rows(table) == []


@pytest.mark.sample(1)
def test_rows_computed_as_null_are_not_called_again_and_make_no_version(lab: Lab):
    table = lab.table()
    run(table)
    assert lab.new_calls() == once(range(120))
    version = table.version
    result = run(table)
    assert lab.new_calls() == once()
    assert (result.status, result.rows_selected, table.version) == ("DONE", 0, version)
    assert not table.plan_backfill("v").has_work


def test_rows_computed_as_null_before_an_error_are_not_called_again(lab: Lab):
    table = lab.table(40, 40)
    lab.order({35: "raise"})
    run_and_fail(table)
    assert {3, 10, 17, 24} <= set(lab.new_calls())
    lab.pardon()
    run(table)
    assert lab.new_calls() == once(range(30, 40))
    run(table)
    assert lab.new_calls() == once()
    assert wrong_rows(table) == []


def test_skipped_rows_are_called_again_and_rows_beside_them_are_not(lab: Lab):
    table = lab.table(on_error=skip_on_error())
    lab.order({5: "raise", 50: "raise", 51: "raise"})
    result = run(table)
    assert (result.status, result.rows_skipped, result.rows_computed) == ("DONE", 3, 117)
    assert lab.new_calls() == once(range(120))
    result = run(table)
    assert lab.new_calls() == once(5, 50, 51)
    assert (result.status, result.rows_skipped) == ("DONE", 3)
    lab.pardon()
    run(table)
    assert lab.new_calls() == once(5, 50, 51)
    assert wrong_rows(table) == []
    run(table)
    assert lab.new_calls() == once()


def test_skipped_rows_in_one_of_many_ranges_are_called_again(lab: Lab):
    table = lab.table(120, 120, on_error=skip_on_error())
    lab.order({5: "raise", 50: "raise"})
    run(table, task_size=30)
    assert lab.new_calls() == once(range(120))
    lab.pardon()
    run(table, task_size=30)
    assert lab.new_calls() == once(5, 50)
    assert wrong_rows(table) == []


def test_two_finished_runs_of_everything_call_everything_twice(lab: Lab):
    table = lab.table()
    assert run(table, where="1=1").rows_computed == 120
    assert lab.new_calls() == once(range(120))
    for _ in range(2):
        result = run(table, where="1=1")
        assert (result.status, result.rows_computed, result.rows_from_checkpoint) == (
            "DONE",
            120,
            0,
        )
        assert lab.new_calls() == once(range(120))
    assert wrong_rows(table) == []


def test_two_finished_runs_of_the_rows_with_values_call_twice(lab: Lab):
    table = lab.table()
    run(table)
    lab.new_calls()
    for _ in range(2):
        run(table, where="v IS NOT NULL")
        assert lab.new_calls() == once(range(120)) - Counter(NULLS)


def test_a_failed_run_of_everything_is_resumed(lab: Lab):
    table = lab.table()
    run(table)
    lab.new_calls()
    lab.order({65: "raise"})
    run_and_fail(table, where="1=1")
    assert lab.new_calls() == once(range(66), range(80, 120))
    lab.pardon()
    run(table, where="1=1")
    assert lab.new_calls() == once(range(60, 80))
    assert wrong_rows(table) == []


def test_after_a_resumed_run_of_everything_the_next_one_calls_all_rows_again(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    run_and_fail(table, where="1=1", commit_granularity=1)
    lab.pardon()
    run(table, where="1=1")
    lab.new_calls()
    run(table, where="1=1")
    assert lab.new_calls() == once(range(120))


def test_a_run_of_everything_that_died_after_its_last_commit_is_complete_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.table()
    with monkeypatch.context() as patch:
        # The last step of a driver, which a kill at this moment prevents.
        patch.setattr("lance_spark.backfill.driver.job.BackfillJob._close", lambda *_: None)
        run(table, where="1=1")
    assert lab.new_calls() == once(range(120))
    run(table, where="1=1")
    assert lab.new_calls() == once(), "this resumes the one that died, and finds nothing to do"
    run(table, where="1=1")
    assert lab.new_calls() == once(range(120))


def test_a_failed_run_of_everything_is_not_resumed_by_another_filter_where_rows_have_values(
    lab: Lab,
):
    table = lab.table(40, 40)
    run(table)
    lab.new_calls()
    lab.order({35: "raise"})
    run_and_fail(table, where="1=1")
    lab.new_calls()
    lab.pardon()
    run(table, where="x < 100")
    assert lab.new_calls() == once(range(40))


def test_a_job_of_the_same_id_takes_over_values_for_rows_that_have_one(lab: Lab):
    table = lab.table(40, 40)
    run(table)
    lab.order({35: "raise"})
    run_and_fail(table, where="x >= 0", job_id="mine")
    lab.new_calls()
    lab.pardon()
    run(table, where="x < 100", job_id="mine")
    assert lab.new_calls() == once(range(30, 40))


def test_another_filter_uses_the_checkpoints(lab: Lab):
    table = lab.table(40, 40)
    lab.order({35: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    run(table, where="x >= 20")
    assert lab.new_calls() == once(24, range(30, 40)), (
        "of another job, checkpoints that hold a value serve"
    )
    run(table, where="x < 20 AND v IS NULL")
    assert lab.new_calls() == once(3, 10, 17)
    assert wrong_rows(table) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE, {"task_size": 13}),
        ({"task_size": 30}, WHOLE),
        ({"task_size": 30}, {"task_size": 50}),
        (WHOLE, WHOLE | {"checkpoint_size": 3, "min_checkpoint_size": 3}),
        (WHOLE, {"checkpoint_size": 1000, "min_checkpoint_size": 1000, "concurrency": 1}),
    ],
)
def test_other_sizes_use_the_checkpoints(lab: Lab, first: dict[str, int], second: dict[str, int]):
    table = lab.table(120, 120)
    lab.order({89: "raise"})
    run_and_fail(table, **first)
    computed = lab.new_calls()
    remaining = once(range(80, 120) if first == WHOLE else range(80, 90))
    assert computed == once(range(90)) if first == WHOLE else once(range(120))
    lab.pardon()
    result = run(table, **second)
    assert lab.new_calls() == remaining
    assert result.rows_from_checkpoint == 120 - len(remaining)
    assert wrong_rows(table) == []


def test_a_renamed_table_uses_its_checkpoints(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    lab.connection.rename_table("t", "renamed")
    renamed = lab.connection.open_table("renamed")
    run(renamed)
    assert lab.new_calls() == once(range(60, 80))
    assert wrong_rows(renamed) == []


def test_a_column_that_is_added_while_rows_are_missing_changes_nothing(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    table.add_columns({"other": "x + 1"})
    run(table)
    assert lab.new_calls() == once(range(60, 80))
    assert wrong_rows(table) == []


def test_a_udf_of_another_version_uses_no_checkpoint(lab: Lab):
    table = lab.table(40, 40)
    lab.order({35: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    other_udf = counting_udf(str(lab.home))
    run(
        table,
        udf=type(other_udf).define(
            other_udf.load(), data_type=other_udf.data_type, name="computed", version="2"
        ),
    )
    assert lab.new_calls() == once(range(40))


def test_deleted_rows_are_not_called_and_others_keep_their_checkpoints(lab: Lab):
    table = lab.table(40, 40)
    lab.order({35: "raise"})
    run_and_fail(table)
    lab.new_calls()
    lab.pardon()
    table.to_lance().delete("x IN (2, 33, 36)")
    run(table)
    assert lab.new_calls() == once(30, 31, 32, 34, 35, 37, 38, 39)
    assert wrong_rows(table) == []


def test_rows_that_were_added_are_called_and_no_others(lab: Lab):
    table = lab.table(40, 40)
    run(table)
    lab.new_calls()
    table.add([{"x": x} for x in range(1000, 1005)])
    run(table)
    assert lab.new_calls() == once(range(1000, 1005))
    assert wrong_rows(table) == []


def test_checkpoints_of_committed_fragments_are_gone(lab: Lab):
    table = lab.table()
    lab.order({65: "raise"})
    run_and_fail(table)
    assert len(checkpoint_files(table)) == 20 // BATCH, (
        "of the fragment that failed, and of no other"
    )
    lab.pardon()
    run(table)
    assert checkpoint_files(table) == []
