"""Converts Arrow tables to pandas DataFrames and Python rows: :func:`to_pandas`, :func:`to_rows`.

Arrow's dates, timestamps and durations have a wider range than the types of Python. pandas keeps
plain timestamps and durations, and uses Python types for dates and for the fields of structs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from lance_spark.errors import OptionError, SchemaMismatchError, ValueConversionError
from lance_spark.types.leaves import shortened
from udf_runtime.execute.conversion.casts import first_failing

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")
_Model = TypeVar("_Model")

MAX_DEPTH = 1_000
"""More levels of structs than a table has."""

_ERRORS = (ValueError, OverflowError, pa.ArrowException)
_HINT = "read the column with to_arrow(), which holds every value, or leave the column out"


def to_pandas(table: pa.Table, arguments: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Returns a table as a data frame.

    Args:
        table: The table.
        arguments: Arguments of `pyarrow.Table.to_pandas`.

    Raises:
        ValueConversionError: A value is outside of the range of Python's type.
    """
    return _convert(table, "pandas", lambda rows: rows.to_pandas(**(arguments or {})))


def check_levels(levels: bool | int | None) -> None:
    """Checks the number of levels of structs to flatten.

    Raises:
        OptionError: The number is 0 or negative.
    """
    if levels is not None and not isinstance(levels, bool) and levels < 1:
        raise OptionError("flatten", levels, "True, or a number of levels, 1 or more")


def flatten_structs(table: pa.Table, levels: bool | int | None) -> pa.Table:
    """Returns a table with fields of structs as columns, down to a level; True is all levels."""
    depth = 0 if not levels else MAX_DEPTH if levels is True else levels
    while depth > 0 and any(pa.types.is_struct(field.type) for field in table.schema):
        table, depth = table.flatten(), depth - 1
    return table


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Returns a table as dicts.

    Raises:
        ValueConversionError: A value is outside of the range of Python's type.
    """
    return _convert(table, "Python", lambda rows: rows.to_pylist())


def to_models(rows: list[dict[str, Any]], model: type[_Model]) -> list[_Model]:
    """Returns rows as objects of a class of pydantic, with the fields of the class.

    Raises:
        SchemaMismatchError: A row does not fit the class.
    """
    names: Mapping[str, object] = model.model_fields  # type: ignore[attr-defined]  # a class of an optional package
    try:
        return [model(**{name: row[name] for name in names if name in row}) for row in rows]
    except ValueError as error:
        raise SchemaMismatchError(
            f"A row does not fit the class {model.__name__}: {error}. Select the columns of the class."
        ) from error


def _convert(table: pa.Table, library: str, convert: Callable[[pa.Table], _T]) -> _T:
    try:
        return convert(table)
    except _ERRORS as error:
        for name in table.schema.names:
            _refuse_misfit(table.select([name]), library, convert)
        names = ", ".join(table.schema.names)
        raise ValueConversionError(
            names, None, f"{library} cannot hold the rows: {error}", hint=_HINT
        ) from error


def _refuse_misfit(column: pa.Table, library: str, convert: Callable[[pa.Table], object]) -> None:
    """Raises an error if a value of the only column cannot be converted."""

    def attempt(start: int, stop: int) -> None:
        try:
            # PyArrow converts all entries of a slice of maps (measured with PyArrow 26).
            convert(column.take(pa.array(range(start, stop), pa.int64())))
        except OverflowError as error:
            raise ValueError(str(error)) from error

    try:
        attempt(0, column.num_rows)
    except (ValueError, pa.ArrowException) as error:
        reason = f"{library} cannot hold a value of {column.schema.field(0).type}: {shortened(str(error))}"
        row = first_failing(column.num_rows, attempt)
        raise ValueConversionError(
            column.schema.names[0], row, reason, hint=_HINT, rows="the result"
        ) from error
