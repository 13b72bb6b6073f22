"""Full-text queries as objects of pylance: :func:`full_text_of`."""

from __future__ import annotations

import re
from typing import Any

from lance_spark.queries.parameters import TextQuery
from lance_spark.queries.text import (
    BooleanQuery,
    BoostQuery,
    FullTextQuery,
    MatchQuery,
    MultiMatchQuery,
    PhraseQuery,
)


def lance_query_of(query: FullTextQuery) -> Any:  # noqa: ANN401 - a class of pylance, which is imported late
    """Returns a query as pylance's object."""
    from lance import query as lance_query

    if isinstance(query, MatchQuery):
        return lance_query.MatchQuery(
            query.query,
            query.column,
            boost=query.boost,
            fuzziness=query.fuzziness,  # type: ignore[arg-type]  # None is automatic
            max_expansions=query.max_expansions,
            operator=lance_query.FullTextOperator(str(query.operator)),
            prefix_length=query.prefix_length,
        )
    if isinstance(query, PhraseQuery):
        return lance_query.PhraseQuery(query.query, query.column, slop=query.slop)
    if isinstance(query, MultiMatchQuery):
        return lance_query.MultiMatchQuery(
            query.query,
            list(query.columns),
            boosts=None if query.boosts is None else list(query.boosts),
            operator=lance_query.FullTextOperator(str(query.operator)),
        )
    if isinstance(query, BoostQuery):
        return lance_query.BoostQuery(
            lance_query_of(query.positive),
            lance_query_of(query.negative),
            negative_boost=query.negative_boost,
        )
    assert isinstance(query, BooleanQuery)
    return lance_query.BooleanQuery(
        [(lance_query.Occur(str(occur)), lance_query_of(part)) for occur, part in query.queries]
    )


def full_text_of(query: TextQuery) -> Any:  # noqa: ANN401 - a class of pylance, which is imported late
    """Returns a search for words or for a query object as pylance's object."""
    from lance import query as lance_query

    if isinstance(query.query, FullTextQuery):
        return lance_query_of(query.query)
    assert query.columns is not None
    phrases, words = ([query.query], "") if query.phrase else split_phrases(query.query)
    if not phrases and len(query.columns) > 1:
        return lance_query.MultiMatchQuery(words, list(query.columns))
    parts: list[Any] = [
        lance_query.PhraseQuery(phrase, column) for phrase in phrases for column in query.columns
    ]
    if words:
        parts += [lance_query.MatchQuery(words, column) for column in query.columns]
    return (
        parts[0]
        if len(parts) == 1
        else lance_query.BooleanQuery([(lance_query.Occur.SHOULD, part) for part in parts])
    )


def split_phrases(text: str) -> tuple[list[str], str]:
    """Returns the phrases in quotation marks, and the remaining words.

    A quoted single word counts as a word. A text with an odd number of quotation marks has no
    phrases.
    """
    if text.count('"') % 2:
        return [], text
    quoted = re.findall(r'"([^"]*)"', text)
    phrases = [phrase for phrase in quoted if len(phrase.split()) > 1]
    words = [re.sub(r'"[^"]*"', " ", text), *(phrase for phrase in quoted if phrase not in phrases)]
    return phrases, " ".join(" ".join(words).split()) or ("" if phrases else text)
