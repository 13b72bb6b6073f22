"""Merges values of a fragment's rows from several sources in row order.

Every stream yields chunks of bounded size. A chunk is a pair of offsets and values: physical rows,
strictly ascending, and a value per row. A merge holds one chunk per stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.rows.row_set import RowSet
from lance_spark.types.layout import aligned
from udf_runtime.execute.conversion.casts import cast

if TYPE_CHECKING:
    from lance.file import LanceFileSession

Offsets: TypeAlias = NDArray[np.int64]
Chunk: TypeAlias = "tuple[Offsets, pa.Array[Any]]"

_Head: TypeAlias = "tuple[int, int, Chunk, Iterator[Chunk]]"
"""The head of a stream: first row, stream number, chunk, and the rest of the stream."""

_FILE_ROWS = 4096
"""Rows per read of a column file."""
_FEWEST_FILE_ROWS = 64
"""Rows per read if very many column files are open."""
_NULL_ROWS = 2048
"""NULLs per chunk. NULLs of a vector type take as much memory as vectors."""
_MANY_STREAMS = 64


class ValuePiece(Protocol):
    """Rows of a fragment with values in a single source."""

    @property
    def offsets(self) -> Offsets:
        """The current offsets of the rows, ascending and not empty."""

    def chunks(self, streams: int) -> Iterator[Chunk]:
        """Yields the rows in chunks while `streams` pieces are read at once.

        Raises:
            MissingFileError: The file of the values was deleted.
        """


def no_rows() -> Offsets:
    """Returns an empty array of offsets."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowMapping:
    """Maps rows of an older fragment to current rows: row `old[i]`, ascending, is row `new[i]`."""

    old: Offsets
    new: Offsets

    def lookup(self, old: Offsets) -> tuple[Offsets, NDArray[np.bool_]]:
        """Maps old row offsets to new ones, with a mask of the old rows that still exist."""
        at = np.searchsorted(self.old, old)
        inside = at < len(self.old)
        inside[inside] = self.old[at[inside]] == old[inside]
        return self.new[at[inside]], inside

    def restrict_to(self, rows: RowSet) -> RowMapping:
        """Restricts the mapping to the given new rows."""
        if not rows or not len(self.new):
            return RowMapping(old=self.old[:0], new=self.new[:0])
        chosen = rows.mask(0, int(self.new.max()) + 1)[self.new]
        return self if chosen.all() else RowMapping(old=self.old[chosen], new=self.new[chosen])

    def new_rows(self, old: RowSet) -> RowSet:
        """Maps old row offsets to new ones, dropping deleted rows."""
        return RowSet.of(self.lookup(old.to_numpy())[0]) if old else old

    def chunk(self, old: Offsets, values: pa.Array[Any]) -> Chunk:
        """Maps values of old rows to the new rows, ascending."""
        new_offsets, inside = self.lookup(old)
        values = values if inside.all() else values.filter(pa.array(inside))
        if (new_offsets[1:] > new_offsets[:-1]).all():
            return new_offsets, values
        order: Any = np.argsort(new_offsets)
        return new_offsets[order], values.take(order)


class MissingFileError(OSError):
    """A cleanup or the end of a job deleted a column file or a checkpoint."""

    def __init__(self, file: str, what: str = "column file") -> None:
        super().__init__(f"the {what} {file} is not there any more")
        self.file = file


