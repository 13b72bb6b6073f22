"""Vectors in two columns: one of those without a NULL element, and one of the others.

Where Spark makes rows of an Arrow batch, it asks every element of an array whether it is NULL; for
vectors of 768 floats that takes 85 % of the JVM's time. It does not ask where the type says that no
element can be NULL. No table says so (Lance keeps no such fact about a vector's elements), but
every batch does. So the planner rule lets the scan give such a column twice: the first holds the
vectors without NULL elements and has the type that is quick, the second the vectors with some,
which are rare. Above the scan, Spark puts the two together again.
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
"""Vectors shorter than this are not worth a second column."""

SUFFIX = " with NULL elements"


def vectors(dataset: lance.LanceDataset, columns: StructType) -> dict[str, int]:
    """Returns how many elements the long vectors of numbers among the columns have."""
    sizes = {f.name: f.type.list_size for f in dataset.schema if pa.types.is_fixed_size_list(f.type)}
    return {
        field.name: sizes[field.name]
        for field in columns.fields
        if sizes.get(field.name, 0) >= LEAST_ELEMENTS
        and isinstance(field.dataType, ArrayType)
        and isinstance(field.dataType.elementType, NumericType)
    }


def dense_columns(columns: StructType, vectors: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of those vectors that can be given in two columns."""
    return tuple(name for name in vectors if name + SUFFIX not in columns.names)


def doubled(columns: StructType, dense: Sequence[str]) -> StructType:
    """Returns the columns as the scan gives them: after all, for each dense one a second.

    The dense ones hold no NULL elements, the second ones are for vectors that do.
    """
    first = [
        StructField(f.name, ArrayType(f.dataType.elementType, containsNull=False), True, f.metadata)
        if f.name in dense and isinstance(f.dataType, ArrayType)
        else f
        for f in columns.fields
    ]
    return StructType([*first, *(StructField(name + SUFFIX, columns[name].dataType, True) for name in dense)])


def split(batch: pa.RecordBatch, dense: Sequence[str]) -> pa.RecordBatch:
    """Returns a batch with its dense columns in two, as :func:`doubled` says.

    Values are not copied where no element is NULL.
    """
    fields, arrays, others = list(batch.schema), list(batch.columns), []
    for name in dense:
        at = batch.schema.get_field_index(name)
        column: Array = batch.column(at)
        item = column.type.value_field
        sparse = _rows_with_null_elements(column)
        kept = column if sparse is None else pc.if_else(sparse, pa.scalar(None, column.type), column)
        rest = pa.nulls(len(column), column.type) if sparse is None else pc.if_else(sparse, column, None)
        fields[at] = pa.field(name, pa.list_(item.with_nullable(False)), True, fields[at].metadata)
        arrays[at] = pa.Array.from_buffers(
            fields[at].type, len(kept), kept.buffers()[:2], kept.null_count, kept.offset, [kept.values]
        )
        others.append((pa.field(name + SUFFIX, column.type), rest))
    schema = pa.schema([*fields, *(field for field, _ in others)], batch.schema.metadata)  # type: ignore[arg-type]
    return pa.RecordBatch.from_arrays([*arrays, *(rest for _, rest in others)], schema=schema)


def _rows_with_null_elements(column: Array) -> Array | None:
    """Returns which rows of a list column hold a NULL element; None where none does."""
    offsets = column.offsets.to_numpy()
    elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if elements.null_count == 0:
        return None
    places = np.flatnonzero(elements.is_null().to_numpy(zero_copy_only=False)) + offsets[0]
    sparse = np.zeros(len(column), dtype=np.bool_)
    sparse[np.searchsorted(offsets, places, side="right") - 1] = True
    # A NULL row's elements mean nothing, whatever they are.
    sparse &= column.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(sparse) if sparse.any() else None
