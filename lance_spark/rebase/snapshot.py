"""Checks of whether an older version of a table still exists unchanged."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from lance_spark.dataset import DatasetRef, recreated_error
from lance_spark.errors import (
    CommitImpossibleError,
    SnapshotError,
    TableNotFoundError,
    VersionNotFoundError,
)

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)


def open_base(ref: DatasetRef, version: int) -> lance.LanceDataset | None:
    """Opens an older version of a table, or returns None after its cleanup."""
    try:
        return dataclasses.replace(ref, version=version, incarnation=None).open()
    except (VersionNotFoundError, SnapshotError):
        _LOG.info("version %s of %s was cleaned up", version, ref.uri)
        return None


def open_snapshot(snapshot: DatasetRef) -> lance.LanceDataset:
    """Opens the version of a write's values, after a check on storage.

    A Python worker of Spark may hold the version open from before the table was deleted and
    recreated.

    Raises:
        CommitImpossibleError: The version was cleaned up, or the table was recreated.
    """
    try:
        check_still_there(snapshot)
        return snapshot.open()
    except (SnapshotError, VersionNotFoundError, TableNotFoundError) as error:
        raise cleaned_up(snapshot, error) from error


def cleaned_up(snapshot: DatasetRef, why: object) -> CommitImpossibleError:
    """Returns the error for rows that may have changed since their history was cleaned up."""
    text = str(why).rstrip(".")  # a sentence of another error, or a part of one
    return CommitImpossibleError(
        f"Rows may have moved or changed since version {snapshot.version}, the input of the values, and the history "
        f"since then was cleaned up: {text}. The table is {snapshot.uri}. Nothing was committed. Read the table again "
        "and write again. Tag the version before a long write (Table.backfill: protect_snapshot=True).",
        uri=snapshot.uri,
    )


def check_still_there(snapshot: DatasetRef) -> None:
    """Checks on storage whether a pinned version still exists unchanged.

    Raises:
        SnapshotError: The table was recreated.
        VersionNotFoundError, TableNotFoundError, TableUnreadableError: The version cannot be
            opened.
    """
    current = dataclasses.replace(snapshot, incarnation=None).pin(snapshot.version)
    if snapshot.incarnation not in (None, current.incarnation):
        raise recreated_error(snapshot)
