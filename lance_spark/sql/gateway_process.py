"""The Python process of a JVM without a Python driver: `python -m lance_spark.sql.gateway_process`.

PythonProcess.java starts the process for `spark-sql`, the Thrift server, `spark-shell` and a stock
Connect server. The process attaches to the JVM like a program under `spark-submit`, serves the
commands of the catalog (:mod:`lance_spark.jvm.gateway`), and ends with the JVM.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lance_spark.jvm.gateway import failed, serve

_CONNECTION = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
"""Environment variables of PySpark. Children of this process do not get them."""


def attach() -> None:
    """Attaches this process to the JVM that started it, and serves the JVM's commands."""
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    for name in _CONNECTION:
        del os.environ[name]
    spark = gateway.jvm.org.apache.spark
    java_context = spark.api.java.JavaSparkContext(spark.SparkContext.getOrCreate())
    context = SparkContext(
        conf=SparkConf(_jconf=java_context.getConf()), gateway=gateway, jsc=java_context
    )
    # PySpark makes its first session the default of the JVM. The JVM's own default stays.
    SparkSession(context, spark.sql.classic.SparkSession.builder().getOrCreate())
    # Control-C at a terminal is for the JVM. SparkContext has set a handler that cancels all jobs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(gateway)


def main() -> None:
    """Answers with one line of JSON, and waits for the end of the JVM."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    # Children of this process inherit neither pipe. The JVM reads a single line of answers, and a
    # child that writes more would wait for ever.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        attach()
        answer = {"ready": "yes"}
    except Exception as error:  # noqa: BLE001 - the JVM raises the error for the user of the catalog
        answer = failed(error)
    print(json.dumps(answer), file=answers, flush=True)
    requests.read()
    # The JVM and its context are gone, and an orderly exit would stop the context.
    os._exit(0)


if __name__ == "__main__":
    main()
