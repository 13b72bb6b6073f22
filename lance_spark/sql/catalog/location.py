"""Tables of a SQL catalog: their locations, and the context of a procedure's call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, OptionError, TableNotFoundError
from lance_spark.locations import is_local, is_misread, normalize_uri
from lance_spark.options.io_options import STORAGE_PREFIX
from lance_spark.session.catalogs import (
    ALLOW_STORED_CODE,
    IMPLEMENTATION,
    ROOT,
    setting_of,
    trusted_options,
)
from lance_spark.storage.objects import MOST_NAME_BYTES, open_session
from lance_spark.table.connections.connection import Connection, connect, open_table
from lance_spark.table.connections.folders import is_folder_name, table_uri
from lance_spark.table.table import Table
from lance_spark.types.fields import quote_identifier

TABLE_SUFFIX = ".lance"


class NamespaceNotFoundError(LanceSparkError):
    """A namespace of a catalog does not exist. Spark reports its own error."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"The namespace {folder} does not exist.")


@dataclass(frozen=True, slots=True)
class CatalogLocation:
    """A catalog's folder, and a namespace of the catalog, which is a folder too.

    Attributes:
        catalog: Name of the catalog.
        root: Location of its folder.
        storage: Options of the object store, as pairs sorted by key. The options may be secrets.
        namespace: Folders below the root.
        allows_stored_code: Whether SQL may run UDFs stored with tables below the root.
    """

    catalog: str
    root: str
    storage: tuple[tuple[str, str], ...] = ()
    namespace: tuple[str, ...] = ()
    allows_stored_code: bool = False

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> CatalogLocation:
        """Returns the location for a command of the catalog.

        Raises:
            OptionError: The catalog has no root, an unknown option, or an option SET by a session.
        """
        catalog = arguments["catalog"]
        options = trusted_options(catalog, arguments["origins"])
        namespace = tuple(arguments.get("namespace") or ())
        if IMPLEMENTATION in options:
            from lance_spark.sql.catalog.lance_namespace import (
                NamespaceLocation,
            )  # its base class is here

            return NamespaceLocation.of_options(catalog, options, namespace)
        allowed = parse_stored_code(catalog, options)
        root, _ = options.pop(ROOT, None), options.pop(ALLOW_STORED_CODE, None)
        if not root:
            accepted = f"the folder or URI that holds the tables; or {IMPLEMENTATION} for a Lance namespace"
            raise OptionError(setting_of(catalog, ROOT), root, accepted)
        unknown = sorted(key for key in options if not key.startswith(STORAGE_PREFIX))
        if unknown:
            accepted = f"{ROOT}, {ALLOW_STORED_CODE} and {STORAGE_PREFIX}*; or {IMPLEMENTATION} for a Lance namespace"
            raise OptionError(
                setting_of(catalog, unknown[0]), "***", accepted, problem="is not known"
            )
        storage = {key.removeprefix(STORAGE_PREFIX): value for key, value in options.items()}
        return CatalogLocation(
            catalog, normalize_uri(root), tuple(sorted(storage.items())), namespace, allowed
        )

    @property
    def folder(self) -> str:
        """Location of the namespace."""
        for part in self.namespace:
            is_long = is_local(self.root) and len(os.fsencode(part)) > MOST_NAME_BYTES
            if (
                part.endswith(TABLE_SUFFIX)
                or not is_folder_name(part)
                or is_long
                or is_misread(self.root, part)
            ):
                accepted = (
                    "the name of a folder: not empty, in one line, without slashes, not beginning with a dot or an "
                    f"underscore, not ending in {TABLE_SUFFIX}, at most {MOST_NAME_BYTES} bytes on a file system, and "
                    "on an object store without #, ? and %"
                )
                raise OptionError("namespace", part, accepted)
        return "/".join((self.root, *self.namespace))

    def check_exists(self) -> None:
        """Checks that the namespace exists. An object store has no folders to check.

        Raises:
            NamespaceNotFoundError: The folder does not exist.
        """
        if is_local(self.root) and self.namespace and not os.path.isdir(self.folder):
            raise NamespaceNotFoundError(self.folder)

    def holds(self, ref: DatasetRef) -> bool:
        """Tells whether a table is below the catalog's folder, after all links."""
        uri = ref.uri
        if not is_local(self.root):
            below = uri.startswith(f"{self.root}/")
            return below and not {"..", "."} & set(unquote(uri).split("/")[3:])
        return is_local(uri) and os.path.realpath(uri).startswith(
            f"{os.path.realpath(self.root)}/".replace("//", "/")
        )

    def inside(self, folder: str) -> CatalogLocation:
        """Returns a namespace below this namespace."""
        return replace(self, namespace=(*self.namespace, folder))

    def connection(self) -> Connection:
        """Opens the namespace with :func:`lance_spark.connect`."""
        return connect(self.folder, storage_options=dict(self.storage))

    def table_names(self) -> list[str]:
        """Returns the sorted names of the tables of the namespace."""
        return self.connection().table_names()

    def uri_of(self, name: str) -> str:
        """Returns the location of a table, by its name in the namespace or by its path.

        Raises:
            OptionError: The name is not valid for a table.
        """
        if not self.namespace and "/" in name:
            return normalize_uri(name)
        return table_uri(self.folder, name)

    def ref(self, name: str) -> DatasetRef:
        """Returns a table, which may be absent."""
        return DatasetRef.at(self.uri_of(name), dict(self.storage))

    def place(self, name: str) -> DatasetRef:
        """Returns the place of a table that a statement creates or replaces."""
        return self.ref(name)

    def pinned_storage(self, name: str) -> tuple[tuple[str, str], ...]:  # noqa: ARG002 - other catalogs use the name
        """Returns the storage options of a table."""
        return self.storage

    def existing(self, name: str) -> DatasetRef:
        """Returns an existing table.

        Raises:
            TableNotFoundError: The table does not exist.
        """
        return replace(self.latest(name), version=None, incarnation=None)

    def latest(self, name: str) -> DatasetRef:
        """Returns an existing table, pinned at its latest version.

        Raises:
            TableNotFoundError: The table does not exist.
        """
        ref = self.ref(name)
        try:
            return DatasetRef.find(ref.uri, ref.storage).pin(None)
        except TableNotFoundError as error:
            raise TableNotFoundError(ref.uri) from error

    def folders(self) -> list[str]:
        """Returns the names of the namespaces below this namespace, sorted."""
        if is_local(self.root):
            if not os.path.isdir(self.folder):
                return []
            with os.scandir(self.folder) as entries:
                names = {entry.name for entry in entries if entry.is_dir()}
        else:
            listed = open_session(self.folder, self.storage).list_with_delimiter("").common_prefixes
            names = {path.rstrip("/").rsplit("/", 1)[-1] for path in listed}
        hidden = (
            name for name in names if name.startswith((".", "_")) or is_misread(self.root, name)
        )
        return sorted(name for name in names.difference(hidden) if not name.endswith(TABLE_SUFFIX))


