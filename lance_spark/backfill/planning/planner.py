"""Prepares a backfill, and validates the request. Runs on the driver."""

from __future__ import annotations

import functools
import math
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.backfill.planning.definition import Definition, definition_of
from lance_spark.backfill.planning.fragment_plan import (
    MAX_RANGE_ROWS,
    FragmentPlan,
    countable,
    measure_input_row,
    plan_fragments,
    plan_tasks,
    sample_tasks,
)
from lance_spark.backfill.planning.selection import row_selector_of
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.computed_rows import FragmentRecord, Records, RecordStore
from lance_spark.backfill.reuse.equal_inputs import check_equal_inputs
from lance_spark.backfill.reuse.prior_round_rows import FirstRound
from lance_spark.backfill.reuse.round_context import (
    Bases,
    RoundContext,
    done_rows,
    source_of,
    store_of,
    valued_rows,
)
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.backfill.task.messages import BackfillSpec, Task
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef, count_data_files
from lance_spark.errors import UnsupportedOperationError
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.tables import quote_text
from lance_spark.read.filtering import check_filter
from lance_spark.rebase.snapshot import open_base
from lance_spark.rows.matching_rows import matching_addresses
from lance_spark.rows.row_addresses import SnapshotRows, fragments_of, offsets_of, runs_of
from lance_spark.rows.row_set import RowSet
from lance_spark.session.sessions import known_slots
from lance_spark.staging.area import Staging
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import Targets
from lance_spark.storage.parallel_calls import begin_call
from udf_runtime.checkpoint import CheckpointEntry
from udf_runtime.policies import CheckpointSizes, checkpoint_bounds

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

MOST_BASES = 8
"""Maximum number of older versions to search for rows."""

_SHIPPED_BYTES = 4 << 20
"""Maximum bytes of records in the description of tasks, before compression."""

