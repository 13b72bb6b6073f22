"""Full-text queries as objects, by LanceDB's names: :class:`MatchQuery` and its siblings.

A query is a picklable value, and has a form of JSON:
`{"match": {"query": "pear", "column": "text"}}`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import OptionError

_MOST_DEPTH = 32
"""Maximum depth of queries in queries."""


class FullTextOperator(enum.StrEnum):
    """Whether any (`OR`) or all (`AND`) words of a query must match.

    Example:
        ```python
        import lance_spark

        all_words = lance_spark.FullTextOperator.AND
        query = lance_spark.MatchQuery("fresh pears", "text", operator=all_words)
        assert query.operator == "AND"
        ```
    """

    AND = "AND"
    OR = "OR"


class Occur(enum.StrEnum):
    """Whether a part of a :class:`BooleanQuery` should, must or must not match.

    Example:
        ```python
        import lance_spark

        pear, plum = lance_spark.MatchQuery("pear", "text"), lance_spark.MatchQuery("plum", "text")
        query = lance_spark.BooleanQuery([("SHOULD", pear), (lance_spark.Occur.MUST_NOT, plum)])
        ```
    """

    SHOULD = "SHOULD"
    MUST = "MUST"
    MUST_NOT = "MUST_NOT"


class FullTextQuery:
    """Base class of the full-text queries. `&` and `|` combine two queries.

    Example:
        ```python
        import lance_spark

        query = lance_spark.MatchQuery("pear", "text") & lance_spark.MatchQuery("fresh", "text")
        assert isinstance(query, lance_spark.BooleanQuery)
        ```
    """

    __slots__ = ()
    kind: ClassVar[str]

    def __and__(self, other: FullTextQuery) -> BooleanQuery:
        return BooleanQuery([(Occur.MUST, self), (Occur.MUST, other)])

    def __or__(self, other: FullTextQuery) -> BooleanQuery:
        return BooleanQuery([(Occur.SHOULD, self), (Occur.SHOULD, other)])


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class MatchQuery(FullTextQuery):
    """Rows with words of a text in a column.

    Attributes:
        query: The words.
        column: The column; a nested field with dots.
        boost: Factor of the scores.
        fuzziness: Maximum edits of a word: letters added, removed or replaced. None allows 0 up to
            2 letters, 1 up to 5 letters, and 2 for longer words.
        max_expansions: Maximum words that match a word with edits.
        operator: Whether any (`OR`) or all (`AND`) words must match.
        prefix_length: Letters at the beginning of a word without edits.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        notes = db.create_table("notes", [{"text": "a red apple"}, {"text": "a green pear"}])
        notes.create_fts_index("text")
        query = lance_spark.MatchQuery("aple", "text", fuzziness=1)
        assert notes.search(query).to_list()[0]["text"] == "a red apple"
        ```
    """

    kind: ClassVar[str] = "match"

    query: str
    column: str
    boost: float = dataclasses.field(default=1.0, kw_only=True)
    fuzziness: int | None = dataclasses.field(default=0, kw_only=True)
    max_expansions: int = dataclasses.field(default=50, kw_only=True)
    operator: FullTextOperator | str = dataclasses.field(default=FullTextOperator.OR, kw_only=True)
    prefix_length: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        _check_words(self.query)
        _check_column(self.column)
        _check_number("boost", self.boost)
        if self.fuzziness is not None:
            _check_count("fuzziness", self.fuzziness, 0)
        _check_count("max_expansions", self.max_expansions, 1)
        _check_count("prefix_length", self.prefix_length, 0)
        object.__setattr__(self, "operator", _member("operator", self.operator, FullTextOperator))


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class PhraseQuery(FullTextQuery):
    """Rows with consecutive words in a column. The index must have positions.

    Attributes:
        query: The words.
        column: The column; a nested field with dots.
        slop: Maximum number of further words between the words.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        notes = db.create_table("notes", [{"text": "a red apple"}, {"text": "a red big apple"}])
        notes.create_fts_index("text")
        near = lance_spark.PhraseQuery("red apple", "text", slop=1)
        assert len(notes.search(near).to_list()) == 2
        ```
    """

    kind: ClassVar[str] = "phrase"

    query: str
    column: str
    slop: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        _check_words(self.query)
        _check_column(self.column)
        _check_count("slop", self.slop, 0)


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class BoostQuery(FullTextQuery):
    """Rows of a query, with lower scores if they match another query.

    Attributes:
        positive: The query for the rows.
        negative: The query for rows with a lower score.
        negative_boost: Share of the score of `negative` that is subtracted.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        notes = db.create_table("notes", [{"text": "red apple"}, {"text": "green apple"}])
        notes.create_fts_index("text")
        apple = lance_spark.MatchQuery("apple", "text")
        red = lance_spark.MatchQuery("red", "text")
        best = notes.search(lance_spark.BoostQuery(apple, red)).to_list()[0]
        assert best["text"] == "green apple"
        ```
    """

    kind: ClassVar[str] = "boost"

    positive: FullTextQuery
    negative: FullTextQuery
    negative_boost: float = dataclasses.field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        _check_query("positive", self.positive)
        _check_query("negative", self.negative)
        _check_number("negative_boost", self.negative_boost)


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class MultiMatchQuery(FullTextQuery):
    """Rows with words of a text in any of several columns.

    Attributes:
        query: The words.
        columns: The columns.
        boosts: Factors of the scores of the columns; by default 1.
        operator: Whether any (`OR`) or all (`AND`) words must match.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        rows = [{"title": "apple", "text": "red"}, {"title": "pear", "text": "apple"}]
        notes = db.create_table("notes", rows)
        notes.create_fts_index(["title", "text"])
        query = lance_spark.MultiMatchQuery("apple", ["title", "text"])
        assert len(notes.search(query).to_list()) == 2
        ```
    """

    kind: ClassVar[str] = "multi_match"

    query: str
    columns: Sequence[str]
    boosts: Sequence[float] | None = dataclasses.field(default=None, kw_only=True)
    operator: FullTextOperator | str = dataclasses.field(default=FullTextOperator.OR, kw_only=True)

    def __post_init__(self) -> None:
        _check_words(self.query)
        if (
            isinstance(self.columns, str)
            or not isinstance(self.columns, Sequence)
            or not self.columns
        ):
            raise OptionError("columns", self.columns, "names of columns of text")
        for column in self.columns:
            _check_column(column)
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.boosts is not None:
            if not isinstance(self.boosts, Sequence) or len(self.boosts) != len(self.columns):
                raise OptionError("boosts", self.boosts, "a number for each column")
            for boost in self.boosts:
                _check_number("boosts", boost)
            object.__setattr__(self, "boosts", tuple(self.boosts))
        object.__setattr__(self, "operator", _member("operator", self.operator, FullTextOperator))


@ARGUMENTS.constructor
@dataclass(frozen=True, slots=True)
class BooleanQuery(FullTextQuery):
    """Rows of several queries that should, must or must not match.

    Attributes:
        queries: Pairs of an :class:`Occur` and a query.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        notes = db.create_table("notes", [{"text": "red apple"}, {"text": "green apple"}])
        notes.create_fts_index("text")
        apple = lance_spark.MatchQuery("apple", "text")
        red = lance_spark.MatchQuery("red", "text")
        query = lance_spark.BooleanQuery([("MUST", apple), ("MUST_NOT", red)])
        assert [row["text"] for row in notes.search(query).to_list()] == ["green apple"]
        ```
    """

    kind: ClassVar[str] = "boolean"

    queries: Sequence[tuple[Occur | str, FullTextQuery]]

    def __post_init__(self) -> None:
        pairs = self.queries
        if (
            not isinstance(pairs, Sequence)
            or not pairs
            or not all(_is_pair(pair) for pair in pairs)
        ):
            raise OptionError(
                "queries", pairs, "pairs of SHOULD, MUST or MUST_NOT and a full-text query"
            )
        for _, query in pairs:
            _check_query("queries", query)
        checked = tuple((_member("queries", occur, Occur), query) for occur, query in pairs)
        object.__setattr__(self, "queries", checked)


_CLASSES: Mapping[str, type[Any]] = {
    cls.kind: cls for cls in (MatchQuery, PhraseQuery, BoostQuery, MultiMatchQuery, BooleanQuery)
}


def leaves_of(query: FullTextQuery) -> Iterator[MatchQuery | PhraseQuery | MultiMatchQuery]:
    """Yields the queries with words inside a query."""
    if isinstance(query, BoostQuery):
        yield from leaves_of(query.positive)
        yield from leaves_of(query.negative)
    elif isinstance(query, BooleanQuery):
        for _, part in query.queries:
            yield from leaves_of(part)
    elif isinstance(query, (MatchQuery, PhraseQuery, MultiMatchQuery)):
        yield query


def columns_of_query(query: FullTextQuery) -> list[str]:
    """Returns the columns of a query, each once."""
    columns = (
        leaf.columns if isinstance(leaf, MultiMatchQuery) else [leaf.column]
        for leaf in leaves_of(query)
    )
    return list(dict.fromkeys(column for names in columns for column in names))


def words_of_query(query: FullTextQuery) -> str:
    """Returns the words of a query, for a reranker."""
    return " ".join(leaf.query for leaf in leaves_of(query))


def query_to_values(query: FullTextQuery) -> dict[str, Any]:
    """Returns a query as values of JSON."""

    def value_of(value: object) -> object:
        if isinstance(value, FullTextQuery):
            return query_to_values(value)
        if isinstance(value, tuple):
            return [value_of(part) for part in value]
        return value.value if isinstance(value, enum.Enum) else value

    fields: Any = dataclasses.fields(query)  # type: ignore[arg-type]  # each class of _CLASSES is a dataclass
    return {query.kind: {field.name: value_of(getattr(query, field.name)) for field in fields}}


def query_of_values(values: object, *, depth: int = 0) -> FullTextQuery:
    """Returns the query of :func:`query_to_values`.

    Raises:
        OptionError: The values have another form.
    """
    accepted = f"an object with one key of {', '.join(_CLASSES)}, and the attributes of this query"
    if not isinstance(values, dict) or len(values) != 1 or depth > _MOST_DEPTH:
        raise OptionError("query", str(values)[:100], accepted)
    kind, attributes = next(iter(values.items()))
    cls = _CLASSES.get(kind)
    if cls is None or not isinstance(attributes, dict):
        raise OptionError("query", str(values)[:100], accepted)
    names = {field.name for field in dataclasses.fields(cls)}
    if attributes.keys() - names:
        raise OptionError(
            "query", str(values)[:100], f"the attributes {', '.join(sorted(names))} of {kind}"
        )
    parsed = {
        name: _PARSERS.get(name, _same)(value, depth + 1) for name, value in attributes.items()
    }
    try:
        query: FullTextQuery = cls(**parsed)
    except TypeError as error:
        raise OptionError("query", str(values)[:100], accepted) from error
    return query


def _same(value: object, depth: int) -> object:
    del depth
    return value


def _query_at(value: object, depth: int) -> object:
    return query_of_values(value, depth=depth)


def _pairs_at(values: object, depth: int) -> object:
    if not isinstance(values, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in values
    ):
        raise OptionError(
            "queries", str(values)[:100], "a list of pairs of SHOULD, MUST or MUST_NOT and a query"
        )
    return [(occur, query_of_values(query, depth=depth)) for occur, query in values]


_PARSERS: Mapping[str, Callable[[object, int], object]] = {
    "positive": _query_at,
    "negative": _query_at,
    "queries": _pairs_at,
}


def _is_pair(pair: object) -> bool:
    return isinstance(pair, (tuple, list)) and len(pair) == 2


def _member(name: str, value: object, cls: type[Any]) -> Any:  # noqa: ANN401 - a member of the class
    # LanceDB's and pylance's members have the same values.
    text = value.value if isinstance(value, enum.Enum) else value
    names = [member.value for member in cls]
    if not isinstance(text, str) or text.upper() not in names:
        raise OptionError(name, value, " or ".join(names))
    return cls(text.upper())


def _check_words(words: object) -> None:
    if not isinstance(words, str) or not words.strip():
        raise OptionError("query", words, "words to search for")


def _check_column(column: object) -> None:
    if not isinstance(column, str) or not column:
        raise OptionError("column", column, "the name of a column of text")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e30 < value < 1e30:
        raise OptionError(name, value, "a number")


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
        raise OptionError(name, value, f"a whole number, {least} or more")


def _check_query(name: str, query: object) -> None:
    if not isinstance(query, FullTextQuery):
        raise OptionError(
            name,
            query,
            f"a full-text query: {', '.join(cls.__name__ for cls in _CLASSES.values())}",
        )
