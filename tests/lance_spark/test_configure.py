"""`configure` sets the fast settings of Lance, and keeps all settings of the user."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from lance_spark import SparkStartError, configure, enable_pushdown
from lance_spark.interpreter import end_quietly, quietly
from lance_spark.jvm.jar import find_jar
from lance_spark.session import sessions
from lance_spark.session.configuration import DAEMON
from tests.support.java_classes import JVM_OPTIONS

SOCKET, MODULE = "spark.python.unix.domain.socket.enabled", "spark.python.daemon.module"
DRIVER = "spark.driver.defaultJavaOptions"
REDACTION = "spark.redaction.regex"
JARS, EXTENSIONS = "spark.jars", "spark.sql.extensions"


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty configuration of Spark, in a process without a session."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def settings(builder: SparkSession.Builder) -> dict[str, str]:
    return dict(builder._options)


@pytest.mark.usefixtures("conf_dir")
def test_everything_is_set_where_nothing_was() -> None:
    actual = settings(configure(SparkSession.builder.master("local[1]")))
    assert (actual[SOCKET], actual[MODULE]) == ("true", DAEMON)
    assert (
        "enable_unsafe_memory_access=true"
        in actual[DRIVER]
        == actual[DRIVER.replace("driver", "executor")]
    )
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


OPTIONS = {
    "spark.sql.catalog.lance.storage.azure_storage_sas_key": True,
    "spark.sql.catalog.lance.storage.region": True,
    "spark.sql.catalog.lance.headers.x": True,
    "storage.headers": True,
    "option.storage.headers": True,
    "spark.sql.catalog.lance.root": False,
    "spark.storage.memoryMapThreshold": False,
}
"""Names of settings and options, and whether values are hidden."""


def hides(pattern: str) -> dict[str, bool]:
    return {
        name: re.search(pattern, name) is not None for name in ("MINE", "spark.password", *OPTIONS)
    }


@pytest.mark.usefixtures("conf_dir")
def test_options_of_object_stores_are_hidden_beside_what_spark_hides() -> None:
    once = settings(configure(SparkSession.builder.master("local[1]")))[REDACTION]
    assert hides(once) == {"MINE": False, "spark.password": True, **OPTIONS}
    again = configure(SparkSession.builder.master("local[1]").config(REDACTION, once))
    assert settings(again)[REDACTION] == once


def in_the_builder(settings: dict[str, str], _: Path) -> SparkSession.Builder:
    return SparkSession.builder.config(map={**settings})


def in_the_file(settings: dict[str, str], home: Path) -> SparkSession.Builder:
    separators = [" ", "=", "\t", " = "]
    lines = [f"{key}{separators[i % 4]}{value}" for i, (key, value) in enumerate(settings.items())]
    (home / "spark-defaults.conf").write_text("# ours\n\n" + "\n".join(lines) + "\n")
    return SparkSession.builder


def in_a_file_of_properties(settings: dict[str, str], home: Path) -> SparkSession.Builder:
    (home / "mine.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {home}/mine.conf pyspark-shell"
    return SparkSession.builder


def in_the_arguments(settings: dict[str, str], _: Path) -> SparkSession.Builder:
    words = [
        f"--conf={key}={value}"
        for key, value in settings.items()
        if key not in (JARS, "spark.master")
    ]
    words += [
        "--conf",
        "spark.jars=/not.jar",
        "--jars",
        settings[JARS],
        f"--master={settings['spark.master']}",
    ]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*words, "pyspark-shell"])
    return SparkSession.builder


@pytest.mark.parametrize(
    "builder_for", [in_the_builder, in_the_file, in_a_file_of_properties, in_the_arguments]
)
def test_settings_of_the_user_stay(
    builder_for: Callable[[dict[str, str], Path], SparkSession.Builder],
    conf_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    own = {
        SOCKET: "false",
        MODULE: "their.daemon",
        DRIVER: "-Dtheirs=1",
        "spark.executor.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=false",
        "spark.master": "spark://host:7077",
        REDACTION: "(?i)mine",
        JARS: "/their.jar",
        EXTENSIONS: "their.Extension",
    }
    actual = {**own, **settings(configure(builder_for(own, conf_dir)))}
    assert actual == own | {
        DRIVER: actual[DRIVER],
        REDACTION: actual[REDACTION],
        JARS: actual[JARS],
        EXTENSIONS: actual[EXTENSIONS],
    }
    assert actual[JARS] == f"/their.jar,{find_jar().as_uri()}"
    assert actual[EXTENSIONS] == "their.Extension,lancespark.LanceExtensions"
    assert actual[DRIVER].startswith("-Dtheirs=1 -Darrow.enable_unsafe_memory_access=true")
    assert hides(actual[REDACTION]) == {"MINE": True, "spark.password": False, **OPTIONS}
    assert "PYSPARK_PYTHON" not in os.environ, "executors of a cluster have Pythons of their own"


@pytest.mark.usefixtures("conf_dir")
def test_executors_of_a_cluster_which_may_lack_this_package_keep_sparks_daemon() -> None:
    actual = settings(configure(SparkSession.builder.master("spark://host:7077")))
    assert actual[SOCKET] == "true" and MODULE not in actual


@pytest.mark.usefixtures("conf_dir")
def test_a_session_of_spark_connect_is_left_alone() -> None:
    actual = settings(configure(SparkSession.builder.remote("sc://localhost")))
    assert set(actual) == {"spark.remote"}


@pytest.mark.classic
def test_a_session_that_runs_already_gets_the_rule_alone(spark: SparkSession) -> None:
    builder = configure(SparkSession.builder)
    assert settings(builder) == {}
    session = builder.getOrCreate()
    assert session.sparkContext is spark.sparkContext
    rules = session._jsparkSession.experimental().extraOptimizations()
    assert [rules.apply(i).getClass().getSimpleName() for i in range(rules.size())] == [
        "LancePushdown"
    ]


def test_the_daemon_has_one_thread_and_no_lance_when_it_forks() -> None:
    code = f"""
