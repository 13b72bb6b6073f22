"""Runs a scan as Spark would, but in this process: plan, pickle, read every partition."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import ReadOptions
from lance_spark.read.planning.partitioning import ScanTask
from lance_spark.read.planning.pushdown_request import ScanSpec
from lance_spark.read.reader import LanceReader, describe_scan, read_schema
from tests.lance_spark.types.oracle import demanded_schema


def make_reader(path: str, spec: ScanSpec | None = None, **options: object) -> LanceReader:
    parsed = ReadOptions.parse({"path": path, **{k: str(v) for k, v in options.items()}})
    ref = DatasetRef.resolve(parsed)
    schema = (
        read_schema(ref, parsed) if spec is None else describe_scan(ref, parsed, spec)[0].schema
    )
    # Spark pickles the reader before the planning.
    return pickle.loads(
        pickle.dumps(LanceReader(ref=ref, schema=schema, options=parsed, spec=spec))
    )


def describe(path: str, spec: ScanSpec, **options: object) -> dict[str, object]:
    parsed = ReadOptions.parse({"path": path, **{k: str(v) for k, v in options.items()}})
    return json.loads(json.dumps(describe_scan(DatasetRef.resolve(parsed), parsed, spec)[1]))


def partitions(reader: LanceReader) -> list[ScanTask]:
    return [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]


def read_partitions(path: str, spec: ScanSpec | None = None, **options: object) -> list[pa.Table]:
    """Returns the rows of each partition, checked against the schema required by Spark."""
    reader = make_reader(path, spec, **options)
    expected = demanded_schema(reader.schema)
    tables = []
    for task in partitions(reader):
        batches = list(reader.read(task))
        assert all(batch.schema.equals(expected) for batch in batches)
        tables.append(pa.Table.from_batches(batches, expected))
    return tables


def read(path: str, spec: ScanSpec | None = None, **options: object) -> pa.Table:
    return pa.concat_tables(read_partitions(path, spec, **options))


def count(path: str, spec: ScanSpec, **options: object) -> int:
    """Counts the rows of batches, which may have no columns; a table of Arrow would forget the count."""
    reader = make_reader(path, spec, **options)
    return sum(batch.num_rows for task in partitions(reader) for batch in reader.read(task))
