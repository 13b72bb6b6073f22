"""Tasks that apply the actions that Spark has computed for rows. Run on executors."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from lance_spark.dataset import DatasetRef
from lance_spark.dml import strategy
from lance_spark.dml.column_files import ColumnFiles
from lance_spark.dml.edits import MOST_BYTES, MOST_ROWS, add_moved, delete_rows
from lance_spark.dml.results import RowEditResult
from lance_spark.dml.source import plain_key
from lance_spark.dml.strategy import TASK_BYTES
from lance_spark.errors import MergeError
from lance_spark.rows.row_addresses import (
    ROW_ADDRESS,
    SnapshotRows,
    fragments_of,
    offsets_of,
    row_ids,
    runs_of,
)
from lance_spark.spark_jobs.tasks import answer_or_error
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets
from lance_spark.staging.data_file import FragmentSink
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types import ReadConverter, WriteConverter
from lance_spark.types.fields import requested_columns

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

INSERT, UPDATE, DELETE = 0, 1, 2
"""The action for a row."""

ACTION = "_rowoffset"
"""Name of the column of actions: reserved by Lance, so no table has a column of the name."""

_BATCH_ROWS = 8192

_NO_FRAGMENT = 0xFFFF_FFFF
"""In place of the fragment of rows to insert. Their address is -1."""


class _RowTask(ABC):
    """A callable for Spark's `mapInArrow` that edits rows."""

    __slots__ = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Edits all rows, and yields the answer."""
        yield answer_or_error(lambda: self.run(batches), batches)

    @abstractmethod
    def run(self, batches: Iterator[pa.RecordBatch]) -> RowEditResult:
        """Edits all rows, and returns the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(_RowTask):
    """Inserts, updates and deletes rows; a callable for Spark's `mapInArrow`.

    A row has the address of the table's row (NULL for inserts), the action, and new values. Rows
    are ordered by address, and all rows of a fragment are in one task. Memory: some batches of
    rows, and 16 bytes for each row of a fragment.

    Attributes:
        table: The version of the merge.
        values: Spark's schema of the new values.
        layout: Layout of files with all columns.
        insert_only: Columns with values for inserts only. Updated rows keep their values.
    """

    table: DatasetRef
    staging: Staging
    values: StructType
    layout: FileLayout
    stable: bool
    insert_only: tuple[str, ...] = ()

    def run(self, batches: Iterator[pa.RecordBatch]) -> RowEditResult:
        """Applies all rows, and returns the result."""
        return _Task(self).run(batches)


