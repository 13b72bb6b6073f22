"""Deletes checkpoints and files of a job, and keeps its snapshot by a tag. Runs on the driver.

The name of a tag has its time of expiry: if the driver of a job dies, a later job deletes the
expired tag.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.computed_rows import Records, RecordStore
from lance_spark.backfill.reuse.round_context import store_of, target_files
from lance_spark.backfill.reuse.stored_reference import StoredReference
from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome
from lance_spark.dataset import DatasetRef, tags_of
from lance_spark.errors import (
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    TableUnwritableError,
    panics_as_errors,
)
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.tables import is_one_of
from lance_spark.locations import is_local
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import finish, staged_jobs
from lance_spark.staging.orphans import referenced_files
from lance_spark.storage.parallel_calls import begin_call
from udf_runtime.checkpoint import CheckpointEntry, ColumnFileReference

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

_PARALLEL_DELETES = 16

_MOST_GROUPS = 64
"""Maximum number of the job's checkpoints with references to files, before commits delete some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedFiles:
    """The data files of a job at its end, by their names.

    Attributes:
        committed: The committed files.
        uncertain: Files that a version may name.
        since: A version before all versions with these files; None is the job's snapshot.
        reported: All files of task attempts that have ended.
    """

    committed: Collection[str]
    uncertain: Collection[str]
    since: int | None = None
    reported: Collection[str]


