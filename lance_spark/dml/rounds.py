"""Evaluates a statement and commits it, again where concurrent commits changed what it read.

:func:`run_rounds` is what updates, deletions and merges have in common. It runs on the driver.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace

from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import NO_NOTE, CommitNote, RowEdits
from lance_spark.commit.rows.row_commit import OutdatedEditsError, commit_edits
from lance_spark.dataset import DatasetRef
from lance_spark.dml.result import ChangeResult, result_of
from lance_spark.errors import CommitConflictError, counted
from lance_spark.lance_compat import path_of
from lance_spark.staging.area import Staging
from lance_spark.staging.job_end import commit_or_give_up, finish

_LOG = logging.getLogger(__name__)


def run_rounds(
    ref: DatasetRef,
    staging: Staging,
    policy: CommitPolicy,
    evaluate: Callable[[DatasetRef], RowEdits | None],
    note: CommitNote = NO_NOTE,
) -> ChangeResult:
    """Evaluates a statement at the latest version until a commit of it holds.

    `ref` is the version that was checked, and the first that is evaluated; `evaluate` returns what
    is to be done to a version, None for nothing. Files that are not committed are deleted at the
    end.

    Raises:
        CommitConflictError: Other writers kept coming first. Nothing was changed.
        CommitOutcomeUnknownError: The store did not answer.
        LanceSparkError: What `evaluate` raises. Nothing was changed.
    """
    committed: list[str] = []

    def act() -> ChangeResult:
        for attempt in itertools.count():
            version = ref.pin(None) if attempt else ref
            edits = evaluate(version)
            if edits is None:
                return ChangeResult(version=version.version or 0)
            edits = replace(edits, commit_message=note.message, properties=note.properties)
            committed[:] = files_of(edits)
            staging.begin_commit()
            staging.refuse_missing(committed)
            try:
                return result_of(commit_edits(ref, edits, job_id=staging.job_id, policy=policy))
            except OutdatedEditsError as error:
                committed.clear()
                if attempt == policy.max_retries:
                    raise CommitConflictError(
                        f"other writers changed the rows {counted(attempt + 1, 'time')} while they were looked at: "
                        f"{error}; try again, or raise LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES",
                        uri=ref.uri,
                    ) from error
                _LOG.info("the statement is evaluated again: %s", error)
        raise AssertionError

    staging.open_job()
    result = commit_or_give_up(staging, ref, act)
    finish(staging, ref, committed)
    return result


def files_of(edits: RowEdits) -> list[str]:
    """Returns the names of the data files that the edits bring."""
    old = {path_of(file) for fragment in edits.before.values() for file in fragment.files}
    files = [path_of(file) for fragment in (*edits.updated, *edits.new) for file in fragment.files]
    return [name for name in files if name not in old]
