"""What others do in an unlucky moment of a job is looked at, and costs no call and no value."""

from __future__ import annotations

from datetime import timedelta

import lance
import pyarrow as pa

import lance_spark
from lance_spark.backfill.watching import Watch
from lance_spark.dataset import DatasetRef
from tests.lance_spark.backfill.review.lab import Lab, values

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def test_a_watch_looks_at_a_version_that_came_right_after_a_backfill_that_found_nothing(lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    found: list[lance_spark.BackfillJobResult] = []

    def backfill() -> lance_spark.BackfillJobResult:
        found.append(table.backfill("v", stale=True))
        if len(found) == 1:
            lance.write_dataset(pa.table({"id": [100]}), lab.uri, mode="append")
        return found[-1]

    with Watch(DatasetRef.at(lab.uri), timedelta(seconds=0.05), backfill) as watch:
        for _ in range(4):
            watch.await_look(timedelta(seconds=60))
        assert watch.error is None
    assert values(table, "v")[100] == (100,)
    assert [result.rows_computed for result in found] == [0, 1, 0], "the last one looks at the version of the second"
