from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.udf_runtime.execute.cases import batches_of, failed_rows, run, values_of
from udf_runtime import (
    UDF,
    Backoff,
    ErrorPolicy,
    Skip,
    UdfDefinitionError,
    UdfFailedError,
    UdfOutputError,
    retry_all,
    skip_on_error,
    udf,
)
from udf_runtime.execute import UdfRunner


class Calls:
    """A counter of calls in flight."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.by_row: Counter[int] = Counter()

    async def take(self, row: int, seconds: float = 0.01) -> None:
        self.by_row[row] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1


def asynchronous(call: Callable[[int], Awaitable[Any]], **options: Any) -> UDF:
    async def function(x: int) -> int:
        return await call(x)

    return udf(function, version="1", **options)


def quick(function: UDF, *batches: pa.RecordBatch) -> Any:
    """Runs a UDF with waits of at most milliseconds between attempts."""
    with UdfRunner(function) as runner:
        return list(runner.run(batches))


def retry_soon(attempts: int = 3) -> ErrorPolicy:
    return retry_all(
        max_attempts=attempts, backoff=Backoff(kind="fixed", initial_s=0.001, max_s=0.001)
    )


def test_at_most_max_in_flight_calls_run_at_once_and_results_keep_their_order():
    calls = Calls()

    async def double(x: int) -> int:
        await calls.take(x, seconds=0.002 * (5 - x % 5))  # later rows end first
        return 2 * x

    results = quick(
        asynchronous(double, max_in_flight=4), *batches_of(range(30), [], range(30, 50))
    )

    assert values_of(results) == [[2 * x for x in range(30)], [], [2 * x for x in range(30, 50)]]
    assert calls.most == 4
    assert calls.by_row == Counter(range(50))


def test_32_calls_run_at_once_by_default_also_in_several_threads():
    calls = Calls()

    async def same(x: int) -> int:
        await calls.take(x)
        return x

    run(asynchronous(same), *batches_of(range(60), range(60), range(60)), threads=3)

    assert calls.most == 32


def test_a_udf_may_be_awaited_like_its_function():
    async def same(x: int) -> int:
        return x

    assert asyncio.run(asynchronous(same)(3)) == 3
    assert asynchronous(same).is_async
    assert (
        asynchronous(same, max_in_flight=7).call_rows == 7
    )  # the first batch of a task fills all places


def test_a_failed_row_is_retried_and_then_settled_by_the_policy():
    calls = Calls()

    async def fussy(x: int) -> int | None:
        await calls.take(x, seconds=0)
        if x == 3 or (x == 5 and calls.by_row[x] < 3):
            raise ValueError(f"no {x}")
        return None if x == 8 else x

    policy = retry_soon() + skip_on_error()
    [result] = quick(asynchronous(fussy, on_error=policy), *batches_of(range(10)))

    assert result.values.to_pylist() == [0, 1, 2, None, 4, 5, 6, 7, None, 9]
    assert [(failure.row, failure.attempt, failure.message) for failure in result.failures] == [
        (3, 3, "no 3")
    ]
    assert "in fussy" in result.failures[0].trace
    assert result.retries == 4
    assert calls.by_row == Counter({**dict.fromkeys(range(10), 1), 3: 3, 5: 3})


def test_an_error_without_forgiveness_cancels_the_other_calls():
    ended = []

    async def wait(x: int) -> int:
        if x == 2:
            raise KeyError("two")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(x)
            raise
        return x

    with pytest.raises(UdfFailedError, match="KeyError: 'two'") as caught:
        quick(asynchronous(wait), *batches_of(range(5)))

    assert caught.value.row == 2
    assert isinstance(caught.value.__cause__, KeyError)
    assert sorted(ended) == [0, 1, 3, 4]


def test_a_function_that_catches_its_cancellation_gets_no_further_rows():
    rows = list[int]()

    async def wait(x: int) -> int:
        rows.append(x)
        if x == 0:
            raise KeyError
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return x

    with pytest.raises(UdfFailedError):
        quick(asynchronous(wait, max_in_flight=3), *batches_of(range(20)))

    assert rows == [0, 1, 2]


@pytest.mark.parametrize("is_vectorised", [False, True])
def test_an_error_or_an_early_end_cancels_the_calls_of_other_batches(is_vectorised: bool):
    rows, ended = list[int](), list[int]()

    async def wait(x: int) -> int:
        rows.append(x)
        if x == 2:
            await asyncio.sleep(0.2)
            raise KeyError("two")
        try:
            await asyncio.sleep(0.01 if x < 10 else 60)
        except asyncio.CancelledError:
            ended.append(x)
            raise
        return x

    async def wait_for_batch(x: pa.Array) -> pa.Array:
        return pa.array([await wait(x[0].as_py())], pa.int64())

    options: dict[str, Any] = {
        "data_type": pa.int64(),
        "max_in_flight": 4,
        "on_error": Skip(ValueError),
    }
    function = (
        udf(wait_for_batch, batch_size=1, **options) if is_vectorised else udf(wait, **options)
    )
    with UdfRunner(function) as runner:
        with pytest.raises(UdfFailedError, match="KeyError: 'two'"):
            list(runner.run(batches_of([2], [10], [11], [12], [13])))
        results = runner.run(batches_of([0], [20], [21], [22], [23], [24]))
        assert next(results).values.to_pylist() == [0]
        results.close()
        assert values_of(runner.run(batches_of([0], [1]))) == [[0], [1]]

    assert sorted(ended) == sorted(row for row in rows if row >= 10)
    assert {10, 20} <= set(ended)


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), StopIteration()])
def test_unusual_errors_fail_their_row_alone(error: BaseException):
    async def fussy(x: int) -> int:
        if x == 1:
            raise error
        return x

    [result] = quick(asynchronous(fussy, on_error=skip_on_error()), *batches_of(range(3)))

    assert result.values.to_pylist() == [0, None, 2]
    assert failed_rows(result) == [1]


def test_a_late_call_is_cancelled_and_retried():
    calls, cancelled = Calls(), list[int]()

    async def slow(x: int) -> int:
        try:
            await calls.take(x, seconds=30 if x == 1 and calls.by_row[x] < 2 else 0)
        except asyncio.CancelledError:
            cancelled.append(x)
            raise
        return x

    [result] = quick(
        asynchronous(slow, call_timeout=0.05, on_error=retry_soon()), *batches_of(range(3))
    )

    assert result.values.to_pylist() == [0, 1, 2]
    assert (cancelled, calls.by_row[1], result.retries) == ([1, 1], 3, 2)


def test_the_error_of_a_late_call_names_the_limit():
    async def slow(x: int) -> int:
        await asyncio.sleep(30)
        return x

    with pytest.raises(UdfFailedError, match=r"longer than the timeout of 0\.01 s"):
        quick(asynchronous(slow, timeout=0.01), *batches_of([1]))


def test_a_misfit_is_retried_and_names_its_row():
    calls = Calls()

    async def words(x: int) -> Any:
        await calls.take(x, seconds=0)
        return "many" if x == 2 else x

    with pytest.raises(UdfOutputError, match="row 2 of the batch") as caught:
        quick(asynchronous(words, on_error=retry_soon()), *batches_of(range(4)))

    assert caught.value.row == 2
    assert calls.by_row[2] == 3


def test_calls_of_whole_batches_run_at_once_and_a_bad_row_is_isolated():
    calls = Calls()

    @udf(data_type=pa.int64(), max_in_flight=3, version="1", on_error=skip_on_error())
    async def double(x: pa.Array) -> pa.Array:
        await calls.take(len(x))
        if 5 in x.to_pylist():
            raise ValueError("five")
        return pa.array([2 * value for value in x.to_pylist()])

    results = quick(
        double, *batches_of(*([4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i in range(6)))
    )

    assert calls.most == 3
    assert [value for values in values_of(results) for value in values] == [
        None if x == 5 else 2 * x for x in range(24)
    ]
    assert calls.by_row == Counter({4: 6, 2: 2, 1: 2})


def test_calls_of_batch_size_rows_run_at_once_within_a_batch_and_across_batches():
    calls = Calls()

    @udf(data_type=pa.int64(), max_in_flight=4, batch_size=3, version="1", sort_batch_by=pc.negate)
    async def double(x: pa.Array) -> pa.Array:
        await calls.take(len(x))
        return pc.multiply(x, 2)

    results = quick(double, *batches_of(range(7), [], range(7, 12)))

    assert values_of(results) == [[2 * x for x in range(7)], [], [2 * x for x in range(7, 12)]]
    assert (calls.most, calls.by_row) == (4, Counter({3: 3, 1: 1, 2: 1}))


def test_a_class_with_async_setup_and_call_uses_one_loop():
    @udf(version="1")
    class Service:
        async def setup(self) -> None:
            self.loop = asyncio.get_running_loop()
            self.lock = asyncio.Lock()

        async def __call__(self, x: int) -> int:
            async with self.lock:
                return x if asyncio.get_running_loop() is self.loop else -1

    function: Any = Service
    assert values_of(quick(function(), *batches_of(range(20)))) == [list(range(20))]


def test_async_calls_run_in_a_child_process():
    async def pid(x: int) -> int:
        return os.getpid()

    with UdfRunner(asynchronous(pid), isolate=True) as runner:
        [result] = runner.run(batches_of(range(3)))

    assert len(set(result.values.to_pylist())) == 1
    assert os.getpid() not in result.values.to_pylist()


def test_a_forked_process_gets_its_own_loop():
    async def same(x: int) -> int:
        return x

    function = asynchronous(same)
    quick(function, *batches_of([1]))

    process = get_context("fork").Process(
        target=lambda: os._exit(quick(function, *batches_of([7]))[0].values[0].as_py())
    )
    process.start()
    process.join(30)

    assert process.exitcode == 7


def test_the_loop_survives_a_task_that_exits():
    async def leave(x: int) -> int:
        task = asyncio.ensure_future(exit_soon())
        await asyncio.wait([task])
        assert isinstance(task.exception(), SystemExit)
        return x

    async def exit_soon() -> None:
        raise SystemExit(3)

    assert values_of(quick(asynchronous(leave), *batches_of([1], [2]))) == [[1], [2]]
    assert [thread.name for thread in threading.enumerate()].count("event-loop-of-udfs") == 1


def test_max_in_flight_is_for_async_udfs():
    def same(x: int) -> int:
        return x

    with pytest.raises(UdfDefinitionError, match="not async"):
        udf(same, max_in_flight=4)
    with pytest.raises(UdfDefinitionError, match="max_in_flight=0"):
        udf(same, max_in_flight=0)
    with pytest.raises(UdfDefinitionError, match="Give call_timeout only"):
        udf(same, timeout=1, call_timeout=1)
    assert udf(same, call_timeout=2).timeout == 2


def test_a_signature_of_an_earlier_release_is_not_async():
    def same(x: int) -> int:
        return x

    signature = udf(same).signature
    earlier = copy.copy(signature)
    earlier.__setstate__(signature.__getstate__()[:-1])

    assert earlier == signature
    assert earlier.is_async is False
