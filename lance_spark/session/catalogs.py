"""Options of SQL catalogs: their settings, their registration, and their trusted origins.

The application's `SparkConf` and the driver's own program define a catalog. A session's settings
never do, because any SQL user can `SET` them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.jvm.gateway import is_classic
from lance_spark.jvm.jar import load
from lance_spark.locations import normalize_uri
from lance_spark.namespaces.reference import NamespaceClientSpec
from lance_spark.options.io_options import STORAGE_PREFIX
from lance_spark.pushdown.rule import enable_pushdown

SESSION_CATALOG = "spark_catalog"
"""Name of Spark's own catalog."""

ROOT, ALLOW_STORED_CODE, IMPLEMENTATION = "root", "allow_stored_code", "impl"
"""Options of a catalog, below `spark.sql.catalog.<name>`."""

REDACTION = "spark.redaction.regex"
"""Setting of Spark: `SET`, plans, UI and event log hide values of settings with matching names."""

_REDACTED_BY_SPARK = "(?i)secret|password|token|access[.]?key|credential"

_REDACTED = r"^spark\.sql\.catalog\..+\.(storage|headers|dynamic_context_provider)\.|^(option\.)?(storage|headers)\."
"""Names of the options of object stores: of catalogs, and of reads and writes by path."""

_REGISTRY = "lancespark.LanceRegistry"

Origins = Mapping[str, Any]
"""Options of a catalog by their origin, as LanceRegistry.java describes them."""


def catalog_options(
    root: str, *, storage_options: Mapping[str, str] | None = None, allow_stored_code: bool = False
) -> dict[str, str]:
    """Returns the options of a catalog, by their names below `spark.sql.catalog.<name>`."""
    storage = {f"{STORAGE_PREFIX}{key}": value for key, value in (storage_options or {}).items()}
    return {
        ROOT: str(root),
        **({ALLOW_STORED_CODE: "true"} if allow_stored_code else {}),
        **storage,
    }


def namespace_options(
    client: NamespaceClientSpec, *, allow_stored_code: bool = False
) -> dict[str, str]:
    """Returns the options of a catalog in a Lance namespace, by their names."""
    flag = {ALLOW_STORED_CODE: "true"} if allow_stored_code else {}
    return {IMPLEMENTATION: client.implementation, **flag, **dict(client.properties)}


def setting_of(name: str, option: str | None = None) -> str:
    """Returns the name of the Spark setting of a catalog, or of an option of the catalog.

    Raises:
        OptionError: The name is not valid for a catalog of Spark SQL.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise OptionError("name", name, "a name of letters, digits and '_'")
    return f"spark.sql.catalog.{name}" if option is None else f"spark.sql.catalog.{name}.{option}"


def settings_of(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the Spark settings of a catalog."""
    return {
        setting_of(name): _class_of(name),
        **{setting_of(name, key): value for key, value in options.items()},
    }


def register_catalog(spark: SparkSession, name: str, options: Mapping[str, str]) -> None:
    """Registers a catalog with the application, and gives a session the catalog's name.

    Options stay out of the session's settings.

    Raises:
        UnsupportedOperationError: The session does not take the Java of this package.
        OptionError: The application has a catalog of this name with other options.
    """
    setting = setting_of(name)
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way into the driver's JVM
    if not enable_pushdown(spark):
        raise UnsupportedOperationError(
            f"Spark {spark.version} has no catalog of Lance tables, because the session does not take the Java of "
            "this package (the log has the reason). Nothing was changed. Read and write by path: "
            "spark.read.format('lance').load(path)."
        )
    registry = load(gateway, _REGISTRY).newInstance()
    origins = json.loads(registry.describe(name))
    present = {**(origins["application"] or {}), **(origins["registered"] or {})}
    for key, value in options.items() if present else ():
        if not _is_equal(key, present.get(key), value):
            display_value = value if key == ROOT else "***"
            accepted = "what the application has: choose another name"
            raise OptionError(f"{setting}.{key}", display_value, accepted, problem="is set already")
    registry.register(name, {**options, **present})
    spark.conf.set(setting, _class_of(name))


def trusted_options(name: str, origins: Origins) -> dict[str, str]:
    """Returns the options of a catalog from the application and the driver's program.

    Raises:
        OptionError: A session has set the catalog or an option of the catalog; or `SET` and the
            Spark UI would show the value of an option of the object store.
    """
    application, registered = origins["application"], origins["registered"]
    if application is None and registered is None:
        raise OptionError(
            setting_of(name),
            _class_of(name),
            "catalogs of the application: of its SparkConf, of configure(builder, catalogs=...), or of "
            f"lance_spark.catalog(spark, {name!r}, ...) in the driver's program",
            problem="was SET in the session",
        )
    options: dict[str, str] = {**(application or {}), **(registered or {})}
    for key, value in origins["session"].items():
        if not _is_equal(key, options.get(key), value):
            setting = setting_of(name, key)
            raise OptionError(
                setting,
                "***",
                f"what the application says of the catalog: RESET {setting}; a session cannot change a catalog",
                problem="was SET in the session",
            )
    if origins["shown"]:
        raise OptionError(
            REDACTION,
            origins["redaction"],
            f"a pattern that covers options of object stores. Add to the settings of the application: {REDACTION}="
            f"{redaction_with_storage(origins['redaction'])}",
            problem=f"shows the value of {setting_of(name, min(origins['shown']))} to every user",
        )
    return options


def allows_stored_code(spark: SparkSession, folder: str) -> bool:
    """Tells whether the application has a catalog in a folder that lets SQL run stored UDFs.

    Reads only the application's `SparkConf`, because any SQL user can `SET` settings of a session.
    A session of Spark Connect has no such configuration.
    """
    if not is_classic(spark):
        return False
    settings = dict(spark.sparkContext.getConf().getAll())
    names = [
        key.rpartition(".")[2] for key in settings if re.fullmatch(r"spark\.sql\.catalog\.\w+", key)
    ]
    return any(
        settings[setting_of(name)] == _class_of(name)
        and settings.get(setting_of(name, ALLOW_STORED_CODE)) == "true"
        and normalize_uri(settings.get(setting_of(name, ROOT), "/")) == folder
        for name in names
    )


def redaction_with_storage(pattern: str | None) -> str:
    """Returns a pattern of :data:`REDACTION`, by default Spark's own, with options of stores."""
    return (
        pattern
        if pattern is not None and _REDACTED in pattern
        else f"{pattern or _REDACTED_BY_SPARK}|{_REDACTED}"
    )


def _class_of(name: str) -> str:
    """Returns the value of `spark.sql.catalog.<name>`: a class of lance-spark.jar."""
    return (
        "lancespark.LanceSessionCatalog" if name == SESSION_CATALOG else "lancespark.LanceCatalog"
    )


def _is_equal(key: str, present: str | None, value: str) -> bool:
    return present == value or (
        key == ROOT and present is not None and normalize_uri(present) == normalize_uri(value)
    )
