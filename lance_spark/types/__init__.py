"""Types and values between Spark, Arrow and Lance, in both directions.

`docs/types.md` has the mapping. Planning a query or a write raises an error for a type without a
counterpart, and the error names the column. A value outside of its new type raises an error with
column and row. Values never change silently. Data stays in Arrow buffers. Columns with the same
layout on both sides pass their buffers on unchanged.
"""

from lance_spark.types.converters import (
    LengthEnforcer,
    ReadConverter,
    WriteConverter,
    check_writable,
)
from lance_spark.types.fields import LANCE_FIELD, scan_schema
from lance_spark.types.schemas import parse_spark_schema, to_lance_schema, to_spark_schema
from lance_spark.types.storable import check_storable

__all__ = [
    "LANCE_FIELD",
    "LengthEnforcer",
    "ReadConverter",
    "WriteConverter",
    "check_storable",
    "check_writable",
    "parse_spark_schema",
    "scan_schema",
    "to_lance_schema",
    "to_spark_schema",
]
