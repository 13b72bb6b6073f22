"""The two ends of a load's join: keys of the table's rows, and values for checkpoints.

Runs on executors. Memory: a few batches, and the buffer of a checkpoint.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from lance_spark.backfill.reuse.round_context import source_of, store_of
from lance_spark.backfill.task.computation import CheckpointBuffer
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork
from lance_spark.errors import SourceKeysError, counted
from lance_spark.load.columns import value_field
from lance_spark.load.joined_files import JoinedFiles
from lance_spark.locations import is_local
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import (
    Addresses,
    SnapshotRows,
    fragments_of,
    offsets_of,
    runs_of,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.blobs import row_field
from lance_spark.types import ReadConverter, WriteConverter
from lance_spark.types.mapping import spark_arrow_schema
from udf_runtime.execute import Rebatcher

FOUND = "__found"
"""Whether a row has a match: true or NULL."""

ANSWER = StructType(
    [
        StructField("fragment_id", LongType()),
        StructField("rows", BinaryType()),
        StructField("outcome", StringType()),
    ]
)
"""A fragment, its joined rows, and the outcome of its file. Without an outcome, checkpoints have
the values."""

_KEY_BATCH_ROWS = 32_768
_OUTPUT_BYTES = 16 << 20
"""Maximum rows and bytes of a batch for Spark."""

_READS_AT_ONCE = 16
_SMALL_READ_ROWS = 8192
"""Maximum number of fragments that a task reads at once, and the rows of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReader:
    """Reads addresses and keys of rows; a callable for `mapInArrow` over the numbers of tasks."""

    spec: BackfillSpec
    schema: StructType
    tasks: tuple[tuple[tuple[int, RowSet], ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of each task."""
        for batch in batches:
            for number in batch.column(0).to_numpy():
                yield from _join(self._read_all(self.tasks[int(number)]))

    def _read_all(self, parts: Sequence[tuple[int, RowSet]]) -> Iterator[pa.RecordBatch]:
        """Yields rows of fragments in order; on an object store, of small fragments at once."""
        if is_local(self.spec.snapshot.uri):
            for part in parts:
                yield from self.read(*part)
            return
        reads: deque[tuple[tuple[int, RowSet], Future[list[pa.RecordBatch]] | None]] = deque()
        waiting = deque(parts)
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            while waiting or reads:
                while waiting and len(reads) < _READS_AT_ONCE:
                    part = waiting.popleft()
                    is_small = len(part[1]) <= _SMALL_READ_ROWS
                    reads.append((part, pool.submit(self._read_small, part) if is_small else None))
                part, batches = reads.popleft()
                yield from self.read(*part) if batches is None else batches.result()

    def _read_small(self, part: tuple[int, RowSet]) -> list[pa.RecordBatch]:
        return list(self.read(*part))

    def read(self, fragment_id: int, wanted: RowSet) -> Iterator[pa.RecordBatch]:
        """Yields some rows of a fragment, ascending."""
        spec = self.spec
        rows = SnapshotRows(spec.snapshot.open())
        fragment = rows.existing_fragment(fragment_id)
        reader = spec.input_source.reader(spec, rows, fragment)
        keys = StructType(
            [
                StructField(name, field.dataType)
                for name, field in zip(spec.input_names, self.schema.fields[1:], strict=True)
            ]
        )
        converter = ReadConverter(
            pa.schema([rows.dataset.schema.field(name) for name in spec.input_names]), keys
        )
        whole = spark_arrow_schema(self.schema)
        for batch in reader.batches(wanted.to_numpy(), _KEY_BATCH_ROWS):
            *columns, addresses = batch.columns
            key_batch = converter.convert(
                pa.RecordBatch.from_arrays(columns, names=list(spec.input_names))
            )
            yield pa.RecordBatch.from_arrays(
                [addresses.cast(pa.int64()), *key_batch.columns], schema=whole
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSink:
    """Writes rows of fragments into checkpoints and files; a callable for Spark's `mapInArrow`.

    The input has the rows by fragment, in the order of their addresses within each batch. The
    output lists the stored rows of each fragment.

    Attributes:
        values: The loaded columns with Spark's types, in the order of the targets.
        refuses_missing: Whether a row without a match is an error.
        checkpoint_rows: Minimum and maximum rows of a checkpoint.
        source: Name of the source, for messages.
        whole: The work on the fragments that the join alone fills, if a single task has their rows.
    """

    spec: BackfillSpec
    values: StructType
    refuses_missing: bool
    checkpoint_rows: tuple[int, int | None]
    source: str
    whole: Mapping[int, FragmentWork] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stores the rows, and yields the stored rows by fragment."""
        yield from _join(self._store(batches))

    def _store(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with JoinedFiles(self.spec, self.whole) as files:
            for fragment in self._fragments(batches):
                rows = fragment.finish(files)
                if rows is not None:
                    yield _answer(fragment.number, rows)
                yield from itertools.starmap(_answer, files.answers(wait=False))
            yield from itertools.starmap(_answer, files.answers(wait=True))

    def _fragments(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Fragment]:
        """Yields the fragments with all of their consecutive rows."""
        spec = self.spec
        rows, store = SnapshotRows(spec.snapshot.open()), store_of(spec)
        fragment: _Fragment | None = None
        for addresses, values in self._values(batches):
            for number, first, end in runs_of(fragments_of(addresses)):
                if fragment is None or fragment.number != number:
                    if fragment is not None:
                        yield fragment
                    source = source_of(spec, rows.existing_fragment(number).metadata)
                    fragment = _Fragment(
                        number, CheckpointBuffer(spec, store, source, rows=self.checkpoint_rows)
                    )
                fragment.add(offsets_of(addresses[first:end]), values.slice(first, end - first))
        if fragment is not None:
            yield fragment

    def _values(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[Addresses, pa.StructArray]]:
        """Yields addresses and values of each batch, checked and converted."""
        spec = self.spec
        targets = pa.schema([value_field(field) for field in spec.targets.schema])
        value_schema = StructType(
            [
                StructField(name, field.dataType, True)
                for name, field in zip(targets.names, self.values.fields, strict=True)
            ]
        )
        converter = WriteConverter(
            value_schema, pa.schema([row_field(field) for field in spec.targets.schema])
        )
        # Checkpoints name values by output, independent of the column's current name.
        parts = [
            target.with_name(output)
            for target, (output, _) in zip(targets, spec.outputs, strict=True)
        ]
        last: int | None = None
        for batch in batches:
            addresses = batch.column(0).to_numpy().view(np.uint64)
            self._check(batch, addresses, last)
            value_batch = pa.RecordBatch.from_arrays(batch.columns[2:], names=targets.names)
            yield (
                addresses,
                pa.StructArray.from_arrays(converter.convert(value_batch).columns, fields=parts),
            )
            last = int(addresses[-1]) if len(addresses) else last

    def _check(self, batch: pa.RecordBatch, addresses: Addresses, last: int | None) -> None:
        twice = addresses[1:][addresses[1:] == addresses[:-1]].tolist()
        if last is not None and len(addresses) and addresses[0] == last:
            twice.insert(0, last)
        if twice:
            examples = ", ".join(map(str, twice[:5]))
            raise SourceKeysError(
                f"Rows have several matches (row addresses: {examples}) in {self.source}, and its keys were unique "
                "when the load began. Load from a source that does not change. Nothing of the load is committed.",
                source=self.source,
            )
        unmatched: Any = batch.column(1).null_count
        if self.refuses_missing and unmatched:
            raise SourceKeysError(
                f"The load found {counted(unmatched, 'row')} without a match in {self.source}, with keys from after "
                "the load began. Complete the source, or use on_missing='carry' or 'null'.",
                source=self.source,
            )


class _Fragment:
    """The stored rows of a fragment. Belongs to one task."""

    def __init__(self, number: int, checkpoints: CheckpointBuffer) -> None:
        self.number = number
        self._checkpoints = checkpoints
        self._rows = RowSet.empty()
        self._last = -1
        checkpoints.begin()

    def add(self, offsets: Offsets, values: pa.Array[Any]) -> None:
        """Adds values, ascending."""
        if offsets[0] < self._last:
            self._checkpoints.flush()  # the rows of a checkpoint are in order
        self._last = int(offsets[-1])
        self._checkpoints.hold(offsets, values, [])
        self._rows |= RowSet.of(offsets)

    def finish(self, files: JoinedFiles) -> RowSet | None:
        """Writes the rest into a file or a checkpoint. Returns the rows of checkpoints."""
        chunks = self._checkpoints.take() if files.takes(self.number) else None
        if chunks:
            files.write(self.number, chunks, functools.partial(self._checkpoints.store, chunks))
            return None
        self._checkpoints.flush()
        return self._rows


def _join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins the batches of small fragments, because each batch costs Spark milliseconds."""
    source = Rebatcher(batches, max_bytes=_OUTPUT_BYTES)
    while (batch := source.take(_KEY_BATCH_ROWS)) is not None:
        yield batch


def _answer(number: int, rows: RowSet, outcome: str | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([number], pa.int64()),
            pa.array([rows.dumps()], pa.binary()),
            pa.array([outcome], pa.string()),
        ],
        schema=spark_arrow_schema(ANSWER),
    )
