"""Jobs beside changes that move rows to other fragments: updates, upserts and compactions. What was computed goes with the rows."""

from __future__ import annotations

from collections import Counter

import lance
import pytest

from tests.lance_spark.conflicts.jobs import ALL, MOMENTS, MOMENTS_IN_SHORT, Lab, When, slipping_in
from tests.lance_spark.conflicts.others import (
    IN_ROUNDS,
    STEP,
    Act,
    append,
    column,
    compact,
    compact_and_update,
    compact_deferred,
    compact_in_rounds,
    delete_rows,
    name_of,
    one_after_another,
    update_input,
    update_other,
    upsert,
    value,
    work_of_others,
)

CHANGED = (5, 25, 35)
"""Rows whose input `update_input` changes."""

NEW_CALLS = Counter(i + STEP for i in CHANGED)


@MOMENTS
def test_rows_that_an_update_moved_keep_what_was_computed(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(update_other, when)
    # Rows 5, 6 and 10 were moved with their value where their fragments were committed before.
    if stable:
        # The value of row 10 is NULL: it looks as if it had none.
        assert seen.result.rows_carried in ((2, 3) if when == "between" else (5,))
        expected = {"rows_recomputed": 0, "rows_nulled": 0, "new_rows": 0}
        assert seen.counted(*expected) == expected
        lab.check(seen)
    else:
        assert seen.result.rows_carried == 0
        lab.check(seen, calls=ALL + Counter([5, 6, 10, 25, 35]))


@MOMENTS
def test_rows_whose_input_an_update_changed_are_computed_again(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(update_input, when)
    assert seen.counted("rows_carried", "rows_nulled") == {"rows_carried": 0, "rows_nulled": 0}
    # Without stable row ids nobody knows that these rows had been computed.
    assert seen.result.rows_recomputed == 3 or not stable
    lab.check(seen, calls=ALL + NEW_CALLS)


@pytest.mark.parametrize("when", ["before", "between", "slipped"])
def test_rows_whose_input_an_update_changed_are_null_where_that_is_asked_for(when: When, lab: Lab):
    lab.table(indexed=True)
    seen = lab.run_while(update_input, when, on_stale="null")
    expected = {"rows_carried": 0, "rows_recomputed": 0, "rows_nulled": 3}
    assert seen.counted(*expected) == expected
    lab.check(seen, values=dict.fromkeys(CHANGED), again=NEW_CALLS)


@MOMENTS_IN_SHORT
def test_an_upsert_is_an_update_and_an_append(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(upsert, when)
    changed = Counter([5 + STEP, 25 + STEP])
    if stable:
        carried = 1 if when == "between" else 2
        expected = {"rows_carried": carried, "rows_recomputed": 2, "new_rows": 1}
        assert seen.counted(*expected) == expected
        lab.check(seen, calls=ALL + changed, values={1000: None}, again=[1000])
    else:
        # Which row of the new fragment is which is not known: all of them are computed, the inserted one too.
        lab.check(seen, calls=ALL + changed + Counter([6, 36, 1000]))


def test_an_update_of_rows_that_were_not_selected_leaves_them_alone(lab: Lab):
    """The values that they have are of another run; the next run says what is out of date, and does not change it."""
    lab.table()
    lab.run(where="x < 20")
    lab.calls()
    seen = lab.run_while(update_input, "slipped", where="x >= 20")
    assert seen.result.rows_recomputed == 2
    assert lab.calls() == Counter(range(20, 40)) + Counter([25 + STEP, 35 + STEP])
    assert column(lab.uri)[5] == 50
    assert {i: v for i, v in column(lab.uri).items() if i != 5} == {
        i: value(row["x"]) for i, row in work_of_others(lab.uri).items() if i != 5
    }
    assert lab.run().rows_stale == 1
    assert lab.calls() == Counter()


def test_a_row_that_is_updated_so_that_the_filter_leaves_it_out_keeps_no_value_of_its_old_input(lab: Lab):
    lab.table()
    seen = lab.run_while(update_input, "before", where="x < 1000", on_stale="recompute")
    assert seen.result.status == "DONE"
    values = column(lab.uri)
    assert {i: values[i] for i in CHANGED} in ({i: value(i + STEP) for i in CHANGED}, dict.fromkeys(CHANGED))
    assert {i: v for i, v in values.items() if i not in CHANGED} == {i: value(i) for i in range(40) if i not in CHANGED}


@pytest.mark.parametrize("stable", [True, False])
def test_rows_that_are_updated_twice_are_computed_for_their_last_input(stable: bool, lab: Lab):
    lab.table(stable=stable, indexed=True)
    seen = lab.run_while(one_after_another(update_input, update_input), "between")
    assert seen.result.rows_recomputed == 3 or not stable
    lab.check(seen, calls=ALL + Counter(i + 2 * STEP for i in CHANGED))


def test_rows_that_are_updated_and_deleted_are_not_computed_again(lab: Lab):
    lab.table()

    def act(uri: str) -> None:
        update_input(uri)
        lance.dataset(uri).delete("id IN (5, 35, 36)")

    seen = lab.run_while(act, "before")
    assert seen.counted("rows_recomputed", "rows_gone") == {"rows_recomputed": 1, "rows_gone": 3}
    lab.check(seen, calls=ALL + Counter([25 + STEP]))


# Compactions


@MOMENTS
def test_compaction_costs_no_call(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(compact, when)
    carried = 20 if when == "between" else 40
    expected = {"rows_carried": carried, "rows_recomputed": 0, "rows_gone": 0, "new_rows": 0}
    assert seen.counted(*expected) == expected
    lab.check(seen)


@MOMENTS_IN_SHORT
def test_compactions_in_rounds_with_deletions_cost_no_call(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(compact_in_rounds, when)
    # Of the two fragments that were committed before, the rows that are left have their values with them.
    live = 16 if when == "between" else 33
    assert seen.counted("rows_carried", "rows_gone") == {"rows_carried": live, "rows_gone": 7}
    assert set(seen.theirs) == set(range(40)) - IN_ROUNDS
    lab.check(seen)


@pytest.mark.parametrize("when", ["before", "between", "slipped"])
def test_a_compaction_that_defers_the_remapping_of_indexes_costs_no_call(when: When, lab: Lab):
    lab.table(stable=False, indexed=True)
    seen = lab.run_while(compact_deferred, when)
    assert seen.result.rows_carried == (20 if when == "between" else 40)
    lab.check(seen)


@pytest.mark.parametrize(("when", "stable"), [("before", True), ("between", False), ("slipped", True)])
def test_values_of_some_rows_of_a_fragment_are_carried_over_too(when: When, stable: bool, lab: Lab):
    """Every other row has a value of an earlier run, which stays."""
    lab.table(stable=stable, indexed=True)
    lab.run(where="x % 2 = 1")
    assert lab.calls() == Counter(range(1, 40, 2))
    seen = lab.run_while(compact, when, where="x % 2 = 0")
    # What was committed before is carried over once more where it is in one fragment with the rest now.
    assert seen.result.rows_carried in ((10, 20) if when == "between" else (20,))
    assert seen.result.rows_recomputed == 0
    lab.check(seen, calls=Counter(range(0, 40, 2)))


@pytest.mark.parametrize(("when", "order"), [("before", "delete first"), ("slipped", "compact first")])
def test_deletions_beside_a_compaction_are_not_taken_back(when: When, order: str, lab: Lab):
    lab.table(stable=False, indexed=True)
    acts: list[Act] = [delete_rows, lambda uri: compact(uri, materialize_deletions_threshold=0.0)]
    seen = lab.run_while(one_after_another(*(acts if order == "delete first" else reversed(acts))), when)
    assert seen.counted("rows_carried", "rows_gone") == {"rows_carried": 36, "rows_gone": 4}
    lab.check(seen)


@pytest.mark.parametrize("when", ["before", "between", "slipped"])
def test_compactions_and_updates_in_turn(when: When, lab: Lab):
    lab.table(indexed=True)
    seen = lab.run_while(compact_and_update, when)
    # All rows were moved; three of them have another input.
    assert seen.result.rows_recomputed == 3
    assert seen.result.rows_carried in ((18, 19) if when == "between" else (37,))
    lab.check(seen, calls=ALL + NEW_CALLS)


@pytest.mark.parametrize("when", ["before", "between"])
def test_compactions_and_updates_in_turn_without_stable_row_ids(when: When, lab: Lab):
    """Rows of a fragment that an update made are computed, and compacted again they are rows among others: the bound is one more call."""
    lab.table(stable=False)
    seen = lab.run_while(compact_and_update, when)
    assert seen.result.status == "DONE"
    calls = lab.calls()
    assert calls >= ALL + NEW_CALLS
    assert max(calls.values()) <= 2
    lab.check(seen, calls={})


def test_a_compaction_and_rows_that_came_with_it_are_told_apart(lab: Lab):
    lab.table(stable=False)

    seen = lab.run_while(one_after_another(append, compact), "before")
    assert seen.counted("rows_carried", "new_rows") == {"rows_carried": 40, "new_rows": 2}
    lab.check(seen, values={1000: None, 1001: None}, again=[1000, 1001])


def test_others_slip_in_each_time_that_the_committer_has_looked(lab: Lab):
    lab.table(indexed=True)
    theirs = {}

    def noted(act: Act) -> Act:
        def noting(uri: str) -> None:
            act(uri)
            theirs.update({0: work_of_others(uri)})

        return noting

    def tidy(uri: str) -> None:
        lance.dataset(uri).optimize.compact_files(materialize_deletions_threshold=0.0)

    acts = [lambda uri: lance.dataset(uri).add_columns({"late": "y"}), update_input, tidy, update_other, tidy]
    with slipping_in(lab.uri, *map(noted, acts)) as left:
        result = lab.run(commit_granularity=None)
    assert len(left) <= 3, "the update did not slip in"
    assert result.status == "DONE" and result.rows_recomputed == 3
    assert lab.calls() == ALL + NEW_CALLS
    assert work_of_others(lab.uri) == theirs[0]
    assert column(lab.uri) == {i: value(row["x"]) for i, row in theirs[0].items()}
    lab.run()
    assert lab.calls() == Counter()


@pytest.mark.parametrize("act", [compact, update_input], ids=name_of)
def test_a_job_that_carries_over_has_versions_and_no_errors(act: Act, lab: Lab):
    lab.table()
    seen = lab.run_while(act, "before")
    assert seen.result.versions and seen.result.fragments_failed == {}
    assert max(seen.result.versions) <= lance.dataset(lab.uri).version
    job = lab.connection.open_table("t").get_job(seen.result.job_id)
    assert job.status == "DONE" and job.rows_failed == 0
