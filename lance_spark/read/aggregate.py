"""Partial aggregates of one partition. Runs on executors.

`count`, `min`, `max` and sums of small integers over Arrow batches, by the rules of Spark SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.spec import AggregateCall
from lance_spark.types.fields import Array

_GROUPED_ROWS = 1 << 18
"""Rows that are grouped at once: few groups then cross the border, and sums of 32 bits fit 64."""

_LEAST_GAIN = 2
"""Rows per group below which grouping is given up: it costs more than it saves."""


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
            elif call.fn == "sum":
                self._values[i] = _sum(batch.column(name), self._values[i])
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


def _sum(array: Array, before: Array | None) -> Array | None:
    """Returns the sum of an array and earlier ones, as an array of one bigint, or None."""
    found: Any = pc.sum(array.cast(pa.int64()))
    if not found.is_valid:
        return before
    return pa.array([found.as_py() + (0 if before is None else before[0].as_py())], pa.int64())


def grouped(
    batches: Iterable[pa.RecordBatch], calls: Sequence[AggregateCall], names: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields partial results per group: several of one group, from rows that came together.

    Where the first rows have nearly as many groups, each further row is a group of its own.

    Args:
        batches: Rows, in the Arrow types of Spark.
        calls: The aggregates, and the columns that rows are grouped by.
        names: The batches' column for each call; an empty name where the call needs none.
        schema: What is yielded, in the order of the calls.
    """
    groups = True
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not groups:
            yield _ungrouped(batch, calls, names, schema)
            continue
        held.append(batch)
        rows = sum(one.num_rows for one in held)
        if rows >= _GROUPED_ROWS:
            found = _of_groups(held, calls, names, schema)
            held = []
            groups = found.num_rows * _LEAST_GAIN <= rows
            yield from found.to_batches()
    if held:
        yield from _of_groups(held, calls, names, schema).to_batches()


def _of_groups(
    batches: Sequence[pa.RecordBatch], calls: Sequence[AggregateCall], names: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Returns one row per group of some rows."""
    table = pa.Table.from_batches(batches)
    columns: dict[str, Any] = {f"c{i}": table.column(name) for i, name in enumerate(names) if name}
    keys = [f"c{i}" for i, call in enumerate(calls) if call.fn == "group"]
    asked: list[Any] = [
        ([], "count_all") if call.fn == "count_star" else (f"c{i}", call.fn)
        for i, call in enumerate(calls)
        if call.fn != "group"
    ]
    found = pa.table(columns).group_by(keys, use_threads=False).aggregate(asked)
    results = [
        f"c{i}" if call.fn == "group" else "count_all" if call.fn == "count_star" else f"c{i}_{call.fn}"
        for i, call in enumerate(calls)
    ]
    return pa.table([found.column(name) for name in results], names=schema.names).cast(schema).combine_chunks()


def _ungrouped(
    batch: pa.RecordBatch, calls: Sequence[AggregateCall], names: Sequence[str], schema: pa.Schema
) -> pa.RecordBatch:
    """Returns the partial results of groups of one row each."""
    arrays: list[Array] = []
    for call, name, field in zip(calls, names, schema, strict=True):
        if call.fn == "count_star":
            arrays.append(pa.repeat(pa.scalar(1, field.type), batch.num_rows))
        elif call.fn == "count":
            arrays.append(pc.is_valid(batch.column(name)).cast(field.type))
        else:
            arrays.append(batch.column(name).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
