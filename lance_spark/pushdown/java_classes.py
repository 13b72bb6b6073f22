"""Compiles the Java of this package in the driver's JVM, and puts it where Spark finds it.

The planner rule and the SQL catalog are Java, which Spark's own compiler (Janino) compiles. There
is no jar: the sources are package data. Compiling takes a second or two, once per release of this
package, of Spark and of Java; the classes are kept (:mod:`lance_spark.pushdown.class_cache`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib import resources
from logging import getLogger
from typing import Any

from py4j.java_gateway import JavaGateway, JavaObject
from py4j.protocol import Py4JError

from lance_spark.pushdown.class_cache import cache_file, load_classes, save_classes

_LOG = getLogger(__name__)

_RULE_FOLDER, _CATALOG_FOLDER = "pushdown/java", "sql/java"
_SOURCE = "lance.DefaultSource"
_CLASSES = "lancespark.LanceClasses"
_CLASSES_FILE = "LanceClasses.java"
_HOOKS = "lancespark.LanceSql"
_PROPERTY = "lancespark.classes"
_CATALOG = "org.apache.spark.sql.connector.catalog"
_RELEASES = {"sql/java_4_2": f"{_CATALOG}.SupportsSchemaEvolution", "sql/java_4_3": f"{_CATALOG}.TableContext"}
"""Folders of files that replace those of `sql/java_4_1`, and a class that each release brought."""


def load(gateway: JavaGateway, name: str) -> JavaObject:
    """Returns a class of this package in the JVM behind a gateway.

    Raises:
        Py4JError: It does not compile against this release of Spark.
        TypeError: The JVM has the classes of another release of this package.
    """
    return _loader(gateway).loadClass(name)


@functools.lru_cache(maxsize=1)
def _loader(gateway: JavaGateway) -> JavaObject:
    """Returns the class loader that Spark asks, with all classes; compiles them if it has to."""
    java: Any = gateway.jvm
    rule, catalog = _sources(_RULE_FOLDER), _sources(_CATALOG_FOLDER)
    loader = java.Thread.currentThread().getContextClassLoader()
    catalog |= _sources("sql/java_4_1")
    for folder, name in _RELEASES.items():
        catalog |= _sources(folder) if _has_class(java, name) else {}
    rule[_CLASSES_FILE] = catalog[_CLASSES_FILE]
    sources = rule | catalog
    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()
    there = java.System.getProperty(_PROPERTY)
    if there is None:
        try:
            files = _classes(gateway, loader, sources)
        except Py4JError as error:
            _LOG.info("there is no SQL catalog in this release of Spark: %s", error)
            files = _classes(gateway, loader, rule)
        _define(gateway, loader, files, digest)
    elif there != digest:
        raise TypeError("the JVM runs another release of lance-spark: restart it, and this one is used")
    return loader


def has_catalog(gateway: JavaGateway) -> bool:
    """Tells whether the SQL catalog is there; call :func:`load` for the rule first."""
    try:
        load(gateway, _HOOKS)
    except Py4JError:
        return False
    return True


def _has_class(java: Any, name: str) -> bool:  # noqa: ANN401 - the JVM
    try:
        java.Class.forName(name)
    except Py4JError:
        return False
    return True


def _sources(folder: str) -> dict[str, str]:
    entries = resources.files("lance_spark").joinpath(folder).iterdir()
    return {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.name.endswith(".java")}


def _classes(gateway: JavaGateway, loader: JavaObject, sources: Mapping[str, str]) -> JavaObject:
    """Returns compiled classes by their paths, as a map of Java's."""
    java: Any = gateway.jvm
    files = java.java.util.HashMap()
    cached = cache_file(*(text for source in sorted(sources.items()) for text in source), *_against(java))
    classes = None if cached is None else load_classes(cached)
    if classes is None:
        _compile(gateway, sources, loader, files)
        if cached is not None:
            save_classes(cached, {name: bytes(files.get(name)) for name in files.keySet()})
    for name, code in (classes or {}).items():
        files.put(name, code)
    return files


def _define(gateway: JavaGateway, loader: JavaObject, files: JavaObject, digest: str) -> None:
    """Puts the classes into Spark's class loader, where `spark.sql.catalog.*` finds them.

    `lance.DefaultSource` is what Spark asks for before it asks the thread's active session: a
    thread has no active session but the one that made the session, and DataFrame writes from others
    end with DATA_SOURCE_NOT_FOUND without it.
    """
    for name in (_SOURCE, _CLASSES):
        _define_one(gateway, loader, name, files.get(name.replace(".", "/") + ".class"))
    loader.loadClass(_CLASSES).newInstance().define(files, _PROPERTY, digest)
    if files.containsKey(f"{_HOOKS.replace('.', '/')}.class"):
        loader.loadClass(_HOOKS).newInstance().install()


def _define_one(gateway: JavaGateway, loader: JavaObject, name: str, code: bytes) -> None:
    java: Any = gateway.jvm
    try:
        loader.loadClass(name)
    except Py4JError:
        arguments = (("java.lang.String", name), ("[B", code), ("int", 0), ("int", len(code)))
        types, values = gateway.new_array(java.Class, 4), gateway.new_array(java.Object, 4)
        for index, (kind, value) in enumerate(arguments):
            types[index] = java.Integer.TYPE if kind == "int" else java.Class.forName(kind)
            values[index] = value
        define = java.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", types)
        define.setAccessible(True)  # Spark starts its JVMs with java.lang opened
        define.invoke(loader, values)


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
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)  # static methods of interfaces need it
    compiler.setIClassLoader(java.org.codehaus.janino.ClassLoaderIClassLoader(loader))
    compiler.setClassFileCreator(in_memory.MapResourceCreator(files))
    compiler.compile(units)
