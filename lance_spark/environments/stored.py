"""Manifests and their archives next to the tables of a folder: :class:`StoredManifests`.

    <folder>/_lance_spark/environments/<sha256>/...    archives, by content
    <folder>/_lance_spark/manifests/<name>.json        named manifests

A column or a view has a copy of its manifest in its own metadata, and needs no named manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import OptionError, RegistrationError
from lance_spark.namespaces.reference import NamespaceTable
from lance_spark.session.sessions import application_setting
from lance_spark.storage.objects import LanceObjects, objects_of_table
from udf_runtime import UDF, Manifest, UdfDefinitionError
from udf_runtime.checkpoint.names import quote, unquote
from udf_runtime.environments.archives import site_archive, upload, workspace_archive
from udf_runtime.environments.manifest import current_python, current_user
from udf_runtime.environments.requirements import check_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_KEY = "spark.lance.manifest"
"""Spark configuration: the manifest of UDFs without a manifest, as JSON or by its name."""

_MANIFESTS = "manifests"


def archives_beside(ref: DatasetRef) -> LanceObjects:
    """Returns the folder of the archives of a table's UDFs, shared by all tables of its folder.

    For a table of a namespace, the folder is in the table, because credentials of a namespace may
    reach no other place.
    """
    if NamespaceTable.of(ref.storage) is not None:
        return objects_of_table(ref)
    return LanceObjects(f"{ref.table_uri.rpartition('/')[0]}/{FOLDER}", ref.storage_options)


def upload_archives(udf: UDF, ref: DatasetRef) -> None:
    """Uploads the archives of a UDF's manifest next to a table, unless present.

    Raises:
        UdfDefinitionError: The store lacks an archive, and so does this process; or a requirement
            has several lines, or a URL holds a password.
        TableUnwritableError: The store refused.
    """
    if udf.manifest is not None:
        check_manifest(udf.manifest)
        upload(udf.manifest.archives, archives_beside(ref))


def with_default(udf: UDF, default: Manifest | None) -> UDF:
    """Returns a UDF with its own manifest, else with the default manifest."""
    return udf if default is None or udf.manifest is not None else udf.with_manifest(default)


def capture(name: str | None, objects: LanceObjects, *, skip_site_packages: bool) -> Manifest:
    """Returns a manifest of the working directory, and of the installed packages, if requested.

    Zip files of both go through this machine's disk into the store, a part in memory at a time.

    Raises:
        UdfDefinitionError: The working directory is the home directory, or has more than a
            gibibyte.
        TableUnwritableError: The store refused.
    """
    archives = [workspace_archive(os.getcwd())]
    if not skip_site_packages:
        archives.append(site_archive())
    upload(archives, objects, delete_local=True)
    return Manifest(
        name=name or f"{current_user() or 'captured'}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        python_version=current_python(),
        archives=tuple(archives),
        skip_site_packages=skip_site_packages,
        created_by=current_user(),
    )


@dataclass(frozen=True, slots=True)
class StoredManifests:
    """The manifests of a folder of tables. Works on the driver.

    Attributes:
        objects: Our folder next to the tables.
    """

    objects: LanceObjects

    @staticmethod
    def of(uri: str, storage_options: tuple[tuple[str, str], ...]) -> StoredManifests:
        """Returns the manifests of the tables in a folder. Touches no storage."""
        return StoredManifests(LanceObjects(f"{uri}/{FOLDER}", storage_options))

    def define(self, name: str, manifest: Manifest) -> None:
        """Stores a manifest, with its archives, under a name; replaces a manifest of the same name.

        Raises:
            OptionError: The name or the manifest is not valid.
            UdfDefinitionError: The store lacks an archive, and so does this process.
        """
        if not isinstance(manifest, Manifest):
            raise OptionError(
                "manifest", manifest, "a Manifest: Manifest.create_pip('name').pip([...]).build()"
            )
        check_manifest(manifest)
        path = _manifest_path(name)
        upload(manifest.archives, self.objects)
        self.objects.put(path, manifest.to_json().encode())

    def all(self) -> dict[str, Manifest]:
        """Returns all manifests by name, sorted."""
        manifests = {}
        for path in self.objects.list(_MANIFESTS):
            text = self.objects.get(path)
            if text is not None:  # None: deleted concurrently
                manifest = Manifest.from_json(text.decode())
                manifests[manifest_name(path)] = manifest
        return dict(sorted(manifests.items()))

    def get(self, name: str) -> Manifest:
        """Returns a manifest.

        Raises:
            RegistrationError: No manifest has this name.
        """
        text = self.objects.get(_manifest_path(name))
        if text is None:
            names = ", ".join(map(repr, self.all())) or "none"
            raise RegistrationError(
                f"No manifest has the name {name!r}. Folder: {self.objects.uri}. Manifests: {names}. Define one with "
                "define_manifest."
            )
        return Manifest.from_json(text.decode())

    def delete(self, name: str) -> None:
        """Deletes a manifest; columns and views keep their copies, and archives stay.

        Raises:
            RegistrationError: No manifest has this name.
        """
        self.get(name)
        self.objects.delete(_manifest_path(name))


def choose_default(
    requested: Manifest | str | None, spark: SparkSession | None, get: Callable[[str], Manifest]
) -> Manifest | None:
    """Returns the default manifest of UDFs: the requested manifest, else the application's.

    Args:
        requested: The manifest, or its name.
        spark: The session with the setting of the application.
        get: Returns the manifest of a name.

    Raises:
        OptionError: The setting is neither JSON of a manifest nor a name, or a session SET the
            setting.
    """
    if requested is not None:
        return get(requested) if isinstance(requested, str) else requested
    text = None if spark is None else application_setting(spark, DEFAULT_KEY)
    if not text:
        return None
    try:
        return Manifest.from_json(text) if text.lstrip().startswith("{") else get(text)
    except (UdfDefinitionError, RegistrationError) as error:
        raise OptionError(
            DEFAULT_KEY, text[:100], f"JSON of a manifest, or its name ({error})"
        ) from error


def _manifest_path(name: str) -> str:
    return f"{_MANIFESTS}/{quote_manifest_name(name)}.json"


def quote_manifest_name(name: str) -> str:
    """Returns the name of a manifest as letters, digits, `_`, `-` and `=`.

    Raises:
        OptionError: The name is empty or too long.
    """
    if not isinstance(name, str) or not name.strip():
        raise OptionError("name", name, "the name of a manifest")
    try:
        return quote(name)
    except ValueError as error:
        raise OptionError(
            "name", name[:100], f"a shorter name ({error})", problem="is too long"
        ) from error


def manifest_name(path: str) -> str:
    """Returns the name of a manifest from its path, or from its quoted name."""
    return unquote(path.rpartition("/")[2].removesuffix(".json"))
