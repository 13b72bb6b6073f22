"""Maps Arrow types to Spark types, and back.

Maps types only. Converters map values.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type

from lance_spark.errors import UnsupportedTypeError
from lance_spark.types.fields import (
    BFLOAT16,
    Kind,
    children_of,
    extension_name,
    is_descriptor,
    is_list,
    quote_identifier,
    storage_type,
)

MOST_DIGITS = 38
"""Precision of Spark's widest decimal."""

# Older PySpark releases lack these types.
_TIME: type[spark.DataType] | None = getattr(spark, "TimeType", None)
_SPATIAL = tuple(
    getattr(spark, name) for name in ("GeometryType", "GeographyType") if hasattr(spark, name)
)
_TAGS = (b"variant", b"geometry", b"geography")

_UNTYPED_KEYS = "a map needs a type for its keys"
_LEAVE_OUT = "leave the column out with option 'columns'"

DECLARED_TYPE = b"spark.type"
"""Field metadata: the declared Spark type of a column, if Arrow has a wider type."""

CHAR = re.compile(r"(?:var)?char\(([1-9][0-9]{0,8})\)")
_PARTS = ("day", "hour", "minute", "second")
_INTERVAL = re.compile(r"interval (day|hour|minute|second)(?: to (hour|minute|second))?")

