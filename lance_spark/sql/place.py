"""Where the tables of a SQL catalog are: :class:`Place`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lance_spark.dataset import DatasetRef, is_local, normalize_uri, table_exists
from lance_spark.errors import OptionError, TableNotFoundError
from lance_spark.objects import open_session
from lance_spark.options import STORAGE_PREFIX
from lance_spark.table.connection import Connection, connect, table_uri

TABLE_SUFFIX = ".lance"


@dataclass(frozen=True, slots=True)
class Place:
    """A catalog's folder, and a namespace in it, which is a folder too.

    Attributes:
        catalog: Name of the catalog.
        root: Location of its folder.
        storage: Options of the object store, as pairs sorted by key. They may be secrets.
        namespace: Folders below the root.
    """

    catalog: str
    root: str
    storage: tuple[tuple[str, str], ...] = ()
    namespace: tuple[str, ...] = ()

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> Place:
        """Returns the place that a command of the catalog names.

        Raises:
            OptionError: The catalog has no root, or an option that it does not know.
        """
        catalog, options = arguments["catalog"], dict(arguments["options"])
        root = options.pop("root", None)
        if not root:
            raise OptionError(f"spark.sql.catalog.{catalog}.root", root, "the folder or URI that holds the tables")
        storage = {k[len(STORAGE_PREFIX) :]: v for k, v in options.items() if k.startswith(STORAGE_PREFIX)}
        unknown = sorted(key for key in options if not key.startswith(STORAGE_PREFIX))
        if unknown:
            raise OptionError(f"spark.sql.catalog.{catalog}.{unknown[0]}", options[unknown[0]], "root and storage.*")
        namespace = tuple(arguments.get("namespace") or ())
        return Place(catalog, normalize_uri(root), tuple(sorted(storage.items())), namespace)

    @property
    def folder(self) -> str:
        """Location of the namespace."""
        for part in self.namespace:
            if (
                part.startswith((".", "_"))
                or "/" in part
                or part.endswith(TABLE_SUFFIX)
                or part != part.strip()
                or not part
            ):
                raise OptionError("namespace", part, "a folder's name, which begins with neither a dot nor '_'")
        return "/".join((self.root, *self.namespace))

    def inside(self, folder: str) -> Place:
        """Returns a namespace in this one."""
        return replace(self, namespace=(*self.namespace, folder))

    def connection(self) -> Connection:
        """Returns the namespace as :func:`lance_spark.connect` opens it."""
        return connect(self.folder, storage_options=dict(self.storage))

    def uri_of(self, name: str) -> str:
        """Returns the location of a table: of one in the namespace, or of a path.

        Raises:
            OptionError: No table can have this name.
        """
        if not self.namespace and "/" in name:
            return normalize_uri(name)
        return table_uri(self.folder, name)

    def ref(self, name: str) -> DatasetRef:
        """Returns a table, which may not be there."""
        return DatasetRef.at(self.uri_of(name), dict(self.storage))

    def existing(self, name: str) -> DatasetRef:
        """Returns a table that is there.

        Raises:
            TableNotFoundError: There is none.
        """
        ref = self.ref(name)
        if not table_exists(ref.uri, ref.storage):
            raise TableNotFoundError(ref.uri)
        return DatasetRef.find(ref.uri, ref.storage)

    def folders(self) -> list[str]:
        """Returns the names of the namespaces in this one, sorted."""
        if is_local(self.root):
            if not os.path.isdir(self.folder):
                return []
            with os.scandir(self.folder) as entries:
                found = {entry.name for entry in entries if entry.is_dir()}
        else:
            listed = open_session(self.folder, self.storage).list_with_delimiter("").common_prefixes
            found = {path.rstrip("/").rsplit("/", 1)[-1] for path in listed}
        return sorted(name for name in found if not name.endswith(TABLE_SUFFIX) and not name.startswith((".", "_")))
