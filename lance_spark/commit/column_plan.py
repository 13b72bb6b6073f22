"""Plans the rounds of a commit of column files: :class:`ColumnCommitPlanner`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lance_spark.commit.attempt import Lost, Unknown, check_landed
from lance_spark.commit.changes import (
    ColumnsToCommit,
    CommitResult,
    FragmentColumns,
    RebasedColumns,
    StagedColumns,
)
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.identity import field_identities, fragment_identity
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.commit.conflicts.table_state import Head, SeenHistory
from lance_spark.commit.conflicts.verdicts import (
    Coverage,
    Covered,
    FragmentJudge,
    Judgement,
    Verdict,
    fragment_judge,
    refuse_other_columns,
    refuse_overwritten,
    refuse_renamed,
    targets_in,
)
from lance_spark.commit.verify import Stage, add_null_columns, fill_gaps, refuse_undone
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    TableNotFoundError,
)
from lance_spark.lance_compat import path_of, plain
from lance_spark.namespaces.errors import NamespaceError

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


Rebaser = Callable[["lance.LanceDataset", Lineage, Sequence[int]], Sequence[RebasedColumns]]
"""Stages values of a version's fragments row by row. The lineage begins at the snapshot.

Raises a `CommitConflictError` if the user refuses changed inputs, or if the carried values exceed
the user's limit. Raises a `CommitImpossibleError` if the history of row moves was cleaned up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCommitRequest:
    """The request of :func:`~lance_spark.commit.column_commit.commit_columns`: its arguments."""

    snapshot: DatasetRef
    change: ColumnsToCommit
    job_id: str
    stage: Stage
    snapshot_fragments: frozenset[int]
    rebaser: Rebaser | None
    policy: CommitPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """The contents of one round's commit.

    Attributes:
        parts: Column files, by the target fragment in the head.
        rebased: Results of the rebaser by fragment, including fragments without a file to write.
        gone: Fragments of the job whose rows are in no fragment of the head.
        conflicts: Why other fragments are left out.
        new_rows: Number of rows that are absent from the snapshot.
        coverage: Coverage of the job after this commit; None if nothing was rebased.
    """

    head: Head
    parts: Mapping[int, FragmentColumns]
    rebased: Mapping[int, RebasedColumns]
    gone: tuple[int, ...]
    conflicts: Mapping[int, str]
    new_rows: int
    coverage: Coverage | None = None

    @property
    def carried(self) -> int:
        """Number of rebased rows with the job's value."""
        return sum(rebased.carried for rebased in self.rebased.values())

    @property
    def nulled(self) -> int:
        """Number of rebased rows whose inputs have changed."""
        return sum(rebased.nulled for rebased in self.rebased.values())


