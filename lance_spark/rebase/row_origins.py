"""Places of rows in an older version: :class:`Origins` and :func:`latest_addresses`.

Row origins have three sources. A fragment of both versions has its rows in the same places. The
lineage of compactions maps the rows of compacted fragments. Stable row ids identify the remaining
rows: rows moved by an update, and rows whose history was cleaned up.

Runs on executors, and in the process that commits a DataFrame write. Memory: 24 bytes per row of
one fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.commit.conflicts.identity import (
    FieldIdentity,
    files_of,
    fragment_identity,
    rebinds_names,
)
from lance_spark.commit.conflicts.row_lineage import Lineage
from lance_spark.rebase.changed_inputs import changed_rows
from lance_spark.rebase.snapshot import open_base
from lance_spark.rows.merge import Offsets, RowMapping, no_rows
from lance_spark.rows.row_addresses import (
    Addresses,
    SnapshotRows,
    fragments_of,
    look_up,
    offsets_of,
    row_ids,
    runs_of,
)
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

    from lance_spark.commit.conflicts.row_lineage import SourceSpan
    from lance_spark.dataset import DatasetRef

_LOG = logging.getLogger(__name__)

_LOOK_UP_ROWS = 1 << 18
"""Row ids per look-up: Lance takes row ids as Python integers."""


@dataclass(slots=True, kw_only=True, eq=False)
class Origin:
    """Rows of a single fragment of the older version.

    Attributes:
        fragment: The fragment in the older version. If the older version cannot be opened, the
            fragment before its compaction.
        mapping: Mapping from the rows of the fragment to current rows.
        same: Whether the inputs of the rows are certainly unchanged. Otherwise they are compared.
        compared: Current rows whose inputs were compared.
        differing: Subset of `compared` with changed inputs.
    """

    fragment: FragmentMetadata
    mapping: RowMapping
    same: bool
    compared: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    differing: RowSet = RowSet.empty()  # noqa: RUF009


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FragmentOrigins:
    """The disjoint origins of a fragment's rows, and the rows of unknown origin."""

    origins: tuple[Origin, ...] = ()
    unknown: Offsets = field(default_factory=no_rows)

    @property
    def known(self) -> RowSet:
        """All rows of the older version, including possible ones."""
        return RowSet.of(
            np.unique(
                np.concatenate([self.unknown, *(origin.mapping.new for origin in self.origins)])
            )
        )


