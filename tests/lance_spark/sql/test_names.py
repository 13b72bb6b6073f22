"""Names and nested types in SQL: unreadable or unchangeable columns are refused before any change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import ColumnNameError, Connection
from tests.lance_spark.sql.conftest import Sql

pytestmark = pytest.mark.classic

_STATEMENTS = (
    "CREATE TABLE {c}.new (id INT, %s INT)",
    "CREATE TABLE {c}.new AS SELECT 1 AS %s",
    "CREATE OR REPLACE TABLE {c}.t AS SELECT 1 AS %s",
    "ALTER TABLE {c}.t ADD COLUMN %s INT",
    "ALTER TABLE {c}.t RENAME COLUMN id TO %s",
    "ALTER TABLE {c}.t RENAME COLUMN st.a TO %s",
    "INSERT WITH SCHEMA EVOLUTION INTO {c}.t BY NAME SELECT 1 AS id, 2 AS %s",
    "MERGE WITH SCHEMA EVOLUTION INTO {c}.t t USING (SELECT 1 AS id, 2 AS %s) s ON s.id = t.id WHEN NOT MATCHED THEN INSERT *",
)
_OF_TOP_LEVEL = ("*", "a`b", "_rowid")


def test_names_that_cannot_be_read_back_are_refused_by_every_statement(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t (id INT, st STRUCT<a: INT>)")
    version = db.open_table("t").version
    for name in (*_OF_TOP_LEVEL, "a\0b"):
        for statement in _STATEMENTS:
            if "EVOLUTION" in statement and spark.version < "4.2":
                continue  # Spark 4.1 evolves no table: test_types_and_metadata.py
            if ("st.a" in statement and name in _OF_TOP_LEVEL) or (
                "MERGE" in statement and name == "_rowid"
            ):
                continue  # in a MERGE, `_rowid` is a column of the table
            with pytest.raises(Exception, match="ColumnNameError: The column name"):
                sql(statement % f"`{name.replace('`', '``')}`")
    with pytest.raises(ColumnNameError):
        db.open_table("t").load_columns(
            pa.table({"id": pa.array([1], pa.int32()), "*": [1]}), "id", ["*"]
        )
    for call in ("tag(table => 't', name => 'é')", "create_branch(table => 't', name => 'é')"):
        with pytest.raises(Exception, match=r"Option '(tag|name)' = 'é'"):
            sql(f"CALL {{c}}.system.{call}")
    assert db.open_table("t").version == version and db.table_names() == ["t"]


@pytest.mark.parametrize("path", ["st.a", "ar.element", "m.value", "deep.element.a"])
def test_the_type_of_a_field_inside_a_column_is_refused_with_a_way_out(
    sql: Sql, db: Connection, path: str
) -> None:
    sql(
        "CREATE TABLE {c}.t (st STRUCT<a: INT>, ar ARRAY<INT>, m MAP<STRING, INT>, deep ARRAY<STRUCT<a: INT>>)"
    )
    with pytest.raises(
        Exception, match=rf"Lance cannot change the type of '{path}' inside a column.*UPDATE"
    ):
        sql(f"ALTER TABLE {{c}}.t ALTER COLUMN {path} TYPE BIGINT")
    assert db.open_table("t").version == 1


@pytest.mark.parametrize("statement", ["DROP TABLE", "DROP TABLE IF EXISTS"])
def test_drop_finishes_a_drop_that_was_killed(sql: Sql, db: Connection, statement: str) -> None:
    sql("CREATE TABLE {c}.t (id INT)")
    folder = Path(db.open_table("t").uri)
    for manifest in (folder / "_versions").iterdir():
        manifest.unlink()
    sql(f"{statement} {{c}}.t")
    assert not folder.exists()
    foreign_folder = folder.with_name("others.lance")
    (foreign_folder / "data").mkdir(parents=True)
    (foreign_folder / "notes.txt").write_text("of others")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("DROP TABLE {c}.others")
    sql("DROP TABLE IF EXISTS {c}.others")
    assert (foreign_folder / "notes.txt").exists()
    sql("CREATE TABLE {c}.t (id INT)")
    sql(f"{statement} {{c}}.t")
    assert not folder.exists()
