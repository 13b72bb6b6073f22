"""Namespaces of a SQL catalog, which are folders: commands of the catalog, by their names."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import UnsupportedOperationError
from lance_spark.locations import is_local, is_misread
from lance_spark.sql.catalog.lance_namespace import NamespaceLocation
from lance_spark.sql.catalog.location import TABLE_SUFFIX, CatalogLocation
from lance_spark.staging.table_folder import (
    delete_folder_of_tables,
    delete_leftovers,
    find_foreign_file,
)
from lance_spark.storage.objects import LanceObjects


def list_namespaces(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `SHOW NAMESPACES`."""
    location = CatalogLocation.of(arguments)
    location.check_exists()
    return {"names": location.folders()}


def load_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `DESCRIBE NAMESPACE`, and whether the namespace exists."""
    location = CatalogLocation.of(arguments)
    location.check_exists()
    if isinstance(location, NamespaceLocation):
        return {"properties": location.tables.describe_namespace(location.namespace)}
    return {"properties": {"location": location.folder}}


def create_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a folder; an object store needs no folder before its first table.

    Raises:
        UnsupportedOperationError: Properties are given, and a folder has none.
    """
    location = CatalogLocation.of(arguments)
    if isinstance(location, NamespaceLocation):
        location.tables.create_namespace(location.namespace, arguments.get("properties"))
        return {}
    _refuse_properties(arguments.get("properties") or {})
    if is_local(location.root):
        os.makedirs(location.folder, exist_ok=True)
    return {}


def alter_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses properties of a namespace.

    Raises:
        UnsupportedOperationError: Always.
    """
    location = CatalogLocation.of(arguments)
    location.check_exists()
    if isinstance(location, NamespaceLocation):
        raise UnsupportedOperationError(
            f"Lance namespaces take properties only at their creation. Namespace: {location.folder}. Nothing was "
            "changed."
        )
    raise _properties_error(
        f"ALTER NAMESPACE of {location.folder}: {', '.join(arguments.get('properties') or ())}"
    )


def drop_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes an empty namespace, or with `CASCADE` a namespace with all its tables.

    Raises:
        UnsupportedOperationError: The namespace is the catalog itself, is a link, or holds files of
            no table. Nothing was deleted.
    """
    location = CatalogLocation.of(arguments)
    location.check_exists()
    if isinstance(location, NamespaceLocation):
        return {} if location.drop_namespace(cascade=arguments["cascade"]) else {"not_empty": True}
    if not location.namespace:
        raise UnsupportedOperationError(
            f"The folder of a catalog cannot be dropped. Folder: {location.folder}. Nothing was dropped. Drop its "
            "tables and namespaces."
        )
    tables, folders = location.connection().table_names(), location.folders()
    if not arguments["cascade"] and (tables or folders):
        return {"not_empty": True}
    foreign = _find_foreign_files(location)
    if foreign:
        raise UnsupportedOperationError(
            f"The namespace holds files that belong to no table. File: {foreign[0]}. Nothing was dropped. Move such "
            "files first."
        )
    _refuse_misread(location)
    for folder in folders:
        drop_namespace({**arguments, "namespace": location.inside(folder).namespace})
    for name in tables:
        location.connection().drop_table(name)
    for table in _list_table_folders(location):
        delete_leftovers(table)
    if not delete_folder_of_tables(DatasetRef.at(location.folder, location.storage)):
        raise UnsupportedOperationError(
            f"The namespace received files while its tables were dropped. Folder: {location.folder}. The tables are "
            "gone. Drop the namespace again."
        )
    return {}


def _refuse_misread(location: CatalogLocation) -> None:
    """Raises if a folder of an object store has a name that Lance reads as another name."""
    if is_local(location.root):
        return
    for name in LanceObjects(location.folder, location.storage).list_folders(""):
        if is_misread(location.folder, name):
            raise UnsupportedOperationError(
                f"The namespace has a folder whose name Lance reads as another name. Folder: {location.folder}/{name}. "
                "Nothing was dropped. Move the folder first."
            )
    for folder in location.folders():
        _refuse_misread(location.inside(folder))


def _find_foreign_files(location: CatalogLocation) -> list[str]:
    """Returns files of a namespace on a file system outside tables, namespaces and our folder."""
    if not is_local(location.root):
        return []
    if os.path.islink(location.folder):
        return [location.folder]
    folders = location.folders()
    paths = _list_unexpected(location.folder, {*folders, FOLDER})
    paths += [
        f"{table.uri}/{name}"
        for table in _list_table_folders(location)
        if (name := find_foreign_file(table))
    ]
    return sorted(paths) + [
        path for name in folders for path in _find_foreign_files(location.inside(name))
    ]


def _list_unexpected(folder: str, expected: Collection[str]) -> list[str]:
    """Returns the paths in a folder, except expected folders and folders of tables."""
    with os.scandir(folder) as entries:
        return [
            entry.path
            for entry in entries
            if not entry.is_dir(follow_symlinks=False)
            or not (entry.name in expected or _is_table(entry.name))
        ]


def _is_table(name: str) -> bool:
    return name.endswith(TABLE_SUFFIX)


def _list_table_folders(location: CatalogLocation) -> list[DatasetRef]:
    """Returns the folders of tables in a namespace, including leftovers of a killed drop."""
    names = LanceObjects(location.folder, location.storage).list_folders("")
    return [
        DatasetRef.at(f"{location.folder}/{name}", location.storage)
        for name in names
        if _is_table(name)
    ]


def _refuse_properties(properties: Mapping[str, str]) -> None:
    names = sorted(key for key in properties if key != "owner")
    if names:
        raise _properties_error(f"the property {names[0]!r}")


def _properties_error(clause: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"A namespace is a folder and has no properties, comment or location of its own. Clause: {clause}. Nothing "
        "was changed. Leave the clause out."
    )
