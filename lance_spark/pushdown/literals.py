"""Comparisons of one stored column with one literal, in Lance SQL that means what Spark means.

Spark and Lance disagree about the edges of their types: Lance refuses a literal that does not fit
the stored type (`u8 > -1` is an error), has other NaNs, stores other units of time, and parses
`1.23` as a float. So each stored type has a :class:`Domain` that writes comparisons so that they
hold for the rows for which Spark's comparison is TRUE, and for no others: Spark filters again, but
a limit above its filter is applied to what Lance selects.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, cast

import pyarrow as pa

Comparison = Literal["=", "<>", "<", "<=", ">", ">="]

NEVER = "FALSE"
"""Lance SQL that selects no row."""

_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint", "decimal(20,0)"})


class UntranslatableError(Exception):
    """A comparison cannot be written so that it surely selects every row that Spark selects."""


class Domain(ABC):
    """How the values of one stored type compare with a literal."""

    __slots__ = ()

    spark_types: frozenset[str]
    """Spark types, as catalog strings, that a column and a literal may have."""

    @abstractmethod
    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401 - a JSON value
        """Returns SQL that is TRUE where Spark's comparison is, and nowhere else.

        Args:
            column: The column in Lance SQL, already quoted.
            op: The comparison.
            value: JSON value of the literal, never None.

        Raises:
            UntranslatableError: There is no such SQL.
        """

    def accepts(self, spark_type: str) -> bool:
        """Tells whether literals and columns of a Spark type have the values of this domain."""
        return spark_type in self.spark_types


@dataclass(frozen=True, slots=True)
class Discrete(Domain):
    """Types whose values are whole numbers of some unit: integers, decimals, dates, timestamps.

    A literal is brought to the stored unit exactly. Where it falls between two stored values or
    outside of all, the comparison becomes one with the neighbouring value, `FALSE`, or
    `IS NOT NULL`.

    Attributes:
        spark_types: As in :class:`Domain`.
        low: Smallest stored value, in stored units.
        high: Largest stored value.
        units: Stored units per unit of Spark's literal: 100 for a decimal of scale 2, 1/1000 for
            milliseconds.
        literal: Lance SQL for a stored value, with `{}` for its number.
        scale: Digits after the point, where a stored value is written with one.
    """

    spark_types: frozenset[str]
    low: int
    high: int
    units: Fraction
    literal: str
    scale: int = 0

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        digits = str(value)
        if op == "=" and self.units == 1 and digits.lstrip("-").isdigit():  # quick, for long lists of keys
            number = int(digits)
            return f"{column} = {self._encode(number)}" if self.low <= number <= self.high else NEVER
        exact = Fraction(Decimal(digits)) * self.units
        if op in ("=", "<>"):
            if exact.denominator != 1 or not self.low <= exact <= self.high:
                return NEVER if op == "=" else f"{column} IS NOT NULL"
            return f"{column} {op} {self._encode(int(exact))}"
        bound = math.ceil(exact) if op in ("<", ">=") else math.floor(exact)
        if op in ("<", "<="):
            if bound < self.low or (op == "<" and bound == self.low):
                return NEVER
            holds_for_all = bound > self.high or (op == "<=" and bound == self.high)
        else:
            if bound > self.high or (op == ">" and bound == self.high):
                return NEVER
            holds_for_all = bound < self.low or (op == ">=" and bound == self.low)
        return f"{column} IS NOT NULL" if holds_for_all else f"{column} {op} {self._encode(bound)}"

    def _encode(self, stored: int) -> str:
        if self.scale:
            digits = f"{abs(stored):0{self.scale + 1}d}"
            return self.literal.format(f"{'-' if stored < 0 else ''}{digits[: -self.scale]}.{digits[-self.scale :]}")
        # -9223372036854775808 is a float to Lance's parser, 9223372036854775808 negated.
        if stored == -(1 << 63):
            return self.literal.format(f"arrow_cast('{stored}', 'Int64')")
        return self.literal.format(stored)


@dataclass(frozen=True, slots=True)
class Floating(Domain):
    """Floats of 16, 32 and 64 bits.

    To Spark all NaNs are equal and greater than everything, and -0.0 equals 0.0. Lance treats the
    zeros so too, but compares NaNs by their bits, and those with the sign bit set are smaller than
    everything: every "greater" adds `isnan`, and every "less" takes it away.

    Attributes:
        spark_types: As in :class:`Domain`.
        bits: Width of the stored type.
    """

    spark_types: frozenset[str]
    bits: Literal[16, 32, 64]

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        number = float(value)
        if math.isnan(number):
            return {
                "=": f"isnan({column})",
                ">=": f"isnan({column})",
                ">": NEVER,
                "<=": f"{column} IS NOT NULL",
            }.get(op, f"NOT isnan({column})")
        if not self._is_exact(number):
            if op == "=":
                return NEVER
            if op == "<>":
                return f"{column} IS NOT NULL"
            raise UntranslatableError
        compared = f"{column} {op} {self._encode(number)}"
        if op in (">", ">="):
            return f"({compared} OR isnan({column}))"
        return f"({compared} AND NOT isnan({column}))" if op in ("<", "<=") else compared

    def _is_exact(self, number: float) -> bool:
        form = {16: "<e", 32: "<f", 64: "<d"}[self.bits]
        try:
            return bool(struct.unpack(form, struct.pack(form, number))[0] == number)
        except OverflowError:
            return False

    @staticmethod
    def _encode(number: float) -> str:
        if math.isinf(number):
            return f"CAST('{'-' if number < 0 else ''}Infinity' AS double)"
        return repr(number + 0.0)


@dataclass(frozen=True, slots=True)
class Text(Domain):
    """Strings, also large and dictionary-encoded ones.

    Lance orders them by their bytes, as Spark's UTF8_BINARY does (measured).
    """

    spark_types: frozenset[str] = frozenset({"string"})

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        return f"{column} {op} {quote(value)}"


@dataclass(frozen=True, slots=True)
class Bytes(Domain):
    """Binary values, ordered by unsigned bytes on both sides.

    Attributes:
        spark_types: As in :class:`Domain`.
        size: Width of a fixed-size binary; Lance refuses a literal of another length.
    """

    spark_types: frozenset[str] = frozenset({"binary"})
    size: int | None = None

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        content = base64.b64decode(value)
        if self.size is not None and len(content) != self.size:
            if op == "=":
                return NEVER
            if op == "<>":
                return f"{column} IS NOT NULL"
            raise UntranslatableError
        return f"{column} {op} X'{content.hex()}'"


@dataclass(frozen=True, slots=True)
class Truth(Domain):
    """Booleans; FALSE is smaller than TRUE on both sides."""

    spark_types: frozenset[str] = frozenset({"boolean"})

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        return f"{column} {op} {'true' if value else 'false'}"


def quote(text: str) -> str:
    """Returns a string literal of Lance SQL, where only the quote itself is special."""
    return "'" + text.replace("'", "''") + "'"


_UNITS = {
    "s": ("Second", 1, 1_000_000),
    "ms": ("Millisecond", 1, 1_000),
    "us": ("Microsecond", 1, 1),
    "ns": ("Nanosecond", 1_000, 1),
}

_ZONE = re.compile(r"[A-Za-z0-9_+:/-]+")


def domain_of(type_: pa.DataType) -> Domain | None:
    """Returns the domain of a stored type, or None where Spark keeps comparisons to itself."""
    if pa.types.is_dictionary(type_):
        return domain_of(type_.value_type) if _is_text(type_.value_type) else None
    if pa.types.is_integer(type_):
        signed = pa.types.is_signed_integer(type_)
        bits = type_.bit_width
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return Discrete(_INTEGERS, low, high, Fraction(1), "{}")
    if pa.types.is_decimal128(type_):
        if type_.scale < 0:
            return None
        limit = 10**type_.precision - 1
        name = f"decimal({type_.precision},{type_.scale})"
        # In quotes, because a bare 1.23 is a float to Lance.
        literal = f"CAST('{{}}' AS {name})"
        return Discrete(frozenset({name}), -limit, limit, Fraction(10**type_.scale), literal, type_.scale)
    if pa.types.is_date32(type_):
        return Discrete(frozenset({"date"}), -(1 << 31), (1 << 31) - 1, Fraction(1), "arrow_cast({}, 'Date32')")
    if pa.types.is_timestamp(type_):
        return _timestamp(type_)
    if pa.types.is_floating(type_):
        return Floating(
            frozenset({"double"} if type_.bit_width == 64 else {"float"}), cast(Literal[16, 32, 64], type_.bit_width)
        )
    if _is_text(type_):
        return Text()
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return Bytes()
    if pa.types.is_fixed_size_binary(type_):
        return Bytes(size=type_.byte_width)
    if pa.types.is_boolean(type_):
        return Truth()
    return None


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def _timestamp(type_: pa.TimestampType[Any, Any]) -> Domain | None:
    unit, up, down = _UNITS[type_.unit]
    tz = cast("str | None", type_.tz)
    if tz is not None and not _ZONE.fullmatch(tz):
        return None
    # The values are instants since the epoch in both systems: the zone only has to be the stored
    # one.
    zone = "None" if tz is None else f'Some("{tz}")'
    spark = "timestamp_ntz" if tz is None else "timestamp"
    literal = f"arrow_cast({{}}, 'Timestamp({unit}, {zone})')"
    return Discrete(frozenset({spark}), -(1 << 63), (1 << 63) - 1, Fraction(up, down), literal)
