"""Columns of a scan, their names, and Lance's virtual columns."""

from __future__ import annotations

import json
import re

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from lance_spark.errors import (
    ColumnNotFoundError,
    FilterError,
    OptionError,
    UnsupportedTypeError,
    ValueConversionError,
)
from lance_spark.read.columns import _signed
from lance_spark.read.planning.pushdown_request import ScanSpec
from tests.lance_spark.read.conftest import MakeTable
from tests.lance_spark.read.scans import describe, make_reader, read


def test_columns_come_in_the_order_of_the_option(make_table: MakeTable, table_path: str):
    make_table()
    assert read(table_path, columns="word,id", limit=2).to_pydict() == {
        "word": [None, "word-1"],
        "id": [0, 1],
    }


def test_a_name_may_differ_in_case_where_only_one_column_is_meant(table_path: str):
    lance.write_dataset(pa.table({"Id": [1], "a b": [2], "X": [3], "x": [4]}), table_path)
    assert read(table_path, columns="ID,a b").to_pydict() == {"Id": [1], "a b": [2]}
    assert read(table_path, columns="x").to_pydict() == {"x": [4]}
    lance.write_dataset(pa.table({"aB": [3], "Ab": [4]}), table_path, mode="overwrite")
    with pytest.raises(ColumnNotFoundError, match="'aB' or 'Ab'"):
        read(table_path, columns="ab")


@pytest.mark.parametrize(("names", "twice"), [("id,ID", "id"), ("_rowid,id,_ROWID", "_rowid")])
def test_a_column_that_is_named_twice_in_different_cases_is_refused(
    make_table: MakeTable, table_path: str, names: str, twice: str
):
    make_table()
    with pytest.raises(OptionError, match=rf"{names}.* names columns twice \({twice}\)") as caught:
        make_reader(table_path, columns=names)
    assert (caught.value.option, caught.value.value) == ("columns", names)


def test_a_column_that_lance_cannot_read_for_its_name_is_refused_and_can_be_left_out(
    table_path: str,
):
    lance.write_dataset(pa.table({"a`b": [1, 2], "c": [3, 4]}), table_path)
    for options in ({}, {"columns": "a`b"}):
        with pytest.raises(
            UnsupportedTypeError, match=r"holds a backtick\. .* option columns, which may name c\.$"
        ) as caught:
            make_reader(table_path, **options)
        assert caught.value.column == "a`b"
    assert read(table_path, columns="c").to_pydict() == {"c": [3, 4]}
    reader = make_reader(table_path, columns="c")
    reader.target = StructType([StructField("a`b", LongType())])
    with pytest.raises(UnsupportedTypeError, match="holds a backtick"):
        reader.partitions()


def test_an_unknown_name_is_refused_with_the_closest_one(make_table: MakeTable, table_path: str):
    make_table()
    with pytest.raises(
        ColumnNotFoundError, match=r"Column 'wrod' does not exist .* Did you mean 'word'\?"
    ) as caught:
        read(table_path, columns="id,wrod")
    assert caught.value.column == "wrod"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("no_such(id) > 1", "Invalid function 'no_such'"),
        ("explode(id) > 1", "Use explode, a function of Spark, in df.filter"),
        ("id >", "expected: an expression"),
        ("id + 1", "does not return a boolean"),
        ("nope = 1", "No field named nope"),
        ("id = 1) OR (id = 2", "a parenthesis is missing"),
        ("id = 1) nonsense", "a parenthesis is missing"),
        ("id = 1 LIMIT 3", "expected"),
        ("id = 1; DROP TABLE t", "expected"),
        ("id NOT in ( )", r"the list after IN is empty\. .* write FALSE"),
    ],
)
def test_a_wrong_filter_is_refused_when_the_dataframe_is_made(
    make_table: MakeTable, table_path: str, text: str, match: str
):
    make_table()
    with pytest.raises(FilterError, match=f"(?is){re.escape(text)}.*{match}"):
        make_reader(table_path, filter=text)


def test_an_empty_list_that_is_only_quoted_is_no_list(make_table: MakeTable, table_path: str):
    make_table()
    make_reader(table_path, filter="word = 'IN ()' OR id IN (1) -- IN ()")


