"""UDFs that call a service: `Retry-After`, failures of the service, and its breakdown."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.http_service import OK, Answer, HttpService, fetch, fetch_async
from tests.udf_runtime.execute.cases import batches_of
from udf_runtime import (
    UDF,
    Backoff,
    RateLimit,
    RetryHttp,
    UdfDefinitionError,
    UdfFailedError,
    retry_http,
    skip_on_error,
    udf,
)
from udf_runtime.execute import BatchResult, UdfRunner
from udf_runtime.execute.service_health import ServiceHealth
from udf_runtime.policies.http import find_retry_after, find_status

SOON = Backoff(kind="fixed", initial_s=0.01, max_s=0.01)
KINDS = ["scalar", "batch", "async", "async batch"]


class Clock:
    """A clock that only waits move."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds


@pytest.fixture
def service() -> Iterator[HttpService]:
    with HttpService().serve() as service:
        yield service


def calling(service: HttpService, kind: str, **options: Any) -> UDF:
    """A UDF over `x` that requests each row."""
    url = service.url

    def scalar(x: int) -> int:
        return fetch(url, x)

    def batch(x: pa.Array) -> pa.Array:
        return pa.array([fetch(url, row) for row in x.to_pylist()], pa.int64())

    async def async_scalar(x: int) -> int:
        return await fetch_async(url, x)

    async def async_batch(x: pa.Array) -> pa.Array:
        return pa.array([await fetch_async(url, row) for row in x.to_pylist()], pa.int64())

    functions: dict[str, Callable[..., Any]] = {
        "scalar": scalar,
        "batch": batch,
        "async": async_scalar,
        "async batch": async_batch,
    }
    if "batch" in kind:
        options["batch_size"] = 1
    return udf(functions[kind], data_type=pa.int64(), version="1", **options)


def results_of(function: UDF, *batches: pa.RecordBatch, **options: Any) -> list[BatchResult]:
    with UdfRunner(function, **options) as runner:
        return list(runner.run(batches))


def refused_until(number: int, answer: Answer) -> Callable[[int, int], Answer]:
    """Answers the first requests for each row with an error."""
    return lambda row, earlier: answer if earlier < number else OK


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_call_is_made_again_after_the_time_that_the_service_asks_for(
    kind: str, service: HttpService
):
    service.answer = lambda row, earlier: (
        (429, {"Retry-After": "0.3"}) if (row, earlier) == (1, 0) else OK
    )
    function = calling(service, kind, on_error=retry_http(max_attempts=1))

    [result] = results_of(function, *batches_of(range(3)))

    assert result.values.to_pylist() == [0, 2, 4]
    assert service.requests == Counter({0: 1, 1: 2, 2: 1})
    assert result.retries == 1
    assert 0.3 <= max(service.times) - min(service.times) < 3


def test_retry_after_holds_back_all_calls_of_the_process(service: HttpService):
    def answer(row: int, earlier: int) -> Answer:
        if (row, earlier) == (0, 0):
            return 503, {"Retry-After": "0.6"}
        time.sleep(0.3)  # the refusal arrives first
        return OK

    service.answer = answer
    function = calling(service, "async", max_in_flight=2, on_error=retry_http())

    [result] = results_of(function, *batches_of(range(3)))

    assert result.values.to_pylist() == [0, 2, 4]
    first, _, second, _ = sorted(service.times)  # two calls at once, and two calls after the wait
    assert second - first >= 0.6
    assert result.limit_s == pytest.approx(0.6, abs=0.01)


def test_without_retry_after_the_backoff_decides(service: HttpService):
    service.answer = refused_until(2, (500, {}))
    clock = Clock()
    backoff = Backoff(kind="linear", initial_s=2.0, max_s=60)
    function = calling(service, "scalar", on_error=retry_http(backoff=backoff))

    [result] = results_of(function, *batches_of([5]), clock=clock, sleep=clock.sleep)

    assert (result.values.to_pylist(), clock.waits, result.retries) == ([10], [2.0, 4.0], 2)


@pytest.mark.parametrize(("status", "calls"), [(500, 3), (504, 3), (404, 1)])
def test_a_row_with_a_failure_of_its_own_has_max_attempts(
    status: int, calls: int, service: HttpService
):
    service.answer = lambda row, earlier: (status, {}) if row == 1 else OK
    policy = retry_http(max_attempts=3, backoff=SOON) + skip_on_error()

    [result] = results_of(calling(service, "async", on_error=policy), *batches_of(range(4)))

    assert result.values.to_pylist() == [0, None, 4, 6]
    assert service.requests == Counter({0: 1, 1: calls, 2: 1, 3: 1})
    assert [(failure.row, failure.outcome) for failure in result.failures] == [(1, "skipped")]


