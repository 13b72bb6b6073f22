"""Chunks of rows, as files beside checkpoints: :class:`ChunkFolder`.

    <root>/<key>/<job>/<random>-<n>.chunks    rows of one batch's chunks, part n = 0, 1, ...

A checkpoint of a chunker says for each row where its chunks are; they come one after the other, and
those of one row may go on in the next part. A part is as large as is held in memory while it is
written and read, so that the chunks of one row may be any number.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udf_runtime.checkpoint.codec import decode, encode
from udf_runtime.checkpoint.names import quote
from udf_runtime.errors import CheckpointError
from udf_runtime.optional import np

if TYPE_CHECKING:
    from udf_runtime.checkpoint.store import Objects

_LOG = logging.getLogger(__name__)

PART_BYTES = 8 << 20
"""Bytes of chunks that are held before they are written as a part."""

_PART_ROWS = 1 << 20
_HELD_PARTS = 2


class ChunksNotStoredError(CheckpointError):
    """The store refused chunks."""


class ChunksLostError(CheckpointError):
    """Chunks that a checkpoint speaks of are not there any more."""


@dataclass(frozen=True, slots=True)
class ChunkFolder:
    """The chunks of one chunker; a picklable value, for tasks and their child processes.

    Attributes:
        objects: The store.
        root: Folder of the chunker's checkpoints.
        job: The job that writes, as a folder in that.
    """

    objects: Objects
    root: str
    job: str

    def open_file(self, schema: pa.Schema) -> ChunkFile:
        """Returns a new file for chunks; makes nothing before there are some."""
        return ChunkFile(self, f"{quote(self.job)}/{os.urandom(8).hex()}", schema)

    def path_of(self, file: str, part: int) -> str:
        """Returns the path of a part."""
        return f"{self.root}/{file}-{part}.chunks"


class ChunkFile:
    """Writes chunks in parts. Belongs to one thread.

    Attributes:
        name: Its name within the folder.
        part: Number of the part that is being filled.
        rows: Rows in that.
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
        """Adds rows; a part that is full goes into the store.

        Raises:
            ChunksNotStoredError: The store refused.
        """
        if batch.num_rows:
            self._held.append(batch)
            self.rows += batch.num_rows
            self._bytes += batch.nbytes
            if self._bytes >= PART_BYTES or self.rows >= _PART_ROWS:
                self.flush()

    def flush(self) -> None:
        """Puts what is held into the store; what is written next is in another part.

        Raises:
            ChunksNotStoredError: The store refused.
        """
        if self._held:
            table = pa.Table.from_batches(self._held, schema=self._schema)
            path = self._folder.path_of(self.name, self.part)
            try:
                self._folder.objects.put(path, encode({"kind": "chunks", "rows": self.rows}, table))
            except OSError as error:
                raise ChunksNotStoredError(
                    f"chunks cannot be stored: {error} - at {path} - check space and permissions at the place of the "
                    "checkpoints"
                ) from error
            self.part += 1
        self._held, self.rows, self._bytes = [], 0, 0


class ChunkReader:
    """Reads chunks back. Belongs to one thread; memory: two parts, and a batch."""

    def __init__(self, folder: ChunkFolder, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._parts: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def batches(
        self, found: pa.StructArray, *, max_rows: int, max_bytes: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, pa.RecordBatch]]:
        """Yields the chunks of rows in their order.

        Args:
            found: Where they are, of the type `CHUNKS_OF_ROW`, without NULLs.
            max_rows: Most chunks of a batch.
            max_bytes: Bytes after which a batch ends, as far as whole pieces of parts go.

        Yields:
            For each chunk of a batch the position of its row in `found`, int64, and its number
            among that row's chunks, int64 from 0; and the chunks.

        Raises:
            ChunksLostError: A part is not there any more, or damaged.
            CheckpointError: The store refused.
        """
        held: list[pa.Table] = []
        at: list[np.ndarray] = []
        numbers: list[np.ndarray] = []
        rows = size = 0

        def made() -> tuple[np.ndarray, np.ndarray, pa.RecordBatch]:
            table = pa.concat_tables(held).combine_chunks()
            (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=self._schema)]
            return np.concatenate(at), np.concatenate(numbers), batch

        for position, child, piece in self._pieces(found, max_rows):
            first = 0
            while first < len(piece):
                part = piece.slice(first, max_rows - rows)
                held.append(part)
                at.append(position[first : first + len(part)])
                numbers.append(child[first : first + len(part)])
                first += len(part)
                rows += len(part)
                size += part.nbytes
                if rows >= max_rows or size >= max_bytes:
                    yield made()
                    held, at, numbers, rows, size = [], [], [], 0, 0
        if held:
            yield made()

    def _pieces(self, found: pa.StructArray, most: int) -> Iterator[tuple[np.ndarray, np.ndarray, pa.Table]]:
        """Yields runs of chunks that stand together in a part: of many rows, or some of one."""
        files: Any = found.field("file").to_pylist()
        parts, firsts, counts = (np.asarray(found.field(name)) for name in ("part", "first", "rows"))
        row, total = 0, len(found)
        while row < total:
            if not counts[row]:
                row += 1
                continue
            # Rows whose chunks follow each other in one part, up to one that goes on in the next.
            file, part, first = files[row], int(parts[row]), int(firsts[row])
            table = self._part(file, part)
            end, stop = first, row
            while stop < total and end - first < most and end + counts[stop] <= len(table):
                joins = not counts[stop] or (files[stop], parts[stop], firsts[stop]) == (file, part, end)
                if not joins:
                    break
                end += int(counts[stop])
                stop += 1
            if stop > row:
                some = counts[row:stop]
                position = np.repeat(np.arange(row, stop), some)
                child = np.arange(end - first) - np.repeat(np.cumsum(some) - some, some)
                yield position, child, table.slice(first, end - first)
                row = stop
                continue
            done, left = 0, int(counts[row])
            while left:
                piece = self._part(file, part).slice(first, left)
                if not len(piece):
                    raise self._lost(file, part)
                yield np.full(len(piece), row), np.arange(done, done + len(piece)), piece
                done, left, part, first = done + len(piece), left - len(piece), part + 1, 0
            row += 1

    def _part(self, file: str, part: int) -> pa.Table:
        known = self._parts.pop((file, part), None)
        if known is None:
            path = self._folder.path_of(file, part)
            try:
                payload = self._folder.objects.get(path)
            except OSError as error:
                raise CheckpointError(
                    f"chunks cannot be read: {error} - at {path} - check access to the place of the checkpoints"
                ) from error
            if payload is None:
                raise self._lost(file, part)
            try:
                known = decode(payload)[1]
            except CheckpointError as error:
                raise self._lost(file, part) from error
        self._parts[file, part] = known
        while len(self._parts) > _HELD_PARTS:
            self._parts.popitem(last=False)
        return known

    def _lost(self, file: str, part: int) -> ChunksLostError:
        return ChunksLostError(
            f"chunks are not there any more, or damaged - at {self._folder.path_of(file, part)} - they are made again"
        )
