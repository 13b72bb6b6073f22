"""Starts Spark's own daemons from the pip-installed package, on loopback, and stops all their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from tests.support.java_classes import JVM_OPTIONS

SPARK_HOME = Path(pyspark.__file__).parent
READY_S = 120
"""A JVM takes two seconds to start on an idle machine, and much longer on a busy machine."""


def environment() -> dict[str, str]:
    """Returns the environment of all processes: this interpreter for Python workers, and no setting of another Spark."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    return variables | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": JVM_OPTIONS,
        "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class Daemons:
    """Processes, each with a log and a process group, so that its children end at the same time."""

    home: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self,
        name: str,
        *arguments: str,
        ready: str,
        variables: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Starts `spark-class` with these arguments and waits until its log contains `ready`.

        `wrapper` runs the command of its arguments.
        """
        log = self.home / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*wrapper, str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment() | dict(variables or {}),
                cwd=self.home,
                start_new_session=True,
            )
        self.running.append(process)
        deadline = time.monotonic() + READY_S
        while ready not in log.read_text(errors="replace"):
            assert process.poll() is None, (
                f"{name} ended: {log.read_text(errors='replace')[-2000:]}"
            )
            assert time.monotonic() < deadline, (
                f"{name} is not ready: {log.read_text(errors='replace')[-2000:]}"
            )
            time.sleep(0.1)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a process and all its children, like the failure of a machine."""
        family = [process.pid]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self.running.remove(process)


@contextlib.contextmanager
def daemons(home: Path) -> Iterator[Daemons]:
    started = Daemons(home=home)
    try:
        yield started
    finally:
        for process in reversed(list(started.running)):
            started.kill(process)
