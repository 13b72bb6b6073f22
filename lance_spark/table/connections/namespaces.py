"""Tables of a Lance namespace: :class:`NamespaceTables`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.dataset import DatasetRef
from lance_spark.environments.stored import StoredManifests, archives_beside
from lance_spark.errors import OptionError, RegistrationError, TableExistsError, TableNotFoundError
from lance_spark.lance_compat import load_lance
from lance_spark.namespaces.access import OWN_PROPERTY, TableAccess, describe, note_access
from lance_spark.namespaces.client import call, explain, is_code, is_unsupported
from lance_spark.namespaces.errors import NamespaceError, NamespaceUnavailableError
from lance_spark.namespaces.reference import NamespaceClientSpec, NamespaceTable
from lance_spark.staging.table_folder import delete_leftovers, delete_table_folder
from lance_spark.table.connections.namespace_manifests import NamespaceManifests
from udf_runtime import Manifest


@dataclass(frozen=True, slots=True)
class NamespaceTables:
    """The tables of a namespace.

    Attributes:
        client: The namespace.
    """

    client: NamespaceClientSpec

    @property
    def label(self) -> str:
        """The namespace, for texts. Has no properties, because properties may be secrets."""
        return str(self.client)

    def exists(self) -> bool:
        """Tells whether the namespace answers a list of its tables.

        Raises:
            NamespaceError: The namespace does not answer, or refuses.
        """
        self.names(())
        return True

    def names(self, namespace: Sequence[str], *, include_declared: bool = False) -> list[str]:
        """Returns the sorted names of the tables of a namespace.

        Args:
            namespace: The names from the root to the namespace.
            include_declared: Whether to return names without a table: of a creation that failed.

        Raises:
            NamespaceError: The namespace does not answer, refuses, or has no such namespace.
        """
        return self._list(
            "list_tables",
            "ListTablesRequest",
            "tables",
            namespace,
            include_declared=include_declared,
        )

    def namespaces(self, namespace: Sequence[str]) -> list[str]:
        """Returns the sorted names of the namespaces in a namespace.

        Raises:
            NamespaceError: The namespace does not answer, refuses, or has no such namespace.
        """
        return self._list("list_namespaces", "ListNamespacesRequest", "namespaces", namespace)

    def lookup(self, name: str, namespace: Sequence[str]) -> DatasetRef | None:
        """Returns a table; None if the namespace lacks the table, or knows only its name.

        Raises:
            NamespaceError: The namespace does not answer, or refuses.
        """
        table = self._table(name, namespace)
        access = describe(table)
        if access is None:
            return None
        ref = _ref(table, access)
        return ref if ref.exists() else None

    def place(self, name: str, namespace: Sequence[str]) -> DatasetRef:
        """Returns the location of a new table. The namespace chooses the location.

        Raises:
            NamespaceError: The namespace does not answer, or refuses.
            UnsupportedOperationError: The namespace cannot choose a location.
        """
        table = self._table(name, namespace)
        own = {OWN_PROPERTY: "true"}
        request = _request(
            "DeclareTableRequest", id=list(table.table_id), properties=own, vend_credentials=True
        )
        try:
            return _ref(table, note_access(table, call(self.client, "declare_table", request)))
        except Exception as error:
            # A killed creation leaves the name without a version. The next creation completes it.
            access = describe(table) if is_code(error, "TABLE_ALREADY_EXISTS") else None
            if access is None:
                raise explain(error, f"create {table}", self.client) from error
            return _ref(table, access)

    def locate(self, name: str, namespace: Sequence[str]) -> str:
        """Returns the full name of a table, for texts."""
        return ".".join((*namespace, name))

    def check_can_hold_tables(self) -> None:
        """Accepts the namespace: its service decides about tables."""

    def absence_error(self, name: str, namespace: Sequence[str]) -> TableNotFoundError:
        """Returns the error for a table that does not exist."""
        try:
            names = ", ".join(map(repr, self.names(namespace)))
            hint = (
                f"Its tables are {names}"
                if names
                else "It has no tables yet: create_table makes one"
            )
        except NamespaceError as error:
            hint = str(error)
        return TableNotFoundError(self.locate(name, namespace), hint=f"Place: {self.label}. {hint}")

    def drop(self, name: str, namespace: Sequence[str]) -> bool:
        """Deletes a table by the namespace's own operation. Tells whether the table existed.

        Where the namespace can only deregister tables, this process deletes the files first.

        Raises:
            NamespaceError: The namespace does not answer, or refuses.
        """
        table = self._table(name, namespace)
        access = describe(table)
        if access is None:
            return False
        try:
            call(self.client, "drop_table", _request("DropTableRequest", id=list(table.table_id)))
        except Exception as error:
            if not is_unsupported(error):
                raise explain(error, f"drop {table}", self.client) from error
            ref = _ref(table, access)
            if ref.exists():
                delete_table_folder(ref)
            else:
                delete_leftovers(ref)
            self.deregister(name, namespace)
        return True

    def rename(self, name: str, new_name: str, namespace: Sequence[str]) -> None:
        """Renames a table, where the implementation of the namespace can rename.

        Raises:
            TableNotFoundError: The namespace has no such table.
            TableExistsError: A table has the new name.
            UnsupportedOperationError: The implementation cannot rename.
            NamespaceError: The namespace does not answer, or refuses.
        """
        table, new = self._table(name, namespace), self._table(new_name, namespace)
        if describe(table) is None:
            raise self.absence_error(name, namespace)
        if (access := describe(new)) is not None:
            raise TableExistsError(access.location, hint="drop it first, or choose another name")
        ids = {
            "id": list(table.table_id),
            "new_table_name": new_name,
            "new_namespace_id": list(namespace),
        }
        self._call("rename_table", _request("RenameTableRequest", **ids), f"rename {table}")

    def has_namespace(self, namespace: Sequence[str]) -> bool:
        """Tells whether a namespace exists. Services without this operation have any namespace.

        Raises:
            NamespaceError: The service does not answer, or refuses.
        """
        try:
            call(
                self.client,
                "namespace_exists",
                _request("NamespaceExistsRequest", id=_check_namespace(namespace)),
            )
        except Exception as error:
            if is_code(error, "NAMESPACE_NOT_FOUND"):
                return False
            if not is_unsupported(error):
                raise explain(
                    error, f"find the namespace {'.'.join(namespace)}", self.client
                ) from error
        return True

    def create_namespace(
        self, namespace: Sequence[str], properties: Mapping[str, str] | None
    ) -> None:
        """Creates a namespace.

        Raises:
            NamespaceError: The namespace exists, or is refused.
        """
        request = _request(
            "CreateNamespaceRequest",
            id=_check_namespace(namespace),
            properties=dict(properties or {}) or None,
        )
        self._call("create_namespace", request, f"create the namespace {'.'.join(namespace)}")

    def drop_namespace(self, namespace: Sequence[str]) -> None:
        """Deletes an empty namespace.

        Raises:
            NamespaceError: The namespace is missing or not empty, or the service refuses.
        """
        request = _request("DropNamespaceRequest", id=_check_namespace(namespace))
        self._call("drop_namespace", request, f"drop the namespace {'.'.join(namespace)}")

    def describe_namespace(self, namespace: Sequence[str]) -> dict[str, str]:
        """Returns the properties of a namespace.

        Raises:
            NamespaceError: The namespace is missing, or the service refuses.
        """
        request = _request("DescribeNamespaceRequest", id=_check_namespace(namespace, least=0))
        text = ".".join(namespace) or "of the root"
        return dict(
            self._call("describe_namespace", request, f"describe the namespace {text}").properties
            or {}
        )

    def register(self, name: str, location: str, namespace: Sequence[str]) -> DatasetRef:
        """Names a table at an existing location.

        Raises:
            TableNotFoundError: The location has no table. Nothing was registered.
            NamespaceError: The name exists, or the service refuses the location.
        """
        table = self._table(name, namespace)
        if not location.strip():
            raise OptionError("location", location, "the location of a table")
        values = {"id": list(table.table_id), "location": location}
        what = f"register {table} at {location}"
        try:
            call(self.client, "register_table", _request("RegisterTableRequest", **values))
        except Exception as error:
            if not is_unsupported(error):
                raise explain(error, what, self.client) from error
            # The adapter of Glue declares tables at a location, and registers none.
            self._call("declare_table", _request("DeclareTableRequest", **values), what)
        try:
            ref = self.lookup(name, namespace)
        except BaseException:
            with contextlib.suppress(Exception):
                self.deregister(name, namespace)
            raise
        if ref is None:
            self.deregister(name, namespace)
            raise TableNotFoundError(
                location, hint="Nothing was registered. Give the location of a table that exists"
            )
        return ref

    def deregister(self, name: str, namespace: Sequence[str]) -> None:
        """Removes the name of a table, and keeps its files.

        Raises:
            TableNotFoundError: The namespace has no such table.
            NamespaceError: The service refuses.
        """
        table = self._table(name, namespace)
        if describe(table) is None:
            raise self.absence_error(name, namespace)
        request = _request("DeregisterTableRequest", id=list(table.table_id))
        self._call("deregister_table", request, f"deregister {table}")

    def manifests(self) -> NamespaceManifests:
        """Returns the named manifests of the namespace."""
        return NamespaceManifests(self)

    def find_manifest(self, name: str, ref: DatasetRef) -> Manifest:
        """Returns a manifest for a table: of the namespace, else of the folder of the table.

        Raises:
            RegistrationError: No manifest has this name.
            NamespaceError: The service does not answer, or refuses.
        """
        try:
            return self.manifests().get(name)
        except (RegistrationError, NamespaceError) as error:
            if isinstance(error, NamespaceUnavailableError):
                raise
            stored = StoredManifests(archives_beside(ref))
            if name not in stored.all():
                raise
            return stored.get(name)

    def namespace_client(self) -> NamespaceTables:
        """Returns the tables for the operations on namespaces."""
        return self

    def _list(
        self, operation: str, request: str, field: str, namespace: Sequence[str], **options: object
    ) -> list[str]:
        names: list[str] = []
        token: str | None = None
        path = _check_namespace(namespace, least=0)
        while True:
            page = self._call(
                operation,
                _request(request, id=path, page_token=token, **options),
                f"list the {field} of {path}",
            )
            names.extend(getattr(page, field) or ())
            token = page.page_token
            if not token:
                return sorted(names)

    def _call(self, operation: str, request: object, what: str) -> Any:  # noqa: ANN401 - a response of pylance
        try:
            return call(self.client, operation, request)
        except Exception as error:
            raise explain(error, what, self.client) from error

    def _table(self, name: str, namespace: Sequence[str]) -> NamespaceTable:
        if not isinstance(name, str) or not name.strip():
            raise OptionError("name", name, "the name of a table")
        return NamespaceTable(self.client, (*_check_namespace(namespace, least=0), name))


def _ref(table: NamespaceTable, access: TableAccess) -> DatasetRef:
    return DatasetRef.at(access.location, table.to_options())


def _request(name: str, **values: object) -> object:
    load_lance()
    import lance_namespace

    return getattr(lance_namespace, name)(**values)


def _check_namespace(namespace: Sequence[str], *, least: int = 1) -> list[str]:
    """Returns the names from the root to a namespace.

    Raises:
        OptionError: A name is no text, or there are too few.
    """
    names = [] if isinstance(namespace, str) else list(namespace)
    if (
        len(names) < least
        or isinstance(namespace, str)
        or not all(isinstance(n, str) and n.strip() for n in names)
    ):
        raise OptionError(
            "namespace", namespace, "a list of names, from the root: ['sales', 'europe']"
        )
    return names
