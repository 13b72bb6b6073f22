"""What one round of a commit of column files sends to the latest version: :class:`Planner`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Lost, Unknown
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, RebasedColumns, StagedColumns
from lance_spark.commit.conflicts.coverage import Coverage, Covered
from lance_spark.commit.conflicts.errors import refuse_other_columns, refuse_overwritten
from lance_spark.commit.conflicts.history import Change, Event
from lance_spark.commit.conflicts.identity import fragment_identity, ids_of
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import FragmentJudge, Verdict, decide, targets_in
from lance_spark.commit.data_files import add_null_columns, fill_gaps
from lance_spark.commit.protocols import Rebaser, Stage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitImpossibleError

if TYPE_CHECKING:
    import lance

_MOVING = ("Rewrite", "Update", "Restore", "Overwrite", None)
"""Operations that may put rows into other fragments; None is one whose version was cleaned up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be committed, as :func:`~lance_spark.commit.column_commit.commit_columns` says."""

    snapshot: DatasetRef
    change: ColumnsToCommit
    job_id: str
    stage: Stage
    snapshot_fragments: frozenset[int]
    rebaser: Rebaser | None
    policy: CommitPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one round commits.

    Attributes:
        head: The version that it is for.
        parts: Column files, by the fragment of the head that they are for.
        gone: Fragments of the job whose rows are nowhere.
        conflicts: Why other fragments are left out.
        new_rows: Rows that the snapshot did not have.
    """

    head: Head
    parts: Mapping[int, FragmentColumns]
    gone: tuple[int, ...]
    conflicts: Mapping[int, str]
    new_rows: int


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans the rounds of one commit, and keeps what it has learned and made in earlier ones.

    Attributes:
        job: What is to be committed.
        parts: Its column files, by fragment.
        history: What is known of the table's history.
        events: Transactions that were read, by version.
        token: What is in the metadata of the columns that it has added; None before.
        blanks: Names of the files of NULLs that it has added.
        rebased: What was rebased to the last version that was looked at.
    """

    job: Job
    parts: dict[int, FragmentColumns]
    history: SeenHistory
    events: dict[int, Event] = field(default_factory=dict)
    token: str | None = None
    blanks: set[str] = field(default_factory=set)
    rebased: dict[int, RebasedColumns] = field(default_factory=dict)

    @property
    def change(self) -> ColumnsToCommit:
        """What is to be committed."""
        return self.job.change

    @property
    def uri(self) -> str:
        """Location of the table."""
        return self.job.snapshot.uri

    @property
    def changes(self) -> list[Change]:
        """What happened since the version that the values belong to.

        The job may have read older ones.
        """
        return [change for change in self.history.changes if change.version > self.change.read_version]

    @property
    def input_ids(self) -> list[int]:
        """Field ids of the inputs and all that is below them."""
        return ids_of(self.change.inputs)

    def look(self, dataset: lance.LanceDataset | None) -> Head:
        """Reads a version, and what happened up to it.

        Raises:
            CommitImpossibleError: There is no table any more, or it was made anew.
        """
        if dataset is None or dataset.version < self.change.read_version:
            anew = "" if dataset is None else f" and made anew since version {self.change.read_version} of it was read"
            raise CommitImpossibleError(
                f"the table was deleted{anew} - at {self.uri} - {self.change.advice}", uri=self.uri
            )
        self.history.look(dataset, self.change.read_version, self.events)
        return Head.of(dataset)

    def lineage(self, head: Head) -> Lineage:
        """Returns where the rows of a version were in the snapshot."""
        return self.history.lineage(head.dataset, self.change.read_version)

    def judge(self, head: Head) -> FragmentJudge:
        """Returns what fragments of a version are judged by."""
        return FragmentJudge.of(self.change, head, self.changes, self.blanks)

    def plan(self, head: Head) -> Plan:
        """Judges columns and fragments, and has those rebased that need it.

        Raises:
            CommitError: Something stands in the way, as
                :func:`~lance_spark.commit.column_commit.commit_columns` says.
        """
        refuse_other_columns(self.change, head, self.changes, token=self.token, uri=self.uri)
        judge = self.judge(head)
        decision = decide({part.fragment_id: judge.fragment(part) for part in self.change.fragments})
        if self.parts and not decision.valid:
            refuse_overwritten(self.change, head, self.changes, self.uri)
        parts = {number: self.parts[number] for number in decision.valid}
        if self.job.rebaser is not None and (decision.blocked or may_have_moved(self.changes)):
            return self._plan_rebased(self.job.rebaser, head, judge, parts)
        known = self.job.snapshot_fragments or self.parts.keys()
        new_rows = sum(head.fragments[number].num_rows for number in head.fragments if number not in known)
        return Plan(head=head, parts=parts, gone=decision.gone, conflicts=decision.blocked, new_rows=new_rows)

    def _plan_rebased(
        self, rebaser: Rebaser, head: Head, judge: FragmentJudge, parts: dict[int, FragmentColumns]
    ) -> Plan:
        """Plans where rows may be in other fragments by now, or have other inputs."""
        covered = {
            number: Covered(identity=fragment_identity(part.fragment, self.input_ids), done=False)
            for number, part in self.parts.items()
        }
        coverage = Coverage(
            version=self.change.read_version,
            covered=covered,
            others=self.job.snapshot_fragments - covered.keys(),
        )
        lineage = self.lineage(head)
        # Fragments that the snapshot had and that nothing has moved rows to or from need no look,
        # and are most of a huge table.
        still = coverage.others if lineage.complete and not lineage.replaced else frozenset()
        still -= lineage.compacted
        fragments = [head.fragments[number] for number in head.fragments if number not in still]
        look = coverage.look(head.dataset.version, fragments, lineage, self.input_ids)
        # Where every fragment has all the rows that it had, none of them is elsewhere, whatever
        # happened to other fragments.
        elsewhere = [] if self._has_all_rows(head, parts) else [number for number in look.open if number not in parts]
        again = [number for number in elsewhere if not self._still_fits(number, judge)]
        fresh = rebaser(head.dataset, lineage, again) if again else ()
        known = {**self.rebased, **{one.fragment_id: one for one in fresh}}
        self.rebased = {number: known[number] for number in elsewhere}
        parts.update({number: one.columns for number, one in self.rebased.items() if one.columns is not None})
        new_rows = sum(head.fragments[number].num_rows for number in look.new)
        new_rows += sum(head.fragments[number].num_rows - one.covered for number, one in self.rebased.items())
        gone = tuple(number for number in self.parts if number not in head.fragments)
        return Plan(head=head, parts=parts, gone=gone, conflicts={}, new_rows=new_rows)

    def _has_all_rows(self, head: Head, valid: Mapping[int, FragmentColumns]) -> bool:
        return len(valid) == len(self.parts) and all(
            head.fragments[number].num_deletions == part.fragment.num_deletions for number, part in valid.items()
        )

    def _still_fits(self, fragment: int, judge: FragmentJudge) -> bool:
        """Tells whether what was rebased to an earlier version still fits."""
        one = self.rebased.get(fragment)
        return one is not None and one.columns is not None and judge.fragment(one.columns).verdict is Verdict.VALID

    def make_room(self, plan: Plan) -> lance.LanceDataset | Lost | Unknown | None:
        """Makes a version in which what is planned can be committed.

        With the columns, and with files of all of them or of none.

        Returns:
            It, for which another plan is to be made; None where the plan can be committed as it is.
        """
        added = self._add_columns(plan.head)
        return self._fill_gaps(plan) if added is None else added

    def _add_columns(self, head: Head) -> lance.LanceDataset | Lost | Unknown | None:
        """Adds the new columns that a version lacks; None if there are none."""
        there = {column.name for column in head.fields}
        missing = [arrow for arrow in self.change.new_columns if arrow.name not in there]
        if not missing:
            return None
        token = self.token or uuid.uuid4().hex
        outcome = add_null_columns(head.dataset, missing, token)
        if outcome is not None:
            return outcome
        self.token = token
        return self.job.snapshot.open_latest()

    def _fill_gaps(self, plan: Plan) -> lance.LanceDataset | Lost | Unknown | None:
        """Gives fragments that have files of some target columns files of the others too.

        None where there was nothing to do.
        """

        def blank(dataset: lance.LanceDataset, fragment: int, names: Sequence[str]) -> StagedColumns:
            staged = self.job.stage.blank(dataset, fragment, names)
            # Before the commit: where its answer is lost, the next round meets these files.
            self.blanks.add(staged.name)
            return staged

        targets = targets_in(plan.head, self.change)
        return fill_gaps(plan.head, sorted(plan.parts), targets, blank, self.job.snapshot.storage)

    def result(self, plan: Plan, retries: int) -> CommitResult:
        """Returns what the commit of a plan will have done, but for its version."""
        given = sum(part.rows for number, part in self.parts.items() if number not in plan.conflicts)
        rows = 0
        for number, part in plan.parts.items():
            if number in self.parts and number not in self.rebased:
                deleted = plan.head.fragments[number].num_deletions - part.fragment.num_deletions
                rows += part.rows - min(deleted, part.rows)
        carried = sum(one.carried for one in self.rebased.values())
        nulled = sum(one.nulled for one in self.rebased.values())
        return CommitResult(
            uri=self.uri,
            operation="backfill",
            job_id=self.job.job_id,
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
            rows_gone=max(0, given - rows - carried - nulled),
            new_rows=plan.new_rows,
        )


def may_have_moved(changes: Iterable[Change]) -> bool:
    """Tells whether changes may have put rows into other fragments."""
    return any(change.operation in _MOVING for change in changes)
