"""Namespaces of a SQL catalog, which are folders: commands of the catalog, by their names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from lance_spark.dataset import FOLDER, is_local
from lance_spark.errors import UnsupportedOperationError
from lance_spark.sql.errors import NamespaceNotFoundError
from lance_spark.sql.place import TABLE_SUFFIX, Place


def list_namespaces(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `SHOW NAMESPACES`."""
    place = Place.of(arguments)
    _check(place)
    return {"names": place.folders()}


def load_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answers `DESCRIBE NAMESPACE`, and whether there is one."""
    place = Place.of(arguments)
    _check(place)
    return {"properties": {"location": place.folder}}


def create_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a folder; an object store needs none before there is a table in it.

    Raises:
        UnsupportedOperationError: Properties are given; a folder has none.
    """
    place = Place.of(arguments)
    _refuse_properties(arguments.get("properties") or {})
    if is_local(place.root):
        os.makedirs(place.folder, exist_ok=True)
    return {}


def alter_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses properties of a namespace.

    Raises:
        UnsupportedOperationError: Always.
    """
    del arguments
    raise _no_properties("ALTER NAMESPACE")


def drop_namespace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes an empty namespace, or with `CASCADE` one with all tables in it.

    Raises:
        UnsupportedOperationError: It is the catalog itself, or holds files that are no tables.
    """
    place = Place.of(arguments)
    _check(place)
    if not place.namespace:
        raise UnsupportedOperationError(
            f"the folder of a catalog stays - {place.folder} - nothing was dropped - drop its tables and namespaces"
        )
    tables, folders = place.connection().table_names(), place.folders()
    if not arguments["cascade"] and (tables or folders):
        return {"not_empty": True}
    others = _others(place)
    if others:
        raise UnsupportedOperationError(
            f"a folder with files that are no tables is not deleted - {others[0]} - nothing was dropped - move them"
        )
    for folder in folders:
        drop_namespace({**arguments, "namespace": place.inside(folder).namespace})
    for name in tables:
        place.connection().drop_table(name)
    if is_local(place.root):
        shutil.rmtree(place.folder)
    return {}


def _others(place: Place) -> list[str]:
    """Returns files of a namespace on a file system that are no tables, namespaces or ours."""
    if not is_local(place.root):
        return []
    folders = place.folders()
    found = [
        f"{place.folder}/{name}"
        for name in sorted(os.listdir(place.folder))
        if name not in (*folders, FOLDER)
        and not (name.endswith(TABLE_SUFFIX) and os.path.isdir(os.path.join(place.folder, name)))
    ]
    return found + [path for name in folders for path in _others(place.inside(name))]


def _check(place: Place) -> None:
    if is_local(place.root) and place.namespace and not os.path.isdir(place.folder):
        raise NamespaceNotFoundError(place.folder)


def _refuse_properties(properties: Mapping[str, str]) -> None:
    given = sorted(key for key in properties if key != "owner")
    if given:
        raise _no_properties(f"the property {given[0]!r}")


def _no_properties(what: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"a namespace is a folder and has no properties, comment or location of its own - {what} - nothing was "
        "changed - leave it out"
    )
