"""The devices of a UDF's processes, from the view of a task: :class:`TaskDevices`."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.errors import ResourcesUnavailableError
from udf_runtime.execute.isolation.devices import DeviceRequest
from udf_runtime.execute.isolation.owner import Owner

GPU = "gpu"
"""Spark's name of the resource."""


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
            candidates=_list_assigned(), share=self.share, assigned=self.exact, scope=Owner.above_python().name
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
