"""Error records: one per row that failed, and one per range that did, in a Lance table beside the data. Written on executors."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
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


class FailureLog:
    """Collects the failures of one range, and appends them to the table of errors. Belongs to one task."""

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
        """Adds the exception that ended the range; `offset` is the row's that raised it, where that is known."""
        self._add(
            offset,
            getattr(error, "error_type", None) or f"{type(error).__module__}.{type(error).__qualname__}",
            getattr(error, "error_message", None) or str(error),
            getattr(error, "error_trace", None) or "".join(traceback.format_exception(error)),
            outcome="failed",
            attempt=getattr(error, "attempt", 1),
            max_attempts=getattr(error, "max_attempts", 1),
            bisect_depth=0,
        )

    def _add(self, offset: int | None, error_type: str, message: str, trace: str, **more: str | int) -> None:
        spec = self._spec
        address = None if offset is None else self._fragment_id << 32 | offset
        # The same failure of an attempt that is repeated has the same id.
        identity = f"{spec.staging.job_id}:{self._fragment_id}:{offset}:{error_type}:{more['outcome']}"
        self._records.append(
            {
                "error_id": hashlib.sha256(identity.encode()).hexdigest()[:32],
                "job_id": spec.job_id,
                "table_uri": spec.snapshot.uri,
                "table_version": spec.snapshot.version,
                "columns": [column for _, column in spec.outputs],
                "udf_name": spec.key.udf_name,
                "udf_version": spec.key.udf_version,
                "input_columns": list(spec.input_names),
                "fragment_id": self._fragment_id,
                "row_address": address,
                "error_type": error_type,
                "error_message": message[:_TRACE_CHARS],
                "error_trace": trace[-_TRACE_CHARS:] if self._count < _FULL_TRACES else None,
                "timestamp": datetime.now(UTC),
                **more,
            }
        )
        self._count += 1
        if len(self._records) >= _HELD_RECORDS:
            self.write()

    def write(self) -> None:
        """Appends what was collected. That it cannot be written must not fail the rows that were computed."""
        records, self._records = self._records, []
        if not records:
            return
        try:
            append_rows(
                self._spec.snapshot, ERRORS, pa.Table.from_pylist(records, schema=ERRORS.schema), retry_s=_patience()
            )
        except OSError as error:
            _LOG.warning(
                "%s error records of %s could not be written: %s", len(records), self._spec.snapshot.uri, error
            )


def _patience() -> float:
    """Returns until when an append is tried again, by the monotonic clock."""
    return time.monotonic() + 60


def failed_at_once(work: FragmentWork, error: Exception, what: str = "") -> RangeOutcome:
    """Returns the outcome of a range that was not begun."""
    return RangeOutcome(
        fragment_id=work.fragment_id,
        start=work.start,
        stop=work.stop,
        error=f"{what}{error}",
        error_type=type(error).__qualname__,
    )
