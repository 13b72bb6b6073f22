"""State that a process reads once per round of a job, and the records of a fragment."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from lance_spark.backfill.reuse.computed_rows import VALUES_OF, FragmentRecord, Records, RecordStore
from lance_spark.backfill.task.messages import BackfillSpec, FragmentRows
from lance_spark.commit.conflicts.history import Change, events_between, path_back, version_before
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.commit.conflicts.row_lineage import Lineage, LineageFacts
from lance_spark.errors import LanceSparkError, TableUnreadableError
from lance_spark.rebase.fragment_comparison import lineage_by_fragments
from lance_spark.rebase.snapshot import open_base
from lance_spark.rows.matching_rows import FragmentMatches
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.storage.objects import checkpoint_store
from udf_runtime.checkpoint import CheckpointEntry, CheckpointStore, source_digest
from udf_runtime.checkpoint.chunks import ChunkFolder

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

MAX_COST = 1_000_000
"""Maximum number of fragments of all open versions, at 190 bytes for each.

The transaction of a version counts as much as 1,000 fragments.
"""

_KEEPS_VALUES = (
    "BaseOperation",
    "CreateIndex",
    "Delete",
    "Project",
    "ReserveFragments",
    "Rewrite",
    "UpdateConfig",
)
"""Operations that keep the values of every remaining row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """An older version and what happened to rows since.

    Attributes:
        base: The version; None if no older version exists.
        lineage: Origins of rows since the version.
        is_gap: Whether a cleanup deleted a version between this step and the step before.
        inputs_at: The version with the inputs of the step's values; None for the inputs of the
            version that the step made.
    """

    base: lance.LanceDataset | None
    lineage: Lineage
    is_gap: bool
    inputs_at: int | None = None


@dataclass(slots=True)
class _Stretch:
    """The changes between two steps.

    Attributes:
        changes_values: Whether a change may have written values.
        is_gap: As in :class:`Step`.
        inputs_at: As in :class:`Step`.
    """

    changes_values: bool = False
    is_gap: bool = False
    inputs_at: int | None = None

    def add(self, change: Change) -> None:
        """Adds the next older change."""
        if change.inputs_at is not None and change.inputs_at < change.version - 1:
            self.inputs_at = change.inputs_at
        self.is_gap |= change.operation is None
        self.changes_values |= change.restored is None and change.operation not in _KEEPS_VALUES


class Ancestry:
    """The older versions of a table, the newest first, without versions undone by a restore.

    Only versions before a commit that may have changed values. The walk opens each version once.
    """

    def __init__(
        self,
        dataset: lance.LanceDataset,
        open_version: Callable[[int], lance.LanceDataset | None],
        *,
        bound_at: int,
    ) -> None:
        """Takes the latest version. The walk ends at version `bound_at`."""
        self.end: Literal["first version", "UDF bound", "cleaned up"] = "cleaned up"
        self._dataset = dataset
        self._open = open_version
        self._bound_at = bound_at
        self._steps: list[Step] = []
        self._later = self._walk()

    def __iter__(self) -> Iterator[Step]:
        """Yields the steps. Each step is read once."""
        number = 0
        while True:
            if number == len(self._steps):
                step = next(self._later, None)
                if step is None:
                    return
                self._steps.append(step)
            yield self._steps[number]
            number += 1

    def _walk(self) -> Iterator[Step]:
        dataset, changes, cost = self._dataset, list[Change](), 0
        readable_versions = {version["version"] for version in dataset.version_refs()}
        at, stretch = dataset.version, _Stretch()
        for event in path_back(dataset, self._bound_at):
            change = Change.of(event)
            if change.operation == "Overwrite":
                break
            if change.operation == "Clone":
                return
            changes.append(change)
            stretch.add(change)
            cost += 1000 * (event.version in readable_versions)
            at = version_before(event)
            if stretch.changes_values and (at in readable_versions or not at):
                cost += len(dataset.fragment_ids())
                base = self._open(at) if at and cost <= MAX_COST else None
                lineage = Lineage(dataset, at, dataset.version, changes)
                yield Step(
                    base=base, lineage=lineage, is_gap=stretch.is_gap, inputs_at=stretch.inputs_at
                )
                if base is None:
                    return
                stretch = _Stretch()
        self.end = "UDF bound" if 0 < at <= self._bound_at else "first version"


Bases: TypeAlias = "dict[int, lance.LanceDataset | None]"
"""Open older versions of a table; None for a version that a cleanup deleted."""

_KEPT = 4
"""Maximum number of contexts in a process: tasks of several jobs may take turns."""


