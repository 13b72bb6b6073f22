"""The primary key of a table, which Lance stores and does not enforce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.commit.schema_change import change_schema, set_field_metadata
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, OptionError

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation

_POSITION_KEY = "lance-schema:unenforced-primary-key:position"
"""Lance's key in the metadata of a field."""

_TYPES = (
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)


def primary_key_of(dataset: lance.LanceDataset) -> list[str]:
    """Returns the columns of the primary key of a version; an empty list without a key."""
    schema: Any = dataset.lance_schema  # its stub lacks the method
    return [field.name() for field in schema.unenforced_primary_key()]


def set_primary_key(ref: DatasetRef, columns: Sequence[str]) -> None:
    """Sets the primary key of a table, once.

    Raises:
        ColumnNotFoundError: The column does not exist.
        OptionError: The columns are not one column, the column accepts NULL or has another type, or
            the table has a primary key.
        CommitConflictError: Concurrent writers kept changing the table first.
    """
    if len(columns) != 1:
        accepted = "one column: a column is required, and compound keys are not supported"
        raise OptionError("columns", ", ".join(columns) or None, accepted)
    column = columns[0]

    def set_key(head: lance.LanceDataset) -> LanceOperation.BaseOperation:
        _check(head, column)
        return set_field_metadata(head, {column: {_POSITION_KEY: "1"}})

    change_schema(ref, set_key)


def _check(head: lance.LanceDataset, column: str) -> None:
    if column not in head.schema.names:
        raise ColumnNotFoundError(
            column,
            head.uri,
            hint=f"the column of the key was not found; the columns are {', '.join(head.schema.names)}",
        )
    key = primary_key_of(head)
    if key:
        raise OptionError(
            "columns",
            column,
            f"no further key: the primary key {key[0]!r} of {head.uri} is already set",
        )
    field = head.schema.field(column)
    if not any(is_type(field.type) for is_type in _TYPES):
        raise OptionError(
            "columns",
            column,
            "a column of int, bigint, string or binary",
            problem=f"has the type {field.type}, which is not supported in a key",
        )
    if field.nullable:
        accepted = "a column that must not be NULL: alter_columns({'path': ..., 'nullable': False})"
        raise OptionError("columns", column, accepted, problem="accepts NULL")
