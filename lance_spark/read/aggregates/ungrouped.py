"""Partial aggregates of all rows of a partition: :class:`PartialAggregates`. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.aggregates.numbers import Evaluation, as_decimals, total
from lance_spark.read.planning.pushdown_request import AggregateCall
from lance_spark.types.fields import Array


class PartialAggregates:
    """Computes counts, sums, minima and maxima over Arrow batches.

    The types are those of Spark. All aggregates but `count_star` skip NULL, and return NULL for no
    values. As in Spark, NaN equals NaN and is greater than any other number.
    """

    def __init__(self, calls: Sequence[AggregateCall]) -> None:
        self._calls = tuple(calls)
        self._counts = [0] * len(self._calls)
        self._totals: list[int | None] = [None] * len(self._calls)
        self._values: list[Array | None] = [None] * len(self._calls)

    def add_rows(self, rows: int) -> None:
        """Counts rows without reading a column."""
        for i, call in enumerate(self._calls):
            if call.fn == "count_star":
                self._counts[i] += rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch in the Arrow types of Spark. Calls name the columns of the batch.

        Raises:
            ValueConversionError: A number to sum has more than 38 digits.
        """
        self.add_rows(batch.num_rows)
        numbers = Evaluation(batch)
        for i, call in enumerate(self._calls):
            if call.term is not None:
                total_of_batch, before = total(numbers.of(call.term)), self._totals[i]
                self._totals[i] = (
                    before if total_of_batch is None else total_of_batch + (before or 0)
                )
            elif call.column is not None:
                column = batch.column(call.column)
                if call.fn == "count":
                    self._counts[i] += len(column) - column.null_count
                elif call.fn in ("min", "max"):
                    self._values[i] = _extreme(column, call.fn, self._values[i])

    def row(self, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the results as a batch of one row.

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
    """Returns the minimum or maximum of an array and an earlier result, as an array of length 1."""
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
    extreme = pc.min_max(values)[fn]
    # A slice would keep the whole batch alive.
    return pa.concat_arrays([values.slice(pc.index(values, extreme).as_py(), 1)])
