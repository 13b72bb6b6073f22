"""Devices on a standalone cluster whose workers find made-up devices: each process sees its own device only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import ClusterJob, StandaloneCluster, start_master
from tests.support.device_log import DeviceCalls

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]

DEVICES = ("first-device", "second-device")


@pytest.fixture
def device_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Two workers of four cores, each with a device of its own."""
    with start_master(tmp_path) as new_cluster:
        for device in DEVICES:
            script = tmp_path / f"{device}.sh"
            script.write_text(f"""#!/bin/sh\necho '{{"name": "gpu", "addresses": ["{device}"]}}'\n""")
            script.chmod(0o755)
            options = {"amount": "1", "discoveryScript": str(script)}
            settings = " ".join(f"-Dspark.worker.resource.gpu.{key}={value}" for key, value in options.items())
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
