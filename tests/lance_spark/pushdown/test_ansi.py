"""Errors in ANSI mode: the table of docs/pushdown.md, on Lance with the planner rule and on Spark's own sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

SOURCES = ("parquet", "partitioned", "csv", "json", "lance")

OUTCOMES = {
    "x + 1 > 0 AND k = 5": ("raises", 4, 4, 4, 4),
    "x + 1 > 0 AND k = 50": (0, 0, 0, 0, 0),
    "k = 5 AND x + 1 > 0": (4, 4, 4, 4, 4),
    "k = 5 OR x + 1 > 0": ("raises",) * 5,
}
"""The rows of each condition, in the order of the sources."""


@pytest.fixture(scope="module", autouse=True)
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Views `ansi_<source>` of the same 40 rows."""
    folder = tmp_path_factory.mktemp("ansi")
    rows = spark.range(0, 40, 1, 1).selectExpr(
        "id", "id % 10 AS k", "IF(id % 10 = 3, 9223372036854775807, id) AS x"
    )
    for source in SOURCES:
        kind = source if source != "partitioned" else "parquet"
        writer = rows.write.format(kind).mode("append")
        (writer.partitionBy("k") if source == "partitioned" else writer).save(str(folder / source))
        reader = spark.read.format(kind)
        reader = reader.schema(rows.schema) if kind in ("csv", "json") else reader
        reader.load(str(folder / source)).createOrReplaceTempView(f"ansi_{source}")


def outcome(spark: SparkSession, source: str, condition: str) -> int | str:
    try:
        return len(spark.sql(f"SELECT id FROM ansi_{source} WHERE {condition}").collect())
    except ArithmeticException:
        return "raises"


@pytest.mark.sample(3)
@pytest.mark.parametrize("condition", OUTCOMES)
def test_a_pushed_test_removes_rows_before_others_see_them_as_in_some_sources_of_spark(
    condition: str, spark: SparkSession
):
    assert tuple(outcome(spark, source, condition) for source in SOURCES) == OUTCOMES[condition]


def test_the_page_says_so():
    text = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text(encoding="utf-8")
    section = text.split("## ANSI mode")[1].split("\n## ")[0]
    for condition, (parquet, *middle_cells, ours) in OUTCOMES.items():
        cells = [
            cell.strip()
            for cell in section.split(f"| `{condition}` |")[1].split("\n")[0].split("|")[:3]
        ]
        for cell, expected in zip(cells, (parquet, middle_cells[0], ours), strict=True):
            assert cell.startswith(str(expected) if expected else "no rows"), (condition, cell)
        assert len(set(middle_cells)) == 1
