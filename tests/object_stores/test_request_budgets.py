"""Each operation makes at most the requests of its budget, and leaves only files with a version."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark
from tests.object_stores.counted_operations import (
    BIG_FILES,
    OPERATIONS,
    CountedOperation,
    RemoteTable,
    make_letters,
    make_view,
    rows_of,
)
from tests.object_stores.request_counts import METHODS, CountedCall, count_requests
from tests.object_stores.stores import Store, StorePlace, strays

pytestmark = pytest.mark.cluster

BUDGETS = tomllib.loads(Path(__file__).with_name("request_budgets.toml").read_text())


def remote_table(store: Store, spark: SparkSession, **sizes: int) -> RemoteTable:
    """Returns a table, after a warm-up of Spark, and after the probe of the store for conditional puts."""
    small = RemoteTable(spark=spark, root=store.root, storage=store.storage, fragments=2)
    small.make()
    small.append(small.read())
    remote = RemoteTable(spark=spark, root=store.root, storage=store.storage, **sizes)
    remote.make()
    return remote


def excesses(
    remote: RemoteTable,
    operations: Mapping[str, CountedOperation],
    budgets: dict[str, dict[str, float]],
    unit: float,
) -> Iterator[str]:
    """Runs the operations in order, and yields a text for each operation above its budget."""
    for name, operation in operations.items():
        operation.prepare(remote)
        call = count_requests(remote.storage, lambda operation=operation: operation.act(remote))
        yield from excess(name, call, budgets.get(name, {}), unit)


def excess(name: str, call: CountedCall, budget: dict[str, float], unit: float) -> Iterator[str]:
    counted = {method: round(number / unit, 3) for method, number in call.by_method.items()}
    exceeded = [method for method in METHODS if counted.get(method, 0) > budget.get(method, 0)]
    if exceeded:
        numbers = ", ".join(
            f"{method} {counted[method]:g} of {budget.get(method, 0):g}" for method in exceeded
        )
        line = ", ".join(f"{method} = {number:g}" for method, number in counted.items())
        paths = "\n    ".join(call.paths(exceeded))
        yield f'{name}: {numbers}. Counted:\n"{name}" = {{ {line} }}\n    {paths}'


@pytest.mark.parametrize("fragments", [10, pytest.param(100, marks=pytest.mark.long)])
def test_operations_on_small_files_make_at_most_the_requests_of_their_budgets(
    fragments: int, counting: Store, spark: SparkSession
):
    remote = remote_table(counting, spark, fragments=fragments)
    operations = {
        name: operation
        for name, operation in OPERATIONS.items()
        if fragments > 10 or not operation.long
    }
    texts = list(excesses(remote, operations, BUDGETS[f"{fragments} fragments"], 1))
    assert not texts, "\n".join(texts)
    lengths = remote.dataset().to_table(
        columns=["text", "letters"], filter="text IS NOT NULL AND letters IS NOT NULL"
    )
    assert all(
        len(row["text"]) == row["letters"] or row["text"] == "other" for row in lengths.to_pylist()
    )
    assert lengths.num_rows >= fragments * remote.rows
    remote.table.drop_columns(["letters"])
    for uri in (remote.uri, remote.view.uri):
        assert strays(StorePlace(uri=uri, storage=counting.storage)) == set()


@pytest.mark.long
def test_operations_on_large_files_make_at_most_the_requests_per_megabyte_of_their_budgets(
    counting: Store, spark: SparkSession
):
    remote = remote_table(counting, spark, fragments=2, rows=1000, text_bytes=100_000)
    texts = list(excesses(remote, BIG_FILES, BUDGETS["megabyte of files of 100 MB"], 200))
    assert not texts, "\n".join(texts)


@pytest.mark.long
def test_a_cycle_of_operations_leaves_no_file_without_a_version(
    counting: Store, spark: SparkSession
):
    """Neither before a cleanup nor after one."""
    remote = RemoteTable(spark=spark, root=counting.root, storage=counting.storage, fragments=2)
    remote.make()
    make_view(remote)
    remote.table.add_columns({"letters": make_letters()})
    for number in range(2):
        remote.table.add(rows_of(10, 5000 + 10 * number))
        remote.table.backfill("letters")
        remote.table.update("id = 7", values_sql={"text": "'other'"})
        remote.table.backfill("letters", stale=True)
        remote.view.refresh()
    remote.table.drop_columns(["letters"])
    tables = [
        StorePlace(uri=uri, storage=counting.storage) for uri in (remote.uri, remote.view.uri)
    ]
    assert [strays(table) for table in tables] == [set(), set()]
    for table in (remote.table, remote.view):
        lance_spark.cleanup(table.uri, older_than=timedelta(0), storage_options=counting.storage)
        table.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert [strays(table) for table in tables] == [set(), set()]
    assert remote.table.count_rows() == 220
