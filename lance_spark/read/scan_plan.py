"""Plans a scan from the user's options and the request of the planner rule."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from lance_spark.errors import OptionError
from lance_spark.read.columns import Projection, table_schema
from lance_spark.read.filtering import IndexAnswer, ask_index, check_filter, conjunction, pushable
from lance_spark.read.partitioning import CutRule, ScanTask, plan_scan_tasks
from lance_spark.read.pushdown_request import AggregateCall, ScanSpec, TopN
from lance_spark.read.sizes import FragmentSize, ScanSize, measure
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef
    from lance_spark.options import ReadOptions
    from lance_spark.read.ranking.sort_pushdown import IndexedSort

BATCH_BYTES = 1 << 20
"""Target size of a batch, estimated from the width of a row."""

_SUM_DIGITS = 38
"""Maximum precision of Spark's decimals, used for partial sums."""

MAX_RUNTIME_CHARS = 32 << 10
"""Maximum length of a runtime filter, about some thousand keys. A look-up of 10,000 keys takes as
long as a scan of a million rows. q03 of TPC-H had 9,000 keys: the filter raised its processor time
by 14 %."""

LATE_BYTES_LOCAL, LATE_BYTES_REMOTE = 128, 1024
"""Width of a value from which a column is fetched only for the rows that pass the filter.

Lance assumes that a filter keeps one row in a thousand, and fetches nearly all columns late. Late
fetching costs about 0.5 us per kept row: for a filter that keeps half of 4 million rows, 1.2 s
instead of 0.15 s. Vectors of 3 KiB gain from late fetching unless nearly all rows pass.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """The partitions of a scan, and its estimates.

    Attributes:
        tasks: The partitions.
        rows: Maximum number of rows in the result.
        stored_bytes: Estimated bytes to read: the bytes on storage, or Spark's estimate for files
            if larger (:class:`~lance_spark.read.sizes.ScanSize`).
        splits: Whether a fragment is cut into several partitions.
        filter: The filter that Lance applies, in Lance SQL, or None.
        pushed: The pushed-down part of the filter, or None.
        limit: Rows after which a partition ends, from the option or from Spark, or None.
        limited: Whether `limit` is Spark's limit. Spark then drops none of the rows.
        exact: Whether Spark drops none of the rows that pass the filter. Aggregates require it.
        indexes: Names of the scalar indexes used for the filter.
        nearest: Vector search for all rows that Spark needs, or None.
        unserved: Reason why a sort by distance uses no search, or None.
        top: Sort whose first rows are the whole output of a partition, or None.
    """

    tasks: tuple[ScanTask, ...]
    rows: int
    stored_bytes: int
    splits: bool
    filter: str | None
    pushed: str | None
    limit: int | None
    limited: bool
    exact: bool
    indexes: tuple[str, ...]
    nearest: IndexedSort | None = None
    unserved: str | None = None
    top: TopN | None = None


def plan_scan(ref: DatasetRef, options: ReadOptions, spec: ScanSpec, target: StructType) -> ScanPlan:
    """Plans a scan of the given columns.

    Runs on the driver. Reads the manifest, and a scalar index if the filter has one. The option
    `limit` applies before everything that Spark pushes down, so Spark alone applies a filter above
    it. Without a filter, the limit selects the first rows of the table from the counts of live
    rows. With a filter, a single partition reads the matching rows in table order until it has
    enough.

    Raises:
        OptionError: `fragments` names a fragment that does not exist.
        FilterError: The option `filter` is not valid.
        ColumnNotFoundError: A column does not exist.
    """
    dataset = ref.open()
    if options.filter is not None:
        check_filter(dataset, options.filter, ref.uri, options.blob_handling)
    if options.fragments is not None:
        check_fragments(dataset, options.fragments, ref.uri)
    pushed = pushable(dataset, spec.filter_sql, options.blob_handling) if options.limit is None else None
    selection = conjunction(options.filter, pushed)
    exact = pushed is None if not spec.filtered else spec.exact and pushed is not None
    # Spark counts the rows that pass its own filter.
    keeps_all = exact and not spec.aggregate
    bounds = [n for n in (options.limit, spec.limit if keeps_all else None) if n is not None]
    limit = min(bounds) if bounds else None
    projection = Projection(dataset, target, options.blob_handling, ref.uri, prune=spec.columns is not None)
    size = measure(
        dataset,
        projection.paths,
        options.fragments,
        blob_bytes=options.blob_handling == "bytes",
        storage=ref.storage_options,
    )
    runtime = _usable_runtime_filter(ref, options, spec)
    if runtime is not None:
        answer = _least(ref, runtime, selection)
        pushed, selection = conjunction(pushed, runtime), conjunction(selection, runtime)
    else:
        answer = ask_index(ref, selection) if selection is not None else None
    indexes = answer.names if answer is not None and answer.serves else ()
    if selection is None:
        tasks = plan_scan_tasks(size.fragments, _rule(options, spec, prefix=limit))
    else:
        tasks = _filtered(ref, options, spec, size, answer)
    nearest, unserved = _nearest(ref, options, spec, size, keeps_all=keeps_all)
    is_one = runtime is not None and spec.runtime is not None and spec.runtime.partitions == 1
    if nearest is not None or is_one or (selection is not None and options.limit is not None):
        tasks = _in_one(tasks, size.fragments)
    top = spec.top if spec.top is not None and keeps_all and _is_served(dataset, options, spec.top) else None
    rows = max(1, int(BATCH_BYTES / max(1.0, size.row_bytes)))
    late = None if selection is None else _late(size, ref.uri)
    tasks = [
        replace(
            t,
            filter=selection,
            limit=None if selection is None else limit,
            batch_rows=min(options.batch_size, rows),
            late=None if t.use_index else late,
            nearest=nearest,
            top=top,
        )
        for t in tasks
    ]
    read = {number for task in tasks for number in task.fragments}
    pieces = sum(1 for t in tasks if t.start is not None)
    total = sum(t.rows for t in tasks)
    stored = sum(f.stored_bytes for f in size.fragments if f.fragment_id in read)
    live = sum(f.live_rows for f in size.fragments)
    # An estimate: the search falls back to a full scan if it finds too few rows.
    if nearest is not None:
        total = min(total, nearest.call.k)
        stored = min(stored, int(total * size.row_bytes))
    return ScanPlan(
        tasks=tuple(tasks),
        rows=total if limit is None else min(total, limit if options.limit is not None else limit * max(1, len(tasks))),
        stored_bytes=max(stored, size.even_bytes * total // max(live, 1)),
        splits=pieces > len({t.fragments for t in tasks if t.start is not None}),
        filter=selection,
        pushed=pushed,
        limit=limit,
        limited=keeps_all and spec.limit is not None,
        exact=exact,
        indexes=indexes,
        nearest=nearest,
        unserved=unserved,
        top=top,
    )


def _is_served(dataset: lance.LanceDataset, options: ReadOptions, top: TopN) -> bool:
    """Tells whether the scan can find the first rows of a sort by its key."""
    # Imported here, so that workers of plain scans start faster.
    from lance_spark.read.top_n import is_sortable

    name = top.column
    if options.limit is not None or name not in dataset.schema.names or "." in name or "`" in name:
        return False
    field = dataset.schema.field(name)
    # A blob column reads as descriptors.
    return _reads_by_address(dataset) and not is_blob(field) and is_sortable(field.type)


def _nearest(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec, size: ScanSize, *, keeps_all: bool
) -> tuple[IndexedSort | None, str | None]:
    """Returns the search for a sort by distance, or the reason for its absence."""
    if spec.nearest is None:
        return None, None
    if not keeps_all:
        return None, "a filter is left to Spark"
    # Imported here, so that workers of plain scans start faster.
    from lance_spark.read.ranking.sort_pushdown import plan_nearest

    rows = sum(fragment.live_rows for fragment in size.fragments)
    vectors = int(rows * size.column_bytes.get(spec.nearest.column, size.row_bytes))
    planned = plan_nearest(ref, options, spec.nearest, row_bytes=size.row_bytes, vector_bytes=vectors)
    return (None, planned) if isinstance(planned, str) else (planned, None)


def check_fragments(dataset: lance.LanceDataset, ids: Sequence[int], uri: str) -> None:
    """Checks that the fragments of the option `fragments` are in the table.

    Raises:
        OptionError: A fragment is not in the table.
    """
    missing_ids = [number for number in ids if dataset.get_fragment(number) is None]
    if missing_ids:
        raise OptionError(
            "fragments",
            ",".join(map(str, ids)),
            f"ids of fragments that are in version {dataset.version} of {uri}",
            problem=f"names fragments that are not there ({', '.join(map(str, missing_ids))})",
        )


def aggregate_schema(calls: Sequence[AggregateCall], columns: StructType) -> StructType:
    """Returns the columns of a row of partial results.

    Counts are bigint, `min` and `max` keep the type of the column, and each sum has its own scale.
    """
    fields = []
    for call in calls:
        if call.fn == "sum":
            kind = LongType() if call.scale is None else DecimalType(_SUM_DIGITS, call.scale)
            fields.append(StructField(call.name, kind, True))
        elif call.column is None or call.fn == "count":
            fields.append(StructField(call.name, LongType(), False))
        else:
            field = find_field(columns, call.column)
            fields.append(StructField(call.name, field.dataType, field.nullable or call.fn != "group"))
    return StructType(fields)


def aggregate_inputs(calls: Sequence[AggregateCall], columns: StructType) -> StructType:
    """Returns the distinct input columns of aggregates, in order."""
    return StructType(list({(f := find_field(columns, n)).name: f for c in calls for n in c.inputs}.values()))


def find_field(columns: StructType, name: str) -> StructField:
    """Returns the field with a name, which Spark may spell in another case."""
    for field in columns.fields:
        if field.name == name:
            return field
    return next(field for field in columns.fields if field.name.lower() == name.lower())


def target_columns(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec, schema: StructType | None = None
) -> StructType:
    """Returns the columns to read: the inputs of aggregates, else the requested columns."""
    if spec.aggregate:
        base = (
            spec.columns if spec.columns is not None and spec.columns.fields else table_schema(ref.open(), ref, options)
        )
        try:
            return aggregate_inputs(spec.aggregate, base)
        except StopIteration:
            return aggregate_inputs(spec.aggregate, table_schema(ref.open(), ref, options))
    if schema is not None:
        return schema
    return spec.columns if spec.columns is not None else table_schema(ref.open(), ref, options)


def _rule(
    options: ReadOptions, spec: ScanSpec, *, prefix: int | None = None, splittable: bool = True, physical: bool = False
) -> CutRule:
    return CutRule(
        target_bytes=options.target_partition_bytes,
        # Planning knows nothing of the cluster. On a single machine, this is its number of cores.
        parallelism=os.cpu_count() or 1,
        splittable=splittable and not spec.whole_fragments,
        physical=physical,
        prefix=prefix,
    )


def _usable_runtime_filter(ref: DatasetRef, options: ReadOptions, spec: ScanSpec) -> str | None:
    """Returns the runtime filter in Lance SQL.

    Returns None without an index of the column, or if most rows pass.
    """
    text = spec.runtime_sql
    if text is None or options.limit is not None or len(text) > MAX_RUNTIME_CHARS:
        return None
    if pushable(ref.open(), text, options.blob_handling) is None:
        return None
    answer = ask_index(ref, text)
    if answer is None:
        return None
    drops_rows = answer.matches is not None and sum(answer.matches.values()) <= answer.rows // 2
    return text if answer.serves or drops_rows else None


def _least(ref: DatasetRef, *filters: str | None) -> IndexAnswer | None:
    """Returns the index answer of the conjunct with the fewest matching rows."""
    answers = [ask_index(ref, text) for text in filters if text is not None]
    serving = [answer for answer in answers if answer is not None and answer.serves]
    return min(serving, key=lambda a: math.inf if a.matches is None else sum(a.matches.values()), default=None)


def _filtered(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec, size: ScanSize, answer: IndexAnswer | None
) -> list[ScanTask]:
    """Plans a filtered scan over the matches of an index, else over all fragments."""
    can_mask = _reads_by_address(ref.open())
    if answer is None or not answer.serves:
        tasks = plan_scan_tasks(size.fragments, _rule(options, spec, splittable=can_mask, physical=True))
        return [replace(t, use_index=False) for t in tasks]
    if answer.matches is None:
        return plan_scan_tasks(size.fragments, _rule(options, spec, splittable=False))
    matching = [_matching(f, answer, size.row_bytes) for f in size.fragments if f.fragment_id in answer.matches]
    unknown = [f for f in size.fragments if f.fragment_id not in answer.covered]
    rest = plan_scan_tasks(unknown, _rule(options, spec, splittable=can_mask, physical=True))
    return plan_scan_tasks(matching, _rule(options, spec, splittable=False)) + [
        replace(t, use_index=False) for t in rest
    ]


def _reads_by_address(dataset: lance.LanceDataset) -> bool:
    """Tells whether Lance can read single rows: not in the legacy file format."""
    return dataset.data_storage_version not in ("legacy", "0.1")


def _matching(fragment: FragmentSize, answer: IndexAnswer, row_bytes: float) -> FragmentSize:
    assert answer.matches is not None
    rows = min(fragment.live_rows, answer.matches[fragment.fragment_id])
    return FragmentSize(fragment.fragment_id, fragment.physical_rows, rows, math.ceil(rows * row_bytes))


def _in_one(tasks: Sequence[ScanTask], fragments: Sequence[FragmentSize]) -> list[ScanTask]:
    """Returns a single partition with the fragments of all tasks, in table order."""
    read = {number for task in tasks for number in task.fragments}
    ids = tuple(f.fragment_id for f in fragments if f.fragment_id in read)
    whole = {t.fragments: t.rows for t in tasks if t.start is None}
    rows = sum(whole.values()) + sum(t.rows for t in tasks if t.start is not None)
    return [ScanTask(fragments=ids, rows=rows)] if ids else []


def _late(size: ScanSize, uri: str) -> tuple[str, ...]:
    least = LATE_BYTES_REMOTE if "://" in uri else LATE_BYTES_LOCAL
    return tuple(name for name, width in size.column_bytes.items() if width >= least)
