"""Jobs in cases outside the table of conflicts: repeated concurrent changes, filters, two concurrent jobs, and the next
run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import lance
import pytest

from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.backfill.task.messages import RangeOutcome
from lance_spark.errors import (
    BackfillIncompleteError,
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
)
from lance_spark.staging.orphans import remove_orphans
from tests.lance_spark.conflicts.cases import NEW, REWRITTEN, UPDATED_CALLS, Moment
from tests.lance_spark.conflicts.jobs import ALL, CALLED, ConflictLab, SparkLab, filled, slipping_in
from tests.lance_spark.conflicts.others import (
    STEP,
    Act,
    append,
    cast_target,
    clean_up_all,
    column,
    compact,
    delete_rows,
    delete_table,
    drop_and_reuse_id,
    drop_target,
    make_table_anew,
    name_of,
    restore_past,
    rewrite,
    rewrite_target,
    update_input,
    update_other,
    value,
    work_of_others,
)
from tests.support import inline_jobs
from tests.support.waiting import eventually

pytestmark = pytest.mark.sample(8, tests=3)


def right(lab: ConflictLab) -> dict[int, int | None]:
    """Returns the value of each row's input, by id."""
    return {i: value(row["x"]) for i, row in work_of_others(lab.uri).items()}


# Again and again, at the worst moment


def test_others_slip_in_each_time_that_the_committer_has_looked(lab: ConflictLab):
    lab.table(indexed=True)
    foreign_work = {}

    def recorded(act: Act) -> Act:
        def noting(uri: str) -> None:
            act(uri)
            foreign_work.update({0: work_of_others(uri)})

        return noting

    def tidy(uri: str) -> None:
        lance.dataset(uri).optimize.compact_files(materialize_deletions_threshold=0.0)

    acts = [
        lambda uri: lance.dataset(uri).add_columns({"late": "y"}),
        update_input,
        tidy,
        update_other,
        tidy,
    ]
    with slipping_in(lab.uri, *map(recorded, acts)) as remaining:
        result = lab.run(commit_granularity=None)
    assert len(remaining) <= 3, "the update did not slip in"
    assert result.status == "DONE" and result.rows_recomputed == 3
    assert lab.calls() == ALL + Counter(UPDATED_CALLS)
    assert work_of_others(lab.uri) == foreign_work[0]
    assert column(lab.uri) == right(lab)
    lab.run()
    assert lab.calls() == Counter()


def test_an_input_that_is_written_again_and_again(lab: ConflictLab):
    """After each look of the committer, the value changes again before the commit."""
    lab.table(indexed=True)
    acts = [
        lambda uri, n=n: rewrite(uri, "x", {5: 5 + n * STEP, 35: 35 + n * STEP}) for n in (1, 2, 3)
    ]
    with slipping_in(lab.uri, *acts) as remaining:
        result = lab.run(commit_granularity=None)
    assert remaining == [] and result.status == "DONE"
    calls = lab.calls()
    assert calls >= ALL + Counter([5 + 3 * STEP, 35 + 3 * STEP])
    assert max(calls.values()) == 1, "no input is computed twice"
    assert column(lab.uri) == right(lab)
    lab.run()
    assert lab.calls() == Counter()


def test_a_value_that_the_job_gave_for_an_input_before_the_last_is_not_taken_for_a_concurrent_writers(
    lab: ConflictLab,
):
    """The value for the first input is committed, but never the value for the second, because the input changes
    again.
    """
    lab.table(indexed=True)

    def again(uri: str) -> None:
        rewrite(uri, "x", {5: 5 + 2 * STEP})
        lance.dataset(uri).add_columns({"late": "y"})  # pylance refuses the commit

    with slipping_in(lab.uri, lambda uri: rewrite(uri, "x", {5: 5 + STEP}), again) as remaining:
        result = lab.run(commit_granularity=None)
    assert remaining == []
    assert (result.status, result.rows_recomputed) == ("DONE", 2)
    assert lab.calls() == ALL + Counter([5 + STEP, 5 + 2 * STEP])
    assert column(lab.uri) == right(lab)


def test_a_table_whose_target_is_written_in_place_with_every_commit_still_gets_its_values(
    lab: ConflictLab,
):
    """After each look of the committer, a concurrent writer fills another row of the same column."""
    lab.table(indexed=True)
    acts = [lambda uri, i=i: rewrite(uri, "v", {i: -i}) for i in (5, 15, 35)]
    with slipping_in(lab.uri, *acts) as remaining:
        result = lab.run(commit_granularity=None)
    assert remaining == [] and result.status == "DONE"
    assert lab.calls() == ALL
    assert column(lab.uri) == {i: -i if i in (5, 15, 35) else value(i) for i in range(40)}
    assert lance.dataset(lab.uri).count_rows("v < 0") == 3


