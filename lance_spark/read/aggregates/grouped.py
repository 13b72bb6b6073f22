"""Partial aggregates of groups: :func:`grouped`. Runs on executors.

Rows of one group that come near each other become one row of partial results, which Spark
aggregates again. How many are looked at at once is bounded, and so is memory: the keys, and one
column for each aggregate, of 2 million rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.aggregates.numbers import MAX_BIGINT, Evaluation, Numbers, as_decimals, summable
from lance_spark.read.spec import AggregateCall
from lance_spark.types.fields import Array, Kind

_GROUPED_ROWS = (1 << 18, 1 << 21)
"""Rows that are grouped at once: the first number, or where that does not pay, the second."""

_LEAST_GAIN = 2
"""Rows per group below which grouping does not pay: it costs more than it saves."""

_LEAST_HOPE = 1.2
"""Rows per group below which more rows at once are not tried either. Of 200,000 keys in no order,
2^18 rows have 1.8 each, and 2^21 rows 10."""


def grouped(
    batches: Iterable[pa.RecordBatch], calls: Sequence[AggregateCall], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields partial results per group: several of one group, from rows that came together.

    Where the first rows have nearly as many groups, each further row is a group of its own.

    Args:
        batches: Rows, in the Arrow types of Spark.
        calls: The aggregates, and the columns that rows are grouped by, with names of the batches'
            columns.
        schema: What is yielded, in the order of the calls.
    """
    sizes = list(_GROUPED_ROWS)
    held: list[_Inputs] = []
    rows = 0
    for batch in batches:
        inputs = _Inputs(batch, calls)
        if not sizes:
            yield inputs.ungrouped(schema)
            continue
        held.append(inputs)
        rows += batch.num_rows
        if rows >= sizes[0]:
            found = _of_groups(held, calls, schema)
            if found.num_rows * _LEAST_GAIN > rows:
                sizes = sizes[1:] if found.num_rows * _LEAST_HOPE <= rows else []
            held, rows = [], 0
            yield from found.to_batches()
    if held:
        yield from _of_groups(held, calls, schema).to_batches()


class _Inputs:
    """A batch of rows: for each call its column, if it has one; of sums, computed already."""

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
        """Returns the partial results of groups of one row each."""
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


def _of_groups(held: Sequence[_Inputs], calls: Sequence[AggregateCall], schema: pa.Schema) -> pa.Table:
    """Returns one row per group of some rows, or more where a sum would not fit its type."""
    rows = sum(inputs.rows for inputs in held)
    columns: dict[str, Any] = {}
    most = rows
    for i, (call, field) in enumerate(zip(calls, schema, strict=True)):
        if call.term is not None:
            bound = max(inputs.sums[i].bound for inputs in held)
            if field.type == pa.int64():
                most = min(most, max(1, MAX_BIGINT // max(1, bound)))
            columns[f"c{i}"] = _chunked([inputs.sums[i] for inputs in held], bound, rows, field.type)
        elif call.column is not None:
            columns[f"c{i}"] = pa.chunked_array([inputs.columns[i] for inputs in held])
    table = pa.table(columns)
    found = [_aggregated(table.slice(start, most), calls, schema) for start in range(0, rows, most)]
    return pa.concat_tables([schema.empty_table(), *found]).combine_chunks()


def _chunked(values: Sequence[Numbers], bound: int, rows: int, kind: Kind) -> pa.ChunkedArray[Any]:
    """Returns numbers of several batches in one type, in which so many can be added up."""
    if kind == pa.int64():
        return pa.chunked_array([one.values for one in values], kind)
    kinds = {one.values.type for one in values}
    return pa.chunked_array([summable(one.values, bound * rows, wide=kinds != {pa.int64()}) for one in values])


def _aggregated(table: pa.Table, calls: Sequence[AggregateCall], schema: pa.Schema) -> pa.Table:
    keys = [f"c{i}" for i, call in enumerate(calls) if call.fn == "group"]
    asked: list[Any] = [
        ([], "count_all") if call.fn == "count_star" else (f"c{i}", call.fn)
        for i, call in enumerate(calls)
        if call.fn != "group"
    ]
    found = table.group_by(keys, use_threads=False).aggregate(asked)
    results: list[Any] = []
    for i, (call, field) in enumerate(zip(calls, schema, strict=True)):
        if call.fn == "sum":
            results.append(_as_sums(found.column(f"c{i}_sum").combine_chunks(), field.type, call))
        else:
            name = f"c{i}" if call.fn == "group" else "count_all" if call.fn == "count_star" else f"c{i}_{call.fn}"
            results.append(found.column(name).cast(field.type))
    return pa.table(results, schema=schema)


def _as_sums(values: Array, kind: Kind, call: AggregateCall) -> Array:
    return as_decimals(values, kind, str(call.term)) if pa.types.is_decimal(kind) else values
