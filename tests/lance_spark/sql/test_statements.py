"""`UPDATE`, `DELETE` and `MERGE` of Spark SQL: their effects, their files, and a comparison with SQLite."""

from __future__ import annotations

import functools
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf, udf

import lance_spark
from lance_spark import Connection
from lance_spark.errors import ColumnNotFoundError, SchemaMismatchError
from tests.lance_spark.sql.conftest import NAME, Sql
from tests.support.stock_session import session_without_extension

pytestmark = [pytest.mark.classic, pytest.mark.sample(1, tests=5)]


def files_of(uri: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(uri, "data").iterdir()}


@pytest.mark.sample(1)
def test_an_update_of_many_rows_writes_column_files_alone(sql: Sql, db: Connection) -> None:
    sql(
        "CREATE TABLE {c}.t AS SELECT id, 'x' AS s, array_repeat(cast(id AS float), 64) AS v FROM range(2000)"
    )
    uri = db.open_table("t").uri
    before, ids = files_of(uri), sql("SELECT id, _rowid FROM {c}.t ORDER BY id")
    sql(
        "UPDATE {c}.t SET s = concat('n', id) WHERE id % 2 = 0 AND id IN (SELECT id FROM {c}.t WHERE id < 1000)"
    )
    expected = [
        (i, f"n{i}" if i % 2 == 0 and i < 1000 else "x", [float(i)] * 64) for i in range(2000)
    ]
    assert sql("SELECT id, s, v FROM {c}.t ORDER BY id") == expected
    after = files_of(uri)
    assert before.items() <= after.items()
    new = sum(len(after[name]) for name in after.keys() - before.keys())
    assert 0 < new * 3 < sum(map(len, before.values()))
    assert sql("SELECT id, _rowid FROM {c}.t ORDER BY id") == ids
    changed = sql("SELECT count(*) FROM {c}.t WHERE _row_last_updated_at_version = 2")
    assert changed == [(500,)] and lance.dataset(uri).version == 2


def test_rows_of_updates_and_merges_end_their_batches_for_python_by_their_sizes(
    spark: SparkSession, sql: Sql
) -> None:
    plans = spark._jsparkSession.sharedState().statusStore()
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(10)")
    for statement in (
        "UPDATE {c}.t SET a = a + 1",
        "MERGE INTO {c}.t USING (SELECT id FROM range(5, 15)) s ON t.id = s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, 0)",
    ):
        sql(statement)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        executions = plans.executionsList(max(0, plans.executionsCount() - 5), 5)
        assert any(
            "Lance Batches" in executions.apply(i).physicalPlanDescription()
            for i in range(executions.size())
        )
    assert sql("SELECT id, a FROM {c}.t ORDER BY id") == [(i, i + 1) for i in range(5)] + [
        (i, 0) for i in range(10, 15)
    ]


