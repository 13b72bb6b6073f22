"""Columns in any form (Arrow, NumPy, pandas, Python) as Arrow data or a list of Python values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from udf_runtime.execute.casts import vector_array
from udf_runtime.optional import np

if TYPE_CHECKING:
    import pandas as pd


def column_data(column: Any, *, nan_is_null: bool) -> pa.Array[Any] | list[Any] | None:  # noqa: ANN401
    """Returns a column as Arrow data without a Python object per row, or else as a list of values.

    Args:
        column: An Arrow array, a NumPy array of one dimension or two, a pandas series, or a list.
        nan_is_null: Whether NaN in NumPy and pandas data is NULL.

    Returns:
        Arrow data of the column's own type, a list of Python values, or None where the column has
        another form.

    Raises:
        pa.ArrowException, ValueError: The column has no Arrow type, or is too large for one array.
    """
    if isinstance(column, pa.ChunkedArray):
        return one_array(column)
    if isinstance(column, pa.Array):
        return column
    if isinstance(column, np.ndarray):
        return _of_numpy(column, nan_is_null=nan_is_null)
    if is_series(column):
        return _of_series(column, nan_is_null=nan_is_null)
    return column if isinstance(column, list) else None


def one_array(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """Returns the values of all chunks as one array.

    Raises:
        pa.ArrowCapacityError: The values are too large for one array of their type.
    """
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowCapacityError(
            f"the values of the batch are too large for one array of {column.type}; "
            "use a large_ type or smaller batches"
        )
    return array


def is_series(value: object) -> TypeGuard[pd.Series]:
    """Tells whether a value is a pandas series, without an import of pandas."""
    pandas = sys.modules.get("pandas")  # without it there is no series
    return pandas is not None and isinstance(value, pandas.Series)


def _of_numpy(values: np.ndarray, *, nan_is_null: bool) -> pa.Array[Any] | list[Any]:
    if values.ndim == 2 and values.dtype != object:
        flat: Any = pa.array(values.reshape(-1))  # with the mask of a masked array
        return vector_array(flat, pa.list_(flat.type, values.shape[1]), None)
    if values.ndim != 1:
        raise ValueError(f"expected an array of one dimension, got {values.ndim}")
    if values.dtype == object:
        return list(values.tolist())
    array: pa.Array[Any] = pa.array(values, from_pandas=nan_is_null)
    return array


def _of_series(series: pd.Series, *, nan_is_null: bool) -> pa.Array[Any] | list[Any]:
    if series.dtype == object:
        return list(series.tolist())
    array: pa.Array[Any] | pa.ChunkedArray[Any] = pa.array(series, from_pandas=nan_is_null)
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array
