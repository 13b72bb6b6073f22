"""Commits new rows on top of whatever came first: :func:`commit_rows`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.commit_loop import properties_of, run_rounds
from lance_spark.commit.conflicts.history import UNDONE_KEY, events_between
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_logger = logging.getLogger(__name__)


def commit_rows(
    ref: DatasetRef, change: RowsToCommit, *, job_id: str, policy: CommitPolicy | None = None
) -> CommitResult:
    """Commits new fragments as one version, on top of whatever came first.

    Runs in Spark's commit process, without a session.

    Args:
        ref: The table; its version is not looked at.
        change: The fragments and what they are for.
        job_id: Identifies the job over attempts; a second commit with the same id returns the
            result of the first.
        policy: Bounds of the retries; by default as the environment says.

    Returns:
        What was committed.

    Raises:
        CommitConflictError: A concurrent writer dropped or changed columns of the table meanwhile,
            so the fragments do not fit it.
        CommitOutcomeUnknownError: The store did not answer, and whether the commit happened is not
            known. The files must be kept.
        CommitError: The commit did not happen, for another reason.
    """

    def one_round(head: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        return _commit_rows_once(ref, head, change, job_id, retries)

    result = run_rounds(ref, job_id, change.read_version or 0, one_round, policy or CommitPolicy.of(None))
    _logger.info(
        "%s of %d rows in %d fragments committed to %s as version %d after %d retries (job %s)",
        result.operation, result.rows, result.fragments, result.uri, result.version, result.retries, job_id,
    )  # fmt: skip
    return result


def _commit_rows_once(
    ref: DatasetRef, head: lance.LanceDataset | None, change: RowsToCommit, job_id: str, retries: int
) -> CommitResult | Lost | Unknown:
    from lance import LanceOperation

    fragments = list(change.fragments)
    creates = head is None
    result = CommitResult(
        uri=ref.uri,
        operation="create" if creates else change.mode,
        job_id=job_id,
        version=0,
        read_version=change.read_version,
        rows=change.rows,
        fragments=len(fragments),
        retries=retries,
    )
    operation: LanceOperation.BaseOperation
    if head is None or change.mode == "overwrite":
        operation = LanceOperation.Overwrite(change.schema, fragments)
    else:
        refuse_changed_fields(head, change.fields, _used_fields(fragments), ref.uri, change.read_version)
        operation = LanceOperation.Append(fragments)
    outcome = attempt_commit(
        # Read version 0 creates: pylance refuses it where a table came first, so that a creation
        # overwrites no table.
        ref.uri if head is None else head,
        operation,
        read_version=0 if head is None else head.version,
        properties=properties_of(result, change.commit_message),
        storage_options=ref.storage,
        enable_stable_row_ids=change.enable_stable_row_ids if creates else None,
    )
    if not isinstance(outcome, Landed):
        return outcome
    landed = outcome.dataset
    if head is not None and change.mode == "append" and landed.version != head.version + 1:
        _check_slipped_append(landed, change, ref, job_id)
    return dataclasses.replace(result, version=landed.version)


def _used_fields(fragments: Collection[FragmentMetadata]) -> frozenset[int]:
    return frozenset(field for fragment in fragments for file in fragment.files for field in file.fields)


def refuse_changed_fields(
    head: lance.LanceDataset,
    fields: Collection[FieldIdentity],
    used: frozenset[int],
    uri: str,
    read_version: int | None,
) -> None:
    """Refuses new rows whose columns are not the table's columns any more.

    Measured: pylance accepts an append whose column was dropped, renamed or cast meanwhile, and the
    values are lost or land under another name without an error.

    Raises:
        CommitConflictError: A column was dropped, renamed, cast, or made anew, or may not hold NULL
            any more; or the table was created with other columns meanwhile.
    """
    now = {(field.id, field.name, field.type): field for field in field_identities(head.lance_schema)}
    changed = [f.name for f in fields if not used.isdisjoint(f.ids) and (f.id, f.name, f.type) not in now]
    nullable = {f.id for f in fields if f.nullable or used.isdisjoint(f.ids)}
    # A column that is read as NULL in these rows, or may be: with one NULL in a column that holds
    # none, no row can be read any more.
    changed += [f.name for f in now.values() if not f.nullable and (f.id in nullable or used.isdisjoint(f.ids))]
    if not changed:
        return
    since = 0 if read_version is None else read_version
    events = ", ".join(
        f"{e.name} at version {e.version}"
        for e in events_between(head, since, head.version)
        if e.name in ("Project", "Merge", "Overwrite", "Restore", "unknown")
    )
    raise CommitConflictError(
        f"columns {', '.join(map(repr, changed))} were dropped or changed, or do not take NULL any more, while rows "
        f"for them were written ({events}) - at {uri}, version {head.version} - nothing was committed; write again",
        uri=uri,
    )


def _check_slipped_append(landed: lance.LanceDataset, change: RowsToCommit, ref: DatasetRef, job_id: str) -> None:
    """Takes rows out again that landed where columns had changed between look and commit."""
    from lance import LanceOperation

    try:
        refuse_changed_fields(landed, change.fields, _used_fields(change.fragments), ref.uri, change.read_version)
    except CommitConflictError:
        ours = {file.path for fragment in change.fragments for file in fragment.files}
        ids = [f.fragment_id for f in landed.get_fragments() if any(d.path in ours for d in f.metadata.files)]
        operation = LanceOperation.Delete(
            updated_fragments=[], deleted_fragment_ids=ids, predicate="rows of a commit that is undone"
        )
        undone = attempt_commit(
            landed, operation, read_version=landed.version, properties={UNDONE_KEY: job_id}, storage_options=ref.storage
        )
        if not isinstance(undone, Landed):
            raise CommitOutcomeUnknownError(
                f"columns changed while rows were committed, and the rows could not be taken out again: {undone.error} "
                f"- at {ref.uri}, "
                f"version {landed.version}, fragments {ids} - delete these rows, or restore the version before",
                uri=ref.uri,
            ) from undone.error
        raise
