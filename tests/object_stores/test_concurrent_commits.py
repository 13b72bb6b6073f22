"""Four or eight processes commit to one table of an object store at the same time, without losing a commit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.lance_spark.write.backfills import make_table
from tests.object_stores.committers import (
    commit_a_column,
    commit_a_fragment,
    commit_some_rows,
    take_barrier,
)
from tests.object_stores.stores import Store, StorePlace

pytestmark = pytest.mark.cluster

each_store = pytest.mark.parametrize(
    "store", [pytest.param("az", marks=pytest.mark.long), "s3"], indirect=True
)
"""Both stores in `make test-long`. One test of the quick suite has both."""

COMMITS = 3


@dataclass(frozen=True)
class CommitterPool:
    """Spawned processes, because Lance's threads do not survive a fork."""

    size: int
    executor: ProcessPoolExecutor

    def together(self, work: Callable[..., Any], place: StorePlace, *arguments: Any) -> list[Any]:
        """Runs the work once in each process. All wait for each other, so no process gets two."""
        futures = [self.executor.submit(work, place, job, *arguments) for job in range(self.size)]
        return [future.result(120) for future in futures]


@pytest.fixture(scope="module", params=[4, pytest.param(8, marks=pytest.mark.long)])
def pool(request: pytest.FixtureRequest) -> Iterator[CommitterPool]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(request.param)
    executor = ProcessPoolExecutor(
        request.param, mp_context=context, initializer=take_barrier, initargs=(barrier,)
    )
    with executor as started:
        yield CommitterPool(request.param, started)


@each_store
def test_rows_of_writers_that_create_and_append_are_all_there(pool: CommitterPool, store: Store):
    place = store.place()
    versions = pool.together(commit_some_rows, place, COMMITS)
    expected = [job * 100 + n for job in range(pool.size) for n in range(COMMITS)]
    assert sorted(v for each in versions for v in each) == list(range(1, len(expected) + 1))
    assert sorted((row["id"], row["x"]) for row in place.contents()) == [(k, -k) for k in expected]
    assert place.orphans() == set()


@each_store
def test_columns_that_are_added_and_filled_at_the_same_time_are_all_there(
    pool: CommitterPool, store: Store
):
    place = store.place()
    make_table(place.uri, fragments=2, storage=place.storage)
    results = pool.together(commit_a_column, place)
    assert len({result.version for result in results}) == pool.size
    for job in range(pool.size):
        assert place.column(f"c{job}") == {k: k * 10 + job for k in range(20)}
    assert place.column("text") == {k: f"t{k}" for k in range(20)} and place.orphans() == set()


def test_fragments_of_one_column_that_are_filled_at_the_same_time_are_all_there(
    pool: CommitterPool, store: Store
):
    place = store.place()
    make_table(place.uri, fragments=pool.size, rows=5, storage=place.storage, c=pa.int64())
    results = pool.together(commit_a_fragment, place)
    assert all(result.rows == 5 and result.rows_gone == 0 for result in results)
    assert (
        place.column("c") == {k: k * 10 + k // 5 for k in range(pool.size * 5)}
        and place.orphans() == set()
    )
