"""Whether results that were computed on a snapshot still fit the table as it is now.

Pure functions over manifests, no storage.

The judgement goes by identity, not by the kind of the other operation: what an append, a delete, a
new index or another column's backfill did leaves the files of the inputs and of the target alone,
so nothing has to be known about them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.changes import ColumnsToCommit, FragmentColumns
from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.identity import FieldIdentity, FragmentIdentity, fragment_identity, ids_of

if TYPE_CHECKING:
    from lance_spark.commit.conflicts.table_state import Head

_REPLACING = (None, "Overwrite", "Restore", "Clone")
"""Operations after which a fragment's id may mean another fragment; None is one whose version was
cleaned up."""


class Verdict(enum.Enum):
    """What becomes of one fragment's result."""

    VALID = "valid"
    """Every value belongs where it was staged for; rows deleted since do no harm, since physical
    rows do not move."""
    GONE = "gone"
    """The fragment was removed with all its rows; the values are not needed."""
    CONFLICT = "conflict"
    """The values cannot be applied as they are: which of them are still right has to be found out
    row by row."""
    IMPOSSIBLE = "impossible"
    """The column or the table is not what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and where it is not `VALID` the reason, and the versions that it names."""

    verdict: Verdict
    reason: str = ""
    versions: tuple[int, ...] = ()


VALID = Judgement(verdict=Verdict.VALID)


def judge_column(then: FieldIdentity, head: Collection[FieldIdentity], changes: Iterable[Change]) -> Judgement:
    """Tells whether a column is still the same one, so that its field id may be written to.

    Lance gives field ids anew after a drop and after a restore, so an equal id and type prove it
    only together with the token that a backfill put into the field's metadata; without one, every
    event since the snapshot must be known to have left the column in place. A column that was
    renamed is the same column.

    Args:
        then: The column in the snapshot.
        head: The columns now.
        changes: Every event since the snapshot, oldest first.
    """
    changes = list(changes)
    now = next((field for field in head if field.id == then.id), None)
    if now is None or now.type != then.type:
        named = next((field for field in head if field.name == then.name), None)
        if named is not None and named.type != then.type:
            what = f"its type changed from {then.type} to {named.type}"
        else:
            what = "it was dropped" if named is None else "it was dropped and made anew"
        return _impossible(f"column {then.name!r}: {what}", _suspects(then, changes))
    if now.token != then.token:
        return _impossible(f"column {then.name!r}: it was dropped and made anew", _suspects(then, changes))
    if then.nullable and not now.nullable:
        return _impossible(f"column {then.name!r}: it may not hold NULL any more", _suspects(then, changes))
    if then.token is not None:
        return VALID
    for change in changes:
        if change.operation is None:
            return _impossible(f"column {then.name!r}: whether it was made anew is not known any more", [change])
        if change.operation == "Overwrite" or _lost_in(then, change) or _lost_by_restore(then, change):
            return _impossible(f"column {then.name!r}: it may be another one", [change])
    return VALID


def judge_input(then: FieldIdentity, head: Collection[FieldIdentity], changes: Iterable[Change]) -> Judgement:
    """Tells whether an input is still there, so that its files tell whether its values changed.

    A cast gives a column a new field id, and files of its own. Under the old name it is the same
    column with changed values; under another one nothing tells it from a drop but the Merge that a
    cast is. A column that was dropped cannot have been rewritten.

    Args:
        then: The column in the snapshot.
        head: The columns now.
        changes: Every event since the snapshot, oldest first.
    """
    if any(column.id == then.id for column in head):
        return VALID
    lost = drop_of(then, changes)
    when = "" if lost is None else f" ({lost.text})"
    if any(column.name == then.name for column in head):
        return Judgement(verdict=Verdict.CONFLICT, reason=f"input column {then.name!r} was cast or made anew{when}")
    if lost is not None and lost.operation == "Merge":
        return _impossible(f"input column {then.name!r}: it was cast under another name", [lost])
    return Judgement(verdict=Verdict.GONE, reason=f"input column {then.name!r} was dropped{when}")


