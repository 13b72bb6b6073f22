"""Limits on threads in a Python worker of Spark, which serves several tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_each_task_of_a_worker_has_the_limits():
    script = """
import os
from types import SimpleNamespace
from pyspark import TaskContext
from lance_spark.backfill.task.udf_processes import limit_task_threads
TaskContext.get = lambda: SimpleNamespace(cpus=lambda: 1)
for cpus in (None, None, 2, 1, None):
    limit_task_threads(SimpleNamespace(num_cpus=cpus))
    print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS"))
"""
    others = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    # Without a JVM, the nearest ancestor that is no Python has the environment of a shell.
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, "-c", script]
    shell = ["sh", "-c", '"$@"; exit', "sh", *command]
    process = subprocess.run(
        shell, cwd=Path(__file__).parents[3], env=others, capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines() == ["1 1", "1 1", "2 2", "1 1", "1 1"]
