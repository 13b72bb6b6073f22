"""Python processes of Spark: what they run, whether this package is there, how they end."""

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
    """Has the workers of a local session that is made later run this interpreter.

    Spark takes PYSPARK_PYTHON, else python3 from the PATH, and not that of a virtual environment.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def refuse_other_python(spark: SparkSession) -> None:
    """Refuses a classic local session whose workers run a Python that lacks this package.

    Every use of a Lance table would fail there, with messages that do not say why. Workers of a
    cluster are not on this machine, and are not asked.

    Raises:
        WorkerPythonError: They do.
    """
    conf = spark.sparkContext.getConf()
    if not (conf.get("spark.master") or "").startswith("local"):
        return
    jvm: Any = spark._jvm  # noqa: SLF001 - it looks for Python in its own environment
    environment = jvm.java.lang.System.getenv
    given = conf.get("spark.pyspark.python") or environment("PYSPARK_PYTHON") or "python3"
    found = shutil.which(given, path=environment("PATH"))
    if found != sys.executable and not _has_this_package(found):
        raise WorkerPythonError(found or given)


@functools.lru_cache(maxsize=8)
def _has_this_package(python: str | None) -> bool:
    if python is None:
        return False
    look = "import importlib.util as i, sys; sys.exit(any(i.find_spec(m) is None for m in ('lance_spark', 'lance')))"
    try:
        done = subprocess.run([python, "-c", look], capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - what Spark itself runs
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def quietly(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Returns Spark's function of a worker, without its traceback where Spark has gone away.

    A worker whose session or task ends while it is asked for cannot answer any more.
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
    """Has this process end without a traceback, where it is one in which Spark plans or commits.

    Spark closes such a process when it was idle for a minute. It then reports an error where none
    listens any more, and with UNIX sockets a traceback of that is printed into the user's terminal.
    """
    main: Any = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON and not hasattr(main.worker, "__wrapped__"):
        main.worker = quietly(main.worker)
