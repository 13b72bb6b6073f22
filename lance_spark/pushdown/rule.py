"""Installs the planner rule, a Java class of the jar (:mod:`lance_spark.jvm.jar`).

A session started with :func:`lance_spark.configure` has the rule through `spark.sql.extensions`.
:func:`enable_pushdown` adds the rule to a running session.
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import GatewayError
from lance_spark.interpreter import refuse_other_python
from lance_spark.jvm.gateway import gateway_of, is_classic, serve
from lance_spark.jvm.jar import EXTENSIONS, first_line, load, send_to_executors

_LOG = getLogger(__name__)

_RULE = "lancespark.LancePushdown"
ARROW_SETTINGS = {
    "arrow.enable_unsafe_memory_access": "true",
    "arrow.enable_null_check_for_get": "false",
}
"""Java properties that disable Arrow's bounds checks for each value."""


@ARGUMENTS.function
def enable_pushdown(spark: SparkSession) -> bool:
    """Pushes columns, filters, limits and simple aggregates of a session down to Lance.

    Runs on the driver. Sessions made later from this session (`spark.newSession()`) also have the
    rule. A second call changes nothing. Other rules in the session's
    `experimental.extraOptimizations` stay. If the JVM has not used Arrow yet, Arrow reads batches
    without bounds checks from then on, unless the JVM's properties say otherwise
    (docs/performance.md). With a local master, this also applies to tasks.

    Args:
        spark: A session. A Spark Connect session has no JVM for the rule. Everything works without
            the rule, only slower, and the options `columns` and `filter` push down explicitly.

    Returns:
        Whether the rule is active. If not, the reason is logged at level INFO.

    Raises:
        WorkerPythonError: The session is local, and its Python workers run an interpreter without
            this package.

    Example:
        >>> lance_spark.enable_pushdown(spark)
        True
    """
    try:
        require_pushdown(spark)
    except GatewayError as error:
        _LOG.info("%s", error)
        return False
    return True


def require_pushdown(spark: SparkSession) -> None:
    """Adds the rule to a session, as :func:`enable_pushdown` does.

    Raises:
        GatewayError: The session does not accept the Java classes of this package.
        WorkerPythonError: As :func:`enable_pushdown`.
    """
    if not is_classic(spark):
        raise GatewayError(
            "A Spark Connect session has no JVM in this process. Nothing was changed. Add pushdown to the server, or "
            "use the options `columns` and `filter`."
        )
    refuse_other_python(spark)
    try:
        _install(spark)
    except (Py4JError, TypeError, AttributeError) as error:
        reason = first_line(error)
        raise GatewayError(
            f"Spark {spark.version} does not accept the Java classes of this package: {reason}. Nothing was changed. "
            "Add the jar of lance_spark.jar() to the class path of the JVM (spark.jars, or a library of the cluster), "
            f"and set spark.sql.extensions={EXTENSIONS}. Reads and writes by path work without the jar, but slower."
        ) from error


def _install(spark: SparkSession) -> None:
    gateway = gateway_of(spark)
    load(gateway, EXTENSIONS).newInstance().enable(spark._jsparkSession)  # noqa: SLF001 - as below
    send_to_executors(spark)
    serve(gateway)
    _read_arrow_unchecked(spark._jvm)  # noqa: SLF001 - as below


@ARGUMENTS.function
def disable_pushdown(spark: SparkSession) -> None:
    """Removes the rule from a session. Plans made before keep the effect of the rule.

    Example:
        >>> lance_spark.disable_pushdown(spark)
    """
    jvm: Any = getattr(spark, "_jvm", None) if is_classic(spark) else None
    if jvm is None:
        return
    session: Any = spark._jsparkSession  # noqa: SLF001 - PySpark has no public way to the planner
    # Session extensions add the rule while Spark creates the analyzer.
    session.sessionState().analyzer()
    experimental = session.experimental()
    rules = experimental.extraOptimizations()
    other_rules = jvm.java.util.ArrayList()
    for index in range(rules.size()):
        rule = rules.apply(index)
        if rule.getClass().getName() != _RULE:
            other_rules.add(rule)
    setter = getattr(experimental, "extraOptimizations_$eq")
    setter(jvm.scala.jdk.javaapi.CollectionConverters.asScala(other_rules).toSeq())


def _read_arrow_unchecked(jvm: Any) -> None:  # noqa: ANN401 - the JVM
    """Sets Arrow's properties in the driver's JVM, unless the user has set them.

    Arrow reads the properties on first use and ignores later changes. Executors of a cluster have
    their own JVMs.
    """
    system = jvm.java.lang.System
    for name, value in ARROW_SETTINGS.items():
        if (
            system.getProperty(name) is None
            and system.getenv(name.upper().replace(".", "_")) is None
        ):
            system.setProperty(name, value)
