"""Spark's daemon of Python workers in tests: the one of `configure`, or Spark's own for a Python without packages.

Imports PySpark from the environment: the archive that Spark puts before it is compiled anew by each daemon, which takes a second.
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
