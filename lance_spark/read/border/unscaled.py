"""Decimals of up to 18 digits, as the integers that they are stored as.

Spark makes a `BigDecimal` of every decimal that it takes out of an Arrow batch, which costs several
times what adding it up does. A decimal that fits into a `bigint` needs none: the planner rule lets
the scan give the unscaled number, and has Spark put the point into it above the scan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from lance_spark.types.fields import Array

MAX_DIGITS = 18
"""Digits that always fit into 64 bits."""


def unscaled_columns(columns: StructType) -> tuple[str, ...]:
    """Returns the names of those columns that are decimals of up to 18 digits."""
    return tuple(
        f.name for f in columns.fields if isinstance(f.dataType, DecimalType) and f.dataType.precision <= MAX_DIGITS
    )


def unscaled_schema(columns: StructType, names: Sequence[str]) -> StructType:
    """Returns the columns as the scan gives them: the named ones are bigint."""
    return StructType(
        [StructField(f.name, LongType(), f.nullable, f.metadata) if f.name in names else f for f in columns.fields]
    )


def unscaled(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns a batch with the unscaled numbers of its named columns, which are decimal128."""
    for name in names:
        at = batch.schema.get_field_index(name)
        field = batch.schema.field(at).with_type(pa.int64())
        batch = batch.set_column(at, field, low_words(batch.column(at)))
    return batch


def low_words(column: Array) -> Array:
    """Returns the lower of the two 64-bit words of each value; NULL stays NULL."""
    validity, values = column.buffers()
    if values is None:
        return pa.nulls(len(column), pa.int64())
    # Little-endian, as Arrow is on every machine that Lance runs on.
    words = np.frombuffer(values, np.int64, count=2 * (column.offset + len(column)))
    low = pa.py_buffer(np.ascontiguousarray(words[::2]).data)
    return pa.Array.from_buffers(pa.int64(), len(column), [validity, low], column.null_count, column.offset)
