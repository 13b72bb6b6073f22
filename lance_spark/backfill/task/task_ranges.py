"""The ranges of a task: rows are selected ahead of the calls, and files are written behind them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lance_spark.backfill.reuse.round_context import RoundContext, context_of
from lance_spark.backfill.task.computation import fail_ranges
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome, Task
from lance_spark.backfill.task.overlap import WriteBehind, task_lanes
from lance_spark.backfill.task.range_task import FinishOutcome, RangeRun, keep_outcome
from lance_spark.backfill.task.row_stream import RowStream
from lance_spark.backfill.task.task_files import TaskFiles
from lance_spark.errors import TableUnwritableError

_LOG = logging.getLogger(__name__)


NoteOutcome: TypeAlias = "Callable[[RangeOutcome], None]"


class MakeRange(Protocol):
    """Makes the work on a range, whose files and checkpoints `writer` writes."""

    def __call__(
        self, context: RoundContext, work: FragmentWork, *, writer: WriteBehind, files: TaskFiles
    ) -> RangeRun:
        """Returns the work on a range."""


def run_ranges(
    spec: BackfillSpec,
    task: Task,
    make: MakeRange,
    note: NoteOutcome,
    stream: RowStream | None = None,
    *,
    settle: FinishOutcome = keep_outcome,
    makes_files: bool = False,
) -> Iterator[RangeOutcome]:
    """Computes a task's ranges, and yields their outcomes. A failed range fails alone.

    As soon as a range is written, also during the calls for another range, `settle` completes its
    outcome, a checkpoint takes its file, and `note` receives the outcome. The rows of the ranges
    form a `stream`, unless a join has their values. After the end of the stream, the outcomes of
    ranges without a value have no row. `makes_files` tells whether whole fragments get column
    files.
    """
    whole = [work.fragment_id for work in task.work if work.is_whole and not work.assembles]
    context_of(spec).begin_task(whole)
    lanes, files = task_lanes(spec.staging), TaskFiles(spec)

    def make_range(context: RoundContext, work: FragmentWork) -> RangeRun:
        return make(context, work, writer=lanes.next(), files=files)

    def finish(outcome: RangeOutcome) -> RangeOutcome:
        outcome = settle(outcome)
        files.add(outcome, reports=True)
        note(outcome)
        return outcome

    ranges = _TaskRanges(spec, task, make_range, stream, finish)
    if stream is not None:
        stream.select_more = ranges.select_more
    first = task.work[0]
    if makes_files and first.is_whole and not first.search and spec.where is None:
        files.begin()
    with files.saving():
        try:
            yield from ranges.run()
        finally:
            if stream is not None:
                stream.close()
            lanes.close()


def leave(work: FragmentWork) -> RangeOutcome:
    """Returns the outcome of a range whose rows the task leaves to another task."""
    return RangeOutcome(
        fragment_id=work.fragment_id, start=work.start, stop=work.start, turn=work.turn
    )


@dataclass(slots=True, eq=False)
class _TaskRange:
    """A range of a task in progress. `outcome` waits for the writes of the range."""

    work: FragmentWork
    run: RangeRun | None = None
    outcome: Future[RangeOutcome] | None = None
    error: Exception | None = None

    def select(
        self,
        spec: BackfillSpec,
        make: Callable[[RoundContext, FragmentWork], RangeRun],
        finish: FinishOutcome,
    ) -> None:
        """Selects the rows of the range."""
        try:
            self.run = make(context_of(spec), self.work)
            self.run.finish = finish
            self.run.select()
        except Exception as error:  # noqa: BLE001 - an exception of a store is this range's outcome
            self.error = error

    def compute(self) -> None:
        """Computes the values of the range."""
        try:
            if self.error is None and self.run is not None:
                self.outcome = self.run.run()
        except Exception as error:  # noqa: BLE001 - an exception of a UDF or a store is this range's outcome
            self.error = error

    @property
    def is_written(self) -> bool:
        return self.outcome is None or self.outcome.done()

    def result(self) -> RangeOutcome:
        """Returns the outcome after the writes of the range, or raises the error of the range."""
        if self.error is not None or self.outcome is None:
            raise self.error or RuntimeError("the range was not computed")
        return self.outcome.result()


class _TaskRanges:
    """The ranges of a task, in order."""

    def __init__(
        self,
        spec: BackfillSpec,
        task: Task,
        make: Callable[[RoundContext, FragmentWork], RangeRun],
        stream: RowStream | None,
        finish: FinishOutcome,
    ) -> None:
        self._spec = spec
        self._make = make
        self._stream = stream
        self._finish = finish
        self._waiting = deque(task.work)
        self._selected: deque[_TaskRange] = deque()
        self._current: FragmentWork | None = None
        self._fatal: TableUnwritableError | None = None

    def run(self) -> Iterator[RangeOutcome]:
        """Yields the outcome of each range, in order. A full disk ends the task."""
        unwritten: deque[_TaskRange] = deque()
        while self._fatal is None and (self._selected or self._waiting):
            task_range = self._next()
            self._current = task_range.work
            task_range.compute()
            unwritten.append(task_range)
            while unwritten and unwritten[0].is_written:
                yield self._end(unwritten.popleft())
        yield from map(self._end, unwritten)
        if self._fatal is not None:
            rest = [task_range.work for task_range in self._selected]
            yield from map(
                self._finish, fail_ranges(self._spec, [*rest, *self._waiting], self._fatal)
            )

    def _next(self) -> _TaskRange:
        """Returns the next range with selected rows, or a range without work after the end."""
        is_over = self._stream is not None and self._stream.is_over
        if not self._selected and not is_over:
            self._select()
        task_range = (
            self._selected.popleft() if self._selected else _TaskRange(self._waiting.popleft())
        )
        if is_over and not self._is_begun(task_range):
            outcome: Future[RangeOutcome] = Future()
            outcome.set_result(self._finish(leave(task_range.work)))
            return _TaskRange(task_range.work, outcome=outcome)
        return task_range

    def _is_begun(self, task_range: _TaskRange) -> bool:
        """Tells whether a range has values, or calls whose results are worth the wait."""
        if task_range.run is None or self._stream is None:
            return False
        return task_range.run.has_values or self._stream.has_calls(task_range.work.fragment_id)

    def select_more(self) -> bool:
        """Selects the rows of a further range; False if the present range must end first."""
        if not self._waiting:
            return False
        # A whole fragment after its ranges selects the rows of one range after another.
        present, following = self._current, self._waiting[0]
        if present is None or present.assembles or following.assembles:
            return False
        if self._stream is not None and self._stream.contains(following.fragment_id):
            return False
        self._select()
        return True

    def _select(self) -> None:
        task_range = _TaskRange(self._waiting.popleft())
        task_range.select(self._spec, self._make, self._finish)
        self._selected.append(task_range)

    def _end(self, task_range: _TaskRange) -> RangeOutcome:
        try:
            return task_range.result()
        except Exception as error:  # noqa: BLE001 - as in `compute`
            # The driver reports the outcome. A late attempt must not write to a terminal.
            work = task_range.work
            where = f"fragment {work.fragment_id} rows {work.start} to {work.stop} of {self._spec.snapshot.uri}"
            _LOG.info("%s failed: %s", where, error)
            if isinstance(error, TableUnwritableError):
                # The job ends: a full disk fails every range.
                self._fatal = self._fatal or error
            if task_range.run is not None:
                return self._finish(task_range.run.failed(error))
            return self._finish(fail_ranges(self._spec, [work], error)[0])
