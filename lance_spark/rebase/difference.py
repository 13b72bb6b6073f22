"""What changed between two versions of a table, row by row: :class:`Difference`.

Serves refreshes of views and `Table.diff`. The driver leaves out the fragments that are the same in
both; tasks look at the others. Rows are followed as a backfill's are (`rebase/row_origins.py`): a
compaction moves them, an update moves and changes them, and what was rewritten in place is
compared. Memory: 24 bytes a row of one fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lance_spark.commit.conflicts.history import Change, Event, events_between
from lance_spark.commit.conflicts.identity import FieldIdentity, fragment_identity, ids_of
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.rebase.row_origins import Found, Origin, Origins
from lance_spark.rows.merge import Offsets, no_rows
from lance_spark.rows.row_addresses import Addresses, SnapshotRows, look_up, row_ids
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

_LOOK_UP_ROWS = 1 << 18

_FEW = 1000
"""Fragments that are opened one by one: 0.1 ms each, while a list of 100,000 takes 0.3 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Fragments that are not the same in both versions.

    Attributes:
        now: Ids and live rows of those of the new version.
        then: Ids and live rows of those of the old one.
        untouched: Number of fragments that are the same.
    """

    now: tuple[tuple[int, int], ...]
    then: tuple[tuple[int, int], ...]
    untouched: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Rows of a fragment by what became of them since the old version.

    Attributes:
        new: Rows that it did not have.
        changed: Rows that had other values in used columns, or may have had.
        by_group: Those of them that had other values in the columns of each group.
        unknown: Number of changed rows of which nothing tells where they were, if anywhere.
    """

    new: RowSet
    changed: RowSet
    by_group: tuple[RowSet, ...]
    unknown: int = 0


def affected(source: DatasetRef, base: DatasetRef | None, used: Sequence[FieldIdentity]) -> Affected:
    """Compares the fragments of two versions, by manifests. Runs on the driver; reads no rows.

    `used` are columns: two fragments differ if their rows or the files of these columns do.
    """
    head = source.open()
    if base is None:
        return Affected(now=tuple(_rows(head, frozenset(head.fragment_ids()))), then=(), untouched=0)
    before, ids = base.open(), ids_of(used)
    low, high = sorted((before, head), key=lambda dataset: dataset.version)
    events = tuple(events_between(high, low.version, high.version))
    replaced = high is before or any(Change.of(event).replaces for event in events)
    known, there = frozenset(before.fragment_ids()), frozenset(head.fragment_ids())
    touched = _touched(events)
    looked = known & there if touched is None else known & there & touched
    older = {handle.fragment_id: handle for handle in _handles(before, looked)}
    other = {
        handle.fragment_id
        for handle in _handles(head, looked)
        if not _is_same(older[handle.fragment_id].metadata, handle.metadata, ids, replaced=replaced)
    }
    return Affected(
        now=tuple(_rows(head, (there - known) | other)),
        then=tuple(_rows(before, (known - there) | other)),
        untouched=len(known & there) - len(other),
    )


def _touched(events: Sequence[Event]) -> set[int] | None:
    """Returns the fragments that transactions changed or took away; None if they do not tell."""
    from lance import LanceOperation

    found = set[int]()
    for event in events:
        operation: Any = event.operation
        match operation:
            case LanceOperation.Append() | LanceOperation.CreateIndex() | LanceOperation.UpdateConfig():
                pass
            case LanceOperation.Delete():
                found.update(operation.deleted_fragment_ids, (one.id for one in operation.updated_fragments))
            case LanceOperation.Update():
                found.update(operation.removed_fragment_ids, (one.id for one in operation.updated_fragments))
            case LanceOperation.Rewrite():
                found.update(one.id for group in operation.groups for one in group.old_fragments)
            case LanceOperation.DataReplacement():
                found.update(one.fragment_id for one in operation.replacements)
            case _:
                return None
    return found


def _handles(dataset: lance.LanceDataset, numbers: Collection[int]) -> Iterator[lance.LanceFragment]:
    if len(numbers) > _FEW:
        yield from (handle for handle in dataset.get_fragments() if handle.fragment_id in numbers)
        return
    for number in sorted(numbers):
        handle = dataset.get_fragment(number)
        if handle is not None:
            yield handle