def test_an_update_of_few_rows_moves_them(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(10000)")
    ids = sql("SELECT id, _rowid FROM {c}.t ORDER BY id")
    sql("UPDATE {c}.t SET a = (SELECT max(id) FROM {c}.t) WHERE id IN (3, 5)")
    assert sql("SELECT id, a FROM {c}.t WHERE id != a ORDER BY id") == [(3, 9999), (5, 9999)]
    assert sql("SELECT id, _rowid FROM {c}.t ORDER BY id") == ids
    assert (
        sum(
            fragment.num_deletions
            for fragment in lance.dataset(db.open_table("t").uri).get_fragments()
        )
        == 2
    )


class Calls:
    """Counts the rows of function calls in any process."""

    def __init__(self, spark: SparkSession, log: Path) -> None:
        def note(rows: int) -> None:
            with log.open("a") as file:
                file.write(f"{rows}\n")

        plus_one = udf(lambda number: note(1) or number + 1, "bigint")

        def batch(numbers: pd.Series) -> pd.Series:
            note(len(numbers))
            return numbers + 1

        self._log = log
        spark.udf.register("plain", plus_one)
        spark.udf.register("batch", pandas_udf(batch, "bigint"))
        spark.udf.register("changing", plus_one.asNondeterministic())

    def take(self) -> int:
        """Returns the rows since the last time."""
        rows = sum(map(int, self._log.read_text().split())) if self._log.exists() else 0
        self._log.unlink(missing_ok=True)
        return rows


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.long), "batch"])
def test_a_statement_calls_a_udf_once_for_each_row(
    sql: Sql, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    calls = Calls(spark, tmp_path / "calls.log")
    sql("CREATE TABLE {c}.t AS SELECT id, CAST(NULL AS BIGINT) AS v FROM range(0, 1000, 1, 2)")
    assert sql(f"UPDATE {{c}}.t SET v = {name}(id) WHERE v IS NULL") == [(1000,)]
    assert calls.take() == 1000 and sql("SELECT sum(v - id), count(*) FROM {c}.t") == [(1000, 1000)]
    assert sql(f"UPDATE {{c}}.t SET v = {name}(id) * 2 WHERE id = 3") == [(1,)]
    assert calls.take() == 1 and sql("SELECT v FROM {c}.t WHERE id = 3") == [(8,)]
    source = "(SELECT id AS k FROM range(990, 1010)) s"
    assert sql(
        f"MERGE INTO {{c}}.t USING {source} ON k = id WHEN MATCHED THEN UPDATE SET v = -k "
        f"WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, {name}(k))"
    )[0][0] == 20  # fmt: skip
    assert calls.take() <= 20
    assert sql(f"UPDATE {{c}}.t SET v = 0 WHERE {name}(id) <= 10") == [(10,)]
    assert calls.take() == 1010
    assert sql(f"UPDATE {{c}}.t SET v = {name}(id) WHERE {name}(v) = 1") == [(10,)]
    assert calls.take() == 1020
    assert sql(f"DELETE FROM {{c}}.t WHERE {name}(id) > 1000") == [(10,)]
    assert calls.take() == 1010
    assert (
        sql(
            f"MERGE INTO {{c}}.t USING {source} ON k = id WHEN MATCHED THEN UPDATE SET v = {name}(k)"
        )[0][0]
        == 10
    )
    assert calls.take() == 10
    assert sql("SELECT v FROM {c}.t WHERE id IN (3, 995) ORDER BY id") == [(4,), (996,)]


def test_a_udf_that_is_not_deterministic_is_called_once_for_each_row(
    sql: Sql, spark: SparkSession, tmp_path: Path
) -> None:
    calls = Calls(spark, tmp_path / "calls.log")
    sql("CREATE TABLE {c}.t AS SELECT id, CAST(NULL AS BIGINT) AS v FROM range(0, 1000, 1, 2)")
    assert sql("UPDATE {c}.t SET v = changing(id)") == [(1000,)]
    assert calls.take() == 1000 and sql("SELECT sum(v - id), count(*) FROM {c}.t") == [(1000, 1000)]
    assert sql("UPDATE {c}.t SET v = changing(id) * 2 WHERE id = 3") == [(1,)]
    assert calls.take() == 1 and sql("SELECT v FROM {c}.t WHERE id = 3") == [(8,)]


def test_a_statement_that_fails_on_a_value_is_evaluated_once(
    sql: Sql, spark: SparkSession, db: Connection, tmp_path: Path
) -> None:
    calls, log = Calls(spark, tmp_path / "calls.log"), tmp_path / "calls.log"

    def fail(number):  # type: ignore[no-untyped-def]
        with log.open("a") as file:
            file.write("1\n")
        if number == 2:
            raise FileNotFoundError("a wrong value")
        return number

    spark.udf.register("raising", udf(fail, "bigint"))
    sql("CREATE TABLE {c}.t AS SELECT id, 0L AS v FROM range(0, 5, 1, 1)")
    merge = "MERGE INTO {c}.t USING (SELECT 2L AS k UNION ALL SELECT 9L) s ON k = id"
    for statement, error, rows in (
        ("UPDATE {c}.t SET v = raising(id)", "a wrong value", 3),
        (f"{merge} WHEN MATCHED THEN UPDATE SET v = raising(k)", "a wrong value", 1),
        (
            f"{merge} WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, plain(k) div (k - 9))",
            "DIVIDE_BY_ZERO",
            1,
        ),
    ):
        with pytest.raises(Exception, match=error):
            sql(statement)
        assert calls.take() == rows, statement
    assert db.open_table("t").version == 1


@pytest.mark.long
def test_a_udf_of_a_view_is_called_once_for_each_row_of_the_view(
    sql: Sql, spark: SparkSession, tmp_path: Path
) -> None:
    calls = Calls(spark, tmp_path / "calls.log")
    sql("CREATE TABLE {c}.t AS SELECT id, 0L AS v FROM range(60)")
    sql(
        "CREATE OR REPLACE TEMPORARY VIEW computed AS SELECT id AS k, plain(id) AS w FROM range(0, 100, 1, 2)"
    )
    merge = "MERGE INTO {c}.t USING computed ON k = id WHEN MATCHED"
    for statement, rows in (
        (
            f"{merge} AND w > 50 THEN UPDATE SET v = w WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, w)",
            (50, 10, 0, 40),
        ),
        ("UPDATE {c}.t SET v = -1 WHERE id IN (SELECT k FROM computed WHERE w > 90)", (10,)),
        ("UPDATE {c}.t SET v = (SELECT max(w) FROM computed) WHERE id < 5", (5,)),
        ("DELETE FROM {c}.t WHERE v IN (SELECT w FROM computed)", (45,)),
        ("INSERT INTO {c}.t SELECT k, w FROM computed", None),
        ("CREATE TABLE {c}.u AS SELECT k, w FROM computed", None),
    ):
        assert sql(statement) == ([rows] if rows else []), statement
        assert calls.take() == 100, statement
    spark.catalog.dropTempView("computed")


@pytest.mark.long
def test_values_fit_or_nothing_is_changed(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT NOT NULL, n INT, t STRUCT<x: INT, y: STRING>)")
    sql("INSERT INTO {c}.t VALUES (1, 1, struct(1, 'a')), (2, NULL, NULL)")
    for wrong, reason in {
        "UPDATE {c}.t SET id = NULL": "NULL",
        "UPDATE {c}.t SET n = 'x'": "CANNOT_SAFELY_CAST",
        "UPDATE {c}.t SET n = 1 div (id - id)": "DIVIDE_BY_ZERO|CAST_OVERFLOW",
        "UPDATE {c}.t SET nix = 1": "UNRESOLVED_COLUMN",
        "UPDATE {c}.t SET n = 1, n = 2": "n",
        "DELETE FROM {c}.t WHERE 1 / n > 0 AND n / 0 = 1": "DIVIDE_BY_ZERO",
        "DELETE FROM {c}.t WHERE id > rand()": "INVALID_NON_DETERMINISTIC_EXPRESSIONS",
        "UPDATE {c}.t SET n = 1 WHERE id > rand()": "INVALID_NON_DETERMINISTIC_EXPRESSIONS",
    }.items():
        with pytest.raises(Exception, match=reason):
            sql(wrong)
    assert db.open_table("t").version == 2
    sql("UPDATE {c}.t SET t.x = t.x + 1, n = 5 WHERE id = 1")
    assert sql("SELECT id, n, t.x, t.y FROM {c}.t ORDER BY id") == [
        (1, 5, 2, "a"),
        (2, None, None, None),
    ]
    sql("UPDATE {c}.t SET n = n WHERE id = 99")
    sql("DELETE FROM {c}.t WHERE id = 99")
    assert db.open_table("t").version == 3  # without an affected row, there is no new version


def test_a_value_that_does_not_fit_names_the_table_and_the_column(
    sql: Sql, spark: SparkSession, catalog_name: str, db: Connection
) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT, n INT, s STRUCT<x: INT>)")
    sql("INSERT INTO {c}.t VALUES (1, 1, struct(1))")
    spark.sql("SELECT 1L AS id, 'x' AS n, named_struct('x', 1) AS s").createOrReplaceTempView(
        "misfits"
    )
    merge = "MERGE INTO {c}.t AS t USING misfits AS m ON m.id = t.id"
    ways: list[Callable[[], object]] = [
        functools.partial(sql, statement)
        for statement in (
            "UPDATE {c}.t SET n = 'x'",
            "UPDATE {c}.t AS t SET t.n = 'x' WHERE id = 1",
            "UPDATE {c}.t SET s.x = 'x'",
            "UPDATE {c}.t SET n = (SELECT max(n) FROM misfits)",
            f"{merge} WHEN MATCHED THEN UPDATE SET n = m.n",
            f"{merge} WHEN MATCHED THEN UPDATE SET *",
            f"{merge} WHEN NOT MATCHED THEN INSERT *",
            f"{merge} WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = 'x'",
            "INSERT INTO {c}.t SELECT * FROM misfits",
            "INSERT INTO {c}.t BY NAME SELECT * FROM misfits",
            "INSERT OVERWRITE {c}.t SELECT * FROM misfits",
            "INSERT INTO {c}.t REPLACE WHERE id = 1 SELECT * FROM misfits",
        )
    ]
    rows, name = spark.table("misfits"), f"{catalog_name}.t"
    ways += [
        lambda: rows.writeTo(name).append(),
        lambda: rows.writeTo(name).overwritePartitions(),
        lambda: rows.write.insertInto(name),
        lambda: rows.write.format("lance").mode("append").saveAsTable(name),
        lambda: spark.sql(f"UPDATE {name} SET n = :value", args={"value": "x"}),
    ]
    for number, way in enumerate(ways):
        with pytest.raises(AnalysisException, match=r"(?s)`lance`\.`t`.*(`n`|`s`\.`x`)") as caught:
            way()
        assert caught.value.getCondition() == "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST", (
            number
        )
    explained = "".join(
        row[0] for row in sql("EXPLAIN UPDATE {c}.t SET n = 'x'")
    )  # Spark shows the error in place of the plan
    assert "Cannot write incompatible data for the table `lance`.`t`" in explained, explained
    uri = db.open_table("t").uri
    with pytest.raises(Exception, match=f"does not fit the table {re.escape(uri)}: n: "):
        rows.write.format("lance").mode("append").save(uri)
    read = spark.read.format("lance").option("with_row_address", True).load(uri)
    backfill = read.selectExpr("_rowaddr", "array(1) AS n").write.format("lance").mode("append")
    with pytest.raises(Exception, match=f"does not fit the table {re.escape(uri)}: n: "):
        backfill.option("mode", "backfill").save(uri)
    spark.catalog.dropTempView("misfits")
    assert db.open_table("t").version == 2


