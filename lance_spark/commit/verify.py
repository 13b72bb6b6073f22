"""Looks after a commit whether the files that it named are there: Lance commits without an error what was deleted a moment before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lance_spark.commit.changes import FragmentColumns
from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.data_files import file_named
from lance_spark.commit.protocols import Stage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitImpossibleError, SnapshotError, TableNotFoundError, VersionNotFoundError

if TYPE_CHECKING:
    import lance

_SOME = 16
"""Fragments whose files tell whether the table is there."""


def lost_fragments(
    snapshot: DatasetRef, head: Head, version: int, parts: Mapping[int, FragmentColumns], stage: Stage
) -> list[int]:
    """Returns the fragments to which the latest version gives files of a commit that are not there.

    A cleanup deletes files that no version names, also in the moment before one does. Of a fragment that somebody has compacted, deleted or
    filled again since the commit nothing is lost: its file may rightly have gone with an old version.

    Args:
        snapshot: The table.
        head: What the commit was made on.
        version: The version that it made.
        parts: Its files, by fragment.
        stage: Tells which files are there.

    Raises:
        CommitImpossibleError: All of the table went; what the commit made in its place is removed.
    """
    missing = set(stage.missing([part.staged.name for part in parts.values()]))
    if not missing:
        return []
    before = {number: own[0] for number in list(head.fragments)[:_SOME] if (own := _own_files(head, number))}
    gone = stage.missing(list(before.values()))
    # Opened after the look at the files: a cleanup never takes those that the latest version names.
    try:
        latest = Head.of(snapshot.open_latest())
    except TableNotFoundError as error:
        raise _deleted(snapshot) from error
    lost = [number for number, part in parts.items() if part.staged.name in missing and _names(latest, number, part)]
    still_named = all(
        number in latest.fragments and name in _own_files(latest, number) for number, name in before.items()
    )
    if lost and before and len(gone) == len(before) and still_named:
        stage.remove_remains(version, head.dataset.version)
        raise _deleted(snapshot)
    return lost


def just_before(snapshot: DatasetRef, head: Head, version: int, targets: Sequence[FieldIdentity]) -> Head:
    """Returns what the table was before a commit: where somebody slipped in, their version, with their values, if it has the columns.

    A cleanup may have taken the files of the version that was looked at; it keeps those of the latest one, on which the commit landed.

    Args:
        snapshot: The table.
        head: What the commit was made on.
        version: The version that it made.
        targets: The columns that the commit wrote.
    """
    if version == head.dataset.version + 1:
        return head
    try:
        before = Head.of(replace(snapshot, version=version - 1, incarnation=None).open())
    except (SnapshotError, TableNotFoundError, VersionNotFoundError):
        return head
    there = {column.id for column in before.fields} | {column.name for column in before.fields}
    return before if all(column.id in there or column.name in there for column in targets) else head


def open_from(snapshot: DatasetRef, version: int) -> lance.LanceDataset:
    """Opens a version, or the latest one where it was cleaned up.

    Raises:
        CommitImpossibleError: There is no table any more.
    """
    try:
        try:
            return replace(snapshot, version=version, incarnation=None).open()
        except VersionNotFoundError:
            return snapshot.open_latest()
    except TableNotFoundError as error:
        raise _deleted(snapshot) from error


def _own_files(head: Head, number: int) -> list[str]:
    """Returns a fragment's files that are in the table's own folder, and not in one that it was cloned from."""
    return [file.path for file in head.fragments[number].files if getattr(file, "base_id", None) is None]


def _names(head: Head, number: int, part: FragmentColumns) -> bool:
    return number in head.fragments and file_named(head.fragments[number], part.staged.name) is not None


def _deleted(snapshot: DatasetRef) -> CommitImpossibleError:
    return CommitImpossibleError(
        f"the table was deleted while the values were committed - at {snapshot.uri} - write the table anew",
        uri=snapshot.uri,
    )
