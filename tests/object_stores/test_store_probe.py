"""A probe detects stores that ignore conditional puts before the first commit; for other stores it costs a few requests
once.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

import lance_spark
from lance_spark.commit import store_check
from lance_spark.commit.rows.append_commit import commit_rows
from lance_spark.commit.store_check import (
    ALLOW_VARIABLE,
    allowed_by_environment,
    keeps_conditions,
    refuse_unsafe_store,
)
from lance_spark.errors import CommitError, OptionError, UnsafeStoreError
from tests.lance_spark.write.backfills import Backfill, computed, make_table, snapshot_rows
from tests.object_stores.committers import rows_to_commit
from tests.object_stores.servers import requests_of
from tests.object_stores.stores import Store, StorePlace

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    store_check._verdicts.clear()
    yield
    store_check._verdicts.clear()


@pytest.fixture(params=["careless", "s3rver_store"])
def unsafe(request: pytest.FixtureRequest) -> Store:
    chosen_store: Store = request.getfixturevalue(request.param)
    return chosen_store


def refuse(place: StorePlace, *, allow: bool = False) -> None:
    refuse_unsafe_store(place.uri, place.storage, allow=allow)


# The answer


def test_a_store_with_conditional_puts_is_safe_and_nothing_is_left_there(store: Store):
    place = store.place()
    refuse(place)
    assert place.objects() == []


def test_the_processes_of_an_application_probe_a_safe_store_once(
    store: Store, unsafe: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "blockmgr-0"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},/another")
    refuse(store.place())
    store_check._verdicts.clear()  # the next process
    with monkeypatch.context() as patch:
        patch.setattr(store_check, "keeps_conditions", lambda *_: pytest.fail("it was asked"))
        refuse(store.place())
    for _ in range(2):
        store_check._verdicts.clear()
        with pytest.raises(UnsafeStoreError):
            refuse(unsafe.place())


def test_a_store_that_ignores_them_is_refused_and_nothing_is_left_there(unsafe: Store):
    place = unsafe.place()
    with pytest.raises(UnsafeStoreError) as caught:
        refuse(place)
    text = str(caught.value)
    assert "ignores conditional puts" in text and place.uri in text and unsafe.root in text
    assert "allow_unsafe_commits" in text and ALLOW_VARIABLE in text
    assert caught.value.uri == place.uri and not caught.value.retryable
    assert place.objects() == []


@pytest.mark.parametrize(
    ("name", "keeps"), [("az", True), ("s3", True), ("careless", False), ("s3rver_store", False)]
)
def test_the_answer_is_the_same_every_time(name: str, keeps: bool, request: pytest.FixtureRequest):
    chosen_store: Store = request.getfixturevalue(name)
    assert {
        keeps_conditions(f"{chosen_store.root}/again-{number}", chosen_store.storage)
        for number in range(5)
    } == {keeps}


@pytest.mark.parametrize("root", ["file-object-store://", "memory://", "shared-memory://", ""])
def test_schemes_that_are_not_asked_are_safe(
    root: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    uri = f"{root}{tmp_path}/{uuid.uuid4().hex}"
    assert keeps_conditions(uri, {})
    monkeypatch.setattr(store_check, "keeps_conditions", lambda *_: pytest.fail("it was asked"))
    refuse_unsafe_store(uri, {}, allow=False)
    refuse_unsafe_store("s3+ddb://bucket/t.lance?ddbTableName=t", {}, allow=False)


def test_the_scheme_of_lance_that_puts_files_without_condition_is_refused(tmp_path: Any):
    # Without io_uring in the kernel, the probe cannot decide.
    with pytest.raises(CommitError, match=r"ignores conditional puts|for conditional puts failed"):
        refuse_unsafe_store(f"file+uring://{tmp_path}/t.lance", {}, allow=False)


# Costs


def test_a_location_is_asked_once_with_few_requests(s3: Store):
    requests_of(s3.storage)
    refuse(s3.place())
    first = requests_of(s3.storage)
    assert 0 < len(first) <= 20, first
    refuse(s3.place("another"))
    refuse_unsafe_store(
        s3.place().uri, {**s3.storage, "aws_session_token": "of the next hour"}, allow=False
    )
    assert requests_of(s3.storage) == []


def test_threads_ask_once(s3: Store):
    requests_of(s3.storage)
    threads = [threading.Thread(target=refuse, args=(s3.place(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    puts = [
        request
        for request in requests_of(s3.storage)
        if request.method == "PUT" and request.path.endswith(".manifest")
    ]
    assert len(puts) == 3


def test_two_stores_under_one_uri_are_two_locations(s3: Store, careless: Store):
    refuse(s3.place())
    with pytest.raises(UnsafeStoreError):
        refuse(careless.place())
    refuse(s3.place())
    assert s3.root == careless.root


def test_a_refused_store_is_refused_again_without_a_request(careless: Store):
    with pytest.raises(UnsafeStoreError):
        refuse(careless.place())
    requests_of(careless.storage)
    with pytest.raises(UnsafeStoreError):
        refuse(careless.place())
    assert requests_of(careless.storage) == []


# Failing stores


def test_a_store_that_cannot_be_asked_is_an_error_and_asked_again(
    s3: Store, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR)
    with pytest.raises(CommitError, match="for conditional puts failed") as caught:
        refuse_unsafe_store("s3://no-such-bucket/t.lance", s3.storage, allow=False)
    assert not isinstance(caught.value, UnsafeStoreError) and "s3://no-such-bucket/t.lance" in str(
        caught.value
    )
    assert store_check._verdicts == {}


def test_a_client_that_may_not_put_conditionally_is_no_safe_store(s3: Store):
    place = s3.place()
    with pytest.raises(CommitError, match="conditional put is disabled"):
        refuse_unsafe_store(
            place.uri, {**s3.storage, "aws_conditional_put": "disabled"}, allow=False
        )
    assert place.objects() == []


# The override


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("true", True), ("1", True), ("yes", True), ("False", False), ("no", False)],
)
def test_the_environment_allows(text: str, allowed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ALLOW_VARIABLE, text)
    assert allowed_by_environment() is allowed


def test_the_environment_allows_nothing_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    assert not allowed_by_environment()
    monkeypatch.setenv(ALLOW_VARIABLE, "perhaps")
    with pytest.raises(OptionError, match=ALLOW_VARIABLE):
        allowed_by_environment()


def test_what_is_allowed_is_not_asked(careless: Store):
    requests_of(careless.storage)
    refuse(careless.place(), allow=True)
    assert requests_of(careless.storage) == []


# Commits


def test_a_refused_append_makes_no_table(careless: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    place = careless.place()
    change = rows_to_commit(place, [1, 2], "a")
    with pytest.raises(UnsafeStoreError, match="Nothing was committed"):
        commit_rows(place.ref, change, job_id="a")
    assert not [name for name in place.objects() if name.startswith("_versions")]
    monkeypatch.setenv(ALLOW_VARIABLE, "true")
    assert commit_rows(place.ref, change, job_id="a").version == 1
    assert [row["id"] for row in place.contents()] == [1, 2]


def test_refused_columns_leave_the_table_as_it_was(
    careless: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    place = careless.place()
    make_table(place.uri, storage=place.storage)
    version, before = place.open().version, place.contents()
    rows = computed(snapshot_rows(place.uri, storage=place.storage))
    with pytest.raises(UnsafeStoreError, match="Nothing was committed"):
        Backfill(place.uri, "c", LongType(), storage=place.storage).run(rows)
    assert place.open().version == version and place.contents() == before
    monkeypatch.setenv(ALLOW_VARIABLE, "true")
    Backfill(place.uri, "c", LongType(), storage=place.storage).run(rows)
    assert place.column("c") == {k: k * 10 for k in range(30)}


@pytest.mark.long
def test_tasks_that_optimize_an_index_take_the_verdict_of_the_driver(
    careless: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    """Executors have another environment than the driver."""
    place = careless.place()
    rows = pa.table({"id": range(100)})
    lance.write_dataset(rows, place.uri, storage_options=place.storage).create_scalar_index(
        "id", "BTREE"
    )
    lance.write_dataset(rows, place.uri, mode="append", storage_options=place.storage)
    table = lance_spark.connect(place.folder, spark, place.storage).open_table(place.name)
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    with pytest.raises(UnsafeStoreError, match="Nothing was committed"):
        table.optimize_indices()
    monkeypatch.setenv(ALLOW_VARIABLE, "true")
    table.optimize_indices()
    assert table.index_stats(table.list_indices()[0].name).num_unindexed_rows == 0


@pytest.mark.long
def test_a_write_of_spark_is_refused_unless_its_option_allows_it(
    careless: Store, spark: SparkSession
):
    place = careless.place()
    lance.write_dataset(pa.table({"id": [0]}), place.uri, storage_options=place.storage)
    writer = spark.range(1, 4).write.format("lance").mode("append")
    for key, value in place.storage.items():
        writer = writer.option(f"storage.{key}", value)
    with pytest.raises(PySparkException, match="ignores conditional puts"):
        writer.save(place.uri)
    assert place.open().version == 1
    writer.option("allow_unsafe_commits", "true").save(place.uri)
    assert sorted(row["id"] for row in place.contents()) == [0, 1, 2, 3]
