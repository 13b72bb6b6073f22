"""What one round of a commit of column files sends to the latest version: :class:`Planner`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Lost, Unknown
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import ColumnsToCommit, CommitResult, FragmentColumns, RebasedColumns, StagedColumns
from lance_spark.commit.conflicts.coverage import Coverage, Covered
from lance_spark.commit.conflicts.errors import refuse_other_columns, refuse_overwritten, refuse_renamed
from lance_spark.commit.conflicts.history import Change, Event
from lance_spark.commit.conflicts.identity import fragment_identity
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import FragmentJudge, Verdict, fragment_judge, targets_in
from lance_spark.commit.data_files import add_null_columns, fill_gaps
from lance_spark.commit.protocols import Rebaser, Stage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitImpossibleError

if TYPE_CHECKING:
    import lance


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
        parts: Column files, by the fragment of the head that they are for.
        rebased: Those that a rebaser has staged, by fragment, also where nothing is to be written.
        gone: Fragments of the job whose rows are nowhere.
        conflicts: Why other fragments are left out.
        new_rows: Rows that the snapshot did not have.
        coverage: What the job covers once it is committed; None where nothing was rebased.
    """

    head: Head
    parts: Mapping[int, FragmentColumns]
    rebased: Mapping[int, RebasedColumns]
    gone: tuple[int, ...]
    conflicts: Mapping[int, str]
    new_rows: int
    coverage: Coverage | None = None


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans the rounds of one commit, and keeps what earlier ones have learned and made.

    Attributes:
        parts: The job's column files, by fragment.
        events: Transactions that were read, by version.
        token: What is in the metadata of the columns that it has added; None before.
        blanks: Names of the files of NULLs that it has added.
        rebased: What was rebased to the last version that was looked at.
        landed: The plan that was committed last.
        counted: What was rebased in plans that were committed, by fragment.
    """

    job: Job
    history: SeenHistory
    parts: Mapping[int, FragmentColumns]
    input_ids: Sequence[int]
    events: dict[int, Event] = field(default_factory=dict)
    token: str | None = None
    blanks: set[str] = field(default_factory=set)
    rebased: Mapping[int, RebasedColumns] = field(default_factory=dict)
    landed: Plan | None = None
    counted: dict[int, RebasedColumns] = field(default_factory=dict)

    @property
    def changes(self) -> list[Change]:
        """What happened since the version that the values belong to: not all that was read."""
        return [change for change in self.history.changes if change.version > self.job.change.read_version]

    def look(self, dataset: lance.LanceDataset | None) -> Head:
        """Reads a version, and what happened up to it.

        Raises:
            CommitImpossibleError: There is no table any more, or it was made anew.
        """
        change, uri = self.job.change, self.job.snapshot.uri
        if dataset is None or dataset.version < change.read_version:
            anew = "" if dataset is None else f" and made anew since version {change.read_version} of it was read"
            raise CommitImpossibleError(f"the table was deleted{anew} - at {uri} - {change.advice}", uri=uri)
        self.history.look(dataset, change.read_version, self.events)
        return Head.of(dataset)

    def plan(self, head: Head) -> Plan:
        """Judges columns and fragments, and has those rebased that need it.

        Raises:
            CommitError: Something stands in the way, as
                :func:`~lance_spark.commit.column_commit.commit_columns` says.
        """
        change, changes, uri = self.landed_change(), self.changes, self.job.snapshot.uri
        refuse_other_columns(change, head, changes, token=self.token, uri=uri)
        judge = fragment_judge(change, head, changes, self.blanks)
        # Once they are committed, their coverage says what became of them.
        judged = {} if self.landed else {number: judge(part) for number, part in self.parts.items()}
        parts = {number: self.parts[number] for number, one in judged.items() if one.verdict is Verdict.VALID}
        if judged and not parts:
            refuse_overwritten(change, head, changes, uri)
        conflicts = {number: one.reason for number, one in judged.items() if one.verdict is Verdict.CONFLICT}
        if self.job.rebaser and (self.landed or conflicts or any(change.moves for change in changes)):
            return self._plan_rebased(self.job.rebaser, head, judge, parts)
        if parts:
            refuse_renamed(change, head, uri)
        known = self.job.snapshot_fragments or self.parts.keys()
        return Plan(
            head=head,
            parts=parts,
            rebased={},
            gone=tuple(number for number, one in judged.items() if one.verdict is Verdict.GONE),
            conflicts=conflicts,
            new_rows=sum(head.fragments[number].num_rows for number in head.fragments if number not in known),
        )

    def _plan_rebased(
        self, rebaser: Rebaser, head: Head, judge: FragmentJudge, valid: Mapping[int, FragmentColumns]
    ) -> Plan:
        """Plans where rows may be in other fragments by now, or have other inputs."""
        coverage = self._coverage()
        lineage = self.history.lineage(head.dataset, coverage.version)
        # Fragments that the snapshot had and that nothing has moved rows to or from need no look,
        # and are most of a huge table.
        still = coverage.others if lineage.complete and not lineage.replaced else frozenset()
        still -= lineage.compacted
        fragments = [head.fragments[number] for number in head.fragments if number not in still]
        now = coverage.look(head.dataset.version, fragments, lineage, self.input_ids)
        if now.open:
            refuse_renamed(self.landed_change(), head, self.job.snapshot.uri)
        parts = {number: valid[number] for number in now.open if number in valid}
        # Where every fragment has all the rows that it had, none of them is elsewhere, whatever
        # happened to other fragments.
        then = self.landed.head.fragments if self.landed else {n: part.fragment for n, part in self.parts.items()}
        right = valid.keys() | {number for number, one in now.covered.items() if one.done}
        has_all_rows = all(
            number in right and head.fragments[number].num_deletions == then[number].num_deletions
            for number in coverage.covered
        )
        elsewhere = [] if has_all_rows else [number for number in now.open if number not in valid]
        again = [number for number in elsewhere if not self._still_fits(head, number, judge)]
        fresh: Sequence[RebasedColumns] = ()
        if again:
            fresh = rebaser(head.dataset, self.history.lineage(head.dataset, self.job.change.read_version), again)
        known = {**self.rebased, **{one.fragment_id: one for one in fresh}}
        self.rebased = rebased = {number: known[number] for number in elsewhere}
        parts.update({number: one.columns for number, one in rebased.items() if one.columns is not None})
        new_rows = sum(head.fragments[number].num_rows for number in now.new)
        new_rows += sum(head.fragments[number].num_rows - one.covered for number, one in rebased.items())
        done = now.settled(dict.fromkeys(now.open))
        return Plan(
            head=head,
            parts=parts,
            rebased=rebased,
            gone=tuple(number for number in self.parts if number not in head.fragments),
            conflicts={},
            new_rows=new_rows,
            coverage=replace(done, others=done.others | still),
        )

    def note(self, plan: Plan) -> None:
        """Takes note of a plan that was committed."""
        self.landed = plan
        self.counted.update(plan.rebased)

    def landed_change(self) -> ColumnsToCommit:
        """Returns what is to be committed; a new column that was filled is known by its id."""
        if self.landed is None:
            return self.job.change
        filled = {column.name: column for column in self.landed.head.fields}
        targets = (filled.get(one.name, one) if one.id < 0 else one for one in self.job.change.targets)
        return replace(self.job.change, targets=tuple(targets))

    def _coverage(self) -> Coverage:
        """Returns what the job covered when it last committed; before, at its snapshot."""
        landed = self.landed
        if landed is None:
            version, fragments = self.job.change.read_version, {n: part.fragment for n, part in self.parts.items()}
            others = self.job.snapshot_fragments
        elif landed.coverage is None:
            version, fragments = landed.head.dataset.version, {n: landed.head.fragments[n] for n in landed.parts}
            others = frozenset(landed.head.fragments)
        else:
            return landed.coverage
        covered = {
            number: Covered(identity=fragment_identity(fragment, self.input_ids), done=landed is not None)
            for number, fragment in fragments.items()
        }
        return Coverage(version=version, covered=covered, others=others - covered.keys())

    def _still_fits(self, head: Head, fragment: int, judge: FragmentJudge) -> bool:
        """Tells whether what was rebased to an earlier version still fits, and its counts do."""
        one = self.rebased.get(fragment)
        if one is None or one.columns is None or judge(one.columns).verdict is not Verdict.VALID:
            return False
        return head.fragments[fragment].num_deletions == one.columns.fragment.num_deletions

    def make_room(self, plan: Plan) -> lance.LanceDataset | Lost | Unknown | None:
        """Makes a version with the columns, and in each fragment files of all or none of them.

        Another plan is to be made for it; None where the plan can be committed as it is.
        """
        head, change = plan.head, self.job.change
        there = {column.name for column in head.fields}
        missing = [arrow for arrow in change.new_columns if arrow.name not in there]
        if missing:
            token = self.token or uuid.uuid4().hex
            outcome = add_null_columns(head.dataset, missing, token)
            if outcome is not None:
                return outcome
            self.token = token
            return self.job.snapshot.open_latest()
        return fill_gaps(head, sorted(plan.parts), targets_in(head, change), self._blank, self.job.snapshot.storage)

    def _blank(self, dataset: lance.LanceDataset, fragment: int, names: Sequence[str]) -> StagedColumns:
        staged = self.job.stage.blank(dataset, fragment, names)
        # Before the commit: where its answer is lost, the next round meets these files.
        self.blanks.add(staged.name)
        return staged

    def result(self, plan: Plan, retries: int, earlier: CommitResult | None) -> CommitResult:
        """Returns what the commit of a plan will have done, but for its version.

        `earlier` is what the job has committed before: some of its values are replaced then.
        """
        change = self.job.change
        carried = sum(one.carried for one in plan.rebased.values())
        nulled = sum(one.nulled for one in plan.rebased.values())
        if earlier is not None:
            # Of a fragment that was rebased before, those rows were counted then.
            before = [self.counted[number] for number in plan.rebased if number in self.counted]
            carried -= sum(one.carried for one in before)
            nulled -= sum(one.nulled for one in before)
            return replace(
                earlier,
                rows=earlier.rows - nulled,
                rows_carried=earlier.rows_carried + carried,
                rows_nulled=earlier.rows_nulled + nulled,
                retries=earlier.retries + retries + 1,
            )
        given = sum(part.rows for number, part in self.parts.items() if number not in plan.conflicts)
        rows = carried
        for number, part in plan.parts.items():
            if number not in plan.rebased:
                deleted = plan.head.fragments[number].num_deletions - part.fragment.num_deletions
                rows += part.rows - min(deleted, part.rows)
        return CommitResult(
            uri=self.job.snapshot.uri,
            operation="backfill",
            job_id=self.job.job_id,
            version=0,
            read_version=change.read_version,
            rows=rows,
            fragments=len(plan.parts),
            retries=retries,
            columns=tuple(column.name for column in change.targets),
            added_columns=tuple(change.new_columns.names),
            input_columns=tuple(column.name for column in change.inputs),
            inputs_from=change.inputs_from,
            fragments_gone=plan.gone,
            rows_carried=carried,
            rows_nulled=nulled,
            rows_gone=max(0, given - rows - nulled),
            new_rows=plan.new_rows,
        )