import os, sys
before = dict(os.environ)
import {DAEMON} as daemon
daemon.preload()
assert dict(os.environ) == before
assert "lance" not in sys.modules
print(len(os.listdir("/proc/self/task")))
"""
    # In the environment of Spark's daemon.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout == "1\n"


_OTHER_PYTHON = """
import lance_spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    lance_spark.enable_pushdown(spark)
except lance_spark.WorkerPythonError as error:
    print("refused:", error)
"""


@pytest.mark.slow
@pytest.mark.classic
@pytest.mark.parametrize(("settings", "is_kept"), [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)])
def test_a_fork_of_the_daemon_uses_freed_memory_again(
    settings: dict[str, str], is_kept: bool
) -> None:
    script = """
import resource, threading
from lance_spark.session.daemon import keep_memory
keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x" * (40 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def count(): print([faults() for _ in range(3)][-1])
thread = threading.Thread(target=count)
thread.start()
thread.join()
"""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | settings,
        check=True,
        capture_output=True,
        text=True,
    )
    assert (int(answer.stdout) < 1000) is is_kept


@pytest.mark.long
def test_workers_of_another_python_are_noticed_before_any_task_runs(tmp_path: Path) -> None:
    """Like in a notebook whose kernel is a virtual environment without activation."""
    (tmp_path / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")
    }
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": JVM_OPTIONS}
    process = subprocess.run(
        [sys.executable, "-c", _OTHER_PYTHON],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith(f"refused: Spark's Python workers run {tmp_path}/python3")
    assert "PYSPARK_PYTHON" in process.stdout and sys.executable in process.stdout


def test_a_running_jvm_is_told_to_read_arrow_unchecked_unless_its_user_said_otherwise(
    spark: SparkSession,
) -> None:
    system = spark._jvm.java.lang.System
    unsafe, null_check = "arrow.enable_unsafe_memory_access", "arrow.enable_null_check_for_get"
    before = {name: system.getProperty(name) for name in (unsafe, null_check)}
    try:
        system.clearProperty(null_check)
        system.setProperty(unsafe, "false")
        assert enable_pushdown(spark)
        assert (system.getProperty(unsafe), system.getProperty(null_check)) == ("false", "false")
        system.clearProperty(unsafe)
        assert enable_pushdown(spark)
        assert system.getProperty(unsafe) == "true"
    finally:
        for name, value in before.items():
            system.clearProperty(name) if value is None else system.setProperty(name, value)


def test_a_session_without_java_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: str) -> SparkSession:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(sessions, "_start_session", start)
    with pytest.raises(
        SparkStartError, match=r"^Spark's JVM did not start .* Install Java 17 or newer.*$"
    ) as caught:
        sessions.make_session("local[1]")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "outcome"), [(BrokenPipeError, 1), (ConnectionResetError, ConnectionResetError)]
)
def test_a_worker_whose_session_has_ended_says_nothing(
    error: type[OSError], outcome: object
) -> None:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        raise error

    reader, writer = socket.socketpair()
    with reader, writer:
        if outcome == 1:
            assert quietly(worker)(reader, False) == 1
        else:
            with pytest.raises(error):
                quietly(worker)(reader, False)


def test_a_planning_process_that_was_idle_is_made_to_end_quietly_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        raise BrokenPipeError

    main = ModuleType("__main__")
    main.worker = worker
    monkeypatch.setitem(sys.modules, "__main__", main)
    end_quietly()
    assert main.worker is worker, "a process of the user's"
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    end_quietly()
    wrapped = main.worker
    end_quietly()
    reader, writer = socket.socketpair()
    with reader, writer:
        assert main.worker is wrapped and wrapped(reader, True) == 1


_IDLE = """
import sys, time
import psutil
from pyspark.sql import SparkSession
import lance_spark
spark = lance_spark.configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate()
spark.range(3).write.format("lance").mode("append").save(sys.argv[1])
assert spark.read.format("lance").load(sys.argv[1]).count() == 3
processes = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
assert not [text for text in processes if "lookup_data_sources" in text], "the gateway needs no data source of Spark"
time.sleep(75)
assert spark.read.format("lance").load(sys.argv[1]).count() == 3
"""


@pytest.mark.long
def test_a_session_that_is_idle_for_a_minute_prints_no_traceback(table_path: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", _IDLE, table_path], capture_output=True, text=True, check=True
    )
    assert "Traceback" not in process.stdout + process.stderr
