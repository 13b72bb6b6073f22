"""Verifies the files of a landed commit, and undoes commits that must not stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, FragmentColumns
from lance_spark.commit.commit_loop import commit_job
from lance_spark.commit.conflicts.history import UNDONE_KEY, Change, events_between
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.data_files import file_named
from lance_spark.commit.protocols import Stage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitImpossibleError, CommitOutcomeUnknownError, LanceSparkError, TableNotFoundError
from lance_spark.lance_compat import path_of

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation

_LATEST_MANIFEST = (1 << 64) - 1
"""A manifest's name is this number minus its version, so a listing begins with the latest."""

_SOME = 16
"""Number of fragments in a message, and of fragments whose other files reveal a deleted table."""


def refuse_lost_files(snapshot: DatasetRef, version: int, parts: Mapping[int, FragmentColumns], stage: Stage) -> None:
    """Raises if the version refers to files of its commit that do not exist.

    Lance commits files without an error even if a cleanup of unreferenced files, or a deletion of
    the whole table, has just deleted the files. Fragments that were compacted, deleted or filled
    again since the commit have lost nothing: a cleanup of old versions may delete their files.

    Raises:
        CommitImpossibleError: The whole table was deleted.
        CommitOutcomeUnknownError: Files are missing.
    """
    missing_names = set(stage.missing([part.staged.name for part in parts.values()]))
    if not missing_names:
        return
    # Open the latest version after the file check: a cleanup never deletes files of this version.
    try:
        latest = Head.of(snapshot.open_latest())
    except TableNotFoundError as error:
        raise _deleted(snapshot, "nothing was committed; write the table anew") from error
    lost = [
        number
        for number, part in parts.items()
        if part.staged.name in missing_names
        and number in latest.fragments
        and file_named(latest.fragments[number], part.staged.name) is not None
    ]
    if not lost:
        return
    # Only files in the table's own folder, not in the folder of a clone's source.
    files = [file for number in lost[:_SOME] for file in latest.fragments[number].files if file.base_id is None]
    other_names = [file.path for file in files if file.path not in missing_names]
    if other_names and len(stage.missing(other_names)) == len(other_names):
        # Lance commits even so: to a new folder, or to a table that was created again.
        raise _deleted(
            snapshot,
            f"version {version} there names files that are gone; delete "
            f"_versions/{_LATEST_MANIFEST - version}.manifest, in older tables {version}.manifest, and the folder if "
            "no other is there",
        )
    raise CommitOutcomeUnknownError(
        "column files were deleted while they were committed, as by a cleanup of files that no version names, so that "
        f"the columns cannot be read in {len(lost)} fragments "
        f"({', '.join(map(str, lost[:_SOME]))}{', ...' if len(lost) > _SOME else ''}) - at {snapshot.uri}, version "
        f"{version} - restore version {version - 1}: lance.dataset(path, version={version - 1}).restore(), then write "
        "again, or run the backfill again",
        uri=snapshot.uri,
    )


def _deleted(snapshot: DatasetRef, advice: str) -> CommitImpossibleError:
    return CommitImpossibleError(
        f"the table was deleted while the values were committed - at {snapshot.uri} - {advice}", uri=snapshot.uri
    )


def take_back(
    ref: DatasetRef,
    undo: Callable[[lance.LanceDataset], LanceOperation.BaseOperation | None],
    *,
    job_id: str,
    since: int,
    policy: CommitPolicy,
) -> None:
    """Undoes a commit, on top of any concurrent commits.

    `undo` builds the operation for the latest version, or returns None if the version has nothing
    of the commit. Versions after `since` may belong to an earlier attempt.

    Raises:
        CommitOutcomeUnknownError: The commit could not be undone.
    """
    null_result = CommitResult(
        uri=ref.uri, operation="backfill", job_id=job_id, version=0, read_version=None, rows=0, fragments=0
    )

    def one_round(head: lance.LanceDataset | None, _retries: int) -> CommitResult | Lost | Unknown:
        operation = None if head is None else undo(head)
        if head is None or operation is None:
            return null_result
        outcome = attempt_commit(
            head, operation, read_version=head.version, properties={UNDONE_KEY: job_id}, storage_options=ref.storage
        )
        return (
            dataclasses.replace(null_result, version=outcome.dataset.version)
            if isinstance(outcome, Landed)
            else outcome
        )

    try:
        commit_job(ref, f"{job_id}-undo", since, one_round, policy)
    except (LanceSparkError, OSError, ValueError) as error:
        raise CommitOutcomeUnknownError(
            f"the table changed in the moment of the commit, which could not be taken back: {error} - at {ref.uri}, "
            f"job {job_id} - restore the version before it, or delete these rows, or backfill these columns again",
            uri=ref.uri,
        ) from error


def take_back_rows(
    ref: DatasetRef, landed: lance.LanceDataset, paths: Collection[str], *, job_id: str, policy: CommitPolicy
) -> None:
    """Deletes the new fragments of a commit; `paths` are their data files.

    Raises:
        CommitOutcomeUnknownError: The deletion failed, or a concurrent writer moved the rows first.
    """
    from lance import LanceOperation

    def numbers(dataset: lance.LanceDataset) -> list[int]:
        fragments = dataset.get_fragments()
        return [f.fragment_id for f in fragments if any(path_of(file) in paths for file in f.metadata.files)]

    def undo(head: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        ids, predicate = numbers(head), "rows of a commit that is undone"
        return (
            LanceOperation.Delete(updated_fragments=[], deleted_fragment_ids=ids, predicate=predicate) if ids else None
        )

    take_back(ref, undo, job_id=job_id, since=landed.version, policy=policy)
    _refuse_moved(ref, numbers(landed), landed.version)


def _refuse_moved(ref: DatasetRef, fragments: Collection[int], since: int) -> None:
    try:
        head = ref.open_latest()
    except TableNotFoundError:
        return
    for change in map(Change.of, events_between(head, since, head.version)):
        if change.operation is None or any(map(change.took_from, fragments)):
            raise CommitOutcomeUnknownError(
                "the table changed in the moment of the commit, and rows of it were moved before they could be taken "
                f"back ({change.text}) - at {ref.uri} - delete these rows, or restore version {since - 1}",
                uri=ref.uri,
            )
