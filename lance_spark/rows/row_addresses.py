"""Row addresses of a backfill: validation, and counts of invalid rows.

Invalid rows do not fail a task, because a task sees only its own rows. The tasks count invalid
rows, and the commit raises a single error with the totals of all tasks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.errors import RowAddressError, TableUnreadableError
from lance_spark.lance_compat import claims_missing_rows, take_known_rows
from lance_spark.read.filtering import as_filter_error
from lance_spark.read.masks import distinct, stable_ids

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment

ROW_ADDRESS = "_rowaddr"
ROW_ID = "_rowid"

NULLS = "without an address (NULL)"
NEGATIVE = "with a negative address"
UNKNOWN = "not in the snapshot"
UNKNOWN_ID = "not in the snapshot, or deleted there"
DELETED = "deleted in the snapshot"
DUPLICATE = "given more than once"
DIFFERENT = "that differ from the table in verify_columns"

_EXAMPLES = 5
_OFFSET_BITS = np.uint64(32)
_OFFSET_MASK = np.uint64(0xFFFFFFFF)

Addresses = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Rejected:
    """Counts of invalid rows by kind, with the first addresses of each kind.

    Picklable. Travels in commit messages. The examples are row ids if the write uses row ids.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, count: int, first: NDArray[np.generic] | None = None) -> None:
        """Counts rows of a kind."""
        if count == 0:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        examples = self.examples.setdefault(kind, [])
        if first is not None:
            examples.extend(int(value) for value in first[: max(0, _EXAMPLES - len(examples))])

    def merge(self, rejected: Rejected) -> None:
        """Adds the counts of another task."""
        for kind, count in rejected.counts.items():
            self.add(kind, count, np.asarray(rejected.examples.get(kind, []), dtype=np.int64))

    def to_error(self, uri: str, version: int, column: str) -> RowAddressError:
        """Returns the error for the write."""
        hints = {
            DUPLICATE: f"drop the duplicates, for example with dropDuplicates([{column!r}])",
            DIFFERENT: "the addresses are of another version or table: read the table again and write without a "
            "union of two reads",
        }
        hint = "; ".join(hints[kind] for kind in self.counts if kind in hints)
        return RowAddressError(
            self.counts,
            dict(self.examples),
            where=f"column {column!r} of a backfill of {uri}, version {version}",
            hint=hint or f"write {column!r} as it was read, from one read of this table",
        )


def fragments_of(addresses: Addresses) -> Addresses:
    """Returns the fragment ids of row addresses."""
    return addresses >> _OFFSET_BITS


def offsets_of(addresses: Addresses) -> NDArray[np.int64]:
    """Returns the physical offsets of row addresses in their fragments."""
    return (addresses & _OFFSET_MASK).astype(np.int64)


def runs_of(fragments: Addresses) -> list[tuple[int, int, int]]:
    """Splits a sequence of fragment ids into runs of equal ids: (fragment, start, end)."""
    if len(fragments) == 0:
        return []
    cuts = np.flatnonzero(fragments[1:] != fragments[:-1]) + 1
    bounds = [0, *cuts.tolist(), len(fragments)]
    return [(int(fragments[start]), start, end) for start, end in itertools.pairwise(bounds)]


_TRUSTED_ROWS = 1 << 22
"""Maximum number of rows of a fragment without a metadata check. Reading missing rows of such a
fragment fails within seconds."""


