"""Branches read and written as DataFrames."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lance_spark

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Ten rows in two fragments at version 2; the branch `b` has two more rows, at versions 3 and 4."""
    path = str(tmp_path / "t.lance")
    for first in (0, 5):
        rows = pa.table({"id": pa.array(range(first, first + 5), pa.int64())})
        lance.write_dataset(rows, path, mode="append", enable_stable_row_ids=True)
    branch = lance.dataset(path).create_branch("b")
    for new in (100, 101):
        branch = lance.write_dataset(
            pa.table({"id": pa.array([new], pa.int64())}), branch, mode="append"
        )
    return path


def read(spark: SparkSession, path: str, **options: object) -> DataFrame:
    return spark.read.format("lance").options(**options).load(path)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.long
def test_a_branch_is_read_at_its_latest_version_at_others_and_at_times(
    spark: SparkSession, path: str
):
    main, latest = list(range(10)), [*range(10), 100, 101]
    moment = (
        lance.dataset(path)
        .checkout_version(("b", 3))
        .versions()[1]["timestamp"]
        .astimezone()
        .isoformat()
    )
    assert ids(read(spark, path)) == ids(read(spark, path, branch="main")) == main
    assert ids(read(spark, path, branch="b")) == ids(read(spark, path, version="b")) == latest
    assert (
        ids(read(spark, path, version="b:3"))
        == ids(read(spark, path, branch="b", version=3))
        == latest[:-1]
    )
    assert ids(read(spark, path, branch="b", timestamp=moment)) == latest[:-1]
    assert ids(read(spark, f"{path}/tree/b").where("id > 5")) == [6, 7, 8, 9, 100, 101]
    assert read(spark, path, branch="b").where("id >= 100").count() == 2


def test_rows_are_appended_to_and_overwritten_on_a_branch_alone(spark: SparkSession, path: str):
    rows = spark.range(200, 203)
    rows.write.format("lance").mode("append").option("branch", "b").save(path)
    result = lance_spark.last_commit(f"{path}/tree/b")
    assert result is not None and (result.version, result.rows) == (5, 3)
    assert ids(read(spark, path, branch="b")) == [*range(10), 100, 101, 200, 201, 202]
    assert lance.dataset(path).checkout_version(("b", None)).count_rows() == 15
    rows.write.format("lance").mode("overwrite").option("branch", "b").save(path)
    assert ids(read(spark, path, branch="b")) == [200, 201, 202] and ids(read(spark, path)) == list(
        range(10)
    )
    assert lance.dataset(path).version == 2 and lance_spark.last_commit(path) is None
    files = {file.name for file in Path(path, "data").iterdir()}
    assert len(files) == 2  # none of the branch's
    assert not list(Path(path, "tree", "b", "_lance_spark").rglob("*"))


@pytest.mark.long
def test_a_branch_that_is_not_there_is_not_made_by_a_write(
    spark: SparkSession, path: str, tmp_path: Path
):
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match=r"Branch nosuch does not exist.*Its branches are b"):
            spark.range(3).write.format("lance").mode(mode).option("branch", "nosuch").save(path)
        with pytest.raises(Exception, match="No Lance table was found"):
            spark.range(3).write.format("lance").mode(mode).option("branch", "b").save(
                str(tmp_path / "none")
            )
    assert not (Path(path) / "tree" / "nosuch").exists() and not (tmp_path / "none").exists()


def test_a_column_is_filled_on_the_branch_that_was_read(spark: SparkSession, path: str):
    frame = read(spark, path, branch="b", with_row_address=True)
    lance.dataset(path).checkout_version(("b", None)).delete("id = 100")
    lance.write_dataset(pa.table({"id": pa.array([300], pa.int64())}), path, mode="append")
    lance.dataset(path).checkout_version(("b", None)).optimize.compact_files(
        target_rows_per_fragment=100
    )
    values = frame.select("_rowaddr", (sf.col("id") * 2).alias("twice"))
    values.write.format("lance").mode("append").option("mode", "backfill").option(
        "branch", "b"
    ).save(path)
    columns = lance.dataset(path).checkout_version(("b", None)).to_table().to_pydict()
    assert columns["twice"] == [2 * i for i in columns["id"]] and 100 not in columns["id"]
    assert lance.dataset(path).schema.names == ["id"]
    again = read(spark, path, version="b", with_row_address=True)
    again.select("_rowaddr", (sf.col("twice") + 1).alias("twice")).write.format("lance").mode(
        "append"
    ).option("mode", "backfill").save(f"{path}/tree/b")
    assert read(spark, path, branch="b").where("twice = 2 * id + 1").count() == 11


@pytest.mark.parametrize(
    ("of", "to"),
    [("main", "b"), *(pytest.param("b", to, marks=pytest.mark.long) for to in ("main", "c"))],
)
def test_addresses_of_another_branch_are_refused_by_name(
    spark: SparkSession, path: str, of: str, to: str
):
    lance.dataset(path).create_branch("c")
    frame = read(spark, path, branch=of, with_row_address=True).select(
        "_rowaddr", (sf.col("id") * 2).alias("twice")
    )
    with pytest.raises(
        Exception,
        match=rf"The row addresses are of branch '{of}', and the write goes to branch '{to}'",
    ):
        frame.write.format("lance").mode("append").option("mode", "backfill").option(
            "branch", to
        ).save(path)
    heads = [lance.dataset(path).checkout_version((name, None)) for name in (None, "b", "c")]
    assert [head.schema.names for head in heads] == [["id"]] * 3


@pytest.mark.long
def test_views_and_catalog_tables_of_a_branch_take_rows_for_it(spark: SparkSession, path: str):
    options = f"OPTIONS (path '{path}', branch 'b')"
    spark.sql(f"CREATE TEMPORARY VIEW view_of_b USING lance {options}")
    spark.sql(f"CREATE TABLE table_of_b USING lance {options}")
    try:
        for name, rows in (("view_of_b", 13), ("table_of_b", 14)):
            spark.sql(f"INSERT INTO {name} VALUES (500)")
            assert spark.table(name).count() == rows == lance.dataset(f"{path}/tree/b").count_rows()
    finally:
        spark.sql("DROP TABLE table_of_b")
        spark.catalog.dropTempView("view_of_b")
    assert lance.dataset(path).count_rows() == 10


@pytest.mark.long
def test_rows_are_merged_into_a_branch(spark: SparkSession, path: str):
    table = lance_spark.connect(str(Path(path).parent), spark, progress=False).open_table(
        "t", branch="b"
    )
    table.add_columns({"twice": "id * 2"})
    source = spark.createDataFrame([(1, 0), (100, 0), (400, 0)], "id bigint, twice bigint")
    merge_result = (
        table.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(source)
    )
    assert (merge_result.rows_updated, merge_result.rows_inserted) == (2, 1)
    assert (
        table.to_spark().where("twice = 0").count() == 4 and lance.dataset(path).count_rows() == 10
    )
    frame = table.to_spark()
    table.checkout("main:1")
    assert (frame.count(), table.to_spark().count()) == (13, 5)
    changes = table.diff(2, 4)
    assert (changes.inserted.count(), changes.updated.count(), changes.deleted.count()) == (2, 0, 0)
