"""Fixtures for all tests: the Spark session of the process, and a location for a table."""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pyspark
import pytest
from hypothesis import settings
from pyspark import SparkContext
from pyspark.sql import SparkSession

import lance_spark
from java.build import ensure_jar
from tests.support.java_classes import JVM_OPTIONS, LONG_JVM
from tests.support.java_names import remember_names

# Assertions of these helpers must show their values, as in tests. Register the modules before any test imports them.
pytest.register_assert_rewrite(
    *(f"tests.lance_spark.conflicts.{name}" for name in ("jobs", "others", "writes"))
)

# Hypothesis allows 200 ms for an example, and an example takes longer on a machine with other work.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Compile the jar if `make` did not, so that no test runs outdated Java.
ensure_jar()

remember_names()

# Spark's workers run PYSPARK_PYTHON, else python3 from the PATH, and not the interpreter of a virtual environment.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["SPARK_SUBMIT_OPTS"] = f"{JVM_OPTIONS} {LONG_JVM}"

_T = TypeVar("_T", pytest.Item, list[pytest.Item])

OVER_CONNECT = "LANCE_SPARK_TEST_CONNECT"
"""Environment variable: runs the tests of the table API over Spark Connect."""


def pytest_configure(config: pytest.Config) -> None:
    """Ignores a warning of PySpark 4.1 about open sockets."""
    if pyspark.__version__ < "4.2":
        config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with a session as `spark`, and tests and cases outside the `sample` of the quick suite as `long`.

    Tests of clusters and servers come first, because they mostly wait and leave the cores to other pytest processes.
    """
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if {"spark", "plain_spark"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
        if item.get_closest_marker("sample") and not item.get_closest_marker("long"):
            module, _, name = item.nodeid.partition("[")[0].rpartition("::")
            tests.setdefault(module, {}).setdefault(name, []).append(item)
    for module in tests.values():
        for item in left_out_of(list(module.values())):
            item.add_marker("long")
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)


def left_out_of(module: list[list[pytest.Item]]) -> list[pytest.Item]:
    """Returns the cases outside the sample of a module: of each test, and of all tests with their cases.

    A hash of the name decides, so every machine has the same sample. Tests that show a guarantee, and tests with a
    `sample` of their own, are in the sample in any case.
    """
    samples = [cases[0].get_closest_marker("sample") for cases in module]
    kept = [
        _sample(cases, mark.args[0])
        for cases, mark in zip(module, samples, strict=True)
        if mark is not None
    ]
    one_in = max(mark.kwargs.get("tests", 1) for mark in samples if mark is not None)
    chosen = [cases for cases in kept if _is_chosen(cases[0])]
    kept_items = {item for cases in [*chosen, *_sample(kept, one_in)] for item in cases}
    return [item for cases in module for item in cases if item not in kept_items]


def _is_chosen(item: pytest.Item) -> bool:
    return any(marker.name in ("guarantee", "sample") for marker in item.own_markers)


def _sample(candidates: list[_T], one_in: int) -> list[_T]:
    candidates = sorted(candidates, key=lambda candidate: zlib.crc32(_name_of(candidate).encode()))
    return candidates[: math.ceil(len(candidates) / one_in)]


def _name_of(candidate: pytest.Item | list[pytest.Item]) -> str:
    return (
        candidate[0].nodeid.partition("[")[0] if isinstance(candidate, list) else candidate.nodeid
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two local cores with the planner rule; in the Connect run of `make test-long`, a Connect session
    without the rule.
    """
    if os.environ.get(OVER_CONNECT):
        # Hide the variable from the JVM: otherwise PySpark takes any free port, and two processes may choose the same
        # port.
        SparkContext._ensure_initialized()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("SPARK_TESTING", "1")
            remote = (
                SparkSession.builder.remote("local[2]")
                .config("spark.sql.session.timeZone", "UTC")
                .getOrCreate()
            )
        yield remote
        remote.stop()
        return
    home = tmp_path_factory.mktemp("spark")
    session = lance_spark.configure(
        SparkSession.builder.master("local[2]")
        .appName("lance-spark tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.lance.environments.dir", str(home / "environments"))
        .config("spark.python.worker.reuse", "true")
        # One test starts workers with a Python without packages, where the daemon of `configure` would die.
        .config("spark.python.daemon.module", "tests.support.daemon")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.ui.enabled", "false")
        # Data of completed queries fills the heap, and makes each full collection up to a second slower.
        .config("spark.sql.ui.retainedExecutions", "50")
        .config("spark.ui.retainedJobs", "50")
        .config("spark.ui.retainedStages", "50")
        .config("spark.ui.retainedTasks", "500")
        .config("spark.ui.showConsoleProgress", "false")
    ).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    assert lance_spark.enable_pushdown(session), "the planner rule was not installed"
    yield session
    session.stop()


@pytest.fixture(scope="session")
def plain_spark(spark: SparkSession) -> SparkSession:
    """Another session of the same application, without the planner rule. Optimizer rules belong to a session."""
    session = spark.newSession()
    lance_spark.disable_pushdown(session)
    return session


@pytest.fixture
def table_path(tmp_path: Path) -> str:
    """A location without a table."""
    return str(tmp_path / "table.lance")
