"""Queries of a golden file over Spark's own views, and over Lance tables with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

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
    """

    def __init__(self, spark: SparkSession, file: GoldenFile, schema: str, catalog: str | None = None) -> None:
        self._file, self._schema, self._catalog = file, schema, catalog
        self._session = spark.newSession()
        self._position = 0
        self.tables = 0

    @contextmanager
    def open(self) -> Iterator[GoldenRun]:
        """Applies the settings, and makes the schema until the block ends."""
        folder = self._file.name.partition("/")[0]
        with active_in_thread(self._session):
            for key, value in (_SESSION | _FOLDERS.get(folder, {}) | self._file.settings).items():
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
            for statement in self._file.statements[self._position : position]:
                if not is_query(statement):
                    with suppress(PySparkException, Py4JJavaError):
                        self._prepare(statement)
            self._position = position
            try:
                return self._run(self._file.statements[position])
            except PySparkException as error:
                return describe_error(error.getCondition() or type(error).__name__)
            except Py4JJavaError as error:  # errors of the JVM, for example a stack overflow
                return describe_error(error.java_exception.getClass().getName())

    def _prepare(self, statement: str) -> None:
        self._session.sql(statement)
        if self._catalog and is_view_of_values(statement):
            view, table = get_view_name(statement), f"{self._catalog}.{self._schema}.v{self.tables}"
            self._session.sql(f"CREATE TABLE {table} AS SELECT * FROM {view}")
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS SELECT * FROM {table}")
            self.tables += 1

    def _run(self, statement: str) -> str:
        frame = self._session.sql(statement)
        plan = frame._jdf.queryExecution().executedPlan()
        rows = self._session._jvm.org.apache.spark.sql.execution.HiveResult.hiveResultString(plan)  # type: ignore[union-attr]
        return describe_rows(frame._jdf.schema().catalogString(), rows.mkString("\n"))
