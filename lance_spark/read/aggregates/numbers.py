"""Exact arithmetic on the unscaled integers of decimals. Runs on executors.

Decimals of up to 18 digits are stored as integers of 64 bits, and most results fit 64 bits too.
Each result carries a bound, computed from the minimum and maximum of the columns of the batch.
While the bound fits 64 bits, Arrow computes with int64, at one nanosecond per value. Otherwise the
batch is computed again with integers of 256 bits. A result beyond Spark's decimals raises an error,
as Spark does in ANSI mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import ValueConversionError
from lance_spark.read.aggregates.terms import Column, Constant, Term
from lance_spark.read.transfer import low_words
from lance_spark.types.fields import Array, Kind

_Scalar: TypeAlias = Any
"""A number of 64 or 256 bits."""

MAX_BIGINT = (1 << 63) - 1

_BIGINT_DIGITS = 19
_LEAST_TOO_LARGE = 10**38
"""Spark's decimals have up to 38 digits."""

_WIDE = pa.decimal128(38, 0)
_WIDEST = pa.decimal256(76, 0)

_COMPUTE: dict[str, Any] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Unscaled values: integers without the decimal point.

    Attributes:
        values: int64, or decimal256 with scale 0 if int64 may be too small. NULL stays NULL.
        bound: Upper bound of the absolute values.
        scale: Digits after the decimal point.
    """

    values: Array
    bound: int
    scale: int


class Evaluation:
    """Values of terms over one batch. Each term is computed once."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Takes rows in the Arrow types of Spark.

        Columns of terms are integers, or decimals of up to 18 digits.
        """
        self._batch = batch
        self._computed: dict[tuple[Term, bool], Numbers] = {}

    def of(self, term: Term) -> Numbers:
        """Returns the value of a term for each row.

        Raises:
            ValueConversionError: A value has more than 38 digits.
        """
        try:
            return self._evaluated(term, wide=False)
        except _TooLargeError:
            return self._evaluated(term, wide=True)

    def _evaluated(self, term: Term, *, wide: bool) -> Numbers:
        numbers = self._computed.get((term, wide))
        if numbers is None:
            numbers = self._computed[term, wide] = self._evaluate(term, wide=wide)
        return numbers

    def _evaluate(self, term: Term, *, wide: bool) -> Numbers:
        if isinstance(term, Column):
            return _column(term, self._batch, wide=wide)
        if isinstance(term, Constant):
            number = _scalar(term.unscaled, wide=wide)
            return Numbers(pa.repeat(number, self._batch.num_rows), abs(term.unscaled), term.scale)
        left_numbers, right_numbers = (
            self._evaluated(side, wide=wide) for side in (term.left, term.right)
        )
        if term.op == "*":
            bound, scale = (
                left_numbers.bound * right_numbers.bound,
                left_numbers.scale + right_numbers.scale,
            )
        else:
            scale = max(left_numbers.scale, right_numbers.scale)
            left_numbers, right_numbers = (
                _rescaled(side, scale, wide=wide) for side in (left_numbers, right_numbers)
            )
            bound = left_numbers.bound + right_numbers.bound
        _refuse_too_large(bound, wide=wide)
        values = _COMPUTE[term.op](left_numbers.values, right_numbers.values)
        return Numbers(values, _checked_bound(values, bound, term), scale)


class _TooLargeError(Exception):
    """A result may need more than 64 bits."""


def _refuse_too_large(bound: int, *, wide: bool) -> None:
    if bound > MAX_BIGINT and not wide:
        raise _TooLargeError


def _scalar(value: int, *, wide: bool) -> _Scalar:
    _refuse_too_large(abs(value), wide=wide)
    return (
        pa.scalar(Decimal(value), pa.decimal256(len(str(abs(value))), 0))
        if wide
        else pa.scalar(value, pa.int64())
    )


def _column(term: Column, batch: pa.RecordBatch, *, wide: bool) -> Numbers:
    array = batch.column(term.name)
    decimals = pa.types.is_decimal(array.type)
    values = low_words(array) if decimals else array.cast(pa.int64())
    bound = _farthest(values)
    if wide:
        values = values.cast(pa.decimal256(_BIGINT_DIGITS, 0))
    return Numbers(values, bound, array.type.scale if decimals and not term.unscaled else 0)


def _rescaled(numbers: Numbers, scale: int, *, wide: bool) -> Numbers:
    if numbers.scale == scale:
        return numbers
    factor = 10 ** (scale - numbers.scale)
    bound = numbers.bound * factor
    _refuse_too_large(bound, wide=wide)
    return Numbers(pc.multiply(numbers.values, _scalar(factor, wide=wide)), bound, scale)


def _farthest(values: Array) -> int:
    """Returns the largest absolute value."""
    extremes: Any = pc.min_max(values).as_py()
    return max(abs(int(extremes[end] or 0)) for end in ("min", "max"))


def _checked_bound(values: Array, bound: int, term: Term) -> int:
    """Returns the bound, or the largest absolute value if the bound exceeds Spark's decimals."""
    if bound < _LEAST_TOO_LARGE:
        return bound
    largest = _farthest(values)
    if largest >= _LEAST_TOO_LARGE:
        raise _too_large(str(term))
    return largest


def summable(values: Array, bound: int, *, wide: bool) -> Array:
    """Returns values in a type that can hold their sum, whose absolute value is at most `bound`.

    With `wide`, the type is decimal256.
    """
    if wide:
        return values.cast(_WIDEST)
    return values if bound <= MAX_BIGINT else values.cast(_WIDE)


def total(numbers: Numbers) -> int | None:
    """Returns the unscaled sum of all values, or None if all values are NULL."""
    values = numbers.values
    value = pc.sum(
        summable(values, numbers.bound * len(values), wide=values.type != pa.int64())
    ).as_py()
    return None if value is None else int(value)


def as_decimals(values: Array, kind: Kind, what: str) -> Array:
    """Returns unscaled integers as decimals of `kind`.

    Raises:
        ValueConversionError: A value has more digits than `kind`.
    """
    try:
        wide = values.cast(pa.decimal128(kind.precision, 0))
    except pa.ArrowInvalid:
        raise _too_large(what) from None
    return pa.Array.from_buffers(kind, len(wide), wide.buffers(), wide.null_count, wide.offset)


def _too_large(what: str) -> ValueConversionError:
    return ValueConversionError(
        what,
        None,
        "A number has more than the 38 digits of Spark's decimals.",
        hint="Cast the columns to double, or to decimals with fewer digits after the point.",
    )
