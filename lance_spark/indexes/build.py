"""Builds an index in Spark tasks, and commits the index: :func:`build_index`. Runs on the driver.

A task builds a segment for each run of fragments of a large column, and another task merges the
segments. Graphs (HNSW) are not merged. For vectors a task trains a common model first. After the
commit a further task indexes the fragments that concurrent writers moved or rewrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from lance_spark.commit.commit_loop import CommitPolicy, Outdated, evaluate_until_committed
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import IndexBuildError
from lance_spark.indexes.commit import (
    IndexToCommit,
    TooMuchMovedError,
    commit_index,
    files_by_fragment,
    replaced_segments,
)
from lance_spark.indexes.definition import TASK_ROWS, IndexDefinition, checked, indexed_column
from lance_spark.indexes.segments import cut, segment_of_json
from lance_spark.indexes.tasks import BuildSegment, IndexWork, MergeSegments, TrainModel, discard
from lance_spark.indexes.upkeep import optimize_indices
from lance_spark.session.sessions import known_slots
from lance_spark.spark_jobs.failures import raise_task_errors
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.tasks import SparkTask
from lance_spark.staging.area import Staging, new_id

if TYPE_CHECKING:
    from lance.dataset import Index
    from pyspark.sql import SparkSession

_Result = TypeVar("_Result")

MOST_TASKS = 64
"""Maximum tasks of an index, also for a cluster of unknown size: one task merges all segments, or
searches scan the segments in sequence."""

_LEAST_SHARES = (0.5, 0.5, 0.0)
"""Minimum share of its rows that an index must cover, by attempt. A smaller index is built again.
The last attempt commits any index."""


def build_index(
    spark: Callable[[], SparkSession], ref: DatasetRef, definition: IndexDefinition
) -> None:
    """Builds and commits an index of the latest version. Concurrent writers may commit.

    The session starts after all checks.

    Raises:
        ColumnNotFoundError, UnsupportedTypeError, OptionError, IndexExistsError: The index is not
            valid. Nothing was changed.
        IndexBuildError: A task failed. Nothing was changed.
        CommitImpossibleError: A concurrent writer dropped or cast the column.
        CommitError: The commit failed for another reason.
    """
    refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    job_id = new_id()

    def build_and_commit(attempt: int) -> bool | Outdated:
        index = _built(spark, ref.pin(None), definition, job_id)
        try:
            result = commit_index(ref, index, job_id=job_id, least_share=_LEAST_SHARES[attempt])
        except TooMuchMovedError as error:
            discard(ref, index.segments)
            return Outdated(error=error)
        except Exception:
            # After an unknown outcome a version may name the segments.
            if not _is_committed(ref, index.segments):
                discard(ref, index.segments)
            raise
        return result.rows >= index.rows

    policy = CommitPolicy(max_retries=len(_LEAST_SHARES) - 1)
    covers_all = evaluate_until_committed(
        build_and_commit, policy, subject=f"index {definition.name!r} of {ref.uri}"
    )
    if not covers_all:
        optimize_indices(spark, ref, (definition.name,))


def _is_committed(ref: DatasetRef, segments: Sequence[Index]) -> bool:
    """Tells whether the latest version may name a segment."""
    ours = {segment.uuid for segment in segments}
    try:
        descriptions = ref.open_latest().describe_indices()
    except OSError:
        return True
    return any(segment.uuid in ours for index in descriptions for segment in index.segments)


def _built(
    spark: Callable[[], SparkSession], pinned: DatasetRef, definition: IndexDefinition, job_id: str
) -> IndexToCommit:
    """Builds the segments of an index of a pinned version."""
    dataset = pinned.open()
    column = indexed_column(dataset, definition.column)
    files = files_by_fragment(dataset, column.top)
    rows = sum(live for live, _ in files.values())
    whole = checked(definition, column, rows, dataset)
    replaced_segments(dataset, whole)
    staging = Staging(uri=pinned.uri, storage_options=pinned.storage_options, job_id=job_id)
    run = _Run(spark(), IndexWork(ref=pinned, definition=whole), job_id)
    try:
        segments = run.segments(
            [(number, live) for number, (live, _) in files.items()],
            folder=f"{staging.folder}/model",
        )
    finally:
        if run.trained:
            staging.objects.delete_folder(staging.folder)
    covered = {number for segment in segments for number in segment.fragment_ids}
    if covered != files.keys():
        discard(pinned, segments)
        raise IndexBuildError(
            f"Index {whole.name!r} ({whole.kind}) of column {whole.column!r} could not be built: there are too few "
            f"values to train a model. Table: {pinned.uri}, version {pinned.version}. Nothing was changed. Use "
            "IVF_FLAT, or add rows.",
            uri=pinned.uri,
        )
    return IndexToCommit(
        definition=whole,
        read_version=dataset.version,
        column=column.top,
        files=files,
        segments=segments,
    )


class _Run:
    """The Spark jobs that build one index."""

    def __init__(self, spark: SparkSession, work: IndexWork, job_id: str) -> None:
        self.trained = False
        self._spark = spark
        self._work = work
        self._job_id = job_id

    def segments(self, fragments: Sequence[tuple[int, int]], *, folder: str) -> list[Index]:
        """Returns the segments for the commit."""
        definition = self._work.definition
        most = (
            1 if definition.is_single else min(known_slots(self._spark) or MOST_TASKS, MOST_TASKS)
        )
        runs = cut(fragments, task_rows=TASK_ROWS[definition.kind], most=most)
        work = self._work
        if definition.is_vector and len(runs) > 1:
            work = replace(work, folder=folder)
            self.trained = True
            self._run([TrainModel(work=work)], type(None), "trains")
        builds = [BuildSegment(work=work, fragment_ids=run, is_only=len(runs) == 1) for run in runs]
        texts = self._run(builds, str, "builds")
        segments = [segment_of_json(text) for text in texts]
        if len(runs) == 1 or not definition.merges:
            return segments
        try:
            (merged,) = self._run([MergeSegments(work=work, segments=tuple(texts))], str, "merges")
        finally:
            discard(work.ref, segments)
        return [segment_of_json(merged)]

    def _run(
        self, tasks: Sequence[SparkTask[_Result]], kind: type[_Result], verb: str
    ) -> list[_Result]:
        uri = self._work.ref.uri
        tag = SparkJobTag.of(self._job_id, f"{verb} index {self._work.definition.name} of {uri}")
        with raise_task_errors(IndexBuildError, uri=uri):
            return SparkJobs(self._spark, tag).results(tasks, kind)
