"""UDFs in child processes: real deaths, real pipes."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.udf_runtime.execute.cases import (
    INT,
    Pulled,
    batches_of,
    failed_rows,
    make,
    run,
    values_of,
)
from udf_runtime.definition import Kind, udf
from udf_runtime.errors import UdfFailedError, UdfOutputError, UdfProcessDiedError
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.protocol.parent import Parent
from udf_runtime.policies import Fail, Retry, Skip, skip_on_error

pytestmark = pytest.mark.sample(1, tests=2)


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def has_ended(pid: int) -> bool:
    """Whether a process has ended, including zombies."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(pid: int, limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not has_ended(pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    return has_ended(pid)


def logging_starts(log: Path, kill, **options):
    """A UDF over Arrow arrays that logs its processes and finished batches, and that dies of some values."""

    def work(x: pa.Array) -> pa.Array:
        values = x.to_pylist()
        with log.open("a") as file:
            file.write(f"{os.getpid()} {values}\n")
        for value in values:
            kill(value)
        return x

    return make(work, Kind.ARROW, **options)


def test_one_child_serves_many_batches_and_is_not_this_process(tmp_path):
    log = tmp_path / "log"
    results = run(
        logging_starts(log, lambda x: None), *batches_of([1], [2], [3, None], []), isolate=True
    )
    assert values_of(results) == [[1], [2], [3, None], []]
    pids = {int(line.split()[0]) for line in lines_of(log)}
    assert len(pids) == 1 and os.getpid() not in pids
    assert all(has_ended(pid) for pid in pids)


def test_the_end_of_the_runner_calls_teardown_without_a_wait(tmp_path):
    log = tmp_path / "log"

    class Model:
        def __call__(self, x: int) -> int:
            return x

        def teardown(self) -> None:
            log.write_text("teardown")

    with UdfRunner(udf(data_type=INT, version="1")(Model)(), isolate=True) as runner:
        assert values_of(runner.run(batches_of([1]))) == [[1]]
        began_s = time.monotonic()

    assert lines_of(log) == ["teardown"]
    assert time.monotonic() - began_s < 4


def die_by_exit(x: int) -> None:
    if x == 3:
        os._exit(0)


def die_by_kill(x: int) -> None:
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def die_by_segfault(x: int) -> None:
    if x == 3:
        ctypes.string_at(0)


@pytest.mark.parametrize(
    ("kill", "how"),
    [
        pytest.param(die_by_exit, "exit code 0", id="exit", marks=pytest.mark.long),
        pytest.param(die_by_kill, "signal 9", id="kill", marks=pytest.mark.long),
        pytest.param(die_by_segfault, "signal 11", id="segfault"),
    ],
)
def test_a_row_that_kills_its_process_costs_that_row(tmp_path, kill, how):
    log = tmp_path / "log"
    results = run(logging_starts(log, kill), *batches_of(list(range(4)), [8, 9]), isolate=True)
    assert values_of(results) == [[0, 1, 2, None], [8, 9]]
    (failure,) = results[0].failures
    assert (failure.row, failure.outcome, failure.bisect_depth) == (3, "crashed", 2)
    assert failure.error_type == "udf_runtime.errors.UdfProcessDiedError" and how in failure.message
    batches = [line.partition(" ")[2] for line in lines_of(log)]
    assert batches == ["[0, 1, 2, 3]", "[0, 1]", "[2, 3]", "[2]", "[3]", "[8, 9]"]


@pytest.mark.long
def test_k_killers_of_n_rows_take_k_log_n_children_and_healthy_halves_are_computed_once(tmp_path):
    log = tmp_path / "log"
    killers = {5, 20}

    def kill(x: int) -> None:
        if x in killers:
            os._exit(9)

    result = run(logging_starts(log, kill), *batches_of(list(range(32))), isolate=True)[0]
    assert failed_rows(result) == sorted(killers)
    assert result.values.to_pylist() == [None if row in killers else row for row in range(32)]
    started = {line.split()[0] for line in lines_of(log)}
    assert len(started) <= len(killers) * (math.log2(32) + 1) + 1
    finished = [eval(line.partition(" ")[2]) for line in lines_of(log)]
    healthy = [row for rows in finished if not killers & set(rows) for row in rows]
    assert sorted(healthy) == [row for row in range(32) if row not in killers]


