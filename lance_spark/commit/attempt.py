"""One attempt at a commit, with three outcomes: landed, lost, or unknown.

The only module with calls of pylance's commit, except for changes that Lance commits by itself.
"""

from __future__ import annotations

import errno
import getpass
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from lance_spark.commit.conflicts.history import USER_KEY, note_commit
from lance_spark.commit.dropped import note_landed
from lance_spark.dataset_retries import note_failure, retry_options
from lance_spark.errors import CommitError, LanceSparkError
from lance_spark.lance_compat import (
    is_bad_request,
    is_conflict,
    is_created_meanwhile,
    is_fragment_gone,
    is_taken_slot,
    plain,
)
from lance_spark.namespaces.access import is_managed, refuse_moved, version_arguments

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance import LanceOperation

_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The commit made a version."""

    dataset: lance.LanceDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The commit certainly made no version.

    In a `race` the commit lost only a version slot, and Lance did not object to its content.
    """

    lasts: ClassVar[bool] = False
    race: bool
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store failed before its answer. The commit may have made a version.

    Attributes:
        error: The failure of the store.
        has_landed: Whether the commit made a version, and only its check has no answer.
        in_flight: Tells whether the request of the commit may still arrive, unless the commit has
            landed. The loop asks after later rounds, which may find the commit.
    """

    race: ClassVar[bool] = False
    error: Exception
    has_landed: bool = False
    in_flight: Callable[[], bool] = lambda: True

    @property
    def lasts(self) -> bool:
        """Whether a retry would fail too: a full disk, a limit, or a missing permission."""
        # Pylance reports these errors only as text.
        return any(f"(os error {number})" in str(self.error) for number in _LASTING)


def check_landed(check: Callable[[], object]) -> Unknown | None:
    """Runs the check of a landed commit.

    If the store fails, the commit counts as a commit without an answer. The loop then searches for
    the commit, and checks again.
    """
    try:
        check()
    except OSError as error:
        return Unknown(error=error, has_landed=True)
    return None


def this_user() -> str:
    """Returns the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def attempt_commit(
    base: lance.LanceDataset | str,
    operation: LanceOperation.BaseOperation,
    *,
    read_version: int,
    properties: Mapping[str, str],
    storage_options: Mapping[str, str],
    enable_stable_row_ids: bool | None = None,
) -> Landed | Lost | Unknown:
    """Commits once, without pylance's own retries, which would commit to versions not yet judged.

    The transaction carries the user, in addition to `properties`.

    Even without retries pylance rebases over commits after `read_version`, and accepts some of
    these. The caller therefore compares the landed version with the expected version.

    Raises:
        CommitError: Lance rejects the operation itself. Nothing was committed, and a retry
            cannot help.
    """
    import lance
    from lance.dataset import Transaction

    stamped = {USER_KEY: this_user(), **properties}
    transaction = Transaction(
        read_version=read_version, operation=operation, transaction_properties=stamped
    )
    uri = base if isinstance(base, str) else base.uri
    refuse_moved(uri, storage_options)
    outcome = attempt(
        uri,
        storage_options,
        lambda: lance.LanceDataset.commit(
            base,
            transaction,
            storage_options=retry_options(uri, storage_options),
            max_retries=0,
            enable_stable_row_ids=enable_stable_row_ids,
            **version_arguments(uri, storage_options),
        ),
    )
    if isinstance(outcome, Landed):
        note_landed(outcome.dataset)
        if not isinstance(base, str):
            note_commit(base, outcome.dataset, operation, stamped)
    return outcome


def attempt_empty_table(
    uri: str,
    schema: pa.Schema,
    *,
    data_storage_version: str,
    properties: Mapping[str, str],
    storage_options: Mapping[str, str],
    enable_stable_row_ids: bool,
) -> Landed | Lost | Unknown:
    """Creates a table without rows, once. A commit takes the file format only from fragments.

    Raises:
        CommitError: Lance rejects the table itself. Nothing was committed.
    """
    import lance

    if is_managed(uri, storage_options):
        # pylance creates no table at a location with versions of a namespace, except by a commit.
        return attempt_commit(
            uri,
            lance.LanceOperation.Overwrite(schema, []),
            read_version=0,
            properties=properties,
            storage_options=storage_options,
            enable_stable_row_ids=enable_stable_row_ids,
        )
    return attempt(
        uri,
        storage_options,
        lambda: lance.write_dataset(
            schema.empty_table(),
            uri,
            mode="create",
            data_storage_version=cast("Literal['stable']", data_storage_version),
            enable_stable_row_ids=enable_stable_row_ids,
            storage_options=retry_options(uri, storage_options),
            transaction_properties={USER_KEY: this_user(), **properties},
        ),
    )


def attempt(
    uri: str, storage_options: Mapping[str, str], commit: Callable[[], lance.LanceDataset]
) -> Landed | Lost | Unknown:
    """Runs one commit of pylance, and classifies its outcome. Errors of this package pass through.

    Raises:
        CommitError: Lance rejects the commit itself. Nothing was committed.
    """
    from lance.commit import CommitConflictError

    try:
        dataset = commit()
    except LanceSparkError:
        raise
    except CommitConflictError as error:
        return Lost(race=is_taken_slot(error), error=error)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        note_failure(uri, storage_options, error)
        if isinstance(error, OSError):
            if is_conflict(error):
                return Lost(race=False, error=error)
            # A fragment may disappear between the reading of the version and the commit, and a
            # cleanup may delete the transaction of its removal.
            if (is_created := is_created_meanwhile(error)) or is_fragment_gone(error):
                return Lost(race=is_created, error=error)
            if not is_bad_request(error):
                return Unknown(error=error)
        text = f"Lance refused the commit: {plain(error)}. Table: {uri}. Nothing was committed."
        raise CommitError(text, uri=uri) from error
    return Landed(dataset=dataset)