# Filters, and values of an earlier run


def test_an_update_of_rows_that_were_not_selected_leaves_them_alone(lab: ConflictLab):
    """Their values come from another run. The next run reports the outdated values, and leaves them unchanged."""
    lab.table()
    lab.run(where="x < 20")
    lab.calls()
    outcome = lab.run_while(update_input, "slipped", where="x >= 20")
    assert outcome.result.rows_recomputed == 2
    assert lab.calls() == Counter(range(20, 40)) + Counter([25 + STEP, 35 + STEP])
    assert column(lab.uri) == {**right(lab), 5: 50}
    assert lab.run().rows_stale == 1
    assert lab.calls() == Counter()


@pytest.mark.parametrize("moment", ["before", "slipped"])
def test_values_that_others_gave_rows_that_the_filter_left_out_are_kept(
    moment: Moment, lab: ConflictLab
):
    lab.table(indexed=True)
    outcome = lab.run_while(rewrite_target, moment, where="x < 20")
    assert column(lab.uri) == {i: value(i) if i < 20 else {35: -35}.get(i) for i in range(40)}
    assert lab.calls() == Counter(range(20))
    again = replace(outcome, result=lab.run())
    lab.check(again, calls=Counter(i for i in range(20, 40) if i != REWRITTEN[1]), values={35: -35})


@pytest.mark.parametrize(
    ("moment", "stable", "carried"),
    [("before", True, 20), ("between", False, 10), ("slipped", True, 20)],
)
def test_values_of_some_rows_of_a_fragment_are_carried_over_too(
    moment: Moment, stable: bool, carried: int, lab: ConflictLab
):
    """Every other row has a value of an earlier run, which stays."""
    lab.table(stable=stable, indexed=True)
    lab.run(where="x % 2 = 1")
    assert lab.calls() == Counter(range(1, 40, 2))
    outcome = lab.run_while(compact, moment, where="x % 2 = 0")
    assert outcome.counters("rows_carried", "rows_recomputed") == {
        "rows_carried": carried,
        "rows_recomputed": 0,
    }
    lab.check(outcome, calls=Counter(range(0, 40, 2)))


@pytest.mark.parametrize("act", [compact, update_input], ids=name_of)
def test_a_job_that_carries_over_has_versions_and_no_errors(act: Act, lab: ConflictLab):
    lab.table()
    outcome = lab.run_while(act, "before")
    assert outcome.result.versions and outcome.result.fragments_failed == {}
    assert max(outcome.result.versions) <= lance.dataset(lab.uri).version
    job = lab.open().get_job(outcome.result.job_id)
    assert job.status == "DONE" and job.rows_failed == 0


def test_a_snapshot_is_protected_by_a_tag_where_that_is_asked_for(lab: ConflictLab):
    lab.table()
    tags: list[set[str]] = []

    def act() -> None:
        append(lab.uri)
        tags.append(set(lance.dataset(lab.uri).tags.list()))
        with pytest.raises(OSError, match="tag"):
            lance.dataset(lab.uri).cleanup_old_versions(older_than=timedelta(0))

    with inline_jobs.acting(lab.uri, 6, act):
        lab.run(protect_snapshot=True)
    assert len(tags[0]) == 1
    assert lance.dataset(lab.uri).tags.list() == {}, "the job's tag outlives it"
    assert lab.calls() == ALL
    assert column(lab.uri) == {**{i: value(i) for i in range(40)}, **dict.fromkeys(NEW)}


# Missing data


@pytest.mark.parametrize("moment", ["before", "between", "staged", "slipped"])
def test_the_deletion_of_the_table_is_reported(moment: Moment, lab: ConflictLab):
    lab.table()
    with pytest.raises(CommitImpossibleError, match="deleted"):
        lab.run_while(delete_table, moment)
    assert lab.calls() == Counter(range(CALLED[moment]))
    assert not Path(lab.uri, "_versions").exists(), "Lance commits to a folder that is gone"


@pytest.mark.parametrize("moment", ["between", "staged", "slipped"])
def test_a_recreated_table_stays_as_it_is(moment: Moment, lab: ConflictLab):
    lab.table()
    with pytest.raises(CommitImpossibleError):
        lab.run_while(make_table_anew, moment)
    assert lance.dataset(lab.uri).to_table().to_pylist() == [{"id": 1, "x": 2}]


