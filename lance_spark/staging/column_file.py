"""Column files: one Lance file with new values of columns for every physical row of one fragment.

Rows come in ascending order of their position, in any number. Rows without a given value keep the
column's old value, or are NULL in a new column. Only the target columns are read, and only in
windows with gaps. A window bounds the memory, regardless of the fragment's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.commit.changes import FragmentColumns, StagedColumns
from lance_spark.errors import CommitError, ValueConversionError
from lance_spark.rows.row_addresses import (
    DUPLICATE,
    Addresses,
    Rejected,
    SnapshotRows,
    fragments_of,
    offsets_of,
    runs_of,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import OPEN_FILES, Staging
from lance_spark.staging.attempt import Attempt
from lance_spark.staging.blobs import is_logical_blob, row_field
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.null_marks import NullMarks
from lance_spark.types.fields import requested_columns

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, LanceFragment

_WINDOW_BYTES = 16 << 20
_MOST_WINDOW_ROWS = 1 << 16
_LEAST_WINDOW_ROWS = 64
_FIRST_WINDOW_ROWS = 256
"""Rows of old values to read before their width is known. Their size on storage is no measure,
because storage is compressed."""
_FIRST_BLOBS = 8
"""The same for columns with blobs."""
_CLOSED_BEHIND_BYTES = 8 << 20
"""Most bytes of values in a file that is finished behind the next rows. A larger file is uploaded
while its rows arrive, and its end would keep several such files in memory."""
_MOST_SMALL_FILES = 4
"""Maximum number of such files in progress. As many bytes in more files may be in progress, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The columns written by a backfill. Picklable.

    Attributes:
        schema: Fields of the columns as in rows: blobs as `large_binary`.
        existing: Names of the columns of the snapshot. Gaps keep the old values of these columns,
            and are NULL in new columns.
        format: Lance file format of the table, for example `2.1`.
    """

    schema: pa.Schema
    existing: tuple[str, ...]
    format: str

    @property
    def blobs(self) -> tuple[str, ...]:
        """Names of the blob columns."""
        return tuple(field.name for field in self.schema if is_logical_blob(field))


class ColumnFile:
    """The column file of a fragment, and the rows given so far. Belongs to a single task."""

    def __init__(
        self, attempt: Attempt, rows: SnapshotRows, fragment: LanceFragment, targets: Targets
    ) -> None:
        self.given = RowSet.empty()
        self._snapshot = rows
        self._fragment = fragment
        self._targets = targets
        self._physical_rows: int = fragment.metadata.physical_rows
        self._file = attempt.open_data_file(targets.schema, version=targets.format)
        self._old_row_bytes: int | None = None
        self._next = 0
        self._pending: list[tuple[NDArray[np.int64], pa.RecordBatch]] = []
        self._pending_bytes = 0
        self._written_bytes = 0

    @property
    def rows(self) -> int:
        """Number of rows given so far."""
        return len(self.given)

    def append(self, offsets: NDArray[np.int64], values: pa.RecordBatch) -> None:
        """Adds rows, in the columns and types of the targets, strictly ascending over all calls."""
        if len(offsets) == 0:
            return
        self.given |= RowSet.of(offsets)
        self._pending.append((offsets, values))
        self._pending_bytes += values.nbytes
        if (
            self._pending_bytes >= _WINDOW_BYTES
            or int(offsets[-1]) + 1 - self._next >= _MOST_WINDOW_ROWS
        ):
            self._flush(int(offsets[-1]) + 1)

    @property
    def is_tiny(self) -> bool:
        """Whether the file may be finished at once with many other files."""
        return self._written_bytes * OPEN_FILES <= _CLOSED_BEHIND_BYTES * _MOST_SMALL_FILES

    @property
    def is_small(self) -> bool:
        """Whether the file may be finished behind the next rows."""
        return self._written_bytes <= _CLOSED_BEHIND_BYTES

    def mark_nulls(self, marks: NullMarks) -> None:
        """Notes the rows computed as NULL in the metadata of the file."""
        self._file.add_metadata(marks.metadata)

    def close(self) -> FragmentColumns:
        """Fills the remaining rows and finishes the file."""
        self.fill()
        return self.finish()

    def fill(self) -> None:
        """Writes the remaining rows. Reads the snapshot, in the thread of the task."""
        self._flush(self._physical_rows)

    def finish(self) -> FragmentColumns:
        """Finishes the file after its last row, in any thread."""
        rows = self._file.close()
        if rows != self._physical_rows:
            raise CommitError(
                f"A column file has {rows} rows for a fragment of {self._physical_rows}, by a fault of lance-spark. "
                f"Fragment: {self._fragment.fragment_id}. File: {self._file.name}. Nothing was committed. Report the "
                "fault.",
                uri=self._file.name,
            )
        return FragmentColumns(
            fragment=self._fragment.metadata,
            staged=StagedColumns(name=self._file.name, size_bytes=self._file.size_bytes),
            given=self.given,
        )

    def discard(self) -> None:
        """Discards the file after an error."""
        self._file.discard()

    def _flush(self, end: int) -> None:
        schema = self._targets.schema
        offsets = (
            np.concatenate([part[0] for part in self._pending])
            if self._pending
            else np.empty(0, dtype=np.int64)
        )
        values = pa.Table.from_batches([part[1] for part in self._pending], schema=schema)
        value_bytes = self._pending_bytes // max(len(offsets), 1)
        self._pending, self._pending_bytes = [], 0
        # If every row is given, no old row is read and the width of old rows does not matter.
        # Windows of 256 rows took as long as all other work on a narrow column.
        is_complete = len(offsets) == end - self._next
        while self._next < end:
            stop = end if is_complete else min(self._next + self._window_rows(value_bytes), end)
            first, last = np.searchsorted(offsets, [self._next, stop])
            self._write_window(stop, offsets[first:last], values.slice(first, last - first))
            self._next = stop

    def _window_rows(self, given_row_bytes: int) -> int:
        if self._targets.existing and self._old_row_bytes is None:
            return _FIRST_BLOBS if self._targets.blobs else _FIRST_WINDOW_ROWS
        width = sum(fixed_bytes(field.type) for field in self._targets.schema)
        rows = _WINDOW_BYTES // max(given_row_bytes, self._old_row_bytes or 0, width, 1)
        return max(1 if self._targets.blobs else _LEAST_WINDOW_ROWS, min(rows, _MOST_WINDOW_ROWS))

    def _write_window(self, stop: int, offsets: NDArray[np.int64], values: pa.Table) -> None:
        """Writes the rows `next` to `stop`."""
        rows = stop - self._next
        if len(offsets) == rows:
            for batch in values.to_batches():
                self._write(batch)
            return
        positions = np.full(rows, -1, dtype=np.int64)
        positions[offsets - self._next] = np.arange(len(offsets))
        is_gap = positions < 0
        nullable: Any = pa.array(positions, type=pa.int64(), mask=is_gap)
        old_rows = self._read_old(self._next, rows) if self._targets.existing else None
        merged: Any = np.where(is_gap, np.arange(rows), positions + rows)
        columns = []
        for field in self._targets.schema:
            new = values.column(field.name)
            if old_rows is None or field.name not in self._targets.existing:
                column = (
                    new.take(nullable)
                    if len(offsets)
                    else pa.chunked_array([pa.nulls(rows, field.type)])
                )
            else:
                column = old_rows.column(field.name)
                if len(offsets):
                    both = pa.chunked_array([*column.chunks, *new.chunks], type=field.type)
                    column = both.take(pa.array(merged))
            columns.append(column)
        for batch in (
            pa.Table.from_arrays(columns, schema=self._targets.schema).combine_chunks().to_batches()
        ):
            self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._written_bytes += batch.nbytes
        try:
            self._file.write_batch(batch)
        except ValueError as error:
            raise ValueConversionError(
                ", ".join(self._targets.schema.names),
                None,
                f"Lance cannot store the values: {error}",
                hint=f"the table's file format is {self._targets.format}",
            ) from error

    def _read_old(self, start: int, rows: int) -> pa.Table:
        """Reads the snapshot's values of a window."""
        blobs = [name for name in self._targets.existing if name in self._targets.blobs]
        old_rows = self._scan_old(
            start, rows, [name for name in self._targets.existing if name not in blobs]
        )
        for name in blobs:
            old_rows = old_rows.append_column(
                self._targets.schema.field(name), self._read_blobs(name, start, rows)
            )
        # The maximum so far: rows of one fragment often have similar widths, and windows that are
        # too small cost little.
        self._old_row_bytes = max(self._old_row_bytes or 0, old_rows.nbytes // rows)
        return old_rows.select(list(self._targets.existing))

    def _read_blobs(self, column: str, start: int, rows: int) -> pa.Array[Any]:
        """Reads the bytes of a window's blobs; a deleted row has none."""
        first = self._fragment.fragment_id << 32 | start
        deleted = self._snapshot.deleted(self._fragment.fragment_id)
        live = [first + row for row in range(rows) if deleted is None or not deleted[start + row]]
        payloads = dict(
            self._snapshot.dataset.read_blobs(column, addresses=live, preserve_order=True)
            if live
            else []
        )
        blobs: pa.Array[Any] = pa.array(
            [payloads.get(first + row) for row in range(rows)], type=pa.large_binary()
        )
        return blobs

    def _scan_old(self, start: int, rows: int, names: list[str]) -> pa.Table:
        # With deleted rows included, positions are physical positions (measured).
        scanner = self._fragment.scanner(
            columns=requested_columns(names),
            offset=start,
            limit=rows,
            include_deleted_rows=True,
            with_row_id=True,
            batch_size=rows,
        )
        table: pa.Table = scanner.to_table().select(names)
        if table.num_rows != rows:
            raise CommitError(
                f"The snapshot returned {table.num_rows} of {rows} old values. Fragment: "
                f"{self._fragment.fragment_id}, rows {start} to {start + rows - 1}. Nothing was committed. Check that "
                "the table's files exist.",
                uri=self._file.name,
            )
        return table


class _FileCloser:
    """Finishes the column files of an attempt, in the order of their fragments.

    On an object store, the task takes the next rows at the same time, with up to
    :data:`~lance_spark.staging.area.OPEN_FILES` small files in progress.
    """

    def __init__(self, staging: Staging) -> None:
        self._pool = (
            ThreadPoolExecutor(OPEN_FILES, "lance-spark-close") if staging.open_files > 1 else None
        )
        self._files: list[Future[FragmentColumns]] = []

    def add(self, file: ColumnFile) -> None:
        """Finishes a file, or has the file finished.

        Raises:
            Exception: The error of this file or of an earlier file.
        """
        file.fill()
        if self._pool is not None and file.is_small:
            count = OPEN_FILES if file.is_tiny else _MOST_SMALL_FILES
            if len(self._files) >= count:
                self._files[-count].result()
            self._files.append(self._pool.submit(file.finish))
            return
        for unfinished in self._files[-OPEN_FILES:]:
            unfinished.result()
        finished: Future[FragmentColumns] = Future()
        finished.set_result(file.finish())
        self._files.append(finished)

    def results(self) -> tuple[FragmentColumns, ...]:
        """Waits for all files.

        Raises:
            Exception: The first error of a file.
        """
        return tuple(file.result() for file in self._files)

    def end(self) -> None:
        """Waits until no file is being finished."""
        if self._pool is not None:
            self._pool.shutdown()


class ColumnFileWriter:
    """Writes the column files of successive fragments. Belongs to a single task.

    The order of the rows is checked: a repeated fragment or a late row raises an error.
    """

    def __init__(
        self, attempt: Attempt, rows: SnapshotRows, targets: Targets, rejected: Rejected
    ) -> None:
        self._attempt = attempt
        self._rows = rows
        self._targets = targets
        self._rejected = rejected
        self._seen: set[int] = set()
        self._current = -1
        self._file: ColumnFile | None = None
        self._last = -1
        self._closer = _FileCloser(attempt.staging)

    def write(
        self, batches: Iterable[tuple[Addresses, pa.RecordBatch]]
    ) -> tuple[FragmentColumns, ...]:
        """Writes live rows of the snapshot, and counts rows that repeat the row before.

        Raises:
            CommitError: The rows of a fragment are not contiguous, or not ascending.
        """
        try:
            for addresses, values in batches:
                self._append(addresses, values)
            self._close_file()
            return self._closer.results()
        except BaseException:
            if self._file is not None:
                self._file.discard()
            raise
        finally:
            self._closer.end()

    def _append(self, addresses: Addresses, values: pa.RecordBatch) -> None:
        offsets = offsets_of(addresses)
        for fragment_id, start, end in runs_of(fragments_of(addresses)):
            file = self._open_file(fragment_id)
            part = offsets[start:end]
            steps = np.diff(part, prepend=self._last)
            if (steps < 0).any():
                raise self._order_error(fragment_id)
            self._last = int(part[-1])
            chosen = values.slice(start, end - start)
            twice = steps == 0
            if twice.any():
                self._rejected.add(DUPLICATE, int(twice.sum()), addresses[start:end][twice])
                chosen, part = chosen.filter(pa.array(~twice)), part[~twice]
            file.append(part, chosen)

    def _open_file(self, fragment_id: int) -> ColumnFile:
        if self._file is not None and self._current == fragment_id:
            return self._file
        self._close_file()
        fragment = self._rows.fragment(fragment_id)
        if fragment is None or fragment_id in self._seen:
            raise self._order_error(fragment_id)
        self._seen.add(fragment_id)
        self._current, self._last = fragment_id, -1
        self._file = ColumnFile(self._attempt, self._rows, fragment, self._targets)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._closer.add(self._file)
            self._file = None

    def _order_error(self, fragment_id: int) -> CommitError:
        return CommitError(
            "The rows of a fragment did not arrive together and in order, as the planner rule promised. Fragment: "
            f"{fragment_id} of {self._rows.dataset.uri}. Nothing was committed. Call "
            "lance_spark.disable_pushdown(spark), and write again.",
            uri=self._rows.dataset.uri,
        )


def fixed_bytes(type: pa.DataType) -> int:
    """Returns the minimum size of a value; a NULL list of fixed size takes as many bytes."""
    if isinstance(type, pa.BaseExtensionType):
        return fixed_bytes(type.storage_type)
    if pa.types.is_fixed_size_list(type):
        return int(type.list_size) * max(fixed_bytes(type.value_type), 1)
    if pa.types.is_struct(type):
        return sum(fixed_bytes(type.field(i).type) for i in range(type.num_fields))
    try:
        return max(int(type.bit_width) // 8, 1)
    except ValueError:
        return 4


class NullColumnFiles:
    """Stages files of old values or NULLs; a :class:`~lance_spark.commit.verify.Stage`.

    Versions may name these files, even if the job as a whole committed nothing.
    """

    def __init__(self, staging: Staging, file_format: str) -> None:
        self.names: list[str] = []
        self._staging = staging
        self._format = file_format

    def restore(
        self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]
    ) -> StagedColumns:
        """Writes a file with the columns' values in a version's fragment."""
        return self._write(dataset, fragment_id, columns, tuple(columns))

    def blank(
        self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]
    ) -> StagedColumns:
        """Writes a file in which columns of a version's fragment are NULL."""
        return self._write(dataset, fragment_id, columns, ())

    def missing(self, names: Sequence[str]) -> list[str]:
        """Returns the names of absent data files."""
        return self._staging.find_missing(names)

    def entry(self, dataset: lance.LanceDataset, columns: Sequence[str]) -> DataFile:
        """Returns the entry of a file with columns of a version, without a request to the store."""
        return FileLayout.of_file(dataset, columns)

    def _write(
        self,
        dataset: lance.LanceDataset,
        fragment_id: int,
        columns: Sequence[str],
        existing: tuple[str, ...],
    ) -> StagedColumns:
        table = dataset.schema
        schema = pa.schema([row_field(table.field(name)) for name in columns])
        targets = Targets(schema=schema, existing=existing, format=self._format)
        rows = SnapshotRows(dataset)
        fragment = rows.fragment(fragment_id)
        if fragment is None:
            raise KeyError(fragment_id)
        staged = ColumnFile(self._staging.begin_attempt(), rows, fragment, targets).close().staged
        self.names.append(staged.name)
        return staged
