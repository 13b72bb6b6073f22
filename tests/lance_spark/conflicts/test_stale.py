"""Outdated values: the selection of `stale=True`, and their count in plans and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import lance
import pytest

import lance_spark
from tests.lance_spark.conflicts.cases import STALE, Case, OutdatedValues, variations
from tests.lance_spark.conflicts.jobs import ALL, ConflictLab
from tests.lance_spark.conflicts.others import (
    ROWS,
    STEP,
    ForeignState,
    assert_indexes_agree,
    column,
    compact,
    rewrite_input,
    unused_files,
    update_input,
    value,
)
from tests.support import inline_jobs

pytestmark = pytest.mark.sample(10, tests=5)

EITHER = pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])


def filled_table(lab: ConflictLab, *, stable: bool = True) -> lance_spark.Table:
    table = lab.table(stable=stable, indexed=True)
    assert lab.run().rows_stale == 0
    assert lab.calls() == ALL
    return table


def planned(lab: ConflictLab, **more: Any) -> lance_spark.BackfillPlan:
    return lab.open().plan_backfill("v", **more)


def check_fresh(lab: ConflictLab, foreign: Mapping[int, int] | None = None) -> None:
    """Asserts that each row has the result for its input, or another writer's value, and that no work remains."""
    current = ForeignState.at(lab.uri)
    assert column(lab.uri) == {i: value(current.x(i)) for i in current.rows} | {**(foreign or {})}
    assert_indexes_agree(lab.uri)
    version = lance.dataset(lab.uri).version
    plan = planned(lab, stale=True)
    assert (plan.rows_stale, plan.total_rows_pending, plan.has_work) == (0, 0, False)
    again = lab.run(stale=True)
    assert (again.status, again.rows_stale, again.rows_computed) == ("DONE", 0, 0)
    assert lab.calls() == Counter()
    assert lance.dataset(lab.uri).version == version
    assert unused_files(lab.uri) == set()


@pytest.mark.sample(30)
@pytest.mark.guarantee("F03")
@pytest.mark.parametrize(("case", "stable"), variations(STALE))
def test_rows_are_outdated_as_the_table_of_conflicts_says(
    case: Case, stable: bool, lab: ConflictLab
):
    filled_table(lab, stable=stable)
    case.act(lab.uri)
    expected = case.expected
    assert isinstance(expected, OutdatedValues)
    plan = planned(lab)
    assert (plan.rows_stale, plan.rows_unverified) == (expected.stale, expected.unverified)
    assert plan.total_rows_pending == expected.pending
    version, plain = lance.dataset(lab.uri).version, lab.run()
    assert lab.calls() == Counter(expected.plain)
    assert plain.rows_computed == len(expected.plain)
    assert plain.rows_stale == (
        expected.stale if expected.result_stale is None else expected.result_stale
    )
    assert expected.pending or lance.dataset(lab.uri).version == version
    result = lab.run(stale=True)
    assert lab.calls() == Counter(expected.calls)
    assert (result.rows_computed, result.rows_stale) == (len(expected.calls), 0)
    check_fresh(lab, expected.foreign)


@EITHER
def test_rows_that_another_udf_version_computed(stable: bool, lab: ConflictLab):
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


@pytest.mark.guarantee("F05")
def test_another_udf_computes_all_rows_once(lab: ConflictLab):
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


def test_another_udf_and_a_filter_compute_the_rest_later(lab: ConflictLab):
    table = filled_table(lab)
    table.alter_columns({"path": "v", "udf": lab.udf(version="2", factor=3)})
    result = lab.run(stale=True, where="x < 15")
    assert lab.calls() == Counter(range(15))
    assert result.rows_stale == 25
    lab.run(stale=True)
    assert lab.calls() == Counter(range(15, 40))
    lab.run(stale=True)
    assert lab.calls() == Counter()


def test_a_filter_selects_among_the_stale_rows(lab: ConflictLab):
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


def test_a_stale_run_in_which_the_inputs_change_again(lab: ConflictLab):
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


def test_a_column_that_was_never_filled_is_pending_and_not_stale(lab: ConflictLab):
    lab.table()
    plan = planned(lab, stale=True)
    assert (plan.total_rows_pending, planned(lab).total_rows_pending) == (ROWS, ROWS)
    lab.run(stale=True)
    assert lab.calls() == ALL
    check_fresh(lab)


def test_null_where_inputs_change_during_a_job_is_not_out_of_date(lab: ConflictLab):
    """Rows set to NULL have no value, so the next plain run computes them."""
    lab.table()
    outcome = lab.run_while(rewrite_input, "before", on_stale="null")
    assert (outcome.result.rows_nulled, outcome.result.rows_stale) == (2, 0)
    assert planned(lab).total_rows_pending == 2
    lab.calls()
    lab.run()
    assert lab.calls() == Counter([5 + STEP, 35 + STEP])
    check_fresh(lab)
