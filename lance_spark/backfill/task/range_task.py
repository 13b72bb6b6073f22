"""One task of a backfill: reads ranges of rows, computes, checkpoints, and writes the column file of a fragment whose last range it ends.

Runs in one Python process on an executor; only what it did goes back. Memory: a few batches, the values of one flush interval (at most
FLUSH_BYTES), and a window of the column file; it does not grow with the fragment.

A fragment that is one range is streamed into its column file while it is computed. One of several ranges leaves checkpoints, and a note for
each finished range; the task that finds the notes of all ranges streams the checkpoints into the file. Two tasks that end at the same
moment may both do so, which costs time and nothing else: the driver takes one of the files.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from lance_spark.backfill.counts import Counts
from lance_spark.backfill.followed import select_followed
from lance_spark.backfill.given import given_to
from lance_spark.backfill.notes import Noted, Notes
from lance_spark.backfill.planning.selection import has_values, rows_without_value, select_rows, without
from lance_spark.backfill.reuse.value_finder import Finder, Served, source_of, store_of
from lance_spark.backfill.task.checkpoint_buffer import Keeper
from lance_spark.backfill.task.error_log import FailureLog, fail_ranges
from lance_spark.backfill.task.messages import BackfillSpec, FollowSpec, FragmentRows, FragmentWork, RangeOutcome, Task
from lance_spark.backfill.unvalued import left_without_value
from lance_spark.errors import TableUnreadableError
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.merge import (
    Chunk,
    MissingFileError,
    Offsets,
    columns_of,
    distinct,
    merge,
    no_rows,
    rows_with_null,
)
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.column_file import ColumnFile, Targets
from udf_runtime import UDF, UdfRuntimeError
from udf_runtime.execute import RowFailure, UdfRunner
from udf_runtime.policies import AdaptiveSize

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata, LanceFragment

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

_NULL_ROWS = 4096
"""Rows that failed and are written as NULL at once: those of a vector take as much as any other."""

_MOST_MISSING = 10
"""Files and checkpoints of a range that may turn out to be gone, one after the other."""

_CUT_ROWS = 1 << 15
"""Rows of one checkpoint that copies values from elsewhere."""


def run_task(
    spec: BackfillSpec, task: Task, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[RangeOutcome]:
    """Works on a task's ranges, one after the other; a range that fails does so alone. Runs on an executor.

    Yields:
        What became of each range.
    """
    try:
        udf = UDF.loads(spec.udf)
    except UdfRuntimeError as error:
        # Said once per range, and not tried again: another attempt in this environment ends the same way.
        yield from fail_ranges(spec, task.work, error, "the UDF cannot be loaded on an executor: ")
        return
    with UdfRunner(udf, threads=spec.threads, isolate=task.isolate) as runner:
        for work in task.work:
            run = None
            try:
                run = _RangeRun(spec, udf, runner, work, clock)
                yield run.run()
            except Exception as error:  # noqa: BLE001 - whatever a UDF or a store raises is this range's outcome
                _LOG.warning(
                    "fragment %s rows %s to %s of %s failed: %s",
                    work.fragment_id,
                    work.start,
                    work.stop,
                    spec.snapshot.uri,
                    error,
                )
                yield from fail_ranges(spec, [work], error) if run is None else [run.failed(error)]


class _RangeRun:
    """One range being worked on."""

    def __init__(
        self, spec: BackfillSpec, udf: UDF, runner: UdfRunner, work: FragmentWork, clock: Callable[[], float]
    ) -> None:
        self._spec = spec
        self._udf = udf
        self._runner = runner
        self._work = work
        self._clock = clock
        self._store = store_of(spec)
        self._rows = SnapshotRows(spec.snapshot.open())
        self._done = Counts()
        self._selected = 0
        self._reused = 0
        self._keeper = Keeper(spec, self._store, self._done.seconds, clock)
        self._inherited = False
        self._finder = Finder(spec, self._rows, self._store)
        self._failures = FailureLog(spec, work.fragment_id)
        self._source = ""
        self._known = no_rows()
        self._nulled = no_rows()
        self._valued = [no_rows()]
        self._taken: deque[Offsets] = deque()

    def run(self) -> RangeOutcome:
        """Does the work.

        Raises:
            UdfRuntimeError: The UDF failed, and no policy of its skips the row. What was computed before is in checkpoints.
            TableUnreadableError, FilterError: Rows cannot be read.
            CommitError: The job has ended meanwhile.
        """
        while True:
            try:
                return self._run()
            except MissingFileError as error:
                # Of another job, which ended meanwhile. What was computed so far is found in checkpoints.
                missing = self._finder.missing_files
                if error.file in missing or len(missing) >= _MOST_MISSING:
                    raise self._lost(str(error)) from error
                _LOG.warning("%s; its values are looked for elsewhere", error)
                self._keeper.flush()
                self._look_again({*missing, error.file})

    def _look_again(self, missing: set[str]) -> None:
        """Prepares for another pass: the job that took a file or a checkpoint away may have recorded a moment before where its values are."""
        # What a process keeps of the records is of one look.
        self._spec = replace(self._spec, look=self._spec.look + 1)
        self._finder = Finder(self._spec, self._rows, self._store)
        self._finder.missing_files |= missing
        self._work = replace(self._work, search=True)
        self._taken.clear()

    def _run(self) -> RangeOutcome:
        """Does the work once."""
        spec = self._spec
        fragment = self._rows.fragment(self._work.fragment_id)
        if fragment is None:
            raise TableUnreadableError(
                spec.snapshot.uri,
                f"fragment {self._work.fragment_id} is not in version {spec.snapshot.version}",
                hint="open the table again",
            )
        self._source = self._keeper.source = source_of(spec, fragment.metadata)
        self._inherit(fragment.metadata)
        work = self._work
        if spec.follow is None:
            selected = self._timed("read", lambda: select_rows(spec, work, self._rows, fragment))
            self._selected = len(selected)
            # Rows that failed in an earlier pass have had their call.
            left = without(selected, self._failed())
            served = self._find(fragment, left, work)
            self._reused = len(self._of_others(served))
            todo = without(left, served.offsets)
        else:
            served, todo = self._look_after(fragment, spec.follow)
        if work.is_whole:
            return self._whole(fragment, served, todo)
        return self._part(fragment, served, todo)

    def _inherit(self, fragment: FragmentMetadata) -> None:
        """Adds what is known of the fragments that a compaction made this one from."""
        if self._spec.lineage_after is None:
            return
        inherited = self._timed("read", lambda: self._finder.inherited(fragment))
        if inherited.computed:
            self._inherited = True
            self._work = replace(self._work, done=self._work.done | inherited)

    def _look_after(self, fragment: LanceFragment, follow: FollowSpec) -> tuple[Served, Offsets]:
        """Finds the rows that others moved or changed since the job computed them, the values that are still right, and the rows to compute."""
        found = self._timed(
            "read", lambda: select_followed(self._spec, follow, self._work, self._rows, fragment, self._finder)
        )
        left = without(found.selected, self._failed())
        served = self._find(fragment, left, self._work)
        todo = without(left, served.offsets)
        if follow.on_stale == "null":
            self._nulled = np.intersect1d(todo, served.changed, assume_unique=True)
            todo = without(todo, self._nulled)
            self._done.nulled = len(self._nulled)
        again = left_without_value(self._spec.bases, fragment.metadata, self._finder)
        self._done.again = len(np.intersect1d(found.selected, again, assume_unique=True))
        self._selected = len(without(found.fresh, again))
        others = self._of_others(served)
        self._reused = int(np.isin(others, found.fresh, assume_unique=True).sum())
        self._done.carried = len(others) - self._reused
        self._done.kept = found.kept
        self._done.held = found.held
        self._done.added = found.added
        self._known = np.setdiff1d(todo, found.fresh, assume_unique=True)
        return served, todo

    def failed(self, error: Exception) -> RangeOutcome:
        """Returns the outcome of a range that raised; keeps what was computed before."""
        try:
            self._keeper.flush()
        except OSError:
            _LOG.exception("what was computed before the error is lost")
        row = getattr(error, "row", None)
        offset = None if row is None else self._offset_of(row)
        self._failures.add_error(error, offset)
        self._failures.write()
        where = "" if offset is None else f" (row address {self._work.fragment_id << 32 | offset})"
        kind = getattr(error, "error_type", None) or f"{type(error).__module__}.{type(error).__qualname__}"
        return replace(
            self._outcome(),
            error="".join(traceback.format_exception_only(error)).strip() + where,
            error_type=kind,
            checkpoints=True,
        )

    def _offset_of(self, row: int) -> int | None:
        """Returns the physical position of a row of the batch that failed."""
        # Results come in the order of the batches, so the first one without a result is the one that failed.
        return int(self._taken[0][row]) if self._taken and row < len(self._taken[0]) else None

    def _failed(self) -> Offsets:
        """Returns the rows that failed so far, ascending."""
        return np.sort(np.array(self._done.failed, dtype=np.int64))

    def _without_result(self) -> Offsets:
        """Returns the rows that failed or are NULL because their inputs changed, ascending."""
        return distinct(self._failed(), self._nulled)

    def _of_others(self, served: Served) -> Offsets:
        """Returns the rows that something else served than an earlier pass."""
        return without(served.offsets, distinct(*self._valued))

    def _find(self, fragment: LanceFragment, selected: Offsets, work: FragmentWork) -> Served:
        if not work.search or not len(selected):
            return Served(no_rows(), [], [])
        empty = rows_without_value(self._spec, work, self._rows, fragment, selected)
        return self._timed("read", lambda: self._finder.find(fragment.metadata, selected, empty))

    def _whole(self, fragment: LanceFragment, served: Served, todo: Offsets) -> RangeOutcome:
        """Streams a fragment that is one range into its column file."""
        lost = self._without_result()
        if not len(todo) and not len(served.offsets) and not len(lost):
            return self._untouched()
        attempt = self._spec.staging.begin_attempt()
        file = ColumnFile(attempt, self._rows, fragment, self._targets(fragment))
        try:
            streams = [self._compute(fragment, todo), *served.streams(self._spec, self._store), self._nulls(lost)]
            nulls = self._fill(fragment, file, merge(streams))
            self._refuse_lost(len(todo) + len(served.offsets) + len(lost) - file.rows)
            useless = self._changes_nothing(self._done.rows + len(served.offsets), self._done.nulled)
            written = None if useless else self._timed("write", file.close)
        except BaseException:
            file.discard()
            raise
        if written is None:
            file.discard()
            return self._only_failed()
        if self._spec.targets.blobs:
            self._keeper.flush()
        failed = RowSet.of(self._without_result())
        computed = RowSet.of(np.concatenate([served.offsets, todo])) - failed
        rows = self._all_rows(computed, RowSet.of(nulls), failed)
        return self._finish(written.staged.name, written.staged.size_bytes, rows)

    def _changes_nothing(self, rows: int, nulled: int) -> bool:
        """Tells whether a file would say what the table says anyway: no row got a value, and those that failed have none."""
        return rows == 0 and self._spec.where is None and not self._spec.recomputes and not nulled

    def _only_failed(self) -> RangeOutcome:
        """Returns the outcome of a fragment in which all selected rows failed again."""
        self._failures.write()
        return self._untouched()

    def _all_rows(self, computed: RowSet, nulls: RowSet, failed: RowSet) -> FragmentRows:
        """Returns what is known of the fragment's rows from now on: what was done, and what is left of what was known before."""
        before = self._work.done
        touched = computed | failed
        return FragmentRows(
            computed=(before.computed - failed) | computed,
            nulls=(before.nulls - touched) | (nulls - failed),
            failed=failed,
            # Rows that a filter selects and that are done are those of the jobs that this one goes on with.
            own=computed if self._spec.where is None else computed | before.skip,
        )

    def _untouched(self) -> RangeOutcome:
        """Returns the outcome of a fragment in which there was nothing to do."""
        rows = FragmentRows(computed=self._work.done.computed, nulls=self._work.done.nulls)
        return replace(self._outcome(), complete=True, inherited=self._inherited, rows=rows)

    def _finish(self, file: str, file_bytes: int | None, rows: FragmentRows) -> RangeOutcome:
        """Leaves a note of the finished file, so that a later run finds its values even if nobody commits it."""
        began = self._clock()
        self._failures.write()
        spec = self._spec
        self._store.write_reference(
            spec.key,
            self._source,
            job_id=spec.job_id,
            data_file=file,
            size_bytes=file_bytes,
            rows={f.name: getattr(rows, f.name).to_text() for f in dataclasses.fields(rows)},
            context={"fragment": self._work.fragment_id, "version": spec.snapshot.version},
        )
        self._done.seconds["checkpoint"] += self._clock() - began
        return replace(self._outcome(), file=file, file_bytes=file_bytes, rows=rows, complete=True, checkpoints=True)

    def _targets(self, fragment: LanceFragment) -> Targets:
        """Returns the columns of the file; old values are read only of a fragment that has any."""
        filled = has_values(fragment.metadata, self._spec.target_ids)
        return self._spec.targets if filled else replace(self._spec.targets, existing=())

    def _fill(self, fragment: LanceFragment, file: ColumnFile, chunks: Iterator[Chunk]) -> Offsets:
        """Writes values into a column file, and returns the rows whose value is NULL."""
        spec = self._spec
        given = given_to(spec, self._finder, self._rows, fragment)
        nulls = [no_rows()]
        for offsets, values in chunks:
            began = self._clock()
            batch = columns_of(values, spec.outputs, spec.targets.schema)
            if given is not None:
                batch = given.keep(offsets, batch)
            nulls.append(rows_with_null(offsets, batch))
            file.append(offsets, batch)
            self._done.seconds["write"] += self._clock() - began
        return np.concatenate(nulls)

    def _part(self, fragment: LanceFragment, served: Served, todo: Offsets) -> RangeOutcome:
        """Leaves the values of one of several ranges in checkpoints, and assembles the fragment if it was the last."""
        for _ in self._compute(fragment, todo):
            pass
        self._keeper.flush()
        self._copy(served)
        self._failures.write()
        notes = Notes(self._spec, self._work)
        failed = RowSet.of(self._without_result())
        computed = RowSet.of(np.concatenate([served.offsets, todo])) - failed
        notes.leave(Noted(computed=computed, failed=failed, nulled=self._done.nulled))
        found = notes.all()
        if found is None:
            return replace(self._outcome(), checkpoints=True)
        return self._assemble(fragment, found) if found.computed or found.failed else self._untouched()

    def _copy(self, served: Served) -> None:
        """Puts values that are elsewhere into checkpoints of this fragment: whoever assembles it looks only there."""
        elsewhere = replace(served, entries=[piece for piece in served.entries if piece.moved is not None])
        for offsets, values in merge(elsewhere.streams(self._spec, self._store)):
            for first in range(0, len(offsets), _CUT_ROWS):
                self._keeper.write(offsets[first : first + _CUT_ROWS], values.slice(first, _CUT_ROWS))

    def _assemble(self, fragment: LanceFragment, noted: Noted) -> RangeOutcome:
        """Streams the checkpoints of all ranges into the column file."""
        failed = noted.failed | RowSet.of(self._failed())
        computed = noted.computed - failed
        if self._changes_nothing(len(computed), noted.nulled):
            return self._only_failed()
        file = ColumnFile(self._spec.staging.begin_attempt(), self._rows, fragment, self._targets(fragment))
        nulls = [no_rows()]
        try:
            for start, stop in self._work.ranges:
                part = computed & RowSet.span(start, stop)
                wanted = part.to_numpy()
                served = self._finder.find_checkpointed(fragment.metadata, wanted)
                # Checkpoints of another job that ended meanwhile are gone: whoever assembles the fragment finds or computes these rows.
                gone = without(wanted, served.offsets)
                found = self._found_again(fragment, gone, start, stop)
                lost = (failed & RowSet.span(start, stop)).to_numpy()
                streams = [
                    *served.streams(self._spec, self._store),
                    *found.streams(self._spec, self._store),
                    self._nulls(lost),
                    self._compute(fragment, without(gone, found.offsets)),
                ]
                nulls.append(self._fill(fragment, file, merge(streams)))
            self._refuse_lost(len(computed) + len(failed) - file.rows)
            failed |= RowSet.of(self._failed())
            written = file.close()
        except BaseException:
            file.discard()
            raise
        rows = self._all_rows(computed - failed, RowSet.of(np.concatenate(nulls)), failed)
        return self._finish(written.staged.name, written.staged.size_bytes, rows)

    def _found_again(self, fragment: LanceFragment, gone: Offsets, start: int, stop: int) -> Served:
        """Finds rows of any range whose checkpoints are gone, as that range would."""
        if len(gone):
            self._look_again(self._finder.missing_files)
        return self._find(fragment, gone, replace(self._work, start=start, stop=stop))

    def _nulls(self, offsets: Offsets) -> Iterator[Chunk]:
        """Yields NULLs for rows that failed."""
        kind: Any = self._udf.data_type
        for first in range(0, len(offsets), _NULL_ROWS):
            part = offsets[first : first + _NULL_ROWS]
            yield part, pa.nulls(len(part), kind)

    def _refuse_lost(self, rows: int) -> None:
        """Ends the range where values that were checkpointed cannot be found again."""
        if rows:
            raise self._lost(f"{rows} checkpointed values of fragment {self._work.fragment_id} are gone")

    def _lost(self, what: str) -> TableUnreadableError:
        hint = "somebody deletes checkpoints or column files beside the job; run the backfill again"
        return TableUnreadableError(self._spec.snapshot.uri, what, hint=hint)

    def _compute(self, fragment: LanceFragment, todo: Offsets) -> Iterator[Chunk]:
        """Calls the UDF for rows, and yields their values; failed rows are NULL."""
        if not len(todo):
            return
        least, most, first = self._spec.sizes
        sizer = AdaptiveSize(minimum=least, maximum=most, initial=first)
        reader = InputReader(
            self._rows,
            fragment,
            self._spec.input_names,
            blob_strategy=self._spec.blob_strategy,
            blob_buffer_bytes=self._spec.blob_buffer_bytes,
            clock=self._clock,
        )
        began = self._clock()
        self._keeper.begin()
        for result in self._runner.run(reader.batches(todo, sizer.next_rows, self._taken)):
            offsets = self._taken.popleft()
            self._done.seconds["read"] += reader.seconds
            self._done.seconds["compute"] += self._clock() - began - reader.seconds
            reader.seconds = 0.0
            sizer.record(len(offsets), result.seconds)
            self._done.retries += result.retries
            self._note_failures(offsets, result.failures)
            failed = [failure.row for failure in result.failures]
            self._valued.append(np.delete(offsets, failed) if failed else offsets)
            self._done.rows += len(offsets) - len(failed)
            self._done.recomputed += int(np.isin(offsets, self._known, assume_unique=True).sum())
            self._keeper.hold(offsets, result.values, failed)
            yield offsets, result.values
            began = self._clock()

    def _note_failures(self, offsets: Offsets, failures: tuple[RowFailure, ...]) -> None:
        for failure in failures:
            offset = int(offsets[failure.row])
            self._done.failed.append(offset)
            self._done.skipped += failure.outcome == "skipped"
            self._done.crashed += failure.outcome == "crashed"
            self._failures.add(failure, offset)
        self._udf.on_error.check_skips(self._done.skipped, self._done.rows + len(self._done.failed), final=False)

    def _timed(self, stage: str, act: Callable[[], _T]) -> _T:
        began = self._clock()
        try:
            return act()
        finally:
            self._done.seconds[stage] += self._clock() - began

    def _outcome(self) -> RangeOutcome:
        done = self._done
        return RangeOutcome(
            fragment_id=self._work.fragment_id,
            start=self._work.start,
            stop=self._work.stop,
            selected=self._selected,
            computed=done.rows,
            reused=self._reused,
            skipped=done.skipped,
            crashed=done.crashed,
            carried=done.carried,
            recomputed=done.recomputed,
            nulled=done.nulled,
            kept=done.kept,
            held=done.held if self._spec.follow else done.rows + self._reused + done.skipped + done.crashed,
            added=done.added,
            again=done.again,
            retries=done.retries,
            seconds=dict(done.seconds),
            source=self._source,
            checkpoints=self._keeper.has_written,
        )