def test_a_refused_row_waits_longer_than_its_attempts(service: HttpService):
    service.answer = refused_until(6, (503, {}))

    [result] = results_of(
        calling(service, "scalar", on_error=retry_http(max_attempts=2, backoff=SOON)),
        *batches_of([3]),
    )

    assert (result.values.to_pylist(), service.requests[3], result.retries) == ([6], 7, 6)


def test_without_give_up_after_each_refusal_is_an_attempt(service: HttpService):
    service.answer = refused_until(6, (503, {}))
    policy = retry_http(max_attempts=2, backoff=SOON, give_up_after=None)

    with pytest.raises(UdfFailedError, match="HTTP Error 503"):
        results_of(calling(service, "scalar", on_error=policy), *batches_of([3]))

    assert service.requests[3] == 2


@pytest.mark.parametrize(
    ("kind", "isolate"),
    [*((kind, False) for kind in KINDS), pytest.param("async", True, marks=pytest.mark.long)],
)
def test_a_service_that_is_down_is_given_up_and_its_rows_have_no_result(
    kind: str, isolate: bool, service: HttpService
):
    service.answer = lambda row, earlier: OK if row < 3 else (503, {})
    policy = retry_http(backoff=SOON, give_up_after=0.3) + skip_on_error()
    function = calling(service, kind, on_error=policy)

    began = time.monotonic()
    first, second = results_of(function, *batches_of(range(6), range(100, 140)), isolate=isolate)

    assert first.values.to_pylist() == [0, 2, 4, None, None, None]
    assert [(failure.row, failure.outcome) for failure in first.failures] == [
        (row, "unavailable") for row in (3, 4, 5)
    ]
    assert "took no calls for 0.3 s" in first.failures[0].message
    assert "503" in first.failures[0].message
    assert [failure.row for failure in second.failures] == list(range(40))
    assert {failure.outcome for failure in second.failures} == {"unavailable"}
    assert [service.requests[row] for row in range(3)] == [1, 1, 1]
    assert time.monotonic() - began < 20


def test_a_longer_wait_than_give_up_after_ends_without_a_further_call(service: HttpService):
    service.answer = lambda row, earlier: (429, {"Retry-After": "3600"})
    clock = Clock()
    function = calling(service, "scalar", on_error=retry_http(give_up_after=60))

    [result] = results_of(function, *batches_of([1, 2]), clock=clock, sleep=clock.sleep)

    assert [failure.outcome for failure in result.failures] == ["unavailable"] * 2
    assert service.requests == Counter({1: 1})
    assert sum(clock.waits) == pytest.approx(60)


def test_an_earlier_call_that_ends_during_a_wait_does_not_extend_the_time_of_a_breakdown(
    service: HttpService,
):
    def answer(row: int, earlier: int) -> Answer:
        if row == 0:
            return 429, {"Retry-After": "3600"}
        time.sleep(0.2)  # the refusal arrives first
        return OK

    service.answer = answer
    function = calling(service, "async", max_in_flight=2, on_error=retry_http(give_up_after=0.5))

    [result] = results_of(function, *batches_of(range(4)))

    assert result.values.to_pylist() == [None, 2, None, None]
    assert {failure.outcome for failure in result.failures} == {"unavailable"}


