"""A job of a minute on a cluster, over a namespace whose keys expire after five seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import ClusterJob, StandaloneCluster
from tests.cluster.jobs import BEGUN, EVENTS, PROPERTIES
from tests.object_stores.servers import requests_of, s3_server
from tests.object_stores.vending import SECRET_KEY, vending_namespace
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]

HEADER = "open-sesame-4711"
"""A secret property of the namespace."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path) as options:
        yield options


def test_executors_renew_vended_keys_while_the_namespace_fails_for_some_seconds(
    cluster: StandaloneCluster, storage: dict[str, str], tmp_path: Path
):
    (tmp_path / EVENTS).mkdir()
    with vending_namespace(storage, 5.0) as namespace:
        properties = {**namespace.properties, "headers.x-api-key": HEADER}
        (tmp_path / PROPERTIES).write_text(json.dumps(properties))
        job = ClusterJob("vended_credentials", cluster, str(tmp_path))
        try:
            eventually((tmp_path / BEGUN).exists, seconds=120)
            requests_of(storage)
            time.sleep(20)
            namespace.is_down.set()
            time.sleep(8)
            namespace.is_down.clear()
            result = job.result()
        finally:
            job.end()
    plan = result.pop("plan")
    assert result == {"computed": 240, "right": 240, "viewed": 240, "statuses": ["DONE"]}
    assert [request.path for request in requests_of(storage) if request.status == 403] == []
    logs = [log.read_text() for log in (tmp_path / EVENTS).rglob("*") if log.is_file()]
    assert sum(map(len, logs)) > 10_000
    for secret in (SECRET_KEY, HEADER):
        assert not any(secret in text for text in [plan, *logs])