def parse_stored_code(catalog: str, options: Mapping[str, str]) -> bool:
    """Returns whether SQL may run stored UDFs, by the options of a catalog.

    Raises:
        OptionError: The option is no flag.
    """
    allowed = options.get(ALLOW_STORED_CODE, "false")
    if allowed not in ("true", "false"):
        raise OptionError(setting_of(catalog, ALLOW_STORED_CODE), allowed, "true or false")
    return allowed == "true"


def drop_nulls(**options: object) -> dict[str, Any]:
    """Returns the options with a value in a call. NULL takes the default."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ProcedureCall:
    """A call of a procedure.

    Attributes:
        location: The namespace of the table, in its catalog.
        name: Name of the table in the namespace, or its path.
        ref: The table.
        session: The JVM's session that runs the statement.
    """

    location: CatalogLocation
    name: str
    ref: DatasetRef
    session: Any

    @property
    def spark(self) -> SparkSession:
        """The session that runs the statement."""
        return SparkSession(SparkContext.getOrCreate(), self.session)

    @property
    def quoted_name(self) -> str:
        """The table as a name in SQL."""
        parts = (self.location.catalog, *self.location.namespace, self.name)
        return ".".join(map(quote_identifier, parts))

    def table(self) -> Table:
        """Opens the table at its latest version, for jobs of the session.

        This thread's active session is another session, and its settings do not count.
        """
        session = None if self.session is None else self.spark
        return open_table(self.ref.uri, session, storage_options=self.ref.storage)
