"""The resources that a job's tasks reserve: :func:`reserve`. Runs on the driver.

On a cluster the tasks run under a resource profile of Spark. In a local session, which has no
profiles, the driver bounds the concurrent tasks, and processes take leases of devices.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests

from lance_spark.backfill.task.udf_processes import GPU, TaskDevices
from lance_spark.jvm.gateway import is_classic
from lance_spark.session.local_devices import list_local_devices
from lance_spark.session.sessions import conf_bytes, has_profiles, is_dynamic, is_local, known_slots
from udf_runtime.execute.isolation.process_limits import read_machine_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lance_spark.backfill.planning.admission import Resources

_profiles: dict[tuple[str | None, int, float], ResourceProfile] = {}
"""Profiles by application. Spark takes an equal profile for another one, with executors of its own
under dynamic allocation."""

_profiles_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The resources of a job's tasks.

    Attributes:
        devices: Devices of the UDF's processes.
        at_once: Maximum number of concurrent tasks; None: no bound beyond Spark's own.
        task_cpus: Cores of a task under a profile of Spark; None without a profile.
        task_gpus: GPUs of a task under the profile.
    """

    devices: TaskDevices | None = None
    at_once: int | None = None
    task_cpus: int | None = None
    task_gpus: float = 0.0

    def limit(self, concurrency: int | None) -> int | None:
        """Returns the maximum number of concurrent tasks, within the limit of a call."""
        return _least(self.at_once, concurrency)

    def profile(self, spark: SparkSession) -> ResourceProfile | None:
        """Returns the resource profile of the tasks; None for the profile of the application."""
        if self.task_cpus is None:
            return None
        key = (spark.conf.get("spark.app.id", None), self.task_cpus, self.task_gpus)
        with _profiles_lock:
            profile = _profiles.get(key)
            if profile is None:
                profile = _profiles[key] = _build_profile(spark, self.task_cpus, self.task_gpus)
        return profile


def reserve(spark: SparkSession, resources: Resources) -> Reservation:
    """Returns the reservation of a job. A UDF without requests reserves nothing.

    If the cluster or the machine has too little, the job runs without a reservation: the admission
    check has raised an error, or the caller skipped the check.
    """
    return (
        _reserve_locally(spark, resources)
        if is_local(spark)
        else _reserve_on_cluster(spark, resources)
    )


def _reserve_locally(spark: SparkSession, resources: Resources) -> Reservation:
    local = list_local_devices(spark) if resources.num_gpus else ()
    devices, capacity = None, 0
    if resources.num_gpus:
        devices = TaskDevices(share=resources.num_gpus, local=local)
        capacity = devices.request().capacity
    at_once = _least(
        _fitting_tasks(known_slots(spark), math.ceil(resources.num_cpus or 1)),
        max(1, read_machine_bytes() // resources.memory) if resources.memory else None,
        capacity or None,
    )
    return Reservation(devices=devices if capacity else None, at_once=at_once)


def _reserve_on_cluster(spark: SparkSession, resources: Resources) -> Reservation:
    task_cpus = int(spark.conf.get("spark.task.cpus", None) or 1)
    cpus = max(task_cpus, _count_cpus(spark, resources))
    gpus = _count_gpus(spark, resources.num_gpus)
    slots = known_slots(spark)
    at_once = _least(
        None
        if cpus == task_cpus
        else _fitting_tasks(None if slots is None else slots * task_cpus, cpus),
        _fitting_gpu_tasks(spark, gpus),
    )
    if not has_profiles(spark):
        shared = gpus and spark.conf.get(f"spark.task.resource.{GPU}.amount", None)
        return Reservation(
            devices=TaskDevices(share=gpus, exact=False) if shared else None, at_once=at_once
        )
    if not gpus and cpus == task_cpus:
        return Reservation(at_once=at_once)
    devices = TaskDevices(share=gpus) if gpus else None
    return Reservation(devices=devices, at_once=at_once, task_cpus=cpus, task_gpus=gpus)


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _fitting_gpu_tasks(spark: SparkSession, gpus: float) -> int | None:
    """Returns the tasks that the GPUs of a cluster of fixed size serve at once; None if unknown."""
    executors = spark.conf.get("spark.executor.instances", None)
    if not gpus or executors is None or is_dynamic(spark):
        return None
    return int(executors) * int(_executor_gpus(spark) / gpus)


def _fitting_tasks(slots: int | None, cpus: int) -> int | None:
    return None if cpus <= 1 or slots is None else max(1, slots // cpus)


def _count_cpus(spark: SparkSession, resources: Resources) -> int:
    """Returns the cores of a task, so that an executor's memory holds its concurrent tasks.

    Spark assigns cores and no memory to tasks. So a task with much memory gets further cores.
    """
    cpus, cores = (
        math.ceil(resources.num_cpus or 1),
        int(spark.conf.get("spark.executor.cores", None) or 0),
    )
    if not cores:
        return cpus
    available = conf_bytes(spark.conf.get("spark.executor.memory", None))
    if resources.memory and available is not None:
        tasks = max(1, available // resources.memory)
        cpus = max(cpus, cores // (tasks + 1) + 1)
    return min(cpus, cores)


def _count_gpus(spark: SparkSession, num_gpus: float | None) -> float:
    """Returns the GPUs of a task; 0 if no executor has as many."""
    gpus = float(num_gpus or 0)
    gpus = gpus if gpus <= 1 else float(math.ceil(gpus))
    return gpus if gpus <= _executor_gpus(spark) else 0.0


def _executor_gpus(spark: SparkSession) -> float:
    return float(spark.conf.get(f"spark.executor.resource.{GPU}.amount", None) or 0)


def _build_profile(spark: SparkSession, cpus: int, gpus: float) -> ResourceProfile:
    requests = TaskResourceRequests().cpus(cpus)
    if gpus:
        requests = requests.resource(GPU, gpus)
    profile = ResourceProfileBuilder().require(requests).build
    if not is_classic(spark):
        # The client makes the profile on the server of the thread's active session.
        connected: Any = spark
        connected._set_default_and_active_session(connected)  # noqa: SLF001
        _ = profile.id
    return profile


def _renew_lock() -> None:
    """Renews the lock in a forked process: a thread of the parent may have held the lock."""
    global _profiles_lock  # noqa: PLW0603 - one lock per process
    _profiles_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
