"""Rows by rank through Spark: the options `nearest` and `full_text_query`, SQL views, and `to_spark`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from lance_spark import Table, UnsupportedOperationError
from tests.lance_spark.search.conftest import nearest

pytestmark = pytest.mark.spark


def load(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in options.items()
    }
    return spark.read.format("lance").options(**texts).load(path)


def ids(frame: DataFrame) -> list[int]:
    return [row.id for row in frame.select("id").collect()]


def test_the_nearest_rows_are_read_and_nothing_comes_before_the_search(
    spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    expected = nearest(table_path, q, 30)
    frame = load(spark, table_path, nearest={"q": q, "k": 30}, columns="id,kind")
    assert frame.columns == ["id", "kind", "_distance"] and ids(frame) == expected
    totals = frame.agg(sf.count("*"), sf.max("id"), sf.count("kind")).first()
    assert tuple(totals or ()) == (30, max(expected), 30)
    assert ids(frame.filter("kind = 2")) == [n for n in expected if n % 5 == 2], (
        "a filter of Spark comes after it"
    )
    assert ids(frame.orderBy(sf.desc("_distance")).limit(3)) == expected[:-4:-1]
    option = load(spark, table_path, nearest={"q": q, "k": 30}, filter="kind = 2", with_row_id=True)
    assert ids(option) == nearest(table_path, q, 30, lambda row: row["kind"] == 2), (
        "the option filter before"
    )


def test_texts_and_both_kinds_are_read_and_views_of_sql(
    spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    table.create_fts_index("text")
    both = table.search(query_type="hybrid").vector(q).text("number7 plum").limit(5)
    frame = load(
        spark,
        table_path,
        nearest={"q": q, "k": 5},
        full_text_query={"query": "number7 plum", "k": 5},
    )
    assert [tuple(row) for row in frame.select("id", "_relevance_score").collect()] == [
        (row["id"], row["_relevance_score"]) for row in both.to_list()
    ]
    assert ids(load(spark, table_path, full_text_query="number7")) == [7]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW about USING lance OPTIONS (path '{table_path}', full_text_query 'number8')"
    )
    assert [row.id for row in spark.sql("SELECT id FROM about WHERE _score > 0").collect()] == [8]


def test_searches_of_the_table_api_are_dataframes(
    spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    table.create_fts_index("text")
    search = (
        table.search(q).limit(6).offset(2).where("id > 50").select(["id"]).nprobes(3).with_row_id()
    )
    for query in (
        search,
        table.search(q).limit(6).where("id > 50", prefilter=False).select(["id"]),
        table.search("fig number9").select(["id", "vec"]),
        table.search(query_type="hybrid").vector(q).text("fig number9").select(["id"]),
        table.search().where("kind = 3").select(["id", "kind"]).limit(1000),
    ):
        frame, arrow = query.to_spark(), query.to_arrow()
        assert frame.columns == arrow.schema.names
        assert ids(frame) == arrow["id"].to_pylist()
    frame = search.to_spark()
    expected = ids(frame)
    table.to_lance().delete("id > 100")
    assert ids(frame) == expected, "a DataFrame is of one version"
    for refused in (table.search().offset(3), table.search(q).select({"a": "id + 1"})):
        with pytest.raises(UnsupportedOperationError, match="to_spark"):
            refused.to_spark()


def test_without_the_planner_rule_searches_are_the_same(
    plain_spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    frame = load(plain_spark, table_path, nearest={"q": q, "k": 9}, columns="id")
    assert ids(frame.filter("id > 100")) == [n for n in nearest(table_path, q, 9) if n > 100]
