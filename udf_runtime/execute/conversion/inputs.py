"""Arguments of a UDF's calls: Python values, Arrow arrays or pandas series, by its kind."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from udf_runtime.definition.parameter_values import value_reader
from udf_runtime.errors import UdfDefinitionError
from udf_runtime.execute.conversion.casts import is_list
from udf_runtime.optional import np

if TYPE_CHECKING:
    import pandas as pd

    from udf_runtime.definition import UDF, Kind, Parameter


_LARGE_ROW_BYTES = 16 << 10


def has_large_rows(batch: pa.RecordBatch) -> bool:
    """Tells whether each call makes the Python values of its own row alone.

    Python values take up to ten times the memory of Arrow's. With large rows, the separate
    conversions take little of the time.
    """
    return batch.num_rows > 1 and batch.nbytes >= _LARGE_ROW_BYTES * batch.num_rows


def _open_blobs(parameter: str, column: pa.Array[Any]) -> list[BinaryIO | None]:
    """Returns the blobs of a column as files; NULL becomes None.

    Raises:
        UdfDefinitionError: The column holds other values than bytes, for example descriptions of
            blobs.
    """
    if not (
        pa.types.is_binary(column.type)
        or pa.types.is_large_binary(column.type)
        or pa.types.is_binary_view(column.type)
    ):
        raise UdfDefinitionError(
            f"The parameter {parameter!r} takes a blob, and its column holds {column.type}. Give a binary column."
        )
    return [None if value is None else io.BytesIO(value) for value in column.to_pylist()]


def check_inputs(udf: UDF, batch: pa.RecordBatch) -> None:
    """Checks the number of columns of a batch against the UDF's parameters.

    Raises:
        UdfDefinitionError: The numbers differ.
    """
    if not udf.kind.takes_batches and batch.num_columns != len(udf.parameters):
        raise UdfDefinitionError(
            f"UDF {udf.name!r} has {len(udf.parameters)} parameters, "
            f"and the batch has {batch.num_columns} columns ({', '.join(batch.schema.names)}). "
            "Give exactly its inputs, in its order."
        )


def scalar_columns(
    batch: pa.RecordBatch, parameters: Sequence[Parameter]
) -> list[Sequence[object]]:
    """Returns the Python values of each column, a value per row; NULL is None.

    Each call makes new values.

    Raises:
        ValueError, OverflowError: Python has no object for a value, for example a date after the
            year 9999.
        Exception: The annotated class of a parameter rejects a value.
    """
    return [
        _make_python_values(column, parameter)
        for column, parameter in zip(batch.columns, parameters, strict=True)
    ]


def scalar_rows(
    batch: pa.RecordBatch, parameters: Sequence[Parameter]
) -> Iterator[tuple[object, ...]]:
    """Yields the Python values of each row; after an error, continues with the next row.

    Raises:
        ValueError: Python has no object for a value of the row.
        Exception: The annotated class of a parameter rejects a value of the row.
    """

    def make_row(row: int) -> tuple[object, ...]:
        values = []
        for parameter, column in zip(parameters, batch.columns, strict=True):
            try:
                values.append(_make_python_values(column.slice(row, 1), parameter)[0])
            except (ValueError, OverflowError) as error:
                text = f"parameter {parameter.name!r} cannot take the value of its column: {error}"
                raise ValueError(text) from error
        return tuple(values)

    return map(make_row, range(batch.num_rows))


def vector_arguments(kind: Kind, batch: pa.RecordBatch) -> tuple[object, ...]:
    """Returns the arguments of a call of a UDF over batches, or an item of iterator kinds.

    Arrow arrays and record batches share the batch's memory. Series come from `to_pandas`, except
    for integers and booleans with NULLs, which are backed by Arrow (`int64[pyarrow]`), because as
    floats, large integers would lose digits, and NULL would be a NaN.
    """
    if kind.takes_batches:
        return (batch,)
    if kind.takes_series:
        return tuple(
            _make_series(column, name)
            for column, name in zip(batch.columns, batch.schema.names, strict=True)
        )
    return tuple(batch.columns)


def _make_python_values(column: pa.Array[Any], parameter: Parameter) -> Sequence[object]:
    if parameter.form == "blob":
        return _open_blobs(parameter.name, column)
    if parameter.form == "numpy":
        storage: Any = column.storage if isinstance(column, pa.ExtensionArray) else column
        if is_list(storage.type):
            return _make_numpy_rows(storage)
    values: list[object] = column.to_pylist()
    read = (
        value_reader(parameter.annotation, where=parameter.name)
        if parameter.form == "python"
        else None
    )
    return values if read is None else [None if value is None else read(value) for value in values]


def _make_numpy_rows(column: Any) -> list[object]:  # noqa: ANN401 - any of three kinds of list arrays
    """Returns a NumPy array per list; all are writable parts of a single copy."""
    rows = len(column)
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        starts = np.arange(column.offset, column.offset + rows + 1, dtype=np.int64) * width
    else:
        starts = column.offsets.to_numpy()
    first, last = int(starts[0]), int(starts[-1])
    items = column.values.slice(first, last - first)
    bounds = (starts - first).tolist()
    if items.null_count or pa.types.is_nested(items.type):
        # Row by row, because a NULL turns a whole integer array into floats, and a row's type must
        # not depend on its neighbours.
        parts = [
            items.slice(start, stop - start).to_numpy(zero_copy_only=False)
            for start, stop in itertools.pairwise(bounds)
        ]
    else:
        flat = np.array(items.to_numpy(zero_copy_only=False))
        parts = [flat[start:stop] for start, stop in itertools.pairwise(bounds)]
    if column.null_count == 0:
        return list(parts)
    return [
        part if valid else None
        for part, valid in zip(parts, column.is_valid().to_pylist(), strict=True)
    ]


def _make_series(column: pa.Array[Any], name: str) -> pd.Series:
    import pandas as pd

    if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([column])), name=name)
    series = column.to_pandas()
    return series.rename(name)
