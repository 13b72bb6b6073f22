"""Processes that outlive their runner: loads, owners, deaths, threads and memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tests.support.waiting import eventually
from tests.udf_runtime.execute.cases import INT, batches_of, failed_rows, make, run, values_of
from udf_runtime.definition import UDF, Kind, udf
from udf_runtime.errors import UdfDefinitionError, UdfFailedError
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.call_context import CallContext
from udf_runtime.execute.isolation import process
from udf_runtime.execute.isolation.isolated_calls import IsolatedCalls
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.process import ProcessSpec
from udf_runtime.execute.isolation.process_limits import IDLE_VARIABLE, MEMORY_VARIABLE
from udf_runtime.execute.isolation.process_registry import ProcessRegistry
from udf_runtime.execute.isolation.protocol import shared_batch
from udf_runtime.execute.result import BatchResult
from udf_runtime.policies import Retry, Skip

pytestmark = pytest.mark.sample(1, tests=2)

ROOT = str(Path(__file__).parents[3])
SHARED = ProcessSpec()


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    registry = ProcessRegistry(Owner.current())
    registry.end_all_idle()
    eventually(lambda: not registry.list_states(), 10)


def note(log: Path | str, event: str) -> None:
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{event} {os.getpid()}\n")


def events(log: Path) -> list[str]:
    """The events of the log, without process numbers."""
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def processes(log: Path) -> set[int]:
    return {int(line.split()[1]) for line in log.read_text().splitlines()}


def model(log: Path, **options: object) -> UDF:
    """A class that logs its state, and that sleeps for negative values, dies of 666, and uses signals in `setup`."""

    class Model:
        def __init__(self, log: str) -> None:
            self.log = log

        def setup(self) -> None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the main thread alone may do so
            note(self.log, "setup")

        def teardown(self) -> None:
            assert threading.current_thread() is threading.main_thread()
            note(self.log, "teardown")

        def __call__(self, x: int) -> int:
            if x < 0:
                note(self.log, "call")
                time.sleep(-x)
            if x == 666:
                os._exit(6)
            return os.getpid() if x == 0 else x

    model_udf = udf(data_type=INT, version="1", **options)(Model)(str(log))  # type: ignore[call-overload]
    return UDF.loads(model_udf.dumps())


def call_in_another_process(
    folder: Path, model_udf: UDF, owner: Owner | None, *columns: list[int]
) -> subprocess.Popen[bytes]:
    """Runs a UDF in another process, which waits afterwards."""
    payload = folder / "payload"
    payload.write_bytes(pickle.dumps((model_udf.dumps(), owner)))
    script = textwrap.dedent(
        f"""
        import pickle, sys, time
        sys.path[:] = {sys.path!r}  # a part of the key of a process
        from udf_runtime.definition import UDF
        from udf_runtime.execute import UdfRunner
        from udf_runtime.execute.isolation.process import ProcessSpec
        from tests.udf_runtime.execute.cases import batches_of
        payload, owner = pickle.load(open({str(payload)!r}, "rb"))
        with UdfRunner(UDF.loads(payload), processes=ProcessSpec(owner=owner)) as runner:
            list(runner.run(batches_of(*{list(columns)!r})))
            open({str(folder / "done")!r}, "w").close()
            time.sleep(60)
        """
    )
    return subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": ROOT})


def test_runners_and_threads_share_a_process_until_it_is_idle_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(IDLE_VARIABLE, "1")
    log = tmp_path / "log"
    model_udf = model(log)
    first = values_of(run(model_udf, *batches_of([0], [0]), processes=SHARED))
    with UdfRunner(model_udf, threads=3, processes=SHARED) as runner:
        many = values_of(runner.run(batches_of(*[[0, -1]] * 3, *[[0]] * 9)))
    assert {value for values in first + many for value in values if value >= 0} == processes(log)
    assert events(log) == ["setup", "call", "call", "call"] and len(processes(log)) == 1
    eventually(lambda: events(log)[-1] == "teardown", 15)
    eventually(lambda: not any(map(psutil.pid_exists, processes(log))), 15)
    run(model_udf, *batches_of([1]), processes=SHARED)
    assert events(log).count("setup") == 2 and events(log).count("teardown") == 1


def test_a_task_that_is_killed_leaves_the_process_idle_unless_it_waits_for_a_call(tmp_path: Path):
    log, owner = tmp_path / "log", Owner.current()
    model_udf = model(log)
    task = call_in_another_process(tmp_path, model_udf, owner, [1])
    try:
        eventually((tmp_path / "done").exists, 30)
    finally:
        task.kill()
        task.wait()
    eventually(lambda: ProcessRegistry(owner).list_states()[0].idle_s is not None, 10)
    run(model_udf, *batches_of([2]), processes=SHARED)
    assert events(log) == ["setup"]

    task = call_in_another_process(tmp_path, model_udf, owner, [-60])
    try:
        eventually(lambda: "call" in events(log), 30)
    finally:
        task.kill()
        task.wait()
    eventually(lambda: not any(map(psutil.pid_exists, processes(log))), 5)
    assert events(log) == ["setup", "call"]


@pytest.mark.long
@pytest.mark.parametrize("column", [pytest.param([-60], id="busy"), pytest.param([1], id="idle")])
def test_the_end_of_the_owner_ends_its_processes(tmp_path: Path, column: list[int]):
    log = tmp_path / "log"
    owner = call_in_another_process(tmp_path, model(log), None, column)
    try:
        eventually(lambda: (tmp_path / "done").exists() or "call" in events(log), 30)
        (pid,) = processes(log)
        assert psutil.pid_exists(pid)
    finally:
        owner.kill()
        owner.wait()
    eventually(lambda: not psutil.pid_exists(pid), 5)
    assert events(log)[1:] == (["call"] if column == [-60] else ["teardown"])


@pytest.mark.long
def test_memory_ends_the_least_recently_used_idle_process_and_never_a_busy_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    logs = [tmp_path / name for name in ("busy", "first", "second", "third")]
    busy = UdfRunner(model(logs[0]), processes=SHARED)
    list(busy.run(batches_of([1])))
    for log in logs[1:3]:
        run(model(log), *batches_of([1]), processes=SHARED)
    sizes = {
        state.pid: state.resident_bytes for state in ProcessRegistry(Owner.current()).list_states()
    }
    assert len(sizes) == 3 and min(sizes.values()) > 20 << 20
    monkeypatch.setenv(
        MEMORY_VARIABLE, f"{(sum(sizes.values()) + max(sizes.values()) // 2) >> 10}k"
    )  # for 3.5 processes
    run(model(logs[3]), *batches_of([1]), processes=SHARED)
    assert [events(log) for log in logs] == [["setup"], ["setup", "teardown"], ["setup"], ["setup"]]
    monkeypatch.setenv(MEMORY_VARIABLE, "1")
    ProcessRegistry(Owner.current()).make_room()
    assert {events(log)[-1] for log in logs[1:]} == {"teardown"} and events(logs[0]) == ["setup"]
    busy.close()
    for name, text in ((MEMORY_VARIABLE, "much"), (IDLE_VARIABLE, "long")):
        monkeypatch.setenv(name, text)
        with pytest.raises(UdfDefinitionError, match=name):
            run(make(lambda x: x), *batches_of([1]), processes=SHARED)
        monkeypatch.delenv(name)


@pytest.mark.long
def test_batches_of_many_buffers_and_many_bytes_reach_a_process_and_come_back():
    columns = [pa.array(range(5))] * 600 + [pa.array(["x" * 3_000_000] * 5)]
    wide = pa.StructArray.from_arrays(columns, [f"f{number}" for number in range(len(columns))])

    class Echo:
        def setup(self) -> None: ...

        def __call__(self, x: pa.Array) -> pa.Array:
            return x

    function: Any = udf(Echo, data_type=wide.type, version="1")
    with UdfRunner(function(), processes=SHARED) as runner:
        [result] = runner.run([pa.record_batch([wide.slice(1, 3)], names=["x"])])

    assert result.values.equals(wide.slice(1, 3))


def test_a_shared_batch_survives_deaths_and_writes_of_the_udf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each batch is shared during the batch before; the first batch kills the process.

    The UDF keeps its inputs, which need no open file, and its timeout of sockets concerns no batch.
    """
    log = tmp_path / "log"

    class Overwriting:
        def __init__(self, log: str) -> None:
            self.log = log
            self.kept: list[pa.Array] = []

        def setup(self) -> None:
            note(self.log, "setup")
            socket.setdefaulttimeout(30)

        def __call__(self, x: pa.Array) -> pa.Array:
            time.sleep(0.1)
            if 666 in x.to_pylist():
                os._exit(6)
            note(self.log, ",".join(map(str, x.to_pylist())))
            self.kept.append(x[:1])
            files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            assert not any("udf-batch" in os.path.realpath(file) for file in files)
            # As in-place functions of native libraries do.
            ctypes.memset(x.buffers()[1].address + 8 * x.offset, 0, 8 * len(x))
            return x

    monkeypatch.setattr(shared_batch, "_LEAST_BYTES", 0)
    function: Any = udf(Overwriting, data_type=INT, version="1")
    given = batches_of([666], range(5, 8), range(8, 11), range(11, 14))
    with UdfRunner(function(str(log)), processes=SHARED) as runner:
        batches = given[:1]
        results = list[BatchResult]()

        def work_ahead() -> None:
            if len(batches) == len(results) + 1 < len(given):
                batches.append(runner.share(given[len(batches)]))

        for result in runner.run((batches[at] for at in range(len(given))), work_ahead):
            results.append(result)
    are_shared = [batch is not original for batch, original in zip(batches, given, strict=True)]
    assert are_shared == [False, True, True, True]
    assert batches == given
    assert values_of(results) == [[None], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert [event for event in events(log) if event != "setup"] == ["5,6,7", "8,9,10", "11,12,13"]
    batches.clear()
    names = [file.path for file in psutil.Process().memory_maps() if "udf-batch" in file.path]
    assert names == []


def test_a_process_that_ends_between_two_calls_costs_no_row(tmp_path: Path):
    log = tmp_path / "log"
    with UdfRunner(model(log), processes=SHARED) as runner:
        results = runner.run(iter(batches_of([1], [2])))
        first = next(results)
        (pid,) = processes(log)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not psutil.pid_exists(pid), 10)
        assert values_of([first, *results]) == [[1], [2]]
    assert events(log) == ["setup", "setup"]


