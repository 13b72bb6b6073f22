"""Calls of the UDF for rows of one fragment: reads inputs, keeps results, and logs failures."""

from __future__ import annotations

import functools
import hashlib
import logging
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from lance_spark.backfill.task.allowance import Allowance
from lance_spark.backfill.task.messages import STAGES, BackfillSpec, FragmentWork, RangeOutcome
from lance_spark.backfill.task.overlap import Writes
from lance_spark.errors import ValueConversionError
from lance_spark.jobs.row_errors import RowError
from lance_spark.jobs.tables import ERRORS, append_rows
from lance_spark.rows.merge import Chunk, Offsets
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.attempt import LateAttemptError
from udf_runtime import UDF
from udf_runtime.checkpoint import CheckpointStore
from udf_runtime.errors import ServiceUnavailableError
from udf_runtime.execute import BatchResult, RowFailure, UdfRunner
from udf_runtime.policies import ErrorPolicy

_LOG = logging.getLogger(__name__)

PREFETCH_BATCHES = 2
"""Batches read ahead of the calls by default."""

FLUSH_BYTES = 32 << 20
"""Maximum bytes of computed values without a checkpoint. The encoding takes about six times as much
memory: the batches, the values as an array, compressed buffers, the stream, and the payload."""


class CheckpointBuffer:
    """Buffers computed values of a range until the next checkpoint. Belongs to one task."""

    def __init__(
        self,
        spec: BackfillSpec,
        store: CheckpointStore,
        source: str,
        *,
        rows: tuple[int, int | None] = (1, None),
        writes: Writes | None = None,
    ) -> None:
        """Takes the minimum rows of a checkpoint at an interval, and the maximum, if any.

        With `writes`, another thread writes the checkpoints.
        """
        self.seconds = 0.0  # spent on writing
        self._writes = writes
        self._spec = spec
        self._store = store
        self._source = source
        self._held: list[Chunk] = []
        self._held_bytes = 0
        self._held_rows = 0
        self._has_flushed = False
        self._least, self._most = rows
        self._last_flush = time.perf_counter()

    def begin(self) -> None:
        """Restarts the interval."""
        self._last_flush = time.perf_counter()

    def hold(self, offsets: Offsets, values: pa.Array[Any], failed: list[int]) -> None:
        """Adds the values of a batch without its failed rows, given by position."""
        if failed:
            is_valid = np.ones(len(offsets), dtype=np.bool_)
            is_valid[failed] = False
            offsets, values = offsets[is_valid], values.filter(pa.array(is_valid))
        while True:
            room = len(offsets) if self._most is None else self._most - self._held_rows
            if len(offsets):
                part = values.slice(0, room)
                self._held.append((offsets[:room], part))
                self._held_bytes += part.nbytes
                self._held_rows += len(part)
            if self._is_full or (self._is_time and self._held_rows >= self._least):
                self.flush()
                if not self._spec.flush_s:
                    self.join()  # an interval of 0 persists every batch before the next call
            if len(offsets) <= room:
                return
            offsets, values = offsets[room:], values.slice(room)

    @property
    def _is_full(self) -> bool:
        has_most = self._most is not None and self._held_rows >= self._most
        return has_most or self._held_bytes >= FLUSH_BYTES

    @property
    def _is_time(self) -> bool:
        return time.perf_counter() - self._last_flush >= self._spec.flush_s

    def flush(self) -> None:
        """Writes the buffered values into a checkpoint, or raises the error of an earlier write."""
        parts, held_bytes = self._held, self._held_bytes
        self._has_flushed |= bool(parts)
        self._held, self._held_bytes, self._held_rows = [], 0, 0
        if parts and self._writes is not None:
            self._writes.submit(functools.partial(self._write, parts), held_bytes)
        elif parts:
            self._write(parts)
        self._last_flush = time.perf_counter()

    def take(self) -> list[Chunk] | None:
        """Removes and returns all values of the range; None if a checkpoint has some of them."""
        if self._has_flushed:
            return None
        chunks, self._held, self._held_bytes, self._held_rows = self._held, [], 0, 0
        return chunks

    def store(self, chunks: list[Chunk]) -> None:
        """Writes values into a checkpoint at once."""
        self._write(chunks)

    def join(self) -> None:
        """Waits for the checkpoints of all flushes."""
        if self._writes is not None:
            self._writes.join()

    def _write(self, parts: list[Chunk]) -> None:
        began = time.perf_counter()
        offsets = pa.array(np.concatenate([part[0] for part in parts]))
        values = pa.concat_arrays([part[1] for part in parts])
        parts.clear()
        self._store.write(
            self._spec.key, self._source, job_id=self._spec.job_id, offsets=offsets, values=values
        )
        self.seconds += time.perf_counter() - began


