"""Settings of the application, which no session can change: :func:`application_setting`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from lance_spark.errors import OptionError
from lance_spark.jvm.gateway import is_classic


def application_setting(spark: SparkSession, key: str) -> str | None:
    """Returns a setting of the application's `SparkConf`; None without the setting.

    Settings that choose code, folders or credentials are read with this function. Any user of a
    shared server can `SET` a setting in a session, so the session's value is only compared.

    Raises:
        OptionError: The session has another value.
    """
    session_value = spark.conf.get(key, None)
    value = spark.sparkContext._conf.get(key) if is_classic(spark) else _read_server_setting(spark, key, session_value)  # noqa: SLF001 - `getConf` copies all settings
    if session_value is not None and session_value != value:
        raise OptionError(
            key,
            session_value[:100],
            f"the setting of the application: RESET {key}; give the setting to the builder, spark-submit or "
            "spark-defaults.conf before the application starts",
            problem="was SET in the session",
        )
    return value


def _read_server_setting(spark: SparkSession, key: str, session_value: str | None) -> str | None:
    """Returns a setting of a Connect server: a new session has only the server's settings."""
    if session_value is None:
        return None
    connected: Any = spark
    is_public = hasattr(connected, "newSession")  # from PySpark 4.3 on
    new_session = connected.newSession() if is_public else type(connected)(connection=connected.client._builder)  # noqa: SLF001
    try:
        value: str | None = new_session.conf.get(key, None)
    finally:
        # `stop()` would also end a server started by this process.
        new_session.client.release_session()
    return value
