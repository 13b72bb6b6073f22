"""Keeps indexes up: new rows into them, waiting for that, and dropping them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.backfill.driver.answers import NamedJob, collect_answers, numbers_of
from lance_spark.backfill.driver.spark_failure import SparkFailure
from lance_spark.commit.schema_change import change_schema
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    IndexBuildError,
    IndexNotFoundError,
    IndexTimeoutError,
    counted,
    panics_as_errors,
    rebuild,
)
from lance_spark.indexes.listing import find_index, index_stats, kind_of
from lance_spark.indexes.segments import named_segment
from lance_spark.lance_compat import plain
from lance_spark.staging.area import new_id

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from pyspark.sql import SparkSession

_ANSWER = "answer string"
_LONGEST_WAIT_S = 2.0
_DROPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimize:
    """Takes rows into indexes that they do not serve yet; a callable for `mapInArrow`.

    Attributes:
        ref: The table.
        names: The indexes, one for each task.
        merge: Parts of an index of vectors that are merged with the new rows; None leaves it to
            Lance.
        retrain: Whether models of vectors are trained anew.
    """

    ref: DatasetRef
    names: tuple[str, ...]
    merge: int | None
    retrain: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Works on the indexes whose numbers come, again where other writers came first."""
        for number in numbers_of(batches):
            name = self.names[number]
            try:
                with panics_as_errors():
                    head = change_schema(self.ref, lambda dataset, name=name: self._optimize(dataset, name))  # type: ignore[misc]
            except (RuntimeError, ValueError) as error:
                if isinstance(error, CommitConflictError | IndexNotFoundError):
                    raise
                reason = str(error) if isinstance(error, CommitError) else plain(error)
                raise IndexBuildError(
                    f"index {name!r} could not be brought up to date: {reason} - in {self.ref.uri} - it is as it was",
                    uri=self.ref.uri,
                ) from error
            self._refuse_gone(head, name)
            yield pa.RecordBatch.from_pydict({"answer": [name]})

    def _optimize(self, dataset: lance.LanceDataset, name: str) -> None:
        found = find_index(dataset, name)
        options: dict[str, Any] = {"index_names": [name]}
        if not kind_of(found.index_type).startswith("IVF"):
            # Measured: of a scalar or text index whose parts cover one row twice, as after a column
            # file was replaced, a query gets what any of them says. Merged, each part counts for
            # what it covers.
            options["num_indices_to_merge"] = max(1, len(found.segments))
        elif self.retrain:
            options["retrain"] = True
        elif self.merge is not None:
            options["num_indices_to_merge"] = self.merge
        dataset.optimize.optimize_indices(**options)

    def _refuse_gone(self, head: lance.LanceDataset, name: str) -> None:
        """Drops an index whose column was dropped or cast while it was optimized.

        pylance commits it all the same, and no query of the column works then.
        """
        for found in head.describe_indices():
            if found.name == name and any(not field for field in found.field_names):
                drop_index(self.ref, name)


def optimize_indices(
    spark: Callable[[], SparkSession],
    ref: DatasetRef,
    names: Sequence[str],
    *,
    merge: int | None = None,
    retrain: bool = False,
) -> None:
    """Takes all rows into indexes, a task for each.

    Raises:
        IndexNotFoundError: There is no such index.
        IndexBuildError: A task failed; its index is as it was.
        CommitConflictError: Other writers kept coming first.
    """
    head = ref.open_latest()
    for name in names:
        find_index(head, name)
    if not names:
        return
    session = spark()
    task = Optimize(ref=ref, names=tuple(names), merge=merge, retrain=retrain)

    def explain(failure: SparkFailure) -> None:
        for kind in (IndexBuildError, CommitConflictError):
            if failure.error_type.rpartition(".")[2] == kind.__name__:
                raise rebuild(kind, (failure.message,), {"uri": ref.uri})

    collect_answers(
        session,
        lambda: session.range(0, len(names), 1, len(names)).mapInArrow(task, _ANSWER),
        NamedJob(tag=f"lance-spark-{new_id()}", description=f"optimizes indexes of {ref.uri}"),
        explain=explain,
    )


def drop_index(ref: DatasetRef, name: str) -> None:
    """Drops an index, beside other writers.

    Raises:
        IndexNotFoundError: There is no such index.
        CommitConflictError: Other writers kept coming first.
    """
    find_index(ref.open_latest(), name)

    def drop(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        from lance import LanceOperation

        there = [
            named_segment(segment.uuid, name)
            for found in dataset.describe_indices()
            for segment in found.segments
            if found.name == name
        ]
        return LanceOperation.CreateIndex(new_indices=[], removed_indices=there) if there else None

    for _ in range(_DROPS):
        # Measured: a compaction in that moment gives the index another id, under which it stays.
        if all(found.name != name for found in change_schema(ref, drop).describe_indices()):
            return
    raise CommitConflictError(
        f"other writers kept rewriting index {name!r} - at {ref.uri} - it is still there; drop it again", uri=ref.uri
    )


def wait_for_index(
    ref: DatasetRef,
    names: Sequence[str],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when indexes are there and serve all rows of the latest version.

    Raises:
        IndexTimeoutError: They do not after so long.
    """
    until, wait = clock() + timeout_s, 0.05
    while True:
        missing = _missing(ref, names)
        if not missing:
            return
        if clock() + wait > until:
            raise IndexTimeoutError(
                f"indexes do not cover the table after {timeout_s:g} s: {'; '.join(missing)} - {ref.uri} - "
                "optimize_indices() takes the rows into them",
                uri=ref.uri,
            )
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_S)


def _missing(ref: DatasetRef, names: Sequence[str]) -> list[str]:
    head, missing = ref.open_latest(), []
    for name in names:
        try:
            rows = index_stats(head, name).num_unindexed_rows
        except IndexNotFoundError:
            missing.append(f"{name!r} is not there")
        else:
            missing += [f"{name!r} lacks {counted(rows, 'row')}"] if rows else []
    return missing
