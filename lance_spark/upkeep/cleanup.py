"""Removes old versions in a task: :class:`CleanupTask`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from lance_spark.dataset import DatasetRef, refuse_unlistable_tag
from lance_spark.errors import CommitError, LanceSparkError, OptionError, TableUnwritableError, panics_as_errors
from lance_spark.lance_compat import plain
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.spark_jobs.task_queue import LostTask
from lance_spark.staging.orphans import moment_before
from lance_spark.staging.table_folder import refuse_links
from lance_spark.upkeep.results import CleanupResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_AGE = timedelta(days=7)
"""Default age of removed versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOutcome:
    """The result of a cleanup task: removed bytes and versions, or the error."""

    bytes_removed: int = 0
    old_versions: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupTask:
    """A task that removes versions and their files. Picklable.

    Attributes:
        older_than_s: Age of the removed versions, in seconds.
        delete_unverified: Whether files without a version are deleted at any age.
        error_if_tagged: Whether an old version with a tag is an error. Otherwise the version stays.
    """

    table: DatasetRef
    older_than_s: float
    delete_unverified: bool
    error_if_tagged: bool

    def run(self) -> CleanupOutcome:
        """Removes the versions. Runs on an executor."""
        try:
            refuse_links(self.table)
            with panics_as_errors():
                removed = self.table.open_latest().cleanup_old_versions(
                    timedelta(seconds=self.older_than_s),
                    delete_unverified=self.delete_unverified,
                    error_if_tagged_old_versions=self.error_if_tagged,
                )
            return CleanupOutcome(bytes_removed=removed.bytes_removed, old_versions=removed.old_versions)
        except (LanceSparkError, OSError, ValueError, RuntimeError) as error:
            return CleanupOutcome(error=plain(error))


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
    return result_of(CleanupOutcome(error=outcome.failure.message) if isinstance(outcome, LostTask) else outcome, uri)


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
