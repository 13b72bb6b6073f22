"""Tasks of a refresh on executors: writing rows of a view and deleting rows.

:class:`WriteNewRows` reads fragments of the source, and writes new rows as fragments of the view.
These fragments belong to no version yet. The row ids of changed and deleted rows go to files if
the ids are many. :class:`RewriteRows` gets these ids joined with the rows of the view,
by fragment of the view. :class:`RewriteRows` deletes the rows, and rewrites the changed rows. A
column of a UDF keeps its value if its inputs are unchanged.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.source_reader import take_ids
from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.commit.conflicts.row_lineage import LineageFacts
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.read.masks import rows_mask
from lance_spark.rebase.source_changes import RowChanges, SourceChanges, live_offsets
from lance_spark.rows.matching_rows import matching_addresses, matching_rows
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import (
    ROW_ADDRESS,
    ROW_ID,
    SnapshotRows,
    fragments_of,
    offsets_of,
    row_ids,
    runs_of,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.tasks import answer, task_numbers
from lance_spark.staging.area import Staging
from lance_spark.staging.attempt import Attempt
from lance_spark.staging.data_file import FragmentSink
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types.fields import is_blob
from lance_spark.views.definition import SOURCE_ROW_ID

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

DELETED = -1
"""In place of the bits of a changed row: the source or the view lacks the row."""

SPILL_SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("change", pa.int64())])
"""Row ids of deleted rows of the view. `change` has a bit for each group of columns to compute
again if the row is rewritten, else DELETED."""

_TAKE_BYTES = 16 << 20

_ABSENT = 0xFFFF_FFFF
"""In place of the fragment of rows absent from the view. Their address is -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """The common data of the tasks of a refresh.

    Attributes:
        source: The requested version of the source.
        base: The shown version; None if the view keeps no row.
        view: The view.
        columns: Names of the columns with expressions, and the expressions.
        groups: Inputs of each UDF, in the source.
        computed: Columns of each UDF.
        placed: Layout of files with the row id and the expressions.
        rewrite_layout: Layout of files with the row id, the expressions and the columns of UDFs.
        max_rows: Maximum rows of a fragment of the view.
        makes_chunks: Whether a chunker makes the rows of the view. Then its inputs and the columns
            of `where` are the only group, and its results are the computed columns.
        lineage: The moves of rows of the source since the base; None without a base.
        selects: Whether these tasks make the rows. `spark/rows.py` makes the rows of a query of
            Spark; these tasks then only delete changed rows.
        tasks: Number of the tasks, whose results go to the driver together.
    """

    source: DatasetRef
    base: DatasetRef | None
    view: DatasetRef
    staging: Staging
    columns: tuple[tuple[str, str], ...]
    where: str | None
    used: tuple[FieldIdentity, ...]
    groups: tuple[tuple[FieldIdentity, ...], ...]
    computed: tuple[tuple[str, ...], ...]
    placed: FileLayout
    rewrite_layout: FileLayout
    max_rows: int
    makes_chunks: bool
    lineage: LineageFacts | None = None
    selects: bool = True
    tasks: int = 1

    @contextmanager
    def write_fragments(
        self, layout: FileLayout, result: RefreshTaskResult
    ) -> Iterator[FragmentSink]:
        """Yields the writer for the rows of a task. Adds the fragments to the result at the end."""
        sink = FragmentSink(self.staging, layout, max_rows=self.max_rows, max_bytes=1 << 40)
        try:
            yield sink
            result.fragments = [fragment.to_json() for fragment in sink.finish()]
        except BaseException:
            sink.abandon()
            raise


