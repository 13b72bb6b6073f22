"""Exact nearest neighbours of many query vectors: :class:`ExactKnn`.

Matrix products (BLAS) approximate the distances. The distances of all candidates are computed again
from the vectors, so ranks and distances equal a direct comparison.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.queries.parameters import Metric
from lance_spark.types.fields import Array, Kind

Numbers: TypeAlias = NDArray[Any]

_TILE_NUMBERS = 1 << 22
"""Number of distances in memory: 16 MiB."""

_NO_ROW = -1


class ExactKnn:
    """The nearest rows of each query, among the rows added so far.

    Memory: 16 bytes for each of the `k` rows of a query, and about 50 MiB while adding rows.
    Vectors with a NaN never match, and zero vectors have no cosine distance.
    """

    def __init__(self, queries: Numbers, k: int, metric: Metric) -> None:
        """Takes the query vectors in the form of :func:`numbers_of`."""
        self._metric = metric
        self._queries = queries
        self._centre: Numbers | None = None
        self._near = queries
        self._norms = np.empty(0, queries.dtype)
        self._distance = np.full((len(queries), k), np.inf, queries.dtype)
        self._row = np.full((len(queries), k), _NO_ROW, np.int64)

    def add(self, vectors: Numbers, rows: NDArray[np.int64]) -> None:
        """Adds rows with their vectors and row numbers."""
        if not len(rows) or not len(self._queries):
            return
        if self._centre is None:
            self._begin(vectors)
        assert self._centre is not None
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            near = self._comparable(vectors)
            norms = np.einsum("ij,ij->i", near, near)
            step = max(1, _TILE_NUMBERS // len(rows))
            for first in range(0, len(self._queries), step):
                tile = slice(first, first + step)
                queries, positions = self._candidates(tile, near, norms)
                distances = self._exact(queries + first, vectors, positions)
                self._keep(queries + first, distances, rows[positions])

    def matches(self) -> tuple[NDArray[np.int64], Numbers, NDArray[np.int64]]:
        """Returns query numbers, distances and row numbers of the matches.

        The matches are sorted by query, then by distance.
        """
        queries, places = np.nonzero(self._row != _NO_ROW)
        return queries, self._distance[queries, places], self._row[queries, places]

    def _begin(self, vectors: Numbers) -> None:
        """Centres the vectors around 0. Distances stay the same, and fewer digits are lost."""
        centred = self._metric == "l2" and np.isfinite(vectors).all()
        self._centre = (
            vectors.mean(axis=0) if centred else np.zeros(vectors.shape[1], vectors.dtype)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            self._near = self._comparable(self._queries)
        self._norms = np.einsum("ij,ij->i", self._near, self._near)

    def _comparable(self, vectors: Numbers) -> Numbers:
        if self._metric == "cosine":
            unit: Numbers = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            return unit
        return vectors - self._centre

    def _candidates(self, tile: slice, near: Numbers, norms: Numbers) -> tuple[Numbers, Numbers]:
        """Returns pairs of queries and rows that may be nearer than the current matches."""
        products = self._near[tile] @ near.T
        own, largest = self._norms[tile], np.nanmax(norms, initial=0)
        # The rounding error of a product is at most the error of a sum with as many terms.
        slack = (near.shape[1] + 8) * np.finfo(near.dtype).eps
        if self._metric in ("l2", "hamming"):
            products *= -2
            products += norms
            products += own[:, None]
            margin = slack * (own + largest)
        else:
            np.subtract(1, products, out=products)
            margin = slack * (1 + np.sqrt(own * largest))
        limit = self._distance[tile, -1]
        k = self._distance.shape[1]
        if k <= len(near) and np.isinf(limit).any():
            kth = np.partition(products, k - 1, axis=1)[:, k - 1] + margin
            limit = np.fmin(limit, np.where(np.isnan(kth), np.inf, kth))
        queries, rows = np.nonzero(products <= (limit + margin)[:, None])
        return queries, rows

    def _exact(self, queries: Numbers, vectors: Numbers, rows: Numbers) -> Numbers:
        """Returns the exact distances of pairs of queries and rows."""
        distances = np.empty(len(rows), self._queries.dtype)
        step = max(1, _TILE_NUMBERS // vectors.shape[1])
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            a, b = self._queries[queries[part]], vectors[rows[part]]
            if self._metric in ("l2", "hamming"):
                a -= b
                distances[part] = np.einsum("ij,ij->i", a, a)
                continue
            products = np.einsum("ij,ij->i", a, b)
            if self._metric == "cosine":
                products /= np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            distances[part] = 1 - products
        return distances

    def _keep(self, queries: Numbers, distances: Numbers, rows: NDArray[np.int64]) -> None:
        """Merges new rows into the matches of their queries."""
        if not len(queries):
            return
        k = self._distance.shape[1]
        changed = np.unique(queries)
        queries = np.concatenate([np.repeat(changed, k), queries])
        distances = np.concatenate([self._distance[changed].ravel(), distances])
        rows = np.concatenate([self._row[changed].ravel(), rows])
        order = np.lexsort((rows, distances, queries))
        starts = np.searchsorted(queries[order], changed)
        rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
        order, rank = order[rank < k], rank[rank < k]
        self._distance[queries[order], rank] = distances[order]
        self._row[queries[order], rank] = rows[order]


def numbers_of(vectors: Array, element: Kind) -> Numbers:
    """Returns lists of equal length without NULLs as the rows of a matrix.

    Elements of 16 and 32 bits become float32, and of 64 bits float64. Bytes become their bits as
    float32, so the squared distance is the Hamming distance.

    Args:
        vectors: The vectors. Other number types are first rounded to the element type.
        element: The element type of the table's vectors.
    """
    values = vectors.flatten().to_numpy(zero_copy_only=False)
    size = len(values) // max(1, len(vectors))
    matrix: Numbers = values.reshape(len(vectors), size)
    if pa.types.is_uint8(element):
        return np.unpackbits(matrix.astype(np.uint8), axis=1).astype(np.float32)
    if pa.types.is_float16(element):
        matrix = matrix.astype(np.float16)
    return matrix.astype(np.float64 if pa.types.is_float64(element) else np.float32)
