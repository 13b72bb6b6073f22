"""Starts driver processes, and kills them with all their children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.faults import SETTINGS, is_running
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
WAIT_S = 240

Jobs = dict[str, tuple[Path, dict[str, Any]]]
"""Folder and settings of each job, by its id."""


class Driver:
    """A running driver."""

    def __init__(
        self,
        master: str,
        jobs: Jobs,
        *,
        module: str = "tests.support.driver",
        common: dict[str, Any] = SETTINGS,
    ) -> None:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("SPARK_")
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                *("-m", module, master),
                json.dumps(
                    {
                        name: (str(home), {**common, **settings})
                        for name, (home, settings) in jobs.items()
                    }
                ),
            ],
            cwd=ROOT,
            env={
                **environment,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Waits for an effect of the driver."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "the driver did not get there"
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills the driver and all its children, like a power failure."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            family = [top, *top.children(recursive=True)]
            # The driver first, before any reaction.
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            eventually(lambda: not any(is_running(member.pid) for member in family), 60)
        self.process.communicate()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def answer(self) -> dict[str, Any]:
        """Waits for the end of the driver, and returns its report."""
        return self.answers(1)[0]

    def answers(self, count: int) -> list[dict[str, Any]]:
        """Waits for its end, and returns the last so many answers."""
        out, err = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, err[-4000:]
        return [json.loads(line) for line in out.splitlines()[-count:]]


@contextlib.contextmanager
def driver(jobs: Jobs, *, master: str = "local[2]", **more: Any) -> Iterator[Driver]:
    started = Driver(master, jobs, **more)
    try:
        yield started
    finally:
        started.kill()
