"""Builds an index in Spark's tasks, and commits it: :func:`build_index`. Runs on the driver.

A large column is cut into runs of fragments, a task builds a segment of each, and one task merges
them; graphs (HNSW) stay apart. Vectors get a common model first, that one task trains. What
fragments other writers move or rewrite meanwhile is indexed by one more task afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_spark.backfill.driver.answers import NamedJob, collect_answers
from lance_spark.backfill.driver.spark_failure import SparkFailure
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import IndexBuildError, rebuild
from lance_spark.indexes.commit import (
    IndexToCommit,
    TooMuchMovedError,
    commit_index,
    files_by_fragment,
    replaced_segments,
)
from lance_spark.indexes.definition import TASK_ROWS, IndexDefinition, checked, indexed_column
from lance_spark.indexes.segments import cut, segment_of_json
from lance_spark.indexes.tasks import ANSWER, BuildSegments, IndexWork, MergeSegments, TrainModel, discard
from lance_spark.indexes.upkeep import optimize_indices
from lance_spark.session.sessions import known_slots
from lance_spark.staging.area import Staging, new_id

if TYPE_CHECKING:
    from lance.dataset import Index
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

MOST_TASKS = 64
"""Tasks of one index where the cluster's size is not known, and at most: all segments that they
make are merged in one task, or searched one after the other."""

_LEAST_SHARES = (0.5, 0.5, 0.0)
"""An index that would serve less than this share of what it was built of is built again; the last
one is committed as it is."""


def build_index(spark: Callable[[], SparkSession], ref: DatasetRef, definition: IndexDefinition) -> None:
    """Builds an index of the latest version, and commits it beside other writers.

    The session starts after all checks.

    Raises:
        ColumnNotFoundError, UnsupportedTypeError, OptionError, IndexExistsError: It cannot be
            made. Nothing was changed.
        IndexBuildError: A task failed. Nothing was changed.
        CommitImpossibleError: Its column was dropped or cast meanwhile.
        CommitError: It was not committed, for another reason.
    """
    refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    job_id = new_id()
    for share in _LEAST_SHARES:
        index = _built(spark, ref.pin(None), definition, job_id)
        try:
            result = commit_index(ref, index, job_id=job_id, least_share=share)
        except TooMuchMovedError as error:
            discard(ref, index.segments)
            _LOG.info("index %s is built again: %s", definition.name, error)
        except Exception:
            # Only where nothing can name them any more; of an unknown outcome they may be needed.
            if not _is_committed(ref, index.segments):
                discard(ref, index.segments)
            raise
        else:
            if result.rows < index.rows:
                optimize_indices(spark, ref, (definition.name,))
            return


def _is_committed(ref: DatasetRef, segments: Sequence[Index]) -> bool:
    """Tells whether the latest version may name a segment."""
    ours = {segment.uuid for segment in segments}
    try:
        found = ref.open_latest().describe_indices()
    except OSError:
        return True
    return any(segment.uuid in ours for index in found for segment in index.segments)


def _built(
    spark: Callable[[], SparkSession], pinned: DatasetRef, definition: IndexDefinition, job_id: str
) -> IndexToCommit:
    """Builds the segments of an index of a pinned version."""
    dataset = pinned.open()
    column = indexed_column(dataset, definition.column)
    files = files_by_fragment(dataset, column.top)
    rows = sum(live for live, _ in files.values())
    whole = checked(definition, column, rows)
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
            f"index {whole.name!r} ({whole.kind}) of column {whole.column!r} could not be built: it has too few values "
            f"to train a model - in {pinned.uri}, version {pinned.version} - nothing was changed; use IVF_FLAT, or add "
            "rows",
            uri=pinned.uri,
        )
    return IndexToCommit(
        definition=whole, read_version=dataset.version, column=column.top, files=files, segments=segments
    )


class _Run:
    """The Spark jobs that build one index."""

    def __init__(self, spark: SparkSession, work: IndexWork, job_id: str) -> None:
        self.trained = False
        self._spark = spark
        self._work = work
        self._job_id = job_id

    def segments(self, fragments: Sequence[tuple[int, int]], *, folder: str) -> list[Index]:
        """Returns the segments to commit."""
        wanted = self._work.definition
        most = min(known_slots(self._spark) or MOST_TASKS, MOST_TASKS)
        runs = tuple(cut(fragments, task_rows=TASK_ROWS[wanted.kind], most=most))
        work = self._work
        if wanted.is_vector and len(runs) > 1:
            work = replace(work, folder=folder)
            self.trained = True
            self._tasks(1, TrainModel(work=work), "trains")
        built = self._tasks(len(runs), BuildSegments(work=work, runs=runs), "builds")
        segments = [segment_of_json(text) for text in built]
        if len(runs) == 1 or not wanted.merges:
            return segments
        try:
            (merged,) = self._tasks(1, MergeSegments(work=work, segments=tuple(built)), "merges")
        finally:
            discard(work.ref, segments)
        return [segment_of_json(merged)]

    def _tasks(self, count: int, task: Callable[[Any], Any], does: str) -> list[str]:
        wanted = self._work.definition
        description = f"{does} index {wanted.name} of {self._work.ref.uri}"
        return collect_answers(
            self._spark,
            lambda: self._spark.range(0, count, 1, count).mapInArrow(task, ANSWER),
            NamedJob(tag=f"lance-spark-{self._job_id}", description=description),
            explain=lambda failure: explain(failure, self._work.ref.uri),
        )


def explain(failure: SparkFailure, uri: str) -> None:
    """Raises the error of ours that a task ended with.

    Raises:
        IndexBuildError: It was one.
    """
    if failure.error_type.rpartition(".")[2] == IndexBuildError.__name__:
        raise rebuild(IndexBuildError, (failure.message,), {"uri": uri})
