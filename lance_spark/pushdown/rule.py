"""Installs the planner rule, which is compiled in the driver's JVM at run time.

It is Java, and Spark's own compiler (Janino) compiles it. There is no jar: the sources in `java/`
are package data. Compiling takes under a second, once per JVM.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from importlib import resources
from logging import getLogger
from typing import Any

from py4j.java_gateway import JavaGateway, JavaObject, JVMView
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lance_spark.interpreter import refuse_other_python
from lance_spark.pushdown.class_cache import cache_file, load_classes, save_classes

_LOG = getLogger(__name__)

_RULE = "lancespark.LancePushdown"
_SOURCE = "lance.DefaultSource"

ARROW_SETTINGS = {"arrow.enable_unsafe_memory_access": "true", "arrow.enable_null_check_for_get": "false"}
"""Properties of Java with which Arrow does not check the bounds of each value that is read."""


def enable_pushdown(spark: SparkSession) -> bool:
    """Makes a session push columns, filters, limits and simple aggregates down to Lance.

    Runs on the driver. It belongs to one session: `spark.newSession()` needs it again. Calling it
    twice does nothing the second time. Other rules in the session's
    `experimental.extraOptimizations` stay. Where the JVM has not used Arrow yet, it reads Arrow
    batches without checking bounds from then on, unless its properties say otherwise
    (docs/performance.md); with a local master that holds for the tasks, too.

    Args:
        spark: A session. On Spark Connect, which has no JVM to install a rule in, everything works
            without it, only slower; the options `columns` and `filter` serve by hand.

    Returns:
        Whether the rule is active. If not, the reason is logged at level INFO.

    Raises:
        WorkerPythonError: The session is local, and its Python workers run an interpreter without
            this package.
    """
    jvm = getattr(spark, "_jvm", None) if is_classic(spark) else None
    if jvm is None:
        _LOG.info("pushdown is not available over Spark Connect; use the options `columns` and `filter`")
        return False
    try:
        refuse_other_python(spark)
        rules = _rules(spark)
        if not any(_is_ours(rule) for rule in rules):
            threading.Thread(target=_find_sources, args=(spark,), daemon=True).start()
            _set_rules(spark, jvm, [*rules, _rule_class(_gateway(spark)).newInstance()])
        _read_arrow_unchecked(jvm)
    except (Py4JError, TypeError, AttributeError) as error:
        _LOG.info("pushdown is not available in Spark %s: %s", spark.version, error)
        return False
    return True


def disable_pushdown(spark: SparkSession) -> None:
    """Takes the rule out of a session again. Queries that are planned already keep what it did."""
    jvm = getattr(spark, "_jvm", None) if is_classic(spark) else None
    if jvm is not None:
        _set_rules(spark, jvm, [rule for rule in _rules(spark) if not _is_ours(rule)])


def is_classic(spark: SparkSession) -> bool:
    """Tells whether a session has its JVM in this process's reach; over Connect it has not."""
    # A Connect session raises on `_jvm`, with an error that says to use the classic one.
    return type(spark).__module__ == "pyspark.sql.session"


def _read_arrow_unchecked(jvm: Any) -> None:  # noqa: ANN401 - the JVM
    """Sets Arrow's properties in the driver's JVM, where its user has not.

    Arrow looks at them when it is first used there; later it makes no difference. Executors of a
    cluster have JVMs of their own.
    """
    system = jvm.java.lang.System
    for name, value in ARROW_SETTINGS.items():
        if system.getProperty(name) is None and system.getenv(name.upper().replace(".", "_")) is None:
            system.setProperty(name, value)


def _find_sources(spark: SparkSession) -> None:
    """Has Spark start the Python process that finds data sources, while the rule is compiled.

    It does so once, when a format is first used, and that takes as long.
    """
    try:
        spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("lance")  # noqa: SLF001 - as below
    except Exception as error:  # noqa: BLE001 - Spark asks again when it needs the answer
        _LOG.info("data sources were not found ahead of time: %s", error)


def _gateway(spark: SparkSession) -> JavaGateway:
    return spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way into the driver's JVM


def _experimental(spark: SparkSession) -> Any:  # noqa: ANN401 - a Java object
    return spark._jsparkSession.experimental()  # noqa: SLF001 - as above