@dataclass(slots=True, kw_only=True)
class RefreshTaskResult:
    """The result of tasks of a refresh. Results add up.

    Attributes:
        fragments: New fragments of the view, as JSON of pylance.
        added: New rows in these fragments.
        rows_rewritten: Changed rows in these fragments.
        open_rows: The rewritten rows perhaps without a value in a column of a UDF.
        spills: Paths of the spilled row ids, relative to the view.
        few_spilled: The spilled row ids of tasks with few, as streams of Arrow.
        spilled: Number of the spilled row ids.
        new: New rows of the source, selected or not.
        unknown: Possibly new rows of the source.
        updated: Fragments of the view with more deleted rows, as JSON of pylance.
        removed: Ids of fragments without remaining rows.
        deleted: Deleted rows of the view.
    """

    fragments: list[Any] = field(default_factory=list)
    added: int = 0
    rows_rewritten: int = 0
    open_rows: int = 0
    spills: list[str] = field(default_factory=list)
    few_spilled: list[bytes] = field(default_factory=list)
    spilled: int = 0
    new: int = 0
    unknown: int = 0
    updated: list[Any] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    deleted: int = 0

    @property
    def written_files(self) -> list[str]:
        """All files of the tasks' attempts: names of data files, and paths of spilled row ids."""
        return [
            file["path"] for fragment in self.fragments for file in fragment["files"]
        ] + self.spills

    def __add__(self, other: RefreshTaskResult) -> RefreshTaskResult:
        values = {
            name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__
        }
        return RefreshTaskResult(**values)


