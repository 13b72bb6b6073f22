"""Whole schemas: what Spark sees of a table, and the table that a DataFrame makes."""

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
from lance_spark.options import COLUMN_OPTIONS
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
from lance_spark.types.mapping import CHAR, arrow_field, arrow_type, bare, nullable, raw_type, spark_type
from lance_spark.types.storable import check_storable, fixed_width

RAW_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""Key of Spark column metadata: the type with `CHAR(n)` and `VARCHAR(n)`, which Spark enforces."""

LIST_SIZE = "arrow.fixed-size-list.size"
ENCODING = "lance.encoding"
COMMENT = "comment"
"""What may be said of a column by option (`<column>.<name>`) or as its Spark metadata: length of
its vectors; `blob`."""


_USER_TYPES = {
    f"pyspark.{package}.linalg.{name}": name for package in ("ml", "mllib") for name in ("VectorUDT", "MatrixUDT")
}
"""Classes of user-defined types that come with Spark."""


def parse_spark_schema(text: str) -> spark.StructType:
    """Parses a Spark schema from JSON. No schema makes this process import or unpickle a class.

    PySpark imports the class of a user-defined type, and releases before 4.3 unpickle a class that
    the JSON holds. Metadata of a Parquet file choose both.

    Raises:
        UnsupportedTypeError: A column has a user-defined type of another package, or a type that
            PySpark lacks.
        ValueError, TypeError, LookupError: The text is no schema.
    """
    fields = []
    for field in json.loads(text)["fields"]:
        name = str(field["name"])
        _refuse_user_types(field["type"], name)
        try:
            fields.append(spark.StructField.fromJson(field))
        except (PySparkException, AssertionError) as error:
            shown = json.dumps(field["type"])[:100]
            raise UnsupportedTypeError(
                name, shown, reason="PySpark does not know it", hint="cast the column"
            ) from error
    return spark.StructType(fields)


def _refuse_user_types(described: object, column: str) -> None:
    """Refuses user-defined types in the JSON of a Spark type, at any depth."""
    if not isinstance(described, dict):
        return
    if described.get("type") == "udt" and described.get("pyClass") not in _USER_TYPES:
        name = str(described.get("pyClass") or described.get("class"))[:100]
        reason = "Lance has no user-defined types, and the class would have to be loaded"
        raise UnsupportedTypeError(column, name, reason=reason, hint="cast the column to a type of Spark's")
    for key in ("elementType", "keyType", "valueType"):
        _refuse_user_types(described.get(key), f"{column}.{key.removesuffix('Type')}")
    for field in described.get("fields", ()):
        _refuse_user_types(field["type"], f"{column}.{field['name']}")


def to_spark_schema(schema: pa.Schema, *, blob_handling: BlobHandling = "descriptor") -> spark.StructType:
    """Returns the columns of a Lance table as Spark has them.

    A column whose Arrow field is not what its Spark type would make again (`uint32`, a vector, an
    extension type, field metadata, NOT NULL, ...) carries that field as metadata `lance.field`, so
    that an overwrite or a copy of the table keeps it.

    Args:
        schema: Schema of the table, or of a projection of it.
        blob_handling: What blob columns are read as.

    Raises:
        UnsupportedTypeError: Spark has no type that holds a column.
    """
    return spark.StructType([_spark_field(field, blob_handling) for field in schema])


def _spark_field(field: pa.Field[Any], blob_handling: BlobHandling) -> spark.StructField:
    field = without_private_metadata(field)
    scanned = scan_field(field, blob_handling)
    kind = spark_type(scanned, field.name)
    try:
        usual = field.equals(pa.field(field.name, arrow_type(kind, field.name)), check_metadata=True)
    except UnsupportedTypeError:
        usual = False
    metadata = {} if usual else {LANCE_FIELD: encode_field(field)}
    comment = (field.metadata or {}).get(COMMENT.encode())
    if comment is not None:
        metadata[COMMENT] = comment.decode(errors="replace")
    if raw := raw_type(scanned):
        metadata[RAW_TYPE] = raw
    return spark.StructField(field.name, kind, nullable(scanned), metadata or None)


def to_lance_schema(schema: spark.StructType, column_options: Mapping[str, Mapping[str, str]]) -> pa.Schema:
    """Returns the Arrow schema of the table that a DataFrame makes. Runs on the driver.

    Columns are nullable at every depth, as in Spark's own file sources, whatever the DataFrame's
    nullability says; only a column that came from a NOT NULL column of a Lance table, and that
    Spark still says has no NULLs, is NOT NULL again. Metadata `lance.field` is followed where it
    fits the column's Spark type, and ignored where the type has become another one since. Other
    Spark metadata is not stored.

    Args:
        schema: Schema of the DataFrame.
        column_options: Per column (dotted path for a nested one; upper and lower case do not
            matter) the options `arrow.fixed-size-list.size` and `lance.encoding`; they go before
            the column's own metadata of the same names.

    Raises:
        UnsupportedTypeError: Lance cannot store a column.
        SchemaMismatchError: Lance cannot have a column of that name.
        OptionError: A column option does not fit a column.
    """
    wanted = {column.lower(): (column, dict(options)) for column, options in column_options.items()}
    fields = [_lance_field(field, field.name, wanted) for field in schema.fields]
    for column, options in wanted.values():
        for name, value in options.items():
            names = ", ".join(schema.names[:20])
            raise OptionError(
                f"{column}.{name}", value, f"a column of the DataFrame, which has {names}", problem="names no column"
            )
    made = pa.schema(fields)
    check_storable(made)
    return made


_Wanted = dict[str, tuple[str, dict[str, str]]]


def _lance_field(field: spark.StructField, path: str, wanted: _Wanted) -> pa.Field[Any]:
    """Makes one field; takes its options out of `wanted`."""
    metadata = field.metadata or {}
    kept = _kept_field(field, path)
    made = arrow_field(field.name, _declared_kind(field), path) if kept is None else kept
    if isinstance(field.dataType, spark.StructType) and pa.types.is_struct(storage_type(made)):
        below = {column: value for column, value in wanted.items() if column.startswith(f"{path.lower()}.")}
        if below and not isinstance(made.type, pa.BaseExtensionType):
            children = [
                _with_options(child, inner, f"{path}.{inner.name}", wanted)
                for child, inner in zip(made.type, field.dataType.fields, strict=True)
            ]
            made = made.with_type(pa.struct(children))
    own = {name: str(metadata[name]) for name in (LIST_SIZE, ENCODING) if name in metadata}
    _, given = wanted.pop(path.lower(), (path, {}))
    return _apply(made, field, path, {**own, **given})


def _declared_kind(field: spark.StructField) -> spark.DataType:
    """Returns a field's type with the length that Spark keeps in its metadata."""
    text = str((field.metadata or {}).get(RAW_TYPE, ""))
    if isinstance(field.dataType, spark.StringType) and CHAR.fullmatch(text):
        length = int(text[text.index("(") + 1 : -1])
        return spark.VarcharType(length) if text.startswith("varchar") else spark.CharType(length)
    return field.dataType