_FULL_TRACES = 100
"""Failures of a range with a trace in their record. Other records only have type and message."""

_HELD_RECORDS = 10_000
"""Maximum number of buffered records: every row of a large range may fail."""

_TRACE_CHARS = 8192

_DEFAULTS = {"outcome": "failed", "attempt": 1, "max_attempts": 1, "bisect_depth": 0}


_MOST_FIRST = 3
"""Number of errors in the answer of a range."""

_MOST_WRITTEN_IDS = 10_000
"""Number of written records without a row after which a process forgets them."""

_written_ids: set[str] = set()
"""Ids of written records without a row. A fragment has such a record for each range."""


class ErrorLog:
    """Collects failures of rows and fragments for the table of errors.

    A process writes a record without a row once. Each write is a commit, and all ranges of a
    damaged fragment fail with the same error.

    Attributes:
        first: The first errors, for the answer of the task.
    """

    def __init__(self, spec: BackfillSpec, fragment_id: int = -1) -> None:
        self.first: list[RowError] = []
        self._spec = spec
        self._fragment_id = fragment_id
        self._records: list[dict[str, Any]] = []
        self._count = 0

    def add_failure(self, failure: RowFailure, offset: int) -> None:
        """Adds a failed row. `offset` is its physical position."""
        fields = {name: getattr(failure, name) for name in _DEFAULTS}
        self.add(
            self._fragment_id, offset, failure.error_type, failure.message, failure.trace, **fields
        )

    def add_error(self, error: Exception, offset: int | None) -> None:
        """Adds the exception that ended the range. `offset` is its row's position, if known."""
        if _is_late(error):
            return
        message = getattr(error, "error_message", None) or str(error)
        trace = getattr(error, "error_trace", None) or "".join(traceback.format_exception(error))
        fields = {name: getattr(error, name, 1) for name in ("attempt", "max_attempts")}
        self.add(self._fragment_id, offset, type_of(error), message, trace, **fields)

    def add(
        self,
        fragment_id: int,
        offset: int | None,
        error_type: str,
        message: str,
        trace: str,
        **more: str | int,
    ) -> None:
        """Adds an error. An error without an offset ended the work on a fragment."""
        spec = self._spec
        record: dict[str, Any] = {
            "job_id": spec.job_id,
            "table_uri": spec.snapshot.uri,
            "table_version": spec.snapshot.version,
            "columns": [column for _, column in spec.outputs],
            "udf_name": spec.key.udf_name,
            "udf_version": spec.key.udf_version,
            "input_columns": list(spec.input_names),
            "fragment_id": fragment_id,
            "row_address": None if offset is None else fragment_id << 32 | offset,
            "error_type": error_type,
            "error_message": message[:_TRACE_CHARS],
            "error_trace": trace[-_TRACE_CHARS:] if self._count < _FULL_TRACES else None,
            "timestamp": datetime.now(UTC),
            **_DEFAULTS,
            **more,
        }
        if len(self.first) < _MOST_FIRST:
            first = {field: record[field] for field in RowError.__dataclass_fields__}
            self.first.append(RowError(**first))
        # The same failure of another attempt has the same id.
        identity = f"{spec.staging.job_id}:{fragment_id}:{offset}:{error_type}:{record['outcome']}"
        record["error_id"] = hashlib.sha256(identity.encode()).hexdigest()[:32]
        if offset is None and record["error_id"] in _written_ids:
            return
        self._records.append(record)
        self._count += 1
        if len(self._records) >= _HELD_RECORDS:
            self.write()

    def write(self) -> None:
        """Appends the buffered records. A failure of the store only logs a warning."""
        records, self._records = self._records, []
        table = self._spec.home
        try:
            if records:
                append_rows(table, ERRORS, pa.Table.from_pylist(records, schema=ERRORS.schema))
        except OSError as error:
            _LOG.warning(
                "%s error records of %s could not be written: %s", len(records), table.uri, error
            )
        else:
            if len(_written_ids) > _MOST_WRITTEN_IDS:
                _written_ids.clear()
            _written_ids.update(
                record["error_id"] for record in records if record["row_address"] is None
            )


