"""The owner of UDF processes: the process whose end also ends them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PYTHONS = ("python", "pypy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process of this machine.

    The time of its start tells the process from a later process with the same number.

    Attributes:
        pid: Number of the process.
        start: Text for the time of its start.

    Example:
        >>> import os
        >>> from udf_runtime.execute.isolation.owner import Owner
        >>> Owner.current().pid == os.getpid()
        True
    """

    pid: int
    start: str

    @staticmethod
    def current() -> Owner:
        """Returns this process."""
        return Owner(pid=os.getpid(), start=_ProcessFacts.read(os.getpid()).start)

    @staticmethod
    def above_python() -> Owner:
        """Returns the nearest ancestor that is no Python; without such an ancestor, this process.

        For a Python worker of Spark, the ancestor is the JVM of the executor.
        """
        facts = _ProcessFacts.read(os.getpid())
        while facts.parent > 1 or (facts.parent == 1 and facts.is_python):
            pid = facts.parent
            facts = _ProcessFacts.read(pid)
            if not facts.is_python:
                return Owner(pid=pid, start=facts.start)
        return Owner.current()

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.pid}-{self.start}"

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return _ProcessFacts.read(self.pid).start == self.start

    def has_variable(self, name: str) -> bool:
        """Tells whether the process was started with an environment variable; True if unknown."""
        try:
            variables = (_PROC / str(self.pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return True
        return any(variable.startswith(f"{name}=".encode()) for variable in variables)


@dataclass(frozen=True, slots=True)
class _ProcessFacts:
    """What the system says about a process; 0 and an empty text for an unknown process."""

    parent: int = 0
    start: str = ""
    is_python: bool = False

    @staticmethod
    def read(pid: int) -> _ProcessFacts:
        try:
            return _read_linux(pid) if _PROC.joinpath("self/stat").exists() else _read_by_ps(pid)
        except (OSError, ValueError, IndexError):
            return _ProcessFacts()


def _read_linux(pid: int) -> _ProcessFacts:
    # The name in parentheses may have spaces: /proc/<pid>/stat, fields 4 and 22.
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    program = ""
    with suppress(OSError):  # a process of another user
        program = os.path.basename(os.readlink(_PROC / str(pid) / "exe"))
    return _ProcessFacts(int(fields[1]), fields[19], program.startswith(_PYTHONS))


def _read_by_ps(pid: int) -> _ProcessFacts:
    command = ["ps", "-o", "ppid=,lstart=,comm=", "-p", str(pid)]
    fields = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()  # noqa: S603 - a fixed command
    start = hashlib.sha256(" ".join(fields[1:6]).encode()).hexdigest()[:12]
    return _ProcessFacts(
        int(fields[0]), start, os.path.basename(" ".join(fields[6:])).lower().startswith(_PYTHONS)
    )
