"""Devices of this machine, and leases: processes on a device never need more than the device.

    <folder>/lock                   exclusive while a process counts leases
    <folder>/lease-<device>-<id>    a process has a share of the device

A lease is alive as long as a process holds the `flock` of its file. The UDF's process inherits the
descriptor, and its starter closes its own copy, so the death of the process frees the device. All
processes of a user on a machine share the folder, and jobs of several sessions share the devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import math
import os
import subprocess
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from udf_runtime.errors import DevicesBusyError
from udf_runtime.execute.isolation.private_folder import open_private_folder

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that limit the visible devices of a process: CUDA, ROCm, oneAPI."""

_NVIDIA_FOLDER = "/proc/driver/nvidia/gpus"
_ANSWER_S = 30

DEVICE_WAIT_S = 3600.0
"""Seconds until a task gives up waiting for devices."""

_POLL_S = 0.1
_UNITS = 1_000_000
"""Units of a whole device. Three shares of a third fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """The devices that a UDF's process needs. A picklable value, for a single machine.

    Attributes:
        candidates: Ids of the machine's devices, or of the devices that Spark assigned to the task.
        share: Devices of a process: a share of a single device below 1, or a number of whole
            devices. Other numbers above 1 are rounded up.
        assigned: Whether Spark assigned the candidates. Then the process gets all of them.
        scope: Name of the processes that compete for the devices; empty for all processes of the
            user on this machine. Ids of containers with a common folder may be equal, while their
            devices differ.

    Example:
        >>> from udf_runtime.execute.isolation.devices import DeviceRequest
        >>> request = DeviceRequest(candidates=("0", "1"), share=1, scope="example")
        >>> with request.acquire(wait_s=0) as lease:
        ...     lease.variables["CUDA_VISIBLE_DEVICES"]
        '0'
    """

    candidates: tuple[str, ...]
    share: float = 1.0
    assigned: bool = False
    scope: str = ""

    @property
    def capacity(self) -> int:
        """Maximum number of processes on the candidates at once."""
        return len(self.candidates) // self._device_count * (_UNITS // self._units)

    def acquire(self, wait_s: float = DEVICE_WAIT_S) -> DeviceLease:
        """Returns a lease of free devices. Waits for devices in use.

        Args:
            wait_s: Seconds to wait.

        Raises:
            DevicesBusyError: No devices were free in time.
            PermissionError: Another user owns the folder of leases.
        """
        with contextlib.closing(self.attempts(wait_s)) as attempts:
            return next(lease for lease in attempts if lease is not None)

    def attempts(self, wait_s: float = DEVICE_WAIT_S) -> Generator[DeviceLease | None, None, None]:
        """Yields a lease as soon as devices are free, and None after each attempt until then.

        Between two attempts the caller may take an idle process with devices and close the
        generator, or end idle processes of :meth:`list_holders`.

        Args:
            wait_s: Seconds of attempts.

        Raises:
            DevicesBusyError: No devices were free in time.
            PermissionError: Another user owns the folder of leases.
        """
        end_s = time.monotonic() + wait_s
        with contextlib.closing(_LeaseFolder()) as folder:
            while (lease := self._try(folder)) is None and time.monotonic() < end_s:
                yield None
                time.sleep(min(_POLL_S, max(0.0, end_s - time.monotonic())))
            if lease is not None:
                yield lease
                return
        raise DevicesBusyError(devices=self.candidates, share=self.share, seconds=wait_s)

    def list_holders(self) -> list[str]:
        """Returns the processes on the candidates, named by :meth:`DeviceLease.name_holder`."""
        with contextlib.closing(_LeaseFolder()) as folder, folder.locked():
            return folder.list_holders(self._names())

    @property
    def _units(self) -> int:
        """Units of each leased device."""
        return min(_UNITS, round(self.share * _UNITS))

    @property
    def _device_count(self) -> int:
        return len(self.candidates) if self.assigned else math.ceil(self.share)

    def _names(self) -> list[str]:
        return [_name_device(self.scope, device) for device in self.candidates]

    def _try(self, folder: _LeaseFolder) -> DeviceLease | None:
        """Returns a lease of the least used devices; None if too few devices are free."""
        with folder.locked():
            used = folder.count_units()
            free = sorted(  # stable: the first of equally used devices
                (used.get(name, 0), order, name, device)
                for order, (name, device) in enumerate(
                    zip(self._names(), self.candidates, strict=True)
                )
                if used.get(name, 0) + self._units <= _UNITS
            )
            chosen = sorted(free[: self._device_count], key=lambda entry: entry[1])
            if not chosen or len(chosen) < self._device_count:
                return None
            descriptors = tuple(folder.add_lease(name, self._units) for _, _, name, _ in chosen)
        return DeviceLease(ids=tuple(device for *_, device in chosen), descriptors=descriptors)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLease:
    """Devices of a process, from the view of its starter. A context manager.

    Attributes:
        ids: The devices.
        descriptors: Descriptors for the process to inherit (`pass_fds`). The devices are free once
            no process has the descriptors.
    """

    ids: tuple[str, ...]
    descriptors: tuple[int, ...]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that hide other devices from the process."""
        return dict.fromkeys(DEVICE_VARIABLES, ",".join(self.ids))

    def name_holder(self, name: str) -> None:
        """Names the process that has the devices, for other tasks. Once, without a line break."""
        for descriptor in self.descriptors:
            os.write(descriptor, f"{name}\n".encode())

    def close(self) -> None:
        """Closes the descriptors of this process, once, after the start of the UDF's process."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def _name_device(scope: str, device: str) -> str:
    """Returns a name of a device for file names. A device's id may have any characters."""
    return hashlib.sha256(f"{scope}\0{device}".encode()).hexdigest()[:32]