def fail_ranges(
    spec: BackfillSpec, ranges: Sequence[FragmentWork], error: Exception, what: str = ""
) -> list[RangeOutcome]:
    """Returns the outcomes of ranges after an error at their start, and records the error."""
    if not _is_late(error):
        trace = "".join(traceback.format_exception(error))
        record_ranges(
            spec, ranges, error_type=type_of(error), message=f"{what}{error}", trace=trace
        )
    return [
        RangeOutcome(
            fragment_id=task_range.fragment_id,
            start=task_range.start,
            stop=task_range.stop,
            assembled=task_range.assembles,
            turn=task_range.turn,
            error=f"{what}{error}",
            error_type=type_of(error),
        )
        for task_range in ranges
    ]


def record_ranges(
    spec: BackfillSpec, ranges: Sequence[FragmentWork], *, error_type: str, message: str, trace: str
) -> None:
    """Records an error at the start of ranges, once per fragment."""
    log = ErrorLog(spec)
    for fragment_id in sorted({task_range.fragment_id for task_range in ranges}):
        log.add(fragment_id, None, error_type, message, trace)
    log.write()


def _is_late(error: Exception) -> bool:
    """Tells whether an attempt has outlived its job, like a speculative copy.

    The job has its result already, so the end of the attempt is no error of the job.
    """
    return isinstance(error, LateAttemptError)