SAMPLE_TASKS = 8
"""Tasks of a sample, at places of equal distance in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBackfill:
    """A backfill of a version, ready to run.

    Attributes:
        entries: The checkpoints of the backfill, by source.
        bases: The older versions that the preparation has opened. The job closes these versions.
    """

    request: BackfillRequest
    definition: Definition
    spec: BackfillSpec
    dataset: lance.LanceDataset
    entries: Mapping[str, Sequence[CheckpointEntry]]
    plans: tuple[FragmentPlan, ...]
    resumed_jobs: frozenset[str]
    bases: Bases = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The target columns."""
        return tuple(column for _, column in self.spec.outputs)

    @property
    def window(self) -> frozenset[int] | None:
        """The fragments that the request selects by position; None for all fragments."""
        if self.request.num_frags is None and not self.request.skip_frags:
            return None
        return frozenset(plan.fragment_id for plan in self.plans)

    def work(self, *, scan: bool | None = None) -> tuple[FragmentPlan, ...]:
        """Returns the fragments with work, as :meth:`with_counts` does."""
        return tuple(plan for plan in self.with_counts(scan=scan) if plan.rows_to_do)

    def with_counts(self, *, scan: bool | None = None) -> tuple[FragmentPlan, ...]:
        """Returns the fragments with the counts of their rows.

        `scan` counts the rows of fragments with a scan of the filter's columns, if the manifest and
        the records do not determine the count. By default only quick scans run.

        Raises:
            FilterError: The filter fails on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        unknown = {plan.fragment_id: plan for plan in self.plans if plan.pending is None}
        counts: dict[int, int] = {}
        if unknown and (countable(unknown.values()) if scan is None else scan):
            text = self.spec.row_selector.filter_of(self.columns)
            counts = self._selected(unknown) if text is None else self._matching(unknown, text)
        return tuple(
            replace(plan, pending=counts.get(plan.fragment_id, plan.pending)) for plan in self.plans
        )

    def _matching(self, plans: Mapping[int, FragmentPlan], text: str) -> dict[int, int]:
        """Counts the rows of fragments that match a filter."""
        counts = dict.fromkeys(plans, 0)
        fragments = [
            fragment for fragment in self.dataset.get_fragments() if fragment.fragment_id in plans
        ]
        for addresses in matching_addresses(self.dataset, fragments, text):
            for fragment, first, end in runs_of(fragments_of(addresses)):
                skip = plans[fragment].recorded_rows.skip
                counts[fragment] += end - first
                if skip:
                    counts[fragment] -= len(skip & RowSet.of(offsets_of(addresses[first:end])))
        return counts

    def _selected(self, plans: Mapping[int, FragmentPlan]) -> dict[int, int]:
        """Counts the selected rows of fragments, by the history of their values."""
        history = ValueHistory(RoundContext(self.spec, self.bases), SnapshotRows(self.dataset))
        return {
            number: len(self.spec.row_selector.select(plan.rows(history)))
            for number, plan in plans.items()
        }

    def for_tasks(self) -> PreparedBackfill:
        """Returns the backfill with the records for its tasks, if these are few."""
        records = self.spec.records
        if records is None or records.nbytes <= _SHIPPED_BYTES:
            return self
        return replace(self, spec=replace(self.spec, records=None))

    def task_rows(self, spark: SparkSession | None) -> int:
        """Returns the rows of a task on a cluster, or on the available slots without a cluster."""
        return self._task_size or rows_per_task(
            spark, self.dataset.count_rows(), self.request.concurrency
        )

    @property
    def _task_size(self) -> int | None:
        udf = self.definition.loaded or self.definition.stored
        return self.request.task_size or (udf and udf.task_size) or None

    def tasks(self, spark: SparkSession) -> list[Task]:
        """Returns the tasks of the round: of all rows to do, or of a sample."""
        request = self.request
        if request.is_sample and request.max_calls is not None:
            return sample_tasks(self.plans, request.max_calls, SAMPLE_TASKS)
        return self.cut(self.plans, spark)

    def cut(self, plans: Sequence[FragmentPlan], spark: SparkSession | None) -> list[Task]:
        """Cuts fragments into tasks. A task of small fragments makes full calls of the UDF."""
        return plan_tasks(
            plans, self.task_rows(spark), self.spec.call_rows, is_maximum=bool(self._task_size)
        )


Define: TypeAlias = Callable[[DatasetRef, "lance.LanceDataset", BackfillRequest], Definition]
"""Returns the source of the columns of a request, in a version of the table."""


def prepare(
    ref: DatasetRef,
    request: BackfillRequest,
    *,
    checkpoints: str | None,
    define: Define = definition_of,
    head: lance.LanceDataset | None = None,
) -> PreparedBackfill:
    """Validates a request against the table, and prepares a job.

    Args:
        ref: The table.
        request: The request.
        checkpoints: The location of checkpoints. None is next to the table.
        define: Returns the definition of the requested columns.
        head: The latest version, if the caller has just opened the table.

    Raises:
        ColumnNotFoundError, RegistrationError, UnsupportedOperationError: A column cannot be
            filled.
        StoredUdfError: The stored UDF cannot be used.
        FilterError: `where` is not valid.
        VersionNotFoundError: The version does not exist.
    """
    snapshot = ref.pin(request.read_version) if head is None else ref.pin_open(head)
    dataset = snapshot.open()
    if dataset.data_storage_version in ("0.1", "legacy"):
        raise UnsupportedOperationError(
            f"Files of format 0.1 cannot be filled column by column, and {ref.uri} has such files. Write the table "
            "anew with format 2.1."
        )
    records_of = _begin_records(ref, dataset, request)
    definition = define(ref, dataset, request)
    if request.where is not None:
        check_filter(dataset, request.where, ref.uri, "descriptor")
    if not request.plan_only:
        refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    resumed_jobs = _unfinished_jobs(ref, request.where, definition.key.digest)
    spec = _first_spec(snapshot, dataset, request, definition, checkpoints, resumed_jobs)
    if definition.loaded is not None and definition.loaded.deduplicate == "table":
        check_equal_inputs(spec, definition.loaded, dataset)
    row_bytes = begin_call(ref.uri, functools.partial(measure_input_row, spec))
    entries_of = begin_call(ref.uri, functools.partial(store_of(spec).find_all, spec.key))
    records = records_of(spec.column)
    entries = entries_of()
    bases = _bases(ref, spec, dataset, records, entries, stale=request.stale)
    spec = replace(spec, records=records, bases=bases)
    window = slice(
        request.skip_frags,
        None if request.num_frags is None else request.skip_frags + request.num_frags,
    )
    open_bases: Bases = {}
    return PreparedBackfill(
        request=request,
        definition=definition,
        spec=spec,
        dataset=dataset,
        entries=entries,
        plans=plan_fragments(
            spec, dataset, records, entries, row_bytes=row_bytes(), window=window, bases=open_bases
        ),
        resumed_jobs=resumed_jobs,
        bases=open_bases,
    )


def _begin_records(
    ref: DatasetRef, dataset: lance.LanceDataset, request: BackfillRequest
) -> Callable[[str], Records]:
    """Begins to load the records of the request's column. The returned function waits for them."""
    expected = next(
        (
            _column_id(column)
            for column in field_identities(dataset.lance_schema)
            if column.name == request.columns[0]
        ),
        None,
    )
    store = RecordStore(ref)
    load = (
        None if expected is None else begin_call(ref.uri, functools.partial(store.load, expected))
    )

    def records_of(column: str) -> Records:
        return store.load(column) if load is None or column != expected else load()

    return records_of


