"""What orders the rows of a search anew: :class:`Reranker`."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa


class Reranker(Protocol):
    """Orders rows that a search found; what LanceDB calls by this name is one.

    Each method gets the selected columns, `_rowid`, and `_distance` or `_score`, and returns rows
    of them, best first, with a column `_relevance_score`.
    """

    def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
        """Orders the rows of a search for a vector."""

    def rerank_fts(self, query: str, fts_results: pa.Table) -> pa.Table:
        """Orders the rows of a search for words."""

    def rerank_hybrid(self, query: str, vector_results: pa.Table, fts_results: pa.Table) -> pa.Table:
        """Orders the rows of both searches, each once."""
