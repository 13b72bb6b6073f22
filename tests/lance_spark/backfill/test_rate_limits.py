"""The rate limit of a job over several processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark import Connection
from lance_spark.backfill.driver.rate_limits import RateGrants
from lance_spark.backfill.task.rate_credits import RateCredits, limits_folder
from lance_spark.jobs.history import every
from lance_spark.storage.objects import LanceObjects
from tests.support.http_service import HttpService
from tests.support.inline_jobs import CUT, InlineLab, values
from tests.support.logs import make
from tests.support.waiting import eventually
from udf_runtime import RateLimit, udf

pytestmark = pytest.mark.sample(1, tests=2)

FOLDER = limits_folder("job")


@pytest.fixture
def objects(tmp_path: Path) -> LanceObjects:
    return LanceObjects(str(tmp_path / "objects"))


@pytest.fixture
def service() -> Iterator[HttpService]:
    with HttpService().serve() as service:
        yield service


def credits_at(objects: LanceObjects, limit: RateLimit, *, is_open: bool = True) -> RateCredits:
    return RateCredits(objects, FOLDER, limit, lambda: is_open)


def use(process: RateCredits, seconds: float, tokens: int = 0) -> list[float]:
    """Makes calls one after another, and returns their times."""
    calls, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        wait_s = process.acquire(tokens, 1)
        if wait_s == 0:
            calls.append(time.monotonic())
        time.sleep(wait_s)
    return calls


def test_two_processes_share_a_limit_evenly_and_never_exceed_it(objects: LanceObjects) -> None:
    limit = RateLimit(
        calls_per_minute=1200, tokens_per_minute=600_000, tokens=len
    )  # 20 calls and 10,000 tokens per second
    grants = RateGrants(objects, FOLDER, limit)
    calls: dict[int, list[float]] = {}

    def run(number: int) -> None:
        calls[number] = use(credits_at(objects, limit), 2.5, tokens=100)

    began = time.monotonic()
    with every(0.2, grants.look):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds = time.monotonic() - began

    both = sorted([*calls[0], *calls[1]])
    assert 40 <= len(both) <= 40 + 20 * seconds
    assert min(len(calls[0]), len(calls[1])) >= 0.25 * len(both)
    assert all(later - earlier >= 0.5 for earlier, later in zip(both, both[60:], strict=False))


@pytest.mark.long
def test_tokens_alone_limit_the_calls(objects: LanceObjects) -> None:
    limit = RateLimit(tokens_per_minute=6_000, tokens=len)  # 200 tokens at once, and 100 per second
    grants, process = RateGrants(objects, FOLDER, limit), credits_at(objects, limit)

    with every(0.2, grants.look):
        calls = use(process, 2.5, tokens=50)

    assert 4 <= len(calls) <= 4 + 5


def test_a_process_without_a_driver_waits(objects: LanceObjects) -> None:
    process = credits_at(objects, RateLimit(calls_per_minute=60_000))

    assert use(process, 0.6) == []
    eventually(lambda: objects.list(FOLDER) != [])


@pytest.mark.parametrize(
    ("limit", "calls"),
    [
        (RateLimit(calls_per_minute=10), 1),
        (RateLimit(calls_per_minute=120), 4),
        (RateLimit(calls_per_minute=60_000), 8),
        (RateLimit(calls_per_minute=60_000, tokens_per_minute=600, tokens=len), 2),
    ],
)
def test_a_process_holds_no_credit_beyond_two_seconds_of_the_limit(
    limit: RateLimit, calls: int, objects: LanceObjects
) -> None:
    process = credits_at(objects, limit)

    assert process.acquire(10, 1) > 0

    eventually(lambda: objects.list(FOLDER) != [])
    [path] = objects.list(FOLDER)
    assert json.loads(objects.get(path) or b"")["more_calls"] == calls


def test_an_ended_job_keeps_no_report(objects: LanceObjects) -> None:
    process = credits_at(objects, RateLimit(calls_per_minute=60_000), is_open=False)

    assert use(process, 0.3) == []
    eventually(lambda: objects.list(FOLDER) == [])


def test_damaged_and_forged_reports_get_nothing(objects: LanceObjects) -> None:
    objects.put(f"{FOLDER}/one", b"{")
    objects.put(
        f"{FOLDER}/two", b'{"calls": "many", "tokens": 0, "more_calls": 5, "more_tokens": 0}'
    )
    for number, amount in enumerate((b"NaN", b"Infinity", b"1e308", b"-1e9")):
        report = b'{"calls": %b, "tokens": 0, "more_calls": %b, "more_tokens": 0}' % (
            amount,
            amount,
        )
        objects.put(f"{FOLDER}/forged-{number}", report)
    objects.put(f"{FOLDER}/three", b'{"calls": 0, "tokens": 0, "more_calls": 5, "more_tokens": 0}')

    RateGrants(objects, FOLDER, RateLimit(calls_per_minute=60)).look()

    assert objects.get(f"{FOLDER}/grants") == b'{"three": [2, 0]}'


def test_an_uneven_need_leaves_no_credit_unused(objects: LanceObjects) -> None:
    for process, more in (("one", 2), ("two", 100)):
        report = f'{{"calls": 0, "tokens": 0, "more_calls": {more}, "more_tokens": 0}}'
        objects.put(f"{FOLDER}/{process}", report.encode())

    RateGrants(objects, FOLDER, RateLimit(calls_per_minute=600)).look()

    assert objects.get(f"{FOLDER}/grants") == b'{"one": [2, 0], "two": [18, 0]}'


def test_a_job_calls_within_its_limit(lab: InlineLab, service: HttpService) -> None:
    url = service.url

    async def double(id: int) -> int:
        from tests.support.http_service import fetch_async

        return await fetch_async(url, id)

    table = lab.make(pa.table({"id": range(30)}))
    limit = RateLimit(calls_per_minute=600)  # 20 calls at once, and 10 per second
    table.add_columns({"v": udf(double, data_type=pa.int64(), version="1", rate_limit=limit)})

    result = table.backfill("v", **CUT)

    assert (result.status, service.requests.total()) == ("DONE", 30)
    assert values(table, "v") == {row: (2 * row,) for row in range(30)}
    assert max(service.times) - min(service.times) >= 0.6
    assert result.seconds["limit"] > 0
    assert list(Path(lab.uri).rglob("limits/*")) == []


@pytest.mark.spark
@pytest.mark.parametrize("is_class", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_tasks_of_a_job_share_its_limit(
    is_class: bool, db: Connection, service: HttpService
) -> None:
    url = service.url

    def double(x: int) -> int:
        import urllib.request

        with urllib.request.urlopen(f"{url}/{x}", timeout=30) as response:
            return int(response.read())

    class Double:
        def setup(self) -> None:
            """A UDF with a state runs in a process of its own."""

        def __call__(self, x: int) -> int:
            return double(x)

    table = make(db, rows=20, fragments=2)
    limit = RateLimit(calls_per_minute=300)  # 10 calls at once, and 5 per second
    function: Any = udf(
        Double if is_class else double, data_type=pa.int64(), version="1", rate_limit=limit
    )
    table.add_columns({"v": function() if is_class else function})

    result = table.backfill("v")

    assert (result.status, sorted(service.requests.values())) == ("DONE", [1] * 20)
    times = sorted(service.times)
    assert all(times[i + 15] - times[i] >= 0.7 for i in range(len(times) - 15))
    assert times[-1] - times[0] >= 1.3
