"""Results of a UDF as an Arrow array of exactly its type, or an error with the expected type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from udf_runtime.errors import UdfOutputError, end_sentence
from udf_runtime.execute.conversion.casts import can_become, cast, first_failing
from udf_runtime.execute.conversion.columns import column_data, is_data_frame, is_series, one_array
from udf_runtime.execute.conversion.values import CONVERSION_ERRORS, ValueConverter
from udf_runtime.execute.result import shortened
from udf_runtime.optional import np
from udf_runtime.policies.matchers import message_of


class Output:
    """Converts and checks the results of a UDF; stateless and thread-safe."""

    __slots__ = ("_column", "_converter", "data_type", "udf")

    def __init__(
        self,
        udf: str,
        data_type: pa.DataType,
        *,
        is_columns: bool,
        nan_is_null: bool,
        column: str | None = None,
    ) -> None:
        """Prepares for a UDF.

        Args:
            udf: Name of the UDF, for messages.
            data_type: Output type of the UDF.
            is_columns: Whether the struct type stands for several columns, so every field is
                required.
            nan_is_null: Whether NaN stands for NULL, as for UDFs with pandas.
            column: The column of the results among several columns, for messages.
        """
        self.udf = udf
        self._column = column
        self.data_type = data_type
        self._converter = ValueConverter(data_type, nan_is_null=nan_is_null, complete=is_columns)

    def from_rows(
        self, values: list[object], misfit: Callable[[int, UdfOutputError], object] | None = None
    ) -> pa.Array[Any]:
        """Returns the results of single rows as an array.

        Args:
            values: A Python value per row; replacements from `misfit` are stored in this list.
            misfit: Called for each misfit, in order; returns a replacement, or raises. None: the
                error is raised.

        Raises:
            UdfOutputError: A value does not fit.
        """
        try:
            return self._converter.array(values)
        except CONVERSION_ERRORS as failed:
            whole = failed
        for row, error in list(self._converter.misfits(values)):
            failure = self._make_value_error(error, row)
            if misfit is None:
                raise failure from error
            values[row] = misfit(row, failure)
        try:
            return self._converter.array(values)
        except CONVERSION_ERRORS as error:
            # Each value fits alone, and the whole does not: too many bytes for an array.
            raise self._make_value_error(error, None) from whole

    def from_batch(self, result: object, rows: int) -> pa.Array[Any]:
        """Returns the result of a call for a whole batch as an array.

        Args:
            result: An Arrow array, a record batch or table for struct types, a pandas series or
                data frame, a NumPy array, or a list.
            rows: Number of rows in the batch.

        Raises:
            UdfOutputError: The result has another number of rows, or misfit values.
        """
        try:
            array = self._to_array(result)
            if not isinstance(result, (list, np.ndarray)) and not _has_numpy_values(result):
                array.validate(full=True)  # PyArrow makes valid arrays
        except UdfOutputError:
            raise
        except CONVERSION_ERRORS as error:
            raise UdfOutputError(
                f"UDF {self.udf!r} returned {type(result).__name__} that is no {self.data_type}: "
                f"{end_sentence(shortened(message_of(error)))}{self._describe_place(None)} Return one value per row, "
                "of the UDF's data_type.",
                udf=self.udf,
            ) from error
        if len(array) != rows:
            raise UdfOutputError(
                f"UDF {self.udf!r} returned {len(array)} row{'' if len(array) == 1 else 's'} for a batch of {rows}."
                f"{self._describe_place(None)} Return one value per input row.",
                udf=self.udf,
            )
        return self._cast_result(array)

    def _cast_result(self, array: pa.Array[Any]) -> pa.Array[Any]:
        if not can_become(array.type, self.data_type):
            raise UdfOutputError(
                f"UDF {self.udf!r} returned values of the wrong type: expected {self.data_type}, got {array.type}."
                f"{self._describe_place(None)} Convert the result, or declare another data_type.",
                udf=self.udf,
            )
        try:
            return cast(array, self.data_type)
        except CONVERSION_ERRORS as error:
            row = first_failing(
                len(array),
                lambda start, stop: cast(array.slice(start, stop - start), self.data_type),
            )
            raise self._make_value_error(error, row) from error

    def _to_array(self, result: object) -> pa.Array[Any]:
        data = column_data(
            result, nan_is_null=self._converter.nan_is_null, data_type=self.data_type
        )
        if data is not None:
            return self.from_rows(data) if isinstance(data, list) else data
        if isinstance(result, (pa.RecordBatch, pa.Table)):
            return self._make_struct(
                {name: one_array(result.column(name)) for name in result.schema.names},
                result.num_rows,
            )
        if is_data_frame(result):
            series = {str(name): result[name] for name in result.columns}
            return self._make_struct(self._make_children(series), len(result))
        columns = _find_columns(result)
        if columns is None or not t.is_struct(self.data_type):
            raise TypeError(f"expected an array, got {type(result).__name__}")
        arrays = self._make_children(columns)
        return self._make_struct(arrays, len(next(iter(arrays.values()), ())))

    def _make_children(self, columns: Mapping[str, object]) -> dict[str, pa.Array[Any]]:
        return {name: self._make_child(name, column) for name, column in columns.items()}

    def _make_struct(self, columns: Mapping[str, pa.Array[Any]], rows: int) -> pa.Array[Any]:
        if not t.is_struct(self.data_type):
            raise TypeError(
                f"expected one array of {self.data_type}, got columns {', '.join(columns)}"
            )
        names = [field.name for field in self.data_type]
        if set(columns) != set(names):
            raise ValueError(
                f"expected columns {', '.join(names)}, got {', '.join(columns) or 'none'}"
            )
        if not names:
            return pa.array([()] * rows, type=self.data_type)
        arrays = [columns[name] for name in names]
        return pa.StructArray.from_arrays(
            arrays,
            fields=[pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)],
        )

    def _make_child(self, name: str, column: object) -> pa.Array[Any]:
        fields = (
            {field.name: field.type for field in self.data_type}
            if t.is_struct(self.data_type)
            else {}
        )
        if name not in fields:
            raise ValueError(f"expected columns {', '.join(fields) or 'none'}, got {name!r}")
        nan_is_null = self._converter.nan_is_null
        output = Output(
            self.udf, fields[name], is_columns=False, nan_is_null=nan_is_null, column=name
        )
        return output._to_array(column)

    def _make_value_error(self, error: BaseException, row: int | None) -> UdfOutputError:
        return UdfOutputError(
            f"UDF {self.udf!r} returned a value that does not fit {self.data_type}: "
            f"{end_sentence(shortened(message_of(error)))}{self._describe_place(row)} Convert the result, or "
            "declare another data_type.",
            udf=self.udf,
            row=row,
        )

    def _describe_place(self, row: int | None) -> str:
        places = [] if self._column is None else [f"column {self._column!r}"]
        places += [] if row is None else [f"row {row} of the batch"]
        return f" Place: {', '.join(places)}." if places else ""


def _has_numpy_values(result: object) -> bool:
    """Tells whether a result is a pandas series of values in NumPy instead of Arrow."""
    return is_series(result) and isinstance(result.dtype, np.dtype)


def _find_columns(result: object) -> Mapping[str, object] | None:
    """Returns the columns of a mapping, NamedTuple or dataclass of arrays; None otherwise."""
    if isinstance(result, Mapping):
        return {str(name): column for name, column in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return dict(zip(result._fields, result, strict=True))
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return None
