"""The order of the rows of a query: :class:`ColumnOrdering`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import OptionError
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class ColumnOrdering:
    """The order by a column, for :meth:`lance_spark.Query.order_by`.

    Attributes:
        column_name: The column.
        ascending: Whether small values come first.
        nulls_first: Whether NULL comes first.

    Example:
        ```python
        import lance_spark

        docs = lance_spark.connect("tables").open_table("docs")
        dearest_first = lance_spark.ColumnOrdering("price", ascending=False)
        rows = docs.search().order_by([dearest_first]).limit(3).to_list()
        ```
    """

    column_name: str
    ascending: bool = True
    nulls_first: bool = False


def check_ordering(ordering: Sequence[ColumnOrdering] | None) -> tuple[ColumnOrdering, ...]:
    """Returns the columns of an order.

    Raises:
        OptionError: An element is no :class:`ColumnOrdering`, or a column occurs twice.
    """
    columns = () if ordering is None else tuple(ordering)
    if not all(isinstance(column, ColumnOrdering) for column in columns):
        raise OptionError("order_by", ordering, "a list of ColumnOrdering")
    names = [column.column_name for column in columns]
    if len(set(names)) < len(names):
        raise OptionError("order_by", ", ".join(names), "different columns")
    return columns


def lance_ordering(ordering: Sequence[ColumnOrdering]) -> list[Any] | None:
    """Returns the argument `order_by` of Lance's scanner."""
    from lance.dataset import ColumnOrdering as LanceOrdering

    return [
        LanceOrdering(column.column_name, column.ascending, column.nulls_first)
        for column in ordering
    ] or None


def spark_ordering(ordering: Sequence[ColumnOrdering]) -> list[Column]:
    """Returns the argument of `DataFrame.orderBy`."""
    from pyspark.sql import functions as sf

    terms = []
    for column in ordering:
        term = sf.col(quote_identifier(column.column_name))
        if column.ascending:
            terms.append(term.asc_nulls_first() if column.nulls_first else term.asc_nulls_last())
        else:
            terms.append(term.desc_nulls_first() if column.nulls_first else term.desc_nulls_last())
    return terms


def sort_rows(rows: pa.Table, ordering: Sequence[ColumnOrdering]) -> pa.Table:
    """Returns rows in an order. Rows of equal values keep their order."""
    keys: Any = [
        (
            column.column_name,
            "ascending" if column.ascending else "descending",
            "at_start" if column.nulls_first else "at_end",
        )
        for column in ordering
    ]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))
