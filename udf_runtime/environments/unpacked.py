"""Archives of a manifest on a machine: read from the tables' store, verified, unpacked."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects
    from udf_runtime.environments.manifest import Archive

PART_BYTES = 64 << 20
"""Bytes of an object in the store, because memory holds a single part of an archive at once."""

_COPY_BYTES = 1 << 20


class ArchiveError(Exception):
    """An archive is missing or damaged. Internal: the reason of an EnvironmentBuildError."""


def part_path(sha256: str, number: int) -> str:
    """Returns the name of a part of an archive in the store."""
    return f"environments/{sha256}/{number}"


def unpack(archive: Archive, objects: Objects, folder: str) -> None:
    """Makes a folder of an archive's files.

    Raises:
        ArchiveError: The store lacks the archive, its content differs from the manifest, or a file
            leads out of the folder.
        OSError: The store failed, or the disk is full.
    """
    os.makedirs(folder)
    with tempfile.TemporaryFile(dir=folder) as zipped:
        digest = hashlib.sha256()
        for part in _read_parts(archive, objects):
            digest.update(part)
            zipped.write(part)
        if zipped.tell() != archive.size or digest.hexdigest() != archive.sha256:
            raise ArchiveError(
                f"the {archive.role} archive {archive.sha256[:12]} in the tables' store was altered"
            )
        try:
            with zipfile.ZipFile(zipped) as opened:
                for info in opened.infolist():
                    _extract(opened, info, folder)
        except zipfile.BadZipFile as error:
            raise ArchiveError(
                f"the {archive.role} archive {archive.sha256[:12]} is no zip file: {error}"
            ) from error


def _read_parts(archive: Archive, objects: Objects) -> Iterator[bytes]:
    for number in range(max(1, -(-archive.size // PART_BYTES))):
        part = objects.get(part_path(archive.sha256, number))
        if part is None:
            raise ArchiveError(
                f"part {number} of the {archive.role} archive {archive.sha256[:12]} is not in the tables' store"
            )
        yield part


def _extract(opened: zipfile.ZipFile, info: zipfile.ZipInfo, folder: str) -> None:
    mode = info.external_attr >> 16
    names = info.filename.split("/")
    if (
        info.filename.startswith("/")
        or ".." in names
        or "\\" in info.filename
        or stat.S_ISLNK(mode)
    ):
        raise ArchiveError(f"{info.filename!r} in an archive leads out of its folder")
    if info.is_dir():
        return
    path = os.path.join(folder, *names)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with opened.open(info) as source, open(path, "xb") as target:
        shutil.copyfileobj(source, target, _COPY_BYTES)
    if mode & stat.S_IXUSR:
        os.chmod(path, 0o700)