def test_all_threads_get_the_error_of_a_failed_load():
    class Failing:
        def setup(self) -> None:
            time.sleep(0.2)
            raise ValueError("no weights")

        def __call__(self, x: int) -> int:
            return x

    failing = UDF.loads(udf(data_type=INT, version="1")(Failing)().dumps())
    calls = IsolatedCalls(
        CallContext(udf=failing, sleep=time.sleep, clock=time.perf_counter, rng=random.Random(0)),
        SHARED,
        is_shared=True,
        threads=8,
    )
    with contextlib.closing(calls), ThreadPoolExecutor(8) as threads:
        futures = [
            threads.submit(calls.run, batch) for batch in batches_of(*([x] for x in range(8)))
        ]
        messages = {str(future.exception()).partition(".")[0] for future in futures}
    assert messages == {"UDF 'Failing' raised ValueError: no weights"}


@pytest.mark.long
def test_a_process_with_many_hung_calls_of_several_tasks_ends_in_order(tmp_path: Path):
    log = tmp_path / "log"
    hanging = model(log, timeout=0.02, on_error=[Skip(TimeoutError)])
    for _ in range(3):
        [result] = run(hanging, *batches_of([*[-1000] * 40, 7]), processes=SHARED)
        assert result.values.to_pylist() == [*[None] * 40, 7]
    eventually(lambda: events(log).count("teardown") == 1, 10)
    assert events(log).count("setup") == 2


