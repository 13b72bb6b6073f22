"""Maps whole schemas: the Spark schema of a table, and the table of a DataFrame."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as spark

from lance_spark.errors import OptionError, UnsupportedTypeError
from lance_spark.options.io_options import COLUMN_OPTIONS
from lance_spark.types.fields import (
    BLOB_ENCODING,
    LANCE_FIELD,
    BlobHandling,
    children_of,
    decode_field,
    encode_field,
    is_blob,
    is_descriptor,
    is_list,
    scan_field,
    storage_type,
    with_children,
    without_private_metadata,
)
from lance_spark.types.mapping import (
    CHAR,
    arrow_field,
    arrow_type,
    bare,
    nullable,
    raw_type,
    spark_type,
)
from lance_spark.types.storable import check_storable, fixed_width

RAW_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""Key of Spark column metadata: the type with `CHAR(n)` and `VARCHAR(n)`, enforced by Spark."""

LIST_SIZE = "arrow.fixed-size-list.size"
ENCODING = "lance.encoding"
COMMENT = "comment"
"""Column options (`<column>.<name>`) or Spark metadata: vector length, and `blob` encoding."""


_USER_TYPES = {
    f"pyspark.{package}.linalg.{name}": name
    for package in ("ml", "mllib")
    for name in ("VectorUDT", "MatrixUDT")
}
"""Classes of Spark's own user-defined types."""


def parse_spark_schema(text: str) -> spark.StructType:
    """Parses a Spark schema from JSON without importing or unpickling a class.

    PySpark imports the class of a user-defined type, and releases before 4.3 unpickle a class in
    the JSON. The metadata of a Parquet file control both.

    Raises:
        UnsupportedTypeError: A column has a user-defined type of another package, or a type that
            PySpark lacks.
        ValueError, TypeError, LookupError: The text is not a schema.
    """
    fields = []
    for field in json.loads(text)["fields"]:
        name = str(field["name"])
        _refuse_user_types(field["type"], name)
        try:
            fields.append(spark.StructField.fromJson(field))
        except (PySparkException, AssertionError) as error:
            described = json.dumps(field["type"])[:100]
            raise UnsupportedTypeError(
                name, described, reason="PySpark does not know it", hint="cast the column"
            ) from error
    return spark.StructType(fields)


def _refuse_user_types(described: object, column: str) -> None:
    """Raises an error for user-defined types in the JSON of a Spark type, at any depth."""
    if not isinstance(described, dict):
        return
    if described.get("type") == "udt" and described.get("pyClass") not in _USER_TYPES:
        name = str(described.get("pyClass") or described.get("class"))[:100]
        reason = "Lance has no user-defined types, and the class would have to be loaded"
        raise UnsupportedTypeError(
            column, name, reason=reason, hint="cast the column to a type of Spark's"
        )
    for key in ("elementType", "keyType", "valueType"):
        _refuse_user_types(described.get(key), f"{column}.{key.removesuffix('Type')}")
    for field in described.get("fields", ()):
        _refuse_user_types(field["type"], f"{column}.{field['name']}")


def to_spark_schema(
    schema: pa.Schema, *, blob_handling: BlobHandling = "descriptor"
) -> spark.StructType:
    """Returns the Spark columns of a Lance table.

    Some Arrow fields differ from the default field of their Spark type (`uint32`, a vector, an
    extension type, field metadata, NOT NULL, ...). Such a column carries its field as metadata
    `lance.field`, so an overwrite or a copy of the table keeps it.

    Args:
        schema: Schema of the table, or of a projection of the table.
        blob_handling: Blob handling.

    Raises:
        UnsupportedTypeError: Spark has no type for a column.
    """
    return spark.StructType([_spark_field(field, blob_handling) for field in schema])


def _spark_field(field: pa.Field[Any], blob_handling: BlobHandling) -> spark.StructField:
    field = without_private_metadata(field)
    scanned = scan_field(field, blob_handling)
    kind = spark_type(scanned, field.name)
    try:
        usual = field.equals(
            pa.field(field.name, arrow_type(kind, field.name)), check_metadata=True
        )
    except UnsupportedTypeError:
        usual = False
    metadata = {} if usual else {LANCE_FIELD: encode_field(field)}
    comment = (field.metadata or {}).get(COMMENT.encode())
    if comment is not None:
        metadata[COMMENT] = comment.decode(errors="replace")
    if raw := raw_type(scanned):
        metadata[RAW_TYPE] = raw
    return spark.StructField(field.name, kind, nullable(scanned), metadata or None)


