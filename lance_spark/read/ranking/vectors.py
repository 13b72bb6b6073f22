"""Searchable vectors: every coordinate is a finite number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.types.fields import Array


def is_searchable(vectors: Array) -> NDArray[np.bool_]:
    """Tells which vectors a search can return. Every kind of search uses this rule.

    A vector with a NULL, NaN or infinite coordinate has no distance, and no index holds such a
    vector. Lance's search without an index computes a distance for some of these vectors.

    Args:
        vectors: An array of fixed-size lists, or of an extension type of fixed-size lists.

    Example:
        >>> import pyarrow as pa
        >>> vectors = [[1.0, 2.0], [1.0, None], [1.0, float("nan")], None]
        >>> is_searchable(pa.array(vectors, pa.list_(pa.float32(), 2))).tolist()
        [True, False, False, False]
    """
    lists: Any = getattr(vectors, "storage", vectors)
    size = lists.type.list_size
    numbers = lists.values.slice(lists.offset * size, len(lists) * size)
    finite = pc.is_finite(numbers.cast(pa.float64())).fill_null(False)
    coordinates = np.asarray(finite).reshape(len(lists), size)
    is_present: NDArray[np.bool_] = lists.is_valid().to_numpy(zero_copy_only=False)
    return is_present & coordinates.all(axis=1)