class FileRows:
    """Columns of a column file in `data/`, read by position.

    The file may be uncommitted.

    Raises:
        MissingFileError: The file was deleted before opening or reading.
    """

    def __init__(self, session: LanceFileSession, file: str, columns: Sequence[str]) -> None:
        self._file, self._columns = file, columns
        try:
            self._reader = session.open_reader(f"data/{file}", columns=list(columns))
        except (OSError, ValueError, RuntimeError) as error:
            raise MissingFileError(file) from error

    def take(self, at: Offsets) -> list[pa.Array[Any]]:
        """Returns the columns of the rows at these positions, in any order."""
        order: Any = np.argsort(at)
        try:
            table: pa.Table = self._reader.take_rows(at[order].tolist()).to_table().combine_chunks()
        except (OSError, ValueError, RuntimeError) as error:
            raise MissingFileError(self._file) from error
        columns = [_combine_chunks(table.column(name)) for name in self._columns]
        return (
            columns
            if (at[1:] > at[:-1]).all()
            else [column.take(np.argsort(order)) for column in columns]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Rows with values in a column file in `data/`, committed or not.

    `at` holds their positions in the file. `outputs` are pairs of output field and column.
    """

    offsets: Offsets
    at: Offsets
    file: str
    outputs: tuple[tuple[str, str], ...]
    session: LanceFileSession

    def chunks(self, streams: int) -> Iterator[Chunk]:
        """Implements :class:`ValuePiece`."""
        rows = max(_FILE_ROWS // streams, _FEWEST_FILE_ROWS)
        file = FileRows(self.session, self.file, [column for _, column in self.outputs])
        fields = [field for field, _ in self.outputs]
        for first in range(0, len(self.offsets), rows):
            part = slice(first, first + rows)
            columns = file.take(self.at[part])
            yield (
                self.offsets[part],
                pa.StructArray.from_arrays(columns, names=fields) if fields[0] else columns[0],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NullPiece:
    """Rows that become NULL, with the type of the values."""

    offsets: Offsets
    type: pa.DataType

    def chunks(self, streams: int) -> Iterator[Chunk]:  # noqa: ARG002 - of the protocol
        """Implements :class:`ValuePiece`."""
        for first in range(0, len(self.offsets), _NULL_ROWS):
            rows = self.offsets[first : first + _NULL_ROWS]
            nulls: Any = pa.nulls(len(rows), self.type)  # type: ignore[call-overload]
            yield rows, nulls


def _combine_chunks(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    combined: Any = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    whole: pa.Array[Any] = combined
    return whole


def output_type(outputs: Sequence[tuple[str, str]], schema: pa.Schema) -> pa.DataType:
    """Returns the value type for columns: the type of a single column, or a struct of several."""
    if not outputs[0][0]:
        single: pa.DataType = schema.field(0).type
        return single
    fields = [pa.field(field, schema.field(column).type) for field, column in outputs]
    return pa.struct(fields)


def cast_chunks(stream: Iterator[Chunk], kind: pa.DataType) -> Iterator[Chunk]:
    """Casts the values of all chunks to a type that can hold them."""
    return ((offsets, cast(values, kind)) for offsets, values in stream)


def columns_of(
    values: pa.Array[Any], outputs: Sequence[tuple[str, str]], schema: pa.Schema
) -> pa.RecordBatch:
    """Returns the columns for values of a UDF: a single column, or a column per field.

    A NULL value is NULL in all columns. Buffers are aligned for Lance, unlike the buffers of a
    decoded checkpoint.
    """
    if not outputs[0][0]:
        return pa.RecordBatch.from_arrays([aligned(values)], schema=schema)
    flat: Any = values
    # flatten() applies the NULLs of the struct to its fields.
    parts = dict(zip((f.name for f in flat.type), flat.flatten(), strict=True))
    return pa.RecordBatch.from_arrays(
        [aligned(parts[field]) for field, _ in outputs], schema=schema
    )


def rows_with_null(offsets: Offsets, batch: pa.RecordBatch) -> Offsets:
    """Returns the rows with a NULL in any column."""
    if not any(column.null_count for column in batch.columns):
        return no_rows()
    empty = np.zeros(len(offsets), dtype=np.bool_)
    for column in batch.columns:
        empty |= column.is_null().to_numpy(zero_copy_only=False)
    return offsets[empty]


def chained(pieces: Iterable[ValuePiece]) -> list[list[ValuePiece]]:
    """Groups pieces into a minimal number of chains without overlapping rows."""
    chains: list[list[ValuePiece]] = []
    ends: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda piece: int(piece.offsets[0])):
        if ends and ends[0][0] < piece.offsets[0]:
            number = heapq.heappop(ends)[1]
        else:
            number = len(chains)
            chains.append([])
        chains[number].append(piece)
        heapq.heappush(ends, (int(piece.offsets[-1]), number))
    return chains


def streams_of(pieces: Iterable[ValuePiece]) -> list[Iterator[Chunk]]:
    """Returns a stream per chain of pieces. A chain reads one piece at a time."""
    chains = chained(pieces)

    def read(chain: Sequence[ValuePiece]) -> Iterator[Chunk]:
        for piece in chain:
            yield from piece.chunks(len(chains))

    return [read(chain) for chain in chains]


def merge(streams: Sequence[Iterator[Chunk]]) -> Iterator[Chunk]:
    """Merges streams into a single stream in row order.

    A row of several streams appears once per stream, in the same chunk.
    """
    heads: list[_Head] = []
    ends: list[int] = []
    for number, stream in enumerate(streams):
        _advance(heads, ends, number, stream)
    while len(heads) > 1:
        limit = _limit(heads, ends)
        parts: list[Chunk] = []
        while heads and heads[0][0] <= limit:
            _, number, (offsets, values), stream = heapq.heappop(heads)
            upto = int(np.searchsorted(offsets, limit, "right"))
            parts.append((offsets[:upto], values.slice(0, upto)))
            if upto < len(offsets):
                heapq.heappush(
                    heads,
                    (int(offsets[upto]), number, (offsets[upto:], values.slice(upto)), stream),
                )
            else:
                _advance(heads, ends, number, stream)
        yield _in_order(parts)
    if heads:
        _, _, chunk, stream = heads.pop()
        yield chunk
        del chunk  # Values of a checkpoint are large, and this frame lives as long as the stream.
        yield from (more for more in stream if len(more[0]))


def _limit(heads: Sequence[_Head], ends: list[int]) -> int:
    """Returns the last row of the next merge step: rows may alternate between streams.

    The limit is the first end of a chunk, so no more chunks are held. Among very many streams, some
    chunk ends every few rows.
    """
    first = heads[0][0]
    while ends[0] < first:
        heapq.heappop(ends)
    return max(ends[0], first + _FILE_ROWS - 1) if len(heads) > _MANY_STREAMS else ends[0]


def _in_order(parts: Sequence[Chunk]) -> Chunk:
    """Returns the rows of several chunks in a single sorted chunk."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.concatenate([part[0] for part in parts])
    order = np.argsort(offsets, kind="stable")
    return offsets[order], pa.concat_arrays([part[1] for part in parts]).take(order)


def _advance(heads: list[_Head], ends: list[int], number: int, stream: Iterator[Chunk]) -> None:
    for chunk in stream:
        if len(chunk[0]):
            heapq.heappush(heads, (int(chunk[0][0]), number, chunk, stream))
            heapq.heappush(ends, int(chunk[0][-1]))
            return
