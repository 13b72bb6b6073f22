"""The assignments of an update, validated for a version: :func:`check_assignments`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    UnsupportedOperationError,
    ValueConversionError,
    panics_as_errors,
)
from lance_spark.lance_compat import plain
from lance_spark.read.filtering import check_filter
from lance_spark.staging.blobs import is_logical_blob, row_field
from lance_spark.types import WriteConverter
from lance_spark.types.fields import is_blob
from lance_spark.types.mapping import raw_type
from lance_spark.types.python_values import python_array, python_field

if TYPE_CHECKING:
    import lance

_PLAN_ERRORS = (ValueError, OSError, RuntimeError, NotImplementedError)
"""Exceptions of pylance for an invalid expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """The assignments of an update.

    Attributes:
        where: Condition on rows in Lance SQL; None for all rows.
        values: Values by column.
        expressions: Expressions in Lance SQL by column.
    """

    where: str | None
    values: Mapping[str, object]
    expressions: Mapping[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """The assigned columns."""
        return (*self.values, *self.expressions)


def check_where(dataset: lance.LanceDataset, where: str | None, uri: str) -> None:
    """Validates a condition in Lance SQL by planning a scan.

    Raises:
        FilterError: The condition is not valid.
        OptionError: The condition is no text.
    """
    if where is None:
        return
    if not isinstance(where, str) or not where.strip():
        raise OptionError("where", where, "a condition in Lance SQL, such as id > 5")
    check_filter(dataset, where, uri, "descriptor")


def check_assignments(
    dataset: lance.LanceDataset, assignments: Assignments, uri: str
) -> pa.RecordBatch | None:
    """Validates an update for a version, and returns a row of the values; None without values.

    Raises:
        ColumnNotFoundError, OptionError, FilterError, ValueConversionError: The update does not fit
            the table.
        UnsupportedOperationError: An expression is assigned to a blob.
    """
    check_where(dataset, assignments.where, uri)
    schema = dataset.schema
    names = frozenset(schema.names)
    for name in assignments.columns:
        if name not in names:
            raise ColumnNotFoundError(name, uri, hint=f"its columns are {', '.join(schema.names)}")
    for name, text in assignments.expressions.items():
        _refuse_expression(schema.field(name), text, uri)
    for planned in _plan_expressions(dataset, assignments.expressions):
        _refuse_other_type(
            planned, schema.field(planned.name).type, assignments.expressions[planned.name]
        )
    if not assignments.values:
        return None
    fields = [row_field(schema.field(name)) for name in assignments.values]
    arrays = [
        _constant(field, value)
        for field, value in zip(fields, assignments.values.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _refuse_expression(field: pa.Field[Any], text: str, uri: str) -> None:
    """Refuses a column that no expression can set."""
    name = field.name
    if not isinstance(text, str) or not text.strip():
        raise OptionError(
            f"values_sql[{name!r}]", text, "an expression in Lance SQL, such as price * 2"
        )
    if is_blob(field) or is_logical_blob(row_field(field)):
        raise UnsupportedOperationError(
            f"An expression in Lance SQL cannot make the blobs of column {name!r}. Table: {uri}. Nothing was changed. "
            "Set bytes with values, or write the column with df.write.format('lance').option('mode', 'backfill')."
        )
    if (declared := raw_type(field)) is not None:
        raise UnsupportedOperationError(
            f"no expression in Lance SQL checks the lengths of column {name!r}, which is {declared}. Table: {uri}. "
            "Nothing was changed. Set the column with values, or with UPDATE of a SQL catalog."
        )


def _plan_expressions(
    dataset: lance.LanceDataset, expressions: Mapping[str, str]
) -> list[pa.Field[Any]]:
    """Returns the planned columns of expressions, by a single scan if all are valid."""
    try:
        return _plan_columns(dataset, expressions)
    except _PLAN_ERRORS:
        planned: list[pa.Field[Any]] = []
    for name, text in expressions.items():
        try:
            planned += _plan_columns(dataset, {name: text})
        except _PLAN_ERRORS as error:
            raise OptionError(
                f"values_sql[{name!r}]",
                text,
                f"an expression in Lance SQL over the table's columns ({plain(error)})",
            ) from error
    return planned


def _plan_columns(
    dataset: lance.LanceDataset, expressions: Mapping[str, str]
) -> list[pa.Field[Any]]:
    if not expressions:
        return []
    with panics_as_errors():
        schema = (
            dataset.scanner(columns=dict(expressions), limit=0, with_row_id=True).to_table().schema
        )
    return [schema.field(name) for name in expressions]


def _refuse_other_type(planned: pa.Field[Any], kind: pa.DataType, text: str) -> None:
    """Refuses an expression whose type has no cast to the column's type."""
    if planned.type == kind:
        return
    try:
        pa.nulls(1, planned.type).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        accepted = f"an expression of type {kind}, which the column has, and not {planned.type}"
        raise OptionError(f"values_sql[{planned.name!r}]", text, accepted) from error


def _constant(field: pa.Field[Any], value: object) -> pa.Array[Any]:
    hint = "nothing was changed; give a value of the column's type"
    if value is None and not field.nullable:
        raise ValueConversionError(
            field.name, None, "NULL for a column that may not hold it", hint=hint
        )
    plain = python_field(field)
    try:
        batch = pa.RecordBatch.from_arrays(
            [python_array(plain, [value])], schema=pa.schema([plain])
        )
        constant: pa.Array[Any] = (
            WriteConverter(batch.schema, pa.schema([field])).convert(batch).column(0)
        )
    except ValueConversionError as error:
        raise ValueConversionError(error.column, None, error.reason, hint=hint) from error
    return constant


def names_of(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns column names from a name or a list of names."""
    return (columns,) if isinstance(columns, str) else tuple(columns)
