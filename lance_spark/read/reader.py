"""The reader that Spark calls: :class:`LanceReader`, and its schemas.

A reader is a plain value. The driver makes the reader and plans the scan. Spark sends the reader to
every executor. A Python worker opens the pinned version once, and returns Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lance_spark.lance_compat import version_of
from lance_spark.read.columns import Projection, table_schema
from lance_spark.read.planning.partitioning import ScanTask
from lance_spark.read.planning.pushdown_request import AggregateCall, ScanSpec
from lance_spark.read.planning.scan_plan import (
    ScanPlan,
    aggregate_schema,
    check_selection,
    fields_by_name,
    plan_scan,
    target_columns,
)
from lance_spark.read.scan import read_batches
from lance_spark.read.transfer import (
    decimals_to_longs,
    long_schema,
    prefix_schema,
    split_batch,
    split_schema,
    take_prefixes,
)
from lance_spark.types import ReadConverter
from lance_spark.types.fields import Array
from lance_spark.types.mapping import spark_arrow_schema

if TYPE_CHECKING:
    from lance_spark.dataset import DatasetRef
    from lance_spark.options.io_options import ReadOptions

_EMPTY_BATCH_ROWS = 1 << 16
"""Rows per batch without columns. With one huge batch, `count(*)` was 7 times slower than Parquet.
From 8192 rows up, the size makes no difference."""


def read_schema(ref: DatasetRef, options: ReadOptions) -> StructType:
    """Returns the columns of a plain load, and validates the options against the table.

    Runs on the driver and reads no data.

    Raises:
        ColumnNotFoundError: `columns` names a column that does not exist.
        OptionError: `fragments` or `with_row_versions` are invalid for the table.
        FilterError: `filter` is not valid.
        UnsupportedTypeError: Spark cannot hold a column.
    """
    schema = table_schema(ref.open(), ref, options)
    check_selection(ref, options)
    return schema


def describe_scan(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec
) -> tuple[LanceReader, dict[str, Any]]:
    """Returns the reader of a scan of the planner rule, and the facts of the scan for the rule.

    The facts are:

    - `description`: text for `explain()`
    - `rows`: maximum number of rows
    - `bytes`: estimated size
    - `limited`: whether each partition ends at the limit, and Spark's filter drops none of its rows
    - `serves`: false for aggregates above an inexact filter of Lance
    - `splits`: whether a fragment is cut into several partitions
    - `dense`: names of the columns that the scan returns in two
    - `unscaled`: names of the decimals that the scan returns as integers
    - `elements`: full number of elements of each shortened vector
    - `answer`: values of the aggregates if the manifest has them, or null
    - `fragments_read`, `fragments_skipped`, `indexes_used`: numbers for Spark's web UI

    Runs on the driver.

    Raises:
        As :func:`read_schema`.
    """
    target = target_columns(ref, options, spec)
    plan = plan_scan(ref, options, spec, target)
    if spec.aggregate:
        columns = aggregate_schema(spec.aggregate, target)
    else:
        columns = split_schema(long_schema(target, spec.unscaled), spec.dense)
    reader = LanceReader(ref=ref, schema=columns, options=options, spec=spec, plan=plan)
    answer = (
        [plan.rows for _ in spec.aggregate] if reader.counts_only and plan.filter is None else None
    )
    return reader, {
        "description": _describe(ref, options, spec, plan, target),
        "rows": plan.rows,
        "bytes": plan.stored_bytes,
        "limited": plan.limited,
        "serves": plan.exact or not spec.aggregate,
        "splits": plan.splits,
        "dense": spec.dense,
        "unscaled": spec.unscaled,
        "elements": {name: ref.open().schema.field(name).type.list_size for name in spec.elements},
        "answer": answer,
        **_count_fragments(ref, plan, answers=answer is not None),
        "indexes_used": len(plan.indexes),
    }


def _count_fragments(ref: DatasetRef, plan: ScanPlan, *, answers: bool) -> dict[str, int]:
    """Counts the read and the skipped fragments. An answer of the manifest reads none."""
    read = 0 if answers else len({number for task in plan.tasks for number in task.fragments})
    total = int(version_of(ref.open())["metadata"]["total_fragments"])
    return {"fragments_read": read, "fragments_skipped": max(0, total - read)}


def _describe(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec, plan: ScanPlan, target: StructType
) -> str:
    columns = (
        f"{name}[:{spec.elements[name]}]" if name in spec.elements else name
        for name in target.fieldNames()
    )
    facts = {
        "columns": f"[{', '.join(columns)}]",
        "filter": options.filter,
        "pushed": plan.pushed,
        "index": ", ".join(plan.indexes) or None,
        **_describe_aggregates(spec.aggregate),
        "nearest": plan.nearest,
        "no search": plan.unserved,
        "first": plan.top,
        "limit": plan.limit,
        "partitions": f"{len(plan.tasks)}, rows: {plan.rows}",
    }
    texts = [f"{name}: {fact}" for name, fact in facts.items() if fact is not None]
    return "; ".join([f"{ref.uri}@{ref.version}", *texts])


def _describe_aggregates(calls: Sequence[AggregateCall]) -> dict[str, str | None]:
    keys = [call.column or "" for call in calls if call.fn == "group"]
    values = [str(call) for call in calls if call.fn != "group"]
    return {
        "aggregates": f"[{', '.join(values)}]" if calls else None,
        "grouped by": f"[{', '.join(keys)}]" if keys else None,
    }


class LanceReader(DataSourceReader):
    """Reads one version of a table, in partitions.

    `pushFilters` is not implemented on purpose. Spark keeps pushed filters in an object shared by
    all queries over a DataFrame, and then returns wrong rows (see docs/reading.md).

    Attributes:
        ref: The table and its pinned version.
        schema: The columns that Spark expects, in this order.
        options: The user's options.
        spec: The request of the planner rule.
        plan: The plan of the scan, if it exists already. The plan stays on the driver.
    """

    def __init__(
        self,
        *,
        ref: DatasetRef,
        schema: StructType,
        options: ReadOptions,
        spec: ScanSpec | None,
        plan: ScanPlan | None = None,
    ) -> None:
        """Stores the values. Opens no table."""
        self.ref = ref
        self.schema = schema
        self.options = options
        self.spec = spec if spec is not None else ScanSpec()
        # For a scan of the planner rule, `schema` has columns in another form.
        plain = None if self.spec.aggregate or self.spec.columns is not None else schema
        self.target = target_columns(ref, options, self.spec, plain)
        self.plan = plan

    def __getstate__(self) -> dict[str, object]:
        """Returns the state for executors."""
        return {**self.__dict__, "plan": None}

    def partitions(self) -> list[InputPartition]:
        """Plans the scan. Runs on the driver.

        Raises:
            As :func:`read_schema`.
        """
        plan = self.plan or plan_scan(self.ref, self.options, self.spec, self.target)
        if self.spec.aggregate and not plan.exact:
            raise ValueError(
                "The planner rule pushed an aggregate above a filter that Lance cannot apply."
            )
        if self.counts_only and plan.filter is None:
            return [ScanTask(fragments=(), rows=plan.rows)]
        return list(plan.tasks) or [ScanTask(fragments=())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition in the Arrow types of Spark. Runs on an executor.

        Raises:
            TableUnreadableError: A file of the table is missing or damaged.
            FilterError: The option `filter` failed on a value.
            ValueConversionError: A value does not fit Spark's type.
            SnapshotError: The table was recreated since the version was pinned.
        """
        if not isinstance(partition, ScanTask):
            raise TypeError(f"The reader can only read its own partitions, not {partition!r}.")
        if self.spec.aggregate:
            yield from (
                self._grouped(partition) if self.spec.grouped else [self._aggregate(partition)]
            )
        elif not self.schema.fields:
            yield from _empty_batches(self._count(partition))
        elif partition.fragments:
            for batch in self._rows(partition):
                numbers = decimals_to_longs(batch, self.spec.unscaled)
                yield split_batch(numbers, self.spec.dense) if self.spec.dense else numbers

    @property
    def counts_only(self) -> bool:
        """Whether the scan only returns numbers of rows."""
        return self.spec.counts_only

    def _rows(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        blobs = self.options.blob_handling
        projection = Projection(
            self.ref.open(), self.target, blobs, self.ref.uri, prune=self.spec.columns is not None
        )
        elements = self.spec.elements
        read = map(
            projection.assemble, read_batches(self.ref, task, columns=projection.paths, blobs=blobs)
        )
        source = prefix_schema(projection.source, elements)
        converter = ReadConverter(source, self.target)
        for batch in take_prefixes(read, source, elements) if elements else read:
            yield from converter.convert_split(batch)

    def _count(self, task: ScanTask) -> int:
        if task.filter is None or not task.fragments:
            return task.rows
        batches = read_batches(self.ref, task, columns=[], blobs=self.options.blob_handling)
        return sum(batch.num_rows for batch in batches)

    def _grouped(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        # Imported here, because most workers do not need the module.
        from lance_spark.read.aggregates.grouped import grouped

        schema = spark_arrow_schema(aggregate_schema(self.spec.aggregate, self.target))
        return grouped(self._rows(task) if task.fragments else (), self._calls(), schema)

    def _aggregate(self, task: ScanTask) -> pa.RecordBatch:
        from lance_spark.read.aggregates.ungrouped import PartialAggregates

        partial = PartialAggregates(self._calls())
        if not self.target.fields:
            partial.add_rows(self._count(task))
        elif task.fragments:
            for batch in self._rows(task):
                partial.add(batch)
        return partial.row(spark_arrow_schema(aggregate_schema(self.spec.aggregate, self.target)))

    def _calls(self) -> list[AggregateCall]:
        """Returns the aggregates with the column names of a batch."""
        find = fields_by_name(self.target)
        return [call.renamed(lambda name: find(name).name) for call in self.spec.aggregate]


def _empty_batches(rows: int) -> Iterator[pa.RecordBatch]:
    while rows > 0:
        size = min(rows, _EMPTY_BATCH_ROWS)
        rows_only: Array = pa.StructArray.from_buffers(pa.struct([]), size, [None])
        yield pa.RecordBatch.from_struct_array(rows_only)
        rows -= size
