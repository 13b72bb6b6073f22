"""Writes a task's rows as fragments, in successive data files. Runs on an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.staging.file_layout import FileLayout, explain_refusal

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from lance_spark.staging.area import Attempt, Staging
    from lance_spark.staging.data_file import StagedFile


class FragmentSink:
    """Writes batches as fragments. Belongs to a single task; the first row creates the first file.

    Memory: the current batch, and the pages not yet written by Lance.
    """

    def __init__(self, staging: Staging, layout: FileLayout, *, max_rows: int, max_bytes: int) -> None:
        """Takes the size of a full file: exactly `max_rows`, or a batch past `max_bytes`."""
        self._staging = staging
        self._layout = layout
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._attempt: Attempt | None = None
        self._file: StagedFile | None = None
        self._rows = 0
        self._bytes = 0
        self._fragments: list[FragmentMetadata] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes rows of the layout's `row_schema`, with aligned buffers.

        Raises:
            UnsupportedTypeError: The file format cannot hold a value, such as a NULL struct in 2.0.
            CommitError: The job ended before this attempt finished.
        """
        while batch.num_rows:
            if self._file is None:
                self._attempt = self._attempt or self._staging.begin_attempt()
                self._file = self._attempt.open_data_file(self._layout.row_schema, version=self._layout.version)
                self._rows = self._bytes = 0
            part = batch.slice(0, self._max_rows - self._rows)
            batch = batch.slice(part.num_rows)
            self._write_part(self._file, part)
            if self._rows >= self._max_rows or self._bytes >= self._max_bytes:
                self._close()

    def finish(self) -> tuple[FragmentMetadata, ...]:
        """Closes the last file and returns the fragments, in the order of the rows."""
        self._close()
        return tuple(self._fragments)

    def abandon(self) -> None:
        """Discards the open file after an error; the end of the job deletes the finished files."""
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _write_part(self, file: StagedFile, part: pa.RecordBatch) -> None:
        try:
            file.write_batch(part)
        except (ValueError, NotImplementedError) as error:
            raise explain_refusal(self._layout.row_schema, self._layout.version, error, part) from error
        self._rows += part.num_rows
        self._bytes += part.nbytes

    def _close(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        rows = file.close()
        self._fragments.append(self._layout.fragment(file.name, rows=rows, size_bytes=file.size_bytes))
