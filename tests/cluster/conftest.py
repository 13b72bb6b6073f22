"""A standalone cluster: a master and two workers of one core each."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.processes import Daemons, daemons, environment, free_port

ROOT = Path(__file__).parents[2]
JOB_S = 600
HOSTS = ("127.0.0.1", "127.0.0.2")


@dataclass(kw_only=True)
class StandaloneCluster:
    daemons: Daemons
    port: int
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    started: int = 0

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        return self.daemons.home

    def add_worker(
        self, *, cores: int = 1, settings: str = "", wrapper: Sequence[str] = ()
    ) -> None:
        """Starts a worker. Its settings have the form of options of Java. `wrapper` runs the command of its arguments.

        Spark runs a speculative task only on another host than the first attempt, so there are two hosts.
        """
        self.started += 1
        name = f"worker-{self.started}"
        used = Counter(self.hosts[worker.pid] for worker in self.workers)
        host = min(HOSTS, key=lambda host: used[host])
        self.workers.append(
            self.daemons.start(
                name,
                *(
                    "org.apache.spark.deploy.worker.Worker",
                    "--host",
                    host,
                    "--webui-port",
                    str(free_port()),
                ),
                *("-c", str(cores), "-m", "1500M", "-d", str(self.home / name), self.url),
                ready="Successfully registered with master",
                # Workers are separate machines, except for downloads of installers.
                variables={
                    "HOME": str(self.home_of(self.started)),
                    "UV_CACHE_DIR": str(Path.home() / ".cache" / "uv"),
                    "SPARK_WORKER_OPTS": settings,
                },
                wrapper=wrapper,
            )
        )
        self.hosts[self.workers[-1].pid] = host

    def home_of(self, worker: int) -> Path:
        """Returns the home directory on the machine of a worker, counted from 1."""
        home = self.home / f"home-{worker}"
        home.mkdir(exist_ok=True)
        return home

    def writing(self, path: str) -> list[psutil.Process]:
        """Returns the Python workers with an open file below `path`: their tasks are in the middle of a write."""
        return [
            process
            for process in self._python()
            if any(name.startswith(path) for name in open_files(process))
        ]

    def executor_of(self, process: psutil.Process) -> psutil.Process:
        return next(
            parent
            for parent in process.parents()
            if "CoarseGrainedExecutorBackend" in " ".join(command_of(parent))
        )

    def lose_machine_of(self, process: psutil.Process) -> None:
        """Kills a worker with its executors and their Python processes, and starts a replacement."""
        worker = self.worker_of(process)
        self.workers.remove(worker)
        self.daemons.kill(worker)
        self.add_worker()

    def lose_worker_of(self, process: psutil.Process) -> None:
        """Kills the process of a worker, and starts a replacement after the end of its executors."""
        worker = self.worker_of(process)
        executors = psutil.Process(worker.pid).children()
        worker.kill()
        worker.wait()
        self.workers.remove(worker)
        psutil.wait_procs(executors, timeout=JOB_S)
        self.add_worker()

    def worker_of(self, process: psutil.Process) -> subprocess.Popen[bytes]:
        family = {parent.pid for parent in process.parents()}
        return next(worker for worker in self.workers if worker.pid in family)

    def executors(self) -> list[psutil.Process]:
        """Returns the processes of the executors."""
        children = [
            child
            for worker in self.workers
            for child in psutil.Process(worker.pid).children(recursive=True)
        ]
        return [
            child
            for child in children
            if "CoarseGrainedExecutorBackend" in " ".join(command_of(child))
        ]

    def _python(self) -> list[psutil.Process]:
        below = [
            p
            for worker in self.workers
            for p in psutil.Process(worker.pid).children(recursive=True)
        ]
        return [
            p
            for p in below
            if "pyspark" in " ".join(command_of(p)) and "java" not in command_of(p)[0]
        ]


class ClusterJob:
    """A driver in a process of its own."""

    def __init__(self, name: str, cluster: StandaloneCluster, path: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.jobs", name, cluster.url, path]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def result(self) -> dict[str, object]:
        out, errors = self.process.communicate(timeout=JOB_S)
        assert self.process.returncode == 0, errors[-4000:]
        answer: dict[str, object] = json.loads(out.splitlines()[-1])
        return answer

    def lose(
        self,
        lose: Callable[[StandaloneCluster, psutil.Process], None],
        cluster: StandaloneCluster,
        path: str,
    ) -> None:
        """Waits until a task is in the middle of a file, and kills its process or machine."""
        deadline = time.monotonic() + JOB_S
        while not (writing := cluster.writing(path)):
            assert self.process.poll() is None, self.process.communicate()[1][-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        lose(cluster, writing[0])

    def end(self) -> None:
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
        self.process.communicate()


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() or [""]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return [""]


def open_files(process: psutil.Process) -> list[str]:
    try:
        return [file.path for file in process.open_files()]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with start_master(tmp_path_factory.mktemp("cluster")) as new_cluster:
        new_cluster.add_worker()
        new_cluster.add_worker()
        yield new_cluster


@contextlib.contextmanager
def start_master(home: Path) -> Iterator[StandaloneCluster]:
    """Starts a cluster without workers."""
    with daemons(home) as started:
        port = free_port()
        started.start(
            "master",
            *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)),
            *("--webui-port", str(free_port())),
            ready="I have been elected leader",
        )
        yield StandaloneCluster(daemons=started, port=port)
