"""Answers during the planning of a query, and subplans merged by Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from lance_spark.sql import reads

ROWS = 500


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = str(tmp_path_factory.mktemp("planning") / "t.lance")
    columns = {
        "id": range(ROWS),
        "d": [i % 10 for i in range(ROWS)],
        "s": [f"s{i % 7}" for i in range(ROWS)],
    }
    table = pa.table(
        columns, schema=pa.schema([("id", pa.int64()), ("d", pa.int32()), ("s", pa.string())])
    )
    lance.write_dataset(table, target, max_rows_per_file=100)
    lance.dataset(target).delete("id % 10 = 3")
    lance.dataset(target).create_scalar_index("id", "BTREE")
    return target


@pytest.fixture
def table(spark: SparkSession, path: str) -> DataFrame:
    df = spark.read.format("lance").load(path)
    df.createOrReplaceTempView("planning")
    return df


def executed(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


def jobs_of(spark: SparkSession, df: DataFrame, group: str) -> list[int]:
    context = spark.sparkContext
    context.setJobGroup(group, group)
    try:
        df.collect()
        return list(context.statusTracker().getJobIdsForGroup(group))
    finally:
        context._jsc.clearJobGroup()


def test_rows_are_counted_while_the_query_is_planned(spark: SparkSession, table: DataFrame):
    live = ROWS - 50
    query = "SELECT count(*) AS n, count(1) * 2 + 1 AS m, 'x' AS x, concat(count(*), '!') AS t FROM planning"
    assert spark.sql(query).collect() == [(live, live * 2 + 1, "x", f"{live}!")]
    assert jobs_of(spark, spark.sql(query), "count") == []
    assert table.count() == live
    assert spark.sql("SELECT count(*) FROM (SELECT s, id FROM planning)").first() == (live,)
    # These read something.
    assert spark.sql("SELECT count(*), max(d) FROM planning").first() == (live, 9)
    assert spark.sql("SELECT count(*) FROM planning WHERE d = 1").first() == (50,)
    assert spark.sql("SELECT d, count(*) AS n FROM planning GROUP BY d").count() == 9


def test_an_expression_of_a_count_that_fails_fails_when_the_query_runs(
    spark: SparkSession, table: DataFrame
):
    df = spark.sql(f"SELECT 1 / (count(*) - {ROWS - 50}) FROM planning")
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        df.collect()


def test_counts_of_a_view_that_follows_the_table_are_those_of_today(
    spark: SparkSession, tmp_path: Path
):
    target = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"a": [1, 2]}), target)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW follows_counts USING lance OPTIONS (path '{target}')"
    )
    counts = []
    for _ in range(2):
        counts.append(
            spark.sql(
                "SELECT count(*), (SELECT count(*) FROM follows_counts) FROM follows_counts"
            ).first()
        )
        lance.write_dataset(pa.table({"a": [3]}), target, mode="append")
    assert counts == [(2, 2), (3, 3)]


def test_a_scan_that_an_index_proves_empty_needs_no_task(spark: SparkSession, table: DataFrame):
    empty = table.where("id = 13").select("s", "id")
    assert "LocalTableScan" in executed(empty)
    assert jobs_of(spark, empty, "empty") == []
    assert empty.schema == table.select("s", "id").schema
    assert table.where("id = 13").groupBy().count().first() == (0,)
    assert table.where("id = 13 OR s = 's1'").select("id").union(empty.select("id")).count() > 0


SUBPLANS = """
    SELECT (SELECT count(*) FROM {t} WHERE d BETWEEN 1 AND 5) AS a, (SELECT avg(id) FROM {t} WHERE d BETWEEN 1 AND 5) AS b,
      (SELECT sum(d) FROM {t} WHERE d BETWEEN 1 AND 5) AS c, (SELECT max(id) FROM {t} WHERE d BETWEEN 6 AND 7) AS d,
      (SELECT count(DISTINCT s) FROM {t}) AS e, (SELECT count(DISTINCT d) FROM {t}) AS f
