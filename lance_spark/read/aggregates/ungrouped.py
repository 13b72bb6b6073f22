"""Partial aggregates of all rows of a partition: :class:`PartialAggregates`. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.aggregates.numbers import Evaluation, as_decimals, total
from lance_spark.read.spec import AggregateCall
from lance_spark.types.fields import Array


class PartialAggregates:
    """Counts and adds up values, and keeps the least and greatest one, over Arrow batches.

    Their types are Spark's own. NULL is skipped by all but `count_star`; no value gives NULL. As in
    Spark, NaN is equal to itself and greater than any other number.
    """

    def __init__(self, calls: Sequence[AggregateCall]) -> None:
        self._calls = tuple(calls)
        self._counts = [0] * len(self._calls)
        self._totals: list[int | None] = [None] * len(self._calls)
        self._values: list[Array | None] = [None] * len(self._calls)

    def add_rows(self, rows: int) -> None:
        """Counts rows of which no column is needed."""
        for i, call in enumerate(self._calls):
            if call.fn == "count_star":
                self._counts[i] += rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows in, in the Arrow types of Spark; calls name the batch's columns.

        Raises:
            ValueConversionError: A number to be added up has more than 38 digits.
        """
        self.add_rows(batch.num_rows)
        numbers = Evaluation(batch)
        for i, call in enumerate(self._calls):
            if call.term is not None:
                found, before = total(numbers.of(call.term)), self._totals[i]
                self._totals[i] = before if found is None else found + (before or 0)
            elif call.column is not None:
                column = batch.column(call.column)
                if call.fn == "count":
                    self._counts[i] += len(column) - column.null_count
                elif call.fn in ("min", "max"):
                    self._values[i] = _extreme(column, call.fn, self._values[i])

    def row(self, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the one row of results.

        Raises:
            ValueConversionError: A sum has more than 38 digits.
        """
        arrays = []
        for i, (call, field) in enumerate(zip(self._calls, schema, strict=True)):
            value, added = self._values[i], self._totals[i]
            if call.fn in ("count_star", "count"):
                arrays.append(pa.array([self._counts[i]], field.type))
            elif added is not None and pa.types.is_decimal(field.type):
                digits = pa.array([Decimal(added)], pa.decimal256(76, 0))
                arrays.append(as_decimals(digits, field.type, str(call.term)))
            elif added is not None:
                arrays.append(pa.array([added], field.type))
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
