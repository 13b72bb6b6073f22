"""The columns that a load fills: checked against the table, and added where they are new."""

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

_HASHED = ("tinyint", "smallint", "int", "bigint", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types of keys, but for decimals: two values are equal where they are the same."""


def check_keys_of(dataset: lance.LanceDataset, source: Source, request: LoadRequest) -> None:
    """Checks that the key is there on both sides, with types whose values can be compared.

    Raises:
        ColumnNotFoundError: A column is missing on one side.
        SchemaMismatchError: A column has a name that Lance cannot read.
        SourceKeysError: Their types differ, or are none of keys.
    """
    refuse_missing(request.keys, dataset.schema.names, dataset.uri)
    odd = [name for name in (*request.keys, *request.columns) if "`" in name]
    if odd:
        raise SchemaMismatchError(
            f"column {odd[0]!r} has a backtick in its name, and Lance cannot read it - in {dataset.uri} - rename it"
        )
    ours = to_spark_schema(pa.schema([dataset.schema.field(name) for name in request.keys]))
    for mine, theirs in zip(ours.fields, source.schema(request.keys).fields, strict=True):
        kind, other = bare(mine.dataType), bare(theirs.dataType)
        alike = kind == other or (is_whole_number(kind) and is_whole_number(other))
        shown = mine.dataType.simpleString()
        if not alike:
            raise SourceKeysError(
                f"key {mine.name!r} is {shown} in the table and {theirs.dataType.simpleString()} in the source - "
                f"{dataset.uri} and {source.name} - cast it in the source: rows would match, or not, by accident",
                source=source.name,
            )
        if kind.simpleString() not in _HASHED and not shown.startswith("decimal"):
            raise SourceKeysError(
                f"key {mine.name!r} is {shown}, whose values are no keys - in {dataset.uri} - use a column of numbers, "
                "text, bytes or times",
                source=source.name,
            )


def is_whole_number(kind: DataType) -> bool:
    """Tells whether Lance may hold values of a Spark type as integers: uint64 is decimal(20,0)."""
    return isinstance(kind, IntegralType) or kind == DecimalType(20, 0)


def new_columns_of(dataset: lance.LanceDataset, source: Source, request: LoadRequest) -> pa.Schema:
    """Returns the columns that are to be added, after checking all of them.

    Raises:
        ColumnNotFoundError: A column is not in the source.
        SchemaMismatchError: A column is of another type than the table's, or has no name for one.
        UnsupportedTypeError: Lance or Spark cannot hold it.
        ColumnExistsError: A new one differs from one of the table's only in capitals.
    """
    loaded = source.schema(request.columns)
    existing = [name for name in request.columns if name in dataset.schema.names]
    added = [name for name in request.columns if name not in existing]
    if existing:
        stored = pa.schema([value_field(dataset.schema.field(name)) for name in existing])
        check_writable(StructType([loaded[name] for name in existing]), stored)
    for name in existing:
        if request.on_missing == "null" and not dataset.schema.field(name).nullable:
            raise SchemaMismatchError(
                f"column {name!r} cannot be NULL, and on_missing='null' makes rows without a match NULL - in "
                f"{dataset.uri} - use 'carry' or 'error'"
            )
    if not added:
        return pa.schema([])
    check_new_names(dataset, added)
    fields = [StructField(name, loaded[name].dataType, True, loaded[name].metadata) for name in added]
    new = to_lance_schema(StructType(fields), {})
    new = pa.schema([field.with_nullable(True) for field in new])
    check_storable(new, dataset.data_storage_version)
    return new


def value_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns what a value of a column is while it is on its way: bytes, for a blob."""
    return row_field(field).remove_metadata()


def add_new_columns(ref: DatasetRef, new: pa.Schema) -> None:
    """Adds columns as NULL, in one commit that writes no data.

    Raises:
        ColumnExistsError: A concurrent writer has added one of another type.
        CommitConflictError: Concurrent writers kept changing the table first.
    """
    if not new.names:
        return
    fields = []
    for field in new:
        metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
        fields.append(field.with_metadata({**metadata, TOKEN_KEY: uuid.uuid4().hex.encode()}))

    def add(head: lance.LanceDataset) -> None:
        left = _not_there(head, fields)
        if left:
            head.add_columns(pa.schema(left))

    change_schema(ref, add)


def _not_there(head: lance.LanceDataset, fields: Sequence[pa.Field[Any]]) -> list[pa.Field[Any]]:
    """Returns the columns that the latest version lacks; a concurrent load may add the same."""
    left = []
    for field in fields:
        if field.name not in head.schema.names:
            left.append(field)
        elif head.schema.field(field.name).type != field.type:
            raise ColumnExistsError([field.name], head.uri, hint="a concurrent writer has added it; load again")
    return left
