"""The cost of a scan, of a write and of a statement is linear in the number of columns."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DecimalType, DoubleType, LongType, StructField, StructType

from lance_spark.dataset import DatasetRef
from lance_spark.dml.column_files import targets_of
from lance_spark.options.io_options import ReadOptions
from lance_spark.read.planning.pushdown_request import AggregateCall, ScanSpec
from lance_spark.read.reader import read_schema
from lance_spark.read.transfer import (
    decimals_to_longs,
    dense_columns,
    long_schema,
    split_schema,
    unscaled_columns,
)
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types import WriteConverter
from tests.lance_spark.read.scans import describe, make_reader

MOST_GROWTH, MOST_GROWTH_OF_TIME = 4.5, 8
"""Growth of calls and of processor time, for four times the columns: 4 is linear, and 16 is quadratic."""

MOST_SCHEMAS = 12
"""Schemas of a table that a step asks Lance for. Lance builds each one with all columns."""


def names_of(columns: int) -> list[str]:
    return ["id", *(f"c{number}" for number in range(columns - 1))]


def write_table(folder: Path, columns: int) -> str:
    path = str(folder / f"t{columns}.lance")
    lance.write_dataset(
        pa.table({name: pa.array([1.0, 2.0, 3.0]) for name in names_of(columns)}), path
    )
    return path


def load(path: str) -> None:
    options = ReadOptions.parse({"path": path})
    read_schema(DatasetRef.resolve(options), options)


def scan(path: str) -> None:
    reader = make_reader(path)
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 3


def scan_of_rule(path: str) -> None:
    columns = make_reader(path).schema
    # Spark may spell the columns in another case.
    shouted = StructType(
        [
            StructField(field.name.upper(), field.dataType, field.nullable)
            for field in columns.fields
        ]
    )
    describe(path, ScanSpec(columns=shouted))


def aggregates(path: str) -> None:
    calls = [
        AggregateCall(fn="max", column=name, name=f"m_{name}")
        for name in make_reader(path).schema.names
    ]
    describe(path, ScanSpec(columns=StructType(), aggregate=tuple(calls)))


def plan_write(path: str) -> None:
    dataset = lance.dataset(path)
    names = dataset.schema.names
    FileLayout.of_table(dataset, names)
    targets_of(dataset, names)
    source = StructType([StructField(name.upper(), DoubleType()) for name in names])
    WriteConverter(source, dataset.schema)


ACTS = [load, scan, scan_of_rule, aggregates, plan_write]


@pytest.mark.parametrize("act", ACTS)
def test_calls_are_linear_in_the_columns_and_schemas_are_as_many(
    act: Callable[[str], None], tmp_path: Path
):
    schemas, calls = zip(
        *(count(act, write_table(tmp_path, columns)) for columns in (100, 400)), strict=True
    )
    assert schemas[0] == schemas[1] <= MOST_SCHEMAS
    assert calls[1] < MOST_GROWTH * calls[0]


def count(act: Callable[[str], None], path: str) -> tuple[int, int]:
    """Returns how many schemas of the table an act asks for, and how many functions it calls."""
    profile = cProfile.Profile()
    profile.runcall(act, path)
    entries = profile.getstats()
    schema = lance.LanceDataset.schema.fget.__code__  # type: ignore[attr-defined]
    return (
        sum(entry.callcount for entry in entries if entry.code is schema),
        sum(entry.callcount for entry in entries),
    )


@pytest.mark.long
@pytest.mark.parametrize("act", ACTS)
def test_time_is_linear_in_the_columns(act: Callable[[str], None], tmp_path: Path):
    narrow, wide = (
        least_seconds(lambda path=path: act(path))
        for path in map(write_table, [tmp_path] * 2, (500, 2000))
    )
    assert wide < MOST_GROWTH_OF_TIME * narrow


@pytest.mark.long
def test_decimals_are_converted_in_linear_time():
    seconds = []
    for columns in (500, 2000):
        names = names_of(columns)
        batch = pa.record_batch([pa.array([1], pa.decimal128(9, 2))] * columns, names=names)
        schema = StructType([StructField(name, DecimalType(9, 2)) for name in names])
        assert unscaled_columns(schema) == tuple(names)
        assert decimals_to_longs(batch, names).schema.types == [pa.int64()] * columns
        assert long_schema(schema, names).fields == [
            StructField(name, LongType()) for name in names
        ]
        seconds.append(
            least_seconds(
                lambda b=batch, s=schema, n=names: (
                    decimals_to_longs(b, n),
                    long_schema(s, n),
                    split(s),
                )
            )
        )
    assert seconds[1] < MOST_GROWTH_OF_TIME * seconds[0]


def split(schema: StructType) -> None:
    """Splits vectors as numerous as the columns of a schema."""
    vectors = StructType(
        [StructField(field.name, ArrayType(DoubleType())) for field in schema.fields]
    )
    dense = dense_columns(vectors, vectors.names)
    assert len(split_schema(vectors, dense).fields) == 2 * len(vectors.fields)


def least_seconds(act: Callable[[], object]) -> float:
    """Returns the least processor time of five runs."""
    seconds = []
    for _ in range(5):
        began = time.process_time()
        act()
        seconds.append(time.process_time() - began)
    return min(seconds)
