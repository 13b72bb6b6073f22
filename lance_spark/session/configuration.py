"""Recommended settings of a Spark session for Lance tables: :func:`configure`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lance_spark.arguments import ARGUMENTS
from lance_spark.interpreter import use_this_interpreter
from lance_spark.jvm.gateway import is_classic
from lance_spark.jvm.jar import EXTENSIONS, add_jar, find_jar
from lance_spark.pushdown.rule import ARROW_SETTINGS, require_pushdown
from lance_spark.session.catalogs import (
    REDACTION,
    catalog_options,
    redaction_with_storage,
    register_catalog,
    setting_of,
    settings_of,
)

DAEMON = "lance_spark.session.daemon"

_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
_DAEMON = {"spark.python.daemon.module": DAEMON}

_ARROW = " ".join(f"-D{name}={value}" for name, value in ARROW_SETTINGS.items())

_ARGUMENTS = {
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--jars": "spark.jars",
    "--master": "spark.master",
    "--properties-file": "--properties-file",
}
"""Arguments of spark-submit by the names of settings."""

_SETTING = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)")

_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
"""Default Java options stand before `extraJavaOptions`, which stay the user's."""


@ARGUMENTS.function
def configure(
    builder: SparkSession.Builder,
    *,
    catalogs: Mapping[str, str] | None = None,
    allow_stored_code: bool = False,
) -> SparkSession.Builder:
    """Returns a session builder with the recommended settings for Lance tables.

    Call `configure` last, and then `getOrCreate()` of the returned builder. The session has the
    planner rule and the table functions of searches. A setting of the builder,
    `spark-defaults.conf` or `spark-submit` stays unchanged. The page docs/performance.md describes
    gain and risk of each setting:

    - The session loads the Java of this package as an extension (`spark.jars` and
      `spark.sql.extensions`, in addition to their present values).
    - Spark reaches Python workers by UNIX sockets (`spark.python.unix.domain.socket.enabled`).
    - Java reads values of Arrow batches without bounds checks (`defaultJavaOptions` of driver and
      executors).
    - With a local master, workers run the interpreter of this process, unless PYSPARK_PYTHON is
      set, and :mod:`lance_spark.session.daemon` forks them (`spark.python.daemon.module`).
    - `SET`, plans, the Spark UI and the event log hide options of object stores: the pattern in
      `spark.redaction.regex` gets a branch for these options.

    A running application only gets the rule, the functions and the catalogs, because Spark reads
    the other settings at its start. Over Spark Connect the server has its own settings, and
    `configure` changes nothing.

    Args:
        builder: Builder of the session.
        catalogs: Folders of Lance tables, or URIs of object stores, by the names of their catalogs
            in Spark SQL: `{"lance": "/data/tables"}`. Options of a store are settings:
            `spark.sql.catalog.<name>.storage.<option>`.
        allow_stored_code: Whether SQL may run UDFs stored with tables of these catalogs (`CALL
            <name>.system.backfill`). Writers of the tables choose this code.

    Raises:
        OptionError: The name of a catalog is not valid in Spark SQL.
        GatewayError: The JVM is running already and takes no jar, or the package has no jar.
            `getOrCreate()` of the builder also raises this error, for a session without the Java of
            this package.

    Example:
        >>> catalogs = {"lance": "/data/tables"}
        >>> spark = lance_spark.configure(SparkSession.builder, catalogs=catalogs).getOrCreate()
    """
    if "spark.remote" in builder._options or os.environ.get("SPARK_REMOTE"):  # noqa: SLF001 - there is no other way
        return builder
    settings = _read_settings(builder)
    if "spark.remote" in settings:
        return builder
    options = {
        name: catalog_options(root, allow_stored_code=allow_stored_code)
        for name, root in (catalogs or {}).items()
    }
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - PySpark asks itself so too
        return _LanceBuilder(
            builder,
            {
                name: catalog_settings | _take_options(builder, name)
                for name, catalog_settings in options.items()
            },
        )
    for name, catalog_settings in options.items():
        builder.config(map={**settings_of(name, catalog_settings)})
    _configure_application(builder, settings)
    return _LanceBuilder(
        builder, {}, starts_jvm=not _has_jvm() and "spark.jars" in _parse_submit_arguments()
    )


def _configure_application(builder: SparkSession.Builder, settings: Mapping[str, str]) -> None:
    """Applies the recommended settings, which Spark reads at the start of an application."""
    _extend_session(builder, settings)
    builder.config(REDACTION, redaction_with_storage(settings.get(REDACTION)))
    is_local = settings.get("spark.master", "local").startswith("local")
    for key, value in (_SOCKETS | _DAEMON if is_local else _SOCKETS).items():
        if key not in settings:
            builder.config(key, value)
    for key in _JAVA_OPTIONS:
        java_options = settings.get(key, "")
        if "arrow.enable_" not in java_options + settings.get(key.replace("default", "extra"), ""):
            builder.config(key, f"{java_options} {_ARROW}".strip())
    if is_local and "spark.pyspark.python" not in settings:
        use_this_interpreter()


