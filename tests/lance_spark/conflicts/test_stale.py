"""Values that are out of date: what `stale=True` selects, and that plans and results say how many there are."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import lance
import pytest

import lance_spark
from tests.lance_spark.conflicts.jobs import ALL, Lab
from tests.lance_spark.conflicts.others import (
    ROWS,
    STEP,
    append,
    assert_indexes_agree,
    change_columns,
    column,
    compact,
    delete_rows,
    rewrite,
    rewrite_input,
    rewrite_other,
    rewrite_target,
    rows_of,
    unused_files,
    update_input,
    update_other,
    value,
    work_of_others,
)
from tests.support import inline_jobs

EITHER = pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])


def filled_table(lab: Lab, *, stable: bool = True) -> lance_spark.Table:
    table = lab.table(stable=stable, indexed=True)
    assert lab.run().rows_stale == 0
    assert lab.calls() == ALL
    return table


def planned(lab: Lab, **more: Any) -> lance_spark.BackfillPlan:
    return lab.open().plan_backfill("v", **more)


def check_fresh(lab: Lab) -> None:
    """Asserts that each row has the value of its input, and that nothing is left to do."""
    assert column(lab.uri) == {i: value(row["x"]) for i, row in work_of_others(lab.uri).items()}
    assert_indexes_agree(lab.uri)
    version = lance.dataset(lab.uri).version
    plan = planned(lab, stale=True)
    assert (plan.rows_stale, plan.total_rows_pending, plan.has_work) == (0, 0, False)
    again = lab.run(stale=True)
    assert (again.status, again.rows_stale, again.rows_computed) == ("DONE", 0, 0)
    assert lab.calls() == Counter()
    assert lance.dataset(lab.uri).version == version
    assert unused_files(lab.uri) == set()


@pytest.mark.promise("F03")
@EITHER
def test_rows_whose_input_an_update_changed(stable: bool, lab: Lab):
    filled_table(lab, stable=stable)
    update_input(lab.uri)
    assert planned(lab).rows_stale == 3
    assert planned(lab).total_rows_pending == 0
    plain = lab.run()
    assert (plain.rows_stale, plain.rows_computed) == (3, 0)
    assert lab.calls() == Counter()
    plan = planned(lab, stale=True)
    assert (plan.rows_stale, plan.total_rows_pending) == (3, 3)
    result = lab.run(stale=True)
    assert (result.rows_computed, result.rows_stale) == (3, 0)
    assert lab.calls() == Counter([5 + STEP, 25 + STEP, 35 + STEP])
    check_fresh(lab)


@EITHER
def test_rows_whose_input_was_written_in_place(stable: bool, lab: Lab):
    filled_table(lab, stable=stable)
    rewrite_input(lab.uri)
    assert planned(lab).rows_stale == 2
    assert lab.run().rows_stale == 2
    assert set(lab.calls()) <= {3, 31, 38}, "rows that were computed as NULL from files that are others now"
    result = lab.run(stale=True)
    assert (result.rows_computed, result.rows_stale) == (2, 0)
    assert lab.calls() == Counter([5 + STEP, 35 + STEP])
    check_fresh(lab)


@EITHER
def test_an_input_that_was_written_with_the_values_it_had_makes_nothing_stale(stable: bool, lab: Lab):
    filled_table(lab, stable=stable)
    rewrite(lab.uri, "x", {5: 5, 25: 25})
    lab.run(stale=True)
    assert lab.calls() == Counter()
    check_fresh(lab)


def test_rows_that_were_moved_with_the_input_they_had_are_not_stale(lab: Lab):
    filled_table(lab)
    update_other(lab.uri)
    compact(lab.uri, materialize_deletions_threshold=0.0)
    assert planned(lab).rows_stale == 0
    lab.run(stale=True)
    assert lab.calls() == Counter()
    check_fresh(lab)


def test_without_stable_row_ids_rows_that_an_update_moved_may_be_stale(lab: Lab):
    """What rows of a fragment that an update made were, nothing tells: they are called once, and then it is known."""
    filled_table(lab, stable=False)
    update_other(lab.uri)
    assert planned(lab).rows_stale == 4, "one of the five was computed as NULL"
    lab.run(stale=True)
    assert set(lab.calls()) in (set(), {5, 6, 10, 25, 35})
    check_fresh(lab)


@EITHER
def test_what_is_no_input_makes_nothing_stale(stable: bool, lab: Lab):
    filled_table(lab, stable=stable)
    rewrite_other(lab.uri)
    delete_rows(lab.uri)
    compact(lab.uri, materialize_deletions_threshold=0.0)
    lance.dataset(lab.uri).add_columns({"sum": "x + y"})
    lance.dataset(lab.uri).drop_columns(["y"])
    version = lance.dataset(lab.uri).version
    assert (lab.run().status, lance.dataset(lab.uri).version) == ("DONE", version)
    assert lab.calls() == Counter(), "rows that were computed as NULL"
    assert (planned(lab).rows_stale, planned(lab).total_rows_pending) == (0, 0)
    check_fresh(lab)


@EITHER
def test_compactions_after_a_change_do_not_hide_it(stable: bool, lab: Lab):
    filled_table(lab, stable=stable)
    rewrite_input(lab.uri)
    compact(lab.uri)
    lance.dataset(lab.uri).update({"x": f"x + {STEP}"}, where="id = 15")
    compact(lab.uri, materialize_deletions_threshold=0.0)
    assert planned(lab).rows_stale == 3
    lab.run(stale=True)
    assert lab.calls() == Counter([5 + STEP, 15 + STEP, 35 + STEP])
    check_fresh(lab)


@EITHER
def test_rows_that_another_udf_version_computed(stable: bool, lab: Lab):
    table = filled_table(lab, stable=stable)
    table.alter_columns({"path": "v", "udf": lab.udf(version="2", factor=3)})
    assert planned(lab, stale=True).rows_stale == ROWS
    result = lab.run(stale=True)
    assert lab.calls() == ALL
    assert (result.rows_computed, result.rows_stale) == (ROWS, 0)
    assert column(lab.uri) == {i: None if i % 7 == 3 else i * 3 for i in range(ROWS)}
    lab.run(stale=True)
    assert lab.calls() == Counter()
    assert_indexes_agree(lab.uri)


@pytest.mark.promise("F05")
def test_another_udf_computes_all_rows_once(lab: Lab):
    table = filled_table(lab)
    table.alter_columns({"path": "v", "udf": lab.udf(version="2", factor=3)})
    plan = planned(lab)
    assert (plan.udf_mismatch, plan.total_rows_pending) == (True, ROWS)
    calls = []
    for _ in range(4):
        lab.run()
        calls.append(lab.calls().total())
    assert calls == [ROWS, 0, 0, 0]
    assert column(lab.uri) == {i: None if i % 7 == 3 else i * 3 for i in range(ROWS)}


@pytest.mark.promise("F03")
def test_a_row_without_a_value_whose_input_changed_is_computed(lab: Lab):
    filled_table(lab)
    lance.dataset(lab.uri).update({"x": f"x + {STEP}", "v": "cast(null as bigint)"}, where="id = 7")
    lab.run()
    assert lab.calls() == Counter([7 + STEP])
    check_fresh(lab)


def test_another_udf_and_a_filter_compute_the_rest_later(lab: Lab):
    table = filled_table(lab)
    table.alter_columns({"path": "v", "udf": lab.udf(version="2", factor=3)})
    result = lab.run(stale=True, where="x < 15")
    assert lab.calls() == Counter(range(15))
    assert result.rows_stale == 25
    lab.run(stale=True)
    assert lab.calls() == Counter(range(15, 40))
    lab.run(stale=True)
    assert lab.calls() == Counter()


def test_a_filter_selects_among_the_stale_rows(lab: Lab):
    filled_table(lab)
    update_input(lab.uri)
    result = lab.run(stale=True, where="id < 30")
    assert lab.calls() == Counter([5 + STEP, 25 + STEP])
    assert result.rows_stale == 1
    assert planned(lab, stale=True, where="id < 30").total_rows_pending == 0
    assert planned(lab, stale=True).total_rows_pending == 1
    lab.run(stale=True)
    assert lab.calls() == Counter([35 + STEP])
    check_fresh(lab)


def test_rows_that_were_never_computed_though_they_have_a_value(lab: Lab):
    filled_table(lab)
    source = rows_of(lab.uri, {1000: 1000, 1001: 1001}, v=-1)
    lance.write_dataset(source, lab.uri, mode="append")
    assert planned(lab).total_rows_pending == 0
    assert lab.run().rows_computed == 0
    result = lab.run(stale=True)
    assert lab.calls() == Counter([1000, 1001])
    assert (result.rows_computed, result.rows_stale) == (2, 0)
    check_fresh(lab)


def test_new_rows_without_a_value_are_not_stale_and_are_selected_all_the_same(lab: Lab):
    filled_table(lab)
    append(lab.uri)
    update_input(lab.uri)
    assert planned(lab).total_rows_pending == 2
    lab.run(stale=True)
    assert lab.calls() == Counter([1000, 1001, 5 + STEP, 25 + STEP, 35 + STEP])
    check_fresh(lab)


def test_values_that_somebody_wrote_are_no_values_of_the_udf(lab: Lab):
    filled_table(lab)
    rewrite_target(lab.uri)
    assert planned(lab).rows_stale == 17, "all rows with a value in the files that were written"
    assert lab.run().rows_stale == 17
    assert lab.calls() == Counter()
    assert column(lab.uri)[5] == -5
    assert lab.run(stale=True).rows_stale == 0
    assert lab.calls() == Counter(), "what the UDF once computed for these rows is still there"
    check_fresh(lab)


@EITHER
def test_a_change_whose_history_was_cleaned_up_costs_calls_in_its_fragments_at_most(stable: bool, lab: Lab):
    filled_table(lab, stable=stable)
    rewrite(lab.uri, "x", {5: 5 + STEP})
    lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    lab.run(stale=True)
    calls = lab.calls()
    assert {5 + STEP} <= set(calls) <= {*range(10), 5 + STEP} - {5} and max(calls.values()) == 1
    check_fresh(lab)


def test_a_cleanup_alone_makes_nothing_stale(lab: Lab):
    filled_table(lab)
    change_columns(lab.uri)
    lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert planned(lab).rows_stale == 0
    lab.run(stale=True)
    assert lab.calls() == Counter()


def test_rows_computed_as_null_are_stale_when_their_input_changes_and_not_before(lab: Lab):
    filled_table(lab)
    lab.run(stale=True)
    assert lab.calls() == Counter(), "3, 10, 17, ... were computed as NULL"
    rewrite(lab.uri, "x", {3: 3 + STEP, 4: 10})
    lab.run(stale=True)
    assert lab.calls() == Counter([3 + STEP, 10])
    check_fresh(lab)


def test_a_stale_run_in_which_the_inputs_change_again(lab: Lab):
    filled_table(lab)
    update_input(lab.uri)

    def act() -> None:
        lance.dataset(lab.uri).update({"x": f"x + {STEP}"}, where="id = 35")
        compact(lab.uri)

    with inline_jobs.acting(lab.uri, 25 + STEP, act):
        result = lab.run(stale=True)
    assert result.rows_recomputed == 1
    assert lab.calls() == Counter([5 + STEP, 25 + STEP, 35 + STEP, 35 + 2 * STEP])
    check_fresh(lab)


def test_a_column_that_nobody_has_filled_is_pending_and_not_stale(lab: Lab):
    lab.table()
    plan = planned(lab, stale=True)
    assert (plan.total_rows_pending, planned(lab).total_rows_pending) == (ROWS, ROWS)
    lab.run(stale=True)
    assert lab.calls() == ALL
    check_fresh(lab)


def test_null_where_inputs_change_during_a_job_is_not_out_of_date(lab: Lab):
    """Rows that were set to NULL have no value, so that the next plain run computes them."""
    lab.table()
    seen = lab.run_while(rewrite_input, "before", on_stale="null")
    assert (seen.result.rows_nulled, seen.result.rows_stale) == (2, 0)
    assert planned(lab).total_rows_pending == 2
    lab.calls()
    lab.run()
    assert lab.calls() == Counter([5 + STEP, 35 + STEP])
    check_fresh(lab)
