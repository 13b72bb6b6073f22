"""Converts values between columns and functions written for PySpark.

Tables hold pickled adapters: the classes keep their names, their module and their arguments.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql import types as spark

from lance_spark.types import ReadConverter
from lance_spark.types.mapping import types_within
from udf_runtime import UDF, Kind
from udf_runtime.execute.conversion.outputs import Output

if TYPE_CHECKING:
    import pandas as pd

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value other than None."""


def has_type(
    kind: spark.DataType, classes: type[spark.DataType] | tuple[type[spark.DataType], ...]
) -> bool:
    """Tells whether a Spark type is, or contains at any depth, a type of some classes."""
    return any(isinstance(part, classes) for part in types_within(kind))


# Rows


class RowAdapter:
    """Calls the function of PySpark's `udf` with the same Python values as Spark.

    A timestamp is a naive datetime in the time zone of the process, a struct a `Row`, and a map a
    dict.
    """

    def __init__(
        self, func: Callable[..., object], inputs: spark.StructType, returns: spark.DataType
    ) -> None:
        """Keeps the user's function with the types of its arguments and results in Spark."""
        self._arguments = func, inputs, returns
        self._func = func
        self._readers = [row_reader(column.dataType) for column in inputs]
        self._write = row_writer(returns)
        self.__signature__ = _signature(func)

    def __reduce__(self) -> tuple[object, ...]:
        return RowAdapter, self._arguments

    def fingerprint_parts(self) -> Iterable[object]:
        """Returns the dependencies of the values."""
        func, inputs, returns = self._arguments
        return "pyspark row", func, inputs.json(), returns.json()

    def __call__(self, *values: object) -> object:
        """Calls the user's function for a row."""
        arguments = [
            value if read is None or value is None else read(value)
            for read, value in zip(self._readers, values, strict=True)
        ]
        result = self._func(*arguments)
        return result if self._write is None or result is None else self._write(result)


def row_reader(kind: spark.DataType) -> Convert | None:
    """Returns the conversion from PyArrow's Python values to Spark's; None if both agree."""
    if isinstance(kind, spark.TimestampType):
        return _to_local
    if isinstance(kind, spark.ArrayType):
        return _each(row_reader(kind.elementType))
    if isinstance(kind, spark.MapType):
        key, value = (
            _or_identity(row_reader(kind.keyType)),
            _or_identity(row_reader(kind.valueType)),
        )
        return lambda pairs: {key(k): value(v) for k, v in pairs}
    if isinstance(kind, spark.StructType):
        names, readers = (
            kind.names,
            [_or_identity(row_reader(field.dataType)) for field in kind.fields],
        )
        make = Row(*names)
        return lambda struct: make(
            *(read(struct[name]) for name, read in zip(names, readers, strict=True))
        )
    return None


def row_writer(kind: spark.DataType) -> Convert | None:
    """Returns the conversion to exact results of Spark's function; None if results are exact."""
    if isinstance(kind, spark.TimestampType):
        return _to_instant
    if isinstance(kind, spark.ArrayType):
        return _each(row_writer(kind.elementType))
    if isinstance(kind, spark.MapType) and has_type(kind, spark.TimestampType):
        key, value = (
            _or_identity(row_writer(kind.keyType)),
            _or_identity(row_writer(kind.valueType)),
        )
        return lambda items: {key(k): value(v) for k, v in items.items()}
    if isinstance(kind, spark.StructType) and has_type(kind, spark.TimestampType):
        names, writers = (
            kind.names,
            [_or_identity(row_writer(field.dataType)) for field in kind.fields],
        )
        return lambda struct: _write_struct(struct, names, writers)
    return None


def _write_struct(struct: Any, names: list[str], writers: list[Convert]) -> object:  # noqa: ANN401
    if isinstance(struct, dict):
        return struct | {
            n: write(struct[n]) for n, write in zip(names, writers, strict=True) if n in struct
        }
    values = struct if isinstance(struct, tuple) else [getattr(struct, name) for name in names]
    return tuple(write(value) for write, value in zip(writers, values, strict=True))


