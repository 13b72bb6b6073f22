"""Object stores in processes: a store per protocol with conditional puts, and two stores without conditions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_stores.servers import TABLES, azurite, s3_server, s3rver
from tests.object_stores.stores import Store


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with azurite(tmp_path_factory.mktemp("azurite")) as storage:
        yield Store(root=f"az://{TABLES}", storage=storage)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with s3_server(tmp_path_factory.mktemp("s3")) as storage:
        yield Store(root=f"s3://{TABLES}", storage=storage)


@pytest.fixture(scope="session")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A server with failures by `servers.fail`."""
    with s3_server(tmp_path_factory.mktemp("failing")) as storage:
        yield Store(root=f"s3://{TABLES}", storage=storage)


@pytest.fixture(scope="session")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The server of `s3`, without conditional puts."""
    with s3_server(tmp_path_factory.mktemp("careless"), ignore_conditions=True) as storage:
        yield Store(root=f"s3://{TABLES}", storage=storage)


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Store]:
    """A server without the tables of earlier tests: its memory has to hold files of 100 MB."""
    with s3_server(tmp_path) as storage:
        yield Store(root=f"s3://{TABLES}", storage=storage)


@pytest.fixture(scope="session")
def s3rver_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A foreign server without conditional puts."""
    with s3rver(tmp_path_factory.mktemp("s3rver")) as storage:
        yield Store(root=f"s3://{TABLES}", storage=storage)


@pytest.fixture(params=[pytest.param("az", marks=pytest.mark.long), "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each store with conditional puts."""
    chosen_store: Store = request.getfixturevalue(request.param)
    return chosen_store
