"""Commits edits of rows as one version: :func:`commit_edits`."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit, check_landed
from lance_spark.commit.changes import CommitResult, RowEdits
from lance_spark.commit.commit_loop import CommitPolicy, commit_job, properties_of
from lance_spark.commit.conflicts.history import (
    NO_FRAGMENT,
    Change,
    Event,
    events_between,
    fresh_events,
)
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.verify import take_back_rows
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError, TableNotFoundError

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation

_logger = logging.getLogger(__name__)

_CHANGE_ROWS = ("Delete", "DataReplacement", "Update", "Merge")
"""Operations with changes to values of rows, or to the set of rows. An append counts as a commit
after the statement."""


class OutdatedEditsError(CommitConflictError):
    """Concurrent commits changed rows read by a statement, so the statement must run again.

    Attributes:
        taken_back: Whether a version was made and taken back. An old version names its files.
    """

    taken_back = False


def commit_edits(
    ref: DatasetRef, edits: RowEdits, *, job_id: str, policy: CommitPolicy | None = None
) -> CommitResult:
    """Commits edits if the statement could run before or after the concurrent commits.

    The edited fragments must be unchanged, and no rows may have come from other fragments since.
    Appends, and changes in place in other fragments, count as commits after the statement. A merge
    based on absent keys is outdated after any commit with a possible change of the existing keys.
    Runs on the driver. A second commit with the same `job_id` returns the result of the first.

    Raises:
        OutdatedEditsError: A concurrent commit outdated the edits. Nothing was committed.
        CommitConflictError: Other writers repeatedly committed first. Nothing was committed.
        CommitOutcomeUnknownError: The store did not answer, or the commit may have undone earlier
            commits. pylance ignores commits whose transactions are cleaned up at the same time.
        CommitError: The commit failed for another reason.
    """
    policy = policy or CommitPolicy.of(None)
    one_round = functools.partial(_commit_once, ref, edits, job_id, policy)
    check = functools.partial(_refuse_slipped, edits=edits, ref=ref, job_id=job_id, policy=policy)
    result = commit_job(ref, job_id, edits.read_version, one_round, policy, check=check)
    _logger.info(
        "%s committed to %s as version %d after %d retries: %d rows inserted, %d updated, %d deleted (job %s)",
        result.operation, result.uri, result.version, result.retries, result.rows_inserted, result.rows_updated,
        result.rows_deleted, result.job_id,
    )  # fmt: skip
    return result


def _commit_once(
    ref: DatasetRef,
    edits: RowEdits,
    job_id: str,
    policy: CommitPolicy,
    head: lance.LanceDataset | None,
    retries: int,
) -> CommitResult | Lost | Unknown:
    if head is None:
        raise TableNotFoundError(ref.uri)
    if edits.transaction is not None:
        edits.transaction.refuse_repeated(head, ref.uri)
    _refuse_outdated(head, edits, ref.uri)
    result = CommitResult(
        uri=ref.uri,
        operation=edits.operation,
        job_id=job_id,
        version=0,
        read_version=edits.read_version,
        rows=edits.rows_inserted + edits.rows_updated,
        fragments=len(edits.before) + len(edits.new),
        retries=retries,
        rows_inserted=edits.rows_inserted,
        rows_updated=edits.rows_updated,
        rows_deleted=edits.rows_deleted,
    )
    outcome = attempt_commit(
        head,
        _operation(head, edits),
        read_version=head.version,
        properties=properties_of(result, edits.commit_message, edits.properties, edits.transaction),
        storage_options=ref.storage,
    )
    if isinstance(outcome, Landed):
        landed, read = outcome.dataset, head.version
        check = functools.partial(
            _refuse_slipped, edits=edits, ref=ref, job_id=job_id, policy=policy
        )
        return check_landed(lambda: check(landed, read)) or result.at(landed.version)
    # The next look tells whether the edits are outdated. If not, the commit only lost a race.
    return replace(outcome, race=True) if isinstance(outcome, Lost) else outcome


def _operation(head: lance.LanceDataset, edits: RowEdits) -> LanceOperation.BaseOperation:
    from lance import LanceOperation

    updated, removed = list(edits.updated), [*edits.removed, NO_FRAGMENT]
    if edits.operation == "delete":
        return LanceOperation.Delete(
            updated_fragments=updated,
            deleted_fragment_ids=removed,
            predicate=edits.predicate or "true",
        )
    return LanceOperation.Update(
        updated_fragments=updated,
        removed_fragment_ids=removed,
        new_fragments=list(edits.new),
        fields_modified=list(edits.modified),
        # Without these fields, Lance marks new fragments as covered by indexes over other fields.
        fields_for_preserving_frag_bitmap=[
            number for field in field_identities(head.lance_schema) for number in field.ids
        ],
        update_mode="rewrite_columns" if edits.modified else "rewrite_rows",
        updated_fragment_offsets=dict(edits.offsets) or None,
    )


def _refuse_outdated(head: lance.LanceDataset, edits: RowEdits, uri: str) -> None:
    if head.version == edits.read_version:
        return
    reason = _find_change(head, edits)
    if reason is not None:
        raise OutdatedEditsError(
            f"The statement is outdated, because {reason} since version {edits.read_version}. Table: {uri}, version "
            f"{head.version}. Nothing was committed.",
            uri=uri,
        )


def _find_change(head: lance.LanceDataset, edits: RowEdits) -> str | None:
    """Returns the first change that outdates the edits, or None."""
    changed = sorted(
        field.name for field in set(edits.fields).difference(field_identities(head.lance_schema))
    )
    if changed:
        return f"columns {', '.join(map(repr, changed))} were changed"
    for event in events_between(head, edits.read_version, head.version):
        change = Change.of(event)
        if change.moves:
            return f"rows may have moved ({change.text})"
        if _changes_what_is_read(event, edits):
            return f"rows that the statement reads may have changed ({change.text})"
    for number, before in edits.before.items():
        fragment = head.get_fragment(number)
        if fragment is None or fragment.metadata != before:
            return f"fragment {number} was changed"
    return None


def _changes_what_is_read(event: Event, edits: RowEdits) -> bool:
    """Tells whether a commit may have changed other rows relevant to the edits."""
    if _is_empty(event):
        return False
    if edits.reads_others and event.name in _CHANGE_ROWS:
        return True
    if edits.absence is None:
        return False
    if event.name == "DataReplacement":
        return not edits.absence.fields.isdisjoint(_replaced_fields(event))
    return event.name in ("Delete", "Update") or (
        event.name == "Append" and edits.absence.after_appends
    )


def _is_empty(event: Event) -> bool:
    """Tells whether a commit is another writer's update or merge without a matching row."""
    from lance import LanceOperation

    operation = event.operation
    return isinstance(operation, LanceOperation.Update) and not (
        operation.removed_fragment_ids or operation.updated_fragments or operation.new_fragments
    )


