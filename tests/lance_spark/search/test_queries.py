"""Options of searches: JSON with a round trip, and errors for senseless values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lance_spark import (
    BooleanQuery,
    BoostQuery,
    FilterError,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    OptionError,
    PhraseQuery,
    Table,
)
from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import ReadOptions
from lance_spark.queries.parameters import TextQuery, VectorQuery
from lance_spark.read.ranking.reader import search_schema


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nearest": {"q": [1.0]}}, "8 numbers"),
        ({"nearest": {"q": [1.0] * 8}, "limit": "3"}, "does not fit a search"),
        ({"nearest": {"q": [1.0] * 8}, "fragments": "0"}, "does not fit a search"),
        ({"nearest": {"q": [1.0] * 8}, "filter": "no = 1"}, "not valid"),
        ({"full_text_query": "fig"}, "create_fts_index"),
    ],
)
def test_options_that_do_not_fit_are_errors_of_the_load(
    options: dict[str, Any], text: str, table: Table, table_path: str
):
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in options.items()
    }
    parsed = ReadOptions.parse({"path": table_path, **texts})
    with pytest.raises((OptionError, FilterError), match=text):
        search_schema(DatasetRef.resolve(parsed), parsed)


@pytest.mark.parametrize(
    ("nearest", "text"),
    [
        ("[1, 2]", "JSON object"),
        ("{", "JSON object"),
        ("{}", "key q"),
        ('{"q": [1], "kk": 3}', r"unknown keys \(kk\)"),
        ('{"q": ["a"]}', "finite"),
        ('{"q": [1], "k": 0}', "'k'"),
        ('{"q": [1], "k": 1e400}', "'k'"),
        ('{"q": [1], "metric": "far"}', "cosine"),
        ('{"q": [1], "use_index": 1}', "true or false"),
    ],
)
def test_the_json_of_a_vector_search_is_checked(nearest: str, text: str):
    with pytest.raises(OptionError, match=text):
        ReadOptions.parse({"path": "p", "nearest": nearest})


def test_the_json_of_searches_reads_back():
    vector = VectorQuery(
        q=(1.0, 2.5), column="v", k=3, offset=1, metric="cosine", nprobes=4, use_index=False
    )
    assert VectorQuery.of_json(vector.to_json()) == vector
    text = TextQuery(query="a b", columns=("s",), phrase=True, k=7, prefilter=False)
    assert TextQuery.of_text(text.to_json()) == text
    assert TextQuery.of_text("plain words") == TextQuery(query="plain words")
    assert TextQuery.of_text('{"query": "a", "columns": "s"}').columns == ("s",)
    for wrong in (
        "{}",
        '{"query": 1}',
        '{"query": "a", "columns": []}',
        '{"query": "a", "columns": ["s", "s"]}',
    ):
        with pytest.raises(OptionError):
            TextQuery.of_text(wrong)


def test_query_objects_and_lists_of_vectors_survive_json():
    match = MatchQuery("a b", "s", fuzziness=None, operator="and", boost=2.0)
    boosted = BoostQuery(
        PhraseQuery("c d", "s", slop=2), MultiMatchQuery("e", ["s", "t"], boosts=[1.0, 2.0])
    )
    text = TextQuery(
        query=BooleanQuery([("MUST", match), (Occur.SHOULD, boosted)]), fast_search=True
    )
    assert TextQuery.of_text(text.to_json()) == text
    vector = VectorQuery(
        q=((1.0, 2.0), (3.0, 4.0)), upper_bound=2.5, maximum_nprobes=9, fast_search=True
    )
    assert VectorQuery.of_json(vector.to_json()) == vector


@pytest.mark.parametrize(
    "wrong",
    [
        '{"query": {"match": {"query": "x"}}}',
        '{"query": {"none": {}}}',
        '{"query": {"boolean": {"queries": [1]}}}',
        '{"query": {"match": {"query": "x", "column": "s", "kind": "phrase"}}}',
        '{"query": {"match": {"query": "x", "column": "s"}}, "columns": ["s"]}',
        '{"query": ' + '{"boost": {"negative": null, "positive": ' * 40 + "null" + "}}" * 40 + "}",
    ],
)
def test_json_of_another_query_object_is_refused(wrong: str):
    with pytest.raises(OptionError):
        TextQuery.of_text(wrong)
