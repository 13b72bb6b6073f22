"""Statements make and drop tables, but never touch foreign files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lance_spark import Connection
from tests.lance_spark.sql.conftest import Sql
from tests.support.planted import picture, plant

REFUSED = "belong to no Lance table"


def test_no_statement_or_write_makes_a_table_among_files_of_others(
    spark: SparkSession, db: Connection, sql: Sql, tmp_path: Path
):
    for folder in ("t.lance", "any/folder"):
        plant(tmp_path / folder, tmp_path / "victim")
    before = picture(tmp_path)
    for table in ("{c}.t", f"{{c}}.`{tmp_path}/any/folder`"):
        for text in ("CREATE TABLE {t} (id BIGINT)", "CREATE TABLE {t} AS SELECT 1L id"):
            with pytest.raises(Exception, match=REFUSED):
                sql(text.replace("{t}", table))
        for text in (
            "CREATE OR REPLACE TABLE {t} (id BIGINT)",
            "CREATE OR REPLACE TABLE {t} AS SELECT 1L id",
        ):
            with pytest.raises(Exception, match=REFUSED):
                sql(text.replace("{t}", table))
        assert picture(tmp_path) == before
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match=REFUSED):
            spark.range(3).write.format("lance").mode(mode).save(f"{tmp_path}/any/folder")
        assert picture(tmp_path) == before
    assert sql("DROP TABLE IF EXISTS {c}.t") == []
    assert picture(tmp_path) == before


def test_drop_table_and_drop_namespace_delete_tables_alone(
    db: Connection, sql: Sql, tmp_path: Path
):
    sql("CREATE NAMESPACE {c}.space")
    sql("CREATE TABLE {c}.space.a AS SELECT 1L id")
    sql(f"CREATE TABLE {{c}}.`{tmp_path}/any/folder` AS SELECT 1L id")
    own_entries = picture(tmp_path)
    plant(tmp_path / "any/folder", tmp_path / "victim")
    (tmp_path / "space/b.lance").symlink_to(tmp_path / "victim")
    before = picture(tmp_path)
    with pytest.raises(Exception, match=r"belong to no table.*b\.lance"):
        sql("DROP NAMESPACE {c}.space CASCADE")
    assert picture(tmp_path) == before
    (tmp_path / "space/b.lance").unlink()
    plant(tmp_path / "space/a.lance", tmp_path / "victim")
    before = picture(tmp_path)
    with pytest.raises(Exception, match=r"belong to no table.*a\.lance"):
        sql("DROP NAMESPACE {c}.space CASCADE")
    assert picture(tmp_path) == before
    sql("DROP TABLE {c}.space.a")
    sql(f"DROP TABLE {{c}}.`{tmp_path}/any/folder`")
    assert picture(tmp_path) == {
        path: content for path, content in before.items() if path not in own_entries
    }


def test_drop_finishes_what_a_killed_drop_left(db: Connection, sql: Sql, tmp_path: Path):
    sql("CREATE NAMESPACE {c}.space")
    for name in ("t", "space.u"):
        sql(f"CREATE TABLE {{c}}.{name} AS SELECT 1L id")
        sql(f"INSERT INTO {{c}}.{name} SELECT 2L")
    for folder in ("t.lance", "space/u.lance"):
        for manifest in (tmp_path / folder / "_versions").iterdir():
            manifest.unlink()
    assert sql("SHOW TABLES IN {c}") == []
    # Spark itself handles DROP TABLE of a missing table.
    sql("CREATE TABLE {c}.t AS SELECT 3L id")
    assert sql("SELECT * FROM {c}.t") == [(3,)]
    sql("DROP TABLE {c}.t")
    sql("DROP NAMESPACE {c}.space CASCADE")
    assert list(tmp_path.iterdir()) == []
