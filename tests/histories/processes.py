"""Processes that change the table of a history, each started once and then driven by commands: `python -m
tests.histories.processes KIND`.

`writer` makes the changes of other writers, and commits DataFrame writes as Spark's commit process does. `driver` runs
backfills, and runs their tasks itself, in turn. `Spark driver` has its own Spark session, which takes ten seconds to
start. `SQL writer` has a session too, and makes this package's changes as SQL statements. Any process may be killed at
any moment; the next request starts another.

A process stops at gates. A file in the folder `hold` shuts a gate. The first process to reach the gate moves the file
to `held`, and waits while the file exists. So all events of a history happen in the order of its steps.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch

import lance
import psutil

ROOT = Path(__file__).parents[2]
WAIT_S = 90
_POLL_S = 0.004


# Gates


def shut(home: Path, gate: str) -> None:
    (home / "hold" / gate).touch()


def is_held(home: Path, gate: str) -> bool:
    return (home / "held" / gate).exists()


def open_gate(home: Path, gate: str) -> None:
    for state in ("hold", "held"):
        (home / state / gate).unlink(missing_ok=True)


def pass_gate(home: str, gate: str) -> None:
    try:
        os.rename(f"{home}/hold/{gate}", f"{home}/held/{gate}")
    except FileNotFoundError:
        return
    while os.path.exists(f"{home}/held/{gate}"):
        time.sleep(_POLL_S)


@contextlib.contextmanager
def gates_at_commits(whose: Callable[[], tuple[str, str] | None]) -> Iterator[None]:
    """Puts a gate before and a gate after every commit of column files.

    Args:
        whose: Returns the history's folder and the job of the calling thread, or None.
    """
    real = lance.LanceDataset.commit

    @functools.wraps(real)
    def gated(base: Any, operation: Any, *arguments: Any, **more: Any) -> Any:
        home_and_job = whose()
        what = getattr(operation, "operation", operation)
        if home_and_job is None or not isinstance(what, lance.LanceOperation.DataReplacement):
            return real(base, operation, *arguments, **more)
        home, job = home_and_job
        pass_gate(home, f"commit-{job}")
        landed = real(base, operation, *arguments, **more)
        pass_gate(home, f"landed-{job}")
        return landed

    with patch.object(lance.LanceDataset, "commit", gated):
        yield


# The side of the test


class Process:
    """A process for a sequence of commands."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("SPARK_")
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.histories.processes", kind],
            cwd=ROOT,
            env={
                **environment,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._replies: queue.Queue[Any] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                self._replies.put(pickle.load(self._process.stdout))
        except Exception as error:  # noqa: BLE001 - it is an answer too, unless nobody asks any more
            self._replies.put(Caught(error))

    def tell(self, what: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump((what, arguments), self._process.stdin)
        self._process.stdin.flush()

    def answered(self) -> bool:
        assert self._replies.qsize() or self._process.poll() is None, f"a {self.kind} died"
        return self._replies.qsize() > 0

    def answer(self, seconds: float = WAIT_S) -> Any:
        """Waits for the reply and returns it. An error of the other process is returned as :class:`Caught`."""
        return self._replies.get(timeout=seconds)

    def ask(self, what: str, *arguments: Any) -> Any:
        self.tell(what, *arguments)
        answer = self.answer()
        if isinstance(answer, Caught):
            raise AssertionError(f"{what} {arguments}: {answer.trace}")  # noqa: TRY004 - it fails the test
        return answer

    def kill(self) -> None:
        """Kills the process and all its children at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self._process.pid)
            # The parent first, before a reaction to the death of a child.
            family = [top, *top.children(recursive=True)]
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


class Caught:
    """An error of another process."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__name__
        self.text = str(error)
        self.trace = "".join(traceback.format_exception(error))
        result = getattr(error, "result", None)
        self.result = None if result is None else summary(result)

    def __repr__(self) -> str:
        return f"{self.kind}: {self.text}"


class HistoryProcesses:
    """Idle processes of each kind, and a prepared process of a kind with a slow start.

    Attributes:
        driver: The kind of drivers.
        writer: The kind of other writers.
    """

    def __init__(self, driver: str = "driver", writer: str = "writer") -> None:
        self.driver = driver
        self.writer = writer
        self._idle: dict[str, list[Process]] = {}
        self._all: list[Process] = []

    def take(self, kind: str) -> Process:
        idle = self._idle.setdefault(kind, [])
        return idle.pop() if idle else self.start(kind)

    def start(self, kind: str) -> Process:
        started = Process(kind)
        self._all.append(started)
        return started

    def prepare(self, kind: str) -> None:
        """Starts a process for a request in the near future."""
        if not self._idle.setdefault(kind, []):
            self._idle[kind].append(self.start(kind))

    def give_back(self, process: Process) -> None:
        self._idle.setdefault(process.kind, []).append(process)

    def close(self) -> None:
        for process in self._all:
            process.kill()


# The side of the process


def summary(result: Any) -> dict[str, Any]:
    """Returns the counters of a result as plain values, without counters that the result lacks."""
    names = (
        "status",
        "version",
        "versions",
        "read_version",
        "new_rows",
        "rows",
        "fragments_failed",
        "retries",
    )
    reported_names = [name for name in dir(result) if name in names or name.startswith("rows_")]
    return {name: getattr(result, name) for name in reported_names}


def main(kind: str) -> None:
    orders, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with _as_mutant(os.environ.get("LANCE_SPARK_TEST_MUTANT")):
        _serve(orders, replies, _SERVERS[kind]())


@contextlib.contextmanager
def _as_mutant(name: str | None) -> Iterator[None]:
    """Breaks the product in this process as the parent process demands."""
    if name is None:
        yield
        return
    from tests.histories.mutants import mutated

    with mutated(name):
        yield


def _serve(orders: BinaryIO, replies: BinaryIO, server: Any) -> None:
    while True:
        try:
            what, arguments = pickle.load(orders)
        except EOFError:
            os._exit(0)
        try:
            answer = getattr(server, what)(*arguments)
        except BaseException as error:  # noqa: BLE001 - whoever asked gets it
            answer = Caught(error)
        pickle.dump(answer, replies)
        replies.flush()


class _Writer:
    def act(self, uri: str, operation: Any) -> None:
        operation.act(uri)

    def write(self, home: str, job: str, uri: str, settings: dict[str, Any]) -> dict[str, Any]:
        from tests.histories.jobs import write

        with gates_at_commits(lambda: (home, job)):
            return write(home, job, uri, settings)


class _SqlWriter(_Writer):
    def __init__(self) -> None:
        from tests.histories import in_sql

        in_sql.use()


class _Driver:
    def __init__(self) -> None:
        from tests.support.inline_jobs import InlineScheduler, NoSpark

        patch("lance_spark.backfill.driver.job.Scheduler", InlineScheduler).start()
        self._spark: Any = NoSpark()

    def run(self, home: str, job: str, settings: dict[str, Any]) -> dict[str, Any]:
        from tests.histories.jobs import start

        with gates_at_commits(lambda: (home, job) if in_thread_of(job) else None):
            return summary(start(self._spark, home, job, settings).result(WAIT_S))


class _SparkDriver(_Driver):
    def __init__(self) -> None:
        from tests.support.driver import session

        self._spark = session("local[2]")


_SERVERS: dict[str, Callable[[], object]] = {
    "writer": _Writer,
    "SQL writer": _SqlWriter,
    "driver": _Driver,
    "Spark driver": _SparkDriver,
}


def in_thread_of(job_id: str) -> bool:
    return threading.current_thread().name == f"lance-spark-{job_id}"


if __name__ == "__main__":
    # Replies must have classes of the module that the test imports, instead of `__main__`.
    importlib.import_module("tests.histories.processes").main(sys.argv[1])
