"""Admission control of jobs. Runs on the driver."""

from __future__ import annotations

import os
from typing import Protocol

from pyspark.sql import SparkSession

from lance_spark.errors import ResourcesUnavailableError, counted
from lance_spark.session.sessions import known_slots
from lance_spark.words import warn_caller


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
    is_local = (spark.conf.get("spark.master", None) or "").startswith("local")
    checks = (
        _missing_gpus(spark, requested.num_gpus),
        _missing_cpus(spark, requested.num_cpus, is_local=is_local),
        _missing_memory(spark, requested.memory, is_local=is_local),
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
    available = float(spark.conf.get("spark.executor.resource.gpu.amount", None) or 0)
    if requested <= available:
        return None
    return (
        f"{counted(requested, 'GPU')}, and an executor has {available:g} (spark.executor.resource.gpu.amount): drop "
        "the requirement, or start executors with GPUs"
    )


def _missing_cpus(spark: SparkSession, requested: float | None, *, is_local: bool) -> str | None:
    available = known_slots(spark) if is_local else float(spark.conf.get("spark.executor.cores", None) or 0)
    if not requested or not available or requested <= available:
        return None
    return f"{counted(requested, 'CPU')}, and {'this session' if is_local else 'an executor'} has {available:g}"


def _missing_memory(spark: SparkSession, requested: int | None, *, is_local: bool) -> str | None:
    if is_local:
        available: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        available = _conf_bytes(spark.conf.get("spark.executor.memory", None))
    if not requested or available is None or requested <= available:
        return None
    where = "this machine" if is_local else "an executor"
    return f"{counted(requested, 'byte')} of memory, and {where} has {available}"


def _conf_bytes(text: str | None) -> int | None:
    """Returns a memory setting of Spark in bytes. The unit of a plain number is MiB."""
    if not text:
        return None
    number, unit = text.rstrip("bBkKmMgGtT"), text.lstrip("0123456789").lower().rstrip("b") or "m"
    return int(number) << {"k": 10, "m": 20, "g": 30, "t": 40}[unit]
