"""Partial aggregates of one partition. Runs on executors.

`count`, `min` and `max` over Arrow batches, by the rules of Spark SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.spec import AggregateCall
from lance_spark.types.fields import Array


class PartialAggregates:
    """Counts rows and values, and keeps the least and greatest value, over Arrow batches.

    Their types are Spark's own. NULL is skipped by all but `count_star`; no value gives NULL. As in
    Spark, NaN is equal to itself and greater than any other number.
    """

    def __init__(self, calls: Sequence[AggregateCall]) -> None:
        self._calls = tuple(calls)
        self._counts = [0] * len(self._calls)
        self._values: list[Array | None] = [None] * len(self._calls)

    def add_rows(self, rows: int) -> None:
        """Counts rows of which no column is needed."""
        for i, call in enumerate(self._calls):
            if call.fn == "count_star":
                self._counts[i] += rows

    def add(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        """Takes a batch in.

        Args:
            batch: Rows, in the Arrow types of Spark.
            names: The batch's column for each call; an empty name where the call needs none.
        """
        self.add_rows(batch.num_rows)
        for i, (call, name) in enumerate(zip(self._calls, names, strict=True)):
            if call.fn == "count":
                column = batch.column(name)
                self._counts[i] += len(column) - column.null_count
            elif call.fn in ("min", "max"):
                self._values[i] = _extreme(batch.column(name), call.fn, self._values[i])

    def row(self, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the one row of results."""
        arrays = []
        for call, field, count, value in zip(self._calls, schema, self._counts, self._values, strict=True):
            if call.fn in ("count_star", "count"):
                arrays.append(pa.array([count], field.type))
            else:
                arrays.append(pa.nulls(1, field.type) if value is None else value)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _extreme(array: Array, fn: Literal["min", "max"], before: Array | None) -> Array | None:
    """Returns the least or greatest of an array and earlier ones, as an array of one, or None."""
    values = array.drop_null()
    if before is not None:
        values = pa.concat_arrays([before, values])
    if len(values) == 0:
        return None
    if pa.types.is_floating(values.type):
        nan = pc.is_nan(values)
        numbers = values.filter(pc.invert(nan))
        if len(numbers) == 0 or (fn == "max" and len(numbers) < len(values)):
            return values.filter(nan).slice(0, 1)
        values = numbers
    found = pc.min_max(values)[fn]
    # A slice would keep the whole batch alive.
    return pa.concat_arrays([values.slice(pc.index(values, found).as_py(), 1)])
