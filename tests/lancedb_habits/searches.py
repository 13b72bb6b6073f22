"""Habits of queries, searches and indexes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from tests.lancedb_habits.habit import Helpers, habit

POINTS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
TEXTS = ["a puppy runs", "the puppy slowly runs", "red cars", "a café"]


VECTOR = pa.list_(pa.float32(), 2)


def points(db: Any) -> Any:
    return db.create_table(
        "points", pa.table({"vector": pa.array(POINTS, VECTOR), "id": [0, 1, 2]})
    )


def texts(db: Any, h: Helpers) -> Any:
    table = db.create_table(
        "texts", pa.table({"id": range(4), "text": TEXTS, "title": TEXTS[::-1]})
    )
    h.index_text(table, "text")
    h.index_text(table, "title")
    return table


def ids(query: Any) -> list[int]:
    return [row["id"] for row in query.select(["id"]).to_list()]


@habit([[0, 1, 2], [0, 1, 2], [0, 1]])
def limit_none_returns_all_rows(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [ids(table.search().limit(rows)) for rows in (None, -1, 2)]


@habit([["id", "a.x", "a.b.y"], ["id", "a.x", "a.b"], ["id", "a"]])
def to_pandas_flattens_structs(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", [{"id": 1, "a": {"x": 2, "b": {"y": 3}}}])
    depths: tuple[Any, ...] = (True, 1, None)
    return [list(table.search().to_pandas(flatten=depth).columns) for depth in depths]


@habit(["ValueError", "ValueError", "ValueError"])
def wrong_vector_searches_are_value_errors(db: Any, h: Helpers) -> Any:
    table = points(db)
    return h.errors(
        lambda: table.search([0.0, 0.0]).limit(0).to_list(),
        lambda: table.search([0.0, 0.0]).limit(None).to_list(),
        lambda: table.search([0.0, 0.0, 0.0]).to_list(),
    )


@habit([["query_index", "id", "_distance"], [[0, 0, 0.0], [1, 2, 0.0]], "int32"])
def several_vectors_are_numbered(db: Any, h: Helpers) -> Any:
    search = points(db).search([POINTS[0], np.array(POINTS[2])]).select(["id"]).limit(1)
    result = search.to_arrow()
    rows = [[row["query_index"], row["id"], row["_distance"]] for row in result.to_pylist()]
    return [result.schema.names, rows, str(result.schema.field("query_index").type)]


@habit([[0], [1, 2], [1], []])
def distance_range_includes_its_lower_bound_only(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [
        ids(table.search([0.0, 0.0]).distance_range(upper_bound=25.0)),
        ids(table.search([0.0, 0.0]).distance_range(lower_bound=25.0)),
        ids(table.search([0.0, 0.0]).distance_range(25.0, 61.0)),
        ids(table.search([0.0, 0.0]).distance_range(upper_bound=5.0)),
    ]


@habit([[0, 1, 2], [0, 1, 2], [0, 1, 2]])
def probes_have_bounds(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [
        ids(table.search([0.0, 0.0]).nprobes(30)),
        ids(table.search([0.0, 0.0]).minimum_nprobes(2).maximum_nprobes(4)),
        ids(table.search([0.0, 0.0]).minimum_nprobes(2).maximum_nprobes(0)),
    ]


@habit([[0, 1, 2]])
def bounds_of_probes_are_set_in_any_order(db: Any, h: Helpers) -> Any:
    return [ids(points(db).search([0.0, 0.0]).nprobes(30).maximum_nprobes(20).minimum_nprobes(20))]


@habit(["ValueError", "ValueError"])
def wrong_probes_are_value_errors(db: Any, h: Helpers) -> Any:
    table = points(db)
    return h.errors(
        lambda: table.search([0.0, 0.0]).minimum_nprobes(0).to_list(),
        lambda: table.search([0.0, 0.0]).minimum_nprobes(9).maximum_nprobes(3).to_list(),
    )


@habit(
    ["none", "none"],
    differs="LanceDB's minimum and maximum are both 20 by default; here the minimum is Lance's, and no maximum exists",
)
def a_single_bound_of_probes_needs_no_other(db: Any, h: Helpers) -> Any:
    table = points(db)
    return h.errors(
        lambda: table.search([0.0, 0.0]).maximum_nprobes(5).to_list(),
        lambda: table.search([0.0, 0.0]).minimum_nprobes(100).to_list(),
    )


@habit([[1, 0, 2], [1, 0, 2]])
def bypass_vector_index_is_exact(db: Any, h: Helpers) -> Any:
    table = points(db)
    near = [2.9, 3.9]
    return [ids(table.search(near)), ids(table.search(near).bypass_vector_index())]


@habit([[2, 1], 0.0, [2]])
def vectors_in_structs_are_searched_by_their_path(db: Any, h: Helpers) -> Any:
    inner = pa.array([{"v": vector} for vector in POINTS], pa.struct([("v", VECTOR)]))
    table = db.create_table("nested", pa.table({"id": [0, 1, 2], "inner": inner}))
    search = table.search(POINTS[2], vector_column_name="inner.v").limit(2)
    return [ids(search), search.to_list()[0]["_distance"], ids(table.search(POINTS[2]).limit(1))]


@habit([[0, 1], True, ["ValueError", "ValueError"]])
def lists_of_vectors_are_compared_as_lists(db: Any, h: Helpers) -> Any:
    lists = pa.array([[[1.0, 2.0], [3.0, 4.0]], [[9.0, 1.0]]], pa.list_(pa.list_(pa.float32(), 2)))
    table = db.create_table("lists", pa.table({"vector": lists, "id": [0, 1]}))
    one = table.search([1.0, 2.0]).distance_type("cosine")
    two = table.search([[1.0, 2.0], [1.0, 2.0]]).distance_type("cosine")
    doubled = abs(two.to_list()[1]["_distance"] - 2 * one.to_list()[1]["_distance"]) < 1e-6
    errors = h.errors(
        lambda: table.search([1.0, 2.0, 3.0]).to_list(),
        lambda: table.search([[1.0, 2.0], [1.0, 2.0, 3.0]]).to_list(),
    )
    return [ids(two), doubled, errors]


@habit([["id", "double"], ["id", "_distance"]])
def output_schema_names_the_columns(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [
        table.search().select({"id": "id", "double": "id * 2"}).output_schema().names,
        table.search([0.0, 0.0]).select(["id"]).output_schema().names,
    ]


@habit([[1], [1]])
def repeated_conditions_are_combined(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [
        ids(table.search().where("id >= 1").where("id < 2")),
        ids(table.search([0.0, 0.0]).where("id >= 1").where("id < 2")),
    ]


@habit([])
def a_search_of_an_empty_table_is_empty(db: Any, h: Helpers) -> Any:
    table = db.create_table(
        "empty", schema=pa.schema({"vector": pa.list_(pa.float32(), 2), "id": pa.int64()})
    )
    return table.search([1.0, 2.0]).limit(5).to_list()


@habit([["id", "_score"], [0, 1], 1])
def words_find_rows_with_a_score(db: Any, h: Helpers) -> Any:
    table = texts(db, h)
    search = table.search("puppy", query_type="fts", fts_columns="text").select(["id"])
    result, found = search.to_arrow(), search.where("id > 0").to_list()
    return [result.schema.names, sorted(result["id"].to_pylist()), len(found)]


@habit([[0, 1], [1], [0, 1], []])
def match_queries_have_operators_and_fuzziness(db: Any, h: Helpers) -> Any:
    table, names = texts(db, h), h.names
    both = names.FullTextOperator.AND
    return [
        sorted(ids(table.search(names.MatchQuery("puppy slowly", "text")))),
        ids(table.search(names.MatchQuery("puppy slowly", "text", operator=both))),
        sorted(ids(table.search(names.MatchQuery("pupy", "text", fuzziness=1)))),
        ids(table.search(names.MatchQuery("pupy", "text"))),
    ]


@habit([2.0])
def a_boost_multiplies_scores(db: Any, h: Helpers) -> Any:
    table, names = texts(db, h), h.names
    plain = table.search(names.MatchQuery("puppy", "text")).to_list()[0]["_score"]
    boosted = table.search(names.MatchQuery("puppy", "text", boost=2.0)).to_list()[0]["_score"]
    return [round(boosted / plain, 3)]


@habit([[0], [0, 1]])
def phrase_queries_have_a_slop(db: Any, h: Helpers) -> Any:
    table, names = texts(db, h), h.names
    return [
        ids(table.search(names.PhraseQuery("puppy runs", "text"))),
        sorted(ids(table.search(names.PhraseQuery("puppy runs", "text", slop=1)))),
    ]


@habit([[0, 1], [1], [0, 1, 2], [1], [0]])
def queries_combine(db: Any, h: Helpers) -> Any:
    table, names = texts(db, h), h.names
    puppy, slowly, cars = (names.MatchQuery(word, "text") for word in ("puppy", "slowly", "cars"))
    not_slowly = names.BooleanQuery([(names.Occur.MUST, puppy), (names.Occur.MUST_NOT, slowly)])
    return [
        ids(table.search(names.BoostQuery(puppy, slowly, negative_boost=0.5))),
        ids(table.search(puppy & slowly)),
        sorted(ids(table.search(puppy | cars))),
        ids(
            table.search(
                names.BooleanQuery([(names.Occur.MUST, puppy), (names.Occur.MUST, slowly)])
            )
        ),
        ids(table.search(not_slowly)),
    ]


@habit([[1, 2]])
def multi_match_queries_search_several_columns(db: Any, h: Helpers) -> Any:
    table, names = texts(db, h), h.names
    return [sorted(ids(table.search(names.MultiMatchQuery("cars", ["text", "title"]))))]


@habit(["ValueError"])
def words_need_an_index(db: Any, h: Helpers) -> Any:
    table = db.create_table("texts", [{"id": 1, "text": "a b"}])
    return h.errors(lambda: table.search("a", query_type="fts").to_list())


@habit([[0, 1, 2], 1])
def hybrid_searches_fuse_both(db: Any, h: Helpers) -> Any:
    rows = pa.table(
        {"vector": pa.array(POINTS, pa.list_(pa.float32(), 2)), "id": range(3), "text": TEXTS[:3]}
    )
    table = db.create_table("hybrid", rows)
    h.index_text(table, "text")
    search = table.search(query_type="hybrid").vector(POINTS[1]).text("slowly")
    return [sorted(ids(search)), search.to_list()[0]["id"]]


@habit(
    ["id", "_distance", "_score", "_relevance_score"],
    differs="LanceDB's result lacks the two single scores",
)
def hybrid_searches_have_three_scores(db: Any, h: Helpers) -> Any:
    table = db.create_table(
        "hybrid", pa.table({"vector": pa.array(POINTS, VECTOR), "id": range(3), "text": TEXTS[:3]})
    )
    h.index_text(table, "text")
    return (
        table.search(query_type="hybrid")
        .vector(POINTS[1])
        .text("slowly")
        .select(["id"])
        .to_arrow()
        .schema.names
    )


@habit([["price_idx"], [["price"]], 5, 0, 5], jobs="inline")
def indexes_are_listed(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", [{"id": i, "price": 10 * i} for i in range(5)])
    table.create_scalar_index("price")
    indexes, stats = table.list_indices(), table.index_stats("price_idx")
    counts = [stats.num_indexed_rows, stats.num_unindexed_rows, stats["num_indexed_rows"]]
    return [[index.name for index in indexes], [index.columns for index in indexes], *counts]


@habit([5, 1, 1, ["str", "datetime", "int"], True, {}, True], jobs="inline")
def indexes_are_described(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", [{"id": i, "price": 10 * i} for i in range(5)])
    table.create_scalar_index("price")
    table.add([{"id": 9, "price": 9}])
    (index,) = table.list_indices()
    kinds = [
        type(value).__name__ for value in (index.index_uuid, index.created_at, index.index_version)
    ]
    counts = [index.num_indexed_rows, index.num_unindexed_rows, index.num_segments]
    is_same = index["index_details"] == index.index_details
    return [*counts, kinds, (index.size_bytes or 0) > 0, index.index_details, is_same]


@habit(["ValueError", "ValueError"], jobs="inline")
def unknown_languages_are_value_errors(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", [{"text": "x"}])
    return h.errors(
        lambda: table.create_fts_index("text", language="Klingon"),
        lambda: table.create_index("text", config=h.names.FTS(language="Klingon")),
    )


@habit(
    ["RuntimeError"],
    differs="LanceDB returns None for an unknown index, and lance-spark raises an error",
)
def statistics_are_of_an_index(db: Any, h: Helpers) -> Any:
    table = points(db)
    return h.errors(lambda: table.index_stats("none"))


@habit([["`row-id`"], ["Meta.userId"], ["Meta.`leaf.name`"]], jobs="inline")
def indexes_have_paths_of_nested_fields(db: Any, h: Helpers) -> Any:
    meta = pa.array([{"userId": i, "leaf.name": i} for i in range(5)])
    table = db.create_table("t", pa.table({"row-id": range(5), "Meta": meta}))
    table.create_scalar_index("`row-id`", name="a")
    table.create_scalar_index("Meta.userId", name="b")
    table.create_scalar_index("Meta.`leaf.name`", name="c")
    return [index.columns for index in sorted(table.list_indices(), key=lambda index: index.name)]


@habit(
    [["BITMAP"], ["BTREE"], ["FTS"], ["LABEL_LIST"], ["BTree", "Bitmap", "LabelList", "FTS"]],
    jobs="inline",
)
def create_index_takes_a_config(db: Any, h: Helpers) -> Any:
    rows = [{"a": i, "b": i, "text": "x y", "tags": ["x"]} for i in range(5)]
    table = db.create_table("t", rows)
    table.create_index("a", config=h.names.BTree(), wait_timeout=timedelta(minutes=1))
    table.create_index("b", config=h.names.Bitmap())
    table.create_index("text", config=h.names.FTS())
    table.create_index("tags", config=h.names.LabelList())
    indexes = table.list_indices()
    kinds = sorted(table.index_stats(index.name).index_type for index in indexes)
    names = {index.columns[0]: index.index_type for index in indexes}
    return [*([kind] for kind in kinds), [names[column] for column in ("a", "b", "tags", "text")]]


VECTOR_KINDS = ["IvfFlat", "IvfSq", "IvfPq", "IvfRq", "HnswFlat", "HnswSq", "HnswPq"]


@habit(
    [
        *(["IVF_FLAT", "IvfFlat"], ["IVF_SQ", "IvfSq"], ["IVF_PQ", "IvfPq"], ["IVF_RQ", "IvfRq"]),
        *(
            ["IVF_HNSW_FLAT", "IvfHnswFlat"],
            ["IVF_HNSW_SQ", "IvfHnswSq"],
            ["IVF_HNSW_PQ", "IvfHnswPq"],
        ),
        [7] * 7,
    ],
    jobs="spark",
)
def create_index_takes_configs_of_vectors(db: Any, h: Helpers) -> Any:
    vectors = np.random.default_rng(0).random((300, 8), np.float32)
    table = db.create_table(
        "t",
        pa.table({"id": range(300), "vector": pa.array(list(vectors), pa.list_(pa.float32(), 8))}),
    )
    kinds, nearest = [], []
    for name in VECTOR_KINDS:
        parameters = {"num_sub_vectors": 4} if name.endswith("Pq") else {}
        config = getattr(h.names, name)(num_partitions=1, **parameters)
        table.create_index("vector", config=config, name="ix")
        kinds.append([table.index_stats("ix").index_type, table.list_indices()[0].index_type])
        nearest.append(ids(table.search(vectors[7].tolist()).refine_factor(20).limit(1))[0])
    return [*kinds, nearest]


@habit([[2, 3], [], []], jobs="inline")
def tokens_of_an_index_have_options(db: Any, h: Helpers) -> Any:
    texts_ = ["hello world", "sad day", "lance database", "lance is cool"]
    table = db.create_table("t", pa.table({"id": range(4), "text": texts_}))
    table.create_index("text", config=h.names.FTS(base_tokenizer="ngram"))
    found = [
        sorted(ids(table.search("lan", query_type="fts"))),
        ids(table.search("la", query_type="fts")),
    ]
    config = h.names.FTS(stem=False, remove_stop_words=True, custom_stop_words=["lance"])
    table.create_index("text", config=config)
    return [*found, ids(table.search("lance", query_type="fts"))]


@habit([[0], [0, 1]], jobs="inline")
def fast_search_leaves_out_rows_without_index(db: Any, h: Helpers) -> Any:
    table = points(db)
    table.create_index("vector", config=h.names.IvfFlat(num_partitions=1))
    table.add(pa.table({"vector": pa.array([[0.0, 0.0]], VECTOR), "id": [9]}))
    near = [1.0, 2.0]
    return [
        ids(table.search(near).fast_search().limit(1)),
        sorted(ids(table.search(near).fast_search().limit(2))),
    ]


@habit(["ValueError", "ValueError", "RuntimeError", "RuntimeError"], jobs="inline")
def errors_of_indexes_have_lancedbs_classes(db: Any, h: Helpers) -> Any:
    from datetime import timedelta

    table = db.create_table("t", [{"id": i, "price": 10 * i} for i in range(5)])
    return h.errors(
        lambda: table.create_index("none", config=h.names.BTree()),
        lambda: table.create_index("price", config=h.names.IvfPq()),
        lambda: table.drop_index("none"),
        lambda: table.wait_for_index(["none"], timeout=timedelta(milliseconds=10)),
    )


def ordering(h: Helpers, column: str, **settings: bool) -> Any:
    return h.names.ColumnOrdering(column_name=column, **settings)


@habit([[2, 0, 1], [1, 2, 0], [2, 0], [1, 0]])
def rows_are_ordered_by_columns(db: Any, h: Helpers) -> Any:
    rows = pa.table({"vector": pa.array(POINTS, VECTOR), "id": [0, 1, 2], "price": [5, None, 9]})
    table = db.create_table("t", rows)
    dearest = ordering(h, "price", ascending=False)
    queries = [
        table.search().order_by([dearest]),
        table.search().order_by([ordering(h, "price", ascending=False, nulls_first=True)]),
        table.search().order_by([dearest]).limit(2),
        table.search([0.0, 0.0]).order_by([ordering(h, "id", ascending=False)]).limit(2),
    ]
    return [[row["id"] for row in query.to_list()] for query in queries]


@habit(
    [[2, 0, 1], [1, 0]],
    differs="LanceDB fails if the column of the order is not selected, and ignores the order of a hybrid search",
)
def orders_need_no_selected_column(db: Any, h: Helpers) -> Any:
    rows = pa.table(
        {
            "vector": pa.array(POINTS, VECTOR),
            "id": [0, 1, 2],
            "price": [5, None, 9],
            "text": TEXTS[:3],
        }
    )
    table = db.create_table("t", rows)
    h.index_text(table, "text")
    hybrid = table.search(query_type="hybrid").vector([0.0, 0.0]).text("puppy").limit(2)
    return [
        ids(table.search().order_by([ordering(h, "price", ascending=False)])),
        ids(hybrid.order_by([ordering(h, "price", nulls_first=True)])),
    ]


@habit([[0, 2], [1, 2], [], [2, 0, 2], ["id"]])
def rows_are_taken_by_number(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [
        sorted(ids(table.take_offsets([2, 0]))),
        sorted(ids(table.take_row_ids([2, 1, 99]))),
        ids(table.take_offsets([99])),
        table.__getitems__([2, 0, 2])["id"].to_pylist(),
        table.take_offsets([0]).select(["id"]).to_arrow().schema.names,
    ]


@habit(
    [
        [["run", 0], ["cafe", 2]],
        [["run", 0], ["cafe", 2]],
        ["ValueError", "ValueError", "ValueError"],
    ],
    jobs="inline",
)
def indexes_split_texts(db: Any, h: Helpers) -> Any:
    table = db.create_table("t", pa.table({"id": [1], "text": ["a"]}))
    table.create_index("text", config=h.names.FTS(), name="words")
    words = [
        table.tokenize("Running in cafés", column="text"),
        table.tokenize("Running in cafés", index_name="words"),
    ]
    errors = h.errors(
        lambda: table.tokenize("a"),
        lambda: table.tokenize("a", column="text", index_name="words"),
        lambda: table.tokenize("a", column="id"),
    )
    return [*([[word.text, word.position] for word in some] for some in words), errors]


@habit([["RuntimeError", "RuntimeError", "RuntimeError"], 3])
def queries_have_a_timeout(db: Any, h: Helpers) -> Any:
    table, none, hour = points(db), timedelta(0), timedelta(hours=1)
    errors = h.errors(
        lambda: table.search().to_list(timeout=none),
        lambda: table.search([0.0, 0.0]).to_arrow(timeout=none),
        lambda: table.search([0.0, 0.0]).to_pandas(timeout=none),
    )
    return [errors, len(table.search().to_list(timeout=hour))]


@habit([True, True])
def plans_are_analyzed(db: Any, h: Helpers) -> Any:
    table = points(db)
    return [
        "output_rows=" in query.analyze_plan()
        for query in (table.search().where("id > 0"), table.search([0.0, 0.0]))
    ]


@habit([[[0.0, 0.25, 1.0], [0.0, 1.0]], [[0.0, 0.5, 1.0], [0.0, 1.0]], ["ValueError"]])
def rerankers_get_normalized_scores(db: Any, h: Helpers) -> Any:
    rows = pa.table(
        {
            "vector": pa.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], VECTOR),
            "id": range(3),
            "text": TEXTS[:3],
        }
    )
    table = db.create_table("hybrid", rows)
    h.index_text(table, "text")
    scores: list[list[list[float]]] = []

    class Spy(h.modules["rerankers"].Reranker if h.is_lancedb else object):  # type: ignore[misc]
        def rerank_hybrid(
            self, query: str, vector_results: pa.Table, fts_results: pa.Table
        ) -> pa.Table:
            pairs = ((vector_results, "_distance"), (fts_results, "_score"))
            scores.append([sorted(part[name].to_pylist()) for part, name in pairs])
            return vector_results.append_column(
                "_relevance_score", vector_results["id"].cast("float32")
            )

    search = table.search(query_type="hybrid").vector([0.0, 0.0]).text("puppy slowly")
    search.rerank(Spy()).to_list()
    search.rerank(Spy(), normalize="rank").to_list()
    return [*scores, h.errors(lambda: search.rerank(Spy(), normalize="none"))]
