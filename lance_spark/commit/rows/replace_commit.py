"""Commits rows that go and rows that come as one version: :func:`commit_replaced`."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, RowsToReplace
from lance_spark.commit.commit_loop import properties_of, run_rounds
from lance_spark.commit.conflicts.history import Change, events_between
from lance_spark.commit.verify import take_back_rows
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError, TableNotFoundError
from lance_spark.lance_compat import path_of

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata


class CommitTakenBackError(CommitConflictError):
    """A commit that was taken back: an old version names its files."""


_logger = logging.getLogger(__name__)


def commit_replaced(
    ref: DatasetRef, change: RowsToReplace, *, job_id: str, policy: CommitPolicy | None = None
) -> CommitResult:
    """Commits where the fragments that rows go from are as they were in the version that was read.

    Runs on the driver. A second commit with the same `job_id` returns the result of the first. Of
    two commits with a stamp that read one version, one holds. Measured: pylance refuses a commit
    beside whatever touches the same fragments, so each touches one; in a table without any both
    land, and the second is taken back.

    Raises:
        CommitConflictError: A concurrent writer changed these fragments, or has committed with a
            stamp of the same key. Nothing was committed.
        CommitTakenBackError: The same, but a version was made and taken back, which names the
            files.
        CommitOutcomeUnknownError: The store did not answer; or pylance let the commit pass over
            others whose transactions were cleaned up in that moment, and may have undone them.
        CommitError: The commit did not happen, for another reason.
    """
    policy = policy or CommitPolicy.of(None)
    one_round = functools.partial(_commit_once, ref, change, job_id, policy)
    check = functools.partial(_check_landed, change=change, ref=ref, job_id=job_id, policy=policy)
    result = run_rounds(ref, job_id, change.read_version, one_round, policy, check=check)
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
    _check_landed(outcome.dataset, head.version, change=change, ref=ref, job_id=job_id, policy=policy)
    return dataclasses.replace(result, version=outcome.dataset.version)


def _check_landed(
    landed: lance.LanceDataset, read: int, *, change: RowsToReplace, ref: DatasetRef, job_id: str, policy: CommitPolicy
) -> None:
    """Raises if a commit between the version that was looked at and this commit does not fit."""
    if change.updated or change.removed or not change.deletes:
        _refuse_lost(landed, read, ref)
    if _is_preceded(landed, change, read, landed.version - 1):
        paths = {path_of(file) for fragment in change.fragments for file in fragment.files}
        take_back_rows(ref, landed, paths, job_id=job_id, policy=policy)
        text = f"another job committed the same in that moment, so this was taken back - at {ref.uri} - look again"
        raise CommitTakenBackError(text, uri=ref.uri)


def _refuse_lost(landed: lance.LanceDataset, read: int, ref: DatasetRef) -> None:
    """Raises where pylance could not see what came between the version read and a commit."""
    lost = [event.version for event in events_between(landed, read, landed.version - 1) if event.operation is None]
    if lost:
        raise CommitOutcomeUnknownError(
            f"rows were replaced in version {read}, and commits that came first (version {lost[0]} and later) were "
            "cleaned up in that moment, so that what they changed may be undone, or be there twice - "
            f"at {ref.uri}, version {landed.version} - do it again: all rows are made anew then",
            uri=ref.uri,
        )


def _refuse_other(head: lance.LanceDataset, change: RowsToReplace, ref: DatasetRef) -> None:
    """Refuses a version in which the fragments that rows go from are not as they were.

    Raises:
        CommitConflictError: It is one.
    """
    if head.version == change.read_version:
        return
    if _is_preceded(head, change, change.read_version, head.version):
        raise _preceded(ref, head.version)
    if not change.deletes:
        return
    wanted = {fragment.id for fragment in change.updated}.union(change.removed)
    read = _version(head, change.read_version)
    then, now = (
        None
        if version is None
        else {f.fragment_id: f.metadata.to_json() for f in version.get_fragments() if f.fragment_id in wanted}
        for version in (read, head)
    )
    if then != now:
        raise CommitConflictError(
            f"fragments that rows go from were changed since version {change.read_version} - at {ref.uri}, version "
            f"{head.version} - nothing was committed; look at it again",
            uri=ref.uri,
        )


def _version(head: lance.LanceDataset, version: int) -> lance.LanceDataset | None:
    """Returns a version; None where it was cleaned up, so that nothing tells what it was."""
    try:
        return head.checkout_version(version)
    except (OSError, ValueError):
        if any(kept["version"] == version for kept in head.version_refs()):
            raise
        return None


def _is_preceded(dataset: lance.LanceDataset, change: RowsToReplace, after: int, upto: int) -> bool:
    """Tells whether another stamp, or rows of another version, came between two versions."""
    return any(
        Change.of(event).replaces or not change.stamp.keys().isdisjoint(event.properties)
        for event in events_between(dataset, after, upto)
    )


def _preceded(ref: DatasetRef, version: int) -> CommitConflictError:
    text = f"another job came first, or the table was restored - at {ref.uri}, version {version} - look at it again"
    return CommitConflictError(text, uri=ref.uri)


def _touched(head: lance.LanceDataset) -> list[FragmentMetadata]:
    """Returns a fragment that a commit names as it is, so that pylance sees a conflict."""
    return [fragment.metadata for fragment in head.get_fragments()[:1]]
