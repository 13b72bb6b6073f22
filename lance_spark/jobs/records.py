"""Records of jobs in the history of a table: :class:`JobRecord`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, get_args

from lance_spark.display import Displayable
from lance_spark.jobs.results import BackfillJobResult, Status, join_row_counts
from lance_spark.staging.area import is_id
from lance_spark.staging.processes import DriverProcess
from lance_spark.stored_json import Kinds, check_fields, load_object


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobRecord(Displayable):
    """A job in the history of a table.

    Attributes:
        job_id: Id of the job.
        job_type: `backfill`, `load_columns`, `refresh`, `alter_columns` (a cast of a large column),
            `compact_files` or `optimize_indices`; the last two fill no column.
        status: Status of the job; DEAD if its driver is gone.
        columns: Columns filled by the job.
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        input_columns: The UDF's inputs.
        key: Digest of the values' dependencies.
        where: The filter.
        read_version: Version read by the job.
        staging_id: Id of the job's files.
        launched_at: Start of the job.
        updated_at: Time of this record.
        completed_at: End of the job, or None.
        launched_by: User and machine.
        process: The driver's process, as JSON.
        rows_selected: Rows selected for a value; for a running or dead job an upper bound.
        rows_computed: Rows for which the UDF was called. The counts of a running job are at most
            some seconds old.
        rows_from_checkpoint: Rows with a value from an earlier run.
        rows_skipped: Rows skipped by a policy.
        rows_failed: Rows without a value.
        fragments_total: Fragments with work.
        fragments_done: Finished fragments.
        versions: Committed versions.
        retries: Retried calls and commits.
        seconds: Time per stage.
        message: Reason of a bad end, or None.
        rows_deduplicated: Saved calls: rows that share a call with equal inputs.
        batch_rows: Maximum rows of a call, after a call ran out of memory; None before.
        rows_remaining: Rows that a further run computes, at most, after an early end.
        cost: Cost of the rows for the UDF, by its setting `cost`.
        rows_carried: Rows whose value followed the row through a concurrent commit.
        rows_recomputed: Rows computed again, because a concurrent commit changed their inputs.
        rows_nulled: Rows left NULL for the same reason.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        books.backfill("double")
        for job in books.list_jobs():
            print(job.job_type, job.status, job.columns, job.rows_computed)
        ```
    """

    job_id: str
    job_type: str = "backfill"
    status: Status
    columns: tuple[str, ...]
    udf_name: str
    udf_version: str
    input_columns: tuple[str, ...] = ()
    key: str
    where: str | None
    read_version: int
    staging_id: str
    launched_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None
    launched_by: str
    process: str
    rows_selected: int = 0
    rows_computed: int = 0
    rows_from_checkpoint: int = 0
    rows_skipped: int = 0
    rows_failed: int = 0
    fragments_total: int = 0
    fragments_done: int = 0
    versions: tuple[int, ...] = ()
    retries: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    message: str | None = None
    rows_deduplicated: int = 0
    batch_rows: int | None = None
    rows_remaining: int = 0
    cost: float = 0.0
    rows_carried: int = 0
    rows_recomputed: int = 0
    rows_nulled: int = 0

    @property
    def text(self) -> str:
        """Summary of the job and its status."""
        of = f" of {', '.join(self.columns)}" if self.columns else ""
        why = "" if self.message is None else f". {self.message}"
        return (
            f"{self.job_type}{of} {self.status}: {join_row_counts(self)} (job {self.job_id}){why}"
        )

    @staticmethod
    def of(result: BackfillJobResult, **more: Any) -> JobRecord:  # noqa: ANN401 - fields that a result lacks
        """Returns the record of a job with a result."""
        udf = next(iter(result.columns.values()))
        names = JobRecord.__dataclass_fields__.keys()
        same = {
            name: getattr(source, name)
            for source in (udf, result)
            for name in names
            if hasattr(source, name)
        }
        return JobRecord(**{**same, "columns": tuple(result.columns), **more})

    def to_row(self) -> dict[str, Any]:
        """Returns the row of the history's table."""
        values = {name: getattr(self, name) for name in JobRecord.__dataclass_fields__}
        return {
            **values,
            "columns": list(self.columns),
            "input_columns": list(self.input_columns),
            "versions": list(self.versions),
            "seconds": json.dumps(dict(self.seconds)),
        }

    def with_progress(self, counts: Mapping[str, Any], moment: datetime) -> JobRecord:
        """Returns the record of a running job with the counts of a heartbeat.

        Raises:
            ValueError: A count is damaged or forged.
        """
        present = {name: counts[name] for name in _PROGRESS if name in counts}
        check_fields(present, {name: (int, float) if name == "cost" else int for name in present})
        for name, count in present.items():
            _check_numbers(name, [count])
        return replace(self, updated_at=moment, **present)

    @property
    def driver(self) -> DriverProcess:
        """The process that runs the job, or ran the job."""
        return DriverProcess.from_json(self.process)

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> JobRecord:
        """Returns the record of a row of the history's table.

        Raises:
            ValueError: The row is damaged or forged.
        """
        check_fields(row, _JOB_KINDS)
        values = {name: row[name] for name in JobRecord.__dataclass_fields__}
        for name in ("columns", "input_columns", "versions"):
            values[name] = tuple(values[name] or ())
        values["seconds"] = load_object(values["seconds"] or "{}")
        for name in _ADDED_COUNTS:
            values[name] = values[name] or 0
        _check_job(values)
        return JobRecord(**values)


def progress_of(result: object) -> dict[str, float]:
    """Returns the counts of a running job for its heartbeats."""
    return {name: getattr(result, name) for name in _PROGRESS if hasattr(result, name)}


_TEXTS = (
    "job_id",
    "job_type",
    "status",
    "udf_name",
    "udf_version",
    "key",
    "staging_id",
    "launched_by",
    "process",
)
_COUNTS = (
    "rows_selected",
    "rows_computed",
    "rows_from_checkpoint",
    "rows_skipped",
    "rows_failed",
    "retries",
)
_ADDED_COUNTS = (
    "rows_deduplicated",
    "rows_remaining",
    "cost",
    "rows_carried",
    "rows_recomputed",
    "rows_nulled",
)
"""Counts that the history of an earlier release may lack."""

_PROGRESS = (
    *(
        "rows_computed",
        "rows_from_checkpoint",
        "rows_skipped",
        "rows_failed",
        "rows_carried",
        "rows_recomputed",
    ),
    *("fragments_done", "retries", "cost"),
)
"""Counts of a record that the heartbeats of a running job renew."""

_NUMBERS = (
    *_COUNTS,
    *_ADDED_COUNTS,
    "read_version",
    "fragments_total",
    "fragments_done",
    "batch_rows",
)
_NUMBERS_END = 1 << 63

_JOB_KINDS: Kinds = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys((*_COUNTS, "read_version", "fragments_total", "fragments_done"), int),
    **dict.fromkeys(("columns", "input_columns", "versions"), (list, type(None))),
    **dict.fromkeys(("launched_at", "updated_at"), datetime),
    "completed_at": (datetime, type(None)),
    **dict.fromkeys(
        ("batch_rows", *(name for name in _ADDED_COUNTS if name != "cost")), (int, type(None))
    ),
    "cost": (float, type(None)),
    **dict.fromkeys(("where", "message", "seconds"), (str, type(None))),
}


def _check_job(values: Mapping[str, Any]) -> None:
    """Checks values of a job beyond their types.

    Raises:
        ValueError: A value is not valid for a job.
    """
    if values["status"] not in get_args(Status):
        raise ValueError(f"{values['status']!r} is no status of a job")
    if not is_id(values["staging_id"]):
        raise ValueError(f"{values['staging_id']!r} is no id of files")
    if None in (*values["columns"], *values["input_columns"], *values["versions"]):
        raise ValueError("a list holds NULL")
    if not all(isinstance(seconds, int | float) for seconds in values["seconds"].values()):
        raise ValueError("the field 'seconds' holds something other than numbers")
    for name in _NUMBERS:
        _check_numbers(name, [values[name]])
    # A stage as the difference of two clocks may be a trifle below 0.
    _check_numbers(
        "seconds", [values["seconds"].get("total"), *map(abs, values["seconds"].values())]
    )
    _check_numbers("versions", values["versions"])
    DriverProcess.from_json(values["process"])


def _check_numbers(name: str, numbers: Iterable[float | None]) -> None:
    """Checks that numbers of a field are 0 or more, and small enough for sums as floats.

    Raises:
        ValueError: A number is negative, too large, or no number (NaN).
    """
    if not all(number is None or 0 <= number < _NUMBERS_END for number in numbers):
        raise ValueError(
            f"the field {name!r} holds a number below 0, or above all counts and times"
        )
