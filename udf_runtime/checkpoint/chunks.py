"""Chunks of rows, as files next to checkpoints: :class:`ChunkFolder`.

    <root>/<key>/<job>/<random>-<n>.chunks    rows of one batch's chunks, part n = 0, 1, ...

A checkpoint of a chunker holds the location of each row's chunks. The chunks are consecutive, and
the chunks of a row may continue in the next part. The writer and the reader hold a part in memory,
so a row may have any number of chunks.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udf_runtime.checkpoint.codec import decode, encode, explain_failures
from udf_runtime.checkpoint.names import quote
from udf_runtime.errors import CheckpointError, end_sentence
from udf_runtime.optional import np

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects

_LOG = logging.getLogger(__name__)

PART_BYTES = 8 << 20
"""Bytes of chunks in memory before the chunks are written as a part."""

_PART_ROWS = 1 << 20
_HELD_PARTS = 2


class ChunksNotStoredError(CheckpointError):
    """The store failed to store chunks."""


class ChunksLostError(CheckpointError):
    """A checkpoint refers to chunks without a file."""


@dataclass(frozen=True, slots=True)
class ChunkFolder:
    """The chunks of a chunker; a picklable value, for tasks and their child processes.

    Attributes:
        objects: The store.
        root: Folder of the chunker's checkpoints.
        job: The writing job, as a folder in the root.
    """

    objects: Objects
    root: str
    job: str

    def open_file(self, schema: pa.Schema) -> ChunkFile:
        """Returns a new file for chunks; the first part is written with the first chunks."""
        return ChunkFile(self, f"{quote(self.job)}/{os.urandom(8).hex()}", schema)

    def path_of(self, file: str, part: int) -> str:
        """Returns the path of a part."""
        return f"{self.root}/{file}-{part}.chunks"


class ChunkFile:
    """Writes chunks in parts. Belongs to a single thread.

    Attributes:
        name: Name within the folder.
        part: Number of the current part.
        rows: Rows in the current part.
    """

    def __init__(self, folder: ChunkFolder, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.part = 0
        self.rows = 0
        self._folder = folder
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows; a full part is written into the store.

        Raises:
            ChunksNotStoredError: The store failed.
        """
        if batch.num_rows:
            self._held.append(batch)
            self.rows += batch.num_rows
            self._bytes += batch.nbytes
            if self._bytes >= PART_BYTES or self.rows >= _PART_ROWS:
                self.flush()

    def flush(self) -> None:
        """Writes the current part into the store; the next write starts another part.

        Raises:
            ChunksNotStoredError: The store failed.
        """
        if self._held:
            table = pa.Table.from_batches(self._held, schema=self._schema)
            path = self._folder.path_of(self.name, self.part)
            try:
                self._folder.objects.put(path, encode({"kind": "chunks", "rows": self.rows}, table))
            except OSError as error:
                raise ChunksNotStoredError(
                    f"Chunks cannot be stored: {end_sentence(str(error))} Path: {path}. Check space and permissions in "
                    "the folder of the checkpoints."
                ) from error
            self.part += 1
        self._held, self.rows, self._bytes = [], 0, 0


class _Locations:
    """The locations of the chunks of many rows, by column."""

    __slots__ = ("counts", "files", "firsts", "parts")

    def __init__(self, locations: pa.StructArray) -> None:
        self.files: list[Any] = locations.field("file").to_pylist()
        self.parts, self.firsts, self.counts = (
            np.asarray(locations.field(n)) for n in ("part", "first", "rows")
        )

    def find_stop(self, row: int, most: int, part_rows: int) -> int:
        """Returns the end of the rows with consecutive chunks in the part of a row's chunks.

        The row itself is the end if its chunks continue in the next part.
        """
        file, part, first = self.files[row], self.parts[row], int(self.firsts[row])
        end, stop = first, row
        while (
            stop < len(self.files) and end - first < most and end + self.counts[stop] <= part_rows
        ):
            count = int(self.counts[stop])
            if count and (self.files[stop], self.parts[stop], self.firsts[stop]) != (
                file,
                part,
                end,
            ):
                break
            end += count
            stop += 1
        return stop


