"""Shortens vectors if a query uses only leading elements, for example `v[0]` or `size(v)`.

Most of the time of a vector scan is the transfer of elements to the JVM. The planner rule reports
how many elements the query uses (`Elements.java`), and the scan returns a shorter array. Lance
reads the whole vectors in any case.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.scan import merged

_ROWS = 1 << 13
"""Rows per batch of shortened vectors. Batches of whole vectors have a few hundred rows."""


def leading_elements(sizes: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of elements to transfer, for each column to shorten.

    Args:
        sizes: Number of elements per vector, by column.
        used: Number of leading elements that the query uses, by column. A vector stays whole if the
            query uses more than half of its elements, or an element beyond its end.
    """
    return {name: count for name, count in used.items() if 2 * count <= sizes.get(name, 0)}


def prefix_schema(schema: pa.Schema, elements: Mapping[str, int]) -> pa.Schema:
    """Returns the schema of the batches of :func:`take_prefixes`."""
    fields = [f.with_type(pa.list_(f.type.value_field, elements[f.name])) if f.name in elements else f for f in schema]
    return pa.schema(fields, schema.metadata)  # type: ignore[arg-type]


def take_prefixes(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, elements: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with shortened vectors, in fewer batches."""

    def short(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pc.list_slice(column, 0, elements[name], return_fixed_size_list=True) if name in elements else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    yield from merged(map(short, batches), _ROWS, clock=time.monotonic)
