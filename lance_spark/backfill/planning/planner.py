"""Puts together what a backfill needs, and finds every mistake in what was asked for before a job starts. Runs on the driver."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.backfill.planning.fragment_plan import (
    FragmentPlan,
    count_pending,
    countable,
    default_task_rows,
    plan_fragments,
)
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.computed_rows import Records, RecordStore
from lance_spark.backfill.reuse.round_context import source_of, store_of
from lance_spark.backfill.task.messages import BackfillSpec
from lance_spark.catalog.binding import Binding, binding_of, inputs_now, load_udf, value_type
from lance_spark.catalog.checking import check_udf
from lance_spark.catalog.foreign import to_udf
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    ColumnNotFoundError,
    RegistrationError,
    StoredUdfError,
    UnsupportedOperationError,
)
from lance_spark.jobs.history import JobHistory
from lance_spark.objects import objects_beside
from lance_spark.read.filtering import check_filter
from lance_spark.read.sizes import measure
from lance_spark.session import known_slots
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import Targets
from udf_runtime import UDF
from udf_runtime.checkpoint import CheckpointEntry, CheckpointKey
from udf_runtime.policies import CheckpointSizes, checkpoint_bounds

if TYPE_CHECKING:
    import lance


MOST_BASES = 8
"""Older versions in which rows are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A backfill that is ready to be planned.

    Attributes:
        spec: What its tasks share.
        definition: The UDF; None in a plan of a stored one, which is not loaded for that.
        binding: What is stored with the column, or None.
        stored: Whether the UDF is the stored one.
        dataset: The snapshot.
        records: What was computed before.
        entries: Checkpoints of the key, by source.
        plans: The fragments of the window.
        request: What was asked for.
        window: The fragments by position.
    """

    spec: BackfillSpec
    definition: UDF | None
    binding: Binding | None
    stored: bool
    dataset: lance.LanceDataset
    records: Records
    entries: Mapping[str, Sequence[CheckpointEntry]]
    plans: tuple[FragmentPlan, ...]
    request: BackfillRequest
    window: slice

    @property
    def columns(self) -> tuple[str, ...]:
        """The target columns."""
        return tuple(column for _, column in self.spec.outputs)

    def counted(self, plans: Collection[FragmentPlan]) -> dict[int, int]:
        """Returns the rows to do of each fragment, scanning those of which the manifest and the records do not tell."""
        known = {plan.fragment_id: plan.pending for plan in plans if plan.pending is not None}
        unknown = [plan for plan in plans if plan.pending is None]
        return {**known, **(count_pending(self.spec, self.dataset, unknown) if unknown else {})}

    @property
    def udf(self) -> UDF:
        """The UDF of a job.

        Raises:
            StoredUdfError: This is only a plan.
        """
        if self.definition is None:
            raise StoredUdfError("a plan has no UDF to call - in prepare - prepare a job")
        return self.definition

    def task_rows(self, spark: SparkSession | None) -> int:
        """Returns the rows of a task on a cluster; without one, on as many slots as may be used."""
        request = self.request
        known = None if spark is None else known_slots(spark)
        slots = known or request.concurrency or os.cpu_count() or 1
        if request.concurrency is not None:
            slots = min(slots, request.concurrency)
        stored = None if self.binding is None else self.binding.task_size
        own = stored if self.definition is None else self.definition.task_size
        return request.task_size or own or default_task_rows(self.dataset.count_rows(), slots)

    def work(self) -> tuple[FragmentPlan, ...]:
        """Returns the fragments with something to do, with their rows counted as far as that is quick. Scans, so call it once."""
        unknown = [plan for plan in self.plans if plan.pending is None]
        counted = self.counted(unknown) if unknown and countable(unknown) else {}
        plans = [replace(plan, pending=counted.get(plan.fragment_id, plan.pending)) for plan in self.plans]
        return tuple(plan for plan in plans if plan.pending != 0)


def prepare(ref: DatasetRef, request: BackfillRequest, *, checkpoints: str | None) -> Prepared:
    """Checks a request against the table, and puts a job together.

    Args:
        ref: The table.
        request: What was asked for.
        checkpoints: Where checkpoints are kept; None is beside the table.

    Raises:
        ColumnNotFoundError, RegistrationError, UnsupportedOperationError: A column cannot be
            filled.
        StoredUdfError: The stored UDF cannot be used.
        FilterError: `where` is not valid.
        VersionNotFoundError: There is no such version.
    """
    snapshot = ref.pin(request.read_version)
    dataset = snapshot.open()
    if dataset.data_storage_version in ("0.1", "legacy"):
        raise UnsupportedOperationError(
            f"files of format 0.1 cannot be filled column by column - {ref.uri} - write the table anew with format 2.1"
        )
    binding = _binding(dataset, request)
    udf, inputs, outputs = _udf(ref, dataset, request, binding)
    if request.where is not None:
        check_filter(dataset, request.where, ref.uri, "descriptor")
    if not request.plan_only:
        refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
    spec = _spec(ref, snapshot, dataset, request, (udf, inputs, outputs, binding), checkpoints)
    records = RecordStore(ref).load(spec.column)
    entries = store_of(spec).find_all(spec.key)
    spec = _with_history(ref, spec, dataset, records, entries)
    window = slice(request.skip_frags, None if request.num_frags is None else request.skip_frags + request.num_frags)
    sizes = measure(dataset, [column.name for column in inputs], None, blob_bytes=False, storage=ref.storage_options)
    plans = plan_fragments(spec, dataset, records, frozenset(entries), window=window, row_bytes=sizes.row_bytes)
    return Prepared(
        spec=spec,
        definition=udf,
        binding=binding,
        stored=request.udf is None,
        dataset=dataset,
        records=records,
        entries=entries,
        plans=tuple(plans),
        request=request,
        window=window,
    )


def _binding(dataset: lance.LanceDataset, request: BackfillRequest) -> Binding | None:
    """Finds the column's UDF, and checks that the named columns are the ones it computes."""
    first = request.columns[0]
    if "." in first and first not in dataset.schema.names:
        raise UnsupportedOperationError(
            f"a field inside a struct cannot be filled by itself - {first!r} of {dataset.uri} - compute the whole "
            "struct, or a column of its own"
        )
    for column in request.columns:
        if column not in dataset.schema.names:
            raise ColumnNotFoundError(
                column,
                dataset.uri,
                hint=f"use add_columns to register it first; the columns are {', '.join(dataset.schema.names)}",
            )
    binding = binding_of(dataset, first)
    group = {first} if binding is None else {column for _, column in binding.columns}
    if len(request.columns) > 1 and set(request.columns) != group:
        raise UnsupportedOperationError(
            f"columns {', '.join(map(repr, request.columns))} are not the columns of one UDF - in {dataset.uri} - call "
            "backfill for each, or "
            f"name one of the siblings {', '.join(map(repr, sorted(group)))}: all of them are filled together"
        )
    if binding is None and request.udf is None:
        raise RegistrationError(
            f"no UDF is registered for column {first!r} - in {dataset.uri} - pass one with udf=, or register it with "
            "alter_columns"
        )
    return binding


