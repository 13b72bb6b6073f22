"""Evaluates a statement and commits it, again where concurrent commits changed what it read.

:func:`run_rounds` is what updates, deletions and merges have in common. It runs on the driver.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import NO_NOTE, CommitNote, RowEdits
from lance_spark.commit.rows.row_commit import OutdatedEditsError, commit_edits
from lance_spark.dataset import DatasetRef
from lance_spark.dml.result import ChangeResult, result_of
from lance_spark.errors import CommitConflictError, CommitError, counted
from lance_spark.lance_compat import path_of
from lance_spark.staging.area import Staging
from lance_spark.staging.job_end import commit_or_give_up, finish

_LOG = logging.getLogger(__name__)

_AFTER_APPENDS = 3
"""Times that a merge is evaluated again for appends alone: a stream of appends starves no merge."""


def run_rounds(
    ref: DatasetRef,
    staging: Staging,
    policy: CommitPolicy,
    evaluate: Callable[[DatasetRef], RowEdits | None],
    note: CommitNote = NO_NOTE,
) -> ChangeResult:
    """Evaluates a statement at the latest version until a commit of it holds.

    `ref` is the version that was checked, and the first that is evaluated; `evaluate` returns what
    is to be done to a version, None for nothing. A version that was cleaned up while it was
    evaluated counts as a conflict. Files that are not committed are deleted at the end.

    Raises:
        CommitConflictError: Other writers kept coming first. Nothing was changed.
        CommitOutcomeUnknownError: The store did not answer.
        LanceSparkError: What `evaluate` raises. Nothing was changed.
    """
    statement = _Attempts(ref=ref, staging=staging, policy=policy, evaluate=evaluate, note=note)
    staging.open_job()
    result = commit_or_give_up(staging, ref, statement.run)
    finish(staging, ref, statement.committed, unless_named=statement.taken_back)
    return result


@dataclass(kw_only=True)
class _Attempts:
    """The attempts of one statement.

    Attributes:
        committed: Data files of the last attempt.
        taken_back: Data files of attempts that were committed and taken back.
    """

    ref: DatasetRef
    staging: Staging
    policy: CommitPolicy
    evaluate: Callable[[DatasetRef], RowEdits | None]
    note: CommitNote
    committed: list[str] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)

    def run(self) -> ChangeResult:
        for attempt in itertools.count():
            version = self.ref.pin(None) if attempt else self.ref
            try:
                return self._try(version, attempt)
            except OutdatedEditsError as error:
                self.taken_back += self.committed if error.taken_back else ()
                self.committed.clear()
                if attempt == self.policy.max_retries:
                    raise CommitConflictError(
                        f"other writers changed the rows {counted(attempt + 1, 'time')} while they were looked at: "
                        f"{error}; try again, or raise LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES",
                        uri=self.ref.uri,
                    ) from error
                _LOG.info("the statement is evaluated again: %s", error)
            except Exception as error:
                if attempt == self.policy.max_retries or isinstance(error, CommitError) or version.is_kept():
                    raise
                _LOG.info("version %s was cleaned up, so the statement is evaluated again: %s", version.version, error)
        raise AssertionError

    def _try(self, version: DatasetRef, attempt: int) -> ChangeResult:
        edits = self.evaluate(version)
        if edits is None:
            return ChangeResult(version=version.version or 0)
        if edits.absence is not None:
            edits = replace(edits, absence=replace(edits.absence, after_appends=attempt < _AFTER_APPENDS))
        edits = replace(edits, commit_message=self.note.message, properties=self.note.properties)
        self.committed[:] = files_of(edits)
        self.staging.begin_commit()
        self.staging.refuse_missing(self.committed)
        return result_of(commit_edits(self.ref, edits, job_id=self.staging.job_id, policy=self.policy))


def files_of(edits: RowEdits) -> list[str]:
    """Returns the names of the data files that the edits bring."""
    old = {path_of(file) for fragment in edits.before.values() for file in fragment.files}
    files = [path_of(file) for fragment in (*edits.updated, *edits.new) for file in fragment.files]
    return [name for name in files if name not in old]
