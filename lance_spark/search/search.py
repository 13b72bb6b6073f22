"""Searches of one table: :class:`Search`, a query with rows in rank order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, cast

import numpy as np
import pyarrow as pa

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import OptionError, RegistrationError, UnsupportedOperationError
from lance_spark.queries.parameters import DEFAULT_K, TextQuery, VectorQuery
from lance_spark.queries.text import FullTextQuery, words_of_query
from lance_spark.read.columns import ROW_ID
from lance_spark.read.ranking.ranking import (
    DISTANCE,
    RELEVANCE,
    SCORE,
    Ranking,
    stored_field,
    vector_column,
    vector_kind,
)
from lance_spark.search.ordering import sort_rows, spark_ordering
from lance_spark.search.query import Query, attributes_of
from lance_spark.search.reranking import Reranker, rerank_hybrid
from lance_spark.search.vector_settings import VectorSettings
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame

QueryKind = Literal["vector", "fts", "hybrid"]

VectorLike: TypeAlias = "Sequence[float] | np.ndarray | pa.Array[Any] | pa.ChunkedArray[Any]"

_ANY_VECTOR = (0.0,)

_QUERY_INDEX = pa.field("query_index", pa.int32(), nullable=False)
"""The number of the vector in a search for several vectors, as LanceDB names it."""


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Search(VectorSettings, Query):
    """A search of a table: rows in rank order, 10 rows without a `limit`.

    :meth:`lance_spark.Table.search` starts a search. The result has the selected columns, followed
    by `_distance` (smaller is nearer), `_score` (larger is better), or both and `_relevance_score`.
    Rows with a NULL vector never match. Each `to_*` reads the latest version, or the checked-out
    version.

    Attributes:
        kind: Vector, full-text or hybrid search.
        q: The query vector, or several vectors.
        words: The query text, or a query object.
        settings: Settings of the vector search, by names of
            :class:`~lance_spark.queries.parameters.VectorQuery`.
        text_columns: Text columns; None means all columns with a full-text index.
        phrase: Whether the words must follow each other.
        only_indexed: Whether to leave out rows outside of the indexes.
        prefilter: Whether the condition applies before the search.
        reranker: Reranker for the rows, or None.
        rerank_words: Text for the reranker if the query is a vector.
        normalize: How the reranker of a hybrid search gets distances and scores.

    Example:
        ```python
        import lance_spark

        docs = lance_spark.connect("tables").open_table("docs")
        nearest = docs.search([0.1, 0.2]).where("stock > 0").limit(3).to_arrow()
        ```
    """

    kind: QueryKind
    q: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None
    words: str | FullTextQuery | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    text_columns: tuple[str, ...] | None = None
    phrase: bool = False
    only_indexed: bool = False
    prefilter: bool = True
    reranker: Reranker | None = None
    rerank_words: str | None = None
    normalize: Literal["score", "rank"] = "score"

    def where(self, condition: str, prefilter: bool = True) -> Search:
        """Restricts the search to rows that match a condition in Lance SQL.

        Args:
            condition: The condition.
            prefilter: Whether the condition applies before the search. Otherwise the condition
                removes rows from the matches, and fewer rows than the limit may remain.

        Raises:
            OptionError: The condition is not a string, or an earlier condition has another
                `prefilter`.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).where("price > 10").to_list()
            ```
        """
        if self.condition is not None and prefilter != self.prefilter:
            raise OptionError(
                "prefilter", prefilter, f"{self.prefilter}, as in the first where() of the search"
            )
        return replace(super(Search, self).where(condition), prefilter=prefilter)

    def vector(self, vector: VectorLike) -> Search:
        """Sets the vector of a hybrid search.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            search = docs.search(query_type="hybrid").vector([0.1, 0.2]).text("fresh pears")
            rows = search.to_list()
            ```
        """
        self._only("vector()", "hybrid")
        return replace(self, q=vector_of(vector))

    def text(self, text: str | FullTextQuery) -> Search:
        """Sets the text of a hybrid search, or a query object.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            search = docs.search(query_type="hybrid").vector([0.1, 0.2]).text("fresh pears")
            rows = search.to_list()
            ```
        """
        self._only("text()", "hybrid")
        return replace(self, words=text)

    def fast_search(self) -> Search:
        """Leaves out rows outside of the indexes, which a search otherwise scans.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).fast_search().to_list()
            ```
        """
        return replace(self, only_indexed=True)

    def phrase_query(self, phrase_query: bool = True) -> Search:
        """Requires the words to follow each other. The full-text index must have positions.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search("fresh pears").phrase_query().to_list()
            ```
        """
        self._only("phrase_query()", "fts", "hybrid")
        return replace(self, phrase=phrase_query)

    def rerank(
        self,
        reranker: Reranker,
        query_string: str | None = None,
        *,
        normalize: Literal["score", "rank"] = "score",
    ) -> Search:
        """Reorders the rows in this process. By default, a hybrid search fuses both rankings.

        Args:
            reranker: The reranker. Its tables have the selected columns.
            query_string: Query text for the reranker of a vector search.
            normalize: How the reranker of a hybrid search gets distances and scores: both from 0 to
                1 (`score`), or the same for their ranks from 1 on (`rank`). The result has the
                distances and scores of the search.

        Raises:
            OptionError: `query_string` is missing, or `normalize` is not valid.

        Example:
            ```python
            import lance_spark
            import pyarrow as pa


            class NewestFirst:
                def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
                    rows = vector_results.sort_by([("id", "descending")])
                    return rows.append_column("_relevance_score", rows["id"].cast("float32"))


            docs = lance_spark.connect("tables").open_table("docs")
            rows = docs.search([0.1, 0.2]).rerank(NewestFirst(), "fresh pears").to_list()
            ```
        """
        if self.kind == "vector" and query_string is None:
            raise OptionError("query_string", None, "a text for the query vector")
        if normalize not in ("score", "rank"):
            raise OptionError("normalize", normalize, "score or rank")
        return replace(self, reranker=reranker, rerank_words=query_string, normalize=normalize)

    def check_view(self) -> None:
        """Raises an error: a materialized view cannot follow a search.

        Raises:
            RegistrationError: Always.

        Example:
            ```python
            import lance_spark

            docs = lance_spark.connect("tables").open_table("docs")
            try:
                docs.search([0.1, 0.2]).check_view()
            except lance_spark.RegistrationError as error:
                print(error)
            ```
        """
        raise RegistrationError(
            f"A materialized view of {self.source.uri} cannot follow a search, because the best rows change with every "
            "added or deleted row. Begin with search(None)."
        )

    # Rows of the result

    _is_ranked: ClassVar[bool] = True

    def _ranking(self) -> Ranking:
        most, first = self.most_rows or DEFAULT_K, self.skipped_rows
        vector = text = None
        if self.kind != "fts":
            if self.q is None:
                raise OptionError("vector", None, "a vector to search for: vector([...])")
            settings = dict(self.settings)
            vector = VectorQuery(
                q=self.q,
                k=most,
                offset=first,
                prefilter=self.prefilter,
                fast_search=self.only_indexed,
                **settings,
            )
        if self.kind != "vector":
            if self.words is None:
                raise OptionError("text", None, "words to search for: text('...')")
            text = TextQuery(
                query=self.words,
                columns=self.text_columns,
                phrase=self.phrase,
                fast_search=self.only_indexed,
                k=most,
                offset=first,
                prefilter=self.prefilter,
            )
        return Ranking(vector=vector, text=text, filter=self.condition)

    def _batches(
        self, dataset: lance.LanceDataset, batch_size: int | None
    ) -> Iterator[pa.RecordBatch]:
        searches = self._searches(dataset)
        if searches:
            return _numbered_batches(searches, dataset, batch_size)
        if self.ordering:
            return self._ordered_batches(dataset, batch_size)
        ranking = self._ranking().checked(dataset)
        if self.reranker is not None:
            return iter(
                self._reranked(dataset, ranking, self.reranker).to_batches(max_chunksize=batch_size)
            )
        return ranking.batches(dataset, self._projection(dataset))

    def _ordered_batches(
        self, dataset: lance.LanceDataset, batch_size: int | None
    ) -> Iterator[pa.RecordBatch]:
        added = tuple((name, quote_identifier(name)) for name in self._hidden_columns())
        columns = None if self.columns is None else (*self.columns, *added)
        ranked = replace(self, ordering=(), columns=columns)
        rows = pa.Table.from_batches(ranked._batches(dataset, None), schema=ranked._schema(dataset))  # noqa: SLF001 - its own
        ordered = sort_rows(rows, self.ordering).select(self._schema(dataset).names)
        return iter(ordered.to_batches(max_chunksize=batch_size))

    def _order_frame(self, frame: DataFrame) -> DataFrame:
        return frame.orderBy(*spark_ordering(self.ordering))  # the search has the limit

    def _searches(self, dataset: lance.LanceDataset) -> list[Search]:
        """Returns a search for each of several vectors, unless the column has lists of vectors."""
        if self.kind != "vector" or self.q is None or not isinstance(self.q[0], tuple):
            return []
        column = vector_column(dataset, dict(self.settings).get("column"))
        kind = stored_field(dataset, column, dataset.uri).to_arrow().type
        if vector_kind(kind) is not kind:
            return []
        if self.reranker is not None:
            raise OptionError(
                "rerank", self.reranker, "no reranker in a search for several vectors"
            )
        return [replace(self, q=vector) for vector in self.q]

    def _schema(self, dataset: lance.LanceDataset) -> pa.Schema:
        searches = self._searches(dataset)
        if searches:
            return pa.schema([_QUERY_INDEX, *searches[0]._schema(dataset)])  # noqa: SLF001 - its own
        schema = self._ranking().checked(dataset).schema(dataset, self._projection(dataset))
        if self.reranker is None or RELEVANCE in schema.names:
            return schema
        return schema.append(pa.field(RELEVANCE, pa.float32()))

    def _reranked(
        self, dataset: lance.LanceDataset, ranking: Ranking, reranker: Reranker
    ) -> pa.Table:
        """Returns the rows in the order of the reranker: columns, then scores."""
        columns = replace(self, row_ids=True)._projection(dataset)  # noqa: SLF001 - its own
        words = self.rerank_words or self.words or ""
        words = words_of_query(words) if isinstance(words, FullTextQuery) else words

        def results_of(kind: Literal["vector", "text"]) -> pa.Table:
            part = ranking.only(kind)
            return pa.Table.from_batches(
                part.batches(dataset, columns), schema=part.schema(dataset, columns)
            )

        if self.kind == "hybrid":
            ranked = rerank_hybrid(
                reranker, words, results_of("vector"), results_of("text"), self.normalize
            )
        elif self.kind == "vector":
            ranked = reranker.rerank_vector(words, results_of("vector"))
        else:
            ranked = reranker.rerank_fts(words, results_of("text"))
        if not isinstance(ranked, pa.Table) or RELEVANCE not in ranked.schema.names:
            raise OptionError(
                "rerank", reranker, f"an object whose methods return tables with {RELEVANCE}"
            )
        schema = self._schema(dataset)
        arrays = [
            ranked[score_field.name].cast(score_field.type)
            if score_field.name in ranked.schema.names
            else pa.nulls(len(ranked), score_field.type)
            for score_field in schema
        ]
        rows: pa.Table = pa.Table.from_arrays(arrays, schema=schema)
        return rows.slice(self.skipped_rows, self.most_rows or DEFAULT_K)

    def _plan(
        self, dataset: lance.LanceDataset, describe: Callable[[lance.LanceScanner], str]
    ) -> str:
        searches = self._searches(dataset)
        if searches:
            return "\n".join(search._plan(dataset, describe) for search in searches)  # noqa: SLF001 - its own
        ranking, columns = self._ranking().checked(dataset), self._projection(dataset)
        if self.kind != "hybrid":
            return describe(ranking.scanner(dataset, columns))
        plans = (
            describe(ranking.only(kind).scanner(dataset, [ROW_ID])) for kind in ("vector", "text")
        )
        return "\n".join(
            f"{name}:\n{plan}" for name, plan in zip(("vectors", "text"), plans, strict=True)
        )

    def _read_options(self) -> dict[str, str]:
        if self.reranker is not None:
            raise UnsupportedOperationError(
                "to_spark() cannot rerank rows: a reranker runs in this process. Call "
                "spark.createDataFrame(search.to_arrow())."
            )
        ranking, options = self._ranking(), {}
        if ranking.vector is not None:
            options["nearest"] = ranking.vector.to_json()
        if ranking.text is not None:
            options["full_text_query"] = ranking.text.to_json()
        return options

    def _selected_names(self) -> list[str]:
        added = (ROW_ID, DISTANCE, SCORE, RELEVANCE)
        return [name for name, _ in self.columns or () if name not in added]

    # Settings

    def _only(self, what: str, *kinds: QueryKind) -> None:
        if self.kind not in kinds:
            raise UnsupportedOperationError(
                f"{what} requires a search of type {' or '.join(map(repr, kinds))}, and this search has type "
                f"{self.kind!r}. Begin with search(..., query_type={kinds[0]!r})."
            )

    def _set(self, option: str, value: object, *, name: str | None = None) -> Self:
        self._only(f"{name or option}()", "vector", "hybrid")
        setting: dict[str, Any] = {option: value}
        VectorQuery(
            q=_ANY_VECTOR, **setting
        )  # Validates the value; the read validates all settings together.
        return replace(self, settings=tuple({**dict(self.settings), **setting}.items()))


def _numbered_batches(
    searches: Sequence[Search], dataset: lance.LanceDataset, batch_size: int | None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of each search, with the number of the search as first column."""
    for number, search in enumerate(searches):
        for batch in search._batches(dataset, batch_size):  # noqa: SLF001 - same module
            numbers = pa.array(np.full(batch.num_rows, number, np.int32))
            schema = pa.schema([_QUERY_INDEX, *batch.schema])
            yield pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=schema)


def search_of(
    query: object,
    base: Query,
    *,
    vector_column_name: str | None,
    query_type: str,
    fts_columns: str | Sequence[str] | None,
) -> Search:
    """Returns the search for a query: full-text search for a string, else vector search.

    Raises:
        OptionError: The query, its type or a column is not valid.
    """
    kind = _kind_of(query, query_type)
    for option, value, excluded_kind in (
        ("vector_column_name", vector_column_name, "fts"),
        ("fts_columns", fts_columns, "vector"),
    ):
        if value is not None and kind == excluded_kind:
            raise OptionError(option, value, f"nothing in a search of type {excluded_kind!r}")
    words = query if isinstance(query, (str, FullTextQuery)) else None
    columns = (fts_columns,) if isinstance(fts_columns, str) else fts_columns
    return Search(
        **attributes_of(base),
        kind=kind,
        q=None if query is None or words is not None else vectors_of(query),
        words=words,
        settings=() if vector_column_name is None else (("column", vector_column_name),),
        text_columns=None if columns is None else tuple(columns),
    )


def _kind_of(query: object, query_type: str) -> QueryKind:
    """Returns the kind of the search for a query.

    Raises:
        OptionError: The type is unknown, or does not fit the query.
    """
    if query_type not in ("auto", "vector", "fts", "hybrid"):
        raise OptionError("query_type", query_type, "vector, fts, hybrid or auto")
    is_text = isinstance(query, (str, FullTextQuery))
    if query_type == "auto":
        query_type = "fts" if is_text else "vector"
    if query_type == "vector" and (query is None or is_text):
        raise OptionError("query", query, "a vector. Pass query_type='fts' to search for words")
    if query_type == "fts" and not is_text:
        raise OptionError("query", query, "words. Pass query_type='vector' to search for a vector")
    return cast(QueryKind, query_type)


def vectors_of(query: object) -> tuple[float, ...] | tuple[tuple[float, ...], ...]:
    """Returns the numbers of a vector, or of each of several vectors.

    Raises:
        OptionError: The value is neither a vector nor a list of vectors.
    """
    is_several = (isinstance(query, np.ndarray) and query.ndim == 2) or (
        isinstance(query, (list, tuple))
        and bool(query)
        and all(isinstance(vector, (list, tuple, np.ndarray, pa.Array)) for vector in query)
    )
    if not is_several:
        return vector_of(query)
    vectors = tuple(map(vector_of, cast("Sequence[object]", query)))
    if len({len(vector) for vector in vectors}) > 1:
        raise OptionError("query", query, "vectors of one length")
    return vectors


def vector_of(vector: object) -> tuple[float, ...]:
    """Returns the numbers of a vector: a list, a NumPy or Arrow array, or a tensor.

    Raises:
        OptionError: The value is not a vector of numbers.
    """
    try:
        array = np.asarray(
            vector.to_pylist() if isinstance(vector, pa.Array | pa.ChunkedArray) else vector
        )
    except Exception:  # noqa: BLE001 - a value of any class, with methods of its own
        array = np.empty(0)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array):
        raise OptionError(
            "query", vector, "one vector of numbers. Pass a DataFrame to search for many vectors"
        )
    return tuple(array.tolist())
