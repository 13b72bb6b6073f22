"""What the planner rule asks of one scan: :class:`ScanSpec`.

It is a part of the gateway's command `plan_scan`. The rule runs in the JVM and only moves
structure; this is the form in which its wishes reach Python. A spec never changes the result of a
query: Spark keeps its own filter above the scan, so everything here may only leave out
rows that Spark would drop anyway.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from pyspark.sql.types import StructType

from lance_spark.errors import UnsupportedTypeError
from lance_spark.read.aggregates.terms import Term, columns_of, parse_term, renamed
from lance_spark.types import parse_spark_schema

AggregateFunction = Literal["group", "count_star", "count", "min", "max", "sum"]

_FUNCTIONS = get_args(AggregateFunction)
_KEYS = {"columns", "elements", "predicate", "limit", "aggregate", "whole_fragments", "nearest", "top", "runtime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """One aggregate that the scan answers instead of returning rows.

    Attributes:
        fn: `count_star` counts rows, `count` values that are not NULL; `min`, `max` and `sum` skip
            NULL, as in SQL. `group` is a column that rows are grouped by.
        column: Top-level column, as Spark writes it; None for `count_star` and `sum`.
        name: Name of the result column.
        term: What `sum` adds up.
        scale: Digits behind the point of the sum, which is a decimal of 38 digits; None where it is
            a bigint, without its point where the term has one.
    """

    fn: AggregateFunction
    column: str | None
    name: str
    term: Term | None = None
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.fn not in _FUNCTIONS:
            raise ValueError(
                f"the planner rule asks for an unknown aggregate {self.fn!r} - accepted: {', '.join(_FUNCTIONS)}"
            )
        if (self.column is None) != (self.fn in ("count_star", "sum")) or (self.term is None) == (self.fn == "sum"):
            raise ValueError(f"the planner rule asks for {self.fn} of column {self.column!r}, {self.term}")

    def __str__(self) -> str:
        return "count(*)" if self.fn == "count_star" else f"{self.fn}({self.term or self.column})"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it needs."""
        return tuple(columns_of(self.term)) if self.term is not None else (self.column,) if self.column else ()

    def renamed(self, name: Callable[[str], str]) -> AggregateCall:
        """Returns the same aggregate of columns with other names."""
        return replace(
            self,
            column=None if self.column is None else name(self.column),
            term=None if self.term is None else renamed(self.term, name),
        )

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> AggregateCall:
        """Returns the aggregate that the planner rule describes.

        Raises:
            ValueError: There is no such aggregate.
        """
        term, scale = raw.get("term"), raw.get("scale")
        return AggregateCall(
            fn=cast(AggregateFunction, raw["fn"]),
            column=raw.get("column"),
            name=raw["name"],
            term=None if term is None else parse_term(term),
            scale=None if scale is None else int(scale),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestCall:
    """The first rows of a sort by distance, which a search may find instead of reading all rows.

    Attributes:
        column: Top-level column of vectors, as Spark writes it.
        q: The vector, of finite numbers.
        k: Rows after which Spark needs no more.
        metric: How distances are measured.
        nulls_first: Whether rows without a distance come before the others, and may be there.
    """

    column: str
    q: tuple[float, ...]
    k: int
    metric: Literal["l2", "cosine", "dot"]
    nulls_first: bool

    def __post_init__(self) -> None:
        if self.metric not in ("l2", "cosine", "dot") or self.k < 1 or not all(map(math.isfinite, self.q)):
            raise ValueError(f"the planner rule asks for {self.k} nearest rows by {self.metric!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """The first rows of a sort, of which Spark needs no more.

    Attributes:
        column: Top-level column that is the first key, as Spark writes it.
        n: How many rows.
        ascending: Whether the smallest come first.
        nulls_first: Whether rows without a key come before the others.
    """

    column: str
    n: int
    ascending: bool
    nulls_first: bool

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"the planner rule asks for the first {self.n} rows")

    def __str__(self) -> str:
        order, nulls = "ASC" if self.ascending else "DESC", "FIRST" if self.nulls_first else "LAST"
        return f"{self.n} by {self.column} {order} NULLS {nulls}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFilter:
    """A condition that Spark knows only while the query runs, such as the keys of a join.

    The condition may drop only rows that Spark drops later.

    Attributes:
        predicate: The condition as an expression tree.
        partitions: Number of partitions of the scan without the condition.
    """

    predicate: Mapping[str, Any]
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """What one scan is asked for, beside the user's options.

    Attributes:
        columns: Columns that the query needs, nested pruning included, in the order of the result;
            None means all of them.
        elements: How many leading elements the query uses of a vector, by column; of the others it
            may use all. The data source leaves those out that it does not shorten.
        predicate: Spark's predicate as an expression tree, or None where there is none (any more).
        filtered: Whether Spark filters the rows above this scan, translated or not. It outlives
            `predicate`, because a limit may only be applied below when nothing is filtered above.
        filter_sql: The predicate in Lance SQL, which keeps every row that Spark would keep; set by
            the data source.
        exact: Whether it keeps no other row; set by the data source.
        limit: Rows after which Spark needs no more, or None. Of a scan without a filter they are
            the first of the table; with one, an upper bound per partition.
        aggregate: Aggregates to be answered instead of rows: each partition gives one row of
            partial results, or several per group where rows are grouped. Empty means rows.
        whole_fragments: Whether all rows of a fragment must arrive in one partition.
        nearest: Rows that are enough, where nothing between them and the sort is left to Spark.
        top: The same, of a sort by a column.
        runtime: Condition that narrows the scan while the query runs, or None.
        runtime_sql: That condition in Lance SQL; set by the data source.
        dense: Columns that the scan gives in two (:mod:`lance_spark.read.border.dense`); set by the
            data source.
        unscaled: Decimals that it gives as integers (:mod:`lance_spark.read.border.unscaled`); set
            by the data source.
    """

    columns: StructType | None = None
    elements: Mapping[str, int] = field(default_factory=dict)
    predicate: Mapping[str, Any] | None = None
    filtered: bool = False
    filter_sql: str | None = None
    exact: bool = False
    limit: int | None = None
    aggregate: tuple[AggregateCall, ...] = ()
    whole_fragments: bool = False
    nearest: NearestCall | None = None
    top: TopN | None = None
    runtime: RuntimeFilter | None = None
    runtime_sql: str | None = None
    dense: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()

    @property
    def grouped(self) -> bool:
        """Whether the aggregates are of groups."""
        return any(call.fn == "group" for call in self.aggregate)

    def __post_init__(self) -> None:
        if self.elements and (self.columns is None or self.aggregate):
            raise ValueError("the planner rule asks for elements of vectors without naming columns to give")
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"the planner rule asks for a negative limit {self.limit}")

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> ScanSpec:
        """Returns the scan that the planner rule asks for.

        Raises:
            ValueError, TypeError, LookupError: The request is not a request of this release's rule.
            PySparkException: The same, of columns.
        """
        unknown = raw.keys() - _KEYS
        if unknown:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        columns, limit, nearest, top = raw.get("columns"), raw.get("limit"), raw.get("nearest"), raw.get("top")
        runtime = raw.get("runtime")
        if columns is not None and not isinstance(columns, str):
            columns = json.dumps(columns)
        return ScanSpec(
            columns=None if columns is None else _parse_columns(columns),
            elements={name: int(elements) for name, elements in (raw.get("elements") or {}).items()},
            predicate=raw.get("predicate"),
            filtered=raw.get("predicate") is not None,
            limit=None if limit is None else int(limit),
            aggregate=tuple(AggregateCall.parse(call) for call in raw.get("aggregate") or ()),
            whole_fragments=bool(raw.get("whole_fragments", False)),
            nearest=None
            if nearest is None
            else NearestCall(**{**nearest, "k": int(nearest["k"]), "q": tuple(map(float, nearest["q"]))}),
            top=None if top is None else TopN(**top),
            runtime=None if runtime is None else RuntimeFilter(**runtime),
        )


def _parse_columns(text: str) -> StructType:
    try:
        return parse_spark_schema(text)
    except UnsupportedTypeError as error:
        # The query then runs without the rule, and Spark says what is wrong, if anything.
        raise ValueError(str(error)) from error
