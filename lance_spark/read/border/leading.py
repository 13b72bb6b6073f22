"""Vectors of which a query uses only leading elements, such as `v[0]` or `size(v)`.

Nearly all of a scan of vectors goes into bringing their elements to the JVM. The planner rule says
how many of them the query uses (`Elements.java`), and the scan gives Spark a shorter
array in the place of the vector. Lance reads the vectors whole in any case.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.scan import merged

_ROWS = 1 << 13
"""Rows of a batch of shortened vectors: those of the vectors themselves have a few hundred."""


def leading_elements(sizes: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """Returns how many elements are given of the vectors that are shortened, by column.

    Args:
        sizes: How many elements vectors have, by column.
        used: How many leading elements the query uses, by column. Where these are more than half,
            or an element is beyond the end, the vector stays whole.
    """
    return {name: count for name, count in used.items() if 2 * count <= sizes.get(name, 0)}


def shortened_schema(schema: pa.Schema, elements: Mapping[str, int]) -> pa.Schema:
    """Returns the schema of the batches of :func:`shortened`."""
    fields = [f.with_type(pa.list_(f.type.value_field, elements[f.name])) if f.name in elements else f for f in schema]
    return pa.schema(fields, schema.metadata)  # type: ignore[arg-type]


def shortened(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, elements: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with the leading elements of some vectors alone, in fewer batches."""

    def short(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pc.list_slice(column, 0, elements[name], return_fixed_size_list=True) if name in elements else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    yield from merged(map(short, batches), _ROWS, clock=time.monotonic)
