"""Reads input columns for chosen rows of a fragment in batches, for a UDF or for a comparison.

Only the input columns of the chosen rows are read. Blobs are fetched per batch, so memory never
holds a whole column of blobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import panics_as_errors
from lance_spark.read.filtering import as_filter_error
from lance_spark.read.masks import rows_mask
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import ROW_ADDRESS, SnapshotRows
from lance_spark.types.fields import is_blob, requested_columns
from udf_runtime.execute import Rebatcher

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

BlobReadStrategy = Literal["auto", "legacy", "range"]

_SCAN_ROWS = 1 << 15
"""Several batches of the UDF's default size. Joining smaller batches costs as much as reading
narrow columns."""
_SCAN_STORED_BYTES = 4 << 20
"""Maximum stored bytes of a batch. Lance decodes all rows of a batch before it cuts the batch to
the requested bytes, and holds several such batches. The first call waits for the first batch."""

_TAKE_ROWS = 8192
_SCAN_BYTES = 32 << 20
_SCAN_BUFFER_BYTES = 32 << 20
"""Maximum bytes that Lance reads ahead of a scan. By default Lance reads 2 GiB ahead."""

_BLOB_READ_BYTES = 16 << 20
"""Maximum bytes of blobs that exist twice: as Python's bytes and in an Arrow array."""

BATCH_BYTES = 128 << 20
"""Maximum size of a batch for the UDF. Rows may be much wider than expected."""