def test_the_policy_decides_about_a_row_that_kills(tmp_path):
    def outcome(policy) -> tuple[str, int, int]:
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        result = run(
            logging_starts(log, die_by_exit, on_error=policy), *batches_of([3]), isolate=True
        )[0]
        return result.failures[0].outcome, result.failures[0].attempt, len(lines_of(log))

    assert outcome(Skip(UdfProcessDiedError)) == ("skipped", 1, 1)
    assert outcome([Retry(UdfProcessDiedError, max_attempts=2), Skip(ValueError)]) == (
        "crashed",
        2,
        2,
    )
    assert outcome([Fail(), Skip()]) == ("crashed", 1, 1)
    with pytest.raises(UdfProcessDiedError) as caught:
        outcome([Fail(UdfProcessDiedError), Skip()])
    assert (caught.value.row, caught.value.exit_code) == (0, 0)


def test_a_scalar_udf_is_halved_down_to_the_row_too():
    results = run(make(lambda x: os._exit(3) if x == 1 else x), *batches_of([0, 1]), isolate=True)
    assert values_of(results) == [[0, None]] and failed_rows(results[0]) == [1]


@pytest.mark.long
def test_ordinary_errors_follow_the_policy_as_in_this_process(tmp_path):
    log = tmp_path / "log"

    def work(x: int) -> int:
        with log.open("a") as file:
            file.write(f"{x}\n")
        if x < 0:
            raise ValueError(f"negative: {x}")
        return x

    batches = batches_of([0, -1, 2], [3], [-4])
    both = [
        run(make(work, on_error=Skip(ValueError)), *batches, isolate=isolate)
        for isolate in (False, True)
    ]
    assert values_of(both[0]) == values_of(both[1])
    assert [result.failures for result in both[0]] == [result.failures for result in both[1]]
    assert len(lines_of(log)) == 10
    with UdfRunner(make(work), isolate=True) as runner:
        with pytest.raises(UdfFailedError) as caught:
            list(runner.run(batches))
        error = caught.value
        assert (error.row, error.error_type) == (1, "ValueError") and "in work" in error.error_trace
        assert isinstance(error.__cause__, ValueError) and str(error.__cause__) == "negative: -1"
        assert values_of(runner.run(batches_of([5]))) == [[5]]  # the child serves on
    with pytest.raises(UdfOutputError, match="2 rows for a batch of 1"):
        run(make(lambda x: pa.array([1, 2]), Kind.ARROW), *batches_of([1]), isolate=True)


@pytest.mark.long
def test_rows_of_errors_and_failures_are_those_of_the_whole_batch_after_a_death():
    def work(x: pa.Array) -> pa.Array:
        values = x.to_pylist()
        if 1 in values:
            os._exit(1)
        if 6 in values:
            raise ValueError("six")
        return x

    udf_ = make(work, Kind.ARROW, on_error=Skip(ValueError))
    result = run(udf_, *batches_of(list(range(8))), isolate=True)[0]
    assert [
        (failure.row, failure.outcome, failure.bisect_depth) for failure in result.failures
    ] == [
        (1, "crashed", 3),
        (6, "skipped", 3),
    ]
    assert result.values.to_pylist() == [0, None, 2, 3, 4, 5, None, 7]
    with pytest.raises(UdfFailedError, match="row 1 of the batch") as caught:
        run(make(work, Kind.ARROW), *batches_of([1, 6]), isolate=True)
    assert caught.value.row == 1


def test_an_exception_that_cannot_be_pickled_still_tells_what_it_was():
    def work(x: int) -> int:
        class LocalError(Exception):
            def __reduce__(self):
                raise TypeError("no")

        raise LocalError("text")

    with pytest.raises(UdfFailedError, match="LocalError: text"):
        run(make(work), *batches_of([1]), isolate=True)


def test_what_a_udf_prints_or_reads_does_not_disturb_the_frames(capfd):
    def work(x: pa.Array) -> pa.Array:
        print("printed")
        os.write(1, b"written\n")
        subprocess.run(["sh", "-c", "echo from a shell; cat"], check=True)
        assert sys.stdin.read() == ""
        return x

    assert values_of(run(make(work, Kind.ARROW), *batches_of([1], [2]), isolate=True)) == [[1], [2]]
    out, err = capfd.readouterr()
    assert (
        out == "" and err.count("printed") == err.count("written") == err.count("from a shell") == 2
    )


@pytest.mark.parametrize("head", [b"?" + bytes(8), b"B" + b"\x7f" * 8], ids=["tag", "size"])
def test_a_frame_that_cannot_be_read_ends_the_connection(head: bytes):
    """An error as an answer would leave the two sides at different frames."""
    left, right = socket.socketpair()
    with left, right:
        left.sendall(head + b"payload")
        with pytest.raises(BrokenPipeError):
            Parent(right).read()


