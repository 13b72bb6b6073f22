"""Python values as an Arrow array of a type that is not nested: exact or an error.

PyArrow itself drops fractions, small units of time, times of days and time zones. PyArrow converts
only the trusted classes of the table below; all other values are checked here first.
"""

from __future__ import annotations

import array
import contextlib
import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from udf_runtime.execute.conversion.casts import (
    WHOLE_HALF,
    first_overflow,
    has_infinity,
    zero_or_one_rows,
)
from udf_runtime.optional import HAS_NUMPY, np

CONVERSION_ERRORS = (pa.ArrowException, ArithmeticError, ValueError, TypeError, AttributeError)
"""Errors of PyArrow and these modules for misfit values."""

_Trust = Callable[[type], bool]
_Check = Callable[[Any], object]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_CODES = dict(zip(itertools.product((True, False), (8, 16, 32, 64)), "bhiqBHIQ", strict=True))
"""Type codes of Python's arrays, by sign and bits."""

_MAY_BE_MISSING = (float, np.floating, np.datetime64, np.timedelta64, Decimal)
_NO_NUMBERS = (bool, np.bool_, np.datetime64, np.timedelta64, str, bytes, bytearray)
"""Classes that `int` accepts, but that are no numbers of a column."""


def leaf_array(
    values: Sequence[object], data_type: pa.DataType, *, nan_is_null: bool
) -> pa.Array[Any]:
    """Returns values as an array.

    Args:
        values: Python and NumPy values; None is NULL.
        data_type: A type that is not nested.
        nan_is_null: Whether NaN, NaT and NA are NULL, as in pandas.

    Raises:
        CONVERSION_ERRORS: A value does not fit.
    """
    quick = _make_integers(values, data_type) if t.is_integer(data_type) else None
    if quick is not None:
        return quick
    check = _find_check(data_type)
    if check is None:
        array = _make_exact_array(values, data_type, nan_is_null=nan_is_null)
    else:
        array = _make_checked_array(values, data_type, *check, nan_is_null=nan_is_null)
    if t.is_floating(data_type):
        _refuse_booleans(values, array)
    if (t.is_float32(data_type) or t.is_float16(data_type)) and has_infinity(array):
        plain = [_unwrap_scalar(value) for value in values]
        row = first_overflow(leaf_array(plain, pa.float64(), nan_is_null=nan_is_null), array)
        if row is not None:
            raise OverflowError(f"{values[row]} is too large for {data_type}")
    return array


def _make_exact_array(
    values: Sequence[object], data_type: pa.DataType, *, nan_is_null: bool
) -> pa.Array[Any]:
    """Returns values that PyArrow converts exactly or rejects."""
    if not nan_is_null:
        return _make_array(values, data_type, nan_is_null=False)
    # PyArrow knows most missing values of pandas. Other missing values raise an error or become
    # NaN.
    with contextlib.suppress(*CONVERSION_ERRORS):
        array = _make_array(values, data_type, nan_is_null=True)
        if not t.is_floating(data_type) or not pc.any(pc.is_nan(array)).as_py():
            return array
    return _make_array(without_missing(values, set(map(type, values))), data_type, nan_is_null=True)


def _make_checked_array(
    values: Sequence[object],
    data_type: pa.DataType,
    is_trusted: _Trust,
    check: _Check,
    *,
    nan_is_null: bool,
) -> pa.Array[Any]:
    """Returns values as an array, and checks each value of a class that PyArrow may change."""
    classes = set(map(type, values)) - {type(None)}
    are_trusted = all(map(is_trusted, classes))
    if nan_is_null and not classes.issubset((float,) if are_trusted else ()):
        values = without_missing(values, classes)
    if not are_trusted:
        values = [None if value is None else check(_unwrap_scalar(value)) for value in values]
    return _make_array(values, data_type, nan_is_null=nan_is_null)


