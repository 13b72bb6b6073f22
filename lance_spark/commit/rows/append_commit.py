"""Commits new rows on top of the latest version: :func:`commit_rows`."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.app_transaction import RepeatedTransactionError
from lance_spark.commit.attempt import (
    Landed,
    Lost,
    Unknown,
    attempt_commit,
    attempt_empty_table,
    check_landed,
)
from lance_spark.commit.changes import CommitResult, RowsToCommit
from lance_spark.commit.commit_loop import CommitPolicy, commit_job, properties_of
from lance_spark.commit.conflicts.history import events_between
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.rows.binding_carry import carry_bindings
from lance_spark.commit.verify import take_back_rows
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError, TableExistsError

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation

_logger = logging.getLogger(__name__)


def commit_rows(
    ref: DatasetRef,
    change: RowsToCommit,
    *,
    job_id: str,
    policy: CommitPolicy | None = None,
    head: lance.LanceDataset | None = None,
) -> CommitResult:
    """Commits new fragments as a single version on top of the latest version.

    Runs on the driver without a session. Ignores the version of `ref`. A second commit with the
    same `job_id` returns the result of the first. By default, the environment bounds the retries.
    `head` is the latest version, if the caller has just opened the table and found no commit of the
    job.

    Raises:
        CommitConflictError: A concurrent writer deleted the branch or the table, or dropped or
            changed columns of the table, so the fragments do not fit the table.
        TableExistsError: The mode is `create`, and the table exists.
        CommitOutcomeUnknownError: The store did not answer, so the outcome of the commit is
            unknown. The files must be kept.
        CommitError: The commit failed for another reason.
    """
    policy = policy or CommitPolicy.of(None)
    existed = head is not None or change.read_version is not None

    def one_round(head: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        nonlocal existed
        if head is None:
            _refuse_absence(ref, change, existed=existed)
        existed = existed or head is not None
        return _commit_rows_once(ref, change, job_id, policy, head, retries)

    check = functools.partial(_refuse_slipped, change=change, ref=ref, job_id=job_id, policy=policy)
    since = (change.read_version or 0) if head is None else head.version
    result = commit_job(ref, job_id, since, one_round, policy, check=check, head=head)
    _logger.info(
        "%s of %d rows in %d fragments committed to %s as version %d after %d retries (job %s)",
        result.operation, result.rows, result.fragments, result.uri, result.version, result.retries, job_id,
    )  # fmt: skip
    return result


def _refuse_absence(ref: DatasetRef, change: RowsToCommit, *, existed: bool) -> None:
    """Raises if the write must not create an absent table."""
    if ref.branch is not None:
        raise CommitConflictError(
            f"The branch {ref.branch!r} was deleted during the write. Table: {ref.table_uri}. Nothing was committed. "
            "Write again to an existing branch.",
            uri=ref.uri,
        )
    if existed and change.mode == "append":
        raise CommitConflictError(
            f"The table was deleted while its rows were written. Table: {ref.uri}. Nothing was committed. Write again.",
            uri=ref.uri,
        )


def _commit_rows_once(
    ref: DatasetRef,
    change: RowsToCommit,
    job_id: str,
    policy: CommitPolicy,
    head: lance.LanceDataset | None,
    retries: int,
) -> CommitResult | Lost | Unknown:
    if head is not None and change.transaction is not None:
        change.transaction.refuse_repeated(head, ref.uri)
    if head is not None and change.mode == "create":
        raise TableExistsError(
            ref.uri, hint="a concurrent writer created the table first; nothing was committed"
        )
    result = CommitResult(
        uri=ref.uri,
        operation="create" if head is None else change.mode,
        job_id=job_id,
        version=0,
        read_version=change.read_version,
        rows=change.rows,
        fragments=len(change.fragments),
        retries=retries,
    )
    properties = properties_of(result, change.commit_message, change.properties, change.transaction)
    outcome = _attempt(ref, change, head, job_id, properties)
    if not isinstance(outcome, Landed):
        return outcome
    landed = outcome.dataset
    result = dataclasses.replace(result, version=landed.version)
    if head is None:
        return result
    read = head.version
    check = functools.partial(_refuse_slipped, change=change, ref=ref, job_id=job_id, policy=policy)
    return check_landed(lambda: check(landed, read)) or result


def _attempt(
    ref: DatasetRef,
    change: RowsToCommit,
    head: lance.LanceDataset | None,
    job_id: str,
    properties: Mapping[str, str],
) -> Landed | Lost | Unknown:
    from lance import LanceOperation

    fragments = list(change.fragments)
    if head is None and not fragments:
        return attempt_empty_table(
            ref.uri,
            change.schema,
            data_storage_version=change.data_storage_version,
            properties=properties,
            storage_options=ref.storage,
            enable_stable_row_ids=change.enable_stable_row_ids,
        )
    operation: LanceOperation.BaseOperation
    if head is None:
        operation = LanceOperation.Overwrite(change.schema, fragments)
    elif change.mode == "overwrite":
        operation = LanceOperation.Overwrite(carry_bindings(change.schema, head, job_id), fragments)
    else:
        _refuse_changed_fields(head, change, ref.uri)
        operation = LanceOperation.Append(fragments)
    return attempt_commit(
        # Read version 0 creates a table. If a table already exists, pylance refuses the commit and
        # overwrites nothing.
        ref.uri if head is None else head,
        operation,
        read_version=0 if head is None else head.version,
        properties=properties,
        storage_options=ref.storage,
        enable_stable_row_ids=change.enable_stable_row_ids if head is None else None,
    )


def _refuse_changed_fields(head: lance.LanceDataset, change: RowsToCommit, uri: str) -> None:
    """Raises if the columns of new rows are no longer the table's columns.

    Measured: pylance refuses an append only after a concurrent Overwrite or Restore. After a drop,
    rename or cast of a column, its values are lost or land under another name without an error.

    Raises:
        CommitConflictError: The columns differ, or a column no longer allows NULL.
    """
    used_ids = {
        field for fragment in change.fragments for file in fragment.files for field in file.fields
    }
    columns = field_identities(head.lance_schema)
    changed = [
        *_replaced_columns(columns, change, used_ids),
        *_refused_nulls(columns, change, used_ids),
    ]
    if not changed:
        return
    events = ", ".join(
        f"{e.name} at version {e.version}"
        for e in events_between(head, change.read_version or 0, head.version)
        if e.name in ("Project", "Merge", "Overwrite", "Restore", "unknown")
    )
    raise CommitConflictError(
        f"Columns {', '.join(map(repr, changed))} were dropped or changed, or do not allow NULL any more, during the "
        f"write ({events}). Table: {uri}, version {head.version}. Nothing was committed. Write again.",
        uri=uri,
    )


def _replaced_columns(
    columns: Sequence[FieldIdentity], change: RowsToCommit, used_ids: set[int]
) -> list[str]:
    """Returns the written columns that the table has no longer under their ids, names and types."""
    present = {(field.id, field.name, field.type) for field in columns}
    used = [field for field in change.fields if not used_ids.isdisjoint(field.ids)]
    return [field.name for field in used if (field.id, field.name, field.type) not in present]


def _refused_nulls(
    columns: Sequence[FieldIdentity], change: RowsToCommit, used_ids: set[int]
) -> list[str]:
    """Returns the non-nullable columns with a certain or possible NULL in the rows.

    A single NULL in a non-nullable column makes all rows unreadable.
    """
    nullable_ids = {
        field.id for field in change.fields if field.nullable or used_ids.isdisjoint(field.ids)
    }
    required = [field for field in columns if not field.nullable]
    return [
        field.name
        for field in required
        if field.id in nullable_ids or used_ids.isdisjoint(field.ids)
    ]


def _refuse_slipped(
    landed: lance.LanceDataset,
    read: int,
    *,
    change: RowsToCommit,
    ref: DatasetRef,
    job_id: str,
    policy: CommitPolicy,
) -> None:
    """Takes committed rows back if columns changed between the check and the commit.

    Rows are also taken back if another process committed the same transaction in between.

    Raises:
        CommitConflictError: The rows were taken back.
        RepeatedTransactionError: The rows were taken back, because the table has them already.
        CommitOutcomeUnknownError: Other writers moved the rows, so the table has or may have the
            rows of the commit.
    """
    if landed.version == read + 1:
        return
    if change.mode == "append":
        try:
            _refuse_changed_fields(landed, change, ref.uri)
        except CommitConflictError:
            take_back_rows(ref, landed, change.fragments, job_id=job_id, policy=policy)
            raise
    _take_back_repeated(landed, read, change=change, ref=ref, job_id=job_id, policy=policy)


def _take_back_repeated(
    landed: lance.LanceDataset,
    read: int,
    *,
    change: RowsToCommit,
    ref: DatasetRef,
    job_id: str,
    policy: CommitPolicy,
) -> None:
    """Takes an append back if the same transaction landed between the check and the commit.

    Measured: pylance refuses the second of two concurrent overwrites, unless the first version was
    cleaned up.

    Raises:
        RepeatedTransactionError: The commit was taken back.
        CommitOutcomeUnknownError: Other writers changed the rows first, or a version was cleaned up
            that may be a commit of the transaction.
    """
    pending = change.transaction
    if pending is None:
        return
    prior, unknown = pending.find_between(landed, read, ref.uri)
    try:
        if prior is not None:
            raise pending.repeated(prior, ref.uri)
        is_unknown = unknown is not None and AppLedger(
            ref=ref, transaction=pending.transaction
        ).has_others(pending)
    except RepeatedTransactionError:
        if change.mode == "append":
            take_back_rows(ref, landed, change.fragments, job_id=job_id, policy=policy)
            raise
        is_unknown = True
    if is_unknown:
        raise CommitOutcomeUnknownError(
            f"{pending.transaction.text} was committed as version {landed.version}, and may have been committed by "
            f"another process before, in version {unknown}, which was cleaned up. Table: {ref.uri}. Check the rows of "
            "the transaction.",
            uri=ref.uri,
        )
