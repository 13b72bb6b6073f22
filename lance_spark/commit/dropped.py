"""Commits to a table that a concurrent writer deletes: :func:`refuse_dropped`.

Measured with pylance 14: Lance commits to a deleted table without an error. The folder then has a
version whose files are gone, and looks like a table. A put cannot depend on another object, so the
check follows the commit.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.dataset import DatasetRef, incarnation_of
from lance_spark.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lance_spark.lance_compat import path_of, plain, version_of
from lance_spark.namespaces.access import is_managed
from lance_spark.namespaces.errors import NamespaceError, NamespaceUnavailableError
from lance_spark.storage.objects import LanceObjects

if TYPE_CHECKING:
    import lance

_LATEST_NUMBER = (1 << 64) - 1
"""A manifest's name is this number minus its version, so a listing begins with the latest. In older
tables, the name is the version."""

_SOME = 16
"""Maximum number of fragments that reveal a deleted table."""

_VERSIONS, _TRANSACTIONS, _HINT = "_versions", "_transactions", "latest_version_hint.json"


class TableDroppedError(CommitConflictError):
    """A concurrent writer deleted the table at the moment of the commit. Nothing is left of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedVersion:
    """The version that a round of a commit opened.

    Attributes:
        version: Its number.
        incarnation: Its identity.
        fragments: Number of its fragments.
        commits: Commits of this thread before.
    """

    version: int
    incarnation: str
    fragments: int
    commits: int

    @staticmethod
    def of(dataset: lance.LanceDataset) -> OpenedVersion:
        """Returns the version of a dataset. The dataset may move to other versions later."""
        return OpenedVersion(
            version=dataset.version,
            incarnation=incarnation_of(dataset),
            fragments=int(version_of(dataset)["metadata"]["total_fragments"]),
            commits=_LANDED.commits,
        )


class _LandedVersions(threading.local):
    """The versions that a thread committed, without the oldest.

    A commit of columns makes up to three versions. The number of a commit counts all commits of the
    thread.
    """

    def __init__(self) -> None:
        self.commits = 0
        self.last = deque[tuple[int, str, int, str]](maxlen=16)


_LANDED = _LandedVersions()


def note_landed(dataset: lance.LanceDataset) -> None:
    """Notes a version of this thread: :func:`refuse_dropped` deletes no version of others."""
    _LANDED.last.append((_LANDED.commits, dataset.uri, dataset.version, incarnation_of(dataset)))
    _LANDED.commits += 1


def _is_ours(dataset: lance.LanceDataset, opened: OpenedVersion) -> bool:
    """Tells whether this thread committed the version since it opened another one."""
    landed = [version for number, *version in _LANDED.last if number >= opened.commits]
    return [dataset.uri, dataset.version, incarnation_of(dataset)] in landed


def refuse_dropped(ref: DatasetRef, opened: OpenedVersion) -> None:
    """Takes the new versions back if the table was deleted since a version was opened.

    Asks the store once if the opened version still exists. Does nothing for tables whose versions a
    namespace keeps. Deletes only versions that this thread committed after the opened version.

    Raises:
        TableDroppedError: The table was deleted, and the version was taken back.
        CommitOutcomeUnknownError: The table was deleted, and the version could not be taken back,
            the table is being deleted, or its namespace refuses to name the table.
        OSError: The store failed before the answer.
    """
    try:
        _refuse_dropped(ref, opened)
    except NamespaceUnavailableError:
        raise
    except NamespaceError as error:
        raise CommitOutcomeUnknownError(
            f"The commit made a version, and the namespace refused before the check that the table still exists: "
            f"{plain(error)}. Table: {ref.uri}. Compare the table with what was written.",
            uri=ref.uri,
        ) from error


def _refuse_dropped(ref: DatasetRef, opened: OpenedVersion) -> None:
    if is_managed(ref.table_uri, ref.storage):
        return
    incarnation = _incarnation_at(ref, opened.version)
    if incarnation == opened.incarnation:
        return
    objects, is_replaced = LanceObjects(ref.uri, ref.storage_options), incarnation is not None
    latest = first = _latest_of_deleted(ref, opened, objects, is_replaced=is_replaced)
    if first is None:
        return
    while latest is not None:
        _take_back(ref, latest, opened, objects)
        version, latest = (
            latest.version,
            _latest_of_deleted(ref, opened, objects, is_replaced=is_replaced),
        )
        if latest is not None and latest.version >= version:
            raise _unknown(ref, latest.version, "and the new version is still there")
    remaining = _open_latest(ref)
    if remaining is not None and remaining.version > first.version:
        raise _unknown(ref, remaining.version, "and another writer committed since")
    raise TableDroppedError(
        f"The table was deleted at the moment of the commit. Table: {ref.uri}. Nothing was committed. Create "
        "the table before you write again.",
        uri=ref.uri,
    )


