"""Checkpoints of a backfill, their size, and jobs resumed from them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lance_spark import BackfillIncompleteError, Connection
from tests.support.logs import Log, doubled, flag_file, make, values, with_column
from udf_runtime import udf

pytestmark = pytest.mark.sample(1, tests=2)

ONE_TASK = 1000
"""A task_size above the rows of any table here: each fragment is one range."""


def batches(
    db: Connection, log: Log, *, rows: int = 60, on_udf: dict[str, Any], on_call: dict[str, Any]
) -> list[int]:
    """Backfills a table of one fragment, and returns the sizes of the batches in order."""
    table = with_column(db, log.sizes(**on_udf), rows=rows, fragments=1)
    assert table.backfill("y", task_size=ONE_TASK, **on_call).rows_computed == rows
    assert values(table) == {x: x for x in range(rows)}
    sizes = list(map(int, log.lines()))
    assert sum(sizes) == rows
    return sizes


@pytest.mark.guarantee("B01")
@pytest.mark.spark
def test_a_backfill_runs_outside_of_the_driver_and_fills_the_column(db: Connection) -> None:
    @udf
    def process(x: int) -> int:
        import os

        return os.getpid()

    table = with_column(db, process)
    result = table.backfill("y")
    pids = set(values(table).values())
    assert pids
    assert os.getpid() not in pids
    assert None not in pids
    assert [job.job_id for job in table.list_jobs()] == [result.job_id]


@pytest.mark.guarantee("B02")
def test_batches_that_were_finished_before_a_failure_are_checkpointed(
    db: Connection, log: Log, flag: str
) -> None:
    table = with_column(
        db, log.breaking(13, flag, checkpoint_size=5, min_checkpoint_size=5), rows=20, fragments=1
    )
    with flag_file(flag), pytest.raises(BackfillIncompleteError, match="row 13 is bad"):
        table.backfill("y", task_size=ONE_TASK)
    assert log.rows() == list(range(14))
    assert table.plan_backfill("y").rows_from_checkpoint == 10


@pytest.mark.guarantee("B03")
def test_a_job_resumes_and_computes_only_the_rest(db: Connection, log: Log, flag: str) -> None:
    table = with_column(
        db, log.breaking(13, flag, checkpoint_size=5, min_checkpoint_size=5), rows=20, fragments=1
    )
    with flag_file(flag), pytest.raises(BackfillIncompleteError):
        table.backfill("y", task_size=ONE_TASK)
    log.take()
    result = table.backfill("y", task_size=ONE_TASK)
    assert log.take() == list(range(10, 20))
    assert (result.rows_from_checkpoint, result.rows_computed) == (10, 10)
    assert values(table) == doubled(range(20))
    table.backfill("y", task_size=ONE_TASK)
    assert log.take() == []


@pytest.mark.guarantee("B03")
def test_a_failing_fragment_does_not_make_the_others_run_again(
    db: Connection, log: Log, flag: str
) -> None:
    table = with_column(db, log.breaking(13, flag, checkpoint_size=5, min_checkpoint_size=5))
    with flag_file(flag), pytest.raises(BackfillIncompleteError) as caught:
        table.backfill("y", task_size=10)
    assert caught.value.result.fragments_done == 3
    assert table.count_rows("y is not null") == 30
    log.take()
    table.backfill("y", task_size=10)
    assert log.take() == list(range(10, 20))
    assert values(table) == doubled(range(40))


@pytest.mark.guarantee("B04")
def test_sizes_adapt_while_the_job_runs(db: Connection, log: Log) -> None:
    assert len(set(batches(db, log, on_udf={}, on_call={"max_checkpoint_size": 30}))) > 1


@pytest.mark.guarantee("B05")
def test_sizes_begin_small_and_grow(db: Connection, log: Log) -> None:
    sizes = batches(
        db, log, rows=600, on_udf={}, on_call={"min_checkpoint_size": 2, "max_checkpoint_size": 100}
    )
    assert sizes[0] == 2
    assert max(sizes) == 100
    assert sizes.index(max(sizes)) > 1, "it grew at one stroke"


@pytest.mark.guarantee("B06")
def test_adaptive_sizes_stay_within_their_bounds(db: Connection, log: Log) -> None:
    sizes = batches(
        db, log, rows=200, on_udf={}, on_call={"min_checkpoint_size": 3, "max_checkpoint_size": 20}
    )
    assert all(3 <= size <= 20 for size in sizes[:-1])
    assert sizes[-1] <= 20


@pytest.mark.guarantee("B07")
def test_planning_does_not_depend_on_adaptive_sizing(db: Connection, log: Log) -> None:
    fixed = with_column(
        db,
        log.sizes(checkpoint_size=50, min_checkpoint_size=50),
        rows=200,
        fragments=2,
        name="fixed",
    )
    adaptive = with_column(
        db, log.sizes(checkpoint_size=50), rows=200, fragments=2, name="adaptive"
    )
    assert fixed.plan_backfill("y").total_tasks == adaptive.plan_backfill("y").total_tasks
    sizes = batches(db, log, rows=200, on_udf={"max_checkpoint_size": 50}, on_call={})
    assert sizes[0] < 50


@pytest.mark.guarantee("B08")
def test_a_maximum_bounds_checkpoints_from_above(db: Connection, log: Log) -> None:
    assert max(batches(db, log, rows=100, on_udf={}, on_call={"max_checkpoint_size": 7})) == 7


@pytest.mark.guarantee("B09")
def test_the_checkpoint_size_is_the_maximum_by_default(db: Connection, log: Log) -> None:
    assert max(batches(db, log, rows=100, on_udf={}, on_call={"checkpoint_size": 9})) == 9


@pytest.mark.guarantee("B10")
def test_a_maximum_above_the_checkpoint_size_is_capped(db: Connection, log: Log) -> None:
    assert (
        max(
            batches(
                db,
                log,
                rows=100,
                on_udf={},
                on_call={"checkpoint_size": 9, "max_checkpoint_size": 500},
            )
        )
        == 9
    )


@pytest.mark.guarantee("B11")
def test_the_minimum_bounds_checkpoints_from_below(db: Connection, log: Log) -> None:
    sizes = batches(db, log, on_udf={}, on_call={"min_checkpoint_size": 6})
    assert sizes[0] == 6
    assert all(size >= 6 for size in sizes[:-1])


@pytest.mark.guarantee("B11")
def test_the_minimum_is_one_by_default(db: Connection, log: Log) -> None:
    assert batches(db, log, on_udf={}, on_call={})[0] == 1


@pytest.mark.guarantee("B12")
def test_equal_bounds_give_checkpoints_of_one_size(db: Connection, log: Log) -> None:
    sizes = batches(
        db, log, rows=60, on_udf={}, on_call={"min_checkpoint_size": 8, "max_checkpoint_size": 8}
    )
    assert sizes == [8] * 7 + [4]


@pytest.mark.guarantee("B13")
def test_bounds_can_be_given_with_the_udf(db: Connection, log: Log) -> None:
    sizes = batches(
        db, log, rows=60, on_udf={"min_checkpoint_size": 8, "max_checkpoint_size": 8}, on_call={}
    )
    assert sizes == [8] * 7 + [4]


@pytest.mark.guarantee("B14")
def test_bounds_can_be_given_with_the_call(db: Connection, log: Log) -> None:
    sizes = batches(
        db, log, rows=30, on_udf={}, on_call={"min_checkpoint_size": 5, "max_checkpoint_size": 5}
    )
    assert sizes == [5] * 6


@pytest.mark.guarantee("B15")
def test_bounds_of_the_call_come_before_those_of_the_udf(db: Connection, log: Log) -> None:
    on_udf = {"min_checkpoint_size": 25, "max_checkpoint_size": 200}
    sizes = batches(
        db,
        log,
        rows=60,
        on_udf=on_udf,
        on_call={"min_checkpoint_size": 10, "max_checkpoint_size": 10},
    )
    assert sizes == [10] * 6


@pytest.mark.guarantee("B15")
def test_a_single_bound_of_the_call_leaves_the_other_to_the_udf(db: Connection, log: Log) -> None:
    on_udf = {"min_checkpoint_size": 4, "max_checkpoint_size": 50}
    sizes = batches(db, log, rows=200, on_udf=on_udf, on_call={"max_checkpoint_size": 12})
    assert sizes[0] == 4
    assert max(sizes) == 12


@pytest.mark.guarantee("B37")
def test_the_names_of_the_reference_exist(db: Connection, log: Log) -> None:
    table = make(db)
    for name in ("backfill", "backfill_async", "plan_backfill"):
        assert callable(getattr(table, name))
    assert log.sizes(checkpoint_size=12).checkpoint_size == 12
