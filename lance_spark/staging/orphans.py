"""Removes the leftovers of jobs with a dead driver. Runs on the driver, without Spark."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lance_spark.commit.conflicts.history import named_files
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.errors import LanceSparkError, OptionError, TableNotFoundError
from lance_spark.locations import is_local
from lance_spark.staging import area
from lance_spark.staging.area import OPEN_FILES, Staging, abort, logger, made_at, staged_jobs
from lance_spark.version_times import version_at

_CLOCK_SKEW = timedelta(hours=1)
"""Maximum difference between the clocks of two writers in the search for a commit."""


def remove_orphans(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    older_than: timedelta,
    needed: Collection[str] = (),
) -> int:
    """Deletes markers and unreferenced data files of jobs with a dead driver.

    The cleanup deletes no committed file, also next to a running job. A job without a begun commit
    fails after its end by the cleanup, because a commit creates its marker before the check for
    `open`, and the cleanup deletes `open` before the check for this marker. A job with a begun
    commit keeps its files, unless its process on this machine is dead, or an earlier cleanup or
    abort ended the job :data:`~lance_spark.staging.area.LONGEST_COMMIT` ago. In the latter cases
    the commit is over before this cleanup reads the versions, so a committed file has a reference.

    Args:
        uri: Location of the table.
        storage_options: Options of the object store.
        older_than: Minimum age of a job, by the clock of its driver.
        needed: Names of data files to keep, also without a reference from a version. Jobs with any
            of these files are left alone.

    Returns:
        The number of deleted data files.

    Raises:
        TableUnreadableError: A version cannot be read. No file was deleted.
        OptionError: `older_than` is negative, or longer than the calendar.
    """
    ref = DatasetRef.at(uri, storage_options or {})
    before = moment_before(older_than)
    jobs = [job for job in staged_jobs(ref.uri, ref.storage_options) if made_at(job) <= before]
    template = Staging(
        uri=ref.uri,
        storage_options=ref.storage_options,
        job_id="",
        table_files=_count_table_files(ref) if jobs else None,
        open_files=OPEN_FILES,
    )
    ended_jobs = [staging for job in jobs if _end(staging := replace(template, job_id=job))]
    if ended_jobs and not is_local(ref.uri):
        # An attempt may finish files without a check until then.
        time.sleep(area.CHECK_S)
    candidates: dict[Staging, set[str]] = {}
    for staging in ended_jobs:
        # An attempt may begin until the end of its job.
        markers = staging.list_markers()
        left_staging = staging.as_left(markers)
        candidates[left_staging] = set(left_staging.find_data_files(markers))
    # One walk over the versions serves all jobs.
    keep = referenced_files(ref, set().union(*candidates.values()))
    return sum(
        staging.sweep(keep=keep & names, reported=names, searches=False)
        for staging, names in candidates.items()
        if (names - keep).isdisjoint(
            needed
        )  # otherwise its markers list its files for a later cleanup
    )


def _end(staging: Staging) -> bool:
    """Ends a job of another process, and tells whether its commit is over or never began.

    A job is ended before any check: a job that lives longer than expected must not begin its commit
    now.
    """
    is_over = not staging.as_left(staging.list_markers()).close_job()
    if not is_over:
        staging.note_end()
        logger.info(
            "Job %s in %s may still commit, so its files are kept for a later cleanup.",
            staging.job_id,
            staging.uri,
        )
    return is_over


def _count_table_files(ref: DatasetRef) -> int | None:
    """Returns the number of data files of the latest version; None without a version."""
    try:
        return count_data_files(ref.open_latest())
    except TableNotFoundError:
        return None


def moment_before(older_than: timedelta, *, option: str = "older_than") -> datetime:
    """Returns the latest creation time of files of an age.

    Raises:
        OptionError: The age is negative, longer than the calendar, or no age.
    """
    accepted = "a timedelta of zero or more, for example timedelta(days=7)"
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise OptionError(option, older_than, accepted)
    try:
        return datetime.now(UTC) - older_than
    except OverflowError as error:
        raise OptionError(
            option, older_than, accepted, problem="is longer than the calendar"
        ) from error


def referenced_files(ref: DatasetRef, candidates: set[str]) -> set[str]:
    """Returns the candidates with a reference from any version of any branch."""
    referenced: set[str] = set()
    if not candidates:
        return referenced
    try:
        latest = ref.open_latest()
    except TableNotFoundError:
        return referenced
    for head in [
        latest,
        *(latest.checkout_version((name, None)) for name in latest.branches.list()),
    ]:
        referenced |= named_files(head, candidates - referenced, after=0)
        if referenced == candidates:
            break
    return referenced


def abort_older_jobs(staging: Staging, ref: DatasetRef, *, family: str) -> None:
    """Ends the older jobs of a family, and deletes their files unless a version names the files.

    Such a job belongs to a dead driver, or to a driver that another driver has replaced. A failure
    is logged: the caller's job has ended well.
    """
    unpinned = replace(ref, version=None)
    created_at = made_at(staging.job_id)
    try:
        jobs = [
            job
            for job in staged_jobs(staging.uri, staging.storage_options)
            if job.startswith(family)
        ]
        for job_id in jobs:
            older = replace(staging, job_id=job_id, made_folder=None, open_files=OPEN_FILES)
            if made_at(job_id) < created_at and not _is_outcome_unknown(older):
                older.as_left(older.list_markers()).close_job()
                # An attempt may begin until the end of its job.
                older = older.as_left(older.list_markers())
                abort(older, unpinned, since=_version_before(unpinned, job_id))
    except (LanceSparkError, OSError) as error:
        logger.warning(
            "Files of a dead driver could not be deleted: %s. Table: %s. lance_spark.cleanup deletes them later.",
            error, staging.uri,
        )  # fmt: skip


def _version_before(ref: DatasetRef, job_id: str) -> int:
    """Returns a version before all commits of a job, or 0."""
    version = version_at(ref.open_latest(), made_at(job_id) - _CLOCK_SKEW)
    return 0 if isinstance(version, datetime) else version


def _is_outcome_unknown(staging: Staging) -> bool:
    """Tells whether an earlier abort of the job kept its files, because its commit may arrive."""
    return not is_local(staging.uri) and staging.has_begun_commit() and not staging.is_open()