class RoundContext:
    """Records, history and older versions for a round. Belongs to one thread.

    Attributes:
        matches: The rows of the task's fragments that match a filter.
    """

    def __init__(self, spec: BackfillSpec, bases: Bases | None = None) -> None:
        """Takes a round, and the older versions that other contexts of the round have opened."""
        self.spec = spec
        self.store = store_of(spec)
        self._records = spec.records
        self._lineages: dict[int, Lineage] = {}
        self._bases: Bases = {} if bases is None else bases
        self._references: dict[str, list[CheckpointEntry]] = {}
        self._past: tuple[int, SnapshotRows | None] = (-1, None)
        self.matches = FragmentMatches()

    @functools.cached_property
    def records(self) -> Records:
        """Records of the column's earlier results."""
        return (
            RecordStore(self.spec.snapshot).load(self.spec.column)
            if self._records is None
            else self._records
        )

    @functools.cached_property
    def checkpoints(self) -> Mapping[str, Sequence[CheckpointEntry]]:
        """The checkpoints of the job's key, by the identity of the inputs."""
        return self.store.find_all(self.spec.key, self._references)

    def refresh(self) -> None:
        """Reads records again: another job may have committed the values of checkpoints."""
        self._records = None
        vars(self).pop("records", None)
        self.begin_task()

    def begin_task(self, fragments: Sequence[int] = ()) -> None:
        """Lists checkpoints again, because other tasks have written some.

        Args:
            fragments: The ids of the task's fragments, in order.
        """
        vars(self).pop("checkpoints", None)
        self.matches = FragmentMatches(fragments)

    def lineage(self, after: int) -> Lineage:
        """Returns the origins of rows since an older version."""
        if after not in self._lineages:
            dataset, facts = self.spec.snapshot.open(), self.spec.lineages.get(after)
            base = self.base(after) if facts is None else None
            if base is not None:
                facts = lineage_by_fragments(base, dataset)
            changes = self._steps if facts is None else None
            self._lineages[after] = Lineage(dataset, after, dataset.version, changes, facts=facts)
        return self._lineages[after]

    def base(self, version: int) -> lance.LanceDataset | None:
        """Returns an older version of the table, opened once; None after its cleanup."""
        if version not in self._bases:
            self._bases[version] = open_base(self.spec.snapshot, version)
        return self._bases[version]

    def deleted_at(self, version: int, fragment_id: int) -> RowSet:
        """Returns the deleted rows of a fragment in an older version; no rows after its cleanup.

        Keeps only the last version open, because records may name very many versions.
        """
        if self._past[0] != version:
            base = self._bases.get(version)
            base = open_base(self.spec.snapshot, version) if base is None else base
            self._past = version, None if base is None else SnapshotRows(base)
        try:
            mask = None if self._past[1] is None else self._past[1].deleted(fragment_id)
        except TableUnreadableError:  # a cleanup has just removed the deletion file
            mask = None
        return RowSet.empty() if mask is None else RowSet.of(np.flatnonzero(mask))

    @functools.cached_property
    def ancestry(self) -> Ancestry:
        """The versions between the binding of the UDF and the version of the round."""
        return Ancestry(self.spec.snapshot.open(), self.base, bound_at=self.spec.bound_at)

    @functools.cached_property
    def _steps(self) -> tuple[Change, ...]:
        dataset = self.spec.snapshot.open()
        after = self.spec.lineage_after or dataset.version
        return tuple(map(Change.of, events_between(dataset, after, dataset.version)))


class _Contexts(threading.local):
    """The contexts of one thread, by job and round, the latest used last."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[str, int], RoundContext] = OrderedDict()


_CONTEXTS = _Contexts()


def context_of(spec: BackfillSpec) -> RoundContext:
    """Returns this thread's context of a round."""
    contexts, key = _CONTEXTS.kept, (spec.staging.job_id, spec.round)
    context = contexts.pop(key, None) or RoundContext(spec)
    contexts[key] = context
    while len(contexts) > _KEPT:
        contexts.popitem(last=False)
    return context


def with_lineages(spec: BackfillSpec, bases: Bases | None = None) -> BackfillSpec:
    """Returns the description of tasks with row lineage, so that tasks read no history."""
    context, lineages = RoundContext(spec, bases), dict[int, LineageFacts]()
    for version in spec.bases:
        with contextlib.suppress(OSError, ValueError, LanceSparkError):  # tasks report the error
            facts = context.lineage(version).facts.for_tasks
            if facts is not None:
                lineages[version] = facts
    return replace(spec, lineages=lineages)


def store_of(spec: BackfillSpec) -> CheckpointStore:
    """Returns the store of a job's checkpoints."""
    return checkpoint_store(spec.home.uri, spec.home.storage_options, spec.checkpoints)


def chunks_of(spec: BackfillSpec) -> ChunkFolder:
    """Returns the folder with the chunks of a job's rows."""
    store = store_of(spec)
    return ChunkFolder(store.objects, f"{store.root}/{spec.key.digest}", spec.job_id)


def source_of(spec: BackfillSpec, fragment: FragmentMetadata) -> str:
    """Returns the identity of a fragment's inputs."""
    return source_of_ids(fragment, spec.input_ids)