@pytest.mark.long
def test_statements_with_several_subqueries(sql: Sql, db: Connection) -> None:
    """Spark merges subqueries over one table into a single query, which then stands next to the statement."""
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a, id AS b FROM range(10)")
    sql(
        "DELETE FROM {c}.t WHERE (SELECT count(*) FROM {c}.t) > 2 AND id = (SELECT max(id) FROM {c}.t)"
    )
    sql(
        "UPDATE {c}.t SET a = (SELECT max(a) FROM {c}.t), b = (SELECT min(a) FROM {c}.t) WHERE id = 4"
    )
    max_query, min_query = (
        f"(SELECT {name}(x) FROM VALUES (2), (3) v(x))" for name in ("max", "min")
    )
    sql(f"UPDATE {{c}}.t SET a = {max_query}, b = {min_query} WHERE id > {max_query} + {min_query}")
    expected = (
        [(i, i, i) for i in range(4)] + [(4, 8, 0), (5, 5, 5)] + [(i, 3, 2) for i in range(6, 9)]
    )
    assert sql("SELECT * FROM {c}.t ORDER BY id") == expected
    sql(
        f"INSERT INTO {{c}}.t REPLACE WHERE id > 0 SELECT {max_query}, {min_query}, (SELECT count(*) FROM {{c}}.t)"
    )
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(0, 0, 0), (3, 2, 9)]


