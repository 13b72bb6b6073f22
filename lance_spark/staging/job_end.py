"""Ends of a job: its commit lands, its files are given up, or Spark aborts the job.

A commit and an abort run in two processes, maybe at the same time. Both follow the same order. A
commit creates its marker and then checks for an open job. An abort closes the job and then checks
for the marker of a commit. At least one of the two therefore sees the other: an abort keeps all
files while a commit may be running, and a commit does not begin after an abort.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TypeVar

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import find_job, named_files
from lance_spark.dataset import DatasetRef, is_local
from lance_spark.errors import CommitError, CommitOutcomeUnknownError, TableExistsError, TableNotFoundError
from lance_spark.interpreter import end_quietly
from lance_spark.staging.area import Staging

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def commit_or_give_up(staging: Staging, ref: DatasetRef, act: Callable[[], _T]) -> _T:
    """Runs a commit, and deletes the job's files if the commit certainly made no version.

    The files are kept after a `CommitOutcomeUnknownError`, because a request may still arrive. On
    an object store, the files are also kept after any other failure of a begun commit.
    """
    end_quietly()
    try:
        return act()
    except CommitOutcomeUnknownError:
        raise
    except BaseException as error:
        if isinstance(error, (CommitError, TableExistsError)) or is_local(ref.uri) or not staging.has_begun_commit():
            # The error of the commit matters to the user, more than an error of the deletion.
            with _deletes_later(staging):
                _give_up(staging, ref)
        raise


def _give_up(staging: Staging, ref: DatasetRef) -> None:
    """Deletes the files of a job without a commit, except files of a version.

    An undone commit is an old version. A cleaned-up version has lost its events, and its files may
    live on in the next version. The check therefore reads manifests rather than transactions.
    """
    staging.close_job()
    try:
        head = ref.open_latest()
    except TableNotFoundError:
        staging.sweep()
        staging.remove_empty_folders()
        return
    data_files = staging.find_data_files()
    staging.sweep(keep=named_files(head, data_files, after=ref.version or 0) if data_files else ())


def abort(staging: Staging, ref: DatasetRef) -> None:
    """Deletes the job's files, unless the job has committed or may still commit.

    Spark also aborts a job after the death of its commit process, or after the loss of the commit's
    result.
    """
    end_quietly()
    if staging.close_job() and find_commit(staging, ref) is None:
        logger.warning(
            "The outcome of the commit of job %s is unknown, so its files are kept. Table: %s. lance_spark.cleanup "
            "deletes them later.", staging.job_id, ref.uri,
        )  # fmt: skip
    else:
        _give_up(staging, ref)


def find_commit(staging: Staging, ref: DatasetRef) -> CommitResult | None:
    """Returns the commit of this job, or None."""
    try:
        commit = find_job(ref.open_latest(), staging.job_id, after=ref.version or 0)
    except TableNotFoundError:
        return None
    return None if commit is None else replace(commit, uri=ref.uri)


def finish(staging: Staging, ref: DatasetRef, keep: Collection[str], *, unless_named: Collection[str] = ()) -> None:
    """Deletes the remaining files of other attempts of a committed job.

    The files of `keep` were committed. Files of `unless_named` stay if they belong to a version.
    """
    # The version exists, so a failed deletion of other files must not make the job fail.
    with _deletes_later(staging):
        referenced = named_files(ref.open_latest(), unless_named, after=ref.version or 0) if unless_named else ()
        staging.sweep([*keep, *referenced])


@contextlib.contextmanager
def _deletes_later(staging: Staging) -> Iterator[None]:
    """Logs a warning about files whose deletion fails now."""
    try:
        yield
    except OSError as error:
        logger.warning(
            "Files of job %s could not be deleted: %s. Table: %s. lance_spark.cleanup deletes them later.",
            staging.job_id, error, staging.uri,
        )  # fmt: skip
