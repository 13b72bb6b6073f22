"""Applications on a cluster: a driver of `tests.cluster.operations` in a process, and the attempts of its tasks."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.conftest import JOB_S, ROOT, StandaloneCluster
from tests.cluster.operations import OperationRequest
from tests.support.processes import environment


class Application:
    """A running driver in a folder of its own: its working directory, home, and temporary files.

    Attributes:
        cluster: The cluster of its executors.
    """

    def __init__(
        self,
        cluster: StandaloneCluster,
        home: Path,
        settings: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self._home = home
        for name in ("tmp", "events"):
            (home / name).mkdir(parents=True, exist_ok=True)
        own_settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (home / "events").as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.local.dir": str(home / "tmp"),
        }
        folders = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONPATH": str(ROOT)}
        with (home / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.cluster.operations",
                    cluster.url,
                    json.dumps({**own_settings, **settings}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=home,
                env=environment() | folders | dict(variables or {}),
            )
        self._replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.reply()

    def send(self, request: OperationRequest) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(request.to_json() + "\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        """Waits for a reply, and returns the reply of a successful operation."""
        reply = self._replies.get(timeout=JOB_S)
        assert reply is not None, self._errors()
        assert "error" not in reply, reply["error"]
        return reply

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Waits for an effect of the running operation."""
        deadline = time.monotonic() + JOB_S
        while not holds():
            assert self._replies.empty(), self.reply()
            assert time.monotonic() < deadline, "the operation did not get there"
            time.sleep(0.02)

    def repeated_attempts(self) -> int:
        """Returns the number of task attempts beyond the first attempt of each partition of a stage."""
        attempts: Counter[tuple[int, int]] = Counter()
        for log in (self._home / "events").iterdir():
            for line in log.read_text().splitlines():
                if line.startswith('{"Event":"SparkListenerTaskStart"'):
                    event = json.loads(line)
                    attempts[event["Stage ID"], event["Task Info"]["Partition ID"]] += 1
        return sum(attempts.values()) - len(attempts)

    def stop(self) -> None:
        family = (
            psutil.Process(self.process.pid).children(recursive=True)
            if self.process.poll() is None
            else []
        )
        self.process.kill()
        for child in family:
            child.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        psutil.wait_procs(self.cluster.executors(), timeout=JOB_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._replies.put(json.loads(line))
        self._replies.put(None)

    def _errors(self) -> str:
        return (self._home / "errors").read_text(errors="replace")[-4000:]
