"""Types and values between Spark, Arrow and Lance, both ways.

`docs/types.md` has the table. A type that the other side cannot hold is refused by name when a
query or a write is planned; a value that does not fit its new type is an error that names column
and row. Nothing is changed silently. Data stays in Arrow buffers, and where both sides lay a column
out in the same way its buffers are passed on as they are.
"""

from lance_spark.types.converters import LengthEnforcer, ReadConverter, WriteConverter, check_writable
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
