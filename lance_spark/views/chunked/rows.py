"""Tasks of a chunker's view: the selection of rows, and the rows of the view from their chunks.

They run on executors. :class:`RowsToChunk` selects the rows of a backfill that leaves its values in
checkpoints; a value is the place of the chunks of a row. Then :class:`ChunkPlacement` writes the
chunks as fragments of the view. Memory: some bytes a row of a range, two parts of chunks, and a
batch, for any number of chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from lance_spark.backfill.planning.selection import RangeRows, RowsWithoutValue
from lance_spark.backfill.reuse.round_context import chunks_of, context_of
from lance_spark.backfill.reuse.value_reuse import ValueFinder
from lance_spark.errors import counted
from lance_spark.rows.merge import Chunk, MissingFileError, Offsets, merge, streams_of
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, offsets_of
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.data_file import FragmentSink
from lance_spark.types.layout import aligned
from lance_spark.views.definition import CHILD_INDEX, SOURCE_ROW_ID
from lance_spark.views.placement import (
    PlacementSpec,
    RefreshTaskResult,
    RowIdSpill,
    SourceRows,
    changes_of,
)
from udf_runtime import UDF
from udf_runtime.checkpoint.chunks import ChunkReader, ChunksLostError

if TYPE_CHECKING:
    from lance_spark.backfill.task.messages import BackfillSpec
    from lance_spark.backfill.task.value_source import CallChunker

_BATCH_ROWS = 8192
_BATCH_BYTES = 8 << 20


class _Kept(threading.local):
    """The last ranges of a thread, because ranges of a fragment follow each other."""

    version: tuple[str, int | None] | None = None
    source: SourceRows | None = None
    fragment: int = -1
    rows: RowSet = RowSet.empty()


_KEPT = _Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToChunk(RowsWithoutValue):
    """The new and changed rows of the source, which a refresh has to chunk.

    Attributes:
        placement: The common data of the tasks of the refresh.
        again: Rows of fragments that an earlier refresh skipped.
    """

    placement: PlacementSpec
    again: Mapping[int, RowSet]

    def source(self) -> SourceRows:
        """Returns the rows of the source for this thread."""
        version = (self.placement.staging.job_id, self.placement.view.version)
        if _KEPT.source is None or _KEPT.version != version:
            _KEPT.source, _KEPT.version, _KEPT.fragment = SourceRows(self.placement), version, -1
        return _KEPT.source

    def select(self, rows: RangeRows) -> RowSet:
        """Returns the rows to chunk in a range of a fragment."""
        return self.rows(rows.fragment.fragment_id) & rows.span

    def rows(self, fragment_id: int) -> RowSet:
        """Returns the rows to chunk of a fragment."""
        source = self.source()
        if _KEPT.fragment != fragment_id:
            rows = source.to_chunk(fragment_id, source.since_base(fragment_id))
            if fragment_id in self.again:
                rows |= source.matching(fragment_id, self.again[fragment_id])
            _KEPT.rows, _KEPT.fragment = rows, fragment_id
        return _KEPT.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlacement:
    """A task that writes chunks as rows of the view.

    Attributes:
        calls: The finished calls of the chunker.
        fragments: Ids of fragments of the requested version.
        selects: The selection of chunked rows.
        skipped: Rows of fragments without chunks, because a policy skipped them.
        columns: Names of the columns in the chunks, and in the view.
    """

    calls: BackfillSpec
    fragments: tuple[int, ...]
    selects: RowsToChunk
    skipped: Mapping[int, RowSet]
    columns: tuple[tuple[str, str], ...]

    def run(self) -> RefreshTaskResult:
        """Writes the chunks of rows, and spills changed rows. Runs on an executor."""
        spec, result = self.selects.placement, RefreshTaskResult()
        rows, spill = _ChunkedRows(self), RowIdSpill(spec.staging, tasks=spec.tasks)
        with spec.write_fragments(spec.placed, result) as sink:
            for number in self.fragments:
                since = rows.source.since_base(number)
                result.new += len(since.new)
                result.unknown += since.unknown
                result.added += rows.write(number, sink)
                if since.changed:
                    spill.add(*changes_of(rows.source, number, since))
        spill.close(result)
        return result


class _ChunkedRows:
    """The rows of the view for rows of the source. Belongs to one task."""

    def __init__(self, placement: ChunkPlacement) -> None:
        self.source = placement.selects.source()
        self._placement = placement
        self._schema = placement.selects.placement.placed.row_schema
        context = context_of(placement.calls)
        context.begin_task()
        self._finder = ValueFinder(context, self.source.rows)
        chunker = cast("CallChunker", placement.calls.value_source)
        fields = cast("Sequence[pa.Field[Any]]", UDF.loads(chunker.udf).data_type)
        self._reader = ChunkReader(chunks_of(placement.calls), pa.schema(list(fields)))

    def write(self, fragment_id: int, sink: FragmentSink) -> int:
        """Writes the chunks of the rows of a fragment, and returns the number of chunks.

        Raises:
            ChunksLostError: Another process deletes checkpoints during the refresh.
        """
        placement = self._placement
        fragment = self.source.rows.existing_fragment(fragment_id).metadata
        rows = placement.selects.rows(fragment_id)
        skipped = placement.skipped.get(fragment_id, RowSet.empty())
        chunked_rows = rows - skipped
        if not chunked_rows:
            return 0
        reused_values = self._finder.find(fragment, chunked_rows)
        if len(reused_values.rows) < len(chunked_rows):
            raise _lost(len(chunked_rows) - len(reused_values.rows), fragment_id)
        places = _Found(merge(streams_of(reused_values.pieces)))
        row_count = 0
        try:
            for batch in self.source.scan(fragment_id, chunked_rows):
                if batch.num_rows:
                    for part in self._rows_of(batch, places, fragment_id):
                        sink.write(part)
                        row_count += part.num_rows
        except MissingFileError as error:
            raise ChunksLostError(str(error)) from error
        return row_count

    def _rows_of(
        self, batch: pa.RecordBatch, found: _Found, fragment_id: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the view for a batch of the source."""
        offsets = offsets_of(batch.column(ROW_ADDRESS).to_numpy())
        at, places = found.upto(int(offsets[-1]))
        if not np.array_equal(at, offsets):
            raise _lost(len(offsets), fragment_id)
        most = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
        view_names = {column: name for name, column in self._placement.columns}
        for row, child, chunks in self._reader.batches(
            places, max_rows=most, max_bytes=_BATCH_BYTES
        ):
            arrays = []
            for field in self._schema:
                if field.name == SOURCE_ROW_ID:
                    array: Any = batch.column(ROW_ID).cast(pa.int64()).take(pa.array(row))
                elif field.name == CHILD_INDEX:
                    array = pa.array(child)
                elif field.name in view_names:
                    array = chunks.column(view_names[field.name])
                else:
                    array = batch.column(field.name).take(pa.array(row))
                arrays.append(
                    aligned(array if array.type == field.type else array.cast(field.type))
                )
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Found:
    """The places of the chunks of rows, in the order of the rows, taken in parts."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: list[Chunk] = []

    def upto(self, last: int) -> tuple[Offsets, pa.StructArray]:
        """Returns the remaining rows up to a limit, and the places of their chunks."""
        while not self._held or self._held[-1][0][-1] < last:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            if len(chunk[0]):
                self._held.append(chunk)
        if not self._held:
            raise _lost(1, -1)
        offsets = np.concatenate([part[0] for part in self._held])
        values: Any = pa.concat_arrays([part[1] for part in self._held])
        cut = int(np.searchsorted(offsets, last, side="right"))
        self._held = [(offsets[cut:], values.slice(cut))] if cut < len(offsets) else []
        return offsets[:cut], values.slice(0, cut)


def _lost(rows: int, fragment_id: int) -> ChunksLostError:
    return ChunksLostError(
        f"The chunks of {counted(rows, 'row')} in fragment {fragment_id} of the source are missing, and are made again."
    )
