"""Commits column files on top of whatever came first.

:func:`commit_columns`, the one entry of DataFrame writes and jobs.

Each round looks at the latest version, judges every fragment by identity
(:mod:`lance_spark.commit.conflicts.verdicts`), adds the columns that are new as all-NULL ones, and
commits the column files of all valid fragments with one DataReplacement. A DataFrame write has the
other fragments rebased, and everything is committed at once or not at all; a job leaves them out,
and computes them again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns
from lance_spark.commit.column_plan import Job, Plan, Planner, may_have_moved
from lance_spark.commit.commit_loop import Round, properties_of, run_rounds
from lance_spark.commit.conflicts.coverage import Coverage, Covered
from lance_spark.commit.conflicts.errors import conflict_error, lost_column, refuse_renamed, shown
from lance_spark.commit.conflicts.identity import fragment_identity
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import Verdict
from lance_spark.commit.data_files import data_files
from lance_spark.commit.protocols import Outcome, Rebaser, Stage
from lance_spark.commit.verify import refuse_lost_files, take_back
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitError, TableNotFoundError, VersionNotFoundError

if TYPE_CHECKING:
    import lance

_logger = logging.getLogger(__name__)


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

    Runs on the driver, or in Spark's commit process, without a session.

    A new column takes a version more: it is added as all NULL first, since a Merge that carried
    values would have to be sent again on a conflict, and pylance then drops other columns or brings
    deleted rows back. A death between the two leaves the column all NULL.

    Args:
        snapshot: The table, at the version that the values belong to. That version need not be
            there any more.
        change: The column files.
        job_id: Identifies the job over attempts; a second commit with the same id returns the
            result of the first.
        stage: Stages files beside the job's own.
        snapshot_fragments: Ids of the snapshot's fragments, those of `change` included or not; none
            where the snapshot was cleaned up.
        rebaser: Brings fragments that cannot be committed as they are to the latest version; then
            the commit is all or nothing. Without it they are left out.
        policy: Bounds of the retries; by default as the environment says.
        history: What earlier commits have read, where a job of one snapshot makes several, each
            under an id of its own; is added to.

    Returns:
        What was committed.

    Raises:
        CommitConflictError: A concurrent writer renamed a target or added the same column, or as
            `rebaser` says. Nothing was committed.
        CommitImpossibleError: The column was dropped or changed, or the table was overwritten or
            restored. Nothing was committed.
        CommitOutcomeUnknownError: Whether the commit happened is not known, or it lacks files. The
            files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    history = history or SeenHistory()
    planner = Planner(
        job=Job(
            snapshot=snapshot,
            change=change,
            job_id=job_id,
            stage=stage,
            snapshot_fragments=frozenset(snapshot_fragments),
            rebaser=rebaser,
            policy=policy or CommitPolicy.of(None),
        ),
        history=history,
        parts={part.fragment_id: part for part in change.fragments},
    )
    commit = _ColumnCommit(planner=planner)
    result = commit.run(max(change.read_version, history.upto))
    landing = commit.landing
    _logger.info(
        "backfill of %s committed to %s as version %d: %d rows in %d fragments, read at version %d, inputs %s (from "
        "%s), %d rows carried over, %d NULL because their inputs changed, %d fragments and %d rows gone meanwhile, %d "
        "new rows without a value, %d retries (job %s)",
        ", ".join(result.columns), result.uri, result.version, result.rows, result.fragments, change.read_version,
        ", ".join(result.input_columns) or "none", result.inputs_from, result.rows_carried, result.rows_nulled,
        len(result.fragments_gone), result.rows_gone, result.new_rows, result.retries, job_id,
    )  # fmt: skip
    if landing is None:
        return Outcome(result=result)
    return Outcome(result=result, conflicts=landing.conflicts, files=landing.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A commit that was sent to the store.

    Its files, by fragment, what was left out, and what the job has covered with it.
    """

    head: Head
    parts: Mapping[int, FragmentColumns]
    conflicts: Mapping[int, str]
    coverage: Coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Landing:
    """What the table has of this job.

    Attributes:
        result: What was committed.
        before: The version before it; what it has is put back where the commit must not stay.
        parts: Column files that were committed, repairs included.
        files: Names of all files that versions have of the job, also of those that a repair has
            replaced.
        conflicts: Why fragments were left out, or are not right any more.
        coverage: The fragments with values, at the version that the commit was made on.
        slipped: Whether inputs were rewritten between the look at the latest version and the
            commit, so that rows must be rebased again.
    """

    result: CommitResult
    before: Head
    parts: Mapping[int, FragmentColumns]
    files: frozenset[str]
    conflicts: Mapping[int, str]
    coverage: Coverage
    slipped: bool = False


