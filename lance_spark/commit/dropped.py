"""Commits to a table that a concurrent writer deletes: :func:`refuse_dropped`.

Measured with pylance 14: Lance commits to a deleted table without an error. The folder then has a
version whose files are gone, and looks like a table. A put cannot depend on another object, so the
check follows the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.dataset import DatasetRef, incarnation_of
from lance_spark.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lance_spark.lance_compat import path_of, plain
from lance_spark.namespaces.access import is_managed
from lance_spark.storage.objects import LanceObjects

if TYPE_CHECKING:
    import lance

_LATEST_NUMBER = (1 << 64) - 1
"""A manifest's name is this number minus its version, so a listing begins with the latest. In older
tables, the name is the version."""

_SOME = 16
"""Maximum number of fragments whose files reveal a deleted table."""

_VERSIONS, _TRANSACTIONS, _HINT = "_versions", "_transactions", "latest_version_hint.json"


class TableDroppedError(CommitConflictError):
    """A concurrent writer deleted the table at the moment of the commit. Nothing is left of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedVersion:
    """The version that a round of a commit opened."""

    version: int
    incarnation: str

    @staticmethod
    def of(dataset: lance.LanceDataset) -> OpenedVersion:
        """Returns the version of a dataset. The dataset may move to other versions later."""
        return OpenedVersion(version=dataset.version, incarnation=incarnation_of(dataset))


def refuse_dropped(ref: DatasetRef, opened: OpenedVersion) -> None:
    """Takes the versions after an opened version back if the table was deleted since.

    Asks the store once if the opened version still exists. Does nothing for tables whose versions a
    namespace keeps.

    Raises:
        TableDroppedError: The table was deleted, and the versions were taken back.
        CommitOutcomeUnknownError: The versions could not be taken back.
        OSError: The store failed before the answer.
    """
    if is_managed(ref.table_uri, ref.storage):
        return
    incarnation = _incarnation_at(ref, opened.version)
    if incarnation == opened.incarnation:
        return
    try:
        latest = ref.open_latest()
    except TableNotFoundError:
        return  # deleted after the commit
    objects = LanceObjects(ref.uri, ref.storage_options)
    # A table that was created again has a version of this number.
    is_replaced = incarnation is not None and latest.version == opened.version + 1
    if latest.version <= opened.version or not (is_replaced or _lacks_files(latest, objects)):
        return
    try:
        _delete_versions(objects, after=opened.version)
    except OSError as error:
        raise CommitOutcomeUnknownError(
            f"The table was deleted at the moment of the commit, and the new version could not be deleted: "
            f"{plain(error)}. Table: {ref.uri}. Delete _versions/{_LATEST_NUMBER - latest.version}.manifest, in older "
            f"tables {latest.version}.manifest.",
            uri=ref.uri,
        ) from error
    raise TableDroppedError(
        f"The table was deleted at the moment of the commit. Table: {ref.uri}. Nothing was committed. Create "
        "the table before you write again.",
        uri=ref.uri,
    )


def _incarnation_at(ref: DatasetRef, version: int) -> str | None:
    """Returns the identity of a version, or None without the version."""
    # The session has the manifest, and the store tells whether the manifest is the same.
    at_version = DatasetRef(uri=ref.uri, version=version, branch=ref.branch, storage_options=ref.storage_options)
    try:
        return incarnation_of(at_version.open())
    except (VersionNotFoundError, TableNotFoundError):
        return None


def _lacks_files(dataset: lance.LanceDataset, objects: LanceObjects) -> bool:
    """Tells whether the oldest files of a version are gone.

    A cleanup keeps all files of the latest version.
    """
    # Only files in the table's own folder, not in the folder of a clone's source.
    fragments = [fragment.metadata for fragment in dataset.get_fragments()[:_SOME]]
    paths = [path_of(file) for fragment in fragments for file in fragment.files[:1] if file.base_id is None]
    return bool(paths) and not any(objects.contains(f"data/{path}") for path in paths)


def _delete_versions(objects: LanceObjects, *, after: int) -> None:
    """Deletes the manifests of versions after a version, and transactions of a deleted table."""
    names = objects.list_names(_VERSIONS)
    versions = {name: _version_of(name) for name in names}
    # The hint names the latest version.
    for name in [*(name for name in names if versions[name] > after), *names.intersection([_HINT])]:
        objects.delete(f"{_VERSIONS}/{name}")
    if not any(0 < version <= after for version in versions.values()):
        # Otherwise, the transactions may belong to a table that was created again.
        for name in objects.list_names(_TRANSACTIONS):
            objects.delete(f"{_TRANSACTIONS}/{name}")


def _version_of(name: str) -> int:
    """Returns the version of a manifest's name; 0 for the name of another file."""
    stem, _, suffix = name.partition(".")
    if suffix != "manifest" or not stem.isdecimal():
        return 0
    number = int(stem)
    return _LATEST_NUMBER - number if number > _LATEST_NUMBER >> 1 else number
