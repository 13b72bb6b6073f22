"""Calls of the UDF for rows of one fragment: reads inputs, keeps results, and logs failures."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lance_spark.backfill.task.checkpoint_buffer import CheckpointBuffer
from lance_spark.backfill.task.error_log import ErrorLog
from lance_spark.backfill.task.messages import STAGES, BackfillSpec, FragmentWork
from lance_spark.errors import ValueConversionError
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.merge import Chunk, Offsets
from lance_spark.rows.row_set import RowSet
from udf_runtime.execute import RowFailure, UdfRunner
from udf_runtime.policies import AdaptiveSize, ErrorPolicy

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfCalls:
    """The runner of a UDF, and the UDF's policy for errors."""

    runner: UdfRunner
    policy: ErrorPolicy


class Computation:
    """The calls of the UDF for a range. Belongs to one task.

    Attributes:
        calls: Number of rows with a returned call.
        valued: Rows with a returned call.
        failed: Rows with a failed call.
        recomputed: Number of rows that an earlier round had computed, too.
        crashed: Number of rows that killed their process.
        seconds: Time per stage.
    """

    def __init__(self, spec: BackfillSpec, work: FragmentWork, checkpoints: CheckpointBuffer) -> None:
        self.errors = ErrorLog(spec, work.fragment_id)
        self.calls = 0
        self.valued = RowSet.empty()
        self.failed = work.failed
        self.recomputed = 0
        self.retries = 0
        self.skipped = 0
        self.crashed = 0
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._sizes = spec.sizes
        self._checkpoints = checkpoints
        self._taken: deque[Offsets] = deque()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of a block to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - began

    def compute(self, calls: UdfCalls, reader: InputReader, todo: RowSet, own: RowSet) -> Iterator[Chunk]:
        """Calls the UDF for the rows `todo`, and yields their values. Failed rows are NULL.

        Rows of `own`, the rows of earlier rounds, count as recomputed.
        """
        least, most, first = self._sizes
        sizer = AdaptiveSize(minimum=least, maximum=most, initial=first)
        self._taken.clear()
        began = time.perf_counter()
        self._checkpoints.begin()
        for result in calls.runner.run(reader.batches(todo.to_numpy(), sizer.next_rows, self._taken)):
            offsets = self._taken.popleft()
            self.seconds["read"] += reader.seconds
            self.seconds["compute"] += time.perf_counter() - began - reader.seconds
            reader.seconds = 0.0
            sizer.record(len(offsets), result.seconds)
            self.retries += result.retries
            failed = [failure.row for failure in result.failures]
            computed = RowSet.of(np.delete(offsets, failed) if failed else offsets)
            self.valued |= computed
            self.calls += len(computed)
            self.recomputed += len(computed & own)
            self._note_failures(calls.policy, offsets, result.failures)
            self._checkpoints.hold(offsets, result.values, failed)
            yield offsets, result.values
            began = time.perf_counter()

    def end_with(self, error: Exception) -> int | None:
        """Keeps the values from before an error, logs the error, and returns its row, if known."""
        try:
            self._checkpoints.flush()
        except OSError:
            _LOG.exception("what was computed before the error is lost")
        row, offset = getattr(error, "row", None), None
        if isinstance(error, ValueConversionError):
            offset = row
        elif row is not None and self._taken and row < len(self._taken[0]):
            # Results come in the order of the batches. The first batch without a result failed.
            offset = int(self._taken[0][row])
        self.errors.add_error(error, offset)
        self.errors.write()
        return offset

    def _note_failures(self, policy: ErrorPolicy, offsets: Offsets, failures: tuple[RowFailure, ...]) -> None:
        for failure in failures:
            self.skipped += failure.outcome == "skipped"
            self.crashed += failure.outcome == "crashed"
            self.errors.add_failure(failure, int(offsets[failure.row]))
        if failures:
            self.failed |= RowSet.of(offsets[[failure.row for failure in failures]])
        policy.check_skips(self.skipped, self.calls + len(self.failed), final=False)
