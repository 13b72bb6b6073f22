"""A manifest: the packages, files and variables that a UDF's process has, as a stored value."""

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
from udf_runtime.errors import UdfDefinitionError

if TYPE_CHECKING:
    from udf_runtime.environments.builder import PipManifestBuilder, SiteManifestBuilder

ArchiveRole = Literal["modules", "workspace", "site-packages"]

_FORMAT = 1
_NOT_CONTENT = ("name", "created_at", "created_by")
"""What says nothing about the environment itself, and so is not in its checksum."""

_CONDA = (
    "conda environments are not built on executors - in a manifest - use create_pip, or pack the environment with "
    "conda-pack and give it to all Python processes of the Spark application with spark.archives"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Files that a manifest brings along, as a zip file in the tables' store.

    Attributes:
        sha256: Digest of the zip file, in hex; its name in the store.
        size: Its size in bytes.
        role: What it holds: modules or a workspace, which come first on the module path, or
            site-packages, which come last.
        platform: Where its files run, as `cp311-linux-x86_64`; None where any platform does.
    """

    sha256: str
    size: int
    role: ArchiveRole
    platform: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256) or self.role not in ("modules", "workspace", "site-packages"):
            raise UdfDefinitionError(f"{self!r} is no archive - in a manifest - make it with a builder")


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The environment that a UDF runs in, as it was described when the manifest was built.

    Immutable. Made by a builder (:meth:`create_pip`, :meth:`create_site`) or by
    `Connection.capture_local_environment`. Values of environment variables are no part of it.

    Attributes:
        name: Its name, for people.
        version: What tells it from another one of the same content, so that packages without a pin
            are resolved anew.
        pip: Requirements, as lines of a requirements file.
        index_url: Index to take packages from; None is the installer's own.
        extra_index_urls: Further ones.
        find_links: Folders of wheels, as the executors see them, or URLs of pages that link to
            some.
        no_index: Whether packages come from `find_links` only.
        python_version: Minor version of Python, as `3.11`.
        env_vars: Names of the environment variables that the UDF's process gets, sorted.
        archives: Files that come along.
        skip_site_packages: Whether the UDF sees the packages of the executors' own Python, and the
            manifest adds to them only.
        created_at: When it was built, ISO 8601 in UTC.
        created_by: Who built it.
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
    created_at: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    created_by: str = ""

    @staticmethod
    def create_pip(name: str) -> PipManifestBuilder:
        """Returns a builder of an environment of packages that pip installs."""
        from udf_runtime.environments.builder import PipManifestBuilder

        return PipManifestBuilder.create(name)

    @staticmethod
    def create_site(name: str) -> SiteManifestBuilder:
        """Returns a builder of an environment that has this process's own installed packages."""
        from udf_runtime.environments.builder import SiteManifestBuilder

        return SiteManifestBuilder.create(name)

    @staticmethod
    def create_conda(name: str) -> None:
        """Refuses: a conda environment is not built on executors."""
        raise UdfDefinitionError(f"{_CONDA} (name={name!r})")

    @property
    def checksum(self) -> str:
        """SHA-256, in hex, of what decides about the environment: not of name, time and author."""
        content = {key: value for key, value in self.to_dict().items() if key not in _NOT_CONTENT}
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Returns the form in which it is stored: plain values for JSON."""
        return {"format": _FORMAT, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Returns the stored form as text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(values: object) -> Manifest:
        """Returns the manifest of a stored form.

        Raises:
            UdfDefinitionError: It is damaged, or of a newer release.
        """
        try:
            known = dict(values) if isinstance(values, dict) else {}
            _require_format(known.pop("format", None))
            for key in ("pip", "extra_index_urls", "find_links", "env_vars"):
                known[key] = tuple(_text(item) for item in known[key])
            known["archives"] = tuple(Archive(**archive) for archive in known["archives"])
            for key in ("name", "python_version", "created_at", "created_by"):
                _text(known[key])
            return Manifest(**known)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UdfDefinitionError(
                f"the stored manifest cannot be read: {error} - values {show_value(values)} - build it again, with "
                "this release"
            ) from error

    @staticmethod
    def from_json(payload: str) -> Manifest:
        """Returns the manifest of :meth:`to_json`.

        Raises:
            UdfDefinitionError: It is damaged, or of a newer release.
        """
        try:
            values = json.loads(payload)
            if not isinstance(values, dict):
                raise ValueError(f"an object is expected, not {type(values).__name__}")  # noqa: TRY004, TRY301
        except (ValueError, RecursionError) as error:
            raise UdfDefinitionError(
                f"the manifest is no JSON: {error} - payload {payload[:200]!r} - give what Manifest.to_json() returned"
            ) from error
        return Manifest.from_dict(values)


def _require_format(found: object) -> None:
    if found != _FORMAT:
        raise ValueError(f"it is of format {found!r}, and this release knows {_FORMAT}")


def current_python() -> str:
    """Returns the minor version of Python of this process, as `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def current_user() -> str:
    """Returns who runs this process; nothing in a container that does not know its user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
