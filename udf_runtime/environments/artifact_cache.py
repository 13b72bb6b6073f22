"""Artifacts: the listing of their files on the driver, and their copies on a machine.

A listed file has the ETag of its store. A store without ETags, such as a mounted file system, is
read once for a SHA-256.

    <folder>/artifact-<checksum>/artifact.json   the marker of a complete copy
    <folder>/artifact-<checksum>/files/...       the files
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from udf_runtime.definition.artifacts import Artifact, ArtifactCopy, ArtifactFile
from udf_runtime.environments.machine_cache import ARTIFACT, EntryError, EntryKind, MachineCache
from udf_runtime.errors import ArtifactError, UdfDefinitionError, end_sentence

FileSystem: TypeAlias = Any
"""A `pyarrow.fs.FileSystem`."""

MOST_FILES = 10_000
"""Maximum files of an artifact, because the pickled UDF holds the listing."""

_BLOCK_BYTES = 8 << 20
"""Bytes of a read from an object store: a request each."""

_LOCAL_BLOCK_BYTES = 1 << 20

_PART_BYTES = 64 << 20
"""Bytes of a part of a file in an object store; parts of a file are copied concurrently."""

_PARALLEL_READS = 8
_DIGESTS = 4096
_FILES = "files"

_AGAIN = "Restore the file, or register the UDF again to take the new content"
_CHECK = "Check the location, the permissions, and the credentials"
_FREE = "Free space, or name another folder with spark.lance.environments.dir"


def list_artifact(artifact: Artifact, system: FileSystem, path: str) -> Artifact:
    """Returns an artifact with its files. Runs on the driver.

    Reads files of stores without ETags, 8 files at once, 8 MiB of each in memory.

    Args:
        artifact: The artifact.
        system: The file system of its location.
        path: Path of its location in the file system.

    Raises:
        UdfDefinitionError: The location has no file or too many files, a name leads out of the
            folder, or the store refused.
    """
    path = path.rstrip("/")
    try:
        is_folder, infos = _list_infos(system, path)
        if not 0 < len(infos) <= MOST_FILES:
            raise UdfDefinitionError(
                f"The artifact {artifact.name!r} has {len(infos)} files, and 1 to {MOST_FILES} are possible. Location: "
                f"{artifact.location}. Give a file, or a folder with files."
            )
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="artifact") as threads:
            describe = functools.partial(
                _describe, system, path if is_folder else path.rpartition("/")[0]
            )
            files = list(threads.map(describe, infos))
    except (OSError, pa.ArrowException) as error:
        raise UdfDefinitionError(
            f"The files of artifact {artifact.name!r} cannot be listed: {end_sentence(str(error))} Location: "
            f"{artifact.location}. {_CHECK}."
        ) from error
    files.sort(key=lambda file: file.path)
    return Artifact(
        name=artifact.name, location=artifact.location, files=tuple(files), is_folder=is_folder
    )


def _list_infos(system: FileSystem, path: str) -> tuple[bool, list[Any]]:
    """Returns whether a path is a folder, and the infos of its files."""
    from pyarrow import fs

    root = system.get_file_info(path)
    if root.type == fs.FileType.NotFound:
        raise FileNotFoundError("there is neither a file nor a folder")
    if root.is_file:
        return False, [root]
    return True, [
        info for info in system.get_file_info(fs.FileSelector(path, recursive=True)) if info.is_file
    ]


def _describe(system: FileSystem, folder: str, info: Any) -> ArtifactFile:  # noqa: ANN401 - missing in PyArrow's stubs
    name = info.path.removeprefix(folder).lstrip("/")
    if info.size == 0:
        return ArtifactFile(path=name, size=0, sha256=hashlib.sha256().hexdigest())
    etag = _read_etag(system, info.path)
    if etag is not None:
        return ArtifactFile(path=name, size=info.size, etag=etag)
    return ArtifactFile(path=name, size=info.size, sha256=_hash_file(system, info.path))


def _read_etag(system: FileSystem, path: str) -> str | None:
    with system.open_input_file(path) as file:
        return _etag_of(file)


def _etag_of(file: Any) -> str | None:  # noqa: ANN401 - as in _describe
    """Returns the ETag of an open file of an object store, without quotes."""
    metadata = {key.lower(): value for key, value in (file.metadata() or {}).items()}
    etag = metadata.get("etag")
    return None if not etag else etag.decode().strip('"')


def _hash_file(system: FileSystem, path: str) -> str:
    """Returns the SHA-256 of a file; a process reads an unchanged file of a mounted disk once."""
    if system.type_name == "local":
        about = os.stat(path)
        return _hash_unchanged(
            path, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
        )
    digest = hashlib.sha256()
    with system.open_input_file(path) as file:
        while (block := file.read_buffer(_BLOCK_BYTES)).size:
            digest.update(block)
    return digest.hexdigest()


@functools.lru_cache(maxsize=_DIGESTS)
def _hash_unchanged(path: str, *_about: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ArtifactCache(MachineCache):
    """The copies of artifacts on a machine, next to its environments."""

    __slots__ = ()

    def open(
        self, artifact: Artifact, find_source: Callable[[], tuple[FileSystem, str]]
    ) -> ArtifactCopy:
        """Returns the copy of an artifact; copies its files if the machine lacks the copy.

        This process uses the copy until its end. A single process copies, and concurrent processes
        wait. Each file has the listed size, and the listed SHA-256 or ETag. Memory: 8 reads of
        8 MiB at once. All calls within a minute get the error of a failed attempt.

        Args:
            artifact: The listed artifact.
            find_source: Returns the file system of the location, and the path in it.

        Raises:
            ArtifactError: A file has changed or is gone, the store refused, or the disk is full.
        """
        try:
            return self.open_entry(_Copied(artifact, find_source))
        except EntryError as error:
            raise ArtifactError(
                artifact=artifact.name,
                location=artifact.location,
                reason=error.reason,
                hint=error.hint,
            ) from error


@dataclass(frozen=True, slots=True)
class _Copied:
    """A copy as the content of an entry."""

    artifact: Artifact
    find_source: Callable[[], tuple[FileSystem, str]]

    @property
    def name(self) -> str:
        return f"artifact-{self.artifact.checksum}"

    @property
    def kind(self) -> EntryKind:
        return ARTIFACT

    @property
    def title(self) -> str:
        return f"copy of artifact {self.artifact.name!r}"

    def make(self, place: str, lock: int) -> dict[str, Any]:  # noqa: ARG002 - no other process copies
        system, path = self.find_source()
        folder = path.rstrip("/") if self.artifact.is_folder else path.rpartition("/")[0]
        target = os.path.join(place, _FILES)
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="artifact") as threads:
            parts = [part for file in self.artifact.files for part in _split(file)]
            copies = [
                threads.submit(_copy_part, system, f"{folder}/{part.file.path}", target, part)
                for part in parts
            ]
            try:
                for copy in copies:
                    copy.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        for file in self.artifact.files:
            os.chmod(os.path.join(target, file.path), 0o400)
        return {"location": self.artifact.location}

    def restore(self, place: str, facts: Mapping[str, Any]) -> ArtifactCopy | None:  # noqa: ARG002 - the listing decides
        folder = os.path.join(place, _FILES)
        for file in self.artifact.files:
            if os.path.getsize(os.path.join(folder, file.path)) != file.size:
                return None
        path = (
            folder if self.artifact.is_folder else os.path.join(folder, self.artifact.files[0].path)
        )
        return ArtifactCopy(checksum=self.artifact.checksum, path=path, entry=place)

    def explain(self, error: OSError) -> EntryError:
        return _explain(str(error))


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of bytes of a file, from `start` to `stop`."""

    file: ArtifactFile
    start: int
    stop: int


