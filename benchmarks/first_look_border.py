"""A data source of ready-made batches: what the border between Python and the JVM costs, and nothing else.

Each Python worker makes one batch when it is first asked, and gives Spark that batch again and
again: no file is opened and no value is converted. Where a query's work depends on how many values
differ, it makes all batches of the table instead, and keeps them. What a scan of this source takes,
no data source that is written in Python can go below.
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
"""About as many as our own scans put into a batch."""

SCHEMAS = {
    "narrow": StructType()
    .add("id", LongType())
    .add("size", IntegerType())
    .add("score", DoubleType())
    .add("weight", FloatType())
    .add("word", StringType())
    .add("at", TimestampType())
    .add("flag", BooleanType()),
    # No element of a vector is NULL: so Spark reads it quickest.
    "wide": StructType().add("id", LongType()).add("vector", ArrayType(FloatType(), containsNull=False)),
}


def ready_made(
    spark: SparkSession, table: str, rows: int, *columns: str, differ: bool = False, size_below: int = SIZES
) -> DataFrame:
    """Returns a DataFrame over the source, with the columns that are wanted, or all.

    With `differ` each row has values of its own, and only rows of a `size` below the given one are there.
    """
    spark.dataSource.register(ReadyMadeSource)
    options = {"table": table, "rows": rows, "columns": ",".join(columns), "differ": differ, "size_below": size_below}
    return spark.read.format("ready_made").options(**options).load()


class ReadyMadeSource(DataSource):
    """Gives `rows` rows of the narrow or the wide table."""

    @classmethod
    def name(cls) -> str:
        """Returns `ready_made`."""
        return "ready_made"

    def schema(self) -> StructType:
        """Returns the wanted columns."""
        full, wanted = SCHEMAS[self.options["table"]], self.options["columns"]
        return StructType([full[name] for name in wanted.split(",")]) if wanted else full

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader."""
        table, rows = self.options["table"], int(self.options["rows"])
        if self.options["differ"] == "true":
            return DifferingReader(table, schema, rows, int(self.options["size_below"]))
        return ReadyMadeReader(table, schema, rows)


class ReadyMadeReader(DataSourceReader):
    """Yields the batch as often as it takes."""

    def __init__(self, table: str, schema: StructType, rows: int) -> None:
        self.table, self.schema, self.rows = table, schema, rows

    def partitions(self) -> list[InputPartition]:
        """Returns one partition per core."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields a share of the rows."""
        batch, left = ready_batch(self.table, self.schema.json()), self.rows // PARTITIONS
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


class DifferingReader(ReadyMadeReader):
    """Yields batches of rows that differ as those of the table do."""

    def __init__(self, table: str, schema: StructType, rows: int, size_below: int) -> None:
        super().__init__(table, schema, rows)
        self.size_below = size_below

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields a share of the batches."""
        batches = ready_batches(self.table, self.schema.json(), self.rows, self.size_below)
        yield from batches[partition.value :: PARTITIONS]


@functools.cache
def ready_batch(table: str, schema: str) -> pa.RecordBatch:
    """Returns the batch, made once in a process."""
    return _as_wanted(TABLES[table](0, BATCH_ROWS[table]), schema).to_batches()[0]


@functools.cache
def ready_batches(table: str, schema: str, rows: int, size_below: int) -> list[pa.RecordBatch]:
    """Returns all batches of a table, made once in a process: it may be asked for any of them."""
    step = BATCH_ROWS[table]
    parts = (TABLES[table](start, min(step, rows - start)) for start in range(0, rows, step))
    wanted = pa.concat_tables(_as_wanted(part.filter(pc.field("size") < size_below), schema) for part in parts)
    return wanted.combine_chunks().to_batches(max_chunksize=step)


def _as_wanted(rows: pa.Table, schema: str) -> pa.Table:
    """Returns the columns that Spark wants, with its types."""
    import json

    target = to_arrow_schema(StructType.fromJson(json.loads(schema)), timezone="UTC")
    return rows.select(target.names).cast(target).combine_chunks()
