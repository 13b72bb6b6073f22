"""The join of a table's rows with a source by keys: a Spark job in a round of a load.

    keys of the selected rows, with addresses      read by the table's tasks
      left join  source                            by Spark, on disk where memory ends
      by fragment and in order of addresses        by Spark
      into checkpoints                             by :class:`CheckpointSink`

Memory: Spark's own, and some batches per Python worker. No side has to fit into memory. If table
and source have the same order of keys, the tasks look up the keys in the source's row groups,
without a shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork
from lance_spark.load.checkpoint_sink import ANSWER, FOUND, CheckpointSink, KeyReader
from lance_spark.load.columns import value_field
from lance_spark.load.request import OnMissing
from lance_spark.load.row_group_join import RowGroupJoin
from lance_spark.load.source_alignment import SourceAlignment
from lance_spark.load.sources import FileSource, Source
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.task_queue import pack
from lance_spark.types import to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_ROWS = 1_000_000
"""Maximum rows of a task that reads keys."""

_GROUP_BITS = 20
"""Bits of positions within the part of a fragment for a task: 1,048,576 rows."""

_MOST_WHOLE = 20_000
"""Maximum number of fragments whose work is in the description of the tasks."""

_BROADCAST_BYTES = 8 << 20
"""Maximum size of a broadcast source, which avoids the shuffle of the table's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJoin:
    """The join of a load; a :class:`~lance_spark.backfill.planning.definition.Join`.

    Attributes:
        keys: Names of the key's columns in the source.
        columns: Names of the loaded columns there.
        checkpoint_rows: Least and most rows of a checkpoint.
        alignment: The alignment of table and source; None needs a shuffle.
    """

    source: Source
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    on_missing: OnMissing
    checkpoint_rows: tuple[int, int | None]
    alignment: SourceAlignment | None

    def answers(
        self,
        spark: SparkSession,
        spec: BackfillSpec,
        todo: Mapping[int, RowSet],
        whole: Mapping[int, FragmentWork],
    ) -> DataFrame:
        """Returns the DataFrame of the join of some rows."""
        values = [f"__value_{number}" for number in range(len(self.columns))]
        loaded = self.source.schema(self.columns)
        sink = CheckpointSink(
            spec=spec,
            values=StructType(
                [
                    StructField(n, field.dataType, True)
                    for n, field in zip(values, loaded.fields, strict=True)
                ]
            ),
            refuses_missing=self.on_missing == "error",
            checkpoint_rows=self.checkpoint_rows,
            source=self.source.name,
        )
        if self.alignment is not None and isinstance(self.source, FileSource):
            return self._looked_up(spark, spec, todo, sink, self.source, self.alignment)
        rows = self._rows_with_keys(spec, todo, _TASK_ROWS)
        key_frame = spark.range(0, len(rows.tasks), 1, len(rows.tasks)).mapInArrow(
            rows, rows.schema
        )
        names = rows.schema.names[1:]
        source_frame = self.source.frame(spark, (*self.keys, *self.columns))
        right = source_frame.toDF(*(f"__source{name}" for name in names), *values).withColumn(
            FOUND, sf.lit(True)
        )
        size = self.source.stored_bytes
        if size is not None:
            # Spark would take the output of Python tasks for tiny, because its size is unknown.
            right = sf.broadcast(right) if size <= _BROADCAST_BYTES else right.hint("merge")
        matches = [key_frame[name] == right[f"__source{name}"] for name in names]
        joined = key_frame.join(right, on=matches, how="left").select(ROW_ADDRESS, FOUND, *values)
        if self.on_missing == "carry":
            joined = joined.where(FOUND)
        return (
            joined.repartition(sf.shiftright(ROW_ADDRESS, _GROUP_BITS))
            .sortWithinPartitions(ROW_ADDRESS)
            .mapInArrow(replace(sink, whole=_in_one_task(whole)), ANSWER)
        )

    def _looked_up(
        self,
        spark: SparkSession,
        spec: BackfillSpec,
        todo: Mapping[int, RowSet],
        sink: CheckpointSink,
        source: FileSource,
        alignment: SourceAlignment,
    ) -> DataFrame:
        look_up = RowGroupJoin(
            parts=self._rows_with_keys(spec, todo, alignment.part_rows),
            groups=alignment.groups,
            pieces=source.pieces_at(alignment.groups.places),
            keys=source.reader(self.keys),
            values=source.reader(self.columns),
            sink=sink,
            on_missing=self.on_missing,
        )
        count = len(look_up.parts.tasks)
        return spark.range(0, count, 1, count).mapInArrow(look_up, ANSWER)

    def _rows_with_keys(
        self, spec: BackfillSpec, todo: Mapping[int, RowSet], task_rows: int
    ) -> KeyReader:
        dataset = spec.snapshot.open()
        keys = to_spark_schema(pa.schema([dataset.schema.field(name) for name in spec.input_names]))
        columns = [StructField(ROW_ADDRESS, LongType())]
        columns += [
            StructField(f"__key_{number}", field.dataType)
            for number, field in enumerate(keys.fields)
        ]
        return KeyReader(spec=spec, schema=StructType(columns), tasks=_tasks(todo, task_rows))


def _in_one_task(whole: Mapping[int, FragmentWork]) -> dict[int, FragmentWork]:
    """Returns the work on fragments with all rows in one partition, unless there are too many."""
    if len(whole) > _MOST_WHOLE:
        return {}
    return {number: work for number, work in whole.items() if work.end <= 1 << _GROUP_BITS}


def _tasks(
    todo: Mapping[int, RowSet], task_rows: int
) -> tuple[tuple[tuple[int, RowSet], ...], ...]:
    """Cuts rows into tasks: parts of large fragments, and groups of small fragments.

    A task may read the whole source, so the number of fragments of a task has no limit.
    """
    packs = pack(_parts(todo, task_rows), lambda part: len(part[1]), task_rows, most_items=math.inf)
    return tuple(map(tuple, packs))


def _parts(todo: Mapping[int, RowSet], task_rows: int) -> Iterator[tuple[int, RowSet]]:
    for number, rows in todo.items():
        if len(rows) <= task_rows:
            yield number, rows
            continue
        offsets = rows.to_numpy()
        for first in range(0, len(offsets), task_rows):
            yield number, RowSet.of(offsets[first : first + task_rows])


def types_of(fields: Sequence[pa.Field[Any]]) -> pa.DataType:
    """Returns the type of all values of a row in checkpoints."""
    return pa.struct([value_field(field) for field in fields])
