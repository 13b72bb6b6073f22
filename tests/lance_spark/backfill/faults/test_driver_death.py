"""Drivers killed with `kill -9`: the next run computes the missing rows, and repeats only rows outside a checkpoint.

A driver takes ten seconds to start on a busy machine. So a single driver runs several jobs, stops each at another
point, and dies with all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.support.drivers import driver
from tests.support.faults import (
    BATCH,
    Lab,
    run,
    unused_files,
    value,
    values_of,
    wrong_rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.sample(2)]

ROWS, FRAGMENT_ROWS = 240, 80
AT_ONCE = 2
LOST = BATCH * AT_ONCE
"""Rows that may be recomputed: a batch of each running task."""

IN_UDF = ("in_udf", "in_udf_of_everything")

POINTS: dict[str, tuple[int, int]] = {
    # Point: rows of a task, and rows that may be lost.
    "in_read": (80, LOST),
    "in_udf": (80, LOST),
    "in_udf_of_everything": (80, LOST),
    "in_checkpoint": (40, LOST),
    # All ranges of the fragment are in checkpoints; the other task may be in a batch.
    "in_column_file": (40, BATCH),
    "after_column_file": (80, BATCH),
    "before_commit": (80, 0),
    "before_record": (80, 0),
    "before_checkpoints_go": (40, 0),
    "after_commit": (80, 0),
}


def assert_whole_groups(table: lance_spark.Table, fragments: int) -> None:
    """Asserts that each version has whole commit groups of `fragments` fragments; a fragment has all of its values, or
    none.
    """
    for version in table.versions:
        dataset = lance.dataset(table.uri, version=version.version)
        if "v" not in dataset.schema.names:
            continue
        filled = 0
        for fragment in dataset.get_fragments():
            rows = fragment.to_table(columns=["x", "v"])
            values = rows["v"].to_pylist()
            expected = [value(x) for x in rows["x"].to_pylist()]
            assert values in (expected, [None] * len(values)), (
                f"version {version}, fragment {fragment.fragment_id}"
            )
            filled += values == expected
        assert filled % fragments == 0


def assert_resumes(lab: Lab, table: lance_spark.Table, lost: int, **settings: Any) -> None:
    """Asserts the state after a driver's death, and that the next run recomputes at most `lost` rows."""
    calls = lab.new_calls()
    (dead,) = table.list_jobs()
    assert dead.status == table.get_job(dead.job_id).status == "DEAD"
    assert set(values_of(table).values()) <= {None, *map(value, range(ROWS))}
    assert run(table, **settings).status == "DONE"
    calls += lab.new_calls()
    assert wrong_rows(table) == []
    assert set(calls) == set(range(ROWS)), "each row is called"
    assert sum(calls.values()) - ROWS <= lost
    assert max(calls.values()) <= 2
    run(table)
    assert lab.new_calls() == Counter(), "nothing is left to do"
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert unused_files(table.uri) == set()
    assert wrong_rows(table) == []


def where_of(point: str) -> dict[str, Any]:
    return {"where": "1=1"} if point == "in_udf_of_everything" else {}


@pytest.fixture(scope="module")
def killed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Lab]]:
    """Labs with one job each, all of the same driver, which a test killed while every job waited at its point."""
    labs = {point: Lab(home=tmp_path_factory.mktemp(point), spark=spark) for point in POINTS}
    jobs: dict[str, tuple[Path, dict[str, Any]]] = {}
    for point, lab in labs.items():
        lab.table(ROWS, FRAGMENT_ROWS)
        settings = {
            "task_size": POINTS[point][0],
            "commit_granularity": None,
            "concurrency": AT_ONCE,
        }
        jobs[point] = (lab.home, settings | where_of(point))
        if point in IN_UDF:
            lab.order({35: "wait"})
    waited = [
        lab.home / ("waiting-35" if point in IN_UDF else "held") for point, lab in labs.items()
    ]
    # Six of the jobs hold a slot each.
    with driver(jobs, master="local[8]") as started:
        started.wait_for(lambda: all(path.exists() for path in waited))
        started.kill()
    for lab in labs.values():
        lab.pardon()
    return labs


@pytest.mark.long  # another killed driver is in conflicts/test_between_runs.py
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed(point: str, killed: dict[str, Lab]):
    lab = killed[point]
    table = lab.connection.open_table("t")
    task_size, lost = POINTS[point]
    assert_whole_groups(table, ROWS // FRAGMENT_ROWS)
    assert_resumes(lab, table, lost, task_size=task_size, **where_of(point))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(11))
def test_a_driver_with_three_jobs_that_is_killed_at_a_random_moment(
    tmp_path: Path, spark: SparkSession, seed: int
):
    chance = random.Random(seed)
    labs, jobs = {}, {}
    for number in range(3):
        home = tmp_path / str(number)
        home.mkdir()
        lab = labs[number] = Lab(home=home, spark=spark)
        lab.table(ROWS, FRAGMENT_ROWS)
        lab.slow_down()
        task_size, granularity = chance.choice([30, 40, 80, 240]), chance.choice([1, 2, None])
        settings = {
            "task_size": task_size,
            "commit_granularity": granularity,
            "concurrency": AT_ONCE,
        }
        jobs[f"job-{number}"] = (home, settings)
    after = chance.randrange(1, 3 * ROWS)
    with driver(jobs, master="local[4]") as started:
        started.wait_for(lambda: sum(lab.calls() for lab in labs.values()) >= after)
        started.kill()
    for lab in labs.values():
        lab.hurry_up()
        table = lab.connection.open_table("t")
        assert_whole_groups(table, 1)
        if table.list_jobs() and table.list_jobs()[0].status == "DEAD":
            assert_resumes(lab, table, LOST)
        else:
            # The job had ended already, or not begun.
            run(table)
            assert lab.new_calls() == Counter(range(ROWS))
            assert wrong_rows(table) == []
