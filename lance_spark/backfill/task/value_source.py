"""The sources of a job's values: calls of a UDF, calls of a chunker, and a join by keys.

The driver chooses the source, and the source runs the ranges of tasks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, cast

from lance_spark.backfill.reuse.equal_inputs import EqualInputs
from lance_spark.backfill.reuse.prior_round_rows import FollowUp
from lance_spark.backfill.reuse.round_context import RoundContext, chunks_of
from lance_spark.backfill.reuse.value_reuse import CheckpointPiece
from lance_spark.backfill.task.allowance import Allowance, StopRequest
from lance_spark.backfill.task.computation import CheckpointBuffer, UdfCalls, fail_ranges
from lance_spark.backfill.task.messages import (
    BackfillSpec,
    FragmentRows,
    FragmentWork,
    RangeOutcome,
    Task,
)
from lance_spark.backfill.task.overlap import WriteBehind
from lance_spark.backfill.task.range_task import RangeRun, SelectedRows, Selection
from lance_spark.backfill.task.rate_credits import credits_of
from lance_spark.backfill.task.row_stream import RowStream, StreamedRange
from lance_spark.backfill.task.task_files import TaskFiles
from lance_spark.backfill.task.task_ranges import NoteOutcome, run_ranges
from lance_spark.backfill.task.udf_processes import find_owner, limit_task_threads
from lance_spark.environments.task import open_interpreter
from lance_spark.rows.merge import Chunk, merge, streams_of
from lance_spark.rows.row_set import RowSet
from udf_runtime import UDF, ArtifactError, EnvironmentBuildError, Kind, UdfRuntimeError
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.process import Interpreter, ProcessSpec

if TYPE_CHECKING:
    from lance_spark.rebase.row_origins import Origin


def _ignore_outcome(_: RangeOutcome) -> None:
    """Notes nothing."""


def _note_all(outcomes: Sequence[RangeOutcome], note: NoteOutcome) -> Sequence[RangeOutcome]:
    for outcome in outcomes:
        note(outcome)
    return outcomes


class ValueSource(Protocol):
    """Makes the values of selected rows without a value of an earlier run. Picklable."""

    is_computed: ClassVar[bool]
    """Whether a UDF computes the values from inputs that may change later. Other values also fill
    a column that replaced the target column under its name."""

    def run(
        self, spec: BackfillSpec, task: Task, note: NoteOutcome = _ignore_outcome
    ) -> Iterator[RangeOutcome]:
        """Runs a task on an executor, and yields the outcomes of its ranges.

        Each outcome goes to `note` first, in any thread, as soon as its range is written.
        """

    def complete_results(
        self, rounds: FollowUp, origin: Origin, own: FragmentRows
    ) -> tuple[FragmentRows, RowSet]:
        """Returns the results of earlier rounds for a fragment of the job's first version.

        Also returns rows without a result: a change of their inputs may give them a value.
        `own` are the recorded results.
        """


class _UdfRange(RangeRun):
    """A range whose values come from calls of a UDF."""

    def __init__(
        self,
        context: RoundContext,
        work: FragmentWork,
        *,
        writer: WriteBehind,
        files: TaskFiles,
        stream: RowStream,
    ) -> None:
        super().__init__(context, work, writer=writer, files=files)
        self._stream = stream
        self._streamed: StreamedRange | None = None

    def run(self) -> Future[RangeOutcome]:
        """Computes the range, and starts again without a missing file or checkpoint."""
        try:
            return super().run()
        finally:
            self._leave_stream()

    def _write(self, selection: Selection) -> Future[RangeOutcome]:
        return (
            self._write_file(selection)
            if self._work.is_whole
            else self._write_checkpoints(selection)
        )

    def _request(self, part: SelectedRows) -> None:
        self._leave_stream()
        if part.todo:
            self._streamed = self._stream.add(
                self._work.fragment_id, self._computation, part.todo, part.own
            )

    def _compute(self, part: SelectedRows) -> Iterator[Chunk]:
        if not self._work.assembles:
            recovered = self._count_recovered(part)
            self._stream.calls.allowance.enter(self._work, todo=len(part.todo), recovered=recovered)
        return iter(()) if self._streamed is None else self._stream.values_of(self._streamed)

    def _leave_stream(self) -> None:
        streamed, self._streamed = self._streamed, None
        if streamed is not None:
            self._stream.remove(streamed)

    def _count_recovered(self, part: SelectedRows) -> int:
        """Counts the rows that an earlier attempt of the task may have computed, before it died."""
        if not self._stream.calls.is_retry:
            return 0
        _, files = self._finder.own(self._fragment.metadata)
        own = [
            piece.offsets
            for piece in part.served.pieces
            if (
                piece.entry.job_id == self._spec.job_id
                if isinstance(piece, CheckpointPiece)
                else piece.file in files
            )
        ]
        return sum(map(len, own))


class _ChunkerRange(_UdfRange):
    """A range whose values are the places of chunks."""

    def _write(self, selection: Selection) -> Future[RangeOutcome]:
        if cast("CallChunker", self._spec.value_source).stores_moved:
            (part,) = self._parts(selection)
            self._store_moved(part)
        return self._write_checkpoints(selection)

    def _store_moved(self, part: SelectedRows) -> None:
        """Writes the places of moved rows into a checkpoint of this version.

        The checkpoint has the id of an earlier job, because a retry counts own rows as calls.
        """
        pieces = [
            piece
            for piece in part.served.pieces
            if isinstance(piece, CheckpointPiece) and piece.moved is not None
        ]
        if pieces:
            spec = replace(self._spec, job_id=pieces[0].entry.job_id, flush_s=math.inf)
            checkpoints = CheckpointBuffer(spec, self._context.store, self._source)
            for offsets, places in merge(streams_of(pieces)):
                checkpoints.hold(offsets, places, [])
            checkpoints.flush()


class JoinRange(RangeRun):
    """A range whose values come from a join, by checkpoints."""

    def _write(self, selection: Selection) -> Future[RangeOutcome]:
        return (
            self._write_file(selection) if self._work.assembles else self._leave_to_join(selection)
        )

    def _request(self, part: SelectedRows) -> None:
        """Does nothing: a Spark job makes the values."""

    def _compute(self, part: SelectedRows) -> Iterator[Chunk]:
        if part.todo:
            raise self._values_lost(len(part.todo))
        return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUdf:
    """Calls a UDF.

    Attributes:
        udf: The pickled UDF.
        keeps_process: Whether the UDF runs in a process that outlives the task.
    """

    is_computed: ClassVar[bool] = True
    range_run: ClassVar[type[_UdfRange]] = _UdfRange

    udf: bytes
    keeps_process: bool = False

    @classmethod
    def of(cls, udf: UDF) -> Self:
        """Returns the source of a UDF's values. Runs on the driver."""
        return cls(udf=udf.dumps(), keeps_process=udf.keeps_process)

    def run(
        self, spec: BackfillSpec, task: Task, note: NoteOutcome = _ignore_outcome
    ) -> Iterator[RangeOutcome]:
        """Loads the UDF, and calls the UDF for the rows of the ranges."""
        try:
            udf = UDF.loads(self.udf)
            processes = self._find_processes(udf, spec)
        except (EnvironmentBuildError, ArtifactError) as error:
            yield from _note_all(fail_ranges(spec, task.work, error), note)
            return
        except UdfRuntimeError as error:
            # Another attempt in this environment would fail, too.
            what = "the UDF cannot be loaded on an executor: "
            yield from _note_all(fail_ranges(spec, task.work, error, what), note)
            return
        limit_task_threads(udf)
        chunks = chunks_of(spec) if udf.kind is Kind.CHUNKS else None
        rows = sum(work.stop - work.start for work in task.work)
        allowance = Allowance(task.limits, udf, rows, StopRequest.of(spec).look)
        with UdfRunner(
            udf,
            threads=spec.threads,
            # A UDF outside this process did not kill the process of the attempt before.
            isolate=task.isolate and processes is None,
            chunks=chunks,
            processes=processes,
            job=spec.staging.job_id,
            find_values=_finder_of_values(spec, udf),
            limiter=credits_of(spec, udf.rate_limit),
        ) as runner:
            stream = RowStream(spec, UdfCalls.of(udf, runner, allowance, is_retry=task.isolate))

            def settle(outcome: RangeOutcome) -> RangeOutcome:
                return replace(outcome, **allowance.settle())

            make = functools.partial(self.range_run, stream=stream)
            makes_files = self.range_run is _UdfRange
            yield from run_ranges(
                spec, task, make, note, stream, settle=settle, makes_files=makes_files
            )

    def _find_processes(self, udf: UDF, spec: BackfillSpec) -> ProcessSpec | None:
        """Returns the processes of the UDF; None if the UDF runs in this process.

        Raises:
            EnvironmentBuildError: The environment cannot be built.
            ArtifactError: An artifact cannot be copied.
            ResourcesUnavailableError: Spark assigned no device to the task.
        """
        interpreter = open_interpreter(udf, spec.environment, spec.artifacts)
        if interpreter is None and spec.devices is None and not self.keeps_process:
            return None
        devices = None if spec.devices is None else spec.devices.request()
        return ProcessSpec(
            interpreter=interpreter or Interpreter(), devices=devices, owner=find_owner()
        )

    def complete_results(
        self, rounds: FollowUp, origin: Origin, own: FragmentRows
    ) -> tuple[FragmentRows, RowSet]:
        """Returns all rows for a committed fragment without the records of the commit."""
        if own.computed or own.failed or origin.fragment.id not in rounds.committed:
            return own, RowSet.empty()
        return FragmentRows(computed=RowSet.of(origin.mapping.old)), RowSet.empty()


