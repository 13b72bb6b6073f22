"""Finishes a DataFrame backfill on executors, where its commit had too much to carry over: :func:`finish_backfill`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.commit.changes import CommitResult, FollowedColumns
from lance_spark.commit.columns import commit_columns
from lance_spark.commit.lineage import Lineage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import JobNotFoundError
from lance_spark.session import session_or_local
from lance_spark.write.backfill_writer import fragments_of_snapshot
from lance_spark.write.carrying import CarryOver
from lance_spark.write.ending import commit_or_keep, find_commit, finish
from lance_spark.write.pending import Pending, dump_followed, find_pending, load_followed
from lance_spark.write.staging import Staging
from lance_spark.write.untouched import UntouchedFiles

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession


def finish_backfill(
    path: str, job_id: str, storage_options: Mapping[str, str] | None = None, *, spark: SparkSession | None = None
) -> CommitResult:
    """Commits a DataFrame backfill whose commit ended with a :class:`~lance_spark.errors.CarryOverTooLargeError`.

    The values that were written are carried over to where their rows are now by tasks on executors, one per fragment, and committed at once.
    May be called again after any failure; once it has committed, it returns the same result.

    Args:
        path: Location of the table.
        job_id: The job, as the error names it.
        storage_options: Options of the object store.
        spark: The session; by default the active one, or a new one.

    Raises:
        JobNotFoundError: Nothing of such a job is kept.
        CommitImpossibleError: What was written cannot be applied any more, and is deleted.
        CommitError: As for the write itself. What was written is kept, as after every other failure.
    """
    ref = DatasetRef.at(path, storage_options or {})
    staging = Staging(uri=ref.uri, storage_options=ref.storage_options, job_id=job_id)
    done = find_commit(staging, ref)
    if done is not None:
        return done
    pending = find_pending(staging)
    if pending is None:
        raise JobNotFoundError(job_id, ref.uri)
    snapshot = pending.carry.snapshot
    staging.open_job()
    stage = UntouchedFiles(staging, pending.carry.targets.format)
    follow = _SparkFollow(session_or_local(spark), staging, pending)
    outcome = commit_or_keep(
        staging,
        snapshot,
        lambda: commit_columns(
            snapshot,
            pending.change,
            job_id=job_id,
            stage=stage,
            others=fragments_of_snapshot(snapshot),
            follow=follow,
            policy=pending.policy,
        ),
    )
    of_unknown = staging.find_data_files() if outcome.files is None else stage.names
    finish(staging, snapshot, sorted(outcome.files or ()), unless_named=of_unknown)
    return outcome.result


@dataclass(frozen=True, slots=True)
class _SparkFollow:
    """Follows fragments on executors: a :class:`~lance_spark.commit.doors.Follow`."""

    spark: SparkSession
    staging: Staging
    pending: Pending

    def __call__(
        self, head: lance.LanceDataset, lineage: Lineage, fragments: Sequence[int], /
    ) -> list[FollowedColumns]:
        """Runs a task per fragment; executors read the lineage themselves."""
        del lineage
        snapshot = self.pending.carry.snapshot
        ref = DatasetRef(uri=snapshot.uri, storage_options=snapshot.storage_options).pin(head.version)
        work = _Work(self.staging, self.pending, ref, tuple(fragments))
        frame = self.spark.range(0, len(fragments), 1, len(fragments)).mapInArrow(work, "followed binary")
        return [load_followed(bytes(row[0])) for row in frame.collect()]


@dataclass(frozen=True, slots=True)
class _Work:
    """What Spark runs on executors: the number of a fragment becomes what was carried over to it. Pickled by reference."""

    staging: Staging
    pending: Pending
    head: DatasetRef
    fragments: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dataset = self.head.open()
        change = self.pending.change
        lineage = Lineage.between(dataset, change.read_version, dataset.version)
        parts = {part.fragment_id: part for part in change.fragments}
        for batch in batches:
            for index in batch.column(0).to_numpy():
                carry = CarryOver(self.staging, self.pending.carry, parts)
                followed = carry(dataset, lineage, [self.fragments[int(index)]])
                yield pa.RecordBatch.from_pydict({"followed": [dump_followed(one) for one in followed]})
