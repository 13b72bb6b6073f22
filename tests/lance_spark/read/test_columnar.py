"""Arrow batches that Spark reads as columns: values that an operator holds while the next batch overwrites the memory."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path

import lance
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's functions are F everywhere
from pyspark.sql.types import StringType


@F.pandas_udf(StringType())  # type: ignore[call-overload]
def shout(texts: pd.Series) -> pd.Series:
    """Returns texts in upper case."""
    return texts.str.upper()


ROWS = 200
BATCH_ROWS = 7

QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all columns": lambda rows: rows,
    "aggregates without groups": lambda rows: rows.select(
        F.max("s"),
        F.min("s"),
        F.max("d"),
        F.max(F.hex("b")),
        F.max("t"),
        F.max("struct"),
        F.min("list"),
    ),
    "values by another value": lambda rows: rows.select(
        F.max_by("s", "id"),
        F.min_by("b", "id"),
        F.max_by("struct", "id"),
        F.max_by("list", "id"),
        F.max_by("d", "id"),
    ),
    "grouped": lambda rows: rows.groupBy("s").agg(
        F.max("struct.x"), F.min("b"), F.sum("d"), F.first("k")
    ),
    "collected": lambda rows: rows.groupBy("k").agg(
        F.sort_array(F.collect_list("s")), F.max("list")
    ),
    "distinct": lambda rows: rows.select(F.countDistinct("s", "d"), F.countDistinct("struct")),
    "sorted": lambda rows: rows.orderBy(F.desc("s"), "id").limit(20),
    "windows": lambda rows: rows.selectExpr(
        "id",
        *(
            f"{call} OVER (PARTITION BY k ORDER BY id)"
            for call in ("lag(s)", "max(s)", "lead(list, 2)", "first(b)")
        ),
    ),
    "joined": lambda rows: rows.select("id", "s", "struct").join(
        rows.select("id", F.col("s").alias("t"), "d"), "id"
    ),
    "cross join": lambda rows: (
        rows.where("id < 20")
        .select("s")
        .crossJoin(rows.where("id < 9").select(F.col("b").alias("t")))
    ),
    "exploded": lambda rows: rows.select("id", F.explode_outer("list"), "s"),
    "expressions": lambda rows: rows.select(
        "id",
        F.concat_ws("-", "s", "k"),
        F.trim("s"),
        F.coalesce("s", F.lit("none")),
        F.struct("s", "struct", "list"),
    ),
    "Python functions": lambda rows: rows.where(shout("s") > "F").select(
        "id", "s", shout("s"), shout(shout("s"))
    ),
    "a union below a Python function": lambda rows: (
        rows.select("id", "s").union(rows.select("id", "struct.x")).select("id", shout("s"))
    ),
    "cached": lambda rows: rows.select("id", "s", "struct", "list").cache(),
}


def text(row: int) -> str | None:
    """Returns a text of 0 to 39 characters, or None for every tenth row."""
    return None if row % 10 == 3 else chr(97 + row * 7 % 26) * (row * 13 % 40)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Returns a Lance table in several fragments, and a Parquet file with the same rows."""
    numbers = range(ROWS)
    texts = [text(n) for n in numbers]
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "k": pa.array([n % 7 for n in numbers], pa.int32()),
            "s": texts,
            "b": pa.array(
                [None if value is None else value.encode() for value in texts], pa.binary()
            ),
            "d": pa.array(
                [decimal.Decimal(n * 10**27).scaleb(-2) for n in numbers], pa.decimal128(38, 2)
            ),
            "t": pa.array(
                [
                    dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=n * 31)
                    for n in numbers
                ]
            ),
            "list": pa.array(
                [[text(n + i) for i in range(n % 4)] for n in numbers], pa.list_(pa.string())
            ),
            "struct": pa.array(
                [
                    None if n % 11 == 5 else {"x": text(n), "y": {"z": [text(n + 1)]}}
                    for n in numbers
                ],
                pa.struct([("x", pa.string()), ("y", pa.struct([("z", pa.list_(pa.string()))]))]),
            ),
        }
    )
    folder: Path = tmp_path_factory.mktemp("columnar")
    lance.write_dataset(table, folder / "t.lance", max_rows_per_file=90)
    pq.write_table(table, folder / "t.parquet")
    return str(folder / "t.lance"), str(folder / "t.parquet")


QUICK = {
    "all columns",
    "aggregates without groups",
    "grouped",
    "windows",
    "joined",
    "Python functions",
}
"""Queries of the quick suite: the others keep values in the same structures of Spark."""


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(query, id=name, marks=[] if name in QUICK else pytest.mark.long)
        for name, query in QUERIES.items()
    ],
)
def test_values_outlive_their_batch(
    spark: SparkSession, paths: tuple[str, str], query: Callable[[DataFrame], DataFrame]
) -> None:
    ours = query(spark.read.format("lance").option("batch_size", BATCH_ROWS).load(paths[0]))
    expected = query(spark.read.parquet(paths[1]))
    assert sorted(map(str, ours.collect())) == sorted(map(str, expected.collect()))


def test_vectors_in_two_columns_and_inputs_of_python_functions_are_rows(
    spark: SparkSession, table_path: str
) -> None:
    vectors = pa.array([[float(n)] * 16 for n in range(3)], pa.list_(pa.float32(), 16))
    lance.write_dataset(pa.table({"id": [1, 2, 3], "v": vectors}), table_path)
    rows = spark.read.format("lance").load(table_path)
    assert "ColumnarToRow" in plan_of(rows.select("id"))
    assert "ColumnarToRow" in plan_of(rows.selectExpr("v[0]"))
    assert "ColumnarToRow" not in plan_of(rows)
    assert "ColumnarToRow" not in plan_of(
        rows.selectExpr("id", "CAST(id AS STRING) AS s").select(shout("s"))
    )


def plan_of(rows: DataFrame) -> str:
    """Returns the physical plan before adaptive execution changes it."""
    return rows._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator,union-attr]
