"""Tasks build indexes, and queries use them: each kind, on all kinds of tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import (
    ColumnNotFoundError,
    IndexBuildError,
    IndexExistsError,
    IndexNotFoundError,
    OptionError,
    Table,
    UnsupportedOperationError,
    UnsupportedTypeError,
)
from lance_spark.indexes.segments import cut
from lance_spark.jvm.gateway import is_classic
from tests.lance_spark.indexes.conftest import KINDS, ROWS, create, rows, vectors, wrong_answers

pytestmark = pytest.mark.sample(5)

Opened = Callable[..., Table]

CLASS_NAMES = {
    "BTREE": "BTree",
    "BITMAP": "Bitmap",
    "LABEL_LIST": "LabelList",
    "NGRAM": "NGram",
    "ZONEMAP": "ZoneMap",
    "BLOOMFILTER": "BloomFilter",
    "IVF_FLAT": "IvfFlat",
    "IVF_SQ": "IvfSq",
    "IVF_PQ": "IvfPq",
    "IVF_RQ": "IvfRq",
    "IVF_HNSW_FLAT": "IvfHnswFlat",
    "IVF_HNSW_SQ": "IvfHnswSq",
    "IVF_HNSW_PQ": "IvfHnswPq",
}
"""LanceDB's names of the kinds in `list_indices`."""


@pytest.mark.guarantee("I01")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tasks", ["one task", "small tasks"])
def test_each_kind_serves_all_rows(
    kind: str, tasks: str, opened: Opened, table_path: str, request: Any
):
    if tasks == "small tasks":
        request.getfixturevalue("small_tasks")
    table = opened()
    create(table, kind)
    stats = table.index_stats("ix")
    assert (stats.num_indexed_rows, stats.num_unindexed_rows, stats.index_type) == (ROWS, 0, kind)
    assert stats.distance_type == ("l2" if kind.startswith("IVF") else None)
    assert stats.num_indices == (2 if "HNSW" in kind and tasks == "small tasks" else 1)
    (listed,) = table.list_indices()
    assert (listed.name, listed.index_type, listed.columns) == (
        "ix",
        CLASS_NAMES.get(kind, kind),
        [KINDS[kind]],
    )
    assert wrong_answers(table_path, kind) == []
    assert not os.path.exists(f"{table_path}/_lance_spark"), "the model of the tasks is gone"
    assert len(os.listdir(f"{table_path}/_indices")) == stats.num_indices, (
        "so are the segments that were merged"
    )


def test_an_index_of_tasks_is_that_of_pylance(opened: Opened, table_path: str, small_tasks: None):
    table = opened()
    table.create_fts_index("text", stem=True, with_position=False, max_token_length=None)
    ours = lance.dataset(table_path)
    search: dict[str, Any] = {"columns": ["id", "_score"], "full_text_query": "word7 letter7"}
    hits = ours.to_table(**search).sort_by([("_score", "descending"), ("id", "ascending")])
    details = ours.describe_indices()[0].details
    ours.create_scalar_index(
        "text", "INVERTED", name="text_idx", with_position=False, stem=True, max_token_length=None,
        remove_stop_words=False, ascii_folding=False,
    )  # fmt: skip
    assert hits.equals(
        ours.to_table(**search).sort_by([("_score", "descending"), ("id", "ascending")])
    )
    assert lance.dataset(table_path).describe_indices()[0].details == details


def test_null_vectors_and_deleted_rows_are_left_out(
    table_path: str, opened: Opened, small_tasks: None
):
    table = opened()
    values = [None if i % 3 == 0 else v for i, v in enumerate(vectors(ROWS, 5).to_pylist())]
    data = rows(0, ROWS).drop(["vec"]).append_column("vec", pa.array(values, vectors(1).type))
    lance.write_dataset(data, table_path, mode="overwrite", max_rows_per_file=300)
    lance.dataset(table_path).delete("id % 7 = 1")
    for kind in ("IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ", "IVF_HNSW_PQ"):
        create(table, kind)
        assert wrong_answers(table_path, kind) == []
        assert table.index_stats("ix").num_unindexed_rows == 0


