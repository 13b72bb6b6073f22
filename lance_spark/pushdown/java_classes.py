"""Puts the Java of this package, `lance-spark.jar`, where Spark finds it.

The planner rule, the SQL catalog and the session extension are Java. Their jar lies in the package.
:func:`lance_spark.configure` names the jar in `spark.jars` before the JVM starts; :func:`load` adds
the jar to a JVM that runs already.
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

EXTENSIONS = "lancespark.LanceExtensions"
"""Class of `spark.sql.extensions`."""

_JAR = "lance-spark.jar"
_PROPERTIES = "lancespark/release.properties"


def find_jar() -> Path:
    """Returns the path of the jar.

    Raises:
        FileNotFoundError: This is a checkout whose Java was not compiled.
    """
    path = Path(str(resources.files("lance_spark").joinpath(_JAR)))
    if not path.is_file():
        raise FileNotFoundError(f"The package has no {_JAR}: {path}. In a checkout, run: make jar")
    return path


def load(gateway: JavaGateway, name: str) -> JavaObject:
    """Returns a class of this package in the JVM behind a gateway.

    Raises:
        Py4JError: The JVM takes no jar while it runs.
        FileNotFoundError: The package has no jar.
        TypeError: The JVM has the classes of another release of this package.
    """
    return _loader(gateway).loadClass(name)


def send_to_executors(spark: SparkSession) -> None:
    """Adds the jar to an application that was started without the jar."""
    context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark has no public way to add a jar
    names = context.listJars()
    if not any(str(names.apply(index)).endswith(f"/{_JAR}") for index in range(names.size())):
        context.addJar(find_jar().as_uri())


@functools.lru_cache(maxsize=1)
def _loader(gateway: JavaGateway) -> JavaObject:
    """Returns the class loader that Spark asks, with the classes of this package."""
    java: Any = gateway.jvm
    loader = java.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(EXTENSIONS)
    except Py4JError:
        # A JVM that PySpark or spark-submit starts has a loader that takes jars while it runs.
        loader.addURL(java.java.net.URL(find_jar().as_uri()))
    properties = java.java.util.Properties()
    stream = loader.getResourceAsStream(_PROPERTIES)
    properties.load(stream)
    stream.close()
    if properties.getProperty("sources") != _own_properties().get("sources"):
        raise TypeError(
            f"The JVM runs lance-spark {properties.getProperty('version')}, with another jar than {find_jar()}. "
            "Restart the JVM, and remove other lance-spark jars from its class path."
        )
    return loader


def _own_properties() -> dict[str, str]:
    with zipfile.ZipFile(find_jar()) as archive:
        return dict(line.split("=", 1) for line in archive.read(_PROPERTIES).decode().splitlines())
