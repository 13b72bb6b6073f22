"""Row masks: which rows of one fragment a scan with a filter may look at.

A scanner's `offset` and `limit` count rows *after* the filter, and a condition on `_rowaddr` makes every range decode the filter's columns
for the whole fragment. Lance's mask restricts what is decoded: of a fragment of 4 M rows, a quarter took a quarter of the time (25 ms
instead of 96 ms for an equality on a string column). The mask names row *ids*, which are not addresses where they are stable.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

_RUNS_COOKIE = 12347
_CONTAINER = 1 << 16
_OFFSETS_FROM = 4
"""A bitmap of fewer run containers has no offset header, says the format of Roaring bitmaps."""


def range_mask(dataset: lance.LanceDataset, fragment: LanceFragment, start: int, stop: int) -> bytes | None:
    """Returns the mask of a fragment's rows at positions `start` to `stop`, deleted ones counted; None where it cannot be told.

    Runs on an executor. Where row ids are stable, 8 bytes a row of the fragment are held for a moment.
    """
    if not dataset.has_stable_row_ids:
        return serialize_runs(fragment.fragment_id, [(start, stop)])
    ids = stable_ids(fragment)
    return None if ids is None else serialize_ids(ids[start:stop])


def rows_mask(dataset: lance.LanceDataset, fragment: LanceFragment, offsets: npt.NDArray[np.int64]) -> bytes | None:
    """Returns the mask of some of a fragment's rows, as :func:`range_mask` does of a range.

    Args:
        dataset: The table.
        fragment: One of its fragments.
        offsets: Physical positions of the rows, ascending.
    """
    if not dataset.has_stable_row_ids:
        return serialize_ids(offsets.astype(np.uint64) | np.uint64(fragment.fragment_id << 32))
    ids = stable_ids(fragment)
    return None if ids is None else serialize_ids(ids[offsets])


def stable_ids(fragment: LanceFragment) -> npt.NDArray[np.uint64] | None:
    """Returns the row ids of all of a fragment's rows, or None where they are kept in a file of their own."""
    from lance.fragment import RowIdSequence

    meta = fragment.metadata.row_id_meta
    if meta is None:
        return None
    try:
        sequence = RowIdSequence.from_inline_metadata(meta)
    except (ValueError, NotImplementedError, OSError):
        return None
    ids: npt.NDArray[np.uint64] = sequence.to_pyarrow().to_numpy()
    return ids


def serialize_ids(ids: npt.NDArray[np.uint64]) -> bytes:
    """Returns the mask of any row ids."""
    ids = np.sort(ids)
    breaks = np.flatnonzero((np.diff(ids) != 1) | (ids[1:] >> np.uint64(32) != ids[:-1] >> np.uint64(32))) + 1
    edges = np.concatenate(([0], breaks, [len(ids)])) if len(ids) else np.zeros(1, dtype=np.int64)
    runs: dict[int, list[tuple[int, int]]] = {}
    for first, last in zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), strict=True):
        low, high = int(ids[first]), int(ids[last])
        runs.setdefault(low >> 32, []).append((low & 0xFFFFFFFF, (high & 0xFFFFFFFF) + 1))
    bitmaps = [(high, _bitmap(parts)) for high, parts in sorted(runs.items())]
    return struct.pack("<I", len(bitmaps)) + b"".join(struct.pack("<II", h, len(b)) + b for h, b in bitmaps)


def serialize_runs(high: int, runs: list[tuple[int, int]]) -> bytes:
    """Returns the mask of runs `[start, stop)` of row ids that share their upper 32 bits."""
    bitmap = _bitmap(runs)
    return struct.pack("<III", 1, high, len(bitmap)) + bitmap


def _bitmap(runs: list[tuple[int, int]]) -> bytes:
    """Returns a 32-bit Roaring bitmap of run containers, in the portable format.

    The specification: https://github.com/RoaringBitmap/RoaringFormatSpec
    """
    containers: dict[int, list[tuple[int, int]]] = {}
    for start, stop in runs:
        for key in range(start // _CONTAINER, (stop - 1) // _CONTAINER + 1):
            first, end = max(start, key * _CONTAINER), min(stop, (key + 1) * _CONTAINER)
            containers.setdefault(key, []).append((first % _CONTAINER, end - first - 1))
    count = len(containers)
    flags = bytearray((count + 7) // 8)
    for i in range(count):
        flags[i // 8] |= 1 << (i % 8)
    head = struct.pack("<I", _RUNS_COOKIE | (count - 1) << 16) + bytes(flags)
    keys, offsets, bodies = [], [], []
    position = len(head) + 4 * count + (4 * count if count >= _OFFSETS_FROM else 0)
    for key, parts in sorted(containers.items()):
        keys.append(struct.pack("<HH", key, sum(length + 1 for _, length in parts) - 1))
        offsets.append(struct.pack("<I", position))
        body = struct.pack("<H", len(parts)) + b"".join(struct.pack("<HH", *part) for part in parts)
        bodies.append(body)
        position += len(body)
    return head + b"".join(keys) + (b"".join(offsets) if count >= _OFFSETS_FROM else b"") + b"".join(bodies)
