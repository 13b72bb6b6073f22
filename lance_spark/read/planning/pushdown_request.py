"""The request of the planner rule for a scan: :class:`ScanSpec`.

The request is part of the gateway's command `plan_scan`. The rule runs in the JVM and only moves
structure. A request never changes the result of a query: Spark keeps its own filter above the scan,
and the scan only drops rows outside of this filter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast, get_args

from pyspark.sql.types import StructType

from lance_spark.errors import UnsupportedTypeError
from lance_spark.read.aggregates.terms import Term, columns_of, parse_term, renamed
from lance_spark.types import parse_spark_schema

_Parsed = TypeVar("_Parsed")

AggregateFunction = Literal["group", "count_star", "count", "min", "max", "sum"]

_FUNCTIONS = get_args(AggregateFunction)
_KEYS = {
    "columns",
    "elements",
    "predicate",
    "limit",
    "aggregate",
    "whole_fragments",
    "nearest",
    "top",
    "runtime",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """An aggregate computed by the scan instead of returning rows.

    Attributes:
        fn: `count_star` counts rows, `count` counts values other than NULL. `min`, `max` and `sum`
            skip NULL, as in SQL. `group` is a grouping column.
        column: Top-level column, as Spark spells it; None for `count_star` and `sum`.
        name: Name of the result column.
        term: Argument of `sum`.
        scale: Scale of the sum, a decimal of 38 digits. None if the sum is a bigint, unscaled for a
            term of decimals.
    """

    fn: AggregateFunction
    column: str | None
    name: str
    term: Term | None = None
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.fn not in _FUNCTIONS:
            raise ValueError(
                f"The planner rule asks for an unknown aggregate {self.fn!r}. Known: {', '.join(_FUNCTIONS)}."
            )
        if (self.column is None) != (self.fn in ("count_star", "sum")) or (self.term is None) == (
            self.fn == "sum"
        ):
            raise ValueError(
                f"The planner rule asks for {self.fn} of column {self.column!r}, {self.term}."
            )

    def __str__(self) -> str:
        return "count(*)" if self.fn == "count_star" else f"{self.fn}({self.term or self.column})"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input columns of the aggregate."""
        return (
            tuple(columns_of(self.term))
            if self.term is not None
            else (self.column,)
            if self.column
            else ()
        )

    def renamed(self, name: Callable[[str], str]) -> AggregateCall:
        """Returns the same aggregate with renamed columns."""
        return replace(
            self,
            column=None if self.column is None else name(self.column),
            term=None if self.term is None else renamed(self.term, name),
        )

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> AggregateCall:
        """Parses an aggregate of the planner rule's request.

        Raises:
            ValueError: The aggregate is unknown.
        """
        return AggregateCall(
            fn=cast(AggregateFunction, raw["fn"]),
            column=raw.get("column"),
            name=raw["name"],
            term=_parse_optional(raw.get("term"), parse_term),
            scale=_parse_optional(raw.get("scale"), int),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestCall:
    """The first rows of a sort by distance. A vector search may replace the full scan.

    Attributes:
        column: Top-level column of vectors, in Spark's spelling.
        q: The query vector, of finite numbers.
        k: Number of required rows.
        metric: Metric of the distance.
        nulls_first: Whether rows without a distance come first, and may exist.
    """

    column: str
    q: tuple[float, ...]
    k: int
    metric: Literal["l2", "cosine", "dot"]
    nulls_first: bool

    def __post_init__(self) -> None:
        if (
            self.metric not in ("l2", "cosine", "dot")
            or self.k < 1
            or not all(map(math.isfinite, self.q))
        ):
            raise ValueError(f"The planner rule asks for {self.k} nearest rows by {self.metric!r}.")

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> NearestCall:
        """Parses a sort by distance of the planner rule's request.

        Raises:
            ValueError: The metric, the number of rows or the vector is not valid.
        """
        return NearestCall(**{**raw, "k": int(raw["k"]), "q": tuple(map(float, raw["q"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """The first rows of a sort by a column. Spark needs no more rows.

    Attributes:
        column: Top-level column of the first sort key, in Spark's spelling.
        n: Number of rows.
        ascending: Whether the order is ascending.
        nulls_first: Whether rows without a key come first.
    """

    column: str
    n: int
    ascending: bool
    nulls_first: bool

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"The planner rule asks for the first {self.n} rows.")

    def __str__(self) -> str:
        order, nulls = "ASC" if self.ascending else "DESC", "FIRST" if self.nulls_first else "LAST"
        return f"{self.n} by {self.column} {order} NULLS {nulls}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFilter:
    """A condition computed while the query runs, for example the keys of a join.

    The condition may drop only rows that Spark drops later.

    Attributes:
        predicate: The condition as an expression tree.
        partitions: Number of partitions of the scan without the condition.
    """

    predicate: Mapping[str, Any]
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """The request for a scan, in addition to the user's options.

    Attributes:
        columns: Columns of the query, in the order of the result, with pruned structs. None means
            all columns.
        elements: Number of leading elements in use, by vector column. Vectors without an entry are
            used whole. The data source removes the entries of vectors it does not shorten.
        predicate: Spark's predicate as an expression tree. None without a predicate, or after its
            translation.
        filtered: Whether Spark filters the rows above this scan. The translation keeps this flag,
            because a limit may only move below the scan without a filter above.
        filter_sql: The predicate in Lance SQL. It keeps every row of Spark's predicate, and perhaps
            more. Set by the data source.
        exact: Whether `filter_sql` keeps exactly the rows of Spark's predicate. Set by the data
            source.
        limit: Number of required rows, or None. Without a filter, the first rows of the table. With
            a filter, an upper bound per partition.
        aggregate: Aggregates to compute. Each partition returns a row of partial results, or
            several per group with grouping columns. Empty means rows instead of aggregates.
        whole_fragments: Whether all rows of a fragment must arrive in the same partition.
        nearest: Sort by distance whose first rows are enough, or None.
        top: Sort by a column whose first rows are enough, or None.
        runtime: Condition to narrow the scan while the query runs, or None.
        runtime_sql: The runtime condition in Lance SQL. Set by the data source.
        slots: Number of tasks that the cluster runs at once; None if unknown. Set by the JVM.
        dense: Vector columns returned as two columns (:mod:`lance_spark.read.transfer`). Set by the
            data source.
        unscaled: Decimals returned as integers. Set by the data source.
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
    slots: int | None = None
    dense: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()

    @property
    def grouped(self) -> bool:
        """Whether the aggregates have grouping columns."""
        return any(call.fn == "group" for call in self.aggregate)

    @property
    def counts_only(self) -> bool:
        """Whether the scan only returns numbers of rows."""
        return bool(self.aggregate) and all(call.fn == "count_star" for call in self.aggregate)

    def __post_init__(self) -> None:
        if self.elements and (self.columns is None or self.aggregate):
            raise ValueError("The planner rule asks for elements of vectors without their columns.")
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"The planner rule asks for a negative limit {self.limit}.")

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> ScanSpec:
        """Parses the request of the planner rule.

        Raises:
            ValueError, TypeError, LookupError: The request does not match this release's rule.
            PySparkException: The schema of the columns does not parse.
        """
        unknown = raw.keys() - _KEYS
        if unknown:
            raise ValueError(f"The planner rule sent unknown keys {sorted(unknown)}.")
        return ScanSpec(
            columns=_parse_optional(raw.get("columns"), _parse_columns),
            elements={
                name: int(elements) for name, elements in (raw.get("elements") or {}).items()
            },
            predicate=raw.get("predicate"),
            filtered=raw.get("predicate") is not None,
            limit=_parse_optional(raw.get("limit"), int),
            aggregate=tuple(AggregateCall.parse(call) for call in raw.get("aggregate") or ()),
            whole_fragments=bool(raw.get("whole_fragments", False)),
            nearest=_parse_optional(raw.get("nearest"), NearestCall.parse),
            top=_parse_optional(raw.get("top"), lambda top: TopN(**top)),
            runtime=_parse_optional(raw.get("runtime"), lambda runtime: RuntimeFilter(**runtime)),
        )


def _parse_optional(value: Any, parse: Callable[[Any], _Parsed]) -> _Parsed | None:  # noqa: ANN401 - a JSON value
    return None if value is None else parse(value)


def _parse_columns(schema: object) -> StructType:
    try:
        return parse_spark_schema(schema if isinstance(schema, str) else json.dumps(schema))
    except UnsupportedTypeError as error:
        # The query then runs without the rule, and Spark reports the error, if any.
        raise ValueError(str(error)) from error
