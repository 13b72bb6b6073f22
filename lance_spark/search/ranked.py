"""Searches: rows of a table by rank, to be shaped like any query of it: :class:`Search`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import OptionError, RegistrationError, UnsupportedOperationError
from lance_spark.geneva import refusing
from lance_spark.queries import DEFAULT_K, TextQuery, VectorQuery, metric_of
from lance_spark.read.columns import ROW_ID
from lance_spark.read.search.ranking import DISTANCE, RELEVANCE, SCORE, Ranking
from lance_spark.search.query import Query
from lance_spark.search.rerank import Reranker

if TYPE_CHECKING:
    import lance

QueryKind = Literal["vector", "fts", "hybrid"]

VectorLike: TypeAlias = "Sequence[float] | np.ndarray | pa.Array[Any] | pa.ChunkedArray[Any]"

_ANY_VECTOR = (0.0,)


@refusing("GenevaQueryBuilder")
@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Query):
    """A search: rows of one table by their rank, 10 where no `limit` says how many.

    Made by :meth:`lance_spark.Table.search`. The result has the selected columns, then `_distance`
    (smaller is nearer), `_score` (larger is better), or both and `_relevance_score`. Rows whose
    vector is NULL are never found. What each `to_*` reads is the version that is latest by then, or
    the one that is checked out.

    Attributes:
        kind: What it searches for.
        q: The vector.
        words: The text.
        settings: How vectors are searched, by names of :class:`~lance_spark.queries.VectorQuery`.
        text_columns: Columns of text; None means all that have an index for it.
        phrase: Whether words have to follow each other.
        prefilter: Whether the condition comes before the search.
        reranker: What orders the rows anew.
        rerank_words: The words that a reranker gets for a query that is a vector.
    """

    kind: QueryKind
    q: tuple[float, ...] | None = None
    words: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    text_columns: tuple[str, ...] | None = None
    phrase: bool = False
    prefilter: bool = True
    reranker: Reranker | None = None
    rerank_words: str | None = None

    def where(self, condition: str, prefilter: bool = True) -> Search:
        """Searches among the rows that match a condition in Lance SQL.

        Args:
            condition: The condition.
            prefilter: Whether it comes before the search. After it, rows that do not match are
                taken out of what was found, so that fewer may be left.

        Raises:
            OptionError: The condition is no text, or an earlier one has another `prefilter`.
        """
        if self.condition is not None and prefilter != self.prefilter:
            raise OptionError("prefilter", prefilter, f"{self.prefilter}, as in the first where() of the search")
        return replace(super(Search, self).where(condition), prefilter=prefilter)

    def vector(self, vector: VectorLike) -> Search:
        """Sets the vector of a hybrid search."""
        self._only("vector()", "hybrid")
        return replace(self, q=vector_of(vector))

    def text(self, text: str) -> Search:
        """Sets the words of a hybrid search."""
        self._only("text()", "hybrid")
        return replace(self, words=text)

    def distance_type(self, distance_type: str) -> Search:
        """Sets how distances are measured: `l2`, `cosine`, `dot`, or `hamming` for `uint8`.

        By default as the index does, else `l2`. An index of another distance does not serve.
        """
        return self._set("metric", metric_of(distance_type, option="distance_type"))

    def metric(self, metric: str) -> Search:
        """Is :meth:`distance_type`, under its older name."""
        return self._set("metric", metric_of(metric))

    def nprobes(self, nprobes: int) -> Search:
        """Sets how many partitions of an index are searched; more find more, and take longer.

        Where these have fewer rows than are asked for, others are searched too.
        """
        return self._set("nprobes", nprobes)

    def refine_factor(self, refine_factor: int) -> Search:
        """Has distances of so many times as many rows computed from the vectors themselves.

        An index that compresses vectors (PQ, SQ) knows them about; with 1 only `_distance` of the
        rows that it finds becomes exact.
        """
        return self._set("refine_factor", refine_factor)

    def ef(self, ef: int) -> Search:
        """Sets how many candidates a search of a graph (HNSW) keeps; more find more."""
        return self._set("ef", ef)

    def bypass_vector_index(self) -> Search:
        """Compares all vectors, also those that an index serves: exact, and slow."""
        return self._set("use_index", False)

    def phrase_query(self, phrase_query: bool = True) -> Search:
        """Has the words follow each other. An index of the text needs positions for it."""
        self._only("phrase_query()", "fts", "hybrid")
        return replace(self, phrase=phrase_query)

    def rerank(self, reranker: Reranker, query_string: str | None = None) -> Search:
        """Has the rows ordered anew, in this process. A hybrid search fuses both rankings without.

        Args:
            reranker: What orders them; it sees the selected columns.
            query_string: The words that it gets for a query that is a vector alone.
        """
        if self.kind == "vector" and query_string is None:
            raise OptionError("query_string", None, "words that say what the vector stands for")
        return replace(self, reranker=reranker, rerank_words=query_string)

    def check_view(self) -> None:
        """Refuses a view of a search.

        Raises:
            RegistrationError: Always.
        """
        raise RegistrationError(
            "a materialized view cannot be of a search: which rows are the best ones changes with every row that is "
            f"added or deleted - over {self.source.uri} - begin with search(None)"
        )

    # Its rows

    def _ranking(self) -> Ranking:
        most, first = self.most_rows or DEFAULT_K, self.skipped_rows
        vector = text = None
        if self.kind != "fts":
            if self.q is None:
                raise OptionError("vector", None, "a vector to search for: vector([...])")
            settings = dict(self.settings)
            vector = VectorQuery(q=self.q, k=most, offset=first, prefilter=self.prefilter, **settings)
        if self.kind != "vector":
            if self.words is None:
                raise OptionError("text", None, "words to search for: text('...')")
            text = TextQuery(
                query=self.words,
                columns=self.text_columns,
                phrase=self.phrase,
                k=most,
                offset=first,
                prefilter=self.prefilter,
            )
        return Ranking(vector=vector, text=text, filter=self.condition)

    def _batches(self, dataset: lance.LanceDataset, batch_size: int | None) -> Iterator[pa.RecordBatch]:
        ranking = self._ranking().checked(dataset)
        if self.reranker is not None:
            return iter(self._reranked(dataset, ranking, self.reranker).to_batches(max_chunksize=batch_size))
        return ranking.batches(dataset, self._projection(dataset))

    def _schema(self, dataset: lance.LanceDataset) -> pa.Schema:
        schema = self._ranking().checked(dataset).schema(dataset, self._projection(dataset))
        if self.reranker is None or RELEVANCE in schema.names:
            return schema
        return schema.append(pa.field(RELEVANCE, pa.float32()))

    def _reranked(self, dataset: lance.LanceDataset, ranking: Ranking, reranker: Reranker) -> pa.Table:
        """Returns the rows as a reranker orders them: columns, scores where they have any."""
        columns = replace(self, row_ids=True)._projection(dataset)  # noqa: SLF001 - its own
        words = self.rerank_words or self.words or ""

        def found(kind: Literal["vector", "text"]) -> pa.Table:
            part = ranking.only(kind)
            return pa.Table.from_batches(part.batches(dataset, columns), schema=part.schema(dataset, columns))

        if self.kind == "hybrid":
            ranked = reranker.rerank_hybrid(words, found("vector"), found("text"))
        elif self.kind == "vector":
            ranked = reranker.rerank_vector(words, found("vector"))
        else:
            ranked = reranker.rerank_fts(words, found("text"))
        if not isinstance(ranked, pa.Table) or RELEVANCE not in ranked.schema.names:
            raise OptionError("rerank", reranker, f"an object whose methods return tables with {RELEVANCE}")
        schema = self._schema(dataset)
        arrays = [
            ranked[one.name].cast(one.type) if one.name in ranked.schema.names else pa.nulls(len(ranked), one.type)
            for one in schema
        ]
        rows: pa.Table = pa.Table.from_arrays(arrays, schema=schema)
        return rows.slice(self.skipped_rows, self.most_rows or DEFAULT_K)

    def _plan(self, dataset: lance.LanceDataset, verbose: bool) -> str:
        ranking, columns = self._ranking().checked(dataset), self._projection(dataset)
        if self.kind != "hybrid":
            return ranking.scanner(dataset, columns).explain_plan(verbose)
        plans = (ranking.only(kind).scanner(dataset, [ROW_ID]).explain_plan(verbose) for kind in ("vector", "text"))
        return "\n".join(f"{name}:\n{plan}" for name, plan in zip(("vectors", "text"), plans, strict=True))

    def _read_options(self) -> dict[str, str]:
        if self.reranker is not None:
            raise UnsupportedOperationError(
                "a reranker orders rows in this process - in to_spark - spark.createDataFrame(search.to_arrow()) makes "
                "a DataFrame of them"
            )
        ranking, options = self._ranking(), {}
        if ranking.vector is not None:
            options["nearest"] = ranking.vector.to_json()
        if ranking.text is not None:
            options["full_text_query"] = ranking.text.to_json()
        return options

    def _names(self) -> list[str]:
        added = (ROW_ID, DISTANCE, SCORE, RELEVANCE)
        return [name for name, _ in self.columns or () if name not in added]

    # Its settings

    def _only(self, what: str, *kinds: QueryKind) -> None:
        if self.kind not in kinds:
            raise UnsupportedOperationError(
                f"{what} is of a search of type {' or '.join(map(repr, kinds))}, and this one is of type {self.kind!r} "
                f"- in search - begin with search(..., query_type={kinds[0]!r})"
            )

    def _set(self, name: str, value: object) -> Search:
        self._only(f"{name}()", "vector", "hybrid")
        settings = {**dict(self.settings), name: value}
        VectorQuery(q=_ANY_VECTOR, **settings)  # checks the value
        return replace(self, settings=tuple(settings.items()))


def search_of(
    query: object,
    base: Query,
    *,
    vector_column_name: str | None,
    query_type: str,
    fts_columns: str | Sequence[str] | None,
) -> Search:
    """Returns the search that a query begins: by default of text for a string, else of vectors.

    Raises:
        OptionError: The query, its type or a column is not valid.
    """
    if query_type not in ("auto", "vector", "fts", "hybrid"):
        raise OptionError("query_type", query_type, "vector, fts, hybrid or auto")
    words = query if isinstance(query, str) else None
    kind = ("vector" if words is None else "fts") if query_type == "auto" else cast(QueryKind, query_type)
    if kind == "vector" and (query is None or words is not None):
        raise OptionError("query", query, "a vector; words are searched for with query_type='fts'")
    if kind == "fts" and words is None:
        raise OptionError("query", query, "words; a vector is searched for with query_type='vector'")
    for option, value, other in (
        ("vector_column_name", vector_column_name, "fts"),
        ("fts_columns", fts_columns, "vector"),
    ):
        if value is not None and kind == other:
            raise OptionError(option, value, f"nothing in a search of type {other!r}")
    settings: Mapping[str, str] = {} if vector_column_name is None else {"column": vector_column_name}
    columns = None if fts_columns is None else (fts_columns,) if isinstance(fts_columns, str) else tuple(fts_columns)
    shape = {one.name: getattr(base, one.name) for one in dataclasses.fields(base)}
    return Search(
        **shape,
        kind=kind,
        q=None if query is None or words is not None else vector_of(query),
        words=words,
        settings=tuple(settings.items()),
        text_columns=columns,
    )


def vector_of(vector: object) -> tuple[float, ...]:
    """Returns the numbers of a vector of any kind: a list, an array of NumPy or Arrow, a tensor.

    Raises:
        OptionError: It is none.
    """
    try:
        array = np.asarray(vector.to_pylist() if isinstance(vector, pa.Array | pa.ChunkedArray) else vector)
    except Exception:  # noqa: BLE001 - a value of any class, with methods of its own
        array = np.empty(0)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array):
        raise OptionError("query", vector, "one vector of numbers; several are searched for one after the other")
    return tuple(array.tolist())
