"""A compaction in the committing process of a stream: :func:`join_small_fragments`."""

from __future__ import annotations

import functools
import logging

from lance_spark.commit.rows.compaction_commit import Basis, Compacted, commit_compacted
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitError, CommitOutcomeUnknownError, panics_as_errors
from lance_spark.lance_compat import plain
from lance_spark.staging.data_files import delete_unnamed_files, missing_data_files
from lance_spark.upkeep.compaction import CompactionTask

_LOG = logging.getLogger(__name__)

_OPTIONS = {"materialize_deletions": False}
"""Options of the plan. Rewrites of deleted rows are left to other compactions."""

_MOST_ROWS = 4 << 20
"""Rows of a compaction, or a single task with more. The next micro-batch continues."""


def join_small_fragments(ref: DatasetRef, most: int) -> int | None:
    """Joins the small fragments of the latest version if there are too many.

    Runs in this process, without Spark, and reads the rows in batches. A fragment is small if it
    has fewer rows than the target of the table's configuration (key
    `lance.compaction.target_rows_per_fragment`), by default 1,048,576. Only fragments that Lance
    joins with a neighbour count. Fragments changed by concurrent commits stay as they are. A call
    joins about 4 million rows, so a large table takes several micro-batches.

    Args:
        ref: The table or branch.
        most: Maximum number of small fragments.

    Returns:
        The version of the compaction, or None without a compaction. Never raises an error of
        Lance or of the store, and logs a warning instead.
    """
    try:
        with panics_as_errors():
            return _join(ref, most)
    except Exception as error:  # noqa: BLE001 - the rows of the stream are committed
        _LOG.warning("the small fragments of %s were not compacted: %s", ref.uri, plain(error))
        return None


def _join(ref: DatasetRef, most: int) -> int | None:
    from lance.optimize import Compaction

    snapshot = ref.pin(None)
    dataset = snapshot.open()
    planned = Compaction.plan(dataset, _OPTIONS).tasks  # type: ignore[arg-type]
    if sum(len(task.fragments) for task in planned) <= most:
        return None
    basis, parts, rows = Basis.of(dataset), list[Compacted](), 0
    try:
        for number, task in enumerate(planned):
            if rows >= _MOST_ROWS:
                break
            text = task.json()  # type: ignore[attr-defined]
            results = CompactionTask(snapshot=snapshot, number=number, task=text).run()
            if results.rewrite is None:
                _LOG.warning("fragments of %s were not compacted: %s", ref.uri, results.error)
            else:
                parts.append(Compacted(olds=tuple(task.fragments), rewrite=results.rewrite))
                rows += sum(fragment.num_rows for fragment in task.fragments)
        return _commit(ref, snapshot, basis, parts) if parts else None
    except CommitOutcomeUnknownError:
        raise
    except CommitError:
        _delete(snapshot, parts)
        raise


def _commit(
    ref: DatasetRef, snapshot: DatasetRef, basis: Basis, parts: list[Compacted]
) -> int | None:
    find_missing = functools.partial(missing_data_files, ref.uri, ref.storage_options)
    outcome = commit_compacted(ref, basis, parts, missing=find_missing)
    for _, reason in outcome.lost:
        _LOG.info("fragments of %s were not compacted: %s", ref.uri, reason)
    _delete(snapshot, [part for part, _ in outcome.lost])
    if outcome.version is not None:
        fragments = sum(len(part.olds) for part in outcome.committed)
        _LOG.info(
            "%d small fragments of %s were joined in version %d",
            fragments,
            ref.uri,
            outcome.version,
        )
    return outcome.version


def _delete(snapshot: DatasetRef, parts: list[Compacted]) -> None:
    delete_unnamed_files(snapshot, [name for part in parts for name in part.files])
