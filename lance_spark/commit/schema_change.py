"""Table changes without a job's rows: columns, indexes, settings, and small appends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt, attempt_commit, check_landed
from lance_spark.commit.commit_loop import CommitPolicy, commit_with_retries
from lance_spark.commit.conflicts.history import CHANGE_KEY, events_between, first_unknown
from lance_spark.commit.dropped import note_landed
from lance_spark.commit.verify import undone_commits
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, TableNotFoundError
from lance_spark.lance_compat import without_fields

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance import LanceOperation

Change = Callable[["lance.LanceDataset"], "LanceOperation.BaseOperation | None"]
"""Validates its preconditions on the latest version, and returns the operation to commit. If only
Lance can commit a change, the function commits through the handle and returns None. None also means
that the table needs no change."""


def change_schema(
    ref: DatasetRef,
    change: Change,
    policy: CommitPolicy | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    has_landed: Callable[[lance.LanceDataset], bool] = lambda _: False,
    discard: Callable[[], None] = lambda: None,
    head: lance.LanceDataset | None = None,
    create: Callable[[], LanceOperation.BaseOperation] | None = None,
) -> lance.LanceDataset:
    """Applies a change to the latest version, and returns the table with the change.

    Runs anywhere. Races with other writers and lost replies of the store are retried. A change with
    a lost reply is recognized by its transaction, and applied once.

    Args:
        ref: The table.
        change: The change. Every round calls the function again.
        policy: Bounds the rounds; by default from the environment.
        properties: Properties of the transaction.
        has_landed: Tells whether a version has the change. The loop calls the function after an
            attempt without an answer, for changes that Lance itself commits.
        discard: Called after an attempt that certainly made no version.
        head: The latest version, if the caller has just opened the table.
        create: Returns the operation to create a missing table with the change. Every round without
            a table calls the function again. By default a missing table is an error.

    Raises:
        CommitConflictError: Other writers kept committing first.
        CommitOutcomeUnknownError: The store did not answer, and the change may have landed; or new
            columns may have undone commits that were cleaned up in the same moment.
        CommitError: Lance refuses the change.
    """
    change_id = uuid.uuid4().hex
    stamped = {**(properties or {}), CHANGE_KEY: change_id}
    is_first_look, unanswered = True, False
    unchecked: _Basis | None = None

    def find(dataset: lance.LanceDataset, after: int) -> lance.LanceDataset | None:
        # Every attempt lands above the version of its round, so each search begins at the end of
        # the previous search.
        events = () if is_first_look else events_between(dataset, after, dataset.version)
        versions = [
            event.version for event in events if event.properties.get(CHANGE_KEY) == change_id
        ]
        is_there = bool(versions)
        if dataset.version in versions:
            note_landed(dataset)
        if not is_there and not (unanswered and has_landed(dataset)):
            return None
        if unchecked is not None:
            unchecked.refuse_undone(dataset)
        return dataset

    def one_round(
        dataset: lance.LanceDataset | None, _retries: int
    ) -> lance.LanceDataset | Lost | Unknown:
        nonlocal is_first_look, unanswered, unchecked
        is_first_look, basis = False, None
        if dataset is not None:
            basis = _Basis(dataset.version, dataset.max_field_id)
            outcome = _attempt(ref, dataset, change, stamped)
        elif create is not None:
            outcome = _attempt_creation(ref, create(), stamped)
        else:
            raise TableNotFoundError(ref.uri)
        if isinstance(outcome, Landed):
            landed, failed_check = outcome.dataset, None
            if basis is not None:
                failed_check = check_landed(partial(basis.refuse_undone, landed))
            if failed_check is None:
                return landed
            outcome = failed_check
        if isinstance(outcome, Lost):
            discard()
        else:
            unanswered, unchecked = True, unchecked or basis
        return outcome

    advice = (
        "Open the table when the store answers again, and repeat the change if the table lacks it."
    )
    return commit_with_retries(
        ref, one_round, find, policy or CommitPolicy.of(None), since=0, advice=advice, head=head
    )


@dataclass(frozen=True, slots=True)
class _Basis:
    """The version of an attempt.

    Attributes:
        version: Its number.
        max_field_id: The highest id of its fields, with the fields of dropped columns.
    """

    version: int
    max_field_id: int

    def refuse_undone(self, dataset: lance.LanceDataset) -> None:
        """Raises if new fields may have undone commits after this version.

        Fields are added by a Merge, which replaces all fragments. Lance compares a Merge with the
        transactions since its version, and a cleanup deletes transactions.

        Raises:
            CommitOutcomeUnknownError: The transaction of a version between is gone.
            OSError: The store failed.
        """
        if dataset.max_field_id <= self.max_field_id or dataset.version <= self.version + 1:
            return
        unknown = first_unknown(dataset, self.version)
        if unknown is not None:
            raise undone_commits(dataset, self.version, unknown)


def _attempt(
    ref: DatasetRef, head: lance.LanceDataset, change: Change, properties: Mapping[str, str]
) -> Landed | Lost | Unknown:
    operation: LanceOperation.BaseOperation | None = None

    def prepare() -> lance.LanceDataset:
        nonlocal operation
        operation = change(head)
        return head

    version = head.version
    outcome = attempt(ref.uri, ref.storage, prepare)
    if operation is None:
        if isinstance(outcome, Landed) and outcome.dataset.version > version:
            note_landed(outcome.dataset)
        return outcome
    return attempt_commit(
        head,
        operation,
        read_version=head.version,
        properties=properties,
        storage_options=ref.storage,
    )


def _attempt_creation(
    ref: DatasetRef, operation: LanceOperation.BaseOperation, properties: Mapping[str, str]
) -> Landed | Lost | Unknown:
    """Creates a table once.

    Neither the first append nor `mode="create"` creates the table. If two of these run
    concurrently, pylance turns one into an overwrite, which drops the rows appended by the other
    writer (measured). pylance refuses a concurrent creation at read version 0, as used here.
    """
    return attempt_commit(
        ref.uri, operation, read_version=0, properties=properties, storage_options=ref.storage
    )


def open_or_create(ref: DatasetRef, schema: pa.Schema, policy: CommitPolicy) -> lance.LanceDataset:
    """Opens the latest version; creates an empty table if necessary.

    Raises:
        CommitError: The table cannot be created.
    """
    import lance

    def one_round(
        head: lance.LanceDataset | None, _retries: int
    ) -> lance.LanceDataset | Lost | Unknown:
        if head is not None:
            return head
        outcome = _attempt_creation(ref, lance.LanceOperation.Overwrite(schema, []), {})
        return outcome.dataset if isinstance(outcome, Landed) else outcome

    return commit_with_retries(
        ref, one_round, lambda *_: None, policy, since=0, advice="Try again."
    )


def drop_operation(
    head: lance.LanceDataset, columns: Sequence[str]
) -> LanceOperation.BaseOperation:
    """Returns the operation to drop columns of a version."""
    from lance import LanceOperation

    return LanceOperation.Project(
        without_fields(head.lance_schema, columns), preserves_nullability=True
    )


def set_config(values: Mapping[str, str | None]) -> LanceOperation.BaseOperation:
    """Returns the operation to set keys of a table's configuration; None removes a key."""
    from lance import LanceOperation

    return LanceOperation.UpdateConfig(
        config_updates=LanceOperation.UpdateMap(dict(values), replace=False)
    )


def set_schema_metadata(values: Mapping[str, str | None]) -> LanceOperation.BaseOperation:
    """Returns the operation to set keys of the schema's metadata; None removes a key."""
    from lance import LanceOperation

    return LanceOperation.UpdateConfig(
        schema_metadata_updates=LanceOperation.UpdateMap(dict(values), replace=False)
    )


def set_field_metadata(
    head: lance.LanceDataset, values: Mapping[str, Mapping[str, str | None]]
) -> LanceOperation.BaseOperation:
    """Returns the operation to set keys of the metadata of columns; None removes a key.

    Args:
        head: The version with the columns.
        values: The keys by the paths of columns.

    Raises:
        ColumnNotFoundError: A path is not a column of the version.
    """
    from lance import LanceOperation

    updates = {}
    for path, metadata in values.items():
        field = head.lance_schema.field(path)
        if field is None:
            raise ColumnNotFoundError(
                path, head.uri, hint=f"the columns are {', '.join(head.schema.names)}"
            )
        updates[field.id()] = LanceOperation.UpdateMap(dict(metadata), replace=False)
    return LanceOperation.UpdateConfig(field_metadata_updates=updates)