class SnapshotRows:
    """The rows of a snapshot. Reads only manifests and deletion files. Belongs to a task."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self.dataset = dataset
        self._fragments: dict[int, LanceFragment | None] = {}
        self._checked: set[int] = set()
        self._deleted: tuple[int, Mask | None] = (-1, None)

    def fragment(self, fragment_id: int) -> LanceFragment | None:
        """Returns a fragment, or None if the snapshot has no fragment with this id."""
        if fragment_id not in self._fragments:
            is_valid_id = 0 <= fragment_id < 1 << 32
            self._fragments[fragment_id] = (
                self.dataset.get_fragment(fragment_id) if is_valid_id else None
            )
        return self._fragments[fragment_id]

    def existing_fragment(self, fragment_id: int) -> LanceFragment:
        """Returns a fragment of the snapshot.

        Raises:
            TableUnreadableError: The fragment does not exist. Or the metadata of a large fragment
                claims rows that its data files do not have. Work on such rows would take hours.
        """
        fragment = self.fragment(fragment_id)
        if fragment is None:
            text = f"fragment {fragment_id} is not in version {self.dataset.version}"
            raise TableUnreadableError(self.dataset.uri, text, hint="open the table again")
        if fragment.physical_rows > _TRUSTED_ROWS and fragment_id not in self._checked:
            if claims_missing_rows(fragment):
                text = f"fragment {fragment_id} claims {fragment.physical_rows:,} rows, and its data files have others"
                hint = "Restore an older version, or copy the rows that can be read."
                raise TableUnreadableError(self.dataset.uri, text, hint=hint)
            self._checked.add(fragment_id)
        return fragment

    def opened_fragments(self) -> tuple[FragmentMetadata, ...]:
        """Returns the fragments opened so far."""
        return tuple(handle.metadata for handle in self._fragments.values() if handle is not None)

    def deleted(self, fragment_id: int) -> Mask | None:
        """Returns a mask of the deleted physical rows of a fragment, or None without deletions.

        Caches only the last fragment, at one byte per row.
        """
        if self._deleted[0] != fragment_id:
            self._deleted = (fragment_id, self._read_deleted(fragment_id))
        return self._deleted[1]

    def live_positions(self, fragment_id: int, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns positions for `fragment.take`, which does not count deleted rows (measured)."""
        deleted = self.deleted(fragment_id)
        return offsets if deleted is None else offsets - np.cumsum(deleted)[offsets]

    def _read_deleted(self, fragment_id: int) -> Mask | None:
        fragment = self.fragment(fragment_id)
        if fragment is None or fragment.metadata.deletion_file is None:
            return None
        deleted = np.ones(fragment.metadata.physical_rows, dtype=np.bool_)
        try:
            for batch in fragment.scanner(columns=[], with_row_address=True).to_batches():
                deleted[offsets_of(batch.column(ROW_ADDRESS).to_numpy())] = False
        except (OSError, ValueError) as error:
            raise as_filter_error(error, self.dataset, fragment_id) from error
        return deleted

    def usable(self, addresses: Addresses, rejected: Rejected) -> Mask:
        """Returns a mask of the addresses of live rows, and counts the invalid addresses.

        Addresses may have any order. Grouping by fragment is fastest.
        """
        usable = np.ones(len(addresses), dtype=np.bool_)
        offsets = offsets_of(addresses)
        for fragment_id, start, end in runs_of(fragments_of(addresses)):
            part = slice(start, end)
            fragment = self.fragment(fragment_id)
            inside = offsets[part] < (0 if fragment is None else fragment.metadata.physical_rows)
            if not inside.all():
                rejected.add(UNKNOWN, int((~inside).sum()), addresses[part][~inside])
            deleted = self.deleted(fragment_id) if inside.any() else None
            if deleted is not None:
                is_deleted = np.zeros(end - start, dtype=np.bool_)
                is_deleted[inside] = deleted[offsets[part][inside]]
                rejected.add(DELETED, int(is_deleted.sum()), addresses[part][is_deleted])
                inside &= ~is_deleted
            usable[part] = inside
        return usable


class Verifier:
    """Compares written columns with the snapshot. Belongs to a task.

    Row addresses of another version look valid, but the values of their rows differ.
    """

    def __init__(self, rows: SnapshotRows, columns: tuple[str, ...]) -> None:
        self._rows = rows
        self._columns = columns

    def equal(self, addresses: Addresses, values: pa.Table, rejected: Rejected) -> Mask:
        """Returns a mask of the rows with the values of the table, and counts the other rows.

        Takes valid addresses, distinct and ascending within each fragment. The compared columns
        have the types of the table.
        """
        equal = np.ones(len(addresses), dtype=np.bool_)
        if not self._columns:
            return equal
        for fragment_id, start, end in runs_of(fragments_of(addresses)):
            fragment = self._rows.existing_fragment(fragment_id)
            positions = distinct(offsets_of(addresses[start:end]))
            if len(positions) < end - start:
                raise ValueError("rows are given twice")
            stored = fragment.take(
                self._rows.live_positions(fragment_id, positions), columns=list(self._columns)
            )
            for name in self._columns:
                written_values = values.column(name).slice(start, end - start).combine_chunks()
                equal[start:end] &= equal_values(
                    written_values, stored.column(name).combine_chunks()
                )
        rejected.add(DIFFERENT, int((~equal).sum()), addresses[~equal])
        return equal


def equal_values(values: pa.Array[Any], stored: pa.Array[Any]) -> Mask:
    """Returns a mask of equal values. NULL equals NULL, and NaN equals NaN, at any depth."""
    first: Any = values.storage if isinstance(values, pa.ExtensionArray) else values
    second: Any = stored.storage if isinstance(stored, pa.ExtensionArray) else stored
    if first.type != second.type:
        second = second.cast(first.type)
    if first.equals(second) or pa.types.is_null(first.type):
        return np.ones(len(first), dtype=np.bool_)
    if pa.types.is_dictionary(first.type):
        return equal_values(first.dictionary_decode(), second.dictionary_decode())
    valid = _as_mask(first.is_valid()), _as_mask(second.is_valid())
    same: Mask = ~(valid[0] | valid[1])
    both = valid[0] & valid[1]
    same[both] = _equal_present(first.filter(pa.array(both)), second.filter(pa.array(both)))
    return same


