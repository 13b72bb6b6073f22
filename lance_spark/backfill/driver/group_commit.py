"""Commits and records finished fragments in groups. Runs on the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.backfill.driver.checkpoint_upkeep import CheckpointUpkeep, EndedFiles
from lance_spark.backfill.driver.fragment_state import FragmentStates
from lance_spark.backfill.planning.fragment_plan import FragmentPlan
from lance_spark.backfill.planning.planner import PreparedBackfill
from lance_spark.backfill.reuse.computed_rows import FragmentRecord, RecordStore
from lance_spark.backfill.reuse.round_context import values_record
from lance_spark.backfill.task.messages import RangeOutcome
from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.changes import ColumnsToCommit, FragmentColumns, StagedColumns
from lance_spark.commit.column_commit import Outcome, commit_columns
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.identity import field_identities, files_of
from lance_spark.commit.conflicts.table_state import SeenHistory
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, LanceSparkError
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.column_file import NullColumnFiles
from lance_spark.storage.parallel_calls import begin_call

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class JobCommits:
    """The shared state and the results of a job's commits over its rounds.

    Attributes:
        untouched: Stages files of NULLs, and files of old values if a commit is taken back.
        versions: The versions of the commits, in order.
        files: Names of the committed files.
        landed: Fragments with committed values, right or not.
        groups: Number of commits.
        history: The known part of the table's history.
        ledger: Records of the job's application; None without a transaction.
        settled: Records of fragments without work. The next append of records includes them.
    """

    states: FragmentStates
    untouched: NullColumnFiles
    upkeep: CheckpointUpkeep
    policy: CommitPolicy
    versions: list[int] = field(default_factory=list)
    retries: int = 0
    files: set[str] = field(default_factory=set)
    landed: set[int] = field(default_factory=set)
    groups: int = 0
    history: SeenHistory = field(default_factory=SeenHistory)
    seconds: float = 0.0
    ledger: AppLedger | None = None
    settled: list[FragmentRecord] = field(default_factory=list)

    def save_settled(self, snapshot: DatasetRef) -> None:
        """Appends the records of fragments without work. A failure of the store only logs."""
        try:
            self.append_records(snapshot, [])
        except (OSError, LanceSparkError) as error:
            _LOG.info(
                "the values of %s fragments of %s are not recorded: %s",
                len(self.settled),
                snapshot.uri,
                error,
            )

    def append_records(self, snapshot: DatasetRef, records: Sequence[FragmentRecord]) -> None:
        """Appends records together with the records of fragments without work.

        Raises:
            TableUnwritableError: The store failed. The call may be repeated.
        """
        RecordStore(snapshot).append([*self.settled, *records])
        self.settled.clear()

    def ended_files(self, reported: Collection[str]) -> EndedFiles:
        """Returns the files of the job at its end. `reported` are the files of ended attempts."""
        attempts = self.history.attempts
        # A version may name the files of failed attempts, and files staged by the commits.
        since = min(attempts.values(), default=None) if not self.untouched.names else None
        return EndedFiles(
            committed=self.files,
            uncertain={*attempts, *self.untouched.names},
            since=since,
            reported=reported,
        )

    def add(self, outcome: Outcome, files_by_fragment: Mapping[int, str]) -> None:
        """Adds a commit of fragments with these column files."""
        self.states.conflicts(outcome.conflicts)
        self.retries += outcome.result.retries
        # None: the commit was found in the history. An unnamed file may stay then, because a named
        # file must not be deleted.
        files = frozenset(files_by_fragment.values()) if outcome.files is None else outcome.files
        self.landed.update(number for number, file in files_by_fragment.items() if file in files)
        self.files.update(files)
        for file in files:
            self.history.attempts.pop(file, None)
        # Without files no fragment of the group fits, and the commit made no version.
        if files and outcome.result.version not in self.versions:
            self.versions.append(outcome.result.version)


def work_of(
    prepared: PreparedBackfill, current: Collection[int], job: JobCommits
) -> tuple[FragmentPlan, ...]:
    """Returns the fragments with work, and notes records of others that a scan has counted.

    Without work, the records are appended at once.

    Args:
        prepared: The first round of a job.
        current: Fragments with up-to-date values of other writers.
        job: Keeps the records.

    Raises:
        As :meth:`PreparedBackfill.with_counts`.
    """
    plans = prepared.with_counts()
    unknown = {plan.fragment_id for plan in prepared.plans if plan.pending is None}
    settled = [
        plan for plan in plans if plan.pending == 0 and plan.fragment_id in unknown.union(current)
    ]
    job.settled += _records_of_values(
        prepared, {plan.fragment_id: plan.recorded_rows.skip for plan in settled}, current
    )
    work = tuple(plan for plan in plans if plan.rows_to_do)
    if not work:
        job.save_settled(prepared.spec.snapshot)
    return work


def _records_of_values(
    prepared: PreparedBackfill, nulls: Mapping[int, RowSet], current: Collection[int] = ()
) -> list[FragmentRecord]:
    """Returns records of fragments whose live rows all have a value, except computed NULLs.

    The values may be of any writer. The next backfill reads the record instead of the values.

    Args:
        prepared: The first round of a job.
        nulls: The rows computed as NULL, by fragment.
        current: Fragments with up-to-date values.
    """
    spec = prepared.spec
    if spec.row_selector.selects_values or spec.round:
        return []
    handles = [prepared.dataset.get_fragment(number) for number in nulls]
    return [
        values_record(
            spec,
            handle.metadata,
            nulls[handle.fragment_id],
            are_current=handle.fragment_id in current,
        )
        for handle in handles
        if handle is not None
    ]


class GroupCommits:
    """Commits groups of finished fragments of a round."""

    def __init__(self, prepared: PreparedBackfill, job: JobCommits) -> None:
        self._job = job
        self._prepared = prepared
        self._spec = prepared.spec
        identities = {
            column.name: column for column in field_identities(prepared.dataset.lance_schema)
        }
        self._targets = tuple(identities[column] for column in prepared.columns)
        self._fragment_ids = frozenset(
            fragment.fragment_id for fragment in prepared.dataset.get_fragments()
        )
        self._head: lance.LanceDataset | None = None
        self._is_last = False

    def commit(self, outcomes: Sequence[RangeOutcome]) -> None:
        """Commits the column files of finished fragments as a single version.

        Skips files with a conflict: their values do not fit the latest version. After the last
        commit of a round, the next commit or the end of the job deletes superfluous checkpoints.

        Raises:
            CommitImpossibleError: The column was dropped, is another column, or has another UDF.
                The table has no value of the group.
            CommitOutcomeUnknownError: The outcome of the commit is unknown.
            CommitError: The commit failed for another reason.
        """
        if not outcomes:
            return
        began = time.monotonic()
        try:
            checks = self._begin_checks()
            try:
                group = self._without_missing(outcomes)
            finally:
                # No check writes after the end of the job.
                errors = _errors_of(checks)
            if group:
                if errors:
                    raise errors[0]
                self._commit_and_note(group)
        finally:
            self._head = None
            self._job.seconds += time.monotonic() - began

    def _begin_checks(self) -> list[Callable[[], object]]:
        """Begins the checks before a commit, and returns functions that wait for them."""
        staging, ledger = self._spec.staging, self._job.ledger
        # A cleanup deletes the files of a job that it has ended, so each commit looks for the end.
        check = staging.check_open if self._job.groups else staging.begin_commit
        checks: list[Callable[[], object]] = [
            self._begin_definition_check(),
            begin_call(staging.uri, check),
        ]
        if ledger is not None:
            # Another driver may have gone on to a later transaction.
            checks.append(begin_call(staging.uri, ledger.refuse_ended))
        return checks

    def _begin_definition_check(
        self, landed: lance.LanceDataset | None = None
    ) -> Callable[[], None]:
        """Begins the check of the column's UDF, which keeps the opened version for the commit."""
        definition, snapshot = self._prepared.definition, self._spec.snapshot

        def check() -> None:
            self._head = definition.refuse_changed(snapshot, "while the job ran", landed=landed)

        return begin_call(snapshot.uri, check)

    def _commit_and_note(self, group: Sequence[RangeOutcome]) -> None:
        self._job.groups += 1
        self._job.history.opened, self._head = self._head, None
        try:
            outcome = self._commit(group)
        except CommitConflictError as error:
            # Concurrent writers kept committing first. The next round looks at their changes.
            self._job.states.conflicts(
                dict.fromkeys((outcome.fragment_id for outcome in group), str(error))
            )
            return
        # A change of the UDF after the version of the commit is a change after the commit.
        check = self._begin_definition_check(outcome.landed)
        self._note(group, outcome)
        check()

    def commit_rest(self, outcomes: Sequence[RangeOutcome], states: FragmentStates) -> None:
        """Commits the last group of a round, and records the fragments without a commit.

        The records include the rows with a value in fragments without a selected row. If the store
        fails, these records are only logged.

        Raises:
            As :meth:`commit`.
        """
        self._job.settled += _records_of_values(self._prepared, states.unselected)
        self._is_last = True
        self.commit(outcomes)
        self._record_inherited(states)
        self._job.save_settled(self._spec.snapshot)

    def _record_inherited(self, states: FragmentStates) -> None:
        """Records the known rows of compacted fragments, from the records of the old fragments."""
        inherited = []
        for outcome in states.inherited:
            files = files_of(self._fragment(outcome.fragment_id), self._spec.target_ids)
            if len(files) == 1:
                inherited.append((outcome, files[0].partition(":")[0]))
        if inherited:
            self._record(inherited, self._spec.snapshot.version or 0)

    def _without_missing(self, outcomes: Sequence[RangeOutcome]) -> list[RangeOutcome]:
        """Returns the outcomes whose files exist. A concurrent cleanup may have deleted some."""
        missing_files = set(
            self._spec.staging.find_missing([outcome.file or "" for outcome in outcomes])
        )
        reason = (
            "its column file %s is gone, as after a cleanup beside the job; run the backfill again"
        )
        self._job.states.conflicts(
            {
                outcome.fragment_id: reason % outcome.file
                for outcome in outcomes
                if outcome.file in missing_files
            }
        )
        return [outcome for outcome in outcomes if outcome.file not in missing_files]

    def _fragment(self, fragment_id: int) -> FragmentMetadata:
        fragment = self._prepared.dataset.get_fragment(fragment_id)
        if fragment is None:
            raise KeyError(fragment_id)
        return fragment.metadata

    def _commit(self, group: Sequence[RangeOutcome]) -> Outcome:
        spec, job, columns = self._spec, self._job, ", ".join(self._prepared.columns)
        definition = self._prepared.definition
        return commit_columns(
            spec.snapshot,
            ColumnsToCommit(
                read_version=spec.snapshot.version or 0,
                targets=self._targets,
                new_columns=pa.schema([]),
                inputs=spec.inputs,
                inputs_from="option",
                fragments=tuple(
                    FragmentColumns(
                        fragment=self._fragment(outcome.fragment_id),
                        staged=StagedColumns(
                            name=outcome.file or "", size_bytes=outcome.file_bytes
                        ),
                        given=outcome.rows.computed,
                    )
                    for outcome in sorted(group, key=lambda outcome: outcome.fragment_id)
                ),
                commit_message=f"{definition.noun} of {columns} {definition.origin} (job {spec.job_id})",
                advice=f"Nothing more is committed. The computed values are kept. Run the {definition.noun} again.",
                by_name=not spec.value_source.is_computed,
            ),
            job_id=f"{spec.staging.job_id}-{job.groups}",
            stage=job.untouched,
            snapshot_fragments=self._fragment_ids,
            policy=job.policy,
            history=job.history,
        )

    def _note(self, group: Sequence[RangeOutcome], outcome: Outcome) -> None:
        """Notes a commit, and removes superfluous checkpoints."""
        job, version = self._job, outcome.result.version
        files_by_fragment = {member.fragment_id: member.file or "" for member in group}
        job.add(outcome, files_by_fragment)
        for number in files_by_fragment.keys() - outcome.conflicts.keys():
            job.states.committed(number, files_by_fragment[number])
        absent = {*outcome.conflicts, *outcome.result.fragments_gone}
        present = [member for member in group if member.fragment_id not in absent]
        droppable = (
            None
            if self._is_last
            else begin_call(self._spec.snapshot.uri, job.upkeep.droppable_entries)
        )
        self._record(
            [(member, files_by_fragment[member.fragment_id]) for member in present], version
        )
        job.upkeep.note_commit(present)
        if droppable is not None:
            job.upkeep.after_commit(droppable)

    def _record(self, outcomes: Sequence[tuple[RangeOutcome, str]], version: int) -> None:
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
            for job_id, computed in self._rows_by_job(outcome).items()
        ]
        self._job.append_records(spec.snapshot, records)

    def _rows_by_job(self, outcome: RangeOutcome) -> dict[str, RowSet]:
        """Returns the rows of the job, and under the empty text the rows of all earlier jobs.

        Earlier records name the earlier jobs. A later run of a job with a filter skips only the
        rows of that job.
        """
        rows = outcome.rows
        own, earlier = {self._spec.job_id: rows.own}, {"": rows.computed - rows.own}
        if not earlier[""]:
            return own
        return own | earlier if rows.own or rows.failed else earlier


def _errors_of(checks: Sequence[Callable[[], object]]) -> list[Exception]:
    """Waits for all checks, and returns their errors."""
    errors = []
    for check in checks:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - the caller raises the error
            errors.append(error)
    return errors
