"""Tables of a SQL catalog in a Lance namespace: `spark.sql.catalog.<name>.impl`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, TableNotFoundError, UnsupportedOperationError
from lance_spark.namespaces.access import access_of, describe, plain_location
from lance_spark.namespaces.reference import NamespaceClientSpec, NamespaceTable
from lance_spark.session.catalogs import ALLOW_STORED_CODE, IMPLEMENTATION, setting_of
from lance_spark.sql.catalog.location import (
    CatalogLocation,
    NamespaceNotFoundError,
    parse_stored_code,
)
from lance_spark.table.connections.connection import Connection, connect
from lance_spark.table.connections.namespaces import NamespaceTables


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLocation(CatalogLocation):
    """A catalog in a Lance namespace, and a namespace of the catalog.

    Attributes:
        client: The client of the service.
    """

    client: NamespaceClientSpec

    @staticmethod
    def of_options(
        catalog: str, options: Mapping[str, str], namespace: tuple[str, ...]
    ) -> NamespaceLocation:
        """Returns the location for the options of a catalog.

        Raises:
            OptionError: The implementation is neither built in nor registered.
        """
        allowed = parse_stored_code(catalog, options)
        own = (IMPLEMENTATION, ALLOW_STORED_CODE)
        properties = {name: value for name, value in options.items() if name not in own}
        client = NamespaceClientSpec.of(options[IMPLEMENTATION], properties)
        try:
            client.check_registered()
        except OptionError as error:
            raise OptionError(
                setting_of(catalog, IMPLEMENTATION), options[IMPLEMENTATION], error.accepted
            ) from error
        return NamespaceLocation(
            catalog, str(client), namespace=namespace, allows_stored_code=allowed, client=client
        )

    @property
    def tables(self) -> NamespaceTables:
        """The tables of the service."""
        return NamespaceTables(self.client)

    @property
    def folder(self) -> str:
        """The namespace, for texts."""
        return ".".join((self.root, *self.namespace))

    def check_exists(self) -> None:
        """Checks that the namespace exists.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
        """
        if self.namespace and not self.tables.has_namespace(self.namespace):
            raise NamespaceNotFoundError(self.folder)

    def holds(self, ref: DatasetRef) -> bool:
        """Tells whether a table is one of the service, at the location that the service tells.

        A stored view can name any location together with the name of a table.

        Raises:
            NamespaceError: The service does not answer, refuses, or lacks the table.
        """
        table = NamespaceTable.of(ref.storage)
        if table is None or table.client != self.client:
            return False
        return access_of(table).location == plain_location(ref.table_uri)

    def connection(self) -> Connection:
        """Connects to the service with :func:`lance_spark.connect`."""
        properties = dict(self.client.properties)
        return connect(
            namespace_client_impl=self.client.implementation, namespace_client_properties=properties
        )

    def table_names(self) -> list[str]:
        """Returns the names of the tables of the namespace.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
        """
        self.check_exists()
        return self.tables.names(self.namespace)

    def uri_of(self, name: str) -> str:
        """Returns the full name of a table, for texts."""
        return ".".join((*self.namespace, name))

    def ref(self, name: str) -> DatasetRef:
        """Returns an existing table.

        Raises:
            TableNotFoundError: The table does not exist.
        """
        ref = self.tables.lookup(name, self.namespace)
        if ref is None:
            raise TableNotFoundError(self.uri_of(name), hint=f"Place: {self.root}")
        return ref

    def place(self, name: str) -> DatasetRef:
        """Returns a table. The service chooses the location of a new table."""
        return self.tables.lookup(name, self.namespace) or self.tables.place(name, self.namespace)

    def pinned_storage(self, name: str) -> tuple[tuple[str, str], ...]:
        """Returns the storage options of a table."""
        return tuple(NamespaceTable(self.client, (*self.namespace, name)).to_options().items())

    def latest(self, name: str) -> DatasetRef:
        """Returns an existing table, pinned at its latest version.

        Raises:
            TableNotFoundError: The table does not exist.
        """
        return self.ref(name).pin(None)

    def folders(self) -> list[str]:
        """Returns the names of the namespaces below this namespace, sorted."""
        return self.tables.namespaces(self.namespace)

    def register(self, name: str, location: str) -> DatasetRef:
        """Names the table at a location of `CREATE TABLE ... LOCATION`.

        Raises:
            TableNotFoundError: The location has no table. Nothing was registered.
            NamespaceError: The service refuses the location.
        """
        return self.tables.register(name, self._relative(location), self.namespace)

    def drop(self, name: str, *, purge: bool) -> bool:
        """Drops a table, and tells whether the table existed.

        Without `purge`, only a table that SQL or this package created loses its files. The service
        forgets the name of any other table.
        """
        access = describe(NamespaceTable(self.client, (*self.namespace, name)))
        if access is None:
            return False
        if purge or access.is_own:
            return self.tables.drop(name, self.namespace)
        self.tables.deregister(name, self.namespace)
        return True

    def rename(self, name: str, namespace: tuple[str, ...], new_name: str) -> None:
        """Renames a table in its namespace.

        Raises:
            UnsupportedOperationError: The implementation cannot rename, or not into the namespace.
        """
        if namespace != self.namespace:
            raise UnsupportedOperationError(
                f"A rename cannot move a table to another namespace. Table: {self.uri_of(name)}. Nothing was changed. "
                "Register the table in the other namespace."
            )
        self.tables.rename(name, new_name, self.namespace)

    def drop_namespace(self, *, cascade: bool) -> bool:
        """Deletes the namespace; with `cascade`, also its namespaces and tables.

        A creation that failed leaves a declared name, which counts as a table.

        Returns False for a namespace that is not empty, without `cascade`.
        """
        if not self.namespace:
            raise UnsupportedOperationError(
                f"The root of a catalog cannot be dropped. Place: {self.root}. Nothing was dropped. Drop its tables "
                "and namespaces."
            )
        self.check_exists()
        names, folders = self.tables.names(self.namespace, include_declared=True), self.folders()
        if not cascade and (names or folders):
            return False
        for folder in folders:
            replace(self, namespace=(*self.namespace, folder)).drop_namespace(cascade=True)
        for name in names:
            self.drop(name, purge=False)
        self.tables.drop_namespace(self.namespace)
        return True

    def _relative(self, location: str) -> str:
        """Returns a location as the service takes it. `dir` takes only locations below its root."""
        root = dict(self.client.properties).get("root")
        path = (
            unquote("/" + location.removeprefix("file:").lstrip("/"))
            if location.startswith("file:")
            else location
        )
        if self.client.implementation != "dir" or root is None:
            return location
        return path.removeprefix(
            f"{os.path.abspath(root) if '://' not in root else root.rstrip('/')}/"
        )
