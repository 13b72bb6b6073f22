"""Schemas both ways: the mapping of types, the contents of column metadata, and errors."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import lance
import lance.arrow
import lance.blob
import pyarrow as pa
import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from lance_spark.errors import OptionError, SchemaMismatchError, UnsupportedTypeError
from lance_spark.types import (
    LANCE_FIELD,
    check_storable,
    parse_spark_schema,
    scan_schema,
    to_lance_schema,
    to_spark_schema,
)

BLOB = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def single_column(kind: pa.DataType, **more: object) -> pa.Schema:
    return pa.schema([pa.field("c", kind, **more)])  # type: ignore[arg-type]


def spark_of(kind: pa.DataType) -> str:
    return to_spark_schema(single_column(kind))["c"].dataType.simpleString()


READ: list[tuple[pa.DataType, str]] = [
    (pa.null(), "void"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.uint8(), "smallint"),
    (pa.uint16(), "int"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), "decimal(20,0)"),
    (pa.float16(), "float"),
    (lance.arrow.BFloat16Type(), "float"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.decimal128(10, 2), "decimal(10,2)"),
    (pa.decimal128(38, 38), "decimal(38,38)"),
    (pa.decimal128(10, -3), "decimal(13,0)"),
    (pa.decimal128(3, 5), "decimal(5,5)"),
    (pa.decimal256(38, 2), "decimal(38,2)"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.binary(7), "binary"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    *((pa.timestamp(unit, "Europe/Paris"), "timestamp") for unit in ("s", "ms", "us", "ns")),
    *((pa.timestamp(unit), "timestamp_ntz") for unit in ("s", "ms", "us", "ns")),
    (pa.time32("s"), "time(6)"),
    (pa.time32("ms"), "time(6)"),
    (pa.time64("us"), "time(6)"),
    (pa.time64("ns"), "time(6)"),
    *((pa.duration(unit), "interval day to second") for unit in ("s", "ms", "us", "ns")),
    (pa.list_(pa.uint8()), "array<smallint>"),
    (pa.large_list(pa.int8()), "array<tinyint>"),
    (pa.list_(pa.float16(), 3), "array<float>"),
    (
        pa.struct([("a", pa.uint32()), ("b", pa.list_(pa.date64()))]),
        "struct<a:bigint,b:array<date>>",
    ),
    (pa.struct([]), "struct<>"),
    (pa.map_(pa.large_string(), pa.uint16()), "map<string,int>"),
    (pa.dictionary(pa.int8(), pa.large_string()), "string"),
    (pa.dictionary(pa.int8(), pa.int64()), "bigint"),
    (pa.json_(), "string"),
    (pa.uuid(), "binary"),
    (pa.bool8(), "tinyint"),
    (pa.fixed_shape_tensor(pa.float32(), [2, 2]), "array<float>"),
]


@pytest.mark.parametrize(("kind", "name"), READ, ids=str)
def test_an_arrow_type_is_read_as(kind: pa.DataType, name: str):
    assert spark_of(kind) == name


WRITTEN_TYPES: list[tuple[T.DataType, pa.DataType]] = [
    (T.NullType(), pa.null()),
    (T.BooleanType(), pa.bool_()),
    (T.ByteType(), pa.int8()),
    (T.ShortType(), pa.int16()),
    (T.IntegerType(), pa.int32()),
    (T.LongType(), pa.int64()),
    (T.FloatType(), pa.float32()),
    (T.DoubleType(), pa.float64()),
    (T.DecimalType(38, 18), pa.decimal128(38, 18)),
    (T.StringType(), pa.string()),
    (T.StringType("UNICODE_CI"), pa.string()),
    (T.BinaryType(), pa.binary()),
    (T.DateType(), pa.date32()),
    (T.TimestampType(), pa.timestamp("us", "UTC")),
    (T.TimestampNTZType(), pa.timestamp("us")),
    (T.TimeType(), pa.time64("ns")),
    (T.DayTimeIntervalType(), pa.duration("us")),
    (T.ArrayType(T.LongType(), False), pa.list_(pa.int64())),
    (T.MapType(T.StringType(), T.LongType(), False), pa.map_(pa.string(), pa.int64())),
    (T.StructType([T.StructField("a", T.LongType(), False)]), pa.struct([("a", pa.int64())])),
    (
        VectorUDT(),
        pa.struct(
            [
                ("type", pa.int8()),
                ("size", pa.int32()),
                ("indices", pa.list_(pa.int32())),
                ("values", pa.list_(pa.float64())),
            ]
        ),
    ),
]


@pytest.mark.parametrize(("source", "kind"), WRITTEN_TYPES, ids=str)
def test_a_new_column_is_nullable_and_of_type(source: T.DataType, kind: pa.DataType):
    lance_schema = to_lance_schema(T.StructType([T.StructField("c", source, False)]), {})
    assert lance_schema.equals(single_column(kind), check_metadata=True)


@pytest.mark.parametrize(
    "source", [T.VariantType(), T.GeometryType(4326), T.GeographyType(4326), T.GeometryType("ANY")]
)
def test_a_type_that_spark_lays_out_as_a_struct_comes_back_as_itself(source: T.DataType):
    for kind in (source, T.ArrayType(source)):
        lance_schema = to_lance_schema(T.StructType([T.StructField("c", kind)]), {})
        again = to_spark_schema(lance_schema)
        assert again["c"].dataType == kind
        assert to_lance_schema(again, {}).equals(lance_schema, check_metadata=True)


@pytest.mark.parametrize(
    ("kind", "path", "remedy"),
    [
        (T.YearMonthIntervalType(), "c", "INTERVAL MONTH"),
        (T.CalendarIntervalType(), "c", "make_dt_interval"),
        (T.ArrayType(T.CalendarIntervalType()), "c.element", "make_dt_interval"),
        (T.MapType(T.NullType(), T.NullType()), "c", "Cast"),
        (T.MapType(T.StringType(), T.YearMonthIntervalType()), "c.value", "MONTH"),
        (T.StructType([T.StructField("a", T.YearMonthIntervalType())]), "c.a", "MONTH"),
    ],
    ids=str,
)
def test_a_spark_type_that_lance_cannot_store_is_refused_by_name(
    kind: T.DataType, path: str, remedy: str
):
    with pytest.raises(UnsupportedTypeError, match=remedy) as caught:
        to_lance_schema(
            T.StructType([T.StructField("ok", T.LongType()), T.StructField("c", kind)]), {}
        )
    assert caught.value.column == path


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (pa.decimal256(39, 0), "c"),
        (pa.decimal128(38, -1), "c"),
        (pa.list_(pa.decimal256(76, 0)), "c.element"),
        (pa.struct([("x", pa.month_day_nano_interval())]), "c.x"),
    ],
    ids=str,
)
def test_an_arrow_type_that_spark_cannot_hold_is_refused_by_name(kind: pa.DataType, path: str):
    with pytest.raises(UnsupportedTypeError, match="option 'columns'") as caught:
        to_spark_schema(single_column(kind))
    assert caught.value.column == path


PLAIN = pa.schema(
    [
        ("i", pa.int64()),
        ("l", pa.list_(pa.struct([("a", pa.string())]))),
        ("t", pa.timestamp("us", "UTC")),
    ]
)

SPECIAL = pa.schema(
    [
        pa.field("u", pa.uint32()),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("v", pa.list_(pa.field("item", pa.float16(), nullable=False), 4)),
        pa.field("m", pa.int64(), metadata={"unit": "kg"}),
        pa.field(
            "s",
            pa.struct(
                [pa.field("x", pa.int8(), metadata={"deep": "1"}), pa.field("y", pa.large_string())]
            ),
        ),
        pa.field("j", pa.json_()),
        pa.field("map", pa.map_(pa.string(), pa.field("value", pa.uint8(), False))),
        pa.field("element", pa.list_(pa.field("element", pa.int32()))),
        pa.field(
            "b", lance.blob.BlobType(), metadata={"lance-encoding:blob-inline-size-threshold": "10"}
        ),
        BLOB,
    ]
)


def test_only_columns_that_spark_would_make_differently_carry_metadata():
    assert [f.metadata for f in to_spark_schema(PLAIN).fields] == [{}, {}, {}]
    assert [sorted(f.metadata) for f in to_spark_schema(SPECIAL).fields] == [[LANCE_FIELD]] * len(
        SPECIAL
    )


def test_fields_survive_a_read_and_an_overwrite():
    read = to_spark_schema(SPECIAL, blob_handling="bytes")
    sent = T.StructType.fromJson(read.jsonValue())
    assert to_lance_schema(sent, {}).equals(SPECIAL, check_metadata=True)


def test_the_field_of_a_renamed_column_goes_with_it():
    field = to_spark_schema(SPECIAL)["u"]
    lance_schema = to_lance_schema(
        T.StructType([T.StructField("renamed", field.dataType, True, field.metadata)]), {}
    )
    assert lance_schema.equals(pa.schema([("renamed", pa.uint32())]), check_metadata=True)


@pytest.mark.parametrize(
    "kind", [T.StringType(), T.DecimalType(20, 0), T.IntegerType(), T.ArrayType(T.LongType())]
)
def test_a_field_that_no_longer_fits_the_column_is_ignored(kind: T.DataType):
    stale = to_spark_schema(single_column(pa.uint32()))["c"].metadata
    lance_schema = to_lance_schema(T.StructType([T.StructField("c", kind, True, stale)]), {})
    assert lance_schema == to_lance_schema(T.StructType([T.StructField("c", kind)]), {})


@pytest.mark.parametrize(
    "text", ["", "rubbish", "é", base64.b64encode(b"rubbish").decode(), 5, None]
)
def test_metadata_that_is_no_field_is_ignored(text: object):
    lance_schema = to_lance_schema(
        T.StructType([T.StructField("c", T.LongType(), True, {LANCE_FIELD: text})]), {}
    )
    assert lance_schema == single_column(pa.int64())


def test_a_column_that_may_be_null_now_is_not_made_not_null():
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("a", pa.int64(), False), pa.field("s", inner, False)])
    read = to_spark_schema(schema)
    assert not read["a"].nullable
    joined = T.StructType(
        [T.StructField(f.name, f.dataType, True, f.metadata) for f in read.fields]
    )
    lance_schema = to_lance_schema(joined, {})
    assert lance_schema.field("a").nullable
    assert lance_schema.field("s").nullable
    assert not lance_schema.field("s").type.field("x").nullable


@pytest.mark.parametrize(
    "kind",
    [T.CharType(3), T.VarcharType(3), T.DayTimeIntervalType(0, 0), T.DayTimeIntervalType(1, 2)],
    ids=lambda kind: kind.simpleString(),
)
def test_lengths_and_parts_of_intervals_are_kept_at_every_depth(kind: T.DataType):
    nested = T.StructType(
        [T.StructField("a b", T.ArrayType(kind)), T.StructField("m", T.MapType(kind, kind))]
    )
    lance_schema = to_lance_schema(
        T.StructType([T.StructField("c", kind), T.StructField("n", nested)]), {}
    )
    read = to_spark_schema(lance_schema)
    if isinstance(kind, T.DayTimeIntervalType):
        assert [field.dataType for field in read] == [kind, nested]
    else:
        text = kind.simpleString()
        raw = [field.metadata["__CHAR_VARCHAR_TYPE_STRING"] for field in read]
        assert raw == [text, f"struct<`a b`:array<{text}>,`m`:map<{text},{text}>>"]
        assert read["c"].dataType == T.StringType()
    assert to_lance_schema(read, {}).equals(lance_schema, check_metadata=True)


def test_a_forged_type_text_is_ignored():
    for text in (
        "varchar(0)",
        "varchar(5) x",
        "char(99999999999)",
        "interval second to day",
        "interval year",
    ):
        for kind in (pa.string(), pa.duration("us"), pa.int32()):
            (read,) = to_spark_schema(
                pa.schema([pa.field("c", kind, metadata={"spark.type": text})])
            )
            assert "__CHAR_VARCHAR_TYPE_STRING" not in read.metadata
            assert read.dataType in (T.StringType(), T.DayTimeIntervalType(), T.IntegerType())


def test_metadata_of_spark_and_of_one_certain_column_is_not_stored():
    metadata = {LANCE_FIELD: "x", "lance.table": "{}", "comment": "c"}
    lance_schema = to_lance_schema(
        T.StructType([T.StructField("c", T.StringType(), True, metadata)]), {}
    )
    assert lance_schema.equals(single_column(pa.string()), check_metadata=True)

    foreign_metadata = {"SPARK::metadata::json": "{}", "lance-spark:column": "token", "kept": "yes"}
    nested = pa.struct([pa.field("x", pa.int64(), metadata=foreign_metadata)])
    read = to_spark_schema(pa.schema([pa.field("c", nested, metadata=foreign_metadata)]))
    lance_schema = to_lance_schema(read, {})
    assert lance_schema.field("c").metadata == {b"kept": b"yes"}
    assert lance_schema.field("c").type.field("x").metadata == {b"kept": b"yes"}


def test_blobs_are_read_as_descriptors_or_bytes():
    both = pa.schema([pa.field("b", lance.blob.BlobType()), BLOB])
    read = to_spark_schema(both)
    assert read["b"].dataType.simpleString() == (
        "struct<kind:smallint,position:bigint,size:bigint,blob_id:bigint,blob_uri:string>"
    )
    assert read["blob"].dataType.simpleString() == "struct<position:bigint,size:bigint>"
    read = to_spark_schema(both, blob_handling="bytes")
    assert [f.dataType.simpleString() for f in read.fields] == ["binary", "binary"]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("handling", ["descriptor", "bytes"])
def test_the_schema_of_a_scan_is_known_before_it_runs(version: str, handling: str, tmp_path):
    nested = pa.struct(
        [pa.field("b", pa.large_binary(), metadata=BLOB.metadata), pa.field("i", pa.int64())]
    )
    schema = pa.schema([BLOB, pa.field("s", nested), ("i", pa.int64())])
    rows = [{"blob": b"x", "s": {"b": b"y", "i": 1}, "i": 2}]
    lance.write_dataset(
        pa.Table.from_pylist(rows, schema), tmp_path / "t", data_storage_version=version
    )
    dataset = lance.dataset(tmp_path / "t")
    mode = {"descriptor": "blobs_descriptions", "bytes": "all_binary"}[handling]
    scanned = dataset.scanner(blob_handling=mode).to_table().schema
    foretold = scan_schema(dataset.schema, handling)  # type: ignore[arg-type]
    assert [f.type for f in foretold] == [f.type for f in scanned]


def test_blob_descriptors_cannot_be_written():
    for field in (BLOB, pa.field("s", pa.struct([BLOB])), pa.field("b", lance.blob.BlobType())):
        read = to_spark_schema(pa.schema([field]))
        with pytest.raises(UnsupportedTypeError, match="blob_handling=bytes"):
            to_lance_schema(read, {})


DATAFRAME = T.StructType(
    [
        T.StructField("Vec", T.ArrayType(T.FloatType())),
        T.StructField("data", T.BinaryType()),
        T.StructField("s", T.StructType([T.StructField("v", T.ArrayType(T.DoubleType()))])),
    ]
)
SIZE, ENCODING = "arrow.fixed-size-list.size", "lance.encoding"


def test_column_options_make_vectors_and_blobs():
    lance_schema = to_lance_schema(
        DATAFRAME, {"vec": {SIZE: "8"}, "data": {ENCODING: "blob"}, "s.v": {SIZE: "2"}}
    )
    assert lance_schema.field("Vec").type == pa.list_(pa.float32(), 8)
    assert lance_schema.field("data").equals(BLOB.with_name("data"), check_metadata=True)
    assert lance_schema.field("s").type.field("v").type == pa.list_(pa.float64(), 2)


def test_column_metadata_makes_vectors_and_blobs_and_options_go_before_it():
    fields = [
        T.StructField("v", T.ArrayType(T.FloatType()), True, {SIZE: 8}),
        T.StructField("w", T.ArrayType(T.FloatType()), True, {SIZE: "8"}),
        T.StructField("d", T.BinaryType(), True, {ENCODING: "blob"}),
    ]
    lance_schema = to_lance_schema(T.StructType(fields), {"w": {SIZE: "9"}})
    assert lance_schema.field("v").type == pa.list_(pa.float32(), 8)
    assert lance_schema.field("w").type == pa.list_(pa.float32(), 9)
    assert lance_schema.field("d").equals(BLOB.with_name("d"), check_metadata=True)


@pytest.mark.parametrize(
    "options",
    [
        {"nosuch": {SIZE: "8"}},
        {"data": {SIZE: "8"}},
        {"vec": {SIZE: "0"}},
        {"vec": {SIZE: "x"}},
        {"vec": {ENCODING: "blob"}},
        {"data": {ENCODING: "zip"}},
        {"s.nosuch": {SIZE: "8"}},
    ],
    ids=str,
)
def test_a_column_option_that_fits_no_column_is_refused(options: dict[str, dict[str, str]]):
    with pytest.raises(OptionError) as caught:
        to_lance_schema(DATAFRAME, options)
    ((column, values),) = options.items()
    assert caught.value.option.lower() == f"{column}.{next(iter(values))}"


@pytest.mark.parametrize(
    "names", [[], [""], ["a.b"], ["a`b"], ["_rowid"], ["_rowaddr"], ["a", "a"]], ids=str
)
def test_names_that_lance_refuses_are_refused_before(names: list[str]):
    with pytest.raises(SchemaMismatchError, match=r"No table was made|Nothing was changed"):
        to_lance_schema(T.StructType([T.StructField(name, T.LongType()) for name in names]), {})


STORABLE: list[tuple[pa.DataType, tuple[str, ...]]] = [
    (pa.map_(pa.string(), pa.int32()), ("2.2",)),
    (pa.list_(pa.map_(pa.string(), pa.int32())), ("2.2",)),
    (pa.list_(pa.struct([("a", pa.int32())]), 2), ("2.2",)),
    (pa.list_(pa.list_(pa.float32(), 2), 2), ("2.0", "2.1", "2.2")),
    (pa.list_(pa.decimal128(5, 2), 2), ("2.0", "2.1", "2.2")),
    (pa.list_(pa.binary(3), 2), ("2.0", "2.1", "2.2")),
    (pa.list_(pa.string(), 2), ()),
    (pa.list_(pa.large_binary(), 2), ()),
    (pa.list_(pa.list_(pa.int8()), 2), ()),
    (lance.blob.BlobType(), ("2.2",)),
]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize(("kind", "versions"), STORABLE, ids=str)
def test_exactly_the_types_that_lance_cannot_store_are_refused(
    kind: pa.DataType, versions: tuple[str, ...], version: str, tmp_path
):
    schema = single_column(kind)
    if version not in versions:
        with pytest.raises(UnsupportedTypeError):
            check_storable(schema, version)
    else:
        check_storable(schema, version)
    if ("string" in str(kind) and "map" not in str(kind)) or "large_binary" in str(kind):
        return  # Lance panics on these values, with a backtrace and without further insight
    values = (
        lance.blob.blob_array([b"x"])
        if isinstance(kind, pa.BaseExtensionType)
        else _one_value(kind)
    )
    try:
        lance.write_dataset(pa.table({"c": values}), tmp_path / "t", data_storage_version=version)
        stored = lance.dataset(tmp_path / "t").to_table().num_rows == 1
    except (OSError, pa.ArrowInvalid):
        stored = False
    assert stored == (version in versions)


def _one_value(kind: pa.DataType) -> pa.Array:
    row = {"map": [("k", 1)], "struct": [{"a": 1}, {"a": 2}]}
    for word, value in row.items():
        if word in str(kind):
            return pa.array([[value] if pa.types.is_list(kind) else value], kind)
    if pa.types.is_fixed_size_list(kind.value_type):
        return pa.array([[[1, 2], [3, 4]]], kind)
    return pa.array(
        [[b"abc", b"def"]]
        if "binary" in str(kind)
        else [[[1], [2]]]
        if pa.types.is_list(kind.value_type)
        else [[1, 2]],
        kind,
    )


def test_a_schema_of_spark_is_parsed_as_it_was_written():
    fields = [
        T.StructField(f"c{i}", kind, i % 2 == 0, {"k": [i]})
        for i, (kind, _) in enumerate(WRITTEN_TYPES)
    ]
    schema = T.StructType(
        [*fields, T.StructField("s", T.StructType(fields)), T.StructField("m", MatrixUDT())]
    )
    assert parse_spark_schema(schema.json()) == schema


@pytest.mark.parametrize("depth", range(5))
def test_a_schema_loads_no_class_that_it_names(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hostile_types.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kind: object = {
        "type": "udt",
        "pyClass": "hostile_types.C",
        "serializedClass": "eA==",
        "sqlType": "string",
    }
    nested = [
        lambda kind: kind,
        lambda kind: {"type": "array", "elementType": kind, "containsNull": True},
        lambda kind: {
            "type": "map",
            "keyType": kind,
            "valueType": "long",
            "valueContainsNull": True,
        },
        lambda kind: {
            "type": "map",
            "keyType": "long",
            "valueType": kind,
            "valueContainsNull": True,
        },
        lambda kind: {
            "type": "struct",
            "fields": [{"name": "f", "type": kind, "nullable": True, "metadata": {}}],
        },
    ]
    kind = nested[depth](nested[-1](kind))
    text = json.dumps(
        {
            "type": "struct",
            "fields": [{"name": "c", "type": kind, "nullable": True, "metadata": {}}],
        }
    )
    with pytest.raises(UnsupportedTypeError, match=r"hostile_types.C.*column 'c"):
        parse_spark_schema(text)
    assert not (tmp_path / "ran").exists()


def test_a_type_that_pyspark_lacks_is_refused_by_its_column():
    text = '{"type":"struct","fields":[{"name":"i","type":"new_in_spark_9","nullable":true,"metadata":{}}]}'
    with pytest.raises(UnsupportedTypeError, match="column 'i'"):
        parse_spark_schema(text)