def _udf(
    ref: DatasetRef, dataset: lance.LanceDataset, request: BackfillRequest, binding: Binding | None
) -> tuple[UDF | None, tuple[FieldIdentity, ...], tuple[tuple[str, str], ...]]:
    """Returns the UDF (None where only a plan of a stored one is wanted), its inputs, and the pairs of output field and column."""
    column = request.columns[0]
    if request.udf is None and binding is not None:
        udf = None
        if not request.plan_only:
            udf = load_udf(binding, objects_beside(ref), column)
        return udf, inputs_now(dataset, binding, column), binding.columns
    given = to_udf(request.udf)
    if given is None:
        raise RegistrationError(
            f"udf must be a UDF, got {request.udf!r} - column {column!r} - decorate a function with @udf"
        )
    outputs = (("", column),) if binding is None else binding.columns
    fields = [name for name, _ in outputs]
    kinds: Any = given.data_type
    if given.is_columns != bool(fields[0]) or (given.is_columns and {f.name for f in kinds} != set(fields)):
        raise RegistrationError(
            f"UDF {given.name!r} returns {given.data_type}, which are not the columns "
            f"{', '.join(repr(c) for _, c in outputs)} - in {ref.uri} - pass a UDF of the same output"
        )
    for field, name in outputs:
        kind = kinds.field(field).type if field else kinds
        if kind != value_type(dataset.schema.field(name)):
            raise RegistrationError(
                f"UDF {given.name!r} returns {kind}, column {name!r} is {dataset.schema.field(name).type} - in "
                f"{ref.uri} - give it data_type= of the column"
            )
    return given, check_udf(dataset, given, outputs), outputs


