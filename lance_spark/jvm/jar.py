"""Adds the Java classes of this package, `lance-spark.jar`, to Spark.

The planner rule, the SQL catalog and the session extension are written in Java, and their jar is
part of the package. :func:`lance_spark.configure` adds the jar to `spark.jars` before the JVM
starts. :func:`load` adds the jar to a running JVM.
"""

from __future__ import annotations

import functools
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway, JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lance_spark.errors import GatewayError

EXTENSIONS = "lancespark.LanceExtensions"
"""Class for `spark.sql.extensions`."""

_JAR = "lance-spark.jar"
_PROPERTIES = "lancespark/release.properties"


def jar() -> str:
    """Returns the path of the jar with the Java classes of this package.

    Pass the path to `spark-submit --jars`, to `spark.jars`, to the libraries of a cluster, or to an
    image. With `spark.sql.extensions=lancespark.LanceExtensions`, a session or a stock Connect
    server then has pushdown, and its catalogs are settings (docs/sql.md).

    Raises:
        GatewayError: This is a checkout without compiled Java.

    Example:
        >>> builder = SparkSession.builder.config("spark.jars", lance_spark.jar())
    """
    return str(find_jar())


def find_jar() -> Path:
    """Returns the path of the jar.

    Raises:
        GatewayError: This is a checkout without compiled Java.
    """
    path = Path(str(resources.files("lance_spark").joinpath(_JAR)))
    if not path.is_file():
        raise GatewayError(f"The package has no {_JAR} at {path}. In a checkout, run: make jar")
    return path


def load(gateway: JavaGateway, name: str) -> JavaObject:
    """Returns a class of this package in the JVM behind a gateway.

    Raises:
        Py4JError: The running JVM does not accept a jar.
        GatewayError: The package has no jar, or the JVM has the classes of another release of this
            package.
    """
    return _loader(gateway).loadClass(name)


def add_jar(gateway: JavaGateway) -> None:
    """Adds the jar to the JVM behind a gateway, before the JVM has a session.

    Raises:
        GatewayError: The running JVM does not accept a jar.
    """
    try:
        load(gateway, EXTENSIONS)
    except (Py4JError, TypeError) as error:
        reason = first_line(error)
        raise GatewayError(
            f"The running JVM does not accept a jar: {reason}. Nothing was changed. Start the JVM with the jar of "
            "lance_spark.jar() in spark.jars. Reads and writes by path work without the jar, but slower."
        ) from error


def first_line(error: Exception) -> str:
    """Returns the first line of an error of py4j, without its end: a full stop, or `. Trace:`."""
    return str(error).strip().partition("\n")[0].removesuffix(" Trace:").rstrip(".")


def send_to_executors(spark: SparkSession) -> None:
    """Adds the jar to an application that was started without the jar."""
    context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark has no public way to add a jar
    names = context.listJars()
    if not any(str(names.apply(index)).endswith(f"/{_JAR}") for index in range(names.size())):
        context.addJar(find_jar().as_uri())


@functools.lru_cache(maxsize=1)
def _loader(gateway: JavaGateway) -> JavaObject:
    """Returns Spark's class loader with the classes of this package."""
    java: Any = gateway.jvm
    loader = java.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(EXTENSIONS)
    except Py4JError:
        # The class loader of a JVM started by PySpark or spark-submit accepts jars at run time.
        loader.addURL(java.java.net.URL(find_jar().as_uri()))
    properties = java.java.util.Properties()
    stream = loader.getResourceAsStream(_PROPERTIES)
    properties.load(stream)
    stream.close()
    own = _own_properties()
    if properties.getProperty("sources") != own["sources"]:
        raise GatewayError(
            f"The JVM has the jar of lance-spark {properties.getProperty('version')}, and Python has lance-spark "
            f"{own['version']} with another jar, {find_jar()}. Nothing was changed. Remove other lance-spark jars "
            "from the class path of the JVM, and start the JVM again."
        )
    return loader


def _own_properties() -> dict[str, str]:
    with zipfile.ZipFile(find_jar()) as archive:
        return dict(line.split("=", 1) for line in archive.read(_PROPERTIES).decode().splitlines())
