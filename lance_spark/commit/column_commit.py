"""Commits column files to the latest version of a table: :func:`commit_columns`.

Each round opens the latest version and judges every fragment by identity
(:mod:`lance_spark.commit.conflicts.verdicts`). New columns are added as all NULL. One
DataReplacement then commits the column files of all valid fragments. A DataFrame write rebases the
other fragments, and commits all fragments at once or none. A job leaves the other fragments out,
and recomputes their values.

Concurrent commits may land between the reading of a version and the commit on top. pylance checks
these commits even with `max_retries=0`. Measured with pylance 14:

- pylance accepts appends, deletions of rows, drops and renames of other columns, a rename of the
  target, any change to other fragments, and an *in-place rewrite of an input* of the same fragment;
- pylance refuses every move of rows of the fragment, every rewrite of its target, every Merge (an
  added or cast column), an index of the target, a drop of the target, Overwrite and Restore;
- if the transaction of the concurrent commit was cleaned up in that moment, pylance accepts all of
  the refused changes, as long as a fragment of the same id exists.

A commit therefore needs another round if its version does not directly follow the version that the
round opened. The extra round starts from the landed version, and mostly has nothing to commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit, check_landed
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, StagedColumns
from lance_spark.commit.column_plan import (
    ColumnCommitPlanner,
    ColumnCommitRequest,
    CommitPlan,
    Rebaser,
)
from lance_spark.commit.commit_loop import CommitPolicy, commit_job, properties_of
from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.identity import ids_of
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import targets_in
from lance_spark.commit.dropped import OpenedVersion, TableDroppedError
from lance_spark.commit.verify import (
    Stage,
    file_named,
    refuse_lost_files,
    replace_data,
    same_columns,
    take_back,
)
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    counted,
)
from lance_spark.lance_compat import plain

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from lance.fragment import DataFile

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a commit.

    Attributes:
        result: The committed result.
        conflicts: Reasons for fragments left out; only without a :data:`Rebaser`.
        files: Names of the files of this commit in the version; None if an earlier attempt had
            already committed.
        landed: The open version of the result; None if the answer of its commit was lost.
    """

    result: CommitResult
    conflicts: Mapping[int, str] = field(default_factory=dict)
    files: frozenset[str] | None = None
    landed: lance.LanceDataset | None = None


