"""Spark's daemon of Python workers in tests: the daemon of `configure`, or Spark's own for a Python without packages.

Imports PySpark from the environment. Each daemon would spend a second on compiling Spark's own archive.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys

if __name__ == "__main__":
    if importlib.util.find_spec("pandas"):
        sys.path[:] = [path for path in sys.path if not path.endswith(("pyspark.zip", "-src.zip"))]
        module = "lance_spark.session.daemon"
    else:
        module = "pyspark.daemon"
    runpy.run_module(module, run_name="__main__", alter_sys=True)
