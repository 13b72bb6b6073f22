"""Admission control of jobs. Runs on the driver."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import SparkSession

from lance_spark.display import warn_caller
from lance_spark.errors import ResourcesUnavailableError, counted
from lance_spark.session.local_devices import list_local_devices
from lance_spark.session.sessions import conf_bytes, has_profiles, is_local, known_slots
from udf_runtime.execute.isolation.process_limits import read_machine_bytes

_LOCAL_SOURCES = "spark.driver.resource.gpu.amount, CUDA_VISIBLE_DEVICES, nvidia-smi"
_REMEDY = "drop the requirement, or start Spark with GPUs"


class Resources(Protocol):
    """The requested resources of a task: of a UDF, or of a load."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def num_cpus(self) -> float | None:
        """Processor cores; None for one core."""

    @property
    def num_gpus(self) -> float | None:
        """GPUs."""

    @property
    def memory(self) -> int | None:
        """Bytes of memory."""


def check_resources(spark: SparkSession, requested: Resources, *, strict: bool) -> None:
    """Compares the requested resources of a task with the resources of the cluster.

    Raises:
        ResourcesUnavailableError: The task requests more, and `strict` is set.
    """
    checks = (
        _missing_gpus(spark, requested.num_gpus),
        _missing_cpus(spark, requested.num_cpus),
        _missing_memory(spark, requested.memory),
    )
    problems = [problem for problem in checks if problem]
    if not problems:
        return
    asks = f"UDF {requested.name!r} asks for {'; and for '.join(problems)}."
    advice = "_admission_check=False skips this check."
    if strict:
        raise ResourcesUnavailableError(f"{asks} No job was started. {advice}")
    warn_caller(f"{asks} The job runs all the same, and may fail. {advice}", UserWarning)


def _missing_gpus(spark: SparkSession, requested: float | None) -> str | None:
    if not requested:
        return None
    request = counted(requested, "GPU")
    if is_local(spark):
        number = len(list_local_devices(spark))
        return (
            None
            if requested <= number
            else f"{request}, and this machine has {number} ({_LOCAL_SOURCES}): {_REMEDY}"
        )
    available = float(spark.conf.get("spark.executor.resource.gpu.amount", None) or 0)
    if requested > available:
        return f"{request}, and an executor has {available:g} (spark.executor.resource.gpu.amount): {_REMEDY}"
    if has_profiles(spark) or spark.conf.get("spark.task.resource.gpu.amount", None):
        return None
    return f"{request}, and Spark has no resource profiles with this master: set spark.task.resource.gpu.amount"


def _missing_cpus(spark: SparkSession, requested: float | None) -> str | None:
    local = is_local(spark)
    available = (
        known_slots(spark) if local else float(spark.conf.get("spark.executor.cores", None) or 0)
    )
    if not requested or not available or requested <= available:
        return None
    return f"{counted(requested, 'CPU')}, and {'this session' if local else 'an executor'} has {available:g}"


def _missing_memory(spark: SparkSession, requested: int | None) -> str | None:
    local = is_local(spark)
    available = (
        read_machine_bytes() if local else conf_bytes(spark.conf.get("spark.executor.memory", None))
    )
    if not requested or available is None or requested <= available:
        return None
    return f"{counted(requested, 'byte')} of memory, and {'this machine' if local else 'an executor'} has {available}"
