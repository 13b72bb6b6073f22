"""Spark sessions, classic or over Connect: creation, settings, tags and number of slots."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark.errors import OptionError, SparkStartError
from lance_spark.jvm.gateway import is_classic
from lance_spark.session.configuration import configure, find_conf_folder

_SIZES = (
    "spark.cores.max",
    "spark.executor.instances",
    "spark.executor.cores",
    "spark.task.cpus",
)
_PROFILE_MASTERS = ("spark://", "yarn", "k8s://", "local-cluster[")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")


def session_or_local(spark: SparkSession | None) -> SparkSession:
    """Returns the given session, the active session, or a new local session on all cores."""
    return spark or SparkSession.getActiveSession() or make_session()


def session_time_zone(spark: SparkSession | None = None) -> str:
    """Returns the time zone of a session, by default of the active or a new local session."""
    zone: str = session_or_local(spark).conf.get("spark.sql.session.timeZone")  # type: ignore[assignment]
    return zone


def application_setting(spark: SparkSession, key: str) -> str | None:
    """Returns a setting of the application's `SparkConf`; None without the setting.

    Settings that choose code, folders or credentials are read with this function. Any user of a
    shared server can `SET` a setting in a session, so the session's value is only compared.

    Raises:
        OptionError: The session has another value.
    """
    session_value = spark.conf.get(key, None)
    value = (
        _read_own_setting(spark, key)
        if is_classic(spark)
        else _read_server_setting(spark, key, session_value)
    )
    if session_value is not None and session_value != value:
        raise OptionError(
            key,
            session_value[:100],
            f"the setting of the application: RESET {key}; give the setting to the builder, spark-submit or "
            "spark-defaults.conf before the application starts",
            problem="was SET in the session",
        )
    return value


def _read_own_setting(spark: SparkSession, key: str) -> str | None:
    """Returns a setting of the application in this process."""
    return spark.sparkContext._conf.get(key)  # noqa: SLF001 - `getConf` copies all settings


def _read_server_setting(spark: SparkSession, key: str, session_value: str | None) -> str | None:
    """Returns a setting of a Connect server: a new session has only the server's settings."""
    if session_value is None:
        return None
    connected: Any = spark
    if hasattr(connected, "newSession"):  # from PySpark 4.3 on
        new_session = connected.newSession()
    else:
        new_session = type(connected)(connection=connected.client._builder)  # noqa: SLF001
    try:
        value: str | None = new_session.conf.get(key, None)
    finally:
        # `stop()` would also end a server started by this process.
        new_session.client.release_session()
    return value


def make_session(master: str = "local[*,4]") -> SparkSession:
    """Makes a session, or returns the session of this process.

    Args:
        master: A Spark master, or `sc://...` for a server of Spark Connect.

    Raises:
        SparkStartError: Spark did not start.
    """
    try:
        return _start_session(master)
    except PySparkException as error:
        raise SparkStartError(_explain_start(master, str(error))) from error
    except Py4JJavaError as error:
        raise SparkStartError(_explain_start(master, str(error.java_exception))) from error


def _explain_start(master: str, reason: str) -> str:
    """Returns a one-line message for a session that did not start."""
    if "JAVA_GATEWAY_EXITED" in reason:
        return (
            f"Spark's JVM did not start for the master {master}. Install Java 17 or newer, or set JAVA_HOME to the "
            "folder of such a Java."
        )
    first = reason.strip().partition("\n")[0]
    return f"Spark did not start with the master {master}: {first}. Check the name of the master."


def _start_session(master: str) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.appName("lance-spark").remote(master).getOrCreate()
    with warnings.catch_warnings():
        # The start of the JVM forks this process and execs at once: no code of Lance runs in
        # between.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        builder = (
            SparkSession.builder.master(master)
            .appName("lance-spark")
            .config("spark.ui.showConsoleProgress", "false")
            .config(map=_quiet_start())
        )
        return configure(builder).getOrCreate()