@pytest.mark.parametrize("asked", ["0", "-5", "nan", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_time_to_wait_that_is_over_leaves_the_wait_to_the_backoff(
    asked: str, service: HttpService
):
    service.answer = refused_until(2, (503, {"Retry-After": asked}))
    clock = Clock()
    function = calling(
        service, "scalar", on_error=retry_http(backoff=Backoff(kind="linear", initial_s=2.0))
    )

    [result] = results_of(function, *batches_of([5]), clock=clock, sleep=clock.sleep)

    assert (result.values.to_pylist(), clock.waits) == ([10], [2.0, 4.0])


def test_a_wait_of_centuries_is_a_wait():
    health = ServiceHealth("name", Clock())
    for asked in ("1e12", "inf"):
        health.note_failure(
            RequestsError(503, {"Retry-After": asked}), RetryHttp(give_up_after=None)
        )

        assert health.pause_s() == health.pause_s(until=1e12) == 86_400


def test_an_answer_ends_the_time_of_a_breakdown(service: HttpService):
    # Refusals alternate with answers, for longer in all than `give_up_after`.
    service.answer = refused_until(1, (503, {"Retry-After": "7"}))
    clock = Clock()
    function = calling(service, "scalar", on_error=retry_http(give_up_after=10))

    [result] = results_of(function, *batches_of(range(5)), clock=clock, sleep=clock.sleep)

    assert result.values.to_pylist() == [0, 2, 4, 6, 8]
    assert clock.seconds >= 35


def test_an_answer_about_a_row_ends_the_time_of_a_breakdown():
    clock, calls = Clock(), Counter[int]()

    @udf(on_error=retry_http(give_up_after=60, backoff=SOON) + skip_on_error())
    def page(x: int) -> int:
        clock.seconds += 10
        calls[x] += 1
        if x % 10 == 0 and calls[x] == 1:
            raise RequestsError(503, {})
        raise RequestsError(404, {})

    [result] = results_of(page, *batches_of(range(11)), clock=clock, sleep=clock.sleep)

    assert {failure.outcome for failure in result.failures} == {"skipped"}
    assert calls[10] == 2


def test_a_call_timeout_does_not_count_the_wait_for_the_service(service: HttpService):
    service.answer = lambda row, earlier: (
        (429, {"Retry-After": "0.5"}) if (row, earlier) == (0, 0) else OK
    )
    for kind in ("scalar", "async"):
        service.requests.clear()
        function = calling(service, kind, call_timeout=0.45, on_error=retry_http())
        assert results_of(function, *batches_of(range(3)))[0].values.to_pylist() == [0, 2, 4]


class RequestsError(Exception):
    """An error in the form of requests and httpx."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.response = SimpleNamespace(status_code=status, headers=headers)


class AiohttpError(Exception):
    """An error in the form of aiohttp."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers


class OpenaiError(Exception):
    """An error in the form of openai, whose code is a text."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.code, self.status_code = "rate_limit_exceeded", status
        self.response = SimpleNamespace(status_code=status, headers=headers)


@pytest.mark.parametrize("form", [RequestsError, AiohttpError, OpenaiError])
def test_errors_of_common_clients_are_recognized(form: Any):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)

    assert find_status(form(429, {})) == 429
    assert find_retry_after(form(429, {"Retry-After": "7"})) == 7
    assert find_retry_after(form(429, {"retry-after-ms": "1500"})) == 1.5
    assert find_retry_after(form(429, {"Retry-After": date})) == pytest.approx(100, abs=5)
    assert find_retry_after(form(429, {"Retry-After": "soon"})) is None
    assert [RetryHttp().matches(form(status, {})) for status in (400, 401, 408, 429, 500, 529)] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]


def test_lost_connections_are_recognized_by_class():
    connect_error = type("ConnectError", (Exception,), {})
    wrapper = type("APIConnectionError", (Exception,), {})()
    wrapper.__cause__ = connect_error()
    retry = RetryHttp()

    assert [
        retry.matches(error)
        for error in (ConnectionResetError(), TimeoutError(), wrapper, connect_error())
    ] == [True] * 4
    assert [
        retry.matches(error)
        for error in (FileNotFoundError(), OSError(), ValueError(), SystemExit(503))
    ] == [False] * 4
    assert [
        retry.is_refusal(error)
        for error in (ConnectionRefusedError(), wrapper, ConnectionResetError())
    ] == [
        True,
        True,
        False,
    ]


def test_real_clients_have_such_errors(service: HttpService):
    import requests

    service.answer = lambda row, earlier: (503, {"Retry-After": "9"})
    retry = RetryHttp()
    with pytest.raises(requests.HTTPError) as refused:
        requests.get(f"{service.url}/1", timeout=5).raise_for_status()
    with pytest.raises(requests.ConnectionError) as unreachable:
        requests.get("http://127.0.0.1:9/", timeout=5)

    assert (find_status(refused.value), find_retry_after(refused.value)) == (503, 9)
    assert retry.is_refusal(refused.value)
    assert retry.is_refusal(unreachable.value)


def test_waits_have_jitter():
    error = RequestsError(429, {"Retry-After": "10"})
    delays = {RetryHttp().delay_s(error, 1, random.Random(seed)) for seed in range(20)}

    assert len(delays) > 10
    assert all(10 <= delay <= 11 for delay in delays)


def test_give_up_after_is_a_positive_number():
    with pytest.raises(UdfDefinitionError, match="give_up_after=0"):
        retry_http(give_up_after=0)


class Grants:
    """A limiter that grants each call at the second try."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.tries = 0

    def acquire(self, tokens: int, waiting: int) -> float:
        self.tries += 1
        if self.tries % 2:
            return 0.001
        self.calls.append((tokens, waiting))
        return 0.0


@pytest.mark.parametrize("kind", ["scalar", "batch"])
def test_calls_wait_for_the_rate_limit_by_the_clock(kind: str, service: HttpService):
    clock = Clock()
    function = calling(service, kind, rate_limit=RateLimit(calls_per_minute=60))

    [result] = results_of(function, *batches_of(range(6)), clock=clock, sleep=clock.sleep)

    assert result.values.to_pylist() == [0, 2, 4, 6, 8, 10]
    assert clock.seconds == pytest.approx(4)  # two calls at once, and a call per second
    assert result.limit_s == pytest.approx(4)


def test_async_calls_wait_for_the_rate_limit(service: HttpService):
    function = calling(service, "async", rate_limit=RateLimit(calls_per_minute=600))

    began = time.monotonic()
    [result] = results_of(function, *batches_of(range(26)))

    assert result.values.to_pylist() == [2 * x for x in range(26)]
    assert time.monotonic() - began >= 0.6  # 20 calls at once, and 10 per second
    assert len([at for at in service.times if at < began + 0.5]) <= 25
    assert 0 < result.limit_s <= result.seconds


def test_an_error_ends_the_waits_of_other_threads():
    rows = list[int]()

    def double(x: int) -> int:
        rows.append(x)
        if x == 1:
            raise ValueError("one")
        return 2 * x

    function = udf(double, version="1", rate_limit=RateLimit(calls_per_minute=600))
    batches = batches_of(*(range(50 * number, 50 * number + 50) for number in range(5)))
    with UdfRunner(function, threads=3) as runner:
        with pytest.raises(UdfFailedError, match="one"):
            list(runner.run(batches))
        assert len(rows) < 40
        assert [result.values.to_pylist() for result in runner.run(batches_of([2]))] == [[4]]


def test_tokens_count_for_the_rate_limit_and_a_wrong_count_fails_its_row(service: HttpService):
    def count(x: int) -> Any:
        return {3: "many", 5: math.inf}.get(x, 10 * x)

    clock = Clock()
    limit = RateLimit(tokens_per_minute=600, tokens=count)
    function = calling(service, "scalar", rate_limit=limit, on_error=skip_on_error())

    [result] = results_of(function, *batches_of([1, 2, 3, 4, 5]), clock=clock, sleep=clock.sleep)

    assert result.values.to_pylist() == [2, 4, None, 8, None]
    assert all(failure.error_type.endswith("UdfDefinitionError") for failure in result.failures)
    assert clock.seconds == pytest.approx(
        3
    )  # 20 tokens at once, 10 per second, and 20 for the last call
    assert service.requests[3] == 0


@pytest.mark.parametrize("kind", ["async", pytest.param("scalar", marks=pytest.mark.long)])
def test_a_child_process_asks_its_parent_for_each_call(kind: str, service: HttpService):
    grants = Grants()
    limit = RateLimit(tokens_per_minute=10, tokens=lambda x: 7)
    function = calling(service, kind, rate_limit=limit, on_error=retry_http(max_attempts=1))
    service.answer = lambda row, earlier: (
        (503, {"Retry-After": "0.01"}) if (row, earlier) == (2, 0) else OK
    )

    results = results_of(function, *batches_of(range(4), range(4, 6)), isolate=True, limiter=grants)

    assert [value for result in results for value in result.values.to_pylist()] == [
        0,
        2,
        4,
        6,
        8,
        10,
    ]
    assert [tokens for tokens, _ in grants.calls] == [7] * 7
    assert all(waiting >= 1 for _, waiting in grants.calls)


def test_a_request_for_a_call_never_takes_the_answer_to_the_request_for_a_batch():
    async def double(x: int) -> int:
        return 2 * x  # at once, so calls begin while the process asks for the next batch

    function = udf(
        double, data_type=pa.int64(), version="1", rate_limit=RateLimit(calls_per_minute=10**9)
    )

    results = results_of(function, *batches_of(*([x] for x in range(100))), isolate=True)

    assert [value for result in results for value in result.values.to_pylist()] == [
        2 * x for x in range(100)
    ]


def test_a_rate_limit_is_for_calls_with_a_result():
    def stream(x: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from x

    with pytest.raises(UdfDefinitionError, match="yields results"):
        udf(stream, data_type=pa.int64(), rate_limit=RateLimit(calls_per_minute=1))
