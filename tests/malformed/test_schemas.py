"""DataFrames with unfitting columns: refused on the driver, before a task starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import lance
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lance_spark.datasource import LanceDataSource
from lance_spark.errors import (
    ColumnNotFoundError,
    LanceSparkError,
    OptionError,
    SchemaMismatchError,
    SnapshotError,
    UnsupportedTypeError,
    VersionNotFoundError,
)
from tests.malformed.conftest import Refused, make_table

ID = StructField("id", LongType(), False)
NONE_FIT = (SchemaMismatchError, UnsupportedTypeError)


def columns(**types: DataType) -> list[StructField]:
    return [StructField(name, data_type) for name, data_type in types.items()]


APPENDS: list[tuple[str, list[StructField], tuple[str, ...]]] = [
    ("a column that the table has not", [ID, *columns(txt=StringType())], ("txt", "text")),
    ("no column at all", [], ("no columns", "nothing was written")),
    ("the column that may not be NULL is missing", columns(text=StringType()), ("id",)),
    ("text into bigint", columns(id=StringType()), ("id",)),
    ("boolean into bigint", columns(id=BooleanType()), ("id",)),
    ("bigint into text", [ID, *columns(text=LongType())], ("text",)),
    ("text into a decimal", [ID, *columns(price=StringType())], ("price",)),
    ("timestamp into tinyint", [ID, *columns(small=TimestampType())], ("small",)),
    ("text into a vector", [ID, *columns(vec=StringType())], ("vec",)),
    ("texts into a vector", [ID, *columns(vec=ArrayType(StringType()))], ("vec",)),
    ("a map into a struct", [ID, *columns(pair=MapType(StringType(), LongType()))], ("pair",)),
    (
        "a struct with another field",
        [ID, *columns(pair=StructType(columns(a=LongType(), c=StringType())))],
        ("pair", "c"),
    ),
    (
        "a struct with another type inside",
        [ID, *columns(pair=StructType(columns(a=DateType(), b=StringType())))],
        ("pair", "a"),
    ),
    ("an array into a scalar", [ID, *columns(small=ArrayType(IntegerType()))], ("small",)),
    ("an interval", [ID, *columns(text=CalendarIntervalType())], ("text",)),
    ("the same column twice", [ID, ID], ("id",)),
]


@pytest.mark.parametrize(("name", "fields", "says"), APPENDS, ids=[case[0] for case in APPENDS])
def test_an_append_refuses(
    name: str, fields: list[StructField], says: tuple[str, ...], table: str, check_refused: Refused
):
    with check_refused(NONE_FIT, *says):
        LanceDataSource({"path": table}).writer(StructType(fields), False)


NEW: list[tuple[str, list[StructField], tuple[str, ...]]] = [
    ("no column", [], ("column",)),
    ("an interval", columns(span=CalendarIntervalType()), ("span",)),
    (
        "an interval within",
        columns(deep=ArrayType(StructType(columns(span=CalendarIntervalType())))),
        ("deep", "span"),
    ),
    ("a name twice", columns(a=LongType()) * 2, ("a",)),
    ("a name that Lance keeps for itself", columns(_rowid=LongType(), a=LongType()), ("_rowid",)),
    ("an empty name", columns(**{"": LongType()}), ("name",)),
]


@pytest.mark.parametrize(("name", "fields", "says"), NEW, ids=[case[0] for case in NEW])
def test_a_new_table_refuses(
    name: str,
    fields: list[StructField],
    says: tuple[str, ...],
    tmp_path: Path,
    check_refused: Refused,
):
    with check_refused(NONE_FIT, *says, at=str(tmp_path)):
        LanceDataSource({"path": str(tmp_path / "new.lance")}).writer(StructType(fields), False)


# --- backfill ----------------------------------------------------------------------------------------------------------------


def address_of(path: str, name: str = "_rowaddr", **options: str) -> StructField:
    """Returns the address column of a table with its metadata, as in a read."""
    option = {"with_row_address": "true"} if name == "_rowaddr" else {"with_row_id": "true"}
    return LanceDataSource({"path": path, **option, **options}).schema()[name]


def plan_backfill(path: str, *fields: StructField, overwrite: bool = False, **options: str) -> None:
    LanceDataSource({"path": path, "mode": "backfill", **options}).writer(
        StructType(list(fields)), overwrite
    )


LABEL = StructField("label", StringType())
BARE = StructField("_rowaddr", LongType())


def test_a_backfill_without_addresses_is_refused(table: str, check_refused: Refused):
    with check_refused((SnapshotError, SchemaMismatchError), "_rowaddr"):
        plan_backfill(table, LABEL)


def test_a_backfill_without_values_is_refused(table: str, check_refused: Refused):
    with check_refused((SnapshotError, SchemaMismatchError)):
        plan_backfill(table, address_of(table))


def test_a_backfill_of_addresses_without_a_version_is_refused(table: str, check_refused: Refused):
    with check_refused(SnapshotError, "version"):
        plan_backfill(table, BARE, LABEL)


def test_a_backfill_at_a_version_that_is_none_is_refused(table: str, check_refused: Refused):
    with check_refused((VersionNotFoundError, SnapshotError), "99"):
        plan_backfill(table, BARE, LABEL, version="99")


def test_a_backfill_at_a_version_that_contradicts_the_addresses_is_refused(
    table: str, check_refused: Refused
):
    with check_refused((SnapshotError, OptionError), "version"):
        plan_backfill(table, address_of(table), LABEL, version="1")


def test_a_backfill_with_the_addresses_of_another_table_is_refused(
    table: str, tmp_path: Path, check_refused: Refused
):
    other_table = make_table(str(tmp_path / "other.lance"))
    with check_refused(SnapshotError, "other.lance"):
        plan_backfill(table, address_of(other_table), LABEL)


def test_a_backfill_of_a_table_that_was_made_anew_is_refused(table: str, check_refused: Refused):
    # The old table is still open in this process, as in a reused Python worker of Spark.
    address = address_of(table)
    shutil.rmtree(table)
    make_table(table)
    with check_refused(SnapshotError, "recreated"):
        plan_backfill(table, address, LABEL)


def test_a_backfill_with_overwrite_is_refused(table: str, check_refused: Refused):
    with check_refused((OptionError, SnapshotError), "append"):
        plan_backfill(table, address_of(table), LABEL, overwrite=True)


def test_a_backfill_of_the_wrong_type_is_refused(table: str, check_refused: Refused):
    with check_refused(NONE_FIT, "price"):
        plan_backfill(table, address_of(table), StructField("price", ArrayType(DoubleType())))


def test_a_backfill_by_addresses_that_are_text_is_refused(table: str, check_refused: Refused):
    text = StructField("_rowaddr", StringType(), True, address_of(table).metadata)
    with check_refused((SnapshotError, SchemaMismatchError), "_rowaddr"):
        plan_backfill(table, text, LABEL)


def test_a_backfill_with_unknown_input_columns_is_refused(table: str, check_refused: Refused):
    with check_refused((ColumnNotFoundError, OptionError), "nosuch"):
        plan_backfill(table, address_of(table), LABEL, input_columns="text,nosuch")


def test_a_backfill_with_damaged_metadata_is_refused(table: str, check_refused: Refused):
    with check_refused(SnapshotError):
        plan_backfill(
            table, StructField("_rowaddr", LongType(), True, {"lance.table": "{not json"}), LABEL
        )


def test_a_backfill_with_metadata_of_another_shape_is_refused(table: str, check_refused: Refused):
    with check_refused(SnapshotError):
        plan_backfill(
            table,
            StructField("_rowaddr", LongType(), True, {"lance.table": json.dumps([1, 2])}),
            LABEL,
        )


def test_a_backfill_of_no_table_is_refused(tmp_path: Path, table: str, check_refused: Refused):
    with check_refused((LanceSparkError,), "nothing.lance", at=str(tmp_path)):
        plan_backfill(str(tmp_path / "nothing.lance"), address_of(table), LABEL)


def test_nothing_of_this_made_a_version(table: str):
    assert lance.dataset(table).version == 2
