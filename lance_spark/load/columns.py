"""The columns of a load: validated for the table, and added to the table if new."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import DataType, DecimalType, IntegralType, StructField, StructType

from lance_spark.columns.checking import check_new_names
from lance_spark.commit.conflicts.identity import TOKEN_KEY
from lance_spark.commit.schema_change import change_schema
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnExistsError, SchemaMismatchError, SourceKeysError
from lance_spark.load.request import LoadRequest
from lance_spark.load.sources import Source, refuse_missing
from lance_spark.staging.blobs import row_field
from lance_spark.types import check_storable, check_writable, to_lance_schema, to_spark_schema
from lance_spark.types.mapping import bare

if TYPE_CHECKING:
    import lance

_HASHED = (
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "string",
    "binary",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
)
"""Types of keys except decimals. Equal values of these types are identical."""


def check_keys_of(dataset: lance.LanceDataset, source: Source, request: LoadRequest) -> None:
    """Validates the key on both sides, and that the types of the key are comparable.

    Raises:
        ColumnNotFoundError: A side lacks a column.
        SchemaMismatchError: Lance cannot read the name of a column.
        SourceKeysError: The types differ, or are no types of keys.
    """
    refuse_missing(request.keys, dataset.schema.names, dataset.uri)
    odd = [name for name in (*request.keys, *request.columns) if "`" in name]
    if odd:
        raise SchemaMismatchError(
            f"Column {odd[0]!r} has a backtick in its name, and Lance cannot read it. Rename it in {dataset.uri}."
        )
    ours = to_spark_schema(pa.schema([dataset.schema.field(name) for name in request.keys]))
    for key, source_key in zip(ours.fields, source.schema(request.keys).fields, strict=True):
        _check_key(key, source_key.dataType, source.name, dataset.uri)


def _check_key(key: StructField, source_type: DataType, source: str, uri: str) -> None:
    """Refuses types of a key that differ, or whose values are no keys."""
    kind, source_kind = bare(key.dataType), bare(source_type)
    text = key.dataType.simpleString()
    if kind != source_kind and not (is_whole_number(kind) and is_whole_number(source_kind)):
        raise SourceKeysError(
            f"Key {key.name!r} is {text} in the table and {source_type.simpleString()} in the source. Cast it in the "
            f"source {source}, because rows of {uri} would match, or not, by accident.",
            source=source,
        )
    if kind.simpleString() not in _HASHED and not text.startswith("decimal"):
        raise SourceKeysError(
            f"Key {key.name!r} is {text}, whose values are no keys. Use a column of numbers, text, bytes or times in "
            f"{uri}.",
            source=source,
        )


def is_whole_number(kind: DataType) -> bool:
    """Tells whether Lance may hold values of a Spark type as integers: uint64 is decimal(20,0)."""
    return isinstance(kind, IntegralType) or kind == DecimalType(20, 0)


def new_columns_of(dataset: lance.LanceDataset, source: Source, request: LoadRequest) -> pa.Schema:
    """Validates all columns, and returns the new columns.

    Raises:
        ColumnNotFoundError: The source lacks a column.
        SchemaMismatchError: A column has another type than in the table, or an invalid name.
        UnsupportedTypeError: Lance or Spark does not support the type of a column.
        ColumnExistsError: A new name differs from a name of the table only in capitals.
    """
    loaded = source.schema(request.columns)
    table = {field.name: field for field in dataset.schema}
    existing = [field for field in loaded.fields if field.name in table]
    if existing:
        check_writable(
            StructType(existing), pa.schema([value_field(table[field.name]) for field in existing])
        )
    if request.on_missing == "null":
        _check_nullable([table[field.name] for field in existing], dataset.uri)
    added = [field for field in loaded.fields if field.name not in table]
    return _new_schema(dataset, added) if added else pa.schema([])


def _new_schema(dataset: lance.LanceDataset, columns: Sequence[StructField]) -> pa.Schema:
    check_new_names(dataset, [column.name for column in columns])
    fields = [
        StructField(column.name, column.dataType, True, column.metadata) for column in columns
    ]
    new = pa.schema(
        [field.with_nullable(True) for field in to_lance_schema(StructType(fields), {})]
    )
    check_storable(new, dataset.data_storage_version)
    return new


def _check_nullable(columns: Sequence[pa.Field[Any]], uri: str) -> None:
    for column in columns:
        if not column.nullable:
            raise SchemaMismatchError(
                f"Column {column.name!r} cannot be NULL, and on_missing='null' makes rows without a match NULL. Use "
                f"'carry' or 'error' for {uri}."
            )


def value_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns the field of a column's values in transit: bytes for a blob."""
    return row_field(field).remove_metadata()


def add_new_columns(ref: DatasetRef, new: pa.Schema) -> None:
    """Adds columns of NULLs in one commit without data.

    Raises:
        ColumnExistsError: A concurrent writer added a column of the name with another type.
        CommitConflictError: Concurrent writers kept committing first.
    """
    if not new.names:
        return
    fields = []
    for field in new:
        metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
        fields.append(field.with_metadata({**metadata, TOKEN_KEY: uuid.uuid4().hex.encode()}))

    def add(head: lance.LanceDataset) -> None:
        absent_fields = _not_there(head, fields)
        if absent_fields:
            head.add_columns(pa.schema(absent_fields))

    change_schema(ref, add)


def _not_there(head: lance.LanceDataset, fields: Sequence[pa.Field[Any]]) -> list[pa.Field[Any]]:
    """Returns the columns missing in the latest version. A concurrent load may add them, too."""
    absent_fields, present = [], {field.name: field for field in head.schema}
    for field in fields:
        if field.name not in present:
            absent_fields.append(field)
        elif present[field.name].type != field.type:
            raise ColumnExistsError(
                [field.name], head.uri, hint="a concurrent writer has added it; load again"
            )
    return absent_fields
