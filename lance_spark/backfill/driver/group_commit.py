"""Commits what a backfill's tasks have finished, group by group, and records what was computed.

Runs on the driver, in the job's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lance_spark.backfill.driver.fragment_state import FragmentStates
from lance_spark.backfill.planning.planner import Prepared
from lance_spark.backfill.reuse.computed_rows import FragmentRecord, RecordStore
from lance_spark.backfill.reuse.round_context import store_of
from lance_spark.backfill.task.messages import RangeOutcome
from lance_spark.catalog.binding import binding_of
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.column_commit import commit_columns
from lance_spark.commit.conflicts.identity import field_identities, files_of
from lance_spark.commit.conflicts.table_state import SeenHistory
from lance_spark.commit.protocols import Outcome
from lance_spark.errors import ColumnNotFoundError, CommitConflictError, CommitImpossibleError
from lance_spark.jobs.history import JobHistory
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import missing_data_files, staged_jobs
from lance_spark.staging.orphans import referenced_files
from lance_spark.staging.placeholder_files import UntouchedFiles
from udf_runtime.checkpoint import CheckpointEntry

_LOG = logging.getLogger(__name__)

_PARALLEL_DELETES = 8


@dataclass(slots=True, kw_only=True)
class Committed:
    """What a job committed so far, over its rounds.

    Attributes:
        states: The states of its fragments.
        results: One result per commit, also of those that found nothing any more to write to.
        versions: The versions that they made, in order.
        files: Names of the files that versions name.
        landed: Fragments whose values were committed, right or not.
        groups: Commits so far.
        history: What they have read of the table's history.
    """

    states: FragmentStates
    results: list[CommitResult] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    landed: set[int] = field(default_factory=set)
    groups: int = 0
    history: SeenHistory = field(default_factory=SeenHistory)


class GroupCommits:
    """Commits groups of finished fragments of one round of a job.

    Attributes:
        done: What the job committed so far.
    """

    def __init__(self, prepared: Prepared, done: Committed, policy: CommitPolicy) -> None:
        self.done = done
        spec = prepared.spec
        self._prepared = prepared
        self._spec = spec
        self._policy = policy
        self._untouched = UntouchedFiles(spec.staging, spec.targets.format)
        self._records = RecordStore(spec.snapshot)
        known = {column.name: column for column in field_identities(prepared.dataset.lance_schema)}
        self._targets = tuple(known[column] for column in prepared.columns)
        self._left_over = _left_over(prepared)
        self._there = frozenset(fragment.fragment_id for fragment in prepared.dataset.get_fragments())

    @property
    def staged_here(self) -> list[str]:
        """Names of files that were staged beside the tasks' files: of NULLs, and of the old values where a commit was taken back."""
        return self._untouched.names

    def commit(self, outcomes: Sequence[RangeOutcome]) -> None:
        """Commits the column files of finished fragments as one version; one that does not fit any more is left out, and reported.

        Raises:
            CommitImpossibleError: The column is gone, has become another one, or has got another
                UDF. Nothing of the group is in the table.
            CommitOutcomeUnknownError: Whether the commit happened cannot be told.
            CommitError: It did not happen, for another reason.
        """
        group = self._without_missing([outcome for outcome in outcomes if outcome.file is not None])
        if not group:
            return
        self.done.groups += 1
        self.refuse_other_udf()
        try:
            outcome = self._commit(group)
        except CommitConflictError as error:
            # Concurrent writers came first again and again; the next round looks at what they did.
            self.done.states.conflicts(dict.fromkeys((one.fragment_id for one in group), str(error)))
            return
        self.done.states.conflicts(outcome.conflicts)
        # None: the commit was found in the history. Then a file that no version names may stay,
        # rather than one go that a version names.
        files = frozenset(one.file or "" for one in group) if outcome.files is None else outcome.files
        self.done.landed.update(one.fragment_id for one in group if one.file in files)
        self.done.files.update(files)
        if not self.done.results or outcome.result.version != self.done.results[-1].version:
            self.done.results.append(outcome.result)
        # No files: nothing of the group fits any more, and no version was made.
        if outcome.files != frozenset() and outcome.result.version not in self.done.versions:
            self.done.versions.append(outcome.result.version)
        self._note([one for one in group if one.fragment_id not in outcome.conflicts], outcome.result)
        self.refuse_other_udf()

    def drop_own_checkpoints(self, *kinds: str) -> None:
        """Deletes checkpoints of this job that no run can use any more: of rows that were deleted or moved, or of a column that is gone."""
        store = store_of(self._spec)
        for entries in store.find_all(self._spec.key).values():
            for entry in entries:
                if entry.job_id == self._spec.job_id and entry.kind in kinds:
                    store.delete(entry)

    def sweep_ended_jobs(self) -> None:
        """Deletes files of earlier jobs of the same values that no checkpoint refers to any more.

        Only of jobs whose driver has ended them: one that seems dead may be about to commit. A file
        that any version of any branch names stays.
        """
        spec, snapshot = self._spec, self._spec.snapshot
        found = store_of(spec).find_all(spec.key).values()
        referred = {entry.job_id for entries in found for entry in entries if entry.kind == "reference"}
        staged = set(staged_jobs(snapshot.uri, snapshot.storage_options)) - {spec.staging.job_id}
        for job in JobHistory(snapshot).jobs() if staged else ():
            ended = job.status in ("PARTIAL", "FAILED", "CANCELLED") and job.key == spec.key.digest
            if ended and job.staging_id in staged and job.job_id not in referred:
                staging = replace(spec.staging, job_id=job.staging_id)
                staging.close_job()
                staging.sweep(keep=referenced_files(snapshot, set(staging.find_data_files())))

    def leaves_files(self) -> bool:
        """Tells whether there are column files of this job that are finished and not committed."""
        entries = store_of(self._spec).find_all(self._spec.key)
        return any(e.kind == "reference" and e.job_id == self._spec.job_id for found in entries.values() for e in found)

    def _without_missing(self, group: list[RangeOutcome]) -> list[RangeOutcome]:
        """Leaves out fragments whose files are gone: a cleanup beside the job deletes what no version names."""
        uri, options = self._spec.snapshot.uri, self._spec.snapshot.storage_options
        missing = set(missing_data_files(uri, options, [outcome.file or "" for outcome in group]))
        for outcome in group:
            if outcome.file in missing:
                reason = f"its column file is not there any more, as after a cleanup beside the job - {outcome.file} - run the backfill again"
                self.done.states.conflicts({outcome.fragment_id: reason})
        return [outcome for outcome in group if outcome.file not in missing]

    def _commit(self, group: Sequence[RangeOutcome]) -> Outcome:
        spec = self._spec
        if self.done.groups == 1:
            spec.staging.begin_commit()
        parts = []
        for outcome in sorted(group, key=lambda outcome: outcome.fragment_id):
            fragment = self._prepared.dataset.get_fragment(outcome.fragment_id)
            if fragment is None:
                raise KeyError(outcome.fragment_id)
            staged = StagedColumns(name=outcome.file or "", size_bytes=outcome.file_bytes)
            parts.append(FragmentColumns(fragment=fragment.metadata, staged=staged, given=outcome.rows.computed))
        return commit_columns(
            spec.snapshot,
            ColumnsToCommit(
                read_version=spec.snapshot.version or 0,
                targets=self._targets,
                new_columns=pa.schema([]),
                inputs=spec.inputs,
                inputs_from="option",
                fragments=tuple(parts),
                commit_message=f"backfill of {', '.join(self._prepared.columns)} by UDF {spec.key.udf_name} (job {spec.job_id})",
                advice="nothing more is committed, and what was computed is kept; run the backfill again",
            ),
            job_id=f"{spec.staging.job_id}-{self.done.groups}",
            stage=self._untouched,
            snapshot_fragments=self._there,
            policy=self._policy,
            history=self.done.history,
        )

    def _note(self, group: Sequence[RangeOutcome], result: CommitResult) -> None:
        """Records what was computed, and removes the checkpoints that it makes superfluous."""
        gone = frozenset(result.fragments_gone)
        for outcome in group:
            self.done.states.committed(outcome.fragment_id, outcome.file or "")
        landed = [outcome for outcome in group if outcome.fragment_id not in gone]
        self._record([(outcome, outcome.file or "") for outcome in landed], result.version)
        self._drop_checkpoints(landed)

    def inherit(self, outcomes: Sequence[RangeOutcome]) -> None:
        """Records of fragments that a compaction made what the records of the old ones say, so that it need not be followed again."""
        found = []
        for outcome in outcomes:
            fragment = self._prepared.dataset.get_fragment(outcome.fragment_id)
            files = [] if fragment is None else files_of(fragment.metadata, self._spec.target_ids)
            if len(files) == 1:
                found.append((outcome, files[0].partition(":")[0]))
        self._record(found, self._spec.snapshot.version or 0)

    def _record(self, outcomes: Sequence[tuple[RangeOutcome, str]], version: int) -> None:
        """Records what is known of fragments and their column files."""
        spec = self._spec
        rows = {plan.fragment_id: plan.physical_rows for plan in self._prepared.plans}
        records = [
            FragmentRecord(
                column=spec.column,
                fragment_id=outcome.fragment_id,
                physical_rows=rows[outcome.fragment_id],
                table_version=version,
                job_id=job_id,
                key=spec.key.digest,
                udf_version=spec.key.udf_version,
                source=outcome.source,
                target_file=file,
                computed=computed,
                nulls=outcome.rows.nulls & computed,
                failed=outcome.rows.failed if job_id == spec.job_id else RowSet.empty(),
            )
            for outcome, file in outcomes
            for job_id, computed in self._by_job(outcome).items()
        ]
        if records:
            self._records.append(records)

    def _by_job(self, outcome: RangeOutcome) -> dict[str, RowSet]:
        """Returns the rows of a fragment that have a value, by the job that computed them: those of this job and what others left.

        A later run of a job with a filter leaves out what that job has done, and nothing else. No
        job is the empty text.
        """
        jobs, left = {self._spec.job_id: outcome.rows.own}, outcome.rows.computed - outcome.rows.own
        for record in self._prepared.records.of(outcome.fragment_id) if left else ():
            part = record.computed & left if record.key == self._spec.key.digest else RowSet.empty()
            if part:
                jobs[record.job_id] = jobs.get(record.job_id, RowSet.empty()) | part
                left -= part
        return {**jobs, "": left} if left else jobs

    def _drop_checkpoints(self, group: Sequence[RangeOutcome]) -> None:
        """Deletes checkpoints of committed rows.

        The record and the column file have their values now.
        """
        store = store_of(self._spec)

        def is_covered(entry: CheckpointEntry, outcome: RangeOutcome) -> bool:
            # Others may have left rows that this job did not select; of this job's own, some may
            # have moved to a fragment that comes later. Names tell most of it; files are large.
            mine = entry.job_id == self._spec.job_id
            rows = outcome.rows.own if mine else outcome.rows.computed
            if entry.kind == "values":
                count = rows.count(entry.start, entry.stop)
                if count < entry.rows or count == entry.stop - entry.start or mine:
                    return count >= entry.rows
                found = store.read(entry, self._spec.key, outcome.source)
                return found is None or RowSet.of(found[0].to_numpy()) <= rows
            body = store.read_reference(entry, self._spec.key, outcome.source)
            return body is None or RowSet.from_text(str(body["rows"]["own" if mine else "computed"])) <= rows

        def drop(outcome: RangeOutcome) -> None:
            for entry in store.find(self._spec.key, outcome.source):
                # What another job leaves meanwhile is that job's, which may be about to look for
                # it.
                if (entry.job_id == self._spec.job_id or entry.path in self._left_over) and is_covered(entry, outcome):
                    store.delete(entry)

        try:
            with ThreadPoolExecutor(_PARALLEL_DELETES) as pool:
                list(pool.map(drop, [outcome for outcome in group if outcome.checkpoints]))
        except OSError as error:
            # The values are in the table; that they are elsewhere too must not make the job fail.
            _LOG.warning(
                "checkpoints of committed fragments of %s could not be deleted: %s", self._spec.snapshot.uri, error
            )

    def refuse_other_udf(self, when: str = "while the job ran") -> None:
        """Ends the job where the column has got another UDF since its snapshot: its values would be old ones under a new definition.

        Raises:
            CommitImpossibleError: It has.
        """
        prepared = self._prepared
        if not prepared.stored or prepared.binding is None:
            return
        column = prepared.columns[0]
        try:
            now = binding_of(prepared.spec.snapshot.open_latest(), column)
        except ColumnNotFoundError:
            return  # the commit says what became of it
        before = prepared.binding
        if now is not None and (now.payload, now.redefined) != (before.payload, before.redefined):
            old, new = (f"{binding.udf_name!r} version {binding.udf_version}" for binding in (before, now))
            change = (
                f"got another UDF {when}: {new} instead of {old}" if new != old else f"got its UDF anew {when}: {new}"
            )
            raise CommitImpossibleError(
                f"the column has {change} - column {column!r} of {prepared.spec.snapshot.uri} - nothing more is "
                "committed; run the backfill again: it computes all rows with the UDF of the latest version",
                uri=prepared.spec.snapshot.uri,
            )


def _left_over(prepared: Prepared) -> frozenset[str]:
    """Returns the paths of checkpoints that earlier jobs have left.

    Those of jobs that run are not among them.
    """
    others = [e for found in prepared.entries.values() for e in found if e.job_id != prepared.spec.job_id]
    if not others:
        return frozenset()
    running = {job.job_id for job in JobHistory(prepared.spec.snapshot).jobs() if job.status == "RUNNING"}
    return frozenset(entry.path for entry in others if entry.job_id not in running)
