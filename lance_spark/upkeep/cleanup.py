"""Removes old versions, in a task: :class:`CleanupTask`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from lance_spark.dataset import DatasetRef, refuse_unlistable_tag
from lance_spark.errors import CommitError, LanceSparkError, OptionError, TableUnwritableError, panics_as_errors
from lance_spark.lance_compat import plain
from lance_spark.staging.orphans import moment_before
from lance_spark.staging.table_folder import refuse_links
from lance_spark.upkeep.results import CleanupResult

DEFAULT_AGE = timedelta(days=7)
"""How old a version is before it is removed, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupTask:
    """Removes versions and what only they use. Picklable.

    Attributes:
        older_than_s: Age of versions, in seconds, that are removed.
        delete_unverified: Whether files that no version names are deleted at any age.
        error_if_tagged: Whether a tagged version that is old enough is an error; else it stays.
    """

    table: DatasetRef
    older_than_s: float
    delete_unverified: bool
    error_if_tagged: bool

    def run(self) -> bytes:
        """Removes them, and answers what was removed, or why nothing was. Runs on an executor."""
        try:
            refuse_links(self.table)
            with panics_as_errors():
                removed = self.table.open_latest().cleanup_old_versions(
                    timedelta(seconds=self.older_than_s),
                    delete_unverified=self.delete_unverified,
                    error_if_tagged_old_versions=self.error_if_tagged,
                )
            return json.dumps({"bytes": removed.bytes_removed, "versions": removed.old_versions}).encode()
        except (LanceSparkError, OSError, ValueError, RuntimeError) as error:
            return json.dumps({"error": plain(error)}).encode()


def checked_age(older_than: timedelta | None, *, option: str = "older_than") -> timedelta:
    """Returns the age of versions that are removed; a week by default.

    Raises:
        OptionError: It is no span of time, or a negative one.
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


def result_of(answer: bytes, uri: str) -> CleanupResult:
    """Reads what a task has answered.

    Raises:
        CommitError: A tagged version is old enough to be removed.
        TableUnwritableError: The store refused, or the folder of the table holds a link.
    """
    values: dict[str, Any] = json.loads(answer)
    error = values.get("error")
    if error is None:
        return CleanupResult(bytes_removed=values["bytes"], old_versions=values["versions"])
    refuse_unlistable_tag(uri, error)
    if "tagged" in error.lower():
        raise CommitError(
            f"a version with a tag is old enough to be removed: {error} - at {uri} - no version was removed; delete "
            "the tag, or keep such versions with error_if_tagged_old_versions=False",
            uri=uri,
        )
    raise TableUnwritableError(uri, error)