def drop_of(column: FieldIdentity, changes: Iterable[Change]) -> Change | None:
    """Returns what dropped or cast a column, as far as that is known.

    Another column may have its field id by now.
    """
    return next((c for c in changes if c.schema is not None and all(field.id != column.id for field in c.schema)), None)


def _lost_in(then: FieldIdentity, change: Change) -> bool:
    return change.schema is not None and not any(
        (field.id, field.type) == (then.id, then.type) for field in change.schema
    )


def _lost_by_restore(then: FieldIdentity, change: Change) -> bool:
    """Tells whether a restore may have brought another column of the same id.

    One that was dropped on the way from there to here.
    """
    if change.operation != "Restore":
        return False
    undone = change.undone
    return undone is None or any(
        one.operation in (None, "Overwrite", "Restore") or _lost_in(then, one) for one in undone
    )


def _suspects(then: FieldIdentity, changes: list[Change]) -> list[Change]:
    lost = [c for c in changes if c.operation in ("Overwrite", "Restore", None) or _lost_in(then, c)]
    return lost or [c for c in changes if c.operation in ("Merge", "Project")]


def _impossible(reason: str, suspects: list[Change]) -> Judgement:
    when = f" ({', '.join(change.text for change in suspects)})" if suspects else ""
    versions = tuple(change.version for change in suspects)
    return Judgement(verdict=Verdict.IMPOSSIBLE, reason=f"{reason}{when}", versions=versions)


def judge_new_column(
    name: str,
    type_text: str,
    head: Collection[FieldIdentity],
    *,
    mine: str | None,
    is_filled: Callable[[FieldIdentity], bool],
) -> Judgement:
    """Tells whether a column that the snapshot did not have can be filled.

    Args:
        name: Its name.
        type_text: Its type.
        head: The columns now.
        mine: The token that this job gave the column when it added it; None if it has not yet.
        is_filled: Tells whether any data file holds a column.

    Returns:
        `VALID` if it is not there yet, or is this job's, or was added by another backfill that
        never filled it.
    """
    now = next((field for field in head if field.name == name), None)
    if now is None:
        if mine is None:
            return VALID
        return Judgement(
            verdict=Verdict.IMPOSSIBLE, reason=f"column {name!r}: it was dropped after this job had added it"
        )
    if now.token is not None and now.type == type_text and (now.token == mine or not is_filled(now)):
        return VALID
    return Judgement(
        verdict=Verdict.CONFLICT, reason=f"column {name!r} was added by a concurrent writer after the snapshot"
    )


def judge_fragment(
    then: FragmentIdentity, now: FragmentIdentity | None, changes: Sequence[Change], *, ours: str | None = None
) -> Judgement:
    """Tells what becomes of one fragment's result.

    Args:
        then: The fragment in the snapshot.
        now: The fragment now, over the same input and target fields; None if it is not there.
        changes: Every event since the snapshot, oldest first.
        ours: Name of the job's own file, where that is what the target may have become.
    """
    if now is None:
        by = [c for c in changes if then.fragment_id in c.compacted]
        if by:
            return Judgement(verdict=Verdict.CONFLICT, reason=f"its rows moved to new fragments: {by[0].text}")
        unclear = [c for c in changes if c.operation in _REPLACING]
        if unclear:
            return Judgement(verdict=Verdict.CONFLICT, reason=f"it is not in the table any more: {unclear[0].text}")
        return Judgement(verdict=Verdict.GONE, reason="all of its rows were deleted or moved by an update")
    replaced = any(change.operation in _REPLACING for change in changes)
    if not then.is_same(now, replaced=replaced) or now.deleted_rows < then.deleted_rows:
        return Judgement(verdict=Verdict.CONFLICT, reason=f"it is another fragment of the same id{_rewrites(changes)}")
    if now.inputs != then.inputs:
        return Judgement(verdict=Verdict.CONFLICT, reason=f"input columns were rewritten in place{_rewrites(changes)}")
    if now.targets != then.targets and not (ours is not None and _holds(now.targets, ours)):
        return Judgement(
            verdict=Verdict.CONFLICT, reason=f"the column itself was rewritten in place{_rewrites(changes)}"
        )
    return VALID


