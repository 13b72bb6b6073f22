"""Methods of a connection for the namespaces of a catalog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lance_spark.arguments import ARGUMENTS
from lance_spark.table.connections.folders import FolderTables
from lance_spark.table.connections.namespaces import NamespaceTables

if TYPE_CHECKING:
    from lance_spark.table.table import Table


@ARGUMENTS.methods
class NamespaceMethods(ABC):
    """The methods of :class:`lance_spark.Connection` for namespaces. Folders have none."""

    _tables: FolderTables | NamespaceTables

    def list_namespaces(self, namespace: Sequence[str] | None = None) -> list[str]:
        """Returns the sorted names of the namespaces in a namespace.

        Args:
            namespace: The names from the root to the namespace; None is the root.

        Raises:
            NamespaceError: The service does not answer, refuses, or has no such namespace.
            UnsupportedOperationError: The connection is a folder.

        Example:
            ```python
            import lance_spark

            root = {"root": "library"}
            db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
            db.create_namespace(["novels"])
            assert db.list_namespaces() == ["novels"]
            ```
        """
        return self._tables.namespace_client().namespaces(namespace or ())

    def create_namespace(
        self, namespace: Sequence[str], properties: Mapping[str, str] | None = None
    ) -> None:
        """Creates a namespace.

        Args:
            namespace: The names from the root to the new namespace.
            properties: Properties of the namespace, where the service keeps properties.

        Raises:
            NamespaceError: The namespace exists, or the service refuses.
            UnsupportedOperationError: The connection is a folder.

        Example:
            ```python
            import lance_spark

            root = {"root": "library"}
            db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
            db.create_namespace(["novels"])
            db.create_namespace(["novels", "german"])
            books = db.create_table("books", [{"id": 1}], namespace=["novels", "german"])
            assert db.table_names(namespace=["novels", "german"]) == ["books"]
            ```
        """
        self._tables.namespace_client().create_namespace(namespace, properties)

    def drop_namespace(self, namespace: Sequence[str]) -> None:
        """Deletes an empty namespace.

        Args:
            namespace: The names from the root to the namespace.

        Raises:
            NamespaceError: The namespace is missing or not empty, or the service refuses.
            UnsupportedOperationError: The connection is a folder.

        Example:
            ```python
            import lance_spark

            root = {"root": "library"}
            db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
            db.create_namespace(["novels"])
            db.drop_namespace(["novels"])
            assert db.list_namespaces() == []
            ```
        """
        self._tables.namespace_client().drop_namespace(namespace)

    def describe_namespace(self, namespace: Sequence[str] | None = None) -> dict[str, str]:
        """Returns the properties of a namespace.

        Args:
            namespace: The names from the root to the namespace; None is the root.

        Raises:
            NamespaceError: The namespace is missing, or the service refuses.
            UnsupportedOperationError: The connection is a folder.

        Example:
            ```python
            import lance_spark

            root = {"root": "library"}
            db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
            db.create_namespace(["novels"], {"owner": "Ada"})
            assert db.describe_namespace(["novels"])["owner"] == "Ada"
            ```
        """
        return self._tables.namespace_client().describe_namespace(namespace or ())

    def register_table(
        self, name: str, location: str, *, namespace: Sequence[str] | None = None
    ) -> Table:
        """Names a table that exists at a location.

        Args:
            name: The name.
            location: Location of the table. The implementation `dir` takes only a location relative
                to its root.
            namespace: The names from the root to the namespace; None is the root.

        Returns:
            The table.

        Raises:
            NamespaceError: The name exists, or the service refuses the location.
            TableNotFoundError: The location has no table.
            UnsupportedOperationError: The connection is a folder.

        Example:
            ```python
            import lance_spark

            lance_spark.connect("library").create_table("books", [{"id": 1}])
            root = {"root": "library"}
            db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
            db.create_namespace(["novels"])
            books = db.register_table("books", "books.lance", namespace=["novels"])
            assert books.count_rows() == 1
            ```
        """
        self._tables.namespace_client().register(name, location, namespace or ())
        return self.open_table(name, namespace=namespace)

    def deregister_table(self, name: str, *, namespace: Sequence[str] | None = None) -> None:
        """Removes the name of a table, and keeps its files.

        Args:
            name: Name of the table.
            namespace: The names from the root to the namespace; None is the root.

        Raises:
            TableNotFoundError: The namespace has no such table.
            NamespaceError: The service refuses.
            UnsupportedOperationError: The connection is a folder.

        Example:
            ```python
            import lance_spark

            lance_spark.connect("library").create_table("books", [{"id": 1}])
            root = {"root": "library"}
            db = lance_spark.connect(namespace_client_impl="dir", namespace_client_properties=root)
            db.create_namespace(["novels"])
            db.register_table("books", "books.lance", namespace=["novels"])
            db.deregister_table("books", namespace=["novels"])
            assert lance_spark.open_table("library/books.lance").count_rows() == 1
            ```
        """
        self._tables.namespace_client().deregister(name, namespace or ())

    @abstractmethod
    def open_table(self, name: str, *, namespace: Sequence[str] | None = None) -> Table:
        """Opens a table, as :meth:`lance_spark.Connection.open_table`."""
