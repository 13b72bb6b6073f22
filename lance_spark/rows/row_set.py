"""Compressed sets of rows of one fragment: :class:`RowSet`.

A backfill keeps several sets per fragment: selected rows, computed rows, rows with a computed
NULL, and failed rows. Most sets hold all rows, no rows, or all but a few rows, for up to 100,000
fragments. A roaring bitmap takes a few bytes per 65,536 rows of a run, and at most about two bytes
per row or one bit per row of the fragment.
"""

from __future__ import annotations

import array
import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap, FrozenBitMap

if TYPE_CHECKING:
    import numpy.typing as npt

_ROWS = 1 << 32
"""Exclusive upper bound of offsets: a row address has 32 bits for the offset."""


@dataclass(frozen=True, slots=True, repr=False)
class RowSet:
    """A set of physical rows of one fragment, each below 2^32. Immutable, hashable, picklable.

    Make sets with :meth:`of`, :meth:`span` and :meth:`empty`.
    """

    bitmap: FrozenBitMap

    @staticmethod
    def empty() -> RowSet:
        """Returns the empty set."""
        return _EMPTY

    @staticmethod
    def span(start: int, stop: int) -> RowSet:
        """Returns the set of the offsets `start` to `stop - 1`."""
        if not 0 <= start <= _ROWS or not 0 <= stop <= _ROWS:
            raise ValueError(
                f"A fragment has no rows {start}..{stop}: offsets are at least 0 and below 2^32."
            )
        if start >= stop:
            return _EMPTY
        rows = BitMap()
        rows.add_range(start, stop)
        rows.run_optimize()
        return RowSet(FrozenBitMap(rows))

    @staticmethod
    def of(offsets: Iterable[int] | npt.NDArray[np.integer]) -> RowSet:
        """Returns the set of some offsets, in any order. Fast for NumPy arrays.

        Raises:
            ValueError: An offset is negative or not below 2^32.
        """
        values = np.asarray(
            offsets if isinstance(offsets, np.ndarray) else np.fromiter(offsets, np.int64)
        )
        if values.size == 0:
            return _EMPTY
        if values.dtype.kind not in "iu":
            raise ValueError(
                f"The offsets of rows are integers, not {values.dtype}. Pass an integer array."
            )
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= _ROWS:
            raise ValueError(
                f"A fragment has no rows {low}..{high}: offsets are at least 0 and below 2^32."
            )
        if high - low + 1 == values.size and bool(np.all(values[1:] > values[:-1])):
            return RowSet.span(low, high + 1)
        # By far the fastest conversion, at 5 ns per row. The bitmap would read a NumPy array or a
        # memory view item by item.
        return RowSet(FrozenBitMap(array.array("I", values.astype(np.uint32).tobytes())))

    def __or__(self, rows: RowSet) -> RowSet:
        return RowSet(self.bitmap | rows.bitmap)

    def __and__(self, rows: RowSet) -> RowSet:
        return RowSet(self.bitmap & rows.bitmap)

    def __sub__(self, rows: RowSet) -> RowSet:
        return RowSet(self.bitmap - rows.bitmap)

    def __len__(self) -> int:
        return len(self.bitmap)

    def __bool__(self) -> bool:
        return bool(self.bitmap)

    def __contains__(self, offset: int) -> bool:
        return 0 <= offset < _ROWS and offset in self.bitmap

    def __iter__(self) -> Iterator[int]:
        return iter(self.bitmap)

    def __le__(self, rows: RowSet) -> bool:
        return self.bitmap.issubset(rows.bitmap)

    def __repr__(self) -> str:
        return f"RowSet({len(self)} rows)" if self else "RowSet(empty)"

    def __reduce__(self) -> tuple[Callable[[bytes], RowSet], tuple[bytes]]:
        return (RowSet.loads, (self.dumps(),))

    def isdisjoint(self, rows: RowSet) -> bool:
        """Tells whether the sets share no row."""
        return self.bitmap.isdisjoint(rows.bitmap)

    def count(self, start: int, stop: int) -> int:
        """Returns the number of offsets from `start` to `stop - 1` in the set."""
        return self.bitmap.range_cardinality(start, stop) if start < stop else 0

    def to_numpy(self) -> npt.NDArray[np.int64]:
        """Returns the offsets, ascending, as a new int64 array."""
        return np.frombuffer(self.bitmap.to_array(), dtype=np.uint32).astype(np.int64)

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Returns a mask of the offsets `start` to `stop - 1`."""
        flags = np.zeros(max(stop - start, 0), dtype=np.bool_)
        flags[(self & RowSet.span(start, stop)).to_numpy() - start] = True
        return flags

    def dumps(self) -> bytes:
        """Returns the portable serialisation of roaring bitmaps, with runs if they are shorter.

        A full set of a million rows takes 230 bytes, and 5,000 scattered rows take 10 kB. Many full
        sets compress well. Equal sets may have different serialisations.
        """
        packed = BitMap(self.bitmap)
        packed.run_optimize()
        return packed.serialize()

    @staticmethod
    def loads(payload: bytes) -> RowSet:
        """Parses the result of :meth:`dumps`.

        Raises:
            ValueError: The bytes are not a row set, or are truncated. Detecting other damage
                requires a checksum.
        """
        try:
            bitmap = FrozenBitMap.deserialize(payload)
        except (ValueError, IndexError) as error:
            raise ValueError(_NOT_A_SET) from error
        if len(bitmap.serialize()) != len(payload):
            raise ValueError(_NOT_A_SET)
        return RowSet(bitmap)

    def to_text(self) -> str:
        """Returns :meth:`dumps` as base64 text, for JSON."""
        return base64.b64encode(self.dumps()).decode("ascii")

    @staticmethod
    def from_text(text: str) -> RowSet:
        """Parses the result of :meth:`to_text`. Raises as :meth:`loads` does."""
        try:
            return RowSet.loads(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise ValueError(_NOT_A_SET) from error


_EMPTY = RowSet(FrozenBitMap())
_NOT_A_SET = "The bytes are no row set. They are damaged, or another program wrote them. Compute the rows again."
