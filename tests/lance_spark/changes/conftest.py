"""The fixtures of the tests of the change feed."""

from tests.lance_spark.table.conftest import call_log, db, folder, table

__all__ = ["call_log", "db", "folder", "table"]