@dataclass(slots=True, kw_only=True)
class _ColumnCommit:
    """One commit over its rounds.

    Attributes:
        planner: What is to be committed, and what is known of the table.
        unanswered: Commits whose answer was lost, by their number of retries.
        landing: What the table has of it; None before, and where an earlier attempt has committed.
    """

    planner: Planner
    unanswered: dict[int, _Sent] = field(default_factory=dict)
    landing: _Landing | None = None

    @property
    def job(self) -> Job:
        return self.planner.job

    @property
    def uri(self) -> str:
        return self.job.snapshot.uri

    def run(self, since: int) -> CommitResult:
        """Commits, and repairs what slipped in.

        Again where another writer slips in beside the repair, too.
        """
        result = self._run_rounds(self._run_round, since)
        while self.landing is not None and self.landing.slipped:
            result = self._run_rounds(self._run_repair, result.version)
        return result

    def _run_rounds(self, one_round: Round, since: int) -> CommitResult:
        job, planner = self.job, self.planner
        result = run_rounds(job.snapshot, job.job_id, since, one_round, job.policy, known=planner.events)
        sent = self.unanswered.pop(result.retries, None)
        if sent is not None:
            # Its answer was lost, and it was found in the history: it is verified as any other.
            self._verify(sent, result, planner.look(self._open(result.version)).dataset)
        return result if self.landing is None else self.landing.result

    def _run_round(self, dataset: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        """Does one round, as :class:`~lance_spark.commit.commit_loop.Round` says."""
        while True:
            plan = self.planner.plan(self.planner.look(dataset))
            made = self.planner.make_room(plan)
            if made is None:
                return self._commit(plan, retries)
            if isinstance(made, (Lost, Unknown)):
                return made
            dataset = made

    def _commit(self, plan: Plan, retries: int) -> CommitResult | Lost | Unknown:
        """Commits the round's column files."""
        fragments, input_ids = plan.head.fragments, self.planner.input_ids
        covered = {
            number: Covered(identity=fragment_identity(fragments[number], input_ids), done=True)
            for number in plan.parts
        }
        others = frozenset(number for number in fragments if number not in covered)
        coverage = Coverage(version=plan.head.dataset.version, covered=covered, others=others)
        sent = _Sent(head=plan.head, parts=plan.parts, conflicts=plan.conflicts, coverage=coverage)
        result = self.planner.result(plan, retries)
        if plan.parts:
            return self._send(sent, result)
        result = replace(result, version=plan.head.dataset.version)
        self._note(sent, result)
        return result

    def _send(self, sent: _Sent, result: CommitResult) -> CommitResult | Lost | Unknown:
        from lance import LanceOperation

        dataset, numbers = sent.head.dataset, sorted(sent.parts)
        files = data_files(dataset, [sent.parts[number].staged for number in numbers])
        groups = [LanceOperation.DataReplacementGroup(*pair) for pair in zip(numbers, files, strict=True)]
        outcome = attempt_commit(
            dataset,
            LanceOperation.DataReplacement(groups),
            read_version=dataset.version,
            properties=properties_of(result, self.job.change.commit_message),
            storage_options=self.job.snapshot.storage,
        )
        if isinstance(outcome, Unknown):
            self.unanswered[result.retries] = sent
        if not isinstance(outcome, Landed):
            return outcome
        result = replace(result, version=outcome.dataset.version)
        self._verify(sent, result, outcome.dataset)
        return result

    def _open(self, version: int) -> lance.LanceDataset | None:
        """Opens a version, or the latest one where it was cleaned up.

        None where there is no table any more.
        """
        try:
            try:
                return replace(self.job.snapshot, version=version, incarnation=None).open()
            except VersionNotFoundError:
                return self.job.snapshot.open_latest()
        except TableNotFoundError:
            return None

    def _note(self, sent: _Sent, result: CommitResult) -> _Landing:
        """Takes note of what the table has of this job by now."""
        earlier = self.landing
        files = frozenset(part.staged.name for part in sent.parts.values())
        self.landing = _Landing(
            result=result,
            before=sent.head if earlier is None else earlier.before,
            parts={**(earlier.parts if earlier else {}), **sent.parts},
            files=files | (earlier.files if earlier else frozenset()),
            conflicts=sent.conflicts,
            coverage=sent.coverage,
        )
        return self.landing

    def _verify(self, sent: _Sent, result: CommitResult, landed: lance.LanceDataset) -> None:
        """Looks whether what was committed is right in `landed`, the version made or a later one."""
        refuse_lost_files(self.job.snapshot, result.version, sent.parts, self.job.stage)
        landing = self._note(sent, result)
        if landed.version != sent.head.dataset.version + 1:
            self._examine(landing, landed, sent.head.dataset.version)

    def _examine(self, landing: _Landing, landed: lance.LanceDataset, looked_at: int) -> None:
        """Looks for what slipped in between the look at version `looked_at` and the commit.

        Measured: pylance accepts a DataReplacement over an in-place rewrite of an input column
        without a conflict, and over anything whose version was cleaned up in the same moment.
        """
        head = self.planner.look(landed)
        self._refuse_lost_column(landing, head)
        judge = self.planner.judge(head)
        judged = {number: judge.fragment(part, ours=part.staged.name) for number, part in landing.parts.items()}
        wrong = {number: one.reason for number, one in judged.items() if one.verdict is not Verdict.VALID}
        since = [change for change in self.planner.changes if change.version > looked_at]
        if not wrong and not may_have_moved(since):
            return
        version, fragments = landed.version, shown(sorted(wrong)) or "unknown"
        _logger.warning("while version %d of %s was committed, fragments %s changed", version, self.uri, fragments)
        if self.job.rebaser is None:
            self.landing = replace(landing, conflicts={**landing.conflicts, **wrong})
        else:
            self.landing = replace(landing, slipped=True)

    def _run_repair(self, dataset: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        """Does one round: rebases rows again whose inputs were rewritten during the commit."""
        landing, rebaser = self.landing, self.job.rebaser
        if landing is None or rebaser is None:
            raise CommitError(
                f"there is nothing to repair - at {self.uri} - this is a fault of lance-spark", uri=self.uri
            )
        head = self.planner.look(dataset)
        self._refuse_lost_column(landing, head)
        lineage = self.planner.history.lineage(head.dataset, landing.coverage.version)
        look = landing.coverage.look(head.dataset.version, head.fragments.values(), lineage, self.planner.input_ids)
        try:
            if look.open:
                refuse_renamed(self.job.change, head, self.uri)
            rebased = rebaser(head.dataset, self.planner.lineage(head), look.open) if look.open else ()
        except BaseException as error:
            self._take_back(landing, head)
            if not isinstance(error, CommitError):
                raise
            raise CommitConflictError(
                f"{error}; the commit was taken back", uri=self.uri, fragments=list(look.open)
            ) from error
        parts = {one.fragment_id: one.columns for one in rebased if one.columns is not None}
        if not parts:
            self.landing = replace(landing, slipped=False)
            return landing.result
        nulled = sum(one.nulled for one in rebased)
        result = replace(
            landing.result,
            rows=landing.result.rows - nulled,
            rows_carried=landing.result.rows_carried + sum(one.carried for one in rebased),
            rows_nulled=landing.result.rows_nulled + nulled,
            retries=landing.result.retries + retries + 1,
        )
        coverage = look.coverage.settled(dict.fromkeys(look.open))
        return self._send(_Sent(head=head, parts=parts, conflicts=landing.conflicts, coverage=coverage), result)

    def _refuse_lost_column(self, landing: _Landing, head: Head) -> None:
        """Takes the commit back where a target is not there any more as it was committed.

        Raises:
            CommitConflictError: It is not.
        """
        lost = lost_column(self.job.change, head, self.planner.changes)
        if lost is not None:
            self._take_back(landing, head)
            reasons = dict.fromkeys(landing.parts, lost)
            raise conflict_error(self.job.change, self.uri, reasons, head.dataset.version, "the commit was taken back")

    def _take_back(self, landing: _Landing, head: Head) -> None:
        """Gives the fragments that still have our files their previous values again."""
        base = landing.before
        names = [column.name for column in self.job.change.targets]
        take_back(
            self.job.snapshot,
            landing.parts,
            lambda fragment: self.job.stage.restore(base.dataset, fragment, names),
            job_id=self.job.job_id,
            since=head.dataset.version,
            policy=self.job.policy,
        )
