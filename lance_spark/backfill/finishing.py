"""Finishes a DataFrame backfill on executors, where its commit had too much to carry over: :func:`finish_backfill`."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.commit.changes import CommitResult, FollowedColumns, FragmentColumns
from lance_spark.commit.column_commit import commit_columns
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitError, JobNotFoundError
from lance_spark.rebase.carry_over import CarryOver
from lance_spark.session import known_slots, session_or_local
from lance_spark.staging.area import Staging
from lance_spark.staging.job_end import commit_or_keep, find_commit, finish
from lance_spark.staging.placeholder_files import UntouchedFiles
from lance_spark.write.column_writer import fragments_of_snapshot
from lance_spark.write.pending import Pending, dump_followed, find_pending, load_followed

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession

_ANSWERS = pa.schema([("followed", pa.binary()), ("error", pa.binary())])

_TASKS_PER_SLOT = 4
"""More than one, since fragments differ in size; not one per fragment, since each may have to read the table's history."""
_ASSUMED_SLOTS = 64
"""Where the size of the cluster is not known, or changes."""


def finish_backfill(
    path: str, job_id: str, storage_options: Mapping[str, str] | None = None, *, spark: SparkSession | None = None
) -> CommitResult:
    """Commits a DataFrame backfill whose commit ended with a :class:`~lance_spark.errors.CarryOverTooLargeError`.

    The values that were written are carried over to where their rows are now by tasks on executors, and committed at once.
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
    follow = _SparkFollow(session_or_local(spark), staging, snapshot)
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
    """Follows fragments on executors: a :class:`~lance_spark.commit.protocols.Follow`."""

    spark: SparkSession
    staging: Staging
    snapshot: DatasetRef

    def __call__(
        self, head: lance.LanceDataset, lineage: Lineage, fragments: Sequence[int], /
    ) -> list[FollowedColumns]:
        """Runs tasks; executors read the lineage themselves.

        Raises:
            CommitError: As a task says; or tasks failed for another reason.
        """
        del lineage
        ref = DatasetRef(uri=self.snapshot.uri, storage_options=self.snapshot.storage_options).pin(head.version)
        work = _Work(self.staging, ref, tuple(fragments))
        try:
            tasks = min(len(fragments), _TASKS_PER_SLOT * (known_slots(self.spark) or _ASSUMED_SLOTS))
            frame = self.spark.range(0, len(fragments), 1, tasks).mapInArrow(work, "followed binary, error binary")
            rows = frame.collect()
        except Exception as error:
            # As a CommitError, so that a commit is taken back that was to be mended.
            text = " ".join(str(error).strip().splitlines()[:2]) or repr(error)
            raise CommitError(
                f"executors could not carry values over: {text} - at {self.staging.uri} - what was written is kept: "
                f"lance_spark.finish_backfill({self.staging.uri!r}, {self.staging.job_id!r}) tries again",
                uri=self.staging.uri,
            ) from error
        for _, said in rows:
            if said is not None:
                raise _said(said)
        return [load_followed(bytes(followed)) for followed, _ in rows]


def _said(payload: bytes) -> CommitError:
    """Returns the error of a task, which came through Spark and from nowhere else."""
    error: CommitError = pickle.loads(bytes(payload))  # noqa: S301 - of this job's own tasks
    return error


@dataclass(frozen=True, slots=True)
class _Work:
    """What Spark runs on executors: the number of a fragment becomes what was carried over to it, or the error. Pickled by reference."""

    staging: Staging
    head: DatasetRef
    fragments: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_numpy():
                answer = self._answer(self.fragments[int(index)])
                yield pa.RecordBatch.from_pylist([answer], schema=_ANSWERS)
                if answer["error"] is not None:
                    return

    def _answer(self, fragment: int) -> dict[str, bytes | None]:
        try:
            return {"followed": dump_followed(self._follow(fragment)), "error": None}
        except CommitError as error:
            # Raised, it would arrive as a text, after Spark has tried three times more.
            return {"followed": None, "error": pickle.dumps(error)}

    def _follow(self, fragment: int) -> FollowedColumns:
        pending, parts = _pending(self.staging)
        lineage = _lineage(self.staging, self.head, pending.change.read_version)
        followed = CarryOver(self.staging, pending.carry, parts)(self.head.open(), lineage, [fragment])
        return followed[0]


@functools.lru_cache(maxsize=1)
def _pending(staging: Staging) -> tuple[Pending, dict[int, FragmentColumns]]:
    """Returns what is to be finished; read once per process, since it grows with the table and would go with every task."""
    pending = find_pending(staging)
    if pending is None:
        raise CommitError(
            f"what was to be finished is not there any more: another call has finished it, or it was cleaned up - at {staging.uri}, job "
            f"{staging.job_id} - lance_spark.last_commit({staging.uri!r}) tells",
            uri=staging.uri,
        )
    return pending, {part.fragment_id: part for part in pending.change.fragments}


@functools.lru_cache(maxsize=1)
def _lineage(staging: Staging, head: DatasetRef, after: int) -> Lineage:
    """Returns what happened before a version; read once per process, job and version."""
    del staging  # another job may be of a table of the same name that was made anew
    dataset = head.open()
    return Lineage.between(dataset, after, dataset.version)
