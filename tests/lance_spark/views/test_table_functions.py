"""Chunkers and table functions as functions of Spark: in SQL, and with DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from lance_spark import Connection, LanceSparkError, OptionError, RegistrationError, table_function
from tests.support.logs import Log
from udf_runtime import Skip, UdfRuntimeError, chunker, udf, udtf


class Word(NamedTuple):
    word: str
    size: int


@chunker
def words(text: str, least: int) -> Iterator[Word]:
    for word in (text or "").split():
        if len(word) >= least:
            yield Word(word, len(word))


TEXTS = ["a bb ccc", None, "", "dddd a"]


@pytest.fixture
def docs(db: Connection, spark: SparkSession) -> DataFrame:
    table = db.create_table(
        "docs", pa.table({"id": range(4), "text": TEXTS, "v": [[1.0, 2.0]] * 4})
    )
    frame = spark.read.format("lance").load(table.uri)
    frame.createOrReplaceTempView("docs")
    return frame


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_a_chunker_is_joined_laterally_in_sql_and_with_a_dataframe(
    docs: DataFrame, spark: SparkSession
) -> None:
    chunk = table_function(words, name="words", spark=spark)
    expected = [(0, "bb", 2), (0, "ccc", 3), (3, "dddd", 4)]
    assert (
        rows_of(spark.sql("SELECT id, word, size FROM docs, LATERAL words(docs.text, 2)"))
        == expected
    )
    named_arguments = (
        "SELECT id, word, size FROM docs, LATERAL words(least => 2, text => docs.text)"
    )
    assert rows_of(spark.sql(named_arguments)) == expected
    joined = docs.lateralJoin(chunk(sf.col("text").outer(), sf.lit(2)))
    assert rows_of(joined.select("id", "word", "size")) == expected
    assert (
        chunk(sf.lit("x yy"), sf.lit(1)).schema.simpleString() == "struct<word:string,size:bigint>"
    )
    with pytest.raises(PySparkException, match="takes text, least"):
        spark.sql("SELECT * FROM words('a')").collect()


def test_a_row_that_a_policy_skips_has_no_chunks(
    docs: DataFrame, spark: SparkSession, log: Log
) -> None:
    path = log.path

    @chunker(on_error=Skip(ValueError))
    def failing(id: int, v: npt.NDArray[np.float64]) -> Iterator[Word]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{id}\n")
        yield Word("a", int(v.sum()))
        if id == 2:
            raise ValueError("no")

    chunker_function = table_function(failing, spark=spark)
    joined = docs.lateralJoin(chunker_function(sf.col("id").outer(), sf.col("v").outer()))
    assert rows_of(joined.select("id", "size")) == [(0, 3), (1, 3), (3, 3)]
    assert log.take() == [0, 1, 2, 3]


def test_an_error_of_a_chunker_without_a_policy_ends_the_query(
    docs: DataFrame, spark: SparkSession
) -> None:
    @chunker
    def failing(text: str) -> Iterator[Word]:
        yield Word(text, 1)
        raise ValueError("cut \ud83d emoji")  # a text without an encoding ends a worker of Spark

    table_function(failing, name="failing", spark=spark)
    with pytest.raises(PySparkException, match=r"cut \\ud83d emoji"):
        spark.sql("SELECT * FROM docs, LATERAL failing(docs.text)").collect()


@pytest.mark.parametrize(
    "kind", [pytest.param("chunker", marks=pytest.mark.long), "table function"]
)
def test_a_refresh_ends_where_the_text_of_an_error_cannot_be_encoded(
    db: Connection, kind: str
) -> None:
    source = db.create_table("docs", [{"id": 1}])

    @chunker
    def cut(id: int) -> Iterator[Word]:
        raise ValueError("cut \ud83d emoji")

    @udtf(output_schema=pa.schema([("n", pa.int64())]))
    def whole(source: pa.Table) -> Iterator[pa.RecordBatch]:
        raise ValueError("cut \ud83d emoji")

    query = source.search(None).select(["id"])
    view = db.create_udtf_view("view", source=query, udtf=cut if kind == "chunker" else whole)
    with pytest.raises((LanceSparkError, UdfRuntimeError), match=r"cut \\ud83d emoji"):
        view.refresh()
    (job,) = view.list_jobs()
    assert job.status == "FAILED" and (job.message or "").encode()


def test_a_chunker_gets_structs_and_maps_of_spark_as_its_annotations_promise(
    spark: SparkSession,
) -> None:
    @chunker
    def sizes(word: Word, counts: dict[str, int]) -> Iterator[Word]:
        yield Word(word.word, word.size + counts["a"])

    @chunker(on_error=Skip(LookupError))
    def skipping(word: Word, counts: dict[str, int]) -> Iterator[Word]:
        yield Word(word.word, word.size + counts["a"])

    struct = "named_struct('word', 'x', 'size', 2L)"
    for function in (sizes, skipping):
        table_function(function, name=function.name, spark=spark)
        assert rows_of(spark.sql(f"SELECT * FROM {function.name}({struct}, map('a', 3L))")) == [
            ("x", 5)
        ]
    assert rows_of(spark.sql(f"SELECT * FROM skipping({struct}, map('b', 3L))")) == []


def test_a_table_function_gets_all_rows_of_a_table(docs: DataFrame, spark: SparkSession) -> None:
    @udtf(output_schema=pa.schema([("rows", pa.int64()), ("letters", pa.int64())]))
    def totals(source: Any) -> Iterator[pa.Table]:
        texts = [
            text
            for batch in source.to_batches(batch_size=2)
            for text in batch.column("text").to_pylist()
        ]
        assert len(texts) == source.count_rows() == len(source.to_pandas())
        yield pa.table({"rows": [len(texts)], "letters": [sum(len(text or "") for text in texts)]})

    totals_function = table_function(totals, name="totals", spark=spark)
    assert rows_of(spark.sql("SELECT * FROM totals(TABLE(docs))")) == [(4, 14)]
    assert rows_of(totals_function(docs.where("id < 2").repartition(2).asTable())) == [(2, 8)]
    assert rows_of(
        spark.sql("SELECT * FROM totals(TABLE(SELECT id, text FROM docs WHERE id > 100))")
    ) in ([(0, 0)], [])
    with pytest.raises(PySparkException, match="it takes a table"):
        spark.sql("SELECT * FROM totals(1)").collect()


def test_table_functions_without_rows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match="makes no rows"):
        table_function(udf(lambda x: x, data_type=pa.int64()), spark=spark)
    with pytest.raises(OptionError, match="Option 'function'"):
        table_function(3, spark=spark)  # type: ignore[arg-type]
