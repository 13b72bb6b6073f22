"""Plans a scan from the user's options and the request of the planner rule."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from lance_spark.errors import OptionError
from lance_spark.read.columns import Projection, table_schema
from lance_spark.read.filtering import IndexAnswer, ask_index, check_filter, conjunction, pushable
from lance_spark.read.planning.partitioning import (
    MIN_PARTITION_BYTES,
    CutRule,
    ScanTask,
    plan_scan_tasks,
)
from lance_spark.read.planning.pushdown_request import AggregateCall, ScanSpec, TopN
from lance_spark.read.planning.sizes import FragmentSize, ScanSize, measure
from lance_spark.types.fields import is_blob

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef
    from lance_spark.options.io_options import ReadOptions
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
"""Minimum width of a value for fetching its column after the filter, for matching rows only.

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
            if larger (:class:`~lance_spark.read.planning.sizes.ScanSize`).
        splits: Whether a fragment is cut into several partitions.
        filter: The filter that Lance applies, in Lance SQL, or None.
        pushed: The pushed-down part of the filter, or None.
        limit: Rows after which a partition ends, from the option or from Spark, or None.
        limited: Whether `limit` is Spark's limit. Spark then keeps all rows of the scan.
        exact: Whether Spark keeps all rows that pass the filter, as aggregates require.
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


def plan_scan(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec, target: StructType
) -> ScanPlan:
    """Plans a scan of the given columns.

    Runs on the driver. Reads the manifest, and a scalar index if the filter has one. The option
    `limit` applies before the conditions of the query, so Spark alone applies a filter above the
    limit. Without a filter, the limit selects the first rows of the table from the counts of live
    rows. With a filter, a single partition reads the matching rows in table order up to the limit.

    Raises:
        OptionError: `fragments` names a fragment that does not exist.
        FilterError: The option `filter` is not valid.
        ColumnNotFoundError: A column does not exist.
    """
    check_selection(ref, options)
    blobs = options.blob_handling
    projection = Projection(ref.open(), target, blobs, ref.uri, prune=spec.columns is not None)
    size = measure(
        ref.open(),
        projection.paths,
        options.fragments,
        blob_bytes=blobs == "bytes",
        storage=ref.storage_options,
    )
    selection = _select_rows(ref, options, spec)
    return _Planner(ref=ref, options=options, spec=spec, size=size, selection=selection).plan()


