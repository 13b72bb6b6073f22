"""Reads and statements of one column of 2,001 take about as long as of few columns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import lance_spark

WIDE, NARROW = 2_001, 20
ROWS, FRAGMENTS, ROUNDS = 10, 10, 5

MOST_OF_PARQUET = 1.5
MOST_OF_NARROW = 3.0

pytestmark = pytest.mark.long


def write_tables(folder: Path, columns: int) -> None:
    """Writes the same rows as a Lance table and as Parquet files."""
    ids = np.arange(ROWS * FRAGMENTS)
    rows = pa.table({"id": ids, **{f"c{number}": ids * 1.0 for number in range(columns - 1)}})
    lance.write_dataset(
        rows, folder / f"t{columns}.lance", max_rows_per_file=ROWS, enable_stable_row_ids=True
    )
    (folder / f"p{columns}").mkdir()
    for number in range(FRAGMENTS):
        pq.write_table(
            rows.slice(number * ROWS, ROWS), folder / f"p{columns}" / f"{number}.parquet"
        )


def ratio(ours: Callable[[], object], other: Callable[[], object]) -> float:
    """Returns the median of the quotients of seconds, in turns after a warm-up."""
    quotients = []
    for number in range(ROUNDS + 1):
        seconds = []
        for act in (ours, other):
            began = time.perf_counter()
            act()
            seconds.append(time.perf_counter() - began)
        if number:
            quotients.append(seconds[0] / seconds[1])
    return statistics.median(quotients)


READS: dict[str, Callable[[DataFrame], object]] = {
    "load": lambda frame: frame.schema,
    "one column": lambda frame: frame.selectExpr("sum(c1)").collect(),
    "filter": lambda frame: frame.filter("id = 3").select("c1").collect(),
}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the catalog `wide_lake` with a wide and a narrow table."""
    folder = tmp_path_factory.mktemp("wide_lake")
    lance_spark.catalog(spark, "wide_lake", str(folder))
    for columns in (WIDE, NARROW):
        write_tables(folder, columns)
    return folder


@pytest.mark.parametrize("read", READS)
def test_reads_take_about_as_long_as_of_parquet(spark: SparkSession, lake: Path, read: str):
    def read_table() -> object:
        return READS[read](spark.read.format("lance").load(str(lake / f"t{WIDE}.lance")))

    def read_parquet() -> object:
        return READS[read](spark.read.parquet(str(lake / f"p{WIDE}")))

    assert ratio(read_table, read_parquet) <= MOST_OF_PARQUET


STATEMENTS = {
    "UPDATE": "UPDATE wide_lake.{table} SET c1 = c1 + 5 WHERE id = 8",
    "UPDATE of all rows": "UPDATE wide_lake.{table} SET c1 = c1 + 5",
    "MERGE": "MERGE INTO wide_lake.{table} t USING (SELECT 9L AS id, 1.0D AS c1) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET c1 = s.c1",
    "MERGE with insert": "MERGE INTO wide_lake.{table} t USING (SELECT 9L AS id, 1.0D AS c1) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET c1 = s.c1 WHEN NOT MATCHED THEN INSERT (id, c1) VALUES (s.id, s.c1)",
}


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.usefixtures("lake")
def test_statements_of_one_column_take_at_most_three_times_as_long(
    spark: SparkSession, statement: str
):
    wide, narrow = (STATEMENTS[statement].format(table=f"t{columns}") for columns in (WIDE, NARROW))
    assert ratio(lambda: spark.sql(wide), lambda: spark.sql(narrow)) <= MOST_OF_NARROW