@pytest.mark.parametrize("kind", ["BTREE", "FTS", "IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
def test_a_table_without_rows_gets_an_index_that_takes_rows_later(
    kind: str, opened: Opened, table_path: str
):
    table = opened()
    lance.write_dataset(rows(0, 1).slice(0, 0), table_path, mode="overwrite")
    create(table, kind)
    assert table.index_stats("ix").num_indexed_rows == 0
    lance.write_dataset(rows(0, 300), table_path, mode="append")
    table.optimize_indices()
    assert table.index_stats("ix").num_unindexed_rows == 0
    assert wrong_answers(table_path, kind) == []


def test_too_few_vectors_for_a_model_are_an_error(opened: Opened, table_path: str):
    table = opened()
    lance.write_dataset(rows(0, 100), table_path, mode="overwrite")
    with pytest.raises(IndexBuildError, match=r"(?s)'vec' could not be built.*IVF_FLAT"):
        create(table, "IVF_PQ")
    assert table.list_indices() == [] and not os.path.exists(f"{table_path}/_indices")


def test_nested_fields_and_hamming_distances(opened: Opened, table_path: str):
    table = opened()
    bits = pa.FixedSizeListArray.from_arrays(
        pa.array([i % 251 for i in range(8000)], pa.uint8()), 8
    )
    data = pa.table({"s": [{"a": i} for i in range(1000)], "bits": bits})
    lance.write_dataset(data, table_path, mode="overwrite", max_rows_per_file=300)
    table.create_scalar_index("s.a")
    table.create_index(
        "hamming", vector_column_name="bits", index_type="IVF_FLAT", num_partitions=2
    )
    assert {index.name: index.columns for index in table.list_indices()} == {
        "s.a_idx": ["s.a"],
        "bits_idx": ["bits"],
    }
    assert table.index_stats("bits_idx").distance_type == "hamming"
    plan = lance.dataset(table_path).scanner(filter="s.a = 7").explain_plan(verbose=True)
    assert "s.a_idx" in plan


@pytest.mark.guarantee("I02")
def test_an_index_is_replaced_where_that_is_asked_for(opened: Opened, table_path: str):
    table = opened()
    table.create_scalar_index("x")
    table.create_scalar_index("x", index_type="BITMAP")
    assert [index.index_type for index in table.list_indices()] == ["Bitmap"]
    with pytest.raises(IndexExistsError, match="replace=True"):
        table.create_scalar_index("x", replace=False)
    table.create_scalar_index("text")
    version = table.version
    for wrong_call in (
        lambda: table.create_fts_index("text", replace=True),
        lambda: table.create_scalar_index("y", name="x_idx"),
    ):
        with pytest.raises(IndexExistsError, match="name="):
            wrong_call()
    assert table.version == version
    table.create_fts_index("text", name="words")
    assert [index.name for index in table.list_indices()] == ["text_idx", "words", "x_idx"]


def test_impossible_indexes_are_refused_before_a_change(opened: Opened):
    table = opened()
    version = table.version
    refused: list[tuple[type[Exception], str, Callable[[], None]]] = [
        (ColumnNotFoundError, "nothing", lambda: table.create_scalar_index("nothing")),
        (UnsupportedTypeError, "BTREE", lambda: table.create_scalar_index("tags")),
        (
            UnsupportedTypeError,
            "LABEL_LIST",
            lambda: table.create_scalar_index("x", index_type="LABEL_LIST"),
        ),
        (UnsupportedTypeError, "NGRAM", lambda: table.create_scalar_index("x", index_type="NGRAM")),
        (UnsupportedTypeError, "FTS", lambda: table.create_fts_index("x")),
        (UnsupportedTypeError, "vectors", lambda: table.create_index(vector_column_name="x")),
        (ColumnNotFoundError, "'vector'", table.create_index),
        (
            OptionError,
            "create_fts_index",
            lambda: table.create_scalar_index("text", index_type="FTS"),
        ),  # type: ignore[arg-type]
        (
            OptionError,
            "IVF_HNSW_SQ",
            lambda: table.create_index(vector_column_name="vec", index_type="HNSW"),
        ),  # type: ignore[arg-type]
        (OptionError, "cosine", lambda: table.create_index("manhattan", vector_column_name="vec")),
        (OptionError, "uint8", lambda: table.create_index("hamming", vector_column_name="vec")),
        (
            OptionError,
            "divides 8",
            lambda: table.create_index(vector_column_name="vec", num_sub_vectors=3),
        ),
        (OptionError, "num_bits", lambda: table.create_index(vector_column_name="vec", num_bits=5)),
        (
            OptionError,
            "num_partitions",
            lambda: table.create_index(vector_column_name="vec", num_partitions=0),
        ),
        (OptionError, "base_tokenizer", lambda: table.create_fts_index("text", base_tokenizer="x")),  # type: ignore[arg-type]
        (
            OptionError,
            "max_token_length",
            lambda: table.create_fts_index("text", max_token_length=0),
        ),
        (
            OptionError,
            "writer_heap_size",
            lambda: table.create_fts_index("text", writer_heap_size=1),
        ),
        (OptionError, "each index", lambda: table.create_fts_index(["text", "tags"], name="both")),
        (OptionError, "each once", lambda: table.create_fts_index(["text", "text"])),
        (OptionError, "name", lambda: table.create_scalar_index("x", name="")),
        (UnsupportedOperationError, "accelerator", lambda: table.create_index(accelerator="cuda")),
        (
            UnsupportedOperationError,
            "tokenizer_name",
            lambda: table.create_fts_index("text", tokenizer_name="en_stem"),
        ),
        (IndexNotFoundError, "no indexes", lambda: table.drop_index("x_idx")),
        (IndexNotFoundError, "no indexes", lambda: table.optimize_indices("x_idx")),
        (
            OptionError,
            "num_indices_to_merge",
            lambda: table.optimize_indices(num_indices_to_merge=-1),
        ),
    ]
    for kind, text, call in refused:
        with pytest.raises(kind, match=text):
            call()
    assert table.version == version and table.list_indices() == []


def test_runs_of_fragments_are_contiguous_and_even():
    for fragments in (
        [],
        [(5, 0)],
        [(i, 10) for i in range(7)],
        [(0, 1000), *((i, 1) for i in range(1, 30))],
    ):
        for most in (1, 2, 3, 100):
            runs = cut(fragments, task_rows=10, most=most)
            assert [number for run in runs for number in run] == [number for number, _ in fragments]
            assert len(runs) <= most and (all(runs) or runs == [()])
    assert cut([(i, 10) for i in range(6)], task_rows=20, most=100) == [(0, 1), (2, 3), (4, 5)]
    assert cut([(0, 100), (1, 1), (2, 1)], task_rows=1, most=2) == [(0,), (1, 2)]


@pytest.mark.spark
def test_an_index_on_spark_serves_filters_and_explain_shows_it(
    opened: Opened, small_tasks: None, spark: Any
):
    table = opened()
    table.create_scalar_index("x")
    table.create_index(
        vector_column_name="vec", num_partitions=4, num_sub_vectors=4, max_iterations=5
    )
    assert (
        table.index_stats("vec_idx").num_indexed_rows
        == table.index_stats("x_idx").num_indexed_rows
        == ROWS
    )
    frame = table.to_spark().filter("x = 5")
    assert frame.count() == len(range(5, ROWS, 97))
    if is_classic(spark):
        explained = frame._jdf.queryExecution().toString()
        assert "index: x_idx" in explained
    table.to_lance().delete("id > 20")
    with pytest.raises(
        IndexBuildError, match=r"Index 'bad' \(IVF_PQ\) of column 'vec'.*could not be built"
    ):
        table.create_index(vector_column_name="vec", name="bad")
