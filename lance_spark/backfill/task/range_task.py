"""A task of a backfill: reads ranges, computes, checkpoints, and writes a fragment's column file.

Runs in one Python process on an executor. Memory is independent of the fragment's size: a few
batches, the values of a flush interval (at most FLUSH_BYTES), a window of the column file, and some
bytes per row of a range.

A task streams a fragment with a single range into its column file. The ranges of a larger fragment
write checkpoints. After all ranges have answered, the driver submits the whole fragment again, and
a task assembles the values from the checkpoints. If a join has the values, the ranges of every
fragment only select rows, and the join writes the checkpoints.
"""

from __future__ import annotations

import functools
import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from lance_spark.backfill.planning.selection import RangeRows, has_values
from lance_spark.backfill.reuse.prior_round_rows import PriorRoundRows
from lance_spark.backfill.reuse.round_context import RoundContext, source_of
from lance_spark.backfill.reuse.value_history import ValueHistory
from lance_spark.backfill.reuse.value_reuse import ReusedValues, ValueFinder
from lance_spark.backfill.task.computation import CheckpointBuffer, Computation, type_of
from lance_spark.backfill.task.messages import FragmentRows, FragmentWork, RangeOutcome, RowCounts
from lance_spark.backfill.task.overlap import WriteBehind, Writes
from lance_spark.backfill.task.task_files import TaskFiles
from lance_spark.commit.changes import StagedColumns
from lance_spark.errors import TableUnreadableError, ValueConversionError, counted
from lance_spark.rows.merge import (
    Chunk,
    MissingFileError,
    NullPiece,
    Offsets,
    cast_chunks,
    columns_of,
    merge,
    output_type,
    rows_with_null,
    streams_of,
)
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.column_file import ColumnFile
from lance_spark.staging.null_marks import NullMarks
from lance_spark.types import LengthEnforcer

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)

_HINT = "something deletes checkpoints or column files beside the job; run the backfill again"

_MOST_MISSING = 10
"""Maximum number of missing files and checkpoints of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRows:
    """The selected rows of a range, by the origin of their values.

    Attributes:
        todo: Rows to compute.
        failed: Rows to write as NULL: they failed, or their inputs changed after an earlier round.
        own: Rows computed by an earlier round.
        fresh: Rows that no earlier round selected.
        reused: Rows with a value from before this task.
        nulled: Subset of `failed`: rows whose inputs changed after an earlier round.
    """

    served: ReusedValues
    todo: RowSet
    failed: RowSet
    own: RowSet
    fresh: RowSet
    reused: RowSet
    nulled: RowSet

    @property
    def rows(self) -> RowSet:
        """All rows to write."""
        return self.served.rows | self.todo | self.failed

    @property
    def counts(self) -> RowCounts:
        """The counts of the selected rows."""
        return RowCounts(
            selected=len(self.fresh),
            reused=len(self.reused & self.fresh),
            carried=len(self.reused & self.own),
            nulled=len(self.nulled),
        )

    def before(self, stop: int) -> SelectedRows:
        """Returns the rows before a row, without the pieces of their values."""
        span = RowSet.span(0, stop)
        rows = {
            field.name: getattr(self, field.name) & span
            for field in fields(self)
            if field.name != "served"
        }
        return SelectedRows(served=ReusedValues(rows=self.served.rows & span), **rows)


FinishOutcome: TypeAlias = "Callable[[RangeOutcome], RangeOutcome]"


def keep_outcome(outcome: RangeOutcome) -> RangeOutcome:
    """Returns the outcome of a range without a change."""
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows of earlier rounds, and the selected rows of a single range."""

    own: PriorRoundRows
    part: SelectedRows | None


