"""Processes of `lance-spark agent`, and a UDF that they run for seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.logs import Log
from tests.support.processes import environment
from udf_runtime import UDF, udf

ROOT = Path(__file__).parents[2]
WAIT_S = 240
BATCH, ROWS = 5, 60

WATCHING = ("--master", "local[2,4]", "--trigger", "1", "--debounce", "0")
"""Arguments of an agent that notices a commit within a second."""


def slow(log: Log) -> UDF:
    path = log.path

    def double(x: int) -> int:
        import time

        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        time.sleep(0.1)
        return 2 * x

    return udf(
        double,
        auto_backfill=True,
        min_checkpoint_size=BATCH,
        max_checkpoint_size=BATCH,
        checkpoint_size=BATCH,
    )


class AgentProcess:
    """A running `lance-spark agent` with stored code of all tables."""

    def __init__(
        self, folder: str, log: Path, *arguments: str, module: str = "lance_spark.cli"
    ) -> None:
        command = [
            *(sys.executable, "-m", module, "agent", "--root", folder, "--allow", "*"),
            *arguments,
        ]
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, number: int) -> int:
        if number == signal.SIGKILL:
            os.killpg(self.process.pid, number)  # with its JVM and its workers
        else:
            self.process.send_signal(number)
        return self.process.wait(WAIT_S)
