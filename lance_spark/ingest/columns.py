"""Python, NumPy and pandas data as Arrow columns: :func:`columns_of`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.errors import ColumnNameError, SchemaMismatchError
from lance_spark.ingest.streams import refuse_form
from lance_spark.types.fields import UNSTORABLE, check_column_names
from lance_spark.types.model_schema import is_model, schema_of_model
from lance_spark.types.python_values import (
    inferred_type,
    python_array,
    python_field,
    refuse_mixed_moments,
    vector_field,
)
from udf_runtime.execute.conversion.columns import is_data_frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class PythonColumns:
    """Columns of Python, NumPy or pandas values.

    Attributes:
        values: The columns by name.
        nan_is_null: Whether NaN, NaT and NA are NULL, as in pandas.
        infer: Returns the own types of columns with these names.
    """

    values: Mapping[str, Any]
    infer: Callable[[Mapping[str, Any]], pa.Schema]
    nan_is_null: bool = False

    def to_table(self, target: pa.Schema | None) -> pa.Table:
        """Returns the columns in the types of a target, else in their own types.

        Raises:
            ValueConversionError: A value does not fit.
            pa.ArrowException, ValueError, TypeError: The values of a column have no common type.
        """
        schema = self.infer(self.values) if target is None else target
        fields = [python_field(field) for field in schema if field.name in self.values]
        arrays = [
            python_array(field, self.values[field.name], nan_is_null=self.nan_is_null)
            for field in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields)).replace_schema_metadata(
            schema.metadata
        )


def columns_of(data: object) -> PythonColumns:
    """Returns the columns of a pandas DataFrame, rows, a dict of columns, or a NumPy array.

    Rows are dicts or pydantic models. A NumPy array has named fields. Columns stay unchanged.

    Raises:
        SchemaMismatchError: The data has another form.
    """
    if isinstance(data, PythonColumns):
        return data
    if is_data_frame(data):
        return _pandas_columns(data)
    if isinstance(data, np.ndarray) and data.dtype.names is not None and data.ndim == 1:
        return _plain_columns({name: data[name] for name in data.dtype.names})
    if isinstance(data, (list, tuple)):
        return _row_columns(data)
    if isinstance(data, Mapping) and all(map(_is_column, data.values())):
        return _plain_columns({str(name): values for name, values in data.items()})
    raise refuse_form(data)


def _row_columns(rows: Sequence[Any]) -> PythonColumns:
    classes = set(map(type, rows))
    if classes and all(map(is_model, classes)):
        return _model_columns(rows, classes)
    if not all(issubclass(cls, Mapping) for cls in classes):
        raise refuse_form(next(row for row in rows if not isinstance(row, Mapping)))
    return _plain_columns(_transpose(rows))


def _transpose(rows: Sequence[Mapping[Any, Any]]) -> dict[str, list[Any]]:
    """Returns the columns of rows. A column of later rows is NULL in earlier rows."""
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    return {str(name): [row.get(name) for row in rows] for name in names}


def _is_column(values: object) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, str)


def _model_columns(models: Sequence[Any], classes: set[type]) -> PythonColumns:
    """Returns the columns of pydantic models, with the types of their annotations."""
    if len(classes) > 1:
        names = ", ".join(sorted(cls.__name__ for cls in classes))
        raise SchemaMismatchError(
            f"The data has models of several classes: {names}. Nothing was written. Give models of one class."
        )
    (model,) = classes
    columns = _transpose([_plain_value(row.model_dump()) for row in models])
    return PythonColumns(
        values=columns, infer=lambda values: _with_vectors(_schema_of_model(model), values)
    )


def _plain_value(value: Any) -> Any:  # noqa: ANN401
    """Returns a value of a model without enumerations: their members become values."""
    if isinstance(value, dict):
        return {name: _plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain_value(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value


def _schema_of_model(model: type) -> pa.Schema:
    try:
        return schema_of_model(model)
    except ValueError as error:
        raise SchemaMismatchError(
            f"The model {model.__name__} has no Arrow schema: {str(error).rstrip('.')}. Nothing was written. Pass "
            "schema=, or give [model.model_dump() for model in models]."
        ) from error


def _pandas_columns(data: pd.DataFrame) -> PythonColumns:
    if not data.columns.is_unique:
        names = ", ".join(str(name) for name in data.columns)
        raise SchemaMismatchError(
            f"Two columns of the data have one name: {names}. Nothing was written. Rename a column."
        )

    def infer(values: Mapping[str, Any]) -> pa.Schema:
        for name in data.columns:
            if data[name].dtype == object:
                refuse_mixed_moments(data[name])
        schema = pa.Schema.from_pandas(data, preserve_index=False)
        return _with_vectors(schema, values)

    columns: dict[str, Any] = {str(name): column for name, column in data.items()}
    return PythonColumns(values=columns, infer=infer, nan_is_null=True)


def _plain_columns(columns: dict[str, Any]) -> PythonColumns:
    return PythonColumns(values=columns, infer=_infer_all)


def _infer_all(columns: Mapping[str, Any]) -> pa.Schema:
    check_column_names(list(columns))
    return _with_vectors(
        pa.schema([(name, _infer(name, column)) for name, column in columns.items()]), columns
    )


def _infer(name: str, column: Any) -> pa.DataType:  # noqa: ANN401
    try:
        return inferred_type(column)
    except UnicodeEncodeError as error:
        # Only the names of fields are encoded here.
        raise ColumnNameError(f"{name}.{error.object}", UNSTORABLE, "the table") from error


def _with_vectors(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Schema:
    fields = [vector_field(field, columns[field.name]) for field in schema]
    return pa.schema(fields, metadata=dict((schema.metadata or {}).items()))
