"""A folder of Lance tables as a catalog of Spark SQL: :func:`catalog`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import UnsupportedOperationError
from lance_spark.jvm.gateway import is_classic
from lance_spark.namespaces.reference import NamespaceClientSpec
from lance_spark.session.catalogs import catalog_options, namespace_options, register_catalog
from lance_spark.table.connections.connection import Connection, connect


@ARGUMENTS.function
def catalog(
    spark: SparkSession,
    name: str,
    root: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    allow_stored_code: bool = False,
    namespace_client_impl: str | None = None,
    namespace_client_properties: Mapping[str, str] | None = None,
) -> Connection:
    """Makes a folder of Lance tables a SQL catalog of a session, and returns a connection.

    A Lance namespace is a catalog, too.

    Runs on the driver; touches no storage. `SELECT * FROM <name>.t` reads the same table as
    `connect(root).open_table("t")`, and `<name>.folder.t` reads a table of a folder below. The call
    also enables the planner rule. To make a session with catalogs, use
    :func:`lance_spark.configure`.

    The application registers the catalog. Its options are no settings of a session: neither `SET`
    nor the Spark UI shows them, and no SQL user can change them. Another session of the application
    has the catalog after the same call.

    Args:
        spark: A session with a JVM driven by this process, not a session over Spark Connect.
        name: Name of the catalog.
        root: The folder, or URI of an object store; None for a namespace.
        storage_options: Options of the object store.
        allow_stored_code: Whether SQL may run UDFs stored with tables of the catalog (`CALL
            <name>.system.backfill`). Writers of the tables choose this code.
        namespace_client_impl: As in :func:`lance_spark.connect`. A path of a class is refused,
            unless the environment variable `LANCE_SPARK_NAMESPACES` allows the class.
        namespace_client_properties: As in :func:`lance_spark.connect`.

    Raises:
        UnsupportedOperationError: The session runs over Connect, or the catalog does not compile
            for this release of Spark.
        OptionError: The application has another catalog of this name.

    Example:
        >>> db = lance_spark.catalog(spark, "lance", "/data/tables")
        >>> spark.sql("SELECT count(*) FROM lance.docs")
    """
    if not is_classic(spark):
        raise UnsupportedOperationError(
            "A catalog needs the JVM's own process, and over Spark Connect that process is the server. Nothing was "
            f"changed. Start the server with lance-spark connect-server --catalog {name}=LOCATION, or read and write "
            "by path."
        )
    connection = connect(
        root,
        spark,
        storage_options,
        namespace_client_impl=namespace_client_impl,
        namespace_client_properties=namespace_client_properties,
    )
    if namespace_client_impl is not None:
        client = NamespaceClientSpec.of(namespace_client_impl, namespace_client_properties)
        client.check_registered()
        options = namespace_options(client, allow_stored_code=allow_stored_code)
    else:
        options = catalog_options(
            connection.uri, storage_options=storage_options, allow_stored_code=allow_stored_code
        )
    register_catalog(spark, name, options)
    return connection
