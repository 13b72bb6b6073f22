"""Streaming queries of Spark, with the jar, and repeated batches after a lost commit log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from tests.support.faults import unused_files


class Numbers:
    """A streaming query over files of numbers, whose checkpoint a test can damage."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.table = str(home / "t.lance")
        (home / "in").mkdir()

    def feed(self, number: int) -> None:
        """Adds a file with ten rows, which becomes a micro-batch."""
        (self.home / "in" / f"{number}.csv").write_text("".join(f"{10 * number + i}\n" for i in range(10)))

    def source(self) -> DataFrame:
        files = self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
        return files.csv(str(self.home / "in"))

    def run(self, mode: str = "append", **options: str) -> None:
        """Runs the query over all files."""
        rows = self.source() if mode == "append" else self.source().groupBy("id").count()
        write = rows.writeStream.format("lance").outputMode(mode).options(**options).trigger(availableNow=True)
        write = write.option("checkpointLocation", str(self.home / "checkpoint")).queryName("numbers")
        assert write.start(self.table).awaitTermination(120)

    def lose_commits(self, number: int) -> None:
        """Makes Spark repeat the last batches."""
        lose_commits(self.home / "checkpoint", number)

    def ids(self) -> list[int]:
        ids: list[Any] = lance.dataset(self.table).to_table()["id"].to_pylist()
        return sorted(ids)


def lose_commits(checkpoint: Path, number: int) -> None:
    """Makes Spark repeat the last batches, as after a crash between the commit of the table and Spark's log."""
    commits = checkpoint / "commits"
    batch_ids = sorted((int(path.name) for path in commits.iterdir() if path.name.isdigit()), reverse=True)
    for batch_id in batch_ids[:number]:
        for path in (commits / str(batch_id), commits / f".{batch_id}.crc"):
            path.unlink(missing_ok=True)


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Numbers:
    return Numbers(spark, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_batch_whose_commit_log_is_lost_is_not_written_again(numbers: Numbers, mode: str) -> None:
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
def test_a_table_of_a_catalog_is_a_target(numbers: Numbers, spark: SparkSession) -> None:
    lance_spark.catalog(spark, "streams", str(numbers.home))
    spark.sql("CREATE TABLE streams.numbers (id BIGINT)")
    numbers.feed(0)
    write = numbers.source().writeStream.option("checkpointLocation", str(numbers.home / "checkpoint"))
    for batch in (1, 2):
        assert write.trigger(availableNow=True).toTable("streams.numbers").awaitTermination(120)
        assert sorted(row.id for row in spark.table("streams.numbers").collect()) == list(range(10 * batch))
        numbers.lose_commits(1)
        assert write.trigger(availableNow=True).toTable("streams.numbers").awaitTermination(120)
        assert spark.table("streams.numbers").count() == 10 * batch
        numbers.feed(batch)
    counts = numbers.source().groupBy("id").count().select("id").writeStream.outputMode("update")
    updating = counts.option("checkpointLocation", str(numbers.home / "u"))
    with pytest.raises(PySparkException, match="does not support Update mode"):
        updating.toTable("streams.numbers").awaitTermination(120)


@pytest.mark.long
def test_a_restored_checkpoint_ends_the_query(numbers: Numbers) -> None:
    numbers.feed(0)
    numbers.run()
    shutil.copytree(numbers.home / "checkpoint", numbers.home / "copy")
    for number in (1, 2, 3):
        numbers.feed(number)
    numbers.run()
    shutil.rmtree(numbers.home / "checkpoint")
    (numbers.home / "copy").rename(numbers.home / "checkpoint")
    with pytest.raises(PySparkException, match=r"StreamRewoundError.*Batch 1 is older than batch 3"):
        numbers.run()
    assert (lance.dataset(numbers.table).version, numbers.ids()) == (4, list(range(40)))


@pytest.mark.long
def test_a_stream_from_table_to_table_has_each_row_once(numbers: Numbers, spark: SparkSession) -> None:
    copy, checkpoint = str(numbers.home / "copy.lance"), numbers.home / "copy"

    def run() -> None:
        rows = spark.readStream.format("lance").load(numbers.table).selectExpr("id", "id * 2 AS twice")
        write = rows.writeStream.format("lance").option("compact_after", 2).trigger(availableNow=True)
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


def test_a_new_column_is_added_with_merge_schema(numbers: Numbers, spark: SparkSession) -> None:
    numbers.feed(0)
    numbers.run()
    wider = numbers.source().selectExpr("id", "id * 2 AS twice")
    write = wider.writeStream.format("lance").option("checkpointLocation", str(numbers.home / "another"))
    with pytest.raises(PySparkException, match="twice: the table has no such column"):
        write.trigger(availableNow=True).start(numbers.table).awaitTermination(120)
    assert write.option("mergeSchema", "true").trigger(availableNow=True).start(numbers.table).awaitTermination(120)
    rows = spark.read.format("lance").load(numbers.table)
    assert rows.where("twice = 2 * id").count() == 10 and rows.count() == 20