def test_row_ids_and_addresses_are_signed_and_carry_their_snapshot(
    make_table: MakeTable, table_path: str
):
    dataset = make_table()
    got = read(table_path, with_row_id=True, with_row_address=True, columns="id")
    expected = dataset.scanner(columns=["id", "_rowid", "_rowaddr"]).to_table()
    assert got.to_pydict() == expected.to_pydict()
    assert got["_rowid"].to_pylist() != got["_rowaddr"].to_pylist()
    schema = make_reader(table_path, with_row_id=True, with_row_address=True).schema
    for name in ("_rowid", "_rowaddr"):
        assert (schema[name].dataType, schema[name].nullable) == (LongType(), False)
        assert json.loads(schema[name].metadata["lance.table"])["version"] == dataset.version
    assert all(
        "lance.table" not in (f.metadata or {})
        for f in schema.fields
        if not f.name.startswith("_row")
    )


def test_row_versions_are_columns_only_of_tables_that_keep_them(
    make_table: MakeTable, table_path: str
):
    dataset = make_table()
    names = ["_row_created_at_version", "_row_last_updated_at_version"]
    got = read(table_path, with_row_versions=True)
    assert got.select(names).to_pydict() == dataset.scanner(columns=names).to_table().to_pydict()
    assert len(set(got[names[1]].to_pylist())) > 1
    lance.write_dataset(pa.table({"id": [1]}), table_path + "2")
    with pytest.raises(OptionError, match="keeps no row versions"):
        make_reader(table_path + "2", with_row_versions=True)


def test_an_address_beyond_bigint_is_refused_by_name():
    assert _signed(pa.array([0, (1 << 63) - 1], pa.uint64()), "_rowid").to_pylist() == [
        0,
        (1 << 63) - 1,
    ]
    with pytest.raises(ValueConversionError, match="_rowid is 2\\^63 or more"):
        _signed(pa.array([5, 1 << 63], pa.uint64()), "_rowid")


NESTED = [
    {"a": 1, "b": "x", "in": {"p": 1.0, "q r": b"z"}, "list": [{"m": 1, "n": 2}]},
    {"a": None, "b": None, "in": None, "list": None},
    None,
    {"a": 4, "b": "y", "in": {"p": None, "q r": b""}, "list": []},
]


@pytest.fixture
def nested_path(table_path: str) -> str:
    kind = pa.struct(
        [
            ("a", pa.int64()),
            ("b", pa.string()),
            ("in", pa.struct([("p", pa.float64()), ("q r", pa.binary())])),
            ("list", pa.list_(pa.struct([("m", pa.int32()), ("n", pa.int32())]))),
        ]
    )
    lance.write_dataset(pa.table({"id": range(4), "s": pa.array(NESTED, kind)}), table_path)
    return table_path


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name.replace("_", " "), kind) for name, kind in fields.items()])


Q, A = struct(q_r=BinaryType()), LongType()
PRUNED = ScanSpec(columns=struct(s=StructType([StructField("in", Q), StructField("a", A)])))


def test_only_the_wanted_fields_of_a_struct_are_fetched(nested_path: str):
    got = read(nested_path, PRUNED)["s"].to_pylist()
    assert [s["a"] for s in got] == [1, None, None, 4]
    assert [s["in"]["q r"] for s in got] == [b"z", None, None, b""]
    assert describe(nested_path, PRUNED)["bytes"] < describe(nested_path, ScanSpec())["bytes"] / 2
    requests: list[list[str]] = []
    scanner = lance.LanceDataset.scanner

    def note(self: lance.LanceDataset, columns: list[str], **options: object) -> object:
        requests.append(columns)
        return scanner(self, columns=columns, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lance.LanceDataset, "scanner", note)
        read(nested_path, PRUNED)
    assert list(requests[-1]) == ["`s`.`in`.`q r`", "`s`.`a`"]


def test_fields_of_structs_in_lists_are_pruned_in_memory(nested_path: str):
    spec = ScanSpec(columns=struct(s=struct(list=ArrayType(struct(n=IntegerType())))))
    got = read(nested_path, spec)["s"].to_pylist()
    assert [s["list"] for s in got] == [[{"n": 2}], None, None, []]