def test_threads_of_the_next_task_are_served_after_a_task_that_ended_during_the_load(
    tmp_path: Path,
):
    log = tmp_path / "log"

    class Slow:
        def setup(self) -> None:
            note(log, "setup")
            time.sleep(1)

        def __call__(self, x: int) -> int:
            return x

    slow = UDF.loads(udf(data_type=INT, version="1")(Slow)().dumps())
    payload, [batch] = slow.dumps(), batches_of([1])
    start = SHARED.interpreter.make_start(payload, None)
    held = ProcessRegistry(Owner.current()).start(slow, payload, SHARED)
    with contextlib.ExitStack() as stack:
        stack.callback(held.kill)
        ended = held.open(slow, start, None)
        eventually(lambda: events(log) == ["setup"], 10)
        ended.drop()
        for _ in range(3):
            connection = held.open(slow, start, None)
            stack.callback(connection.drop)
            with ThreadPoolExecutor(1) as threads:
                future = threads.submit(connection.call, batch)
                _, waiting = wait([future], timeout=20)
                if waiting:
                    held.kill()
            assert future.result().values.to_pylist() == [1]


def test_a_killed_process_that_ends_late_has_ended_for_its_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "QUIT_WAIT_S", 0)

    class Dying:
        def __call__(self, x: int) -> int:
            if x == 3:
                os._exit(3)
            return x

    dying = UDF.loads(udf(data_type=INT, version="1")(Dying)().dumps())
    assert values_of(run(dying, *batches_of([2, 3], [4]), processes=SHARED)) == [[2, None], [4]]


