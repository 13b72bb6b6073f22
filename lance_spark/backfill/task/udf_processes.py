"""The process of a task's UDF: this Python worker of Spark, or a process that outlives it."""

from __future__ import annotations

import functools
import os

from udf_runtime import UDF
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.threads import limit_threads

_OMP_NAME = "OMP_NUM_THREADS"


def find_owner() -> Owner | None:
    """Returns the owner of a task's UDF processes: the executor's JVM.

    None without a task of Spark: the process itself.
    """
    from pyspark import TaskContext

    return None if TaskContext.get() is None else _find_jvm()


def limit_task_threads(udf: UDF) -> None:
    """Limits the threads of native libraries in this Python worker of Spark to the cores of a UDF.

    Spark sets `OMP_NUM_THREADS` to `spark.task.cpus`, unless the user sets the variable. The cores
    of the UDF take the place of Spark's value. A value of the user stays. In a process without a
    task of Spark, the function does nothing.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return
    _drop_value_of_spark(context.cpus())
    limit_threads(udf.num_cpus)


@functools.cache
def _drop_value_of_spark(task_cpus: int) -> None:
    """Drops Spark's value before the first task of a worker; later values are limits of UDFs."""
    if os.environ.get(_OMP_NAME) == str(task_cpus) and not _find_jvm().has_variable(_OMP_NAME):
        del os.environ[_OMP_NAME]


@functools.cache
def _find_jvm() -> Owner:
    return Owner.above_python()