def _make_integers(values: Sequence[object], data_type: Any) -> pa.Array[Any] | None:  # noqa: ANN401
    """Returns integers as an array; None for values with a need for a check of their classes.

    Python's own arrays reject fractions and all values except integers and booleans. They take half
    as long as PyArrow after a check of all classes.
    """
    if not HAS_NUMPY or type(values) is not list or not values:
        return None
    try:
        numbers = array.array(_CODES[t.is_signed_integer(data_type), data_type.bit_width], values)
    except CONVERSION_ERRORS:
        return None
    rows = np.flatnonzero((np.frombuffer(numbers, data_type.to_pandas_dtype()) | 1) == 1).tolist()
    if bool in set(map(type, _pick_rows(values, rows))):
        return None
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(numbers)])


def _pick_rows(values: Sequence[object], rows: list[int]) -> Iterable[object]:
    """Returns the values of some rows, or all values if this is faster."""
    return values if len(rows) > len(values) // 4 else map(values.__getitem__, rows)


def _refuse_booleans(values: Sequence[object], floats: pa.Array[Any]) -> None:
    """Raises an error for booleans, which PyArrow takes for 0 or 1."""
    if bool in set(map(type, _pick_rows(values, zero_or_one_rows(floats)))):
        raise TypeError("expected a number, got bool")


def is_exact(data_type: pa.DataType) -> bool:
    """Tells whether PyArrow converts values exactly, except for booleans and large floats."""
    is_leaf = not (
        t.is_nested(data_type)
        or t.is_dictionary(data_type)
        or isinstance(data_type, pa.BaseExtensionType)
    )
    return is_leaf and _find_check(data_type) is None


def may_differ(array: Any) -> bool:  # noqa: ANN401 - an array of floats has its own methods
    """Tells whether a float may come from a boolean, or from a number that is too large."""
    return t.is_floating(array.type) and (has_infinity(array) or bool(zero_or_one_rows(array)))


def is_missing(value: object) -> bool:
    """Tells whether a value is None, or stands for a missing value in pandas: NaN, NaT, NA."""
    if isinstance(value, _MAY_BE_MISSING):
        return bool(value != value)  # noqa: PLR0124 - NaN and NaT differ from themselves
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def without_missing(values: Sequence[Any], classes: set[type]) -> Sequence[Any]:
    """Returns values with None for the missing values of pandas.

    Args:
        values: Values of any class.
        classes: The classes of the values.
    """
    if not any(map(_has_missing, classes)):
        return values
    return [None if is_missing(value) else value for value in values]


def _has_missing(cls: type) -> bool:
    return issubclass(cls, _MAY_BE_MISSING) or cls.__name__ in ("NaTType", "NAType")


def _unwrap_scalar(value: object) -> object:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _make_array(values: Any, data_type: pa.DataType, *, nan_is_null: bool) -> pa.Array[Any]:  # noqa: ANN401
    array: pa.Array[Any] | pa.ChunkedArray[Any] = pa.array(
        values, type=data_type, from_pandas=nan_is_null
    )
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowCapacityError(
            f"the values of the batch are too large for one array of {data_type}; use a large_ type or smaller batches"
        )
    return array


# Checks


def _find_check(data_type: Any) -> tuple[_Trust, _Check] | None:  # noqa: ANN401
    """Returns the test for classes with an exact conversion, and the check of other values.

    None if PyArrow converts all values exactly, or rejects them.
    """
    if t.is_integer(data_type):
        return _is_integer, _to_integer
    if t.is_float16(data_type):
        return _is_float, _to_half
    if t.is_date(data_type):
        return _is_one_of(dt.date), partial(_to_date, in_ms=t.is_date64(data_type))
    if t.is_time(data_type):
        return _is_one_of(), partial(_to_time, unit=data_type.unit)
    if t.is_timestamp(data_type):
        fine = data_type.unit in ("us", "ns")
        return _is_one_of(*[dt.datetime] * fine), partial(_to_timestamp, unit=data_type.unit)
    if t.is_duration(data_type):
        fine = data_type.unit in ("us", "ns")
        return _is_one_of(*[dt.timedelta] * fine), partial(_to_duration, unit=data_type.unit)
    return None


def _is_one_of(*classes: type) -> _Trust:
    # Not subclasses, because a datetime is a date, and pandas' classes are subclasses with
    # nanoseconds.
    return classes.__contains__