def _replaced_fields(event: Event) -> set[int]:
    operation: Any = event.operation
    return {
        number for replacement in operation.replacements for number in replacement.new_file.fields
    }


def _refuse_slipped(
    landed: lance.LanceDataset,
    read: int,
    *,
    edits: RowEdits,
    ref: DatasetRef,
    job_id: str,
    policy: CommitPolicy,
) -> None:
    """Raises if a commit between the checked version and this commit does not fit.

    Two statements never land on the same version (:data:`NO_FRAGMENT`). Other writers may slip in,
    unless they touch a fragment of the edits.

    Raises:
        OutdatedEditsError: The edits only inserted rows, and the rows were taken back.
        CommitOutcomeUnknownError: The edits cannot be taken back.
    """
    if edits.absence is not None:
        edits = replace(edits, absence=replace(edits.absence, after_appends=False))
    for event in fresh_events(landed, read, landed.version - 1):
        if event.operation is None:
            cause = f"earlier commits (version {event.version} and later) were cleaned up at the moment of the commit"
            raise _unknown(
                ref, landed, edits, f"{cause}, so their changes may be undone or doubled"
            )
        if not _changes_what_is_read(event, edits):
            continue
        cause = (
            "another writer changed rows, which the statement may have read, at the moment of the commit (version "
            f"{event.version})"
        )
        if edits.before or edits.reads_others:
            raise _unknown(ref, landed, edits, cause)
        take_back_rows(ref, landed, edits.new, job_id=job_id, policy=policy)
        text = f"The commit was taken back, because {cause}. Table: {ref.uri}, version {landed.version}."
        error = OutdatedEditsError(text, uri=ref.uri)
        error.taken_back = True
        raise error


def _unknown(
    ref: DatasetRef, landed: lance.LanceDataset, edits: RowEdits, what: str
) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"The {edits.operation} of rows of version {edits.read_version} was committed, and {what}. Table: {ref.uri}, "
        f"version {landed.version}. Check these rows, or restore the version before and run the statement again.",
        uri=ref.uri,
    )