def test_a_process_without_free_descriptors_ends_so_no_task_waits():
    class Leaky:
        def __init__(self) -> None:
            self.descriptors: list[int] = []

        def __call__(self, x: int) -> int:
            if x == 1:
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
                with contextlib.suppress(OSError):
                    while True:
                        self.descriptors.append(os.dup(0))
            return x

    leaky = UDF.loads(udf(data_type=INT, version="1")(Leaky)().dumps())
    assert values_of(run(leaky, *batches_of([1]), processes=SHARED)) == [[1]]
    results = run(leaky, *batches_of(*([x] for x in range(2, 9))), processes=SHARED, threads=3)
    assert values_of(results) == [[x] for x in range(2, 9)]


@pytest.mark.long
def test_only_the_fatal_row_of_two_threads_is_blamed(tmp_path: Path):
    log = tmp_path / "log"
    columns = [[1, 2, -1, 3], [4, 666, 5], [6, 7]]
    results = run(model(log), *batches_of(*columns), threads=2, processes=SHARED)
    assert [failed_rows(result) for result in results] == [[], [1], []]
    assert values_of(results) == [[1, 2, -1, 3], [4, None, 5], [6, 7]]
    assert (
        results[1].failures[0].outcome == "crashed"
        and "exit code 6" in results[1].failures[0].message
    )
    assert len(ProcessRegistry(Owner.current()).list_states()) == 1  # idle for the next task


def test_results_errors_skips_and_retries_are_those_of_this_process(tmp_path: Path):
    tries = tmp_path / "tries"

    def work(x: int) -> int:
        if x == 5 and not tries.exists():
            tries.touch()
            raise OSError("once")
        if x == 7:
            raise ValueError("seven")
        if x == 9:
            raise KeyError("nine")
        return x + 1

    policy = [Retry(OSError, max_attempts=3), Skip(ValueError)]
    outcomes = []
    for processes_ in (None, SHARED):
        tries.unlink(missing_ok=True)
        results = run(
            make(work, on_error=policy), *batches_of([1, 5], [7, 8, 0]), processes=processes_
        )
        with pytest.raises(UdfFailedError) as caught:
            run(make(work, on_error=policy), *batches_of([1, 9]), processes=processes_)
        error = caught.value
        outcomes.append(
            (
                [
                    (values.to_pylist(), retries)
                    for values, retries in ((r.values, r.retries) for r in results)
                ],
                [
                    [(f.row, f.outcome, f.error_type, f.message, f.attempt) for f in r.failures]
                    for r in results
                ],
                (str(error), error.row, error.error_type, type(error.__cause__)),
            )
        )
    assert outcomes[0] == outcomes[1]


def test_the_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Path(tmp_path, f"lance-spark-{os.getuid()}").mkdir(mode=0o777)
    os.chmod(tmp_path / f"lance-spark-{os.getuid()}", 0o777)
    with pytest.raises(PermissionError, match="Remove the folder"):
        run(make(lambda x: x), *batches_of([1]), processes=SHARED)


@pytest.mark.long
def test_a_long_path_of_the_folder_of_temporary_files_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert values_of(run(make(lambda x: x, Kind.ARROW), *batches_of([1]), processes=SHARED)) == [
        [1]
    ]
    ProcessRegistry(Owner.current()).end_all_idle()
