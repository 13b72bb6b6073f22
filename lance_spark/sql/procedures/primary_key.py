"""The unenforced primary key of a table: :func:`set_primary_key`. On the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.commit.schema_change import change_schema, set_field_metadata
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, OptionError, UnsupportedOperationError

if TYPE_CHECKING:
    import lance

_IN_KEY = "lance-schema:unenforced-primary-key"
_POSITION = f"{_IN_KEY}:position"
"""Field metadata of Lance: the position in the key counts from 1."""


def set_primary_key(ref: DatasetRef, columns: Sequence[str]) -> None:
    """Declares the columns that identify a row, in order. Lance checks no uniqueness.

    A table keeps its key for good. A second call with the same columns changes nothing.

    Raises:
        OptionError: No column is given, or a column is given twice.
        ColumnNotFoundError: A column does not exist.
        UnsupportedOperationError: A column is nullable or nested, or the table has another key.
            Nothing was changed.
    """
    if not columns or len(set(columns)) < len(columns):
        raise OptionError("columns", list(columns), "one or more columns, each once")

    def declare(head: lance.LanceDataset) -> lance.LanceOperation.BaseOperation | None:
        present = _read_primary_key(head)
        if present == tuple(columns):
            return None
        if present:
            raise _key_error(
                head,
                f"the table has the primary key ({', '.join(present)}), which Lance keeps for good",
            )
        for name in columns:
            _check_column(head, name)
        keys: dict[str, dict[str, str | None]] = {
            name: {_IN_KEY: "true", _POSITION: str(position)}
            for position, name in enumerate(columns, start=1)
        }
        return set_field_metadata(head, keys)

    change_schema(ref, declare)


def _read_primary_key(dataset: lance.LanceDataset) -> tuple[str, ...]:
    fields = [field for field in dataset.lance_schema.fields() if field.is_unenforced_primary_key()]
    return tuple(
        field.name()
        for field in sorted(fields, key=lambda field: field.unenforced_primary_key_position() or 0)
    )


def _check_column(dataset: lance.LanceDataset, name: str) -> None:
    schema = dataset.schema
    if name not in schema.names:
        raise ColumnNotFoundError(
            name, dataset.uri, hint=f"its columns are {', '.join(schema.names)}"
        )
    field = schema.field(name)
    if field.nullable:
        raise _key_error(
            dataset,
            f"the column {name!r} may be NULL, and a primary key has NOT NULL columns, as by CREATE TABLE",
        )
    if pa.types.is_nested(field.type):
        raise _key_error(
            dataset, f"the column {name!r} is nested, and a primary key has columns of plain types"
        )


def _key_error(dataset: lance.LanceDataset, reason: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"The primary key cannot be set: {reason}. Table: {dataset.uri}. Nothing was changed. Name the key in ON of "
        "MERGE INTO instead."
    )
