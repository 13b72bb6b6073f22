"""Random data through a real Lance table on disk to Spark's Arrow form and back."""

from __future__ import annotations

import tempfile
from typing import Any, cast

import hypothesis.strategies as st
import lance
import lance.arrow
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings

from lance_spark.types import ReadConverter, WriteConverter, to_lance_schema, to_spark_schema
from tests.lance_spark.types.oracle import bfloat16, demanded_schema, in_spark
from tests.strategies import LANCE_LEAVES, facts, schemas, tables

pytestmark = pytest.mark.sample(3, tests=2)


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def stored(table: pa.Table, version: str = "2.2") -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Writes a table with Lance, and returns the schema and the batches of a new reader."""
    with tempfile.TemporaryDirectory() as home:
        lance.write_dataset(table, f"{home}/t", data_storage_version=version)
        dataset = lance.dataset(f"{home}/t")
        return dataset.schema, list(dataset.to_batches())


def check(table: pa.Table, version: str = "2.2") -> None:
    schema, batches = stored(table, version)
    spark_schema = to_spark_schema(schema)
    read = ReadConverter(schema, spark_schema)
    converted = [read.convert(batch) for batch in batches]

    for batch in converted:
        assert batch.schema.equals(demanded_schema(spark_schema), check_metadata=True)
        batch.validate(full=True)
    for i, field in enumerate(table.schema):
        got = [fact for batch in converted for fact in facts(batch.column(i))]
        assert got == [in_spark(field.type, fact) for fact in facts(table.column(i))], field

    again = to_lance_schema(spark_schema, {})
    assert again.equals(schema, check_metadata=True)
    write = WriteConverter(spark_schema, again)
    back = [write.convert(batch) for batch in converted]
    for batch in back:
        assert batch.schema.equals(schema, check_metadata=True)
        batch.validate(full=True)
    for i in range(table.num_columns):
        assert [f for batch in back for f in facts(batch.column(i))] == facts(table.column(i))

    if back:
        twice, rewritten = stored(pa.Table.from_batches(back), version)
        assert twice.equals(schema, check_metadata=True)
        for i in range(table.num_columns):
            assert [f for batch in rewritten for f in facts(batch.column(i))] == facts(
                table.column(i)
            )


@examples(50)
@given(tables(calendar=False))
def test_any_table_comes_back_as_it_was(table: pa.Table):
    event(f"columns: {table.num_columns}")
    check(table)


@pytest.mark.parametrize("kind", LANCE_LEAVES, ids=str)
def test_every_type_comes_back_as_it_was(kind: pa.DataType):
    @examples(5)
    @given(tables(pa.schema([pa.field("c0", kind)]), fewest_rows=1, calendar=False))
    def run(table: pa.Table) -> None:
        check(table)

    run()


EVERY_LEAF = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(LANCE_LEAVES)])


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_every_type_comes_back_from_older_file_formats(version: str):
    @examples(4)
    @given(tables(EVERY_LEAF, fewest_rows=1, most_rows=4, calendar=False))
    def run(table: pa.Table) -> None:
        check(table, version)

    run()


@pytest.mark.long
@examples(50)
@given(tables(calendar=False, most_rows=20), st.data())
def test_a_slice_of_a_batch_converts_like_the_whole(table: pa.Table, data: st.DataObject):
    batch = (
        table.combine_chunks().to_batches()[0]
        if table.num_rows
        else pa.RecordBatch.from_pylist([], table.schema)
    )
    first = data.draw(st.integers(0, batch.num_rows))
    count = data.draw(st.integers(0, batch.num_rows - first))
    part = batch.slice(first, count)
    spark_schema = to_spark_schema(batch.schema)

    whole = ReadConverter(batch.schema, spark_schema).convert(batch)
    got = ReadConverter(batch.schema, spark_schema).convert(part)
    assert [facts(c) for c in got.columns] == [
        facts(c)[first : first + count] for c in whole.columns
    ]

    target = to_lance_schema(spark_schema, {})
    back = WriteConverter(spark_schema, target).convert(whole.slice(first, count))
    assert [facts(c) for c in back.columns] == [facts(c) for c in part.columns]


@examples(50)
@given(tables(schemas("spark"), calendar=False))
def test_types_that_spark_has_itself_need_no_conversion(table: pa.Table):
    spark_schema = to_spark_schema(table.schema)
    assert [f.metadata for f in spark_schema.fields] == [{}] * len(spark_schema.fields)
    for batch in table.to_batches():
        converted = ReadConverter(table.schema, spark_schema).convert(batch)
        for converted_column, original in zip(converted.columns, batch.columns, strict=True):
            assert [b and b.address for b in converted_column.buffers()] == [
                b and b.address for b in original.buffers()
            ]


@examples(40)
@given(st.lists(st.one_of(st.none(), st.binary(min_size=2, max_size=2)), max_size=12))
def test_bfloat16_is_a_float_and_comes_back(bits: list[bytes | None]):
    storage: Any = pa.array(bits, pa.binary(2))
    column = pa.ExtensionArray.from_storage(cast(Any, lance.arrow.BFloat16Type()), storage)
    schema, batches = stored(pa.table({"v": column}))
    spark_schema = to_spark_schema(schema)
    assert spark_schema["v"].dataType.simpleString() == "float"
    target = to_lance_schema(spark_schema, {})
    for batch in batches:
        converted = ReadConverter(schema, spark_schema).convert(batch)
        assert facts(converted.column(0)) == [None if b is None else bfloat16(b) for b in bits]
        back = WriteConverter(spark_schema, target).convert(converted)
        assert back.schema.equals(schema, check_metadata=True)
        quietened = [None if b is None else bfloat16(b) for b in bits]
        assert [
            None if b is None else bfloat16(b) for b in back.column(0).storage.to_pylist()
        ] == quietened