def _to_local(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone().replace(tzinfo=None)


def _to_instant(moment: Any) -> object:  # noqa: ANN401 - a result of any class, which is checked later
    return moment.astimezone(dt.UTC) if isinstance(moment, dt.datetime) else moment


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: [None if item is None else convert(item) for item in items]


def _or_identity(convert: Convert | None) -> Convert:
    return (
        (lambda value: value)
        if convert is None
        else lambda value: None if value is None else convert(value)
    )


# Batches


class BatchAdapter:
    """Calls the function of PySpark's `pandas_udf` or `arrow_udf` with the same arrays as Spark.

    Timestamps are in the time zone of the session that registered the column. In pandas a struct is
    a frame, a map a dict, and integers with NULL are floats.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        fields: Sequence[pa.Field[Any]],
        inputs: spark.StructType,
        returns: spark.DataType,
        kind: Kind,
        time_zone: str,
        result: tuple[str, pa.DataType],
        plain: UDF | None = None,
    ) -> None:
        """Keeps the decisions of the registration.

        Args:
            func: The user's function.
            fields: The input columns in the table.
            inputs: The input columns in Spark.
            returns: The user's declared return type.
            kind: The kind of the user's function.
            time_zone: The time zone of timestamps.
            result: Name of the UDF and the Arrow type of its results.
            plain: The UDF without an adapter, as stored by earlier releases, if the values agree.
        """
        self._func, self._fields, self._inputs, self._returns = func, fields, inputs, returns
        self._kind, self._zone, self._result = kind, time_zone, result
        self.first_form = plain
        self.__signature__ = _signature(func)

    def __getstate__(self) -> dict[str, object]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("first_form", "__signature__")
        }

    def fingerprint_parts(self) -> Iterable[object]:
        """Returns the dependencies of the values."""
        types = [str(field.type) for field in self._fields]
        return (
            "pyspark batch",
            self._func,
            types,
            self._returns.json(),
            self._kind.value,
            self._zone,
        )

    def __call__(self, *arrays: Any) -> object:  # noqa: ANN401 - arrays, or an iterator over arrays
        """Calls the user's function for a batch, or for a stream of batches."""
        if self._kind.iterates:
            return self._stream(arrays[0])
        return self._write_result(self._func(*self._read(arrays)), len(arrays[0]))

    def _stream(self, items: Iterator[Any]) -> Iterator[object]:
        lengths: list[int] = []

        def arguments() -> Iterator[object]:
            for item in items:
                arrays = item if isinstance(item, tuple) else (item,)
                lengths.append(len(arrays[0]))
                converted = self._read(arrays)
                yield converted[0] if len(converted) == 1 else tuple(converted)

        for result in self._func(arguments()):
            yield self._write_result(result, lengths.pop(0) if lengths else len(result))

    def _read(self, arrays: Iterable[pa.Array[Any]]) -> list[Any]:
        fields = [
            field.with_type(array.type) for field, array in zip(self._fields, arrays, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
        columns = ReadConverter(batch.schema, self._inputs).convert(batch).columns
        if self._kind in (Kind.ARROW, Kind.ARROW_ITER):
            return [column.cast(_replace_zone(column.type, self._zone)) for column in columns]
        return [
            self._to_pandas(column, field.dataType, field.name)
            for column, field in zip(columns, self._inputs, strict=True)
        ]

    def _to_pandas(self, column: Any, kind: spark.DataType, name: str) -> pd.Series | pd.DataFrame:  # noqa: ANN401
        if not isinstance(kind, spark.StructType):
            return self._to_series(column, kind).rename(name)
        import pandas as pd

        children = zip(column.flatten(), kind.fields, strict=True)
        frame = pd.concat(
            [self._to_series(child, field.dataType) for child, field in children], axis=1
        )
        frame.columns = kind.names
        return frame

    def _to_series(self, column: Any, kind: spark.DataType) -> pd.Series:  # noqa: ANN401
        if isinstance(kind, spark.TimestampType):
            column = pc.local_timestamp(column.cast(pa.timestamp("us", self._zone)))
        is_nested = isinstance(kind, (spark.ArrayType, spark.MapType))
        series: pd.Series = column.to_pandas(
            coerce_temporal_nanoseconds=True, integer_object_nulls=is_nested
        )
        return series.map(dict, na_action="ignore") if isinstance(kind, spark.MapType) else series

    def _write_result(self, result: Any, rows: int) -> Any:  # noqa: ANN401 - what the user's function returned
        if self._kind in (Kind.ARROW, Kind.ARROW_ITER):
            return result
        name, data_type = self._result
        output = Output(name, data_type, is_columns=False, nan_is_null=True)
        return output.from_batch(self._convert_zones(result), rows)

    def _convert_zones(self, result: Any) -> object:  # noqa: ANN401
        if isinstance(self._returns, spark.TimestampType):
            return _to_instants(result, self._zone)
        if not isinstance(self._returns, spark.StructType) or not hasattr(result, "columns"):
            return result
        names = self._returns.names
        if not any(isinstance(column, str) for column in result.columns):
            result = result.set_axis(names, axis=1)
        zoned = [
            field.name
            for field in self._returns.fields
            if isinstance(field.dataType, spark.TimestampType)
        ]
        return result.assign(
            **{name: _to_instants(result[name], self._zone) for name in zoned if name in result}
        )


def _to_instants(series: Any, zone: str) -> object:  # noqa: ANN401 - a series, or a mistake
    if getattr(getattr(series, "dtype", None), "kind", "") != "M" or series.dt.tz is not None:
        return series
    return series.dt.tz_localize(zone, ambiguous=False).dt.tz_convert("UTC")


def _replace_zone(kind: Any, zone: str) -> Any:  # noqa: ANN401 - its attributes depend on the type
    """Returns an Arrow type with the time zone of timestamps replaced, at any depth."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_replace_zone(field.type, zone)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_replace_zone(kind.value_type, zone)))
    if pa.types.is_map(kind):
        make: Any = pa.map_  # its stubs take no fields
        return make(
            *(
                field.with_type(_replace_zone(field.type, zone))
                for field in (kind.key_field, kind.item_field)
            )
        )
    return kind


def _signature(func: Callable[..., object]) -> inspect.Signature:
    """Returns the parameters of a function without annotations, which describe Spark's values."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(func).parameters.values()
    ]
    return inspect.Signature(parameters)
