"""The shown version of a view: :func:`refreshed_of`.

A refresh stamps the version of the source into the transaction of its commit. Afterwards the
version goes into the configuration of the view, outlives a cleanup of old versions, and comes back
with a restore.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.history import (
    JOB_KEY,
    UNDONE_KEY,
    Event,
    events_between,
    path_back,
    summary_of,
    version_before,
)
from lance_spark.dataset import DatasetRef
from lance_spark.errors import DamagedFileError, ViewError
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.tables import quote_text
from lance_spark.stored_json import check_fields, load_object

if TYPE_CHECKING:
    import lance

JOB_TYPE = "refresh"
"""Type of a refresh in the history of jobs."""

CONFIG_KEY = "lance-spark.view.refreshed"
STAMP_KEY = "lance-spark.refreshed"
"""Keys in the configuration of the view, and in the properties of a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The state of a view.

    Attributes:
        version: The shown version of the source.
        incarnation: Incarnation of the version, as in :class:`~lance_spark.dataset.DatasetRef`.
        at: Version of the view with this state; 0 in a stamp.
        lost: Whether later transactions of the view were cleaned up.
        skipped: File with the rows that the policy of the chunker skipped, or None.
        doubled: Whether another refresh may have committed its rows after this refresh read the
            view. Its process died before it removed them, so rows are duplicate.
    """

    version: int
    incarnation: str
    at: int = 0
    lost: bool = False
    skipped: str | None = None
    doubled: bool = False

    def shows(self, source: DatasetRef) -> bool:
        """Tells whether a pinned version is the shown version of the source."""
        return (self.version, self.incarnation) == (source.version, source.incarnation)

    def to_json(self) -> str:
        """Returns the stored form."""
        values = {
            "version": self.version,
            "incarnation": self.incarnation,
            "at": self.at,
            "skipped": self.skipped,
        }
        return json.dumps(values)

    @staticmethod
    def from_json(text: str, view_uri: str) -> Refreshed:
        """Returns the state of a stored form.

        Raises:
            ViewError: The text is damaged.
        """
        try:
            values = load_object(text, {"version": int, "incarnation": str, "at": int})
            check_fields({"skipped": values.get("skipped")}, {"skipped": (str, type(None))})
        except ValueError as error:
            raise ViewError(
                f"The stored state of the view {view_uri} is damaged: {error}. Make the view again.",
                uri=view_uri,
            ) from error
        return Refreshed(
            version=values["version"],
            incarnation=values["incarnation"],
            at=values["at"],
            skipped=values.get("skipped"),
        )


def refreshed_of(dataset: lance.LanceDataset) -> Refreshed | None:
    """Returns the shown version of the source; None before the first refresh.

    Reads each version of the view since the version of the configuration.
    """
    text = dataset.config().get(CONFIG_KEY)
    configured = None if text is None else Refreshed.from_json(text, dataset.uri)
    oldest = 0 if configured is None else configured.at
    undone: set[str] = set()
    lost = False
    for event in path_back(dataset, oldest):
        if version_before(event) < oldest:
            # The configuration was written after a restore of an earlier version.
            return _restored(dataset, version_before(event))
        lost = lost or event.operation is None
        if UNDONE_KEY in event.properties:
            undone.add(event.properties[UNDONE_KEY])
        if STAMP_KEY in event.properties and event.properties.get(JOB_KEY) not in undone:
            stamped = Refreshed.from_json(event.properties[STAMP_KEY], dataset.uri)
            return dataclasses.replace(
                stamped, at=event.version, doubled=_is_doubled(dataset, event, undone)
            )
    return None if configured is None else dataclasses.replace(configured, lost=lost)


def _is_doubled(dataset: lance.LanceDataset, event: Event, undone: Collection[str]) -> bool:
    """Tells whether another stamp may lie between a stamped commit and its read version."""
    commit = summary_of(event, dataset.uri)
    read = (
        event.version - 1 if commit is None or commit.read_version is None else commit.read_version
    )
    between = events_between(dataset, read, event.version - 1)
    return any(
        other_event.operation is None
        or (
            STAMP_KEY in other_event.properties
            and other_event.properties.get(JOB_KEY) not in undone
        )
        for other_event in between
    )


def _restored(dataset: lance.LanceDataset, version: int) -> Refreshed | None:
    """Returns the state of a restored version."""
    try:
        return refreshed_of(dataset.checkout_version(version))
    except (ValueError, OSError):
        if any(version_ref["version"] == version for version_ref in dataset.version_refs()):
            raise
        return None  # it was cleaned up


_KEEPS_VALUES = ("BaseOperation", "CreateIndex", "ReserveFragments", "Rewrite", "UpdateConfig")
"""Operations that keep the rows of a view and their values."""


def is_settled(
    view: DatasetRef,
    dataset: lance.LanceDataset,
    shows: Refreshed | None,
    *,
    but: str | None = None,
) -> bool:
    """Tells whether the last refresh left no row without a value, and no other writer came after.

    A refresh calls the UDF again for skipped and failed rows. `but` is the id of a running refresh.
    """
    text = dataset.config().get(CONFIG_KEY)
    if text is None or shows is None or Refreshed.from_json(text, dataset.uri).at != shows.at:
        return False
    try:
        records = JobHistory(view).jobs(but=but)
    except DamagedFileError:
        return False  # the record of skipped rows may be missing
    refreshes = [record for record in records if record.job_type == JOB_TYPE]
    if not refreshes or not _gave_all_values(refreshes[0], records):
        return False
    refresh_ids = {record.job_id for record in refreshes}
    staging_ids = {
        record.staging_id for record in records if record.job_id.partition("-")[0] in refresh_ids
    }
    return all(
        event.name in _KEEPS_VALUES
        or event.properties.get(JOB_KEY, "").partition("-")[0] in staging_ids
        for event in events_between(dataset, shows.at, dataset.version)
    )


def _gave_all_values(refresh: JobRecord, records: Sequence[JobRecord]) -> bool:
    """Tells whether a refresh has ended, and its backfills left no row without a value."""
    jobs = [record for record in records if record.job_id.partition("-")[0] == refresh.job_id]
    # The end of a backfill may be unknown after a failure of the store, and then its counts, too.
    # A refresh itself skips rows of a chunker, which have no row in the view.
    return all(
        job.status == "DONE" and not job.rows_failed and (job is refresh or not job.rows_skipped)
        for job in jobs
    )


def has_unfinished(view: DatasetRef, but: str | None) -> bool:
    """Tells whether another refresh began after the last successful refresh."""
    refreshes = JobHistory(view).unfinished_jobs(f"job_type = {quote_text(JOB_TYPE)}")
    return any(record.job_id != but for record in refreshes)
