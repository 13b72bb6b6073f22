"""The identity of tables for OpenLineage."""

from __future__ import annotations

import pytest

from lance_spark.sql.catalog.tables import LINEAGE_NAME, LINEAGE_NAMESPACE, lineage_properties


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/data/books.lance", "file", "/data/books.lance"),
        ("s3://bucket/data/books.lance", "s3://bucket", "data/books.lance"),
        ("gs://bucket/books.lance", "gs://bucket", "books.lance"),
        ("az://container/books.lance", "az://container", "books.lance"),
    ],
)
def test_a_location_has_a_namespace_and_a_name(uri: str, namespace: str, name: str):
    assert lineage_properties(uri) == {LINEAGE_NAMESPACE: namespace, LINEAGE_NAME: name}
