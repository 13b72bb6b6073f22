"""Queries of a golden file over Spark's own tables and views, and over Lance tables with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark.session.catalogs import CATALOG, setting_of
from lance_spark.session.sessions import active_in_thread
from tests.lance_spark.sql.golden.files import (
    GoldenFile,
    describe_error,
    describe_rows,
    get_table_name,
    get_view_name,
    is_query,
    is_temporary_view,
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

    def __init__(self, spark: SparkSession, file: GoldenFile, schema: str, catalog: str | None = None) -> None:
        self._file, self._schema, self._catalog = file, schema, catalog
        self._session = spark.newSession()
        self._position = 0
        self.tables: list[str] = []
        self.spark_rows: dict[int, str] = {}
        self._changes: dict[str, int] = {}
        """Position of the last change by name of a table of the file."""
        self._copies: dict[str, tuple[int, str | None]] = {}
        """Copied change, and the Lance table, by name of a table of the file."""
        self._shadows: set[str] = set()
        self._temporary_views: set[str] = set()

    @contextmanager
    def open(self) -> Iterator[GoldenRun]:
        """Applies the settings, and makes the schema until the block ends."""
        folder = self._file.name.partition("/")[0]
        catalog = {setting_of(self._catalog): CATALOG} if self._catalog else {}
        with active_in_thread(self._session):
            for key, value in (catalog | _SESSION | _FOLDERS.get(folder, {}) | self._file.settings).items():
                self._session.conf.set(key, value)
            self._session.sql(f"CREATE SCHEMA spark_catalog.{self._schema}")
            self._session.sql(f"USE spark_catalog.{self._schema}")
            try:
                yield self
            finally:
                self._session.sql(f"DROP SCHEMA spark_catalog.{self._schema} CASCADE")

    def query(self, position: int) -> str:
        """Runs the earlier statements with an effect, then the query. Returns the query's outcome."""
        with active_in_thread(self._session):
            for number, statement in enumerate(self._file.statements[self._position : position], self._position):
                if not is_query(statement):
                    self._apply(number, statement)
            self._position = position
            self._shadow_tables(self._file.statements[position])
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

    def _apply(self, position: int, statement: str) -> None:
        """Runs a statement with an effect. Spark's own tables take changes, and temporary views select Lance tables."""
        self._drop_shadows()
        if is_temporary_view(statement):
            self._temporary_views.add(get_view_name(statement).strip("`").lower())
            self._shadow_tables(statement)
        try:
            self._session.sql(statement)
        except (PySparkException, Py4JJavaError):
            return  # an expected error
        view = get_view_name(statement)
        if self._catalog is not None and is_view_of_values(statement) and (table := self._store(position, view)):
            self._session.sql(f"ALTER VIEW {view} AS SELECT * FROM {table}")
        if self._file.has_lance_tables:
            names = {*self._changes, get_table_name(statement)} & list_words(statement)
            self._changes |= dict.fromkeys(names, position)

    def _store(self, position: int, source: str) -> str | None:
        """Makes a Lance table of a relation. Returns the name, or nothing if Lance cannot store the rows."""
        table = f"t{len(self.tables)}"
        name = f"{self._catalog}.{self._schema}.{table}"
        try:
            self._session.sql(f"CREATE TABLE {name} AS SELECT * FROM {source}")
        except (PySparkException, Py4JJavaError) as error:
            self.spark_rows[position] = str(error).partition("\n")[0]
            return None
        self.tables.append(table)
        return name

    def _shadow_tables(self, statement: str) -> None:
        """Hides the tables that a statement reads behind temporary views of Lance tables with the same rows."""
        if self._catalog is None:
            return
        for name in sorted((list_words(statement) & self._changes.keys()) - self._shadows - self._temporary_views):
            source = f"spark_catalog.{self._schema}.`{name}`"
            if not self._session.catalog.tableExists(source):
                del self._changes[name]
                continue
            change, table = self._copies.get(name, (None, None))
            if change != self._changes[name]:
                change = self._changes[name]
                table = self._store(change, source)
                self._copies[name] = change, table
            if table is not None:
                self._session.sql(f"CREATE TEMPORARY VIEW `{name}` AS SELECT * FROM {table}")
                self._shadows.add(name)

    def _drop_shadows(self) -> None:
        for name in self._shadows:
            self._session.sql(f"DROP VIEW `{name}`")
        self._shadows.clear()

    def _run(self, statement: str) -> str:
        frame = self._session.sql(statement)
        plan = frame._jdf.queryExecution().executedPlan()
        rows = self._session._jvm.org.apache.spark.sql.execution.HiveResult.hiveResultString(plan)  # type: ignore[union-attr]
        schema = frame._jdf.schema().catalogString().replace(f"spark_catalog.{self._schema}.", "spark_catalog.default.")
        return describe_rows(schema, rows.mkString("\n"))
