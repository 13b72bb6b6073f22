"""What changed in a view's source between two of its versions, row by row: :class:`Difference`.

The driver leaves out the fragments that are the same in both; tasks look at the others. Rows are
followed as a backfill's are (`rebase/row_origins.py`): a compaction moves them, an update moves and
changes them, and what was rewritten in place is compared. Memory: 24 bytes a row of one fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.commit.conflicts.identity import FieldIdentity, fragment_identity, ids_of
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.rebase.row_origins import Found, Origin, Origins
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import SnapshotRows, look_up, row_ids
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

_LOOK_UP_ROWS = 1 << 18


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
    """Compares the fragments of two versions, by manifests. Runs on the driver; reads no rows."""
    head = source.open()
    if base is None:
        return Affected(now=tuple((f.id, f.num_rows) for f in _fragments(head) if f.num_rows), then=(), untouched=0)
    ids = ids_of(used)
    replaced = _lineage(source, base).replaced
    # Handles are kept, and not what they tell: of 100,000 fragments that is a lot of objects.
    older = {handle.fragment_id: handle for handle in base.open().get_fragments()}
    now, same = [], 0
    for fragment in _fragments(head):
        before = older[fragment.id].metadata if fragment.id in older else None
        if before is not None and (before == fragment or _is_same(before, fragment, ids, replaced=replaced)):
            del older[fragment.id]
            same += 1
        elif fragment.num_rows:
            now.append((fragment.id, fragment.num_rows))
    then = tuple((number, handle.metadata.num_rows) for number, handle in older.items())
    return Affected(now=tuple(now), then=tuple(one for one in then if one[1]), untouched=same)


def _is_same(before: FragmentMetadata, now: FragmentMetadata, ids: Sequence[int], *, replaced: bool) -> bool:
    """Tells whether a fragment has the same live rows with the same values in some fields."""
    then, there = fragment_identity(before, ids), fragment_identity(now, ids)
    return (
        then.is_same(there, replaced=replaced) and then.inputs == there.inputs and _deletions(before) == _deletions(now)
    )


class Difference:
    """Compares rows of two versions of a source. Belongs to one thread.

    `groups` are columns of which it is told apart which rows changed in them.
    """

    def __init__(
        self,
        source: DatasetRef,
        base: DatasetRef,
        used: Sequence[FieldIdentity],
        groups: Sequence[Sequence[FieldIdentity]],
    ) -> None:
        self._head, self._base = source.open(), base.open()
        self._rows, self._base_rows = SnapshotRows(self._head), SnapshotRows(self._base)
        self._lineage = _lineage(source, base)
        self._used = used
        self._origins = self._origins_by(used)
        self._groups = [self._origins_by(group) for group in groups]

    def now(self, fragment_id: int) -> NewRows:
        """Returns what became of the live rows of a fragment of the new version."""
        fragment = self._rows.existing_fragment(fragment_id).metadata
        found = self._find(self._origins, fragment)
        unknown = RowSet.of(found.unknown)
        known = unknown
        for origin in found.origins:
            known |= RowSet.of(origin.moved.new)
        changed = unknown | _changed(self._origins, fragment, found, known - unknown)
        by_group = [
            unknown | _changed(origins, fragment, self._find(origins, fragment), changed - unknown)
            if changed
            else changed
            for origins in self._groups
        ]
        live = RowSet.of(live_offsets(self._rows, fragment_id))
        return NewRows(new=live - known, changed=changed, by_group=tuple(by_group), unknown=len(unknown))

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
                yield part[~there_now]

    def _origins_by(self, columns: Sequence[FieldIdentity]) -> Origins:
        return Origins(self._base, self._rows, self._lineage, columns)


def live_offsets(rows: SnapshotRows, fragment_id: int) -> Offsets:
    """Returns the rows of a fragment that are not deleted, ascending."""
    offsets: Offsets = np.arange(rows.existing_fragment(fragment_id).metadata.physical_rows, dtype=np.int64)
    deleted = rows.deleted(fragment_id)
    return offsets if deleted is None else offsets[~deleted]


def _changed(origins: Origins, fragment: FragmentMetadata, found: Found, rows: RowSet) -> RowSet:
    changed = RowSet.empty()
    for origin in found.origins:
        some = rows & RowSet.of(origin.moved.new)
        try:
            changed |= origins.changed(fragment, origin, some) if some else some
        except TableUnreadableError as error:
            _LOG.warning("rows of fragment %s cannot be compared, and count as changed: %s", fragment.id, error)
            changed |= some
    return changed


def _lineage(source: DatasetRef, base: DatasetRef) -> Lineage:
    """Returns where rows came from; to an earlier version it tells nothing: rows are compared."""
    head, after = source.open(), base.version or 0
    if head.version >= after:
        return Lineage(head, after, head.version)
    lineage = Lineage(head, head.version, head.version, ())
    lineage.complete, lineage.replaced = False, True
    return lineage


def _fragments(dataset: lance.LanceDataset) -> Iterator[FragmentMetadata]:
    return (handle.metadata for handle in dataset.get_fragments())


def _deletions(fragment: FragmentMetadata) -> object:
    return None if fragment.deletion_file is None else fragment.deletion_file.asdict()
