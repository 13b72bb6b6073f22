"""Evaluates and commits a statement, and retries after conflicts. Runs on the driver.

:func:`retry_statement` serves updates, deletions and merges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.app_transaction import RepeatedTransactionError
from lance_spark.commit.changes import NO_NOTE, CommitNote, CommitResult, RowEdits
from lance_spark.commit.commit_loop import CommitPolicy, Outdated, evaluate_until_committed
from lance_spark.commit.rows.row_commit import OutdatedEditsError, commit_edits
from lance_spark.dataset import DatasetRef
from lance_spark.dml.results import ChangeResult, result_of
from lance_spark.errors import CommitConflictError, CommitError, counted
from lance_spark.lance_compat import path_of
from lance_spark.staging.area import Staging, commit_or_give_up, finish, finish_closed
from lance_spark.staging.data_files import Leftovers

_LOG = logging.getLogger(__name__)

_AFTER_APPENDS = 3
"""Maximum retries of a merge for appends alone, so that a stream of appends starves no merge."""


def retry_statement(
    ref: DatasetRef,
    staging: Staging,
    policy: CommitPolicy,
    evaluate: Callable[[DatasetRef], RowEdits | None],
    note: CommitNote = NO_NOTE,
) -> ChangeResult:
    """Evaluates a statement at the latest version until its commit succeeds.

    A cleanup of the version during the evaluation counts as a conflict. Uncommitted files are
    deleted at the end.

    Args:
        ref: The validated version, which is evaluated first.
        staging: Staging of the statement's files.
        policy: Limits of the retries.
        evaluate: Returns the edits of the statement at a version; None without edits.
        note: Message, properties and transaction of the version.

    Raises:
        StreamRewoundError: The application of the transaction has committed a later transaction.
        CommitConflictError: Other writers kept committing first. Nothing was changed.
        CommitOutcomeUnknownError: The store did not answer.
        LanceSparkError: The evaluation failed. Nothing was changed.
    """
    ledger = None if note.transaction is None else AppLedger(ref=ref, transaction=note.transaction)
    statement = _Attempts(
        ref=ref, staging=staging, policy=policy, evaluate=evaluate, note=note, ledger=ledger
    )
    staging.open_job()
    try:
        result = commit_or_give_up(staging, ref, statement.run)
    except RepeatedTransactionError as error:
        _LOG.info("%s", error)
        return (
            ChangeResult(version=ref.version or 0)
            if error.prior is None
            else result_of(error.prior)
        )
    if ledger is not None:
        ledger.finish(statement.commit)
    if statement.leftovers is not None and not statement.taken_back:
        finish_closed(staging, statement.leftovers)
    else:
        # A task returns all files of its attempts, and a commit takes all files of a result.
        finish(
            staging,
            ref,
            statement.committed,
            unless_named=statement.taken_back,
            reported=statement.committed,
        )
    return result


@dataclass(kw_only=True)
class _Attempts:
    """The attempts of a statement.

    Attributes:
        committed: Data files of the last attempt.
        taken_back: Data files of commits that were taken back.
        ledger: Records of the statement's application; None without a transaction.
        commit: The commit of the last attempt.
        leftovers: Other files of the job, if the job ended before its commit; None otherwise.
    """

    ref: DatasetRef
    staging: Staging
    policy: CommitPolicy
    evaluate: Callable[[DatasetRef], RowEdits | None]
    note: CommitNote
    committed: list[str] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)
    ledger: AppLedger | None = None
    commit: CommitResult | None = None
    leftovers: Leftovers | None = None

    def run(self) -> ChangeResult:
        if self.ledger is not None:
            self.ledger.look(self.ref.open_latest())
        try:
            return evaluate_until_committed(self._attempt, self.policy, subject="the statement")
        except OutdatedEditsError as error:
            raise CommitConflictError(
                f"Other writers changed the rows {counted(self.policy.max_retries + 1, 'time')} during the evaluation: "
                f"{error} Run the statement again, or raise LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES.",
                uri=self.ref.uri,
            ) from error

    def _attempt(self, attempt: int) -> ChangeResult | Outdated:
        version = self.ref.pin(None) if attempt else self.ref
        if self.leftovers is not None:
            self.staging.open_job()
            self.leftovers = None
        try:
            return self._evaluate_and_commit(version, attempt)
        except OutdatedEditsError as error:
            self.taken_back += self.committed if error.taken_back else ()
            self.committed.clear()
            return Outdated(error=error)
        except Exception as error:
            if isinstance(error, CommitError) or version.is_kept():
                raise
            _LOG.info(
                "version %s was cleaned up during the evaluation of the statement", version.version
            )
            return Outdated(error=error)

    def _evaluate_and_commit(self, version: DatasetRef, attempt: int) -> ChangeResult:
        edits = self.evaluate(version)
        if edits is None:
            return ChangeResult(version=version.version or 0)
        if edits.absence is not None:
            edits = replace(
                edits, absence=replace(edits.absence, after_appends=attempt < _AFTER_APPENDS)
            )
        note = self.note
        edits = replace(edits, commit_message=note.message, properties=note.properties)
        self.committed[:] = files_of(edits)
        self.staging.begin_commit()
        if self.staging.has_markers or self.ledger is not None:
            self.staging.refuse_missing(self.committed)
        else:
            self.leftovers = self.staging.close_committing(self.committed)
        self.commit = self._commit(edits)
        return replace(result_of(self.commit), retries=attempt + self.commit.retries)

    def _commit(self, edits: RowEdits) -> CommitResult:
        job_id = self.staging.job_id
        if self.ledger is None:
            return commit_edits(self.ref, edits, job_id=job_id, policy=self.policy)
        with self.ledger.record_commit(self.ref.open_latest(), job_id) as pending:
            return commit_edits(
                self.ref, replace(edits, transaction=pending), job_id=job_id, policy=self.policy
            )


def files_of(edits: RowEdits) -> list[str]:
    """Returns the names of the new data files of edits."""
    old = {path_of(file) for fragment in edits.before.values() for file in fragment.files}
    files = [path_of(file) for fragment in (*edits.updated, *edits.new) for file in fragment.files]
    return [name for name in files if name not in old]
