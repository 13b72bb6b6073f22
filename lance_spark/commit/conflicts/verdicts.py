"""Judges whether results computed on a snapshot still fit the current table.

Pure functions over manifests, without access to storage. The judgement compares identities and
ignores the kind of the concurrent operation. An append, a delete, a new index or another column's
backfill keeps the files of the inputs and of the target, so these operations need no special rules.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_spark.commit.changes import ColumnsToCommit, FragmentColumns
from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.identity import (
    FieldIdentity,
    FragmentIdentity,
    fragment_identity,
    ids_of,
)
from lance_spark.commit.conflicts.table_state import Head
from lance_spark.errors import CommitConflictError, CommitImpossibleError
from lance_spark.version_times import moments_of

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.row_lineage import Lineage, LineageStep


class Verdict(enum.Enum):
    """The verdict on a fragment's result."""

    VALID = "valid"
    """Every value still belongs to its staged row. Rows deleted since do no harm, because physical
    rows do not move."""
    GONE = "gone"
    """The fragment was removed with all its rows. The values are not needed."""
    CONFLICT = "conflict"
    """The values cannot be applied unchanged. The valid values must be found row by row."""
    IMPOSSIBLE = "impossible"
    """The column or the table is no longer the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict; if not `VALID`, also the reason, and the versions named in the reason."""

    verdict: Verdict
    reason: str = ""
    versions: tuple[int, ...] = ()


VALID = Judgement(verdict=Verdict.VALID)


def judge_column(
    then: FieldIdentity,
    head: Collection[FieldIdentity],
    changes: Iterable[Change],
    *,
    by_name: bool = False,
) -> Judgement:
    """Tells whether a column is still the same column, so its field id may be written to.

    Lance reuses field ids after a drop and after a restore. An equal id and type prove the identity
    only together with the token in the field's metadata, set by a backfill. Without a token, every
    event since the snapshot must be known to have kept the column in place. A renamed column stays
    the same column.

    Args:
        then: The column in the snapshot.
        head: The current columns.
        changes: All events in between, oldest first.
        by_name: Accept an unknown history if the column has the same id, name and type. The values
            fit any column of the same name.
    """
    changes = list(changes)
    problem = _difference(then, head)
    if problem is not None:
        return _impossible(f"column {then.name!r} {problem}", _suspects(then, changes))
    if then.token is not None:
        return VALID
    may_be_unknown = by_name and any(
        (field.id, field.name) == (then.id, then.name) for field in head
    )
    for change in changes:
        if change.operation is None and not may_be_unknown:
            return _impossible(
                f"column {then.name!r} may have been dropped and recreated", [change]
            )
        if _may_replace(then, change):
            return _impossible(f"column {then.name!r} may be another column now", [change])
    return VALID


def _difference(then: FieldIdentity, head: Collection[FieldIdentity]) -> str | None:
    """Returns the visible difference between a column and the current column of its id, or None."""
    current = next((field for field in head if field.id == then.id), None)
    if current is None or current.type != then.type:
        return _loss(then, head)
    if current.token != then.token:
        return "was dropped and recreated"
    if then.nullable and not current.nullable:
        return "does not allow NULL any more"
    return None


def _loss(then: FieldIdentity, head: Collection[FieldIdentity]) -> str:
    namesake = next((field for field in head if field.name == then.name), None)
    if namesake is None:
        return "was dropped"
    if namesake.type != then.type:
        return f"changed its type from {then.type} to {namesake.type}"
    return "was dropped and recreated"


def judge_input(
    then: FieldIdentity, head: Collection[FieldIdentity], changes: Iterable[Change]
) -> Judgement:
    """Tells whether an input column still exists, so its files can reveal changed values.

    A cast gives a column a new field id and new files. Under the old name, the cast column is the
    same column with changed values. Under another name, only the operation Merge distinguishes the
    cast from a drop. A dropped column cannot have been rewritten.
    """
    if any(column.id == then.id for column in head):
        return VALID
    lost = drop_of(then, changes)
    when = "" if lost is None else f" ({lost.text})"
    if any(column.name == then.name for column in head):
        return _conflict(f"input column {then.name!r} was cast or recreated{when}")
    if lost is not None and lost.operation == "Merge":
        return _impossible(f"input column {then.name!r} was cast under another name", [lost])
    return Judgement(verdict=Verdict.GONE, reason=f"input column {then.name!r} was dropped{when}")


