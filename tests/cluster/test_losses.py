"""Each operation ends well under each condition of a cluster: exact rows, counted calls, and no file left behind."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

import lance_spark
from tests.cluster.applications import Application
from tests.cluster.conftest import HOSTS, StandaloneCluster, start_master
from tests.cluster.operations import HELD, OPERATIONS, ClusterOperation, OperationRequest
from tests.cluster.places import hiding, make_environment
from tests.object_stores.conftest import s3 as s3  # noqa: PLC0414 - a fixture
from tests.object_stores.stores import Store, StorePlace, strays
from tests.support.faults import Orders, is_running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]


def lose_executor(cluster: StandaloneCluster, task: psutil.Process) -> None:
    cluster.executor_of(task).kill()


def lose_worker(cluster: StandaloneCluster, task: psutil.Process) -> None:
    cluster.lose_worker_of(task)


def decommission(cluster: StandaloneCluster, task: psutil.Process) -> None:
    """The executor gets no further task, and Spark kills it two seconds later."""
    os.kill(cluster.executor_of(task).pid, signal.SIGPWR)


def wait_for_idle_executors(cluster: StandaloneCluster, task: psutil.Process) -> None:
    """Executors without a task or data go within a second."""
    busy_executor = cluster.executor_of(task)
    psutil.wait_procs(
        [executor for executor in cluster.executors() if executor != busy_executor], timeout=5
    )


@dataclass(frozen=True, kw_only=True)
class ClusterCondition:
    """A condition of an application.

    Attributes:
        settings: Settings of the application.
        order: What the first call of the row `HELD` does; None for nothing.
        lose: Acts while the call waits.
        kills: Whether the waiting process dies.
    """

    settings: dict[str, str] = field(default_factory=dict)
    order: str | None = "wait"
    lose: Callable[[StandaloneCluster, psutil.Process], None] | None = None
    kills: bool = True


CONDITIONS = {
    "dynamic allocation": ClusterCondition(
        settings={
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.initialExecutors": "0",
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
            "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
            "spark.dynamicAllocation.cachedExecutorIdleTimeout": "60s",
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        },
        lose=wait_for_idle_executors,
        kills=False,
    ),
    "speculation": ClusterCondition(
        settings={
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "2s",
            # A stage of a single task has no other task to compare with.
            "spark.speculation.task.duration.threshold": "3s",
        },
        order="hold the first",
    ),
    "executor killed": ClusterCondition(lose=lose_executor),
    "worker killed": ClusterCondition(lose=lose_worker),
    "decommissioning": ClusterCondition(
        settings={
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "true",
            "spark.executor.decommission.forceKillTimeout": "2s",
        },
        lose=decommission,
    ),
}

NO_LOSS = ClusterCondition(order=None, kills=False)


@pytest.fixture(scope="module")
def condition(request: pytest.FixtureRequest) -> ClusterCondition:
    return CONDITIONS[request.param]


@pytest.fixture(scope="module")
def application(
    cluster: StandaloneCluster,
    condition: ClusterCondition,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Application]:
    started = Application(cluster, tmp_path_factory.mktemp("driver"), condition.settings)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def application_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application whose executors see none of the driver's files."""
    home = tmp_path_factory.mktemp("driver")
    yield from alone(tmp_path_factory.mktemp("elsewhere"), home, wrapper=hiding(home))


