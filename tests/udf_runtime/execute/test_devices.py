"""Leases of devices: their number in many processes at once, deaths, waits, and folders of others."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pytest

from udf_runtime import DevicesBusyError
from udf_runtime.execute.isolation.devices import DeviceLease, DeviceRequest
from udf_runtime.execute.isolation.private_folder import open_private_folder


def request_of(devices: int, share: float, *, assigned: bool = False) -> DeviceRequest:
    """Returns a request for devices that no other test has."""
    name = uuid.uuid4().hex
    return DeviceRequest(
        candidates=tuple(f"{name}/{i}" for i in range(devices)), share=share, assigned=assigned
    )


def take_all(request: DeviceRequest) -> list[DeviceLease]:
    """Takes leases until the devices are in use."""
    leases = []
    while True:
        try:
            leases.append(request.acquire(wait_s=0))
        except DevicesBusyError:
            return leases


@pytest.mark.parametrize(
    ("devices", "share", "assigned", "number", "each"),
    [
        (1, 1, False, 1, 1),
        (1, 0.25, False, 4, 1),
        (1, 1 / 3, False, 3, 1),
        (1, 0.6, False, 1, 1),
        (2, 0.5, False, 4, 1),
        (3, 1, False, 3, 1),
        (5, 2, False, 2, 2),
        (5, 1.5, False, 2, 2),
        (1, 2, False, 0, 0),
        (0, 1, False, 0, 0),
        (2, 2, True, 1, 2),
        (1, 0.25, True, 4, 1),
    ],
)
def test_as_many_leases_as_fit_are_given(
    devices: int, share: float, assigned: bool, number: int, each: int
):
    request = pickle.loads(pickle.dumps(request_of(devices, share, assigned=assigned)))
    leases = take_all(request)
    assert len(leases) == number
    assert assigned or request.capacity == number
    assert {len(lease.ids) for lease in leases} <= {each}
    given = [device for lease in leases for device in lease.ids]
    assert max(map(given.count, given), default=0) * min(share, 1) <= 1.000001
    for lease in leases:
        assert lease.variables == dict.fromkeys(
            ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"), ",".join(lease.ids)
        )
        lease.close()
    for lease in (again := take_all(request)):
        lease.close()
    assert len(again) == number, "closed leases are free"


def test_shares_of_different_sizes_add_up_and_the_least_used_device_comes_first():
    halves = request_of(2, 0.5)
    whole, quarter = (
        DeviceRequest(candidates=halves.candidates, share=share) for share in (1.0, 0.25)
    )
    first, second = halves.candidates
    with (
        halves.acquire(0) as one,
        halves.acquire(0) as two,
        quarter.acquire(0) as three,
        quarter.acquire(0) as four,
    ):
        assert [lease.ids for lease in (one, two, three, four)] == [
            (first,),
            (second,),
            (first,),
            (second,),
        ]
        assert take_all(whole) == []
        rest = take_all(quarter)
        assert [lease.ids for lease in rest] == [(first,), (second,)]
        for lease in rest:
            lease.close()
    with whole.acquire(0), whole.acquire(0):
        assert take_all(quarter) == []


def test_equal_ids_of_another_scope_are_other_devices():
    request = request_of(1, 1)
    other = DeviceRequest(candidates=request.candidates, scope="container 2")
    with request.acquire(0), other.acquire(0):
        assert take_all(request) == take_all(other) == []


def use_devices(request: DeviceRequest, folder: str, rounds: int) -> None:
    """Takes a lease a number of times, and marks the device as in use until its release."""
    for _ in range(rounds):
        with request.acquire(wait_s=60) as lease:
            marks = [
                os.path.join(folder, f"{device.rpartition('/')[2]}-{uuid.uuid4().hex}")
                for device in lease.ids
            ]
            for mark in marks:
                Path(mark).touch()
                number = len(
                    [name for name in os.listdir(folder) if name[:2] == os.path.basename(mark)[:2]]
                )
                if number * min(request.share, 1) > 1.000001:
                    os._exit(3)
            time.sleep(0.002)
            for mark in marks:
                os.unlink(mark)


@pytest.mark.parametrize(("devices", "share"), [(1, 1.0), (2, 0.5), (3, 2.0)])
def test_many_processes_at_once_never_share_more_than_a_device(
    devices: int, share: float, tmp_path: Path
):
    request, context = request_of(devices, share), multiprocessing.get_context("fork")
    processes = [
        context.Process(target=use_devices, args=(request, str(tmp_path), 6)) for _ in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_the_death_of_the_process_frees_its_device_and_not_the_end_of_its_starter():
    request = request_of(1, 1)
    lease = request.acquire(0)
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=lease.descriptors
    )
    lease.close()
    assert take_all(request) == []
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    leases = take_all(request)
    assert len(leases) == 1
    leases[0].close()


def test_a_waiting_task_gets_the_device_once_it_is_free():
    request = request_of(2, 1)
    with request.acquire(0):
        second = request.acquire(0)
        threading.Timer(0.2, second.close).start()
        with request.acquire(30) as lease:
            assert lease.ids == second.ids


def test_the_processes_on_devices_are_known_by_name_until_their_end():
    request = request_of(2, 0.5)
    first, unnamed, second = (request.acquire(0) for _ in range(3))
    first.name_holder("/processes/first")
    second.name_holder("/processes/second")
    first_device = DeviceRequest(candidates=request.candidates[:1])
    assert (
        request.list_holders()
        == first_device.list_holders()
        == ["/processes/first", "/processes/second"]
    )
    assert DeviceRequest(candidates=request.candidates[1:]).list_holders() == []
    first.close()
    assert request.list_holders() == ["/processes/second"]
    with request.acquire(0) as third:
        assert third.ids == first.ids, "a name is no part of a share"
    for lease in (unnamed, second):
        lease.close()


def test_a_wait_in_vain_ends_with_an_error_that_names_the_devices():
    request = DeviceRequest(candidates=(f"made-up-{uuid.uuid4()}",), share=0.5)
    leases = take_all(request)
    began_s = time.monotonic()
    with pytest.raises(DevicesBusyError, match=r"num_gpus=0\.5 of made-up") as caught:
        request.acquire(wait_s=0.3)
    assert 0.3 <= time.monotonic() - began_s < 5
    assert (caught.value.devices, caught.value.seconds) == (request.candidates, 0.3)
    attempts = request.attempts(wait_s=30)
    assert next(attempts) is None
    leases[0].close()
    lease = next(attempts)
    assert lease is not None
    assert next(attempts, "end") == "end"
    for free in (lease, *leases[1:]):
        free.close()


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"lance-spark-{os.getuid()}"


def plant_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def plant_open_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


def plant_file(folder: Path) -> None:
    folder.touch(mode=0o700)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("plant", [plant_link, plant_open_folder, plant_file])
def test_a_folder_of_others_is_refused(plant, inner: bool, temporary_folder: Path):
    if inner:
        temporary_folder.mkdir(mode=0o700)
    plant(temporary_folder / "devices" if inner else temporary_folder)
    with pytest.raises(
        PermissionError, match="belongs to another user, is a link, or others have access"
    ):
        request_of(1, 1).acquire(0)


def test_a_folder_of_a_foreign_owner_is_refused(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    name = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: name)
    with pytest.raises(PermissionError, match=f"lance-spark-{name} belongs to another user"):
        open_private_folder("devices")


def test_a_planted_link_in_the_folder_of_leases_changes_no_other_file(temporary_folder: Path):
    target = temporary_folder.parent / "target"
    target.write_text("of others")
    request_of(1, 1).acquire(0).close()
    (temporary_folder / "devices" / "lease-0-0").symlink_to(target)
    with pytest.raises(OSError, match="Too many levels"):
        request_of(1, 1).acquire(0)
    assert target.read_text() == "of others"