def _rules(spark: SparkSession) -> list[JavaObject]:
    installed = _experimental(spark).extraOptimizations()
    return [installed.apply(index) for index in range(installed.size())]


def _set_rules(spark: SparkSession, jvm: JVMView, rules: list[JavaObject]) -> None:
    java: Any = jvm
    kept = java.java.util.ArrayList()
    for rule in rules:
        kept.add(rule)
    setter = getattr(_experimental(spark), "extraOptimizations_$eq")
    setter(java.scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq())


def _is_ours(rule: JavaObject) -> bool:
    return bool(rule.getClass().getName() == _RULE)


@functools.lru_cache(maxsize=1)
def _rule_class(gateway: JavaGateway) -> JavaObject:
    """Loads the rule, once for the JVM behind a gateway, and compiles it if it has to.

    Raises:
        Py4JError: It does not compile against this release of Spark.
    """
    java: Any = gateway.jvm
    folder = resources.files("lance_spark.pushdown") / "java"
    sources = {
        entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".java")
    }
    loader = java.Thread.currentThread().getContextClassLoader()
    in_memory = java.org.codehaus.commons.compiler.util.resource
    files = java.java.util.HashMap()
    cached = cache_file(*(text for source in sorted(sources.items()) for text in source), *_against(java))
    classes = None if cached is None else load_classes(cached)
    if classes is None:
        _compile(gateway, sources, loader, files)
        if cached is not None:
            save_classes(cached, {name: bytes(files.get(name)) for name in files.keySet()})
    for name, code in (classes or {}).items():
        files.put(name, code)
    try:
        _serve_all_threads(gateway, loader, files.get("lance/DefaultSource.class"))
    except Py4JError as error:
        _LOG.info("DataFrame writes need their session active in the thread: %s", error)
    finder = in_memory.MapResourceFinder(files)
    return java.org.codehaus.commons.compiler.util.ResourceFinderClassLoader(finder, loader).loadClass(_RULE)


def _against(java: Any) -> tuple[str, ...]:  # noqa: ANN401 - the JVM
    """Names what the rule is compiled against: Java by its release, Spark by its file."""
    spark = java.java.io.File(
        java.Class.forName("org.apache.spark.sql.catalyst.rules.Rule")
        .getProtectionDomain()
        .getCodeSource()
        .getLocation()
        .toURI()
    )
    return java.System.getProperty("java.version"), f"{spark.getPath()} {spark.length()} {spark.lastModified()}"


def _compile(gateway: JavaGateway, sources: Mapping[str, str], loader: JavaObject, files: JavaObject) -> None:
    java: Any = gateway.jvm
    in_memory = java.org.codehaus.commons.compiler.util.resource
    units = gateway.new_array(in_memory.Resource, len(sources))
    for index, (name, text) in enumerate(sorted(sources.items())):
        units[index] = in_memory.StringResource(name, text)
    compiler = java.org.codehaus.commons.compiler.CompilerFactoryFactory.getDefaultCompilerFactory(loader).newCompiler()
    compiler.setIClassLoader(java.org.codehaus.janino.ClassLoaderIClassLoader(loader))
    compiler.setClassFileCreator(in_memory.MapResourceCreator(files))
    compiler.compile(units)


def _serve_all_threads(gateway: JavaGateway, loader: JavaObject, code: bytes) -> None:
    """Gives Spark the class that it asks for before it asks the thread's active session.

    A thread has no active session but the one that made the session, and DataFrame writes from
    others end with DATA_SOURCE_NOT_FOUND without it.
    """
    java: Any = gateway.jvm
    try:
        loader.loadClass(_SOURCE)
    except Py4JError:
        arguments = (("java.lang.String", _SOURCE), ("[B", code), ("int", 0), ("int", len(code)))
        types, values = gateway.new_array(java.Class, 4), gateway.new_array(java.Object, 4)
        for index, (name, value) in enumerate(arguments):
            types[index] = java.Integer.TYPE if name == "int" else java.Class.forName(name)
            values[index] = value
        define = java.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", types)
        define.setAccessible(True)  # Spark starts its JVMs with java.lang opened
        define.invoke(loader, values)
