"""Settings of a Spark session that make Lance tables quick: :func:`configure`."""

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
from lance_spark.pushdown.java_classes import EXTENSIONS, add_jar, find_jar
from lance_spark.pushdown.rule import ARROW_SETTINGS, is_classic, require_pushdown
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
"""They stand before `extraJavaOptions`, which stay the user's."""


@ARGUMENTS.function
def configure(
    builder: SparkSession.Builder, *, catalogs: Mapping[str, str] | None = None, allow_stored_code: bool = False
) -> SparkSession.Builder:
    """Returns the builder of a session with the settings that make Lance tables quick.

    Call it last, and `getOrCreate()` of the builder that it returns. The session then has the
    planner rule and the table functions of searches. A setting that the builder,
    `spark-defaults.conf` or `spark-submit` has stays as it is. What each is worth and what it
    risks is in docs/performance.md:

    - the Java of this package is loaded, and extends the session (`spark.jars` and
      `spark.sql.extensions`, in addition to what they have);
    - Python workers are reached by UNIX sockets (`spark.python.unix.domain.socket.enabled`);
    - Java takes values out of Arrow batches without checking their bounds (`defaultJavaOptions` of
      driver and executors);
    - with a local master, workers run the interpreter that runs this, unless PYSPARK_PYTHON says
      otherwise, and are forked by :mod:`lance_spark.session.daemon` (`spark.python.daemon.module`);
    - `SET`, plans, the Spark UI and the event log hide options of object stores: the pattern in
      `spark.redaction.regex` gets a branch for them.

    A running application only gets the rule, the functions and the catalogs, since Spark reads the
    rest at its start. Over Spark Connect the server has its settings, and nothing is changed.

    Args:
        builder: What makes the session.
        catalogs: Folders of Lance tables, or URIs of object stores, by the names of the catalogs
            that Spark SQL is to have of them: `{"lance": "/data/tables"}`. Options of a store are
            settings: `spark.sql.catalog.<name>.storage.<option>`.
        allow_stored_code: Whether SQL may run UDFs that are stored with tables of these catalogs
            (`CALL <name>.system.backfill`). Writers of the tables choose this code.

    Raises:
        OptionError: Spark SQL cannot have a catalog of such a name.
        GatewayError: The JVM runs already, and takes no jar; or the package has no jar. So does
            `getOrCreate()` of the builder, for a session without the Java of this package.

    Example:
        >>> catalogs = {"lance": "/data/tables"}
        >>> spark = lance_spark.configure(SparkSession.builder, catalogs=catalogs).getOrCreate()
    """
    if "spark.remote" in builder._options or os.environ.get("SPARK_REMOTE"):  # noqa: SLF001 - there is no other way
        return builder
    given = _given(builder)
    if "spark.remote" in given:
        return builder
    options = {
        name: catalog_options(root, allow_stored_code=allow_stored_code) for name, root in (catalogs or {}).items()
    }
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - PySpark asks itself so too
        return _LanceBuilder(builder, {name: own | _taken(builder, name) for name, own in options.items()})
    for name, own in options.items():
        builder.config(map={**settings_of(name, own)})
    _extend_session(builder, given)
    builder.config(REDACTION, redaction_with_storage(given.get(REDACTION)))
    is_local = given.get("spark.master", "local").startswith("local")
    for key, value in (_SOCKETS | _DAEMON if is_local else _SOCKETS).items():
        if key not in given:
            builder.config(key, value)
    for key in _JAVA_OPTIONS:
        said = given.get(key, "")
        if "arrow.enable_" not in said + given.get(key.replace("default", "extra"), ""):
            builder.config(key, f"{said} {_ARROW}".strip())
    if is_local and "spark.pyspark.python" not in given:
        use_this_interpreter()
    return _LanceBuilder(builder, {}, starts_jvm=not _has_jvm() and "spark.jars" in _submit_arguments())


def _taken(builder: Any, name: str) -> dict[str, str]:  # noqa: ANN401 - a builder, whose options are private
    """Takes the options of a catalog out of a builder: a session would show them."""
    settings, prefix = builder._options, setting_of(name, "")  # noqa: SLF001 - there is no other way
    return {key.removeprefix(prefix): str(settings.pop(key)) for key in list(settings) if key.startswith(prefix)}


class _LanceBuilder(SparkSession.Builder):
    """The builder of a user, whose session also gets what Spark has no setting for."""

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
        from lance_spark.read.search.functions import register_functions

        if self._starts_jvm:
            _start_jvm(self._options)
        session: SparkSession = self._builder.getOrCreate()
        if is_classic(session):
            require_pushdown(session)
        for name, options in self._catalogs.items():
            register_catalog(session, name, options)
        register_functions(session)
        return session


def _extend_session(builder: Any, given: Mapping[str, str]) -> None:  # noqa: ANN401 - as below
    """Has the session load the Java of this package; a JVM that runs gets the jar at once."""
    jar = find_jar().as_uri()
    if _has_jvm():
        add_jar(SparkContext._gateway)  # noqa: SLF001 - as above
    for key, value in {"spark.jars": jar, "spark.sql.extensions": EXTENSIONS}.items():
        present = [part.strip() for part in given.get(key, "").split(",") if part.strip()]
        builder.config(key, ",".join([*present, *([] if value in present else [value])]))


def _given(builder: Any) -> Mapping[str, str]:  # noqa: ANN401 - a builder, whose options are private
    """Returns what has been set already, wherever."""
    options = {key: str(value) for key, value in builder._options.items()}  # noqa: SLF001 - there is no other way
    if _has_jvm():
        # The JVM has read the file and the arguments of spark-submit. PySpark asks an attached JVM.
        SparkContext._ensure_initialized()  # noqa: SLF001 - as above
        return {**dict(SparkConf().getAll()), **options}
    arguments = _submit_arguments()
    return {**_spark_defaults(arguments.pop("--properties-file", None)), **arguments, **options}


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


def _submit_arguments() -> dict[str, str]:
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


def _spark_defaults(properties: str | None) -> dict[str, str]:
    """Returns the settings of a file of properties, by default of `spark-defaults.conf`."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    file = Path(properties or Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf", "spark-defaults.conf"))
    if not file.is_file():
        return {}
    lines = (_SETTING.match(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {line[1]: line[2].strip() for line in lines if line}
