"""Rerankers of search results: :class:`Reranker`."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa


class Reranker(Protocol):
    """Orders the rows of a search. LanceDB's rerankers have the same methods.

    Each method takes tables with the selected columns, `_rowid`, and `_distance` or `_score`. It
    returns rows of these tables, best first, with a column `_relevance_score`.
    """

    def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
        """Orders the rows of a vector search."""

    def rerank_fts(self, query: str, fts_results: pa.Table) -> pa.Table:
        """Orders the rows of a full-text search."""

    def rerank_hybrid(self, query: str, vector_results: pa.Table, fts_results: pa.Table) -> pa.Table:
        """Orders the distinct rows of both searches."""