def drop_of(column: FieldIdentity, changes: Iterable[Change]) -> Change | None:
    """Returns the drop or cast of a column, if known; another column may have the id by now."""
    return next(
        (
            c
            for c in changes
            if c.schema is not None and all(field.id != column.id for field in c.schema)
        ),
        None,
    )


def _may_replace(then: FieldIdentity, change: Change) -> bool:
    """Tells whether another column may have the id of a column after a change."""
    return (
        change.operation == "Overwrite" or _lost_in(then, change) or _lost_by_restore(then, change)
    )


def _lost_in(then: FieldIdentity, change: Change) -> bool:
    return change.schema is not None and not any(
        (field.id, field.type) == (then.id, then.type) for field in change.schema
    )


def _lost_by_restore(then: FieldIdentity, change: Change) -> bool:
    """Tells whether a restore may have revived an earlier dropped column of the same id."""
    if change.operation != "Restore":
        return False
    undone = change.undone
    return undone is None or any(
        step.operation in (None, "Overwrite", "Restore") or _lost_in(then, step) for step in undone
    )


def _suspects(then: FieldIdentity, changes: list[Change]) -> list[Change]:
    lost = [
        c for c in changes if c.operation in ("Overwrite", "Restore", None) or _lost_in(then, c)
    ]
    return lost or [c for c in changes if c.operation in ("Merge", "Project")]


def _conflict(reason: str) -> Judgement:
    return Judgement(verdict=Verdict.CONFLICT, reason=reason)


def _impossible(reason: str, suspects: list[Change]) -> Judgement:
    when = f" ({', '.join(change.text for change in suspects)})" if suspects else ""
    versions = tuple(change.version for change in suspects)
    return Judgement(verdict=Verdict.IMPOSSIBLE, reason=f"{reason}{when}", versions=versions)


def judge_new_column(
    column: FieldIdentity,
    head: Collection[FieldIdentity],
    *,
    mine: str | None,
    is_filled: Callable[[FieldIdentity], bool],
) -> Judgement:
    """Tells whether a column missing in the snapshot can be filled.

    The column can be filled in three cases: the column does not exist yet, this job added the
    column (with the token `mine`), or another backfill added and never filled the column.
    """
    current = next((field for field in head if field.name == column.name), None)
    if current is None:
        reason = (
            f"column {column.name!r} was dropped or renamed after this job had added the column"
        )
        return VALID if mine is None else _impossible(reason, [])
    if (
        current.token is not None
        and current.type == column.type
        and (current.token == mine or not is_filled(current))
    ):
        return VALID
    return _conflict(f"column {column.name!r} was added by a concurrent writer after the snapshot")


def judge_fragment(
    then: FragmentIdentity, now: FragmentIdentity | None, changes: Sequence[Change]
) -> Judgement:
    """Judges the result of a fragment.

    Args:
        then: The fragment in the snapshot.
        now: The current fragment, over the same fields; None if absent.
        changes: All events in between, oldest first.
    """
    if now is None:
        return _judge_absence(then, changes)
    replaced = any(change.replaces for change in changes)
    if not then.is_same(now, replaced=replaced) or now.deleted_rows < then.deleted_rows:
        return _conflict(f"it is another fragment of the same id{_rewrites(changes)}")
    if now.inputs != then.inputs:
        return _conflict(f"input columns were rewritten in place{_rewrites(changes)}")
    if now.targets != then.targets:
        return _conflict(f"the column itself was rewritten in place{_rewrites(changes)}")
    return VALID


def _judge_absence(then: FragmentIdentity, changes: Sequence[Change]) -> Judgement:
    compaction = next((change for change in changes if then.fragment_id in change.compacted), None)
    if compaction is not None:
        return _conflict(f"its rows moved to new fragments: {compaction.text}")
    replacement = next((change for change in changes if change.replaces), None)
    if replacement is not None:
        return _conflict(f"it is not in the table any more: {replacement.text}")
    return Judgement(
        verdict=Verdict.GONE, reason="all of its rows were deleted or moved by an update"
    )


def _rewrites(changes: Sequence[Change]) -> str:
    names = ("Update", "DataReplacement", "DataOverlay", "Overwrite", "Restore", "Merge", None)
    suspects = [c.text for c in changes if c.operation in names]
    return (
        f" (since the snapshot: {', '.join(suspects[:5])}{', ...' if len(suspects) > 5 else ''})"
        if suspects
        else ""
    )


FragmentJudge = Callable[[FragmentColumns], Judgement]
"""Judges the column file of a fragment."""


