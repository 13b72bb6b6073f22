"""Error records in a Lance table beside the data: one per row and one per range that failed.

Executors write them, and the driver those of tasks that never answered.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork, RangeOutcome
from lance_spark.jobs.tables import ERRORS, append_rows
from udf_runtime.execute import RowFailure

_LOG = logging.getLogger(__name__)

_FULL_TRACES = 100
"""Failures of one range whose traces are kept; of the others only type and message are."""

_HELD_RECORDS = 10_000
"""Records that are held before they are appended: every row of a large range may fail."""

_TRACE_CHARS = 8192


class ErrorLog:
    """Collects the failures of one range, and appends them to the table of errors.

    Belongs to one task.
    """

    def __init__(self, spec: BackfillSpec, fragment_id: int) -> None:
        self._spec = spec
        self._fragment_id = fragment_id
        self._records: list[dict[str, Any]] = []
        self._count = 0

    def add(self, failure: RowFailure, offset: int) -> None:
        """Adds a row that failed; `offset` is its physical position."""
        self._add(
            offset,
            failure.error_type,
            failure.message,
            failure.trace,
            outcome=failure.outcome,
            attempt=failure.attempt,
            max_attempts=failure.max_attempts,
            bisect_depth=failure.bisect_depth,
        )

    def add_error(self, error: Exception, offset: int | None) -> None:
        """Adds the exception that ended the range; `offset` is its row's, where that is known."""
        self._add(
            offset,
            getattr(error, "error_type", None) or _type_name(error),
            getattr(error, "error_message", None) or str(error),
            getattr(error, "error_trace", None) or "".join(traceback.format_exception(error)),
            outcome="failed",
            attempt=getattr(error, "attempt", 1),
            max_attempts=getattr(error, "max_attempts", 1),
            bisect_depth=0,
        )

    def _add(self, offset: int | None, error_type: str, message: str, trace: str, **more: str | int) -> None:
        kept_trace = trace if self._count < _FULL_TRACES else None
        self._records.append(_record(self._spec, self._fragment_id, offset, error_type, message, kept_trace, **more))
        self._count += 1
        if len(self._records) >= _HELD_RECORDS:
            self.write()

    def write(self) -> None:
        """Appends what was collected.

        That it cannot be written must not fail the rows that were computed.
        """
        records, self._records = self._records, []
        _append(self._spec, records)


def fail_ranges(
    spec: BackfillSpec, ranges: Sequence[FragmentWork], error: Exception, what: str = ""
) -> list[RangeOutcome]:
    """Returns the outcomes of ranges that were not begun, and records the error."""
    record_ranges(
        spec,
        ranges,
        error_type=_type_name(error),
        message=f"{what}{error}",
        trace="".join(traceback.format_exception(error)),
    )
    return [
        RangeOutcome(
            fragment_id=one.fragment_id,
            start=one.start,
            stop=one.stop,
            assembled=one.assembles,
            error=f"{what}{error}",
            error_type=type(error).__qualname__,
        )
        for one in ranges
    ]


def record_ranges(
    spec: BackfillSpec, ranges: Sequence[FragmentWork], *, error_type: str, message: str, trace: str
) -> None:
    """Records an error that ended ranges before one of their rows was computed, once per fragment.

    Runs anywhere.
    """
    fragment_ids = sorted({one.fragment_id for one in ranges})
    _append(
        spec,
        [
            _record(
                spec,
                fragment_id,
                None,
                error_type,
                message,
                trace if number < _FULL_TRACES else None,
                outcome="failed",
                attempt=1,
                max_attempts=1,
                bisect_depth=0,
            )
            for number, fragment_id in enumerate(fragment_ids)
        ],
    )


def _record(
    spec: BackfillSpec,
    fragment_id: int,
    offset: int | None,
    error_type: str,
    message: str,
    trace: str | None,
    **more: str | int,
) -> dict[str, Any]:
    # The same failure of an attempt that is repeated has the same id.
    identity = f"{spec.staging.job_id}:{fragment_id}:{offset}:{error_type}:{more['outcome']}"
    return {
        "error_id": hashlib.sha256(identity.encode()).hexdigest()[:32],
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
        "error_trace": None if trace is None else trace[-_TRACE_CHARS:],
        "timestamp": datetime.now(UTC),
        **more,
    }


def _append(spec: BackfillSpec, records: list[dict[str, Any]]) -> None:
    if not records:
        return
    try:
        append_rows(spec.snapshot, ERRORS, pa.Table.from_pylist(records, schema=ERRORS.schema))
    except OSError as error:
        _LOG.warning("%s error records of %s could not be written: %s", len(records), spec.snapshot.uri, error)


def _type_name(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
