"""Checks for schemas that Lance cannot store.

Without these checks, Lance would panic in an executor, perhaps hours later.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lance_spark.errors import SchemaMismatchError, UnsupportedTypeError
from lance_spark.types.fields import BLOB_V2, Kind, children_of, extension_name, is_blob, storage_type
from lance_spark.types.names import check_column_names, check_field_names

_FORMATS = {"legacy": (0, 1), "0.1": (0, 1), "2.0": (2, 0), "2.1": (2, 1), "2.2": (2, 2)}


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
        raise SchemaMismatchError("the data has no columns. No table was made. Select at least one column")
    check_column_names(schema.names)
    for field in schema:
        check_field_names(field, field.name)
        _check_type(field, field.name, _FORMATS.get(data_storage_version or "", (2, 2)), data_storage_version)


def _check_type(field: pa.Field[Any], path: str, version: tuple[int, int], format_name: str | None) -> None:
    kind = storage_type(field)

    def refuse(reason: str, hint: str) -> UnsupportedTypeError:
        return UnsupportedTypeError(path, str(field.type), reason=reason, hint=hint)

    later = "write the table with option data_storage_version=2.2"
    if pa.types.is_map(kind) and version < (2, 2):
        raise refuse(f"file format {format_name} has no maps", later)
    if extension_name(field) == BLOB_V2 and version < (2, 2):
        raise refuse(f"file format {format_name} has no blobs of version 2", later)
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 0:
        raise refuse("Lance stores no values of no bytes", "cast it to binary")
    if pa.types.is_fixed_size_list(kind):
        item = plain_item(kind)
        if pa.types.is_struct(item) and version < (2, 2):
            raise refuse(f"file format {format_name} has no vectors of structs", later)
        if not (fixed_width(item) or pa.types.is_struct(item)):
            raise refuse("a vector's elements must have a fixed width in Lance", "write it as an array of any length")
    if pa.types.is_struct(kind):
        names = [child.name for child in kind]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            raise refuse(f"two fields have the name {doubled!r}", "rename one of them")
    if is_blob(field):
        return
    for child in children_of(field):
        name = {True: child.name}.get(pa.types.is_struct(kind), "element")
        _check_type(child, f"{path}.{name}", version, format_name)


def plain_item(kind: Kind) -> Kind:
    """Returns the element type of a vector, through vectors of vectors."""
    item = storage_type(kind.value_field)
    return plain_item(item) if pa.types.is_fixed_size_list(item) else item


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
