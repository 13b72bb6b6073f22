"""Catalog tables and temporary views: read, inserted into, and read again, also by a session other than their
creator.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=2)]


@pytest.fixture
def names(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Two free table names; tables of the test under these names are dropped."""
    pair = (f"x{uuid.uuid4().hex[:8]}", f"y{uuid.uuid4().hex[:8]}")
    yield pair
    for name in pair:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    """Two Lance tables with the same columns and other rows."""
    x, y = str(tmp_path / "x.lance"), str(tmp_path / "y.lance")
    lance.write_dataset(pa.table({"id": pa.array([1, 2], pa.int64()), "s": ["a", "b"]}), x)
    lance.write_dataset(pa.table({"id": pa.array([10], pa.int64()), "s": ["z"]}), y)
    return x, y


def rows(path: str) -> list[int]:
    return sorted(lance.dataset(path).to_table()["id"].to_pylist())


def test_a_catalog_table_is_read_and_follows_the_latest_version(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}')")
    assert spark.sql(f"SELECT sum(id) AS s FROM {names[0]}").first() == (3,)
    lance.write_dataset(
        pa.table({"id": pa.array([5], pa.int64()), "s": ["c"]}), two[0], mode="append"
    )
    assert spark.sql(f"SELECT sum(id) AS s FROM {names[0]}").first() == (8,)


def test_an_insert_is_seen_by_the_next_select(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}')")
    spark.sql(f"INSERT INTO {names[0]} VALUES (7, 'n')")
    spark.sql(f"INSERT INTO {names[0]} (id) VALUES (8)")
    assert [r.id for r in spark.sql(f"SELECT id FROM {names[0]} ORDER BY id").collect()] == [
        1,
        2,
        7,
        8,
    ]
    assert rows(two[0]) == [1, 2, 7, 8]