class RangeRun(ABC):
    """The work on a range or on a whole fragment. A value source makes the missing values.

    Attributes:
        finish: Receives the outcome as soon as the range is written, in any thread of the task.
    """

    def __init__(
        self, context: RoundContext, work: FragmentWork, *, writer: WriteBehind, files: TaskFiles
    ) -> None:
        self.finish: FinishOutcome = keep_outcome
        spec = context.spec
        self._context = context
        self._spec = spec
        self._work = work
        self._writer = writer
        self._files = files
        self._rows = SnapshotRows(spec.snapshot.open())
        self._fragment = self._rows.existing_fragment(work.fragment_id)
        self._source = source_of(spec, self._fragment.metadata)
        self._checkpoints = CheckpointBuffer(
            spec, context.store, self._source, writes=Writes(writer)
        )
        self._computation = Computation(spec, work, self._checkpoints)
        self._finder = ValueFinder(context, self._rows, in_checkpoints=work.has_checkpoints)
        self._lengths = LengthEnforcer(spec.targets.schema)
        self._counts = RowCounts()
        self._selection: Selection | None = None
        self._nulls = RowSet.empty()
        self._done = work.done
        self._has_inherited = False
        self._has_refreshed = False
        self._written_bytes = 0

    @abstractmethod
    def _write(self, selection: Selection) -> Future[RangeOutcome]:
        """Writes the values of the range into checkpoints, or of the fragment into its file."""

    @abstractmethod
    def _compute(self, part: SelectedRows) -> Iterator[Chunk]:
        """Yields the values of the rows that no earlier run has computed."""

    @abstractmethod
    def _request(self, part: SelectedRows) -> None:
        """Requests the values of selected rows, before the calls."""

    def select(self) -> None:
        """Selects the rows of a range. A whole fragment selects them range by range, in `run`."""
        self._counts = RowCounts()
        own, part = self._prior_rows(), None
        if not self._work.assembles:
            part = self._select(own, self._work.start, self._work.stop)
        self._selection = Selection(own=own, part=part)

    def run(self) -> Future[RangeOutcome]:
        """Computes the range, and starts again without a missing file or checkpoint.

        The outcome waits for the writes.
        """
        while True:
            if self._selection is None:
                self.select()
                assert self._selection is not None
            try:
                return self._write(self._selection)
            except MissingFileError as error:
                # A file of another, now ended job. The next pass finds own values in checkpoints.
                missing_files = self._finder.missing_files
                if error.file in missing_files or len(missing_files) >= _MOST_MISSING:
                    raise TableUnreadableError(
                        self._spec.snapshot.uri, str(error), hint=_HINT
                    ) from error
                _LOG.warning("%s; its values are looked for elsewhere", error)
                self._checkpoints.flush()
                self._checkpoints.join()
                self._search_again({*missing_files, error.file})
                self._selection = None

    @property
    def has_values(self) -> bool:
        """Whether a call has returned for a row."""
        return bool(self._computation.valued or self._computation.failed - self._work.failed)

    def failed(self, error: Exception) -> RangeOutcome:
        """Returns the outcome of a range after an exception, and keeps the computed values."""
        text = "".join(traceback.format_exception_only(error)).strip()
        offset = self._computation.end_with(error)
        if offset is not None:
            text = f"{text.rstrip('.')} (row address {self._work.fragment_id << 32 | offset})"
        return replace(self._outcome(), error=text, error_type=type_of(error))

    def _search_again(self, missing: set[str]) -> None:
        """Prepares another pass: the job that deleted values may have recorded them."""
        self._has_refreshed = True
        self._context.refresh()
        self._finder = ValueFinder(self._context, self._rows)
        self._finder.missing_files |= missing
        self._work = self._work.searched()

    def _prior_rows(self) -> PriorRoundRows:
        """Adds the known results of rows from other fragments or with other input files.

        Returns the rows of earlier rounds of this job.
        """
        spec, fragment = self._spec, self._fragment.metadata
        with self._computation.timed("read"):
            own = spec.prior_rounds.prior_rows(spec, fragment, self._finder)
            inherited = self._finder.inherited(fragment) | own.kept
        self._has_inherited |= not inherited.computed <= self._work.done.computed
        self._done = self._work.done | inherited
        return own

    def _select(self, own: PriorRoundRows, start: int, stop: int) -> SelectedRows:
        """Selects rows of a range, and finds the reusable values."""
        computation = self._computation
        with computation.timed("read"):
            history = ValueHistory(self._context, self._rows)
            rows = RangeRows(history, self._fragment, (start, stop), self._done, own)
            if self._work.selected is not None:
                selected = self._work.selected & rows.span
            else:
                selected = self._spec.row_selector.select(rows)
            prior_rows = own.computed | own.unknown
            fresh = selected - prior_rows - own.attempted
            # Rows that failed in an earlier pass get no second call.
            failed = computation.failed & rows.span
            candidates = selected - failed
            reused_values = self._find(rows, candidates)
            if (
                self._work.assembles
                and not self._has_refreshed
                and not candidates <= reused_values.rows
            ):
                # Another job may have committed the values of checkpoints, and deleted these.
                self._search_again(self._finder.missing_files)
                reused_values = self._find(rows, candidates)
            todo = candidates - reused_values.rows
            nulled = todo & own.nulled
        part = SelectedRows(
            served=reused_values,
            todo=todo - nulled,
            failed=failed | nulled,
            own=prior_rows,
            fresh=fresh,
            reused=reused_values.rows - computation.valued,
            nulled=nulled,
        )
        self._counts += part.counts
        self._request(part)
        return part

    def _parts(self, selection: Selection) -> Iterator[SelectedRows]:
        """Yields the selected rows, range by range."""
        if selection.part is not None:
            yield selection.part
            return
        for start, stop in self._work.ranges:
            yield self._select(selection.own, start, stop)

    def _find(self, rows: RangeRows, wanted: RowSet) -> ReusedValues:
        if not self._work.search or not wanted:
            return ReusedValues()
        served_by_any_job = functools.partial(self._spec.row_selector.served_by_any_job, rows)
        return self._finder.find(self._fragment.metadata, wanted, served_by_any_job)

    def _write_file(self, selection: Selection) -> Future[RangeOutcome]:
        """Streams a whole fragment into its column file, range by range."""
        spec, writes = self._spec, Writes(self._writer)
        file: ColumnFile | None = None
        computed, self._written_bytes = RowSet.empty(), 0
        self._nulls = RowSet.empty()
        try:
            for part in self._parts(selection):
                if not part.rows:
                    continue
                file = file or self._open_file()
                self._fill(file, writes, part)
                if self._left(part):
                    outcome = self._end_early(part)
                    self._discard(file)
                    return self._complete(outcome)
                computed |= part.served.rows | part.todo
            failed = self._computation.failed
            if file is None:
                return self._end_without_file()
            if not computed - failed and self._keeps_table(selection, failed):
                self._discard(file)
                return self._end_without_file()
            if spec.targets.blobs:
                self._checkpoints.flush()
            # The snapshot belongs to this thread.
            known_nulls = self._finder.known_nulls(
                self._fragment.metadata, computed - failed - self._done.nulls
            )
            close = functools.partial(self._close_file, file, writes, computed, failed, known_nulls)
            return self._writer.submit(close, self._written_bytes)
        except BaseException:
            if file is not None:
                self._discard(file)
            raise

    def _keeps_table(self, selection: Selection, failed: RowSet) -> bool:
        """Tells whether a column file with NULL in failed rows would equal the table."""
        spec = self._spec
        if spec.equals_table_without_values or spec.round:
            return spec.equals_table_without_values
        if not failed.isdisjoint(self._done.computed):
            return False  # a row computed as NULL now has no result
        span = (0, self._fragment.metadata.physical_rows)
        history = ValueHistory(self._context, self._rows)
        rows = RangeRows(history, self._fragment, span, self._done, selection.own)
        return failed.isdisjoint(rows.with_value())

    def _end_without_file(self) -> Future[RangeOutcome]:
        self._computation.errors.write()
        return self._complete(replace(self._without_effect(), complete=True))

    def _close_file(
        self,
        file: ColumnFile,
        writes: Writes,
        computed: RowSet,
        failed: RowSet,
        known_nulls: RowSet,
    ) -> RangeOutcome:
        """Finishes the column file in the writing thread."""
        try:
            writes.join()
            rows = self._known_rows(computed, failed | (file.given - computed))
            with self._computation.timed("write"):
                file.mark_nulls(
                    NullMarks(rows=rows.nulls, new=rows.nulls - self._done.nulls - known_nulls)
                )
                closed_file = file.close()
        except BaseException:
            self._files.end_attempt()
            file.discard()
            raise
        return self.finish(self._finish(closed_file.staged, rows))

    def _complete(self, outcome: RangeOutcome) -> Future[RangeOutcome]:
        """Returns an outcome without pending writes."""
        future: Future[RangeOutcome] = Future()
        future.set_result(self.finish(outcome))
        return future

    def _discard(self, file: ColumnFile) -> None:
        """Discards a column file after its pending writes."""
        self._files.end_attempt()
        self._writer.submit(file.discard).result()

    def _open_file(self) -> ColumnFile:
        """Opens the column file of the fragment."""
        spec = self._spec
        # Only fragments with values have old values to read.
        is_filled = has_values(self._fragment.metadata, spec.target_ids)
        targets = spec.targets if is_filled else replace(spec.targets, existing=())
        # The writing thread reads old values.
        rows = SnapshotRows(spec.snapshot.open())
        fragment = rows.fragment(self._work.fragment_id)
        assert fragment is not None
        try:
            return ColumnFile(self._files.attempt(), rows, fragment, targets)
        except BaseException:
            self._files.end_attempt()
            raise

    def _write_checkpoints(self, selection: Selection) -> Future[RangeOutcome]:
        """Writes the values of a range into checkpoints."""
        (part,) = self._parts(selection)
        for _ in self._compute(part):
            pass
        if self._left(part):
            return self._complete(self._end_early(part))
        self._checkpoints.flush()
        self._checkpoints.join()
        self._computation.errors.write()
        if not part.rows:
            return self._complete(self._without_effect())
        failed = part.failed | self._computation.failed
        return self._complete(replace(self._outcome(), selected=part.rows, failed=failed))

    def _left(self, part: SelectedRows) -> RowSet:
        """Returns the rows without a call, after the end of the task's allowance."""
        return part.todo - self._computation.valued - self._computation.failed

    def _end_early(self, part: SelectedRows) -> RangeOutcome:
        """Writes the computed values into checkpoints, and leaves the other rows."""
        left = self._left(part)
        stop = int(left.to_numpy()[0])
        self._checkpoints.flush()
        self._checkpoints.join()
        self._computation.errors.write()
        finished = part.before(stop)
        self._counts += finished.counts - part.counts
        outcome = replace(self._outcome(), stop=stop, left=left)
        if not finished.rows:
            return outcome
        return replace(
            outcome, selected=finished.rows, failed=finished.failed | self._computation.failed
        )

    def _leave_to_join(self, selection: Selection) -> Future[RangeOutcome]:
        """Selects rows, and leaves rows without values in checkpoints to a join."""
        (part,) = self._parts(selection)
        if not part.rows:
            return self._complete(self._without_effect())
        outcome = replace(
            self._outcome(),
            selected=part.rows - part.todo,
            failed=part.failed,
            todo=part.todo,
            again=part.todo & part.own,
            outdated=part.todo & selection.own.computed,
        )
        return self._complete(outcome)

    def _fill(self, file: ColumnFile, writes: Writes, part: SelectedRows) -> None:
        """Writes the values of a range into a column file."""
        spec, missing_rows = self._spec, len(part.rows)
        # After a cast of the column, its files may have either type.
        kind = output_type(spec.outputs, spec.targets.schema)
        empty = [NullPiece(offsets=part.failed.to_numpy(), type=kind)] if part.failed else []
        streams = [self._compute(part), *streams_of(part.served.pieces), *streams_of(empty)]
        for offsets, values in merge([cast_chunks(stream, kind) for stream in streams]):
            self._written_bytes += values.nbytes
            writes.submit(functools.partial(self._append, file, offsets, values), values.nbytes)
            missing_rows -= len(offsets)
        if missing_rows and not self._left(part):
            raise self._values_lost(missing_rows)

    def _append(self, file: ColumnFile, offsets: Offsets, values: pa.Array[Any]) -> None:
        """Adds values to a column file in the writing thread, and notes the rows with NULL."""
        with self._computation.timed("write"):
            batch = self._with_lengths(
                offsets, columns_of(values, self._spec.outputs, self._spec.targets.schema)
            )
            self._nulls |= RowSet.of(rows_with_null(offsets, batch))
            file.append(offsets, batch)

    def _with_lengths(self, offsets: Offsets, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns values in the form of `CHAR(n)` and `VARCHAR(n)` columns.

        Raises:
            ValueConversionError: A text is too long. `row` is the row's position in the fragment.
        """
        try:
            return self._lengths.enforce(batch)
        except ValueConversionError as error:
            row = None if error.row is None else int(offsets[error.row])
            hint = "return a shorter text, or widen the column with ALTER TABLE ... ALTER COLUMN ... TYPE VARCHAR(n)"
            fragment = f"fragment {self._work.fragment_id}"
            raise ValueConversionError(
                error.column, row, error.reason, hint=hint, rows=fragment
            ) from error

    def _values_lost(self, count: int) -> TableUnreadableError:
        text = (
            f"{counted(count, 'checkpointed value')} of fragment {self._work.fragment_id} are gone"
        )
        return TableUnreadableError(self._spec.snapshot.uri, text, hint=_HINT)

    def _without_effect(self) -> RangeOutcome:
        """Returns the outcome of a range without work."""
        rows = FragmentRows(computed=self._done.computed, nulls=self._done.nulls)
        return replace(self._outcome(), inherited=self._has_inherited, rows=rows)

    def _known_rows(self, computed: RowSet, failed: RowSet) -> FragmentRows:
        """Returns the known results of a fragment after its file."""
        before = self._done
        computed -= failed
        return FragmentRows(
            computed=(before.computed - failed) | computed,
            nulls=(before.nulls - computed - failed) | (self._nulls - failed),
            failed=failed,
            # Finished rows that match the filter belong to the resumed jobs.
            own=computed if self._spec.where is None else computed | before.skip,
        )

    def _finish(self, file: StagedColumns, rows: FragmentRows) -> RangeOutcome:
        """Returns the outcome of a fragment with a finished file."""
        self._computation.errors.write()
        return replace(
            self._outcome(), file=file.name, file_bytes=file.size_bytes, rows=rows, complete=True
        )

    def _outcome(self) -> RangeOutcome:
        work, computation = self._work, self._computation
        counts = RowCounts(skipped=computation.skipped, crashed=computation.crashed)
        if not work.assembles:
            valued = computation.calls - computation.recomputed + self._counts.reused
            counts += self._counts + RowCounts(valued=valued, recomputed=computation.recomputed)
        seconds = computation.seconds
        return RangeOutcome(
            fragment_id=work.fragment_id,
            start=work.start,
            stop=work.stop,
            assembled=work.assembles,
            turn=work.turn,
            calls=computation.calls,
            deduplicated=computation.deduplicated,
            retries=computation.retries,
            counts=counts,
            seconds={**seconds, "checkpoint": seconds["checkpoint"] + self._checkpoints.seconds},
            source=self._source,
            batch_rows=computation.batch_rows,
            row_errors=tuple(computation.errors.first),
        )
