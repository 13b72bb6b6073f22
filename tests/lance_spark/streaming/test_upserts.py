"""Update mode: each micro-batch is merged by its key, as one version, exactly once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lance_spark
from lance_spark.dml.merge import Merge
from tests.lance_spark.streaming.number_files import NumberStream, lose_commits
from tests.support.faults import unused_files
from tests.support.processes import environment

pytestmark = [pytest.mark.spark, pytest.mark.classic]

ROOT = Path(__file__).parents[3]


class Counts(NumberStream):
    """Counts of numbers modulo 10, in a table with a further column."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        super().__init__(spark, home)
        keys = pa.table(
            {
                "id": pa.array([], pa.int64()),
                "n": pa.array([], pa.int64()),
                "note": pa.array([], "string"),
            }
        )
        lance.write_dataset(keys, self.table, enable_stable_row_ids=True)

    def counts(self) -> DataFrame:
        return (
            self.source()
            .selectExpr("id % 10 AS id")
            .groupBy("id")
            .count()
            .withColumnRenamed("count", "n")
        )

    def writer(self, **options: str) -> DataStreamWriter:
        write = self.counts().writeStream.format("lance").outputMode("update").options(**options)
        return write.option("checkpointLocation", str(self.home / "checkpoint")).trigger(
            availableNow=True
        )

    def update(self, **options: str) -> None:
        assert self.writer(**{"merge_on": "id", **options}).start(self.table).awaitTermination(120)

    def rows(self) -> list[tuple[Any, ...]]:
        rows = lance.dataset(self.table).to_table().to_pylist()
        return sorted(tuple(row.values()) for row in rows)


@pytest.fixture
def counts(spark: SparkSession, tmp_path: Path) -> Counts:
    return Counts(spark, tmp_path)


@pytest.mark.long
def test_a_batch_replaces_the_rows_of_its_keys_once(counts: Counts) -> None:
    counts.feed(0)
    counts.update()
    lance.dataset(counts.table).update({"note": "'kept'"}, where="id = 3")
    counts.feed(1)
    counts.update(commit_message="second")
    version = lance.dataset(counts.table).version
    assert counts.rows() == [(i, 2, "kept" if i == 3 else None) for i in range(10)]
    commit = lance_spark.last_commit(counts.table)
    assert commit is not None and (commit.operation, commit.rows_updated) == ("merge", 10)
    lose_commits(counts.home / "checkpoint", 1)
    counts.update()
    assert (lance.dataset(counts.table).version, len(counts.rows())) == (version, 10)
    assert unused_files(counts.table) == set()


@pytest.mark.long
def test_a_restored_checkpoint_ends_the_query_and_another_query_goes_on(counts: Counts) -> None:
    counts.feed(0)
    counts.update()
    shutil.copytree(counts.home / "checkpoint", counts.home / "copy")
    for number in (1, 2, 3):
        counts.feed(number)
    counts.update()
    other = (
        counts.source()
        .where("id < 10")
        .selectExpr("id + 100 AS id", "id AS n")
        .writeStream.format("lance")
    )
    other = other.outputMode("update").option("merge_on", "id").trigger(availableNow=True)
    other = other.option("checkpointLocation", str(counts.home / "other"))
    for _ in range(2):
        assert other.start(counts.table).awaitTermination(120)
        lose_commits(counts.home / "other", 1)
    shutil.rmtree(counts.home / "checkpoint")
    (counts.home / "copy").rename(counts.home / "checkpoint")
    with pytest.raises(
        PySparkException, match=r"StreamRewoundError.*Batch 1 is older than batch 3"
    ):
        counts.update()
    assert counts.rows() == [
        *((i, 4, None) for i in range(10)),
        *((100 + i, i, None) for i in range(10)),
    ]
    assert unused_files(counts.table) == set()


