"""Arrow fields in Lance: names, extension types, blobs, and fields in Spark's column metadata.

PyArrow shows an extension type as such if the process has imported the package that registers the
type. Otherwise PyArrow shows its storage type with two metadata keys. This module treats both forms
alike.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from lance_spark.errors import ColumnNameError, UnsupportedTypeError

RESERVED = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
"""Names of columns that Lance itself adds to a scan."""

UNSTORABLE = "has a NUL or half of a surrogate pair, which Arrow cannot store"


def check_column_names(names: Sequence[str], where: str = "the table") -> None:
    """Checks the names of new top-level columns, for every way to add or rename a column.

    Args:
        names: The new names.
        where: The table, for the message.

    Raises:
        ColumnNameError: Lance or Spark could not read a column of this name back.
    """
    for name in names:
        if reason := _problem_of(name):
            raise ColumnNameError(name, reason, where)
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise ColumnNameError(name, f"occurs {count} times", where)


def check_field_names(field: pa.Field[Any], path: str, where: str = "the table") -> None:
    """Checks the names of struct fields in a column, at any depth.

    Raises:
        ColumnNameError: Lance could not read the field back.
    """
    is_struct = pa.types.is_struct(storage_type(field))
    for child in children_of(field):
        below = f"{path}.{child.name}" if is_struct else f"{path}.element"
        if is_struct:
            check_field_name(child.name, path, where)
        check_field_names(child, below, where)


def check_field_name(name: str, path: str, where: str = "the table") -> None:
    """Checks the new name of a field of the struct at a path.

    Raises:
        ColumnNameError: Lance could not read the field back.
    """
    if reason := _problem_of_field(name):
        raise ColumnNameError(f"{path}.{name}", reason, where)


def _problem_of(name: str) -> str | None:
    if "." in name or "`" in name:
        return "has a dot or a backtick, which Lance cannot read"
    if name == "*":
        return "means all columns in Lance"
    if name.lower() in RESERVED:
        return "is the name of a column that Lance itself adds"
    return _problem_of_field(name)


def _problem_of_field(name: str) -> str | None:
    if not name:
        return "is empty"
    if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        return UNSTORABLE
    return None


def refuse_unreadable(names: Iterable[str], table: pa.Schema) -> None:
    """Raises an error for columns of another writer with names that Lance can store but not read.

    Raises:
        UnsupportedTypeError: A name is empty or has a backtick.
    """
    for name in names:
        if not name or "`" in name:
            readable = ", ".join(
                candidate for candidate in table.names if candidate and "`" not in candidate
            )
            raise UnsupportedTypeError(
                name,
                str(table.field(name).type),
                reason="Lance cannot read a top-level column whose name is empty or holds a backtick",
                hint=f"leave it out with the option columns, which may name {readable or 'no other column here'}",
            )


def quote_identifier(name: str) -> str:
    """Returns a column name in backticks, for Spark SQL and Lance SQL.

    Doubled backticks are for Spark SQL. Lance SQL cannot express a name with a backtick.
    """
    return "`" + name.replace("`", "``") + "`"


def requested_columns(names: Iterable[str]) -> dict[str, str] | list[str]:
    """Returns columns for `scanner(columns=)`, each as an expression.

    In a list of names, Lance reads the name `*` as all columns.

    Args:
        names: Top-level columns, and dotted paths of nested fields. A path with dots in its parts
            has each part in backticks.

    Returns:
        Expressions by name, in the order of the names; an empty list for no columns.
    """
    return {name: expression_of(name) for name in names} or []


def expression_of(name: str) -> str:
    """Returns a column in Lance SQL. The argument is a name of :func:`requested_columns`."""
    return name if "`" in name else ".".join(map(quote_identifier, name.split(".")))


log = logging.getLogger(__name__)

Kind: TypeAlias = Any
"""A `pa.DataType`. Its attributes depend on the type, and static typing cannot express this."""

Array: TypeAlias = Any
"""A `pa.Array`, for the same reason."""

BlobHandling: TypeAlias = Literal["descriptor", "bytes"]

LANCE_FIELD = "lance.field"
"""Key of Spark column metadata: base64 of a serialised Arrow schema with only the column's field in
the Lance table."""

BLOB_ENCODING = b"lance-encoding:blob"
BLOB_V2 = "lance.blob.v2"
BFLOAT16 = "lance.bfloat16"
JSON = "arrow.json"

EXTENSION_NAME = b"ARROW:extension:name"
_EXTENSION_KEYS = (EXTENSION_NAME, b"ARROW:extension:metadata")

_PRIVATE_PREFIXES = (b"SPARK::", b"lance-spark:")
"""Prefixes of field metadata for a single table or session: Spark's metadata, and this package's
reference to a table column."""

DESCRIPTOR_V1 = pa.struct([pa.field("position", pa.uint64()), pa.field("size", pa.uint64())])
DESCRIPTOR_V2 = pa.struct(
    [
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("position", pa.uint64(), nullable=False),
        pa.field("size", pa.uint64(), nullable=False),
        pa.field("blob_id", pa.uint32(), nullable=False),
        pa.field("blob_uri", pa.string(), nullable=False),
    ]
)
"""Type of an unread blob in a scan: v1 for file formats 2.0 and 2.1, v2 for later formats."""


def storage_type(field: pa.Field[Any]) -> Kind:
    """Returns the type of a field's values: the storage type of an extension type."""
    return field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type


