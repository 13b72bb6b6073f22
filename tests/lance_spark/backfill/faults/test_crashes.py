"""UDFs that kill their process: the guilty rows are found and recorded, and all other rows are computed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.support.drivers import driver
from tests.support.faults import BATCH, SETTINGS, SLOTS, Lab, run, run_and_fail, wrong_rows
from tests.support.waiting import eventually
from udf_runtime.errors import UdfProcessDiedError
from udf_runtime.policies import Fail, Retry, Skip, skip_on_error

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 120


SMALL = {"checkpoint_size": 4, "min_checkpoint_size": 4}
"""A process is started per round of halving, which takes a second on a busy machine."""


def address(x: int) -> int:
    """The address of row `x` in a table with fragments of 40 rows."""
    return (x // 40) << 32 | x % 40


def assert_only_batches_were_repeated(
    calls: Counter[int], bad: list[int], deaths: int, *, batch: int = BATCH
) -> None:
    """Asserts that calls were repeated only in the batches of bad rows, and in one batch of each killed task."""
    suspects = {x - x % batch + i for x in bad for i in range(batch)}
    assert set(calls) == set(range(ROWS))
    innocent = {x: count for x, count in calls.items() if x not in suspects}
    assert sum(innocent.values()) - len(innocent) <= deaths * SLOTS * batch
    # The whole batch in the worker, in a child, and then its parts: each row once per round of halving, and once more for luck.
    assert max(calls.values()) <= 2 + 2 * batch.bit_length()


@pytest.mark.parametrize(
    ("how", "exit_code"),
    [
        pytest.param("exit", 7, marks=pytest.mark.long),
        pytest.param("kill", -signal.SIGKILL, marks=pytest.mark.long),
        pytest.param("segfault", -signal.SIGSEGV, marks=pytest.mark.long),
    ],
    ids=lambda how: how,
)
def test_rows_that_kill_their_process_are_found_and_recorded_and_all_others_are_computed(
    lab: Lab, how: str, exit_code: int
):
    table = lab.table()
    bad = [77]
    lab.order(dict.fromkeys(bad, how))
    result = run_and_fail(table, task_size=40, **SMALL)
    # Results of a task survive if another task ends its Spark job, and are never recomputed.
    assert (result.status, result.rows_processed, result.rows_failed, result.fragments_done) == (
        "PARTIAL",
        119,
        1,
        3,
    )
    assert wrong_rows(table) == bad
    assert_only_batches_were_repeated(lab.new_calls(), bad, deaths=1, batch=4)

    errors = table.get_errors(result.job_id)
    assert [
        (e.outcome, e.row_address, e.fragment_id)
        for e in sorted(errors, key=lambda e: e.row_address or 0)
    ] == [("crashed", address(x), x // 40) for x in bad]
    assert {e.error_type.rpartition(".")[2] for e in errors} == {"UdfProcessDiedError"}
    assert table.get_errors(error_type="UdfProcessDiedError") == errors
    assert all(str(abs(exit_code)) in e.error_message for e in errors)
    assert table.get_failed_row_addresses(result.job_id, "v") == [address(x) for x in bad]
    assert table.get_job(result.job_id).status == "PARTIAL"

    run_and_fail(table, task_size=40)
    assert set(lab.new_calls()) == set(bad), (
        "the next run calls the rows again that killed their process, and no others"
    )
    lab.pardon()
    addresses = ", ".join(map(str, table.get_failed_row_addresses(result.job_id, "v")))
    again = run(table, where=f"_rowaddr IN ({addresses})")
    assert (again.status, lab.new_calls()) == ("DONE", Counter(bad))
    assert wrong_rows(table) == []


@pytest.mark.long
def test_rows_that_killed_their_process_are_called_again_by_the_next_run_and_no_others(lab: Lab):
    table = lab.table()
    lab.order({13: "exit", 14: "exit"})
    run_and_fail(table, task_size=40, **SMALL)
    assert wrong_rows(table) == [13, 14]
    lab.new_calls()
    lab.order({14: "ok"})
    run_and_fail(table, task_size=40)
    assert set(lab.new_calls()) == {13, 14}
    assert wrong_rows(table) == [13]
    lab.pardon()
    run(table, task_size=40)
    assert lab.new_calls() == Counter([13])
    assert wrong_rows(table) == []


@pytest.mark.long
def test_killers_in_one_of_many_ranges_of_a_fragment_cost_only_themselves(lab: Lab):
    table = lab.table(ROWS, ROWS)
    lab.order({77: "kill"})
    result = run_and_fail(table, task_size=30, **SMALL)
    assert (result.status, result.rows_processed, result.rows_failed) == ("PARTIAL", 119, 1)
    assert_only_batches_were_repeated(lab.new_calls(), [77], deaths=1, batch=4)
    assert wrong_rows(table) == [77]
    assert table.get_failed_row_addresses(result.job_id, "v") == [77]


@pytest.mark.long
def test_killers_in_large_batches_are_found_by_halving(lab: Lab):
    table = lab.table(ROWS, ROWS)
    bad = [20, 99]
    lab.order(dict.fromkeys(bad, "exit"))
    run_and_fail(
        table, task_size=1000, checkpoint_size=64, min_checkpoint_size=64
    )  # two batches, each with a killer
    calls = lab.new_calls()
    assert wrong_rows(table) == bad
    # Each killer costs a child for each of the 7 rounds of halving 64 rows, and a child calls no more rows than it
    # received.
    assert sum(calls.values()) <= ROWS + 64 + len(bad) * 2 * 64
    assert max(calls[x] for x in range(ROWS) if x not in bad) <= 2 + 7
    assert max(calls[x] for x in bad) <= 2 + 8


@pytest.mark.long
def test_a_policy_that_skips_deaths_makes_the_job_done(lab: Lab):
    table = lab.table(on_error=[Skip(UdfProcessDiedError)])
    lab.order({13: "exit", 77: "kill"})
    result = run(table, task_size=40, **SMALL)
    assert (result.status, result.rows_skipped, result.rows_processed, result.rows_failed) == (
        "DONE",
        2,
        118,
        0,
    )
    assert wrong_rows(table) == [13, 77]
    assert {e.outcome for e in table.get_errors(result.job_id)} == {"skipped"}
    lab.new_calls()
    lab.pardon()
    run(table)
    assert lab.new_calls() == Counter([13, 77])
    assert wrong_rows(table) == []


@pytest.mark.long
def test_skip_on_any_error_skips_deaths_too(lab: Lab):
    table = lab.table(on_error=skip_on_error())
    lab.order({13: "exit", 15: "raise"})
    result = run(table, task_size=40, **SMALL)
    assert (result.status, result.rows_skipped) == ("DONE", 2)
    types = {
        e.row_address: e.error_type.rpartition(".")[2] for e in table.get_errors(result.job_id)
    }
    assert types == {13: "UdfProcessDiedError", 15: "ValueError"}


@pytest.mark.long
def test_a_policy_that_fails_on_deaths_ends_the_range(lab: Lab):
    table = lab.table(on_error=[Fail(UdfProcessDiedError)])
    lab.order({77: "exit"})
    result = run_and_fail(table, task_size=40)
    assert (result.status, result.fragments_done) == ("PARTIAL", 2)
    assert wrong_rows(table) == [x for x in range(40, 80) if x % 7 != 3]
    lab.new_calls()
    lab.pardon()
    run(table)
    assert lab.new_calls() == Counter(range(70, 80))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("exit", marks=pytest.mark.long),
        "kill",
        pytest.param("segfault", marks=pytest.mark.long),
    ],
)
def test_a_process_that_dies_once_costs_a_batch_per_task_and_nothing_else(lab: Lab, how: str):
    table = lab.table()
    lab.order({13: f"once {how}", 77: f"once {how}"})
    result = run(table, task_size=40)
    assert (result.status, result.rows_processed) == ("DONE", ROWS)
    assert wrong_rows(table) == []
    assert table.get_errors(result.job_id) == []
    calls = lab.new_calls()
    assert max(calls.values()) <= 3
    assert sum(calls.values()) - ROWS <= 2 * SLOTS * BATCH


@pytest.mark.long
def test_a_retry_policy_calls_a_row_again_whose_process_died(lab: Lab):
    table = lab.table(
        on_error=[Retry(UdfProcessDiedError, max_attempts=2, backoff="fixed"), Skip()]
    )
    lab.order({13: "exit"})
    result = run(table, task_size=40)
    assert (result.status, result.rows_skipped) == ("DONE", 1)
    assert [(e.attempt, e.max_attempts) for e in table.get_errors(result.job_id)] == [(2, 2)]


def test_a_worker_that_is_killed_costs_a_batch_per_task(lab: Lab):
    table = lab.table()
    lab.order({35: "wait"})
    job = table.backfill_async("v", task_size=40, **SETTINGS)
    assert isinstance(job, lance_spark.Job)
    eventually(lambda: lab.waits_at(35))
    worker = lab.pid_at(35)
    assert worker != os.getpid()
    lab.pardon()
    os.kill(worker, signal.SIGKILL)
    assert job.result(120).status == "DONE"
    assert wrong_rows(table) == []
    calls = lab.new_calls()
    assert sum(calls.values()) - ROWS <= SLOTS * BATCH
    assert max(calls.values()) <= 2


@pytest.mark.long
def test_where_spark_repeats_failed_tasks_the_outcomes_are_the_same(
    tmp_path: Path, spark: SparkSession
):
    labs = {}
    for name, policy in (("bad", None), ("flaky", None), ("skipped", [Skip(UdfProcessDiedError)])):
        (tmp_path / name).mkdir()
        labs[name] = Lab(home=tmp_path / name, spark=spark)
        labs[name].table(on_error=policy)
    labs["bad"].order({13: "exit", 77: "segfault"})
    labs["flaky"].order({13: "once exit", 77: "once kill"})
    labs["skipped"].order({13: "kill"})
    jobs = {
        name: (lab.home, {"task_size": 40, "concurrency": 2, **SMALL}) for name, lab in labs.items()
    }
    with driver(jobs, master="local[2,4]") as started:
        answers = started.answer()
    assert answers["bad"] == {
        "complete": False,
        "status": "PARTIAL",
        "processed": 118,
        "skipped": 0,
        "failed": 2,
    }
    assert (answers["flaky"]["complete"], answers["flaky"]["status"]) == (True, "DONE")
    assert answers["skipped"] == {
        "complete": True,
        "status": "DONE",
        "processed": 119,
        "skipped": 1,
        "failed": 0,
    }
    for name, wrong in (("bad", [13, 77]), ("flaky", []), ("skipped", [13])):
        lab = labs[name]
        table = lab.connection.open_table("t")
        assert wrong_rows(table) == wrong
        assert_only_batches_were_repeated(lab.new_calls(), [13, 77], deaths=2, batch=4)
        assert table.get_failed_row_addresses(name, "v") == [address(x) for x in wrong]
        assert {e.outcome for e in table.get_errors()} == {
            "bad": {"crashed"},
            "flaky": set(),
            "skipped": {"skipped"},
        }[name]
