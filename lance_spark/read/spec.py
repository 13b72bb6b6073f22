"""What the planner rule asks of one scan: :class:`ScanSpec`, parsed from the internal option `lancespark.scan`.

The rule runs in the JVM and only moves structure; this is the form in which its wishes reach Python. A spec never changes the result of
a query: Spark keeps its own filter and limit above the scan, so everything here may only leave out rows that Spark would drop anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from pyspark.sql.types import StructType

AggregateFunction = Literal["count_star", "count", "min", "max"]

_FUNCTIONS = ("count_star", "count", "min", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """One aggregate that the scan answers instead of returning rows.

    Attributes:
        fn: `count_star` counts rows, `count` values that are not NULL; `min` and `max` skip NULL, as in SQL.
        column: Top-level column, as Spark writes it; None for `count_star`.
        name: Name of the result column.
    """

    fn: AggregateFunction
    column: str | None
    name: str

    def __post_init__(self) -> None:
        if self.fn not in _FUNCTIONS:
            raise ValueError(
                f"the planner rule asks for an unknown aggregate {self.fn!r} - accepted: {', '.join(_FUNCTIONS)}"
            )
        if (self.column is None) != (self.fn == "count_star"):
            raise ValueError(f"the planner rule asks for {self.fn} of column {self.column!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """What one scan is asked for, beside the user's options.

    Attributes:
        base: Base64 of the pickled data source that the user's DataFrame was made with, or None.
        columns: Columns that the query needs, nested pruning included, in the order of the result; None means all of them.
        predicate: Spark's predicate as an expression tree, or None where there is none (any more).
        filtered: Whether Spark filters the rows above this scan, translated or not. It outlives `predicate`, because a limit may only
            be applied below when nothing is filtered above.
        filter_sql: The predicate in Lance SQL, which keeps every row that Spark would keep; set by the data source.
        limit: Rows of one partition after which Spark needs no more, or None. An upper bound per partition, not an exact limit.
        aggregate: Aggregates to be answered instead of rows: each partition gives one row of partial results. Empty means rows.
        whole_fragments: Whether all rows of a fragment must arrive in one partition.
        dense: Columns that the scan gives in two, see :mod:`lance_spark.read.dense`; set by the data source.
    """

    base: str | None = None
    columns: StructType | None = None
    predicate: Mapping[str, Any] | None = None
    filtered: bool = False
    filter_sql: str | None = None
    limit: int | None = None
    aggregate: tuple[AggregateCall, ...] = ()
    whole_fragments: bool = False
    dense: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"the planner rule asks for a negative limit {self.limit}")

    @property
    def row_limit(self) -> int | None:
        """The limit where it may be applied by the scan: nothing above may drop rows, and none are counted."""
        return None if self.filtered or self.filter_sql is not None or self.aggregate else self.limit

    @staticmethod
    def from_json(text: str) -> ScanSpec:
        """Parses the rule's JSON.

        Raises:
            ValueError: The text was not made by this version's rule.
        """
        raw = json.loads(text)
        columns, limit = raw.get("columns"), raw.get("limit")
        if isinstance(columns, str):
            columns = json.loads(columns)
        return ScanSpec(
            base=raw.get("base"),
            columns=None if columns is None else StructType.fromJson(columns),
            predicate=raw.get("predicate"),
            filtered=raw.get("predicate") is not None,
            limit=None if limit is None else int(limit),
            aggregate=tuple(
                AggregateCall(fn=cast(AggregateFunction, call["fn"]), column=call.get("column"), name=call["name"])
                for call in raw.get("aggregate") or ()
            ),
            whole_fragments=bool(raw.get("whole_fragments", False)),
        )
