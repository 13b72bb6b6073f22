"""Row-level changes between two versions of a table: :class:`SourceChanges`.

Used by refreshes of views and by the change feed. The driver skips fragments that are equal in both
versions, and tasks compare the rest. Rows are followed as in a backfill (`rebase/row_origins.py`):
a compaction moves rows, an update moves and changes rows, and rows rewritten in place are compared.
Memory: 24 bytes per row of one fragment.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lance_spark.commit.conflicts.history import Change, Event, events_between
from lance_spark.commit.conflicts.identity import FieldIdentity, fragment_identity, ids_of
from lance_spark.commit.conflicts.row_lineage import UNKNOWN_LINEAGE, Lineage, LineageFacts
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.rebase.fragment_comparison import (
    FragmentComparison,
    handles_of,
    is_history_shorter,
    lineage_by_fragments,
)
from lance_spark.rebase.row_origins import FragmentOrigins, Origin, Origins
from lance_spark.rows.merge import Offsets, no_rows
from lance_spark.rows.row_addresses import Addresses, SnapshotRows, look_up, row_ids
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)

_LOOK_UP_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFragments:
    """Fragments that differ between two versions.

    Attributes:
        now: Ids and live rows of the differing fragments of the new version.
        then: Ids and live rows of the differing fragments of the old version.
        untouched: Number of equal fragments.
        lineage: The moves of rows from the old to the new version; None without an old version, or
            if they are many.
    """

    now: tuple[tuple[int, int], ...]
    then: tuple[tuple[int, int], ...]
    untouched: int
    lineage: LineageFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """Rows of a fragment by their change since the old version.

    Attributes:
        new: Rows absent from the old version.
        changed: Rows with other values in the compared columns, or perhaps other values.
        by_group: Subset of `changed` with other values in the columns of each group.
        unknown: Number of changed rows of unknown origin.
    """

    new: RowSet
    changed: RowSet
    by_group: tuple[RowSet, ...]
    unknown: int = 0


def affected(
    source: DatasetRef, base: DatasetRef | None, used: Sequence[FieldIdentity]
) -> ChangedFragments:
    """Compares the fragments of two versions by their manifests. Runs on the driver; reads no rows.

    Two fragments differ if their rows differ, or the files of the columns `used` differ. Reads the
    history of the table only where the fragments do not tell which rows have moved, and where the
    history is shorter than the list of fragments.
    """
    head = source.open()
    if base is None:
        return ChangedFragments(
            now=tuple(_rows(head, frozenset(head.fragment_ids()))), then=(), untouched=0
        )
    before = base.open()
    common_ids = frozenset(before.fragment_ids()) & frozenset(head.fragment_ids())
    events = tuple(_events(before, head)) if is_history_shorter(before, head) else None
    touched = None if events is None else _touched(events)
    compared = FragmentComparison.of(
        before, head, ids_of(used), common_ids if touched is None else common_ids & touched
    )
    if events is None and not compared.is_decided:
        events = tuple(_events(before, head))
    if head.version < before.version:
        lineage = UNKNOWN_LINEAGE  # rows are compared
    elif events is None:
        lineage = compared.lineage()
    else:
        lineage = LineageFacts.of(map(Change.of, events), before.version, head.version)
    return ChangedFragments(
        now=tuple(_rows(head, compared.new_ids | compared.differing_ids)),
        then=tuple(_rows(before, compared.gone_ids | compared.differing_ids)),
        untouched=len(common_ids) - len(compared.differing_ids),
        lineage=lineage.for_tasks,
    )


def _events(before: lance.LanceDataset, head: lance.LanceDataset) -> Iterator[Event]:
    low, high = sorted((before, head), key=lambda dataset: dataset.version)
    return events_between(high, low.version, high.version)


def _touched(events: Sequence[Event]) -> set[int] | None:
    """Returns the fragments changed or removed by transactions, or None if they are unknown."""
    fragment_ids = set[int]()
    for event in events:
        touched = _touched_by(event.operation)
        if touched is None:
            return None
        fragment_ids.update(touched)
    return fragment_ids


def _touched_by(operation: Any) -> Collection[int] | None:  # noqa: ANN401 - pylance's classes have no common fields
    from lance import LanceOperation

    match operation:
        case LanceOperation.Append() | LanceOperation.CreateIndex() | LanceOperation.UpdateConfig():
            return ()
        case LanceOperation.Delete():
            return [*operation.deleted_fragment_ids, *_ids(operation.updated_fragments)]
        case LanceOperation.Update():
            return [*operation.removed_fragment_ids, *_ids(operation.updated_fragments)]
        case LanceOperation.Rewrite():
            return _ids(
                itertools.chain.from_iterable(group.old_fragments for group in operation.groups)
            )
        case LanceOperation.DataReplacement():
            return [replacement.fragment_id for replacement in operation.replacements]
        case _:
            return None


def _ids(fragments: Iterable[FragmentMetadata]) -> list[int]:
    return [fragment.id for fragment in fragments]


def _rows(dataset: lance.LanceDataset, numbers: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yields fragments with their live rows, skipping empty fragments."""
    for handle in handles_of(dataset, numbers):
        if rows := handle.metadata.num_rows:
            yield handle.fragment_id, rows


