"""What becomes of values whose rows have other inputs by now: :func:`judge_stale`.

An update copies the old value into the row that it writes, unless it gives a new one. A copy is out of date, as is what the write itself
has put there; a value that came with the new inputs is right. Each column is judged by itself.

Runs where values are carried over. Memory: a few batches of rows, and one bit per row and column of one fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.errors import TableUnreadableError
from lance_spark.rebase.changed_inputs import read_rows
from lance_spark.rows.merge import Chunk, MissingFileError, Moved, Offsets
from lance_spark.rows.row_addresses import SnapshotRows, equal_values

if TYPE_CHECKING:
    from lance.file import LanceFileSession

_LOG = logging.getLogger(__name__)

_ROWS = 2048

Values = Callable[[Offsets, Sequence[str]], "list[pa.Array[Any]] | None"]
"""Returns columns of rows as somebody has them; None where that is not known any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A target column.

    Attributes:
        field: What is written of it.
        now: Its name in the newer version; None where it is not there yet.
        before: Its name in the older version; None where it was not there.
    """

    field: pa.Field[Any]
    now: str | None
    before: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stale:
    """What rows of changed inputs are left with.

    Attributes:
        offsets: Those with a value that is not theirs, ascending.
        emptied: Names of the columns that lose values.
        nulled: How many rows, of all that were judged, have no value in one of the columns.
    """

    offsets: Offsets
    emptied: frozenset[str]
    nulled: int
    _null: NDArray[np.uint8]
    _columns: tuple[Column, ...]
    _head: SnapshotRows
    _number: int

    def chunks(self) -> Iterator[Chunk]:
        """Yields what the rows have to have: NULL, and values that are theirs."""
        for first in range(0, len(self.offsets), _ROWS):
            rows = self.offsets[first : first + _ROWS]
            null = np.unpackbits(self._null[first : first + _ROWS], axis=1, count=len(self._columns)).astype(np.bool_)
            kept = [column.now for column, mask in zip(self._columns, null.T, strict=True) if not mask.all()]
            names = [name for name in kept if name is not None]
            values = dict(
                zip(names, read_rows(self._head, self._number, tuple(names), rows) if names else [], strict=True)
            )
            arrays = [_without(values, column, mask) for column, mask in zip(self._columns, null.T, strict=True)]
            yield rows, pa.StructArray.from_arrays(arrays, names=[column.field.name for column in self._columns])


def judge_stale(
    head: SnapshotRows, number: int, stale: Moved, columns: Sequence[Column], *, staged: Values, before: Values
) -> Stale:
    """Finds the values that rows of changed inputs must not keep.

    Args:
        head: The newer version.
        number: The fragment that the rows are in.
        stale: The rows.
        columns: The target columns.
        staged: What this write has for rows, by where they were, and names of its own.
        before: The same for what they had in the older version. Where that is not known, every value counts as a copy: one that is missing is
            found and computed again, one that is out of date never.
    """
    order = np.argsort(stale.new)
    old, new = stale.old[order], stale.new[order]
    null = np.zeros((len(new), (len(columns) + 7) // 8), dtype=np.uint8)
    wrong = np.zeros(len(new), dtype=np.bool_)
    emptied: set[str] = set()
    nulled = 0
    for first in range(0, len(new), _ROWS):
        at = slice(first, first + _ROWS)
        copied, empty = _judge(head, number, old[at], new[at], columns, staged, before)
        wrong[at] = copied.any(axis=1)
        null[at] = np.packbits(copied | empty, axis=1)
        nulled += int((copied | empty).any(axis=1).sum())
        emptied.update(str(column.now) for column, mask in zip(columns, copied.T, strict=True) if mask.any())
    return Stale(
        offsets=new[wrong],
        emptied=frozenset(emptied),
        nulled=nulled,
        _null=null[wrong],
        _columns=tuple(columns),
        _head=head,
        _number=number,
    )


def _judge(
    head: SnapshotRows,
    number: int,
    old: Offsets,
    new: Offsets,
    columns: Sequence[Column],
    staged: Values,
    before: Values,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tells for each row and column whether there is a copy, and whether there is nothing."""
    copied = np.zeros((len(new), len(columns)), dtype=np.bool_)
    empty = np.ones((len(new), len(columns)), dtype=np.bool_)
    there = [i for i, column in enumerate(columns) if column.now is not None]
    if not there:
        return copied, empty
    now = read_rows(head, number, tuple(str(columns[i].now) for i in there), new)
    for i, array in zip(there, now, strict=True):
        empty[:, i] = np.asarray(array.is_null())
    filled = [(i, array) for i, array in zip(there, now, strict=True) if not empty[:, i].all()]
    existed = [(i, array) for i, array in filled if columns[i].before is not None]
    for values, names, judged in (
        (staged, [columns[i].field.name for i, _ in filled], filled),
        (before, [str(columns[i].before) for i, _ in existed], existed),
    ):
        found = values(old, names) if names else []
        for at, (i, array) in enumerate(judged):
            copied[:, i] |= True if found is None else equal_values(found[at], array)
    return copied & ~empty, empty


def staged_values(session: LanceFileSession, file: str) -> Values:
    """Returns values of a column file that no version names."""

    def read(rows: Offsets, names: Sequence[str]) -> list[pa.Array[Any]]:
        order: Any = np.argsort(rows)
        try:
            reader = session.open_reader(f"data/{file}", columns=list(names))
            table: pa.Table = reader.take_rows(rows[order].tolist()).to_table().combine_chunks()
        except (OSError, ValueError, RuntimeError) as error:
            raise MissingFileError(file) from error
        back: Any = np.argsort(order)
        return [pa.concat_arrays(table.column(name).chunks).take(back) for name in names]

    return read


def values_before(base: SnapshotRows | None, number: int) -> Values:
    """Returns values of a fragment of an older version; they are not known where that version was cleaned up."""

    def read(rows: Offsets, names: Sequence[str]) -> list[pa.Array[Any]] | None:
        if base is None:
            return None
        try:
            return read_rows(base, number, tuple(names), rows)
        except TableUnreadableError as error:
            _LOG.warning("values of fragment %s cannot be compared, and count as out of date: %s", number, error)
            return None

    return read


def _without(values: dict[str, pa.Array[Any]], column: Column, null: NDArray[np.bool_]) -> pa.Array[Any]:
    """Returns a column without some of its values."""
    array = values.get(column.now or "")
    chosen: Any = pa.array(np.arange(len(null)), mask=null)
    left: pa.Array[Any] = pa.nulls(len(null), column.field.type) if array is None else array.take(chosen)
    return left