class InputReader:
    """Reads batches of input columns. Belongs to one thread. Memory: a few batches."""

    def __init__(
        self,
        rows: SnapshotRows,
        fragment: LanceFragment,
        columns: tuple[str, ...],
        *,
        blob_strategy: BlobReadStrategy,
        blob_buffer_bytes: int,
    ) -> None:
        self._dataset = rows.dataset
        self._rows = rows
        self._fragment = fragment
        self._columns = columns
        # Two parameters may read the same column.
        self._scanned = list(dict.fromkeys(columns))
        schema = self._dataset.schema
        self._blobs = [name for name in self._scanned if is_blob(schema.field(name))]
        self._strategy = blob_strategy
        self._blob_bytes = blob_buffer_bytes

    def batches(
        self, offsets: Offsets, most_rows: int, *, most_bytes: int = BATCH_BYTES, joins: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches of the input columns for ascending rows, with the row addresses last.

        Args:
            offsets: The rows.
            most_rows: Maximum rows of a batch.
            most_bytes: Maximum bytes of a batch without blobs, unless a single row has more.
            joins: Whether a batch has `most_rows` rows if the bytes allow. Otherwise the batches of
                the scan are only cut: the first batch comes early, and no row is copied.

        Raises:
            TableUnreadableError: A file is missing or damaged.
        """
        scanned = self._scan(offsets)
        for rows in [scanned] if joins else ([batch] for batch in scanned):
            source = Rebatcher(rows, max_bytes=most_bytes)
            while (batch := source.take(most_rows)) is not None:
                yield from map(self._with_columns, self._parts(batch))

    def _with_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the inputs of a scanned batch in their order, with blobs as bytes."""
        addresses = batch.column(ROW_ADDRESS)
        arrays = [
            self._bytes(batch.column(name), name, addresses)
            if name in self._blobs
            else batch.column(name)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(
            [*arrays, self._addresses(batch)], names=[*self._columns, ROW_ADDRESS]
        )

    def _addresses(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        """Returns the addresses of a batch's rows in the fragment."""
        return batch.column(ROW_ADDRESS)

    def _scan(self, offsets: Offsets) -> Iterator[pa.RecordBatch]:
        """Yields the rows with their addresses, and blobs as descriptors."""
        file = self._fragment.metadata
        # A scan of all live rows needs no mask. A mask costs more than the scan of a narrow column,
        # and 60 bytes per row.
        everything = len(offsets) == file.physical_rows - file.num_deletions
        mask = None if everything else rows_mask(self._dataset, self._fragment, offsets)
        try:
            with panics_as_errors():
                if mask is None and not everything:
                    yield from self._take(offsets)
                    return
                scanner = self._dataset.scanner(
                    columns=requested_columns(self._scanned),
                    fragments=[self._fragment],
                    row_addr_allowlist=mask,
                    with_row_address=True,
                    scan_in_order=True,
                    batch_size=self._batch_rows(),
                    batch_size_bytes=_SCAN_BYTES,
                    batch_readahead=1,
                    io_buffer_size=_SCAN_BUFFER_BYTES,
                    blob_handling="blobs_descriptions" if self._blobs else None,
                )
                yield from scanner.to_reader()
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            raise as_filter_error(error, self._dataset, self._fragment.fragment_id) from error

    def _batch_rows(self) -> int:
        """Returns the rows of a batch, from the sizes of the files in the manifest."""
        file = self._fragment.metadata
        stored_bytes = sum(data_file.file_size_bytes or 0 for data_file in file.files)
        row_bytes = stored_bytes // max(1, file.physical_rows)
        return max(1, min(_SCAN_ROWS, _SCAN_STORED_BYTES // max(1, row_bytes)))

    def _take(self, offsets: Offsets) -> Iterator[pa.RecordBatch]:
        """Takes rows by position if no mask exists, because a separate file holds the row ids."""
        for first in range(0, len(offsets), _TAKE_ROWS):
            part = offsets[first : first + _TAKE_ROWS]
            positions = self._rows.live_positions(self._fragment.fragment_id, part)
            table = self._fragment.take(positions, columns=self._scanned).combine_chunks()
            address = part.astype(np.uint64) | np.uint64(self._fragment.fragment_id << 32)
            yield from table.append_column(ROW_ADDRESS, pa.array(address)).to_batches()

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cuts a batch so that its blobs fit the buffer."""
        if not self._blobs:
            yield batch
            return
        sizes = np.sum([_blob_sizes(batch.column(name)) for name in self._blobs], axis=0)
        for first, end in _cut(sizes, self._blob_bytes):
            yield batch.slice(first, end - first)

    def _bytes(
        self, descriptors: pa.Array[Any], column: str, addresses: pa.Array[Any]
    ) -> pa.Array[Any]:
        """Returns the bytes of a blob column instead of its descriptors."""
        sizes = _blob_sizes(descriptors)
        try:
            with panics_as_errors():
                return _join_bytes(
                    self._read_blobs(column, addresses, sizes), len(sizes), int(sizes.sum())
                )
        except (ValueError, OSError, RuntimeError) as error:
            raise as_filter_error(error, self._dataset, self._fragment.fragment_id) from error

    def _read_blobs(
        self, column: str, addresses: pa.Array[Any], sizes: np.ndarray
    ) -> Iterator[bytes | None]:
        """Yields the bytes of each blob, a few MiB at a time."""
        if self._strategy == "legacy":
            for file in self._dataset.take_blobs(column, addresses=addresses):
                yield None if file is None else file.readall()
            return
        for first, end in _cut(sizes, _BLOB_READ_BYTES):
            part = addresses.slice(first, end - first)
            # Without a variable for the pairs: the next read begins after their end.
            yield from (
                value
                for _, value in self._dataset.read_blobs(
                    column, addresses=part, preserve_order=True, io_buffer_size=self._blob_bytes
                )
            )


def _blob_sizes(descriptors: pa.Array[Any]) -> np.ndarray:
    """Returns the bytes of each blob, 0 for NULL."""
    size: Any = pc.struct_field(descriptors, "size")
    return np.asarray(size.cast(pa.int64()).fill_null(0))


def _cut(sizes: np.ndarray, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the first row and the end of parts with at most `most_bytes`, or with a single row."""
    first, part_bytes = 0, 0
    for row, size in enumerate(sizes.tolist()):
        if row > first and part_bytes + size > most_bytes:
            yield first, row
            first, part_bytes = row, 0
        part_bytes += size
    if first < len(sizes):
        yield first, len(sizes)


def _join_bytes(values: Iterator[bytes | None], count: int, most_bytes: int) -> pa.Array[Any]:
    """Returns values as an array, without a second copy of all values.

    Args:
        values: The values.
        count: Number of values.
        most_bytes: Bytes of all values. More bytes cost a copy.
    """
    ends, is_valid = np.zeros(count + 1, dtype=np.int64), np.ones(count, dtype=np.bool_)
    data = memoryview(pa.allocate_buffer(most_bytes)).cast("B")
    end = 0
    for row, value in enumerate(values):
        if value is None:
            is_valid[row] = False
        else:
            if end + len(value) > len(data):  # the size of a blob in another file is unknown
                larger = memoryview(bytearray(end + max(len(value), end)))
                larger[:end] = data[:end]
                data = larger
            data[end : end + len(value)] = value
            end += len(value)
        ends[row + 1] = end
    validity = None if is_valid.all() else pa.array(is_valid).buffers()[1]
    buffers = [validity, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)
