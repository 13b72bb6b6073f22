"""How a job ends, and which files may go: its commit lands, it is given up, or Spark aborts it.

A commit runs in one process and an abort in another, maybe at the same time. Both follow one order:
a commit puts up its marker and then looks whether the job is still open; an abort closes the job
and then looks for that marker. So at least one of them sees the other: an abort keeps all files
where a commit may be under way, and a commit does not begin where an abort has.
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
from lance_spark.staging.folders import remove_empty_folders

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def commit_or_give_up(staging: Staging, ref: DatasetRef, act: Callable[[], _T]) -> _T:
    """Runs a commit, and deletes the job's files if it certainly did not happen.

    After a `CommitOutcomeUnknownError`, and after any other failure of an object store once the
    commit has begun, the files are kept, because a request may still arrive.
    """
    end_quietly()
    try:
        return act()
    except CommitOutcomeUnknownError:
        raise
    except BaseException as error:
        if isinstance(error, (CommitError, TableExistsError)) or is_local(ref.uri) or not staging.has_begun_commit():
            # What made the commit fail is what the user has to know.
            with _deletes_later(staging):
                _give_up(staging, ref)
        raise


def _give_up(staging: Staging, ref: DatasetRef) -> None:
    """Deletes the files of a job without a commit, but for those that a version names after all.

    A commit that was taken back is an old version, and the events of a version that was cleaned up
    are gone while its files may live on in the next one: so manifests are asked, not transactions.
    """
    staging.close_job()
    try:
        head = ref.open_latest()
    except TableNotFoundError:
        staging.sweep()
        remove_empty_folders(ref.uri, made=staging.made_folder)
        return
    written = staging.find_data_files()
    staging.sweep(keep=named_files(head, written, after=ref.version or 0) if written else ())


def abort(staging: Staging, ref: DatasetRef) -> None:
    """Deletes the job's files, unless it has committed or may still.

    Spark aborts also where the commit's process died or its answer was lost.
    """
    end_quietly()
    if staging.close_job() and find_commit(staging, ref) is None:
        logger.warning(
            "whether job %s was committed is not known, so its files are kept - at %s - lance_spark.cleanup deletes "
            "them later", staging.job_id, ref.uri,
        )  # fmt: skip
    else:
        _give_up(staging, ref)


def find_commit(staging: Staging, ref: DatasetRef) -> CommitResult | None:
    """Returns what this job has committed, or None."""
    try:
        found = find_job(ref.open_latest(), staging.job_id, after=ref.version or 0)
    except TableNotFoundError:
        return None
    return None if found is None else replace(found, uri=ref.uri)


def finish(staging: Staging, ref: DatasetRef, keep: Collection[str], *, unless_named: Collection[str] = ()) -> None:
    """Deletes what other attempts of a committed job left.

    The files of `keep` were committed; those of `unless_named` stay if a version names them.
    """
    # The version is there; that something else of the job is there too must not make the job fail.
    with _deletes_later(staging):
        named = named_files(ref.open_latest(), unless_named, after=ref.version or 0) if unless_named else ()
        staging.sweep([*keep, *named])


@contextlib.contextmanager
def _deletes_later(staging: Staging) -> Iterator[None]:
    """Warns of files that cannot be deleted now."""
    try:
        yield
    except OSError as error:
        logger.warning(
            "files of job %s could not be deleted: %s - at %s - lance_spark.cleanup deletes them later",
            staging.job_id, error, staging.uri,
        )  # fmt: skip
