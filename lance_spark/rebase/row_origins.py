"""Where rows were in an older version, and which of them have other inputs now: :class:`Origins`.

Three ways tell where. A fragment that is still there has its rows where they were. The lineage of
compactions tells where those of a compacted fragment were. And where row ids are stable they tell
the rest: rows that an update moved, and rows whose history was cleaned up.

Runs on executors, and where a DataFrame write commits. Memory: 24 bytes a row of one fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.commit.conflicts.identity import FieldIdentity, files_of, fragment_identity
from lance_spark.rebase.changed_inputs import changed_rows
from lance_spark.rows.merge import Moved, Offsets, no_rows
from lance_spark.rows.row_addresses import Addresses, SnapshotRows, fragments_of, look_up, offsets_of, row_ids, runs_of
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.row_lineage import Lineage

_LOG = logging.getLogger(__name__)

_LOOK_UP_ROWS = 1 << 18
"""Row ids that are looked up at once: Lance takes them as Python integers."""


@dataclass(slots=True, kw_only=True, eq=False)
class Origin:
    """Rows that were in one fragment of the older version.

    Attributes:
        fragment: That fragment, as the older version has it; where that version cannot be opened
            any more, as a compaction found it.
        moved: Which of its rows are which rows now.
        same: Whether the inputs of these rows are certainly the same; else they have to be
            compared.
        compared: Rows, as they are numbered now, whose inputs have been compared.
        differing: Those of them that have other inputs.
    """

    fragment: FragmentMetadata
    moved: Moved
    same: bool
    compared: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    differing: RowSet = RowSet.empty()  # noqa: RUF009


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """The origins of a fragment's rows, no row in two of them, and the rows of unknown origin."""

    origins: tuple[Origin, ...] = ()
    unknown: Offsets = field(default_factory=no_rows)

    @property
    def known(self) -> RowSet:
        """All rows that the older version had, or may have had."""
        return RowSet.of(np.unique(np.concatenate([self.unknown, *(origin.moved.new for origin in self.origins)])))


