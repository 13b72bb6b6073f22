"""Keys for matching rows: matching keys, and refused keys with their number and examples."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import BackfillIncompleteError, Connection
from lance_spark.errors import (
    ColumnNotFoundError,
    LanceSparkError,
    SchemaMismatchError,
    SourceKeysError,
)
from lance_spark.load import start
from tests.lance_spark.load.loads import (
    assert_same,
    left_join,
    load,
    make_table,
    nothing_changes,
    numbered,
    of_ids,
    old_files_stay,
    values,
    write_file,
)

pytestmark = pytest.mark.sample(1, tests=3)


def check_refused(
    source: pa.Table, pk: Any, message: str, db: Connection, files: Path, table: pa.Table
) -> str:
    """Asserts that a load into a new and into an existing column fails without a change; returns the message."""
    into = make_table(db, table)
    path = write_file(source, files / "x.parquet")
    with nothing_changes(into), pytest.raises(SourceKeysError, match=message) as caught:
        into.load_columns(path, pk, ["v", "fresh"])
    assert caught.value.source == path and path in str(caught.value)
    assert into.list_jobs() == []
    return str(caught.value)


def two_columns(rows: int) -> dict[str, Any]:
    return {"fresh": ["x"] * rows}


# Refusals


def test_duplicate_keys_are_counted_with_their_rows_and_the_first_five(
    db: Connection, files: Path
) -> None:
    ids = [7, 3, 3, 5, 5, 5, 9, 9, 11, 11, 13, 13, 15, 15, 20]
    source = of_ids(ids, **two_columns(len(ids)))
    text = check_refused(
        source, "id", "6 duplicate keys in 13 rows", db, files, numbered(v=pa.nulls(30, pa.int64()))
    )
    assert "(first: 3, 5, 9, 11, 13) in column 'id'" in text and "without a key" not in text
    assert "Nothing was changed" in text


def test_one_duplicate_key_is_refused_though_no_row_of_the_table_has_it(
    db: Connection, files: Path
) -> None:
    source = of_ids([1, 2000, 2000], **two_columns(3))
    check_refused(
        source,
        "id",
        r"1 duplicate key in 2 rows \(first: 2000\)",
        db,
        files,
        numbered(v=pa.nulls(30, pa.int64())),
    )


def test_null_keys_and_duplicates_are_counted_apart(db: Connection, files: Path) -> None:
    source = pa.table(
        {"id": pa.array([1, None, None, 4, 4]), "v": pa.array(range(5)), **two_columns(5)}
    )
    message = r"the source has 2 rows without a key and 1 duplicate key in 2 rows \(first: 4\)"
    check_refused(source, "id", message, db, files, numbered(v=pa.nulls(30, pa.int64())))


def test_one_null_key_is_refused(db: Connection, files: Path) -> None:
    source = pa.table({"id": pa.array([1, None]), "v": pa.array(range(2)), **two_columns(2)})
    check_refused(
        source,
        "id",
        "the source has 1 row without a key in",
        db,
        files,
        numbered(v=pa.nulls(30, pa.int64())),
    )


def test_keys_of_several_columns_are_doubled_only_where_all_are_and_null_where_any_is(
    db: Connection, files: Path
) -> None:
    source = pa.table(
        {
            "id": pa.array([1, 1, 1, 2, None, 3]),
            "lang": ["en", "de", "en", "en", "en", None],
            "v": pa.array(range(6)),
            **two_columns(6),
        }
    )
    message = r"2 rows without a key and 1 duplicate key in 2 rows \(first: \(1, 'en'\)\) in columns 'id', 'lang'"
    check_refused(
        source,
        ["id", "lang"],
        message,
        db,
        files,
        numbered(lang=["en"] * 30, v=pa.nulls(30, pa.int64())),
    )


@pytest.mark.parametrize(
    ("table_type", "source_type", "message"),
    [
        (pa.int64(), pa.string(), "'k' is bigint in the table and string in the source"),
        (pa.string(), pa.int32(), "'k' is string in the table and int in the source"),
        (pa.int64(), pa.float64(), "'k' is bigint in the table and double in the source"),
        (
            pa.int64(),
            pa.decimal128(10, 0),
            r"'k' is bigint in the table and decimal\(10,0\) in the source",
        ),
        (
            pa.decimal128(10, 2),
            pa.decimal128(10, 1),
            r"decimal\(10,2\) in the table and decimal\(10,1\)",
        ),
        (
            pa.timestamp("us", "UTC"),
            pa.timestamp("us"),
            "timestamp in the table and timestamp_ntz in the source",
        ),
        (pa.date32(), pa.timestamp("us"), "date in the table and timestamp_ntz"),
        (pa.string(), pa.binary(), "string in the table and binary"),
        (pa.float64(), pa.float64(), "'k' is double, whose values are no keys"),
        (
            pa.list_(pa.int64()),
            pa.list_(pa.int64()),
            "'k' is array<bigint>, whose values are no keys",
        ),
        (
            pa.struct([("a", pa.int64())]),
            pa.struct([("a", pa.int64())]),
            "whose values are no keys",
        ),
    ],
)
def test_keys_of_a_wrong_type_are_refused_before_a_row_is_read(
    table_type: pa.DataType, source_type: pa.DataType, message: str, db: Connection
) -> None:
    table = make_table(db, numbered(rows=2, k=pa.array([None] * 2, table_type)))
    source = pa.table({"k": pa.array([None] * 2, source_type), "v": [1, 2]})
    for call in (table.plan_load_columns, table.load_columns, table.load_columns_async):
        with nothing_changes(table), pytest.raises(SourceKeysError, match=message) as caught:
            call(source, "k", ["v"])
        assert table.uri in str(caught.value)


@pytest.mark.guarantee("L06")
def test_a_key_that_one_side_lacks_is_named_with_a_hint_about_capitals(db: Connection) -> None:
    table = make_table(db, numbered(Lang=["en"] * 30))
    source = of_ids([1], lang=["en"])
    for pk, where in (("Lang", "a Table"), ("lang", table.uri), (["id", "Lang"], "a Table")):
        with (
            nothing_changes(table),
            pytest.raises(ColumnNotFoundError, match="Did you mean") as caught,
        ):
            table.load_columns(source, pk, ["v"])
        assert where in str(caught.value)


def test_a_dataframe_whose_columns_differ_only_in_capitals_is_read_or_refused_by_name(
    db: Connection, spark: SparkSession
) -> None:
    table = make_table(db, numbered())
    source = spark.createDataFrame([(1, 10, -1)], "id bigint, v bigint, V bigint")
    with nothing_changes(table), pytest.raises(Exception, match="v") as caught:
        table.load_columns(source, "id", ["v"])
    assert type(caught.value).__module__ == "lance_spark.errors"


def test_a_key_with_parts_of_a_microsecond_matches_nothing_by_accident(db: Connection) -> None:
    table = make_table(db, pa.table({"at": pa.array([1, 2], pa.timestamp("us"))}))
    source = pa.table({"at": pa.array([1001, 2000], pa.timestamp("ns")), "v": [10, 20]})
    with nothing_changes(table), pytest.raises(LanceSparkError, match=r"1001|'at'"):
        table.load_columns(source, "at", ["v"])


def test_keys_that_are_doubled_after_the_check_end_the_load_and_nothing_is_committed(
    db: Connection, spark: SparkSession
) -> None:
    table = make_table(db, numbered(v=pa.array(range(30), pa.int64())))
    frame = spark.range(0, 20).unionAll(spark.range(19, 21)).selectExpr("id", "10 * id AS v")
    with (
        patch.object(start, "check_source_keys"),
        nothing_changes(table),
        pytest.raises(
            BackfillIncompleteError,
            match=r"Rows have several matches.*its keys were unique when the load",
        ),
    ):
        table.load_columns(frame, "id", ["v"], job_id="mine")


# Matches


@pytest.mark.long
@pytest.mark.parametrize(
    "ours",
    [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()],
    ids=str,
)
def test_integers_of_other_widths_match(ours: pa.DataType, db: Connection) -> None:
    table = make_table(db, pa.table({"id": pa.array(range(30), ours)}))
    table.load_columns(of_ids([1, 2, 100, 2**40, -(2**40), 257]), "id", ["v"])
    assert {i: v for i, v in values(table).items() if v is not None} == {1: 10, 2: 20}
    wide = make_table(db, numbered(), "wide")
    wide.load_columns(
        pa.table({"id": pa.array([3, 4], ours), "v": pa.array([30, 40])}), "id", ["v"]
    )
    assert wide.count_rows("v = 10 * id") == wide.count_rows("v IS NOT NULL") == 2


def test_unsigned_keys_of_64_bits_match_other_integers_by_value_and_never_by_their_bits(
    db: Connection,
) -> None:
    large = [0, 7, 2**63 - 1, 2**63, 2**64 - 1]
    table = make_table(db, pa.table({"id": pa.array(large, pa.uint64())}))
    table.load_columns(of_ids([7, -1, -(2**63), 5], factor=0), "id", ["v"])
    assert table.to_arrow()["v"].to_pylist() == [None, 0, None, None, None]
    signed = make_table(
        db, pa.table({"id": pa.array([7, -1, -(2**63), 2**63 - 1], pa.int64())}), "signed"
    )
    source = pa.table({"id": pa.array(large, pa.uint64()), "v": range(5)})
    signed.load_columns(source, "id", ["v"], on_missing="null")
    assert signed.to_arrow()["v"].to_pylist() == [1, None, None, 2]
    small = make_table(db, pa.table({"id": pa.array([7, 1], pa.int8())}), "small")
    small.load_columns(source, "id", ["v"], on_missing="null")
    assert small.to_arrow()["v"].to_pylist() == [1, None]


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "A", "", " a", "ж", "e\u0301", "\u00e9", "x" * 2000]),
    "large text": (pa.large_string(), ["a", "b"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\xff\x00"]),
    "bytes of a width": (pa.binary(2), [b"ab", b"\x00\x00"]),
    "booleans": (pa.bool_(), [True, False]),
    "dates": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 1, 2)]),
    "times": (pa.timestamp("us", "UTC"), [0, 1, -1, 1_700_000_000_000_000]),
    "times without a zone": (pa.timestamp("ms"), [0, 1, -1]),
    "decimals": (
        pa.decimal128(20, 3),
        [decimal.Decimal("0.001"), decimal.Decimal("99999999999999999.999")],
    ),
    "large integers": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    "a dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "c"]),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_each_type_match_exactly_and_a_null_key_of_the_table_matches_nothing(
    kind: str, db: Connection
) -> None:
    arrow, values_known = KEYS[kind]
    plain = arrow.value_type if isinstance(arrow, pa.DictionaryType) else arrow
    k = pa.array([*values_known, None, *values_known], plain).cast(arrow)
    table = make_table(db, pa.table({"k": k}), fragment_rows=4)
    source = pa.table(
        {
            "k": pa.array(values_known[:-1], plain).cast(arrow),
            "v": pa.array(range(len(values_known) - 1)),
        }
    )
    before = table.to_arrow()
    with old_files_stay(table):
        result = load(table, source, "k", ["v"])
    assert_same(table.to_arrow(), left_join(before, source, "k", ["v"]))
    assert (result.rows_computed, result.rows_skipped) == (2 * (len(values_known) - 1), 3)


def test_rows_whose_key_is_doubled_in_the_table_are_all_filled_across_fragments(
    db: Connection,
) -> None:
    table = make_table(db, pa.table({"id": pa.array([1, 1, 2, None] * 8, pa.int64())}))
    result = load(table, of_ids([1, 3]), "id", ["v"])
    assert table.to_arrow()["v"].to_pylist() == [10, 10, None, None] * 8
    assert (result.rows_selected, result.rows_computed, result.rows_skipped) == (32, 16, 16)


def test_a_key_of_several_columns_matches_where_all_parts_do_and_none_is_null(
    db: Connection,
) -> None:
    data = pa.table(
        {
            "a": pa.array([1, 1, 2, 2, None, 1, None], pa.int32()),
            "b": ["x", "y", "x", "y", "x", None, None],
            "v": pa.array([-1] * 7, pa.int64()),
        }
    )
    table = make_table(db, data, fragment_rows=3)
    source = pa.table(
        {"v": pa.array([11, 22, 33]), "b": ["x", "y", "z"], "a": pa.array([1, 2, 1], pa.int64())}
    )
    table.load_columns(source, ["b", "a"], ["v"])
    assert table.to_arrow()["v"].to_pylist() == [11, -1, -1, 22, -1, -1, -1]


def test_names_that_sql_would_stumble_over_are_names_like_any(db: Connection, files: Path) -> None:
    odd = ["select", "a b", "ж", "__found", "__key_0", "__rows", "_rowaddr x"]
    table = make_table(db, pa.table({name: pa.array(range(30), pa.int64()) for name in odd}))
    source = pa.table(
        {name: pa.array([1, 2], pa.int64()) for name in odd} | {"__value_0": pa.array([10, 20])}
    )
    table.load_columns(
        write_file(source, files / "x.parquet"), odd, ["__value_0"], on_missing="carry"
    )
    assert (
        values(table, "__value_0", "select")[2] == 20
        and table.count_rows("__value_0 IS NOT NULL") == 2
    )


def test_a_name_with_a_backtick_which_lance_cannot_read_is_refused(db: Connection) -> None:
    table = make_table(db, pa.table({"quo`te": pa.array(range(30), pa.int64())}))
    source = pa.table(
        {"quo`te": pa.array(range(30), pa.int64()), "v": pa.array(range(0, 300, 10), pa.int64())}
    )
    with (
        nothing_changes(table),
        pytest.raises(SchemaMismatchError, match="has a backtick in its name"),
    ):
        table.load_columns(source, "quo`te", ["v"], on_missing="error")


def test_a_load_that_refuses_missing_rows_takes_odd_names_and_several_columns_too(
    db: Connection, spark: SparkSession
) -> None:
    table = make_table(db, numbered(lang=["en", None] * 15))
    source = spark.range(0, 30, 2).selectExpr(
        "CAST(id AS INT) AS id", "'en' AS lang", "10 * id AS v"
    )
    with (
        nothing_changes(table),
        pytest.raises(SourceKeysError, match="15 rows of the table have no match") as caught,
    ):
        table.load_columns(source, ["id", "lang"], ["v"], on_missing="error")
    assert "by columns 'id', 'lang' (among them: (" in str(caught.value) and ", None)" in str(
        caught.value
    )