class ChunkReader:
    """Reads chunks. Belongs to a single thread; memory: two parts, and a batch."""

    def __init__(self, folder: ChunkFolder, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._parts: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def batches(
        self, locations: pa.StructArray, *, max_rows: int, max_bytes: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, pa.RecordBatch]]:
        """Yields the chunks of rows in their order.

        Args:
            locations: Locations of the chunks, of the type `CHUNKS_OF_ROW`, without NULLs.
            max_rows: Maximum chunks of a batch.
            max_bytes: A batch ends after this number of bytes, rounded up to whole pieces of parts.

        Yields:
            For each chunk of a batch, the position of its row in `locations`, int64, and its number
            among the row's chunks, int64 from 0; and the chunks.

        Raises:
            ChunksLostError: A part is deleted or damaged.
            CheckpointError: The store failed.
        """
        tables: list[pa.Table] = []
        at: list[np.ndarray] = []
        numbers: list[np.ndarray] = []
        rows = size = 0

        def make_batch() -> tuple[np.ndarray, np.ndarray, pa.RecordBatch]:
            table = pa.concat_tables(tables).combine_chunks()
            (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=self._schema)]
            return np.concatenate(at), np.concatenate(numbers), batch

        for position, child, piece in self._read_pieces(locations, max_rows):
            first = 0
            while first < len(piece):
                part = piece.slice(first, max_rows - rows)
                tables.append(part)
                at.append(position[first : first + len(part)])
                numbers.append(child[first : first + len(part)])
                first += len(part)
                rows += len(part)
                size += part.nbytes
                if rows >= max_rows or size >= max_bytes:
                    yield make_batch()
                    tables, at, numbers, rows, size = [], [], [], 0, 0
        if tables:
            yield make_batch()

    def _read_pieces(
        self, locations: pa.StructArray, most: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, pa.Table]]:
        """Yields runs of adjacent chunks of a part: of many rows, or a section of a single row."""
        places = _Locations(locations)
        row = 0
        while row < len(locations):
            count = int(places.counts[row])
            if not count:
                row += 1
                continue
            file, part, first = places.files[row], int(places.parts[row]), int(places.firsts[row])
            table = self._read_part(file, part)
            stop = places.find_stop(row, most, len(table))
            if stop == row:  # the row's chunks continue in the next part
                for number, piece in self._read_row(file, part, first, count):
                    yield np.full(len(piece), row), np.arange(number, number + len(piece)), piece
                row += 1
                continue
            counts = places.counts[row:stop]
            position = np.repeat(np.arange(row, stop), counts)
            child = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
            yield position, child, table.slice(first, len(position))
            row = stop

    def _read_row(
        self, file: str, part: int, first: int, count: int
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yields the chunks of a row by parts, each with the number of its first chunk."""
        number = 0
        while number < count:
            piece = self._read_part(file, part).slice(first, count - number)
            if not len(piece):
                raise self._make_lost_error(file, part)
            yield number, piece
            number, part, first = number + len(piece), part + 1, 0

    def _read_part(self, file: str, part: int) -> pa.Table:
        table = self._parts.pop((file, part), None)
        if table is None:
            path = self._folder.path_of(file, part)
            with explain_failures("Chunks cannot be read", path):
                payload = self._folder.objects.get(path)
            if payload is None:
                raise self._make_lost_error(file, part)
            try:
                table = decode(payload)[1]
            except CheckpointError as error:
                raise self._make_lost_error(file, part) from error
        self._parts[file, part] = table
        while len(self._parts) > _HELD_PARTS:
            self._parts.popitem(last=False)
        return table

    def _make_lost_error(self, file: str, part: int) -> ChunksLostError:
        return ChunksLostError(
            f"Chunks are missing or damaged, and are made again. Path: {self._folder.path_of(file, part)}."
        )