def _holds(files: tuple[str, ...], name: str) -> bool:
    return len(files) == 1 and files[0].startswith(f"{name}:")


def _rewrites(changes: Sequence[Change]) -> str:
    names = ("Update", "DataReplacement", "DataOverlay", "Overwrite", "Restore", "Merge", None)
    suspects = [c.text for c in changes if c.operation in names]
    return f" (since the snapshot: {', '.join(suspects[:5])}{', ...' if len(suspects) > 5 else ''})" if suspects else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentJudge:
    """What all fragments of a version are judged by.

    Made once per version: there may be 100,000 of them, and thousands of changes.

    Attributes:
        head: The version.
        changes: What happened since the version that the values belong to.
        input_ids: Field ids of the inputs that are still there.
        recast: Why all values are out of date, where an input was cast; else None.
        target_ids: Those of the target columns when the values were computed; as they are now where
            the commit adds them.
        target_ids_now: Those of the target columns of the version.
        blanks: Names of files of NULLs that the commit itself has put there.
    """

    head: Head
    changes: Sequence[Change]
    input_ids: Sequence[int]
    recast: str | None
    target_ids: Sequence[int]
    target_ids_now: Sequence[int]
    blanks: frozenset[str]

    @staticmethod
    def of(change: ColumnsToCommit, head: Head, changes: Sequence[Change], blanks: Collection[str]) -> FragmentJudge:
        """Collects it."""
        now = targets_in(head, change)
        inputs = {column: judge_input(column, head.fields, changes) for column in change.inputs}
        recast = [one.reason for one in inputs.values() if one.verdict is Verdict.CONFLICT]
        return FragmentJudge(
            head=head,
            changes=changes,
            input_ids=ids_of(column for column, one in inputs.items() if one.verdict is Verdict.VALID),
            recast=recast[0] if recast else None,
            target_ids=ids_of([column for column in change.targets if column.id >= 0] or now),
            target_ids_now=ids_of(now),
            blanks=frozenset(blanks),
        )

    def fragment(self, part: FragmentColumns, *, ours: str | None = None) -> Judgement:
        """Judges the column file of one fragment.

        `ours` is its name where it was committed already.
        """
        there = self.head.fragments.get(part.fragment_id)
        then = fragment_identity(part.fragment, self.input_ids, self.target_ids)
        now = None if there is None else fragment_identity(there, self.input_ids, self.target_ids_now)
        if now is not None and self.recast is not None:
            return Judgement(verdict=Verdict.CONFLICT, reason=self.recast)
        if now is not None and self.blanks:
            others = tuple(file for file in now.targets if file.partition(":")[0] not in self.blanks)
            now = dataclasses.replace(now, targets=others)
        return judge_fragment(then, now, self.changes, ours=ours)


def targets_in(head: Head, change: ColumnsToCommit) -> tuple[FieldIdentity, ...]:
    """Returns the target columns that a version has."""
    ids = {column.id for column in change.targets if column.id >= 0}
    return tuple(column for column in head.fields if column.id in ids or column.name in change.new_columns.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The judgements of all fragments of a job, sorted.

    Attributes:
        valid: Fragments to commit.
        gone: Fragments to drop and report.
        blocked: Why the others cannot be committed.
    """

    valid: tuple[int, ...]
    gone: tuple[int, ...]
    blocked: Mapping[int, str]


def decide(judgements: Mapping[int, Judgement]) -> Decision:
    """Sorts judgements by their verdict."""
    by_verdict: dict[Verdict, list[int]] = {verdict: [] for verdict in Verdict}
    for fragment, judgement in judgements.items():
        by_verdict[judgement.verdict].append(fragment)
    blocked = by_verdict[Verdict.CONFLICT] + by_verdict[Verdict.IMPOSSIBLE]
    return Decision(
        valid=tuple(sorted(by_verdict[Verdict.VALID])),
        gone=tuple(sorted(by_verdict[Verdict.GONE])),
        blocked={fragment: judgements[fragment].reason for fragment in sorted(blocked)},
    )