@dataclass(slots=True, kw_only=True)
class ColumnCommitPlanner:
    """Plans the rounds of one commit. Keeps the history and the files of earlier rounds.

    Attributes:
        parts: The job's column files, by fragment.
        token: Token in the metadata of the columns added by this commit; None before.
        addition: The version before an addition of columns, and its token. None before, and after
            the check that the addition has undone no commit.
        last_head: The version of the last look.
        blanks: Names of the files of NULLs added by this commit.
        rebased: Results of the rebaser for the latest planned version.
        landed: The plan that was committed last.
        counted: Results of the rebaser in committed plans, by fragment.
    """

    request: ColumnCommitRequest
    history: SeenHistory
    parts: Mapping[int, FragmentColumns]
    input_ids: Sequence[int]
    token: str | None = None
    addition: tuple[int, str] | None = None
    last_head: Head | None = None
    blanks: set[str] = field(default_factory=set)
    rebased: Mapping[int, RebasedColumns] = field(default_factory=dict)
    landed: CommitPlan | None = None
    counted: dict[int, RebasedColumns] = field(default_factory=dict)

    @property
    def changes(self) -> list[Change]:
        """Changes after the version of the values. The history may reach further back."""
        return self.history.changes_after(self.request.change.read_version)

    def look(self, dataset: lance.LanceDataset | None) -> Head:
        """Reads a version, and the history up to this version.

        Raises:
            CommitImpossibleError: The table was deleted, or deleted and created again.
        """
        change, uri = self.request.change, self.request.snapshot.uri
        if dataset is None or dataset.version < change.read_version:
            recreation = (
                ""
                if dataset is None
                else f" and recreated since version {change.read_version} was read"
            )
            raise CommitImpossibleError(
                f"The table was deleted{recreation}. Table: {uri}. {change.advice}", uri=uri
            )
        self.history.look(dataset, change.read_version)
        head = self.last_head = Head.of(dataset)
        if self.addition is not None and any(
            column.token == self.addition[1] for column in head.fields
        ):
            self.token = self.addition[1]  # the answer was lost
        return head

    def plan(self, head: Head) -> CommitPlan:
        """Judges columns and fragments, and rebases fragments if necessary.

        Raises:
            CommitError: The columns or fragments do not allow the commit, as described
                in :func:`~lance_spark.commit.column_commit.commit_columns`.
        """
        change, changes, uri = self.landed_change(), self.changes, self.request.snapshot.uri
        refuse_other_columns(change, head, changes, token=self.token, uri=uri)
        judge = fragment_judge(change, head, changes, self.blanks)
        judged = self._judge_parts(judge)
        parts = {number: self.parts[number] for number in _numbers_of(Verdict.VALID, judged)}
        if judged and not parts:
            refuse_overwritten(change, head, changes, uri)
        conflicts = {
            number: judged[number].reason for number in _numbers_of(Verdict.CONFLICT, judged)
        }
        rebaser = self.request.rebaser
        if rebaser is not None and (conflicts or self._may_have_moved(changes)):
            return self._plan_rebased(rebaser, head, judge, parts)
        if parts:
            refuse_renamed(change, head, uri)
        return CommitPlan(
            head=head,
            parts=parts,
            rebased={},
            gone=_numbers_of(Verdict.GONE, judged),
            conflicts=conflicts,
            new_rows=_count_rows(
                head, head.fragments.keys() - (self.request.snapshot_fragments or self.parts.keys())
            ),
        )

    def _judge_parts(self, judge: FragmentJudge) -> dict[int, Judgement]:
        # After the first commit, the coverage tracks the job's own files.
        return {} if self.landed else {number: judge(part) for number, part in self.parts.items()}

    def _may_have_moved(self, changes: Iterable[Change]) -> bool:
        """Tells whether rows of the job may be in other fragments than the job's column files."""
        return self.landed is not None or any(change.moves for change in changes)

    def _plan_rebased(
        self,
        rebaser: Rebaser,
        head: Head,
        judge: FragmentJudge,
        valid: Mapping[int, FragmentColumns],
    ) -> CommitPlan:
        """Plans a commit whose rows may have moved, or may have changed inputs."""
        coverage = self._coverage()
        current = self._follow(coverage, head)
        if current.open:
            refuse_renamed(self.landed_change(), head, self.request.snapshot.uri)
        valid_parts = {number: valid[number] for number in current.open if number in valid}
        rebased = self._rebase(
            rebaser, head, judge, self._moved_ids(head, coverage, current, valid)
        )
        rebased_parts = {
            number: result.columns
            for number, result in rebased.items()
            if result.columns is not None
        }
        uncovered = sum(
            head.fragments[number].num_rows - result.covered for number, result in rebased.items()
        )
        return CommitPlan(
            head=head,
            parts=valid_parts | rebased_parts,
            rebased=rebased,
            gone=tuple(number for number in self.parts if number not in head.fragments),
            conflicts={},
            new_rows=_count_rows(head, current.new) + uncovered,
            coverage=current.settled(dict.fromkeys(current.open)),
        )

    def _follow(self, coverage: Coverage, head: Head) -> Coverage:
        """Follows the covered rows to a version."""
        lineage = self.history.lineage(head.dataset, coverage.version)
        # Skip fragments of the snapshot without any moved rows: most fragments of a huge table.
        skipped_ids = coverage.others if lineage.complete and not lineage.replaced else frozenset()
        skipped_ids -= lineage.compacted
        fragments = [
            head.fragments[number] for number in head.fragments if number not in skipped_ids
        ]
        current = coverage.look(head.dataset.version, fragments, lineage, self.input_ids)
        return replace(current, others=current.others | skipped_ids)

    def _moved_ids(
        self,
        head: Head,
        coverage: Coverage,
        current: Coverage,
        valid: Mapping[int, FragmentColumns],
    ) -> list[int]:
        """Returns the open fragments with rows of invalid fragments."""
        before = (
            self.landed.head.fragments
            if self.landed
            else {n: part.fragment for n, part in self.parts.items()}
        )
        resolved_ids = valid.keys() | (current.covered.keys() - set(current.open))
        has_all_rows = all(
            number in resolved_ids
            and head.fragments[number].num_deletions == before[number].num_deletions
            for number in coverage.covered
        )
        # If every covered fragment still has all its rows, no covered row is in another fragment,
        # regardless of changes to other fragments.
        return [] if has_all_rows else [number for number in current.open if number not in valid]

    def _rebase(
        self, rebaser: Rebaser, head: Head, judge: FragmentJudge, fragments: Sequence[int]
    ) -> Mapping[int, RebasedColumns]:
        """Rebases fragments to a version, unless the rebase to an earlier version still fits."""
        stale_ids = [number for number in fragments if not self._still_fits(head, number, judge)]
        results = dict(self.rebased)
        if stale_ids:
            lineage = self.history.lineage(head.dataset, self.request.change.read_version)
            results.update(
                (result.fragment_id, result) for result in rebaser(head.dataset, lineage, stale_ids)
            )
        self.rebased = {number: results[number] for number in fragments}
        return self.rebased

    def note(self, plan: CommitPlan) -> None:
        """Records a committed plan."""
        self.landed = plan
        self.counted.update(plan.rebased)

    def landed_change(self) -> ColumnsToCommit:
        """Returns the change. After the first commit, new columns have their field ids."""
        if self.landed is None:
            return self.request.change
        filled = {column.name: column for column in self.landed.head.fields}
        targets = (
            filled.get(target.name, target) if target.id < 0 else target
            for target in self.request.change.targets
        )
        return replace(self.request.change, targets=tuple(targets))

    def _coverage(self) -> Coverage:
        """Returns the coverage at the job's last commit, or at its snapshot."""
        landed = self.landed
        if landed is None:
            version, fragments = (
                self.request.change.read_version,
                {n: part.fragment for n, part in self.parts.items()},
            )
            other_ids = self.request.snapshot_fragments
        elif landed.coverage is None:
            version, fragments = (
                landed.head.dataset.version,
                {n: landed.head.fragments[n] for n in landed.parts},
            )
            other_ids = frozenset(landed.head.fragments)
        else:
            return landed.coverage
        covered = {
            number: Covered(
                identity=fragment_identity(fragment, self.input_ids), done=landed is not None
            )
            for number, fragment in fragments.items()
        }
        return Coverage(version=version, covered=covered, others=other_ids - covered.keys())

    def _still_fits(self, head: Head, fragment: int, judge: FragmentJudge) -> bool:
        """Tells whether a rebase to an earlier version still fits, including its row counts."""
        result = self.rebased.get(fragment)
        if (
            result is None
            or result.columns is None
            or judge(result.columns).verdict is not Verdict.VALID
        ):
            return False
        return head.fragments[fragment].num_deletions == result.columns.fragment.num_deletions

    def make_room(self, plan: CommitPlan) -> lance.LanceDataset | Lost | Unknown | None:
        """Makes a version with the columns, and with files of all or none of them per fragment.

        Returns the new version, and the caller plans again for this version. Returns None if the
        plan can be committed as it is.
        """
        head, change = plan.head, self.request.change
        names_in_head = {column.name for column in head.fields}
        missing_columns = [arrow for arrow in change.new_columns if arrow.name not in names_in_head]
        if missing_columns:
            return self._add_columns(head.dataset, missing_columns)
        unknown = self._check_addition(head.dataset)
        if unknown is not None:
            return unknown
        request, targets, earlier = self.request, targets_in(head, change), frozenset(self.blanks)
        outcome = fill_gaps(
            head,
            sorted(plan.parts),
            targets,
            self._blank,
            request.stage.entry,
            request.snapshot.storage,
        )
        if isinstance(outcome, Unknown):
            names = self.blanks - earlier
            return replace(outcome, in_flight=lambda: not self._has_files(names))
        return outcome

    def _has_files(self, names: Collection[str]) -> bool:
        """Tells whether the version of the last look names all these files."""
        fragments = () if self.last_head is None else self.last_head.fragments.values()
        return {path_of(file) for fragment in fragments for file in fragment.files}.issuperset(
            names
        )

    def _add_columns(
        self, dataset: lance.LanceDataset, columns: Sequence[pa.Field[Any]]
    ) -> lance.LanceDataset | Lost | Unknown:
        before, earlier = dataset.version, self.addition
        if earlier is not None and before > earlier[0] and self.token != earlier[1]:
            earlier = before, earlier[1]  # another commit has the version of the earlier addition
        # After a lost answer, the next round recognizes its own columns by the token.
        self.addition = earlier or (before, self.token or uuid.uuid4().hex)
        outcome = add_null_columns(dataset, columns, self.addition[1])
        if outcome is not None:
            if isinstance(outcome, Lost):
                self.addition = earlier
                return outcome
            token = self.addition[1]
            return replace(outcome, in_flight=lambda: self.token != token)
        self.token = self.addition[1]
        # The handle is at the new version now.
        self.history.note_merge(dataset, before)
        return self._check_addition(dataset) or dataset

    def _check_addition(self, dataset: lance.LanceDataset) -> Unknown | None:
        """Checks an addition of columns by this commit, unless the check is done."""
        addition = self.addition
        if addition is None or addition[1] != self.token:
            return None
        unknown = check_landed(lambda: refuse_undone(dataset, *addition))
        if unknown is None:
            self.addition = None
            return None
        return Unknown(error=unknown.error, in_flight=lambda: False)  # the values were not sent

    def refuse_unchecked(self, error: CommitError) -> None:
        """Checks the commit's new columns after its failure, if their check is not done.

        Raises:
            CommitOutcomeUnknownError: The columns may have undone commits of other writers, or the
                store failed at the check.
        """
        if self.addition is None:
            return
        snapshot, (before, token) = self.request.snapshot, self.addition
        try:
            latest = snapshot.open_latest()
            if any(column.token == token for column in field_identities(latest.lance_schema)):
                refuse_undone(latest, before, token)
        except TableNotFoundError:
            return
        except (OSError, NamespaceError) as failure:
            names = self.request.change.new_columns.names
            raise _unchecked_columns(snapshot.uri, names, before, failure) from error

    def tell_of_columns(self, error: CommitError) -> None:
        """Adds the new columns that stay in the table, all NULL, to the text of an error."""
        if self.token is None:
            return
        try:
            fields = field_identities(self.request.snapshot.open_latest().lance_schema)
        except (OSError, LanceSparkError):  # the error of the commit matters more
            return
        names = [column.name for column in fields if column.token == self.token]
        if names:
            text = str(error).replace("Nothing was committed", "No values were committed")
            stay = ", ".join(map(repr, names))
            error.args = (
                f"{text} The new columns {stay} stay, all NULL; the next write fills them.",
            )

    def file_columns(self, head: Head) -> list[str]:
        """Returns the present names of the target columns, in the order of the column files."""
        names = {column.id: column.name for column in head.fields}
        return [names.get(target.id, target.name) for target in self.request.change.targets]

    def _blank(
        self, dataset: lance.LanceDataset, fragment: int, names: Sequence[str]
    ) -> StagedColumns:
        staged = self.request.stage.blank(dataset, fragment, names)
        # Record the name before the commit: after a lost answer, the next round meets this file.
        self.blanks.add(staged.name)
        return staged

    def result(self, plan: CommitPlan, retries: int, earlier: CommitResult | None) -> CommitResult:
        """Returns the result of committing a plan; the version is still 0.

        `earlier` is the result of the job's previous commit, some of whose values this
        plan replaces.
        """
        if earlier is not None:
            return self._result_again(plan, retries, earlier)
        change = self.request.change
        given_rows = sum(
            part.rows for number, part in self.parts.items() if number not in plan.conflicts
        )
        kept_ids = [number for number in plan.parts if number not in plan.rebased]
        rows = plan.carried + sum(_kept_rows(plan.parts[number], plan.head) for number in kept_ids)
        return CommitResult(
            uri=self.request.snapshot.uri,
            operation="backfill",
            job_id=self.request.job_id,
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
            rows_carried=plan.carried,
            rows_nulled=plan.nulled,
            rows_gone=max(0, given_rows - rows - plan.nulled),
            new_rows=plan.new_rows,
        )

    def _result_again(self, plan: CommitPlan, retries: int, earlier: CommitResult) -> CommitResult:
        # An earlier rebase of the same fragment has already counted these rows.
        previous = [self.counted[number] for number in plan.rebased if number in self.counted]
        nulled = plan.nulled - sum(rebased.nulled for rebased in previous)
        return replace(
            earlier,
            rows=earlier.rows - nulled,
            rows_carried=earlier.rows_carried
            + plan.carried
            - sum(rebased.carried for rebased in previous),
            rows_nulled=earlier.rows_nulled + nulled,
            retries=earlier.retries + retries + 1,
        )


def _unchecked_columns(
    uri: str, names: Sequence[str], before: int, error: Exception
) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"The new columns {', '.join(map(repr, names))} were added as all NULL, and the store failed before the check "
        f"of commits at the same moment: {plain(error.__cause__ or error)}. Table: {uri}, after version {before}. The "
        "values were not committed. Write again when the store answers: the write fills these columns.",
        uri=uri,
    )


def _numbers_of(verdict: Verdict, judged: Mapping[int, Judgement]) -> tuple[int, ...]:
    return tuple(number for number, judgement in judged.items() if judgement.verdict is verdict)


def _count_rows(head: Head, fragments: Iterable[int]) -> int:
    return sum(head.fragments[number].num_rows for number in fragments)


def _kept_rows(part: FragmentColumns, head: Head) -> int:
    """Returns the number of rows with values, without the rows deleted since the write."""
    deleted = head.fragments[part.fragment_id].num_deletions - part.fragment.num_deletions
    return part.rows - min(deleted, part.rows)
