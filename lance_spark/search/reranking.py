"""Rerankers of searches: :class:`Reranker`, and the scores that rerankers get."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.read.columns import ROW_ID
from lance_spark.read.ranking.ranking import DISTANCE, SCORE


class Reranker(Protocol):
    """Orders the rows of a search. LanceDB's rerankers have the same methods.

    Each method takes tables with the selected columns, `_rowid`, and `_distance` or `_score`. It
    returns rows of these tables, best first, with a column `_relevance_score`.

    Example:
        ```python
        import lance_spark
        from pyarrow import Table


        class NewestFirst:
            def rerank_vector(self, query: str, vector_results: Table) -> Table:
                rows = vector_results.sort_by([("id", "descending")])
                return rows.append_column("_relevance_score", rows["id"].cast("float32"))

            def rerank_fts(self, query: str, fts_results: Table) -> Table:
                return self.rerank_vector(query, fts_results)

            def rerank_hybrid(self, query: str, vector_results: Table, fts_results: Table) -> Table:
                return self.rerank_vector(query, vector_results)


        reranker: lance_spark.Reranker = NewestFirst()
        docs = lance_spark.connect("tables").open_table("docs")
        rows = docs.search("fresh pears").rerank(reranker).to_list()
        ```
    """

    def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
        """Orders the rows of a vector search."""

    def rerank_fts(self, query: str, fts_results: pa.Table) -> pa.Table:
        """Orders the rows of a full-text search."""

    def rerank_hybrid(
        self, query: str, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        """Orders the distinct rows of both searches."""


def rerank_hybrid(
    reranker: Reranker,
    words: str,
    nearest: pa.Table,
    texts: pa.Table,
    normalize: Literal["score", "rank"],
) -> object:
    """Returns the reranked rows of both searches, with the distances and scores of the searches.

    The reranker gets distances and scores from 0 to 1, as LanceDB's rerankers expect.
    """
    ranked: object = reranker.rerank_hybrid(
        words, _normalized(nearest, DISTANCE, normalize), _normalized(texts, SCORE, normalize)
    )
    if not isinstance(ranked, pa.Table):
        return ranked
    return _restored(_restored(ranked, nearest, DISTANCE), texts, SCORE)


def _normalized(rows: pa.Table, name: str, normalize: Literal["score", "rank"]) -> pa.Table:
    if not len(rows):
        return rows
    values = rows[name].to_numpy().astype(np.float32)
    if normalize == "rank":
        values = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float32) + 1
    least, span = values.min(), np.ptp(values)
    values = (values - least) / span if span else values - least
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))


def _restored(ranked: pa.Table, rows: pa.Table, name: str) -> pa.Table:
    """Returns reranked rows with a column of the rows of a search, by row id."""
    if name not in ranked.schema.names or ROW_ID not in ranked.schema.names:
        return ranked
    places: Any = pc.index_in(
        ranked[ROW_ID].combine_chunks(), value_set=rows[ROW_ID].combine_chunks()
    )
    values = rows[name].take(places)
    return ranked.set_column(ranked.schema.get_field_index(name), name, values)
