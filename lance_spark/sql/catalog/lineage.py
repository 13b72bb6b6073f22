"""The identity of a table for OpenLineage, in the properties of catalog tables.

The Spark listener of OpenLineage takes the identity of a table from two properties of the table.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from lance_spark.dataset import is_local

NAME_PROPERTY = "openlineage.dataset.name"
NAMESPACE_PROPERTY = "openlineage.dataset.namespace"


def lineage_properties(uri: str) -> dict[str, str]:
    """Returns the identity of the table at a location, by OpenLineage's rules for stores.

    The namespace of a local file is `file`, and the namespace of an object is its bucket.
    """
    if is_local(uri):
        return {NAMESPACE_PROPERTY: "file", NAME_PROPERTY: uri}
    parts = urlsplit(uri)
    return {NAMESPACE_PROPERTY: f"{parts.scheme}://{parts.netloc}", NAME_PROPERTY: parts.path.strip("/")}
