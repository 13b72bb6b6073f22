"""Backfills as transactions of applications: :func:`run_once` and :func:`find_repeated`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from lance_spark.backfill.request import BackfillRequest
from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.app_transaction import AppTransaction, RepeatedTransactionError
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.handle import Job
from lance_spark.jobs.results import BackfillJobResult, Status


class _RepeatedJob:
    """A job whose transaction was committed before. Runs nothing."""

    def __init__(self, result: BackfillJobResult) -> None:
        self._result = result

    def run(self) -> BackfillJobResult:
        """Returns the result."""
        return self._result

    def cancel(self) -> None:
        """Does nothing: the job has ended."""

    def snapshot(self) -> BackfillJobResult:
        """Returns the result."""
        return self._result


def ledger_of(ref: DatasetRef, request: BackfillRequest) -> AppLedger | None:
    """Returns the records of the application of a backfill; None without a transaction."""
    transaction = request.transaction
    return None if transaction is None else AppLedger(ref=ref, transaction=transaction)


def run_once(
    ledger: AppLedger | None,
    snapshot: DatasetRef,
    run: Callable[[], BackfillJobResult],
    result_of: Callable[[Status], BackfillJobResult],
) -> BackfillJobResult:
    """Runs a job as a transaction of an application, recorded after the last commit.

    Args:
        ledger: Records of the application; None for a job without a transaction.
        snapshot: The version that the job reads.
        run: Runs the job.
        result_of: Returns the result of the job so far, with a status.

    Raises:
        StreamRewoundError: The application has begun a later transaction.
        TableUnwritableError: The store refused.
    """
    if ledger is None:
        return run()
    try:
        ledger.begin_job(snapshot.version or 0)
    except RepeatedTransactionError:  # by another driver, since the plan of the job
        return replace(result_of("DONE"), message=_message_of(ledger.transaction))
    result = run()
    if result.status == "DONE":
        ledger.finish(None)
    return result


def find_repeated(
    ref: DatasetRef, request: BackfillRequest, table_name: str
) -> Job[BackfillJobResult] | None:
    """Returns an ended job if the transaction of a backfill was committed before, else None.

    Raises:
        StreamRewoundError: The application has begun a later transaction.
        TableUnwritableError: The store refused.
    """
    ledger = ledger_of(ref, request)
    if ledger is None:
        return None
    try:
        ledger.refuse_ended()
    except RepeatedTransactionError:
        job_id, moment = request.job_id or ledger.transaction.job_id, datetime.now(UTC)
        result = BackfillJobResult(
            job_id=job_id,
            status="DONE",
            table_name=table_name,
            table_uri=ref.uri,
            launched_at=moment,
            completed_at=moment,
            message=_message_of(ledger.transaction),
        )
        return Job(_RepeatedJob(result), job_id, table_name, request.columns).start()
    return None


def _message_of(transaction: AppTransaction) -> str:
    return f"{transaction.text} was committed before. Nothing was computed."