def _spec(
    ref: DatasetRef,
    snapshot: DatasetRef,
    dataset: lance.LanceDataset,
    request: BackfillRequest,
    found: tuple[UDF | None, tuple[FieldIdentity, ...], tuple[tuple[str, str], ...], Binding | None],
    checkpoints: str | None,
) -> BackfillSpec:
    udf, inputs, outputs, binding = found
    known = {column.name: column for column in field_identities(dataset.lance_schema)}
    targets = [known[column] for _, column in outputs]
    job_id = request.job_id or uuid.uuid4().hex
    return BackfillSpec(
        snapshot=snapshot,
        staging=Staging(uri=ref.uri, storage_options=ref.storage_options, job_id=new_id()),
        job_id=job_id,
        udf=b"" if udf is None else udf.dumps(),
        key=_key(request, udf, inputs, binding),
        inputs=inputs,
        outputs=outputs,
        targets=Targets(
            schema=pa.schema([row_field(dataset.schema.field(column)) for _, column in outputs]),
            existing=tuple(column for _, column in outputs),
            format=dataset.data_storage_version,
        ),
        target_ids=tuple(number for column in targets for number in column.ids),
        column=targets[0].token or f"{targets[0].id}:{targets[0].name}",
        where=request.where,
        redefined=request.udf is None and binding is not None and binding.redefined > 0,
        serving_jobs=frozenset({job_id}),
        checkpoints=checkpoints,
        bases=(),
        follow_up=None,
        stale=request.stale,
        sizes=checkpoint_bounds(call=request, udf=udf or CheckpointSizes()),
        flush_s=request.flush_s,
        threads=request.threads,
        blob_strategy=request.blob_strategy,
        blob_buffer_bytes=request.blob_buffer_bytes,
        report_s=min(request.refresh_s / 2, 1.0),
    )


def _key(
    request: BackfillRequest, udf: UDF | None, inputs: Sequence[FieldIdentity], binding: Binding | None
) -> CheckpointKey:
    """Returns what the values depend on: as stored with the column, or as the UDF that was passed says."""
    if udf is None or request.udf is None:
        if binding is None:
            raise RegistrationError("there is neither a UDF nor a stored one - in prepare - pass one with udf=")
        return binding.key
    return CheckpointKey(
        udf_name=udf.name,
        udf_version=udf.version,
        inputs=tuple(column.id for column in inputs),
        output_type=str(udf.data_type),
        environment=None if binding is None else binding.environment,
    )


def _with_history(
    ref: DatasetRef,
    spec: BackfillSpec,
    dataset: lance.LanceDataset,
    records: Records,
    entries: Mapping[str, Sequence[CheckpointEntry]],
) -> BackfillSpec:
    """Adds what earlier jobs mean for this one: whose checkpoints may serve, and at which versions the rows were that they have computed."""
    known = bool(len(records) or entries)
    now = {handle.fragment_id: source_of(spec, handle.metadata) for handle in dataset.get_fragments()} if known else {}
    sources = set(now.values())
    moved = [
        record for record in records if record.key == spec.key.digest and now.get(record.fragment_id) != record.source
    ]
    orphans = [entry for source, found in entries.items() if source not in sources for entry in found]
    # Rows of a fragment of which nothing is known may have been moved there by an update.
    unknown = dataset.has_stable_row_ids and not records.fragment_ids.issuperset(now)
    left = [entry for found in entries.values() for entry in found] if unknown else orphans
    first = JobHistory(ref).first_versions() if left or moved else {}
    bases = {first.get(record.job_id, record.table_version) for record in moved}
    bases |= {first[entry.job_id] for entry in left if entry.job_id in first}
    if unknown and len(records):
        bases.add(max(record.table_version for record in records))
    if spec.stale:
        # Rows that an update has moved have their old values with them: which of them are still
        # right, an older version tells.
        bases.update(bases_of_records(records, spec))
    jobs = [] if spec.where is None else JobHistory(ref).jobs()
    alike = [job for job in jobs if (job.where, job.key) == (spec.where, spec.key.digest)]
    # A job that died before another one completed the same has been resumed, and is over.
    over = max((job.launched_at for job in alike if job.status == "DONE"), default=None)
    unfinished = {job.job_id for job in alike if job.status != "DONE" and (over is None or job.launched_at > over)}
    return replace(
        spec, serving_jobs=spec.serving_jobs | unfinished, bases=_few_before(bases, spec.snapshot.version or 0)
    )


def bases_of_records(records: Records, spec: BackfillSpec) -> tuple[int, ...]:
    """Returns versions at which rows had inputs that the values of a column were computed from."""
    known = {record.table_version for record in records if record.key == spec.key.digest}
    return _few_before(known, spec.snapshot.version or 0)


def few_versions(newest_first: Sequence[int]) -> tuple[int, ...]:
    """Returns the newest of many versions, and the oldest, from which lineage is followed.

    Each that is opened takes up to 160 MB for a table of 100,000 fragments.
    """
    versions = tuple(newest_first)
    return versions if len(versions) <= MOST_BASES else (*versions[: MOST_BASES - 1], versions[-1])


def _few_before(versions: Collection[int], before: int) -> tuple[int, ...]:
    return few_versions(sorted((version for version in versions if version < before), reverse=True))


def concurrency_of(spark: SparkSession, udf: UDF, concurrency: int | None) -> int | None:
    """Returns the most tasks that may run at once: as asked for, and no more than the CPUs that the UDF wants allow."""
    cpus = math.ceil(udf.num_cpus or 1)
    slots = known_slots(spark)
    if cpus <= 1 or slots is None:
        return concurrency
    fitting = max(1, slots // cpus)
    return fitting if concurrency is None else min(concurrency, fitting)