def test_columns_of_rows_are_named_in_statements(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id % 3 AS k, id AS a FROM range(12)")
    newest = (
        "SELECT _rowid AS r, row_number() OVER (PARTITION BY k ORDER BY id DESC) AS n FROM {c}.t"
    )
    sql(f"DELETE FROM {{c}}.t WHERE _rowid IN (SELECT r FROM ({newest}) WHERE n > 1)")
    assert sql("SELECT id FROM {c}.t ORDER BY id") == [(9,), (10,), (11,)]
    ids = [row[0] for row in sql("SELECT _rowid FROM {c}.t ORDER BY id")]
    sql(
        "UPDATE {c}.t SET a = _row_created_at_version + _rowid WHERE _rowaddr IN (SELECT min(_rowaddr) FROM {c}.t)"
    )
    assert sql("SELECT a FROM {c}.t WHERE id = 9") == [(1 + ids[0],)]
    sql(
        "MERGE INTO {c}.t USING (SELECT _rowid, id FROM {c}.t) n ON t._rowid = n._rowid AND n.id < 11 "
        "WHEN MATCHED AND t._row_last_updated_at_version = 3 THEN UPDATE SET a = t._rowid WHEN MATCHED THEN UPDATE SET k = 7 "
        "WHEN NOT MATCHED BY SOURCE AND t._rowid > 0 THEN DELETE"
    )
    sql(
        "MERGE INTO {c}.t USING (SELECT _rowid, id + 1 AS id FROM {c}.t) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET a = n._rowid WHEN NOT MATCHED THEN INSERT (id, a) VALUES (n.id, n._rowid)"
    )
    assert set(sql("SELECT * FROM {c}.t")) == {(9, 0, ids[0]), (10, 7, ids[0]), (11, None, ids[1])}
    before = sql("SELECT * FROM {c}.t ORDER BY id")
    for values in ("_rowaddr = 1", "_rowaddr = 1, a = 77", "_rowid = 1", "_rowid = 1 WHERE id = 9"):
        with pytest.raises(AnalysisException, match="No statement sets the row column _row"):
            sql(f"UPDATE {{c}}.t SET {values}")
    source = "MERGE INTO {c}.t USING (SELECT * FROM range(10)) n ON t.id = n.id"
    for clause in (
        "WHEN MATCHED THEN UPDATE SET _rowaddr = 1",
        "WHEN MATCHED THEN UPDATE SET t._rowid = 1, a = t.a",
        "WHEN NOT MATCHED THEN INSERT (id, _rowid) VALUES (n.id, 7)",
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET _ROWID = 1",
    ):
        with pytest.raises(AnalysisException, match=r"(?i)No statement sets the row column _row"):
            sql(f"{source} {clause}")
    sql(f"{source} WHEN MATCHED THEN UPDATE SET a = t.a")
    with pytest.raises(AnalysisException, match="_rowid"):
        sql("INSERT INTO {c}.t (id, _rowid) VALUES (1, 2)")
    table = db.open_table("t")
    for change in (
        lambda: table.update(values={"_rowid": 1}),
        lambda: table.update(values_sql={"_rowaddr": "1"}),
    ):
        with pytest.raises(ColumnNotFoundError, match="_row"):
            change()
    rows = pa.table({"id": [9], "k": [1], "a": [1], "_rowid": [3]})
    with pytest.raises(SchemaMismatchError, match="_rowid"):
        table.merge_insert("id").when_matched_update_all().execute(rows)
    assert sql("SELECT * FROM {c}.t ORDER BY id") == before
    with pytest.raises(AnalysisException, match="No statement sets the row column _row"):
        sql(
            "MERGE INTO {c}.t USING (SELECT _rowid FROM {c}.t) n ON t._rowid = n._rowid "
            "WHEN MATCHED AND t._rowid >= 0 THEN UPDATE SET _rowaddr = 5 WHEN NOT MATCHED BY SOURCE AND t._rowid > 0 THEN DELETE"
        )


def test_a_field_of_a_struct_may_be_named_as_a_column_of_rows(sql: Sql) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, named_struct('_rowid', 1) AS s FROM range(2)")
    sql("UPDATE {c}.t SET s._rowid = 5 WHERE id = 1")
    assert sql("SELECT s._rowid FROM {c}.t ORDER BY id") == [(1,), (5,)]


def test_columns_have_any_name_but_one(sql: Sql, db: Connection) -> None:
    names = ["__action", "__given", "value_1"]
    sql(
        f"CREATE TABLE {{c}}.t AS SELECT id, {', '.join(f'id AS {name}' for name in names)} FROM range(4)"
    )
    sql(f"UPDATE {{c}}.t SET {', '.join(f'{name} = {name} + 1' for name in names)} WHERE id = 1")
    sql(
        f"MERGE INTO {{c}}.t USING (SELECT id + 1 AS {', id AS '.join(['id', *names])} FROM range(2, 4)) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    expected = [(0, 0, 0, 0), (1, 2, 2, 2), (2, 2, 2, 2), (3, 2, 2, 2), (4, 3, 3, 3)]
    assert sql("SELECT * FROM {c}.t ORDER BY id") == expected
    rows_given = [dict.fromkeys(["id", *names], 4), dict.fromkeys(["id", *names], 5)]
    db.open_table("t").merge_insert(
        "id"
    ).when_matched_update_all().when_not_matched_insert_all().execute(rows_given)
    assert sql("SELECT * FROM {c}.t WHERE id > 3 ORDER BY id") == [(4,) * 4, (5,) * 4]
    sql("ALTER TABLE {c}.t RENAME COLUMN value_1 TO __row_operation")
    for statement in (
        "UPDATE {c}.t SET id = 1",
        "MERGE INTO {c}.t USING {c}.t n ON t.id = n.id WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(Exception, match="Spark keeps the name __row_operation"):
            sql(statement)
    sql("DELETE FROM {c}.t WHERE __row_operation IN (SELECT 4)")
    assert sql("SELECT count(*) FROM {c}.t") == [(5,)]


def test_statements_on_a_table_without_rows(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t (id BIGINT, a BIGINT)")
    for statement in (
        "DELETE FROM {c}.t",
        "DELETE FROM {c}.t WHERE id IN (SELECT id FROM {c}.t)",
        "UPDATE {c}.t SET a = (SELECT max(id) FROM {c}.t)",
        "MERGE INTO {c}.t USING {c}.t n ON t.id = n.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
    ):
        sql(statement)
    assert sql("SELECT count(*) FROM {c}.t") == [(0,)]


def test_statements_say_how_many_rows_they_changed(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    lance_spark.catalog(spark, "counted", db.uri)
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(100)")
    updated = spark.sql("UPDATE counted.t SET a = -a WHERE id < 7")
    assert (
        updated.schema.simpleString() == "struct<num_affected_rows:bigint>"
        and updated.collect() == [(7,)]
    )
    merged = spark.sql(
        "MERGE INTO counted.t t USING (SELECT id FROM range(90, 120)) n ON t.id = n.id WHEN MATCHED AND n.id < 95 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET a = 1 WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)"
    )
    assert merged.columns == [
        "num_affected_rows",
        "num_updated_rows",
        "num_deleted_rows",
        "num_inserted_rows",
    ]
    assert merged.collect() == merged.collect() == [(30, 5, 5, 20)]  # the statement ran once
    insert_only = "MERGE INTO {c}.t t USING (SELECT id, -1L AS a FROM range(115, 125)) n ON t.id = n.id WHEN NOT MATCHED"
    assert sql(f"{insert_only} AND n.id != 121 THEN INSERT *") == [(4, 0, 0, 4)]
    assert sql(f"{insert_only} THEN INSERT *") == [(1, 0, 0, 1)] and sql(
        f"{insert_only} THEN INSERT *"
    ) == [(0, 0, 0, 0)]
    assert sql("DELETE FROM {c}.t WHERE a = -1 AND id > 50") == [(5,)]
    assert "Lance insert of id, a in" in sql(f"EXPLAIN {insert_only} THEN INSERT *")[0][0]
    assert (
        sql("UPDATE {c}.t SET a = 3 WHERE id = -1")
        == sql("DELETE FROM {c}.t WHERE id IN (SELECT 500L)")
        == [(0,)]
    )
    assert sql("UPDATE {c}.t SET a = a") == [(0,)]  # nothing is set
    assert sql("DELETE FROM {c}.t WHERE id % 2 = 0 AND id < 10") == [(5,)]
    assert sql("DELETE FROM {c}.t WHERE 1 = 1") == [(110,)]
    sql("INSERT INTO {c}.t VALUES (1, 1), (2, 2)")
    assert sql("DELETE FROM {c}.t") == [(2,)]
    assert sql("DELETE FROM {c}.t") == [(0,)]


def test_an_older_version_is_not_deleted_from(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id FROM range(3)")
    sql("INSERT INTO {c}.t VALUES (7)")
    sql("CREATE OR REPLACE TEMPORARY VIEW older AS SELECT * FROM {c}.t VERSION AS OF 1")
    with pytest.raises(Exception, match=r"names a view over the table\. Name lance\.t"):
        sql("DELETE FROM older")
    for statement in (
        "DELETE FROM {c}.t {o}",
        "DELETE FROM {c}.t {o} WHERE id = 7",
        "UPDATE {c}.t {o} SET id = 0",
    ):
        with pytest.raises(AnalysisException, match=r"TIME_TRAVEL|versionAsOf"):
            sql(statement.replace("{o}", "WITH ('versionAsOf' = '1')"))
    assert sql("SELECT count(*) FROM {c}.t") == [(4,)]
    spark.catalog.dropTempView("older")


def test_a_view_over_a_table_is_not_changed(sql: Sql, spark: SparkSession) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(5)")
    spark.table("lance.t").createOrReplaceTempView("whole")
    sql("CREATE OR REPLACE TEMPORARY VIEW part AS SELECT id, a FROM {c}.t WHERE id > 1")
    for view in ("whole", "part"):
        for statement in (
            f"UPDATE {view} SET a = 1",
            f"DELETE FROM {view}",
            f"DELETE FROM {view} WHERE id = 1",
            f"MERGE INTO {view} USING (SELECT 1L AS k) s ON k = id WHEN MATCHED THEN UPDATE SET a = 7",
        ):
            with pytest.raises(
                AnalysisException,
                match=r"Nothing was changed.* names a view over the table\. Name lance\.t",
            ):
                sql(statement)
    assert sql("SELECT sum(a), count(*) FROM {c}.t") == [(10, 5)]
    for view in ("whole", "part"):
        spark.catalog.dropTempView(view)


@pytest.mark.long
def test_a_merge_that_is_not_deterministic_says_what_serves(sql: Sql, spark: SparkSession) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, 'x' AS s FROM range(5)")
    single_row = "(SELECT 1L AS k, 'n' AS s) n"
    for source, clauses in (
        (
            "(SELECT CAST(rand() * 3 AS BIGINT) AS k, 'n' AS s) n",
            "WHEN MATCHED THEN UPDATE SET s = n.s",
        ),
        ("(SELECT 1L AS k, uuid() AS s) n", "WHEN MATCHED THEN UPDATE SET s = n.s"),
        (
            "(SELECT monotonically_increasing_id() AS k, 'n' AS s FROM range(2)) n",
            "WHEN MATCHED THEN DELETE",
        ),
        (
            "(SELECT id AS k, 'n' AS s FROM range(9) WHERE rand() < 0.5) n",
            "WHEN NOT MATCHED BY SOURCE THEN DELETE",
        ),
        (
            "(WITH w AS (SELECT id AS k, uuid() AS s FROM range(2)) SELECT * FROM w) n",
            "WHEN MATCHED THEN DELETE",
        ),
        (
            "(SELECT id AS k, input_file_name() AS s FROM {c}.t) n",
            "WHEN MATCHED THEN UPDATE SET s = n.s",
        ),
        ("(SELECT 1L AS k, (SELECT uuid()) AS s) n", "WHEN MATCHED THEN UPDATE SET s = n.s"),
        (single_row, "WHEN MATCHED THEN UPDATE SET s = uuid()"),
        (
            single_row,
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, s) VALUES (k, uuid())",
        ),
    ):
        with pytest.raises(
            AnalysisException, match=r"not deterministic .*source\.localCheckpoint\(\)"
        ):
            sql(f"MERGE INTO {{c}}.t USING {source} ON k = id {clauses}")
    stock = session_without_extension(spark, NAME)
    with pytest.raises(AnalysisException, match=r"NON_DETERMINISTIC|not deterministic"):
        stock.sql(
            f"MERGE INTO {NAME}.t USING (SELECT 1L AS k, uuid() AS s) n ON k = id WHEN MATCHED THEN UPDATE SET s = n.s"
        )
    with pytest.raises(AnalysisException, match=r"not deterministic .*source\.localCheckpoint\(\)"):
        sql(
            "WITH n AS (SELECT 1L AS k, uuid() AS s) MERGE INTO {c}.t USING n ON k = id WHEN MATCHED THEN DELETE"
        )
    with pytest.raises(AnalysisException, match=r"UNSUPPORTED_MERGE_CONDITION\.NON_DETERMINISTIC"):
        sql(
            f"MERGE INTO {{c}}.t USING {single_row} ON k = id WHEN MATCHED AND rand() < 0.5 THEN DELETE"
        )
    assert sql("SELECT count(*), max(s) FROM {c}.t") == [(5, "x")]
    spark.sql(
        "SELECT id AS k, uuid() AS s FROM range(2)"
    ).localCheckpoint().createOrReplaceTempView("made")
    sql("MERGE INTO {c}.t USING made ON k = id WHEN MATCHED THEN UPDATE SET s = made.s")
    assert sql("SELECT count(*) FROM {c}.t JOIN made ON k = id AND t.s = made.s") == [(2,)]
    spark.catalog.dropTempView("made")


def test_statistics_of_all_tables_are_accepted(sql: Sql) -> None:
    sql("CREATE NAMESPACE {c}.n")
    for table in ("t", "n.u"):
        sql(f"CREATE TABLE {{c}}.{table} (id INT)")
    for statement in (
        "ANALYZE TABLES IN {c} COMPUTE STATISTICS",
        "ANALYZE TABLES IN {c}.n COMPUTE STATISTICS NOSCAN",
    ):
        assert sql(statement) == []


def test_explain_says_what_is_written(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a, 'x' AS s FROM range(3)")
    assert "Lance update of a in" in sql("EXPLAIN UPDATE {c}.t SET a = 1 WHERE id = 1")[0][0]
    assert "Lance delete in" in sql("EXPLAIN DELETE FROM {c}.t WHERE id = 1")[0][0]
    plan = sql(
        "EXPLAIN MERGE INTO {c}.t USING (SELECT 1L AS id) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET a = 7 "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )[0][0]
    assert "Lance merge of a in" in plan and db.open_table("t").version == 1


@pytest.mark.long
def test_a_merge_reads_no_column_that_it_leaves(sql: Sql, db: Connection) -> None:
    sql(
        "CREATE TABLE {c}.t AS SELECT id, id AS a, array_repeat(cast(id AS float), 32) AS v FROM range(100)"
    )
    sql(
        "MERGE INTO {c}.t USING (SELECT id, id * 10 AS a FROM range(95, 105)) n ON t.id = n.id "
        "WHEN MATCHED AND n.id = 96 THEN DELETE WHEN MATCHED AND n.id < 98 THEN UPDATE SET a = n.a "
        "WHEN MATCHED THEN UPDATE SET a = -1 WHEN NOT MATCHED THEN INSERT (id, a) VALUES (n.id, n.a) "
        "WHEN NOT MATCHED BY SOURCE AND t.id < 2 THEN UPDATE SET a = -2 WHEN NOT MATCHED BY SOURCE AND t.id < 4 THEN DELETE"
    )
    rows_by_id = {row[0]: row[1:] for row in sql("SELECT id, a, v[0], size(v) FROM {c}.t")}
    expected: dict[int, tuple[Any, ...]] = {i: (i, float(i), 32) for i in range(4, 95)}
    expected |= {
        0: (-2, 0.0, 32),
        1: (-2, 1.0, 32),
        95: (950, 95.0, 32),
        97: (970, 97.0, 32),
        98: (-1, 98.0, 32),
    }
    expected |= {
        99: (-1, 99.0, 32),
        **{i: (i * 10, None, rows_by_id[i][2]) for i in range(100, 105)},
    }
    assert rows_by_id == expected and db.open_table("t").version == 2
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        sql(
            "MERGE INTO {c}.t USING (SELECT 5L AS id FROM range(2)) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET a = 1"
        )
    assert db.open_table("t").version == 2
    sql(
        "MERGE INTO {c}.t USING (SELECT id, a, v FROM {c}.t WHERE id < 50) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET *"
    )
    sql(
        "MERGE INTO {c}.t USING (SELECT 5L AS id FROM range(3)) n ON t.id = n.id WHEN MATCHED THEN DELETE"
    )
    del expected[5]
    assert {row[0]: row[1:] for row in sql("SELECT id, a, v[0], size(v) FROM {c}.t")} == expected


def test_a_merge_with_constant_keys_reads_the_fragments_of_an_index(
    sql: Sql, db: Connection
) -> None:
    table = db.create_table("t", pa.table({"id": range(10), "x": range(10)}))
    table.add(pa.table({"id": range(10, 20), "x": range(10)}))
    table.create_scalar_index("id")
    lost_fragment = table.to_lance().get_fragments()[1]
    lost_file = Path(table.uri, "data", lost_fragment.data_files()[0].path)
    content = lost_file.read_bytes()
    lost_file.unlink()
    for key in (7, 99):
        sql(
            f"MERGE INTO {{c}}.t USING (SELECT {key}L AS id, -1L AS x) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET x = s.x WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, s.x)"
        )
    lost_file.write_bytes(content)
    assert sorted(sql("SELECT id FROM {c}.t WHERE x = -1")) == [(7,), (99,)]
    assert sql("SELECT count(*), count(DISTINCT id) FROM {c}.t") == [(21, 21)]


def test_an_update_of_a_merge_that_changes_nothing(sql: Sql, db: Connection) -> None:
    sql("CREATE TABLE {c}.t AS SELECT id, id AS a FROM range(10)")
    sql(
        "MERGE INTO {c}.t USING (SELECT 5L AS id) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET a = t.a"
    )
    assert db.open_table("t").version == 1
    sql(
        "MERGE INTO {c}.t USING (SELECT id FROM range(5)) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET a = t.a WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(i, i) for i in range(5)]


def test_blobs_stay_where_they_are(sql: Sql, db: Connection) -> None:
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = pa.table(
        {"id": [1, 2, 3], "a": [1, 2, 3], "b": [b"x", b"y", None]},
        pa.schema([("id", "int64"), ("a", "int64"), field]),
    )
    db.create_table("t", rows, data_storage_version="2.1")
    sql("UPDATE {c}.t SET a = a + 1 WHERE id > 1")
    sql("DELETE FROM {c}.t WHERE id IN (SELECT 1)")
    assert db.open_table("t").to_arrow(blob_handling="bytes").to_pylist() == [
        {"id": 2, "a": 3, "b": b"y"},
        {"id": 3, "a": 4, "b": None},
    ]
    for value in ("X'01'", "NULL", "CAST(id AS BINARY)"):
        with pytest.raises(
            AnalysisException, match=r"SQL sets no blob: b\. Use merge_insert of the table API"
        ):
            sql(f"UPDATE {{c}}.t SET b = {value}")
    with pytest.raises(AnalysisException, match="merge_insert of the table API"):
        sql(
            "MERGE INTO {c}.t USING (SELECT 2L AS id) n ON t.id = n.id WHEN MATCHED THEN UPDATE SET a = 0"
        )
    with pytest.raises(AnalysisException, match="merge_insert of the table API"):
        sql(
            "MERGE INTO {c}.t USING (SELECT 9L AS id) n ON t.id = n.id WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)"
        )


def test_text_of_other_bytes_than_utf8_is_refused(sql: Sql, db: Connection) -> None:
    """Lance stores the bytes, and can then read no row of their page."""
    sql("CREATE TABLE {c}.t AS SELECT id, concat('s', id) AS s FROM range(2)")
    text, source = "CAST(X'C1' AS STRING)", "(SELECT 1L AS id, CAST(X'C1' AS STRING) AS s)"
    for statement in (
        f"CREATE TABLE {{c}}.other AS SELECT array({text}) AS s",
        f"INSERT INTO {{c}}.t VALUES (5, 's5'), (6, {text})",
        f"UPDATE {{c}}.t SET s = {text}",
        "UPDATE {c}.t SET s = concat(s, unhex('C1')) WHERE id = 1",
        f"MERGE INTO {{c}}.t USING {source} n ON t.id = n.id WHEN MATCHED THEN UPDATE SET s = n.s",
        f"MERGE INTO {{c}}.t USING {source} n ON t.id = n.id + 7 WHEN NOT MATCHED THEN INSERT *",
    ):
        with pytest.raises(PySparkException, match=r"not UTF-8\. Place: column"):
            sql(statement)
    assert sql("SELECT * FROM {c}.t ORDER BY id") == [(0, "s0"), (1, "s1")]
    assert db.table_names() == ["t"] and db.open_table("t").version == 1


CONDITIONS = (
    "a > 5",
    "a IS NULL",
    "NOT (a > 3)",
    "a + id > 9 OR s = 's1'",
    "id IN (SELECT id FROM {t} WHERE a % 2 = 0)",
    "EXISTS (SELECT 1 FROM {t} AS o WHERE o.id = {t}.id + 1 AND o.a > 4)",
    "a = (SELECT max(a) FROM {t})",
    "s IN ('s1', 's2', 's3')",
    "id BETWEEN 4 AND 9",
    "1 = 1",
)


def one_statement(draw: random.Random) -> tuple[str, list[str]]:
    """Returns a statement of Spark, and equivalent statements of SQLite."""
    where = draw.choice(CONDITIONS)
    kind = draw.choice(("update", "update", "delete", "merge", "insert"))
    if kind in ("update", "delete"):
        if kind == "update":
            change = f"UPDATE {{t}} SET {draw.choice(('a = a + 1', 'a = id, s = NULL', 'a = -a, s = upper(s)', 'id = id + 20'))}"
        else:
            change, where = "DELETE FROM {t}", f"{where} AND id % 3 = 0"
        # In SQLite a condition sees rows already changed by the statement, unless the condition is evaluated first.
        return f"{change} WHERE {where}", [
            f"{change} WHERE rowid IN (SELECT rowid FROM {{t}} WHERE {where})"
        ]
    ids = draw.sample(range(30), 6)
    values = ", ".join(f"({i}, {draw.randint(0, 9)}, 'm{i}')" for i in ids)
    if kind == "insert":
        return (text := f"INSERT INTO {{t}} VALUES {values}"), [text]
    source = f"(SELECT * FROM (VALUES {values}) AS v(id, a, s))"
    in_sqlite = f"(SELECT column1 AS id, column2 AS a, column3 AS s FROM (VALUES {values}))"
    merge = (
        f"MERGE INTO {{t}} USING {source} n ON {{t}}.id = n.id WHEN MATCHED AND n.a > 6 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET a = n.a WHEN NOT MATCHED AND n.a < 8 THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE AND {t}.id = 1 THEN DELETE"
    )
    return merge, [
        f"CREATE TEMP TABLE n AS SELECT * FROM {in_sqlite}",
        "CREATE TEMP TABLE fresh AS SELECT * FROM n WHERE id NOT IN (SELECT id FROM {t} WHERE id IS NOT NULL) AND a < 8",
        "DELETE FROM {t} WHERE id = 1 AND id NOT IN (SELECT id FROM n)",
        "DELETE FROM {t} WHERE id IN (SELECT id FROM n WHERE a > 6)",
        "UPDATE {t} SET a = (SELECT a FROM n WHERE n.id = {t}.id) WHERE id IN (SELECT id FROM n)",
        "INSERT INTO {t} SELECT * FROM fresh",
        "DROP TABLE n",
        "DROP TABLE fresh",
    ]


QUICK, ALL, ITEM = 10, 2400, 10
"""Sequences of `make test`, of `make test-long`, and of one test."""


@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=() if n < QUICK else pytest.mark.long) for n in range(0, ALL, ITEM)],
)
def test_random_statements_do_what_sqlite_does(
    sql: Sql, db: Connection, spark: SparkSession, first: int
) -> None:
    """Every third sequence has ANSI mode off; Spark reads every fourth, half of these without the planner rule.

    pylance reads the others after their last statement, because Spark takes most of the time.
    """
    for seed in range(first, first + ITEM):
        spark.conf.set("spark.sql.ansi.enabled", seed % 3 != 0)
        try:
            check_sequence(sql, db, spark, seed)
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")


def check_sequence(sql: Sql, db: Connection, spark: SparkSession, seed: int) -> None:
    draw = random.Random(seed)
    rows = [(i, None if i % 5 == 3 else i % 8, f"s{i % 4}") for i in range(14)]
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("s", pa.string())])
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema
    )
    uri = f"{db.uri}/t{seed}.lance"
    lance.write_dataset(
        table, uri, max_rows_per_file=draw.choice((5, 14)), enable_stable_row_ids=bool(seed % 2)
    )
    sqlite = sqlite3.connect(":memory:")
    sqlite.execute("CREATE TABLE t (id INTEGER, a INTEGER, s TEXT)")
    sqlite.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    history = []
    for _ in range(draw.choice((1, 2, 2, 3) if seed < QUICK else (2, 3, 4, 5))):
        spark_text, sqlite_texts = one_statement(draw)
        history.append(spark_text)
        place = f"{{c}}.t{seed}"
        result_rows = sql(
            spark_text.replace("{t}", f"{place} t", 1).replace("{t}", "t")
            if spark_text.startswith("MERGE")
            else with_table(spark_text, place)
        )
        counts = {"UPDATE": 0, "DELETE": 0, "INSERT": 0}
        for text in sqlite_texts:
            changed = sqlite.execute(text.replace("{t}", "t")).rowcount
            if "{t}" in text and (kind := text.split()[0]) in counts:
                counts[kind] += changed
        affected = (
            sum(counts.values()),
            *(counts.values() if spark_text.startswith("MERGE") else ()),
        )
        assert result_rows == ([] if spark_text.startswith("INSERT") else [affected]), history
    expected = sorted(sqlite.execute("SELECT * FROM t").fetchall(), key=repr)
    dataset = lance.dataset(uri)
    dataset.validate()
    assert (
        sorted((tuple(row.values()) for row in dataset.to_table().to_pylist()), key=repr)
        == expected
    ), history
    if seed % 4 == 0:
        if seed % 8 == 0:
            lance_spark.disable_pushdown(spark)
        result_rows = sql(f"SELECT id, a, s FROM {{c}}.t{seed}")
        lance_spark.enable_pushdown(spark)
        assert sorted(result_rows, key=repr) == expected, history


def with_table(text: str, place: str) -> str:
    """Inserts the table as in SQL: with its catalog, and without the catalog in `t.id`."""
    return text.replace("{t}.", f"{place.rpartition('.')[2]}.").replace("{t}", place)
