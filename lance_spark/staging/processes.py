"""Processes of this machine: their start, and whether a process has certainly ended."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from lance_spark.stored_json import Kinds

OWNER_KINDS: Kinds = {"host": str, "pid": int}
"""Fields of a process in each marker. Markers of earlier releases have no other fields."""

_MACHINE = ("host", "boot", "pid_namespace")


def this_owner() -> dict[str, str | int | None]:
    """Returns the identity of this process, for a marker.

    Containers with the same host name have different namespaces of process numbers. A system
    without a boot id or such namespaces has None in these fields.
    """
    boot = pid_namespace = None
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
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
    present, pid = this_owner(), owner["pid"]
    if not isinstance(pid, int) or any(name not in owner or owner[name] != present[name] for name in _MACHINE):
        return False
    starts = (find_process_start(pid), owner.get("started"))
    # A later process may have the number.
    is_later = None not in starts and starts[0] != starts[1]
    return is_later or not is_running(pid)


def is_running(pid: int) -> bool:
    """Tells whether a process of any user runs on this machine."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def find_process_start(pid: int) -> str | None:
    """Returns the start of a process of this machine, by its kernel's count; None if unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The name, in parentheses, may hold any character; the fields after the name may not.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
