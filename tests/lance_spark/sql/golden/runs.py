"""Queries of a golden file over Spark's own views, and over Lance tables with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark.session.catalogs import CATALOG, setting_of
from lance_spark.session.sessions import active_in_thread
from tests.lance_spark.sql.golden.files import (
    GoldenFile,
    describe_error,
    describe_rows,
    get_view_name,
    is_query,
    is_view_of_values,
)

_SESSION = {"spark.sql.session.timeZone": "America/Los_Angeles", "spark.sql.timeType.enabled": "true"}
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
        catalog: Catalog of Lance tables for views of `VALUES`. Without a catalog, views stay views.

    Attributes:
        tables: Names of the Lance tables, one per view of `VALUES`.
        spark_views: Positions of views whose rows Lance cannot store, with the error.
    """

    def __init__(self, spark: SparkSession, file: GoldenFile, schema: str, catalog: str | None = None) -> None:
        self._file, self._schema, self._catalog = file, schema, catalog
        self._session = spark.newSession()
        self._position = 0
        self.tables: list[str] = []
        self.spark_views: dict[int, str] = {}

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
                    with suppress(PySparkException, Py4JJavaError):
                        self._session.sql(statement)
                        self._move_to_lance(number, statement)
            self._position = position
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

    def _move_to_lance(self, position: int, statement: str) -> None:
        """Makes a Lance table of a view of `VALUES`, and a view of the same name over the table."""
        if self._catalog is None or not is_view_of_values(statement):
            return
        view, table = get_view_name(statement), f"v{position}"
        name = f"{self._catalog}.{self._schema}.{table}"
        try:
            self._session.sql(f"CREATE TABLE {name} AS SELECT * FROM {view}")
        except (PySparkException, Py4JJavaError) as error:
            self.spark_views[position] = str(error).partition("\n")[0]
        else:
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS SELECT * FROM {name}")
            self.tables.append(table)

    def _run(self, statement: str) -> str:
        frame = self._session.sql(statement)
        plan = frame._jdf.queryExecution().executedPlan()
        rows = self._session._jvm.org.apache.spark.sql.execution.HiveResult.hiveResultString(plan)  # type: ignore[union-attr]
        return describe_rows(frame._jdf.schema().catalogString(), rows.mkString("\n"))