def type_of(error: Exception) -> str:
    """Returns the qualified name of an error's class, or of the exception class of a UDF."""
    return (
        getattr(error, "error_type", None) or f"{type(error).__module__}.{type(error).__qualname__}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfCalls:
    """The runner of a UDF, and the settings of its calls in a task.

    Attributes:
        policy: The UDF's policy for errors.
        allowance: The allowance of the task.
        spans: Whether a batch may have rows of several fragments.
        prefetch_batches: Maximum number of batches read ahead of the calls.
        is_retry: Whether an earlier attempt of the task died.
    """

    runner: UdfRunner
    policy: ErrorPolicy
    allowance: Allowance
    spans: bool
    prefetch_batches: int
    is_retry: bool = False

    @staticmethod
    def of(udf: UDF, runner: UdfRunner, allowance: Allowance, *, is_retry: bool) -> UdfCalls:
        """Returns the calls of a UDF by a runner."""
        return UdfCalls(
            runner=runner,
            policy=udf.on_error,
            allowance=allowance,
            spans=udf.kind.vectorised or udf.signature.is_async,
            prefetch_batches=udf.prefetch_batches or PREFETCH_BATCHES,
            is_retry=is_retry,
        )


class Computation:
    """The calls of the UDF for a range. Belongs to one task.

    Attributes:
        calls: Number of rows with a returned call.
        deduplicated: Number of rows without a call, because the UDF was called for equal inputs.
        valued: Rows with a returned call.
        failed: Rows with a failed call.
        recomputed: Number of rows that an earlier round had computed, too.
        crashed: Number of rows that killed their process.
        batch_rows: Maximum rows of a call, after a call ran out of memory; None before.
        failed_offset: The row whose error ended the range, if known.
        service_error: The error of a given-up service; the rows of its calls have no value.
        seconds: Time per stage.
    """

    def __init__(
        self, spec: BackfillSpec, work: FragmentWork, checkpoints: CheckpointBuffer
    ) -> None:
        self.errors = ErrorLog(spec, work.fragment_id)
        self.calls = 0
        self.deduplicated = 0
        self.valued = RowSet.empty()
        self.failed = work.failed
        self.recomputed = 0
        self.retries = 0
        self.skipped = 0
        self.crashed = 0
        self.batch_rows: int | None = None
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.failed_offset: int | None = None
        self.service_error: ServiceUnavailableError | None = None
        self._udf_name = spec.key.udf_name
        self._checkpoints = checkpoints
        self._has_begun = False

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of a block to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - began

    def begin(self) -> None:
        """Begins the interval between checkpoints with the first batch of the range."""
        if not self._has_begun:
            self._has_begun = True
            self._checkpoints.begin()

    def add_time(self, seconds: float, *, load_s: float, limit_s: float) -> None:
        """Adds the time of a batch's calls, with the parts for loads and for limits of a service.

        Loads and waits of several threads at once count as far as they fit into the time.
        """
        load_s = min(load_s, seconds)
        limit_s = min(limit_s, seconds - load_s)
        self.seconds["load"] += load_s
        self.seconds["limit"] += limit_s
        self.seconds["compute"] += seconds - load_s - limit_s

    def add_calls(self, result: BatchResult) -> None:
        """Adds the facts of a batch's calls. A batch of several ranges counts in the first."""
        self.retries += result.retries
        self.deduplicated += result.deduplicated
        self.batch_rows = (
            result.batch_rows or self.batch_rows
        )  # a batch without a call has no number

    def add(
        self,
        policy: ErrorPolicy,
        chunk: Chunk,
        failures: Sequence[tuple[RowFailure, int]],
        own: RowSet,
    ) -> None:
        """Adds the values of a batch. Failed rows, given with their positions, are NULL.

        Rows of `own`, the rows of earlier rounds, count as recomputed.

        Raises:
            SkipThresholdExceededError: The policy allows fewer failed rows.
            OSError: An earlier checkpoint could not be written.
        """
        offsets, values = chunk
        failed = [position for _, position in failures]
        computed = RowSet.of(np.delete(offsets, failed) if failed else offsets)
        self.valued |= computed
        self.calls += len(computed)
        self.recomputed += len(computed & own)
        self._note_failures(policy, offsets, failures)
        self._checkpoints.hold(offsets, values, failed)

    def end_with(self, error: Exception) -> int | None:
        """Keeps the values from before an error, logs the error, and returns its row, if known."""
        try:
            self._checkpoints.flush()
            self._checkpoints.join()
        except Exception:  # noqa: BLE001 - a failed write of the range must not end the task
            _LOG.exception("what was computed before the error is lost")
        offset = (
            getattr(error, "row", None)
            if isinstance(error, ValueConversionError)
            else self.failed_offset
        )
        self.errors.add_error(error, offset)
        self.errors.write()
        return offset

    def _note_failures(
        self, policy: ErrorPolicy, offsets: Offsets, without_value: Sequence[tuple[RowFailure, int]]
    ) -> None:
        failures = [entry for entry in without_value if entry[0].outcome != "unavailable"]
        if len(failures) < len(without_value):
            reason = next(
                failure.message for failure, _ in without_value if failure.outcome == "unavailable"
            )
            self.service_error = ServiceUnavailableError(udf=self._udf_name, reason=reason)
        for failure, position in failures:
            self.skipped += failure.outcome == "skipped"
            self.crashed += failure.outcome == "crashed"
            self.errors.add_failure(failure, int(offsets[position]))
        if failures:
            self.failed |= RowSet.of(offsets[[position for _, position in failures]])
        policy.check_skips(self.skipped, self.calls + len(self.failed), final=False)
