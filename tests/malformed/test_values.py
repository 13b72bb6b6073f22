"""Unfitting values, written by Spark: the job fails with a typed error, and the table stays unchanged."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.malformed.conftest import fingerprint, make_table
from tests.support.waiting import eventually

pytestmark = pytest.mark.sample(1, tests=2)


def check_failure(
    df: DataFrame, path: str, error: str, *says: str, options: dict[str, str] | None = None
) -> None:
    """Checks that a write fails with a given typed error and leaves the table unchanged."""
    before = fingerprint(path)
    with pytest.raises(PySparkException) as caught:
        df.write.format("lance").mode("append").options(**(options or {})).save(path)
    message = str(caught.value)
    assert error in message
    assert [text for text in says if text not in message] == [], message
    eventually(lambda: fingerprint(path) == before)


APPENDS: list[tuple[str, str, tuple[str, ...]]] = [
    ("id, cast(300 AS int) AS small", "ValueConversionError", ("small", "300")),
    ("id, cast(-1 AS bigint) AS unsigned", "ValueConversionError", ("unsigned", "-1")),
    (
        "id, cast(4294967296 AS bigint) AS unsigned",
        "ValueConversionError",
        ("unsigned", "4294967296"),
    ),
    ("id, array(1f, 2f) AS vec", "ValueConversionError", ("vec", "3")),
    ("id, cast(12345.67 AS decimal(20, 2)) AS price", "ValueConversionError", ("price",)),
    ("id, cast(1.234 AS decimal(5, 3)) AS price", "ValueConversionError", ("price",)),
    ("CASE WHEN id != 5 THEN id END AS id", "ValueConversionError", ("id", "NULL")),
]


@pytest.mark.parametrize(("columns", "error", "says"), APPENDS, ids=[case[0] for case in APPENDS])
def test_an_append_of_a_value_that_does_not_fit_fails(
    columns: str, error: str, says: tuple[str, ...], table: str, spark: SparkSession
):
    check_failure(spark.range(10).selectExpr(*split(columns)), table, error, *says)


def split(columns: str) -> list[str]:
    """Splits at commas outside parentheses."""
    parts, depth = [""], 0
    for character in columns:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


ADDRESSES: list[tuple[str, str, tuple[str, ...]]] = [
    ("CASE WHEN id != 5 THEN _rowaddr END", "RowAddressError", ("NULL",)),
    ("-1 - _rowaddr", "RowAddressError", ("negative",)),
    ("CASE WHEN id = 5 THEN 4 ELSE _rowaddr END", "RowAddressError", ("4",)),
    ("_rowaddr + (99L * 4294967296L)", "RowAddressError", ("snapshot",)),
    ("CASE WHEN id = 5 THEN 3 ELSE _rowaddr END", "RowAddressError", ("deleted", "3")),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "error", "says"), ADDRESSES, ids=[case[0] for case in ADDRESSES]
)
def test_a_backfill_of_rows_that_are_none_fails(
    address: str, error: str, says: tuple[str, ...], table: str, spark: SparkSession
):
    df = spark.read.format("lance").option("with_row_address", True).load(table)
    values = df.selectExpr(f"{address} AS _rowaddr", "upper(text) AS shout")
    check_failure(values, table, error, *says, options={"mode": "backfill", "version": "2"})


def test_reading_a_value_that_spark_cannot_hold_fails(spark: SparkSession, table_path: str):
    lance.write_dataset(pa.table({"moment": pa.array([1, 1001], pa.timestamp("ns"))}), table_path)
    before = fingerprint(table_path)
    with pytest.raises(PySparkException, match="ValueConversionError") as caught:
        spark.read.format("lance").load(table_path).collect()
    assert "moment" in str(caught.value)
    assert fingerprint(table_path) == before


def test_reading_a_type_that_spark_cannot_hold_fails_with_its_name(
    spark: SparkSession, table_path: str
):
    lance.write_dataset(pa.table({"wide": pa.array([1], pa.decimal256(60, 2))}), table_path)
    with pytest.raises(PySparkException, match="UnsupportedTypeError") as caught:
        spark.read.format("lance").load(table_path)
    assert "wide" in str(caught.value)


def test_an_error_keeps_its_name_through_spark(spark: SparkSession, tmp_path: Path):
    nothing = str(tmp_path / "nothing.lance")
    with pytest.raises(PySparkException, match="TableNotFoundError") as caught:
        spark.read.format("lance").load(nothing)
    assert nothing in str(caught.value)


def test_a_misspelt_option_of_a_write_leaves_no_table(spark: SparkSession, table_path: str):
    with pytest.raises(PySparkException, match="OptionError"):
        spark.range(3).write.format("lance").mode("append").option("max_row_per_file", 5).save(
            table_path
        )
    assert not Path(table_path).exists()


def test_a_task_that_fails_midway_leaves_the_table_as_it_was(spark: SparkSession, table: str):
    rows = spark.range(0, 4000, 1, 4).selectExpr(
        "if(id < 3990, id, cast(raise_error('on purpose') AS bigint)) AS id"
    )
    before = fingerprint(table)
    with pytest.raises(PySparkException, match="on purpose"):
        rows.write.format("lance").mode("append").option("max_rows_per_file", 100).save(table)
    eventually(lambda: fingerprint(table) == before)


def test_a_view_of_a_damaged_table_fails_with_its_name(spark: SparkSession, tmp_path: Path):
    path = make_table(str(tmp_path / "damaged.lance"))
    for file in Path(path, "data").iterdir():
        file.write_bytes(b"\0" * 100)
    with pytest.raises(PySparkException, match="TableUnreadableError"):
        spark.read.format("lance").load(path).collect()
