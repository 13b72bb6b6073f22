"""Commits column files on top of whatever came first: the backfill's side of the committer, and the one entry of both doors.

Each round looks at the head, judges every fragment by identity (:mod:`lance_spark.commit.conflicts.verdicts`), adds the columns that are new as
all-NULL ones, and commits the column files of all valid fragments with one DataReplacement. What to do about the others is the door's to
know: a DataFrame write has its values followed, and everything is committed at once or not at all; a job of the table API leaves them out,
and looks after them itself.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Landed, Lost, Unknown, attempt_commit
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import (
    ColumnsToCommit,
    CommitResult,
    FollowedColumns,
    FragmentColumns,
    StagedColumns,
)
from lance_spark.commit.commit_loop import properties_of, run_rounds
from lance_spark.commit.conflicts.coverage import Coverage, Covered
from lance_spark.commit.conflicts.errors import (
    conflict_error,
    lost_column,
    refuse_other_columns,
    refuse_overwritten,
    refuse_untold_moves,
    shown,
)
from lance_spark.commit.conflicts.fragment_verdicts import FragmentJudge, targets_now
from lance_spark.commit.conflicts.history import Event
from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import Change, Verdict, decide
from lance_spark.commit.data_files import add_null_columns, column_entries, fill_gaps
from lance_spark.commit.protocols import Follow, Outcome, Stage
from lance_spark.commit.revert import take_back
from lance_spark.commit.verify import just_before, lost_fragments, open_from
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitConflictError, CommitError, CommitImpossibleError

if TYPE_CHECKING:
    import lance

_logger = logging.getLogger(__name__)


def commit_columns(
    snapshot: DatasetRef,
    change: ColumnsToCommit,
    *,
    job_id: str,
    stage: Stage,
    others: Collection[int] | None,
    follow: Follow | None = None,
    policy: CommitPolicy | None = None,
    history: SeenHistory | None = None,
) -> Outcome:
    """Commits column files as one version. Runs on the driver, or in Spark's commit process, without a session.

    A new column takes a version more: it is added as all NULL first, since a Merge that carried values would have to be sent again on a
    conflict, and pylance then drops other columns or brings deleted rows back. A death between the two leaves the column all NULL.

    Args:
        snapshot: The table, at the version that the values belong to. That version need not be there any more.
        change: The column files.
        job_id: Identifies the job over attempts; a second commit with the same id returns the result of the first.
        stage: Stages files beside the job's own.
        others: Ids of the snapshot's fragments, at least those that are not named in `change`; None where the snapshot is gone.
        follow: Looks after fragments that cannot be applied as they are; then the commit is all or nothing. Without it they are left out.
        policy: Bounds of the retries; by default as the environment says.
        history: What earlier commits have read, where a job of one snapshot makes several, each under an id of its own; is added to.

    Returns:
        What was committed.

    Raises:
        CommitConflictError: Somebody added the same column, or as `follow` says. Nothing was committed.
        CommitImpossibleError: The column was dropped or changed, or the table was overwritten or restored. Nothing was committed.
        CommitOutcomeUnknownError: Whether the commit happened cannot be told. The files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    history = history or SeenHistory()
    job = _ColumnCommit(
        snapshot=snapshot,
        change=change,
        job_id=job_id,
        stage=stage,
        others=None if others is None else frozenset(others),
        follow=follow,
        history=history,
        parts={part.fragment_id: part for part in change.fragments},
        policy=policy or CommitPolicy.of(None),
    )
    since = max(change.read_version, history.upto)
    result = job.settled(run_rounds(snapshot, job_id, since, job.run_round, job.policy, known=job.known))
    while job.slipped:
        # Again where somebody slips in beside the repair, too; each time it takes another writer in the same moment.
        found = run_rounds(snapshot, job_id, result.version, job.run_repair, job.policy, known=job.known)
        result = job.settled(found)
    _logger.info(
        "backfill of %s committed to %s as version %d: %d rows in %d fragments, read at version %d, inputs %s (from %s), %d rows carried "
        "over, %d NULL because their inputs changed, %d fragments and %d rows gone meanwhile, %d new rows without a value, %d retries (job %s)",
        ", ".join(result.columns), result.uri, result.version, result.rows, result.fragments, change.read_version,
        ", ".join(result.input_columns) or "none", result.inputs_from, result.rows_carried, result.rows_nulled, len(result.fragments_gone),
        result.rows_gone, result.new_rows, result.retries, job_id,
    )  # fmt: skip
    return Outcome(result=result, left=dict(job.left), files=job.files)


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What one round commits.

    Attributes:
        parts: Column files, by the fragment of the head that they are for.
        gone: Fragments of the job whose rows are nowhere.
        left: Why other fragments are left out.
        new_rows: Rows that the snapshot did not have.
    """

    parts: dict[int, FragmentColumns]
    gone: tuple[int, ...]
    left: dict[int, str]
    new_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What was sent to the store, what was left out of it, and what the job has covered then."""

    head: Head
    parts: Mapping[int, FragmentColumns]
    left: dict[int, str]
    coverage: Coverage


