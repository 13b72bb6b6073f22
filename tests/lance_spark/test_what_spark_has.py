"""Features of other formats without a counterpart in this source: each is an error with a replacement.

docs/catalog.md lists them; for errors of Spark itself before the call of the source, only the page names the
replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession

import lance_spark

pytestmark = pytest.mark.sample(3, tests=2)

PAGE = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text(encoding="utf-8")


@pytest.fixture
def table(spark: SparkSession, table_path: str) -> str:
    spark.range(5).selectExpr("id", "id % 2 AS k").write.format("lance").mode("append").save(
        table_path
    )
    return table_path


READS: dict[str, tuple[Callable[[DataFrameReader, str], DataFrame], str]] = {
    "load([a, b])": (
        lambda reader, path: reader.load([path, path]),
        "OptionError.*'paths'.*call union",
    ),
    "globs": (
        lambda reader, path: reader.load(f"{path[:-7]}*.lance"),
        "TableNotFoundError.*no pattern.*call union",
    ),
    "pathGlobFilter": (
        lambda reader, path: reader.option("pathGlobFilter", "*").load(path),
        "OptionError.*call union",
    ),
    "versionAsOf": (
        lambda reader, path: reader.option("versionAsOf", 1).load(path),
        "OptionError.*: the option version",
    ),
    "timestampAsOf": (
        lambda reader, path: reader.option("timestampAsOf", "2026-01-01").load(path),
        "OptionError.*: the option timestamp",
    ),
    "mergeSchema": (
        lambda reader, path: reader.option("mergeSchema", True).load(path),
        "OptionError.*an append",
    ),
    "basePath": (
        lambda reader, path: reader.option("basePath", "/x").load(path),
        "OptionError.*no folders of part",
    ),
    "inferSchema": (
        lambda reader, path: reader.option("inferSchema", True).load(path),
        "OptionError.*knows its col",
    ),
}


@pytest.mark.parametrize("option_name", READS)
def test_a_read_says_what_to_write_instead(
    spark: SparkSession, table: str, option_name: str
) -> None:
    read, expected = READS[option_name]
    with pytest.raises(PySparkException, match=expected):
        read(spark.read.format("lance"), table)
    assert option_name in PAGE


def test_several_tables_are_read_by_a_union_and_one_in_a_list_is_one(
    spark: SparkSession, table: str
) -> None:
    single = spark.read.format("lance").load([table])
    assert single.union(spark.read.format("lance").load(table)).count() == 10


WRITES: dict[str, tuple[Callable[[DataFrameWriter, str], None], str]] = {
    "errorifexists": (
        lambda writer, path: writer.mode("errorifexists").save(path),
        "either the .Append. or .Overwrite",
    ),
    "ignore": (
        lambda writer, path: writer.mode("ignore").save(path),
        "either the .Append. or .Overwrite",
    ),
    "partitionBy": (
        lambda writer, path: writer.partitionBy("k").save(path),
        "partitioning or clustering columns",
    ),
    "clusterBy": (
        lambda writer, path: writer.clusterBy("k").save(path),
        "partitioning or clustering columns",
    ),
    "bucketBy": (lambda writer, path: writer.bucketBy(2, "k").save(path), "not support bucketBy"),
    "overwriteSchema": (
        lambda writer, path: writer.option("overwriteSchema", True).save(path),
        "OptionError.*an overwrite takes the columns",
    ),
    "replaceWhere": (
        lambda writer, path: writer.option("replaceWhere", "k = 1").save(path),
        r"OptionError.*delete\(",
    ),
    "partitionOverwriteMode": (
        lambda writer, path: writer.option("partitionOverwriteMode", "dynamic").save(path),
        r"OptionError.*delete\(",
    ),
    "maxRecordsPerFile": (
        lambda writer, path: writer.option("maxRecordsPerFile", 2).save(path),
        "OptionError.*: the option max_rows_per_file",
    ),
    "compression": (
        lambda writer, path: writer.option("compression", "zstd").save(path),
        "OptionError.*encodes",
    ),
}


@pytest.mark.parametrize("option_name", WRITES)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_is_refused_and_leaves_the_table_as_it_is(
    spark: SparkSession, table: str, option_name: str, mode: str
) -> None:
    write, expected = WRITES[option_name]
    with pytest.raises(PySparkException, match=expected):
        write(spark.range(3).selectExpr("id", "id AS k").write.format("lance").mode(mode), table)
    assert lance.dataset(table).version == 1
    assert option_name in PAGE


def test_the_modes_that_spark_refuses_are_those_of_create_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    db = lance_spark.connect(str(tmp_path), spark)
    assert db.create_table("t", spark.range(3)).count_rows() == 3
    with pytest.raises(lance_spark.TableExistsError):
        db.create_table("t", spark.range(4))
    assert db.create_table("t", spark.range(4), mode="exist_ok").count_rows() == 3


def test_update_mode_is_refused_and_a_micro_batch_is_written_as_a_dataframe(
    spark: SparkSession, table: str, tmp_path: Path
) -> None:
    def run(to: str, write: Callable[..., Any]) -> None:
        stream = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 3)
            .load()
            .selectExpr("value AS id", "value AS k")
        )
        options = {"checkpointLocation": str(tmp_path / to)}
        query = write(stream.writeStream.options(**options).trigger(availableNow=True))
        query.awaitTermination(60)

    with pytest.raises(PySparkException, match="does not support Update mode"):
        run("u", lambda writer: writer.format("lance").outputMode("update").start(table))
    assert lance.dataset(table).version == 1
    append = lambda batch, _: batch.write.format("lance").mode("append").save(table)  # noqa: E731
    run("b", lambda writer: writer.foreachBatch(append).start())
    assert lance.dataset(table).count_rows() == 8
    assert "foreachBatch" in PAGE
