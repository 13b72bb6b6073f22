"""The client that Lance itself calls, for new credentials and for managed versions.

Functions import this module at the first use, because it imports `lance_namespace`.
"""

from __future__ import annotations

from typing import Any

from lance_namespace import DescribeTableResponse, LanceNamespace

from lance_spark.namespaces.access import access_of
from lance_spark.namespaces.client import call, client_of
from lance_spark.namespaces.reference import NamespaceTable


class RenewingClient(LanceNamespace):
    """A client for one table. Lance's requests share the answers to this process."""

    def __init__(self, table: NamespaceTable) -> None:
        self._table = table

    def namespace_id(self) -> str:
        """Returns the identity of the namespace."""
        return client_of(self._table.client).namespace_id()

    def describe_table(self, request: object) -> DescribeTableResponse:  # noqa: ARG002 - always of the same table
        """Returns location and credentials of the table."""
        access = access_of(self._table)
        return DescribeTableResponse(
            location=access.location,
            storage_options=access.options,
            managed_versioning=access.managed,
        )

    def list_table_versions(self, request: object) -> Any:  # noqa: ANN401 - a response of pylance
        """Returns the versions of a managed table."""
        return call(self._table.client, "list_table_versions", request)

    def describe_table_version(self, request: object) -> Any:  # noqa: ANN401
        """Returns a version of a managed table."""
        return call(self._table.client, "describe_table_version", request)

    def create_table_version(self, request: object) -> Any:  # noqa: ANN401
        """Adds a version to a managed table, without retries."""
        return call(self._table.client, "create_table_version", request)

    def batch_delete_table_versions(self, request: object) -> Any:  # noqa: ANN401
        """Deletes versions of a managed table."""
        return call(self._table.client, "batch_delete_table_versions", request)
