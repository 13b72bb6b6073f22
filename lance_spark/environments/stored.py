"""Manifests and their archives beside the tables of a folder: :class:`StoredManifests`.

    <folder>/_lance_spark/environments/<sha256>/...    archives, by content
    <folder>/_lance_spark/manifests/<name>.json        manifests that were given a name

A column or a view has a copy of its manifest in its own metadata, and needs none of the named ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import OptionError, RegistrationError
from lance_spark.objects import LanceObjects
from lance_spark.session.application import application_setting
from udf_runtime import UDF, Manifest, UdfDefinitionError
from udf_runtime.checkpoint.names import quote, unquote
from udf_runtime.environments.archives import upload
from udf_runtime.environments.requirements import check_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_KEY = "spark.lance.manifest"
"""Spark configuration: the manifest of UDFs that have none, as JSON or by its name."""

_MANIFESTS = "manifests"


def archives_beside(ref: DatasetRef) -> LanceObjects:
    """Returns where the archives of a table's UDFs are: beside it, for all tables of its folder."""
    return LanceObjects(f"{ref.table_uri.rpartition('/')[0]}/{FOLDER}", ref.storage_options)


def upload_archives(udf: UDF, ref: DatasetRef) -> None:
    """Puts the archives of a UDF's manifest beside a table, unless they are there.

    Raises:
        UdfDefinitionError: One is neither there nor a file of this process; or a requirement has
            several lines, or a URL holds a password.
        TableUnwritableError: The store refused.
    """
    if udf.manifest is not None:
        check_manifest(udf.manifest)
        upload(udf.manifest.archives, archives_beside(ref))


def with_default(udf: UDF, default: Manifest | None) -> UDF:
    """Returns a UDF with its own manifest, else with the default one."""
    return udf if default is None or udf.manifest is not None else udf.with_manifest(default)


@dataclass(frozen=True, slots=True)
class StoredManifests:
    """The manifests of one folder of tables. Works on the driver.

    Attributes:
        objects: Our folder beside the tables.
    """

    objects: LanceObjects

    @staticmethod
    def of(uri: str, storage_options: tuple[tuple[str, str], ...]) -> StoredManifests:
        """Returns those of the tables in a folder. Touches no storage."""
        return StoredManifests(LanceObjects(f"{uri}/{FOLDER}", storage_options))

    def define(self, name: str, manifest: Manifest) -> None:
        """Keeps a manifest, with its archives, under a name; another one of that name is replaced.

        Raises:
            OptionError: It is no name, or no manifest.
            UdfDefinitionError: An archive is neither there nor a file of this process.
        """
        if not isinstance(manifest, Manifest):
            raise OptionError("manifest", manifest, "a Manifest: Manifest.create_pip('name').pip([...]).build()")
        check_manifest(manifest)
        path = _path(name)
        upload(manifest.archives, self.objects)
        self.objects.put(path, manifest.to_json().encode())

    def all(self) -> dict[str, Manifest]:
        """Returns all of them by name, sorted."""
        found = {}
        for path in self.objects.list(_MANIFESTS):
            text = self.objects.get(path)
            if text is not None:  # deleted meanwhile
                manifest = Manifest.from_json(text.decode())
                found[_name(path)] = manifest
        return dict(sorted(found.items()))

    def get(self, name: str) -> Manifest:
        """Returns one of them.

        Raises:
            RegistrationError: There is none of this name.
        """
        text = self.objects.get(_path(name))
        if text is None:
            names = ", ".join(map(repr, self.all())) or "none"
            raise RegistrationError(
                f"there is no manifest {name!r} - in {self.objects.uri} - those that are there: {names}; define one "
                "with define_manifest"
            )
        return Manifest.from_json(text.decode())

    def delete(self, name: str) -> None:
        """Deletes one of them; columns and views keep theirs, and archives stay.

        Raises:
            RegistrationError: There is none of this name.
        """
        self.get(name)
        self.objects.delete(_path(name))

    def default(self, given: Manifest | str | None, spark: SparkSession | None) -> Manifest | None:
        """Returns the manifest of UDFs that have none: the given one, else the application's.

        Raises:
            OptionError: The setting is neither JSON of a manifest nor a name, or a session SET it.
        """
        if given is not None:
            return self.get(given) if isinstance(given, str) else given
        text = None if spark is None else application_setting(spark, DEFAULT_KEY)
        if not text:
            return None
        try:
            return Manifest.from_json(text) if text.lstrip().startswith("{") else self.get(text)
        except (UdfDefinitionError, RegistrationError) as error:
            raise OptionError(DEFAULT_KEY, text[:100], f"JSON of a manifest, or its name ({error})") from error


def _path(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise OptionError("name", name, "the name of a manifest")
    try:
        return f"{_MANIFESTS}/{quote(name)}.json"
    except ValueError as error:
        raise OptionError("name", name[:100], f"a shorter name ({error})", problem="is too long") from error


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2].removesuffix(".json"))