def commit_columns(
    snapshot: DatasetRef,
    change: ColumnsToCommit,
    *,
    job_id: str,
    stage: Stage,
    snapshot_fragments: Collection[int],
    rebaser: Rebaser | None = None,
    policy: CommitPolicy | None = None,
    history: SeenHistory | None = None,
) -> Outcome:
    """Commits column files as one version.

    A new column takes an extra version, and is first added as all NULL. A Merge with values would
    have to be resent after a conflict, and pylance then drops other columns or restores deleted
    rows. A crash between the two versions leaves the column all NULL.

    Args:
        snapshot: The table, at the version that the values belong to. The version may have been
            cleaned up.
        change: The column files.
        job_id: A second commit with the same id returns the result of the first.
        stage: Stages further files, in addition to the job's own.
        snapshot_fragments: Ids of the snapshot's fragments, with or without the fragments of
            `change`; empty if the snapshot was cleaned up.
        rebaser: Rebases invalid fragments to the latest version, and makes the commit all or
            nothing. Without a rebaser, invalid fragments are left out.
        policy: Bounds of the retries; by default from the environment.
        history: History read by earlier commits of the job. This commit extends the history.

    Raises:
        CommitConflictError: A concurrent writer renamed a target or added the same column, or
            `rebaser` raised the error. Nothing was committed, or the commit was undone.
        CommitImpossibleError: The column was dropped or changed, or the table was overwritten,
            restored or deleted. Nothing was committed.
        CommitOutcomeUnknownError: The commit may or may not have happened, or lacks files. The
            files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    history = history or SeenHistory()
    request = ColumnCommitRequest(
        snapshot=snapshot,
        change=change,
        job_id=job_id,
        stage=stage,
        snapshot_fragments=frozenset(snapshot_fragments),
        rebaser=rebaser,
        policy=policy or CommitPolicy.of(None),
    )
    parts = {part.fragment_id: part for part in change.fragments}
    planner = ColumnCommitPlanner(
        request=request, history=history, parts=parts, input_ids=ids_of(change.inputs)
    )
    commit = _ColumnCommit(request=request, planner=planner)
    result = commit.run(max(change.read_version, history.upto))
    _logger.info(
        "backfill of %s committed to %s as version %d: %d rows in %d fragments, read at version %d, inputs %s (from "
        "%s), %d rows carried over, %d NULL because their inputs changed, %d fragments and %d rows gone meanwhile, %d "
        "new rows without a value, %d retries (job %s)",
        ", ".join(result.columns), result.uri, result.version, result.rows, result.fragments, change.read_version,
        ", ".join(result.input_columns) or "none", result.inputs_from, result.rows_carried, result.rows_nulled,
        len(result.fragments_gone), result.rows_gone, result.new_rows, result.retries, job_id,
    )  # fmt: skip
    if rebaser is not None and change.fragments and not result.rows:
        _logger.warning(
            "The write of %s left no value. The inputs of %d rows changed after version %d was read, and concurrent "
            "writers deleted the other rows. Table: %s. Read the table again and write again.",
            ", ".join(result.columns), result.rows_nulled, change.read_version, result.uri,
        )  # fmt: skip
    if commit.first is None:
        return Outcome(result=result)
    landed = (
        commit.landed
        if commit.landed is not None and commit.landed.version == result.version
        else None
    )
    return Outcome(
        result=result,
        conflicts=commit.first.conflicts,
        files=frozenset(commit.files),
        landed=landed,
    )


@dataclass(slots=True, kw_only=True)
class _ColumnCommit:
    """One commit over its rounds.

    Attributes:
        unanswered: Plans whose commit got no answer, by the retries of their result.
        first: The plan that was committed first. An undo restores the values of its version. None
            before, and if an earlier attempt has committed.
        result: The job's committed result so far.
        parts: The job's committed column files, by fragment.
        files: Names of all files of the job in any version.
        again: Whether a concurrent commit may have landed just before the last commit.
        landed: The version made by the last commit; None if its answer was lost.
        opened: The version that the first round opened.
    """

    request: ColumnCommitRequest
    planner: ColumnCommitPlanner
    unanswered: dict[int, CommitPlan] = field(default_factory=dict)
    first: CommitPlan | None = None
    result: CommitResult | None = None
    parts: dict[int, FragmentColumns] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    again: bool = False
    landed: lance.LanceDataset | None = None
    opened: OpenedVersion | None = None

    def run(self, since: int) -> CommitResult:
        """Commits until no concurrent commit has landed just before the job's commit.

        If concurrent commits land in front of every commit until the policy's timeout, the loop
        ends like an endless series of lost races.
        """
        began, slips = time.monotonic(), 0
        while True:
            try:
                self._refuse_endless(slips, time.monotonic() - began)
                result = self._commit_once(since)
            except TableDroppedError as error:
                raise CommitImpossibleError(str(error), uri=self.request.snapshot.uri) from error
            except BaseException as error:
                if self.first is None or self._stays_after(error):
                    raise
                undo_report = self._take_back(self.first, since)
                if not isinstance(error, CommitError):
                    raise
                raise CommitConflictError(
                    f"{error} {undo_report}",
                    uri=self.request.snapshot.uri,
                    fragments=getattr(error, "fragments", ()),
                ) from error
            if not self.again:
                return self.result or result
            since, slips = result.version, slips + 1

    def _commit_once(self, since: int) -> CommitResult:
        request = self.request
        history = self.planner.history
        opened, history.opened = history.opened, None
        try:
            result = commit_job(
                request.snapshot,
                request.job_id,
                since,
                self._run_round,
                request.policy,
                head=opened,
                refuses_dropped=True,
            )
        except CommitOutcomeUnknownError:
            raise
        except CommitError as error:
            self.planner.refuse_unchecked(error)
            self.planner.tell_of_columns(error)
            raise
        plan = self.unanswered.pop(result.retries, None)
        if plan is not None:
            # The answer or the check was lost, and the history has the commit: validate as usual.
            unknown = check_landed(lambda: self._land(plan, result, None))
            if unknown is not None:
                raise _unchecked(
                    request.snapshot.uri, result.version, unknown.error
                ) from unknown.error
        return result

    def _stays_after(self, error: BaseException) -> bool:
        """Tells whether the commits so far stay although a later commit raised an error."""
        # A job reads its committed values in its next round.
        is_read_again = self.request.rebaser is None and not isinstance(error, CommitError)
        return is_read_again or isinstance(error, CommitOutcomeUnknownError)

    def _refuse_endless(self, slips: int, seconds: float) -> None:
        if slips and seconds > self.request.policy.timeout_s:
            uri = self.request.snapshot.uri
            raise CommitConflictError(
                f"Concurrent writers changed inputs beside each of {counted(slips, 'commit')}. Table: {uri}. Write "
                "again when they are through, or raise commit_timeout.",
                uri=uri,
            )

    def _run_round(
        self, dataset: lance.LanceDataset | None, retries: int
    ) -> CommitResult | Lost | Unknown:
        """Runs one round, as defined by :data:`~lance_spark.commit.commit_loop.Round`."""
        if self.again and self.landed is not None:
            dataset = self.landed  # judge commits up to the landed version, not later commits
        self.again = False
        if self.opened is None and dataset is not None:
            self.opened = OpenedVersion.of(dataset)
        transaction = self.request.change.transaction
        if transaction is not None and self.first is None and dataset is not None:
            # A second commit of the transaction after this check has the same values.
            transaction.refuse_repeated(dataset, self.request.snapshot.uri)
        while True:
            plan = self.planner.plan(self.planner.look(dataset))
            if self.result is not None and not plan.parts:
                return self.result
            outcome = self.planner.make_room(plan)
            if outcome is None:
                return self._send(plan, self.planner.result(plan, retries, self.result))
            if isinstance(outcome, (Lost, Unknown)):
                return outcome
            dataset = outcome

    def _send(self, plan: CommitPlan, result: CommitResult) -> CommitResult | Lost | Unknown:
        dataset, numbers, change = plan.head.dataset, sorted(plan.parts), self.request.change
        # A write without remaining values still commits its counts, as a version without changes.
        reports = (
            self.request.rebaser is not None and self.result is None and bool(change.fragments)
        )
        if not numbers and not reports:
            return self._note(plan, replace(result, version=dataset.version))
        entry = self.request.stage.entry(dataset, self.planner.file_columns(plan.head))
        self.planner.history.note_attempt(
            dataset, (plan.parts[number].staged.name for number in numbers)
        )
        outcome = attempt_commit(
            dataset,
            replace_data(entry, {number: plan.parts[number].staged for number in numbers}),
            read_version=dataset.version,
            properties=properties_of(
                result, change.commit_message, change.properties, change.transaction
            ),
            storage_options=self.request.snapshot.storage,
        )
        if isinstance(outcome, Landed):
            landed = outcome.dataset
            result = replace(result, version=landed.version)
            outcome = check_landed(lambda: self._land(plan, result, landed)) or outcome
        if isinstance(outcome, Unknown):
            self.unanswered[result.retries] = plan
        return result if isinstance(outcome, Landed) else outcome

    def _land(
        self, plan: CommitPlan, result: CommitResult, landed: lance.LanceDataset | None
    ) -> CommitResult:
        """Validates a landed commit."""
        refuse_lost_files(
            self.request.snapshot,
            result.version,
            plan.parts,
            self.request.stage,
            head=plan.head,
            opened=self.opened or OpenedVersion.of(plan.head.dataset),
        )
        self.again, self.landed = result.version != plan.head.dataset.version + 1, landed
        return self._note(plan, result)

    def _note(self, plan: CommitPlan, result: CommitResult) -> CommitResult:
        self.first, self.result = self.first or plan, result
        self.planner.note(plan)
        self.parts.update(plan.parts)
        self.files.update(part.staged.name for part in plan.parts.values())
        return result

    def _take_back(self, first: CommitPlan, since: int) -> str:
        """Restores the previous values of the fragments. Returns sentences for the error."""
        request = self.request
        upto = self.result.version if self.result else request.change.read_version
        undo = _Undo(commit=self, first=first, upto=upto)
        take_back(
            request.snapshot,
            undo.operation,
            job_id=request.job_id,
            since=since,
            policy=request.policy,
        )
        if not undo.changed_ids:
            return "The commit was taken back."
        return (
            f"The commit was taken back, except in fragments {sorted(undo.changed_ids)}, whose values other writers "
            "moved or rewrote since. Write these fragments again."
        )


@dataclass(slots=True, kw_only=True)
class _Undo:
    """Restores the values of the version before a commit.

    Attributes:
        first: The plan that was committed first.
        upto: The last version made by the commit.
        staged: The staged files with the values of the version before, by fragment.
        changed_ids: Fragments whose values other writers have moved or rewritten since.
    """

    commit: _ColumnCommit
    first: CommitPlan
    upto: int
    staged: dict[int, StagedColumns] = field(default_factory=dict)
    changed_ids: set[int] = field(default_factory=set)

    def operation(self, dataset: lance.LanceDataset) -> LanceOperation.BaseOperation | None:
        """Returns the operation to restore the values at a version, or None without such values."""
        from lance import LanceOperation

        planner = self.commit.planner
        head = planner.look(dataset)
        live_ids = set(ids_of(targets_in(head, planner.landed_change())))
        if not live_ids:
            return None
        moving = planner.history.changes_after(self.upto)
        groups = []
        for number, part in self.commit.parts.items():
            entry = self._entry(head, number, part)
            if (entry is None and number in head.fragments) or _is_moved(number, moving):
                self.changed_ids.add(number)
            if entry is not None and live_ids.intersection(entry.fields):
                # The file keeps the columns and field ids of the replaced file: names may have
                # changed.
                groups.append(
                    LanceOperation.DataReplacementGroup(
                        number, same_columns(entry, self._restore(number))
                    )
                )
        return LanceOperation.DataReplacement(groups) if groups else None

    def _entry(self, head: Head, fragment: int, part: FragmentColumns) -> DataFile | None:
        """Returns the entry of a committed file, if the file can be replaced at a version."""
        metadata = head.fragments.get(fragment)
        if metadata is None or fragment not in self.first.head.fragments:
            return None
        return file_named(metadata, part.staged.name)

    def _restore(self, fragment: int) -> StagedColumns:
        if fragment not in self.staged:
            request = self.commit.request
            names = [column.name for column in request.change.targets]
            self.staged[fragment] = request.stage.restore(self.first.head.dataset, fragment, names)
        return self.staged[fragment]


def _unchecked(uri: str, version: int, error: Exception) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"The values were committed, and the store failed before the check of their files: {plain(error)}. Table: "
        f"{uri}, version {version}. The files are kept. Read the columns of this version when the store answers.",
        uri=uri,
    )


def _is_moved(fragment: int, changes: Iterable[Change]) -> bool:
    return any(change.took_from(fragment) for change in changes)
