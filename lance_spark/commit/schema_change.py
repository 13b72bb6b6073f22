"""Changes of a table that write no data: of columns, indexes and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, attempt_commit
from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError, CommitConflictError, CommitError
from lance_spark.lance_compat import is_conflict

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation


def change_schema(
    ref: DatasetRef, change: Callable[[lance.LanceDataset], None], policy: CommitPolicy | None = None
) -> lance.LanceDataset:
    """Applies a change to the latest version, again where another writer came first.

    Runs on the driver. `change` checks its preconditions on the dataset that it is given, anew each
    time, and makes one commit through that handle. Returns the table as it is afterwards.

    Raises:
        CommitConflictError: Other writers kept coming first.
        CommitError: Lance refuses the change.
    """
    from lance.commit import CommitConflictError as LanceConflict

    policy = policy or CommitPolicy.of(None)
    refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
    rounds = Rounds(policy=policy)
    while True:
        rounds.begin()
        head = ref.open_latest()
        try:
            change(head)
        except (LanceConflict, OSError, TypeError, NotImplementedError) as error:
            if not isinstance(error, LanceConflict) and not is_conflict(error):
                raise CommitError(f"Lance refused the change: {error} - at {ref.uri}", uri=ref.uri) from error
            if not rounds.again(race=False):
                raise CommitConflictError(
                    f"other writers kept changing the table first: {error} - at {ref.uri} - nothing was changed; try "
                    "again",
                    uri=ref.uri,
                ) from error
        else:
            return ref.open_latest()


def commit_change(ref: DatasetRef, head: lance.LanceDataset, operation: LanceOperation.BaseOperation) -> None:
    """Makes one commit, which says who made it; for the `change` of :func:`change_schema`.

    What Lance commits by itself (drops, casts and new columns, updates of indexes) does not.
    """
    outcome = attempt_commit(head, operation, read_version=head.version, properties={}, storage_options=ref.storage)
    if not isinstance(outcome, Landed):
        raise outcome.error


def set_config(ref: DatasetRef, head: lance.LanceDataset, values: Mapping[str, str | None]) -> None:
    """Sets keys of a table's configuration, and takes those out that are None.

    One commit, as :func:`commit_change`.
    """
    from lance import LanceOperation

    commit_change(
        ref, head, LanceOperation.UpdateConfig(config_updates=LanceOperation.UpdateMap(dict(values), replace=False))
    )


def set_field_metadata(
    ref: DatasetRef, head: lance.LanceDataset, values: Mapping[str, Mapping[str, str | None]]
) -> None:
    """Sets keys of the metadata of columns, by their paths, and takes those out that are None.

    One commit, as :func:`commit_change`.

    Raises:
        ColumnNotFoundError: There is no such column.
    """
    from lance import LanceOperation

    updates = {}
    for path, given in values.items():
        field = head.lance_schema.field(path)
        if field is None:
            raise ColumnNotFoundError(path, head.uri, hint=f"the columns are {', '.join(head.schema.names)}")
        updates[field.id()] = LanceOperation.UpdateMap(dict(given), replace=False)
    commit_change(ref, head, LanceOperation.UpdateConfig(field_metadata_updates=updates))
