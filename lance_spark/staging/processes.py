"""Processes of drivers: their identities, and whether a process has certainly ended."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from lance_spark.stored_json import Kinds, check_fields, load_object

OWNER_KINDS: Kinds = {"host": str, "pid": int}
"""Fields of a process in each marker. Markers of earlier releases have no other fields."""

_PROCESS_NUMBERS = 1 << 31
_MACHINE = ("host", "boot", "pid_namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProcess:
    """A process of a machine. A later process with the same number has another start.

    Attributes:
        host: Name of the machine.
        pid: Number of the process.
        started: Start of the process by the clock of the kernel; None if the system has no such
            clock.
        boot: Id of the machine's boot; None if the system has no such id, and in records of
            earlier releases.
        pid_namespace: The container of the process: its namespace of process numbers. None as
            for `boot`.
    """

    host: str
    pid: int
    started: str | None
    boot: str | None = None
    pid_namespace: str | None = None

    @staticmethod
    def from_json(text: str) -> DriverProcess:
        """Returns the process described by a JSON text.

        Raises:
            ValueError: The text describes no process.
        """
        values = load_object(text, {"host": str, "pid": int, "started": (str, type(None))})
        machine = {name: values.get(name) for name in ("boot", "pid_namespace")}
        check_fields(machine, dict.fromkeys(machine, (str, type(None))))
        process = DriverProcess(
            host=values["host"], pid=values["pid"], started=values["started"], **machine
        )
        if not 0 < process.pid < _PROCESS_NUMBERS:
            raise ValueError(f"{process.pid} is no number of a process")
        return process


def this_owner() -> dict[str, str | int | None]:
    """Returns the identity of this process, for a marker.

    Containers with the same host name have different namespaces of process numbers. A system
    without a boot id or such namespaces has None in these fields.
    """
    boot = pid_namespace = None
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file,
    ):
        boot = file.read().strip()
    with contextlib.suppress(OSError):
        pid_namespace = os.readlink("/proc/self/ns/pid")
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "started": find_process_start(pid),
        "boot": boot,
        "pid_namespace": pid_namespace,
    }


def has_ended(owner: Mapping[str, object]) -> bool:
    """Tells whether the process of a marker has certainly ended.

    Nothing is known of processes of other machines, boots and containers, and of markers that name
    no boot and no container.

    Raises:
        OverflowError: The number of the process is too large.
    """
    pid = owner["pid"]
    if not isinstance(pid, int) or not is_of_this_machine(owner):
        return False
    starts = (find_process_start(pid), owner.get("started"))
    # A later process may have the number.
    is_later = None not in starts and starts[0] != starts[1]
    return is_later or _is_zombie(pid) or not is_running(pid)


def is_of_this_machine(owner: Mapping[str, object]) -> bool:
    """Tells whether the process of a marker belongs to this machine, boot and container."""
    present = this_owner()
    return all(name in owner and owner[name] == present[name] for name in _MACHINE)


def is_running(pid: int) -> bool:
    """Tells whether a process of any user runs on this machine."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def find_process_start(pid: int) -> str | None:
    """Returns the start of a process of this machine, by its kernel's count; None if unknown."""
    fields = _read_status(pid)
    return None if not fields or fields[0] == "Z" else fields[19]


def _is_zombie(pid: int) -> bool:
    """Tells whether a process has ended, while its parent has not yet asked for the end."""
    fields = _read_status(pid)
    # The main thread alone may have ended.
    return fields[:1] == ["Z"] and int(fields[17]) <= 1


def _read_status(pid: int) -> list[str]:
    """Returns the kernel's fields of a process after its name; none if unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The name, in parentheses, may hold any character; the fields after the name may not.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
