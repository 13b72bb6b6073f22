"""Searches find the results of an exhaustive comparison: with deletions, NULLs, filters, indexes and unindexed rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lance_spark
from lance_spark import (
    ColumnNotFoundError,
    FilterError,
    OptionError,
    Query,
    RegistrationError,
    Search,
    SearchError,
    Table,
    UnsupportedOperationError,
)
from tests.lance_spark.search.conftest import nearest, rows, vectors


def ids(query: Query) -> list[int]:
    ids_found: list[int] = query.to_arrow()["id"].to_pylist()
    return ids_found


INDEXES: dict[str, dict[str, Any]] = {
    "no index": {},
    "IVF_FLAT": {"num_partitions": 4},
    "IVF_PQ": {"num_partitions": 2, "num_sub_vectors": 8, "max_iterations": 5},
    "IVF_HNSW_SQ": {"num_partitions": 1, "ef_construction": 60},
}


@pytest.mark.guarantee("I05")
@pytest.mark.parametrize("kind", INDEXES)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 40),
    skipped=st.integers(0, 5),
    few=st.sampled_from([None, "id < 9", "kind = 2", "kind = 2 AND id > 350", "id < 0"]),
)
def test_the_rows_found_are_those_that_comparing_all_finds(
    kind: str, seed: int, k: int, skipped: int, few: str | None, table: Table, table_path: str
):
    if not table.list_indices() and kind != "no index":
        table.create_index(vector_column_name="vec", index_type=kind, **INDEXES[kind])  # type: ignore[arg-type]
        lance.write_dataset(rows(400, 50, 1), table_path, mode="append")
        table.to_lance().delete("id % 11 = 2")
        table.create_scalar_index("kind")
    q = vectors(1, seed, nulls=False)[0].as_py()
    tests: dict[str | None, Callable[[dict[str, Any]], bool]] = {
        None: lambda _: True,
        "id < 9": lambda row: row["id"] < 9,
        "kind = 2": lambda row: row["kind"] == 2,
        "kind = 2 AND id > 350": lambda row: row["kind"] == 2 and row["id"] > 350,
        "id < 0": lambda _: False,
    }
    search = table.search(q).limit(k).offset(skipped).nprobes(4)
    search = search if kind in ("no index", "IVF_FLAT") else search.refine_factor(20).ef(2000)
    search = search if few is None else search.where(few)
    assert ids(search) == nearest(table_path, q, k + skipped, tests[few])[skipped:]


def test_more_rows_than_the_table_has(table: Table, q: list[float]):
    result = table.search(q).limit(5000).to_arrow()
    assert len(result) == 400 - len(range(3, 400, 7)), "rows without a vector are never found"
    assert result["_distance"].to_pylist() == sorted(result["_distance"].to_pylist())
    assert result.schema.names == ["id", "kind", "text", "vec", "_distance"]


def test_partitions_with_fewer_rows_than_asked_for_are_not_the_last_ones(
    table: Table, table_path: str, q: list[float]
):
    table.create_index(vector_column_name="vec", index_type="IVF_FLAT", num_partitions=8)
    assert len(ids(table.search(q).nprobes(1).limit(300))) == 300
    expected = nearest(table_path, q, 50, lambda row: row["kind"] == 2)
    hits = ids(table.search(q).nprobes(1).limit(50).where("kind = 2"))
    assert len(expected) == len(set(hits)) == 50, "there are 69"


def test_a_filter_after_the_search_takes_rows_out_of_what_was_found(
    table: Table, table_path: str, q: list[float]
):
    near = nearest(table_path, q, 20)
    assert ids(table.search(q).limit(20).where("kind = 2", prefilter=False)) == [
        n for n in near if n % 5 == 2
    ]
    assert ids(table.search(q).limit(20).where("kind = 2")) == nearest(
        table_path, q, 20, lambda row: row["kind"] == 2
    )


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_distances_are_those_of_the_metric(metric: str, table: Table, q: list[float]):
    for hit in table.search(q).distance_type(metric).limit(5).to_list():
        a, b = np.array(hit["vec"]), np.array(q)
        exact = {
            "l2": ((a - b) ** 2).sum(),
            "cosine": 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b),
            "dot": 1 - a @ b,
        }[metric]
        assert hit["_distance"] == pytest.approx(exact, abs=1e-4)


def test_vectors_of_bytes_are_compared_by_their_bits(table: Table, table_path: str):
    bits = pa.FixedSizeListArray.from_arrays(pa.array([n % 256 for n in range(800)], pa.uint8()), 8)
    lance.write_dataset(pa.table({"id": range(100), "bits": bits}), table_path, mode="overwrite")
    hits = table.search(np.array([0, 1, 2, 3, 4, 5, 6, 7], np.uint8)).limit(3).to_list()
    assert (hits[0]["id"], hits[0]["_distance"]) == (0, 0.0)
    for wrong in ([0.5] * 8, [256] * 8):
        with pytest.raises(OptionError, match="bytes"):
            table.search(wrong).to_arrow()


def test_vectors_in_a_struct_are_searched_by_their_path(tmp_path: Path):
    vectors_of_rows = pa.array([[1.0, 2.0], None, [3.0, 2.0]], pa.list_(pa.float32(), 2))
    structs = pa.StructArray.from_arrays([vectors_of_rows], ["v"])
    path = str(tmp_path / "nested.lance")
    lance.write_dataset(pa.table({"id": range(3), "s": structs}), path)
    assert ids(lance_spark.open_table(path).search([3.0, 2.0], "s.v")) == [2, 0]


def test_vectors_come_as_lists_arrays_and_tensors(table: Table, q: list[float]):
    expected = ids(table.search(q))
    for vector in (
        tuple(q),
        np.array(q),
        np.array(q, np.float32),
        pa.array(q),
        pa.chunked_array([q]),
        pa.array(q, pa.float32()),
    ):
        assert ids(table.search(vector)) == expected


def test_columns_expressions_ids_and_forms_of_the_result(table: Table, q: list[float]):
    search = table.search(q).limit(7)
    expected = ids(search)
    assert search.select(["kind", "id"]).to_arrow().schema.names == ["kind", "id", "_distance"]
    assert search.select(["id", "_distance"]).to_arrow().schema.names == ["id", "_distance"]
    twice = search.select({"twice": "id * 2", "id": "id"}).with_row_id().to_arrow()
    assert twice.schema.names == ["twice", "id", "_rowid", "_distance"]
    assert (
        twice["twice"].to_pylist()
        == [2 * n for n in expected]
        == [2 * n for n in twice["_rowid"].to_pylist()]
    )
    assert [row["id"] for row in search.to_list()] == expected == search.to_pandas()["id"].tolist()
    batches = list(search.to_batches(batch_size=3))
    assert [batch.num_rows for batch in batches] == [3, 3, 1]
    assert [n for batch in batches for n in batch.column("id").to_pylist()] == expected


@pytest.mark.guarantee("I08")
def test_a_query_without_a_search_reads_rows_in_the_order_of_the_table(table: Table):
    query = table.search().where("kind = 2").select({"n": "id + 1", "kind": "kind"})
    assert isinstance(query, Query) and not isinstance(query, Search)
    assert query.limit(3).offset(1).to_list() == [{"n": n, "kind": 2} for n in (8, 13, 18)]
    assert table.search(None).with_row_id().limit(2).to_arrow().schema.names[-1] == "_rowid"
    assert table.search().select(["_rowid", "id"]).limit(1).to_list() == [{"id": 0, "_rowid": 0}]
    assert len(table.search().to_pandas()) == 400
    assert [batch.num_rows for batch in table.search().where("id < 5").to_batches(2)] == [2, 2, 1]
    assert "kind = Int32(2)" in table.search().where("kind = 2").explain_plan()


def test_an_older_version_is_searched_where_it_is_checked_out(table: Table, q: list[float]):
    expected, version = ids(table.search(q)), table.version
    table.to_lance().delete(f"id IN ({', '.join(map(str, expected))})")
    assert not set(ids(table.search(q))) & set(expected)
    table.checkout(version)
    assert ids(table.search(q)) == expected


def test_explain_plan_shows_the_index_that_serves(table: Table, table_path: str, q: list[float]):
    search = table.search(q).where("kind = 2")
    assert "KNNVectorDistance" in search.explain_plan() and "ANN" not in search.explain_plan()
    table.create_index(vector_column_name="vec", index_type="IVF_FLAT", num_partitions=2)
    table.create_scalar_index("kind")
    assert "name=vec_idx" in search.explain_plan(
        verbose=True
    ) and "kind_idx" in search.explain_plan(verbose=True)
    assert "vec_idx" not in search.bypass_vector_index().explain_plan(verbose=True)
    table.create_fts_index("text")
    plan = table.search(query_type="hybrid").vector(q).text("apple").explain_plan(verbose=True)
    assert "vectors:" in plan and "text:" in plan and "MatchQuery" in plan


# Text


@pytest.mark.guarantee("I06")
def test_words_are_found_by_their_index_and_in_rows_that_it_lacks(table: Table, table_path: str):
    for make in (lambda: None, lambda: table.create_fts_index("text", with_position=True)):
        make()
        result = table.search("number7 number11", fts_columns="text").to_arrow()
        assert sorted(result["id"].to_pylist()) == [7, 11]
        assert result.schema.names == ["id", "kind", "text", "vec", "_score"]
    lance.write_dataset(rows(1000, 5, 1), table_path, mode="append")
    table.to_lance().delete("id = 11")
    assert sorted(ids(table.search("number7 number11 number1003"))) == [7, 1003]
    scores = table.search("apple number3").limit(500).to_arrow()["_score"].to_pylist()
    assert scores == sorted(scores, reverse=True) and len(scores) > 50


def test_phrases_filters_offsets_and_columns_of_text(table: Table, table_path: str):
    table.create_fts_index("text")
    texts = {
        row["id"]: row["text"]
        for row in table.to_lance().to_table(columns=["id", "text"]).to_pylist()
    }
    phrase = table.search("pear plum").phrase_query().limit(1000)
    assert sorted(ids(phrase)) == [n for n, text in texts.items() if "pear plum" in text]
    assert sorted(ids(phrase.where("kind = 1"))) == [
        n for n, text in texts.items() if "pear plum" in text and n % 5 == 1
    ]
    every = ids(table.search("fig").limit(1000))
    assert set(every) == {n for n, text in texts.items() if "fig" in text}
    table.add_columns({"note": "concat('note', cast(id as string))"})
    table.create_fts_index("note", with_position=False)
    both = table.search("number5 note9")
    assert sorted(ids(both)) == [5, 9] and ids(
        table.search("number5 note9", fts_columns=["note"])
    ) == [9]
    with pytest.raises(SearchError, match="position"):
        table.search("note9 note", fts_columns="note").phrase_query().to_arrow()


def test_quotation_marks_in_a_text_are_a_phrase(table: Table, q: list[float]):
    table.create_fts_index("text")
    texts = {
        row["id"]: row["text"]
        for row in table.to_lance().to_table(columns=["id", "text"]).to_pylist()
    }

    def matching_ids(text: str) -> set[int]:
        return set(ids(table.search(text).limit(1000)))

    phrase = {n for n, text in texts.items() if "pear plum" in text}
    assert matching_ids('"pear plum"') == phrase < matching_ids("pear plum")
    assert matching_ids('number7 "pear plum"') == phrase | {7}
    assert matching_ids('"number7"') == {7}
    assert matching_ids('pear plum"') == matching_ids("pear plum"), "one mark alone is none"
    assert matching_ids('"number7 number8"') == matching_ids('""') == set()
    hybrid = table.search(query_type="hybrid").vector(q).text('"pear plum"').limit(1000).to_list()
    assert {row["id"] for row in hybrid if row["_score"] is not None} == phrase


def test_several_conditions_all_hold(table: Table, q: list[float]):
    table.create_fts_index("text")
    hybrid = table.search(query_type="hybrid").vector(q).text("fig")
    for query in (table.search(q), table.search("fig"), table.search(None), hybrid):
        both = query.where("kind = 1 OR kind = 2").where("id < 50 OR id > 350").limit(1000)
        together = query.where("(kind = 1 OR kind = 2) AND (id < 50 OR id > 350)").limit(1000)
        assert sorted(ids(both)) == sorted(ids(together)) and len(ids(both)) > 1
    assert table.search(None).where("id = 3").condition == "id = 3"
    with pytest.raises(OptionError, match="prefilter"):
        table.search(q).where("id < 9", prefilter=False).where("kind = 1")


@pytest.mark.parametrize("prefilter", [True, False])
def test_a_hybrid_search_without_a_hit_is_empty(prefilter: bool, table: Table, q: list[float]):
    table.create_fts_index("text")
    search = table.search(query_type="hybrid").vector(q).text("fig")
    empty = [search.where("id < 0", prefilter=prefilter), search.offset(1000)]
    for query in empty:
        assert query.to_list() == [] and query.to_arrow().schema == search.to_arrow().schema
        assert (
            query.select(["id"]).to_arrow().column_names
            == search.select(["id"]).to_arrow().column_names
        )


# Both


@pytest.mark.guarantee("I07")
def test_a_hybrid_search_fuses_both_rankings(table: Table, q: list[float]):
    table.create_fts_index("text")
    near, good = ids(table.search(q)), ids(table.search("lime number17"))
    expected: dict[int, float] = {}
    for ranking in (near, good):
        for rank, number in enumerate(ranking, 1):
            expected[number] = expected.get(number, 0) + 1 / (60 + rank)
    search = table.search(query_type="hybrid").vector(q).text("lime number17")
    result = search.to_arrow()
    assert result.schema.names == [
        "id",
        "kind",
        "text",
        "vec",
        "_distance",
        "_score",
        "_relevance_score",
    ]
    relevance = dict(
        zip(result["id"].to_pylist(), result["_relevance_score"].to_pylist(), strict=True)
    )
    assert relevance == {n: pytest.approx(expected[n]) for n in relevance}
    assert list(relevance.values()) == sorted(expected.values(), reverse=True)[:10] or [
        pytest.approx(v) for v in sorted(expected.values(), reverse=True)[:10]
    ] == list(relevance.values())
    for row in result.to_pylist():
        assert (row["_distance"] is None) == (row["id"] not in near) and (
            row["_score"] is None
        ) == (row["id"] not in good)
    filtered = (
        search.where("kind = 2")
        .limit(4)
        .select({"id": "id", "up": "upper(text)"})
        .with_row_id()
        .to_arrow()
    )
    assert all(n % 5 == 2 for n in filtered["id"].to_pylist()) and len(filtered) == 4
    assert filtered.schema.names == [
        "id",
        "up",
        "_rowid",
        "_distance",
        "_score",
        "_relevance_score",
    ]


class Backwards:
    """A reranker that reverses the order of rows."""

    def _of(self, query: str, hits: pa.Table) -> pa.Table:
        assert "_rowid" in hits.schema.names
        self.query = query
        back = hits.take(list(range(len(hits)))[::-1])
        return back.append_column("_relevance_score", pa.array([1.0] * len(back), pa.float32()))

    rerank_vector = rerank_fts = _of

    def rerank_hybrid(
        self, query: str, vector_results: pa.Table, fts_results: pa.Table
    ) -> pa.Table:
        return self._of(
            query,
            pa.concat_tables([vector_results, fts_results], promote_options="default").slice(0, 12),
        )


@pytest.mark.guarantee("I09")
def test_a_reranker_orders_what_was_found(table: Table, q: list[float]):
    table.create_fts_index("text")
    reranker = Backwards()
    search = table.search(q).limit(5)
    again = search.rerank(reranker, query_string="fruit")
    assert ids(again) == ids(search)[::-1] and reranker.query == "fruit"
    assert again.to_arrow().schema.names == [
        "id",
        "kind",
        "text",
        "vec",
        "_distance",
        "_relevance_score",
    ]
    assert (
        ids(table.search("plum").rerank(reranker).limit(3))
        == ids(table.search("plum").limit(3))[::-1]
    )
    hybrid = table.search(query_type="hybrid").vector(q).text("plum").rerank(reranker)
    assert len(hybrid.to_arrow()) == 10 and reranker.query == "plum"
    with pytest.raises(OptionError, match="query_string"):
        search.rerank(reranker)
    with pytest.raises(UnsupportedOperationError, match="createDataFrame"):
        again.to_spark()


# Refusals


@pytest.mark.guarantee("I10")
def test_unsearchable_columns_are_refused(table: Table, table_path: str, q: list[float]):
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (OptionError, "fts_columns", lambda: table.search("apple").to_arrow()),
        (ColumnNotFoundError, "'no'", lambda: table.search("apple", fts_columns="no").to_arrow()),
        (OptionError, "strings", lambda: table.search("apple", fts_columns="id").to_arrow()),
        (ColumnNotFoundError, "'no'", lambda: table.search(q, "no").to_arrow()),
        (OptionError, "vectors", lambda: table.search(q, "id").to_arrow()),
        (OptionError, "8 numbers", lambda: table.search(q[:3]).to_arrow()),
        (OptionError, "finite", lambda: table.search([float("nan")] * 8).to_arrow()),
        (OptionError, "one length", lambda: table.search([q, q[:3]])),
        (OptionError, "one vector", lambda: table.search([None] * 8)),  # type: ignore[list-item]
        (OptionError, "one vector", lambda: table.search([])),
        (OptionError, "words", lambda: table.search("  ", fts_columns="text").to_arrow()),
        (OptionError, "query_type", lambda: table.search(q, query_type="both")),  # type: ignore[call-overload]
        (OptionError, "fts", lambda: table.search("apple", query_type="vector")),
        (OptionError, "vector", lambda: table.search(q, query_type="fts")),
        (OptionError, "nothing in a search", lambda: table.search(q, fts_columns="text")),
        (OptionError, "nothing in a search", lambda: table.search("apple", "vec")),
        (OptionError, "named", lambda: table.search(None, "vec")),  # type: ignore[call-overload]
        (
            OptionError,
            "vector",
            lambda: table.search("apple", query_type="hybrid", fts_columns="text").to_arrow(),
        ),
        (OptionError, "text", lambda: table.search(q, query_type="hybrid").to_arrow()),
        (OptionError, "distance_type", lambda: table.search(q).distance_type("far")),
        (OptionError, "l2", lambda: table.search(q).metric("hamming").to_arrow()),
        (OptionError, "nprobes", lambda: table.search(q).nprobes(0)),
        (OptionError, "refine_factor", lambda: table.search(q).refine_factor(1.5)),  # type: ignore[arg-type]
        (OptionError, "ef", lambda: table.search(q).ef(True)),
        (OptionError, "limit", lambda: table.search(q).limit(0)),
        (OptionError, "offset", lambda: table.search(q).offset(-1)),
        (OptionError, "batch_size", lambda: list(table.search(q).to_batches(0))),
        (OptionError, "where", lambda: table.search(q).where(" ")),
        (FilterError, "nothing", lambda: table.search(q).where("nothing = 1").to_arrow()),
        (FilterError, "nothing", lambda: table.search().where("nothing = 1").to_arrow()),
        (ColumnNotFoundError, "'no'", lambda: table.search(q).select(["no"]).to_arrow()),
        (SearchError, "nope", lambda: table.search(q).select({"a": "nope + 1"}).to_arrow()),
        (UnsupportedOperationError, "fts", lambda: table.search(q).phrase_query()),
        (UnsupportedOperationError, "vector", lambda: table.search("apple").nprobes(3)),
        (UnsupportedOperationError, "hybrid", lambda: table.search(q).text("apple")),
        (
            UnsupportedOperationError,
            "ordering",
            lambda: table.search("apple", ordering_field_name="id"),
        ),
        (RegistrationError, r"search\(None\)", lambda: table.search(q).check_view()),
    ]
    for kind, text, call in refused:
        with pytest.raises(kind, match=text):
            call()
    table.create_index(vector_column_name="vec", index_type="IVF_HNSW_SQ", num_partitions=1)
    with pytest.raises(SearchError, match="ef must be"):
        table.search(q).ef(2).to_arrow()
    table.add_columns({"_distance": "id"})
    with pytest.raises(OptionError, match="_distance"):
        table.search(q).to_arrow()
    table.drop_columns(["_distance", "vec"])
    with pytest.raises(OptionError, match="none"):
        table.search(q).to_arrow()