def test_a_process_that_the_udf_left_behind_does_not_hide_its_death(tmp_path):
    log = tmp_path / "pid"

    def work(x: pa.Array) -> pa.Array:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        log.write_text(str(pid))
        os._exit(5)

    start_s = time.monotonic()
    try:
        result = run(make(work, Kind.ARROW), *batches_of([1]), isolate=True)[0]
    finally:
        os.kill(int(log.read_text()), signal.SIGKILL)
    assert failed_rows(result) == [0] and time.monotonic() - start_s < 10


@pytest.mark.long
def test_iterators_stream_in_a_child_also_those_that_read_ahead(tmp_path):
    log = tmp_path / "log"

    def work(batches):
        with log.open("a") as file:
            file.write("start\n")
        for batch in batches:
            if batch[0].as_py() == 3:
                os._exit(1)
            yield batch

    results = run(make(work, Kind.ARROW_ITER), *batches_of([1], [2], [3], [4], [5]), isolate=True)
    assert values_of(results) == [[1], [2], [None], [4], [5]]
    assert lines_of(log) == ["start", "start"]
    collects = make(lambda batches: list(batches), Kind.ARROW_ITER)  # noqa: PLW0108 - a class is no function
    assert values_of(run(collects, *batches_of([1], [2]), isolate=True)) == [[1], [2]]


@pytest.mark.long
def test_each_thread_has_a_child_of_its_own_and_order_is_kept(tmp_path):
    log = tmp_path / "log"
    udf_ = logging_starts(log, lambda x: time.sleep(0.3 if x == 0 else 0.02))
    source = Pulled(batches_of(*[[i] for i in range(8)]))
    with UdfRunner(udf_, isolate=True, threads=2) as runner:
        assert values_of(runner.run(source)) == [[i] for i in range(8)]
        assert len({line.split()[0] for line in lines_of(log)}) == 2


def test_an_error_in_one_thread_does_not_wait_for_the_child_of_another():
    def work(x: pa.Array) -> pa.Array:
        if x[0].as_py() == 1:
            time.sleep(60)
        raise ValueError("at once")

    start_s = time.monotonic()
    with UdfRunner(make(work, Kind.ARROW), isolate=True, threads=2) as runner:
        with pytest.raises(UdfFailedError, match="at once"):
            list(runner.run(batches_of([0], [1], [0])))
        with pytest.raises(UdfFailedError, match="at once"):
            list(runner.run(batches_of([0])))  # children can be started again
    assert time.monotonic() - start_s < 20


def test_a_death_while_loading_is_no_rows_fault():
    @udf(data_type=INT, on_error=skip_on_error())
    class Heavy:
        def __call__(self, x: pa.Array) -> pa.Array:
            return x

        def setup(self) -> None:
            os._exit(4)

    with pytest.raises(UdfProcessDiedError) as caught:
        run(Heavy(), *batches_of([1, 2]), isolate=True)
    assert (caught.value.exit_code, caught.value.row) == (4, None)


def test_an_error_while_loading_names_the_cause():
    @udf(data_type=INT)
    class Broken:
        def __call__(self, x: pa.Array) -> pa.Array:
            return x

        def setup(self) -> None:
            raise OSError("no model file")

    with pytest.raises(UdfFailedError, match="no model file"):
        run(Broken(), *batches_of([1]), isolate=True)


def test_large_batches_and_nested_types_go_through_the_pipes():
    data_type = pa.list_(pa.float32(), 64)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * (64 * 20_000), pa.float32()), 64)
    results = run(
        make(lambda x: x, Kind.ARROW, data_type), *batches_of(vectors, vectors), isolate=True
    )
    assert all(
        result.values.equals(vectors) and result.values.type == data_type for result in results
    )


@pytest.mark.parametrize("busy", [True, False])
def test_a_child_does_not_outlive_its_parent(tmp_path, busy):
    log = tmp_path / "pid"
    script = textwrap.dedent(
        f"""
        import os, time
        from pathlib import Path
        import pyarrow as pa
        from udf_runtime.definition import UDF, Kind
        from udf_runtime.execute import UdfRunner

        def work(x):
            Path({str(log)!r}).write_text(str(os.getpid()))
            while {busy}:
                time.sleep(1)
            return x

        made = UDF.define(work, kind=Kind.ARROW, data_type=pa.int64(), input_columns=["x"])
        with UdfRunner(made, isolate=True) as runner:
            list(runner.run([pa.record_batch({{"x": [1]}})]))
            time.sleep(60)
        """
    )
    root = str(Path(__file__).parents[3])
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": root}
    )
    try:
        end_s = time.monotonic() + 20
        while not lines_of(log):
            assert time.monotonic() < end_s and parent.poll() is None
            time.sleep(0.02)
        child = int(lines_of(log)[0])
        assert not has_ended(child)
    finally:
        parent.kill()
        parent.wait()
    assert wait_gone(child, 5)
