"""Deliberately wrong translations, by name. With them the tests prove that they can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from lance_spark.pushdown import filters
from lance_spark.pushdown.filters import LEAVES, Predicate

Leaf = Callable[[Predicate, bool, pa.Schema], str | None]


def _negated(right: Leaf) -> Leaf:
    return lambda predicate, negated, schema: right(predicate, not negated, schema)


def _as(op: str) -> Callable[[Leaf], Leaf]:
    return lambda right: (
        lambda predicate, negated, schema: right({**predicate, "op": op}, negated, schema)
    )


def _without_last(right: Leaf) -> Leaf:
    return lambda predicate, negated, schema: right(
        {**predicate, "args": predicate["args"][:-1]}, negated, schema
    )


def _longer_prefix(right: Leaf) -> Leaf:
    def wrong(predicate: Predicate, negated: bool, schema: pa.Schema) -> str | None:
        sql = right(predicate, negated, schema)
        return (
            None
            if sql is None
            else sql.replace("')", "~')")
            if "starts_with" in sql
            else sql.replace("= ''", "= '~'")
        )

    return wrong


MUTANTS: dict[str, tuple[str, Callable[[Leaf], Leaf]]] = {
    **{f"{op} negated": (op, _negated) for op in LEAVES if op not in ("lit", "like")},
    "< for <=": ("<=", _as("<")),
    "> for >=": (">=", _as(">")),
    "> for <": ("<", _as(">")),
    "< for >": (">", _as("<")),
    "in without its last value": ("in", _without_last),
    "ends_with for starts_with": ("starts_with", _as("ends_with")),
    "starts_with for contains": ("contains", _as("starts_with")),
    "starts_with for ends_with": ("ends_with", _as("starts_with")),
    "a longer prefix for like": ("like", _longer_prefix),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Breaks the translation of one operation for a while, in this process."""
    op, wrong = MUTANTS[name]
    right = filters.LEAVES[op]
    filters.LEAVES[op] = wrong(right)
    try:
        yield
    finally:
        filters.LEAVES[op] = right
