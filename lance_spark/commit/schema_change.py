"""Changes of a table's columns that write no data: :func:`change_schema`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitError
from lance_spark.lance_compat import is_conflict

if TYPE_CHECKING:
    import lance


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
