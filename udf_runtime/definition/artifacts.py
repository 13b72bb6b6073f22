"""Artifacts of a UDF: files and folders, such as the weights of a model, for `setup(artifacts)`.

A UDF names its artifacts by location. The driver lists the files when the UDF meets a table, and
the listing determines the UDF's version. A process of the UDF gets the local copies of the files.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from udf_runtime.checkpoint.local import names_object
from udf_runtime.definition.stateful import Stateful
from udf_runtime.errors import UdfDefinitionError

_copies: dict[
    str, str
] = {}  # local paths by checksum of the artifact; "per process" needs a global


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """A listed file of an artifact.

    Attributes:
        path: Path below the artifact's folder; the name of an artifact that is a single file.
        size: Size in bytes.
        sha256: Digest of the content, in hex; None for a file of a store with ETags.
        etag: ETag of the store, changed by each write of the file; None for other stores.
    """

    path: str
    size: int
    sha256: str | None = None
    etag: str | None = None

    def __post_init__(self) -> None:
        if not names_object(self.path) or "\\" in self.path:
            raise UdfDefinitionError(
                f"The path {self.path!r} of an artifact leads out of its folder. Rename the file at its location."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file or a folder for the `setup` of a UDF.

    Attributes:
        name: The key in the mapping for `setup`.
        location: Absolute path on every machine, or URI of an object store.
        files: The files, sorted by path; empty before the driver has listed the location.
        is_folder: Whether the location is a folder.
    """

    name: str
    location: str
    files: tuple[ArtifactFile, ...] = ()
    is_folder: bool = False

    @property
    def checksum(self) -> str:
        """SHA-256, in hex, of paths, sizes, and digests or ETags of the files.

        Raises:
            UdfDefinitionError: The location is not listed yet.
        """
        if not self.files:
            raise UdfDefinitionError(
                f"The files of artifact {self.name!r} are not listed yet, so they have no checksum. Location: "
                f"{self.location}. Register the UDF as a column of a table, which lists the files."
            )
        files = [[file.path, file.size, file.sha256, file.etag] for file in self.files]
        content = json.dumps([self.is_folder, files], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactCopy:
    """A copy of an artifact in the cache of a machine. Picklable, for processes of the machine.

    Attributes:
        checksum: Checksum of the artifact.
        path: Path of the file or the folder.
        entry: Folder of the cache; a process holds its lock as long as the process uses the copy.
    """

    checksum: str
    path: str
    entry: str


def make_artifacts(
    locations: Mapping[str, str] | None, target: object, udf: str
) -> tuple[Artifact, ...]:
    """Returns the artifacts of a UDF's definition, sorted by name, without a look at the locations.

    Raises:
        UdfDefinitionError: The locations are no mapping of names to locations, or the UDF has no
            `setup(artifacts)`.
    """
    if locations is None:
        _refuse_parameter(target, udf)
        return ()
    is_valid = isinstance(locations, Mapping) and locations
    if not is_valid or not all(
        isinstance(text, str) and text.strip() for pair in locations.items() for text in pair
    ):
        raise UdfDefinitionError(
            f"The artifacts of UDF {udf!r} are no mapping of names to locations, or the mapping is empty. Give a "
            "dict of texts, for example {'model': 's3://bucket/model/'}."
        )
    _check_setup(target, udf)
    return tuple(
        Artifact(name=name, location=_resolve(locations[name])) for name in sorted(locations)
    )


def _resolve(location: str) -> str:
    """Returns an absolute path for a path of this machine, and a URI unchanged."""
    is_uri = "://" in location or location.startswith("file:")
    return location if is_uri else os.path.abspath(os.path.expanduser(location))


def _check_setup(target: object, udf: str) -> None:
    setup = getattr(target.made_from, "setup", None) if isinstance(target, Stateful) else None
    if not callable(setup):
        raise UdfDefinitionError(
            f"UDF {udf!r} has artifacts, and no method gets their paths. Decorate a class with setup(self, artifacts)."
        )
    arguments: tuple[object, ...] = ({},) if inspect.ismethod(setup) else (None, {})
    try:
        inspect.signature(setup).bind(*arguments)
    except TypeError:
        raise UdfDefinitionError(
            f"The method setup of UDF {udf!r} does not take the artifacts. Define setup(self, artifacts), with a "
            "mapping of names to paths as its argument."
        ) from None


def _refuse_parameter(target: object, udf: str) -> None:
    """Refuses a `setup` with a required parameter, if the UDF has no artifacts."""
    setup = getattr(target.made_from, "setup", None) if isinstance(target, Stateful) else None
    if not inspect.isfunction(setup) and not inspect.ismethod(setup):
        return
    parameters = list(inspect.signature(setup).parameters.values())[
        0 if inspect.ismethod(setup) else 1 :
    ]
    if any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    ):
        raise UdfDefinitionError(
            f"The method setup of UDF {udf!r} has the parameter {parameters[0].name!r}, and the UDF has no artifacts. "
            "Give artifacts={name: location}, or remove the parameter."
        )


def checksum_of(artifacts: Iterable[Artifact]) -> str:
    """Returns the checksum of all artifacts by name: 32 hex digits for the UDF's version.

    Raises:
        UdfDefinitionError: An artifact is not listed yet.
    """
    content = json.dumps(
        [[artifact.name, artifact.checksum] for artifact in artifacts], ensure_ascii=True
    )
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def use_copies(copies: Iterable[ArtifactCopy]) -> None:
    """Gives the UDFs of this process the local copies of their artifacts."""
    _copies.update({copy.checksum: copy.path for copy in copies})


def local_paths(artifacts: Iterable[Artifact]) -> dict[str, str]:
    """Returns the argument of `setup`: local paths by name.

    Raises:
        UdfDefinitionError: The process has no copy, and the location is no path of this machine.
    """
    return {artifact.name: _find_path(artifact) for artifact in artifacts}


def _find_path(artifact: Artifact) -> str:
    path = _copies.get(artifact.checksum) if artifact.files else None
    if path is not None:
        return path
    # A call of the UDF by its author, outside any job.
    path = artifact.location.removeprefix("file://")
    if not os.path.exists(path):
        raise UdfDefinitionError(
            f"The artifact {artifact.name!r} at {artifact.location} has no copy in this process. Only jobs of a table "
            "copy artifacts of object stores. Give a local path to call the UDF directly."
        )
    return path
