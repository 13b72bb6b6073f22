"""Upkeep of indexes: optimizing, waiting, and dropping."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_spark.commit.commit_loop import CommitPolicy, Outdated, evaluate_until_committed
from lance_spark.commit.schema_change import change_schema
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    IndexBuildError,
    IndexNotFoundError,
    IndexTimeoutError,
    counted,
    panics_as_errors,
)
from lance_spark.indexes.listing import find_index, index_stats, kind_of
from lance_spark.indexes.segments import named_segment
from lance_spark.lance_compat import plain
from lance_spark.spark_jobs.failures import raise_task_errors
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.staging.area import new_id

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from pyspark.sql import SparkSession

_LONGEST_WAIT_S = 2.0
_DROPS = CommitPolicy(max_retries=9)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeIndex:
    """Adds the rows to an index that the index does not cover.

    Attributes:
        ref: The table.
        name: The index.
        merge: Parts of a vector index to merge with the new rows. None leaves the number to Lance.
        retrain: Whether to train the model of a vector index again.
        policy: The driver's limits of the retries, and its verdict on the store.
    """

    ref: DatasetRef
    name: str
    merge: int | None
    retrain: bool
    policy: CommitPolicy

    def run(self) -> None:
        """Optimizes the index, and retries if other writers commit first. Runs on an executor."""
        try:
            with panics_as_errors():
                head = change_schema(self.ref, self._optimize, self.policy)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, CommitConflictError | IndexNotFoundError):
                raise
            raise IndexBuildError(
                f"Index {self.name!r} could not be optimized: {plain(error)}. Table: {self.ref.uri}. The index is "
                "unchanged.",
                uri=self.ref.uri,
            ) from error
        self._drop_without_column(head)

    def _optimize(self, dataset: lance.LanceDataset) -> None:
        description = find_index(dataset, self.name)
        options: dict[str, Any] = {"index_names": [self.name]}
        if not kind_of(description.index_type).startswith("IVF"):
            # Measured: if two parts of a scalar or text index cover a row, as after the replacement
            # of a column file, a query takes the answer of any part. After a merge each part counts
            # only for its own fragments.
            options["num_indices_to_merge"] = max(1, len(description.segments))
        elif self.retrain:
            options["retrain"] = True
        elif self.merge is not None:
            options["num_indices_to_merge"] = self.merge
        dataset.optimize.optimize_indices(**options)

    def _drop_without_column(self, head: lance.LanceDataset) -> None:
        """Drops the index if a concurrent writer dropped or cast its column.

        pylance commits such an index, and then no query of the column works.
        """
        for description in head.describe_indices():
            if description.name == self.name and not all(description.field_names):
                drop_index(self.ref, self.name, self.policy)


def optimize_indices(
    spark: Callable[[], SparkSession],
    ref: DatasetRef,
    names: Sequence[str],
    *,
    merge: int | None = None,
    retrain: bool = False,
) -> None:
    """Adds all rows to indexes, with a task for each index.

    Raises:
        IndexNotFoundError: An index does not exist.
        IndexBuildError: A task failed. Its index is unchanged.
        CommitConflictError: Other writers kept committing first.
        UnsafeStoreError: The store has no conditional puts.
    """
    head = ref.open_latest()
    for name in names:
        find_index(head, name)
    if not names:
        return
    policy = CommitPolicy.of(None)
    refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
    tasks = [
        OptimizeIndex(ref=ref, name=name, merge=merge, retrain=retrain, policy=policy)
        for name in names
    ]
    jobs = SparkJobs(spark(), SparkJobTag.of(new_id(), f"optimizes indexes of {ref.uri}"))
    with raise_task_errors(IndexBuildError, CommitConflictError, uri=ref.uri):
        jobs.results(tasks, type(None))


def drop_index(ref: DatasetRef, name: str, policy: CommitPolicy | None = None) -> None:
    """Drops an index. Concurrent writers may commit. `policy` is by default the environment's.

    Raises:
        IndexNotFoundError: The index does not exist.
        CommitConflictError: Other writers kept committing first.
    """
    find_index(ref.open_latest(), name)

    def drop(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        from lance import LanceOperation

        segments = [
            named_segment(segment.uuid, name)
            for description in dataset.describe_indices()
            for segment in description.segments
            if description.name == name
        ]
        return (
            LanceOperation.CreateIndex(new_indices=[], removed_indices=segments)
            if segments
            else None
        )

    def drop_once(_attempt: int) -> Outdated | None:
        # Measured: a concurrent compaction gives the index another id, and the index stays.
        if all(
            description.name != name
            for description in change_schema(ref, drop, policy).describe_indices()
        ):
            return None
        return Outdated(
            error=CommitConflictError(
                f"Other writers kept rewriting index {name!r}, so the index was not dropped. Table: {ref.uri}. Drop "
                "the index again.",
                uri=ref.uri,
            )
        )

    evaluate_until_committed(drop_once, _DROPS, subject=f"the drop of index {name!r}")


def wait_for_index(
    ref: DatasetRef,
    names: Sequence[str],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until indexes exist and cover all rows of the latest version.

    Raises:
        IndexTimeoutError: The time is over.
    """
    until, wait = clock() + timeout_s, 0.05
    while True:
        gaps = _missing(ref, names)
        if not gaps:
            return
        if clock() + wait > until:
            raise IndexTimeoutError(
                f"The indexes do not cover the table after {timeout_s:g} s: {'; '.join(gaps)}. Table: {ref.uri}. Call "
                "optimize_indices() to add the rows.",
                uri=ref.uri,
            )
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_S)


def _missing(ref: DatasetRef, names: Sequence[str]) -> list[str]:
    head, gaps = ref.open_latest(), []
    for name in names:
        try:
            rows = index_stats(head, name).num_unindexed_rows
        except IndexNotFoundError:
            gaps.append(f"{name!r} does not exist")
        else:
            gaps += [f"{name!r} lacks {counted(rows, 'row')}"] if rows else []
    return gaps
