"""A web UI of Spark in the JVM of the tests, whose session has none."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from lance_spark.jvm.jar import load


def fetch(url: str) -> str:
    """Returns the page of a URL."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@contextmanager
def web_ui(spark: SparkSession) -> Iterator[str]:
    """Starts a web UI with the tab "Lance", and yields the URL of the UI."""
    jvm: Any = spark._jvm
    context: Any = spark._jsc.sc()
    conf = context.getConf().set("spark.ui.port", "0")
    managers, store = jvm.org.apache.spark.SecurityManager, context.statusStore()
    security = managers(
        conf, jvm.scala.Option.empty(), getattr(managers, "$lessinit$greater$default$3")()
    )
    some = jvm.scala.Option.apply(context)
    ui = jvm.org.apache.spark.ui.SparkUI.create(
        some, store, conf, security, "tests", "", 0, spark.version
    )
    ui.bind()
    ui.attachAllHandlers()
    plugin: Any = load(spark.sparkContext._gateway, "lancespark.LanceWebUi").newInstance()
    listener = plugin.createListeners(conf, store.store()).apply(0)
    context.addSparkListener(listener)
    plugin.setupUI(ui)
    try:
        yield f"http://127.0.0.1:{ui.boundPort()}"
    finally:
        context.removeSparkListener(listener)
        ui.stop()


def wait_for_events(spark: SparkSession) -> None:
    """Waits until the listeners have all events."""
    spark._jsc.sc().listenerBus().waitUntilEmpty()


def wait_for_text(url: str, text: str, *, seconds: float = 60) -> str:
    """Returns a page as soon as the page has a text."""
    deadline = time.monotonic() + seconds
    while text not in (page := fetch(url)):
        assert time.monotonic() < deadline, page
        time.sleep(0.2)
    return page