"""


@pytest.mark.long
def test_scalar_subqueries_over_one_table_are_merged_as_for_parquet(
    spark: SparkSession, table: DataFrame, tmp_path: Path
):
    table.write.parquet(str(tmp_path / "p"))
    spark.read.parquet(str(tmp_path / "p")).createOrReplaceTempView("planning_parquet")
    lance_plan, parquet_plan = (
        SUBPLANS.format(t=name) for name in ("planning", "planning_parquet")
    )
    assert spark.sql(lance_plan).collect() == spark.sql(parquet_plan).collect()
    assert reused(spark.sql(lance_plan)) == reused(spark.sql(parquet_plan)) > 0
    rules = "org.apache.spark.sql.execution.planmerging.MergeSubplans"
    spark.conf.set("spark.sql.optimizer.excludedRules", rules)
    try:
        assert reused(spark.sql(lance_plan)) == 0
        assert spark.sql(lance_plan).collect() == spark.sql(parquet_plan).collect()
    finally:
        spark.conf.unset("spark.sql.optimizer.excludedRules")


def field_of(instance: Any, name: str) -> Any:
    """Returns a private field of an object of the JVM."""
    for field in instance.getClass().getDeclaredFields():
        if field.getName().split("$")[-1] == name:
            field.setAccessible(True)
            return field.get(instance)
    raise AttributeError(f"{instance.getClass()} has no field {name}")


def reused(df: DataFrame) -> int:
    df.collect()
    return executed(df).count("ReusedSubquery")


def test_a_subquery_beside_a_count_is_planned_too(spark: SparkSession, table: DataFrame):
    df = spark.sql(
        "SELECT count(*) + (SELECT max(d) FROM planning WHERE id < 25 AND s <> 's1') AS n FROM planning"
    )
    assert df.first() == (ROWS - 50 + 9,)
    assert "`id` < 25" in executed(df)


def test_subqueries_of_a_filter_are_merged_in_one_pass_of_the_optimizer(
    spark: SparkSession, table: DataFrame
):
    df = """
        SELECT id FROM planning WHERE id < (SELECT avg(id) / 100 FROM planning WHERE d < 5)
            AND d <= (SELECT max(d) - 2 FROM planning WHERE d < 5)
    """
    rows = spark.sql(df).collect()
    assert [row.id for row in rows] == [0, 1, 2]
    assert reused(spark.sql(df)) > 0
    spark.conf.set("spark.sql.optimizer.maxIterations", 1)
    try:
        assert spark.sql(df).collect() == rows
    finally:
        spark.conf.unset("spark.sql.optimizer.maxIterations")


def test_spark_does_not_ask_python_again_for_a_read_that_the_rule_planned(
    spark: SparkSession, table: DataFrame
):
    scan = table.where("d = 1")._jdf.queryExecution().optimizedPlan().collectLeaves().head().scan()
    assert field_of(field_of(field_of(scan, "python"), "ds"), "partitions") is not None


def test_a_read_without_the_rule_reads_the_version_of_load_through_the_gateway(
    spark: SparkSession, table_path: str, monkeypatch: pytest.MonkeyPatch
):
    session = spark.newSession()
    lance_spark.disable_pushdown(session)
    lance.write_dataset(pa.table({"a": [1, 2]}), table_path)
    requests: list[dict[str, Any]] = []

    def plan(arguments: dict[str, Any]) -> dict[str, Any]:
        requests.append(arguments)
        return plan_read(arguments)

    plan_read = reads.plan_read
    monkeypatch.setattr(reads, "plan_read", plan)
    df = session.read.format("lance").load(table_path)
    lance.write_dataset(pa.table({"a": [3]}), table_path, mode="append")
    assert df.where("a > 1").collect() == [(2,)]
    assert df.schema.fields[0].metadata == {} and "PythonScan" not in executed(df)
    assert json.loads(requests[0]["pin"])["version"] == 1


def test_subqueries_over_two_versions_are_not_merged(
    spark: SparkSession, table: DataFrame, path: str
):
    spark.read.format("lance").option("version", 1).load(path).createOrReplaceTempView(
        "planning_old"
    )
    query = "SELECT (SELECT sum(d) FROM planning), (SELECT sum(d) FROM planning_old)"
    assert spark.sql(query).first() == (
        sum(i % 10 for i in range(ROWS) if i % 10 != 3),
        sum(i % 10 for i in range(ROWS)),
    )