def _column_id(column: FieldIdentity) -> str:
    """Returns the identity of a target column in records."""
    return column.token or f"{column.id}:{column.name}"


def rows_per_task(spark: SparkSession | None, rows: int, concurrency: int | None) -> int:
    """Returns the rows of a task by default: each slot gets two tasks, a single slot gets one."""
    slots = (None if spark is None else known_slots(spark)) or concurrency or os.cpu_count() or 1
    slots = slots if concurrency is None else min(slots, concurrency)
    return MAX_RANGE_ROWS if slots == 1 else max(1, math.ceil(rows / slots / 2))


def slots_of(spark: SparkSession, limit: int | None) -> int:
    """Returns the tasks at once within a limit; the cores of this machine if neither is known."""
    return min(filter(None, (limit, known_slots(spark))), default=os.cpu_count() or 1)


def targets_of(dataset: lance.LanceDataset, columns: Sequence[str]) -> Targets:
    """Returns columns of a version in the form of files."""
    table = dataset.schema
    return Targets(
        schema=pa.schema([row_field(table.field(column)) for column in columns]),
        existing=tuple(columns),
        format=dataset.data_storage_version,
    )


def _first_spec(
    snapshot: DatasetRef,
    dataset: lance.LanceDataset,
    request: BackfillRequest,
    definition: Definition,
    checkpoints: str | None,
    resumed_jobs: frozenset[str],
) -> BackfillSpec:
    """Returns the spec of the first round, without the effects of earlier jobs."""
    columns = [column for _, column in definition.outputs]
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    first, udf = identities[columns[0]], definition.loaded
    job_id = request.job_id or uuid.uuid4().hex
    call_rows = 1 if udf is None else udf.call_rows
    return BackfillSpec(
        snapshot=snapshot,
        staging=Staging.of_new_job(snapshot, table_files=count_data_files(dataset), pipelined=True),
        job_id=job_id,
        value_source=definition.value_source,
        row_selector=row_selector_of(
            request.where,
            stale=request.stale,
            redefined=definition.is_redefined,
            serving_jobs=frozenset({job_id, *resumed_jobs}),
        ),
        prior_rounds=FirstRound(),
        key=definition.key,
        inputs=definition.inputs,
        input_source=definition.input_source,
        outputs=definition.outputs,
        targets=targets_of(dataset, columns),
        target_ids=tuple(number for column in columns for number in identities[column].ids),
        column=_column_id(first),
        bound_at=_bound_at(definition, dataset),
        checkpoints=checkpoints,
        sizes=checkpoint_bounds(call=request, udf=udf or CheckpointSizes(), call_rows=call_rows),
        call_rows=call_rows,
        flush_s=request.batch_checkpoint_flush_interval_seconds,
        threads=request.intra_applier_concurrency,
        blob_strategy=request.blob_read_strategy,
        blob_buffer_bytes=request.blob_read_buffer_size,
        report_s=min(request.refresh_status_secs / 2, 1.0),
    )


def _bound_at(definition: Definition, dataset: lance.LanceDataset) -> int:
    """Returns the version at which the UDF replaced another UDF; 0 if the UDF replaced none."""
    stored = definition.stored
    if stored is None or not definition.is_redefined:
        return 0
    return dataset.version if stored.of_source else stored.bound_at or dataset.version


def _unfinished_jobs(ref: DatasetRef, where: str | None, key: str) -> frozenset[str]:
    """Returns the unfinished jobs of the same filter and UDF, which this job resumes."""
    if where is None:
        return frozenset()
    # A later, completed job of the same filter has resumed each job that died before.
    alike = JobHistory(ref).unfinished_jobs(
        f"`where` = {quote_text(where)} AND key = {quote_text(key)}"
    )
    return frozenset(job.job_id for job in alike)


