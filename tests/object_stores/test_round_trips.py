"""The latency of a store hides behind work: few requests wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import Table, udf
from lance_spark.errors import LanceSparkError
from tests.object_stores.counted_operations import RemoteTable, make_letters
from tests.object_stores.request_counts import CountedCall, count_requests
from tests.object_stores.servers import StoreRequest, fail
from tests.object_stores.stores import Store
from tests.support.inline_jobs import NoSpark

pytestmark = pytest.mark.cluster

LATENCY_S = 0.05


@pytest.fixture
def remote(counting: Store) -> RemoteTable:
    """A table of 40 fragments with a column for a UDF, whose jobs need no Spark."""
    session: Any = NoSpark()
    remote = RemoteTable(
        spark=session, root=counting.root, storage=counting.storage, fragments=40, rows=10
    )
    remote.make()
    remote.table.add_columns({"letters": make_letters()})
    return remote


def run_with_latency(remote: RemoteTable, act: Callable[[Table], object]) -> CountedCall:
    """Runs an operation, and returns its requests."""
    fail(remote.storage, latency_s=LATENCY_S)
    call = count_requests(remote.storage, lambda: act(remote.table), latency_s=LATENCY_S)
    fail(remote.storage)
    return call


def most_in_flight(requests: Sequence[StoreRequest]) -> int:
    """Returns the maximum number of requests at the same time."""
    return max(
        sum(other.began_s <= request.began_s < other.ended_s for other in requests)
        for request in requests
    )


def test_a_first_backfill_reads_and_writes_small_fragments_at_once(remote: RemoteTable):
    call = run_with_latency(remote, lambda table: table.backfill("letters"))
    assert remote.dataset().count_rows("letters IS NULL") == 0
    # 5 tasks of 8 fragments in sequence. Each fragment takes two requests.
    assert call.total <= 2 * remote.fragments + 110
    of_data = [r for r in call.requests if "/t.lance/data/" in r.path]
    for method in ("GET", "PUT"):
        assert most_in_flight([r for r in of_data if r.method == method]) >= 6


@pytest.fixture
def spark_remote(counting: Store, spark: SparkSession) -> RemoteTable:
    """A table of 40 fragments. Its jobs run on Spark, whose workers have run a backfill."""
    remote = RemoteTable(
        spark=spark, root=counting.root, storage=counting.storage, fragments=40, rows=10
    )
    remote.make()
    remote.table.add_columns({"letters": make_letters()})
    remote.table.backfill("letters")
    return remote


@pytest.mark.parametrize(
    ("fixture", "most"), [("remote", 12), pytest.param("spark_remote", 14, marks=pytest.mark.long)]
)
def test_the_udf_is_called_after_few_serial_round_trips(
    fixture: str, most: int, request: pytest.FixtureRequest, tmp_path: Path
):
    """From the call of `backfill`, with and without Spark. The history gets the start of the job in parallel.

    A worker of Spark opens the version itself, with two requests.
    """
    remote: RemoteTable = request.getfixturevalue(fixture)
    path = str(tmp_path / "call")

    @udf(data_type=pa.float64(), version="1")
    def noting(x: pa.Array) -> pa.Array:
        import os
        import time

        if not os.path.exists(path):
            with open(path, "w") as note:
                note.write(str(time.time()))
        return x

    remote.table.add_columns({"copied": noting})
    call = run_with_latency(remote, lambda table: table.backfill("copied"))
    awaited = CountedCall(
        [request for request in call.requests if "/_lance_spark/jobs" not in request.path]
    )
    assert awaited.busy_s(until=float(Path(path).read_text())) / LATENCY_S <= most


@pytest.mark.parametrize(
    "act",
    [lambda table: table.backfill("letters"), lambda table: table.compact_files()],
    ids=["backfill", "compaction"],
)
def test_a_job_whose_start_cannot_be_recorded_commits_nothing(
    act: Callable[[Table], object], remote: RemoteTable
):
    """The history has other columns, as after damage. Tasks run while the start is recorded."""
    history = f"{remote.uri}/_lance_spark/jobs.lance"
    lance.write_dataset(remote.twin().to_table(), history, storage_options=remote.storage)
    version = remote.dataset().version
    with pytest.raises(LanceSparkError, match="other columns"):
        act(remote.table)
    assert remote.dataset().version == version
