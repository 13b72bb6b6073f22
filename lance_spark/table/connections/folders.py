"""Tables in a folder: :class:`FolderTables`, the tables of `connect(uri)`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lance_spark.dataset import DatasetRef, branches_of
from lance_spark.environments.stored import StoredManifests, archives_beside
from lance_spark.errors import (
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_spark.locations import is_local, is_misread
from lance_spark.staging.table_folder import delete_leftovers, delete_table_folder
from lance_spark.storage.objects import MOST_NAME_BYTES, LanceObjects, open_session
from lance_spark.storage.parallel_calls import in_parallel
from udf_runtime import Manifest

SUFFIX = ".lance"
_MANIFEST = re.compile(r"[0-9]+\.manifest")
"""Name of the manifest of a version."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._ -]+")


def table_uri(folder: str, name: str) -> str:
    """Returns the location of a table in a folder.

    Raises:
        OptionError: No table can have the name.
    """
    is_long = (
        is_local(folder)
        and is_folder_name(name)
        and len(f"{name}{SUFFIX}".encode()) > MOST_NAME_BYTES
    )
    if not is_folder_name(name) or is_long or is_misread(folder, name):
        accepted = (
            "the name of a table: not empty, in one line, without slashes, not beginning with a dot or an underscore, "
            f"with {SUFFIX} at most {MOST_NAME_BYTES} bytes on a file system, and on an object store without #, ? and %"
        )
        if isinstance(name, str) and "/" in name:
            accepted += ". lance_spark.open_table(path) opens a table by its path"
        raise OptionError("name", name, accepted)
    return f"{folder}/{name}{SUFFIX}"


def is_folder_name(name: object) -> bool:
    """Tells whether the name is valid for a table or a namespace."""
    return (
        isinstance(name, str)
        and bool(name)
        and not name.startswith((".", "_"))
        and not any(sign in "/\\" or sign < " " or "\ud800" <= sign <= "\udfff" for sign in name)
        and name == name.strip()
    )