def _quiet_start() -> dict[str, bool | float | int | str | None]:
    """Returns settings against log4j's start-up lines; none if the user configures logging."""
    if any(find_conf_folder().glob("log4j2*")):
        return {}
    configuration = Path(__file__).parents[1].joinpath("log4j2.properties").as_uri()
    return {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={configuration}"}


def stop_console_bar() -> None:
    """Ends the progress bar of Spark's JVM on this process's terminal, if present.

    The bar cannot be started again in this session, and cannot share the terminal's last line.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark asks itself so too
    if context is None:
        return
    bar = context._jsc.sc().progressBar()  # noqa: SLF001
    if bar.isDefined():
        bar.get().stop()


@contextmanager
def active_in_thread(spark: SparkSession) -> Iterator[None]:
    """Makes a session the active session of this thread during the block.

    Spark finds Python data sources through the active session, and only the thread that made a
    session has that session active.
    """
    if not is_classic(spark):
        yield
        return
    # PySpark's way in is private; it changed the class's name with Spark 4.
    sessions = SparkSession._get_j_spark_session_class(spark.sparkContext._jvm)  # noqa: SLF001
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def is_local(spark: SparkSession) -> bool:
    """Tells whether the tasks run in the driver's process, with the master `local[...]`."""
    return _LOCAL.fullmatch(spark.conf.get("spark.master", None) or "") is not None


def has_profiles(spark: SparkSession) -> bool:
    """Tells whether the cluster supports resource profiles of tasks."""
    return (spark.conf.get("spark.master", None) or "").startswith(_PROFILE_MASTERS)


def is_dynamic(spark: SparkSession) -> bool:
    """Tells whether the number of executors changes with the load."""
    return (spark.conf.get("spark.dynamicAllocation.enabled", None) or "false").lower() == "true"


def conf_bytes(text: str | None) -> int | None:
    """Returns a memory setting of Spark in bytes. The unit of a plain number is MiB."""
    if not text:
        return None
    number, unit = text.rstrip("bBkKmMgGtT"), text.lstrip("0123456789").lower().rstrip("b") or "m"
    return int(number) << {"k": 10, "m": 20, "g": 30, "t": 40}[unit]


def known_slots(spark: SparkSession) -> int | None:
    """Returns the maximum number of concurrent tasks of the cluster; None if unknown or changing.

    A local master names the number. A cluster has a fixed size if the session sets
    `spark.cores.max`, or the number of executors and their cores. Running executors are no bound:
    others may still be starting.
    """
    local = _LOCAL.fullmatch(spark.conf.get("spark.master", None) or "")
    if local is not None:
        return _count_local_slots(spark, local[1])
    if is_dynamic(spark):
        return None
    conf = {key: spark.conf.get(key, None) for key in _SIZES}
    cores = _count_cores(conf)
    return None if cores is None else max(1, cores // int(conf["spark.task.cpus"] or 1))


def _count_local_slots(spark: SparkSession, threads: str | None) -> int | None:
    """Returns the slots of the master `local[threads]`."""
    if threads != "*":
        return int(threads or 1)
    return spark.sparkContext.defaultParallelism if is_classic(spark) else None


def _count_cores(conf: Mapping[str, str | None]) -> int | None:
    """Returns the cores of a cluster of fixed size; None if unknown."""
    if conf["spark.cores.max"] is not None:
        return int(conf["spark.cores.max"])
    executors, cores = conf["spark.executor.instances"], conf["spark.executor.cores"]
    return int(executors) * int(cores) if executors and cores else None


@contextmanager
def tagged(spark: SparkSession, tag: str, description: str) -> Iterator[None]:
    """Tags the Spark jobs started by this thread during the block.

    :func:`cancel` finds the jobs by their tag, and the Spark UI shows the description.
    """
    if not is_classic(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    # Measured: a classic session's own tags do not reach jobs started by PySpark, but the context's
    # tags do.
    context = spark.sparkContext
    context.addJobTag(tag)
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.removeJobTag(tag)
        context.setJobDescription(None)  # type: ignore[arg-type]


def cancel(spark: SparkSession, tag: str) -> None:
    """Cancels all Spark jobs with a tag, from any thread; their tasks are killed within seconds."""
    if is_classic(spark):
        spark.sparkContext.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)
