"""Writes that take columns of a scan without rows in between: values, types, limits of batches, and plans."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql import DataFrame, SparkSession

import lance_spark

pytestmark = pytest.mark.sample(1, tests=2)

ROWS = 600
VALUES = {
    "boolean": "x % 2 = 0",
    "tinyint": "cast(x % 127 AS tinyint)",
    "smallint": "cast(x AS smallint)",
    "int": "cast(x * 7 AS int)",
    "bigint": "x * 1000000007",
    "float": "cast(x AS float) / 3",
    "double": "if(x % 5 = 0, double('NaN'), x / 7)",
    "date": "date_add(date'1960-01-01', cast(x AS int))",
    "timestamp": "timestamp_micros(x * 1000003)",
    "timestamp_ntz": "timestampadd(MICROSECOND, x * 17, timestamp_ntz'1969-12-31 23:59:59')",
    "dec5": "cast(x / 100 AS decimal(5,2))",
    "dec18": "cast(x / 100 AS decimal(18,3))",
    "dec38": "cast(x AS decimal(20,0)) * 10000000000000000 / 7",
    "interval": "make_dt_interval(0, 0, 0, x)",
}
"""Expressions of a number `x`, by the names of their columns."""

NULLS = {"few": "id % 9 = 4", "all": "true", "none": "false", "runs": "id % 200 < 120"}
"""Rows with a NULL, by the end of a column's name."""


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Parquet files of all types, with and without a dictionary, in folders of a number or of NULL."""
    path = str(tmp_path_factory.mktemp("columns") / "t.parquet")
    columns = [
        f"if({is_null}, null, {value}) AS {name}_{nulls}"
        for (name, value), (nulls, is_null) in itertools.product(VALUES.items(), NULLS.items())
    ]
    for first, modulus in (
        (0, 20),
        (ROWS, 2 * ROWS),
    ):  # values of a dictionary, and distinct values
        numbers = spark.range(first, first + ROWS, 1, 2).selectExpr("id", f"id % {modulus} AS x")
        rows = numbers.selectExpr("id", *columns)
        rows.selectExpr("*", "if(id % 2 = 0, 7, null) AS part").write.mode("append").partitionBy(
            "part"
        ).parquet(path)
    return path


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, object], None]]:
    """Changes settings of the session for one test."""
    names = set()

    def change(name: str, value: object) -> None:
        names.add(name)
        spark.conf.set(name, str(value))

    yield change
    for name in names:
        spark.conf.unset(name)


def plan_of_save(df: DataFrame, path: str, mode: str = "append") -> str:
    """Writes a DataFrame, and returns the plan of the write."""
    session = df.sparkSession._jsparkSession
    plans = session.sharedState().statusStore()

    def newest() -> Any:
        session.sparkContext().listenerBus().waitUntilEmpty()
        # Spark forgets old executions, so their number may stay.
        return plans.executionsList(max(0, plans.executionsCount() - 5), 5)

    first = max((newest().apply(i).executionId() for i in range(newest().size())), default=-1)
    df.write.format("lance").mode(mode).save(path)
    executions = [newest().apply(i) for i in range(newest().size())]
    return "\n".join(
        plan.physicalPlanDescription() for plan in executions if plan.executionId() > first
    )


def assert_same_rows(path: str, expected: DataFrame) -> None:
    table = lance.dataset(path).to_table()
    arrow = expected.toArrow().select(table.column_names).cast(table.schema)
    assert repr(table.sort_by("id").to_pylist()) == repr(arrow.sort_by("id").to_pylist())


LIMITS = {
    "one batch": (4096, 10_000, 64 << 20),
    "cut by rows": (64, 10, 64 << 20),
    "cut by bytes": (100, 10_000, 3000),
    "odd sizes": (7, 13, 4001),
}
"""Rows of a columnar batch, and the largest number of rows and bytes of a batch for Python."""


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(limits, id=n, marks=[] if n == "odd sizes" else pytest.mark.long)
        for n, limits in LIMITS.items()
    ],
)
def test_columns_of_parquet_arrive_with_all_types_and_nulls(
    spark: SparkSession,
    parquet: str,
    tmp_path: Path,
    setting: Callable[[str, object], None],
    limits: tuple[int, int, int],
) -> None:
    columns, rows_of_batch, bytes_of_batch = limits
    setting("spark.sql.parquet.columnarReaderBatchSize", columns)
    setting("spark.sql.execution.arrow.maxRecordsPerBatch", rows_of_batch)
    setting("spark.sql.execution.arrow.maxBytesPerBatch", bytes_of_batch)
    path = str(tmp_path / "t.lance")
    rows = spark.read.parquet(parquet)
    assert "Lance Columns" in plan_of_save(rows, path)
    assert_same_rows(path, rows)


@pytest.mark.long
def test_columns_outside_of_the_heap_arrive(
    spark: SparkSession, parquet: str, table_path: str, setting: Callable[[str, object], None]
) -> None:
    setting("spark.sql.columnVector.offheap.enabled", True)
    rows = spark.read.parquet(parquet)
    assert "Lance Columns" in plan_of_save(rows, table_path)
    assert_same_rows(table_path, rows)


def test_a_write_takes_columns_only_of_a_scan_of_values_of_fixed_width(
    spark: SparkSession, parquet: str, table_path: str
) -> None:
    rows = spark.read.parquet(parquet)
    renamed = rows.selectExpr("int_few AS double_few", "part", "id", "double_few AS int_few")
    assert "Lance Columns" in plan_of_save(renamed, table_path)
    assert_same_rows(table_path, renamed)
    computed = rows.selectExpr("id", "double_few * 2 AS double_few").where("id < 70")
    texts = rows.selectExpr("id", "cast(id AS string) AS text")
    for others in (computed, texts):
        assert "Lance Columns" not in plan_of_save(others, table_path, "overwrite")
        assert_same_rows(table_path, others)


@pytest.mark.long
def test_columns_of_a_cache_and_of_a_lance_table_arrive(
    spark: SparkSession, parquet: str, tmp_path: Path
) -> None:
    rows = spark.read.parquet(parquet)
    path = str(tmp_path / "first.lance")
    cached = rows.cache()
    assert cached.count() == 2 * ROWS
    plan_of_save(cached, path)
    assert_same_rows(path, rows)
    cached.unpersist()
    copy = str(tmp_path / "copy.lance")
    # A scan of Lance returns short decimals as integers, and Spark computes the decimals.
    columns = [name for name in rows.columns if not name.startswith(("dec5", "dec18"))]
    assert "Lance Columns" in plan_of_save(
        spark.read.format("lance").load(path).select(columns), copy
    )
    assert_same_rows(copy, rows.select(columns))


@pytest.mark.long
def test_statements_of_a_catalog_take_columns(
    spark: SparkSession, parquet: str, tmp_path: Path
) -> None:
    lance_spark.catalog(spark, "columns", str(tmp_path))
    rows = spark.read.parquet(parquet).drop("part")
    rows.createOrReplaceTempView("columns_of_parquet")
    spark.sql("CREATE TABLE columns.t USING lance AS SELECT * FROM columns_of_parquet")
    assert (
        "Lance Columns"
        in spark.sql("EXPLAIN INSERT INTO columns.t SELECT * FROM columns_of_parquet").collect()[0][
            0
        ]
    )
    spark.sql("INSERT OVERWRITE columns.t SELECT * FROM columns_of_parquet")
    assert_same_rows(str(tmp_path / "t.lance"), rows)
