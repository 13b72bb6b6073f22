"""Credentials that a namespace vends for some seconds, and an S3 server that refuses expired ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection
from lance_spark.dataset import DatasetRef
from lance_spark.ingest.staging import discard, stage
from lance_spark.namespaces import access, client
from lance_spark.staging.area import Staging
from lance_spark.storage.objects import objects_beside
from tests.object_stores.servers import fail, requests_of, s3_server
from tests.object_stores.vending import VendingNamespace, vending_namespace

SECONDS = 1.0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options


@pytest.fixture
def namespace(storage: dict[str, str]) -> Iterator[VendingNamespace]:
    with vending_namespace(storage, SECONDS) as server:
        yield server


def connect(namespace: VendingNamespace) -> Connection:
    return lance_spark.connect(
        namespace_client_impl="rest",
        namespace_client_properties=namespace.properties,
        spark=lambda: pytest.fail("no session"),  # type: ignore[arg-type]
        progress=False,
    )


def refused(storage: dict[str, str]) -> list[str]:
    return [f"{r.method} {r.path}" for r in requests_of(storage) if r.status == 403]


def test_open_datasets_sessions_and_commits_outlive_their_keys(
    namespace: VendingNamespace, storage: dict[str, str]
):
    table = connect(namespace).create_table("t", [{"id": i} for i in range(5)])
    dataset, objects = table.to_lance(), objects_beside(table._ref)
    objects.put("note", b"kept")
    time.sleep(SECONDS + 0.1)
    requests_of(storage)
    assert dataset.count_rows("id >= 1") == 4
    assert objects.get("note") == b"kept"
    table.add([{"id": 5}])
    time.sleep(SECONDS + 0.1)
    assert table.to_arrow()["id"].to_pylist() == list(range(6))
    assert refused(storage) == []
    assert namespace.descriptions >= 3


def test_a_namespace_that_is_down_is_asked_again(
    namespace: VendingNamespace, storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    table = connect(namespace).create_table("t", [{"id": i} for i in range(5)])
    namespace.is_down.set()
    time.sleep(SECONDS)
    threading.Timer(0.5, namespace.is_down.clear).start()
    assert table.count_rows() == 5
    namespace.is_down.set()
    time.sleep(SECONDS)
    monkeypatch.setattr(client, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(access, "_SILENCE_S", 0.0)
    with pytest.raises(lance_spark.NamespaceUnavailableError, match="does not answer") as error:
        table.count_rows()
    assert error.value.retryable
    namespace.is_down.clear()
    assert table.count_rows() == 5


@pytest.mark.long
def test_the_staging_of_rows_outlives_its_keys(
    namespace: VendingNamespace, storage: dict[str, str]
):
    table = connect(namespace).create_table("t", [{"id": 0}])
    schema = pa.schema({"id": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(2):
            yield pa.record_batch({"id": [i]}, schema=schema)
            time.sleep(SECONDS)

    staging = Staging.of_new_job(table._ref)
    staging.open_job()
    requests_of(storage)
    place, columns = stage(
        pa.RecordBatchReader.from_batches(schema, batches()), table._ref, staging
    )
    assert columns == schema
    assert DatasetRef.at(place, table._ref.storage).open_latest().count_rows() == 2
    assert refused(storage) == []
    discard(staging)


def test_the_server_refuses_expired_keys(storage: dict[str, str]):
    fail(storage, lasting_keys=True)
    expired = {**storage, "aws_access_key_id": "until-1000"}
    with pytest.raises(lance_spark.TableUnreadableError):
        lance_spark.open_table("s3://tables/none.lance", storage_options=expired)
    assert refused(storage) != []