class Origins:
    """Follows rows back to an older version. Remembers one fragment; belongs to one thread."""

    def __init__(
        self,
        base: lance.LanceDataset | None,
        head: SnapshotRows,
        lineage: Lineage,
        inputs: Sequence[FieldIdentity],
        *,
        unchanged: Collection[int] = (),
        by_name: bool = False,
    ) -> None:
        """Takes both versions, what happened between them, and what rows are compared by.

        `base` is None where it was cleaned up; `unchanged` are the fragments of which it is known
        without it that they were there, with the same inputs. `by_name` is that of
        :func:`~lance_spark.rebase.changed_inputs.changed_rows`.
        """
        self._by_name = by_name
        self._unchanged = frozenset(unchanged)
        self._base = None if base is None else SnapshotRows(base)
        self._head = head
        self._lineage = lineage
        self._columns = tuple(inputs)
        self._input_ids = [number for column in inputs for number in column.ids]
        self._last: tuple[int, Found] = (-1, Found())

    def of(self, fragment: FragmentMetadata) -> Found:
        """Returns where the live rows of a fragment were."""
        if self._last[0] != fragment.id:
            self._last = (fragment.id, self._find(fragment))
        return self._last[1]

    def changed(self, fragment: FragmentMetadata, origin: Origin, rows: RowSet) -> RowSet:
        """Returns those of some rows of an origin whose inputs differ now; compares each row once.

        Without the older version all count as differing, but where they are certainly the same.

        Raises:
            TableUnreadableError: A file of the older version is not there any more, or is damaged.
        """
        if origin.same:
            return RowSet.empty()
        if self._base is None:
            return rows
        moved = origin.moved.into(rows - origin.compared)
        if len(moved.new):
            sides = self._base, origin.fragment.id, self._head, fragment.id
            flags = changed_rows(*sides, moved, self._columns, by_name=self._by_name)
            origin.compared |= rows
            origin.differing |= RowSet.of(moved.new[flags])
        return rows & origin.differing

    def _find(self, fragment: FragmentMetadata) -> Found:
        deleted = self._head.deleted(fragment.id)
        live = np.arange(fragment.physical_rows, dtype=np.int64)
        live = live if deleted is None else live[~deleted]
        before = self._before(fragment.id)
        if before is not None:
            then, now = (fragment_identity(one, self._input_ids) for one in (before, fragment))
            if then.is_same(now, replaced=self._lineage.replaced):
                return _in_place(before, live, same=then.inputs == now.inputs)
        elif self._lineage.is_added(fragment):
            return Found()
        pieces = self._lineage.origins(fragment.id)
        if self._base is None and not pieces and fragment.id in self._unchanged:
            return _in_place(fragment, live, same=True)
        found: list[Origin] = []
        left = live
        for piece in pieces or ():
            # Rows that were deleted since the compaction are no rows any more.
            new = np.arange(piece.start, piece.stop, dtype=np.int64)
            alive = np.isin(new, live, assume_unique=True)
            same = piece.is_unchanged(fragment, self._input_ids)
            older = self._before(piece.fragment.id)
            if older is not None:
                same &= files_of(older, self._input_ids) == files_of(piece.fragment, self._input_ids)
            elif self._base is not None or self._lineage.moved_from(piece.fragment):
                continue  # it was made since: by an update, or by an append
            moved = Moved(old=piece.offsets[alive], new=new[alive])
            found.append(Origin(fragment=older or piece.fragment, moved=moved, same=same))
            left = left[~np.isin(left, new, assume_unique=True)]
        if not len(left) or (self._base is not None and not self._may_have_moved(fragment, pieces is None)):
            return Found(origins=tuple(found))
        others = self.by_row_id(fragment.id, left)
        return Found(origins=(*found, *others.origins), unknown=others.unknown)

    def by_row_id(self, fragment_id: int, rows: Offsets) -> Found:
        """Returns where rows of a fragment were by their row ids alone, which have to be stable."""
        looked_up = self._addresses(fragment_id, rows)
        return Found(unknown=rows) if looked_up is None else Found(origins=tuple(self._at(*looked_up)))

    def _may_have_moved(self, fragment: FragmentMetadata, unknown: bool) -> bool:
        """Tells whether rows that no compaction accounts for may be rows of the older version."""
        if unknown or not self._lineage.complete:
            return True
        leaves = self._lineage.leaves(fragment.id) or ()
        return any(self._lineage.moved_from(one) for one in (fragment, *(leaf.fragment for leaf in leaves)))

    def _at(self, addresses: Addresses, rows: Offsets) -> Iterator[Origin]:
        order = np.argsort(addresses)
        addresses, rows = addresses[order], rows[order]
        for number, start, end in runs_of(fragments_of(addresses)):
            older = self._before(number)
            if older is not None:
                moved = Moved(old=offsets_of(addresses[start:end]), new=rows[start:end])
                yield Origin(fragment=older, moved=moved, same=False)

    def _before(self, fragment_id: int) -> FragmentMetadata | None:
        handle = None if self._base is None else self._base.dataset.get_fragment(fragment_id)
        return None if handle is None else handle.metadata

    def _addresses(self, fragment_id: int, rows: Offsets) -> tuple[Addresses, Offsets] | None:
        """Returns older addresses of the rows that have one, and these; None if ids do not tell."""
        base = None if self._base is None else self._base.dataset
        if base is None or not (base.has_stable_row_ids and self._head.dataset.has_stable_row_ids):
            return None
        ids = row_ids(self._head.existing_fragment(fragment_id), rows)
        starts = range(0, len(ids), _LOOK_UP_ROWS)
        try:
            parts = [look_up(base, ids[first : first + _LOOK_UP_ROWS]) for first in starts]
        except (OSError, ValueError) as error:
            # A cleanup may have taken deletion files that this needs.
            _LOG.warning("row ids cannot be looked up in version %s of %s: %s", base.version, base.uri, error)
            return None
        known = np.concatenate([mask for _, mask in parts])
        return np.concatenate([addresses for addresses, _ in parts])[known], rows[known]


def _in_place(fragment: FragmentMetadata, live: Offsets, *, same: bool) -> Found:
    return Found(origins=(Origin(fragment=fragment, moved=Moved(old=live, new=live), same=same),))