def _rows(dataset: lance.LanceDataset, numbers: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yields fragments with their live rows, but for those without any."""
    for handle in _handles(dataset, numbers):
        if rows := handle.metadata.num_rows:
            yield handle.fragment_id, rows


def _is_same(before: FragmentMetadata, now: FragmentMetadata, ids: Sequence[int], *, replaced: bool) -> bool:
    """Tells whether a fragment has the same live rows with the same values in some fields."""
    if before == now:
        return True
    then, there = fragment_identity(before, ids), fragment_identity(now, ids)
    return (
        then.is_same(there, replaced=replaced) and then.inputs == there.inputs and _deletions(before) == _deletions(now)
    )


class Difference:
    """Compares rows of two versions of a table. Belongs to one thread.

    `groups` are columns of which it is told apart which rows changed in them. With `by_name`
    columns are the same if they have the same name; otherwise, if they have the same field id.
    `strict` raises an error for rows that cannot be compared; otherwise they count as changed.
    """

    def __init__(
        self,
        source: DatasetRef,
        base: DatasetRef,
        used: Sequence[FieldIdentity],
        groups: Sequence[Sequence[FieldIdentity]] = (),
        *,
        by_name: bool = False,
        strict: bool = False,
    ) -> None:
        self._head, self._base = source.open(), base.open()
        self._rows, self._base_rows = SnapshotRows(self._head), SnapshotRows(self._base)
        self._lineage = _lineage(source, base)
        self._used = used
        self._by_name = by_name
        self._strict = strict
        self._origins = self._origins_by(used)
        self._groups = [self._origins_by(group) for group in groups]

    def now(self, fragment_id: int) -> NewRows:
        """Returns what became of the live rows of a fragment of the new version."""
        fragment = self._rows.existing_fragment(fragment_id).metadata
        found = self._find(self._origins, fragment)
        unknown = RowSet.of(found.unknown)
        known = found.known
        if self._strict and unknown:
            text = f"rows of fragment {fragment_id} cannot be found in version {self._base.version}"
            raise TableUnreadableError(self._head.uri, text, hint="check the files of both versions")
        changed = unknown | self._changed(self._origins, fragment, found, known - unknown)
        by_group = [
            unknown | self._changed(origins, fragment, self._find(origins, fragment), changed - unknown)
            if changed
            else changed
            for origins in self._groups
        ]
        live = RowSet.of(live_offsets(self._rows, fragment_id))
        return NewRows(new=live - known, changed=changed, by_group=tuple(by_group), unknown=len(unknown))

    def inserted(self, fragment_id: int) -> RowSet:
        """Returns the live rows of a fragment that the old version lacks; reads no values."""
        found = self._find(self._origins, self._rows.existing_fragment(fragment_id).metadata)
        return RowSet.of(live_offsets(self._rows, fragment_id)) - found.known

    def _changed(self, origins: Origins, fragment: FragmentMetadata, found: Found, rows: RowSet) -> RowSet:
        changed = RowSet.empty()
        for origin in found.origins:
            some = rows & RowSet.of(origin.moved.new)
            try:
                changed |= origins.changed(fragment, origin, some) if some else some
            except TableUnreadableError as error:
                if self._strict:
                    raise
                text = "rows of fragment %s cannot be compared, and count as changed: %s"
                _LOG.warning(text, fragment.id, error)
                changed |= some
        return changed

    def _find(self, origins: Origins, fragment: FragmentMetadata) -> Found:
        """Returns where rows were, also those that a restore, or going back, has brought back.

        These are where they were physically, or a compaction took them from there since; but the
        old version had deleted them there.
        """
        found = origins.of(fragment)
        kept, back = [], RowSet.empty()
        for origin in found.origins:
            deleted = self._base_rows.deleted(origin.fragment.id)
            revived = RowSet.empty()
            if deleted is not None:
                revived = RowSet.of(origin.moved.new[deleted[origin.moved.old]])
            if revived:
                back |= revived
            moved = origin.moved.into(RowSet.of(origin.moved.new) - revived) if revived else origin.moved
            kept.append(Origin(fragment=origin.fragment, moved=moved, same=origin.same))
        if not back:
            return found
        others = origins.by_row_id(fragment.id, back.to_numpy())
        return Found(origins=(*kept, *others.origins), unknown=np.concatenate([found.unknown, others.unknown]))

    def gone(self, fragment_id: int) -> Iterator[np.ndarray]:
        """Yields the row ids of a fragment of the old version that the new one does not have."""
        for _, ids in self._gone(fragment_id):
            yield ids

    def deleted(self, fragment_id: int) -> RowSet:
        """Returns the rows of a fragment of the old version that the new one does not have."""
        return RowSet.of(np.concatenate([no_rows(), *(offsets for offsets, _ in self._gone(fragment_id))]))

    def _gone(self, fragment_id: int) -> Iterator[tuple[Offsets, Addresses]]:
        """Yields the offsets and the ids of these rows."""
        fragment = self._base_rows.existing_fragment(fragment_id)
        offsets = live_offsets(self._base_rows, fragment_id)
        now = self._rows.fragment(fragment_id)
        ids = ids_of(self._used)
        if now is not None:
            then, there = (fragment_identity(f.metadata, ids) for f in (fragment, now))
            if then.is_same(there, replaced=self._lineage.replaced):
                offsets = np.setdiff1d(offsets, live_offsets(self._rows, fragment_id), assume_unique=True)
        if not len(offsets):
            return
        wanted = row_ids(fragment, offsets)
        for first in range(0, len(wanted), _LOOK_UP_ROWS):
            part = wanted[first : first + _LOOK_UP_ROWS]
            _, there_now = look_up(self._head, part)
            if not there_now.all():
                yield offsets[first : first + _LOOK_UP_ROWS][~there_now], part[~there_now]

    def _origins_by(self, columns: Sequence[FieldIdentity]) -> Origins:
        return Origins(self._base, self._rows, self._lineage, columns, by_name=self._by_name)


def live_offsets(rows: SnapshotRows, fragment_id: int) -> Offsets:
    """Returns the rows of a fragment that are not deleted, ascending."""
    offsets: Offsets = np.arange(rows.existing_fragment(fragment_id).metadata.physical_rows, dtype=np.int64)
    deleted = rows.deleted(fragment_id)
    return offsets if deleted is None else offsets[~deleted]


def _lineage(source: DatasetRef, base: DatasetRef) -> Lineage:
    """Returns where rows came from; to an earlier version it tells nothing: rows are compared."""
    head, after = source.open(), base.version or 0
    if head.version >= after:
        return Lineage(head, after, head.version)
    lineage = Lineage(head, head.version, head.version, ())
    lineage.complete, lineage.replaced = False, True
    return lineage


def _deletions(fragment: FragmentMetadata) -> object:
    return None if fragment.deletion_file is None else fragment.deletion_file.asdict()
