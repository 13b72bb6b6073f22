"""Takes a commit of column files back: where it turned out after it had landed that it must not stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.commit_loop import run_rounds
from lance_spark.commit.conflicts.history import UNDONE_KEY
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.commit.data_files import file_named, same_columns
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitOutcomeUnknownError, LanceSparkError

if TYPE_CHECKING:
    import lance

RestoreFile = Callable[[int], StagedColumns]
"""Stages a file with the values that a fragment's target columns had before the commit."""


def take_back(
    snapshot: DatasetRef,
    parts: Mapping[int, FragmentColumns],
    restore_file: RestoreFile,
    *,
    job_id: str,
    since: int,
    policy: CommitPolicy,
) -> None:
    """Gives fragments that still have files of a commit their previous values again.

    Args:
        snapshot: The table, at the version that the values belong to.
        parts: The files, by fragment.
        restore_file: Stages the previous values.
        job_id: The job whose commit it was.
        since: The version after which to look for an earlier attempt of this.
        policy: Bounds of the retries.

    Raises:
        CommitOutcomeUnknownError: It was not possible.
    """
    from lance import LanceOperation

    nothing = CommitResult(
        uri=snapshot.uri, operation="backfill", job_id=job_id, version=0, read_version=None, rows=0, fragments=0
    )
    try:
        staged: dict[int, StagedColumns] = {}

        def one_round(dataset: lance.LanceDataset | None, _retries: int) -> CommitResult | Lost | Unknown:
            if dataset is None:
                return nothing
            head = Head.of(dataset)
            live = {i for column in head.fields for i in column.ids}
            groups = []
            for fragment, part in parts.items():
                now = head.fragments.get(fragment)
                mine = None if now is None else file_named(now, part.staged.name)
                if mine is not None and live.intersection(mine.fields):
                    staged[fragment] = staged.get(fragment) or restore_file(fragment)
                    # It has the columns of the file that it replaces, under their ids: names may have changed.
                    groups.append(LanceOperation.DataReplacementGroup(fragment, same_columns(mine, staged[fragment])))
            if not groups:
                return nothing
            outcome = attempt_commit(
                dataset,
                LanceOperation.DataReplacement(groups),
                read_version=dataset.version,
                properties={UNDONE_KEY: job_id},
                storage_options=snapshot.storage,
            )
            if isinstance(outcome, Landed):
                return dataclasses.replace(nothing, version=outcome.dataset.version)
            return outcome

        run_rounds(snapshot, f"{job_id}-undo", since, one_round, policy)
    except (LanceSparkError, OSError, ValueError) as error:
        raise CommitOutcomeUnknownError(
            f"the table changed while the values were committed, and the values could not be taken back: {error} - at {snapshot.uri}, "
            f"fragments {', '.join(map(str, list(parts)[:10]))} - backfill these fragments again",
            uri=snapshot.uri,
        ) from error
