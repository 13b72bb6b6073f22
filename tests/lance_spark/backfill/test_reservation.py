"""What a job reserves, by the settings of the application; on real sessions see test_devices and tests/cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lance_spark import ResourcesUnavailableError
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.reservation import Reservation, reserve
from lance_spark.backfill.task.udf_processes import TaskDevices
from tests.support.inline_jobs import NoSpark
from udf_runtime.execute.isolation import process_limits
from udf_runtime.execute.isolation.process_limits import read_machine_bytes

GIB = 1 << 30
STANDALONE = {"spark.master": "spark://host:7077"}
CORES = {**STANDALONE, "spark.executor.cores": "8", "spark.executor.memory": "8g"}
GPUS = {**CORES, "spark.executor.resource.gpu.amount": "2"}
OTHER = {**GPUS, "spark.master": "other://host"}


def session_of(conf: dict[str, str]) -> Any:
    session = NoSpark()
    session.conf = SimpleNamespace(get=lambda key, default=None: conf.get(key, default))  # type: ignore[assignment]
    return session


def asks(**resources: float) -> Any:
    return SimpleNamespace(
        **{"name": "f", "num_cpus": None, "num_gpus": None, "memory": None, **resources}
    )


@pytest.mark.parametrize(
    ("conf", "resources", "reservation"),
    [
        (GPUS, {}, Reservation()),
        (GPUS, {"num_cpus": 0.5}, Reservation()),
        (GPUS, {"num_cpus": 1.5}, Reservation(task_cpus=2)),
        (GPUS, {"num_cpus": 64}, Reservation(task_cpus=8)),
        (STANDALONE, {"num_cpus": 3}, Reservation(task_cpus=3)),
        ({**GPUS, "spark.task.cpus": "2"}, {}, Reservation()),
        (
            {**GPUS, "spark.task.cpus": "2"},
            {"num_gpus": 1},
            Reservation(task_cpus=2, task_gpus=1, devices=TaskDevices(share=1)),
        ),
        (
            GPUS,
            {"num_gpus": 0.25},
            Reservation(task_cpus=1, task_gpus=0.25, devices=TaskDevices(share=0.25)),
        ),
        (
            GPUS,
            {"num_gpus": 1.5},
            Reservation(task_cpus=1, task_gpus=2, devices=TaskDevices(share=2)),
        ),
        (GPUS, {"num_gpus": 3}, Reservation()),
        (CORES, {"num_gpus": 1}, Reservation()),
        (CORES, {"memory": 2 * GIB}, Reservation(task_cpus=2)),
        (CORES, {"memory": 3 * GIB}, Reservation(task_cpus=3)),
        (CORES, {"memory": 100 * GIB}, Reservation(task_cpus=5)),
        (CORES, {"memory": GIB}, Reservation()),
        (CORES, {"memory": 4 * GIB, "num_cpus": 8}, Reservation(task_cpus=8)),
        (STANDALONE, {"memory": 4 * GIB}, Reservation()),
        ({**CORES, "spark.cores.max": "16"}, {"num_cpus": 3}, Reservation(task_cpus=3, at_once=5)),
        (
            {**GPUS, "spark.executor.instances": "3"},
            {"num_gpus": 0.5},
            Reservation(task_cpus=1, task_gpus=0.5, at_once=12, devices=TaskDevices(share=0.5)),
        ),
        (
            {**GPUS, "spark.executor.instances": "3", "spark.dynamicAllocation.enabled": "true"},
            {"num_gpus": 0.5},
            Reservation(task_cpus=1, task_gpus=0.5, devices=TaskDevices(share=0.5)),
        ),
        (OTHER, {"num_gpus": 1, "num_cpus": 2}, Reservation()),
        (
            {**OTHER, "spark.task.resource.gpu.amount": "0.5", "spark.cores.max": "16"},
            {"num_gpus": 1, "num_cpus": 2},
            Reservation(at_once=8, devices=TaskDevices(share=1, exact=False)),
        ),
    ],
)
def test_the_tasks_of_a_cluster_reserve_by_a_profile(
    conf: dict[str, str], resources: dict[str, float], reservation: Reservation
):
    assert reserve(session_of(conf), asks(**resources)) == reservation


@pytest.mark.parametrize(
    ("resources", "at_once", "share"),
    [
        ({}, None, None),
        ({"num_cpus": 3}, 2, None),
        ({"num_cpus": 100}, 1, None),
        ({"memory": read_machine_bytes() // 3}, 3, None),
        ({"memory": 10 * read_machine_bytes()}, 1, None),
        ({"num_gpus": 1}, 3, 1),
        ({"num_gpus": 0.25}, 12, 0.25),
        ({"num_gpus": 2}, 1, 2),
        ({"num_gpus": 0.25, "num_cpus": 2, "memory": read_machine_bytes() // 2}, 2, 0.25),
        ({"num_gpus": 4}, None, None),
    ],
)
def test_a_local_session_bounds_the_concurrent_tasks(
    resources: dict[str, float],
    at_once: int | None,
    share: float | None,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b,c")
    devices = None if share is None else TaskDevices(share=share, local=("a", "b", "c"))
    reservation = reserve(session_of({"spark.master": "local[6,4]"}), asks(**resources))
    assert reservation == Reservation(devices=devices, at_once=at_once)
    assert reservation.profile(session_of({})) is None
    bound = 100 if at_once is None else at_once
    assert [reservation.limit(concurrency) for concurrency in (None, 1, 8)] == [
        at_once,
        1,
        min(8, bound),
    ]


def test_a_container_bounds_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    limit = tmp_path / "memory.max"
    limit.write_text(f"{3 << 20}\n")
    monkeypatch.setattr(process_limits, "_CONTAINER_LIMITS", (limit, tmp_path / "missing"))
    local = session_of({"spark.master": "local[6]"})
    assert reserve(local, asks(memory=1 << 20)).at_once == 3
    with pytest.raises(ResourcesUnavailableError, match=f"this machine has {3 << 20}"):
        check_resources(local, asks(memory=4 << 20), strict=True)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"spark.master": "local[2]"}, r"3 GPUs, and this machine has 2 \(.*CUDA_VISIBLE_DEVICES"),
        (GPUS, r"3 GPUs, and an executor has 2 \(spark\.executor\.resource\.gpu\.amount\)"),
        (CORES, "3 GPUs, and an executor has 0"),
        (
            {**OTHER, "spark.executor.resource.gpu.amount": "4"},
            r"no resource profiles with this master: set spark\.task\.resource\.gpu\.amount",
        ),
    ],
)
def test_too_few_gpus_are_an_error_with_the_remedy(
    conf: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b")
    with pytest.raises(ResourcesUnavailableError, match=message):
        check_resources(session_of(conf), asks(num_gpus=3), strict=True)
    enough = {
        **conf,
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
    }
    check_resources(session_of(enough), asks(num_gpus=2), strict=True)


def test_a_task_without_a_gpu_of_spark_says_so():
    with pytest.raises(ResourcesUnavailableError, match="Spark assigned no GPU to a task"):
        TaskDevices(share=1).request()
