"""Limits: applied in the scan unless a node above drops rows. The scan is read to its end, so that Spark keeps its
Python worker.
"""

from __future__ import annotations

import lance
import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.sample(8, tests=2)

ROWS = 200_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fragments of many batches, so that a task which stops at its first rows is far from its end."""
    target = str(tmp_path_factory.mktemp("limits") / "t.lance")
    ids = np.arange(ROWS)
    table = pa.table({"id": ids, "f": ids / 2, "s": pa.array([f"s{i % 7}" for i in range(ROWS)])})
    lance.write_dataset(table, target, max_rows_per_file=ROWS // 4)
    lance.dataset(target).delete("id % 10 = 3")
    return target


@pytest.fixture
def table(spark: SparkSession, path: str) -> DataFrame:
    df = spark.read.format("lance").load(path)
    df.createOrReplaceTempView("limits")
    return df


def workers(spark: SparkSession) -> dict[int, int]:
    """Returns the Python processes of tasks with their number of waits, which is constant in an idle process."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    waits = {}
    for process in jvm.children(recursive=True):
        try:
            if process.cmdline()[-1] == "pyspark.worker":
                waits[process.pid] = process.num_ctx_switches().voluntary
        except (psutil.Error, IndexError):  # the process has just ended
            pass
    return waits


def optimized(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().optimizedPlan().toString())


QUERIES = [
    "SELECT * FROM limits LIMIT 10",
    "SELECT s, id + 1 FROM limits LIMIT 10 OFFSET 5",
    "SELECT * FROM limits WHERE f < 50000.5 LIMIT 10",
    "SELECT id FROM limits WHERE s = 's3' AND id NOT IN (3, 5) LIMIT 10",
    "SELECT id FROM limits WHERE s LIKE 's4%' LIMIT 10 OFFSET 5",
]


def test_queries_that_stop_early_keep_their_workers(table: DataFrame, spark: SparkSession):
    idle = workers(spark)
    for _ in range(2):
        spark.sql(QUERIES[0]).collect()
        table.selectExpr("sum(id)").collect()
    before = workers(spark)
    # Spark ends workers after an idle minute, for example workers of other tests' UDFs.
    used = {process for process, waits in before.items() if waits != idle.get(process)}
    assert used
    for _ in range(2):
        for query in QUERIES:
            assert len(spark.sql(query).collect()) == 10
        table.show(3)
        assert len(table.head(3)) == len(table.where("id > 7").take(3)) == 3
        assert table.first() is not None
        assert not table.where("s != 's1'").isEmpty()
        assert spark.sql("SELECT 1 WHERE EXISTS (SELECT * FROM limits WHERE id > 7)").collect() == [
            (1,)
        ]
        assert used <= workers(spark).keys() <= before.keys()


def test_a_limit_that_the_scan_keeps_is_not_in_the_plan(table: DataFrame):
    assert "Limit" not in optimized(table.limit(10))
    assert "Limit" not in optimized(table.where("id = 77").limit(10**6))
    assert "Limit" not in optimized(table.limit(1))
    assert "Limit" in optimized(table.where("id % 2 = 0").limit(10))
    assert "Sort" not in optimized(table.where("id > 7").limit(10**6))


@pytest.mark.parametrize("row_count", [0, 10, 2 * ROWS])
@pytest.mark.parametrize(
    "condition", ["true", "s = 's3'", "f >= 99999.5 OR id < 3", "id % 3 = 0", "s = 'none'"]
)
def test_a_limit_gives_as_many_rows_as_there_are_and_no_others(
    condition: str, row_count: int, spark: SparkSession, table: DataFrame, path: str
):
    matching = table.where(condition)
    got = {row.id for row in matching.select("id").limit(row_count).collect()}
    matching_ids = {row.id for row in matching.select("id").collect()}
    assert len(got) == min(row_count, len(matching_ids)) and got <= matching_ids
    assert matching.limit(row_count).count() == len(got)


def test_nodes_above_a_limit_see_only_its_rows(table: DataFrame, spark: SparkSession):
    assert (
        spark.sql(
            "SELECT count(*) FROM (SELECT * FROM limits WHERE id >= 4 LIMIT 10) WHERE id >= 0"
        ).first()[0]
        == 10
    )
    assert (
        spark.sql("SELECT count(*) FROM (SELECT * FROM limits LIMIT 10) WHERE id > 5").first()[0]
        == 5
    )
    assert (
        spark.sql("SELECT * FROM (SELECT * FROM limits LIMIT 10) WHERE id > 5 LIMIT 3").count() == 3
    )
    assert spark.sql("SELECT * FROM (SELECT * FROM limits LIMIT 3) LIMIT 10").count() == 3
    assert table.limit(10).union(table.where("id > 5").limit(4)).count() == 14
    assert table.where("id > 9").limit(5).join(table.limit(20), "id").count() == 5
    assert table.limit(7).where("rand() >= 0").limit(5).count() == 5
    assert table.offset(ROWS).limit(3).count() == 0
