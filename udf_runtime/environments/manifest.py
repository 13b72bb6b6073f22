"""A manifest: the packages, files and variables of a UDF's process, as a stored value."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from udf_runtime.arguments import ARGUMENTS, show_value
from udf_runtime.errors import UdfDefinitionError, end_sentence

if TYPE_CHECKING:
    from udf_runtime.environments.builder import PipManifestBuilder, SiteManifestBuilder

ArchiveRole = Literal["modules", "workspace", "site-packages"]

_FORMAT = 1
_NOT_CONTENT = ("name", "created_at", "created_by")
"""Fields without effect on the environment itself, so the checksum ignores them."""

_CONDA = (
    "Use create_pip, or pack the environment with conda-pack and give it to all Python processes of the Spark "
    "application with spark.archives."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Files of a manifest, as a zip file in the tables' store.

    Attributes:
        sha256: Digest of the zip file, in hex; its name in the store.
        size: Size in bytes.
        role: Content: modules or a workspace, first on the module path, or site-packages, last on
            the path.
        platform: Platform of its files, for example `cp311-linux-x86_64`; None for any platform.
    """

    sha256: str
    size: int
    role: ArchiveRole
    platform: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256) or self.role not in (
            "modules",
            "workspace",
            "site-packages",
        ):
            raise UdfDefinitionError(
                f"{self!r} is no archive of a manifest. Make archives with a builder."
            )


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The environment of a UDF, as described at the build of the manifest.

    Immutable. Made by a builder (:meth:`create_pip`, :meth:`create_site`) or by
    `Connection.capture_local_environment`. Values of environment variables are not included.

    Attributes:
        name: Name, for people.
        version: Distinguishes manifests of the same content, so packages without a pin are resolved
            again.
        pip: Requirements, as lines of a requirements file.
        index_url: Index of packages; None is the installer's own.
        extra_index_urls: Further indexes.
        find_links: Folders of wheels, as seen by the executors, or URLs of pages with links to
            wheels.
        no_index: Whether packages come from `find_links` only.
        python_version: Minor version of Python, for example `3.11`.
        env_vars: Names of the environment variables of the UDF's process, sorted.
        archives: Archives of files.
        skip_site_packages: Whether the UDF sees the packages of the executors' own Python, in
            addition to the manifest's.
        created_at: Time of the build, ISO 8601 in UTC.
        created_by: User of the build.

    Example:
        >>> from udf_runtime import Manifest
        >>> manifest = Manifest.create_pip("text").pip(["regex==2024.11.6"]).build()
        >>> manifest.name, manifest.pip
        ('text', ('regex==2024.11.6',))
    """

    name: str
    version: str | None = None
    pip: tuple[str, ...] = ()
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    python_version: str
    env_vars: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()
    skip_site_packages: bool = False
    created_at: str = dataclasses.field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )
    created_by: str = ""

    @staticmethod
    def create_pip(name: str) -> PipManifestBuilder:
        """Returns a builder for an environment of packages installed by pip."""
        from udf_runtime.environments.builder import PipManifestBuilder

        return PipManifestBuilder.create(name)

    @staticmethod
    def create_site(name: str) -> SiteManifestBuilder:
        """Returns a builder for an environment with this process's own installed packages."""
        from udf_runtime.environments.builder import SiteManifestBuilder

        return SiteManifestBuilder.create(name)

    @staticmethod
    def create_conda(name: str) -> None:
        """Raises an error: executors do not build conda environments."""
        raise UdfDefinitionError(
            f"Executors do not build conda environments, so create_conda(name={name!r}) cannot work. {_CONDA}"
        )

    @property
    def checksum(self) -> str:
        """SHA-256, in hex, of the manifest without name, time and author."""
        content = {key: value for key, value in self.to_dict().items() if key not in _NOT_CONTENT}
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, ensure_ascii=True).encode()
        ).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Returns the stored form: plain values for JSON."""
        return {"format": _FORMAT, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Returns the stored form as text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(values: object) -> Manifest:
        """Returns the manifest of a stored form.

        Raises:
            UdfDefinitionError: The stored form is damaged, or of a newer release.
        """
        try:
            return _read_stored(values)
        except _DAMAGES as error:
            raise UdfDefinitionError(
                f"The argument values={show_value(values)} is no stored manifest: {_describe_damage(error)} Build the "
                "manifest again, with this release."
            ) from error

    @staticmethod
    def from_json(payload: str) -> Manifest:
        """Returns the manifest of :meth:`to_json`.

        Raises:
            UdfDefinitionError: The text is damaged, or of a newer release.
        """
        try:
            return _read_stored(json.loads(payload))
        except _DAMAGES as error:
            raise UdfDefinitionError(
                f"The argument payload={payload[:200]!r} is no JSON of a manifest: {_describe_damage(error)} Give the "
                "text of Manifest.to_json() of this release."
            ) from error


_DAMAGES = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def _read_stored(values: object) -> Manifest:
    if not isinstance(values, dict):
        raise TypeError(f"an object is expected, not {type(values).__name__}")
    fields = dict(values)
    _require_format(fields.pop("format", None))
    for key in ("pip", "extra_index_urls", "find_links", "env_vars"):
        fields[key] = tuple(_check_text(item) for item in fields[key])
    fields["archives"] = tuple(Archive(**archive) for archive in fields["archives"])
    for key in ("name", "python_version", "created_at", "created_by"):
        _check_text(fields[key])
    return Manifest(**fields)


def _describe_damage(error: Exception) -> str:
    return end_sentence(
        f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    )


def _require_format(stored_format: object) -> None:
    if stored_format != _FORMAT:
        raise ValueError(f"it is of format {stored_format!r}, and this release knows {_FORMAT}")


def current_python() -> str:
    """Returns the minor version of Python of this process, for example `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def current_user() -> str:
    """Returns the user of this process; "" in a container without user names."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
