"""Columns in any form (Arrow, NumPy, pandas, Python) as Arrow data or a list of Python values."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from udf_runtime.execute.conversion.casts import vector_array
from udf_runtime.execute.conversion.leaf_values import CONVERSION_ERRORS, is_exact
from udf_runtime.optional import np

if TYPE_CHECKING:
    import pandas as pd


def column_data(
    column: Any,  # noqa: ANN401
    *,
    nan_is_null: bool,
    data_type: pa.DataType | None = None,
) -> pa.Array[Any] | list[Any] | None:
    """Returns a column as Arrow data without a Python object per row, or else as a list of values.

    Args:
        column: An Arrow array, a NumPy array of one or two dimensions, a pandas series, or a list.
        nan_is_null: Whether NaN in NumPy and pandas data is NULL.
        data_type: Type for Python objects of a NumPy array or a series, if PyArrow converts them
            exactly.

    Returns:
        Arrow data, a list of Python values, or None for another form of column. Arrow data has the
        column's own type, or `data_type` for Python objects.

    Raises:
        pa.ArrowException, ValueError: The column has no Arrow type, or is too large for an array.
    """
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return one_array(column)
    if isinstance(column, np.ndarray):
        return _convert_numpy(column, data_type, nan_is_null=nan_is_null)
    if is_series(column):
        return _convert_series(column, data_type, nan_is_null=nan_is_null)
    return column if isinstance(column, list) else None


def one_array(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """Returns an array unchanged, and the values of all chunks as a single array.

    Raises:
        pa.ArrowCapacityError: The values are too large for an array of their type.
    """
    if isinstance(column, pa.Array):
        return column
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowCapacityError(
            f"the values of the batch are too large for one array of {column.type}; "
            "use a large_ type or smaller batches"
        )
    return array


def is_series(value: object) -> TypeGuard[pd.Series]:
    """Tells whether a value is a pandas series, without an import of pandas."""
    return _is_of_pandas(value, "Series")


def is_data_frame(value: object) -> TypeGuard[pd.DataFrame]:
    """Tells whether a value is a data frame of pandas, without an import of pandas."""
    return _is_of_pandas(value, "DataFrame")


def _is_of_pandas(value: object, name: str) -> bool:
    # Without an import of pandas, no value is a pandas object, and an import takes long.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, getattr(pandas, name))


def _convert_numpy(
    values: np.ndarray, data_type: pa.DataType | None, *, nan_is_null: bool
) -> pa.Array[Any] | list[Any]:
    if values.ndim == 2 and values.dtype != object:
        flat: Any = pa.array(values.reshape(-1))  # with the mask of a masked array
        return vector_array(flat, pa.list_(flat.type, values.shape[1]), None)
    if values.ndim != 1:
        raise ValueError(f"expected an array of one dimension, got {values.ndim}")
    if values.dtype == object:
        return _convert_objects(values, data_type, nan_is_null=nan_is_null)
    array: pa.Array[Any] = pa.array(values, from_pandas=nan_is_null)
    return array


def _convert_series(
    series: pd.Series, data_type: pa.DataType | None, *, nan_is_null: bool
) -> pa.Array[Any] | list[Any]:
    if series.dtype == object:
        return _convert_objects(series.to_numpy(), data_type, nan_is_null=nan_is_null)
    array: pa.Array[Any] | pa.ChunkedArray[Any] = pa.array(series, from_pandas=nan_is_null)
    return one_array(array)


def _convert_objects(
    values: np.ndarray, data_type: pa.DataType | None, *, nan_is_null: bool
) -> pa.Array[Any] | list[Any]:
    """Returns Python objects as an array if PyArrow's conversion is exact, else as a list.

    A list of objects costs more than PyArrow's conversion of a text.
    """
    is_masked = isinstance(values, np.ma.MaskedArray)
    if (
        data_type is not None
        and is_exact(data_type)
        and not pa.types.is_floating(data_type)
        and not is_masked
    ):
        with contextlib.suppress(*CONVERSION_ERRORS):
            array: Any = pa.array(values, data_type, from_pandas=nan_is_null)
            if isinstance(array, pa.Array):
                return array
    objects: list[Any] = values.tolist()
    return objects
