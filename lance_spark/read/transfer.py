"""Encodings that make the transfer of columns from Python to the JVM cheaper.

- A vector column is split in two: vectors without NULL elements, and vectors with NULL elements.
  When Spark turns an Arrow batch into rows, it checks every element of an array for NULL. For
  vectors of 768 floats, the check takes 85 % of the JVM's time. Spark skips the check if the array
  type declares its elements non-nullable. Lance stores no such declaration for vectors, but each
  batch knows its NULL elements. The planner rule therefore lets the scan return two columns. The
  first has the non-nullable type and holds the vectors without NULL elements. The second holds the
  rare vectors with NULL elements. Above the scan, Spark merges the two columns.
- A vector is shortened if a query uses only leading elements, for example `v[0]` or `size(v)`. Most
  of the time of a vector scan is the transfer of elements to the JVM. The planner rule reports how
  many elements the query uses (`Elements.java`), and the scan returns a shorter array. Lance reads
  the whole vectors in any case.
- A decimal of up to 18 digits is read as its stored integer. Spark makes a `BigDecimal` of each
  decimal in an Arrow batch, which costs several times as much as adding the value up. The planner
  rule lets the scan return the unscaled integer, and Spark restores the decimal above the scan.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DecimalType, LongType, NumericType, StructField, StructType

from lance_spark.read.scan import merged

if TYPE_CHECKING:
    import lance

    from lance_spark.types.fields import Array

LEAST_ELEMENTS = 16
"""Shorter vectors are not worth a second column."""

SUFFIX = " with NULL elements"

MAX_DIGITS = 18
"""Digits of decimals that always fit into 64 bits."""

_PREFIX_ROWS = 1 << 13
"""Rows per batch of shortened vectors. Batches of whole vectors have a few hundred rows."""


def vector_sizes(dataset: lance.LanceDataset, columns: StructType) -> dict[str, int]:
    """Returns the number of elements of each long numeric vector among the columns."""
    sizes = {
        f.name: f.type.list_size for f in dataset.schema if pa.types.is_fixed_size_list(f.type)
    }
    return {
        field.name: sizes[field.name]
        for field in columns.fields
        if sizes.get(field.name, 0) >= LEAST_ELEMENTS
        and isinstance(field.dataType, ArrayType)
        and isinstance(field.dataType.elementType, NumericType)
    }


def dense_columns(columns: StructType, vectors: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the vectors that can be split."""
    names = frozenset(columns.names)
    return tuple(name for name in vectors if name + SUFFIX not in names)


def split_schema(columns: StructType, dense: Sequence[str]) -> StructType:
    """Returns the schema of the scan, with a second column at the end for each dense vector.

    The first column of a vector holds no NULL elements. The second column is for vectors with NULL
    elements.
    """
    first = [
        StructField(f.name, ArrayType(f.dataType.elementType, containsNull=False), True, f.metadata)
        if f.name in dense and isinstance(f.dataType, ArrayType)
        else f
        for f in columns.fields
    ]
    kinds = {f.name: f.dataType for f in columns.fields}
    return StructType([*first, *(StructField(name + SUFFIX, kinds[name], True) for name in dense)])


def split_batch(batch: pa.RecordBatch, dense: Sequence[str]) -> pa.RecordBatch:
    """Splits the dense columns of a batch in two. The schema follows :func:`split_schema`.

    Values are not copied if no element is NULL.
    """
    fields, arrays, null_columns = list(batch.schema), list(batch.columns), []
    for name in dense:
        at = batch.schema.get_field_index(name)
        column: Array = batch.column(at)
        item = column.type.value_field
        sparse = _rows_with_null_elements(column)
        dense_vectors = (
            column if sparse is None else pc.if_else(sparse, pa.scalar(None, column.type), column)
        )
        rest = (
            pa.nulls(len(column), column.type)
            if sparse is None
            else pc.if_else(sparse, column, None)
        )
        fields[at] = pa.field(name, pa.list_(item.with_nullable(False)), True, fields[at].metadata)
        arrays[at] = pa.Array.from_buffers(
            fields[at].type,
            len(dense_vectors),
            dense_vectors.buffers()[:2],
            dense_vectors.null_count,
            dense_vectors.offset,
            [dense_vectors.values],
        )
        null_columns.append((pa.field(name + SUFFIX, column.type), rest))
    schema = pa.schema([*fields, *(field for field, _ in null_columns)], batch.schema.metadata)  # type: ignore[arg-type]
    return pa.RecordBatch.from_arrays([*arrays, *(rest for _, rest in null_columns)], schema=schema)


def _rows_with_null_elements(column: Array) -> Array | None:
    """Returns a mask of the rows with a NULL element, or None if no row has one."""
    offsets = column.offsets.to_numpy()
    elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if elements.null_count == 0:
        return None
    places = np.flatnonzero(elements.is_null().to_numpy(zero_copy_only=False)) + offsets[0]
    sparse = np.zeros(len(column), dtype=np.bool_)
    sparse[np.searchsorted(offsets, places, side="right") - 1] = True
    # The elements of a NULL row have no meaning.
    sparse &= column.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(sparse) if sparse.any() else None


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
    fields = [
        f.with_type(pa.list_(f.type.value_field, elements[f.name])) if f.name in elements else f
        for f in schema
    ]
    return pa.schema(fields, schema.metadata)  # type: ignore[arg-type]


def take_prefixes(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, elements: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with shortened vectors, in fewer batches."""

    def short(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pc.list_slice(column, 0, elements[name], return_fixed_size_list=True)
            if name in elements
            else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    yield from merged(map(short, batches), _PREFIX_ROWS, clock=time.monotonic)


def unscaled_columns(columns: StructType) -> tuple[str, ...]:
    """Returns the names of the columns that are decimals of up to 18 digits."""
    return tuple(
        f.name
        for f in columns.fields
        if isinstance(f.dataType, DecimalType) and f.dataType.precision <= MAX_DIGITS
    )


def long_schema(columns: StructType, names: Sequence[str]) -> StructType:
    """Returns the schema of the scan, with bigint for the named columns."""
    chosen = frozenset(names)
    return StructType(
        [
            StructField(f.name, LongType(), f.nullable, f.metadata) if f.name in chosen else f
            for f in columns.fields
        ]
    )


def decimals_to_longs(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns a batch with its named decimal128 columns as unscaled integers."""
    if not names:
        return batch
    fields, arrays, chosen = list(batch.schema), list(batch.columns), frozenset(names)
    for at, field in enumerate(fields):
        if field.name in chosen:
            fields[at], arrays[at] = field.with_type(pa.int64()), low_words(arrays[at])
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, batch.schema.metadata))  # type: ignore[arg-type]


def low_words(column: Array) -> Array:
    """Returns the lower of the two 64-bit words of each value. NULL stays NULL."""
    validity, values = column.buffers()
    if values is None:
        return pa.nulls(len(column), pa.int64())
    # Little-endian, like Arrow on every machine that Lance supports.
    words = np.frombuffer(values, np.int64, count=2 * (column.offset + len(column)))
    low = pa.py_buffer(np.ascontiguousarray(words[::2]).data)
    return pa.Array.from_buffers(
        pa.int64(), len(column), [validity, low], column.null_count, column.offset
    )
