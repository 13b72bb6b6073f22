"""The join of a table's rows with a source, by their keys: one Spark job of a load's round.

    keys of the selected rows, with addresses      read by the table's tasks
      left join  source                            by Spark, on disk where memory ends
      by fragment and in order of addresses        by Spark
      into checkpoints                             by :class:`Keeper`

Memory: Spark's own, and some batches per Python worker; no side has to fit anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from lance_spark.backfill.reuse.round_context import source_of, store_of
from lance_spark.backfill.task.checkpoint_buffer import CheckpointBuffer
from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.errors import SourceKeysError, counted
from lance_spark.load.columns import value_field
from lance_spark.load.request import OnMissing
from lance_spark.load.sources import Source
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.merge import Offsets
from lance_spark.rows.row_addresses import ROW_ADDRESS, Addresses, SnapshotRows, fragments_of, offsets_of, runs_of
from lance_spark.rows.row_set import RowSet
from lance_spark.types import ReadConverter, WriteConverter, to_spark_schema
from lance_spark.types.mapping import spark_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOUND = "__found"

_KEY_BATCH_ROWS = 32_768
_TASK_ROWS = 4_000_000
"""Rows whose keys one task reads, at most."""

_GROUP_BITS = 20
"""Rows of a fragment whose positions differ in so many bits are kept by one task: 1,048,576."""

_BROADCAST_BYTES = 8 << 20
"""A source up to this size is sent to all tasks, in place of shuffling the table's keys."""

_ANSWER = StructType([StructField("fragment_id", LongType()), StructField("rows", BinaryType())])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJoin:
    """The join of a load; a :class:`~lance_spark.backfill.planning.definition.Join`.

    Attributes:
        keys: Names of the key's columns in the source.
        columns: Names of the loaded columns there.
        checkpoint_rows: Least and most rows of a checkpoint.
    """

    source: Source
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    on_missing: OnMissing
    checkpoint_rows: tuple[int, int | None]

    def answers(self, spark: SparkSession, spec: BackfillSpec, todo: Mapping[int, RowSet]) -> DataFrame:
        """Returns the join of some rows, not computed yet."""
        left = self._rows_with_keys(spark, spec, todo)
        names = [f"__key_{number}" for number in range(len(self.keys))]
        values = [f"__value_{number}" for number in range(len(self.columns))]
        given = self.source.frame(spark, (*self.keys, *self.columns))
        right = given.toDF(*(f"__source{name}" for name in names), *values).withColumn(_FOUND, sf.lit(True))
        size = self.source.stored_bytes
        if size is not None:
            # Spark knows nothing of the size of what Python tasks read, and would take it for tiny.
            right = sf.broadcast(right) if size <= _BROADCAST_BYTES else right.hint("merge")
        matches = [left[name] == right[f"__source{name}"] for name in names]
        joined = left.join(right, on=matches, how="left").select(ROW_ADDRESS, _FOUND, *values)
        if self.on_missing == "carry":
            joined = joined.where(_FOUND)
        loaded = StructType(
            [StructField(name, one.dataType, True) for name, one in zip(values, self._loaded.fields, strict=True)]
        )
        keeper = Keeper(
            spec=spec,
            values=loaded,
            refuses_missing=self.on_missing == "error",
            checkpoint_rows=self.checkpoint_rows,
            source=self.source.name,
        )
        return (
            joined.repartition(sf.shiftright(ROW_ADDRESS, _GROUP_BITS))
            .sortWithinPartitions(ROW_ADDRESS)
            .mapInArrow(keeper, _ANSWER)
        )

    @property
    def _loaded(self) -> StructType:
        return self.source.schema(self.columns)

    def _rows_with_keys(self, spark: SparkSession, spec: BackfillSpec, todo: Mapping[int, RowSet]) -> DataFrame:
        dataset = spec.snapshot.open()
        keys = to_spark_schema(pa.schema([dataset.schema.field(name) for name in spec.input_names]))
        columns = [StructField(ROW_ADDRESS, LongType())]
        columns += [StructField(f"__key_{number}", one.dataType) for number, one in enumerate(keys.fields)]
        reader = KeyReader(spec=spec, schema=StructType(columns), tasks=tuple(_tasks(todo)))
        count = len(reader.tasks)
        return spark.range(0, count, 1, count).mapInArrow(reader, reader.schema)