_TO_SPARK: Mapping[pa.DataType, spark.DataType] = {
    pa.null(): spark.NullType(),
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.uint8(): spark.ShortType(),
    pa.uint16(): spark.IntegerType(),
    pa.uint32(): spark.LongType(),
    pa.uint64(): spark.DecimalType(20, 0),
    pa.float16(): spark.FloatType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.large_string(): spark.StringType(),
    pa.string_view(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.large_binary(): spark.BinaryType(),
    pa.binary_view(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.date64(): spark.DateType(),
}

_TO_ARROW: Mapping[type[spark.DataType], pa.DataType] = {
    spark.NullType: pa.null(),
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.StringType: pa.string(),
    spark.CharType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", "UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.DayTimeIntervalType: pa.duration("us"),
    **({_TIME: pa.time64("ns")} if _TIME is not None else {}),
}


def spark_type(field: pa.Field[Any], path: str) -> spark.DataType:
    """Returns the Spark type of a field of a Lance scan.

    The type holds every value, or the conversion raises an error for a single value.

    Args:
        field: A field of a scan's schema.
        path: Dotted path of the column, for the error.

    Raises:
        UnsupportedTypeError: Spark has no type for the field.
    """
    kind = storage_type(field)
    if extension_name(field) == BFLOAT16:
        return spark.FloatType()
    if pa.types.is_dictionary(kind):
        return spark_type(pa.field(field.name, kind.value_type), path)
    if kind in _TO_SPARK:
        return _TO_SPARK[kind]
    if pa.types.is_fixed_size_binary(kind):
        return spark.BinaryType()
    if pa.types.is_decimal(kind):
        return _decimal(kind, path)
    if pa.types.is_timestamp(kind):
        return spark.TimestampNTZType() if kind.tz is None else spark.TimestampType()
    if pa.types.is_duration(kind):
        return _interval(field)
    if pa.types.is_time(kind):
        return _time(kind, path)
    return _nested(field, path)


def _time(kind: Kind, path: str) -> spark.DataType:
    if _TIME is None:
        hint = f"use PySpark 4.1 or later, or {_LEAVE_OUT}"
        raise UnsupportedTypeError(path, str(kind), reason="this PySpark has no TIME", hint=hint)
    return _TIME()


def _interval(field: pa.Field[Any]) -> spark.DayTimeIntervalType:
    """Returns the declared interval type of a column, by default `INTERVAL DAY TO SECOND`."""
    match = _INTERVAL.fullmatch(declared_text(field))
    if match is None:
        return spark.DayTimeIntervalType()
    first, last = _PARTS.index(match[1]), _PARTS.index(match[2] or match[1])
    return spark.DayTimeIntervalType(first, last) if first <= last else spark.DayTimeIntervalType()


def declared_text(field: pa.Field[Any]) -> str:
    """Returns Spark's text of the declared type of a column, or an empty string."""
    return (field.metadata or {}).get(DECLARED_TYPE, b"").decode(errors="replace")


def raw_type(field: pa.Field[Any]) -> str | None:
    """Returns Spark's text of a type with `CHAR(n)` or `VARCHAR(n)` at any depth, else None.

    Example:
        >>> import pyarrow as pa
        >>> from lance_spark.types.mapping import raw_type
        >>> raw_type(pa.field("c", pa.string(), metadata={"spark.type": "varchar(5)"}))
        'varchar(5)'
    """
    return _raw_text(field) if _has_char(field) else None


def _has_char(field: pa.Field[Any]) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return False
    own = pa.types.is_string(field.type) and CHAR.fullmatch(declared_text(field)) is not None
    return own or any(map(_has_char, children_of(field)))


def _raw_text(field: pa.Field[Any]) -> str:
    if not _has_char(field):
        return spark_type(field, field.name).simpleString()
    children = children_of(field)
    texts = list(map(_raw_text, children))
    if pa.types.is_struct(field.type):
        names = [quote_identifier(child.name) for child in children]
        return f"struct<{','.join(map(':'.join, zip(names, texts, strict=True)))}>"
    if pa.types.is_map(field.type):
        return f"map<{','.join(texts)}>"
    return f"array<{texts[0]}>" if texts else declared_text(field)


def _nested(field: pa.Field[Any], path: str) -> spark.DataType:
    kind = storage_type(field)
    if pa.types.is_struct(kind):
        return _struct(field, path)
    if is_list(kind):
        item = kind.value_field
        return spark.ArrayType(spark_type(item, f"{path}.element"), nullable(item))
    if pa.types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        if pa.types.is_null(key.type):
            raise UnsupportedTypeError(path, str(kind), reason=_UNTYPED_KEYS, hint=_LEAVE_OUT)
        return spark.MapType(
            spark_type(key, f"{path}.key"), spark_type(value, f"{path}.value"), nullable(value)
        )
    raise UnsupportedTypeError(
        path, str(kind), reason="no Spark type holds its values", hint=_LEAVE_OUT
    )


def _struct(field: pa.Field[Any], path: str) -> spark.DataType:
    kind = storage_type(field)
    tagged = any(tag in (child.metadata or {}) for child in kind for tag in _TAGS)
    if tagged and not isinstance(tagged_type := from_arrow_type(kind), spark.StructType):
        return tagged_type
    if is_descriptor(field):
        # A position in a file always fits a bigint, which is easier to use than decimal(20,0). Each
        # value is checked.
        kind = [
            child.with_type(pa.int64()) if pa.types.is_uint64(child.type) else child
            for child in kind
        ]
    return spark.StructType(
        [
            spark.StructField(
                child.name, spark_type(child, f"{path}.{child.name}"), nullable(child)
            )
            for child in kind
        ]
    )


def nullable(field: pa.Field[Any]) -> bool:
    """Tells whether Spark must expect NULLs.

    A void column holds only NULLs, and PySpark cannot build a non-nullable void.
    """
    return bool(field.nullable or pa.types.is_null(field.type))


def _decimal(kind: Kind, path: str) -> spark.DecimalType:
    # Spark allows neither a negative scale nor a scale above the precision. A few more digits hold
    # the same values.
    precision = kind.precision - kind.scale if kind.scale < 0 else max(kind.precision, kind.scale)
    if precision > MOST_DIGITS:
        raise UnsupportedTypeError(
            path,
            str(kind),
            reason=f"it needs {precision} digits, and Spark's decimals have {MOST_DIGITS}",
            hint=f"{_LEAVE_OUT}, or store it as a narrower decimal or as text",
        )
    return spark.DecimalType(precision, max(kind.scale, 0))


def spark_arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Returns the exact Arrow schema that Spark requires from a reader."""
    # PySpark releases without this parameter use UTC.
    timezone: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(schema, **timezone)


def arrow_type(kind: spark.DataType, path: str) -> Kind:
    """Returns the Arrow type of a new Lance column for a Spark type. Nested fields are nullable.

    Args:
        kind: The Spark type.
        path: Dotted path of the column, for the error.

    Raises:
        UnsupportedTypeError: Lance or PySpark's Arrow conversion cannot hold the type.
    """
    plain = _TO_ARROW.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(arrow_field("item", kind.elementType, f"{path}.element"))
    if isinstance(kind, spark.MapType):
        key = arrow_field("key", kind.keyType, f"{path}.key").with_nullable(False)
        if pa.types.is_null(key.type):
            raise UnsupportedTypeError(
                path, kind.simpleString(), reason=_UNTYPED_KEYS, hint="cast it to a map with a type"
            )
        return pa.map_(key, arrow_field("value", kind.valueType, f"{path}.value"))
    if isinstance(kind, spark.StructType):
        return pa.struct([arrow_field(f.name, f.dataType, f"{path}.{f.name}") for f in kind.fields])
    if isinstance(kind, spark.UserDefinedType):
        return arrow_type(kind.sqlType(), path)
    if isinstance(kind, (spark.VariantType, *_SPATIAL)):
        return to_arrow_type(kind)
    raise UnsupportedTypeError(
        path, kind.simpleString(), reason="Lance cannot store it", hint=_remedy(kind, path)
    )


def arrow_field(name: str, kind: spark.DataType, path: str) -> pa.Field[Any]:
    """Returns a new nullable field for a Spark type. Metadata records details beyond Arrow's type.

    Raises:
        UnsupportedTypeError: As in :func:`arrow_type`.
    """
    field = pa.field(name, arrow_type(kind, path))
    text = kind.simpleString()
    is_declared = CHAR.fullmatch(text) or (
        _INTERVAL.fullmatch(text) and kind != spark.DayTimeIntervalType()
    )
    return field.with_metadata({DECLARED_TYPE: text}) if is_declared else field


def types_within(kind: spark.DataType) -> Iterator[spark.DataType]:
    """Yields a Spark type and all types within, at any depth."""
    yield kind
    match kind:
        case spark.ArrayType():
            yield from types_within(kind.elementType)
        case spark.MapType():
            yield from types_within(kind.keyType)
            yield from types_within(kind.valueType)
        case spark.StructType():
            for field in kind.fields:
                yield from types_within(field.dataType)


def has_collation(kind: spark.DataType) -> bool:
    """Tells whether Spark compares text of a type, at any depth, other than by bytes."""
    return any(
        isinstance(part, spark.StringType) and part != spark.StringType()
        for part in types_within(kind)
    )


def _remedy(kind: spark.DataType, path: str) -> str:
    if isinstance(kind, spark.YearMonthIntervalType):
        return f"write months as a number: CAST(CAST(`{path}` AS INTERVAL MONTH) AS INT)"
    if isinstance(kind, spark.CalendarIntervalType):
        return "write its parts as numbers, or use a day-time interval (make_dt_interval)"
    return "cast it to another type first"


def bare(kind: spark.DataType) -> spark.DataType:
    """Returns a type without the details lost in Arrow.

    The details are nullability, metadata, collations, lengths, interval ranges and user-defined
    names.
    Two types with the same bare form have the same values in Arrow.
    """
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(bare(kind.elementType), True)
    if isinstance(kind, spark.MapType):
        return spark.MapType(bare(kind.keyType), bare(kind.valueType), True)
    if isinstance(kind, spark.StructType):
        return spark.StructType(
            [spark.StructField(f.name, bare(f.dataType), True) for f in kind.fields]
        )
    if isinstance(kind, spark.UserDefinedType):
        return bare(kind.sqlType())
    if isinstance(kind, (spark.StringType, spark.CharType, spark.VarcharType)):
        return spark.StringType()
    if isinstance(kind, spark.DayTimeIntervalType):
        return spark.DayTimeIntervalType()
    if _TIME is not None and isinstance(kind, _TIME):
        return _TIME()
    return kind