def _bases(
    ref: DatasetRef,
    spec: BackfillSpec,
    dataset: lance.LanceDataset,
    records: Records,
    entries: Mapping[str, Sequence[CheckpointEntry]],
    *,
    stale: bool,
) -> tuple[int, ...]:
    """Returns the versions at which now moved rows were computed."""
    if not len(records) and not entries:
        return ()
    sources, shrunk_ids = dict[int, str](), set[int]()
    for fragment in (handle.metadata for handle in dataset.get_fragments()):
        sources[fragment.id] = source_of(spec, fragment)
        if fragment.num_deletions:
            shrunk_ids.add(fragment.id)
    # An update may have moved rows into a fragment without records.
    unknown = dataset.has_stable_row_ids and not records.fragment_ids.issuperset(sources)
    moved_records = records.moved_records(spec.key.digest, sources)
    moved_records += _records_of_lost_nulls(spec, dataset, records, shrunk_ids)
    bases = _computed_at(
        ref, moved_records, _unmatched(entries, set() if unknown else set(sources.values()))
    )
    if unknown and len(records):
        bases.update(sorted(records.versions())[-1:])
    if stale:
        # Moved rows kept their old values. An older version determines the values that are still
        # right.
        bases.update(records.versions(spec.key.digest))
    version = spec.snapshot.version or 0
    few = _few_before(bases, version)
    # A job with NULLs may have computed rows that moved after its first version.
    later = _few_before(_last_versions_of_nulls(moved_records) - bases, version)[
        : MOST_BASES - len(few)
    ]
    return tuple(sorted({*few, *later}, reverse=True))


def _records_of_lost_nulls(
    spec: BackfillSpec, dataset: lance.LanceDataset, records: Records, shrunk_ids: Collection[int]
) -> list[FragmentRecord]:
    """Returns the records of NULLs of shrunk fragments, which have deleted rows.

    Only if an update may have moved such rows into another fragment before the last record. The
    last version with records has the rows that an update moved since.
    """
    if not (dataset.has_stable_row_ids and shrunk_ids):
        return []
    null_records = records.null_records(spec.key.digest, shrunk_ids)
    if not null_records:
        return []
    first = min(record.fragment_id for record in null_records)
    return null_records if _has_unrecorded(spec, dataset, records, after=first) else []


def _has_unrecorded(
    spec: BackfillSpec, dataset: lance.LanceDataset, records: Records, *, after: int
) -> bool:
    """Tells whether a later fragment of the last version with records has rows without one."""
    last, version = max(records.versions()), spec.snapshot.version or 0
    base = open_base(spec.snapshot, last) if last < version else dataset
    later_ids = [] if base is None else [number for number in base.fragment_ids() if number > after]
    handles = filter(None, map(dataset.get_fragment, later_ids))
    return any(not _is_recorded(spec, handle.metadata, records) for handle in handles)


def _is_recorded(spec: BackfillSpec, fragment: FragmentMetadata, records: Records) -> bool:
    """Tells whether the records have all rows of a fragment."""
    rows = done_rows(spec, fragment, records)
    return len(rows.computed | valued_rows(spec, fragment, records)) >= fragment.physical_rows


def _unmatched(
    entries: Mapping[str, Sequence[CheckpointEntry]], sources: Collection[str]
) -> list[CheckpointEntry]:
    """Returns the checkpoints of fragments with other inputs than these."""
    return [entry for source, some in entries.items() if source not in sources for entry in some]


def _computed_at(
    ref: DatasetRef, records: Sequence[FragmentRecord], entries: Sequence[CheckpointEntry]
) -> set[int]:
    """Returns the first versions of the jobs that computed some records and checkpoints."""
    first = JobHistory(ref).first_versions() if records or entries else {}
    # The records of the earlier jobs have the versions of the rows without a job.
    with_job = {(record.fragment_id, record.table_version) for record in records if record.job_id}
    versions = {
        first.get(record.job_id, record.table_version)
        for record in records
        if record.job_id or (record.fragment_id, record.table_version) not in with_job
    }
    return {*versions, *(first[entry.job_id] for entry in entries if entry.job_id in first)}


def _last_versions_of_nulls(records: Sequence[FragmentRecord]) -> set[int]:
    """Returns the last version of each job with NULLs in some records."""
    last = dict[str, int]()
    for record in records:
        if record.nulls and record.job_id:
            last[record.job_id] = max(record.table_version, last.get(record.job_id, 0))
    return set(last.values())


def few_versions(newest_first: Sequence[int]) -> tuple[int, ...]:
    """Returns the newest of many versions, and the oldest version, where row lineage begins.

    Each open version takes up to 160 MB for a table of 100,000 fragments.
    """
    versions = tuple(newest_first)
    return versions if len(versions) <= MOST_BASES else (*versions[: MOST_BASES - 1], versions[-1])


def _few_before(versions: Collection[int], before: int) -> tuple[int, ...]:
    return few_versions(sorted((version for version in versions if version < before), reverse=True))
