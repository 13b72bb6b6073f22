"""The fragments and ranges of a backfill. Runs on the driver.

Planning reads manifests, records and one listing of checkpoints. A scan counts rows only if the
scan is quick or the user requested exact counts.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.planning.selection import RangeRows, has_values
from lance_spark.backfill.reuse.computed_rows import Records
from lance_spark.backfill.reuse.prior_round_rows import first_round_rows
from lance_spark.backfill.reuse.round_context import (
    Bases,
    RoundContext,
    done_rows,
    source_of,
    valued_rows,
)
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.backfill.reuse.value_reuse import ValueFinder
from lance_spark.backfill.task.messages import (
    BackfillSpec,
    FragmentRows,
    FragmentWork,
    Task,
    TaskLimits,
)
from lance_spark.read.planning.sizes import measure_row
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.task_queue import pack

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata, LanceFragment

MAX_TASK_BYTES = 512 << 20
"""Maximum input of a task, in bytes."""

MAX_RANGE_ROWS = 8_000_000
"""Maximum rows of a range: a task keeps the positions of its rows, some tens of bytes each."""

COUNTED_FRAGMENTS = 1000
COUNTED_ROWS = 20_000_000
"""Most fragments and rows for which rows are counted before a job starts. The tasks of larger jobs
count their rows themselves."""

_TASK_FRAGMENTS = 1000
_ALIGNMENT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentPlan:
    """The plan of a fragment.

    Attributes:
        physical_rows: All rows of the fragment, deleted rows included.
        recorded_rows: Known results of earlier runs.
        pending: Rows to compute or to take from checkpoints in a first round; None if they were not
            counted.
        search: Whether values may exist, in checkpoints or in recorded files.
        has_checkpoints: Whether checkpoints may exist.
        input_bytes: Estimated bytes of the inputs on storage.
    """

    fragment_id: int
    physical_rows: int
    live_rows: int
    recorded_rows: FragmentRows
    pending: int | None
    search: bool
    has_checkpoints: bool = True
    input_bytes: int

    def rows(self, history: ValueHistory) -> RangeRows:
        """Returns the rows of the fragment in a first round."""
        fragment, prior_rows = (
            history.rows.existing_fragment(self.fragment_id),
            first_round_rows(self.physical_rows),
        )
        return RangeRows(history, fragment, (0, self.physical_rows), self.recorded_rows, prior_rows)

    @property
    def rows_to_do(self) -> int:
        """Rows to compute or to take from checkpoints; an upper bound without a count."""
        return self.live_rows if self.pending is None else self.pending


def plan_fragments(
    spec: BackfillSpec,
    dataset: lance.LanceDataset,
    records: Records,
    sources: Container[str],
    *,
    row_bytes: float,
    window: slice = slice(None),
    only: Collection[int] | None = None,
    bases: Bases | None = None,
) -> tuple[FragmentPlan, ...]:
    """Plans the fragments of a window, or only some fragments, without reading rows.

    Args:
        spec: The job.
        dataset: The version to read.
        records: Records of earlier jobs.
        sources: Identities of inputs with checkpoints.
        row_bytes: Bytes of the inputs of a row.
        window: Positions of fragments in ascending order of their ids.
        only: Ids of fragments.
        bases: Open older versions, for other uses of the round.
    """
    plans = []
    recorded = records.fragment_ids
    finder = ValueFinder(RoundContext(spec, bases), SnapshotRows(dataset)) if spec.bases else None
    followed = 0
    # The loop drops each handle after use, because pylance's object of a fragment takes kilobytes
    # after its first use.
    handles = _handles_of(dataset, window, only)[::-1]
    while handles:
        fragment = handles.pop().metadata
        live = fragment.physical_rows - fragment.num_deletions
        if live <= 0:
            continue
        recorded_rows = done_rows(spec, fragment, records)
        has_checkpoints = bool(spec.bases) or source_of(spec, fragment) in sources
        if finder is not None and fragment.id not in recorded and followed < COUNTED_FRAGMENTS:
            followed += 1
            recorded_rows |= finder.inherited(fragment)
        plans.append(
            FragmentPlan(
                fragment_id=fragment.id,
                physical_rows=fragment.physical_rows,
                live_rows=live,
                recorded_rows=recorded_rows,
                pending=_pending(spec, fragment, live, records, recorded_rows.skip),
                search=has_checkpoints or fragment.id in recorded,
                has_checkpoints=has_checkpoints,
                input_bytes=int(fragment.physical_rows * row_bytes),
            )
        )
    return tuple(plans)


def measure_input_row(spec: BackfillSpec) -> float:
    """Estimates the bytes of the inputs of a row, from the footers of some files."""
    ref = spec.input_source.table(spec)
    table = ref.open()
    names = frozenset(table.schema.names)
    return measure_row(
        table, [name for name in spec.input_names if name in names], ref.storage_options
    )


def _handles_of(
    dataset: lance.LanceDataset, window: slice, only: Collection[int] | None
) -> list[LanceFragment]:
    """Returns the fragments of a window, or only some fragments, in the order of their ids."""
    handles = sorted(dataset.get_fragments(), key=lambda fragment: fragment.fragment_id)[window]
    return handles if only is None else [handle for handle in handles if handle.fragment_id in only]


def _pending(
    spec: BackfillSpec, fragment: FragmentMetadata, live: int, records: Records, skip: RowSet
) -> int | None:
    """Returns the number of rows to do, if the manifest and the records determine the number."""
    if spec.where is not None:
        return None
    settled = (
        skip if spec.row_selector.selects_values else skip | valued_rows(spec, fragment, records)
    )
    if len(settled) >= fragment.physical_rows:
        return 0
    if not has_values(fragment, spec.target_ids):
        # The finished rows may include deleted rows.
        return live - len(skip) if not skip or fragment.num_deletions == 0 else None
    return None


def countable(plans: Collection[FragmentPlan]) -> bool:
    """Tells whether a count of the fragments' rows is quick enough before a job."""
    return (
        len(plans) <= COUNTED_FRAGMENTS
        and sum(plan.physical_rows for plan in plans) <= COUNTED_ROWS
    )


