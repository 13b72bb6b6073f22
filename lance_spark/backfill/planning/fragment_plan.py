"""What a backfill has to do: which fragments, and which ranges of them. Runs on the driver.

Reads manifests, records and one listing of checkpoints. Rows are counted by scanning only where
that is quick or was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.backfill.planning.selection import has_values
from lance_spark.backfill.reuse.computed_rows import Records
from lance_spark.backfill.reuse.round_context import RoundContext, done_rows, source_of
from lance_spark.backfill.reuse.value_finder import ValueFinder
from lance_spark.backfill.task.messages import BackfillSpec, FragmentRows, FragmentWork, Task
from lance_spark.read.sizes import measure_row
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

MAX_TASK_BYTES = 512 << 20
"""Bytes of input that a task reads at most."""

MAX_RANGE_ROWS = 8_000_000
"""Rows of a range at most: a task keeps the positions of its rows, some tens of bytes each."""

COUNTED_FRAGMENTS = 1000
COUNTED_ROWS = 20_000_000
"""Up to so many fragments and rows, rows are counted before a job is started; beyond that the tasks
find out."""

_TASK_FRAGMENTS = 1000
_ALIGNMENT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentPlan:
    """What is known of one fragment.

    Attributes:
        physical_rows: Its rows, deleted ones included.
        done: What is known of rows that were computed before.
        pending: Rows to compute or to take from checkpoints; None where they were not counted.
        search: Whether there may be checkpoints.
        input_bytes: Of its inputs on storage, estimated.
    """

    fragment_id: int
    physical_rows: int
    live_rows: int
    done: FragmentRows
    pending: int | None
    search: bool
    input_bytes: int

    @property
    def rows_to_do(self) -> int:
        """Rows to compute or to take from checkpoints; at most, where they were not counted."""
        return self.live_rows if self.pending is None else self.pending


def plan_fragments(
    spec: BackfillSpec,
    dataset: lance.LanceDataset,
    records: Records,
    sources: Container[str],
    *,
    window: slice = slice(None),
    only: Collection[int] | None = None,
) -> tuple[FragmentPlan, ...]:
    """Looks at fragments, without reading rows: at those of a window, or at some `only`.

    `sources` are those that there are checkpoints of; the window is of positions in ascending order
    of fragment ids.
    """
    ref, table = (spec.snapshot, dataset) if spec.reads is None else (spec.reads.source, spec.reads.source.open())
    inputs = [name for name in spec.input_names if name in table.schema.names]
    row_bytes = measure_row(table, inputs, ref.storage_options)
    plans = []
    recorded = records.fragment_ids
    finder = ValueFinder(RoundContext(spec), SnapshotRows(dataset)) if spec.bases else None
    followed = 0
    # From the end, dropping each: pylance's objects of one fragment take kilobytes once they are
    # looked at.
    handles = sorted(dataset.get_fragments(), key=lambda fragment: fragment.fragment_id)[window][::-1]
    while handles:
        handle = handles.pop()
        if only is not None and handle.fragment_id not in only:
            continue
        fragment = handle.metadata
        live = fragment.physical_rows - fragment.num_deletions
        if live <= 0:
            continue
        done = done_rows(spec, fragment, records)
        if finder is not None and fragment.id not in recorded and followed < COUNTED_FRAGMENTS:
            followed += 1
            done |= finder.inherited(fragment)
        plans.append(
            FragmentPlan(
                fragment_id=fragment.id,
                physical_rows=fragment.physical_rows,
                live_rows=live,
                done=done,
                pending=_pending(spec, fragment, live, done.skip),
                search=bool(spec.bases) or fragment.id in recorded or source_of(spec, fragment) in sources,
                input_bytes=int(fragment.physical_rows * row_bytes),
            )
        )
    return tuple(plans)


def _pending(spec: BackfillSpec, fragment: FragmentMetadata, live: int, skip: RowSet) -> int | None:
    """Returns how many rows are to be done, where the manifest and the records tell it."""
    if spec.where is not None or spec.follow_up is not None:
        return None
    if len(skip) >= fragment.physical_rows:
        return 0
    if not has_values(fragment, spec.target_ids):
        # Deleted rows may be among those that are done.
        return live - len(skip) if not skip or fragment.num_deletions == 0 else None
    return None


def countable(plans: Collection[FragmentPlan]) -> bool:
    """Tells whether counting the rows of fragments is quick enough to do it before a job."""
    return len(plans) <= COUNTED_FRAGMENTS and sum(plan.physical_rows for plan in plans) <= COUNTED_ROWS


def plan_tasks(plans: Sequence[FragmentPlan], task_rows: int) -> list[Task]:
    """Cuts fragments into ranges, and packs small ones together. Pure.

    A range is at most `task_rows` rows and about MAX_TASK_BYTES of input, and never more than one
    fragment. Ranges of a fragment run in parallel; several whole fragments make one task while they
    fit.
    """
    tasks: list[Task] = []
    packed: list[FragmentWork] = []
    packed_rows, packed_bytes = 0, 0

    def ship() -> None:
        nonlocal packed, packed_rows, packed_bytes
        if packed:
            tasks.append(Task(number=len(tasks), work=tuple(packed)))
        packed, packed_rows, packed_bytes = [], 0, 0

    for plan in plans:
        ranges = _ranges(plan, task_rows)
        for start, stop in ranges:
            rows = stop - start
            size = plan.input_bytes * rows // max(plan.physical_rows, 1)
            fits = packed_rows + rows <= task_rows and packed_bytes + size <= MAX_TASK_BYTES
            if len(ranges) > 1 or not fits or len(packed) >= _TASK_FRAGMENTS:
                ship()
            packed.append(
                FragmentWork(
                    fragment_id=plan.fragment_id,
                    start=start,
                    stop=stop,
                    ranges=ranges,
                    done=plan.done,
                    search=plan.search,
                )
            )
            packed_rows, packed_bytes = packed_rows + rows, packed_bytes + size
    ship()
    return tasks


def pack_whole(work: Sequence[FragmentWork], task_rows: int) -> list[Task]:
    """Packs whole fragments whose values are in checkpoints into tasks. Pure."""
    tasks: list[Task] = []
    packed: list[FragmentWork] = []
    for one in work:
        if len(packed) >= _TASK_FRAGMENTS or (packed and sum(other.stop for other in packed) + one.stop > task_rows):
            tasks.append(Task(number=len(tasks), work=tuple(packed)))
            packed = []
        packed.append(one)
    return [*tasks, Task(number=len(tasks), work=tuple(packed))] if packed else tasks


def _ranges(plan: FragmentPlan, task_rows: int) -> tuple[tuple[int, int], ...]:
    task_rows = min(task_rows, MAX_RANGE_ROWS)
    pieces = max(math.ceil(plan.physical_rows / task_rows), math.ceil(plan.input_bytes / MAX_TASK_BYTES), 1)
    length = math.ceil(plan.physical_rows / pieces)
    if length > _ALIGNMENT:
        length = math.ceil(length / _ALIGNMENT) * _ALIGNMENT
    return tuple((start, min(start + length, plan.physical_rows)) for start in range(0, plan.physical_rows, length))
