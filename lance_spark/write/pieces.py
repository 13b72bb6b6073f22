"""Values of a fragment's rows from wherever they are, in column files for example, merged in the order of the rows.

Every stream yields pairs of offsets (physical rows, ascending, never twice) and values of as many rows, in chunks of bounded size; a merge
holds one chunk per stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.commit.rowsets import RowSet
from lance_spark.types.layout import aligned

if TYPE_CHECKING:
    from lance.file import LanceFileSession

Offsets: TypeAlias = NDArray[np.int64]
Chunk: TypeAlias = "tuple[Offsets, pa.Array[Any]]"

_FILE_ROWS = 4096
"""Rows that are read of a column file at once."""


_Numbers = TypeVar("_Numbers", bound=np.generic)


def distinct(*parts: NDArray[_Numbers]) -> NDArray[_Numbers]:
    """Returns the numbers of one or several arrays, each once, ascending.

    Not `np.unique`, nor what is made of it: for integers its hash table takes sixty times as long as sorting (numpy 2.4).
    """
    # A stable sort merges what is sorted already.
    rows = np.sort(np.concatenate(parts), kind="stable")
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    return rows[first]


def no_rows() -> Offsets:
    """Returns no rows."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moved:
    """Where rows of an older fragment are now: row `old[i]` is row `new[i]`.

    Attributes:
        old: Rows of the older fragment, ascending.
        new: Rows of the fragment of today, as many.
    """

    old: Offsets
    new: Offsets

    def find(self, old: Offsets) -> tuple[Offsets, NDArray[np.bool_]]:
        """Returns the new offsets of those of the old rows that are still there, in their order, and which those are."""
        at = np.searchsorted(self.old, old)
        inside = at < len(self.old)
        inside[inside] = self.old[at[inside]] == old[inside]
        return self.new[at[inside]], inside

    def chunk(self, old: Offsets, values: pa.Array[Any]) -> Chunk:
        """Returns values of old rows as values of the rows that they are now, ascending; without those that are not there any more."""
        now, inside = self.find(old)
        values = values if inside.all() else values.filter(pa.array(inside))
        if (now[1:] > now[:-1]).all():
            return now, values
        order: Any = np.argsort(now)
        return now[order], values.take(order)

    def new_rows(self, old: RowSet) -> RowSet:
        """Returns the new offsets of those of the old rows that are still there."""
        return RowSet.of(self.find(old.to_numpy())[0]) if old else old


class MissingFileError(OSError):
    """A column file is not there any more: it was never committed, and a cleanup or the end of its job has deleted it.

    Attributes:
        file: Its name.
    """

    def __init__(self, file: str) -> None:
        super().__init__(f"the column file {file} is not there any more")
        self.file = file


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Rows that a column file serves, committed or not.

    Attributes:
        offsets: The rows, as they are numbered now.
        at: Their positions in the file.
        file: Name of the file in `data/`.
        outputs: Pairs of output field and column.
    """

    offsets: Offsets
    at: Offsets
    file: str
    outputs: tuple[tuple[str, str], ...]

    def chunks(self, session: LanceFileSession) -> Iterator[Chunk]:
        """Yields the rows."""
        try:
            reader = session.open_reader(f"data/{self.file}", columns=[column for _, column in self.outputs])
        except (OSError, ValueError, RuntimeError) as error:
            raise MissingFileError(self.file) from error
        for first in range(0, len(self.offsets), _FILE_ROWS):
            part = slice(first, first + _FILE_ROWS)
            wanted = self.at[part]
            order: Any = np.argsort(wanted)
            try:
                table: pa.Table = reader.take_rows(wanted[order].tolist()).to_table()
            except (OSError, ValueError, RuntimeError) as error:
                raise MissingFileError(self.file) from error
            values = value_of(table.combine_chunks(), self.outputs)
            yield self.offsets[part], values if (wanted[1:] > wanted[:-1]).all() else values.take(np.argsort(order))


def value_of(table: pa.Table, outputs: Sequence[tuple[str, str]]) -> pa.Array[Any]:
    """Returns a UDF's values, made of the columns that hold them."""
    columns = [_one(table.column(column)) for _, column in outputs]
    if not outputs[0][0]:
        return columns[0]
    return pa.StructArray.from_arrays(columns, names=[field for field, _ in outputs])


def columns_of(values: pa.Array[Any], outputs: Sequence[tuple[str, str]], schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns that hold a UDF's values: one, or one per field. A NULL value is NULL in all of them.

    Buffers are where Lance can take them: those of a decoded checkpoint need not be.
    """
    if not outputs[0][0]:
        return pa.RecordBatch.from_arrays([aligned(values)], schema=schema)
    flat: Any = values
    # flatten() applies the struct's own NULLs to its fields.
    parts = dict(zip((f.name for f in flat.type), flat.flatten(), strict=True))
    return pa.RecordBatch.from_arrays([aligned(parts[field]) for field, _ in outputs], schema=schema)


def _one(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    combined: Any = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    whole: pa.Array[Any] = combined
    return whole


def merge(streams: Sequence[Iterator[Chunk]]) -> Iterator[Chunk]:
    """Merges streams of different rows into one in the order of the rows."""
    heads: list[tuple[Chunk, Iterator[Chunk]]] = []
    for stream in streams:
        _advance(heads, stream)
    while len(heads) > 1:
        # Up to the first end of a chunk, so that rows that alternate between streams are not taken one by one.
        limit = min(int(offsets[-1]) for (offsets, _), _ in heads)
        parts: list[Chunk] = []
        left: list[tuple[Chunk, Iterator[Chunk]]] = []
        for (offsets, values), stream in heads:
            upto = int(np.searchsorted(offsets, limit, "right"))
            if upto:
                parts.append((offsets[:upto], values.slice(0, upto)))
            if upto < len(offsets):
                left.append(((offsets[upto:], values.slice(upto)), stream))
            else:
                _advance(left, stream)
        heads = left
        yield _in_order(parts)
    if heads:
        chunk, stream = heads.pop()
        yield chunk
        del chunk  # a checkpoint's values are large, and this frame lives as long as the stream
        yield from (more for more in stream if len(more[0]))


def _in_order(parts: Sequence[Chunk]) -> Chunk:
    """Returns the rows of several chunks in one."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.concatenate([part[0] for part in parts])
    order = np.argsort(offsets, kind="stable")
    return offsets[order], pa.concat_arrays([part[1] for part in parts]).take(order)


def _advance(heads: list[tuple[Chunk, Iterator[Chunk]]], stream: Iterator[Chunk]) -> None:
    for chunk in stream:
        if len(chunk[0]):
            heads.append((chunk, stream))
            return