class SourceRows:
    """The rows of the source as rows of the view. Belongs to a single task."""

    def __init__(self, spec: PlacementSpec) -> None:
        self.spec = spec
        self.dataset = spec.source.open()
        self.rows = SnapshotRows(self.dataset)
        self.difference = None
        if spec.base is not None:
            self.difference = SourceChanges(
                spec.source, spec.base, spec.used, spec.groups, lineage=spec.lineage
            )

    def since_base(self, fragment_id: int) -> RowChanges:
        """Returns the changes of a fragment since the base; without a base all rows are new."""
        if self.difference is not None:
            return self.difference.row_changes(fragment_id)
        live = RowSet.of(live_offsets(self.rows, fragment_id))
        return RowChanges(
            new=live,
            changed=RowSet.empty(),
            by_group=tuple(RowSet.empty() for _ in self.spec.groups),
        )

    def deleted_ids(self, fragment_id: int) -> Iterable[np.ndarray]:
        """Returns the ids of the deleted rows of a fragment of the base."""
        return () if self.difference is None else self.difference.deleted_ids(fragment_id)

    def matching(self, fragment_id: int, rows: RowSet) -> RowSet:
        """Returns the rows selected by the view."""
        if self.spec.where is None or not rows:
            return rows
        fragment = self.rows.existing_fragment(fragment_id)
        mask = rows_mask(self.dataset, fragment, rows.to_numpy())
        batches = matching_addresses(self.dataset, [fragment], self.spec.where, mask)
        return (
            RowSet.of(np.concatenate([np.empty(0, dtype=np.int64), *map(offsets_of, batches)]))
            & rows
        )

    def to_chunk(self, fragment_id: int, since: RowChanges) -> RowSet:
        """Returns the rows of a fragment to pass to the chunker."""
        changed = since.by_group[0] if since.changed else since.changed
        return self.matching(fragment_id, since.new | changed)

    def scan(self, fragment_id: int, rows: RowSet) -> Iterator[pa.RecordBatch]:
        """Yields selected rows of a fragment."""
        fragment = self.rows.existing_fragment(fragment_id)
        metadata = fragment.metadata
        everything = len(rows) == metadata.physical_rows - metadata.num_deletions
        offsets = rows.to_numpy()
        mask = None if everything else rows_mask(self.dataset, fragment, offsets)
        for batch in matching_rows(
            self.dataset, [fragment], self.spec.where, dict(self.spec.columns), mask
        ):
            if everything or mask is not None:
                yield batch
            else:
                batch_offsets = offsets_of(batch.column(ROW_ADDRESS).to_numpy())
                yield batch.filter(pa.array(np.isin(batch_offsets, offsets, assume_unique=True)))

    def take(self, ids: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields rows by id, in this order, with the number of preceding rows."""
        first, most = 0, 1024
        while first < len(ids):
            table = take_ids(
                self.dataset, ids[first : first + most], dict(self.spec.columns)
            ).combine_chunks()
            ids_of_rows = pa.array(ids[first : first + most].astype(np.uint64))
            for batch in (
                table.append_column(ROW_ID, ids_of_rows)
                .combine_chunks()
                .to_batches(max_chunksize=len(table))
            ):
                yield first, batch
            first += len(table)
            most = min(32_768, max(1, _TAKE_BYTES * len(table) // max(1, table.nbytes)))


def as_view_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns rows of the source in the layout of the view's files; missing columns are NULL."""
    arrays = []
    for view_field in schema:
        if view_field.name == SOURCE_ROW_ID:
            arrays.append(batch.column(ROW_ID).cast(pa.int64()))
        elif view_field.name in batch.schema.names:
            column = batch.column(view_field.name)
            arrays.append(
                column if column.type == view_field.type else column.cast(view_field.type)
            )
        else:
            arrays.append(pa.nulls(batch.num_rows, view_field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNewRows:
    """A task that writes the new rows of some fragments of the source, and spills changed rows.

    Attributes:
        fragments: Ids of fragments of the requested version.
    """

    spec: PlacementSpec
    fragments: tuple[int, ...]

    def run(self) -> RefreshTaskResult:
        """Writes and spills the rows. Runs on an executor."""
        spec, result = self.spec, RefreshTaskResult()
        source, spill = SourceRows(spec), RowIdSpill(spec.staging, tasks=spec.tasks)
        with spec.write_fragments(spec.placed, result) as sink:
            for number in self.fragments:
                since = source.since_base(number)
                result.new += len(since.new)
                result.unknown += since.unknown
                for batch in source.scan(number, since.new) if since.new and spec.selects else ():
                    if batch.num_rows:
                        sink.write(as_view_rows(batch, spec.placed.row_schema))
                        result.added += batch.num_rows
                if since.changed:
                    spill.add(*changes_of(source, number, since))
        spill.close(result)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillDeletedRows:
    """A task that spills the deleted rows of some fragments of the source.

    Attributes:
        fragments: Ids of fragments of the shown version.
    """

    spec: PlacementSpec
    fragments: tuple[int, ...]

    def run(self) -> RefreshTaskResult:
        """Spills the rows. Runs on an executor."""
        result, spill = RefreshTaskResult(), RowIdSpill(self.spec.staging, tasks=self.spec.tasks)
        source = SourceRows(self.spec)
        for number in self.fragments:
            for ids in source.deleted_ids(number):
                spill.add(ids.astype(np.int64), np.full(len(ids), DELETED, dtype=np.int64))
        spill.close(result)
        return result


def changes_of(
    source: SourceRows, fragment_id: int, since: RowChanges
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of changed rows of a fragment, and the change of each row.

    All changes are DELETED if Spark makes the rows.
    """
    offsets = since.changed.to_numpy()
    change = np.zeros(len(offsets), dtype=np.int64)
    for bit, rows in enumerate(since.by_group):
        change |= np.isin(offsets, rows.to_numpy(), assume_unique=True).astype(np.int64) << bit
    selected = (
        source.matching(fragment_id, since.changed) if source.spec.selects else RowSet.empty()
    ).to_numpy()
    change[~np.isin(offsets, selected, assume_unique=True)] = DELETED
    if source.spec.makes_chunks:
        change[change != 0] = DELETED  # their new chunks are new rows
    return row_ids(source.rows.existing_fragment(fragment_id), offsets).astype(np.int64), change


class RowIdSpill:
    """Row ids of changed and deleted rows, as files of an attempt. The result has few row ids.

    The results of all tasks together have at most `_FEW_OF_ALL` row ids.
    """

    _MOST = 1 << 20
    _FEW = 1 << 10
    _FEW_OF_ALL = 1 << 20

    def __init__(self, staging: Staging, *, tasks: int) -> None:
        """Takes the staging area of the refresh, and the number of its tasks with row ids."""
        self._staging = staging
        self._few = min(self._FEW, self._FEW_OF_ALL // tasks)
        self._attempt: Attempt | None = None
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._paths: list[str] = []
        self._rows = self._pending = 0

    def add(self, ids: np.ndarray, change: np.ndarray) -> None:
        """Adds rows with their changes."""
        self._held.append((ids, change))
        self._rows += len(ids)
        self._pending += len(ids)
        if self._pending >= self._MOST:
            self._write()

    def close(self, result: RefreshTaskResult) -> None:
        """Adds the files, or few row ids, to the result of the task."""
        if self._held and self._rows <= self._few:
            result.few_spilled = [self._take_held()]
        self._write()
        result.spills, result.spilled = self._paths, self._rows

    def _take_held(self) -> bytes:
        """Returns the held rows as a stream of Arrow, and holds them no longer."""
        columns = [pa.array(np.concatenate(parts)) for parts in zip(*self._held, strict=True)]
        self._held, self._pending = [], 0
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, SPILL_SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SPILL_SCHEMA))
        return sink.getvalue()

    def _write(self) -> None:
        if not self._held:
            return
        self._attempt = self._attempt or self._staging.begin_attempt()
        path = self._attempt.next_run_file()
        self._staging.objects.put(path, self._take_held())
        self._paths.append(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpill:
    """Reads spilled row ids; a callable for `mapInArrow` over the numbers of the parts.

    Attributes:
        parts: Paths of files, and streams of Arrow.
    """

    staging: Staging
    parts: tuple[str | bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the parts with the given numbers."""
        for number in task_numbers(batches):
            yield from self.read(number)

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part.

        Raises:
            TableUnreadableError: The file does not exist any more.
        """
        part = self.parts[number]
        payload = part if isinstance(part, bytes) else self.staging.objects.get(part)
        if payload is None:
            hint = "another process deletes files of the refresh; refresh again"
            raise TableUnreadableError(self.staging.uri, f"{part!s} is gone", hint=hint)
        yield from pa.ipc.open_stream(payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRows:
    """Deletes rows of the view, and rewrites changed rows; a callable for `mapInArrow`.

    The input has the address in the view (NULL for a missing row), row id and change, ordered by
    address.
    """

    spec: PlacementSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Applies all rows, and yields the result."""
        yield answer(self.run(batches))

    def run(self, batches: Iterator[pa.RecordBatch]) -> RefreshTaskResult:
        """Applies all rows. Memory: 24 bytes a row of a single fragment."""
        return _ViewRows(self.spec).apply(batches)


class _ViewRows:
    """The rows of the view in a task that rewrites rows."""

    def __init__(self, spec: PlacementSpec) -> None:
        self._spec = spec
        self._source = SourceRows(spec)
        self._view = SnapshotRows(spec.view.open())
        self._result = RefreshTaskResult()

    def apply(self, batches: Iterator[pa.RecordBatch]) -> RefreshTaskResult:
        """Applies all rows."""
        with self._spec.write_fragments(self._spec.rewrite_layout, self._result) as sink:
            for fragment_id, offsets, ids, change in _by_fragment(batches):
                if fragment_id is None:
                    new_values = self._add(ids, change)
                else:
                    new_values = self._rewrite(fragment_id, offsets, ids, change)
                for rows in new_values:
                    sink.write(rows)
        return self._result

    def _add(self, ids: np.ndarray, change: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yields rows that the view lacks. A row without chunks stays absent."""
        if self._spec.makes_chunks:
            return
        for _, rows in self._take(ids[change != DELETED]):
            self._result.added += rows.num_rows
            yield rows

    def _rewrite(
        self, fragment_id: int, offsets: Offsets, ids: np.ndarray, change: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Deletes rows of a fragment of the view, and yields their new values."""
        fragment = self._view.existing_fragment(fragment_id)
        _delete(fragment, offsets, ids if self._spec.makes_chunks else None, self._result)
        remains = change != DELETED
        offsets, change = offsets[remains], change[remains]
        for first, rows in self._take(ids[remains]):
            part = slice(first, first + rows.num_rows)
            self._result.rows_rewritten += rows.num_rows
            yield self._with_values(rows, fragment, offsets[part], change[part])

    def _take(self, ids: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields rows of the source for the view, with the number of preceding rows."""
        for first, batch in self._source.take(ids):
            yield first, as_view_rows(batch, self._spec.rewrite_layout.row_schema)

    def _with_values(
        self, rows: pa.RecordBatch, fragment: LanceFragment, offsets: Offsets, change: np.ndarray
    ) -> pa.RecordBatch:
        """Adds the values of columns of UDFs with unchanged inputs."""
        groups = list(self._unchanged_groups(change))
        names = [name for _, columns in groups for name in columns]
        if not names:
            self._result.open_rows += rows.num_rows if self._spec.computed else 0
            return rows
        order = np.argsort(offsets)
        table = fragment.take(
            self._view.live_positions(fragment.fragment_id, offsets[order]), columns=names
        )
        arrays = {name: rows.column(name) for name in rows.schema.names}
        for number, columns in groups:
            # Values of changed inputs are NULL.
            places: pa.Int64Array = pa.array(
                np.argsort(order), pa.int64(), mask=(change >> number & 1).astype(np.bool_)
            )
            for name in columns:
                arrays[name] = table.column(name).combine_chunks().take(places)
        computed = [name for columns in self._spec.computed for name in columns]
        has_nulls = any(arrays[name].null_count for name in computed)
        self._result.open_rows += rows.num_rows if has_nulls else 0
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=rows.schema)

    def _unchanged_groups(self, change: np.ndarray) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yields the UDFs with unchanged inputs in some rows: number and columns.

        Blobs are computed again, because a fragment gives their descriptors.
        """
        schema = self._view.dataset.schema
        for number, columns in enumerate(self._spec.computed):
            if not (change >> number & 1).all() and not any(
                is_blob(schema.field(name)) for name in columns
            ):
                yield number, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteFewRows:
    """A task that deletes and rewrites a few rows."""

    rewrite: RewriteRows
    parts: tuple[pa.RecordBatch, ...]

    def run(self) -> RefreshTaskResult:
        """Applies the rows. Runs on an executor."""
        return self.rewrite.run(iter(self.parts))


def _delete(
    fragment: LanceFragment, offsets: Offsets, ids: np.ndarray | None, result: RefreshTaskResult
) -> None:
    """Deletes rows of a fragment of the view, in no version yet. 200,000 rows take a second.

    Row ids of the source select all their rows in the fragment.
    """
    if ids is not None:
        column, numbers = SOURCE_ROW_ID, np.unique(ids).tolist()
    else:
        column, numbers = (
            ROW_ADDRESS,
            (offsets.astype(np.uint64) | np.uint64(fragment.fragment_id << 32)).tolist(),
        )
    remaining = fragment.delete(f"{column} IN ({', '.join(map(str, numbers))})")
    result.deleted += len(offsets)
    if remaining is None:
        result.removed.append(fragment.fragment_id)
    else:
        result.updated.append(remaining.to_json())


def _by_fragment(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int | None, Offsets, np.ndarray, np.ndarray]]:
    """Yields rows by fragment of the view, after the rows absent from the view."""
    for number, parts in itertools.groupby(_parts_of(batches), key=itemgetter(0)):
        _, offsets, ids, change = zip(*parts, strict=True)
        fragment_id = None if number == _ABSENT else number
        yield fragment_id, np.concatenate(offsets), np.concatenate(ids), np.concatenate(change)


def _parts_of(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int, Offsets, np.ndarray, np.ndarray]]:
    """Yields rows of batches by fragment of the view, and rows absent from the view."""
    for batch in batches:
        addresses, ids, change = (
            batch.column(i).fill_null(-1).to_numpy(zero_copy_only=False) for i in range(3)
        )
        addresses = addresses.astype(np.int64).view(np.uint64)
        for number, start, end in runs_of(fragments_of(addresses)):
            yield number, offsets_of(addresses[start:end]), ids[start:end], change[start:end]