def fragment_judge(
    change: ColumnsToCommit, head: Head, changes: Sequence[Change], blanks: Collection[str]
) -> FragmentJudge:
    """Returns the judge of all fragments of a version.

    The judge is made once per version, because a version may have 100,000 fragments and thousands
    of changes. `blanks` names NULL files written by the job itself.
    """
    inputs = {column: judge_input(column, head.fields, changes) for column in change.inputs}
    input_ids = ids_of(
        column for column, judgement in inputs.items() if judgement.verdict is Verdict.VALID
    )
    # If an input was cast, all values are out of date.
    recast = next(
        (judgement for judgement in inputs.values() if judgement.verdict is Verdict.CONFLICT), None
    )
    now_targets = targets_in(head, change)
    # Target ids at the time of computation, or current ids for columns added by the commit.
    then_ids = ids_of([column for column in change.targets if column.id >= 0] or now_targets)
    now_ids = ids_of(now_targets)

    def judge(part: FragmentColumns) -> Judgement:
        metadata = head.fragments.get(part.fragment_id)
        then = fragment_identity(part.fragment, input_ids, then_ids)
        if metadata is None:
            return judge_fragment(then, None, changes)
        if recast is not None:
            return recast
        current = fragment_identity(metadata, input_ids, now_ids)
        if blanks:
            target_files = tuple(
                file for file in current.targets if file.partition(":")[0] not in blanks
            )
            current = dataclasses.replace(current, targets=target_files)
        return judge_fragment(then, current, changes)

    return judge


def targets_in(head: Head, change: ColumnsToCommit) -> tuple[FieldIdentity, ...]:
    """Returns the target columns present in a version."""
    ids = {column.id for column in change.targets if column.id >= 0}
    return tuple(
        column
        for column in head.fields
        if column.id in ids or column.name in change.new_columns.names
    )


