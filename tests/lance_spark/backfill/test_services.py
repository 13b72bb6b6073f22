"""Jobs whose UDF calls a service."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError, Connection
from tests.support.http_service import OK, Answer, HttpService
from tests.support.inline_jobs import CUT, WHOLE, InlineLab, values
from tests.support.logs import make
from udf_runtime import UDF, Backoff, retry_http, skip_on_error, udf

ROWS = 60


@pytest.fixture
def service() -> Iterator[HttpService]:
    with HttpService().serve() as service:
        yield service


def doubling(service: HttpService, **options: Any) -> UDF:
    url = service.url

    async def double(id: int) -> int:
        from tests.support.http_service import fetch_async

        return await fetch_async(url, id)

    return udf(double, data_type=pa.int64(), version="1", **options)


@pytest.mark.parametrize("sizes", [WHOLE, CUT])
def test_a_job_whose_service_breaks_down_keeps_everything_and_the_next_job_repeats_no_call(
    sizes: dict[str, Any], lab: InlineLab, service: HttpService
) -> None:
    # Rows fail in the middle of a batch, of a range and of a fragment.
    service.answer = lambda row, earlier: OK if row < 33 else (503, {})
    policy = retry_http(
        backoff=Backoff(kind="fixed", initial_s=0.02, max_s=0.02), give_up_after=0.2
    )
    table = lab.make(pa.table({"id": range(ROWS)}), rows_per_file=20)
    table.add_columns({"v": doubling(service, on_error=policy + skip_on_error())})

    with pytest.raises(BackfillIncompleteError, match=r"took no calls for 0\.2 s") as caught:
        table.backfill("v", **sizes)
    result = caught.value.result
    answered = {row: count for row, count in service.requests.items() if row < 33}

    assert (result.status, result.rows_skipped, result.rows_computed) == ("PARTIAL", 0, 33)
    assert answered == dict.fromkeys(range(33), 1)
    refused = [error for error in table.get_errors(result.job_id) if error.row_address is not None]
    assert refused == []

    service.answer = lambda row, earlier: OK
    service.requests.clear()
    result = table.backfill("v", **sizes)

    assert (result.status, result.rows_selected) == ("DONE", 40)
    assert service.requests == Counter(range(33, ROWS))
    assert values(table, "v") == {row: (2 * row,) for row in range(ROWS)}


def tripling(service: HttpService, **options: Any) -> UDF:
    """A class, whose calls run in a process of their own."""
    url = service.url

    class Triple:
        def setup(self) -> None:
            self.url = url

        def __call__(self, x: int) -> int:
            import urllib.error
            import urllib.request

            try:
                with urllib.request.urlopen(f"{self.url}/{x}", timeout=30) as response:
                    return int(response.read())
            except urllib.error.HTTPError as error:
                error.close()
                raise

    factory: Any = udf(Triple, version="1", data_type=pa.int64(), **options)
    function: UDF = factory()
    return function


@pytest.mark.long
@pytest.mark.spark
def test_the_tasks_of_a_job_give_a_service_up_and_the_next_job_repeats_no_answered_call(
    db: Connection, service: HttpService
) -> None:
    is_down = threading.Event()
    answered = Counter[int]()

    def answer(row: int, earlier: int) -> Answer:
        if answered.total() >= 70:
            is_down.set()
        if is_down.is_set():
            return 503, {"Retry-After": "0.1"}
        answered[row] += 1
        return OK

    service.answer = answer
    table = make(db, rows=200, fragments=4)
    policy = retry_http(give_up_after=1.0) + skip_on_error()
    table.add_columns({"v": tripling(service, on_error=policy)})

    with pytest.raises(BackfillIncompleteError, match=r"took no calls for 1 s") as caught:
        table.backfill("v")

    assert (caught.value.result.status, caught.value.result.rows_skipped) == ("PARTIAL", 0)
    assert (answered.total(), set(answered.values())) == (caught.value.result.rows_computed, {1})

    service.answer = lambda row, earlier: (answered.update([row]), OK)[1]
    assert table.backfill("v").status == "DONE"
    assert answered == Counter(range(200))
