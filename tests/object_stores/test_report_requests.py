"""Requests of a report to an object store."""

from __future__ import annotations

import pytest

import lance_spark
from lance_spark import Connection, Table
from tests.lance_spark.report.places import ended_jobs, no_spark, write_errors, write_jobs
from tests.object_stores.counted_operations import make_letters, rows_of
from tests.object_stores.request_counts import CountedCall, count_requests
from tests.object_stores.stores import Store

pytestmark = [pytest.mark.cluster, pytest.mark.long]

FEW_REQUESTS, MANY_REQUESTS = 25, 90
"""Requests of a report of a table with three jobs, and with thousands of jobs with errors."""


def writes_of(call: CountedCall) -> int:
    return sum(call.by_method.get(method, 0) for method in ("PUT", "POST", "DELETE"))


def test_requests_of_a_report_grow_with_neither_jobs_nor_versions_nor_fragments(counting: Store):
    storage = counting.storage
    db = lance_spark.connect(f"{counting.root}/reported", no_spark, storage, progress=False)
    table = db.create_table("t", rows_of(100))
    table.add_columns({"letters": make_letters()})
    write_jobs(table, ended_jobs(3), storage)
    write_errors(table, "job-0", ["message"], storage)
    db.report()
    few = count_requests(storage, db.report)
    many = [grow_and_count(table, db, storage, first) for first in (1, 2)]
    assert few.result.jobs == 3 and [call.result.jobs for call in many] == [1000, 1000]
    assert [writes_of(call) for call in (few, *many)] == [0, 0, 0]
    # Each of the 20 newest jobs with errors has a look at the table of errors, and the page shows ten versions.
    assert few.total <= FEW_REQUESTS and many[0].total <= MANY_REQUESTS, (
        few.by_method,
        many[0].by_method,
    )
    assert many[1].total <= many[0].total + 5, (many[0].by_method, many[1].paths(many[1].by_method))


def grow_and_count(
    table: Table, db: Connection, storage: dict[str, str], number: int
) -> CountedCall:
    """Adds a thousand jobs and 30 versions with a fragment each, and counts the requests of a report."""
    write_jobs(table, ended_jobs(1000, rows_skipped=5), storage)
    for fragment in range(30):
        table.add(rows_of(10, 100_000 * number + 1000 * fragment))
    return count_requests(storage, db.report)
