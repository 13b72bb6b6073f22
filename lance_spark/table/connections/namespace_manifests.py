"""Named manifests of a Lance namespace: :class:`NamespaceManifests`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from lance_spark.environments.stored import manifest_name, quote_manifest_name
from lance_spark.errors import OptionError, RegistrationError, UnsupportedOperationError
from lance_spark.namespaces.client import is_code
from lance_spark.namespaces.errors import NamespaceError
from udf_runtime import Manifest
from udf_runtime.environments.requirements import check_manifest

if TYPE_CHECKING:
    from lance_spark.table.connections.namespaces import NamespaceTables

_PLACE = "lance_spark_manifests"
"""The namespace with a namespace for each manifest."""

_PROPERTY = "lance_spark.manifest"
"""The property with the JSON of a manifest."""


@dataclass(frozen=True, slots=True)
class NamespaceManifests:
    """The named manifests of a namespace.

    A namespace has properties from its creation on, and its service cannot change these. So each
    manifest is the property of a namespace of its own, in `lance_spark_manifests`.

    Attributes:
        tables: The namespace.
    """

    tables: NamespaceTables

    @property
    def objects(self) -> NoReturn:
        """Refused: a namespace has no folder for archives.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"{self.tables.client.subject} has no folder for archives of the local environment. Nothing was stored. "
            "Describe the environment with Manifest.create_pip(name).pip([...]).build()."
        )

    def define(self, name: str, manifest: Manifest) -> None:
        """Stores a manifest under a name; replaces a manifest of the same name.

        Raises:
            OptionError: The name or the manifest is not valid, or the manifest has archives.
            UnsupportedOperationError: The namespace cannot keep manifests.
            NamespaceError: The service does not answer, or refuses.
        """
        if not isinstance(manifest, Manifest):
            raise OptionError(
                "manifest", manifest, "a Manifest: Manifest.create_pip('name').pip([...]).build()"
            )
        if manifest.archives:
            raise OptionError(
                "manifest",
                manifest.name,
                "a manifest without archives, because a namespace stores none",
            )
        check_manifest(manifest)
        path = _path(name)
        try:
            if not self.tables.has_namespace(path[:1]):
                self.tables.create_namespace(path[:1], None)
            self._replace(path, manifest.to_json())
            is_kept = self._text(path) is not None
        except UnsupportedOperationError as error:
            raise self._refusal() from error
        if not is_kept:
            self.tables.drop_namespace(path)
            raise self._refusal()

    def all(self) -> dict[str, Manifest]:
        """Returns all manifests by name, sorted.

        Raises:
            NamespaceError: The service does not answer, or refuses.
        """
        texts = {name: self._text((_PLACE, name)) for name in self._names()}
        manifests = {
            manifest_name(name): Manifest.from_json(text)
            for name, text in texts.items()
            if text is not None
        }
        return dict(sorted(manifests.items()))

    def get(self, name: str) -> Manifest:
        """Returns a manifest.

        Raises:
            RegistrationError: No manifest has this name.
            NamespaceError: The service does not answer, or refuses.
        """
        path = _path(name)
        text = self._text(path)
        if text is None:
            names = ", ".join(map(repr, self.all())) or "none"
            raise RegistrationError(
                f"No manifest has the name {name!r}. Place: {self.tables.label}. Manifests: {names}. Define one with "
                "define_manifest."
            )
        return Manifest.from_json(text)

    def delete(self, name: str) -> None:
        """Deletes a manifest. Columns and views keep their copies.

        Raises:
            RegistrationError: No manifest has this name.
            NamespaceError: The service does not answer, or refuses.
        """
        self.get(name)
        self.tables.drop_namespace(_path(name))

    def _names(self) -> list[str]:
        """Returns the quoted names of the manifests; none where a namespace cannot keep any."""
        try:
            return self.tables.namespaces((_PLACE,)) if self.tables.has_namespace((_PLACE,)) else []
        except UnsupportedOperationError:
            return []

    def _text(self, path: tuple[str, ...]) -> str | None:
        """Returns the JSON of a manifest; None without this manifest."""
        try:
            return self.tables.describe_namespace(path).get(_PROPERTY)
        except UnsupportedOperationError:
            return None
        except NamespaceError as error:
            if isinstance(error.__cause__, Exception) and is_code(
                error.__cause__, "NAMESPACE_NOT_FOUND"
            ):
                return None
            raise

    def _replace(self, path: tuple[str, str], text: str) -> None:
        """Replaces the namespace of a manifest. A failure restores the old manifest."""
        if not self.tables.has_namespace(path):
            self.tables.create_namespace(path, {_PROPERTY: text})
            return
        old = self._text(path)
        self.tables.drop_namespace(path)
        try:
            self.tables.create_namespace(path, {_PROPERTY: text})
        except NamespaceError:
            if old is not None:
                self.tables.create_namespace(path, {_PROPERTY: old})
            raise

    def _refusal(self) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            f"{self.tables.client.subject} keeps no properties of namespaces in namespaces, and so no named manifests. "
            "Nothing was stored. Pass the Manifest itself: connect(..., default_manifest=manifest), or a UDF with a "
            "manifest."
        )


def _path(name: str) -> tuple[str, str]:
    return _PLACE, quote_manifest_name(name)
