"""Queries of a golden file over Spark's own tables and views, and over Lance tables with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark.session.catalogs import setting_of
from lance_spark.session.sessions import active_in_thread
from tests.lance_spark.sql.golden.files import (
    GoldenFile,
    SparkTableName,
    describe_error,
    describe_rows,
    get_defined_name,
    get_table_name,
    get_view_name,
    is_query,
    is_view_of_values,
    list_words,
)

_SESSION = {
    "spark.sql.session.timeZone": "America/Los_Angeles",
    "spark.sql.timeType.enabled": "true",
    # One task reads a view of VALUES and writes one fragment. Sums of floating-point numbers depend on the order of rows.
    "spark.sql.leafNodeDefaultParallelism": "1",
}
_FOLDERS = {
    "nonansi": {"spark.sql.ansi.enabled": "false"},
    "timestampNTZ": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
}


class GoldenRun:
    """One run of a file in a session and a schema of its own.

    Args:
        spark: A session of the application.
        file: The statements.
        schema: Name of the schema.
        catalog: Catalog of Lance tables for the rows of tables and of views of `VALUES`. Without a catalog, Spark keeps the rows.

    Attributes:
        tables: Names of the Lance tables: one per view of `VALUES`, and one per state of a table that a query reads.
        spark_rows: Positions of statements whose rows Lance cannot store, with the error.
    """

    def __init__(
        self, spark: SparkSession, file: GoldenFile, schema: str, catalog: str | None = None
    ) -> None:
        self._file, self._schema, self._catalog = file, schema, catalog
        self._session = spark.newSession()
        self._position = 0
        self.tables: list[str] = []
        self.spark_rows: dict[int, str] = {}
        self._definitions: dict[str, set[str]] = {}
        """Words of the statements that define views and functions, by name."""
        self._changes: dict[SparkTableName, int] = {}
        """Position of the last statement with an effect that names a table, by the table's name."""
        self._copies: dict[SparkTableName, tuple[int, str | None]] = {}
        """Copied change, and the Lance table, by name of a table of the file."""
        self._hidden: set[SparkTableName] = set()

    @contextmanager
    def open(self) -> Iterator[GoldenRun]:
        """Applies the settings, and makes the schema until the block ends."""
        folder = self._file.name.partition("/")[0]
        catalog = {setting_of(self._catalog): "lancespark.LanceCatalog"} if self._catalog else {}
        with active_in_thread(self._session):
            for key, value in (
                catalog | _SESSION | _FOLDERS.get(folder, {}) | self._file.settings
            ).items():
                self._session.conf.set(key, value)
            schemas = self._list_schemas()
            self._session.sql(f"CREATE SCHEMA spark_catalog.{self._schema}")
            self._session.sql(f"USE spark_catalog.{self._schema}")
            try:
                yield self
            finally:
                self._session.sql("USE spark_catalog.default")
                for schema in self._list_schemas() - schemas:
                    self._session.sql(f"DROP SCHEMA spark_catalog.`{schema}` CASCADE")

    def query(self, position: int) -> str:
        """Runs the earlier statements with an effect, then the query. Returns the query's outcome."""
        with active_in_thread(self._session):
            for number, statement in enumerate(
                self._file.statements[self._position : position], self._position
            ):
                if not is_query(statement):
                    self._apply(number, statement)
            self._position = position
            self._hide_tables(self._file.statements[position])
            try:
                return self._run(self._file.statements[position])
            except PySparkException as error:
                return describe_error(error.getCondition() or type(error).__name__)
            except Py4JJavaError as error:  # errors of the JVM, for example a stack overflow
                return describe_error(error.java_exception.getClass().getName())

    def list_lance_tables(self) -> list[str]:
        """Returns the names of the tables that the catalog lists."""
        rows = self._session.sql(f"SHOW TABLES IN {self._catalog}.{self._schema}").collect()
        return sorted(row["tableName"] for row in rows)

    def _list_schemas(self) -> set[str]:
        return {
            row["namespace"] for row in self._session.sql("SHOW SCHEMAS IN spark_catalog").collect()
        }

    def _apply(self, position: int, statement: str) -> None:
        """Runs a statement with an effect. Spark's own tables take changes, and views of `VALUES` select Lance tables."""
        self._restore_tables()
        table = get_table_name(statement, self._session.catalog.currentDatabase())
        try:
            self._session.sql(statement)
        except (PySparkException, Py4JJavaError):
            return  # an expected error
        words = list_words(statement)
        if name := get_defined_name(statement):
            self._definitions[name] = words
        view = get_view_name(statement)
        if (
            self._catalog is not None
            and is_view_of_values(statement)
            and (copy := self._store(position, view))
        ):
            self._session.sql(f"ALTER VIEW {view} AS SELECT * FROM {copy}")
        tables = [changed for changed in self._changes if changed.name in words]
        self._changes |= dict.fromkeys([*tables, *([table] if table else [])], position)

    def _store(self, position: int, source: str) -> str | None:
        """Makes a Lance table of a relation. Returns the name, or nothing if Lance cannot store the rows."""
        table = f"t{len(self.tables)}"
        name = f"{self._catalog}.{self._schema}.{table}"
        try:
            self._session.sql(f"CREATE TABLE {name} AS SELECT * FROM {source}")
        except (PySparkException, Py4JJavaError) as error:
            self.spark_rows[position] = str(error)
            return None
        self.tables.append(table)
        return name

    def _hide_tables(self, statement: str) -> None:
        """Puts views of Lance tables with the same rows in the place of the tables that a statement reads."""
        if self._catalog is None:
            return
        words = self._list_read_words(statement)
        for table in sorted(
            table for table in self._changes.keys() - self._hidden if table.name in words
        ):
            if not self._is_table(table):
                del self._changes[table]
                continue
            change, copy = self._copies.get(table, (None, None))
            if change != self._changes[table]:
                change = self._changes[table]
                copy = self._store(change, str(table))
                self._copies[table] = change, copy
            if copy is not None:
                self._session.sql(f"ALTER TABLE {table} RENAME TO {table.hidden}")
                self._session.sql(f"CREATE VIEW {table} AS SELECT * FROM {copy}")
                self._hidden.add(table)

    def _is_table(self, table: SparkTableName) -> bool:
        catalog = self._session.catalog
        return catalog.tableExists(str(table)) and catalog.getTable(str(table)).tableType != "VIEW"

    def _list_read_words(self, statement: str) -> set[str]:
        """Returns the words of a statement, and of the views and functions that the words name."""
        words: set[str] = set()
        new = list_words(statement)
        while new:
            words |= new
            new = set().union(*(self._definitions.get(word, set()) for word in new)) - words
        return words

    def _restore_tables(self) -> None:
        for table in self._hidden:
            self._session.sql(f"DROP VIEW {table}")
            self._session.sql(f"ALTER TABLE {table.hidden} RENAME TO {table}")
        self._hidden.clear()

    def _run(self, statement: str) -> str:
        frame = self._session.sql(statement)
        plan = frame._jdf.queryExecution().executedPlan()
        rows = self._session._jvm.org.apache.spark.sql.execution.HiveResult.hiveResultString(plan)  # type: ignore[union-attr]
        schema = (
            frame._jdf.schema()
            .catalogString()
            .replace(f"spark_catalog.{self._schema}.", "spark_catalog.default.")
        )
        return describe_rows(schema, rows.mkString("\n"))
