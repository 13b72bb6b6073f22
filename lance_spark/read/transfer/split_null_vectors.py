"""Splits a vector column in two: vectors without NULL elements, and vectors with NULL elements.

When Spark turns an Arrow batch into rows, it checks every element of an array for NULL. For vectors
of 768 floats, the check takes 85 % of the JVM's time. Spark skips the check if the array type
declares its elements non-nullable. Lance stores no such declaration for vectors, but each batch
knows its NULL elements. The planner rule therefore lets the scan return two columns. The first has
the non-nullable type and holds the vectors without NULL elements. The second holds the rare vectors
with NULL elements. Above the scan, Spark merges the two columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, NumericType, StructField, StructType

if TYPE_CHECKING:
    import lance

    from lance_spark.types.fields import Array

LEAST_ELEMENTS = 16
"""Shorter vectors are not worth a second column."""

SUFFIX = " with NULL elements"


def vectors(dataset: lance.LanceDataset, columns: StructType) -> dict[str, int]:
    """Returns the number of elements of each long numeric vector among the columns."""
    sizes = {f.name: f.type.list_size for f in dataset.schema if pa.types.is_fixed_size_list(f.type)}
    return {
        field.name: sizes[field.name]
        for field in columns.fields
        if sizes.get(field.name, 0) >= LEAST_ELEMENTS
        and isinstance(field.dataType, ArrayType)
        and isinstance(field.dataType.elementType, NumericType)
    }


def dense_columns(columns: StructType, vectors: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the vectors that can be split."""
    return tuple(name for name in vectors if name + SUFFIX not in columns.names)


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
    return StructType([*first, *(StructField(name + SUFFIX, columns[name].dataType, True) for name in dense)])


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
        dense_vectors = column if sparse is None else pc.if_else(sparse, pa.scalar(None, column.type), column)
        rest = pa.nulls(len(column), column.type) if sparse is None else pc.if_else(sparse, column, None)
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