def to_lance_schema(
    schema: spark.StructType, column_options: Mapping[str, Mapping[str, str]]
) -> pa.Schema:
    """Returns the Arrow schema of a new table for a DataFrame. Runs on the driver.

    Columns are nullable at every depth, as in Spark's own file sources, regardless of the
    nullability of the DataFrame. The exception is a NOT NULL column of a Lance table without NULLs
    according to Spark: it stays NOT NULL. Metadata `lance.field` applies if it matches the column's
    Spark type, and is ignored after a change of type. Other Spark metadata is not stored.

    Args:
        schema: Schema of the DataFrame.
        column_options: Options by column (a dotted path for a nested column, case-insensitive).
            They override column metadata with the same names.

    Raises:
        UnsupportedTypeError: Lance cannot store a column.
        SchemaMismatchError: Lance does not allow the name of a column.
        OptionError: A column option does not fit a column.
    """
    pending = {
        column.lower(): (column, dict(options)) for column, options in column_options.items()
    }
    fields = [_lance_field(field, field.name, pending) for field in schema.fields]
    for column, options in pending.values():
        for name, value in options.items():
            names = ", ".join(schema.names[:20])
            raise OptionError(
                f"{column}.{name}",
                value,
                f"a column of the DataFrame, which has {names}",
                problem="names no column",
            )
    lance_schema = pa.schema(fields)
    check_storable(lance_schema)
    return lance_schema


_PendingOptions = dict[str, tuple[str, dict[str, str]]]


def _lance_field(field: spark.StructField, path: str, pending: _PendingOptions) -> pa.Field[Any]:
    """Builds a field, and removes its options from `pending`."""
    metadata = field.metadata or {}
    table_field = _kept_field(field, path)
    column = (
        arrow_field(field.name, _declared_kind(field), path) if table_field is None else table_field
    )
    own = {name: str(metadata[name]) for name in (LIST_SIZE, ENCODING) if name in metadata}
    return _with_options(column, field, path, pending, own)


def _declared_kind(field: spark.StructField) -> spark.DataType:
    """Returns a field's type with the length in Spark's metadata."""
    text = str((field.metadata or {}).get(RAW_TYPE, ""))
    if isinstance(field.dataType, spark.StringType) and CHAR.fullmatch(text):
        length = int(text[text.index("(") + 1 : -1])
        return spark.VarcharType(length) if text.startswith("varchar") else spark.CharType(length)
    return field.dataType


def _with_options(
    column: pa.Field[Any],
    field: spark.StructField,
    path: str,
    pending: _PendingOptions,
    own: Mapping[str, str],
) -> pa.Field[Any]:
    """Applies the options of a field's children, then its own options and the user's."""
    if isinstance(field.dataType, spark.StructType) and pa.types.is_struct(column.type):
        children = [
            _with_options(child, inner, f"{path}.{inner.name}", pending, {})
            for child, inner in zip(column.type, field.dataType.fields, strict=True)
        ]
        column = column.with_type(pa.struct(children))
    _, user_options = pending.pop(path.lower(), (path, {}))
    return _apply(column, field, path, {**own, **user_options})


def _apply(
    column: pa.Field[Any], field: spark.StructField, path: str, options: Mapping[str, str]
) -> pa.Field[Any]:
    """Returns a field with its column options applied, in the order of the option names."""
    for name, value in sorted(options.items()):
        applied = _APPLY[name](column, value)
        if applied is None:
            accepts = f"{_TAKEN_BY[name]}; this one is {field.dataType.simpleString()}"
            raise OptionError(f"{path}.{name}", value, accepts, problem="does not fit")
        column = applied
    return column


def _as_vector(column: pa.Field[Any], value: str) -> pa.Field[Any] | None:
    kind = storage_type(column)
    fits = is_list(kind) and value.isdecimal() and int(value) > 0
    return column.with_type(pa.list_(kind.value_field, int(value))) if fits else None


def _as_float16(column: pa.Field[Any], value: str) -> pa.Field[Any] | None:  # noqa: ARG001 - always true
    kind = storage_type(column)
    if is_list(kind) and pa.types.is_floating(kind.value_type):
        return column.with_type(with_children(kind, [kind.value_field.with_type(pa.float16())]))
    return column.with_type(pa.float16()) if pa.types.is_floating(kind) else None


def _as_large_text(column: pa.Field[Any], value: str) -> pa.Field[Any] | None:  # noqa: ARG001 - always true
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.with_type(pa.large_string()) if is_text and raw_type(column) is None else None


def _as_blob(column: pa.Field[Any], value: str) -> pa.Field[Any] | None:
    if is_blob(column):
        return column
    if value.lower() != "blob" or not (
        pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    ):
        return None
    # Lance converts it to a version 2 blob if the file format supports blobs of version 2.
    return pa.field(
        column.name,
        pa.large_binary(),
        column.nullable,
        {**(column.metadata or {}), BLOB_ENCODING: b"true"},
    )


def _with_encoding(key: str, column: pa.Field[Any], value: str) -> pa.Field[Any] | None:
    metadata: dict[bytes | str, bytes | str] = dict((column.metadata or {}).items())
    return column.with_metadata({**metadata, key.encode(): value.encode()})


_ENCODING_KEYS = {
    "lance.compression": "lance-encoding:compression",
    "lance.compression-level": "lance-encoding:compression-level",
}

_APPLY: Mapping[str, Callable[[pa.Field[Any], str], pa.Field[Any] | None]] = {
    LIST_SIZE: _as_vector,
    "arrow.float16": _as_float16,
    "arrow.large_var_char": _as_large_text,
    ENCODING: _as_blob,
    **{option: functools.partial(_with_encoding, key) for option, key in _ENCODING_KEYS.items()},
}
_TAKEN_BY = {
    LIST_SIZE: "an array column",
    "arrow.float16": "a column of floats or of arrays of floats",
    "arrow.large_var_char": "a STRING column",
    ENCODING: "a binary column",
}


