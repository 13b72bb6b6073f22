"""A job after many jobs makes about as many requests as the first of these jobs."""

from __future__ import annotations

import lance
import pytest
from pyspark.sql import SparkSession

from lance_spark.backfill.reuse.computed_rows import RECORDS
from tests.object_stores.counted_operations import RemoteTable, make_letters
from tests.object_stores.request_counts import count_requests
from tests.object_stores.stores import Store

pytestmark = [pytest.mark.cluster, pytest.mark.long]

LOOKS = (1, 10, 40)
"""Numbers of earlier jobs before the looks."""

MOST_MORE = 10


def test_requests_of_a_job_do_not_grow_with_the_number_of_jobs(
    counting: Store, spark: SparkSession
) -> None:
    remote = RemoteTable(spark=spark, root=counting.root, storage=counting.storage, fragments=2)
    remote.make()
    table = remote.table
    table.add_columns({"letters": make_letters()})
    table.backfill("letters")
    requests, plans, histories, records = {}, {}, {}, {}
    for job in range(1, max(LOOKS) + 1):
        call = count_requests(
            remote.storage, lambda job=job: table.backfill("letters", where=f"id = {job}")
        )
        if job in LOOKS:
            requests[job] = call.total
            plans[job] = count_requests(
                remote.storage, lambda: table.plan_backfill("letters")
            ).total
            histories[job] = count_requests(remote.storage, table.list_jobs).total
            uri = f"{remote.uri}/{RECORDS.name}"
            records[job] = lance.dataset(uri, storage_options=remote.storage).count_rows()
    assert max(requests.values()) <= requests[1] + MOST_MORE
    assert max(plans.values()) <= 10
    assert max(histories.values()) <= 4
    assert records == {job: 2 + 2 * job for job in LOOKS}
    assert count_requests(remote.storage, table.get_errors).total <= 4