def _finder_of_values(spec: BackfillSpec, udf: UDF) -> EqualInputs | None:
    """Returns the search for values of equal inputs; None if every selected row needs a call."""
    return EqualInputs(spec, udf) if udf.deduplicate == "table" and spec.where is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChunker(CallUdf):
    """Calls a chunker. The values, the places of chunks, stay in checkpoints.

    Attributes:
        stores_moved: Whether the places of moved rows get checkpoints of this version.
    """

    range_run: ClassVar[type[_UdfRange]] = _ChunkerRange

    stores_moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinByKey:
    """Joins rows with another source. A Spark job between two tasks of a fragment has the join.

    The first task selects the rows, and the second task assembles the values of the join.
    """

    is_computed: ClassVar[bool] = False

    def run(
        self, spec: BackfillSpec, task: Task, note: NoteOutcome = _ignore_outcome
    ) -> Iterator[RangeOutcome]:
        """Selects rows for the join, or writes its values."""
        return run_ranges(spec, task, JoinRange, note)

    def complete_results(
        self, rounds: FollowUp, origin: Origin, own: FragmentRows
    ) -> tuple[FragmentRows, RowSet]:
        """Returns the recorded results: a join may skip rows.

        The source had no value for the other rows of a finished fragment, and may have values for
        their current keys.
        """
        if origin.fragment.id not in rounds.finished:
            return own, RowSet.empty()
        return own, RowSet.span(0, origin.fragment.physical_rows) - own.computed - own.failed
