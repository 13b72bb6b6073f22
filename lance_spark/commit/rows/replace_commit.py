"""Commits removed and added rows as a single version: :func:`commit_replaced`."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit, check_landed
from lance_spark.commit.changes import CommitResult, RowsToReplace
from lance_spark.commit.commit_loop import CommitPolicy, commit_job, properties_of
from lance_spark.commit.conflicts.history import Change, events_between, first_unknown
from lance_spark.commit.verify import take_back_rows
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError, TableNotFoundError

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata


class CommitTakenBackError(CommitConflictError):
    """The commit was taken back, and an old version names its files."""


_logger = logging.getLogger(__name__)


def commit_replaced(
    ref: DatasetRef, change: RowsToReplace, *, job_id: str, policy: CommitPolicy | None = None
) -> CommitResult:
    """Commits if the fragments of removed rows are unchanged since the read version.

    Runs on the driver. A second commit with the same `job_id` returns the result of the first
    commit. If two commits with a stamp read the same version, a single commit succeeds. Measured:
    pylance refuses a commit concurrent with any commit to the same fragments, so each commit
    touches a fragment. In a table without fragments, both commits land, and the second commit is
    taken back.

    Raises:
        CommitConflictError: A concurrent writer changed these fragments, or committed with a stamp
            of the same key. Nothing was committed.
        CommitTakenBackError: The same conflict, after a version was made and taken back. The
            version names the files.
        CommitOutcomeUnknownError: The store did not answer, or the commit may have undone earlier
            commits. pylance ignores commits whose transactions are cleaned up at the same time.
        CommitError: The commit failed for another reason.
    """
    policy = policy or CommitPolicy.of(None)
    one_round = functools.partial(_commit_once, ref, change, job_id, policy)
    check = functools.partial(_refuse_misfit, change=change, ref=ref, job_id=job_id, policy=policy)
    result = commit_job(ref, job_id, change.read_version, one_round, policy, check=check)
    _logger.info("%d rows in %d fragments committed to %s as version %d (job %s)",
        result.rows, result.fragments, result.uri, result.version, result.job_id)  # fmt: skip
    return result


def _commit_once(
    ref: DatasetRef,
    change: RowsToReplace,
    job_id: str,
    policy: CommitPolicy,
    head: lance.LanceDataset | None,
    retries: int,
) -> CommitResult | Lost | Unknown:
    from lance import LanceOperation

    if head is None:
        raise TableNotFoundError(ref.uri)
    _refuse_other(head, change, ref)
    result = CommitResult(
        uri=ref.uri,
        operation="refresh",
        job_id=job_id,
        version=0,
        read_version=change.read_version,
        rows=change.rows,
        fragments=len(change.fragments),
        retries=retries,
    )
    updated = list(change.updated) if change.deletes else _touched(head)
    outcome = attempt_commit(
        head,
        LanceOperation.Update(
            removed_fragment_ids=list(change.removed),
            updated_fragments=updated,
            new_fragments=list(change.fragments),
        ),
        read_version=head.version,
        properties={**properties_of(result, change.commit_message), **change.stamp},
        storage_options=ref.storage,
    )
    if not isinstance(outcome, Landed):
        return outcome
    landed, read = outcome.dataset, head.version
    check = functools.partial(_refuse_misfit, change=change, ref=ref, job_id=job_id, policy=policy)
    return check_landed(lambda: check(landed, read)) or dataclasses.replace(
        result, version=landed.version
    )


def _refuse_misfit(
    landed: lance.LanceDataset,
    read: int,
    *,
    change: RowsToReplace,
    ref: DatasetRef,
    job_id: str,
    policy: CommitPolicy,
) -> None:
    """Raises if a commit between the checked version and this commit does not fit."""
    if change.updated or change.removed or not change.deletes:
        _refuse_lost(landed, read, ref)
    if _is_preceded(landed, change, read, landed.version - 1):
        take_back_rows(ref, landed, change.fragments, job_id=job_id, policy=policy)
        text = f"The commit was taken back, because another job committed the same rows first. Table: {ref.uri}."
        raise CommitTakenBackError(text, uri=ref.uri)


def _refuse_lost(landed: lance.LanceDataset, read: int, ref: DatasetRef) -> None:
    """Raises if pylance could not see the commits between the read version and this commit."""
    unknown = first_unknown(landed, read)
    if unknown is not None:
        raise CommitOutcomeUnknownError(
            f"The replacement of rows may have undone or doubled earlier commits (version {unknown} and later), "
            f"which were cleaned up at the same moment. The rows were read at version {read}. Table: {ref.uri}, "
            f"version {landed.version}. Refresh again, which recomputes all rows.",
            uri=ref.uri,
        )


def _refuse_other(head: lance.LanceDataset, change: RowsToReplace, ref: DatasetRef) -> None:
    """Raises if the fragments of removed rows are changed in a version.

    Raises:
        CommitConflictError: Fragments changed, another job came first, or the table was restored.
    """
    if head.version == change.read_version:
        return
    if _is_preceded(head, change, change.read_version, head.version):
        raise _preceded(ref, head.version)
    if not change.deletes:
        return
    fragment_ids = {fragment.id for fragment in change.updated}.union(change.removed)
    read = _version(head, change.read_version)
    read_fragments, current_fragments = (
        None
        if version is None
        else {
            f.fragment_id: f.metadata.to_json()
            for f in version.get_fragments()
            if f.fragment_id in fragment_ids
        }
        for version in (read, head)
    )
    if read_fragments != current_fragments:
        raise CommitConflictError(
            f"The fragments of removed rows were changed since version {change.read_version}. Table: {ref.uri}, "
            f"version {head.version}. Nothing was committed. Refresh again.",
            uri=ref.uri,
        )


def _version(head: lance.LanceDataset, version: int) -> lance.LanceDataset | None:
    """Opens a version; returns None if the version was cleaned up and its state is unknown."""
    try:
        return head.checkout_version(version)
    except (OSError, ValueError):
        if any(ref["version"] == version for ref in head.version_refs()):
            raise
        return None


def _is_preceded(dataset: lance.LanceDataset, change: RowsToReplace, after: int, upto: int) -> bool:
    """Tells whether a stamp of the same key or a table replacement came between two versions."""
    return any(
        Change.of(event).replaces or not change.stamp.keys().isdisjoint(event.properties)
        for event in events_between(dataset, after, upto)
    )


def _preceded(ref: DatasetRef, version: int) -> CommitConflictError:
    text = (
        f"Another job committed first, or the table was restored. Table: {ref.uri}, version {version}. Nothing was "
        "committed. Refresh again."
    )
    return CommitConflictError(text, uri=ref.uri)


def _touched(head: lance.LanceDataset) -> list[FragmentMetadata]:
    """Returns an unchanged fragment to name in a commit, so pylance detects a conflict."""
    return [fragment.metadata for fragment in head.get_fragments()[:1]]