def plan_tasks(
    plans: Sequence[FragmentPlan], task_rows: int, call_rows: int = 1, *, is_maximum: bool = True
) -> list[Task]:
    """Cuts fragments into ranges, and packs small fragments together. Pure.

    A task has `task_rows` rows and at most about MAX_TASK_BYTES of input: a range of one fragment,
    or small fragments. Ranges of a fragment run in parallel. Tasks hold full calls of `call_rows`
    rows: fewer rows than `task_rows` if this `is_maximum`, otherwise more. For calls of single
    rows, fragments share the number of tasks of this size evenly: the first tasks have at most a
    fragment more.
    """
    round_calls = math.floor if is_maximum else math.ceil
    most_rows = round_calls(task_rows / call_rows) * call_rows or task_rows
    is_even = call_rows == 1 and not is_maximum
    rows_left = sum(plan.physical_rows for plan in plans)
    count = math.ceil(rows_left / most_rows)
    tasks: list[Task] = []
    packed: list[FragmentWork] = []
    packed_rows, packed_bytes = 0, 0

    def ship() -> None:
        nonlocal packed, packed_rows, packed_bytes, rows_left
        if packed:
            tasks.append(Task(number=len(tasks), work=tuple(packed)))
            rows_left -= packed_rows
        packed, packed_rows, packed_bytes = [], 0, 0

    for plan in plans:
        ranges = _ranges(plan, task_rows, call_rows, round_calls)
        for start, stop in ranges:
            rows = stop - start
            size = plan.input_bytes * rows // max(plan.physical_rows, 1)
            has_room = (
                packed_rows < min(most_rows, rows_left / max(1, count - len(tasks)))
                if is_even
                else packed_rows + rows <= most_rows
            )
            fits = has_room and packed_bytes + size <= MAX_TASK_BYTES
            if len(ranges) > 1 or not fits or len(packed) >= _TASK_FRAGMENTS:
                ship()
            packed.append(_work_of(plan, start, stop, ranges))
            packed_rows, packed_bytes = packed_rows + rows, packed_bytes + size
    ship()
    return tasks