def test_a_struct_is_read_whole_where_a_wanted_field_has_a_backtick_in_its_name(table_path: str):
    rows = [{"a`b": 1, "in": {"`": 2, "x": 3}, "y": 4}, None]
    lance.write_dataset(pa.table({"s": pa.array(rows)}), table_path)
    direct = ScanSpec(columns=struct(s=StructType([StructField("a`b", A)])))
    deeper = ScanSpec(
        columns=struct(s=StructType([StructField("in", StructType([StructField("`", A)]))]))
    )
    only_y = ScanSpec(columns=struct(s=struct(y=A)))
    assert read(table_path, direct)["s"].to_pylist() == [{"a`b": 1}, None]
    assert read(table_path, deeper)["s"].to_pylist() == [{"in": {"`": 2}}, None]
    assert read(table_path, only_y)["s"].to_pylist() == [{"y": 4}, {"y": None}]


def test_a_whole_struct_keeps_its_nulls(nested_path: str):
    assert read(nested_path)["s"].to_pylist() == NESTED
    reader = make_reader(nested_path)
    assert read(nested_path, ScanSpec(columns=reader.schema))["s"].to_pylist() == NESTED


def test_a_struct_with_fewer_fields_keeps_its_nulls_where_it_was_not_pruned(nested_path: str):
    """A catalog table does not know later fields, and its queries may test for NULL."""
    reader = make_reader(nested_path)
    reader.schema = reader.target = struct(s=struct(a=A))
    (task,) = reader.partitions()
    assert [row["s"] for batch in reader.read(task) for row in batch.to_pylist()] == [
        {"a": 1},
        {"a": None},
        None,
        {"a": 4},
    ]


BLOBS = [b"x" * 5000, None, b"", b"y"]


@pytest.fixture(params=["2.0", "2.1", "2.2"])
def blob_path(request: pytest.FixtureRequest, table_path: str) -> str:
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    table = pa.table([range(4), pa.array(BLOBS, pa.large_binary())], schema=schema)
    lance.write_dataset(table, table_path, data_storage_version=request.param)
    return table_path


@pytest.mark.parametrize("text", [None, "id >= 0", "b IS NOT NULL", "b IS NULL"])
def test_a_blob_reads_as_bytes_or_as_a_descriptor(blob_path: str, text: str | None):
    options = {} if text is None else {"filter": text}
    keep = {"b IS NOT NULL": [0, 2, 3], "b IS NULL": [1]}.get(str(text), [0, 1, 2, 3])
    as_bytes = read(blob_path, blob_handling="bytes", **options)
    assert as_bytes.to_pydict() == {"id": keep, "b": [BLOBS[i] for i in keep]}
    assert make_reader(blob_path, blob_handling="bytes").schema["b"].dataType == BinaryType()
    if (
        text is not None
        and "NULL" in text
        and lance.dataset(blob_path).data_storage_version == "2.0"
    ):
        # Lance reports no blob as NULL there.
        with pytest.raises(FilterError, match="blob_handling to bytes"):
            read(blob_path, **options)
        pushed = ScanSpec(columns=make_reader(blob_path).schema, filtered=True, filter_sql=text)
        assert read(blob_path, pushed)["id"].to_pylist() == [0, 1, 2, 3]
        return
    described = read(blob_path, **options)
    assert described["id"].to_pylist() == keep
    sizes = [None if d is None else int(d["size"]) for d in described["b"].to_pylist()]
    assert sizes == [None if BLOBS[i] is None else len(BLOBS[i]) for i in keep]


def test_a_descriptor_scan_does_not_count_the_bytes_of_blobs(blob_path: str):
    small, large = (
        describe(blob_path, ScanSpec(), blob_handling=h)["bytes"] for h in ("descriptor", "bytes")
    )
    assert small < 500
    assert 5000 < large < 15_000


def test_a_pruned_scan_of_a_column_that_is_gone_is_an_error(make_table: MakeTable, table_path: str):
    make_table()
    reader = make_reader(table_path)
    reader.schema = reader.target = StructType([StructField("gone", LongType())])
    with pytest.raises(ColumnNotFoundError, match="'gone'"):
        reader.partitions()


def test_parentheses_in_quotes_are_no_parentheses(make_table: MakeTable, table_path: str):
    make_table()
    assert (
        read(
            table_path, filter="word <> ')' AND (word <> '((' OR word = 'it''s)') -- :)", limit=1
        ).num_rows
        == 1
    )