class Origins:
    """Follows rows back to an older version. Caches one fragment. Belongs to one thread."""

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
        """Takes both versions, the lineage between them, and the columns to compare.

        `base` is None if the older version was cleaned up. `unchanged` are fragments of the older
        version with certainly unchanged inputs. For `by_name`, see
        :func:`~lance_spark.rebase.changed_inputs.changed_rows`.
        """
        self._by_name = by_name
        self._unchanged = frozenset(unchanged)
        self._base = None if base is None else SnapshotRows(base)
        self._head = head
        self._lineage = lineage
        self._columns = tuple(inputs)
        self._input_ids = [number for column in inputs for number in column.ids]
        # The values of a name with another field id are in other columns of perhaps the same files.
        names = [column.name for column in inputs]
        self._compares_all = (
            by_name and base is not None and rebinds_names(base, head.dataset, names)
        )
        self._last: tuple[int, FragmentOrigins] = (-1, FragmentOrigins())

    def of(self, fragment: FragmentMetadata) -> FragmentOrigins:
        """Returns the origins of the live rows of a fragment."""
        if self._last[0] != fragment.id:
            self._last = (fragment.id, self._find(fragment))
        return self._last[1]

    def changed(self, fragment: FragmentMetadata, origin: Origin, rows: RowSet) -> RowSet:
        """Returns the rows of an origin with changed inputs. Compares each row once.

        Without the older version, all rows count as changed unless they are certainly unchanged.

        Raises:
            TableUnreadableError: A file of the older version was deleted, or a file is damaged.
        """
        if origin.same and not self._compares_all:
            return RowSet.empty()
        if self._base is None:
            return rows
        mapping = origin.mapping.restrict_to(rows - origin.compared)
        if len(mapping.new):
            sides = self._base, origin.fragment.id, self._head, fragment.id
            flags = changed_rows(*sides, mapping, self._columns, by_name=self._by_name)
            origin.compared |= rows
            origin.differing |= RowSet.of(mapping.new[flags])
        return rows & origin.differing

    def _find(self, fragment: FragmentMetadata) -> FragmentOrigins:
        live = self._live(fragment)
        unmoved = self._unmoved(fragment, live)
        if unmoved is not None:
            return unmoved
        pieces = self._lineage.origins(fragment.id)
        if self._base is None and not pieces and fragment.id in self._unchanged:
            return _in_place(fragment, live, same=True)
        origins = list(self._compacted(fragment, live, pieces or ()))
        found_rows = np.concatenate([no_rows(), *(origin.mapping.new for origin in origins)])
        remaining = np.setdiff1d(live, found_rows, assume_unique=True)
        if not len(remaining) or (
            self._base is not None and not self._may_have_moved(fragment, pieces is None)
        ):
            return FragmentOrigins(origins=tuple(origins))
        by_id = self.by_row_id(fragment.id, remaining)
        return FragmentOrigins(origins=(*origins, *by_id.origins), unknown=by_id.unknown)

    def _live(self, fragment: FragmentMetadata) -> Offsets:
        deleted = self._head.deleted(fragment.id)
        rows: Offsets = np.arange(fragment.physical_rows, dtype=np.int64)
        return rows if deleted is None else rows[~deleted]

    def _unmoved(self, fragment: FragmentMetadata, live: Offsets) -> FragmentOrigins | None:
        """Returns the origins of a fragment of both versions or of an added fragment, else None."""
        before = self._before(fragment.id)
        if before is None:
            return FragmentOrigins() if self._lineage.is_added(fragment) else None
        old_identity, new_identity = (
            fragment_identity(metadata, self._input_ids) for metadata in (before, fragment)
        )
        if not old_identity.is_same(new_identity, replaced=self._lineage.replaced):
            return None
        return _in_place(before, live, same=old_identity.inputs == new_identity.inputs)

    def _compacted(
        self, fragment: FragmentMetadata, live: Offsets, pieces: Iterable[SourceSpan]
    ) -> Iterator[Origin]:
        """Yields the origins of compacted rows of a fragment, without rows deleted since."""
        for piece in pieces:
            same = piece.is_unchanged(fragment, self._input_ids)
            older = self._before(piece.fragment.id)
            if older is not None:
                same &= files_of(older, self._input_ids) == files_of(
                    piece.fragment, self._input_ids
                )
            elif self._base is not None or self._lineage.moved_from(piece.fragment):
                continue  # An update or an append created the fragment since.
            new = np.arange(piece.start, piece.stop, dtype=np.int64)
            alive = np.isin(new, live, assume_unique=True)
            mapping = RowMapping(old=piece.offsets[alive], new=new[alive])
            yield Origin(fragment=older or piece.fragment, mapping=mapping, same=same)

    def by_row_id(self, fragment_id: int, rows: Offsets) -> FragmentOrigins:
        """Returns the origins of rows by row ids alone. Requires stable row ids."""
        looked_up = self._addresses(fragment_id, rows)
        return (
            FragmentOrigins(unknown=rows)
            if looked_up is None
            else FragmentOrigins(origins=tuple(self._at(*looked_up)))
        )

    def _may_have_moved(self, fragment: FragmentMetadata, unknown: bool) -> bool:
        """Tells whether rows without a compaction may be rows of the older version."""
        if unknown or not self._lineage.complete:
            return True
        if self._base is not None and self._before(fragment.id) is not None:
            # After a restore, rewrites in place may have replaced all files of the fragment.
            return self._base.dataset.has_stable_row_ids
        leaves = self._lineage.leaves(fragment.id) or ()
        return any(
            self._lineage.moved_from(candidate)
            for candidate in (fragment, *(leaf.fragment for leaf in leaves))
        )

    def _at(self, addresses: Addresses, rows: Offsets) -> Iterator[Origin]:
        order = np.argsort(addresses)
        addresses, rows = addresses[order], rows[order]
        for number, start, end in runs_of(fragments_of(addresses)):
            older = self._before(number)
            if older is not None:
                mapping = RowMapping(old=offsets_of(addresses[start:end]), new=rows[start:end])
                yield Origin(fragment=older, mapping=mapping, same=False)

    def _before(self, fragment_id: int) -> FragmentMetadata | None:
        handle = None if self._base is None else self._base.dataset.get_fragment(fragment_id)
        return None if handle is None else handle.metadata

    def _addresses(self, fragment_id: int, rows: Offsets) -> tuple[Addresses, Offsets] | None:
        """Returns old addresses with their current rows, or None if row ids give no answer."""
        base = None if self._base is None else self._base.dataset
        if base is None or not (base.has_stable_row_ids and self._head.dataset.has_stable_row_ids):
            return None
        ids = row_ids(self._head.existing_fragment(fragment_id), rows)
        starts = range(0, len(ids), _LOOK_UP_ROWS)
        try:
            parts = [look_up(base, ids[first : first + _LOOK_UP_ROWS]) for first in starts]
        except (OSError, ValueError) as error:
            # A cleanup may have removed the deletion files for this look-up.
            _LOG.warning(
                "row ids cannot be looked up in version %s of %s: %s", base.version, base.uri, error
            )
            return None
        is_known = np.concatenate([mask for _, mask in parts])
        return np.concatenate([addresses for addresses, _ in parts])[is_known], rows[is_known]


def _in_place(fragment: FragmentMetadata, live: Offsets, *, same: bool) -> FragmentOrigins:
    return FragmentOrigins(
        origins=(Origin(fragment=fragment, mapping=RowMapping(old=live, new=live), same=same),)
    )


def latest_addresses(ref: DatasetRef, rows: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the latest addresses of rows, ascending and unique. Runs on the driver.

    Skips rows deleted or updated since then, and rows of a compaction whose history was cleaned up.
    `rows` are pairs of a version and a row's address in the version.
    """
    by_version: dict[int, dict[int, list[int]]] = {}
    for version, address in rows:
        fragments = by_version.setdefault(version, {})
        fragments.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
    head = SnapshotRows(ref.open_latest())
    return sorted(
        {
            row
            for version, fragments in by_version.items()
            for row in _translate(ref, head, version, fragments)
        }
    )


def _translate(
    ref: DatasetRef, head: SnapshotRows, version: int, offsets_by_fragment: dict[int, list[int]]
) -> Iterable[int]:
    """Yields the latest addresses of rows of a version's fragments."""
    latest = head.dataset.version
    lineage = Lineage(head.dataset, min(version, latest), latest)
    origins = Origins(open_base(ref, version), head, lineage, (), unchanged=offsets_by_fragment)
    for handle in head.dataset.get_fragments():
        fragment = handle.metadata
        if offsets_by_fragment.keys().isdisjoint(
            [fragment.id, *(leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ())]
        ):
            continue
        for origin in origins.of(fragment).origins:
            # Without inputs, only rows moved by an update are not certainly the same.
            rows = (
                RowSet.of(offsets_by_fragment.get(origin.fragment.id, ()))
                if origin.same
                else RowSet.empty()
            )
            yield from (fragment.id << 32 | row for row in origin.mapping.new_rows(rows))