class SourceChanges:
    """Compares the rows of two versions of a table. Belongs to one thread.

    `lineage` comes from :func:`affected`; None compares manifests, or reads the history.
    `groups` are groups of columns whose changes are reported separately. With `by_name`, columns
    are matched by name, otherwise by field id. With `strict`, incomparable rows raise an error.
    Otherwise they count as changed.
    """

    def __init__(
        self,
        source: DatasetRef,
        base: DatasetRef,
        used: Sequence[FieldIdentity],
        groups: Sequence[Sequence[FieldIdentity]] = (),
        *,
        lineage: LineageFacts | None,
        by_name: bool = False,
        strict: bool = False,
    ) -> None:
        self._head, self._base = source.open(), base.open()
        self._rows, self._base_rows = SnapshotRows(self._head), SnapshotRows(self._base)
        if lineage is None:
            is_earlier = self._head.version < self._base.version
            lineage = (
                UNKNOWN_LINEAGE if is_earlier else lineage_by_fragments(self._base, self._head)
            )
        after = min(self._base.version, self._head.version)
        self._lineage = Lineage(self._head, after, self._head.version, facts=lineage)
        self._used = used
        self._by_name = by_name
        self._strict = strict
        self._origins = self._origins_by(used)
        self._groups = [self._origins_by(group) for group in groups]

    def row_changes(self, fragment_id: int) -> RowChanges:
        """Returns the changes of the live rows of a fragment of the new version."""
        fragment = self._rows.existing_fragment(fragment_id).metadata
        origins_of_rows = self.origins(fragment_id)
        unknown = RowSet.of(origins_of_rows.unknown)
        old_rows = origins_of_rows.known
        changed = unknown | self._changed(
            self._origins, fragment, origins_of_rows, old_rows - unknown
        )
        by_group = [
            unknown
            | self._changed(origins, fragment, self._find(origins, fragment), changed - unknown)
            if changed
            else changed
            for origins in self._groups
        ]
        live = RowSet.of(live_offsets(self._rows, fragment_id))
        return RowChanges(
            new=live - old_rows, changed=changed, by_group=tuple(by_group), unknown=len(unknown)
        )

    def origins(self, fragment_id: int) -> FragmentOrigins:
        """Returns the places of a fragment's rows in the old version. Reads no values.

        Raises:
            TableUnreadableError: With `strict`, the place of a row is unknown.
        """
        origins = self._find(self._origins, self._rows.existing_fragment(fragment_id).metadata)
        if self._strict and len(origins.unknown):
            text = f"rows of fragment {fragment_id} cannot be found in version {self._base.version}"
            raise TableUnreadableError(
                self._head.uri, text, hint="check the files of both versions"
            )
        return origins

    def changed(self, fragment_id: int, origin: Origin) -> RowSet:
        """Returns the rows of an origin with other values in the compared columns.

        Raises:
            TableUnreadableError: A file is missing or damaged.
        """
        fragment = self._rows.existing_fragment(fragment_id).metadata
        return self._origins.changed(fragment, origin, RowSet.of(origin.mapping.new))

    def inserted(self, fragment_id: int) -> RowSet:
        """Returns the live rows of a fragment absent from the old version. Reads no values."""
        return RowSet.of(live_offsets(self._rows, fragment_id)) - self.origins(fragment_id).known

    def _changed(
        self,
        origins: Origins,
        fragment: FragmentMetadata,
        rows_by_origin: FragmentOrigins,
        rows: RowSet,
    ) -> RowSet:
        changed = RowSet.empty()
        for origin in rows_by_origin.origins:
            some = rows & RowSet.of(origin.mapping.new)
            try:
                changed |= origins.changed(fragment, origin, some) if some else some
            except TableUnreadableError as error:
                if self._strict:
                    raise
                text = "The rows of fragment %s cannot be compared and count as changed: %s"
                _LOG.warning(text, fragment.id, error)
                changed |= some
        return changed

    def _find(self, origins: Origins, fragment: FragmentMetadata) -> FragmentOrigins:
        """Returns the origins of rows, including rows restored since the old version.

        A restored row has its old physical place, or a compaction moved the row. The old version
        had deleted it.
        """
        origins_of_rows = origins.of(fragment)
        unrevived, back = [], RowSet.empty()
        for origin in origins_of_rows.origins:
            deleted = self._base_rows.deleted(origin.fragment.id)
            revived = RowSet.empty()
            if deleted is not None:
                revived = RowSet.of(origin.mapping.new[deleted[origin.mapping.old]])
            if revived:
                back |= revived
            mapping = (
                origin.mapping.restrict_to(RowSet.of(origin.mapping.new) - revived)
                if revived
                else origin.mapping
            )
            unrevived.append(Origin(fragment=origin.fragment, mapping=mapping, same=origin.same))
        if not back:
            return origins_of_rows
        revived_origins = origins.by_row_id(fragment.id, back.to_numpy())
        return FragmentOrigins(
            origins=(*unrevived, *revived_origins.origins),
            unknown=np.concatenate([origins_of_rows.unknown, revived_origins.unknown]),
        )

    def deleted_ids(self, fragment_id: int) -> Iterator[np.ndarray]:
        """Yields the ids of the rows of an old fragment without a row in the new version."""
        for _, ids in self._deleted(fragment_id):
            yield ids

    def deleted(self, fragment_id: int) -> RowSet:
        """Returns the rows of an old fragment without a row in the new version."""
        return RowSet.of(
            np.concatenate([no_rows(), *(offsets for offsets, _ in self._deleted(fragment_id))])
        )

    def _deleted(self, fragment_id: int) -> Iterator[tuple[Offsets, Addresses]]:
        """Yields offsets and ids of the old rows without a row in the new version."""
        fragment = self._base_rows.existing_fragment(fragment_id)
        offsets = live_offsets(self._base_rows, fragment_id)
        current = self._rows.fragment(fragment_id)
        ids = ids_of(self._used)
        if current is not None:
            old_identity, new_identity = (
                fragment_identity(f.metadata, ids) for f in (fragment, current)
            )
            if old_identity.is_same(new_identity, replaced=self._lineage.replaced):
                offsets = np.setdiff1d(
                    offsets, live_offsets(self._rows, fragment_id), assume_unique=True
                )
        if not len(offsets):
            return
        ids_of_rows = row_ids(fragment, offsets)
        for first in range(0, len(ids_of_rows), _LOOK_UP_ROWS):
            part = ids_of_rows[first : first + _LOOK_UP_ROWS]
            _, there_now = look_up(self._head, part)
            if not there_now.all():
                yield offsets[first : first + _LOOK_UP_ROWS][~there_now], part[~there_now]

    def _origins_by(self, columns: Sequence[FieldIdentity]) -> Origins:
        return Origins(self._base, self._rows, self._lineage, columns, by_name=self._by_name)


def live_offsets(rows: SnapshotRows, fragment_id: int) -> Offsets:
    """Returns the live rows of a fragment, ascending."""
    offsets: Offsets = np.arange(
        rows.existing_fragment(fragment_id).metadata.physical_rows, dtype=np.int64
    )
    deleted = rows.deleted(fragment_id)
    return offsets if deleted is None else offsets[~deleted]