def _equal_present(first: Any, second: Any) -> Mask:  # noqa: ANN401 - arrays of one type, whichever
    """Compares arrays without NULLs."""
    kind = first.type
    if pa.types.is_struct(kind):
        equal = np.ones(len(first), dtype=np.bool_)
        for pair in zip(first.flatten(), second.flatten(), strict=True):
            equal &= equal_values(*pair)
        return equal
    if pa.types.is_fixed_size_list(kind):
        elements = equal_values(first.flatten(), second.flatten())
        return np.array(elements.reshape(len(first), kind.list_size).all(axis=1))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _equal_lists(first, second)
    if pa.types.is_nested(kind):
        # Compares one Python object per row. Unequal objects are compared as text, because NaN
        # equals NaN in text.
        pairs = zip(first, second, strict=True)
        return np.array(
            [a.equals(b) or repr(a.as_py()) == repr(b.as_py()) for a, b in pairs], dtype=np.bool_
        )
    if pa.types.is_float16(kind):
        # Arrow has no kernel for comparing half floats.
        first, second = first.cast(pa.float32()), second.cast(pa.float32())
    same = _as_mask(pc.equal(first, second))
    if pa.types.is_floating(kind):
        same |= _as_mask(pc.is_nan(first)) & _as_mask(pc.is_nan(second))
    return same


def _equal_lists(first: Any, second: Any) -> Mask:  # noqa: ANN401 - list arrays of one type
    lengths = pc.list_value_length(first).to_numpy()
    same: Mask = lengths == pc.list_value_length(second).to_numpy()
    equal = equal_values(*(lists.filter(pa.array(same)).flatten() for lists in (first, second)))
    rows = np.repeat(np.flatnonzero(same), lengths[same])
    same[rows[~equal]] = False
    return same


def _as_mask(array: pa.BooleanArray) -> Mask:
    return np.array(array, dtype=np.bool_)


def addresses_in(
    column: pa.Int64Array, rejected: Rejected, *, ids_of: lance.LanceDataset | None
) -> tuple[Addresses, Mask]:
    """Reads the address column of a batch: valid addresses, and a mask of their rows.

    Counts NULLs, negative numbers and unknown ids. `ids_of` is the snapshot if the column holds
    stable row ids.
    """
    usable = _as_mask(column.is_valid())
    rejected.add(NULLS, int((~usable).sum()))
    values = np.asarray(column.fill_null(0)).astype(np.int64, copy=False)
    negative = usable & (values < 0)
    if negative.any():
        rejected.add(NEGATIVE, int(negative.sum()), values[negative])
        usable = usable & ~negative
    candidates = values[usable].astype(np.uint64)
    if ids_of is None:
        return candidates, usable
    addresses, is_known = look_up(ids_of, candidates)
    if not is_known.all():
        rejected.add(UNKNOWN_ID, int((~is_known).sum()), candidates[~is_known])
        usable[np.flatnonzero(usable)[~is_known]] = False
    return addresses[is_known], usable


def look_up(dataset: lance.LanceDataset, ids: Addresses) -> tuple[Addresses, Mask]:
    """Maps stable row ids to addresses, and returns a mask of the ids in the snapshot."""
    unique = distinct(ids)
    table = take_known_rows(dataset, unique.tolist(), [ROW_ID, ROW_ADDRESS])
    known_ids = table.column(ROW_ID).to_numpy()
    order = np.argsort(known_ids)
    known_ids, mapped = known_ids[order], table.column(ROW_ADDRESS).to_numpy()[order]
    if len(known_ids) == 0:
        return np.zeros(len(ids), dtype=np.uint64), np.zeros(len(ids), dtype=np.bool_)
    at = np.minimum(np.searchsorted(known_ids, ids), len(known_ids) - 1)
    return mapped[at], known_ids[at] == ids


def row_ids(fragment: LanceFragment, offsets: NDArray[np.int64]) -> Addresses:
    """Returns the stable ids of live rows of a fragment."""
    ids = stable_ids(fragment)
    if ids is not None:
        return ids[offsets]
    table = fragment.scanner(columns=[], with_row_id=True, with_row_address=True).to_table()
    live, ids = offsets_of(table[ROW_ADDRESS].to_numpy()), table[ROW_ID].to_numpy()
    order = np.argsort(live)
    of_rows: Addresses = ids[order][np.searchsorted(live[order], offsets)]
    return of_rows
