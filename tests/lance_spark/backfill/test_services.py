"""Jobs whose UDF calls a service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError
from tests.support.http_service import OK, HttpService
from tests.support.inline_jobs import CUT, WHOLE, InlineLab, values
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
    policy = retry_http(backoff=Backoff(kind="fixed", initial_s=0.02, max_s=0.02), give_up_after=0.2)
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
