"""Searches as table functions of SQL, compared with the same searches of the table API."""

from __future__ import annotations

import lance
import pytest
from pyspark.sql import SparkSession

from lance_spark import Table
from tests.lance_spark.search.conftest import SIZE, nearest, rows, vectors

pytestmark = [pytest.mark.spark, pytest.mark.sample(2, tests=3)]


def sql_of(vector: list[float]) -> str:
    return f"array({', '.join(f'{value}D' for value in vector)})"


def test_vectors_are_searched_for_in_sql(
    spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    call = f"lance_vector_search('{table_path}', {sql_of(q)}, k => 7, filter => 'kind = 2')"
    frame = spark.sql(f"SELECT * FROM {call}")
    assert frame.columns == ["id", "kind", "text", "vec", "_distance"]
    search = table.search(q).limit(7).where("kind = 2")
    assert [row.asDict() for row in frame.collect()] == search.to_list()
    spark.read.format("lance").load(table_path).createOrReplaceTempView("searched")
    spark.read.format("lance").load(table_path).createOrReplaceTempView("searched")
    joined = f"SELECT count(*) AS n FROM {call} f JOIN searched t ON f.id = t.id AND t.kind = 2"
    assert [row.n for row in spark.sql(joined).collect()] == [7]
    some = spark.sql(
        f"SELECT * FROM lance_vector_search(path => '{table_path}', query_vector => {sql_of(q)}, k => 3, offset => 2, "
        "columns => 'id', metric => 'Cosine', column => 'vec', use_index => false, with_row_id => true)"
    )
    expected = (
        table.search(q).limit(3).offset(2).metric("cosine").select(["id"]).with_row_id().to_arrow()
    )
    assert (
        some.columns == expected.schema.names
        and [row.id for row in some.collect()] == expected["id"].to_pylist()
    )


def test_texts_and_both_are_searched_for_in_sql(
    spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    table.create_fts_index("text")
    hits = spark.sql(
        f"SELECT id, _score FROM lance_text_search('{table_path}', 'number7 number11')"
    ).collect()
    assert sorted(row.id for row in hits) == [7, 11]
    phrase = f"SELECT id FROM lance_text_search('{table_path}', 'pear plum', 1000, phrase => true, text_columns => 'text')"
    assert {row.id for row in spark.sql(phrase).collect()} == {
        row["id"] for row in table.search("pear plum").phrase_query().limit(1000).to_list()
    }
    both = spark.sql(
        f"SELECT * FROM lance_hybrid_search('{table_path}', {sql_of(q)}, 'number7 plum', k => 5)"
    ).collect()
    expected = table.search(query_type="hybrid").vector(q).text("number7 plum").limit(5).to_list()
    assert [(row.id, row._relevance_score) for row in both] == [
        (row["id"], row["_relevance_score"]) for row in expected
    ]


def test_each_row_of_another_table_has_its_own_search(
    spark: SparkSession, table: Table, table_path: str
):
    queries = [
        (n, None if n == 2 else vector)
        for n, vector in enumerate(vectors(4, 50, nulls=False).to_pylist())
    ]
    spark.createDataFrame(queries, "n int, q array<float>").createOrReplaceTempView("asked")
    joined = spark.sql(
        f"SELECT n, id FROM asked, LATERAL lance_vector_search('{table_path}', asked.q, k => 4, columns => 'id') "
        "ORDER BY n, _distance"
    ).collect()
    for n, vector in queries:
        expected_ids = [] if vector is None else nearest(table_path, vector, 4)
        assert [row.id for row in joined if row.n == n] == expected_ids
    outer = f"SELECT n, id FROM asked LEFT JOIN LATERAL lance_vector_search('{table_path}', q, k => 1) ON true"
    assert [row.n for row in spark.sql(outer).collect() if row.id is None] == [2]


@pytest.mark.classic  # over Connect a query is analyzed at its first use
def test_a_version_is_pinned_when_the_query_is_made(
    spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    version = table.version
    call = f"lance_vector_search('{table_path}', {sql_of(q)}, k => 400, columns => array('id')"
    before = spark.sql(f"SELECT * FROM {call})")
    lance.write_dataset(rows(1000, 5, 1), table_path, mode="append")
    count = before.count()
    assert spark.sql(f"SELECT * FROM {call}, k => 1000)".replace("k => 400, ", "")).count() > count
    assert spark.sql(f"SELECT * FROM {call}, version => {version})").count() == count


WRONG = {
    "no table": ("lance_vector_search('/no/such', array(1D))", "no Lance table|/no/such"),
    "no query": ("lance_vector_search('{path}')", "query_vector"),
    "an argument that is not known": (
        "lance_vector_search('{path}', {q}, top => 3)",
        "top.*no argument|k, offset",
    ),
    "too many by position": ("lance_text_search('{path}', 'a', 3, 4)", "by position"),
    "another size": ("lance_vector_search('{path}', array(1D))", f"{SIZE} numbers"),
    "no vector": ("lance_vector_search('{path}', 'apple')", "array of numbers"),
    "a filter": ("lance_vector_search('{path}', {q}, filter => 'nothing = 1')", "nothing"),
    "no index of text": ("lance_text_search('{path}', 'apple')", "create_fts_index"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_errors_before_a_search_runs(
    wrong: str, spark: SparkSession, table: Table, table_path: str, q: list[float]
):
    call, match = WRONG[wrong]
    with pytest.raises(Exception, match=match):
        spark.sql(f"SELECT * FROM {call.format(path=table_path, q=sql_of(q))}")


def test_other_arguments_are_constants(spark: SparkSession, table: Table, table_path: str):
    spark.createDataFrame([(table_path, 3)], "p string, k int").createOrReplaceTempView("tables")
    with pytest.raises(Exception, match="constant"):
        spark.sql(
            f"SELECT * FROM tables, LATERAL lance_vector_search('{table_path}', {sql_of([1.0] * SIZE)}, tables.k)"
        )


@pytest.mark.long
def test_a_row_without_a_hit_of_a_hybrid_search_has_no_rows(
    spark: SparkSession, table: Table, table_path: str
):
    table.create_fts_index("text")
    call = f"lance_hybrid_search('{table_path}', {sql_of([1.0] * SIZE)}, words, k => 3, filter => 'id < 0')"
    words_table = "VALUES (1, 'fig'), (2, 'nothing') AS asked(n, words)"
    assert spark.sql(f"SELECT n, id FROM {words_table}, LATERAL {call}").collect() == []
    assert spark.sql(f"SELECT * FROM {call.replace('words', repr('fig'), 1)}").collect() == []
    outer = spark.sql(f"SELECT n, id FROM {words_table} LEFT JOIN LATERAL {call} ON true")
    assert sorted(outer.collect()) == [(1, None), (2, None)]
