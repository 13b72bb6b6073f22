"""Lance data files while they are written: a file, and the fragments of a task."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.errors import TableUnwritableError, refusals_as_errors
from lance_spark.locations import is_local
from lance_spark.staging.blobs import BlobEncoder, file_field
from lance_spark.staging.file_layout import FileLayout, explain_refusal
from lance_spark.types.layout import from_start

if TYPE_CHECKING:
    from lance.file import LanceFileWriter
    from lance.fragment import FragmentMetadata

    from lance_spark.staging.area import Staging
    from lance_spark.staging.attempt import Attempt

_CACHE_BYTES_PER_COLUMN = 8 << 20
_CACHE_BYTES = 256 << 20
"""Lance keeps 8 MiB of unwritten values per column: 8 GiB for a table of a thousand columns. From
32 columns on, all columns share this limit."""

_MOVES = 3
"""Number of tries to move a finished file into a folder. Another job may have emptied the folder,
and may delete the folder at the same moment."""


class StagedFile:
    """A data file of an attempt; :meth:`close` puts the file into the table's `data/` as `name`.

    On a local file system, Lance writes into a temporary file with a random name next to the final
    file, and a killed process leaves that temporary file. The writer therefore writes into the
    attempt's folder and renames the finished file into `data/`. An object store shows only complete
    objects, so a file on an object store is written in place.

    Attributes:
        name: Name in `data/`, as a `DataFile` expects.
        size_bytes: Size of the closed file.
    """

    def __init__(self, attempt: Attempt, name: str, schema: pa.Schema, *, version: str) -> None:
        self.name = name
        self.size_bytes: int | None = None
        self._attempt = attempt
        self._uri = attempt.staging.uri
        self._path = f"{attempt.folder}/{name}" if is_local(self._uri) else f"data/{name}"
        stored = pa.schema([file_field(field, version) for field in schema])
        session = attempt.staging.session
        self._blobs = (
            None
            if stored.types == schema.types
            else BlobEncoder(session, self._path, schema, stored)
        )
        cache = _CACHE_BYTES if len(schema) * _CACHE_BYTES_PER_COLUMN > _CACHE_BYTES else None
        with refusals_as_errors(self._uri):
            self._writer: LanceFileWriter = session.open_writer(
                self._path, schema=stored, version=version, data_cache_bytes=cache
            )

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Writes rows; their buffers must be aligned, since Lance panics otherwise."""
        with refusals_as_errors(self._uri):
            self._writer.write_batch(
                from_start(batch if self._blobs is None else self._blobs.encode(batch))
            )

    def add_metadata(self, metadata: Mapping[str, str]) -> None:
        """Adds metadata to the file."""
        for name, text in metadata.items():
            self._writer.add_schema_metadata(name, text)

    def close(self) -> int:
        """Finishes the file, moves the file to `name`, and returns its number of rows.

        Raises:
            CommitError: The job ended before this attempt finished. The attempt has left no file.
            TableUnwritableError: The store refused.
        """
        try:
            with refusals_as_errors(self._uri):
                if self._blobs is not None:
                    self._blobs.finish()
                rows = self._writer.close()
                if is_local(self._uri):
                    self._publish()
        except TableUnwritableError as error:
            # The sweep may have deleted the folder at the same time.
            if self._attempt.clear_if_over():
                raise self._attempt.too_late() from error
            raise
        if self._attempt.clear_if_over():
            raise self._attempt.too_late()
        self._attempt.confirm(self.name)
        self.size_bytes = self._writer.size_bytes
        return rows or 0

    def discard(self) -> None:
        """Discards the file after an error.

        :meth:`Staging.sweep` deletes the parts of the file, or this method does if the sweep is
        over.
        """
        # Dropping the last reference makes Lance delete its temporary file, or abandon the upload.
        del self._writer
        self._blobs = None
        self._attempt.clear_if_over()

    def _publish(self) -> None:
        source, target = (
            os.path.join(self._uri, self._path),
            os.path.join(self._uri, "data", self.name),
        )
        sidecars = source.removesuffix(".lance")
        if os.path.isdir(sidecars):
            # Sidecars are moved first, so that the file always has them.
            _move(sidecars, target.removesuffix(".lance"))
        _move(source, target)


def _move(source: str, target: str) -> None:
    for _ in range(_MOVES):
        # FileExistsError: the folder existed, and was gone when `makedirs` checked its kind.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            return os.rename(source, target)
    return os.rename(source, target)


class FragmentSink:
    """Writes batches as fragments. Belongs to a single task; the first row creates the first file.

    Memory: the current batch, and the pages not yet written by Lance.
    """

    def __init__(
        self, staging: Staging, layout: FileLayout, *, max_rows: int, max_bytes: int
    ) -> None:
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
                self._file = self._attempt.open_data_file(
                    self._layout.row_schema, version=self._layout.version
                )
                self._rows = self._bytes = 0
            part = batch.slice(0, self._max_rows - self._rows)
            batch = batch.slice(part.num_rows)
            self._write_part(self._file, part)
            if self._rows >= self._max_rows or self._bytes >= self._max_bytes:
                self._close()

    def finish(self) -> tuple[FragmentMetadata, ...]:
        """Closes the last file and returns the fragments, in the order of the rows.

        Raises:
            CommitError: The job ended before this attempt finished.
        """
        self._close()
        if self._attempt is not None and self._attempt.end():
            raise self._attempt.too_late()
        return tuple(self._fragments)

    def abandon(self) -> None:
        """Discards the open file and the finished files after an error."""
        if self._file is not None:
            self._file.discard()
            self._file = None
        if self._attempt is not None:
            self._attempt.abandon()

    def _write_part(self, file: StagedFile, part: pa.RecordBatch) -> None:
        try:
            file.write_batch(part)
        except (ValueError, NotImplementedError) as error:
            raise explain_refusal(
                self._layout.row_schema, self._layout.version, error, part
            ) from error
        self._rows += part.num_rows
        self._bytes += part.nbytes

    def _close(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        rows = file.close()
        self._fragments.append(
            self._layout.fragment(file.name, rows=rows, size_bytes=file.size_bytes)
        )
