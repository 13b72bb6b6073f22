"""A data source of prepared batches: it measures only the JVM-Python transfer.

Each Python worker makes a single batch on first use and passes it to Spark repeatedly, without
opening a file or converting a
value. If the work of a query depends on the number of distinct values, the source instead makes and
keeps all batches of the table.
The time of a scan of this source is a lower bound for any data source written in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from benchmarks.first_look_data import SIZES, TABLES

PARTITIONS = 2
BATCH_ROWS = {"narrow": 20_000, "wide": 340}
"""Similar to the batch sizes of lance-spark's scans."""

SCHEMAS = {
    "narrow": StructType()
    .add("id", LongType())
    .add("size", IntegerType())
    .add("score", DoubleType())
    .add("weight", FloatType())
    .add("word", StringType())
    .add("at", TimestampType())
    .add("flag", BooleanType()),
    # Without NULL elements in vectors, Spark reads fastest.
    "wide": StructType()
    .add("id", LongType())
    .add("vector", ArrayType(FloatType(), containsNull=False)),
}


def ready_made(
    spark: SparkSession,
    table: str,
    rows: int,
    *columns: str,
    differ: bool = False,
    size_below: int = SIZES,
) -> DataFrame:
    """Returns a DataFrame over the source, with the named columns or all columns.

    With `differ`, each row has its own values, and only rows with `size` below `size_below` exist.
    """
    spark.dataSource.register(ReadyMadeSource)
    options = {
        "table": table,
        "rows": rows,
        "columns": ",".join(columns),
        "differ": differ,
        "size_below": size_below,
    }
    return spark.read.format("ready_made").options(**options).load()


class ReadyMadeSource(DataSource):
    """Returns `rows` rows of the narrow or wide table."""

    @classmethod
    def name(cls) -> str:
        """Returns `ready_made`."""
        return "ready_made"

    def schema(self) -> StructType:
        """Returns the requested columns."""
        full, names = SCHEMAS[self.options["table"]], self.options["columns"]
        return StructType([full[name] for name in names.split(",")]) if names else full

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader."""
        table, rows = self.options["table"], int(self.options["rows"])
        if self.options["differ"] == "true":
            return DifferingReader(table, schema, rows, int(self.options["size_below"]))
        return ReadyMadeReader(table, schema, rows)


class ReadyMadeReader(DataSourceReader):
    """Yields the batch repeatedly."""

    def __init__(self, table: str, schema: StructType, rows: int) -> None:
        self.table, self.schema, self.rows = table, schema, rows

    def partitions(self) -> list[InputPartition]:
        """Returns one partition per core."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields a share of the rows."""
        batch, remaining = ready_batch(self.table, self.schema.json()), self.rows // PARTITIONS
        while remaining > 0:
            yield batch if remaining >= batch.num_rows else batch.slice(0, remaining)
            remaining -= batch.num_rows


class DifferingReader(ReadyMadeReader):
    """Yields batches with the distinct values of the table."""

    def __init__(self, table: str, schema: StructType, rows: int, size_below: int) -> None:
        super().__init__(table, schema, rows)
        self.size_below = size_below

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields a share of the batches."""
        batches = ready_batches(self.table, self.schema.json(), self.rows, self.size_below)
        yield from batches[partition.value :: PARTITIONS]


@functools.cache
def ready_batch(table: str, schema: str) -> pa.RecordBatch:
    """Returns the batch. Each process makes it once."""
    return _as_wanted(TABLES[table](0, BATCH_ROWS[table]), schema).to_batches()[0]


@functools.cache
def ready_batches(table: str, schema: str, rows: int, size_below: int) -> list[pa.RecordBatch]:
    """Returns all batches of a table. Each process makes the batches once, for any partition."""
    step = BATCH_ROWS[table]
    parts = (TABLES[table](start, min(step, rows - start)) for start in range(0, rows, step))
    tables = pa.concat_tables(
        _as_wanted(part.filter(pc.field("size") < size_below), schema) for part in parts
    )
    return tables.combine_chunks().to_batches(max_chunksize=step)


def _as_wanted(rows: pa.Table, schema: str) -> pa.Table:
    """Returns Spark's columns in Spark's types."""
    import json

    target = to_arrow_schema(StructType.fromJson(json.loads(schema)), timezone="UTC")
    return rows.select(target.names).cast(target).combine_chunks()