@dataclass(frozen=True, slots=True)
class FolderTables:
    """The tables of a folder.

    Attributes:
        uri: Location of the folder.
        storage: Options of the object store.
    """

    uri: str
    storage: dict[str, str]

    @property
    def label(self) -> str:
        """The location, for texts."""
        return self.uri

    def exists(self) -> bool:
        """Tells whether the folder exists."""
        if is_local(self.uri):
            return os.path.isdir(self.uri)
        listing = self._list_entries()
        return bool(listing.common_prefixes or listing.objects)

    def names(self, namespace: Sequence[str]) -> list[str]:
        """Returns the sorted names of all tables.

        A folder is a table if it has a manifest, readable or not. One listing finds the folders, at
        a request per 1,000 names. A listing per folder looks for manifests, at a request per 1,000
        versions. No table is opened.
        """
        _refuse_namespace(namespace)
        folders = self._list_folders()
        are_tables = in_parallel(self.uri, self._has_manifest, folders)
        return sorted(name for name, is_table in zip(folders, are_tables, strict=True) if is_table)

    def lookup(self, name: str, namespace: Sequence[str]) -> DatasetRef | None:
        """Returns a table; None without a version at its location."""
        ref = self.place(name, namespace)
        return ref if ref.exists() else None

    def place(self, name: str, namespace: Sequence[str]) -> DatasetRef:
        """Returns the location of a table, which may be absent.

        Raises:
            OptionError: No table can have the name.
        """
        _refuse_namespace(namespace)
        return DatasetRef.at(table_uri(self.uri, name), self.storage)

    def locate(self, name: str, namespace: Sequence[str]) -> str:
        """Returns the location of a table, for texts."""
        return self.place(name, namespace).uri

    def check_can_hold_tables(self) -> None:
        """Checks that the folder is not itself a table.

        Raises:
            UnsupportedOperationError: The folder is a table.
        """
        if self._is_table():
            raise UnsupportedOperationError(
                f"A table cannot lie in another table. {self._name_folder()}"
            )

    def absence_error(self, name: str, namespace: Sequence[str]) -> TableNotFoundError:
        """Returns the error for a table that does not exist."""
        return TableNotFoundError(self.place(name, namespace).uri, hint=self._suggest_tables(name))

    def drop(self, name: str, namespace: Sequence[str]) -> bool:
        """Deletes a table, or the remains of a killed drop. Tells whether there was any.

        Raises:
            UnsupportedOperationError: The folder of the table is a link.
        """
        ref = self.place(name, namespace)
        if ref.exists():
            delete_table_folder(ref)
            return True
        return delete_leftovers(ref)

    def rename(self, name: str, new_name: str, namespace: Sequence[str]) -> tuple[str, str]:
        """Renames a table on a local file system, and returns both locations.

        Raises:
            TableNotFoundError: The folder has no such table.
            TableExistsError: A table has the new name.
            UnsupportedOperationError: The table cannot be renamed.
        """
        ref = self.place(name, namespace)
        old, new = ref.uri, table_uri(self.uri, new_name)
        if not ref.exists():
            raise TableNotFoundError(old, hint="table_names() lists the tables")
        if not is_local(old):
            raise UnsupportedOperationError(
                f"An object store cannot rename the table {old}. Nothing was renamed. Copy the folder to {new} with "
                "the store's own tools, and drop the old table."
            )
        branches = branches_of(ref.open_latest())
        if branches:
            raise UnsupportedOperationError(
                f"The table {old} cannot be renamed, because the branches {', '.join(branches)} name their first files "
                "by its location. Nothing was renamed. Delete the branches first, or write a new table."
            )
        if os.path.exists(new):
            raise TableExistsError(new, hint="drop it first, or choose another name")
        os.rename(old, new)
        return old, new

    def manifests(self) -> StoredManifests:
        """Returns the named manifests of the folder."""
        ref = DatasetRef.at(self.uri, self.storage)
        return StoredManifests.of(ref.uri, ref.storage_options)

    def find_manifest(self, name: str, ref: DatasetRef) -> Manifest:
        """Returns a manifest for a table of the folder.

        Raises:
            RegistrationError: No manifest has this name.
        """
        return StoredManifests(archives_beside(ref)).get(name)

    def namespace_client(self) -> NoReturn:
        """Refused: a folder has no namespaces.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"The folder {self.uri} has no namespaces. Connect to a catalog with namespaces: "
            f"connect(namespace_client_impl='dir', namespace_client_properties={{'root': {self.uri!r}}})."
        )

    def _suggest_tables(self, name: str) -> str:
        """Returns the hint of an error about a table that does not exist."""
        if name.endswith(SUFFIX) and self._has_manifest(name.removesuffix(SUFFIX)):
            return f"Leave out the suffix: open_table({name.removesuffix(SUFFIX)!r})."
        place = f"{self.uri}/{name}"
        if DatasetRef.at(place, self.storage).exists():
            return (
                f"A table exists at {place}, without the suffix {SUFFIX}. Open it with "
                f"lance_spark.open_table({place!r})."
            )
        if self._is_table():
            return self._name_folder()
        names = ", ".join(map(repr, self.names(())))
        return (
            f"the tables here are {names}"
            if names
            else "there is no table here yet: create_table makes one"
        )

    def _is_table(self) -> bool:
        """Tells whether the folder of the connection is itself a table."""
        return DatasetRef.at(self.uri, self.storage).exists()

    def _name_folder(self) -> str:
        return (
            f"{self.uri} is itself a table. Connect to its folder, {self.uri.rpartition('/')[0]}, or call "
            f"lance_spark.open_table({self.uri!r})."
        )

    def _has_manifest(self, name: str) -> bool:
        """Tells whether the folder of a name has a manifest, or cannot be read."""
        try:
            return any(map(_MANIFEST.fullmatch, self._list_version_files(f"{name}{SUFFIX}")))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def _list_version_files(self, folder: str) -> Collection[str]:
        if is_local(self.uri):
            return os.listdir(f"{self.uri}/{folder}/_versions")
        if _PLAIN_NAME.fullmatch(folder):
            return self._objects.list_names(f"{folder}/_versions")
        # A session escapes other characters of a path once more, but not of its own location.
        return LanceObjects(f"{self.uri}/{folder}", self._objects.storage_options).list_names(
            "_versions"
        )

    @property
    def _objects(self) -> LanceObjects:
        return LanceObjects(self.uri, tuple(sorted(self.storage.items())))

    def _list_folders(self) -> list[str]:
        if is_local(self.uri):
            folders = []
            if os.path.isdir(self.uri):
                with os.scandir(self.uri) as entries:
                    folders = [entry.name for entry in entries if entry.is_dir()]
        else:
            prefixes = self._list_entries().common_prefixes
            folders = sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in prefixes})
        names = [
            entry.removesuffix(SUFFIX) for entry in folders if entry.rstrip("/").endswith(SUFFIX)
        ]
        return [name for name in names if not is_misread(self.uri, name)]

    def _list_entries(self) -> Any:  # noqa: ANN401 - a class of pylance without types
        return open_session(self.uri, self._objects.storage_options).list_with_delimiter("")


def _refuse_namespace(namespace: Sequence[str]) -> None:
    if namespace:
        accepted = "none: a folder has no namespaces. Connect to a catalog with namespace_client_impl='dir' or 'rest'"
        raise OptionError("namespace", list(namespace), accepted)