def extension_name(field: pa.Field[Any]) -> str | None:
    """Returns the name of a field's extension type, registered in this process or not."""
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name = (field.metadata or {}).get(EXTENSION_NAME)
    return None if name is None else name.decode()


def is_blob(field: pa.Field[Any]) -> bool:
    """Tells whether a field of a table's schema is a blob column, of either version."""
    if extension_name(field) == BLOB_V2:
        return True
    marked = (field.metadata or {}).get(BLOB_ENCODING, b"").lower() == b"true"
    return marked and (pa.types.is_large_binary(field.type) or pa.types.is_binary(field.type))


def is_descriptor(field: pa.Field[Any]) -> bool:
    """Tells whether a field of a scan's schema holds blob descriptors instead of bytes."""
    marked = (field.metadata or {}).get(BLOB_ENCODING, b"").lower() == b"true"
    return marked and pa.types.is_struct(field.type)


def children_of(field: pa.Field[Any]) -> list[pa.Field[Any]]:
    """Returns a field's children: fields of a struct, item of a list, key and value of a map."""
    kind = storage_type(field)
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if is_list(kind):
        return [kind.value_field]
    return []


def is_list(kind: Kind) -> bool:
    """Tells whether a type is any of Lance's list types."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_text(kind: Kind) -> bool:
    """Tells whether a type is any of Arrow's text types."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_binary(kind: Kind) -> bool:
    """Tells whether a type is any of Arrow's types for bytes of any length."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def with_children(kind: Kind, children: list[pa.Field[Any]]) -> Kind:
    """Returns a nested type with other children."""
    if pa.types.is_struct(kind):
        return pa.struct(children)
    if pa.types.is_map(kind):
        return pa.map_(children[0], children[1], kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(children[0], kind.list_size)
    return pa.large_list(children[0]) if pa.types.is_large_list(kind) else pa.list_(children[0])


def plain_type(kind: Kind) -> Kind:
    """Returns a type with storage types instead of extension types, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    children = children_of(pa.field("", kind))
    plain = [child.with_type(plain_type(child.type)) for child in children]
    return kind if plain == children else with_children(kind, plain)


def without_private_metadata(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns a field without Spark's metadata and column references, at any depth."""
    public: dict[bytes | str, bytes | str] = {
        k: v for k, v in (field.metadata or {}).items() if not k.startswith(_PRIVATE_PREFIXES)
    }
    if len(public) != len(field.metadata or {}):
        field = field.with_metadata(public) if public else field.remove_metadata()
    return _with_converted_children(field, without_private_metadata)


def _with_converted_children(
    field: pa.Field[Any], convert: Callable[[pa.Field[Any]], pa.Field[Any]]
) -> pa.Field[Any]:
    """Returns a field with converted children. Extension types stay unchanged."""
    if isinstance(field.type, pa.BaseExtensionType):
        return field
    children = children_of(field)
    converted = list(map(convert, children))
    if all(
        old.equals(new, check_metadata=True) for old, new in zip(children, converted, strict=True)
    ):
        return field
    return field.with_type(with_children(field.type, converted))


def scan_schema(schema: pa.Schema, blob_handling: BlobHandling = "descriptor") -> pa.Schema:
    """Returns the schema of a full scan: blobs are descriptors or bytes, at any depth."""
    return pa.schema([scan_field(field, blob_handling) for field in schema])


def scan_field(field: pa.Field[Any], blob_handling: BlobHandling) -> pa.Field[Any]:
    """Returns the scan's field for a field of a table's schema."""
    if is_blob(field):
        return _scan_bytes(field) if blob_handling == "bytes" else _scan_descriptor(field)
    return _with_converted_children(field, lambda child: scan_field(child, blob_handling))


def _scan_bytes(blob: pa.Field[Any]) -> pa.Field[Any]:
    metadata = {k: v for k, v in (blob.metadata or {}).items() if k not in _EXTENSION_KEYS}
    return pa.field(blob.name, pa.large_binary(), blob.nullable, metadata or None)


def _scan_descriptor(blob: pa.Field[Any]) -> pa.Field[Any]:
    kind = DESCRIPTOR_V2 if extension_name(blob) == BLOB_V2 else DESCRIPTOR_V1
    return pa.field(blob.name, kind, blob.nullable, {BLOB_ENCODING: b"true"})


def encode_field(field: pa.Field[Any]) -> str:
    """Returns the text form of a field, for the column metadata `lance.field`."""
    schema = pa.schema([without_private_metadata(field)])
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_field(text: object) -> pa.Field[Any] | None:
    """Parses the text form of a field. Returns None for invalid text: any user can set metadata."""
    try:
        return without_private_metadata(
            pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(text), validate=True))).field(0)
        )
    except (ValueError, OSError, pa.ArrowException, IndexError):
        log.warning(
            "column metadata %s is not an Arrow field and is ignored: %.40r", LANCE_FIELD, text
        )
        return None