class _Task:
    def __init__(self, apply: Apply) -> None:
        schema = apply.layout.row_schema
        absent = _without(schema.names, apply.values.names)
        columns = _without(schema.names, absent)
        updated_columns = _without(columns, apply.insert_only)
        self._apply = apply
        self._rows = SnapshotRows(apply.table.open())
        self._schema = schema
        self._absent = absent
        self._kept_columns = _without(schema.names, updated_columns)
        self._insert_converter = _RowConverter(apply.values, schema, columns)
        # An update has NULL in place of values for inserts only, which a NOT NULL column refuses.
        self._update_converter = _RowConverter(apply.values, schema, updated_columns)
        self._inserted, self._moved = (
            FragmentSink(apply.staging, apply.layout, max_rows=MOST_ROWS, max_bytes=MOST_BYTES)
            for _ in range(2)
        )
        self._ids: list[np.ndarray] = []
        self._result = RowEditResult()

    def run(self, batches: Iterator[pa.RecordBatch]) -> RowEditResult:
        """Applies all rows."""
        try:
            for number, parts in itertools.groupby(by_fragment(batches), key=lambda part: part[0]):
                if number is None:
                    for _, _, _, values in parts:
                        self._insert(values)
                else:
                    self._change(self._rows.existing_fragment(number), parts)
            add_moved(self._result, self._moved, self._ids if self._apply.stable else None)
            add_moved(self._result, self._inserted, None)
        except BaseException:
            self._moved.abandon()
            self._inserted.abandon()
            raise
        return self._result

    def _insert(self, values: pa.RecordBatch) -> None:
        rows = self._insert_converter.convert(values)
        columns = {
            name: pa.nulls(rows.num_rows, self._schema.field(name).type) for name in self._absent
        }
        self._inserted.write(self._complete(rows, columns))
        self._result.inserted += rows.num_rows

    def _change(
        self, fragment: LanceFragment, parts: Iterator[tuple[Any, np.ndarray, np.ndarray, Any]]
    ) -> None:
        touched, moved_offsets, last, before = (
            [np.empty(0, np.int64)],
            [np.empty(0, np.int64)],
            -1,
            -1,
        )
        for _, every, action, part_values in parts:
            # Several deletions of a row count once.
            first = (
                (np.diff(every, prepend=last) != 0)
                | (action != DELETE)
                | (np.concatenate([[before], action[:-1]]) != DELETE)
            )
            offsets, actions, values = (
                every[first],
                action[first],
                part_values.filter(pa.array(first)),
            )
            if not len(offsets):
                continue
            refuse_doubled(self._apply.table, fragment.fragment_id, offsets, last)
            last, before = int(offsets[-1]), int(actions[-1])
            updates = actions == UPDATE
            touched.append(offsets)
            if updates.any():
                moved_offsets.append(offsets[updates])
                self._move(fragment, offsets[updates], values.filter(pa.array(updates)))
        deleted_offsets = np.concatenate(touched)
        changed = np.concatenate(moved_offsets)
        if len(changed) and self._apply.stable:
            self._ids.append(row_ids(fragment, changed).astype(np.uint64))
        delete_rows(fragment, deleted_offsets, self._result)
        self._result.deleted -= len(changed)
        self._result.changed += len(changed)

    def _move(self, fragment: LanceFragment, offsets: np.ndarray, values: pa.RecordBatch) -> None:
        rows = self._update_converter.convert(values)
        columns: dict[str, Any] = {}
        if self._kept_columns:
            at = self._rows.live_positions(fragment.fragment_id, offsets)
            current_values = fragment.take(at, columns=self._kept_columns).combine_chunks()
            columns = {
                name: _combine_chunks(current_values.column(name)) for name in self._kept_columns
            }
        self._moved.write(self._complete(rows, columns))

    def _complete(self, rows: pa.RecordBatch, other_columns: dict[str, Any]) -> pa.RecordBatch:
        arrays = [
            other_columns[field.name] if field.name in other_columns else rows.column(field.name)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _without(names: Sequence[str], excluded: Collection[str]) -> list[str]:
    excluded = frozenset(excluded)
    return [name for name in names if name not in excluded]


class _RowConverter:
    """Converts some of the columns of Spark's rows to the types of the table."""

    def __init__(self, source: StructType, target: pa.Schema, names: Sequence[str]) -> None:
        chosen = frozenset(names)
        fields = [field for field in source.fields if field.name in chosen]
        self._names = [field.name for field in fields]
        schema = pa.schema([target.field(name) for name in names])
        self._converter = WriteConverter(StructType(fields), schema) if names else None

    def convert(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Converts the chosen columns of a batch."""
        chosen = values.select(self._names)
        return chosen if self._converter is None else self._converter.convert(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetColumns(_RowTask):
    """Writes values of rows into column files; a callable for Spark's `mapInArrow`.

    Rows have the form of :class:`Apply`, and are all updates.
    Memory: a window of a column file.

    Attributes:
        table: The version of the statement.
        values: Spark's schema of the new values.
    """

    table: DatasetRef
    staging: Staging
    values: StructType
    targets: Targets

    def run(self, batches: Iterator[pa.RecordBatch]) -> RowEditResult:
        """Writes all rows, and returns the result."""
        result = RowEditResult()
        schema = self.targets.schema
        converter = WriteConverter(self.values, schema)
        files = ColumnFiles(self.staging, SnapshotRows(self.table.open()), self.targets, result)
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
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOrMove(_RowTask):
    """Updates rows by the cheaper strategy; a callable for Spark's `mapInArrow`.

    One task gets all rows of the statement. Memory: 64 MiB of rows. Larger updates write column
    files.
    """

    setting: SetColumns
    moving: Apply

    def run(self, batches: Iterator[pa.RecordBatch]) -> RowEditResult:
        """Writes all rows, and returns the result."""
        first_batches: list[pa.RecordBatch] = []
        matched: Counter[int] = Counter()
        for batch in batches:
            first_batches.append(batch)
            numbers, counts = np.unique(batch.column(0).to_numpy() >> 32, return_counts=True)
            matched.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
            if sum(batch.nbytes for batch in first_batches) > TASK_BYTES:
                return self.setting.run(itertools.chain(first_batches, batches))
        if not first_batches:
            return RowEditResult()
        table = self.setting.table
        dataset = table.open()
        physical = {
            fragment.fragment_id: fragment.metadata.physical_rows
            for fragment in dataset.get_fragments()
        }
        chosen = strategy.choose_strategy(
            table, dataset, self.setting.targets.schema.names, matched, physical
        )
        return (self.setting if chosen == "columns" else self.moving).run(iter(first_batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSmall:
    """Merges a few rows into some fragments, as one task.

    Memory: these rows, and the keys of their matches.

    Attributes:
        source: The rows as a stream of Arrow, or the location of the rows as a table.
        key: Column of the compared integers or texts.
        where: Condition in Lance SQL on the table's rows: their key is in the source.
        mask: Mask of these rows, if an index of the driver has found all of them.
        fragments: Ids of the fragments that may have a match.
    """

    apply: Apply
    source: bytes | str
    key: str
    where: str
    mask: bytes | None
    fragments: tuple[int, ...]
    updates: bool
    inserts: bool

    def run(self) -> RowEditResult:
        """Merges the rows. Runs on an executor."""
        return self.apply.run(self._rows())

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yields rows with actions for :class:`Apply`."""
        rows = self._source_rows()
        keys, codes = _codes(rows[self.key])
        addresses, matched_codes = self._matches(keys)
        order = np.argsort(codes, kind="stable")
        first, last = (
            np.searchsorted(codes[order], matched_codes, side) for side in ("left", "right")
        )
        # A row of the table occurs once for each match in the source. `Apply` refuses duplicates.
        times = last - first
        at = np.repeat(first - np.concatenate([[0], np.cumsum(times)[:-1]]), times) + np.arange(
            times.sum()
        )
        changed = order[at] if self.updates else order[:0]
        added = np.flatnonzero(~np.isin(codes, matched_codes)) if self.inserts else order[:0]
        places = np.concatenate(
            [np.full(len(added), -1), np.repeat(addresses, times)[: len(changed)]]
        )
        actions = np.repeat(np.array([INSERT, UPDATE], np.int32), [len(added), len(changed)])
        chosen = np.concatenate([added, changed])
        converter = ReadConverter(rows.schema, self.apply.values)
        for start in range(0, len(chosen), _BATCH_ROWS):
            part = slice(start, start + _BATCH_ROWS)
            values = converter.convert(rows.take(chosen[part]).combine_chunks().to_batches()[0])
            arrays = [
                pa.array(places[part], mask=places[part] < 0),
                pa.array(actions[part]),
                *values.columns,
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=["", "", *values.schema.names])

    def _source_rows(self) -> pa.Table:
        if isinstance(self.source, bytes):
            return pa.ipc.open_stream(self.source).read_all()
        import lance

        return lance.dataset(self.source, storage_options=self.apply.table.lance_options).to_table()

    def _matches(self, keys: pa.Array[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Returns ascending addresses of matching rows of the table, and the index of each key."""
        rows = SnapshotRows(self.apply.table.open())
        handles = [rows.existing_fragment(number) for number in self.fragments]
        if not handles or not len(keys):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        scanner = rows.dataset.scanner(
            columns=requested_columns([self.key]),
            filter=self.where,
            fragments=handles,
            with_row_address=True,
            scan_in_order=True,
            row_addr_allowlist=self.mask,
            use_scalar_index=self.mask is None,
        )
        table_rows = scanner.to_table()
        codes = pc.index_in(_combine_chunks(table_rows[self.key].cast(keys.type)), value_set=keys)
        return table_rows[ROW_ADDRESS].to_numpy().astype(np.int64), codes.to_numpy().astype(
            np.int64
        )


def _codes(column: pa.ChunkedArray[Any]) -> tuple[pa.Array[Any], np.ndarray]:
    """Returns the distinct keys, and the index of each row's key: -1 for NULL."""
    plain = _combine_chunks(column.cast(plain_key(column.type)))
    keys = plain.unique().drop_null()
    codes = pc.index_in(plain, value_set=keys).fill_null(-1)
    return keys, codes.to_numpy().astype(np.int64)


def refuse_doubled(table: DatasetRef, fragment: int, offsets: np.ndarray, last: int) -> None:
    """Refuses a duplicate row of the table; `last` is the row before these rows, or -1.

    Raises:
        MergeError: Several rows of the source match a row.
    """
    steps = np.diff(offsets, prepend=last)
    if (steps > 0).all():
        return
    address = fragment << 32 | int(offsets[np.flatnonzero(steps <= 0)[0]])
    raise MergeError(
        f"Several rows of the source match the row at address {address} of {table.uri}, version {table.version}. "
        "Nothing was changed. Keep a single row of each key in the source, for example with dropDuplicates."
    )


def by_fragment(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int | None, np.ndarray, np.ndarray, pa.RecordBatch]]:
    """Yields fragment (None for rows to insert), offsets, actions and values, in parts."""
    for batch in batches:
        addresses = (
            batch.column(0)
            .fill_null(-1)
            .to_numpy(zero_copy_only=False)
            .astype(np.int64)
            .view(np.uint64)
        )
        actions = batch.column(1).to_numpy()
        values = batch.select(batch.schema.names[2:])
        for number, start, end in runs_of(fragments_of(addresses)):
            offsets = offsets_of(addresses[start:end])
            yield (
                None if number == _NO_FRAGMENT else number,
                offsets,
                actions[start:end],
                values.slice(start, end - start),
            )


def _combine_chunks(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    chunks = column.chunks
    return (
        chunks[0]
        if len(chunks) == 1
        else pa.concat_arrays(chunks)
        if chunks
        else pa.nulls(0, column.type)
    )
