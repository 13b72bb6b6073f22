"""Every statement with every kind of option: the option works as documented in the table of options, or the error names
the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import lance_spark
from lance_spark import Connection
from lance_spark.errors import OptionError
from lance_spark.jvm.jar import load
from lance_spark.options.statements import STATEMENT_OPTIONS, check_statement_options
from tests.lance_spark.sql.conftest import Sql

pytestmark = [pytest.mark.classic, pytest.mark.sample(1, tests=2)]

OPTIONS = {
    "branch": "dev",
    "version": "1",
    "tag": "first",
    "filter": "id = 1",
    "limit": "1",
    "columns": "id",
    "nonsense": "1",
    "timestamp": "2020-01-01",
    "versionAsOf": "1",
    "blob_handling": "bytes",
    "with_row_id": "true",
    "lancespark.scan": "{}",
    "lancespark.write": "{}",
}

IN_SQL = {
    "INSERT": "INSERT INTO {c}.t WITH ({o}) VALUES (7, 9)",
    "INSERT OVERWRITE": "INSERT OVERWRITE {c}.t WITH ({o}) VALUES (7, 9)",
    "UPDATE": "UPDATE {c}.t WITH ({o}) SET v = 9 WHERE id = 1",
    "UPDATE of all rows": "UPDATE {c}.t WITH ({o}) SET v = 9",
    "DELETE": "DELETE FROM {c}.t WITH ({o}) WHERE id < 3",
    "DELETE by a query": "DELETE FROM {c}.t WITH ({o}) WHERE id IN (SELECT 1)",
    "DELETE of all rows": "DELETE FROM {c}.t WITH ({o})",
    "DELETE WHERE true": "DELETE FROM {c}.t WITH ({o}) WHERE true",
    "MERGE": "MERGE INTO {c}.t WITH ({o}) USING (SELECT 1L k) s ON k = id WHEN MATCHED THEN UPDATE SET v = 9",
    "MERGE that inserts": "MERGE INTO {c}.t WITH ({o}) USING (SELECT 99L k) s ON k = id "
    "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, 9)",
    "REPLACE WHERE": "INSERT INTO {c}.t WITH ({o}) REPLACE WHERE id < 3 VALUES (7, 9)",
}
BY_DATAFRAME: dict[str, Callable[[DataFrame, str, str, str], object]] = {
    "append": lambda rows, t, key, value: rows.writeTo(t).option(key, value).append(),
    "overwrite": lambda rows, t, key, value: (
        rows.writeTo(t).option(key, value).overwrite(lit(True))
    ),
    "overwrite where": lambda rows, t, key, value: (
        rows.writeTo(t).option(key, value).overwrite(lit(True) & (lit(1) == 1))
    ),
    "overwritePartitions": lambda rows, t, key, value: (
        rows.writeTo(t).option(key, value).overwritePartitions()
    ),
    "insertInto": lambda rows, t, key, value: rows.write.option(key, value).insertInto(t),
    "saveAsTable": lambda rows, t, key, value: (
        rows.write.format("lance").mode("append").option(key, value).saveAsTable(t)
    ),
    "create": lambda rows, t, key, value: rows.writeTo(f"{t}2").option(key, value).create(),
    "createOrReplace": lambda rows, t, key, value: (
        rows.writeTo(t).option(key, value).createOrReplace()
    ),
}
MAKES = ("create", "createOrReplace")
CHANGES = [*IN_SQL, *BY_DATAFRAME]


def run(name: str, sql: Sql, spark: SparkSession, catalog: str, key: str, value: str) -> None:
    if name in IN_SQL:
        sql(IN_SQL[name].replace("{o}", f"'{key}' = '{value}'"))
    else:
        BY_DATAFRAME[name](spark.sql("SELECT 7L AS id, 9L AS v"), f"{catalog}.t", key, value)


@pytest.fixture
def table(sql: Sql, db: Connection) -> lance_spark.Table:
    """A table of ten rows in two versions, with a branch of five rows."""
    sql("CREATE TABLE {c}.t AS SELECT id, 0L AS v FROM range(5)")
    sql("CALL {c}.system.create_branch(table => 't', name => 'dev')")
    sql("INSERT INTO {c}.t SELECT id + 5, 0L FROM range(5)")
    return db.open_table("t")


TRANSACTION = "'txn_app_id' = 'nightly', 'txn_version' = '{number}'"


@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="statements take options from Spark 4.3 on")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "UPDATE" else pytest.mark.long) for name in IN_SQL],
)
def test_a_repeated_transaction_changes_nothing(
    sql: Sql, table: lance_spark.Table, name: str
) -> None:
    def statement(number: int) -> str:
        return IN_SQL[name].replace("{o}", TRANSACTION.format(number=number))

    sql(statement(5))
    rows, version = table.to_arrow(), table.to_lance().version
    assert version == 3
    sql(statement(5))
    assert (table.to_lance().version, table.to_arrow()) == (version, rows)
    with pytest.raises(
        PySparkException, match=r"StreamRewoundError.*Batch 4 is older than batch 5"
    ):
        sql(statement(4))
    with pytest.raises(PySparkException, match=r"OptionError.*txn_version"):
        sql(IN_SQL[name].replace("{o}", "'txn_app_id' = 'nightly'"))
    assert table.to_lance().version == version


REFUSED = [option for option in OPTIONS if option != "branch"]
MATRIX = [(name, option) for name in CHANGES for option in REFUSED]
DIAGONAL = [(name, REFUSED[number % len(REFUSED)]) for number, name in enumerate(CHANGES)]
"""Each statement with one option, and each option with a statement or two."""


@pytest.mark.parametrize(
    "cases", [DIAGONAL, pytest.param(MATRIX, marks=pytest.mark.long)], ids=["diagonal", "all"]
)
def test_an_option_that_a_statement_does_not_take_is_an_error_by_name(
    sql: Sql,
    spark: SparkSession,
    table: lance_spark.Table,
    catalog_name: str,
    db: Connection,
    cases: list[tuple[str, str]],
) -> None:
    for name, option in cases:
        with pytest.raises(PySparkException) as caught:
            run(name, sql, spark, catalog_name, option, OPTIONS[option])
        # Spark refuses time travel in statements that change rows, without naming an option.
        pattern = "versionAsOf|TIME_TRAVEL" if option == "versionAsOf" else re.escape(option)
        assert re.search(pattern, str(caught.value), re.IGNORECASE), (name, str(caught.value)[:500])
    assert (table.version, table.count_rows()) == (2, 10) and db.table_names() == ["t"]
    assert table.checkout("dev") is None and (table.version, table.count_rows()) == (1, 5)


REFUSED_BEFORE_4_3 = dict.fromkeys(
    [name for name in IN_SQL if not name.startswith("INSERT")], "PARSE_SYNTAX_ERROR"
) | {
    "REPLACE WHERE": r"Option 'branch' = 'b\d+' does not reach the catalog.*the location of the branch"
}
"""Errors of statements with a branch: before 4.3, Spark parses options of inserts only."""


def test_a_branch_is_what_a_statement_changes_and_never_main(
    sql: Sql, spark: SparkSession, table: lance_spark.Table, catalog_name: str, db: Connection
) -> None:
    def read_main() -> pa.Table:
        return lance.dataset(table.uri).to_table(with_row_id=True)

    main = read_main()
    expected = {
        "INSERT": 6, "INSERT OVERWRITE": 1, "UPDATE": 5, "UPDATE of all rows": 5, "DELETE": 2, "DELETE by a query": 4,
        "DELETE of all rows": 0, "DELETE WHERE true": 0, "MERGE": 5, "MERGE that inserts": 6, "REPLACE WHERE": 3,
        "append": 6, "overwrite": 1, "overwrite where": 1, "overwritePartitions": 1, "insertInto": 6, "saveAsTable": 6,
    }  # fmt: skip
    nines = {"UPDATE": 1, "UPDATE of all rows": 5, "MERGE": 1}
    for number, name in enumerate(CHANGES):
        if name in MAKES:
            continue
        branch = table.branches.create(f"b{number}", "main:1")
        if spark.version < "4.3" and name in REFUSED_BEFORE_4_3:
            with pytest.raises(PySparkException, match=REFUSED_BEFORE_4_3[name]):
                run(name, sql, spark, catalog_name, "branch", f"b{number}")
            assert branch.to_lance().count_rows("v = 0") == 5 and read_main() == main, name
            continue
        run(name, sql, spark, catalog_name, "branch", f"b{number}")
        branch.checkout_latest()
        assert branch.count_rows() == expected[name], name
        assert branch.count_rows("v = 9") == nines.get(name, int("DELETE" not in name)), name
        assert read_main() == main, name
    for name in MAKES:
        with pytest.raises(PySparkException, match="branch"):
            run(name, sql, spark, catalog_name, "branch", "dev")
    for statement in ("CREATE OR REPLACE TABLE {c}.t OPTIONS ('branch' = 'dev') AS SELECT 1L AS id",
                      "CREATE OR REPLACE TABLE {c}.t (id INT) TBLPROPERTIES ('branch' = 'dev')"):  # fmt: skip
        with pytest.raises(PySparkException, match=r"'branch'.* is no option of CREATE TABLE"):
            sql(statement)
    assert db.table_names() == ["t"] and read_main() == main


def test_a_branch_that_is_missing_is_not_main(sql: Sql, table: lance_spark.Table) -> None:
    for statement in IN_SQL.values():
        with pytest.raises(PySparkException, match=r"none|branch"):
            sql(statement.replace("{o}", "'branch' = 'none'"))
    assert (table.version, table.count_rows()) == (2, 10)


INSERTING = "INSERT WITH SCHEMA EVOLUTION INTO {c}.t WITH ('branch' = 'dev')"
MERGING = (
    "MERGE WITH SCHEMA EVOLUTION INTO {c}.t WITH ('branch' = 'dev') USING wider ON wider.id = t.id"
)
EVOLVING = {
    f"{INSERTING} BY NAME SELECT extra, id, v FROM wider": [(2, 0, None), (2, 1, "e")],
    f"{INSERTING} SELECT id, v, extra FROM wider": [(2, 0, None), (2, 1, "e")],
    f"{MERGING} WHEN MATCHED THEN UPDATE SET *": [(2, 1, "e")],
    f"{MERGING} WHEN MATCHED AND false THEN DELETE WHEN NOT MATCHED THEN INSERT * "
    "WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE": [(2, 0, None)],
    "writeTo": [(2, 0, None), (2, 1, "e")],
}
"""Statements that add the column `extra` to a branch, and the resulting rows with the id 2."""


def get_refusal(spark: SparkSession, statement: str, refusal: str) -> str:
    """Returns the pattern of the error of schema evolution.

    Spark 4.1 parses no INSERT WITH SCHEMA EVOLUTION, and before 4.3 a MERGE has no options.
    """
    since = {INSERTING: "4.2", MERGING: "4.3"}
    is_parsed = all(
        spark.version >= release for start, release in since.items() if start in statement
    )
    return refusal if is_parsed else "PARSE_SYNTAX_ERROR"


def test_schema_evolution_of_a_branch_changes_the_branch_and_never_main(
    sql: Sql, spark: SparkSession, table: lance_spark.Table, catalog_name: str
) -> None:
    rows = spark.sql("SELECT 2L AS id, 1L AS v, 'e' AS extra")
    rows.createOrReplaceTempView("wider")
    for number, (statement, expected) in enumerate(EVOLVING.items()):
        branch = table.branches.create(f"b{number}", "main:1")

        def run_statement(statement: str = statement, name: str = f"b{number}") -> None:
            if statement == "writeTo":
                writer = (
                    rows.writeTo(f"{catalog_name}.t")
                    .option("branch", name)
                    .option("mergeSchema", "true")
                )
                writer.append()
            else:
                sql(statement.replace("'dev'", f"'{name}'"))

        if spark.version < "4.3":
            refusal = get_refusal(
                spark, statement, r"(?i)nothing was changed.*(add_columns\(\)|ADD COLUMNS)"
            )
            with pytest.raises(PySparkException, match=refusal):
                run_statement()
            continue
        run_statement()
        branch.checkout_latest()
        assert branch.schema.names == ["id", "v", "extra"], statement
        read = sql(
            f"SELECT id, v, extra FROM {{c}}.t WITH ('branch' = 'b{number}') WHERE id = 2 ORDER BY v"
        )
        assert read == expected, statement
        run_statement()  # nothing is left to add
        assert branch.to_lance().schema.names == ["id", "v", "extra"]
    spark.catalog.dropTempView("wider")
    table.checkout_latest()
    assert table.version == 2 and table.schema.names == ["id", "v"]
    sql("ALTER TABLE {c}.t ADD COLUMN own INT")
    assert table.schema.names == ["id", "v", "own"]


def test_schema_evolution_of_a_branch_that_fails_changes_nothing(
    sql: Sql, spark: SparkSession, table: lance_spark.Table, catalog_name: str
) -> None:
    spark.sql("SELECT 2L AS id, 'text' AS v, 'e' AS extra").createOrReplaceTempView("wider")
    for statement in (
        f"{INSERTING} BY NAME SELECT * FROM wider",
        f"EXPLAIN {INSERTING} BY NAME SELECT * FROM wider",
    ):
        with pytest.raises(
            PySparkException,
            match=get_refusal(spark, statement, r"(?i)changed nothing|nothing was changed"),
        ):
            sql(statement)
    spark.catalog.dropTempView("wider")
    assert table.version == 2 and table.schema.names == ["id", "v"]
    table.checkout("dev")
    assert table.version == 1 and table.schema.names == ["id", "v"]


@pytest.mark.skipif(
    pyspark.__version__ < "4.2", reason="Spark 4.1 has no schema evolution of a table's choice"
)
def test_columns_that_spark_hands_over_without_their_branch_are_refused(
    sql: Sql, spark: SparkSession, table: lance_spark.Table, catalog_name: str
) -> None:
    """A release of Spark that copies the changes of a statement would add the columns of a branch to main."""
    jvm: Any = spark._jvm
    catalogs = jvm.org.apache.spark.sql.connector.catalog
    catalog = spark._jsparkSession.sessionState().catalogManager().catalog(catalog_name)

    # Py4J inspects all methods of a class, and methods of LanceCatalog name classes missing in Spark 4.2.
    shared = load(spark.sparkContext._gateway, "lancespark.AbstractLanceCatalog")
    methods = {
        (method.getName(), method.getParameterCount()): method for method in shared.getMethods()
    }

    def call(name: str, *arguments: Any) -> Any:
        array = spark.sparkContext._gateway.new_array(jvm.Object, len(arguments))
        for number, argument in enumerate(arguments):
            array[number] = argument
        method = methods[name, len(arguments)]
        method.setAccessible(True)
        return method.invoke(catalog, array)

    def name_of(text: str) -> Any:
        return catalogs.Identifier.of(spark.sparkContext._gateway.new_array(jvm.String, 0), text)

    def change() -> Any:
        column = spark.sparkContext._gateway.new_array(jvm.String, 1)
        column[0] = "extra"
        return catalogs.TableChange.addColumn(
            column, jvm.org.apache.spark.sql.types.DataType.fromDDL("INT")
        )

    def changes(*items: Any) -> Any:
        array = spark.sparkContext._gateway.new_array(catalogs.TableChange, len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    branch, main = (
        call("loadTable", name_of(f"{table.uri}/tree/dev")),
        call("loadTable", name_of("t")),
    )
    same = change()
    for handed in (changes(change()), changes(same, change())):
        assert branch.supportsColumnChange(same)
        with pytest.raises(Exception, match=r"without the branch dev .*Nothing was changed"):
            call("alterTable", name_of("t"), handed)
    assert table.version == 2 and table.schema.names == ["id", "v"]
    # A statement on main, and an error, clear the record of the branch.
    assert branch.supportsColumnChange(same) and main.supportsColumnChange(change())
    sql("ALTER TABLE {c}.t ADD COLUMN own INT")
    assert branch.supportsColumnChange(same)
    call("alterTable", name_of("t"), changes(same))
    table.checkout_latest()
    assert table.schema.names == ["id", "v", "own"]
    table.checkout("dev")
    assert table.schema.names == ["id", "v", "extra"]


def test_options_of_a_read_through_the_catalog_work_or_are_errors(
    sql: Sql, spark: SparkSession, table: lance_spark.Table, catalog_name: str
) -> None:
    def read(**options: str) -> DataFrame:
        return spark.read.options(**options).table(f"{catalog_name}.t")

    assert read(filter="id = 1").count() == 1 and read(limit="3").count() == 3
    if spark.version >= "4.3":
        assert read(branch="dev").count() == 5 and read(version="1").count() == 5
        assert read(columns="v").where("v = 0").limit(1).collect() == [(0,)]
        assert read(columns="v,id", filter="id = 4").collect() == [(0, 4)]
        assert read(with_row_id="true", limit="1").columns == ["id", "v", "_rowid"]
        assert sql("SELECT * FROM {c}.t WITH ('columns' = 'id') WHERE id > 8") == [(9,)]
        with pytest.raises(PySparkException, match=r"'columns'.* is no option of \.versions"):
            sql("SELECT * FROM {c}.t.versions WITH ('columns' = 'version')")
    else:
        for option in ("branch", "version", "columns", "with_row_id"):
            with pytest.raises(Exception, match=f"the option `{option}` .* needs Spark 4.3"):
                read(**{option: OPTIONS[option]}).collect()
    for option in ("nonsense", "lancespark.scan", "lancespark.write", "lancespark.metadata"):
        with pytest.raises(PySparkException, match=option):
            read(**{option: "1"}).collect()


def test_internal_options_by_path_are_errors(spark: SparkSession, table_path: str) -> None:
    rows = spark.range(3)
    rows.write.format("lance").mode("append").save(table_path)
    spec = '{"path": null, "exclusive": true, "input_columns": [], "snapshots": []}'
    frame = spark.read.format("lance").option("with_row_address", "true").load(table_path)
    writer = frame.selectExpr("_rowaddr", "id + 1 AS n").write.format("lance").mode("append")
    with pytest.raises(PySparkException, match=r"lancespark\.write' is internal"):
        writer.option("mode", "backfill").option("lancespark.write", spec).save(table_path)
    with pytest.raises(PySparkException, match=r"lancespark\.write' is internal"):
        rows.write.format("lance").mode("append").option("lancespark.write", spec).save(table_path)
    with pytest.raises(PySparkException, match=r"lancespark\.(table|metadata)"):
        spark.read.format("lance").option("lancespark.table", "filter").option(
            "filter", "id = 1"
        ).load(table_path).count()
    with pytest.raises(PySparkException, match=r"lancespark\.write' is internal"):
        spark.sql(
            f"CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{table_path}', `lancespark.write` '{spec}')"
        )
    again = spark.read.format("lance").load(table_path)
    assert again.columns == ["id"] and again.count() == 3


def test_internal_options_are_errors_without_the_rule(spark: SparkSession, table_path: str) -> None:
    session = spark.newSession()
    lance_spark.disable_pushdown(session)
    rows = session.range(3)
    rows.write.format("lance").mode("append").save(table_path)
    spec = '{"path": null, "exclusive": true, "input_columns": [], "snapshots": []}'
    scan = '{"pin": null, "columns": null, "predicate": null, "limit": null, "aggregate": null, "whole_fragments": false}'
    frame = session.read.format("lance").option("with_row_address", "true").load(table_path)
    values = frame.selectExpr("_rowaddr", "id + 1 AS n")
    forged = "0" * 64

    def backfill(**options: str) -> None:
        writer = values.write.format("lance").mode("append").option("mode", "backfill")
        writer.options(**options).save(table_path)

    ways: dict[str, Callable[[], object]] = {
        "lancespark.write": lambda: backfill(**{"lancespark.write": spec}),
        "lancespark.write ": lambda: backfill(
            **{"lancespark.write": spec, "lancespark.by": forged}
        ),
        "lancespark.by": lambda: (
            rows.write.format("lance")
            .mode("append")
            .option("lancespark.by", forged)
            .save(table_path)
        ),
        "lancespark.scan": lambda: (
            session.read.format("lance").option("lancespark.scan", scan).load(table_path)
        ),
        "lancespark.table": lambda: (
            session.read.format("lance").option("lancespark.table", "id").load(table_path)
        ),
        "lancespark.metadata": lambda: (
            session.read.format("lance").option("lancespark.metadata", "versions").load(table_path)
        ),
        "lancespark.new": lambda: (
            session.read.format("lance").option("lancespark.new", "1").load(table_path)
        ),
    }
    for option, way in ways.items():
        with pytest.raises(
            PySparkException, match=rf"'{re.escape(option.strip())}' is internal.*(?i:leave it out)"
        ):
            way()
    assert lance.dataset(table_path).version == 1 and frame.count() == 3
    backfill()
    assert lance.dataset(table_path).schema.names == ["id", "n"]


def test_options_of_a_backfill_are_errors_where_rows_are_written(
    spark: SparkSession, table_path: str
) -> None:
    for option, value in {
        "version": "1",
        "on_stale": "null",
        "input_columns": "id",
        "verify_columns": "id",
    }.items():
        with pytest.raises(PySparkException, match=f"Option '{option}' .*is no option of INSERT"):
            spark.range(3).write.format("lance").mode("append").option(option, value).save(
                table_path
            )
    assert not Path(table_path).exists()


def test_the_table_of_options_names_options_that_exist() -> None:
    for statement, accepted in STATEMENT_OPTIONS.items():
        for name in ("tag", "nonsense", "lancespark.scan", "path"):
            with pytest.raises(
                OptionError, match=f"'{re.escape(name)}' .*is no option of {statement}"
            ):
                check_statement_options(statement, {name: "1"})
        check_statement_options(statement, dict.fromkeys(accepted, "1"))
