"""A REST server of pylance over a folder, and connections to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from lance.namespace import RestAdapter
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection

SECRET = "open-sesame-4711"
"""A secret property: no plan, text or file may show the value."""


class Rest(NamedTuple):
    """A server, and the folder with its tables."""

    uri: str
    root: Path

    @property
    def properties(self) -> dict[str, str]:
        return {"uri": self.uri, "headers.x-api-key": SECRET}

    def connect(self, spark: SparkSession | None = None) -> Connection:
        return lance_spark.connect(
            namespace_client_impl="rest",
            namespace_client_properties=self.properties,
            spark=spark,
            progress=False,
        )


def _serve(root: Path, **properties: str) -> Iterator[Rest]:
    with RestAdapter("dir", {"root": str(root), **properties}, port=0) as server:
        yield Rest(f"http://127.0.0.1:{server.port}", root)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """A server with options of the store for four seconds."""
    expiry = {"vend_input_storage_options_refresh_interval_millis": "4000"}
    yield from _serve(tmp_path_factory.mktemp("rest"), vend_input_storage_options="true", **expiry)


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """A server with managed versions of tables."""
    yield from _serve(tmp_path_factory.mktemp("managed"), table_version_tracking_enabled="true")


_numbers = itertools.count()


@pytest.fixture
def space() -> list[str]:
    """The path of a new namespace."""
    return ["tests", f"n{next(_numbers)}"]


@pytest.fixture
def db(rest: Rest, spark: SparkSession, space: list[str]) -> Connection:
    """A connection with the namespace of the test."""
    return prepared(rest.connect(spark), space)


def prepared(connection: Connection, space: list[str]) -> Connection:
    """Creates the namespace of a test."""
    if "tests" not in connection.list_namespaces():
        connection.create_namespace(["tests"])
    connection.create_namespace(space)
    return connection
