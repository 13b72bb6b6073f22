"""Prepares a backfill, and validates the request. Runs on the driver."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.backfill.planning.definition import Definition, definition_of
from lance_spark.backfill.planning.fragment_plan import FragmentPlan, countable, plan_fragments
from lance_spark.backfill.planning.selection import RangeRows, null_filter
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.computed_rows import Records, RecordStore
from lance_spark.backfill.reuse.round_context import RoundContext, source_of, store_of
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import UnsupportedOperationError
from lance_spark.jobs.history import JobHistory
from lance_spark.read.filtering import check_filter
from lance_spark.rows.matching_rows import matching_addresses
from lance_spark.rows.row_addresses import SnapshotRows, fragments_of, offsets_of, runs_of
from lance_spark.rows.row_set import RowSet
from lance_spark.session.sessions import known_slots
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import Targets
from udf_runtime import UDF
from udf_runtime.checkpoint import CheckpointEntry
from udf_runtime.policies import CheckpointSizes, checkpoint_bounds

if TYPE_CHECKING:
    import lance

MOST_BASES = 8
"""Maximum number of older versions to search for rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A backfill of a version, ready to run. `entries` are its checkpoints, by source."""

    request: BackfillRequest
    definition: Definition
    spec: BackfillSpec
    dataset: lance.LanceDataset
    records: Records
    entries: Mapping[str, Sequence[CheckpointEntry]]
    plans: tuple[FragmentPlan, ...]

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
        """Returns the fragments with work, with the counts of their rows.

        `scan` counts the rows of the other fragments with a scan of the filter's columns, if the
        manifest and the records do not determine the count. By default only quick scans run.

        Raises:
            FilterError: The filter fails on a value.
            TableUnreadableError: A file is missing or damaged.
        """
        unknown = {plan.fragment_id: plan for plan in self.plans if plan.pending is None}
        counts: dict[int, int] = {}
        if unknown and (countable(unknown.values()) if scan is None else scan):
            counts = self._outdated(unknown) if self.spec.recomputes else self._matching(unknown)
        plans = [replace(plan, pending=counts.get(plan.fragment_id, plan.pending)) for plan in self.plans]
        return tuple(plan for plan in plans if plan.rows_to_do)

    def _matching(self, plans: Mapping[int, FragmentPlan]) -> dict[int, int]:
        """Counts the rows of fragments that match the filter, or rows without a value."""
        counts = dict.fromkeys(plans, 0)
        fragments = [fragment for fragment in self.dataset.get_fragments() if fragment.fragment_id in plans]
        text = self.spec.where or null_filter(self.columns)
        for addresses in matching_addresses(self.dataset, fragments, text):
            for fragment, first, end in runs_of(fragments_of(addresses)):
                skip = plans[fragment].done.skip
                counts[fragment] += end - first
                if skip:
                    counts[fragment] -= len(skip & RowSet.of(offsets_of(addresses[first:end])))
        return counts

    def _outdated(self, plans: Mapping[int, FragmentPlan]) -> dict[int, int]:
        """Counts the rows of fragments without a value or with an outdated value."""
        rows = SnapshotRows(self.dataset)
        history = ValueHistory(RoundContext(self.spec), rows)
        counts = {}
        for number, plan in plans.items():
            within = RangeRows(self.spec, rows, rows.existing_fragment(number), 0, plan.physical_rows)
            counts[number] = len(within.selected(plan.done, history))
        return counts

    def task_rows(self, spark: SparkSession | None) -> int:
        """Returns the rows of a task on a cluster, or on the available slots without a cluster."""
        request, udf = self.request, self.definition.loaded or self.definition.stored
        cluster_slots = None if spark is None else known_slots(spark)
        slots = cluster_slots or request.concurrency or os.cpu_count() or 1
        if request.concurrency is not None:
            slots = min(slots, request.concurrency)
        task_size = request.task_size or (udf and udf.task_size)
        # By default each slot gets two tasks.
        return task_size or max(1, self.dataset.count_rows() // slots // 2)

    def concurrency(self, spark: SparkSession) -> int | None:
        """Returns the maximum number of running tasks, within the CPUs that the UDF requests."""
        return tasks_at_once(spark, self.definition.udf, self.request.concurrency)


Define: TypeAlias = Callable[[DatasetRef, "lance.LanceDataset", BackfillRequest], Definition]
"""Returns the source of the columns of a request, in a version of the table."""


def prepare(
    ref: DatasetRef, request: BackfillRequest, *, checkpoints: str | None, define: Define = definition_of
) -> Prepared:
    """Validates a request against the table, and prepares a job.

    `checkpoints` is the location of checkpoints. None is next to the table.

    Raises:
        ColumnNotFoundError, RegistrationError, UnsupportedOperationError: A column cannot be
            filled.
        StoredUdfError: The stored UDF cannot be used.
        FilterError: `where` is not valid.
        VersionNotFoundError: The version does not exist.
    """
    snapshot = ref.pin(request.read_version)
    dataset = snapshot.open()
    if dataset.data_storage_version in ("0.1", "legacy"):
        raise UnsupportedOperationError(
            f"files of format 0.1 cannot be filled column by column - {ref.uri} - write the table anew with format 2.1"
        )
    definition = define(ref, dataset, request)
    if request.where is not None:
        check_filter(dataset, request.where, ref.uri, "descriptor")
    if not request.plan_only:
        refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    spec = _first_spec(snapshot, dataset, request, definition, checkpoints)
    records = RecordStore(ref).load(spec.column)
    entries = store_of(spec).find_all(spec.key)
    spec = replace(
        spec,
        serving_jobs=spec.serving_jobs | _unfinished_jobs(ref, spec),
        bases=_bases(ref, spec, dataset, records, entries),
    )
    window = slice(request.skip_frags, None if request.num_frags is None else request.skip_frags + request.num_frags)
    return Prepared(
        request=request,
        definition=definition,
        spec=spec,
        dataset=dataset,
        records=records,
        entries=entries,
        plans=plan_fragments(spec, dataset, records, entries, window=window),
    )


def tasks_at_once(spark: SparkSession, udf: UDF, concurrency: int | None) -> int | None:
    """Returns the maximum number of running tasks, within the CPUs that a UDF requests."""
    cpus, slots = math.ceil(udf.num_cpus or 1), known_slots(spark)
    if cpus <= 1 or slots is None:
        return concurrency
    fitting = max(1, slots // cpus)
    return fitting if concurrency is None else min(concurrency, fitting)


def targets_of(dataset: lance.LanceDataset, columns: Sequence[str]) -> Targets:
    """Returns columns of a version in the form of files."""
    return Targets(
        schema=pa.schema([row_field(dataset.schema.field(column)) for column in columns]),
        existing=tuple(columns),
        format=dataset.data_storage_version,
    )


def _first_spec(
    snapshot: DatasetRef,
    dataset: lance.LanceDataset,
    request: BackfillRequest,
    definition: Definition,
    checkpoints: str | None,
) -> BackfillSpec:
    """Returns the spec of the first round, without the effects of earlier jobs."""
    columns = [column for _, column in definition.outputs]
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    first, udf = identities[columns[0]], definition.loaded
    job_id = request.job_id or uuid.uuid4().hex
    return BackfillSpec(
        snapshot=snapshot,
        staging=Staging(uri=snapshot.uri, storage_options=snapshot.storage_options, job_id=new_id()),
        job_id=job_id,
        udf=b"" if udf is None else udf.dumps(),
        key=definition.key,
        inputs=definition.inputs,
        reads=definition.reads,
        outputs=definition.outputs,
        targets=targets_of(dataset, columns),
        target_ids=tuple(number for column in columns for number in identities[column].ids),
        column=first.token or f"{first.id}:{first.name}",
        where=request.where,
        redefined=definition.stored is not None and definition.stored.redefined > 0,
        bound_at=_bound_at(definition, dataset),
        serving_jobs=frozenset({job_id}),
        checkpoints=checkpoints,
        bases=(),
        follow_up=None,
        stale=request.stale,
        sizes=checkpoint_bounds(call=request, udf=udf or CheckpointSizes()),
        flush_s=request.batch_checkpoint_flush_interval_seconds,
        threads=request.intra_applier_concurrency,
        blob_strategy=request.blob_read_strategy,
        blob_buffer_bytes=request.blob_read_buffer_size,
        report_s=min(request.refresh_status_secs / 2, 1.0),
        joins=definition.join is not None,
    )


def _bound_at(definition: Definition, dataset: lance.LanceDataset) -> int:
    """Returns the version at which the UDF replaced another UDF; 0 if the UDF replaced none."""
    stored = definition.stored
    if stored is None or not stored.redefined:
        return 0
    return dataset.version if stored.of_source else stored.bound_at or dataset.version


def _unfinished_jobs(ref: DatasetRef, spec: BackfillSpec) -> set[str]:
    """Returns the unfinished jobs of the same filter and UDF, which this job resumes."""
    jobs = [] if spec.where is None else JobHistory(ref).intact_jobs()
    alike = [job for job in jobs if (job.where, job.key) == (spec.where, spec.key.digest)]
    # A later, completed job of the same filter has resumed each job that died before.
    over = max((job.launched_at for job in alike if job.status == "DONE"), default=None)
    return {job.job_id for job in alike if job.status != "DONE" and (over is None or job.launched_at > over)}


def _bases(
    ref: DatasetRef,
    spec: BackfillSpec,
    dataset: lance.LanceDataset,
    records: Records,
    entries: Mapping[str, Sequence[CheckpointEntry]],
) -> tuple[int, ...]:
    """Returns the versions at which now moved rows were computed."""
    has_results = bool(len(records) or entries)
    fragment_sources = (
        {handle.fragment_id: source_of(spec, handle.metadata) for handle in dataset.get_fragments()}
        if has_results
        else {}
    )
    # An update may have moved rows into a fragment without records.
    unknown = dataset.has_stable_row_ids and not records.fragment_ids.issuperset(fragment_sources)
    sources = set(fragment_sources.values())
    unmatched_entries = [
        entry for source, some in entries.items() if unknown or source not in sources for entry in some
    ]
    ours = (record for record in records if record.key == spec.key.digest)
    moved_records = [record for record in ours if fragment_sources.get(record.fragment_id) != record.source]
    first = JobHistory(ref).first_versions() if unmatched_entries or moved_records else {}
    bases = {first.get(record.job_id, record.table_version) for record in moved_records}
    bases |= {first[entry.job_id] for entry in unmatched_entries if entry.job_id in first}
    if unknown and len(records):
        bases.add(max(record.table_version for record in records))
    if spec.stale:
        # Moved rows kept their old values. An older version determines the values that are still
        # right.
        bases.update(bases_of_records(records, spec))
    return _few_before(bases, spec.snapshot.version or 0)


def bases_of_records(records: Records, spec: BackfillSpec) -> tuple[int, ...]:
    """Returns versions with the inputs of the current values of a column."""
    ours = {record.table_version for record in records if record.key == spec.key.digest}
    return _few_before(ours, spec.snapshot.version or 0)


def few_versions(newest_first: Sequence[int]) -> tuple[int, ...]:
    """Returns the newest of many versions, and the oldest version, where row lineage begins.

    Each open version takes up to 160 MB for a table of 100,000 fragments.
    """
    versions = tuple(newest_first)
    return versions if len(versions) <= MOST_BASES else (*versions[: MOST_BASES - 1], versions[-1])


def _few_before(versions: Collection[int], before: int) -> tuple[int, ...]:
    return few_versions(sorted((version for version in versions if version < before), reverse=True))