def _tasks(todo: Mapping[int, RowSet]) -> Iterator[tuple[tuple[int, RowSet], ...]]:
    """Cuts rows into tasks: parts of large fragments, several small ones together."""
    packed: list[tuple[int, RowSet]] = []
    rows = 0
    for number, wanted in todo.items():
        offsets = wanted.to_numpy() if len(wanted) > _TASK_ROWS else None
        starts = range(0, len(wanted), _TASK_ROWS)
        parts = [wanted] if offsets is None else [RowSet.of(offsets[first : first + _TASK_ROWS]) for first in starts]
        for part in parts:
            if packed and rows + len(part) > _TASK_ROWS // 4:
                yield tuple(packed)
                packed, rows = [], 0
            packed.append((number, part))
            rows += len(part)
    yield tuple(packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReader:
    """What Spark runs on executors: a task's number becomes the addresses and keys of its rows."""

    spec: BackfillSpec
    schema: StructType
    tasks: tuple[tuple[tuple[int, RowSet], ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of each task."""
        for batch in batches:
            for number in batch.column(0).to_numpy():
                for fragment_id, rows in self.tasks[int(number)]:
                    yield from self._read(fragment_id, rows)

    def _read(self, fragment_id: int, wanted: RowSet) -> Iterator[pa.RecordBatch]:
        spec = self.spec
        rows = SnapshotRows(spec.snapshot.open())
        fragment = rows.existing_fragment(fragment_id)
        reader = InputReader(
            rows, fragment, spec.input_names, blob_strategy=spec.blob_strategy, blob_buffer_bytes=spec.blob_buffer_bytes
        )
        keys = StructType(
            [
                StructField(name, one.dataType)
                for name, one in zip(spec.input_names, self.schema.fields[1:], strict=True)
            ]
        )
        converter = ReadConverter(pa.schema([rows.dataset.schema.field(name) for name in spec.input_names]), keys)
        whole = spark_arrow_schema(self.schema)
        taken: deque[Offsets] = deque()
        for batch in reader.batches(wanted.to_numpy(), lambda: _KEY_BATCH_ROWS, taken):
            addresses = pa.array(taken.popleft() | (fragment_id << 32), pa.int64())
            found = converter.convert(batch)
            yield pa.RecordBatch.from_arrays([addresses, *found.columns], schema=whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What Spark runs on executors: rows in the order of their addresses go into checkpoints.

    Yields of each fragment which rows were kept.

    Attributes:
        values: The loaded columns as Spark has them, in the order of the targets.
        refuses_missing: Whether a row without a match is an error.
        checkpoint_rows: Least and most rows of a checkpoint.
        source: Name of the source, for messages.
    """

    spec: BackfillSpec
    values: StructType
    refuses_missing: bool
    checkpoint_rows: tuple[int, int | None]
    source: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keeps the rows, and yields which."""
        spec = self.spec
        targets = pa.schema([value_field(field) for field in spec.targets.schema])
        named = StructType(
            [StructField(name, one.dataType, True) for name, one in zip(targets.names, self.values.fields, strict=True)]
        )
        converter = WriteConverter(named, targets)
        rows = SnapshotRows(spec.snapshot.open())
        store = store_of(spec)
        kept: _Fragment | None = None
        last: int | None = None
        for batch in batches:
            addresses = batch.column(0).to_numpy().view(np.uint64)
            self._check(batch, addresses, last)
            found = pa.RecordBatch.from_arrays(batch.columns[2:], names=targets.names)
            columns = converter.convert(found).columns
            values = pa.StructArray.from_arrays(columns, fields=list(targets))
            for number, first, end in runs_of(fragments_of(addresses)):
                if kept is None or kept.number != number:
                    if kept is not None:
                        yield kept.finish()
                    source = source_of(spec, rows.existing_fragment(number).metadata)
                    kept = _Fragment(number, CheckpointBuffer(spec, store, source, rows=self.checkpoint_rows))
                kept.add(offsets_of(addresses[first:end]), values.slice(first, end - first))
            last = int(addresses[-1]) if len(addresses) else last
        if kept is not None:
            yield kept.finish()

    def _check(self, batch: pa.RecordBatch, addresses: Addresses, last: int | None) -> None:
        twice = addresses[1:][addresses[1:] == addresses[:-1]].tolist()
        if last is not None and len(addresses) and addresses[0] == last:
            twice.insert(0, last)
        if twice:
            examples = ", ".join(map(str, twice[:5]))
            raise SourceKeysError(
                f"rows have several matches (row addresses: {examples}) - in {self.source} - its keys were unique when "
                "the load began: load from what does not change; nothing of it is committed",
                source=self.source,
            )
        missing: Any = batch.column(1).null_count
        if self.refuses_missing and missing:
            raise SourceKeysError(
                f"{counted(missing, 'row')} have no match - in {self.source} - they came, or got their keys, after the "
                "load began; complete the source, or use on_missing='carry' or 'null'",
                source=self.source,
            )


class _Fragment:
    """The rows of one fragment that a task has kept so far."""

    def __init__(self, number: int, checkpoints: CheckpointBuffer) -> None:
        self.number = number
        self._checkpoints = checkpoints
        self._rows = RowSet.empty()
        checkpoints.begin()

    def add(self, offsets: Offsets, values: pa.Array[Any]) -> None:
        """Keeps values, ascending."""
        self._checkpoints.hold(offsets, values, [])
        self._rows |= RowSet.of(offsets)

    def finish(self) -> pa.RecordBatch:
        """Persists what is held, and returns the answer."""
        self._checkpoints.flush()
        return pa.RecordBatch.from_arrays(
            [pa.array([self.number], pa.int64()), pa.array([self._rows.dumps()], pa.binary())],
            schema=spark_arrow_schema(_ANSWER),
        )


def types_of(fields: Sequence[pa.Field[Any]]) -> pa.DataType:
    """Returns the type of all values of a row together, as checkpoints have them."""
    return pa.struct([value_field(field) for field in fields])
