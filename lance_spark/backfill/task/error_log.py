"""Error records in a Lance table next to the data: a record per failed row and per failed range.

Executors write the records, and the driver writes the records of lost tasks.
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
"""Failures of a range with a trace in their record. Other records only have type and message."""

_HELD_RECORDS = 10_000
"""Maximum number of buffered records: every row of a large range may fail."""

_TRACE_CHARS = 8192

_DEFAULTS = {"outcome": "failed", "attempt": 1, "max_attempts": 1, "bisect_depth": 0}


class ErrorLog:
    """Collects failures of rows and fragments for the table of errors."""

    def __init__(self, spec: BackfillSpec, fragment_id: int = -1) -> None:
        self._spec = spec
        self._fragment_id = fragment_id
        self._records: list[dict[str, Any]] = []
        self._count = 0

    def add_failure(self, failure: RowFailure, offset: int) -> None:
        """Adds a failed row. `offset` is its physical position."""
        fields = {name: getattr(failure, name) for name in _DEFAULTS}
        self.add(self._fragment_id, offset, failure.error_type, failure.message, failure.trace, **fields)

    def add_error(self, error: Exception, offset: int | None) -> None:
        """Adds the exception that ended the range. `offset` is its row's position, if known."""
        message = getattr(error, "error_message", None) or str(error)
        trace = getattr(error, "error_trace", None) or "".join(traceback.format_exception(error))
        fields = {name: getattr(error, name, 1) for name in ("attempt", "max_attempts")}
        self.add(self._fragment_id, offset, type_of(error), message, trace, **fields)

    def add(
        self, fragment_id: int, offset: int | None, error_type: str, message: str, trace: str, **more: str | int
    ) -> None:
        """Adds an error. An error without an offset ended the work on a fragment."""
        spec = self._spec
        record = {
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
        # The same failure of another attempt has the same id.
        identity = f"{spec.staging.job_id}:{fragment_id}:{offset}:{error_type}:{record['outcome']}"
        record["error_id"] = hashlib.sha256(identity.encode()).hexdigest()[:32]
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
            _LOG.warning("%s error records of %s could not be written: %s", len(records), table.uri, error)


def fail_ranges(
    spec: BackfillSpec, ranges: Sequence[FragmentWork], error: Exception, what: str = ""
) -> list[RangeOutcome]:
    """Returns the outcomes of ranges after an error at their start, and records the error."""
    trace = "".join(traceback.format_exception(error))
    record_ranges(spec, ranges, error_type=type_of(error), message=f"{what}{error}", trace=trace)
    return [
        RangeOutcome(
            fragment_id=task_range.fragment_id,
            start=task_range.start,
            stop=task_range.stop,
            assembled=task_range.assembles,
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


def type_of(error: Exception) -> str:
    """Returns the qualified name of an error's class, or of the exception class of a UDF."""
    return getattr(error, "error_type", None) or f"{type(error).__module__}.{type(error).__qualname__}"
