"""Several batches at once, time limits of single rows, loading, and closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
from udf_runtime.errors import UdfDefinitionError, UdfFailedError
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.calls.time_limit import MOST_HUNG_CALLS
from udf_runtime.policies import retry_all, skip_on_error


def threads_now() -> int:
    return sum(thread.name.startswith("udf-") for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come true in time"
        time.sleep(0.005)


def test_as_many_batches_as_threads_run_at_once_and_order_is_kept():
    together = threading.Barrier(3, timeout=60)

    def work(x):
        together.wait()
        time.sleep(0.02 * (3 - x[0].as_py() % 3))  # the first of three ends last
        return x

    results = run(make(work, Kind.ARROW), *batches_of(*[[i] for i in range(9)]), threads=3)
    assert values_of(results) == [[i] for i in range(9)]


def test_the_error_of_a_read_follows_the_results_of_the_batches_before():
    def read():
        yield from batches_of([1], [2])
        raise OSError("no further row")

    with UdfRunner(make(lambda x: x, Kind.ARROW), threads=3) as runner:
        results = runner.run(read())
        assert [next(results).values.to_pylist(), next(results).values.to_pylist()] == [[1], [2]]
        with pytest.raises(OSError, match="no further row"):
            next(results)
    assert threads_now() == 0


def test_no_more_than_one_batch_beyond_the_threads_is_pulled_and_no_more_threads_are_started():
    running = most = 0
    lock = threading.Lock()
    all_threads = threading.Barrier(3)

    def work(x):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if x[0].as_py() < 3:
            all_threads.wait(30)
        with lock:
            running -= 1
        return x

    source = Pulled(batches_of(*[[i] for i in range(20)]))
    with UdfRunner(make(work, Kind.ARROW), threads=3) as runner:
        results = runner.run(source)
        assert source.count == 0
        for count in range(1, 21):
            assert next(results).values.to_pylist() == [count - 1]
            assert source.count <= count + 3
            assert threads_now() <= 3
        assert list(results) == []
    assert most == 3 and threads_now() == 0


def test_an_error_stops_pulling_and_comes_behind_the_results_before_it():
    def work(x: int) -> int:
        return 1 // x

    source = Pulled(batches_of(*[[x] for x in (1, 1, 0, 1, 1, 1, 1, 1, 1, 1)]))
    with UdfRunner(make(work), threads=2) as runner:
        results = runner.run(source)
        assert [next(results).values.to_pylist() for _ in range(2)] == [[1], [1]]
        with pytest.raises(UdfFailedError):
            next(results)
        assert source.count <= 5 and threads_now() == 0
        assert values_of(runner.run(batches_of([1], [1]))) == [[1], [1]]  # the runner serves on


def test_a_run_that_is_left_early_leaves_no_thread():
    with UdfRunner(make(lambda x: x), threads=4) as runner:
        results = runner.run(batches_of(*[[i] for i in range(50)]))
        next(results)
        results.close()
        assert threads_now() == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_late_row_is_a_timeout_error_also_while_it_waits_in_native_code(threads):
    release = threading.Event()

    def work(x: int) -> int:
        if x == 1:
            release.wait()  # in a lock: the thread receives no exception before the release of the lock
        return x

    udf_ = make(work, timeout=0.3, on_error=skip_on_error())
    try:
        results = run(udf_, *batches_of([0, 1, 2], [3]), threads=threads)
    finally:
        release.set()
    assert values_of(results) == [[0, None, 2], [3]]
    failure = results[0].failures[0]
    assert (failure.row, failure.error_type) == (1, "TimeoutError") and "0.3 s" in failure.message
    wait_until(lambda: threads_now() == 0)


def test_a_late_call_in_python_code_is_ended():
    ended = threading.Event()

    def work(x: int) -> int:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(UdfFailedError) as caught:
        run(make(work, timeout=0.05), *batches_of([1]))
    assert caught.value.error_type == "TimeoutError" and isinstance(
        caught.value.__cause__, TimeoutError
    )
    assert ended.wait(60)


def test_a_time_limit_counts_each_row_alone_and_calls_healthy_rows_once():
    calls: list[int] = []

    def work(x: int) -> int:
        calls.append(x)
        time.sleep(0.02)
        if x == 3 and calls.count(3) < 2:
            time.sleep(1.5)
        if x == 5:
            raise ValueError
        return x

    udf_ = make(work, timeout=0.5, on_error=retry_all(max_attempts=2) + skip_on_error())
    result = run(udf_, *batches_of(list(range(12))))[0]
    assert failed_rows(result) == [5] and result.retries == 2
    assert calls == [0, 1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11]


def test_one_thread_serves_a_time_limit_from_batch_to_batch():
    threads_seen: set[int] = set()

    def work(x: int) -> int:
        threads_seen.add(threading.get_ident())
        return x

    run(make(work, timeout=5.0), *batches_of([1, 2], [3], [4]))
    assert len(threads_seen) == 1 and threads_seen != {threading.get_ident()}
    wait_until(lambda: threads_now() == 0)


def test_calls_that_never_come_back_are_not_made_without_end():
    release = threading.Event()
    calls: list[int] = []

    def work(x: int) -> int:
        calls.append(x)
        release.wait()
        return x

    def stubborn(x: int) -> int:
        while not release.is_set():
            try:
                work(x)
            except SystemExit:
                continue
        return x

    try:
        with pytest.raises(UdfFailedError, match="have not ended"):
            run(
                make(stubborn, timeout=0.002, on_error=skip_on_error()),
                *batches_of(list(range(MOST_HUNG_CALLS + 20))),
            )
        assert len(set(calls)) == MOST_HUNG_CALLS
    finally:
        release.set()
        wait_until(lambda: threads_now() == 0)


def test_a_class_is_made_and_set_up_once_for_all_threads_and_runs():
    instances: list[str] = []

    @udf(data_type=INT)
    class Adder:
        def __init__(self) -> None:
            instances.append("init")

        def setup(self) -> None:
            instances.append("setup")

        def __call__(self, x: int) -> int:
            return x + 1

    adder = Adder()
    assert instances == []
    assert values_of(run(adder, *batches_of(*[[i] for i in range(6)]), threads=3)) == [
        [i + 1] for i in range(6)
    ]
    assert values_of(run(adder, *batches_of([1]))) == [[2]]
    assert instances == ["init", "setup"]


def test_a_class_that_cannot_be_set_up_is_a_failed_udf_without_a_row():
    @udf(data_type=INT, on_error=skip_on_error())
    class Broken:
        def __call__(self, x: int) -> int:
            return x

        def setup(self) -> None:
            raise OSError("no model file")

    with pytest.raises(UdfFailedError, match="no model file") as caught:
        run(Broken(), *batches_of([1]))
    assert caught.value.row is None and isinstance(caught.value.__cause__, OSError)


def test_seconds_are_those_of_the_injected_clock():
    ticks = iter(range(100))
    results = run(make(lambda x: x), *batches_of([1], [2]), clock=lambda: float(next(ticks)))
    assert [result.seconds for result in results] == [1.0, 1.0]


def test_a_closed_runner_and_zero_threads_are_refused():
    with pytest.raises(UdfDefinitionError, match="threads=0"):
        UdfRunner(make(lambda x: x), threads=0)
    runner = UdfRunner(make(lambda x: x))
    runner.close()
    runner.close()
    with pytest.raises(UdfDefinitionError, match="closed"):
        runner.run([])