@pytest.mark.parametrize(
    ("moment", "act"),
    [
        ("staged", drop_target),
        ("slipped", drop_target),
        ("staged", restore_past),
        ("slipped", cast_target),
    ],
)
def test_checkpoints_stay_and_serve_when_the_column_is_back(
    moment: Moment, act: Act, lab: ConflictLab
):
    table = lab.table()
    with pytest.raises(CommitImpossibleError):
        lab.run_while(act, moment)
    assert lab.calls() == ALL
    if act is cast_target:
        drop_target(lab.uri)
    table.add_columns({"v": lab.udf()})
    result = lab.run()
    assert lab.calls() == Counter(), "what was computed is served from checkpoints"
    assert (result.rows_computed, result.rows_from_checkpoint) == (0, 40)
    assert column(lab.uri) == right(lab)
    lab.run()
    assert lab.calls() == Counter()


@pytest.mark.parametrize("moment", ["staged", "slipped"])
def test_checkpoints_serve_when_a_restore_is_restored(moment: Moment, lab: ConflictLab):
    snapshot = lab.table().version
    with pytest.raises(CommitImpossibleError):
        lab.run_while(restore_past, moment)
    lance.dataset(lab.uri, version=snapshot).restore()
    lab.calls()
    lab.run()
    assert lab.calls() == Counter()
    assert column(lab.uri) == right(lab)


def test_what_was_committed_before_a_drop_does_not_come_back_as_another_column(lab: ConflictLab):
    lab.table()
    with pytest.raises(CommitImpossibleError):
        lab.run_while(drop_and_reuse_id, "between")
    assert lance.dataset(lab.uri).schema.names == ["id", "x", "y", "innocent"]
    assert set(column(lab.uri, "innocent").values()) == {None}


@pytest.mark.guarantee("F05")
@pytest.mark.parametrize("moment", ["between", "staged", "slipped"])
def test_a_column_that_has_got_another_udf_takes_no_values_of_the_old_one(
    moment: Moment, lab: ConflictLab
):
    lab.table()
    other_udf = lab.udf(version="2", factor=3)
    with pytest.raises(CommitImpossibleError, match="another UDF while the job ran"):
        lab.run_while(lambda _: lab.open().alter_columns({"path": "v", "udf": other_udf}), moment)
    (job,) = lab.open().list_jobs()
    assert job.status == ("FAILED" if moment == "staged" else "PARTIAL")
    lab.calls()
    lab.run()
    assert lab.calls() == ALL
    assert column(lab.uri) == {i: None if i % 7 == 3 else i * 3 for i in range(40)}
    lab.run()
    assert lab.calls() == Counter()


def test_files_deleted_at_the_moment_of_the_commit_are_reported_and_the_next_run_needs_no_call(
    lab: ConflictLab,
):
    lab.table()
    with pytest.raises(CommitOutcomeUnknownError, match=r"restore version (\d+)") as caught:
        lab.run_while(clean_up_all, "slipped")
    lance.dataset(
        lab.uri, version=int(str(caught.value).partition("restore version ")[2].split()[0])
    ).restore()
    lab.run()
    assert column(lab.uri) == right(lab)


def test_a_cleanup_during_a_commit_deletes_none_of_its_files_and_ends_the_job(lab: ConflictLab):
    lab.table()
    with (
        slipping_in(lab.uri, lambda uri: remove_orphans(uri, older_than=timedelta(0))) as remaining,
        pytest.raises(BackfillIncompleteError, match="its job has ended"),
    ):
        lab.run(commit_granularity=1)
    assert remaining == [] and filled(lab.uri) == {0}
    lab.run()
    assert column(lab.uri) == right(lab)


def test_a_job_ended_by_a_cleanup_commits_no_further_group(
    lab: ConflictLab, monkeypatch: pytest.MonkeyPatch
):
    lab.table()
    commit, groups = GroupCommits.commit, itertools.count()

    def commit_late(commits: GroupCommits, outcomes: Sequence[RangeOutcome]) -> None:
        if next(groups) == 1:
            remove_orphans(lab.uri, older_than=timedelta(0))
        commit(commits, outcomes)

    monkeypatch.setattr(GroupCommits, "commit", commit_late)
    with pytest.raises(CommitError, match="cleaned up"):
        lab.run(commit_granularity=1)
    assert filled(lab.uri) == {0}
    lab.run()
    assert lab.calls() == ALL, "no row was called for twice"
    assert column(lab.uri) == right(lab)


def test_a_failed_job_keeps_its_commits(lab: ConflictLab):
    """A failed job commits its completed fragments, and the next run uses the rest."""
    snapshot = lab.table().version
    with pytest.raises(CommitImpossibleError):
        lab.run_while(restore_past, "between")
    committed = lance.dataset(lab.uri, version=lance.dataset(lab.uri).version - 1)
    committed.restore()
    assert committed.version > snapshot and filled(lab.uri) == {0, 1}
    lab.run()
    assert lab.calls() == ALL, "no row was called for twice"
    assert column(lab.uri) == right(lab)


# Deletions before each commit


