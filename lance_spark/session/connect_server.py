"""A Spark Connect server with the planner rule and catalogs for its clients: :func:`serve`.

A catalog calls the Python process that drives the JVM, and `spark-submit` of Spark's own server
class has no such process. This server is therefore a Python process with a session and Spark's
plugin for Connect.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from lance_spark.errors import LanceSparkError, OptionError
from lance_spark.pushdown.rule import enable_pushdown
from lance_spark.session.configuration import configure

_PLUGINS, _CONNECT = "spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin"


def serve(
    master: str,
    host: str,
    port: int,
    *,
    catalogs: Mapping[str, str],
    settings: Mapping[str, str],
    allow_stored_code: bool = False,
    ready: Callable[[str], None],
) -> None:
    """Runs a Spark Connect server in this process, until SIGINT or SIGTERM.

    Args:
        master: The master of the tasks.
        host: Address to listen at. Clients need no password without the setting
            `spark.connect.authenticate.token`.
        port: Port to listen at.
        catalogs: Folders of Lance tables by the names of their catalogs.
        settings: Further settings of Spark.
        allow_stored_code: Whether SQL may run UDFs stored with tables of the catalogs.
        ready: Called with the URL for clients, once they can connect.

    Raises:
        OptionError: The JVM has no planner rule.
        LanceSparkError: The JVM ended by itself.
    """
    plugins = [name for name in settings.get(_PLUGINS, "").split(",") if name]
    builder = (
        SparkSession.builder.master(master)
        .appName("lance-spark connect-server")
        .config(map=dict(settings))
        .config(_PLUGINS, ",".join([*plugins, _CONNECT]))
        .config("spark.connect.grpc.binding.address", host)
        .config("spark.connect.grpc.binding.port", str(port))
    )
    spark = configure(builder, catalogs=catalogs, allow_stored_code=allow_stored_code).getOrCreate()
    try:
        if not enable_pushdown(spark):
            raise OptionError(
                "SPARK_HOME", spark.version, "a release of Spark that this package supports"
            )
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public way to the JVM's process
        ended: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: ended.append(number))
        ready(f"sc://{host}:{port}")
        while not ended:
            if gateway.proc.poll() is not None:
                raise LanceSparkError(
                    f"The JVM of the server ended by itself, with code {gateway.proc.returncode}."
                )
            time.sleep(0.5)
    finally:
        spark.stop()
