"""The job of a driver in the tab "Lance" of Spark's web UI: :class:`JobInWebUi`.

The driver sends the state of the job at its start, with each heartbeat and at its end. The tab
shows rows by their addresses. Filters and messages stay out of the tab, because both may quote
values, and Spark's web UI has no rights per table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.row_errors import RowError
from lance_spark.jvm.gateway import show_job

MOST_ERRORS = 10
_MOST_COLUMNS = 20
_MOST_CHARS = 300

_NUMBERS = (
    *(
        "read_version",
        "rows_selected",
        "rows_computed",
        "rows_from_checkpoint",
        "rows_skipped",
        "rows_failed",
    ),
    *(
        "rows_carried",
        "rows_recomputed",
        "rows_nulled",
        "fragments_total",
        "fragments_done",
        "retries",
    ),
)


class JobInWebUi:
    """The state of a job as the web UI shows the job. Used by any thread of the driver."""

    def __init__(self, uri: str) -> None:
        """Takes the location of the table."""
        self._uri = uri
        self._record: JobRecord | None = None
        self._errors: dict[tuple[int, int | None], RowError] = {}

    def note_errors(self, errors: Iterable[RowError]) -> None:
        """Adds errors for the next :meth:`show` or :meth:`update`. The first few errors stay."""
        for error in errors:
            if len(self._errors) < MOST_ERRORS:
                self._errors.setdefault((error.fragment_id, error.row_address), error)

    def show(self, record: JobRecord) -> None:
        """Shows the start or the end of the job."""
        self._record = record
        show_job(self._describe(record))

    def update(self, counts: Mapping[str, float]) -> None:
        """Shows the present counts of the job, by their names in a record."""
        if self._record is not None:
            show_job(self._describe(self._record.with_progress(counts, datetime.now(UTC))))

    def _describe(self, record: JobRecord) -> dict[str, object]:
        """Returns the fields of LanceJob.java."""
        more = len(record.columns) - _MOST_COLUMNS
        columns = [
            *map(_clip, record.columns[:_MOST_COLUMNS]),
            *([f"{more:,} more"] if more > 0 else []),
        ]
        return {
            **{name: getattr(record, name) for name in _NUMBERS},
            **{
                name: _clip(getattr(record, name))
                for name in ("job_id", "job_type", "status", "udf_name")
            },
            "table": _clip(self._uri.rstrip("/").rpartition("/")[2].removesuffix(".lance")),
            "table_uri": _clip(self._uri),
            "columns": columns,
            "launched_at": _milliseconds(record.launched_at),
            "updated_at": _milliseconds(record.updated_at),
            "completed_at": 0
            if record.completed_at is None
            else _milliseconds(record.completed_at),
            "commits": len(record.versions),
            "last_version": record.versions[-1] if record.versions else 0,
            "errors": [_describe_error(error) for error in list(self._errors.values())],
        }


def _describe_error(error: RowError) -> dict[str, object]:
    return {
        "fragment_id": error.fragment_id,
        "row_address": -1 if error.row_address is None else error.row_address,
        "table_version": error.table_version,
        "outcome": _clip(error.outcome),
        "error_type": _clip(error.error_type),
    }


def _clip(text: str) -> str:
    """Returns the start of a text, without halves of code points, which event logs cannot hold."""
    return text[:_MOST_CHARS].encode("utf-8", "replace").decode()


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