def sample_tasks(plans: Sequence[FragmentPlan], rows: int, count: int) -> list[Task]:
    """Returns at most `count` tasks that each call the UDF for a part of a sample. Pure.

    The tasks begin at places of equal distance.
    """
    starts = [0, *itertools.accumulate(plan.physical_rows for plan in plans)]
    count = min(count, rows, starts[-1])
    tasks = []
    for number in range(count):
        calls = rows * (number + 1) // count - rows * number // count
        span = starts[-1] * number // count, starts[-1] * (number + 1) // count
        work = tuple(_work_within(plans, starts, span, calls))
        tasks.append(Task(number=number, work=work, limits=TaskLimits(calls=calls)))
    return tasks


def _work_within(
    plans: Sequence[FragmentPlan], starts: Sequence[int], span: tuple[int, int], rows: int
) -> Iterator[FragmentWork]:
    """Yields work with about `rows` rows to do within a span of the table's physical rows."""
    position, end = span
    todo = 0.0
    while position < end and todo < rows:
        index = bisect.bisect_right(starts, position) - 1
        plan, start = plans[index], position - starts[index]
        stop = min(plan.physical_rows, end - starts[index])
        yield _work_of(plan, start, stop, ((0, plan.physical_rows),))
        todo += plan.rows_to_do * (stop - start) / plan.physical_rows
        position = starts[index] + stop


def _work_of(
    plan: FragmentPlan, start: int, stop: int, ranges: tuple[tuple[int, int], ...]
) -> FragmentWork:
    return FragmentWork(
        fragment_id=plan.fragment_id,
        start=start,
        stop=stop,
        ranges=ranges,
        done=plan.recorded_rows,
        search=plan.search,
        has_checkpoints=plan.has_checkpoints,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverRange:
    """A range that a task left at its early end.

    Attributes:
        rows: The rows to compute; without rows all rows of the range, because no task has selected
            its rows.
    """

    work: FragmentWork
    rows: RowSet

    def cut(self, rows: int) -> Iterator[tuple[FragmentWork, int]]:
        """Yields parts of the range with about so many rows to compute, and their exact numbers."""
        work = self.work
        offsets = self.rows.to_numpy() if self.rows else np.arange(work.start, work.stop)
        pieces = max(1, round(len(offsets) / rows))
        places = [len(offsets) * number // pieces for number in range(pieces + 1)]
        bounds = [work.start, *(int(offsets[place]) for place in places[1:-1]), work.stop]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            yield replace(work, start=start, stop=stop), places[number + 1] - places[number]

    @property
    def size(self) -> int:
        """The rows to compute."""
        return len(self.rows) or self.work.stop - self.work.start


def divide(
    leftovers: Sequence[LeftoverRange], count: int, least_rows: int
) -> list[tuple[FragmentWork, ...]]:
    """Divides leftover ranges into the work of about `count` tasks, of `least_rows` rows or more.

    Pure.
    """
    rows = max(least_rows, math.ceil(sum(leftover.size for leftover in leftovers) / count))
    parts = [part for leftover in leftovers for part in leftover.cut(rows)]
    return [tuple(work for work, _ in some) for some in pack(parts, operator.itemgetter(1), rows)]


def pack_whole(work: Sequence[FragmentWork], task_rows: int) -> list[Task]:
    """Packs whole fragments with values in checkpoints into tasks. Pure."""
    packs = pack(work, operator.attrgetter("stop"), task_rows)
    return [Task(number=number, work=tuple(works)) for number, works in enumerate(packs)]


def _ranges(
    plan: FragmentPlan, task_rows: int, call_rows: int, round_calls: Callable[[float], int]
) -> tuple[tuple[int, int], ...]:
    least_pieces = max(
        math.ceil(plan.physical_rows / MAX_RANGE_ROWS),
        math.ceil(plan.input_bytes / MAX_TASK_BYTES),
        1,
    )
    pieces = max(math.ceil(plan.physical_rows / task_rows), least_pieces)
    length = math.ceil(plan.physical_rows / pieces)
    if 1 < call_rows < length < plan.physical_rows:
        calls = math.floor if pieces == least_pieces else round_calls
        length = calls(length / call_rows) * call_rows
    elif length > _ALIGNMENT:
        length = math.ceil(length / _ALIGNMENT) * _ALIGNMENT
    return tuple(
        (start, min(start + length, plan.physical_rows))
        for start in range(0, plan.physical_rows, length)
    )