@pytest.mark.parametrize("granularity", [1, None])
def test_a_job_never_brings_a_deleted_row_back(granularity: int | None, lab: ConflictLab):
    lab.table(indexed=True)
    acts = [lambda uri, i=i: lance.dataset(uri).delete(f"id % 10 = {i}") for i in range(4)]
    with slipping_in(lab.uri, *acts) as remaining:
        lab.run(commit_granularity=granularity, concurrency=1)
    deleted_ids = range(4 - len(remaining))
    assert set(work_of_others(lab.uri)) == {i for i in range(40) if i % 10 not in deleted_ids}
    assert lance.dataset(lab.uri).count_rows() == 40 - 4 * len(deleted_ids)


def test_repairs_after_a_commit_bring_no_deleted_row_back(lab: ConflictLab):
    """A concurrent change needs a second commit as a repair, and rows are deleted before the repair too."""
    lab.table(indexed=True)

    def first(uri: str) -> None:
        lance.dataset(uri).delete("id IN (1, 35)")
        rewrite(uri, "x", {5: 1005, 36: 1036})

    with slipping_in(lab.uri, first, delete_rows, update_input) as remaining:
        lab.run(commit_granularity=None)
    deleted_ids = {1, 35} | ({3, 4, 21} if len(remaining) < 2 else set())
    assert set(work_of_others(lab.uri)) == set(range(40)) - deleted_ids
    lab.run()
    assert column(lab.uri) == right(lab)


# Two jobs at once


@pytest.mark.long
@pytest.mark.parametrize("stable", [True, False])
def test_a_job_with_a_concurrent_whole_job_of_the_same_column_keeps_its_values(
    stable: bool, lab: ConflictLab
):
    lab.table(stable=stable, indexed=True)

    def quick() -> None:
        assert lab.run(where="x >= 20", job_id="quick").rows_computed == 20

    with inline_jobs.acting(lab.uri, 6, quick):
        assert lab.run(commit_granularity=1).status == "DONE"
    calls = lab.calls()
    assert (
        set(calls) == set(range(40))
        and max(calls[x] for x in range(20)) == 1
        and max(calls.values()) <= 2
    )
    assert column(lab.uri) == right(lab)
    lab.run()
    assert lab.calls() == Counter()


@pytest.mark.parametrize("granularity", [1, None])
def test_two_jobs_of_one_column_at_once_both_succeed(granularity: int | None, spark_lab: SparkLab):
    spark_lab.table(indexed=True)
    job_one, job_two = (
        spark_lab.start(commit_granularity=granularity, task_size=size) for size in (10, 5)
    )
    assert [job.result(60).status for job in (job_one, job_two)] == ["DONE", "DONE"]
    calls = spark_lab.calls()
    assert set(calls) == set(range(40)) and max(calls.values()) <= 2
    assert column(spark_lab.uri) == right(spark_lab)
    spark_lab.run()
    assert spark_lab.calls() == Counter()


@pytest.mark.long
def test_two_jobs_of_one_column_beside_a_compaction_and_new_rows(spark_lab: SparkLab):
    lab = spark_lab
    lab.table()
    with lab.hold_calls([6, 16]):
        job_one = lab.start(commit_granularity=1)
        lab.wait_for([6, 16], job_one)
        job_two = lab.start(commit_granularity=1)
        append(lab.uri)
        compact(lab.uri)
    assert [job.result(60).status for job in (job_one, job_two)] == ["DONE", "DONE"]
    calls = lab.calls()
    assert set(calls) <= {*range(40), 1000, 1001} and max(calls.values()) <= 2
    assert {i: v for i, v in column(lab.uri).items() if i < 1000} == {
        i: value(i) for i in range(40)
    }
    lab.run()
    assert set(lab.calls()) <= {1000, 1001}
    assert column(lab.uri) == right(lab)


@pytest.mark.parametrize("stable", [True, False])
def test_backfills_of_two_columns_at_once_both_complete(stable: bool, spark_lab: SparkLab):
    lab = spark_lab
    lab.table(stable=stable, indexed=True).add_columns(
        {"w": (lab.udf(name="other", factor=3, log="others"), ["y"])}
    )
    with lab.hold_calls([6]):
        job_v = lab.start("v", commit_granularity=1)
        lab.wait_for([6], job_v)
        job_w = lab.start("w", commit_granularity=1)
        eventually((lab.home / "others").exists)
    assert (job_v.result(60).status, job_w.result(60).status) == ("DONE", "DONE")
    assert (lab.calls(), lab.calls("others")) == (ALL, ALL)
    assert column(lab.uri, "w") == {i: None if i % 7 == 3 else i * 3 for i in range(40)}
    assert column(lab.uri, "v") == {i: None if i % 7 == 3 else i * 10 for i in range(40)}
    lab.run("v")
    lab.run("w")
    assert (lab.calls(), lab.calls("others")) == (Counter(), Counter())
