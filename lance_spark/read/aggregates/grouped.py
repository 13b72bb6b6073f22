"""Partial aggregates of groups: :func:`grouped`. Runs on executors.

Rows of a group that arrive close together become one row of partial results. Spark aggregates the
partial results again. The number of rows grouped at once is bounded, and so is memory: the keys
and a column per aggregate, for 2 million rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.aggregates.numbers import (
    MAX_BIGINT,
    Evaluation,
    Numbers,
    as_decimals,
    summable,
)
from lance_spark.read.planning.pushdown_request import AggregateCall
from lance_spark.types.fields import Array, Kind

_GROUPED_ROWS = (1 << 18, 1 << 21)
"""Rows grouped at once: first the smaller number, then the larger if the smaller does not pay."""

_LEAST_GAIN = 2
"""Rows per group below which grouping costs more than it saves."""

_LEAST_HOPE = 1.2
"""Rows per group below which the larger number of rows is not tried either. With 200,000 keys in
random order, 2^18 rows have 1.8 rows per group, and 2^21 rows have 10."""


def grouped(
    batches: Iterable[pa.RecordBatch], calls: Sequence[AggregateCall], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields partial results per group. A group may have several partial results.

    If the first rows have nearly as many groups as rows, each further row becomes its own group.

    Args:
        batches: Rows, in the Arrow types of Spark.
        calls: The aggregates and the grouping columns, by the names of the columns of the batches.
        schema: Schema of the result, in the order of the calls.
    """
    sizes = list(_GROUPED_ROWS)
    batches_held: list[_Inputs] = []
    rows = 0
    for batch in batches:
        inputs = _Inputs(batch, calls)
        if not sizes:
            yield inputs.ungrouped(schema)
            continue
        batches_held.append(inputs)
        rows += batch.num_rows
        if rows >= sizes[0]:
            partial = _of_groups(batches_held, calls, schema)
            if partial.num_rows * _LEAST_GAIN > rows:
                sizes = sizes[1:] if partial.num_rows * _LEAST_HOPE <= rows else []
            batches_held, rows = [], 0
            yield from partial.to_batches()
    if batches_held:
        yield from _of_groups(batches_held, calls, schema).to_batches()


class _Inputs:
    """The columns of one batch by the index of the call. Terms of sums are already evaluated."""

    def __init__(self, batch: pa.RecordBatch, calls: Sequence[AggregateCall]) -> None:
        values = Evaluation(batch)
        self.calls = calls
        self.rows = batch.num_rows
        self.sums: dict[int, Numbers] = {
            i: values.of(call.term) for i, call in enumerate(calls) if call.term is not None
        }
        self.columns: dict[int, Array] = {
            i: batch.column(call.column) for i, call in enumerate(calls) if call.column is not None
        }

    def ungrouped(self, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the partial results with a group per row."""
        arrays: list[Array] = []
        for i, (call, field) in enumerate(zip(self.calls, schema, strict=True)):
            if call.fn == "count_star":
                arrays.append(pa.repeat(pa.scalar(1, field.type), self.rows))
            elif call.fn == "count":
                arrays.append(pc.is_valid(self.columns[i]).cast(field.type))
            elif call.fn == "sum":
                arrays.append(_as_sums(self.sums[i].values, field.type, call))
            else:
                arrays.append(self.columns[i].cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _of_groups(
    inputs: Sequence[_Inputs], calls: Sequence[AggregateCall], schema: pa.Schema
) -> pa.Table:
    """Returns a row per group, or several if a sum would overflow its type."""
    rows = sum(inputs.rows for inputs in inputs)
    columns: dict[str, Any] = {}
    most = rows
    for i, (call, field) in enumerate(zip(calls, schema, strict=True)):
        if call.term is not None:
            bound = max(inputs.sums[i].bound for inputs in inputs)
            if field.type == pa.int64():
                most = min(most, max(1, MAX_BIGINT // max(1, bound)))
            columns[f"c{i}"] = _chunked(
                [inputs.sums[i] for inputs in inputs], bound, rows, field.type
            )
        elif call.column is not None:
            columns[f"c{i}"] = pa.chunked_array([inputs.columns[i] for inputs in inputs])
    table = pa.table(columns)
    partials = [
        _aggregated(table.slice(start, most), calls, schema) for start in range(0, rows, most)
    ]
    return pa.concat_tables([schema.empty_table(), *partials]).combine_chunks()


def _chunked(values: Sequence[Numbers], bound: int, rows: int, kind: Kind) -> pa.ChunkedArray[Any]:
    """Returns the numbers of several batches in one type, wide enough to add `rows` values."""
    if kind == pa.int64():
        return pa.chunked_array([numbers.values for numbers in values], kind)
    kinds = {numbers.values.type for numbers in values}
    return pa.chunked_array(
        [summable(numbers.values, bound * rows, wide=kinds != {pa.int64()}) for numbers in values]
    )


def _aggregated(table: pa.Table, calls: Sequence[AggregateCall], schema: pa.Schema) -> pa.Table:
    keys = [f"c{i}" for i, call in enumerate(calls) if call.fn == "group"]
    aggregations: list[Any] = [
        ([], "count_all") if call.fn == "count_star" else (f"c{i}", call.fn)
        for i, call in enumerate(calls)
        if call.fn != "group"
    ]
    groups = table.group_by(keys, use_threads=False).aggregate(aggregations)
    results: list[Any] = []
    for i, (call, field) in enumerate(zip(calls, schema, strict=True)):
        if call.fn == "sum":
            results.append(_as_sums(groups.column(f"c{i}_sum").combine_chunks(), field.type, call))
        else:
            name = (
                f"c{i}"
                if call.fn == "group"
                else "count_all"
                if call.fn == "count_star"
                else f"c{i}_{call.fn}"
            )
            results.append(groups.column(name).cast(field.type))
    return pa.table(results, schema=schema)


def _as_sums(values: Array, kind: Kind, call: AggregateCall) -> Array:
    return as_decimals(values, kind, str(call.term)) if pa.types.is_decimal(kind) else values
