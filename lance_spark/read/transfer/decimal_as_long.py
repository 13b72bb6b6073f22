"""Reads decimals of up to 18 digits as their stored integers.

Spark makes a `BigDecimal` of each decimal in an Arrow batch, which costs several times as much as
adding the value up. A decimal that fits into a `bigint` avoids this cost. The planner rule lets the
scan return the unscaled integer, and Spark restores the decimal above the scan.
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
    """Returns the names of the columns that are decimals of up to 18 digits."""
    return tuple(
        f.name for f in columns.fields if isinstance(f.dataType, DecimalType) and f.dataType.precision <= MAX_DIGITS
    )


def long_schema(columns: StructType, names: Sequence[str]) -> StructType:
    """Returns the schema of the scan, with bigint for the named columns."""
    return StructType(
        [StructField(f.name, LongType(), f.nullable, f.metadata) if f.name in names else f for f in columns.fields]
    )


def decimals_to_longs(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns a batch with its named decimal128 columns as unscaled integers."""
    for name in names:
        at = batch.schema.get_field_index(name)
        field = batch.schema.field(at).with_type(pa.int64())
        batch = batch.set_column(at, field, low_words(batch.column(at)))
    return batch


def low_words(column: Array) -> Array:
    """Returns the lower of the two 64-bit words of each value. NULL stays NULL."""
    validity, values = column.buffers()
    if values is None:
        return pa.nulls(len(column), pa.int64())
    # Little-endian, like Arrow on every machine that Lance supports.
    words = np.frombuffer(values, np.int64, count=2 * (column.offset + len(column)))
    low = pa.py_buffer(np.ascontiguousarray(words[::2]).data)
    return pa.Array.from_buffers(pa.int64(), len(column), [validity, low], column.null_count, column.offset)
