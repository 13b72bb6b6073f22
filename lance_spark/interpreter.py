"""Which Python the workers of a local session run, and whether this package is there."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import Any

from pyspark.sql import SparkSession

from lance_spark.errors import WorkerPythonError

_TIMEOUT_S = 60


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
