"""The processes of a task's UDF: their owner, threads and devices.

A UDF runs in this Python worker of Spark, or in a process that outlives the worker.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from lance_spark.errors import ResourcesUnavailableError
from udf_runtime import UDF
from udf_runtime.execute.isolation.devices import DeviceRequest
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.threads import limit_threads

GPU = "gpu"
"""Spark's name of the resource."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDevices:
    """The devices of a job's UDF. Picklable.

    Attributes:
        share: Devices of a process, as in `num_gpus`.
        local: Ids of the devices of this machine, in a local session; None: Spark assigns devices
            to tasks.
        exact: Whether Spark assigns exactly the devices of a process. Otherwise the processes of an
            executor share the devices of its tasks.
    """

    share: float
    local: tuple[str, ...] | None = None
    exact: bool = True

    def request(self) -> DeviceRequest:
        """Returns the devices of the processes of this task. Runs in tasks.

        The processes of an executor compete for the devices of the executor. In a local session,
        all processes of the user on the machine compete.

        Raises:
            ResourcesUnavailableError: Spark assigned no device to the task.
        """
        if self.local is not None:
            return DeviceRequest(candidates=self.local, share=self.share)
        return DeviceRequest(
            candidates=_list_assigned(),
            share=self.share,
            assigned=self.exact,
            scope=Owner.above_python().name,
        )


def _list_assigned() -> tuple[str, ...]:
    from pyspark import TaskContext

    context = TaskContext.get()
    resource = None if context is None else context.resources().get(GPU)
    if resource is None:
        raise ResourcesUnavailableError(
            "Spark assigned no GPU to a task of a UDF with num_gpus. Set spark.executor.resource.gpu.amount and "
            "spark.executor.resource.gpu.discoveryScript of the application."
        )
    return tuple(resource.addresses)
