"""UDFs that call a service: `Retry-After`, failures of the service, and its breakdown."""

from __future__ import annotations

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
from udf_runtime import UDF, Backoff, RetryHttp, UdfDefinitionError, UdfFailedError, retry_http, skip_on_error, udf
from udf_runtime.execute import BatchResult, UdfRunner
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
def test_a_refused_call_is_made_again_after_the_time_that_the_service_asks_for(kind: str, service: HttpService):
    service.answer = lambda row, earlier: (429, {"Retry-After": "0.3"}) if (row, earlier) == (1, 0) else OK
    function = calling(service, kind, on_error=retry_http(max_attempts=1))

    [result] = results_of(function, *batches_of(range(3)))

    assert result.values.to_pylist() == [0, 2, 4]
    assert service.requests == Counter({0: 1, 1: 2, 2: 1})
    assert result.retries == 1
    assert 0.3 <= max(service.times) - min(service.times) < 3


def test_retry_after_holds_back_all_calls_of_the_process(service: HttpService):
    service.answer = lambda row, earlier: (503, {"Retry-After": "0.4"}) if (row, earlier) == (0, 0) else OK
    function = calling(service, "async", max_in_flight=2, on_error=retry_http())

    [result] = results_of(function, *batches_of(range(3)))

    assert result.values.to_pylist() == [0, 2, 4]
    first, _, second, _ = sorted(service.times)  # two calls at once, and two calls after the wait
    assert second - first >= 0.4
    assert result.limit_s == pytest.approx(0.4, abs=0.01)


def test_without_retry_after_the_backoff_decides(service: HttpService):
    service.answer = refused_until(2, (500, {}))
    clock = Clock()
    backoff = Backoff(kind="linear", initial_s=2.0, max_s=60)
    function = calling(service, "scalar", on_error=retry_http(backoff=backoff))

    [result] = results_of(function, *batches_of([5]), clock=clock, sleep=clock.sleep)

    assert (result.values.to_pylist(), clock.waits, result.retries) == ([10], [2.0, 4.0], 2)


@pytest.mark.parametrize(("status", "calls"), [(500, 3), (504, 3), (404, 1)])
def test_a_row_with_a_failure_of_its_own_has_max_attempts(status: int, calls: int, service: HttpService):
    service.answer = lambda row, earlier: (status, {}) if row == 1 else OK
    policy = retry_http(max_attempts=3, backoff=SOON) + skip_on_error()

    [result] = results_of(calling(service, "async", on_error=policy), *batches_of(range(4)))

    assert result.values.to_pylist() == [0, None, 4, 6]
    assert service.requests == Counter({0: 1, 1: calls, 2: 1, 3: 1})
    assert [(failure.row, failure.outcome) for failure in result.failures] == [(1, "skipped")]


def test_a_refused_row_waits_longer_than_its_attempts(service: HttpService):
    service.answer = refused_until(6, (503, {}))

    [result] = results_of(
        calling(service, "scalar", on_error=retry_http(max_attempts=2, backoff=SOON)), *batches_of([3])
    )

    assert (result.values.to_pylist(), service.requests[3], result.retries) == ([6], 7, 6)


def test_without_give_up_after_each_refusal_is_an_attempt(service: HttpService):
    service.answer = refused_until(6, (503, {}))
    policy = retry_http(max_attempts=2, backoff=SOON, give_up_after=None)

    with pytest.raises(UdfFailedError, match="HTTP Error 503"):
        results_of(calling(service, "scalar", on_error=policy), *batches_of([3]))

    assert service.requests[3] == 2


@pytest.mark.parametrize(("kind", "isolate"), [*((kind, False) for kind in KINDS), ("async", True)])
def test_a_service_that_is_down_is_given_up_and_its_rows_have_no_result(kind: str, isolate: bool, service: HttpService):
    service.answer = lambda row, earlier: OK if row < 3 else (503, {})
    policy = retry_http(backoff=SOON, give_up_after=0.3) + skip_on_error()
    function = calling(service, kind, on_error=policy)

    began = time.monotonic()
    first, second = results_of(function, *batches_of(range(6), range(100, 140)), isolate=isolate)

    assert first.values.to_pylist() == [0, 2, 4, None, None, None]
    assert [(failure.row, failure.outcome) for failure in first.failures] == [(row, "unavailable") for row in (3, 4, 5)]
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


def test_an_answer_ends_the_time_of_a_breakdown(service: HttpService):
    # Refusals alternate with answers, for longer in all than `give_up_after`.
    service.answer = refused_until(1, (503, {"Retry-After": "7"}))
    clock = Clock()
    function = calling(service, "scalar", on_error=retry_http(give_up_after=10))

    [result] = results_of(function, *batches_of(range(5)), clock=clock, sleep=clock.sleep)

    assert result.values.to_pylist() == [0, 2, 4, 6, 8]
    assert clock.seconds >= 35


def test_a_call_timeout_does_not_count_the_wait_for_the_service(service: HttpService):
    service.answer = lambda row, earlier: (429, {"Retry-After": "0.5"}) if (row, earlier) == (0, 0) else OK
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

    assert [retry.matches(error) for error in (ConnectionResetError(), TimeoutError(), wrapper, connect_error())] == [
        True
    ] * 4
    assert [retry.matches(error) for error in (FileNotFoundError(), OSError(), ValueError(), SystemExit(503))] == [
        False
    ] * 4
    assert [retry.is_refusal(error) for error in (ConnectionRefusedError(), wrapper, ConnectionResetError())] == [
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
