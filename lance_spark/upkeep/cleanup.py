"""Removes old versions in a task: :class:`CleanupTask`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from lance_spark.changes.positions import first_needed_version
from lance_spark.dataset import DatasetRef, refuse_unlistable_tag
from lance_spark.display import warn_caller
from lance_spark.errors import (
    CommitError,
    LanceSparkError,
    OptionError,
    TableUnwritableError,
    panics_as_errors,
)
from lance_spark.lance_compat import plain
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import LostTask
from lance_spark.staging.orphans import moment_before
from lance_spark.staging.table_folder import refuse_links
from lance_spark.upkeep.results import CleanupResult
from lance_spark.version_times import version_at

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession

DEFAULT_AGE = timedelta(days=7)
"""Default age of removed versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOutcome:
    """The result of a cleanup task: removed bytes and versions, or the error.

    Attributes:
        stream_versions: Old versions that a stream needs, removed or kept.
    """

    bytes_removed: int = 0
    old_versions: int = 0
    error: str | None = None
    stream_versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupTask:
    """A task that removes versions and their files. Picklable.

    Attributes:
        older_than_s: Age of the removed versions, in seconds.
        delete_unverified: Whether files without a version are deleted at any age.
        error_if_tagged: Whether an old version with a tag is an error. Otherwise the version stays.
        keep_for_streams: Whether old versions that a stream needs stay.
    """

    table: DatasetRef
    older_than_s: float
    delete_unverified: bool
    error_if_tagged: bool
    keep_for_streams: bool = False

    def run(self) -> CleanupOutcome:
        """Removes the versions. Runs on an executor."""
        try:
            refuse_links(self.table)
            with panics_as_errors():
                return self._remove()
        except (LanceSparkError, OSError, ValueError, RuntimeError) as error:
            return CleanupOutcome(error=plain(error))

    def _remove(self) -> CleanupOutcome:
        dataset = self.table.open_latest()
        old_versions, first = self._find_old(dataset)
        needed_versions = [number for number in old_versions if number >= first]
        if not (needed_versions and self.keep_for_streams):
            outcome = self._clean(dataset, timedelta(seconds=self.older_than_s), None)
        elif removable := [number for number in old_versions if number < first]:
            outcome = self._clean(dataset, None, removable)
        else:
            outcome = CleanupOutcome()
        # A tag of a branch may have an equal number, so tags decide only about the warning.
        tagged = (
            {tag["version"] for tag in dataset.tags.list().values()} if needed_versions else set()
        )
        return replace(
            outcome,
            stream_versions=tuple(number for number in needed_versions if number not in tagged),
        )

    def _clean(
        self, dataset: lance.LanceDataset, older_than: timedelta | None, versions: list[int] | None
    ) -> CleanupOutcome:
        removed = dataset.cleanup_old_versions(
            older_than,
            delete_unverified=self.delete_unverified,
            error_if_tagged_old_versions=self.error_if_tagged,
            versions=versions,
        )
        return CleanupOutcome(
            bytes_removed=removed.bytes_removed, old_versions=removed.old_versions
        )

    def _find_old(self, dataset: lance.LanceDataset) -> tuple[list[int], int]:
        """Returns the old versions, sorted, and the first version that a stream needs.

        Returns no versions without streams. The latest version is never old.
        """
        first = first_needed_version(self.table)
        if first is None:
            return [], 0
        newest = version_at(dataset, moment_before(timedelta(seconds=self.older_than_s)))
        if not isinstance(newest, int):
            return [], first
        numbers = sorted(int(ref["version"]) for ref in dataset.version_refs())
        return [
            number for number in numbers if number <= newest and number != dataset.version
        ], first


def checked_age(older_than: timedelta | None, *, option: str = "older_than") -> timedelta:
    """Returns the age of removed versions; a week by default.

    Raises:
        OptionError: The age is no span of time, or negative.
    """
    if older_than is None:
        return DEFAULT_AGE
    moment_before(older_than, option=option)
    return older_than


def age_of(number: float, unit: Literal["days", "hours"], *, option: str) -> timedelta:
    """Returns a number of days or hours as an age.

    Raises:
        OptionError: The number is negative, or longer than the calendar.
    """
    try:
        return checked_age(timedelta(**{unit: number}), option=option)
    except (OverflowError, ValueError, OptionError) as error:
        raise OptionError(option, number, f"a number of {unit}, 0 or more") from error


def run_cleanup(spark: SparkSession, task: CleanupTask) -> CleanupResult:
    """Runs a task of a cleanup. Raises as :func:`result_of` does."""
    uri = task.table.uri
    jobs = SparkJobs(spark, SparkJobTag.of(uuid.uuid4().hex, f"lance-spark: cleanup of {uri}"))
    (outcome,) = jobs.run([task], CleanupOutcome)
    if isinstance(outcome, LostTask):
        return result_of(CleanupOutcome(error=outcome.failure.message), uri)
    result = result_of(outcome, uri)
    if outcome.stream_versions and not task.keep_for_streams:
        first, last = outcome.stream_versions[0], outcome.stream_versions[-1]
        warn_caller(
            f"The cleanup removed versions that a stream needs, from version {first} to version {last}. Table: {uri}. "
            "Begin the stream anew with another checkpointLocation. Call cleanup_old_versions with "
            "keep_for_streams=True to keep such versions.",
            UserWarning,
        )
    return result


def result_of(outcome: CleanupOutcome, uri: str) -> CleanupResult:
    """Returns the result of a task.

    Raises:
        CommitError: An old version has a tag.
        TableUnwritableError: The store refused, or the folder of the table has a link.
    """
    error = outcome.error
    if error is None:
        return CleanupResult(bytes_removed=outcome.bytes_removed, old_versions=outcome.old_versions)
    refuse_unlistable_tag(uri, error)
    if "tagged" in error.lower():
        raise CommitError(
            f"A version with a tag is old enough for the cleanup: {error.rstrip('.')}. Table: {uri}. No version was "
            "removed. Delete the tag, or keep such versions with error_if_tagged_old_versions=False.",
            uri=uri,
        )
    raise TableUnwritableError(uri, error)