def _take_back(
    ref: DatasetRef, latest: lance.LanceDataset, opened: OpenedVersion, objects: LanceObjects
) -> None:
    """Deletes the latest version if this thread committed it.

    Raises:
        CommitOutcomeUnknownError: The version is of another writer, or cannot be deleted.
    """
    if not _is_ours(latest, opened):
        raise _unknown(ref, latest.version, "and another writer committed since")
    try:
        _delete_version(objects, latest.version, opened.version)
    except OSError as error:
        reason = f"and the new version could not be deleted: {plain(error)}"
        raise _unknown(ref, latest.version, reason) from error


def _unknown(ref: DatasetRef, version: int, reason: str) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"The table was deleted at the moment of the commit, {reason}. Table: {ref.uri}. Version {version} may name "
        f"deleted files: then delete _versions/{_LATEST_NUMBER - version}.manifest, in older tables "
        f"{version}.manifest.",
        uri=ref.uri,
    )


def _latest_of_deleted(
    ref: DatasetRef, opened: OpenedVersion, objects: LanceObjects, *, is_replaced: bool
) -> lance.LanceDataset | None:
    """Returns the latest version if it continues a deleted table, or None.

    A compaction with a cleanup may delete the files of a version while these files are looked for,
    so the answer is for the version that is still the latest afterwards.

    Raises:
        CommitOutcomeUnknownError: Some files are gone, so the table is being deleted.
    """
    latest = _open_latest(ref)
    while latest is not None and latest.version > opened.version:
        are_there = (
            []
            if is_replaced and _is_ours(latest, opened)
            else _look_for_files(latest, opened, objects)
        )
        if all(are_there) and not (is_replaced and _is_ours(latest, opened)):
            return None
        again = _open_latest(ref)
        if again is not None and (again.version, incarnation_of(again)) == (
            latest.version,
            incarnation_of(latest),
        ):
            if any(are_there):
                raise _unknown(ref, latest.version, "and some of its files are there yet")
            return latest
        latest = again
    return None


def _open_latest(ref: DatasetRef) -> lance.LanceDataset | None:
    try:
        return ref.open_latest()
    except TableNotFoundError:
        return None


def _incarnation_at(ref: DatasetRef, version: int) -> str | None:
    """Returns the identity of a version, or None without the version."""
    # The session has the manifest, and the store tells whether the manifest is the same.
    at_version = DatasetRef(
        uri=ref.uri, version=version, branch=ref.branch, storage_options=ref.storage_options
    )
    try:
        return incarnation_of(at_version.open())
    except (VersionNotFoundError, TableNotFoundError):
        return None


def _look_for_files(
    dataset: lance.LanceDataset, opened: OpenedVersion, objects: LanceObjects
) -> list[bool]:
    """Tells of some files of a version whether they exist, the files of earlier versions first.

    A cleanup keeps all files of the latest version.
    """
    handles = sorted(dataset.get_fragments(), key=lambda handle: handle.fragment_id)
    # A column commit adds files to earlier fragments: only the first file is old. Only files in the
    # table's own folder, not in the folder of a clone's source.
    earlier, new = (
        [
            path_of(file)
            for handle in some
            for file in handle.metadata.files[:1]
            if file.base_id is None
        ]
        for some in (handles[: opened.fragments][:_SOME], handles[opened.fragments :][:_SOME])
    )
    return [objects.contains(f"data/{path}") for path in earlier or new]


def _delete_version(objects: LanceObjects, version: int, opened: int) -> None:
    """Deletes the manifest of a version and the transactions on top of the opened version."""
    names = objects.list_names(_VERSIONS)
    # The hint names the latest version.
    for name in [
        *(name for name in names if _version_of(name) == version),
        *names.intersection([_HINT]),
    ]:
        objects.delete(f"{_VERSIONS}/{name}")
    if not any(0 < _version_of(name) <= opened for name in names):
        # Otherwise, the transactions may belong to a table that was created again.
        for name in objects.list_names(_TRANSACTIONS):
            read_version = name.partition("-")[0]
            if read_version.isdecimal() and opened <= int(read_version) < version:
                objects.delete(f"{_TRANSACTIONS}/{name}")


def _version_of(name: str) -> int:
    """Returns the version of a manifest's name; 0 for the name of another file."""
    stem, _, suffix = name.partition(".")
    if suffix != "manifest" or not stem.isdecimal():
        return 0
    number = int(stem)
    return _LATEST_NUMBER - number if number > _LATEST_NUMBER >> 1 else number