def _take_options(builder: Any, name: str) -> dict[str, str]:  # noqa: ANN401 - a builder, whose options are private
    """Removes the options of a catalog from a builder: a session would show the options."""
    settings, prefix = builder._options, setting_of(name, "")  # noqa: SLF001 - there is no other way
    return {
        key.removeprefix(prefix): str(settings.pop(key))
        for key in list(settings)
        if key.startswith(prefix)
    }


class _LanceBuilder(SparkSession.Builder):
    """The builder of a user; its session also gets features without a setting in Spark."""

    def __init__(
        self,
        builder: Any,  # noqa: ANN401 - as below
        catalogs: Mapping[str, Mapping[str, str]],
        *,
        starts_jvm: bool = False,
    ) -> None:
        super().__init__()
        self._builder, self._catalogs, self._starts_jvm = builder, catalogs, starts_jvm
        self._options = builder._options  # noqa: SLF001 - there is no other way

    def getOrCreate(self) -> SparkSession:  # noqa: N802 - Spark's name
        """Returns the session, with the planner rule, the table functions, and the catalogs.

        Raises:
            GatewayError: The session does not take the Java of this package.
        """
        from lance_spark.read.ranking.functions import register_functions

        if self._starts_jvm:
            _start_jvm(self._options)
        session: SparkSession = self._builder.getOrCreate()
        if is_classic(session):
            require_pushdown(session)
        for name, options in self._catalogs.items():
            register_catalog(session, name, options)
        register_functions(session)
        return session


def _extend_session(builder: Any, settings: Mapping[str, str]) -> None:  # noqa: ANN401 - as below
    """Has the session load the Java of this package; a running JVM gets the jar at once."""
    jar = find_jar().as_uri()
    if _has_jvm():
        add_jar(SparkContext._gateway)  # noqa: SLF001 - as above
    for key, value in {"spark.jars": jar, "spark.sql.extensions": EXTENSIONS}.items():
        present = [part.strip() for part in settings.get(key, "").split(",") if part.strip()]
        builder.config(key, ",".join([*present, *([] if value in present else [value])]))


def _read_settings(builder: Any) -> Mapping[str, str]:  # noqa: ANN401 - a builder, whose options are private
    """Returns the present settings of all sources."""
    options = {key: str(value) for key, value in builder._options.items()}  # noqa: SLF001 - there is no other way
    if _has_jvm():
        # The JVM has read the file and the arguments of spark-submit. PySpark asks an attached JVM.
        SparkContext._ensure_initialized()  # noqa: SLF001 - as above
        return {**dict(SparkConf().getAll()), **options}
    arguments = _parse_submit_arguments()
    return {
        **_read_spark_defaults(arguments.pop("--properties-file", None)),
        **arguments,
        **options,
    }


def _has_jvm() -> bool:
    return SparkContext._gateway is not None or bool(os.environ.get("PYSPARK_GATEWAY_PORT"))  # noqa: SLF001 - as above


def _start_jvm(options: Mapping[str, str]) -> None:
    """Starts the JVM with the settings of a builder, and adds the jar.

    The argument `--jars` replaces the setting `spark.jars` while a JVM starts.
    """
    conf = SparkConf()
    for key, value in options.items():
        conf.set(key, value)
    SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001 - as above
    add_jar(SparkContext._gateway)  # noqa: SLF001 - as above


def _parse_submit_arguments() -> dict[str, str]:
    """Returns the settings in PYSPARK_SUBMIT_ARGS, with which PySpark starts the JVM."""
    settings: dict[str, str] = {}
    explicit: dict[str, str] = {}
    words = iter(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--conf", "-c"):
            key, _, text = (value if equals else next(words, "")).partition("=")
            settings[key] = text
        elif name in _ARGUMENTS:
            explicit[_ARGUMENTS[name]] = value if equals else next(words, "")
    return {**settings, **explicit}


def _read_spark_defaults(properties: str | None) -> dict[str, str]:
    """Returns the settings of a file of properties, by default of `spark-defaults.conf`."""
    file = Path(properties) if properties else find_conf_folder() / "spark-defaults.conf"
    if not file.is_file():
        return {}
    lines = (_SETTING.match(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {line[1]: line[2].strip() for line in lines if line}


def find_conf_folder() -> Path:
    """Returns the folder of Spark's configuration files."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf")
