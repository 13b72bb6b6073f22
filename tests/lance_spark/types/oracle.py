"""The Spark value of each Lance value, derived in plain Python: the converters' vectorised result must be equal."""

from __future__ import annotations

import decimal
import math
import struct
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_TO_MICROSECONDS = {"s": 10**6, "ms": 10**3, "us": 1}
_TO_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def in_spark(kind: Any, fact: Any) -> Any:
    """Returns the fact in Spark's Arrow data for a fact in Lance's data of this type."""
    if fact is None:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return in_spark(kind.storage_type, fact)
    if pa.types.is_struct(kind):
        return tuple(in_spark(child.type, part) for child, part in zip(kind, fact, strict=True))
    if pa.types.is_map(kind):
        return [(in_spark(kind.key_type, k), in_spark(kind.item_type, v)) for k, v in fact]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [in_spark(kind.value_type, part) for part in fact]
    if pa.types.is_dictionary(kind):
        return in_spark(kind.value_type, fact)
    if pa.types.is_uint64(kind):
        return decimal.Decimal(fact)
    if pa.types.is_date64(kind):
        return fact // 86_400_000
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return fact // 1000 if kind.unit == "ns" else fact * _TO_MICROSECONDS[kind.unit]
    if pa.types.is_time(kind):
        return fact * _TO_NANOSECONDS[kind.unit]
    return fact


def demanded_schema(schema: StructType) -> pa.Schema:
    """Returns the schema against which Spark's reading worker checks each batch; PySpark 4.1 takes no time zone."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)


def bfloat16(bits: bytes) -> Any:
    """Returns the fact of a bfloat16, from the two bytes in Lance."""
    value = struct.unpack("<f", b"\0\0" + bits)[0]
    return "NaN" if math.isnan(value) else struct.pack(">d", value)
