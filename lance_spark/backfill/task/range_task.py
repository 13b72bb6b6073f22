"""One task of a backfill: reads ranges of rows, computes, checkpoints, and writes the column file of a whole fragment.

Runs in one Python process on an executor; only counts and names go back. Memory: a few batches, the
values of one flush interval (at most FLUSH_BYTES), a window of the column file, and some bytes per
row of a range; it does not grow with the fragment.

A fragment that is one range is streamed into its column file while it is computed. The ranges of a
larger one leave checkpoints, and when all of them have answered, the driver submits the whole
fragment once more: that task takes the values from the checkpoints.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.backfill.planning.selection import RangeRows, has_values
from lance_spark.backfill.reuse.own_rows import OwnRows, own_rows
from lance_spark.backfill.reuse.round_context import RoundContext, context_of, source_of
from lance_spark.backfill.reuse.value_finder import Served, ValueFinder
from lance_spark.backfill.task.computation import Computation
from lance_spark.backfill.task.error_log import fail_ranges
from lance_spark.backfill.task.messages import (
    BackfillSpec,
    DoneRows,
    FragmentRows,
    FragmentWork,
    RangeOutcome,
    Task,
)
from lance_spark.errors import TableUnreadableError, TableUnwritableError
from lance_spark.rows.merge import Chunk, MissingFileError, columns_of, merge, rows_with_null
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.column_file import ColumnFile, Targets
from udf_runtime import UDF, UdfRuntimeError
from udf_runtime.execute import UdfRunner

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata, LanceFragment

_LOG = logging.getLogger(__name__)

_NULL_ROWS = 4096
"""Rows that failed and are written as NULL at once: those of a vector take as much as any other."""

_MOST_MISSING = 10
"""Files and checkpoints of a range that may turn out to be gone, one after the other."""


def run_task(
    spec: BackfillSpec, task: Task, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[RangeOutcome]:
    """Works on a task's ranges, one after the other; a range that fails does so alone.

    Runs on an executor.

    Yields:
        What became of each range.
    """
    try:
        udf = UDF.loads(spec.udf)
    except UdfRuntimeError as error:
        # Said once per range, and not tried again: another attempt in this environment ends the
        # same way.
        yield from fail_ranges(spec, task.work, error, "the UDF cannot be loaded on an executor: ")
        return
    with UdfRunner(udf, threads=spec.threads, isolate=task.isolate) as runner:
        for number, work in enumerate(task.work):
            run = None
            try:
                run = _RangeRun(context_of(spec), udf, runner, work, clock)
                yield run.run()
            except Exception as error:  # noqa: BLE001 - whatever a UDF or a store raises is this range's outcome
                # The answer says it, and the driver decides: a late attempt is nothing to show on a
                # terminal.
                _LOG.info(
                    "fragment %s rows %s to %s of %s failed: %s",
                    work.fragment_id,
                    work.start,
                    work.stop,
                    spec.snapshot.uri,
                    error,
                )
                yield from fail_ranges(spec, [work], error) if run is None else [run.failed(error)]
                if isinstance(error, TableUnwritableError):
                    # The job is over: a full disk is as full for every other range.
                    yield from fail_ranges(spec, task.work[number + 1 :], error)
                    return


@dataclass(slots=True, kw_only=True)
class _Selected:
    """The selected rows of a range, by where their values come from.

    Attributes:
        served: Values that need no call.
        todo: Rows to compute.
        empty: Rows that are to be NULL: they failed, or their inputs changed after an earlier
            round.
        nulled: How many of these became NULL because their inputs changed.
        fresh: The selected rows that no earlier round has computed.
        own: Rows that an earlier round has computed.
    """

    served: Served = field(default_factory=Served)
    todo: RowSet = field(default_factory=RowSet.empty)
    empty: RowSet = field(default_factory=RowSet.empty)
    nulled: int = 0
    fresh: RowSet = field(default_factory=RowSet.empty)
    own: RowSet = field(default_factory=RowSet.empty)

    @property
    def rows(self) -> RowSet:
        """All rows that are written."""
        return self.served.rows | self.todo | self.empty


class _RangeRun:
    """One range, or one whole fragment, being worked on."""

    def __init__(
        self, context: RoundContext, udf: UDF, runner: UdfRunner, work: FragmentWork, clock: Callable[[], float]
    ) -> None:
        spec = context.spec
        self._context = context
        self._spec = spec
        self._udf = udf
        self._work = work
        self._rows = SnapshotRows(spec.snapshot.open())
        self._finder = ValueFinder(context, self._rows)
        self._computation = Computation(spec, udf, runner, work, clock)
        self._counts = _Counts()
        self._done = work.done
        self._inherited = False
        self._has_refreshed = False
        self._source = ""

    def run(self) -> RangeOutcome:
        """Does the work.

        Raises:
            UdfRuntimeError: The UDF failed, and no policy of its skips the row. What was computed
                before is in checkpoints.
            TableUnreadableError, FilterError: Rows cannot be read.
            CommitError: The job has ended meanwhile.
        """
        while True:
            try:
                return self._run()
            except MissingFileError as error:
                # Of another job, which ended meanwhile. What was computed so far is found in
                # checkpoints.
                missing = self._finder.missing_files
                if error.file in missing or len(missing) >= _MOST_MISSING:
                    hint = "something deletes checkpoints or column files beside the job; run the backfill again"
                    raise TableUnreadableError(self._spec.snapshot.uri, str(error), hint=hint) from error
                _LOG.warning("%s; its values are looked for elsewhere", error)
                self._computation.flush()
                self._search_again({*missing, error.file})

    def failed(self, error: Exception) -> RangeOutcome:
        """Returns the outcome of a range that raised; keeps what was computed before."""
        where = self._computation.end_with(error)
        kind = getattr(error, "error_type", None) or f"{type(error).__module__}.{type(error).__qualname__}"
        text = "".join(traceback.format_exception_only(error)).strip() + where
        return replace(self._outcome(), error=text, error_type=kind, checkpoints=True)

    def _search_again(self, missing: set[str]) -> None:
        """Prepares for another pass: the job that took a file or a checkpoint away may have recorded its values a moment before."""
        self._has_refreshed = True
        self._context.refresh()
        self._finder = ValueFinder(self._context, self._rows)
        self._finder.missing_files |= missing
        self._work = replace(self._work, search=True)

    def _run(self) -> RangeOutcome:
        """Does the work once."""
        fragment = self._rows.fragment(self._work.fragment_id)
        if fragment is None:
            raise TableUnreadableError(
                self._spec.snapshot.uri,
                f"fragment {self._work.fragment_id} is not in version {self._spec.snapshot.version}",
                hint="open the table again",
            )
        self._source = self._computation.source = source_of(self._spec, fragment.metadata)
        self._counts = _Counts()
        own = self._known(fragment.metadata)
        return self._whole(fragment, own) if self._work.is_whole else self._part(fragment, own)

    def _known(self, fragment: FragmentMetadata) -> OwnRows | None:
        """Adds what is known of rows that were in other fragments, or had other input files.

        Returns what this job has computed.
        """
        spec, follow_up = self._spec, self._spec.follow_up
        self._done = self._work.done
        with self._computation.timed("read"):
            if spec.lineage_after is not None:
                self._inherit(self._finder.inherited(fragment))
            if follow_up is None:
                return None
            own = own_rows(spec, follow_up, fragment, self._finder)
            self._inherit(DoneRows(computed=own.kept, nulls=own.nulls & own.kept))
            return own

    def _inherit(self, found: DoneRows) -> None:
        self._inherited |= not found.computed <= self._done.computed
        self._done |= found

    def _select(self, fragment: LanceFragment, own: OwnRows | None, start: int, stop: int) -> _Selected:
        """Selects rows of a range, and finds the values that need no call."""
        with self._computation.timed("read"):
            rows = RangeRows(self._spec, self._rows, fragment, start, stop)
            follow_up = self._spec.follow_up
            if follow_up is None or own is None:
                selected = fresh = rows.selected(self._done)
                known = RowSet.empty()
            else:
                selected = rows.selected_again(follow_up, own, self._done)
                known = own.computed | (own.unknown if follow_up.committed else RowSet.empty())
                fresh = selected - known - own.attempted
            # Rows that failed in an earlier pass have had their call.
            failed = self._computation.failed & RowSet.span(start, stop)
            left = selected - failed
            served = self._find(rows, left)
            if self._work.assembles and not self._has_refreshed and not left <= served.rows:
                # Another job may have committed what a range found in its checkpoints, and dropped
                # these.
                self._search_again(self._finder.missing_files)
                served = self._find(rows, left)
            todo = left - served.rows
            nulled = RowSet.empty()
            if follow_up is not None and own is not None and follow_up.on_stale == "null":
                nulled = todo & own.changed
        self._counts.add(fresh, served.rows - self._computation.valued, known, len(nulled))
        return _Selected(
            served=served, todo=todo - nulled, empty=failed | nulled, nulled=len(nulled), fresh=fresh, own=known
        )

    def _find(self, rows: RangeRows, wanted: RowSet) -> Served:
        if not self._work.search or not wanted:
            return Served()
        any_job = wanted
        if self._spec.where is not None and not self._spec.stale and rows.is_filled:
            # A row with a value, or that was computed as NULL, is called again; a checkpoint of
            # this job's own serves all the same.
            any_job = (wanted & rows.without_value()) - self._done.nulls
        return self._finder.find(rows.fragment.metadata, wanted, any_job)

    def _whole(self, fragment: LanceFragment, own: OwnRows | None) -> RangeOutcome:
        """Streams a whole fragment into its column file, range by range."""
        file: ColumnFile | None = None
        computed, nulls, nulled = RowSet.empty(), RowSet.empty(), 0
        try:
            for start, stop in self._work.ranges:
                part = self._select(fragment, own, start, stop)
                if not part.rows:
                    continue
                if file is None:
                    attempt = self._spec.staging.begin_attempt()
                    file = ColumnFile(attempt, self._rows, fragment, self._targets(fragment))
                nulls |= self._fill(fragment, file, part)
                computed |= part.served.rows | part.todo
                nulled += part.nulled
            failed = self._computation.failed
            if file is None or self._changes_nothing(computed - failed, nulled):
                if file is not None:
                    file.discard()
                self._computation.write_errors()
                return self._untouched()
            with self._computation.timed("write"):
                written = file.close()
        except BaseException:
            if file is not None:
                file.discard()
            raise
        if self._spec.targets.blobs:
            self._computation.flush()
        empty = file.given - computed | failed
        return self._finish(
            written.staged.name, written.staged.size_bytes, self._all_rows(computed - empty, nulls, empty)
        )

    def _part(self, fragment: LanceFragment, own: OwnRows | None) -> RangeOutcome:
        """Leaves the values of one of several ranges in checkpoints."""
        part = self._select(fragment, own, self._work.start, self._work.stop)
        for _ in self._computation.compute(self._rows, fragment, part.todo, part.own):
            pass
        self._computation.flush()
        self._computation.write_errors()
        outcome = self._outcome()
        if not outcome.has_effect:
            rows = FragmentRows(computed=self._done.computed, nulls=self._done.nulls)
            return replace(outcome, inherited=self._inherited, rows=rows)
        return replace(outcome, checkpoints=True)

    def _fill(self, fragment: LanceFragment, file: ColumnFile, part: _Selected) -> RowSet:
        """Writes the values of a range into a column file, and returns the rows whose value is NULL.

        Raises:
            TableUnreadableError: Values that were found are not there any more.
        """
        spec, before = self._spec, file.rows
        streams = [
            self._computation.compute(self._rows, fragment, part.todo, part.own),
            *part.served.streams(spec, self._context.store),
            self._nulls(part.empty),
        ]
        nulls = RowSet.empty()
        for offsets, values in merge(streams):
            with self._computation.timed("write"):
                batch = columns_of(values, spec.outputs, spec.targets.schema)
                nulls |= RowSet.of(rows_with_null(offsets, batch))
                file.append(offsets, batch)
        lost = len(part.rows) - (file.rows - before)
        if lost:
            raise TableUnreadableError(
                spec.snapshot.uri,
                f"{lost} checkpointed values of fragment {self._work.fragment_id} are gone",
                hint="something deletes checkpoints or column files beside the job; run the backfill again",
            )
        return nulls

    def _changes_nothing(self, valued: RowSet, nulled: int) -> bool:
        """Tells whether a file would say what the table says anyway: no row got a value, and those that failed have none."""
        return not valued and self._spec.where is None and not self._spec.recomputes and not nulled

    def _all_rows(self, computed: RowSet, nulls: RowSet, failed: RowSet) -> FragmentRows:
        """Returns what is known of the fragment's rows from now on: what was done, and what is left of what was known before."""
        before = self._done
        touched = computed | failed
        return FragmentRows(
            computed=(before.computed - failed) | computed,
            nulls=(before.nulls - touched) | (nulls - failed),
            failed=failed,
            # Rows that a filter selects and that are done are those of the jobs that this one goes
            # on with.
            own=computed if self._spec.where is None else computed | before.skip,
        )

    def _untouched(self) -> RangeOutcome:
        """Returns the outcome of a fragment in which there was nothing to do."""
        rows = FragmentRows(computed=self._done.computed, nulls=self._done.nulls)
        return replace(self._outcome(), complete=True, inherited=self._inherited, rows=rows)

    def _finish(self, file: str, file_bytes: int | None, rows: FragmentRows) -> RangeOutcome:
        """Leaves a checkpoint that refers to the finished file, so that a later run finds its values even if it is not committed."""
        self._computation.write_errors()
        spec = self._spec
        with self._computation.timed("checkpoint"):
            self._context.store.write_reference(
                spec.key,
                self._source,
                job_id=spec.job_id,
                data_file=file,
                size_bytes=file_bytes,
                rows={f.name: getattr(rows, f.name).to_text() for f in dataclasses.fields(rows)},
                context={"fragment": self._work.fragment_id, "version": spec.snapshot.version},
            )
        return replace(self._outcome(), file=file, file_bytes=file_bytes, rows=rows, complete=True, checkpoints=True)

    def _targets(self, fragment: LanceFragment) -> Targets:
        """Returns the columns of the file; old values are read only of a fragment that has any."""
        filled = has_values(fragment.metadata, self._spec.target_ids)
        return self._spec.targets if filled else replace(self._spec.targets, existing=())

    def _nulls(self, rows: RowSet) -> Iterator[Chunk]:
        """Yields NULLs for rows."""
        kind: Any = self._udf.data_type
        offsets = rows.to_numpy()
        for first in range(0, len(offsets), _NULL_ROWS):
            part = offsets[first : first + _NULL_ROWS]
            yield part, pa.nulls(len(part), kind)

    def _outcome(self) -> RangeOutcome:
        computation, counts = self._computation, self._counts
        return RangeOutcome(
            fragment_id=self._work.fragment_id,
            start=self._work.start,
            stop=self._work.stop,
            assembled=self._work.assembles,
            selected=counts.selected,
            computed=computation.rows,
            reused=counts.reused,
            skipped=computation.skipped,
            crashed=computation.crashed,
            carried=counts.carried,
            recomputed=computation.recomputed,
            nulled=counts.nulled,
            retries=computation.retries,
            seconds=dict(computation.seconds),
            source=self._source,
            rows=FragmentRows(failed=computation.failed),
            checkpoints=computation.has_checkpoints,
        )


@dataclass(slots=True, kw_only=True)
class _Counts:
    """How many rows were selected, and how many of them were found, over the ranges of one pass."""

    selected: int = 0
    reused: int = 0
    carried: int = 0
    nulled: int = 0

    def add(self, fresh: RowSet, found: RowSet, own: RowSet, nulled: int) -> None:
        """Adds a range: the selected rows that are new to the job, those with values of other runs, and those of earlier rounds."""
        self.selected += len(fresh)
        self.reused += len(found & fresh)
        self.carried += len(found & own)
        self.nulled += nulled
