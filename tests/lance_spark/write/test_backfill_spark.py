"""Backfills through `df.write` as in user code, with and without the planner rule."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.functions import pandas_udf

from lance_spark.commit.conflicts.history import last_commit
from tests.lance_spark.write.backfills import column, make_table, orphans
from tests.support.waiting import eventually

pytestmark = pytest.mark.sample(1, tests=2)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table.lance")


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SparkSession:
    return request.getfixturevalue(request.param)


def both(function: Any) -> Any:
    """With the rule, and in the long tests without the rule."""
    plain = pytest.param("plain_spark", marks=pytest.mark.long, id="no-rule")
    return pytest.mark.parametrize(
        "session", [pytest.param("spark", id="rule"), plain], indirect=True
    )(function)


def load(session: SparkSession, path: str, **options: Any) -> DataFrame:
    return session.read.format("lance").options(with_row_address=True, **options).load(path)


def backfill(df: DataFrame, path: str, **options: Any) -> None:
    df.write.format("lance").mode("append").options(mode="backfill", **options).save(path)


@both
def test_an_expression_becomes_a_column(session: SparkSession, path: str) -> None:
    make_table(path)
    lance.dataset(path).delete("id = 4")
    backfill(load(session, path).select("_rowaddr", F.length("text").cast("int").alias("c")), path)
    assert column(path, "c") == {k: len(f"t{k}") for k in range(30) if k != 4}
    assert lance.dataset(path).schema.field("c").type == pa.int32()
    assert orphans(path) == set()


@both
def test_udfs_become_columns_and_several_at_once(session: SparkSession, path: str) -> None:
    make_table(path)

    @pandas_udf("array<float>")  # type: ignore[call-overload]
    def embed(text: pd.Series) -> pd.Series:
        return text.map(lambda t: [float(len(t)), float(ord(t[-1]))])

    df = load(session, path).select(
        "_rowaddr", embed("text").alias("e"), (F.col("id") * 2).alias("twice")
    )
    backfill(df, path, **{"e.arrow.fixed-size-list.size": 2})
    assert lance.dataset(path).schema.field("e").type == pa.list_(pa.float32(), 2)
    assert column(path, "e") == {
        k: [float(len(f"t{k}")), float(ord(str(k)[-1]))] for k in range(30)
    }
    assert column(path, "twice") == {k: k * 2 for k in range(30)}
    result = last_commit(path)
    assert result is not None and result.columns == ("e", "twice") and result.rows == 30


@pytest.mark.sample(3)
@both
@pytest.mark.parametrize("shape", ["repartition", "shuffle", "join", "sort", "by range"])
def test_rows_may_come_in_any_order_and_partitioning(
    shape: str, session: SparkSession, path: str
) -> None:
    make_table(path, fragments=4, rows=25)
    df = load(session, path).select("_rowaddr", "id")
    if shape == "repartition":
        df = df.repartition(7)
    elif shape == "shuffle":
        df = df.groupBy("_rowaddr").agg(F.max("id").alias("id"))
    elif shape == "join":
        df = df.join(
            session.range(100).withColumn("k", F.col("id")).select("k"), F.col("id") == F.col("k")
        )
    elif shape == "sort":
        df = df.orderBy(F.desc("_rowaddr"))
    else:
        df = df.repartitionByRange("_rowaddr").sortWithinPartitions("_rowaddr")
    backfill(df.select("_rowaddr", (F.col("id") * 10).alias("c")), path)
    assert column(path, "c") == {k: k * 10 for k in range(100)}
    assert orphans(path) == set()


@pytest.mark.sample(2)
@both
def test_rows_that_are_not_given_keep_their_value(session: SparkSession, path: str) -> None:
    make_table(path)
    backfill(load(session, path).select("_rowaddr", F.col("id").alias("c")), path)
    backfill(
        load(session, path).where("id % 3 = 0").select("_rowaddr", (-F.col("id")).alias("c")), path
    )
    assert column(path, "c") == {k: -k if k % 3 == 0 else k for k in range(30)}


@both
def test_row_ids_serve_as_well(session: SparkSession, path: str) -> None:
    make_table(path)
    lance.dataset(path).update({"text": "'moved'"}, where="id in (3, 14)")
    df = session.read.format("lance").option("with_row_id", True).load(path)
    backfill(df.select("_rowid", (F.col("id") * 10).alias("c")).repartition(3), path)
    assert column(path, "c") == {k: k * 10 for k in range(30)}


@both
def test_the_column_is_read_back_and_the_version_before_is_not_changed(
    session: SparkSession, path: str
) -> None:
    make_table(path)
    version = lance.dataset(path).version
    backfill(load(session, path).select("_rowaddr", F.lit(1).alias("c")), path)
    assert session.read.format("lance").load(path).agg(F.sum("c")).first()[0] == 30  # type: ignore[index]
    assert "c" not in session.read.format("lance").option("version", version).load(path).columns


def check_refused(df: DataFrame, path: str, text: str, **options: Any) -> None:
    version, before = lance.dataset(path).version, lance.dataset(path).to_table()
    with pytest.raises(Exception, match=text):
        backfill(df, path, **options)
    assert lance.dataset(path).version == version
    assert lance.dataset(path).to_table().equals(before)
    eventually(lambda: orphans(path) == set())


@both
def test_rows_given_twice_null_or_deleted_are_counted(
    session: SparkSession, path: str, request: pytest.FixtureRequest
) -> None:
    make_table(path)
    df = load(session, path).select("_rowaddr", F.col("id").alias("c"))
    check_refused(df.union(df), path, "30 given more than once")
    null = df.withColumn("_rowaddr", F.when(F.col("c") > 3, F.col("_rowaddr")))
    lost = {"version": lance.dataset(path).version}
    check_refused(null, path, "4 without an address", **lost)
    lance.dataset(path).delete("id in (1, 2)")
    read_version = {"version": lance.dataset(path).version}
    with_addresses = df.select((F.col("_rowaddr") + F.col("c") - F.col("c")).alias("_rowaddr"), "c")
    # The rule knows the read version better than the option.
    text = (
        "2 deleted in the snapshot"
        if "no-rule" in request.node.name
        else "reads row addresses at version 3"
    )
    check_refused(with_addresses, path, text, **read_version)


@both
def test_the_version_is_lost_in_map_in_arrow_and_said_by_the_option(
    session: SparkSession, path: str
) -> None:
    make_table(path)

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    schema = T.StructType(
        [T.StructField("_rowaddr", T.LongType()), T.StructField("c", T.LongType())]
    )
    df = load(session, path).select("_rowaddr", F.col("id").alias("c")).mapInArrow(same, schema)
    check_refused(df, path, "name the version of that read")
    backfill(df, path, version=lance.dataset(path).version)
    assert column(path, "c") == {k: k for k in range(30)}


@pytest.mark.sample(2)
@both
def test_a_table_compacted_since_the_read_gets_its_values_where_its_rows_are(
    session: SparkSession, path: str
) -> None:
    make_table(path)
    lance.dataset(path).delete("id in (0, 1)")
    df = load(session, path).select("_rowaddr", F.col("id").alias("c"))
    lance.dataset(path).optimize.compact_files()
    df.write.format("lance").mode("append").option("mode", "backfill").save(path)
    rows = lance.dataset(path).to_table(columns=["id", "c"])
    assert rows["c"].to_pylist() == rows["id"].to_pylist()


@both
def test_a_table_recreated_since_the_read_gets_no_value(session: SparkSession, path: str) -> None:
    make_table(path)
    df = load(session, path).select("_rowaddr", F.col("id").alias("c"))
    shutil.rmtree(path)
    make_table(path)
    check_refused(df, path, "made anew|recreated")


@pytest.mark.sample(2)
@both
def test_another_table_gets_no_value(session: SparkSession, path: str, tmp_path: Path) -> None:
    make_table(path)
    other_path = str(tmp_path / "other.lance")
    make_table(other_path)
    check_refused(
        load(session, other_path).select("_rowaddr", F.col("id").alias("c")), path, "another table"
    )


@both
def test_a_union_of_two_versions_gets_no_value(
    session: SparkSession, path: str, request: pytest.FixtureRequest
) -> None:
    make_table(path)
    old = lance.dataset(path).version
    lance.dataset(path).delete("id in (0, 1)")
    lance.dataset(path).optimize.compact_files()
    lower = load(session, path, version=old).where("id between 5 and 9")
    upper = load(session, path).where("id >= 20")
    both_versions = lower.select("_rowaddr", F.col("id").alias("c"), "id").union(
        upper.select("_rowaddr", F.col("id").alias("c"), "id")
    )
    text = "10 not in the snapshot" if "no-rule" in request.node.name else "2 reads"
    check_refused(both_versions, path, text, verify_columns="id")


def test_a_backfill_does_not_replace_a_table(spark: SparkSession, path: str) -> None:
    make_table(path)
    df = load(spark, path).select("_rowaddr", F.col("id").alias("c"))
    with pytest.raises(Exception, match="contradicts mode"):
        df.write.format("lance").mode("overwrite").option("mode", "backfill").save(path)
    assert lance.dataset(path).count_rows() == 30


def test_a_task_that_fails_leaves_the_table_as_it_was(spark: SparkSession, path: str) -> None:
    make_table(path)

    @pandas_udf("long")  # type: ignore[call-overload]
    def breaks(values: pd.Series) -> pd.Series:
        if (values == 17).any():
            raise ValueError("seventeen")
        return values

    check_refused(load(spark, path).select("_rowaddr", breaks("id").alias("c")), path, "seventeen")


def test_the_rule_lets_tasks_write_column_files_and_names_the_inputs(
    spark: SparkSession, path: str
) -> None:
    make_table(path)
    backfill(load(spark, path).select("_rowaddr", F.length("text").alias("c")).repartition(5), path)
    result = last_commit(path)
    assert result is not None
    assert (result.inputs_from, result.input_columns) == ("plan", ("text",))
