"""Checks that the files of a landed commit are there; takes one back that must not stay.

Lance commits without an error what was deleted a moment before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.commit_loop import run_rounds
from lance_spark.commit.conflicts.history import UNDONE_KEY
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.data_files import file_named, same_columns
from lance_spark.commit.protocols import Stage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    TableNotFoundError,
)

if TYPE_CHECKING:
    import lance

_SOME = 16
"""Fragments whose other files tell whether the table is there, and that a message names."""


RestoreFile = Callable[[int], StagedColumns]
"""Stages a file with the values that a fragment's target columns had before the commit."""


def refuse_lost_files(snapshot: DatasetRef, version: int, parts: Mapping[int, FragmentColumns], stage: Stage) -> None:
    """Refuses a version that names files of its commit that are not there.

    A cleanup deletes files that no version names, also in the moment before one does. Of a fragment
    that was compacted, deleted or filled again since the commit nothing is lost: its file may
    rightly have gone with an old version.

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
        "column files were deleted while they were committed, as by a cleanup of files that no version names, so that "
        f"the columns cannot be read in {len(lost)} fragments "
        f"({', '.join(map(str, lost[:_SOME]))}{', ...' if len(lost) > _SOME else ''}) - at {snapshot.uri}, version "
        f"{version} - restore version {version - 1}: lance.dataset(path, version={version - 1}).restore(), then write "
        "again, or run the backfill again",
        uri=snapshot.uri,
    )


def _deleted(snapshot: DatasetRef) -> CommitImpossibleError:
    return CommitImpossibleError(
        f"the table was deleted while the values were committed - at {snapshot.uri} - write the table anew",
        uri=snapshot.uri,
    )


def take_back(
    snapshot: DatasetRef,
    parts: Mapping[int, FragmentColumns],
    restore_file: RestoreFile,
    *,
    job_id: str,
    since: int,
    policy: CommitPolicy,
) -> None:
    """Gives fragments that still have files of a commit their previous values again.

    Args:
        snapshot: The table, at the version that the values belong to.
        parts: The files, by fragment.
        restore_file: Stages the previous values.
        job_id: The job whose commit it was.
        since: The version after which to look for an earlier attempt of this.
        policy: Bounds of the retries.

    Raises:
        CommitOutcomeUnknownError: It was not possible.
    """
    from lance import LanceOperation

    nothing = CommitResult(
        uri=snapshot.uri, operation="backfill", job_id=job_id, version=0, read_version=None, rows=0, fragments=0
    )
    try:
        staged: dict[int, StagedColumns] = {}

        def one_round(dataset: lance.LanceDataset | None, _retries: int) -> CommitResult | Lost | Unknown:
            if dataset is None:
                return nothing
            head = Head.of(dataset)
            live = {i for column in head.fields for i in column.ids}
            groups = []
            for fragment, part in parts.items():
                now = head.fragments.get(fragment)
                mine = None if now is None else file_named(now, part.staged.name)
                if mine is not None and live.intersection(mine.fields):
                    staged[fragment] = staged.get(fragment) or restore_file(fragment)
                    # It has the columns of the file that it replaces, under their ids: names may
                    # have changed.
                    groups.append(LanceOperation.DataReplacementGroup(fragment, same_columns(mine, staged[fragment])))
            if not groups:
                return nothing
            outcome = attempt_commit(
                dataset,
                LanceOperation.DataReplacement(groups),
                read_version=dataset.version,
                properties={UNDONE_KEY: job_id},
                storage_options=snapshot.storage,
            )
            if isinstance(outcome, Landed):
                return dataclasses.replace(nothing, version=outcome.dataset.version)
            return outcome

        run_rounds(snapshot, f"{job_id}-undo", since, one_round, policy)
    except (LanceSparkError, OSError, ValueError) as error:
        raise CommitOutcomeUnknownError(
            f"the table changed while the values were committed, and the values could not be taken back: {error} - at "
            f"{snapshot.uri}, fragments {', '.join(map(str, list(parts)[:10]))} - backfill these fragments again",
            uri=snapshot.uri,
        ) from error
