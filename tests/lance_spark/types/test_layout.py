"""Buffers: shared where both sides agree, moved where Lance could not take them, split where Spark could not."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from lance_spark.errors import ValueConversionError
from lance_spark.types import (
    ReadConverter,
    WriteConverter,
    layout,
    leaves,
    to_lance_schema,
    to_spark_schema,
    tree,
)
from tests.lance_spark.types.oracle import demanded_schema
from tests.strategies import SPARK_LEAVES, facts, schemas, tables
from tests.support.buffers import shifted


def addresses(array: Any) -> list[int | None]:
    return [None if b is None else b.address for b in array.buffers()]


def demands(array: Any) -> list[int]:
    return [demand.alignment for demand in layout._demands(array.type)]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(tables(schemas("spark"), fewest_rows=1, calendar=False), st.sampled_from([1, 2, 4, 8]))
def test_misaligned_buffers_are_moved_and_only_those(table: pa.Table, by: int):
    table = table.combine_chunks()
    spark_schema = to_spark_schema(table.schema)
    columns = [shifted(table.column(i).chunk(0), by) for i in range(table.num_columns)]
    batch = pa.record_batch(columns, schema=table.schema)
    got = WriteConverter(spark_schema, table.schema).convert(batch)
    for before, after in zip(columns, got.columns, strict=True):
        after.validate(full=True)
        for old, new, need in zip(
            addresses(before), addresses(after), demands(before), strict=False
        ):
            if old is None or old % need == 0:
                assert new == old
            else:
                assert new is not None
                assert new % need == 0
    assert [facts(c) for c in got.columns] == [facts(c) for c in table.columns]


@pytest.mark.parametrize("kind", SPARK_LEAVES, ids=str)
@pytest.mark.parametrize("by", [1, 2, 4, 8])
def test_lance_takes_every_type_from_every_address(kind: pa.DataType, by: int, tmp_path):
    values = pa.array([None, *([0] if pa.types.is_temporal(kind) else [])], kind)
    nested = pa.array([[v] for v in values.to_pylist()], pa.list_(kind))
    columns = {"c": shifted(values, by), "l": shifted(nested, by)}
    batch = pa.record_batch(columns)
    spark_schema = to_spark_schema(batch.schema)
    got = WriteConverter(spark_schema, to_lance_schema(spark_schema, {})).convert(batch)
    lance.write_dataset(pa.Table.from_batches([got]), tmp_path / "t")
    assert lance.dataset(tmp_path / "t").to_table().to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.int32()),
    ],
    ids=str,
)
def test_lance_takes_lists_without_values_whose_offsets_are_left_out(
    kind: pa.DataType, tmp_path: Path
):
    """Like the lists from Spark 4.1."""
    nothing = pa.py_buffer(b"")

    def empty(kind: Any) -> Any:
        if pa.types.is_map(kind):
            entries = pa.StructArray.from_arrays(
                [empty(kind.key_type), empty(kind.item_type)],
                fields=[kind.key_field, kind.item_field],
            )
            return pa.Array.from_buffers(kind, 0, [None, nothing], children=[entries])
        if pa.types.is_list(kind):
            return pa.Array.from_buffers(
                kind, 0, [None, nothing], children=[empty(kind.value_type)]
            )
        return pa.Array.from_buffers(
            kind, 0, [None, nothing, nothing][: 2 if pa.types.is_integer(kind) else 3]
        )

    outer = pa.list_(kind)
    column = pa.Array.from_buffers(
        outer, 2, [pa.py_buffer(b"\x02"), pa.py_buffer(bytes(12))], children=[empty(kind)]
    )
    batch = pa.record_batch({"c": column})
    spark_schema = to_spark_schema(batch.schema)
    got = WriteConverter(spark_schema, to_lance_schema(spark_schema, {})).convert(batch)
    lance.write_dataset(pa.Table.from_batches([got]), tmp_path / "t", data_storage_version="2.2")
    assert lance.dataset(tmp_path / "t").to_table().to_pylist() == [{"c": None}, {"c": []}]


_FIELDS = [pa.array(range(20)), pa.array([None, "b"] * 10)]
_STRUCTS = pa.StructArray.from_arrays(
    _FIELDS, ["a", "b"], mask=pa.array([True, True, False, False] * 5)
)
_STRUCTS_WITH_OFFSETS = {
    "struct": _STRUCTS,
    "struct of struct": pa.StructArray.from_arrays([_STRUCTS], ["s"]),
    "vector of struct": pa.FixedSizeListArray.from_arrays(_STRUCTS, 1),
    "struct of vector of struct": pa.StructArray.from_arrays(
        [pa.FixedSizeListArray.from_arrays(_STRUCTS, 1)], ["v"]
    ),
    "list of struct": pa.ListArray.from_arrays(pa.array(range(21), pa.int32()), _STRUCTS),
}


@pytest.mark.parametrize("kind", _STRUCTS_WITH_OFFSETS)
def test_a_slice_of_structs_is_written_from_every_row(kind: str, tmp_path: Path):
    whole = pa.record_batch({"c": _STRUCTS_WITH_OFFSETS[kind]})
    for first in range(18):
        rows = whole.slice(first, 2)
        with LanceFileWriter(str(tmp_path / f"{first}.lance"), rows.schema, version="2.2") as file:
            file.write_batch(layout.from_start(rows))
        back = LanceFileReader(str(tmp_path / f"{first}.lance")).read_all().to_table()
        assert back["c"].to_pylist() == rows["c"].to_pylist(), first


def test_a_misaligned_slice_is_moved():
    column = shifted(pa.array([1, None, 3, 4], pa.int64()), 4).slice(1, 2)
    batch = pa.record_batch({"c": column})
    got = WriteConverter(to_spark_schema(batch.schema), batch.schema).convert(batch)
    assert got.column(0).to_pylist() == [None, 3]
    assert (addresses(got.column(0))[1] or 0) % 8 == 0


def test_nested_columns_that_only_have_other_names_are_not_copied():
    kind = pa.list_(
        pa.struct([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.list_(pa.int32())))])
    )
    column = pa.array([[{"a": 1, "m": [("k", [1])]}, None], None, []], kind)
    schema = pa.schema([pa.field("c", kind, metadata={"k": "v"})])
    batch = pa.record_batch([column], schema=schema)
    spark_schema = to_spark_schema(schema)
    read = ReadConverter(schema, spark_schema).convert(batch)
    assert str(read.schema.field("c").type).startswith("list<element: ")
    assert addresses(read.column(0)) == addresses(column)
    converted = WriteConverter(spark_schema, schema).convert(read)
    assert converted.schema.equals(schema, check_metadata=True)
    assert addresses(converted.column(0)) == addresses(column)


def test_vectors_and_large_text_are_read_without_copying_their_content():
    vectors = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    text = pa.array(["a", None, "bc"], pa.large_string())
    schema = pa.schema([("v", vectors.type), ("t", text.type)])
    batch = pa.record_batch([vectors, text], schema=schema).slice(1)
    got = ReadConverter(schema, to_spark_schema(schema)).convert(batch)
    assert got.column(0).values.buffers()[1].address == vectors.values.buffers()[1].address
    data, original = got.column(1).buffers()[2], text.buffers()[2]
    assert original.address <= data.address < original.address + original.size
    assert got.to_pylist() == [{"v": None, "t": None}, {"v": [3.0, 4.0], "t": "bc"}]


@pytest.mark.parametrize("first", [0, 3, 8, 16, 17])
def test_nulls_stay_where_they_are_in_a_slice(first: int):
    with_nulls = [None if i % 3 == 0 else i for i in range(40)]
    columns = {
        "text": pa.array([None if i is None else str(i) for i in with_nulls], pa.large_string()),
        "vector": pa.array(
            [None if i is None else [i, i] for i in with_nulls], pa.list_(pa.int8(), 2)
        ),
        "list": pa.array(
            [None if i is None else [i] for i in with_nulls], pa.large_list(pa.uint8())
        ),
        "struct": pa.array(
            [None if i is None else {"x": i} for i in with_nulls], pa.struct([("x", pa.uint8())])
        ),
    }
    batch = pa.record_batch(columns)
    spark_schema = to_spark_schema(batch.schema)
    part = batch.slice(first, 20)
    got = ReadConverter(batch.schema, spark_schema).convert(part)
    assert [facts(column) for column in got.columns] == [facts(column) for column in part.columns]
    back = WriteConverter(spark_schema, batch.schema).convert(got.slice(8))
    assert [facts(column) for column in back.columns] == [
        facts(column)[8:] for column in part.columns
    ]


def test_lists_are_written_as_vectors_without_copying_their_content():
    lists = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    target = pa.schema([("v", pa.list_(pa.float32(), 2))])
    batch = pa.record_batch({"v": lists})
    got = WriteConverter(to_spark_schema(batch.schema), target).convert(batch)
    assert got.column(0).values.buffers()[1].address == lists.values.buffers()[1].address


def test_a_batch_without_columns_keeps_its_rows():
    batch = pa.record_batch({"a": pa.array([1, 2, 3])})
    converter = ReadConverter(batch.schema, T.StructType([]))
    assert converter.convert(batch).num_rows == 3
    assert converter.convert(batch.select([])).num_rows == 3


def test_columns_are_found_by_name_and_others_left_out():
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("s", pa.struct([("x", pa.int64()), ("y", pa.uint8())])),
            ("b", pa.string()),
        ]
    )
    target = T.StructType(
        [
            T.StructField("b", T.StringType()),
            T.StructField("s", T.StructType([T.StructField("y", T.ShortType())])),
        ]
    )
    batch = pa.record_batch(
        [pa.array([1]), pa.array([{"x": 1, "y": 2}], schema.field("s").type), pa.array(["t"])],
        schema=schema,
    )
    got = ReadConverter(schema, target).convert(batch)
    assert got.schema.equals(demanded_schema(target), check_metadata=True)
    assert got.to_pylist() == [{"b": "t", "s": {"y": 2}}]


BIG: list[pa.Array] = [
    pa.array(["x" * 30, None, "y" * 30, "z" * 30], pa.large_string()),
    pa.array([b"x" * 30, b"y" * 30, b"z" * 30], pa.large_binary()),
    pa.array([b"x" * 30, b"y" * 30, b"z" * 30], pa.binary(30)),
    pa.array([[1] * 30, None, [2] * 30, [3] * 30], pa.large_list(pa.int8())),
    pa.array([[1] * 30, [2] * 30, [3] * 30], pa.list_(pa.int8(), 30)),
]


@pytest.mark.parametrize("column", BIG, ids=lambda c: str(c.type))
def test_a_batch_that_is_too_large_for_sparks_types_is_split_or_refused(
    column: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leaves, "MOST_OFFSET", 40)
    monkeypatch.setattr(tree, "MOST_OFFSET", 40)
    schema = pa.schema([pa.field("c", column.type)])
    batch = pa.record_batch([column], schema=schema)
    converter = ReadConverter(schema, to_spark_schema(schema))
    with pytest.raises(ValueConversionError, match="batch_size"):
        converter.convert(batch)
    parts = list(converter.convert_split(batch))
    assert len(parts) > 1
    assert [fact for part in parts for fact in facts(part.column(0))] == facts(column)
    monkeypatch.setattr(leaves, "MOST_OFFSET", 20)
    monkeypatch.setattr(tree, "MOST_OFFSET", 20)
    with pytest.raises(ValueConversionError, match="batch_size"):
        list(converter.convert_split(batch))


def test_large_types_and_session_time_zones_from_spark_are_understood():
    source = T.StructType(
        [T.StructField("s", T.StringType()), T.StructField("t", T.TimestampType())]
    )
    target = pa.schema([("s", pa.string()), ("t", pa.timestamp("ms", "UTC"))])
    converter = WriteConverter(source, target)
    for zone, text in (("America/New_York", pa.large_string()), ("UTC", pa.string())):
        batch = pa.record_batch(
            {"s": pa.array(["a"], text), "t": pa.array([5000], pa.timestamp("us", zone))}
        )
        got = converter.convert(batch)
        got.validate(full=True)
        assert [facts(column) for column in got.columns] == [["a"], [5]]


def test_converters_travel():
    schema = pa.schema([("a", pa.uint8()), ("v", pa.list_(pa.float16(), 2))])
    spark_schema = to_spark_schema(schema)
    batch = pa.record_batch(
        [pa.array([1], pa.uint8()), pa.array([[1, 2]], schema.field(1).type)], schema=schema
    )
    read = pickle.loads(pickle.dumps((schema, spark_schema)))
    remote_result = ReadConverter(*read).convert(batch)
    assert WriteConverter(spark_schema, schema).convert(remote_result).equals(batch)


@pytest.mark.parametrize("large", [False, True])
def test_a_read_of_plain_columns_costs_microseconds_per_batch(large: bool):
    rows = 8192 if not large else 65536
    schema = pa.schema([pa.field(f"c{i}", pa.int64(), nullable=i > 0) for i in range(7)])
    batch = pa.record_batch([pa.array(np.arange(rows))] * 7, schema=schema)
    converter = ReadConverter(schema, to_spark_schema(schema))
    converter.convert(batch)
    best = min(_timed(converter, batch, time.perf_counter) for _ in range(20))
    assert best < 0.001


def _timed(converter: ReadConverter, batch: pa.RecordBatch, clock: Any) -> float:
    start = clock()
    converter.convert(batch)
    return float(clock() - start)
