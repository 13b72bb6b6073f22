"""Tasks that apply what Spark has found for each row. They run on executors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from lance_spark.dataset import DatasetRef
from lance_spark.dml.answers import Answer, answering
from lance_spark.dml.column_files import ColumnFiles
from lance_spark.dml.edits import MOST_BYTES, MOST_ROWS, add_moved, delete_rows
from lance_spark.errors import MergeError
from lance_spark.rows.row_addresses import SnapshotRows, row_ids
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.fragment_writer import FragmentSink
from lance_spark.types import WriteConverter

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

INSERT, UPDATE, DELETE = 0, 1, 2
"""What becomes of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Inserts, updates and deletes rows; a callable for Spark's `mapInArrow`.

    Rows come with the address of the row of the table (NULL for rows to insert), what becomes of
    it, and new values, ordered by address; all rows of a fragment come to one task. Memory: some
    batches of rows, and 16 bytes for each row of a fragment.

    Attributes:
        table: The version that the merge reads.
        values: Spark's schema of the new values.
        layout: Layout of files of all columns.
        kept: Columns whose values are for rows to insert; rows that are updated keep theirs.
    """

    table: DatasetRef
    staging: Staging
    values: StructType
    layout: FileLayout
    stable: bool
    kept: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Works on all rows, and yields one answer."""
        yield answering(lambda: _Task(self).run(batches))


class _Task:
    def __init__(self, apply: Apply) -> None:
        schema = apply.layout.row_schema
        given = [name for name in schema.names if name in apply.values.names]
        self._apply = apply
        self._rows = SnapshotRows(apply.table.open())
        self._schema = schema
        self._absent = [name for name in schema.names if name not in given]
        self._kept = [name for name in schema.names if name in self._absent or name in apply.kept]
        # A statement that only deletes has no values.
        self._converter = (
            WriteConverter(apply.values, pa.schema([schema.field(name) for name in given])) if given else None
        )
        self._inserted, self._moved = (
            FragmentSink(apply.staging, apply.layout, max_rows=MOST_ROWS, max_bytes=MOST_BYTES) for _ in range(2)
        )
        self._ids: list[np.ndarray] = []
        self._answer = Answer()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Answer:
        """Applies all rows."""
        try:
            for number, parts in itertools.groupby(by_fragment(batches), key=lambda part: part[0]):
                if number is None:
                    for _, _, _, values in parts:
                        self._insert(values)
                else:
                    self._change(self._rows.existing_fragment(number), parts)
            add_moved(self._answer, self._moved, self._ids if self._apply.stable else None)
            add_moved(self._answer, self._inserted, None)
        except BaseException:
            self._moved.abandon()
            self._inserted.abandon()
            raise
        return self._answer

    def _insert(self, values: pa.RecordBatch) -> None:
        rows = self._converted(values)
        columns = {name: pa.nulls(rows.num_rows, self._schema.field(name).type) for name in self._absent}
        self._inserted.write(self._complete(rows, columns))
        self._answer.inserted += rows.num_rows

    def _change(self, fragment: LanceFragment, parts: Iterator[tuple[Any, np.ndarray, np.ndarray, Any]]) -> None:
        touched, moved, last, before = [np.empty(0, np.int64)], [np.empty(0, np.int64)], -1, -1
        for _, every, action, given in parts:
            # A row may be deleted for several reasons.
            first = (
                (np.diff(every, prepend=last) != 0)
                | (action != DELETE)
                | (np.concatenate([[before], action[:-1]]) != DELETE)
            )
            offsets, actions, values = every[first], action[first], given.filter(pa.array(first))
            if not len(offsets):
                continue
            refuse_doubled(self._apply.table, fragment.fragment_id, offsets, last)
            last, before = int(offsets[-1]), int(actions[-1])
            updates = actions == UPDATE
            touched.append(offsets)
            if updates.any():
                moved.append(offsets[updates])
                self._move(fragment, offsets[updates], values.filter(pa.array(updates)))
        gone = np.concatenate(touched)
        changed = np.concatenate(moved)
        if len(changed) and self._apply.stable:
            self._ids.append(row_ids(fragment, changed).astype(np.uint64))
        delete_rows(fragment, gone, self._answer)
        self._answer.deleted -= len(changed)
        self._answer.changed += len(changed)

    def _move(self, fragment: LanceFragment, offsets: np.ndarray, values: pa.RecordBatch) -> None:
        rows = self._converted(values)
        columns: dict[str, Any] = {}
        if self._kept:
            at = self._rows.live_positions(fragment.fragment_id, offsets)
            taken = fragment.take(at, columns=self._kept).combine_chunks()
            columns = {name: _one(taken.column(name)) for name in self._kept}
        self._moved.write(self._complete(rows, columns))

    def _converted(self, values: pa.RecordBatch) -> pa.RecordBatch:
        assert self._converter is not None
        return self._converter.convert(values)

    def _complete(self, rows: pa.RecordBatch, others: dict[str, Any]) -> pa.RecordBatch:
        arrays = [others[field.name] if field.name in others else rows.column(field.name) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetColumns:
    """Writes values of rows into column files; a callable for Spark's `mapInArrow`.

    Rows come as those of :class:`Apply`, all of them to be updated.
    Memory: a window of a column file.

    Attributes:
        table: The version that the statement reads.
        values: Spark's schema of the new values.
    """

    table: DatasetRef
    staging: Staging
    values: StructType
    targets: Targets

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Works on all rows, and yields one answer."""
        yield answering(lambda: self._write(batches))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Answer:
        answer = Answer()
        schema = self.targets.schema
        converter = WriteConverter(self.values, schema)
        files = ColumnFiles(self.staging, SnapshotRows(self.table.open()), self.targets, answer)
        current, last = -1, -1
        try:
            for fragment, offsets, _, values in by_fragment(batches):
                assert fragment is not None
                last = last if fragment == current else -1
                refuse_doubled(self.table, fragment, offsets, last)
                current, last = fragment, int(offsets[-1])
                files.append(fragment, offsets, converter.convert(values).select(schema.names))
            files.close()
        except BaseException:
            files.discard()
            raise
        return answer


def refuse_doubled(table: DatasetRef, fragment: int, offsets: np.ndarray, last: int) -> None:
    """Refuses a row of the table that comes twice; `last` is the one before these, or -1.

    Raises:
        MergeError: There is one.
    """
    steps = np.diff(offsets, prepend=last)
    if (steps > 0).all():
        return
    address = fragment << 32 | int(offsets[np.flatnonzero(steps <= 0)[0]])
    raise MergeError(
        f"several rows of the source match one row of the table - row {address} (its address) of "
        f"{table.uri}, version {table.version} - nothing was changed - keep one row of "
        "each key in the source, for example with dropDuplicates"
    )


def by_fragment(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int | None, np.ndarray, np.ndarray, pa.RecordBatch]]:
    """Yields fragment (None for rows to insert), offsets, actions and values, in parts."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        addresses = batch.column(0).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        actions = batch.column(1).to_numpy()
        values = batch.select(batch.schema.names[2:])
        fragments = addresses >> 32
        cuts = [0, *(np.flatnonzero(np.diff(fragments)) + 1).tolist(), len(fragments)]
        for start, end in itertools.pairwise(cuts):
            number = int(fragments[start])
            part = slice(start, end)
            yield (
                None if number < 0 else number,
                addresses[part] & 0xFFFFFFFF,
                actions[part],
                values.slice(start, end - start),
            )


def _one(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)