def source_of_ids(fragment: FragmentMetadata, input_ids: Sequence[int]) -> str:
    """Returns the identity of a fragment's inputs: its files and overlays with these fields.

    If no file has an input field, because all values are NULL, the fragment's id and size are the
    identity.
    """
    files = files_of(fragment, input_ids)
    return source_digest(files or (f"fragment {fragment.id} of {fragment.physical_rows} rows",))


def target_files(spec: BackfillSpec, fragment: FragmentMetadata) -> frozenset[str]:
    """Returns the names of a fragment's files with target columns."""
    return frozenset(file.partition(":")[0] for file in files_of(fragment, spec.target_ids))


def fitting_records(
    spec: BackfillSpec, fragment: FragmentMetadata, records: Records
) -> Iterator[FragmentRecord]:
    """Yields the records of values of this UDF, computed from a fragment's current inputs.

    Rows of this job, or of a job that it resumes, have their job.
    """
    candidates = records.of(fragment.id)
    if not candidates:
        return
    identity = (spec.key.digest, source_of(spec, fragment), fragment.physical_rows)
    jobs = spec.row_selector.serving_jobs | {spec.job_id}
    for record in candidates:
        if (record.key, record.source, record.physical_rows) == identity:
            yield from records.by_job(record, jobs)


def done_rows(spec: BackfillSpec, fragment: FragmentMetadata, records: Records) -> FragmentRows:
    """Returns the recorded rows of a fragment whose column file is in the fragment."""
    holds = target_files(spec, fragment)
    results = FragmentRows()
    for record in fitting_records(spec, fragment, records):
        if record.target_file not in holds:
            continue
        # If a concurrent writer rewrote a sibling in place, the changed rows are unknown.
        computed = record.computed if len(holds) == 1 else RowSet.empty()
        skip = spec.row_selector.skipped(record, computed)
        results |= FragmentRows(computed=computed, nulls=record.nulls, skip=skip)
    return results


def valued_rows(spec: BackfillSpec, fragment: FragmentMetadata, records: Records) -> RowSet:
    """Returns rows of a fragment with a recorded value of any writer.

    The rows may include deleted rows.
    """
    rows = RowSet.empty()
    candidates = records.of(fragment.id)
    holds = target_files(spec, fragment) if candidates else frozenset()
    for record in candidates if len(holds) == 1 else ():
        if record.physical_rows == fragment.physical_rows and record.target_file in holds:
            rows |= record.computed - record.nulls
    for record in records.values_of(fragment.id):
        if record.target_file == _values_digest(spec, fragment):
            rows |= record.computed
    return rows


def current_rows(spec: BackfillSpec, fragment: FragmentMetadata, records: Records) -> RowSet:
    """Returns rows of a fragment whose values of other writers are recorded as up to date."""
    rows = RowSet.empty()
    for record in records.values_of(fragment.id):
        if record.target_file == _values_digest(spec, fragment) and record.source == _inputs_digest(
            spec, fragment
        ):
            rows |= record.computed
    return rows


def values_record(
    spec: BackfillSpec, fragment: FragmentMetadata, without_value: RowSet, *, are_current: bool
) -> FragmentRecord:
    """Returns the record of a fragment whose other live rows have a value.

    `are_current` tells whether the values were compared with their inputs.
    """
    return FragmentRecord(
        column=f"{VALUES_OF}{spec.column}",
        fragment_id=fragment.id,
        physical_rows=fragment.physical_rows,
        table_version=spec.snapshot.version or 0,
        job_id="",
        key="",
        udf_version="",
        source=_inputs_digest(spec, fragment) if are_current else "",
        target_file=_values_digest(spec, fragment),
        computed=RowSet.span(0, fragment.physical_rows) - without_value,
        nulls=RowSet.empty(),
        failed=RowSet.empty(),
    )


def _inputs_digest(spec: BackfillSpec, fragment: FragmentMetadata) -> str:
    """Returns the identity of the UDF and of the inputs of a fragment's values."""
    return source_digest((spec.key.digest, str(spec.bound_at), source_of(spec, fragment)))


def _values_digest(spec: BackfillSpec, fragment: FragmentMetadata) -> str:
    """Returns the identity of the values and the live rows of a fragment."""
    deletions = None if fragment.deletion_file is None else fragment.deletion_file.asdict()
    return source_digest(
        (*files_of(fragment, spec.target_ids), str(fragment.physical_rows), str(deletions))
    )


def computed_once(spec: BackfillSpec, fragment: FragmentMetadata, records: Records) -> RowSet:
    """Returns the rows computed by any version of a UDF, from any inputs."""
    holds = target_files(spec, fragment)
    rows = RowSet.empty()
    for record in records.of(fragment.id):
        if record.physical_rows == fragment.physical_rows and record.target_file in holds:
            rows |= record.computed
    return rows