def check_selection(ref: DatasetRef, options: ReadOptions) -> None:
    """Checks the options `filter` and `fragments` against the table.

    Raises:
        FilterError: The option `filter` is not valid.
        OptionError: A fragment of the option `fragments` is not in the table.
    """
    dataset = ref.open()
    if options.filter is not None:
        check_filter(dataset, options.filter, ref.uri, options.blob_handling)
    ids = options.fragments or ()
    missing_ids = [number for number in ids if dataset.get_fragment(number) is None]
    if missing_ids:
        raise OptionError(
            "fragments",
            ",".join(map(str, ids)),
            f"ids of fragments in version {dataset.version} of {ref.uri}",
            problem=f"names missing fragments ({', '.join(map(str, missing_ids))})",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """The filter of a scan.

    Attributes:
        sql: The filter that Lance applies, in Lance SQL, or None.
        pushed: The pushed-down part of the filter, or None.
        exact: Whether Spark keeps all rows that pass the filter.
        is_narrowed: Whether a runtime filter is part of the filter.
        answer: Matches of the filter according to scalar indexes, or None.
    """

    sql: str | None
    pushed: str | None
    exact: bool
    is_narrowed: bool
    answer: IndexAnswer | None


def _select_rows(ref: DatasetRef, options: ReadOptions, spec: ScanSpec) -> _Selection:
    """Combines the filters of user, query and running query, and asks the indexes for matches."""
    pushed = (
        pushable(ref.open(), spec.filter_sql, options.blob_handling)
        if options.limit is None
        else None
    )
    sql = conjunction(options.filter, pushed)
    exact = spec.exact and pushed is not None if spec.filtered else pushed is None
    runtime = _usable_runtime_filter(ref, options, spec)
    if runtime is None:
        answer = ask_index(ref, sql) if sql is not None else None
        return _Selection(sql=sql, pushed=pushed, exact=exact, is_narrowed=False, answer=answer)
    return _Selection(
        sql=conjunction(sql, runtime),
        pushed=conjunction(pushed, runtime),
        exact=exact,
        is_narrowed=True,
        answer=_narrowest_answer(ref, runtime, sql),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """Plans the partitions of a scan."""

    ref: DatasetRef
    options: ReadOptions
    spec: ScanSpec
    size: ScanSize
    selection: _Selection

    @property
    def keeps_all(self) -> bool:
        """Whether Spark keeps all rows of the scan. Its limit counts rows after its filter."""
        return self.selection.exact and not self.spec.aggregate

    @property
    def limit(self) -> int | None:
        """Rows after which a partition ends, or None."""
        bounds = (self.options.limit, self.spec.limit if self.keeps_all else None)
        return min((rows for rows in bounds if rows is not None), default=None)

    def plan(self) -> ScanPlan:
        """Returns the partitions and the estimates of the scan."""
        nearest, unserved = self._nearest()
        top = self.spec.top if self._is_top_served() else None
        tasks = self._tasks(nearest, top)
        rows, stored_bytes = self._estimate(tasks, nearest)
        ranges = [task.fragments for task in tasks if task.start is not None]
        answer = self.selection.answer
        return ScanPlan(
            tasks=tuple(tasks),
            rows=rows,
            stored_bytes=stored_bytes,
            splits=len(ranges) > len(set(ranges)),
            filter=self.selection.sql,
            pushed=self.selection.pushed,
            limit=self.limit,
            limited=self.keeps_all and self.spec.limit is not None,
            exact=self.selection.exact,
            indexes=answer.names if answer is not None and answer.serves else (),
            nearest=nearest,
            unserved=unserved,
            top=top,
        )

    def _nearest(self) -> tuple[IndexedSort | None, str | None]:
        """Returns the search for a sort by distance, or the reason for its absence."""
        call, size = self.spec.nearest, self.size
        if call is None:
            return None, None
        if not self.keeps_all:
            return None, "a filter is left to Spark"
        # Imported here, so that workers of plain scans start faster.
        from lance_spark.read.ranking.sort_pushdown import plan_nearest

        vectors = int(size.live_rows * size.column_bytes.get(call.column, size.row_bytes))
        planned = plan_nearest(
            self.ref, self.options, call, row_bytes=size.row_bytes, vector_bytes=vectors
        )
        return (None, planned) if isinstance(planned, str) else (planned, None)

    def _is_top_served(self) -> bool:
        """Tells whether the scan can find the first rows of a sort by its key."""
        top, dataset = self.spec.top, self.ref.open()
        if top is None or not self.keeps_all or self.options.limit is not None:
            return False
        # Imported here, so that workers of plain scans start faster.
        from lance_spark.read.top_n import is_sortable

        name = top.column
        if name not in dataset.schema.names or "." in name or "`" in name:
            return False
        field = dataset.schema.field(name)
        # A blob column reads as descriptors.
        return _reads_by_address(dataset) and not is_blob(field) and is_sortable(field.type)

    def _tasks(self, nearest: IndexedSort | None, top: TopN | None) -> list[ScanTask]:
        """Returns the partitions with everything that a task needs."""
        sql, size = self.selection.sql, self.size
        tasks = self._cut()
        if nearest is not None or self._is_sequential():
            tasks = _in_one(tasks, size.fragments)
        batch_rows = max(1, int(BATCH_BYTES / max(1.0, size.row_bytes)))
        limit, late = (None, None) if sql is None else (self.limit, _late(size, self.ref.uri))
        return [
            replace(
                task,
                filter=sql,
                limit=limit,
                batch_rows=min(self.options.batch_size, batch_rows),
                late=None if task.use_index or task.mask is not None else late,
                nearest=nearest,
                top=top,
            )
            for task in tasks
        ]

    def _is_sequential(self) -> bool:
        """Tells whether a single partition reads the matching rows in the order of the table."""
        selection, runtime = self.selection, self.spec.runtime
        had_one = selection.is_narrowed and runtime is not None and runtime.partitions == 1
        return had_one or (selection.sql is not None and self.options.limit is not None)

    def _cut(self) -> list[ScanTask]:
        """Cuts the fragments, or the matches of an index, into partitions."""
        fragments, answer = self.size.fragments, self.selection.answer
        if self.selection.sql is None:
            return plan_scan_tasks(fragments, self._rule(prefix=self.limit))
        if answer is None or not answer.serves:
            return self._scanned(fragments)
        if answer.matches is None:
            return plan_scan_tasks(fragments, self._rule(splittable=False))
        no_match = answer.covered - answer.matches.keys()
        candidates = [f for f in fragments if f.fragment_id not in no_match]
        return self._cut_candidates(candidates, answer, answer.matches)

    def _cut_candidates(
        self, candidates: Sequence[FragmentSize], answer: IndexAnswer, matches: Mapping[int, int]
    ) -> list[ScanTask]:
        """Cuts the fragments with matches of an index, and the fragments without the index."""
        unknown = [f for f in candidates if f.fragment_id not in answer.covered]
        # The filter reads columns outside of `stored_bytes`.
        file_bytes = sum(math.inf if f.file_bytes is None else f.file_bytes for f in candidates)
        is_small = file_bytes <= MIN_PARTITION_BYTES and not self.selection.is_narrowed
        if unknown and is_small:
            # Each partition opens the table. A further partition costs more than this scan.
            return self._scanned(candidates)
        matching = [
            _matching(f, matches[f.fragment_id], self.size.row_bytes)
            for f in candidates
            if f.fragment_id in matches
        ]
        tasks = plan_scan_tasks(matching, self._rule(splittable=False))
        if answer.mask is not None:
            tasks = [replace(task, use_index=False, mask=answer.mask) for task in tasks]
        return tasks + self._scanned(unknown)

    def _scanned(self, fragments: Sequence[FragmentSize]) -> list[ScanTask]:
        """Cuts fragments whose filter uses no index."""
        rule = self._rule(splittable=_reads_by_address(self.ref.open()), physical=True)
        return [replace(task, use_index=False) for task in plan_scan_tasks(fragments, rule)]

    def _rule(
        self, *, prefix: int | None = None, splittable: bool = True, physical: bool = False
    ) -> CutRule:
        return CutRule(
            target_bytes=self.options.target_partition_bytes,
            # Without the jar, planning does not see the cluster.
            parallelism=self.options.parallelism or self.spec.slots or os.cpu_count() or 1,
            splittable=splittable and not self.spec.whole_fragments,
            physical=physical,
            prefix=prefix,
        )

    def _estimate(self, tasks: Sequence[ScanTask], nearest: IndexedSort | None) -> tuple[int, int]:
        """Returns the maximum number of rows, and the estimated bytes to read."""
        size, limit = self.size, self.limit
        read = {number for task in tasks for number in task.fragments}
        rows = sum(task.rows for task in tasks)
        stored_bytes = sum(
            fragment.stored_bytes for fragment in size.fragments if fragment.fragment_id in read
        )
        # An estimate: the search falls back to a full scan if it finds too few rows.
        if nearest is not None:
            rows = min(rows, nearest.call.k)
            stored_bytes = min(stored_bytes, int(rows * size.row_bytes))
        stored_bytes = max(stored_bytes, size.even_bytes * rows // max(size.live_rows, 1))
        if limit is not None:
            # Spark's limit ends each partition, and the limit of the options the whole scan.
            rows = min(
                rows, limit if self.options.limit is not None else limit * max(1, len(tasks))
            )
        return rows, stored_bytes


def aggregate_schema(calls: Sequence[AggregateCall], columns: StructType) -> StructType:
    """Returns the columns of a row of partial results.

    Counts are bigint, `min` and `max` keep the type of the column, and each sum has its own scale.
    """
    fields, find = [], fields_by_name(columns)
    for call in calls:
        if call.fn == "sum":
            kind = LongType() if call.scale is None else DecimalType(_SUM_DIGITS, call.scale)
            fields.append(StructField(call.name, kind, True))
        elif call.column is None or call.fn == "count":
            fields.append(StructField(call.name, LongType(), False))
        else:
            field = find(call.column)
            fields.append(
                StructField(call.name, field.dataType, field.nullable or call.fn != "group")
            )
    return StructType(fields)


def aggregate_inputs(calls: Sequence[AggregateCall], columns: StructType) -> StructType:
    """Returns the distinct input columns of aggregates, in order."""
    find = fields_by_name(columns)
    return StructType(list({(f := find(n)).name: f for c in calls for n in c.inputs}.values()))


def fields_by_name(columns: StructType) -> Callable[[str], StructField]:
    """Returns a function from a name, which Spark may spell in another case, to its field.

    The function raises a KeyError for an unknown name.
    """
    exact = {field.name: field for field in reversed(columns.fields)}
    lower = {field.name.lower(): field for field in reversed(columns.fields)}
    return lambda name: exact[name] if name in exact else lower[name.lower()]


def target_columns(
    ref: DatasetRef, options: ReadOptions, spec: ScanSpec, schema: StructType | None = None
) -> StructType:
    """Returns the columns to read: the inputs of aggregates, else the requested columns."""
    if spec.counts_only:
        return StructType([])
    if spec.aggregate:
        base = (
            spec.columns
            if spec.columns is not None and spec.columns.fields
            else table_schema(ref.open(), ref, options)
        )
        try:
            return aggregate_inputs(spec.aggregate, base)
        except KeyError:
            return aggregate_inputs(spec.aggregate, table_schema(ref.open(), ref, options))
    if schema is not None:
        return schema
    return spec.columns if spec.columns is not None else table_schema(ref.open(), ref, options)


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


def _narrowest_answer(ref: DatasetRef, *filters: str | None) -> IndexAnswer | None:
    """Returns the index answer of the conjunct with the fewest matching rows."""
    answers = [ask_index(ref, text) for text in filters if text is not None]
    serving = [answer for answer in answers if answer is not None and answer.serves]
    return min(
        serving,
        key=lambda a: math.inf if a.matches is None else sum(a.matches.values()),
        default=None,
    )


def _reads_by_address(dataset: lance.LanceDataset) -> bool:
    """Tells whether Lance can read single rows: not in the legacy file format."""
    return dataset.data_storage_version not in ("legacy", "0.1")


def _matching(fragment: FragmentSize, matches: int, row_bytes: float) -> FragmentSize:
    rows = min(fragment.live_rows, matches)
    return replace(fragment, live_rows=rows, stored_bytes=math.ceil(rows * row_bytes))


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
