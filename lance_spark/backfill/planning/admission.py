"""Admission control of jobs. Runs on the driver."""

from __future__ import annotations

import os
from typing import Protocol

from pyspark.sql import SparkSession

from lance_spark.errors import ResourcesUnavailableError, counted
from lance_spark.session.sessions import known_slots
from lance_spark.words import warn_caller


class Resources(Protocol):
    """The resources that a task requests: a UDF, or a load."""

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


def check_resources(spark: SparkSession, udf: Resources, *, strict: bool) -> None:
    """Compares the resources that a UDF requests with the resources of the cluster.

    Raises:
        ResourcesUnavailableError: The UDF requests more, and `strict` is set.
    """
    problems = []
    if udf.num_gpus:
        gpus = float(spark.conf.get("spark.executor.resource.gpu.amount", None) or 0)
        if gpus < udf.num_gpus:
            problems.append(
                f"{counted(udf.num_gpus, 'GPU')}, and an executor has {gpus:g} (spark.executor.resource.gpu.amount): "
                "drop the requirement, or start executors with GPUs"
            )
    local = (spark.conf.get("spark.master", None) or "").startswith("local")
    cores = known_slots(spark) if local else float(spark.conf.get("spark.executor.cores", None) or 0) or None
    if udf.num_cpus and cores is not None and udf.num_cpus > cores:
        where = "this session" if local else "an executor"
        problems.append(f"{counted(udf.num_cpus, 'CPU')}, and {where} has {cores:g}")
    executor = spark.conf.get("spark.executor.memory", None)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if local else _conf_bytes(executor)
    if udf.memory and memory is not None and udf.memory > memory:
        where = "this machine" if local else "an executor"
        problems.append(f"{counted(udf.memory, 'byte')} of memory, and {where} has {memory}")
    if not problems:
        return
    asks = f"UDF {udf.name!r} asks for {'; and for '.join(problems)}"
    advice = "_admission_check=False skips this check"
    if strict:
        raise ResourcesUnavailableError(f"{asks} - no job was started - {advice}")
    warn_caller(f"{asks} - the job runs all the same, and may fail - {advice}", UserWarning)


def _conf_bytes(text: str | None) -> int | None:
    """Returns a memory setting of Spark in bytes. The unit of a plain number is MiB."""
    if not text:
        return None
    number, unit = text.rstrip("bBkKmMgGtT"), text.lstrip("0123456789").lower().rstrip("b") or "m"
    return int(number) << {"k": 10, "m": 20, "g": 30, "t": 40}[unit]