def column_options_of(field: pa.Field[Any], path: str) -> Iterator[tuple[str, str]]:
    """Yields the options that recreate a column and its struct fields from their Spark types.

    Example:
        >>> import pyarrow as pa
        >>> from lance_spark.types.schemas import column_options_of
        >>> dict(column_options_of(pa.field("v", pa.list_(pa.float16(), 2)), "v"))
        {'v.arrow.fixed-size-list.size': '2', 'v.arrow.float16': 'true'}
    """
    yield from ((f"{path}.{option}", value) for option, value in _own_options(field))
    kind = storage_type(field)
    if pa.types.is_struct(kind) and not is_blob(field):
        for child in kind:
            yield from column_options_of(child, f"{path}.{child.name}")


def _own_options(field: pa.Field[Any]) -> Iterator[tuple[str, str]]:
    kind = storage_type(field)
    if pa.types.is_fixed_size_list(kind) and fixed_width(kind.value_type):
        yield LIST_SIZE, str(kind.list_size)
    if pa.types.is_float16(kind.value_type if is_list(kind) else kind):
        yield "arrow.float16", "true"
    if pa.types.is_large_string(kind):
        yield "arrow.large_var_char", "true"
    if is_blob(field):
        yield ENCODING, "blob"
    for option, key in _ENCODING_KEYS.items():
        value = (field.metadata or {}).get(key.encode(), b"").decode(errors="replace")
        if re.fullmatch(COLUMN_OPTIONS[option][0], value):
            yield option, value


def has_option(field: pa.Field[Any], name: str, value: str) -> bool:
    """Tells whether a column of a table already has the effect of a column option."""
    applied = _APPLY[name](field, value)
    return applied is not None and applied.equals(field, check_metadata=True)


def _kept_field(field: spark.StructField, path: str) -> pa.Field[Any] | None:
    """Returns the Arrow field of a column from its Lance table, if the field still applies."""
    text = (field.metadata or {}).get(LANCE_FIELD)
    table_field = None if text is None else decode_field(text)
    if table_field is None:
        return None
    if _are_descriptors(table_field, field.dataType):
        raise UnsupportedTypeError(
            path,
            field.dataType.simpleString(),
            reason="it says where the bytes of a blob lie in the table that was read, "
            "which another version does not hold",
            hint="read with option blob_handling=bytes, or leave the column out",
        )
    try:
        described = spark_type(scan_field(table_field, "bytes"), path)
    except UnsupportedTypeError:
        return None
    if bare(described) != bare(field.dataType):
        return None
    return _as_nullable_as(
        table_field.with_name(field.name), nullable=field.nullable, kind=field.dataType
    )


def _are_descriptors(table_field: pa.Field[Any], kind: spark.DataType) -> bool:
    """Tells whether a column holds blob descriptors, at any depth, for blobs of its table."""
    if is_descriptor(table_field):
        return True
    scanned = scan_field(table_field, "descriptor")
    return not scanned.equals(table_field) and bare(spark_type(scanned, table_field.name)) == bare(
        kind
    )


def _as_nullable_as(field: pa.Field[Any], *, nullable: bool, kind: spark.DataType) -> pa.Field[Any]:
    """Keeps NOT NULL only if Spark agrees: outer joins add NULLs."""
    field = field.with_nullable(field.nullable or nullable)
    return _with_inner(field, kind, _as_nullable_as)


def as_declared(field: pa.Field[Any], *, nullable: bool, kind: spark.DataType) -> pa.Field[Any]:
    """Returns a field with NOT NULL as declared, at every depth.

    The elements of vectors are nullable, because Lance stores no NOT NULL for vector elements.
    """
    field = field.with_nullable(nullable)
    if pa.types.is_fixed_size_list(field.type):
        return field
    return _with_inner(field, kind, as_declared)


class _Nullability(Protocol):
    """Sets the nullability of a field and its children."""

    def __call__(
        self, field: pa.Field[Any], *, nullable: bool, kind: spark.DataType
    ) -> pa.Field[Any]: ...


def _with_inner(field: pa.Field[Any], kind: spark.DataType, decide: _Nullability) -> pa.Field[Any]:
    """Returns a field with the nullability of its children set."""
    if isinstance(field.type, pa.BaseExtensionType) or isinstance(kind, spark.UserDefinedType):
        return field
    inner: list[tuple[bool, spark.DataType]]
    if isinstance(kind, spark.StructType):
        inner = [(f.nullable, f.dataType) for f in kind.fields]
    elif isinstance(kind, spark.ArrayType):
        inner = [(kind.containsNull, kind.elementType)]
    elif isinstance(kind, spark.MapType):
        inner = [(False, kind.keyType), (kind.valueContainsNull, kind.valueType)]
    else:
        return field
    children = [
        decide(child, nullable=may, kind=of)
        for child, (may, of) in zip(children_of(field), inner, strict=True)
    ]
    return field.with_type(with_children(field.type, children))