def _with_options(made: pa.Field[Any], field: spark.StructField, path: str, wanted: _Wanted) -> pa.Field[Any]:
    """Applies the options of a nested field and of those below it, as in :func:`_lance_field`."""
    if isinstance(field.dataType, spark.StructType) and pa.types.is_struct(made.type):
        children = [
            _with_options(child, inner, f"{path}.{inner.name}", wanted)
            for child, inner in zip(made.type, field.dataType.fields, strict=True)
        ]
        made = made.with_type(pa.struct(children))
    _, given = wanted.pop(path.lower(), (path, {}))
    return _apply(made, field, path, given)


def _apply(made: pa.Field[Any], field: spark.StructField, path: str, options: Mapping[str, str]) -> pa.Field[Any]:
    """Returns a field with its column options applied, in the order of the options' names."""
    for name, value in sorted(options.items()):
        applied = _APPLY[name](made, value)
        if applied is None:
            accepts = f"{_TAKEN_BY[name]}; this one is {field.dataType.simpleString()}"
            raise OptionError(f"{path}.{name}", value, accepts, problem="does not fit")
        made = applied
    return made


def _as_vector(made: pa.Field[Any], value: str) -> pa.Field[Any] | None:
    kind = storage_type(made)
    fits = is_list(kind) and value.isdecimal() and int(value) > 0
    return made.with_type(pa.list_(kind.value_field, int(value))) if fits else None


def _as_float16(made: pa.Field[Any], value: str) -> pa.Field[Any] | None:  # noqa: ARG001 - always true
    kind = storage_type(made)
    if is_list(kind) and pa.types.is_floating(kind.value_type):
        return made.with_type(with_children(kind, [kind.value_field.with_type(pa.float16())]))
    return made.with_type(pa.float16()) if pa.types.is_floating(kind) else None


def _as_large_text(made: pa.Field[Any], value: str) -> pa.Field[Any] | None:  # noqa: ARG001 - always true
    is_text = pa.types.is_string(made.type) or pa.types.is_large_string(made.type)
    return made.with_type(pa.large_string()) if is_text and raw_type(made) is None else None