_Ids = tuple[Sequence[int], Sequence[int]]
"""Field ids of inputs and of targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A fragment with rows of a job, at some version.

    Attributes:
        done: Whether the table holds the job's values for the fragment's rows. Committed values
            move together with their rows.
        committed: Name of the column file committed by the job for this fragment since then. The
            column file is then the fragment's target file.
    """

    identity: FragmentIdentity
    done: bool
    committed: str | None = None

    def is_right(self, now: FragmentIdentity) -> bool:
        """Tells whether the fragment still has the job's values and the same inputs."""
        if not self.done or now.inputs != self.identity.inputs:
            return False
        if self.committed is None:
            return now.targets == self.identity.targets
        return len(now.targets) == 1 and now.targets[0].startswith(f"{self.committed}:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Covered fragments of a job at some version, by fragment id.

    A job covers fragments of its snapshot. Concurrent compactions and row-rewriting updates move
    covered rows to new fragments, and other commits rewrite the inputs of covered rows in place.
    Fragments without such a change need no work, or take the job's values as they are. All other
    covered fragments must be checked row by row.

    Attributes:
        others: Ids of all fragments without covered rows.
        new: Ids of uncovered fragments with rows added since the version of the previous coverage.
    """

    version: int
    covered: Mapping[int, Covered]
    others: frozenset[int]
    new: frozenset[int] = frozenset()

    @property
    def open(self) -> tuple[int, ...]:
        """Ids of covered fragments whose rows may lack a value or have an outdated value."""
        return tuple(
            sorted(number for number, fragment in self.covered.items() if not fragment.done)
        )

    def look(
        self,
        version: int,
        fragments: Iterable[FragmentMetadata],
        lineage: Lineage,
        input_ids: Sequence[int],
        target_ids: Sequence[int] = (),
    ) -> Coverage:
        """Follows the covered rows to a later version.

        `lineage` spans the changes between the two versions. Without `target_ids`, the job replaces
        all existing values of the target columns.
        """
        covered, uncovered_ids, new_ids = dict[int, Covered](), set[int](), set[int]()
        for fragment in fragments:
            identity = fragment_identity(fragment, input_ids, target_ids)
            state = self._state(fragment, identity, lineage, (input_ids, target_ids))
            if state is None:
                uncovered_ids.add(fragment.id)
                origin_ids = {
                    fragment.id,
                    *(leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ()),
                }
                if origin_ids.isdisjoint(self.others):
                    new_ids.add(fragment.id)
            else:
                covered[fragment.id] = Covered(identity=identity, done=state)
        return Coverage(
            version=version,
            covered=covered,
            others=frozenset(uncovered_ids),
            new=frozenset(new_ids),
        )

    def settled(self, done: Mapping[int, str | None]) -> Coverage:
        """Returns a copy of the coverage with more fragments marked as done.

        Args:
            done: Committed column file by fragment id; None for a fragment without work.
        """
        covered = dict(self.covered)
        for number in done.keys() & covered.keys():
            covered[number] = replace(covered[number], done=True, committed=done[number])
        return replace(self, covered=covered)

    def _state(
        self, now: FragmentMetadata, identity: FragmentIdentity, lineage: Lineage, ids: _Ids
    ) -> bool | None:
        """Tells whether all covered rows of a fragment are done; None without covered rows."""
        before = self.covered.get(now.id)
        if before is not None:
            return before.identity.is_same(identity, replaced=lineage.replaced) and before.is_right(
                identity
            )
        if lineage.is_added(now):
            return None
        leaves = lineage.leaves(now.id)
        if leaves is None:
            return False  # The origin of the rows is unknown.
        if not leaves:
            return self._foreign_state(now, lineage)
        states = [self._leaf_state(leaf, now, lineage, ids) for leaf in leaves]
        covered_states = [state for state in states if state is not None]
        return all(covered_states) if covered_states else None

    def _leaf_state(
        self, leaf: LineageStep, now: FragmentMetadata, lineage: Lineage, ids: _Ids
    ) -> bool | None:
        before = self.covered.get(leaf.fragment.id)
        if before is None:
            return self._foreign_state(leaf.fragment, lineage)
        unchanged = leaf.is_unchanged(now, [number for field_ids in ids for number in field_ids])
        return unchanged and before.is_right(fragment_identity(leaf.fragment, *ids))

    def _foreign_state(self, fragment: FragmentMetadata, lineage: Lineage) -> bool | None:
        """Returns False if an update may have moved covered rows to the fragment, else None.

        An update of fragments without covered rows moves no covered rows.
        """
        if fragment.id in self.others and not lineage.replaced:
            return None
        touched = lineage.moved_from(fragment)
        return False if touched and (lineage.replaced or not touched <= self.others) else None


def refuse_other_columns(
    change: ColumnsToCommit, head: Head, changes: Sequence[Change], *, token: str | None, uri: str
) -> None:
    """Raises if target or input columns are no longer the snapshot's columns.

    `token` is the token of the columns added by this commit itself; None before their addition.

    Raises:
        CommitImpossibleError: A column was dropped or changed, or may be a different column.
        CommitConflictError: A concurrent writer added a column of the same name.
    """
    where = f"Table: {uri}, version {head.dataset.version}, read at version {change.read_version}."
    targets = [
        judge_column(column, head.fields, changes, by_name=change.by_name)
        if column.id >= 0
        else judge_new_column(column, head.fields, mine=token, is_filled=head.is_filled)
        for column in change.targets
    ]
    for judgement in [
        *targets,
        *(judge_input(column, head.fields, changes) for column in change.inputs),
    ]:
        if judgement.verdict is Verdict.IMPOSSIBLE:
            moments = moments_of(head.dataset, judgement.versions)
            raise CommitImpossibleError(
                f"The values cannot be applied: {judgement.reason}{moments}. {where} {change.advice}",
                uri=uri,
            )
    for judgement in targets:
        if judgement.verdict is Verdict.CONFLICT:
            raise CommitConflictError(
                f"The values cannot be applied: {judgement.reason}. {where} {change.advice} Or choose another name.",
                uri=uri,
            )


def refuse_renamed(change: ColumnsToCommit, head: Head, uri: str) -> None:
    """Raises a conflict for a renamed target column, because Lance finds columns by name."""
    names = {column.id: column.name for column in head.fields}
    for column in change.targets:
        name = names.get(column.id, column.name)
        if name != column.name:
            raise CommitConflictError(
                f"Column {column.name!r} was renamed to {name!r} during the computation of its values. Table: {uri}, "
                f"version {head.dataset.version}, read at version {change.read_version}. {change.advice}",
                uri=uri,
            )


def refuse_overwritten(
    change: ColumnsToCommit, head: Head, changes: Sequence[Change], uri: str
) -> None:
    """Raises for values without a remaining fragment, if the table was overwritten."""
    overwrites = [event for event in changes if event.operation == "Overwrite"]
    if overwrites:
        last = overwrites[-1]
        raise CommitImpossibleError(
            f"The table was overwritten: {last.text}{moments_of(head.dataset, [last.version])}. Table: {uri}, read at "
            f"version {change.read_version}. {change.advice}",
            uri=uri,
        )
