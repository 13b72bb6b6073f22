"""PySpark's `udf`, `pandas_udf` and `arrow_udf` objects as UDFs with the values of Spark.

A column gets the same values as `df.select(udf(...))` in the session of its registration. The
function is wrapped only if the values of Spark and of `udf_runtime` differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from pyspark.util import PythonEvalType

from lance_spark.columns.pyspark_values import (
    BatchAdapter,
    RowAdapter,
    has_type,
    row_reader,
    row_writer,
)
from lance_spark.errors import RegistrationError, UnsupportedTypeError
from lance_spark.types import to_spark_schema
from lance_spark.types.fields import is_blob
from lance_spark.types.mapping import spark_arrow_schema
from udf_runtime import UDF, Kind
from udf_runtime.definition import as_udf
from udf_runtime.errors import end_sentence

_KINDS = {
    "SQL_SCALAR_PANDAS_UDF": Kind.PANDAS,
    "SQL_SCALAR_PANDAS_ITER_UDF": Kind.PANDAS_ITER,
    "SQL_SCALAR_ARROW_UDF": Kind.ARROW,
    "SQL_SCALAR_ARROW_ITER_UDF": Kind.ARROW_ITER,
    "SQL_BATCHED_UDF": Kind.SCALAR,
    "SQL_ARROW_BATCHED_UDF": Kind.SCALAR,
}
_ARROW_KINDS = {Kind.PANDAS: Kind.ARROW, Kind.PANDAS_ITER: Kind.ARROW_ITER}
"""UDFs over pandas, and their Arrow counterparts."""
_NO_COUNTERPART = tuple(
    getattr(spark, name)
    for name in (
        "UserDefinedType",
        "VariantType",
        "YearMonthIntervalType",
        "GeometryType",
        "GeographyType",
    )
    if hasattr(spark, name)
)
_REPAIRED = (
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.DayTimeIntervalType,
    spark.StructType,
    spark.MapType,
)
"""Types with values in pandas that depend on the release of PySpark or of this package."""
_ALIKE_IN_PANDAS = (
    spark.StringType,
    spark.BinaryType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.DateType,
)
_READ_AS_ANOTHER = (pa.types.is_dictionary, pa.types.is_float16, pa.types.is_uint64)
_REMEDY = "Decorate the function with lance_spark.udf, or write df.select('_rowaddr', udf(...)) with mode 'backfill'."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PySparkUDF(UDF):
    """A UDF of PySpark before the types of its input columns are known.

    Attributes:
        returns: The user's declared return type.
    """

    returns: spark.DataType


def to_udf(function: object) -> UDF | None:
    """Returns a UDF of `udf_runtime`, or a PySpark UDF as a :class:`PySparkUDF`; else None.

    Raises:
        RegistrationError: The function aggregates, makes rows, or returns a type without a column.
    """
    own = as_udf(function)
    if own is not None and own.kind.makes_rows:
        raise RegistrationError(
            f"{own.name!r} makes rows, but a column needs one value per row. Make a view of the function with "
            "create_udtf_view, or decorate a function that returns one value with @udf."
        )
    return _to_pyspark_udf(function) if own is None else own


def _to_pyspark_udf(function: object) -> PySparkUDF | None:
    func, kind = getattr(function, "func", None), getattr(function, "evalType", None)
    returns = getattr(function, "returnType", None)
    if not callable(func) or not isinstance(kind, int) or not isinstance(returns, spark.DataType):
        return None
    kinds = {
        getattr(PythonEvalType, name): kind
        for name, kind in _KINDS.items()
        if hasattr(PythonEvalType, name)
    }
    if kind not in kinds:
        raise RegistrationError(
            f"PySpark UDF {func.__name__!r} computes no value per row (evalType {kind}), but a column needs one value "
            "per row. Give a scalar udf, pandas_udf or arrow_udf."
        )
    plain = UDF.define(func, kind=kinds[kind], data_type=_check_return_type(func.__name__, returns))
    return PySparkUDF(returns=returns, **_fields_of(plain))


def _fields_of(udf: UDF) -> dict[str, Any]:
    return {field.name: getattr(udf, field.name) for field in dataclasses.fields(UDF)}


def _check_return_type(name: str, returns: spark.DataType) -> pa.DataType:
    try:
        if not has_type(returns, _NO_COUNTERPART):
            return _to_arrow_type(returns)
    except (PySparkException, TypeError):
        pass
    raise RegistrationError(
        f"PySpark UDF {name!r} returns {returns.simpleString()}, and no column has this type. {_REMEDY}"
    )


def _to_arrow_type(kind: spark.DataType) -> pa.DataType:
    result: pa.DataType = (
        spark_arrow_schema(spark.StructType([spark.StructField("result", kind)])).field(0).type
    )
    return result


def bind_to_columns(udf: UDF, schema: pa.Schema, time_zone: Callable[[], str]) -> UDF:
    """Returns a UDF for input columns: a PySpark UDF computes the same values as in Spark.

    Runs on the driver, when a column is registered. Any other UDF is returned unchanged. So is a
    UDF with absent input columns, which :func:`lance_spark.columns.checking.check_udf` refuses.

    Args:
        udf: The UDF.
        schema: The columns of the table.
        time_zone: Returns the time zone of the session. Called only for vectorised UDFs over
            timestamps; the zone is stored with the UDF.

    Raises:
        RegistrationError: Spark's values of an input column or of the result cannot be computed.
    """
    if not isinstance(udf, PySparkUDF):
        return udf
    plain = UDF(**_fields_of(udf))
    names = udf.input_columns or ()
    if not set(names) <= set(schema.names) or any(is_blob(schema.field(name)) for name in names):
        return plain
    planner = _AdapterPlanner.of(
        udf, [schema.field(name).with_name(f"_{at}") for at, name in enumerate(names)]
    )
    adapter = (
        planner.plan_rows() if udf.kind is Kind.SCALAR else planner.plan_batches(plain, time_zone)
    )
    if adapter is None:
        return plain
    if plain.manifest is not None:
        raise _make_error(
            udf, f"the environment of manifest {plain.manifest.name!r} lacks PySpark's conversions"
        )
    kind = _ARROW_KINDS.get(udf.kind, udf.kind)
    return UDF.define(
        adapter, kind=kind, data_type=udf.data_type, input_columns=list(names), name=udf.name
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdapterPlanner:
    """A UDF of PySpark over columns of a table.

    Attributes:
        udf: The UDF.
        fields: The input columns in the table.
        inputs: The input columns in Spark.
    """

    udf: PySparkUDF
    fields: Sequence[pa.Field[Any]]
    inputs: spark.StructType

    @staticmethod
    def of(udf: PySparkUDF, fields: Sequence[pa.Field[Any]]) -> _AdapterPlanner:
        """Checks that a UDF can read columns."""
        try:
            inputs = to_spark_schema(pa.schema(fields))
        except UnsupportedTypeError as error:
            raise _make_error(udf, str(error)) from error
        for column in inputs:
            if has_type(column.dataType, _NO_COUNTERPART):
                raise _make_error(udf, f"it reads {column.dataType.simpleString()}")
        return _AdapterPlanner(udf=udf, fields=fields, inputs=inputs)

    def plan_rows(self) -> RowAdapter | None:
        """Returns the adapter of a UDF over rows, or None if the values agree without."""
        for field in self.fields:
            differing = next(filter(_differs_in_python, _types_of(field.type)), None)
            if differing is not None:
                raise _make_error(
                    self.udf, f"Spark reads {differing} as another type, cast the column"
                )
        readers = [row_reader(column.dataType) for column in self.inputs]
        if not any(readers) and row_writer(self.udf.returns) is None:
            return None
        return RowAdapter(self.udf.load(), self.inputs, self.udf.returns)

    def plan_batches(self, plain: UDF, time_zone: Callable[[], str]) -> BatchAdapter | None:
        """Returns the adapter of a vectorised UDF, or None if the values agree without."""
        udf, kinds = self.udf, [column.dataType for column in self.inputs]
        zoned = kinds
        if udf.kind in _ARROW_KINDS:
            zoned = [*kinds, udf.returns]
            _check_pandas(udf, zoned)
        has_zone = any(has_type(kind, spark.TimestampType) for kind in zoned)
        if not has_zone and self._are_alike():
            return None
        had_values = not has_zone and not any(has_type(kind, _REPAIRED) for kind in kinds)
        return BatchAdapter(
            udf.load(),
            fields=self.fields,
            inputs=self.inputs,
            returns=udf.returns,
            kind=udf.kind,
            time_zone=_check_zone(udf, time_zone()) if has_zone else "UTC",
            result=(udf.name, udf.data_type),
            plain=plain if had_values else None,
        )

    def _are_alike(self) -> bool:
        is_alike = _is_alike_in_pandas if self.udf.kind in _ARROW_KINDS else _is_alike_in_arrow
        pairs = zip(self.fields, self.inputs, strict=True)
        return all(is_alike(field.type, column.dataType) for field, column in pairs)


def _differs_in_python(kind: Any) -> bool:  # noqa: ANN401 - its attributes depend on the type
    is_fine = (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "ns"
    return is_fine or pa.types.is_uint64(kind) or pa.types.is_date64(kind)


def _types_of(kind: Any) -> Iterator[pa.DataType]:  # noqa: ANN401
    """Yields an Arrow type and all types within."""
    yield kind
    if isinstance(kind, pa.BaseExtensionType):
        yield from _types_of(kind.storage_type)
    elif pa.types.is_dictionary(kind):
        yield from _types_of(kind.value_type)
    else:
        for at in range(kind.num_fields):
            yield from _types_of(kind.field(at).type)


def _check_pandas(udf: PySparkUDF, kinds: Sequence[spark.DataType]) -> None:
    """Refuses nested types with values in pandas that depend on the release of PySpark."""
    for kind in kinds:
        children = (
            [field.dataType for field in kind.fields]
            if isinstance(kind, spark.StructType)
            else [kind]
        )
        if any(_depends_on_release(child) for child in children):
            raise _make_error(udf, f"pandas has no stable form of {kind.simpleString()}")


def _depends_on_release(kind: spark.DataType) -> bool:
    if not isinstance(kind, (spark.StructType, spark.ArrayType, spark.MapType)):
        return False
    parts = [kind.keyType, kind.valueType] if isinstance(kind, spark.MapType) else [kind]
    return any(has_type(part, _REPAIRED) for part in parts)


def _is_alike_in_pandas(kind: pa.DataType, spark_kind: spark.DataType) -> bool:
    """Tells whether a series of a column has the same values as in Spark."""
    leaf = spark_kind.elementType if isinstance(spark_kind, spark.ArrayType) else spark_kind
    return isinstance(leaf, _ALIKE_IN_PANDAS) and not any(
        isinstance(part, pa.BaseExtensionType) or any(is_kind(part) for is_kind in _READ_AS_ANOTHER)
        for part in _types_of(kind)
    )


def _is_alike_in_arrow(kind: Any, spark_kind: spark.DataType) -> bool:  # noqa: ANN401
    """Tells whether Spark gives arrays of the type of a column."""
    arrow: Any = _to_arrow_type(spark_kind)
    is_list_of_leaves = (
        pa.types.is_list(kind) and pa.types.is_list(arrow) and not kind.value_type.num_fields
    )
    return bool(kind.value_type == arrow.value_type if is_list_of_leaves else kind == arrow)


def _check_zone(udf: PySparkUDF, zone: str) -> str:
    compute: Any = pc  # its stubs know no zones
    try:
        compute.local_timestamp(pa.array([0], pa.timestamp("us", zone)))
    except pa.ArrowException as error:
        raise _make_error(udf, f"Arrow does not know the session's time zone {zone!r}") from error
    return zone


def _make_error(udf: UDF, reason: str) -> RegistrationError:
    return RegistrationError(
        f"PySpark UDF {udf.name!r} cannot compute a column with the values of Spark: {end_sentence(reason)} {_REMEDY}"
    )
