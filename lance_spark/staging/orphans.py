"""Removes what jobs left behind whose driver died. Runs on the driver, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

from lance_spark.commit.conflicts.history import named_files
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import OptionError
from lance_spark.staging.area import Staging, made_at, staged_jobs


def remove_orphans(
    uri: str, storage_options: Mapping[str, str] | None = None, *, older_than: timedelta, needed: Collection[str] = ()
) -> int:
    """Deletes markers, and data files that no version references, of jobs whose driver died.

    Safe beside running jobs as long as `older_than` is more than the longest of them takes; a job
    that loses a file to an early cleanup fails and commits nothing.

    Args:
        uri: Location of the table.
        storage_options: Options of the object store.
        older_than: Least age of a job, by the clock of the driver that started it.
        needed: Names of data files that no version references and that are needed all the same;
            jobs that wrote any of them are left alone.

    Returns:
        The number of data files that were deleted.

    Raises:
        TableUnreadableError: A version cannot be read. Nothing of the job in question was deleted.
        OptionError: `older_than` is negative, or longer than the calendar.
    """
    ref = DatasetRef.at(uri, storage_options or {})
    before = moment_before(older_than)
    deleted = 0
    for job in staged_jobs(ref.uri, ref.storage_options):
        if made_at(job) > before:
            continue
        staging = Staging(uri=ref.uri, storage_options=ref.storage_options, job_id=job)
        # Before anything is looked at: a job that lives longer than expected must not begin its
        # commit now.
        staging.close_job()
        candidates = set(staging.find_data_files())
        keep = referenced_files(ref, candidates)
        if not (candidates - keep).isdisjoint(needed):
            continue  # its markers tell a later cleanup which files it wrote
        deleted += staging.sweep(keep=keep)
    return deleted


def moment_before(older_than: timedelta, *, option: str = "older_than") -> datetime:
    """Returns the moment at which files of an age were made.

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
    """Returns the candidates that some version of some branch references."""
    found: set[str] = set()
    if not candidates or not table_exists(ref.uri, ref.storage):
        return found
    latest = ref.open_latest()
    for head in [latest, *(latest.checkout_version((name, None)) for name in latest.branches.list())]:
        found |= named_files(head, candidates - found, after=0)
        if found == candidates:
            break
    return found
