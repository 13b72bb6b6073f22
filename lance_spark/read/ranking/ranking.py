"""Ranks the rows of one version of a table with pylance: :class:`Ranking`. Runs anywhere.

Lance scans rows outside of any index, skips deleted rows and NULL vectors, and searches further if
a filter leaves too few rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.errors import (
    ColumnNotFoundError,
    FilterError,
    LanceSparkError,
    OptionError,
    SearchError,
    TableUnreadableError,
    panics_as_errors,
)
from lance_spark.lance_compat import is_bad_search, is_filter_failure, plain, take_known_rows
from lance_spark.queries.parameters import MOST_ROWS, TextQuery, VectorQuery
from lance_spark.queries.text import FullTextQuery, columns_of_query
from lance_spark.read.columns import ROW_ID, lance_blob_handling
from lance_spark.read.ranking.text_objects import full_text_of
from lance_spark.read.vector_hint import vector_hint
from lance_spark.types.fields import Array, BlobHandling, Kind, expression_of, requested_columns

if TYPE_CHECKING:
    import lance

DISTANCE, SCORE, RELEVANCE = "_distance", "_score", "_relevance_score"
"""Columns that a search adds: distance of a vector, score of a text, and fused score."""

RRF_K = 60
"""The constant of reciprocal rank fusion, from the paper that introduced the method."""

_VECTOR = "__lance_spark_vector"
"""Name of the extra vector column of a search."""

Columns = Sequence[str] | Mapping[str, str]
"""Columns of the result: names, or names with expressions in Lance SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A search of one table. A picklable value. With both queries, the rankings are fused.

    Attributes:
        vector: Vector query, or None.
        text: Full-text query, or None.
        filter: Filter in Lance SQL, or None.
        blobs: Blob handling.
    """

    vector: VectorQuery | None = None
    text: TextQuery | None = None
    filter: str | None = None
    blobs: BlobHandling = "descriptor"

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the score columns, each float32."""
        if self.vector is not None and self.text is not None:
            return (DISTANCE, SCORE, RELEVANCE)
        return (DISTANCE,) if self.vector is not None else (SCORE,)

    def checked(self, dataset: lance.LanceDataset) -> Ranking:
        """Returns the ranking with resolved columns for this version.

        Raises:
            ColumnNotFoundError: A column does not exist.
            OptionError: A column does not support the search, or the column is ambiguous.
        """
        for name in self.scores:
            if name in dataset.schema.names:
                raise OptionError(
                    "columns",
                    name,
                    f"a table without this column, which a search of {dataset.uri} adds",
                )
        vector, text = self.vector, self.text
        if vector is not None:
            vector = checked_vector(dataset, vector)
        if text is not None:
            if isinstance(text.query, FullTextQuery):
                text_columns(dataset, columns_of_query(text.query))
            else:
                text = dataclasses.replace(text, columns=text_columns(dataset, text.columns))
        return dataclasses.replace(self, vector=vector, text=text)

    def batches(self, dataset: lance.LanceDataset, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yields the rows in rank order: the columns, then the scores.

        Raises:
            SearchError: Lance does not support the search.
            FilterError: The filter failed on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        if self.vector is None:
            yield from self._read(dataset, columns)
        elif self.text is None:
            yield from self._nearest(dataset, self.vector, columns)
        else:
            yield from self._fused(dataset, columns).to_batches()

    def schema(self, dataset: lance.LanceDataset, columns: Columns) -> pa.Schema:
        """Returns the schema of :meth:`batches`."""
        with search_errors(dataset, self.filter):
            scanner = dataset.scanner(
                columns=_with(columns, ()), blob_handling=lance_blob_handling(self.blobs)
            )
            fields: list[pa.Field[Any]] = list(scanner.projected_schema)
        return pa.schema([*fields, *(pa.field(name, pa.float32()) for name in self.scores)])

    def scanner(self, dataset: lance.LanceDataset, columns: Columns) -> lance.LanceScanner:
        """Returns the scanner of a vector search or a text search."""
        search: dict[str, Any]
        query: VectorQuery | TextQuery
        if self.vector is not None:
            query, search = self.vector, {"nearest": nearest_of(self.vector, self.vector.q)}
        else:
            assert self.text is not None
            query, search = self.text, {"full_text_query": full_text_of(self.text)}
        return dataset.scanner(
            columns=_with(columns, self.scores),
            filter=self.filter,
            prefilter=query.prefilter if self.filter is not None else None,
            limit=query.k,
            offset=query.offset or None,
            blob_handling=lance_blob_handling(self.blobs),
            disable_scoring_autoprojection=True,
            fast_search=query.fast_search or None,
            **search,
        )

    def _read(self, dataset: lance.LanceDataset, columns: Columns) -> Iterator[pa.RecordBatch]:
        return read_scanner(self.scanner(dataset, columns), dataset, self.filter)

    def _nearest(
        self, dataset: lance.LanceDataset, query: VectorQuery, columns: Columns
    ) -> Iterator[pa.RecordBatch]:
        """Yields the nearest rows with searchable vectors.

        If Lance returns other vectors too, the next search requests twice as many rows.
        """
        names, total_rows = [*columns, *self.scores], query.k + query.offset
        is_filtered_later = self.filter is not None and not query.prefilter
        search_rows = self._reach(dataset, query) if is_filtered_later else total_rows
        seen_ids = np.empty(0, np.uint64)
        while True:
            row_count = 0
            for batch in self._nearest_with_vectors(dataset, query, columns, search_rows):
                row_count += batch.num_rows
                ids = batch.column(ROW_ID).to_numpy()
                is_new = is_searchable(batch.column(_VECTOR)) & ~np.isin(ids, seen_ids)
                rows = batch.select(names)
                rows = rows if is_new.all() else rows.filter(pa.array(is_new))
                yield rows.slice(0, total_rows - len(seen_ids)).slice(
                    max(0, query.offset - len(seen_ids))
                )
                seen_ids = np.concatenate([seen_ids, ids[is_new]])[:total_rows]
            if is_filtered_later or len(seen_ids) == total_rows or row_count < search_rows:
                return
            search_rows *= 2

    def _reach(self, dataset: lance.LanceDataset, query: VectorQuery) -> int:
        """Returns how many nearest rows hold `k + offset` searchable vectors without a filter."""
        unfiltered, total_rows = dataclasses.replace(self, filter=None), query.k + query.offset
        search_rows = total_rows
        while True:
            batches = unfiltered._nearest_with_vectors(dataset, query, [], search_rows)  # noqa: SLF001 - same class
            searchable = np.concatenate(
                [np.empty(0, bool), *(is_searchable(b.column(_VECTOR)) for b in batches)]
            )
            places = np.flatnonzero(searchable)
            if len(places) >= total_rows:
                return int(places[total_rows - 1]) + 1
            if len(searchable) < search_rows:
                return search_rows
            search_rows *= 2

    def _nearest_with_vectors(
        self, dataset: lance.LanceDataset, query: VectorQuery, columns: Columns, search_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields the `search_rows` nearest rows with row ids and vectors."""
        assert query.column is not None
        search = dataclasses.replace(
            self, vector=dataclasses.replace(query, k=min(search_rows, MOST_ROWS), offset=0)
        )
        requested = {**_with(columns, (ROW_ID,)), _VECTOR: expression_of(query.column)}
        return search._read(dataset, requested)  # noqa: SLF001 - same class

    def only(self, kind: Literal["vector", "text"]) -> Ranking:
        """Returns the vector or text part of the search, with the rows that the offset skips."""
        vector, text = (self.vector, None) if kind == "vector" else (None, self.text)
        if vector is not None:
            vector = dataclasses.replace(vector, k=vector.k + vector.offset, offset=0)
        if text is not None:
            text = dataclasses.replace(text, k=text.k + text.offset, offset=0)
        return dataclasses.replace(self, vector=vector, text=text)

    def _fused(self, dataset: lance.LanceDataset, columns: Columns) -> pa.Table:
        """Returns the best rows of both searches by reciprocal rank fusion."""
        assert self.vector is not None
        nearest, texts = (
            pa.Table.from_batches(
                ranking.batches(dataset, [ROW_ID]), schema=ranking.schema(dataset, [ROW_ID])
            )
            for ranking in (self.only("vector"), self.only("text"))
        )
        ranked = fused(nearest, texts).slice(self.vector.offset, self.vector.k)
        if not len(ranked):
            return self.schema(dataset, columns).empty_table()
        ids: list[Any] = ranked[ROW_ID].to_pylist()
        with search_errors(dataset, self.filter):
            rows = take_known_rows(dataset, ids, _with(columns, (ROW_ID,)))
        at = {number: position for position, number in enumerate(rows[ROW_ID].to_pylist())}
        rows = rows.take([at[number] for number in ids])
        if ROW_ID not in columns:
            rows = rows.drop([ROW_ID])
        for name in self.scores:
            rows = rows.append_column(name, ranked[name])
        return rows


def read_scanner(
    scanner: lance.LanceScanner, dataset: lance.LanceDataset, filter: str | None
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a scanner with a filter.

    Raises:
        LanceSparkError: As :func:`search_errors` converts the errors of Lance.
    """
    with search_errors(dataset, filter):
        reader = scanner.to_reader()
    while True:
        with search_errors(dataset, filter):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


@contextlib.contextmanager
def search_errors(dataset: lance.LanceDataset, filter: str | None) -> Iterator[None]:
    """Converts errors of Lance while it reads a dataset with a filter."""
    try:
        with panics_as_errors():
            yield
    except LanceSparkError:
        raise
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise _explain(error, dataset, filter) from error


def _explain(
    error: BaseException, dataset: lance.LanceDataset, filter: str | None
) -> LanceSparkError:
    text = plain(error)
    if filter is not None and is_filter_failure(error):
        hint = "A value of the table makes the filter fail. Exclude this value in the filter."
        return FilterError(filter, text, uri=dataset.uri, hint=hint)
    if is_bad_search(error):
        return SearchError(
            f"Lance cannot run the search: {text.removeprefix('External error: ').rstrip('.')}. The table is "
            f"{dataset.uri}, version {dataset.version}. Change the search, or create an index for it.",
            uri=dataset.uri,
        )
    hint = "A data file or an index is missing or damaged, or the store refused. Check the storage."
    return TableUnreadableError(dataset.uri, f"{text} (version {dataset.version})", hint=hint)


def fused(near: pa.Table, good: pa.Table) -> pa.Table:
    """Fuses two rankings by the sum of 1 / (60 + rank), best first.

    Args:
        near: `_rowid` and `_distance`, nearest first.
        good: `_rowid` and `_score`, best first.

    Returns:
        `_rowid`, `_distance`, `_score` and `_relevance_score`. `_distance` or `_score` is NULL if
        only the other search returned the row. Rows of equal relevance are ordered by id.
    """
    ids, places = np.unique(
        np.concatenate([t[ROW_ID].to_numpy() for t in (near, good)]), return_inverse=True
    )
    relevance = np.zeros(len(ids))
    scores = []
    for ranked, name, at in (
        (near, DISTANCE, places[: len(near)]),
        (good, SCORE, places[len(near) :]),
    ):
        np.add.at(relevance, at, 1 / (RRF_K + 1 + np.arange(len(ranked))))
        values, has_score = np.zeros(len(ids), np.float32), np.zeros(len(ids), bool)
        values[at], has_score[at] = ranked[name].to_numpy(), True
        scores.append(pa.array(values, mask=~has_score))
    table = pa.table({ROW_ID: pa.array(ids, pa.uint64()), DISTANCE: scores[0], SCORE: scores[1]})
    table = table.append_column(RELEVANCE, pa.array(relevance.astype(np.float32)))
    return table.take(np.lexsort((ids, -relevance)))


def nearest_of(query: VectorQuery, q: object) -> dict[str, Any]:
    """Returns the `nearest` argument of pylance's scanner for one or several vectors."""
    bounds = (query.lower_bound, query.upper_bound)
    nearest: dict[str, Any] = {
        "column": query.column,
        "q": q,
        "k": query.k + query.offset,
        "metric": query.metric,
        # `nprobes` would also be a maximum, even if the probed partitions hold fewer than k rows.
        "minimum_nprobes": query.nprobes,
        "maximum_nprobes": query.maximum_nprobes,
        "distance_range": bounds if bounds != (None, None) else None,
        "refine_factor": query.refine_factor,
        "ef": query.ef,
        "use_index": query.use_index,
    }
    return {key: value for key, value in nearest.items() if value is not None}


def _with(columns: Columns, names: Sequence[str]) -> Any:  # noqa: ANN401 - a list or a dict, as pylance takes them
    if isinstance(columns, Mapping):
        return {**columns, **{name: name for name in names}}
    return requested_columns([*columns, *names])


def is_searchable(vectors: Array) -> NDArray[np.bool_]:
    """Tells which vectors a search can return. Every kind of search uses this rule.

    A vector with a NULL, NaN or infinite coordinate has no distance, and no index holds such a
    vector. Lance's search without an index computes a distance for some of these vectors.

    Args:
        vectors: An array of fixed-size lists, or of an extension type of fixed-size lists. Of lists
            of vectors, each vector must be searchable, and at least one vector exists.

    Example:
        >>> import pyarrow as pa
        >>> vectors = [[1.0, 2.0], [1.0, None], [1.0, float("nan")], None]
        >>> is_searchable(pa.array(vectors, pa.list_(pa.float32(), 2))).tolist()
        [True, False, False, False]
    """
    lists: Any = getattr(vectors, "storage", vectors)
    if not pa.types.is_fixed_size_list(lists.type):
        return _is_searchable_list(lists)
    size = lists.type.list_size
    numbers = lists.values.slice(lists.offset * size, len(lists) * size)
    finite = pc.is_finite(numbers.cast(pa.float64())).fill_null(False)
    coordinates = np.asarray(finite).reshape(len(lists), size)
    is_present: NDArray[np.bool_] = lists.is_valid().to_numpy(zero_copy_only=False)
    return is_present & coordinates.all(axis=1)


def _is_searchable_list(lists: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - an array of lists of vectors
    lengths = lists.value_lengths().fill_null(0).to_numpy()
    searchable = is_searchable(lists.flatten()).astype(np.int64)
    ends = np.cumsum(lengths)
    totals = np.concatenate([[0], np.cumsum(searchable)])
    is_whole: NDArray[np.bool_] = (totals[ends] - totals[ends - lengths] == lengths) & (lengths > 0)
    return is_whole


def vector_column(dataset: lance.LanceDataset, name: str | None) -> str:
    """Returns the vector column of a search.

    Raises:
        ColumnNotFoundError: The column does not exist.
        OptionError: No column is named, and the table has no vector column, or several.
    """
    if name is not None:
        stored_field(dataset, name, dataset.uri)
        return name
    names = _vector_paths(dataset.schema, "") or _vector_paths(dataset.schema, "", nested=True)
    if len(names) != 1:
        raise OptionError(
            "vector_column_name",
            None,
            f"one of {', '.join(names)}" if names else _no_vectors(dataset),
        )
    return str(names[0])


def _vector_paths(
    fields: Iterable[pa.Field[Any]], parent: str, *, nested: bool = False
) -> list[str]:
    """Returns the paths of the columns of vectors; `nested` includes fields of structs."""
    paths = []
    for field in fields:
        path = f"{parent}{field.name}"
        if vector_size(vector_kind(field.type)) is not None:
            paths.append(path)
        elif nested and pa.types.is_struct(field.type):
            paths += _vector_paths(field.type.fields, f"{path}.", nested=True)
    return paths


def _no_vectors(dataset: lance.LanceDataset) -> str:
    """Returns the accepted columns of a table without vectors, with a hint at lists of numbers."""
    accepted = f"a column of vectors, but {dataset.uri} has none"
    for field in dataset.schema:
        if hint := vector_hint(dataset, field.name):
            return f"{accepted}. Column {field.name!r} has {field.type}: {hint}"
    return accepted


def stored_field(dataset: lance.LanceDataset, name: str, uri: str) -> Any:  # noqa: ANN401 - its stub lacks `to_arrow`
    """Returns a column, or a nested field by its path, as a `LanceField`.

    Raises:
        ColumnNotFoundError: The column does not exist.
    """
    field = dataset.lance_schema.field(name)
    if field is None:
        raise ColumnNotFoundError(
            name, uri, hint=f"Its columns are {', '.join(dataset.schema.names)}."
        )
    return field


def vector_kind(kind: Kind) -> Kind:
    """Returns the type of the vectors of a column, or in the lists of a column."""
    kind = getattr(kind, "storage_type", kind)
    if not pa.types.is_list(kind):
        return kind
    element: Kind = getattr(kind.value_type, "storage_type", kind.value_type)
    return element if pa.types.is_fixed_size_list(element) else kind


def vector_size(kind: Kind) -> int | None:
    """Returns the number of elements of a vector type, or None for any other type."""
    kind = getattr(kind, "storage_type", kind)
    if not pa.types.is_fixed_size_list(kind):
        return None
    element = kind.value_type
    return (
        int(kind.list_size) if pa.types.is_floating(element) or pa.types.is_uint8(element) else None
    )


def checked_vector(dataset: lance.LanceDataset, query: VectorQuery) -> VectorQuery:
    """Returns a query with its resolved column and metric.

    Raises:
        ColumnNotFoundError: The column does not exist.
        OptionError: The vector does not match the column, or the column is ambiguous.
    """
    column = vector_column(dataset, query.column)
    field: Any = dataset.lance_schema.field(column)
    column_kind = field.to_arrow().type
    kind: Any = vector_kind(column_kind)
    size = vector_size(kind)
    if size is None:
        hint = vector_hint(dataset, column)
        text = f"a column of vectors, not of {column_kind}"
        raise OptionError("vector_column_name", column, text if hint is None else f"{text}: {hint}")
    _check_length(query.q, column, size, is_list=kind is not column_kind)
    metric = query.metric
    if pa.types.is_uint8(getattr(kind, "storage_type", kind).value_type):
        metric = metric or "hamming"
        if metric != "hamming" or not all(
            isinstance(value, int) and 0 <= value < 256 for value in _numbers(query.q)
        ):
            raise OptionError(
                "metric", metric, f"hamming, and a vector of bytes, as column {column!r} has"
            )
    elif metric == "hamming":
        raise OptionError("metric", metric, f"l2, cosine or dot: column {column!r} has {kind}")
    return dataclasses.replace(query, column=column, metric=metric)


def _numbers(q: Sequence[Any]) -> Iterator[object]:
    """Yields the numbers of a vector, or of each vector of a list."""
    for value in q:
        yield from value if isinstance(value, tuple) else (value,)


def _check_length(q: Sequence[Any], column: str, size: int, *, is_list: bool) -> None:
    is_list_query = isinstance(q[0], tuple)
    length = len(q[0]) if is_list_query else len(q)
    if is_list_query and not is_list:
        raise OptionError(
            "q",
            f"{len(q)} vectors",
            f"one vector, because column {column!r} has one vector per row",
        )
    if length != size:
        raise OptionError(
            "q", f"a vector of {length}", f"a vector of {size} numbers, as column {column!r} has"
        )


def text_columns(dataset: lance.LanceDataset, names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the text columns of a search, by default all columns with a full-text index.

    Raises:
        ColumnNotFoundError: A column does not exist.
        OptionError: A column holds no text. Or no column is named, and no column has an index.
    """
    if names is None:
        return _indexed_text_columns(dataset)
    for name in names:
        kind = stored_field(dataset, name, dataset.uri).to_arrow().type
        kind = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
        if not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
            raise OptionError(
                "fts_columns", name, f"columns of strings, or of lists of strings, not of {kind}"
            )
    return tuple(names)


def _indexed_text_columns(dataset: lance.LanceDataset) -> tuple[str, ...]:
    indexes = [index for index in dataset.describe_indices() if index.index_type == "Inverted"]
    if not indexes:
        accepted = (
            "columns of text, in fts_columns or full_text_query. No column has an index of words, so name the columns, "
            "or call create_fts_index"
        )
        raise OptionError("fts_columns", None, accepted)
    return tuple(sorted({name for index in indexes for name in index.field_names}))
