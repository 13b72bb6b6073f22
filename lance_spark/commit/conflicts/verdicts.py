"""Whether results that were computed on a snapshot still fit the table as it is now.

Pure functions over manifests, no storage. The judgement goes by identity, not by the kind of the
other operation: what an append, a delete, a new index or another column's backfill did leaves the
files of the inputs and of the target alone, so nothing has to be known about them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.changes import ColumnsToCommit, FragmentColumns
from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.identity import FieldIdentity, FragmentIdentity, fragment_identity, ids_of

if TYPE_CHECKING:
    from lance_spark.commit.conflicts.table_state import Head


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


def judge_column(
    then: FieldIdentity, head: Collection[FieldIdentity], changes: Iterable[Change], *, by_name: bool = False
) -> Judgement:
    """Tells whether a column is still the same one, so that its field id may be written to.

    Lance gives field ids anew after a drop and after a restore, so an equal id and type prove it
    only together with the token that a backfill put into the field's metadata; without one, every
    event since the snapshot must be known to have left the column in place. A column that was
    renamed is the same column.

    `then` is the column in the snapshot, `head` the columns now, `changes` every event between,
    oldest first. `by_name` accepts an unknown history where the column has the same id, name and
    type: the values fit any column of that name.
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
        if change.operation is None and by_name and now.name == then.name:
            continue
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
    """
    if any(column.id == then.id for column in head):
        return VALID
    lost = drop_of(then, changes)
    when = "" if lost is None else f" ({lost.text})"
    if any(column.name == then.name for column in head):
        return _conflict(f"input column {then.name!r} was cast or made anew{when}")
    if lost is not None and lost.operation == "Merge":
        return _impossible(f"input column {then.name!r}: it was cast under another name", [lost])
    return Judgement(verdict=Verdict.GONE, reason=f"input column {then.name!r} was dropped{when}")


def drop_of(column: FieldIdentity, changes: Iterable[Change]) -> Change | None:
    """Returns what dropped or cast a column, as far as known; another may have its id by now."""
    return next((c for c in changes if c.schema is not None and all(field.id != column.id for field in c.schema)), None)


def _lost_in(then: FieldIdentity, change: Change) -> bool:
    return change.schema is not None and not any(
        (field.id, field.type) == (then.id, then.type) for field in change.schema
    )


def _lost_by_restore(then: FieldIdentity, change: Change) -> bool:
    """Tells whether a restore may have brought a column of the same id that was dropped before."""
    if change.operation != "Restore":
        return False
    undone = change.undone
    return undone is None or any(
        one.operation in (None, "Overwrite", "Restore") or _lost_in(then, one) for one in undone
    )


def _suspects(then: FieldIdentity, changes: list[Change]) -> list[Change]:
    lost = [c for c in changes if c.operation in ("Overwrite", "Restore", None) or _lost_in(then, c)]
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
    """Tells whether a column that the snapshot did not have can be filled.

    It can if it is not there yet, or is this job's (`mine` is the token that the job has added it
    with), or was added by another backfill that never filled it.
    """
    now = next((field for field in head if field.name == column.name), None)
    if now is None:
        gone = f"column {column.name!r}: it was dropped or renamed after this job had added it"
        return VALID if mine is None else _impossible(gone, [])
    if now.token is not None and now.type == column.type and (now.token == mine or not is_filled(now)):
        return VALID
    return _conflict(f"column {column.name!r} was added by a concurrent writer after the snapshot")


def judge_fragment(then: FragmentIdentity, now: FragmentIdentity | None, changes: Sequence[Change]) -> Judgement:
    """Tells what becomes of one fragment's result.

    `then` is the fragment in the snapshot, `now` the same over the same fields, None if it is not
    there; `changes` is every event between, oldest first.
    """
    if now is None:
        by = [c for c in changes if then.fragment_id in c.compacted]
        if by:
            return _conflict(f"its rows moved to new fragments: {by[0].text}")
        unclear = [c for c in changes if c.replaces]
        if unclear:
            return _conflict(f"it is not in the table any more: {unclear[0].text}")
        return Judgement(verdict=Verdict.GONE, reason="all of its rows were deleted or moved by an update")
    replaced = any(change.replaces for change in changes)
    if not then.is_same(now, replaced=replaced) or now.deleted_rows < then.deleted_rows:
        return _conflict(f"it is another fragment of the same id{_rewrites(changes)}")
    if now.inputs != then.inputs:
        return _conflict(f"input columns were rewritten in place{_rewrites(changes)}")
    if now.targets != then.targets:
        return _conflict(f"the column itself was rewritten in place{_rewrites(changes)}")
    return VALID


def _rewrites(changes: Sequence[Change]) -> str:
    names = ("Update", "DataReplacement", "DataOverlay", "Overwrite", "Restore", "Merge", None)
    suspects = [c.text for c in changes if c.operation in names]
    return f" (since the snapshot: {', '.join(suspects[:5])}{', ...' if len(suspects) > 5 else ''})" if suspects else ""


FragmentJudge = Callable[[FragmentColumns], Judgement]
"""Judges the column file of a fragment."""


def fragment_judge(
    change: ColumnsToCommit, head: Head, changes: Sequence[Change], blanks: Collection[str]
) -> FragmentJudge:
    """Returns what judges all fragments of a version; `blanks` are files of NULLs of our own.

    Made once per version: there may be 100,000 of them, and thousands of changes.
    """
    inputs = {column: judge_input(column, head.fields, changes) for column in change.inputs}
    input_ids = ids_of(column for column, one in inputs.items() if one.verdict is Verdict.VALID)
    # Where an input was cast, all values are out of date.
    recast = next((one for one in inputs.values() if one.verdict is Verdict.CONFLICT), None)
    now_targets = targets_in(head, change)
    # As they were when the values were computed; as they are now where the commit adds them.
    then_ids = ids_of([column for column in change.targets if column.id >= 0] or now_targets)
    now_ids = ids_of(now_targets)

    def judge(part: FragmentColumns) -> Judgement:
        there = head.fragments.get(part.fragment_id)
        then = fragment_identity(part.fragment, input_ids, then_ids)
        if there is None:
            return judge_fragment(then, None, changes)
        if recast is not None:
            return recast
        now = fragment_identity(there, input_ids, now_ids)
        if blanks:
            others = tuple(file for file in now.targets if file.partition(":")[0] not in blanks)
            now = dataclasses.replace(now, targets=others)
        return judge_fragment(then, now, changes)

    return judge


def targets_in(head: Head, change: ColumnsToCommit) -> tuple[FieldIdentity, ...]:
    """Returns the target columns that a version has."""
    ids = {column.id for column in change.targets if column.id >= 0}
    return tuple(column for column in head.fields if column.id in ids or column.name in change.new_columns.names)