class _LeaseFolder:
    """The folder of leases. Counts under its lock."""

    def __init__(self) -> None:
        self._folder = open_private_folder("devices")

    def close(self) -> None:
        os.close(self._folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the exclusive lock of the folder during the block."""
        lock = self._open("lock", os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def count_units(self) -> dict[str, int]:
        """Returns the leased units of each device with a lease."""
        used: dict[str, int] = {}
        for device, units, _ in self._list_leases():
            used[device] = used.get(device, 0) + units
        return used

    def list_holders(self, devices: Sequence[str]) -> list[str]:
        """Returns the names of the processes with leases of any of the devices."""
        return sorted(
            {holder for device, _, holder in self._list_leases() if holder and device in devices}
        )

    def add_lease(self, device: str, units: int) -> int:
        """Adds a lease, and returns the descriptor that holds the lease."""
        descriptor = self._open(f"lease-{device}-{uuid.uuid4().hex}", os.O_CREAT | os.O_EXCL)
        os.write(descriptor, f"{units}\n".encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def _list_leases(self) -> list[tuple[str, int, str]]:
        """Returns device, units and holder of each lease. Removes leases of ended processes."""
        names = [name for name in os.listdir(self._folder) if name.startswith("lease-")]
        texts = {name: text for name in names if (text := self._read_alive(name)) is not None}
        parts = [(name.split("-")[1], text.partition("\n")) for name, text in texts.items()]
        return [(device, int(units), holder.rstrip("\n")) for device, (units, _, holder) in parts]

    def _read_alive(self, name: str) -> str | None:
        descriptor = self._open(name, 0)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(descriptor, 1 << 16).decode()
        else:
            os.unlink(name, dir_fd=self._folder)
            return None
        finally:
            os.close(descriptor)

    def _open(self, name: str, flags: int) -> int:
        return os.open(
            name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600, dir_fd=self._folder
        )


def list_devices() -> tuple[str, ...]:
    """Returns the ids of the GPUs that this process may use, for `CUDA_VISIBLE_DEVICES`.

    The first of `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` and `ZE_AFFINITY_MASK` in the
    environment names the devices; an empty value names none. Without these variables, `nvidia-smi`
    or the driver's folder in `/proc` lists the NVIDIA devices.

    Example:
        >>> import os
        >>> from udf_runtime.execute.isolation.devices import list_devices
        >>> os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        >>> list_devices()
        ('2', '3')
        >>> del os.environ["CUDA_VISIBLE_DEVICES"]
    """
    visible = next((os.environ[name] for name in DEVICE_VARIABLES if name in os.environ), None)
    return _list_nvidia() if visible is None else _split_ids(visible)


def _split_ids(text: str) -> tuple[str, ...]:
    """Splits a value of `CUDA_VISIBLE_DEVICES`. CUDA ignores ids after -1."""
    ids = [device.strip() for device in text.split(",")]
    end = ids.index("-1") if "-1" in ids else len(ids)
    return tuple(device for device in ids[:end] if device)


@functools.cache
def _list_nvidia() -> tuple[str, ...]:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.SubprocessError):
        return tuple(str(number) for number in range(_count_in_proc()))
    return tuple(answer.stdout.split())


def _count_in_proc() -> int:
    try:
        return len(os.listdir(_NVIDIA_FOLDER))
    except OSError:
        return 0
