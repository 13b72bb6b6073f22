"""Python processes of Spark: their interpreter, and their end."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from socket import socket
from typing import Any

from pyspark.sql import SparkSession

from lance_spark.errors import WorkerPythonError

_TIMEOUT_S = 60
_DAEMON = "pyspark.daemon"


def use_this_interpreter() -> None:
    """Makes the workers of a later local session run this interpreter.

    Spark takes PYSPARK_PYTHON, else python3 from the PATH, and not the Python of a virtual
    environment.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def refuse_other_python(spark: SparkSession) -> None:
    """Refuses a classic local session whose workers run a Python without this package.

    Every use of a Lance table would fail with an unclear message. Workers of a cluster are on other
    machines, and are not checked.

    Raises:
        WorkerPythonError: The workers run such a Python.
    """
    conf = spark.sparkContext.getConf()
    if not (conf.get("spark.master") or "").startswith("local"):
        return
    jvm: Any = spark._jvm  # noqa: SLF001 - it looks for Python in its own environment
    environment = jvm.java.lang.System.getenv
    python = conf.get("spark.pyspark.python") or environment("PYSPARK_PYTHON") or "python3"
    path = shutil.which(python, path=environment("PATH"))
    if path != sys.executable and not _has_this_package(path):
        raise WorkerPythonError(path or python)


@functools.lru_cache(maxsize=8)
def _has_this_package(python: str | None) -> bool:
    if python is None:
        return False
    look = "import importlib.util as i, sys; sys.exit(any(i.find_spec(m) is None for m in ('lance_spark', 'lance')))"
    try:
        command = [python, "-c", look]
        process = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - what Spark itself runs
    except (OSError, subprocess.SubprocessError):
        return False
    return process.returncode == 0


def quietly(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Returns Spark's function of a worker, without a traceback after the end of Spark.

    A worker cannot answer any more after the end of its session or task.
    """

    @functools.wraps(worker)
    def run(connection: socket, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except BrokenPipeError:
            # From Python 3.13 on, the finalizer of the worker's file reports the same error again.
            sys.unraisablehook = _report_except_broken_pipe
            return 1

    return run


def _report_except_broken_pipe(unraisable: sys.UnraisableHookArgs) -> None:
    if not isinstance(unraisable.exc_value, BrokenPipeError):
        sys.__unraisablehook__(unraisable)


def end_quietly() -> None:
    """Ends this process without a traceback, if Spark plans or commits in it.

    Spark closes such a process after an idle minute. The process then reports an error to a closed
    connection, and with UNIX sockets a traceback appears in the user's terminal.
    """
    main: Any = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON and not hasattr(
        main.worker, "__wrapped__"
    ):
        main.worker = quietly(main.worker)