def test_an_insert_select_goes_to_the_table_that_is_named_not_to_the_one_that_is_read(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    for name, path in zip(names, two, strict=True):
        spark.sql(f"CREATE TABLE {name} USING lance OPTIONS (path '{path}')")
    spark.sql(f"INSERT INTO {names[1]} SELECT * FROM {names[0]}")
    assert rows(two[0]) == [1, 2]
    assert rows(two[1]) == [1, 2, 10]
    spark.read.format("lance").load(two[0]).writeTo(names[1]).append()
    assert rows(two[0]) == [1, 2]
    assert rows(two[1]) == [1, 1, 2, 2, 10]


def test_insert_overwrite_makes_a_new_version(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    for name, path in zip(names, two, strict=True):
        spark.sql(f"CREATE TABLE {name} USING lance OPTIONS (path '{path}')")
    spark.sql(f"INSERT OVERWRITE {names[1]} SELECT * FROM {names[0]}")
    assert rows(two[1]) == [1, 2]
    assert lance.dataset(two[1], version=1).count_rows() == 1
    assert rows(two[0]) == [1, 2]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_an_overwrite_replaces_all_rows_whatever_the_mode_for_partitions(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str], mode: str
) -> None:
    name, path = names[0], two[0]
    spark.sql(f"CREATE TABLE {name} USING lance OPTIONS (path '{path}')")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    try:
        spark.sql(f"INSERT OVERWRITE {name} SELECT id + 10, s FROM {name} WHERE id > 1")
        assert rows(path) == [12]
        spark.sql("SELECT 13L, 'i'").write.insertInto(name, overwrite=True)
        assert rows(path) == [13]
        spark.sql("SELECT 14L AS id, 'p' AS s").writeTo(name).overwritePartitions()
        assert rows(path) == [14]
        spark.sql("SELECT 15L AS id, 'q' AS s").write.format("lance").mode("overwrite").save(path)
        assert rows(path) == [15] == [row.id for row in spark.table(name).collect()]
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert [lance.dataset(path, version=v).count_rows() for v in range(1, 6)] == [2, 1, 1, 1, 1]


def test_without_the_rule_a_catalog_insert_is_refused_since_spark_does_not_say_where_to(
    spark: SparkSession, plain_spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    for name, path in zip(names, two, strict=True):
        spark.sql(f"CREATE TABLE {name} USING lance OPTIONS (path '{path}')")
    assert plain_spark.sql(f"SELECT sum(id) AS s FROM {names[0]}").first() == (3,)
    with pytest.raises(PySparkException, match="enable_pushdown"):
        plain_spark.sql(f"INSERT INTO {names[1]} SELECT * FROM {names[0]}")
    assert rows(two[0]) == [1, 2] and rows(two[1]) == [10]


def test_a_table_with_a_location_is_read_and_inserted_into(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING lance LOCATION '{two[0]}'")
    spark.sql(f"INSERT INTO {names[0]} VALUES (9, 'q')")
    assert spark.table(names[0]).count() == 3


def test_a_column_added_after_create_table_is_seen_when_the_table_is_made_again(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}')")
    lance.dataset(two[0]).add_columns({"twice": "id * 2"})
    assert spark.table(names[0]).columns == ["id", "s"]
    assert spark.sql(f"SELECT sum(id) AS s FROM {names[0]}").first() == (3,)
    spark.sql(f"DROP TABLE {names[0]}")
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}')")
    assert spark.sql(f"SELECT sum(twice) AS s FROM {names[0]}").first() == (6,)


def test_all_scans_of_one_query_see_one_version(
    spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}')")
    query = f"SELECT (SELECT count(*) FROM {names[0]}) AS n, count(*) AS m FROM {names[0]} a JOIN {names[0]} b USING (id)"
    for extra in range(3):
        lance.write_dataset(
            pa.table({"id": pa.array([100 + extra], pa.int64()), "s": ["c"]}), two[0], mode="append"
        )
        assert spark.sql(query).first() == (3 + extra, 3 + extra)


def test_a_temporary_view_using_lance_is_read_and_inserted_into(
    spark: SparkSession, two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v_using USING lance OPTIONS (path '{two[0]}')")
    assert spark.sql("SELECT count(*) FROM v_using").first() == (2,)
    spark.sql("INSERT INTO v_using VALUES (3, 'c')")
    spark.sql("REFRESH TABLE v_using")
    assert rows(two[0]) == [1, 2, 3]
    assert spark.sql("SELECT count(*) FROM v_using").first() == (3,)
    spark.catalog.dropTempView("v_using")


def test_a_dataframe_stays_at_its_version_when_it_is_a_view(
    spark: SparkSession, two: tuple[str, str]
) -> None:
    spark.read.format("lance").load(two[0]).createOrReplaceTempView("v_df")
    lance.write_dataset(
        pa.table({"id": pa.array([5], pa.int64()), "s": ["c"]}), two[0], mode="append"
    )
    assert spark.sql("SELECT count(*) FROM v_df").first() == (2,)
    assert spark.sql("SELECT max(id) FROM v_df WHERE id > 1").first() == (2,)
    spark.catalog.dropTempView("v_df")


@pytest.mark.long
def test_a_catalog_table_outlives_the_session_that_made_it(
    two: tuple[str, str], tmp_path: Path
) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        from pyspark.sql import SparkSession
        import lance_spark
        spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
                 .config("spark.sql.warehouse.dir", {str(tmp_path / "warehouse")!r})
                 .config("spark.sql.catalogImplementation", "hive")
                 .config("spark.hadoop.javax.jdo.option.ConnectionURL",
                         "jdbc:derby:;databaseName={tmp_path}/metastore;create=true").getOrCreate())
        lance_spark.enable_pushdown(spark)
        if sys.argv[1] == "make":
            spark.sql("CREATE TABLE kept USING lance OPTIONS (path '{two[0]}')")
        spark.sql("INSERT INTO kept VALUES (" + sys.argv[2] + ", 'k')")
        print("SEEN", sorted(r.id for r in spark.table("kept").collect()))
        """
    )
    outputs = []
    for step in (("make", "11"), ("again", "12")):
        process = subprocess.run(
            [sys.executable, "-c", script, *step],
            capture_output=True,
            text=True,
            timeout=180,
            cwd=tmp_path,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        outputs.append(
            next(line for line in process.stdout.splitlines() if line.startswith("SEEN"))
        )
    assert outputs == ["SEEN [1, 2, 11]", "SEEN [1, 2, 11, 12]"]


def test_options_of_create_table_serve_reads_and_inserts(
    spark: SparkSession, plain_spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    lance.write_dataset(
        pa.table({"id": pa.array([5], pa.int64()), "s": ["c"]}), two[0], mode="append"
    )
    options = f"path '{two[0]}', version '1', max_rows_per_file '2'"
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS ({options}) TBLPROPERTIES ('a' = 'b')")
    spark.sql(f"INSERT INTO {names[0]} SELECT id, 'n' FROM range(0, 4, 1, 1)")
    assert spark.table(names[0]).count() == plain_spark.table(names[0]).count() == 2
    assert [f.count_rows() for f in lance.dataset(two[0]).get_fragments()] == [2, 1, 2, 2]
    spark.catalog.createTable(names[1], two[0], "lance")
    assert spark.table(names[1]).count() == 7


def test_a_table_made_from_a_query_is_written_with_its_options(
    spark: SparkSession, names: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "new.lance"
    options = f"path '{path}', max_rows_per_file '3'"
    spark.sql(
        f"CREATE TABLE {names[0]} USING lance OPTIONS ({options}) AS SELECT id FROM range(0, 7, 1, 1)"
    )
    assert [f.count_rows() for f in lance.dataset(str(path)).get_fragments()] == [3, 3, 1]
    assert spark.table(names[0]).count() == 7


REPLACEMENTS: dict[str, Callable[[SparkSession, str], object]] = {
    "saveAsTable": lambda spark, name: (
        spark.table(name).write.format("lance").mode("overwrite").saveAsTable(name)
    ),
    "create or replace": lambda spark, name: spark.sql(
        f"CREATE OR REPLACE TABLE {name} USING lance AS SELECT 1 AS id"
    ),
    "replace": lambda spark, name: spark.sql(f"REPLACE TABLE {name} (id INT) USING lance"),
    "createOrReplace": lambda spark, name: (
        spark.table(name).writeTo(name).using("lance").createOrReplace()
    ),
    "saveAsTable as Parquet": lambda spark, name: (
        spark.table(name).write.mode("overwrite").saveAsTable(name)
    ),
    "saveAsTable in a thread": lambda spark, name: in_thread(
        lambda: spark.range(3).write.format("json").mode("overwrite").saveAsTable(name)
    ),
}
"""Formats of Spark's own have another command."""


def in_thread(act: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


@pytest.mark.parametrize("how", REPLACEMENTS)
def test_replacing_a_table_would_delete_its_versions_and_is_refused(
    how: str, spark: SparkSession, names: tuple[str, str]
) -> None:
    name = names[0]
    spark.sql(f"CREATE TABLE {name} USING lance AS SELECT id FROM range(10)")
    with pytest.raises(AnalysisException, match="INSERT OVERWRITE"):
        REPLACEMENTS[how](spark, name)
    assert spark.table(name).count() == 10
    spark.sql(f"INSERT OVERWRITE {name} SELECT id FROM {name} WHERE id < 3")
    assert spark.table(name).count() == 3


@pytest.mark.long
def test_a_table_of_another_format_is_replaced_as_ever(
    spark: SparkSession, names: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING parquet AS SELECT 1 AS id")
    spark.range(3).write.format("parquet").mode("overwrite").saveAsTable(names[0])
    assert spark.table(names[0]).count() == 3
    spark.sql(f"ALTER TABLE {names[0]} ADD COLUMNS (z INT)")
    assert spark.table(names[0]).columns == ["id", "z"]
    spark.range(4).write.format("lance").mode("overwrite").saveAsTable(names[1])
    assert spark.table(names[1]).count() == 4
    spark.sql(f"DROP TABLE {names[1]}")
    spark.range(5).write.mode("overwrite").saveAsTable(names[1])
    assert spark.table(names[1]).count() == 5


@pytest.mark.parametrize(
    "change",
    ["ADD COLUMNS (z INT)", "DROP COLUMN s", "RENAME COLUMN s TO t", "ALTER COLUMN s COMMENT 'x'"],
)
def test_columns_that_only_sparks_catalog_would_change_are_refused(
    change: str, spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}')")
    with pytest.raises(AnalysisException, match="Spark's catalog and not the table"):
        spark.sql(f"ALTER TABLE {names[0]} {change}")
    assert spark.table(names[0]).columns == ["id", "s"]
    assert spark.sql(f"SELECT * FROM {names[0]}").count() == 2
    spark.sql(f"ALTER TABLE {names[0]} SET TBLPROPERTIES ('a' = 'b')")


@pytest.mark.parametrize("how", ["PARTITIONED BY (id)", "CLUSTERED BY (id) INTO 2 BUCKETS"])
def test_a_table_is_not_made_with_partitions_that_it_would_not_have(
    how: str, spark: SparkSession, names: tuple[str, str]
) -> None:
    with pytest.raises(AnalysisException, match="its rows lie in fragments"):
        spark.sql(f"CREATE TABLE {names[0]} USING lance {how} AS SELECT id FROM range(3)")
    assert not spark.catalog.tableExists(names[0])


def test_refresh_table_takes_the_columns_that_the_table_has_now(
    spark: SparkSession, plain_spark: SparkSession, names: tuple[str, str], two: tuple[str, str]
) -> None:
    spark.sql(
        f"CREATE TABLE {names[0]} USING lance OPTIONS (path '{two[0]}', max_rows_per_file '2')"
    )
    dataset = lance.dataset(two[0])
    dataset.add_columns({"twice": "id * 2"})
    spark.sql(f"REFRESH TABLE {names[0]}")
    assert spark.sql(f"SELECT sum(twice) AS t FROM {names[0]}").first() == (6,)
    lance.dataset(two[0]).drop_columns(["s"])
    with pytest.raises(
        PySparkException,
        match=r"Column 's' does not exist.*say REFRESH TABLE, or make the view anew",
    ):
        spark.table(names[0]).collect()
    spark.sql(f"REFRESH TABLE {names[0]}")
    for session in (spark, plain_spark):
        assert session.sql(f"SELECT * FROM {names[0]} ORDER BY id").collect() == [(1, 2), (2, 4)]
    spark.sql(f"INSERT INTO {names[0]} VALUES (3, 6)")
    assert spark.table(names[0]).count() == 3
