"""Jobs beside somebody who writes a column in place, of the inputs or of the target, and beside another job of the same column."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import lance
import pytest

from tests.lance_spark.conflicts.jobs import ALL, MOMENTS, MOMENTS_IN_SHORT, Lab, When, slipping_in
from tests.lance_spark.conflicts.others import (
    STEP,
    Act,
    append,
    cast_input,
    column,
    compact,
    one_after_another,
    rewrite,
    rewrite_input,
    rewrite_other,
    rewrite_target,
    update_other,
    value,
    work_of_others,
)

CHANGED = (5, 35)
"""Rows whose input `rewrite_input` changes; it writes two others too, as they are."""

NEW_CALLS = Counter(i + STEP for i in CHANGED)
THEIRS = {5: -5, 35: -35}
"""What `rewrite_target` gives."""


@MOMENTS
def test_rows_whose_input_was_written_in_place_are_computed_again(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(rewrite_input, when)
    expected = {"rows_recomputed": 2, "rows_nulled": 0, "rows_gone": 0, "new_rows": 0}
    assert seen.counted(*expected) == expected
    lab.check(seen, calls=ALL + NEW_CALLS)


@MOMENTS_IN_SHORT
def test_rows_whose_input_was_written_in_place_are_null_where_that_is_asked_for(
    when: When, stable: bool, indexed: bool, lab: Lab
):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(rewrite_input, when, on_stale="null")
    assert seen.counted("rows_recomputed", "rows_nulled") == {"rows_recomputed": 0, "rows_nulled": 2}
    lab.check(seen, values=dict.fromkeys(CHANGED), again=NEW_CALLS)


@pytest.mark.parametrize("when", ["before", "between", "slipped"])
def test_an_input_that_is_cast_leaves_no_value_of_old_inputs(when: When, lab: Lab):
    lab.table()
    seen = lab.run_while(one_after_another(rewrite_input, cast_input), when)
    assert seen.result.status == "DONE"
    rows = lance.dataset(lab.uri).to_table(columns=["x", "v"]).to_pylist()
    assert [row for row in rows if row["v"] != value(row["x"])] == []


@MOMENTS_IN_SHORT
def test_an_input_that_was_written_with_the_values_it_had_costs_no_call(
    when: When, stable: bool, indexed: bool, lab: Lab
):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(lambda uri: rewrite(uri, "x", {5: 5, 25: 25, 35: 35}), when)
    assert seen.counted("rows_recomputed", "rows_nulled") == {"rows_recomputed": 0, "rows_nulled": 0}
    lab.check(seen)


@pytest.mark.parametrize("when", ["between", "slipped"])
def test_rows_that_get_the_input_of_another_row_are_called_for_it_like_any_other(when: When, lab: Lab):
    lab.table()
    seen = lab.run_while(lambda uri: rewrite(uri, "x", {5: 7, 35: 7}), when)
    assert seen.result.rows_recomputed == 2
    lab.check(seen, calls=ALL + Counter([7, 7]))


@MOMENTS_IN_SHORT
def test_another_column_may_be_written_in_place(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    lab.check(lab.run_while(rewrite_other, when))


def test_an_input_that_is_written_again_and_again_at_the_worst_moment(lab: Lab):
    """Each time that the committer has looked, another value is there before it commits."""
    lab.table(indexed=True)
    acts = [lambda uri, n=n: rewrite(uri, "x", {5: 5 + n * STEP, 35: 35 + n * STEP}) for n in (1, 2, 3)]
    with slipping_in(lab.uri, *acts) as left:
        result = lab.run(commit_granularity=None)
    assert left == [] and result.status == "DONE"
    calls = lab.calls()
    assert calls >= ALL + Counter([5 + 3 * STEP, 35 + 3 * STEP])
    assert max(calls.values()) == 1, "no input is computed twice"
    assert column(lab.uri) == {i: value(row["x"]) for i, row in work_of_others(lab.uri).items()}
    lab.run()
    assert lab.calls() == Counter()


def test_a_value_that_the_job_gave_for_an_input_before_the_last_is_not_taken_for_somebody_elses(lab: Lab):
    """The value of the first input is committed, that of the second is never, because the input changes once more."""
    lab.table(indexed=True)

    def again(uri: str) -> None:
        rewrite(uri, "x", {5: 5 + 2 * STEP})
        lance.dataset(uri).add_columns({"late": "y"})  # pylance refuses the commit

    with slipping_in(lab.uri, lambda uri: rewrite(uri, "x", {5: 5 + STEP}), again) as left:
        result = lab.run(commit_granularity=None)
    assert left == []
    assert (result.status, result.rows_recomputed) == ("DONE", 2)
    assert lab.calls() == ALL + Counter([5 + STEP, 5 + 2 * STEP])
    assert column(lab.uri) == {i: value(row["x"]) for i, row in work_of_others(lab.uri).items()}


@pytest.mark.parametrize("when", ["between", "slipped"])
def test_an_input_is_written_in_place_and_the_rows_are_moved(when: When, lab: Lab):
    lab.table()
    seen = lab.run_while(one_after_another(rewrite_input, update_other, compact), when)
    assert seen.result.rows_recomputed == 2
    lab.check(seen, calls=ALL + NEW_CALLS)


@pytest.mark.parametrize("when", ["before", "slipped"])
def test_rows_are_moved_and_an_input_is_written_in_place(when: When, lab: Lab):
    lab.table(stable=False)
    seen = lab.run_while(one_after_another(compact, rewrite_input), when)
    assert seen.result.rows_recomputed == 2
    lab.check(seen, calls=ALL + NEW_CALLS)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("order", ["rewrite first", "compact first"])
def test_fragments_that_were_committed_are_compacted_by_themselves_and_an_input_changes(
    order: str, stable: bool, lab: Lab
):
    lab.table(stable=stable)
    acts: list[Act] = [
        lambda uri: rewrite(uri, "x", {5: 5 + STEP}),
        lambda uri: compact(uri, excluded_fragment_ids=[2, 3]),
    ]
    seen = lab.run_while(one_after_another(*(acts if order == "rewrite first" else reversed(acts))), "between")
    assert seen.result.rows_recomputed == 1
    lab.check(seen, calls=ALL + Counter([5 + STEP]))


# The target


@MOMENTS_IN_SHORT
def test_values_that_somebody_gave_meanwhile_are_kept_where_rows_without_a_value_were_asked_for(
    when: When, stable: bool, indexed: bool, lab: Lab
):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(rewrite_target, when)
    # What was committed before somebody wrote over it was not in the way of it.
    lab.check(seen, values=THEIRS)


@MOMENTS_IN_SHORT
def test_values_that_somebody_gave_meanwhile_are_replaced_where_the_filter_asked_for_their_rows(
    when: When, stable: bool, indexed: bool, lab: Lab
):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(rewrite_target, when, where="1=1")
    lab.check(seen)


@pytest.mark.parametrize("when", ["before", "slipped"])
def test_values_that_somebody_gave_rows_that_the_filter_left_out_are_kept(when: When, lab: Lab):
    lab.table(indexed=True)
    seen = lab.run_while(rewrite_target, when, where="x < 20")
    assert column(lab.uri) == {i: value(i) if i < 20 else THEIRS.get(i) for i in range(40)}
    assert lab.calls() == Counter(range(20))
    again = replace(seen, result=lab.run())
    lab.check(again, calls=Counter(i for i in range(20, 40) if i != 35), values={35: -35})


@pytest.mark.parametrize("when", ["before", "between", "slipped"])
def test_a_value_that_somebody_took_away_meanwhile_is_given_again(when: When, lab: Lab):
    """Somebody writes NULL into the target: rows without a value get ours."""
    lab.table()
    seen = lab.run_while(lambda uri: rewrite(uri, "v", {5: None, 6: None, 35: None}), when)
    assert lab.calls() == ALL
    if when == "between":
        lab.run()
    lab.check(seen, calls={})


@pytest.mark.parametrize("when", ["before", "slipped"])
def test_values_that_somebody_gave_are_kept_through_a_compaction(when: When, lab: Lab):
    lab.table(stable=False, indexed=True)
    seen = lab.run_while(one_after_another(rewrite_target, compact), when)
    lab.check(seen, values=THEIRS)


# Two jobs


@pytest.mark.parametrize("stable", [True, False])
def test_a_job_beside_a_whole_job_of_the_same_column_keeps_its_values(stable: bool, lab: Lab):
    lab.table(stable=stable, indexed=True)
    with lab.held([6]):
        slow = lab.start(commit_granularity=1, concurrency=1)
        lab.wait_for([6], slow)
        # The row that waits would wait in this job too: a filter leaves it out.
        quick = lab.run(where="x >= 20", job_id="quick")
        assert quick.rows_computed == 20
    result = slow.result(60)
    assert (quick.status, result.status) == ("DONE", "DONE")
    calls = lab.calls()
    assert set(calls) == set(range(40)) and max(calls[x] for x in range(20)) == 1 and max(calls.values()) <= 2
    assert column(lab.uri) == {i: value(i) for i in range(40)}
    lab.run()
    assert lab.calls() == Counter()


@pytest.mark.parametrize("granularity", [1, None])
def test_two_jobs_of_one_column_at_once_both_succeed(granularity: int | None, lab: Lab):
    lab.table(indexed=True)
    one, two = (lab.start(commit_granularity=granularity, task_size=size) for size in (10, 5))
    assert [job.result(60).status for job in (one, two)] == ["DONE", "DONE"]
    calls = lab.calls()
    assert set(calls) == set(range(40)) and max(calls.values()) <= 2
    assert column(lab.uri) == {i: value(i) for i in range(40)}
    lab.run()
    assert lab.calls() == Counter()


def test_two_jobs_of_one_column_beside_a_compaction_and_new_rows(lab: Lab):
    lab.table()
    with lab.held([6, 16]):
        one = lab.start(commit_granularity=1)
        lab.wait_for([6, 16], one)
        two = lab.start(commit_granularity=1)
        append(lab.uri)
        compact(lab.uri)
    assert [job.result(60).status for job in (one, two)] == ["DONE", "DONE"]
    calls = lab.calls()
    assert set(calls) <= {*range(40), 1000, 1001} and max(calls.values()) <= 2
    assert {i: v for i, v in column(lab.uri).items() if i < 1000} == {i: value(i) for i in range(40)}
    lab.run()
    assert set(lab.calls()) <= {1000, 1001}
    assert column(lab.uri) == {i: value(row["x"]) for i, row in work_of_others(lab.uri).items()}


def test_a_table_whose_target_is_written_in_place_with_every_commit_still_gets_its_values(lab: Lab):
    """Somebody fills rows of the same column one by one, each time that the committer has looked."""
    lab.table(indexed=True)
    acts = [lambda uri, i=i: rewrite(uri, "v", {i: -i}) for i in (5, 15, 35)]
    with slipping_in(lab.uri, *acts) as left:
        result = lab.run(commit_granularity=None)
    assert left == [] and result.status == "DONE"
    assert lab.calls() == ALL
    assert column(lab.uri) == {i: -i if i in (5, 15, 35) else value(i) for i in range(40)}
    assert lance.dataset(lab.uri).count_rows("v < 0") == 3
