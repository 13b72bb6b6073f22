"""Terms of pushed-down sums: columns, constants, and their sums, differences and products.

A term holds no values. :mod:`~lance_spark.read.aggregates.numbers` evaluates terms. `Partials.java`
sends terms as JSON:

- `{"op": "col", "name": "a"}`: an integer, or a decimal of up to 18 digits
- `{"op": "unscaled", "name": "a"}`: the stored integer of such a decimal
- `{"op": "lit", "unscaled": "105", "scale": 2}`: the number 1.05
- `{"op": "+" | "-" | "*", "args": [term, term]}`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

Operator = Literal["+", "-", "*"]

_OPERATORS = get_args(Operator)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of integers or decimals. With `unscaled`, the stored integers of the decimals."""

    name: str
    unscaled: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Constant:
    """The number `unscaled / 10 ** scale`."""

    unscaled: int
    scale: int

    def __str__(self) -> str:
        digits = f"{abs(self.unscaled):0{self.scale + 1}}"
        whole, part = digits[: len(digits) - self.scale], digits[len(digits) - self.scale :]
        return f"{'-' if self.unscaled < 0 else ''}{whole}{'.' if part else ''}{part}"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An exact sum, difference or product. NULL if either side is NULL."""

    op: Operator
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


Term: TypeAlias = Column | Constant | Arithmetic


def parse_term(raw: Mapping[str, Any]) -> Term:
    """Parses the JSON of a term.

    Raises:
        ValueError: The operation is unknown.
    """
    op = raw["op"]
    if op in ("col", "unscaled"):
        return Column(str(raw["name"]), op == "unscaled")
    if op == "lit":
        return Constant(int(raw["unscaled"]), int(raw["scale"]))
    if op in _OPERATORS:
        left_term, right_term = raw["args"]
        return Arithmetic(cast(Operator, op), parse_term(left_term), parse_term(right_term))
    raise ValueError(f"The planner rule asks for a sum of an unknown operation {op!r}.")


def columns_of(term: Term) -> Iterator[str]:
    """Yields the names of the columns in a term. A name may repeat."""
    if isinstance(term, Column):
        yield term.name
    elif isinstance(term, Arithmetic):
        yield from columns_of(term.left)
        yield from columns_of(term.right)


def renamed(term: Term, name: Callable[[str], str]) -> Term:
    """Returns the term with renamed columns."""
    if isinstance(term, Column):
        return replace(term, name=name(term.name))
    if isinstance(term, Arithmetic):
        return replace(term, left=renamed(term.left, name), right=renamed(term.right, name))
    return term
