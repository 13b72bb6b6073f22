"""Peak memory of processes, from the system's high-water mark (shared libraries included), and CPU
time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_EVERY_S = 0.1
_CONTESTANTS = "benchmarks.table_api_child"


@dataclass(slots=True)
class Peaks:
    """Peak memory of processes.

    Attributes:
        bytes: Peak of each process by kind of process: `driver`, `jvm`, `worker`, ...
    """

    bytes: dict[str, dict[int, int]] = field(default_factory=dict)

    def largest(self, kind: str) -> int:
        """Returns the peak of the largest process of a kind, or 0 without such a process."""
        return max(self.bytes.get(kind, {}).values(), default=0)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Returns the number of processes, the largest peak, and the sum of the peaks (an upper
        bound at any moment) in MiB."""
        return {
            kind: {
                "processes": len(peaks),
                "largest_mib": max(peaks.values()) >> 20,
                "sum_mib": sum(peaks.values()) >> 20,
            }
            for kind, peaks in sorted(self.bytes.items())
        }


@contextmanager
def watched(roots: Sequence[int], kind_of: Callable[[psutil.Process, int], str]) -> Iterator[Peaks]:
    """Watches processes and their descendants. Earlier peaks do not count.

    Args:
        roots: Process ids.
        kind_of: Returns the kind of a process. Its second argument is the root.
    """
    peaks = Peaks()
    kinds: dict[int, str] = {}
    ended = threading.Event()

    def look() -> None:
        for root, process in ((number, process) for number in roots for process in _family(number)):
            try:
                if process.pid not in kinds:
                    kinds[process.pid] = kind_of(process, root)
                peak = _high_water(process)
            except psutil.Error:
                continue
            of_kind = peaks.bytes.setdefault(kinds[process.pid], {})
            of_kind[process.pid] = max(of_kind.get(process.pid, 0), peak)

    def keep_looking() -> None:
        while not ended.wait(_EVERY_S):
            look()

    for root in roots:
        for process in _family(root):
            _forget_high_water(process.pid)
    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()
        look()


def cpu_seconds(root: int) -> float:
    """Returns the CPU time of a process and its descendants. Ended descendants count if their
    parents collected them."""
    total = 0.0
    for process in _family(root):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += (
            times.user
            + times.system
            + getattr(times, "children_user", 0)
            + getattr(times, "children_system", 0)
        )
    return total


def spark_kind(process: psutil.Process, root: int) -> str:
    """Returns the kind of a session's process. Python workers are forked from a daemon, a child of
    the JVM."""
    if process.pid == root:
        return "driver"
    if "java" in process.name():
        return "jvm"
    line = " ".join(process.cmdline())
    if "pyspark" not in line:
        return "other"
    parent = process.parent()
    return "daemon" if parent is not None and "java" in parent.name() else "worker"


def ray_kind(process: psutil.Process, root: int) -> str:
    """Returns the kind of a Ray process. The title of a worker begins with `ray::`."""
    if process.pid == root:
        return "driver"
    return "worker" if " ".join(process.cmdline()).startswith("ray::") else "services"


def plain_kind(process: psutil.Process, root: int) -> str:
    """Returns `process` for the root process, else `other`."""
    return "process" if process.pid == root else "other"


def _family(root: int) -> list[psutil.Process]:
    """Returns a process and its descendants, without other contestants among its children."""
    try:
        process = psutil.Process(root)
        own = [child for child in process.children() if _CONTESTANTS not in child.cmdline()]
        return [
            process,
            *own,
            *(descendant for child in own for descendant in child.children(recursive=True)),
        ]
    except psutil.Error:
        return []


def _high_water(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
        return next(
            int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmHWM:")
        )
    except (OSError, StopIteration):
        return int(process.memory_info().rss)  # Not Linux: the current memory.


def _forget_high_water(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # The high-water mark then covers the whole life of the process.
