"""Look-ups of parts of a table in the row groups of their keys: a join without a shuffle.

Runs on executors. Memory: the keys of a part and of a row group, some batches of values, and the
buffer of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.errors import SourceKeysError
from lance_spark.load.checkpoint_sink import FOUND, CheckpointSink, KeyReader
from lance_spark.load.files import Piece, PieceReader
from lance_spark.load.request import OnMissing
from lance_spark.load.source_alignment import RowGroups
from lance_spark.rows.row_addresses import ROW_ADDRESS

_ROW = "__row"
_AT = "__at"

_EMPTY_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupJoin:
    """Joins parts of a table; a callable for Spark's `mapInArrow` over the numbers of parts.

    Attributes:
        parts: Reads the keys of the table's rows. Each of its tasks is a part.
        groups: The row groups of the source.
        pieces: The row groups as pieces of files.
        keys: Reads keys of pieces.
        values: Reads the loaded columns of pieces.
    """

    parts: KeyReader
    groups: RowGroups
    pieces: tuple[Piece, ...]
    keys: PieceReader
    values: PieceReader
    sink: CheckpointSink
    on_missing: OnMissing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stores the rows of each part, and yields the stored rows by fragment."""
        for batch in batches:
            for number in batch.column(0).to_numpy():
                # Small fragments share a part, so that each row group is read once for all.
                keys = [
                    read
                    for fragment in self.parts.tasks[int(number)]
                    for read in self.parts.read(*fragment)
                ]
                if keys:
                    yield from self.sink(self._found(pa.Table.from_batches(keys)))

    def _found(self, part: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part with their values, in the order of the source."""
        part = part.combine_chunks()
        addresses: NDArray[np.int64] = part[ROW_ADDRESS].to_numpy()
        names = part.column_names[1:]
        kinds = [
            _compared_type(*pair)
            for pair in zip(part.schema.types[1:], self.keys.schema.types, strict=True)
        ]
        lookup = _comparable(part.select(names), names, kinds).append_column(
            _ROW, pa.array(np.arange(len(part)))
        )
        is_matched = np.zeros(len(part), dtype=np.bool_)
        for number in self.groups.within(part[names[0]].combine_chunks()):
            piece = self.pieces[number]
            keys = _comparable(pa.Table.from_batches(list(self.keys.read(piece))), names, kinds)
            pairs = lookup.join(
                keys.append_column(_AT, pa.array(np.arange(len(keys)))),
                keys=names,
                join_type="inner",
            )
            rows, at = pairs[_ROW].to_numpy(), pairs[_AT].to_numpy()
            twice = rows[is_matched[rows]]
            is_matched[rows] = True
            if len(twice) or len(np.unique(rows)) < len(rows):
                raise SourceKeysError(
                    f"Rows have several matches in {piece.file.path}, and its keys were unique when the load began. "
                    "Load from a source that does not change. Nothing of the load is committed.",
                    source=piece.file.path,
                )
            order = np.argsort(at, kind="stable")
            yield from self._values(piece, addresses, rows[order], at[order])
        if self.on_missing != "carry":
            yield from self._missing(addresses[~is_matched])

    def _values(
        self,
        piece: Piece,
        addresses: NDArray[np.int64],
        rows: NDArray[np.int64],
        at: NDArray[np.int64],
    ) -> Iterator[pa.RecordBatch]:
        """Yields matching rows of the part, in the order of the piece's rows."""
        if not len(rows):
            return
        first = 0
        for batch in self.values.read(piece):
            low, high = np.searchsorted(at, [first, first + batch.num_rows])
            if low < high:
                row_addresses = addresses[rows[low:high]]
                order = np.argsort(row_addresses)
                row_values = batch.take(at[low:high][order] - first)
                yield _batch(
                    row_addresses[order],
                    pa.array(np.ones(high - low, dtype=np.bool_)),
                    row_values.columns,
                )
            first += batch.num_rows

    def _missing(self, addresses: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yields rows without a match, with NULL values."""
        for first in range(0, len(addresses), _EMPTY_ROWS):
            rows = addresses[first : first + _EMPTY_ROWS]
            nulls = [pa.nulls(len(rows), field.type) for field in self.values.schema]
            yield _batch(rows, pa.nulls(len(rows), pa.bool_()), nulls)


def _comparable(keys: pa.Table, names: Sequence[str], kinds: Sequence[pa.DataType]) -> pa.Table:
    """Returns keys with other names and types."""
    return pa.table([keys[at].cast(kind) for at, kind in enumerate(kinds)], names=list(names))


def _compared_type(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType:
    """Returns the type for comparisons of two columns of keys by value.

    Spark has a decimal for uint64. All other integers fit into 64 bits.
    """
    if pa.types.is_integer(ours) and pa.types.is_integer(theirs):
        return pa.int64()
    if pa.types.is_integer(ours) or pa.types.is_integer(theirs):
        return pa.decimal128(20, 0)
    return ours


def _batch(
    addresses: NDArray[np.int64], found: pa.Array[Any], values: Sequence[pa.Array[Any]]
) -> pa.RecordBatch:
    columns = [pa.array(addresses), found, *values]
    return pa.RecordBatch.from_arrays(
        columns, names=[ROW_ADDRESS, FOUND, *map(str, range(len(values)))]
    )