def _as_blob(made: pa.Field[Any], value: str) -> pa.Field[Any] | None:
    if is_blob(made):
        return made
    if value.lower() != "blob" or not (pa.types.is_binary(made.type) or pa.types.is_large_binary(made.type)):
        return None
    # Lance makes a blob of version 2 of it by itself where the file format has them.
    return pa.field(made.name, pa.large_binary(), made.nullable, {**(made.metadata or {}), BLOB_ENCODING: b"true"})


def _with_encoding(key: str, made: pa.Field[Any], value: str) -> pa.Field[Any] | None:
    metadata: dict[bytes | str, bytes | str] = dict((made.metadata or {}).items())
    return made.with_metadata({**metadata, key.encode(): value.encode()})


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
    """Gives the options that make a column and the fields of a struct of their Spark types.

    Example:
        >>> import pyarrow as pa
        >>> from lance_spark.types.schemas import column_options_of
        >>> dict(column_options_of(pa.field("v", pa.list_(pa.float16(), 2)), "v"))
        {'v.arrow.fixed-size-list.size': '2', 'v.arrow.float16': 'true'}
    """
    kind = storage_type(field)
    is_vector = pa.types.is_fixed_size_list(kind) and fixed_width(kind.value_type)
    number = kind.value_type if is_list(kind) else kind
    if is_vector:
        yield f"{path}.{LIST_SIZE}", str(kind.list_size)
    if pa.types.is_float16(number):
        yield f"{path}.arrow.float16", "true"
    if pa.types.is_large_string(kind):
        yield f"{path}.arrow.large_var_char", "true"
    if is_blob(field):
        yield f"{path}.{ENCODING}", "blob"
    for option, key in _ENCODING_KEYS.items():
        value = (field.metadata or {}).get(key.encode(), b"").decode(errors="replace")
        if re.fullmatch(COLUMN_OPTIONS[option][0], value):
            yield f"{path}.{option}", value
    if pa.types.is_struct(kind) and not is_blob(field):
        for child in kind:
            yield from column_options_of(child, f"{path}.{child.name}")


def has_option(field: pa.Field[Any], name: str, value: str) -> bool:
    """Tells whether a column of a table is what a column option makes."""
    applied = _APPLY[name](field, value)
    return applied is not None and applied.equals(field, check_metadata=True)


def _kept_field(field: spark.StructField, path: str) -> pa.Field[Any] | None:
    """Returns the Arrow field that a column has from a Lance table, if it still describes it."""
    text = (field.metadata or {}).get(LANCE_FIELD)
    kept = None if text is None else decode_field(text)
    if kept is None:
        return None
    if _are_descriptors(kept, field.dataType):
        raise UnsupportedTypeError(
            path,
            field.dataType.simpleString(),
            reason="it says where the bytes of a blob lie in the table that was read, "
            "which another version does not hold",
            hint="read with option blob_handling=bytes, or leave the column out",
        )
    try:
        described = spark_type(scan_field(kept, "bytes"), path)
    except UnsupportedTypeError:
        return None
    if bare(described) != bare(field.dataType):
        return None
    return _as_nullable_as(kept.with_name(field.name), nullable=field.nullable, kind=field.dataType)


def _are_descriptors(kept: pa.Field[Any], kind: spark.DataType) -> bool:
    """Tells whether a column holds blob descriptors, at any depth, where its table holds blobs."""
    if is_descriptor(kept):
        return True
    scanned = scan_field(kept, "descriptor")
    return not scanned.equals(kept) and bare(spark_type(scanned, kept.name)) == bare(kind)


def _as_nullable_as(field: pa.Field[Any], *, nullable: bool, kind: spark.DataType) -> pa.Field[Any]:
    """Returns a field that is NOT NULL only where Spark says the same: outer joins bring NULLs."""
    field = field.with_nullable(field.nullable or nullable)
    return _with_inner(field, kind, _as_nullable_as)


def as_declared(field: pa.Field[Any], *, nullable: bool, kind: spark.DataType) -> pa.Field[Any]:
    """Returns a field that is NOT NULL where its declaration says so, at every depth.

    The elements of vectors are nullable: for them Lance keeps no NOT NULL.
    """
    field = field.with_nullable(nullable)
    if pa.types.is_fixed_size_list(field.type):
        return field
    return _with_inner(field, kind, as_declared)


class _Nullability(Protocol):
    """Decides about a field and those below it."""

    def __call__(self, field: pa.Field[Any], *, nullable: bool, kind: spark.DataType) -> pa.Field[Any]: ...


def _with_inner(field: pa.Field[Any], kind: spark.DataType, decide: _Nullability) -> pa.Field[Any]:
    """Returns a field with the nullability of those below it decided."""
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
        decide(child, nullable=may, kind=of) for child, (may, of) in zip(children_of(field), inner, strict=True)
    ]
    return field.with_type(with_children(field.type, children))
