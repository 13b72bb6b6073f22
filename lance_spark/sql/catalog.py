"""A folder of Lance tables as a catalog of Spark SQL: :func:`catalog`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from lance_spark.dataset import normalize_uri
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.options import STORAGE_PREFIX
from lance_spark.pushdown.java_classes import has_catalog
from lance_spark.pushdown.rule import enable_pushdown, is_classic
from lance_spark.session.configuration import catalog_settings
from lance_spark.table.connection import Connection, connect


def catalog(spark: SparkSession, name: str, root: str, storage_options: Mapping[str, str] | None = None) -> Connection:
    """Makes a folder of Lance tables a catalog of a session's SQL, and returns it as a connection.

    Runs on the driver; touches no storage. `SELECT * FROM <name>.t` reads the table that
    `connect(root).open_table("t")` opens, and `<name>.folder.t` one in a folder below. It also
    enables the planner rule. A session can be made with catalogs: :func:`lance_spark.configure`.

    Args:
        spark: A session whose JVM this process drives: not one over Spark Connect.
        name: Name of the catalog.
        root: The folder, or URI of an object store.
        storage_options: Options of the object store. They stand in the session's settings.

    Raises:
        UnsupportedOperationError: The session is one over Connect, or Spark's release is one for
            which the catalog does not compile.
        OptionError: The session has another catalog of this name.
    """
    if not is_classic(spark):
        raise UnsupportedOperationError(
            "a catalog is set where the JVM is, and over Spark Connect that is the server - nothing was changed - "
            f"start the server with lance-spark connect-server --catalog {name}=LOCATION; or read and write by path"
        )
    settings = catalog_settings(name, root) | {
        f"spark.sql.catalog.{name}.{STORAGE_PREFIX}{key}": value for key, value in (storage_options or {}).items()
    }
    for key, value in settings.items():
        had = spark.conf.get(key, None)
        if (
            had is not None
            and had != value
            and not (key.endswith(".root") and normalize_uri(had) == normalize_uri(value))
        ):
            raise OptionError(key, value, "what the session has: choose another name", problem="is set already")
    for key, value in settings.items():
        spark.conf.set(key, value)
    if not enable_pushdown(spark) or not has_catalog(spark.sparkContext._gateway):  # noqa: SLF001 - as in the rule
        raise UnsupportedOperationError(
            f"Spark {spark.version} has no catalog of Lance tables: its Java does not compile there (the log has the "
            "reason) - nothing was changed - read and write by path: spark.read.format('lance').load(path)"
        )
    return connect(root, spark, storage_options)
