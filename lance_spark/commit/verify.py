"""Looks after a commit whether the files that it named are there: Lance commits without an error what was deleted a moment before."""

from __future__ import annotations

from collections.abc import Mapping

from lance_spark.commit.changes import FragmentColumns
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.data_files import file_named
from lance_spark.commit.protocols import Stage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitImpossibleError, CommitOutcomeUnknownError, TableNotFoundError

_SOME = 16
"""Fragments whose other files tell whether the table is there, and that a message names."""


def refuse_lost_files(snapshot: DatasetRef, version: int, parts: Mapping[int, FragmentColumns], stage: Stage) -> None:
    """Refuses a version that names files of its commit that are not there.

    A cleanup deletes files that no version names, also in the moment before one does. Of a fragment that was compacted, deleted or filled
    again since the commit nothing is lost: its file may rightly have gone with an old version.

    Args:
        snapshot: The table.
        version: The version that the commit made.
        parts: Its files, by fragment.
        stage: Tells which files are there.

    Raises:
        CommitImpossibleError: All of the table went; what the commit made in its place is removed.
        CommitOutcomeUnknownError: Files are missing.
    """
    missing = set(stage.missing([part.staged.name for part in parts.values()]))
    if not missing:
        return
    # Opened after the look at the files: a cleanup never takes those that the latest version names.
    try:
        latest = Head.of(snapshot.open_latest())
    except TableNotFoundError as error:
        raise _deleted(snapshot) from error
    lost = [
        number
        for number, part in parts.items()
        if part.staged.name in missing
        and number in latest.fragments
        and file_named(latest.fragments[number], part.staged.name) is not None
    ]
    if not lost:
        return
    # Those in the table's own folder, not in one that it was cloned from.
    files = [file for number in lost[:_SOME] for file in latest.fragments[number].files if file.base_id is None]
    others = [file.path for file in files if file.path not in missing]
    if others and len(stage.missing(others)) == len(others):
        stage.remove_remains(version)
        raise _deleted(snapshot)
    raise CommitOutcomeUnknownError(
        f"column files were deleted while they were committed, as by a cleanup of files that no version names, so that the columns cannot be "
        f"read in {len(lost)} fragments ({', '.join(map(str, lost[:_SOME]))}{', ...' if len(lost) > _SOME else ''}) - at {snapshot.uri}, "
        f"version {version} - restore version {version - 1}: lance.dataset(path, version={version - 1}).restore(), then write again, or run "
        "the backfill again",
        uri=snapshot.uri,
    )


def _deleted(snapshot: DatasetRef) -> CommitImpossibleError:
    return CommitImpossibleError(
        f"the table was deleted while the values were committed - at {snapshot.uri} - write the table anew",
        uri=snapshot.uri,
    )
