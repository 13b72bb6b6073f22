"""The parameters of a search: :class:`VectorQuery` and :class:`TextQuery`, as values and as JSON.

The JSON is the value of the read options `nearest` and `full_text_query`. Its keys are the
attributes, with pylance's names of `scanner(nearest=...)` if pylance has them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, cast

from lance_spark.errors import OptionError
from lance_spark.queries.text import FullTextQuery, query_of_values, query_to_values

DEFAULT_K = 10
"""Rows of a search that does not say how many."""

MOST_ROWS = (1 << 31) - 1
"""Rows that a search can ask for."""

Metric = Literal["l2", "cosine", "dot", "hamming"]

METRICS: Mapping[str, Metric] = {
    "l2": "l2",
    "euclidean": "l2",
    "cosine": "cosine",
    "dot": "dot",
    "hamming": "hamming",
}
"""How distances are measured, by the names that are accepted."""


def metric_of(name: object, *, option: str = "metric") -> Metric:
    """Returns the metric of a name in any case.

    Raises:
        OptionError: The name is unknown.
    """
    metric = METRICS.get(str(name).lower())
    if metric is None:
        raise OptionError(option, name, ", ".join(METRICS))
    return metric


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VectorQuery:
    """A search for the rows with the nearest vectors.

    Attributes:
        q: The vector; for a column of lists of vectors, the vectors of a list.
        column: The column of vectors; None is the only such column of the table.
        k: Maximum number of rows.
        offset: Nearest rows to skip.
        metric: The distance; None is the distance of the index, else `l2`.
        nprobes: Partitions of an index to search, and more partitions if these have fewer than `k`
            rows; None leaves the choice to Lance.
        maximum_nprobes: Most partitions to search; None is all.
        lower_bound: Least distance of a row; None is no bound.
        upper_bound: Distance that all rows are below; None is no bound.
        fast_search: Whether to leave out rows outside of the index.
        refine_factor: For a compressed index, the distances of this many times more rows are
            computed from the vectors; None takes the distances of the index.
        ef: Candidates in a graph (HNSW); None leaves the choice to Lance.
        use_index: Whether to use an index.
        prefilter: Whether to filter before the search; a filter after the search may leave fewer
            rows.
    """

    q: tuple[float, ...] | tuple[tuple[float, ...], ...]
    column: str | None = None
    k: int = DEFAULT_K
    offset: int = 0
    metric: Metric | None = None
    nprobes: int | None = None
    maximum_nprobes: int | None = None
    lower_bound: float | None = None
    upper_bound: float | None = None
    fast_search: bool = False
    refine_factor: int | None = None
    ef: int | None = None
    use_index: bool = True
    prefilter: bool = True

    def __post_init__(self) -> None:
        if not _is_vector(self.q) and not _is_list_of_vectors(self.q):
            raise OptionError("q", self.q, "a vector: a list of finite numbers")
        _check_text("column", self.column)
        _check_bounds(self)
        for name in ("nprobes", "maximum_nprobes", "refine_factor", "ef"):
            value = getattr(self, name)
            if value is not None:
                _check_count(name, value, 1)
        if self.maximum_nprobes is not None and self.maximum_nprobes < (self.nprobes or 1):
            raise OptionError(
                "maximum_nprobes",
                self.maximum_nprobes,
                f"{self.nprobes}, as minimum_nprobes, or more",
            )
        for name in ("lower_bound", "upper_bound"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise OptionError(name, value, "a finite number, or None")
        for name in ("use_index", "prefilter", "fast_search"):
            _check_flag(name, getattr(self, name))

    @staticmethod
    def of_json(text: str) -> VectorQuery:
        """Reads the form of :meth:`to_json`.

        Raises:
            OptionError: The text has another form.
        """
        values = _read("nearest", text, VectorQuery)
        if not isinstance(values.get("q"), list):
            raise OptionError("nearest", text[:100], "JSON with the key q, a list of numbers")
        if values.get("metric") is not None:
            values["metric"] = metric_of(values["metric"])
        q = (tuple(part) if isinstance(part, list) else part for part in values["q"])
        return VectorQuery(**{**values, "q": tuple(q)})

    def to_json(self) -> str:
        """Returns the query as JSON."""
        return _written(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextQuery:
    """A search for the rows with the best texts for words.

    Attributes:
        query: The words, or a query as an object, which names its columns.
        columns: The columns of text; None means all columns with a full-text index.
        fast_search: Whether to leave out rows outside of the index.
        phrase: Whether the words have to follow each other.
        k: Maximum number of rows.
        offset: Best rows to skip.
        prefilter: Whether to filter before the search; a filter after the search may leave fewer
            rows.
    """

    query: str | FullTextQuery
    columns: tuple[str, ...] | None = None
    phrase: bool = False
    fast_search: bool = False
    k: int = DEFAULT_K
    offset: int = 0
    prefilter: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.query, FullTextQuery) and (
            not isinstance(self.query, str) or not self.query.strip()
        ):
            raise OptionError("query", self.query, "words to search for")
        if isinstance(self.query, FullTextQuery) and (self.columns is not None or self.phrase):
            raise OptionError(
                "columns", self.columns, "nothing, because the query object names its columns"
            )
        for column in self.columns or ():
            _check_text("columns", column)
        if self.columns is not None and (
            not self.columns or len(set(self.columns)) != len(self.columns)
        ):
            raise OptionError("columns", ", ".join(self.columns), "names of columns, each once")
        _check_bounds(self)
        for name in ("phrase", "prefilter", "fast_search"):
            _check_flag(name, getattr(self, name))

    @staticmethod
    def of_text(text: str) -> TextQuery:
        """Reads words, or the form of :meth:`to_json`.

        Raises:
            OptionError: The text has another form.
        """
        if not text.lstrip().startswith("{"):
            return TextQuery(query=text)
        values = _read("full_text_query", text, TextQuery)
        columns = values.get("columns")
        if isinstance(columns, str):
            columns = [columns]
        if "query" not in values or not isinstance(columns, list | None):
            raise OptionError(
                "full_text_query", text[:100], "words, or JSON with the keys query and columns"
            )
        if isinstance(values["query"], dict):
            values["query"] = query_of_values(values["query"])
        return TextQuery(**{**values, "columns": None if columns is None else tuple(columns)})

    def to_json(self) -> str:
        """Returns the query as JSON."""
        return _written(self)


def _read(option: str, text: str, cls: type[VectorQuery] | type[TextQuery]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(cls)]
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise OptionError(option, text[:100], f"a JSON object with the keys {', '.join(names)}")
    unknown = sorted(values.keys() - set(names))
    if unknown:
        raise OptionError(
            option, text[:100], ", ".join(names), problem=f"has unknown keys ({', '.join(unknown)})"
        )
    return cast("dict[str, Any]", values)


def _written(query: VectorQuery | TextQuery) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(query)}
    values = {name: getattr(query, name) for name in defaults}
    if isinstance(values.get("query"), FullTextQuery):
        values["query"] = query_to_values(values["query"])
    return json.dumps({name: value for name, value in values.items() if value != defaults[name]})


def _check_bounds(query: VectorQuery | TextQuery) -> None:
    _check_count("k", query.k, 1)
    _check_count("offset", query.offset, 0)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_ROWS:
        raise OptionError(name, value, f"a whole number, {least} or more")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(name, value, "true or false")


def _check_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise OptionError(name, value, "the name of a column")


def _is_vector(q: object) -> bool:
    return isinstance(q, tuple) and bool(q) and all(map(_is_number, q))


def _is_list_of_vectors(q: tuple[Any, ...]) -> bool:
    return bool(q) and all(map(_is_vector, q)) and len({len(vector) for vector in q}) == 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
