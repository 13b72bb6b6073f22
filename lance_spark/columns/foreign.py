"""PySpark's `pandas_udf` and `arrow_udf` objects as UDFs, recognised by their attributes."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType
from pyspark.util import PythonEvalType

from lance_spark.errors import RegistrationError
from udf_runtime import UDF, Kind
from udf_runtime.definition import as_udf

_KINDS = {
    "SQL_SCALAR_PANDAS_UDF": Kind.PANDAS,
    "SQL_SCALAR_PANDAS_ITER_UDF": Kind.PANDAS_ITER,
    "SQL_SCALAR_ARROW_UDF": Kind.ARROW,
    "SQL_SCALAR_ARROW_ITER_UDF": Kind.ARROW_ITER,
    "SQL_BATCHED_UDF": Kind.SCALAR,
    "SQL_ARROW_BATCHED_UDF": Kind.SCALAR,
}


def to_udf(given: object) -> UDF | None:
    """Returns a UDF of `udf_runtime`, or a PySpark UDF as one; None for anything else.

    Raises:
        RegistrationError: It computes no column: it aggregates, or makes rows.
    """
    own = as_udf(given)
    if own is not None and own.kind.makes_rows:
        raise RegistrationError(
            f"{own.name!r} makes rows, and no value for each row - as a column - make a view of it with "
            "create_udtf_view, or decorate a function that returns one value with @udf"
        )
    if own is not None:
        return own
    func, kind = getattr(given, "func", None), getattr(given, "evalType", None)
    returns = getattr(given, "returnType", None)
    if not callable(func) or not isinstance(kind, int) or not isinstance(returns, DataType):
        return None
    known = {getattr(PythonEvalType, name): kind for name, kind in _KINDS.items() if hasattr(PythonEvalType, name)}
    if kind not in known:
        raise RegistrationError(
            f"PySpark UDF {func.__name__!r} computes no value per row (evalType {kind}) "
            "- a column needs one value per row - give a scalar udf, pandas_udf or arrow_udf"
        )
    return UDF.define(func, kind=known[kind], data_type=_plain(to_arrow_type(returns)))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type without the time zone of a timestamp, which some releases of PySpark add.

    Lance and Spark agree on UTC.
    """
    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind
