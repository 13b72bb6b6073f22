"""Compares a stored column with a literal in Lance SQL, with Spark's semantics.

Spark and Lance differ at the edges of their types. Lance rejects a literal outside of the stored
type (`u8 > -1` is an error), orders NaNs differently, stores other time units, and parses `1.23` as
a float. Each stored type therefore has a :class:`Domain`. A domain writes comparisons that hold for
exactly the rows for which Spark's comparison is TRUE. Exactness matters although Spark filters
again: a limit above the filter applies to the rows that Lance selects.
"""

from __future__ import annotations

import base64
import math
import operator
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, cast

import pyarrow as pa

Comparison = Literal["=", "<>", "<", "<=", ">", ">="]

NEVER = "FALSE"
"""Lance SQL that selects no row."""

_ORDERS: Mapping[Comparison, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint", "decimal(20,0)"})


class UntranslatableError(Exception):
    """No SQL is known to select every row that Spark selects."""


class Domain(ABC):
    """Compares the values of a stored type with a literal."""

    __slots__ = ()

    spark_types: frozenset[str]
    """Spark types of columns and literals, as catalog strings."""

    @abstractmethod
    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401 - a JSON value
        """Returns SQL that is TRUE exactly if Spark's comparison is TRUE.

        Args:
            column: The quoted column in Lance SQL.
            op: The comparison.
            value: JSON value of the literal, never None.

        Raises:
            UntranslatableError: No such SQL exists.
        """

    def accepts(self, spark_type: str) -> bool:
        """Tells whether literals and columns of a Spark type have the values of this domain."""
        return spark_type in self.spark_types


@dataclass(frozen=True, slots=True)
class Discrete(Domain):
    """Types with whole numbers of some unit: integers, decimals, dates, timestamps.

    A literal is converted exactly to the stored unit. If it falls between two stored values or
    outside of their range, the comparison uses the neighbouring value, `FALSE`, or `IS NOT NULL`.

    Attributes:
        spark_types: As in :class:`Domain`.
        low: Smallest stored value, in stored units.
        high: Largest stored value.
        units: Stored units per unit of Spark's literal: 100 for a decimal of scale 2, 1/1000 for
            milliseconds.
        literal: Lance SQL for a stored value, with `{}` for its number.
        scale: Digits after the decimal point of the SQL literal, or 0.
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
        is_whole = self.units == 1 and digits.lstrip("-").isdigit()
        number = int(digits) if is_whole else Fraction(Decimal(digits)) * self.units
        return (
            self._equals(column, op, number)
            if op in ("=", "<>")
            else self._orders(column, op, number)
        )

    def _equals(self, column: str, op: Comparison, number: int | Fraction) -> str:
        if number.denominator != 1 or not self.low <= number <= self.high:
            return _compare_absent(column, op)
        return f"{column} {op} {self._encode(int(number))}"

    def _orders(self, column: str, op: Comparison, number: int | Fraction) -> str:
        bound = math.ceil(number) if op in ("<", ">=") else math.floor(number)
        first, last = (self.low, self.high) if op in ("<", "<=") else (self.high, self.low)
        holds = _ORDERS[op]
        if not holds(first, bound):
            return NEVER
        return (
            f"{column} IS NOT NULL"
            if holds(last, bound)
            else f"{column} {op} {self._encode(bound)}"
        )

    def _encode(self, stored: int) -> str:
        if self.scale:
            digits = f"{abs(stored):0{self.scale + 1}d}"
            return self.literal.format(
                f"{'-' if stored < 0 else ''}{digits[: -self.scale]}.{digits[-self.scale :]}"
            )
        # Lance parses -9223372036854775808 as the negation of the float 9223372036854775808.
        if stored == -(1 << 63):
            return self.literal.format(f"arrow_cast('{stored}', 'Int64')")
        return self.literal.format(stored)


@dataclass(frozen=True, slots=True)
class Floating(Domain):
    """Floats of 16, 32 and 64 bits.

    In Spark, all NaNs are equal and greater than all other values, and -0.0 equals 0.0. Lance
    treats zeros alike, but compares NaNs by their bits, so NaNs with the sign bit are less than all
    other values. Every "greater" therefore adds `isnan`, and every "less" excludes it.

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
            return _compare_absent(column, op)
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
    """Strings, including large and dictionary-encoded strings.

    Lance orders strings by their bytes, as Spark's UTF8_BINARY does (measured).
    """

    spark_types: frozenset[str] = frozenset({"string"})

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        return f"{column} {op} {quote(value)}"


@dataclass(frozen=True, slots=True)
class Bytes(Domain):
    """Binary values. Both sides order them by unsigned bytes.

    Attributes:
        spark_types: As in :class:`Domain`.
        size: Width of a fixed-size binary. Lance rejects a literal of another length.
    """

    spark_types: frozenset[str] = frozenset({"binary"})
    size: int | None = None

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        content = base64.b64decode(value)
        if self.size is not None and len(content) != self.size:
            return _compare_absent(column, op)
        return f"{column} {op} X'{content.hex()}'"


@dataclass(frozen=True, slots=True)
class Truth(Domain):
    """Booleans. FALSE is less than TRUE on both sides."""

    spark_types: frozenset[str] = frozenset({"boolean"})

    def compare(self, column: str, op: Comparison, value: Any) -> str:  # noqa: ANN401
        """See :meth:`Domain.compare`."""
        return f"{column} {op} {'true' if value else 'false'}"


def _compare_absent(column: str, op: Comparison) -> str:
    """Compares a column with a value that the stored type cannot hold."""
    if op == "=":
        return NEVER
    if op == "<>":
        return f"{column} IS NOT NULL"
    raise UntranslatableError


def quote(text: str) -> str:
    """Quotes a string for Lance SQL. Only the single quote is special."""
    return "'" + text.replace("'", "''") + "'"


_DOMAINS: Mapping[pa.DataType, Domain] = {
    pa.bool_(): Truth(),
    pa.float16(): Floating(frozenset({"float"}), 16),
    pa.float32(): Floating(frozenset({"float"}), 32),
    pa.float64(): Floating(frozenset({"double"}), 64),
    pa.date32(): Discrete(
        frozenset({"date"}), -(1 << 31), (1 << 31) - 1, Fraction(1), "arrow_cast({}, 'Date32')"
    ),
    pa.string(): Text(),
    pa.large_string(): Text(),
    pa.binary(): Bytes(),
    pa.large_binary(): Bytes(),
}
"""Domains of types without parameters."""

_UNITS = {
    "s": ("Second", 1, 1_000_000),
    "ms": ("Millisecond", 1, 1_000),
    "us": ("Microsecond", 1, 1),
    "ns": ("Nanosecond", 1_000, 1),
}

_ZONE = re.compile(r"[A-Za-z0-9_+:/-]+")


def domain_of(type_: pa.DataType) -> Domain | None:
    """Returns the domain of a stored type, or None if Spark alone compares the type."""
    if pa.types.is_dictionary(type_):
        domain = _DOMAINS.get(type_.value_type)
        return domain if isinstance(domain, Text) else None
    if pa.types.is_integer(type_):
        return _integers(type_.bit_width, signed=pa.types.is_signed_integer(type_))
    if pa.types.is_decimal128(type_):
        return _decimals(type_)
    if pa.types.is_timestamp(type_):
        return _timestamps(type_)
    if pa.types.is_fixed_size_binary(type_):
        return Bytes(size=type_.byte_width)
    return _DOMAINS.get(type_)


def _integers(bits: int, *, signed: bool) -> Domain:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return Discrete(_INTEGERS, low, high, Fraction(1), "{}")


def _decimals(type_: pa.Decimal128Type[Any, Any]) -> Domain | None:
    if type_.scale < 0:
        return None
    limit = 10**type_.precision - 1
    name = f"decimal({type_.precision},{type_.scale})"
    # Quoted, because a bare 1.23 is a float in Lance.
    literal = f"CAST('{{}}' AS {name})"
    return Discrete(
        frozenset({name}), -limit, limit, Fraction(10**type_.scale), literal, type_.scale
    )


def _timestamps(type_: pa.TimestampType[Any, Any]) -> Domain | None:
    unit, up, down = _UNITS[type_.unit]
    tz = cast("str | None", type_.tz)
    if tz is not None and not _ZONE.fullmatch(tz):
        return None
    # Both systems store instants since the epoch, so the literal only needs the stored time zone.
    zone = "None" if tz is None else f'Some("{tz}")'
    spark = "timestamp_ntz" if tz is None else "timestamp"
    literal = f"arrow_cast({{}}, 'Timestamp({unit}, {zone})')"
    return Discrete(frozenset({spark}), -(1 << 63), (1 << 63) - 1, Fraction(up, down), literal)
