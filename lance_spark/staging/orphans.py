"""Removes the leftovers of jobs with a dead driver. Runs on the driver, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lance_spark.commit.conflicts.history import named_files
from lance_spark.dataset import DatasetRef, count_data_files, is_local
from lance_spark.errors import LanceSparkError, OptionError, TableNotFoundError
from lance_spark.staging.area import OPEN_FILES, Staging, abort, logger, made_at, staged_jobs
from lance_spark.version_times import version_at

_CLOCK_SKEW = timedelta(hours=1)
"""Maximum difference between the clocks of two writers in the search for a commit."""


def remove_orphans(
    uri: str, storage_options: Mapping[str, str] | None = None, *, older_than: timedelta, needed: Collection[str] = ()
) -> int:
    """Deletes markers and unreferenced data files of jobs with a dead driver.

    The cleanup is safe next to running jobs as long as `older_than` exceeds the duration of the
    longest job. A job fails and commits nothing if an early cleanup deletes one of its files.

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
    candidates: dict[Staging, set[str]] = {}
    jobs = [job for job in staged_jobs(ref.uri, ref.storage_options) if made_at(job) <= before]
    table_files = _count_table_files(ref) if jobs else None
    for job in jobs:
        staging = Staging(
            uri=ref.uri,
            storage_options=ref.storage_options,
            job_id=job,
            table_files=table_files,
            open_files=OPEN_FILES,
        )
        staging, markers = _close(staging)
        candidates[staging] = set(staging.find_data_files(markers))
    # One walk over the versions serves all jobs.
    keep = referenced_files(ref, set().union(*candidates.values()))
    return sum(
        staging.sweep(keep=keep & names, reported=names, searches=False)
        for staging, names in candidates.items()
        if (names - keep).isdisjoint(needed)  # otherwise its markers list its files for a later cleanup
    )


def _close(staging: Staging) -> tuple[Staging, list[str]]:
    """Ends a job of another process, and returns its staging area and its markers.

    The job is closed before any check: a job that lives longer than expected must not begin its
    commit now. Its attempts are listed after that: an attempt may begin until then.
    """
    staging.as_left(staging.list_markers()).close_job()
    markers = staging.list_markers()
    return staging.as_left(markers), markers


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
        raise OptionError(option, older_than, accepted, problem="is longer than the calendar") from error


def referenced_files(ref: DatasetRef, candidates: set[str]) -> set[str]:
    """Returns the candidates with a reference from any version of any branch."""
    referenced: set[str] = set()
    if not candidates:
        return referenced
    try:
        latest = ref.open_latest()
    except TableNotFoundError:
        return referenced
    for head in [latest, *(latest.checkout_version((name, None)) for name in latest.branches.list())]:
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
    made = made_at(staging.job_id)
    try:
        jobs = [job for job in staged_jobs(staging.uri, staging.storage_options) if job.startswith(family)]
        for job_id in jobs:
            older = replace(staging, job_id=job_id, made_folder=None, open_files=OPEN_FILES)
            if made_at(job_id) < made and not _is_outcome_unknown(older):
                abort(_close(older)[0], unpinned, since=_version_before(unpinned, job_id))
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
