"""Devices, cores, memory and limits of services on a standalone cluster of two workers with a made-up device each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import ClusterJob, StandaloneCluster, start_master
from tests.cluster.jobs import SERVICE
from tests.support.device_log import DeviceCalls
from tests.support.http_service import HttpService

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]

DEVICES = ("first-device", "second-device")


@pytest.fixture
def device_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Two workers of four cores, each with a device of its own."""
    with start_master(tmp_path) as new_cluster:
        for device in DEVICES:
            script = tmp_path / f"{device}.sh"
            script.write_text(
                f"""#!/bin/sh\necho '{{"name": "gpu", "addresses": ["{device}"]}}'\n"""
            )
            script.chmod(0o755)
            options = {"amount": "1", "discoveryScript": str(script)}
            settings = " ".join(
                f"-Dspark.worker.resource.gpu.{key}={value}" for key, value in options.items()
            )
            new_cluster.add_worker(cores=4, settings=settings)
        yield new_cluster


def test_each_process_of_a_cluster_sees_one_device_and_all_devices_are_used(
    device_cluster: StandaloneCluster, tmp_path: Path
):
    job = ClusterJob("devices", device_cluster, str(tmp_path / "db"))
    try:
        assert job.result() == {"right": [80, 80]}
    finally:
        job.end()
    for name, most in (("shares", 2), ("whole", 1)):
        calls = DeviceCalls.read(tmp_path / "db" / name / "log")
        assert calls.rows == 80
        assert calls.visible == set(DEVICES)
        for device in DEVICES:
            assert calls.of(device).most_at_once <= most


def test_processes_have_their_cores_and_memory_and_a_job_has_its_concurrency(
    device_cluster: StandaloneCluster, tmp_path: Path
):
    """Each executor has four cores and 900 MiB: two processes of two cores, and two of 400 MiB."""
    job = ClusterJob("reservations", device_cluster, str(tmp_path / "db"))
    try:
        assert job.result() == {"right": [80, 80, 80]}
    finally:
        job.end()
    most = {
        name: DeviceCalls.read(tmp_path / "db" / name / "log").most_at_once
        for name in ("cores", "memory", "one")
    }
    assert 2 < most["cores"] <= 4
    assert 2 < most["memory"] <= 4
    assert most["one"] == 1


def test_all_executors_share_the_limit_of_a_service(
    device_cluster: StandaloneCluster, tmp_path: Path
):
    home = tmp_path / "db"
    home.mkdir()
    with HttpService().serve() as service:
        (home / SERVICE).write_text(service.url)
        job = ClusterJob("rate_limit", device_cluster, str(home))
        try:
            assert job.result() == {"status": "DONE", "right": 80, "waited": True}
        finally:
            job.end()
    times = sorted(service.times)
    assert sorted(service.requests.values()) == [1] * 80
    # 20 calls at once and 10 per second: any 30 calls further take 1 second or more.
    assert all(times[i + 30] - times[i] >= 0.9 for i in range(len(times) - 30))
    assert times[-1] - times[0] >= 5.5