def _split(file: ArtifactFile) -> Iterator[_Part]:
    """Yields the parts of a file. A SHA-256 needs the whole file in order."""
    part_bytes = _PART_BYTES if file.sha256 is None else max(file.size, 1)
    for start in range(0, max(file.size, 1), part_bytes):
        yield _Part(file, start, min(start + part_bytes, file.size))


def _read_blocks(file: Any, part: _Part, block_bytes: int) -> Iterator[pa.Buffer]:  # noqa: ANN401 - as in _describe
    """Yields the bytes of a part of an open file; fewer bytes of a shorter file."""
    file.seek(part.start)
    unread = part.stop - part.start
    while unread and (block := file.read_buffer(min(unread, block_bytes))).size:
        yield block
        unread -= block.size


def _copy_part(system: FileSystem, source: str, target: str, part: _Part) -> None:
    """Copies a part of a file, and compares the file with the listing.

    Raises:
        EntryError: The file has changed, is gone, or cannot be copied.
    """
    file, path = part.file, os.path.join(target, part.file.path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with system.open_input_file(source) as opened:
            size, is_same = opened.size(), file.etag is None or _etag_of(opened) == file.etag
            if size == file.size and is_same:
                block_bytes = _LOCAL_BLOCK_BYTES if system.type_name == "local" else _BLOCK_BYTES
                is_same = _copy_bytes(_read_blocks(opened, part, block_bytes), path, part)
        # The store may have changed the file during the copy.
        is_same = is_same and (file.etag is None or _read_etag(system, source) == file.etag)
    except FileNotFoundError as error:
        raise EntryError(f"the file {file.path!r} is gone", _AGAIN) from error
    except (OSError, pa.ArrowException) as error:
        raise _explain(f"the file {file.path!r} cannot be copied: {error}") from error
    if size != file.size:
        raise EntryError(f"the file {file.path!r} has {size} bytes instead of {file.size}", _AGAIN)
    if not is_same:
        raise EntryError(
            f"the file {file.path!r} has another content than at its registration", _AGAIN
        )


def _copy_bytes(blocks: Iterator[pa.Buffer], path: str, part: _Part) -> bool:
    """Writes a part, and tells whether all bytes were there, with the listed SHA-256."""
    digest = None if part.file.sha256 is None else hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as copy:
        copy.seek(part.start)
        for block in blocks:
            if digest is not None:
                digest.update(block)
            unwritten = memoryview(block)
            while unwritten:
                unwritten = unwritten[copy.write(unwritten) :]
        return copy.tell() == part.stop and (
            digest is None or digest.hexdigest() == part.file.sha256
        )


def _explain(reason: str) -> EntryError:
    is_full = "no space left" in reason.lower() or "disk quota" in reason.lower()
    return EntryError(reason, _FREE if is_full else _CHECK)