@pytest.mark.long
def test_a_large_batch_is_joined_by_spark(counts: Counts) -> None:
    with patch("lance_spark.streaming.upserts._LOCAL_BYTES", 0):
        for number in range(3):
            counts.feed(number)
            counts.update(compact_after="1")
    assert counts.rows() == [(i, 3, None) for i in range(10)]
    assert len(lance.dataset(counts.table).get_fragments()) == 1
    assert unused_files(counts.table) == set()


@pytest.mark.long
def test_a_failed_merge_leaves_nothing_and_is_repeated(counts: Counts) -> None:
    counts.feed(0)
    counts.update()
    counts.feed(1)
    with (
        patch.object(Merge, "run", side_effect=OSError("lost")),
        pytest.raises(PySparkException, match="lost"),
    ):
        counts.update()
    assert unused_files(counts.table) == set()
    assert counts.rows() == [(i, 1, None) for i in range(10)]
    counts.update()
    assert counts.rows() == [(i, 2, None) for i in range(10)]
    # A batch of another query with a key twice is refused.
    twice = (
        counts.source()
        .selectExpr("0L AS id", "1L AS n")
        .writeStream.format("lance")
        .outputMode("update")
    )
    twice = twice.option("merge_on", "id").option("checkpointLocation", str(counts.home / "twice"))
    with pytest.raises(PySparkException, match="MergeError"):
        twice.trigger(availableNow=True).start(counts.table).awaitTermination(120)
    assert unused_files(counts.table) == set()


@pytest.mark.long
def test_a_table_of_a_catalog_is_updated(counts: Counts, spark: SparkSession) -> None:
    lance_spark.catalog(spark, "updates", str(counts.home))
    spark.sql("CREATE TABLE updates.totals (id BIGINT, n BIGINT)")
    for number in range(2):
        counts.feed(number)
        assert counts.writer(merge_on="id").toTable("updates.totals").awaitTermination(120)
    assert sorted(map(tuple, spark.table("updates.totals").collect())) == [
        (i, 2) for i in range(10)
    ]


def test_options_of_update_mode(counts: Counts) -> None:
    counts.feed(0)
    refused = {
        "merge_on.*the key columns": {},
        "merge_on.*each once": {"merge_on": "id,id"},
        "'nothing' does not exist": {"merge_on": "nothing"},
        "mergeSchema.*add the columns": {"merge_on": "id", "mergeSchema": "true"},
    }
    for message, options in refused.items():
        with pytest.raises(PySparkException, match=message):
            counts.writer(**options).start(counts.table).awaitTermination(120)
    appends = counts.source().writeStream.format("lance").option("merge_on", "id")
    appends = appends.option("checkpointLocation", str(counts.home / "appends")).trigger(
        availableNow=True
    )
    with pytest.raises(PySparkException, match=r"merge_on.*update mode"):
        appends.start(counts.table).awaitTermination(120)
    with pytest.raises(PySparkException, match="create the table first"):
        counts.writer(merge_on="id").start(str(counts.home / "missing.lance")).awaitTermination(120)
    assert counts.rows() == []
    assert not [
        path
        for path in (Path(counts.table) / "_lance_spark" / "staging").rglob("*")
        if path.is_file()
    ]


WITHOUT_JAR = """
import sys
import lance_spark
from lance_spark.datasource import LanceDataSource
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(LanceDataSource)
rows = spark.readStream.schema("id bigint").csv(sys.argv[1] + "/in")
write = rows.writeStream.format("lance").outputMode("update").option("merge_on", "id")
write = write.option("checkpointLocation", sys.argv[1] + "/checkpoint").trigger(availableNow=True)
write.start(sys.argv[1] + "/t.lance").awaitTermination(60)
"""


@pytest.mark.long
def test_update_mode_without_the_jar_is_an_error_of_spark_with_a_recipe_on_the_page_of_errors(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1\n")
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "t.lance")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAR, str(tmp_path)],
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    text = "requirement failed: lance does not support Update mode"
    assert run.returncode == 1 and text in run.stderr
    assert text in (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert lance.dataset(tmp_path / "t.lance").count_rows() == 0
