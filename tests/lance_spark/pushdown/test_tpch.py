"""TPC-H's 22 queries at scale 0.01, on Lance with the planner rule and on Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.tpch_queries import QUERIES, TABLES, generate
from lance_spark.pushdown.rule import enable_pushdown

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session whose views are the generated files."""
    folder = tmp_path_factory.mktemp("tpch")
    generate(folder, 0.01)
    session = spark.newSession()
    for name in TABLES:
        session.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    return session


@pytest.fixture(scope="module")
def lance(parquet: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with the rule, whose views are the same tables written to Lance."""
    folder = tmp_path_factory.mktemp("tpch")
    session = parquet.newSession()
    assert enable_pushdown(session)
    for name in TABLES:
        path = str(folder / f"{name}.lance")
        parquet.table(name).write.format("lance").mode("append").save(path)
        session.read.format("lance").load(path).createOrReplaceTempView(name)
    return session


def nodes(plan: Any) -> Iterator[Any]:
    """Returns executed nodes: the final plan of adaptive plans, and the original of reused parts."""
    yield plan
    name = plan.nodeName()
    if name == "AdaptiveSparkPlan":
        yield from nodes(plan.executedPlan())
    elif name.endswith("QueryStage"):
        yield from nodes(plan.plan())
    for below in (plan.children(), plan.subqueries()):
        for i in range(below.size()):
            yield from nodes(below.apply(i))


KINDS = {
    "Exchange": "exchanges",
    "BroadcastExchange": "exchanges",
    "Subquery": "subqueries",
    "Scan": "scans",
    "BatchScan": "scans",
}


def computed(df: DataFrame) -> Counter[str]:
    """Returns the number of scans, exchanges and subqueries in an executed query; reused parts count once."""
    names = (node.nodeName().split()[0] for node in nodes(df._jdf.queryExecution().executedPlan()))
    return Counter(KINDS[name] for name in names if name in KINDS)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(QUERIES))
def test_rows_order_and_types_are_those_of_parquet_and_nothing_is_computed_more_often(
    name: str, lance: SparkSession, parquet: SparkSession
):
    expected = parquet.sql(QUERIES[name])
    got = lance.sql(QUERIES[name])
    assert got.schema == expected.schema
    assert got.collect() == expected.collect()
    lance_nodes, parquet_nodes = computed(got), computed(expected)
    assert lance_nodes <= parquet_nodes, (lance_nodes, parquet_nodes)


def test_there_are_22_queries():
    assert list(QUERIES) == [f"q{number:02}" for number in range(1, 23)]