def _is_integer(cls: type) -> bool:
    return cls is int or (issubclass(cls, np.integer) and not issubclass(cls, np.timedelta64))


def _is_float(cls: type) -> bool:
    return cls is float or cls is getattr(np, "float16", None)


def _to_integer(value: Any) -> int:  # noqa: ANN401
    """Returns a number as an integer."""
    if isinstance(value, _NO_NUMBERS) or not (
        hasattr(value, "__int__") or hasattr(value, "__index__")
    ):
        raise _make_number_error(value)
    whole = int(value)
    if whole != value:
        raise ValueError(f"{value} is not a whole number")
    return whole


def _make_number_error(value: object) -> TypeError:
    return TypeError(f"expected a number, got {type(value).__name__} {value!r}")


def _to_half(value: Any) -> object:  # noqa: ANN401
    """Returns a number in PyArrow's form for 16 bits."""
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, (int, float, np.number)):
        raise _make_number_error(value)
    if isinstance(value, (int, np.integer)) and abs(int(value)) > WHOLE_HALF:
        raise ValueError(f"{value} is not exactly a number of 16 bits")
    return float(value)


def _to_date(value: Any, *, in_ms: bool) -> object:  # noqa: ANN401
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None or value.time() != dt.time() or _read_nanoseconds(value):
            raise ValueError(f"{value} is no date: it has a time of day or a time zone")
        return value.date()
    if isinstance(value, dt.date):
        return value
    scale = _DAY_S * 1000 if in_ms else 1
    if isinstance(value, np.datetime64):
        days = _count_units(value, "D")
        return None if days is None else days * scale
    count = _to_integer(value)
    if count % scale:
        raise ValueError(f"{count} ms are not whole days")
    return count


def _to_time(value: Any, *, unit: str) -> object:  # noqa: ANN401
    if isinstance(value, dt.time):
        if value.tzinfo is not None:
            raise ValueError(f"{value} has a time zone, for which there is no place")
        return _check_unit(value, value.microsecond * 1000, unit)
    count = _to_integer(value)
    if not 0 <= count < _DAY_S * _PER_SECOND[unit]:
        raise ValueError(f"{count} {unit} are no time of a day")
    return count


def _to_timestamp(value: Any, *, unit: str) -> object:  # noqa: ANN401
    if isinstance(value, dt.datetime):
        return _check_unit(
            _to_python(value), value.microsecond * 1000 + _read_nanoseconds(value), unit
        )
    return _count_units(value, unit) if isinstance(value, np.datetime64) else _to_integer(value)


def _to_duration(value: Any, *, unit: str) -> object:  # noqa: ANN401
    if isinstance(value, dt.timedelta):
        return _check_unit(
            _to_python(value), value.microseconds * 1000 + _read_nanoseconds(value), unit
        )
    return _count_units(value, unit) if isinstance(value, np.timedelta64) else _to_integer(value)


def _read_nanoseconds(value: object) -> int:
    """Returns the nanoseconds beyond microseconds of pandas' moments and lengths of time."""
    return int(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def _to_python(value: Any) -> object:  # noqa: ANN401
    """Returns a pandas moment or length of time as Python's, if it has no nanoseconds.

    PyArrow 26 misreads pandas' lengths of time in other units than nanoseconds.
    """
    if _read_nanoseconds(value) or not hasattr(value, "as_unit"):
        return value
    plain: object = (
        value.to_pydatetime() if hasattr(value, "to_pydatetime") else value.to_pytimedelta()
    )
    return plain


def _check_unit(value: object, nanoseconds: int, unit: str) -> object:
    if nanoseconds * _PER_SECOND[unit] % 10**9:
        raise ValueError(f"{value} is not a whole number of {unit}")
    return value


def _count_units(value: Any, unit: str) -> int | None:  # noqa: ANN401
    """Returns NumPy's moment or length of time as a number of units; None for NaT."""
    if np.isnat(value):
        return None
    converted = value.astype(f"{type(value).__name__}[{unit}]")
    if converted.astype(value.dtype) != value:
        raise ValueError(f"{value} is not a whole number of {unit}, or beyond 64 bits of them")
    return int(converted.astype(np.int64))
