"""A data source of ready-made batches: what the border between Python and the JVM costs, and nothing else.

Each Python worker makes one batch when it is first asked, and gives Spark that batch again and again: no file is opened and no value is
converted. What a scan of this source takes, no data source that is written in Python can go below.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pyarrow as pa
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

from benchmarks.first_look_data import TABLES

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


def ready_made(spark: SparkSession, table: str, rows: int, *columns: str) -> DataFrame:
    """Returns a DataFrame over the source, with the columns that are wanted, or all."""
    spark.dataSource.register(ReadyMadeSource)
    return spark.read.format("ready_made").options(table=table, rows=rows, columns=",".join(columns)).load()


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
        return ReadyMadeReader(self.options["table"], schema, int(self.options["rows"]))


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


@functools.cache
def ready_batch(table: str, schema: str) -> pa.RecordBatch:
    """Returns the batch, made once in a process."""
    import json

    target = to_arrow_schema(StructType.fromJson(json.loads(schema)), timezone="UTC")
    rows = TABLES[table](0, BATCH_ROWS[table]).select(target.names)
    columns = [column.combine_chunks().cast(field.type) for column, field in zip(rows.columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)
