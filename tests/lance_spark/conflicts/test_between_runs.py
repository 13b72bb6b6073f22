"""A job that failed or was killed, changes by other writers, and the next job: rows with unchanged inputs are never
called again.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import lance
import pytest

import lance_spark
from tests.lance_spark.conflicts.cases import SUCCESSORS, Case, Completed, variations
from tests.lance_spark.conflicts.jobs import ALL, SETTINGS, ConflictLab, SparkLab, filled
from tests.lance_spark.conflicts.others import (
    STEP,
    append,
    assert_indexes_agree,
    clean_up,
    column,
    compact,
    delete_rows,
    one_after_another,
    rewrite,
    rewrite_input,
    unused_files,
    update_input,
    update_other,
    upsert,
    value,
    work_of_others,
)
from tests.support.drivers import driver

pytestmark = pytest.mark.sample(24, tests=3)

FAILS_AT = 27
UNCOMPUTED = set(range(25, 30))
"""Rows without a result in the first run: one batch of the third fragment. The other fragments are committed."""

EITHER = pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])


def fail_once(lab: ConflictLab, *, stable: bool = True, granularity: int | None = 1) -> None:
    """Runs a job with a failed batch; the job commits its complete fragments."""
    lab.table(stable=stable, indexed=True)
    result = lab.run_and_fail(FAILS_AT, commit_granularity=granularity)
    calls = lab.calls()
    assert set(calls) == set(range(FAILS_AT + 1)) | set(range(30, 40)) and max(calls.values()) == 1
    assert result.fragments_done == 3 and filled(lab.uri) == {0, 1, 3}


def check_successor(
    lab: ConflictLab,
    calls: set[int],
    *,
    values: dict[int, int | None] | None = None,
    name: str = "v",
    leftovers: bool = False,
) -> lance_spark.BackfillJobResult:
    """Runs a job, asserts its calls and the resulting state, and returns its result."""
    foreign_work = work_of_others(lab.uri)
    result = lab.run(name)
    assert lab.calls() == Counter(calls)
    assert result.status == "DONE"
    x = "x" if "x" in lance.dataset(lab.uri).schema.names else "renamed_x"
    assert work_of_others(lab.uri) == foreign_work
    assert column(lab.uri, name) == {
        i: (values or {}).get(i, value(row[x])) for i, row in foreign_work.items()
    }
    assert_indexes_agree(lab.uri, name)
    # Leftovers of a killed driver or a cancelled job, for use by the next job.
    if leftovers:
        lance_spark.cleanup(lab.uri, older_than=timedelta(0))
    assert unused_files(lab.uri) == set()
    assert lab.run(name).versions == ()
    assert lab.calls() == Counter()
    return result


@pytest.mark.guarantee("F04")
@pytest.mark.parametrize(("case", "stable"), variations(SUCCESSORS))
def test_the_next_job_calls_the_rows_of_the_table_of_conflicts(
    case: Case, stable: bool, lab: ConflictLab
):
    fail_once(lab, stable=stable)
    case.act(lab.uri)
    assert isinstance(case.expected, Completed)
    expected = case.expected
    result = check_successor(
        lab,
        {*UNCOMPUTED, *expected.calls} - {*expected.uncalled},
        values={**expected.foreign},
        name=expected.column,
    )
    assert {name: getattr(result, name) for name in expected.counters} == expected.counters


@EITHER
def test_rows_outdated_by_an_update_are_reported_and_recomputed_on_request(
    stable: bool, lab: ConflictLab
):
    """Rows 5 and 35 have values of their former inputs, so a plain run does not select them."""
    fail_once(lab, stable=stable)
    update_input(lab.uri)
    result = lab.run()
    assert lab.calls() == Counter(UNCOMPUTED - {25} | {25 + STEP})
    assert result.rows_stale == 2
    assert {i: column(lab.uri)[i] for i in (5, 35)} == {5: 50, 35: 350}
    lab.run(stale=True)
    assert lab.calls() == Counter([5 + STEP, 35 + STEP])
    check_successor(lab, set())


def test_an_upsert_between_two_runs(lab: ConflictLab):
    fail_once(lab)
    upsert(lab.uri)
    lab.run(stale=True)
    assert lab.calls() == Counter(UNCOMPUTED - {25} | {i + STEP for i in (5, 25)} | {1000})
    check_successor(lab, set())


@pytest.mark.long
@EITHER
def test_an_input_that_was_written_in_place_costs_calls_in_its_fragment_at_most(
    stable: bool, lab: ConflictLab
):
    fail_once(lab, stable=stable)
    rewrite(lab.uri, "x", {21: 21 + STEP})
    foreign_work = work_of_others(lab.uri)
    lab.run()
    calls = set(lab.calls())
    # The checkpoint of the fragment's other rows belongs to the old input, and serves after a comparison of the inputs.
    assert (
        UNCOMPUTED | {21 + STEP} <= calls <= UNCOMPUTED | {21 + STEP} | (set(range(20, 30)) - {21})
    )
    assert work_of_others(lab.uri) == foreign_work
    check_successor(lab, set())


@EITHER
def test_an_input_that_was_written_in_place_after_the_commit_is_out_of_date(
    stable: bool, lab: ConflictLab
):
    fail_once(lab, stable=stable)
    rewrite_input(lab.uri)
    result = lab.run()
    # Rows 3, 31 and 38 were computed as NULL, from files replaced since.
    assert UNCOMPUTED <= set(lab.calls()) <= UNCOMPUTED | {3, 31, 38}
    assert result.rows_stale == 2
    lab.run(stale=True)
    assert lab.calls() == Counter([5 + STEP, 35 + STEP])
    check_successor(lab, set())


@EITHER
def test_a_cleanup_after_a_compaction_between_two_runs(stable: bool, lab: ConflictLab):
    fail_once(lab, stable=stable)
    compact(lab.uri)
    clean_up(lab.uri)
    lab.run()
    calls = lab.calls()
    # Rows without a value: computed as NULL, or, with an unknown place, in a checkpoint.
    called_rows = UNCOMPUTED if stable else set(range(20, 30))
    assert UNCOMPUTED <= set(calls) <= called_rows | {x for x in range(40) if value(x) is None}
    assert max(calls.values()) == 1
    check_successor(lab, set())


@pytest.mark.long
@EITHER
def test_a_job_that_could_commit_nothing_leaves_all_that_it_computed(
    stable: bool, spark_lab: SparkLab
):
    """The table holds no values: only checkpoints and finished files exist, and rows have moved since."""
    lab = spark_lab
    lab.table(stable=stable)
    with lab.hold_calls([36]):
        job = lab.start(commit_granularity=None)
        lab.wait_for([36], job)
        job.cancel()
        assert job.done(60)
    assert filled(lab.uri) <= {0, 1, 2}
    delete_rows(lab.uri)
    compact(lab.uri, materialize_deletions_threshold=0.0)
    lab.run()
    calls = lab.calls()
    assert set(calls) <= set(range(40)) and all(calls[x] == 1 for x in range(35))
    # The batch at the task's stop.
    assert max(calls.values()) <= 2
    check_successor(lab, set(), leftovers=True)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.cluster
def test_a_killed_driver_and_others_cost_no_call_of_rows_that_were_persisted(spark_lab: SparkLab):
    """The driver and its workers are killed with two fragments committed and two half computed."""
    lab = spark_lab
    lab.table(indexed=True)
    with (
        lab.hold_calls([26, 36]),
        driver({"killed": (lab.home, {**SETTINGS, "commit_granularity": 1})}) as killed,
    ):
        killed.wait_for(lambda: filled(lab.uri) == {0, 1} and lab.waits_at(26, 36))
        killed.kill()
    assert lab.calls() == Counter([*range(27), *range(30, 37)])
    one_after_another(delete_rows, update_other, compact, append)(lab.uri)
    lance.dataset(lab.uri).update({"x": f"x + {STEP}"}, where="id = 22")
    check_successor(lab, {22 + STEP, *range(25, 30), *range(36, 40), 1000, 1001}, leftovers=True)


def test_the_version_before_all_commits_is_restored_and_nothing_is_called_again(lab: ConflictLab):
    snapshot = lab.table(indexed=True).version
    lab.run(commit_granularity=1)
    assert lab.calls() == ALL
    lance.dataset(lab.uri, version=snapshot).restore()
    assert filled(lab.uri) == set()
    check_successor(lab, set())