@dataclass(slots=True, kw_only=True)
class _ColumnCommit:
    """The state of one commit over its rounds: what is known of the history, what was followed, and which columns it has added."""

    snapshot: DatasetRef
    change: ColumnsToCommit
    job_id: str
    stage: Stage
    others: frozenset[int] | None
    follow: Follow | None
    history: SeenHistory
    parts: dict[int, FragmentColumns]
    policy: CommitPolicy
    known: dict[int, Event] = field(default_factory=dict)
    token: str | None = None
    blanks: set[str] = field(default_factory=set)
    followed: dict[int, FollowedColumns] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)
    landed: dict[int, FragmentColumns] = field(default_factory=dict)
    base: Head | None = None
    slipped: bool = False
    files: frozenset[str] | None = None
    result: CommitResult | None = None
    unanswered: dict[int, _Sent] = field(default_factory=dict)
    committed: Coverage | None = None

    @property
    def uri(self) -> str:
        return self.snapshot.uri

    @property
    def changes(self) -> list[Change]:
        """What happened since the version that the values belong to; the job may have read older ones."""
        return [change for change in self.history.changes if change.version > self.change.read_version]

    @property
    def input_ids(self) -> list[int]:
        return [number for column in self.change.inputs for number in column.ids]

    def run_round(self, dataset: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        """Does one round, as :class:`~lance_spark.commit.commit_loop.Round` says."""
        head = self._look(dataset)
        plan = self._plan(head)
        added = self._add_columns(head.dataset, {column.name for column in head.fields})
        if isinstance(added, (Lost, Unknown)):
            return added
        if added is not None:
            head = self._look(added)
            plan = self._plan(head)
        filled = self._fill_gaps(head, plan)
        if isinstance(filled, (Lost, Unknown)):
            return filled
        if filled is not None:
            head = self._look(filled)
            plan = self._plan(head)
        return self._replace(head, plan, retries)

    def run_repair(self, dataset: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        """Follows rows again whose inputs were rewritten in the moment of the commit, wherever they are by now. One round."""
        if self.follow is None or self.result is None or self.committed is None:
            raise CommitError(
                f"there is nothing to repair - at {self.uri} - this is a fault of lance-spark", uri=self.uri
            )
        head = self._look(dataset)
        lost = lost_column(self.change, head, self.changes)
        if lost is not None:
            self._take_back(head)
            raise conflict_error(
                self.change,
                self.uri,
                dict.fromkeys(self.landed, lost),
                head.dataset.version,
                "the commit was taken back",
            )
        lineage = self.history.lineage(head.dataset, self.committed.version)
        look = self.committed.look(head.dataset.version, head.fragments.values(), lineage, self.input_ids)
        try:
            followed = self.follow(head.dataset, self._lineage(head), look.open) if look.open else ()
        except BaseException as error:
            self._take_back(head)
            if not isinstance(error, CommitError):
                raise
            raise CommitConflictError(
                f"{error}; the commit was taken back", uri=self.uri, fragments=list(look.open)
            ) from error
        self.followed.update({one.fragment_id: one for one in followed})
        parts = {one.fragment_id: one.columns for one in followed if one.columns is not None}
        nulled = sum(one.nulled for one in followed)
        result = dataclasses.replace(
            self.result,
            rows=self.result.rows - nulled,
            rows_carried=self.result.rows_carried + sum(one.carried for one in followed),
            rows_nulled=self.result.rows_nulled + nulled,
            retries=self.result.retries + retries + 1,
        )
        if not parts:
            self.slipped = False
            return self.result
        return self._send(head, parts, result, look.coverage.settled(dict.fromkeys(look.open)))

    def _look(self, dataset: lance.LanceDataset | None) -> Head:
        if dataset is None or dataset.version < self.change.read_version:
            anew = "" if dataset is None else f" and made anew since version {self.change.read_version} of it was read"
            text = f"the table was deleted{anew} - at {self.uri} - nothing was committed; read the table again and write again"
            raise CommitImpossibleError(text, uri=self.uri)
        self.history.look(dataset, self.change.read_version, self.known)
        return Head.of(dataset)

    def _lineage(self, head: Head) -> Lineage:
        return self.history.lineage(head.dataset, self.change.read_version)

    def _plan(self, head: Head) -> _Plan:
        """Judges columns and fragments, has those followed that need it, and raises where anything stands in the way."""
        refuse_other_columns(self.change, head, self.changes, token=self.token, uri=self.uri)
        judge = self._judge(head)
        decision = decide({part.fragment_id: judge.fragment(part) for part in self.change.fragments})
        parts = {fragment: self.parts[fragment] for fragment in decision.valid}
        if self.parts and not parts:
            refuse_overwritten(self.change, head, self.changes, self.uri)
        others = self.parts.keys() if self.others is None else self.others
        untouched = not decision.blocked and not decision.gone
        if self.follow is None or (untouched and (self.others is None or not self._may_have_moved())):
            # Without the snapshot nothing tells which rows an update has moved; those that stayed are as they were.
            if self.follow is not None and self.others is None and self._may_have_moved():
                refuse_untold_moves(self.change, head, self.uri)
            new_rows = sum(head.fragments[number].num_rows for number in head.fragments if number not in others)
            return _Plan(parts=parts, gone=decision.gone, left=dict(decision.blocked), new_rows=new_rows)
        covered = {number: Covered.of(part.fragment, self.input_ids, done=False) for number, part in self.parts.items()}
        coverage = Coverage(
            version=self.change.read_version, covered=covered, others=frozenset(others - covered.keys())
        )
        lineage = self._lineage(head)
        # Fragments that the snapshot had and that nothing has moved rows to or from need no look, and are most of a huge table.
        still = coverage.others if lineage.complete and not lineage.replaced else frozenset()
        still -= lineage.compacted
        fragments = [head.fragments[number] for number in head.fragments if number not in still]
        look = coverage.look(head.dataset.version, fragments, lineage, self.input_ids)
        open_ones = [fragment for fragment in look.open if fragment not in parts]
        again = [fragment for fragment in open_ones if not self._still_fits(fragment, judge)]
        if again:
            self.followed.update({one.fragment_id: one for one in self.follow(head.dataset, lineage, again)})
        self.followed = {number: self.followed[number] for number in open_ones}
        parts.update({number: one.columns for number, one in self.followed.items() if one.columns is not None})
        new_rows = sum(head.fragments[number].num_rows for number in look.new)
        new_rows += sum(head.fragments[number].num_rows - one.covered for number, one in self.followed.items())
        gone = tuple(number for number in self.parts if number not in head.fragments)
        return _Plan(parts=parts, gone=gone, left={}, new_rows=new_rows)

    def _may_have_moved(self) -> bool:
        """Tells whether anything since the snapshot may have put rows into other fragments."""
        return any(change.operation in ("Rewrite", "Update", "Restore", "Overwrite", None) for change in self.changes)

    def _judge(self, head: Head) -> FragmentJudge:
        return FragmentJudge.of(self.change, head, self.changes, token=self.token, blanks=self.blanks)

    def _targets_now(self, head: Head) -> tuple[FieldIdentity, ...]:
        return targets_now(self.change, head, self.token)

    def _still_fits(self, fragment: int, judge: FragmentJudge) -> bool:
        """Tells whether what was followed to an earlier head still fits."""
        one = self.followed.get(fragment)
        if one is None or one.columns is None:
            return False
        return judge.fragment(one.columns).verdict is Verdict.VALID

    def _add_columns(
        self, head: lance.LanceDataset, there: Collection[str]
    ) -> lance.LanceDataset | Lost | Unknown | None:
        """Adds the new columns that a version lacks; None if there are none."""
        missing = [arrow for arrow in self.change.new_columns if arrow.name not in there]
        if not missing:
            return None
        token = self.token or uuid.uuid4().hex
        outcome = add_null_columns(head, missing, token)
        if outcome is None:
            self.token = token
            return self.snapshot.open_latest()
        return outcome

    def _fill_gaps(self, head: Head, plan: _Plan) -> lance.LanceDataset | Lost | Unknown | None:
        """Gives fragments that have files of some target columns files of the others too; None where there was nothing to do."""

        def blank(dataset: lance.LanceDataset, fragment: int, names: Sequence[str]) -> StagedColumns:
            staged = self.stage.blank(dataset, fragment, names)
            # Before the commit: where its answer is lost, the next round meets these files.
            self.blanks.add(staged.name)
            return staged

        return fill_gaps(head, sorted(plan.parts), self._targets_now(head), blank, self.snapshot.storage)

    def _replace(self, head: Head, plan: _Plan, retries: int) -> CommitResult | Lost | Unknown:
        """Commits the round's column files."""
        self.left = plan.left
        result = self._result(head, plan, retries)
        if not plan.parts:
            self.files = frozenset()
            return dataclasses.replace(result, version=head.dataset.version)
        covered = {n: Covered.of(head.fragments[n], self.input_ids, done=True) for n in plan.parts}
        others = frozenset(number for number in head.fragments if number not in covered)
        coverage = Coverage(version=head.dataset.version, covered=covered, others=others)
        return self._send(head, plan.parts, result, coverage)

    def _send(
        self, head: Head, parts: Mapping[int, FragmentColumns], result: CommitResult, coverage: Coverage
    ) -> CommitResult | Lost | Unknown:
        from lance import LanceOperation

        staged = {number: parts[number].staged for number in sorted(parts)}
        entries = column_entries(head, self.change.targets, staged, self.followed, self.stage.restore)
        groups = [LanceOperation.DataReplacementGroup(*pair) for pair in entries]
        outcome = attempt_commit(
            head.dataset,
            LanceOperation.DataReplacement(groups),
            read_version=head.dataset.version,
            properties=properties_of(result, self.change.commit_message),
            storage_options=self.snapshot.storage,
        )
        sent = _Sent(head=head, parts=parts, left=self.left, coverage=coverage)
        if isinstance(outcome, Unknown):
            self.unanswered[result.retries] = sent
        if not isinstance(outcome, Landed):
            return outcome
        return self._look_after(sent, dataclasses.replace(result, version=outcome.dataset.version), outcome.dataset)

    def settled(self, result: CommitResult) -> CommitResult:
        """Looks after a commit whose answer was lost and that was found in the history, as after any other."""
        sent = self.unanswered.pop(result.retries, None)
        if sent is None:
            return result
        return self._look_after(sent, result, open_from(self.snapshot, result.version))

    def _look_after(self, sent: _Sent, result: CommitResult, landed: lance.LanceDataset) -> CommitResult:
        """Takes note of what was committed, and looks whether it is right; `landed` is the version that it made, or a later one."""
        head, parts, self.left = sent.head, sent.parts, sent.left
        lost = lost_fragments(self.snapshot, head, result.version, parts, self.stage)
        self.base = self.base or just_before(self.snapshot, head, result.version, self.change.targets)
        self.landed = {**self.landed, **parts}
        self.files = (self.files or frozenset()) | {part.staged.name for part in parts.values()}
        self.result, self.committed = result, sent.coverage
        self.slipped = False
        if landed.version != head.dataset.version + 1:
            self._examine(landed)
        if lost:
            self._give_up_lost(landed, lost)
        return self.result

    def _give_up_lost(self, landed: lance.LanceDataset, lost: Sequence[int]) -> None:
        """Takes fragments back that have lost their files; without these nobody could read them."""
        what = "its column file was deleted while it was committed, as by a cleanup of files that no version names"
        if self.follow is not None:
            self._take_back(Head.of(landed))
            raise conflict_error(
                self.change, self.uri, dict.fromkeys(lost, what), landed.version, "the commit was taken back at once"
            )
        mine = {number: self.landed.pop(number) for number in lost}
        self._put_back(mine, landed.version, job_id=f"{self.job_id}-lost")
        self.left = {**self.left, **dict.fromkeys(lost, what)}
        self.files = (self.files or frozenset()) - {part.staged.name for part in mine.values()}

    def _examine(self, landed: lance.LanceDataset) -> None:
        """Looks for what slipped in between the look at the head and the commit.

        Measured: pylance accepts a DataReplacement over an in-place rewrite of an input column without a conflict.
        """
        head = self._look(landed)
        wrong = self._wrong(head)
        if not wrong:
            return
        lost = lost_column(self.change, head, self.changes)
        if lost is not None:
            self._take_back(head)
            raise conflict_error(
                self.change, self.uri, dict.fromkeys(wrong, lost), landed.version, "the commit was taken back at once"
            )
        _logger.warning(
            "while version %d of %s was committed, fragments %s changed",
            landed.version,
            self.uri,
            shown(sorted(wrong)),
        )
        if self.follow is None:
            self.left = {**self.left, **wrong}
        else:
            self.slipped = True

    def _wrong(self, head: Head) -> dict[int, str]:
        """Returns why fragments that were committed are not right in a later version."""
        lost = lost_column(self.change, head, self.changes)
        if lost is not None:
            return dict.fromkeys(self.landed, lost)
        judge = self._judge(head)
        judged = {number: judge.fragment(part, ours=part.staged.name) for number, part in self.landed.items()}
        return {number: one.reason for number, one in judged.items() if one.verdict is not Verdict.VALID}

    def _result(self, head: Head, plan: _Plan, retries: int) -> CommitResult:
        total = sum(part.rows for number, part in self.parts.items() if number not in plan.left)
        rows = 0
        for number, part in plan.parts.items():
            if number in self.parts and number not in self.followed:
                deleted = head.fragments[number].num_deletions - part.fragment.num_deletions
                rows += part.rows - min(deleted, part.rows)
        carried = sum(one.carried for one in self.followed.values())
        nulled = sum(one.nulled for one in self.followed.values())
        return CommitResult(
            uri=self.uri,
            operation="backfill",
            job_id=self.job_id,
            version=0,
            read_version=self.change.read_version,
            rows=rows + carried,
            fragments=len(plan.parts),
            retries=retries,
            columns=tuple(column.name for column in self.change.targets),
            added_columns=tuple(self.change.new_columns.names),
            input_columns=tuple(column.name for column in self.change.inputs),
            inputs_from=self.change.inputs_from,
            fragments_gone=plan.gone,
            rows_carried=carried,
            rows_nulled=nulled,
            rows_gone=max(0, total - rows - carried - nulled),
            new_rows=plan.new_rows,
        )

    def _take_back(self, head: Head) -> None:
        """Gives the fragments that still have our files their previous values again."""
        self._put_back(self.landed, head.dataset.version, job_id=self.job_id)

    def _put_back(self, parts: Mapping[int, FragmentColumns], since: int, *, job_id: str) -> None:
        base = self.base
        if base is None:
            raise CommitError(
                f"nothing was committed yet - at {self.uri} - this is a fault of lance-spark", uri=self.uri
            )
        by_id = {column.id: column.name for column in base.fields}
        names = [by_id.get(column.id, column.name) for column in self.change.targets]
        take_back(
            self.snapshot,
            parts,
            lambda fragment: self.stage.restore(base.dataset, fragment, names),
            self._targets_now,
            job_id=job_id,
            since=since,
            policy=self.policy,
        )
