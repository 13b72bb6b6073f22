"""Converts Python and pandas values to Arrow columns of a table, exactly or with an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import ValueConversionError
from lance_spark.types.fields import JSON, Array, extension_name, is_list, storage_type
from lance_spark.types.leaves import display_value, shortened
from udf_runtime.execute.conversion.casts import can_become, cast, first_failing
from udf_runtime.execute.conversion.columns import column_data
from udf_runtime.execute.conversion.values import CONVERSION_ERRORS, ValueConverter

_MOST_BYTE = 255
_VECTOR_NAME = re.compile("vector|embedding", re.IGNORECASE)
"""Names of columns that hold vectors."""

_HINT = "nothing was written; give values of the column's type"


def python_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns the field of Python values before a write converter checks them.

    JSON becomes text, and the write converter parses the text.
    """
    if extension_name(field) != JSON:
        return field
    return pa.field(field.name, storage_type(field), field.nullable)


def python_array(field: pa.Field[Any], column: Any, *, nan_is_null: bool = False) -> Array:  # noqa: ANN401
    """Returns a column as an array of a field's type. Runs anywhere.

    Args:
        field: The field.
        column: A list or another sequence of Python values, an Arrow or NumPy array, or a pandas
            series.
        nan_is_null: Whether NaN, NaT and NA are NULL, as in pandas.

    Raises:
        ValueConversionError: A value does not fit the type.
        pa.ArrowException, ValueError, TypeError: The values of the column have no common type.
    """
    data = column_data(column, nan_is_null=nan_is_null, data_type=field.type)
    if data is not None and not isinstance(data, list):
        if can_become(data.type, field.type):
            return _cast(field, data)
        data = column.tolist() if hasattr(column, "tolist") else column.to_pylist()
    values = list(column) if data is None else data
    converter = ValueConverter(field.type, nan_is_null=nan_is_null, complete=False)
    try:
        return converter.array(values)
    except CONVERSION_ERRORS as error:
        for row, misfit in converter.misfits(values):
            raise _misfit(field, values[row], row, misfit) from misfit
        raise ValueConversionError(field.name, None, str(error), hint=_HINT) from error


def inferred_type(column: Any, *, nan_is_null: bool = False) -> pa.DataType:  # noqa: ANN401
    """Returns the Arrow type of a column without a declared schema.

    Raises:
        pa.ArrowException, ValueError, TypeError: The values have no common type.
    """
    data = column_data(column, nan_is_null=nan_is_null)
    if data is not None and not isinstance(data, list):
        kind: pa.DataType = data.type
        return kind
    refuse_mixed_moments(column if data is None else data)
    infer: Any = pa.infer_type  # Its stubs require a mask.
    inferred: pa.DataType = infer(list(column) if data is None else data, from_pandas=nan_is_null)
    return inferred


def vector_field(field: pa.Field[Any], column: Any) -> pa.Field[Any]:  # noqa: ANN401
    """Returns the field of vectors for lists of numbers in a column of vectors, else the field.

    The name of the column contains `vector` or `embedding`, as for LanceDB. The lists have one
    length. The elements become float32, or stay float16. Whole numbers from 0 to 255 become uint8.

    Args:
        field: The field with the inferred type.
        column: Python, NumPy or pandas values. Arrow values keep their type.
    """
    kind: Any = field.type
    is_declared = isinstance(column, (pa.Array, pa.ChunkedArray)) or hasattr(
        getattr(column, "dtype", None), "pyarrow_dtype"
    )
    if is_declared or not _VECTOR_NAME.search(field.name) or not is_list(kind):
        return field
    if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        return field
    if pa.types.is_fixed_size_list(kind):
        lengths = {kind.list_size}
    else:
        lengths = {len(values) for values in column if hasattr(values, "__len__")}
    if len(lengths) != 1 or lengths == {0}:
        return field
    return field.with_type(pa.list_(_element_type(kind.value_type, column), lengths.pop()))


def _element_type(kind: pa.DataType, vectors: Any) -> pa.DataType:  # noqa: ANN401
    """Returns the type of the elements of vectors."""
    if pa.types.is_integer(kind):
        numbers: Any = pa.array(list(vectors), from_pandas=True).flatten()
        extremes: Any = pc.min_max(numbers).as_py()
        is_byte = extremes["min"] is None or (
            extremes["min"] >= 0 and extremes["max"] <= _MOST_BYTE
        )
        return pa.uint8() if is_byte else pa.float32()
    return kind if pa.types.is_float16(kind) else pa.float32()


def refuse_mixed_moments(values: Iterable[object]) -> None:
    """Raises an error for NumPy datetimes next to other NumPy numbers: PyArrow 26 ends the process.

    Raises:
        TypeError: The values have no common type.
    """
    classes = set(map(type, values))
    if np.datetime64 in classes and any(
        issubclass(cls, np.generic) for cls in classes - {np.datetime64}
    ):
        names = ", ".join(sorted(cls.__name__ for cls in classes))
        raise TypeError(f"the values have no type in common: {names}")


def _cast(field: pa.Field[Any], array: Array) -> Array:
    try:
        return cast(array, field.type)
    except pa.ArrowException as error:
        row = first_failing(
            len(array), lambda start, stop: cast(array.slice(start, stop - start), field.type)
        )
        raise _misfit(field, array[row], row, error) from error


def _misfit(
    field: pa.Field[Any], value: object, row: int, error: BaseException
) -> ValueConversionError:
    text = display_value(value) if isinstance(value, pa.Scalar) else shortened(repr(value))
    return ValueConversionError(
        field.name,
        row,
        f"value {text} does not fit {field.type}: {error}",
        hint=_HINT,
        rows="the data",
    )