@pytest.fixture(scope="module")
def packed_application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application whose executors have a Python and packages of an archive, and this package from a zip file."""
    home = tmp_path_factory.mktemp("driver")
    yield from alone(tmp_path_factory.mktemp("packed"), home, variables=make_environment(home))


def alone(
    folder: Path,
    home: Path,
    *,
    wrapper: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Application]:
    """Runs an application on a cluster of its own: another application has all cores of its cluster."""
    with start_master(folder) as cluster:
        for _ in HOSTS:
            cluster.add_worker(wrapper=wrapper)
        started = Application(cluster, home, {}, variables)
        yield started
        started.stop()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("condition", CONDITIONS, indirect=True)
def test_an_operation_ends_well(
    operation: str, condition: ClusterCondition, application: Application, tmp_path: Path
) -> None:
    if condition.settings.get("spark.dynamicAllocation.enabled"):
        eventually(lambda: not application.cluster.executors())
    run = OperationRun(
        name=operation, application=application, root=str(tmp_path / "db"), home=tmp_path
    )
    run.run(condition)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_executors_need_no_file_of_the_drivers_machine(
    operation: str, application_elsewhere: Application, s3: Store, tmp_path: Path
) -> None:
    place = s3.place()
    OperationRun(
        name=operation,
        application=application_elsewhere,
        root=place.folder,
        home=tmp_path,
        storage=place.storage,
    ).run(NO_LOSS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_executors_have_an_environment_of_an_archive(
    operation: str, packed_application: Application, tmp_path: Path
) -> None:
    run = OperationRun(
        name=operation, application=packed_application, root=str(tmp_path / "db"), home=tmp_path
    )
    run.run(NO_LOSS)


@dataclass(kw_only=True)
class OperationRun:
    """A run of an operation on a new table.

    Attributes:
        name: Name of the operation.
        application: The application.
        root: Folder of the tables.
        home: Folder of orders and reports.
        storage: Options of the store.
    """

    name: str
    application: Application
    root: str
    home: Path
    storage: dict[str, str] = field(default_factory=dict)
    orders: Orders = field(init=False)

    def __post_init__(self) -> None:
        self.orders = Orders(home=self.home)

    @property
    def operation(self) -> ClusterOperation:
        return OPERATIONS[self.name]

    def run(self, condition: ClusterCondition) -> None:
        self.send("prepare")
        self.application.reply()
        self.check(self.act(condition))

    def send(self, step: str) -> None:
        self.application.send(
            OperationRequest(
                operation=self.name,
                step=step,
                root=self.root,
                orders=str(self.home),
                storage=self.storage,
            )
        )

    def act(self, condition: ClusterCondition) -> int:
        """Runs the operation, and returns the number of repeated attempts of tasks."""
        before = self.application.repeated_attempts()
        if condition.order is not None:
            self.orders.order({HELD: condition.order})
        self.send("act")
        if condition.lose is not None:
            self.application.wait_for(lambda: self.orders.waits_at(HELD))
            task = psutil.Process(self.orders.pid_at(HELD))
            condition.lose(self.application.cluster, task)
            if condition.kills:
                eventually(lambda: not is_running(task.pid))
            self.orders.pardon()
        self.application.reply()
        self.orders.pardon()
        lost = self.application.repeated_attempts() - before
        assert lost >= condition.kills
        return lost

    def check(self, lost: int) -> None:
        """Checks rows, calls and files. Repeated attempts of tasks may repeat calls."""
        place = StorePlace(uri=f"{self.root}/{self.operation.table}.lance", storage=self.storage)
        self.check_rows(place)
        self.check_calls(lost)
        # A copy of a task may outlive its job, and write another checkpoint.
        eventually(lambda: not any("/checkpoints/" not in name for name in self.strays()))
        for table in self.tables():
            lance_spark.cleanup(table.uri, older_than=timedelta(0), storage_options=self.storage)
        assert self.strays() == set()
        self.check_rows(place)

    def check_rows(self, place: StorePlace) -> None:
        rows = place.open().to_table(columns=["x", "v"])
        assert rows.num_rows == len(self.operation.expected())
        assert (
            dict(zip(rows["x"].to_pylist(), rows["v"].to_pylist(), strict=True))
            == self.operation.expected()
        )

    def check_calls(self, lost: int) -> None:
        calls = self.orders.new_calls()
        computed = self.operation.computed
        assert set(calls) == set(computed)
        assert max(calls.values()) <= 1 + lost, calls
        assert sum((calls - Counter(computed)).values()) <= self.operation.repeated * lost, calls

    def tables(self) -> list[StorePlace]:
        names = {"t", self.operation.table}
        return [
            StorePlace(uri=f"{self.root}/{name}.lance", storage=self.storage)
            for name in sorted(names)
        ]

    def strays(self) -> set[str]:
        return {name for table in self.tables() for name in strays(table)}
