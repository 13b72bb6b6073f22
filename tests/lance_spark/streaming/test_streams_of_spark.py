"""Streaming queries of Spark, with the jar, and repeated batches after a lost commit log."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lance_spark
from tests.lance_spark.streaming.number_files import NumberStream, lose_commits
from tests.support.faults import unused_files


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> NumberStream:
    return NumberStream(spark, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_batch_whose_commit_log_is_lost_is_not_written_again(
    numbers: NumberStream, mode: str
) -> None:
    numbers.feed(0)
    numbers.feed(1)
    numbers.run(mode)
    version = lance.dataset(numbers.table).version
    assert (version, numbers.ids()) == (2, list(range(20)))
    numbers.lose_commits(1)
    numbers.run(mode)
    assert (lance.dataset(numbers.table).version, numbers.ids()) == (2, list(range(20)))
    numbers.feed(2)
    numbers.run(mode)
    assert (lance.dataset(numbers.table).version, numbers.ids()) == (3, list(range(30)))
    assert unused_files(numbers.table) == set()


@pytest.mark.long
@pytest.mark.classic
def test_a_table_of_a_catalog_is_a_target(numbers: NumberStream, spark: SparkSession) -> None:
    lance_spark.catalog(spark, "streams", str(numbers.home))
    spark.sql("CREATE TABLE streams.numbers (id BIGINT)")
    numbers.feed(0)
    write = numbers.source().writeStream.option(
        "checkpointLocation", str(numbers.home / "checkpoint")
    )
    for batch in (1, 2):
        assert write.trigger(availableNow=True).toTable("streams.numbers").awaitTermination(120)
        assert sorted(row.id for row in spark.table("streams.numbers").collect()) == list(
            range(10 * batch)
        )
        numbers.lose_commits(1)
        assert write.trigger(availableNow=True).toTable("streams.numbers").awaitTermination(120)
        assert spark.table("streams.numbers").count() == 10 * batch
        numbers.feed(batch)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_restored_checkpoint_ends_the_query(numbers: NumberStream, mode: str) -> None:
    numbers.feed(0)
    numbers.run(mode)
    shutil.copytree(numbers.home / "checkpoint", numbers.home / "copy")
    for number in (1, 2, 3):
        numbers.feed(number)
    numbers.run(mode)
    shutil.rmtree(numbers.home / "checkpoint")
    (numbers.home / "copy").rename(numbers.home / "checkpoint")
    with pytest.raises(
        PySparkException, match=r"StreamRewoundError.*Batch 1 is older than batch 3"
    ):
        numbers.run(mode)
    assert (lance.dataset(numbers.table).version, numbers.ids()) == (4, list(range(40)))


@pytest.mark.long
def test_a_stream_from_table_to_table_has_each_row_once(
    numbers: NumberStream, spark: SparkSession
) -> None:
    copy, checkpoint = str(numbers.home / "copy.lance"), numbers.home / "copy"

    def run() -> None:
        rows = (
            spark.readStream.format("lance").load(numbers.table).selectExpr("id", "id * 2 AS twice")
        )
        write = (
            rows.writeStream.format("lance").option("compact_after", 2).trigger(availableNow=True)
        )
        assert write.option("checkpointLocation", str(checkpoint)).start(copy).awaitTermination(120)

    for number in range(5):
        numbers.feed(number)
        numbers.run(compact_after="2")
        run()
        lose_commits(numbers.home / "checkpoint", 1)
        lose_commits(checkpoint, 1)
        numbers.run(compact_after="2")
        run()
        rows = lance.dataset(copy).to_table()
        assert sorted(rows["id"].to_pylist()) == numbers.ids() == list(range(10 * number + 10))
        assert rows["twice"].to_pylist() == [2 * row for row in rows["id"].to_pylist()]
    assert max(len(lance.dataset(path).get_fragments()) for path in (numbers.table, copy)) <= 2


def test_a_new_column_is_added_with_merge_schema(
    numbers: NumberStream, spark: SparkSession
) -> None:
    numbers.feed(0)
    numbers.run()
    wider = numbers.source().selectExpr("id", "id * 2 AS twice")
    write = wider.writeStream.format("lance").option(
        "checkpointLocation", str(numbers.home / "another")
    )
    with pytest.raises(PySparkException, match="twice: the table has no such column"):
        write.trigger(availableNow=True).start(numbers.table).awaitTermination(120)
    assert (
        write.option("mergeSchema", "true")
        .trigger(availableNow=True)
        .start(numbers.table)
        .awaitTermination(120)
    )
    rows = spark.read.format("lance").load(numbers.table)
    assert rows.where("twice = 2 * id").count() == 10 and rows.count() == 20