class CheckpointUpkeep:
    """Deletes superfluous checkpoints after a job's commits. Belongs to the job's thread.

    A commit deletes the checkpoints of its rows: the job's own, and checkpoints of earlier, ended
    jobs. A checkpoint of a concurrent job stays, because its job may need it. A checkpoint with
    references to several files goes after the commit of the last of them.
    """

    def __init__(
        self, spec: BackfillSpec, entries: Mapping[str, Sequence[CheckpointEntry]]
    ) -> None:
        """Takes the first round's spec, and the checkpoints from before the job."""
        self._spec = spec
        self._store = store_of(spec)
        self._groups: dict[str, list[CheckpointEntry]] = {}
        self._committed: dict[str, RangeOutcome] = {}
        other_entries = [
            entry for some in entries.values() for entry in some if entry.job_id != spec.job_id
        ]
        other_jobs = is_one_of("job_id", {entry.job_id for entry in other_entries})
        jobs = JobHistory(spec.snapshot).intact_jobs(other_jobs) if other_entries else []
        running = {job.job_id for job in jobs if job.status == "RUNNING"}
        self._left_over = frozenset(
            entry.path for entry in other_entries if entry.job_id not in running
        )

    def note_commit(self, outcomes: Sequence[RangeOutcome]) -> None:
        """Notes committed rows. Records and column files have their values."""
        self._committed |= {outcome.source: outcome for outcome in outcomes}

    def after_commit(self, droppable_entries: Callable[[], Collection[CheckpointEntry]]) -> None:
        """Deletes the checkpoints of the rows committed since the last call.

        `droppable_entries` waits for the result of :meth:`droppable_entries`.
        """
        self._drop_covered(droppable_entries)

    def _drop_covered(self, find_entries: Callable[[], Collection[CheckpointEntry]]) -> set[str]:
        """Deletes the checkpoints of rows committed since the last call; returns their paths."""
        committed, self._committed = self._committed, {}
        dropped = set[str]()

        def drop(entry: CheckpointEntry) -> None:
            if self._drop_if_covered(committed, entry):
                dropped.add(entry.path)

        try:
            entries = find_entries() if committed else ()
            with ThreadPoolExecutor(_PARALLEL_DELETES) as pool:
                list(pool.map(drop, entries))
        except OSError as error:
            # The values are in the table. A superfluous checkpoint must not fail the job.
            _LOG.warning(
                "checkpoints of committed rows of %s are not deleted: %s",
                self._spec.snapshot.uri,
                error,
            )
        return dropped

    def at_end(self, files: EndedFiles, *, is_done: bool, failure: BaseException | None) -> None:
        """Deletes the job's checkpoints and files, except for committed files and a later run's.

        Args:
            files: The files of the job.
            is_done: Whether the job is done. Then no later run needs its checkpoints.
            failure: The error of the job. A later run may commit finished files, except after a
                drop of the column. If the outcome of a commit is unknown, all files stay.
        """
        spec, snapshot = self._spec, self._spec.snapshot
        ended_jobs = begin_call(
            snapshot.uri, functools.partial(staged_jobs, snapshot.uri, snapshot.storage_options)
        )
        own = self._drop_last_covered(is_done=is_done)
        of_files = [entry for entry in own if entry.kind != "values"]
        useless = own if is_done else of_files
        if of_files and not is_done and not isinstance(failure, CommitImpossibleError):
            records = RecordStore(snapshot).load(spec.column)
            useless = [
                entry
                for entry in of_files
                if not self._open_members(entry, files.committed, records)
            ]
        with ThreadPoolExecutor(_PARALLEL_DELETES) as pool:
            deletions: Iterable[None] = pool.map(self._store.delete, useless)
            if not is_done:
                # No checkpoint for a later run names a deleted file.
                deletions = list(deletions)
            self._end_staging(files, failure, serves=not is_done and len(useless) < len(of_files))
            list(deletions)
        if is_done:
            self._sweep_ended_jobs(ended_jobs())

    def _drop_last_covered(self, *, is_done: bool) -> list[CheckpointEntry]:
        """Deletes the checkpoints of the last commit, and returns the other ones of the job.

        At the end of a job that `is_done`, the caller deletes all checkpoints of the job.
        """
        entries = self._store.list_entries(self._spec.key)
        own = [entry for entry in entries if entry.job_id == self._spec.job_id]
        left_over = self._left_over_among(entries)
        dropped = self._drop_covered(
            lambda: left_over if is_done else self._droppable(own) + left_over
        )
        return [entry for entry in own if entry.path not in dropped]

    def _end_staging(
        self, files: EndedFiles, failure: BaseException | None, *, serves: bool
    ) -> None:
        """Ends the job, and deletes its files unless they serve a later run or a late commit."""
        staging, snapshot = self._spec.staging, self._spec.snapshot
        # An interrupted call to an object store may still make a version.
        is_interrupted = not isinstance(failure, Exception | None) and not is_local(snapshot.uri)
        if is_interrupted or isinstance(failure, CommitOutcomeUnknownError):
            if staging.close_job():
                staging.note_end()
        elif serves:
            # Finished files without a commit serve the next run, and the next run removes them.
            staging.end_with_files()
        else:
            # A failed job may have made a version without knowing. Each name takes a look at every
            # version since.
            names = set(files.uncertain).difference(files.committed)
            ref = snapshot if files.since is None else replace(snapshot, version=files.since)
            finish(
                staging, ref, sorted(files.committed), unless_named=names, reported=files.reported
            )

    def droppable_entries(self) -> list[CheckpointEntry]:
        """Returns the checkpoints of the job itself, and of earlier, ended jobs."""
        entries = self._store.list_entries(self._spec.key)
        own = [entry for entry in entries if entry.job_id == self._spec.job_id]
        return self._droppable(own) + self._left_over_among(entries)

    @staticmethod
    def _droppable(own: list[CheckpointEntry]) -> list[CheckpointEntry]:
        """Returns the checkpoints of the job, without few checkpoints of files.

        The end of the job deletes few checkpoints of files without reading them.
        """
        has_many = sum(entry.kind == "references" for entry in own) > _MOST_GROUPS
        return own if has_many else [entry for entry in own if entry.kind != "references"]

    def _left_over_among(self, entries: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
        return [entry for entry in entries if entry.path in self._left_over]

    def _drop_if_covered(
        self, outcomes: Mapping[str, RangeOutcome], entry: CheckpointEntry
    ) -> bool:
        """Deletes a checkpoint with rows of committed fragments only, and tells whether it did."""
        if entry.kind != "references":
            is_useless = self._is_committed(outcomes, entry)
        else:
            members = [
                member
                for member in self._members(entry)
                if not self._is_committed(outcomes, member)
            ]
            self._groups[entry.path] = members
            is_useless = not members
        if is_useless:
            self._store.delete(entry)
        return is_useless

    def _members(self, group: CheckpointEntry) -> list[CheckpointEntry]:
        """Returns the references of a checkpoint to files without a commit."""
        members = self._groups.get(group.path)
        if members is not None:
            return members
        members = self._store.read_references(group, self._spec.key)
        if group.job_id == self._spec.job_id:
            return members
        # A job that died between a commit and the deletion has left references to committed files.
        return self._open_among(members, self._files_before, self._spec.records)

    def _open_members(
        self, group: CheckpointEntry, committed: Collection[str], records: Records
    ) -> list[CheckpointEntry]:
        """Returns the references of an entry of any kind to files without a commit."""
        return (
            [group]
            if group.kind == "reference"
            else self._open_among(self._members(group), committed, records)
        )

    def _open_among(
        self,
        members: Sequence[CheckpointEntry],
        committed: Collection[str],
        records: Records | None,
    ) -> list[CheckpointEntry]:
        return [
            member
            for member in members
            if member.reference
            and member.reference["data_file"] not in committed
            and not (records is not None and self._is_recorded(member, member.reference, records))
        ]

    def _is_recorded(
        self, member: CheckpointEntry, body: ColumnFileReference, records: Records
    ) -> bool:
        """Tells whether the job of a reference has committed its rows in another file.

        A task that ran twice leaves two files.
        """
        reference = StoredReference.of(body)
        if reference is None:
            return False
        rows, fragment_id = reference.rows.own, reference.fragment_id
        identity = (self._spec.key.digest, member.source, member.job_id)
        for record in () if fragment_id is None else records.of(fragment_id):
            if (record.key, record.source, record.job_id) == identity:
                rows -= record.computed
        return not rows

    @functools.cached_property
    def _files_before(self) -> frozenset[str]:
        """The files with target columns of the job's first version."""
        spec = self._spec
        fragments = spec.snapshot.open().get_fragments()
        return frozenset().union(*(target_files(spec, fragment.metadata) for fragment in fragments))

    def _is_committed(self, outcomes: Mapping[str, RangeOutcome], entry: CheckpointEntry) -> bool:
        outcome = outcomes.get(entry.source)
        is_own = entry.job_id == self._spec.job_id
        return outcome is not None and self._is_covered(entry, outcome, is_own=is_own)

    def _is_covered(self, entry: CheckpointEntry, outcome: RangeOutcome, *, is_own: bool) -> bool:
        # Another job may have selected more rows. Own rows may have moved to a later fragment.
        rows = outcome.rows.own if is_own else outcome.rows.computed
        if entry.kind == "reference":
            reference = StoredReference.of(
                self._store.read_reference(entry, self._spec.key, outcome.source)
            )
            if reference is None:
                return True
            return (reference.rows.own if is_own else reference.rows.computed) <= rows
        # The name of the entry is enough for most cases. Files are large.
        count = rows.count(entry.start, entry.stop)
        if is_own or count < entry.rows or count == entry.stop - entry.start:
            return count >= entry.rows
        stored = self._store.read(entry, self._spec.key, outcome.source)
        return stored is None or RowSet.of(stored[0].to_numpy()) <= rows

    def _sweep_ended_jobs(self, job_ids: Collection[str]) -> None:
        """Deletes files without a checkpoint of earlier jobs of the same values.

        Skips jobs without an end by their driver: a job may seem dead, and commit later.
        Keeps the files of all versions of all branches.

        Args:
            job_ids: Ids of staging areas.
        """
        spec, snapshot = self._spec, self._spec.snapshot
        staged = set(job_ids) - {spec.staging.job_id}
        ended_jobs = [
            job
            for job in (
                JobHistory(snapshot).intact_jobs(is_one_of("staging_id", staged)) if staged else ()
            )
            if job.status in ("PARTIAL", "FAILED", "CANCELLED") and job.key == spec.key.digest
        ]
        # A job notes its files before its end, so this list has the checkpoints of all ended jobs.
        entries = self._store.list_entries(spec.key) if ended_jobs else ()
        referred = {entry.job_id for entry in entries if entry.kind != "values"}
        for job in ended_jobs:
            if job.job_id not in referred:
                staging = replace(spec.staging, job_id=job.staging_id)
                if staging.close_job():
                    continue  # the outcome of its last commit is unknown
                staging.sweep(keep=referenced_files(snapshot, set(staging.find_data_files())))


_PREFIX = "lance-spark-protects-until-"

_DAY_S = 86_400

_MOST_TABLES = 1000

_looks: dict[str, int] = {}
"""The days of the last looks for expired tags, by table."""

_ERRORS = (OSError, ValueError, RuntimeError)
"""Exceptions of pylance, for any cause."""

LIFETIME = timedelta(days=30)
"""Age of a remaining tag at its removal."""


def protect(snapshot: DatasetRef, job_id: str, *, begin_s: float | None = None) -> str:
    """Tags a version, and returns the name of the tag. `job_id` is an id of the job's staging.

    Raises:
        TableUnwritableError: The version cannot be tagged.
        LanceSparkError: The table cannot be opened.
    """
    until = int((time.time() if begin_s is None else begin_s) + LIFETIME.total_seconds())
    name = f"{_PREFIX}{until}-{job_id}"
    dataset = snapshot.open_latest()
    try:
        with panics_as_errors():
            dataset.tags.create(name, snapshot.version)
    except _ERRORS as error:
        reason = f"version {snapshot.version} cannot be tagged to protect it from cleanups: {error}"
        raise TableUnwritableError(snapshot.uri, reason) from error
    return name


def release(ref: DatasetRef, name: str) -> None:
    """Removes a tag, if it exists.

    Raises:
        TableUnwritableError: The tag cannot be removed.
        LanceSparkError: The table cannot be opened.
    """
    _delete(ref.open_latest(), name)


def remove_expired(dataset: lance.LanceDataset) -> None:
    """Removes the expired tags of ended jobs, at the first job of a process and a day.

    If the removal of a tag fails, the next job tries again.
    """
    today = int(time.time() // _DAY_S)
    if _looks.get(dataset.uri) == today:
        return
    try:
        for name in _list_tag_names(dataset):
            until = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and until.isdecimal() and int(until) < time.time():
                _LOG.info("removing the expired tag %s of %s", name, dataset.uri)
                _delete(dataset, name)
        while len(_looks) >= _MOST_TABLES:
            _looks.pop(next(iter(_looks)), None)
        _looks[dataset.uri] = today
    except _ERRORS as error:
        _LOG.warning("expired tags of %s are not removed yet: %s", dataset.uri, error)


def _list_tag_names(dataset: lance.LanceDataset) -> list[str]:
    with panics_as_errors():
        return list(tags_of(dataset))


def _delete(dataset: lance.LanceDataset, name: str) -> None:
    try:
        with panics_as_errors():
            dataset.tags.delete(name)
    except _ERRORS as error:
        if name in _list_tag_names(dataset):
            raise TableUnwritableError(
                dataset.uri, f"the tag {name} cannot be removed: {error}"
            ) from error
        _LOG.debug("the tag %s of %s is gone: %s", name, dataset.uri, error)
