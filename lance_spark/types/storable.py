"""Checks for schemas that Lance cannot store.

Without these checks, Lance would panic in an executor, perhaps hours later.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lance_spark.errors import SchemaMismatchError, UnsupportedTypeError
from lance_spark.types.fields import (
    BLOB_V2,
    Kind,
    check_column_names,
    check_field_names,
    children_of,
    extension_name,
    is_blob,
    storage_type,
)

_FORMATS_BEFORE_2_2 = frozenset({"legacy", "0.1", "2.0", "2.1"})


def check_storable(schema: pa.Schema, data_storage_version: str | None = None) -> None:
    """Checks that Lance can store a schema. Pure.

    Args:
        schema: Schema of a new table.
        data_storage_version: File format of the table. None, `stable` and `next` check only the
            requirements of all formats.

    Raises:
        ColumnNameError: A column or struct field has an invalid name.
        SchemaMismatchError: The schema has no columns.
        UnsupportedTypeError: Lance cannot store a type, or this file format cannot.
    """
    if not schema.names:
        raise SchemaMismatchError(
            "The data has no columns. No table was made. Select at least one column."
        )
    check_column_names(schema.names)
    for field in schema:
        check_field_names(field, field.name)
        _check_type(field, field.name, data_storage_version)


def _check_type(field: pa.Field[Any], path: str, version: str | None) -> None:
    problem = _find_format_problem(field, version) or _find_problem(storage_type(field))
    if problem is not None:
        reason, hint = problem
        raise UnsupportedTypeError(path, str(field.type), reason=reason, hint=hint)
    if is_blob(field):
        return
    is_struct = pa.types.is_struct(storage_type(field))
    for child in children_of(field):
        _check_type(child, f"{path}.{child.name if is_struct else 'element'}", version)


def _find_format_problem(field: pa.Field[Any], version: str | None) -> tuple[str, str] | None:
    """Returns why an older format does not store a field, and a hint."""
    feature = _feature_of_2_2(field) if version in _FORMATS_BEFORE_2_2 else None
    if feature is None:
        return None
    return (
        f"file format {version} has no {feature}",
        "write the table with option data_storage_version=2.2",
    )


def _feature_of_2_2(field: pa.Field[Any]) -> str | None:
    """Returns the feature of file format 2.2 that stores a field, or None."""
    kind = storage_type(field)
    if extension_name(field) == BLOB_V2:
        return "blobs of version 2"
    if pa.types.is_map(kind):
        return "maps"
    if pa.types.is_fixed_size_list(kind) and pa.types.is_struct(_plain_item(kind)):
        return "vectors of structs"
    return None


def _find_problem(kind: Kind) -> tuple[str, str] | None:
    """Returns why no format stores a type, apart from its children, and a hint."""
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 0:
        return "Lance stores no values of no bytes", "cast it to binary"
    if pa.types.is_fixed_size_list(kind):
        item = _plain_item(kind)
        if not (fixed_width(item) or pa.types.is_struct(item)):
            return (
                "a vector's elements must have a fixed width in Lance",
                "write it as an array of any length",
            )
    if pa.types.is_struct(kind):
        doubled = next((name for name in kind.names if kind.names.count(name) > 1), None)
        if doubled is not None:
            return f"two fields have the name {doubled!r}", "rename one of them"
    return None


def _plain_item(kind: Kind) -> Kind:
    """Returns the element type of a vector, through vectors of vectors."""
    item = storage_type(kind.value_field)
    return _plain_item(item) if pa.types.is_fixed_size_list(item) else item


def fixed_width(kind: Kind) -> bool:
    """Tells whether all values of a type have the same width, as vector elements need.

    Measured with formats 2.0 to 2.2.
    """
    return bool(
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_null(kind)
    )
