"""Lost replies, outages and old answers of a namespace that keeps the versions of its tables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance_namespace
import pytest
from lance_namespace import ListTableVersionsRequest

import lance_spark
from lance_spark import Table
from lance_spark.commit.commit_loop import RETRIES_VARIABLE
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitOutcomeUnknownError
from lance_spark.namespaces import access, client
from lance_spark.namespaces.errors import NamespaceError, NamespaceUnavailableError
from lance_spark.namespaces.reference import NamespaceTable
from tests.object_stores.vending import VendingNamespace, serve_keys

CREATE_VERSION = "/version/create"
"""End of the path of a commit's request."""


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[VendingNamespace]:
    properties = {"root": str(tmp_path / "root"), "table_version_tracking_enabled": "true"}
    with serve_keys(properties, {}, 600) as server:
        yield server


@pytest.fixture
def table(namespace: VendingNamespace) -> Table:
    db = lance_spark.connect(
        namespace_client_impl="rest",
        namespace_client_properties=namespace.properties,
        progress=False,
    )
    return db.create_table("t", [{"id": 1}])


def versions_of(namespace: VendingNamespace) -> int:
    service = lance_namespace.connect("rest", namespace.properties)
    return len(service.list_table_versions(ListTableVersionsRequest(id=["t"])).versions)


@pytest.mark.long
def test_a_lost_reply_to_a_commit_is_found_in_the_history(
    table: Table, namespace: VendingNamespace
):
    namespace.lost_reply = CREATE_VERSION
    table.add([{"id": 2}])
    assert namespace.lost_reply == ""
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    assert versions_of(namespace) == 2


@pytest.mark.long
def test_a_lost_reply_before_an_outage_has_an_unknown_outcome(
    table: Table, namespace: VendingNamespace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "_PATIENCE_S", 0.1)
    namespace.lost_reply, namespace.breaks_down = CREATE_VERSION, True
    with pytest.raises(CommitOutcomeUnknownError):
        table.add([{"id": 2}])
    namespace.is_down.clear()
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]


def test_a_namespace_may_execute_a_lost_request_later(
    table: Table, namespace: VendingNamespace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(RETRIES_VARIABLE, "0")
    namespace.lost_reply, namespace.loses_request = CREATE_VERSION, True
    with pytest.raises(CommitOutcomeUnknownError, match="may or may not have happened"):
        table.add([{"id": 2}])
    assert table.count_rows() == 1


def test_valid_options_are_used_during_an_outage(table: Table, namespace: VendingNamespace):
    known = NamespaceTable.of(table._ref.storage)
    assert known is not None
    access._accesses[known] = dataclasses.replace(access.access_of(known), renew_at=0.0)
    namespace.is_down.set()
    start = time.monotonic()
    assert access.access_of(known).location == table.uri
    assert time.monotonic() - start < 2


def test_threads_share_the_patience_with_a_silent_namespace(
    table: Table, namespace: VendingNamespace, monkeypatch: pytest.MonkeyPatch
):
    known = NamespaceTable.of(table._ref.storage)
    assert known is not None
    access._accesses[known] = dataclasses.replace(
        access.access_of(known), renew_at=0.0, expires_at=0.0
    )
    monkeypatch.setattr(client, "_PATIENCE_S", 0.3)
    namespace.is_down.set()
    start = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        errors = [
            future.exception()
            for future in [pool.submit(access.access_of, known) for _ in range(10)]
        ]
    assert {type(error) for error in errors} == {NamespaceUnavailableError}
    assert time.monotonic() - start < 1.5
    namespace.is_down.clear()
    monkeypatch.setattr(access, "_SILENCE_S", 0.0)
    assert table.count_rows() == 1


def test_an_old_answer_about_another_location_is_asked_for_again(
    table: Table, namespace: VendingNamespace
):
    known = NamespaceTable.of(table._ref.storage)
    assert known is not None
    access._accesses[known] = dataclasses.replace(
        access.access_of(known), location="/elsewhere/t.lance"
    )
    namespace.lost_reply = CREATE_VERSION
    table.add([{"id": 2}])
    assert namespace.lost_reply == "", "the commit went past the namespace"
    assert table.count_rows() == 2


def test_a_commit_at_an_old_location_of_a_managed_table_is_refused(table: Table, tmp_path: Path):
    old = lance_spark.connect(str(tmp_path / "old")).create_table("t", [{"id": 1}])
    moved = DatasetRef.at(old.uri, table._ref.storage)
    with pytest.raises(NamespaceError, match="another location"):
        lance_spark.open_table(moved.uri, storage_options=moved.storage).add([{"id": 2}])
    assert old.count_rows() == 1
