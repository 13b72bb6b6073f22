"""Outcomes of jobs, as values: results, records of the history, error records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

from lance_spark.display import Displayable, join_counts
from lance_spark.staging.area import is_id
from lance_spark.stored_json import Kinds, check_fields, load_object

Status = Literal["PENDING", "RUNNING", "DONE", "PARTIAL", "FAILED", "CANCELLED", "DEAD"]
"""DONE: every selected row has a value or was skipped by policy. PARTIAL: some fragments are
committed, others failed, or the job ended early, at its budget or without its service. FAILED: no
missing value could be committed. CANCELLED: ended by the user; complete fragments are committed.
DEAD: the driver is gone."""

ENDED: frozenset[Status] = frozenset({"DONE", "PARTIAL", "FAILED", "CANCELLED", "DEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfResult:
    """Outcome of a job for a column.

    Attributes:
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        rows_processed: Rows with a new value, computed or from a checkpoint.
        rows_skipped: Rows skipped by a policy.
        input_columns: The UDF's inputs.

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
        result = books.backfill("double")
        print(result.columns["double"].rows_processed)  # 10
        ```
    """

    udf_name: str
    udf_version: str
    rows_processed: int
    rows_skipped: int
    input_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BackfillJobResult(Displayable):
    """Outcome of a backfill.

    Attributes:
        job_id: Id of the job.
        status: Final status, or RUNNING.
        table_name: Name of the table.
        table_uri: Location of the table.
        launched_at: Start of the job.
        completed_at: End of the job; None while the job runs.
        columns: Outcome for each column.
        where: The user's filter.
        read_version: Version read by the job.
        versions: Committed versions.
        rows_selected: Rows selected for a value.
        rows_computed: Rows for which the UDF returned.
        rows_from_checkpoint: Rows with a value from an earlier run.
        rows_skipped: Rows skipped by a policy.
        rows_failed: Rows that neither have a value nor were skipped, if their number is known.
        rows_carried: Rows whose value was carried over in rounds after the first, because a
            concurrent commit had moved the rows or changed their fragment.
        rows_recomputed: Subset of `rows_computed` whose inputs a concurrent commit had changed.
            These rows were computed again in rounds after the first.
        rows_nulled: Rows left NULL because a concurrent commit changed their inputs; only with
            `on_stale="null"`.
        rows_stale: Rows with an out-of-date value that the job did not select, at the last version
            examined by the job. Either their inputs changed after the value was written, or another
            version of the UDF computed the value. `stale=True` selects these rows.
        rows_unverified: Part of `rows_stale` that may be up to date. Either a cleanup removed the
            history, or the table has no stable row ids and an update moved the rows.
        rows_gone: Rows by which the table has shrunk since the read version, without counting added
            rows.
        new_rows: Rows added since the read version, as far as known; these rows have no value yet.
        fragments_total: Fragments with work.
        fragments_done: Fragments with a commit, or without work.
        fragments_failed: Reasons of failed fragments, by fragment.
        rows_remaining: Rows that a further run computes, at most, after an early end.
        cost: Cost of the rows for the UDF, by its setting `cost`; 0 without the setting.
        message: Reason of an early end or a failure, or the earlier commit of the transaction.
            None for a complete job.
        retries: Retried UDF calls and commits.
        rows_deduplicated: Saved calls: rows without a call of their own, because a UDF with
            `deduplicate=True` was called for equal inputs.
        batch_rows: Maximum rows of a call of a UDF over batches, after a call ran out of memory,
            over all processes the smallest number. None: no call ran out of memory.
        seconds: Time per stage. The stages of tasks are sums over tasks. Either the task loads the
            UDF (load), waits for inputs (wait), calls the UDF (compute), or waits for the limits of
            a service (limit). Concurrently, other threads of the task read inputs (read), and write
            checkpoints (checkpoint) and column files (write). The stages commit and total are the
            driver's.

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
        result = books.backfill("double")
        print(result.status, result.rows_computed, result.rows_carried)  # DONE 10 0
        ```
    """

    job_id: str
    status: Status
    table_name: str
    table_uri: str
    launched_at: datetime
    completed_at: datetime | None = None
    columns: Mapping[str, UdfResult] = field(default_factory=dict)
    where: str | None = None
    read_version: int | None = None
    versions: tuple[int, ...] = ()
    rows_selected: int = 0
    rows_computed: int = 0
    rows_from_checkpoint: int = 0
    rows_skipped: int = 0
    rows_failed: int = 0
    rows_carried: int = 0
    rows_recomputed: int = 0
    rows_nulled: int = 0
    rows_stale: int = 0
    rows_unverified: int = 0
    rows_gone: int = 0
    new_rows: int = 0
    fragments_total: int = 0
    fragments_done: int = 0
    fragments_failed: Mapping[int, str] = field(default_factory=dict)
    rows_remaining: int = 0
    cost: float = 0.0
    message: str | None = None
    retries: int = 0
    rows_deduplicated: int = 0
    batch_rows: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Summary of the outcome: `DONE: 297 computed, 3 skipped, version 12`."""
        rest = f", {self.rows_remaining:,} remain" if self.rows_remaining else ""
        return f"{self.status}: {_join_counts(self)}{rest}"

    @property
    def fragments_left(self) -> int:
        """Fragments still to do."""
        return self.fragments_total - self.fragments_done

    @property
    def rows_processed(self) -> int:
        """Rows with a new value, computed or from a checkpoint."""
        return self.rows_computed + self.rows_from_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RefreshJobResult(Displayable):
    """Outcome of a refresh of a materialized view.

    Attributes:
        job_id: Id of the job.
        status: Final status, or RUNNING.
        table_name: Name of the view.
        table_uri: Location of the view.
        source_uri: Location of its source.
        source_version: Version of the source that the refresh shows.
        previous_version: Version of the source before the refresh; None for the first refresh.
        launched_at: Start of the job.
        completed_at: End of the job; None while the job runs.
        rows_added: Rows added to the view, before their columns of UDFs are computed. In a
            chunker's view this includes new chunks of a row that was chunked again.
        rows_recomputed: Rows rewritten because columns used by the view changed. In a view over a
            Spark query, such rows count as removed and added.
        rows_removed: Rows removed, because their source row is gone, is no longer selected by the
            view, or was chunked again.
        rows_chunked: Rows of the source for which the chunker returned.
        rows_from_checkpoint: Rows with chunks from an earlier, unfinished refresh.
        rows_skipped: Rows of the source skipped by the chunker's policy.
        fragments_total: Fragments of the source with possible changes.
        fragments_done: Finished fragments.
        versions: Versions of the view committed with the rows.
        backfills: Results of the columns of UDFs, by column.
        seconds: Time of `place`, `commit`, `backfill` and in `total`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        db.create_materialized_view("dear", "SELECT id, price FROM books WHERE price > 50")
        dear = db.open_table("dear")
        result = dear.refresh()
        print(result.source_version, result.rows_added)
        ```
    """

    job_id: str
    status: Status
    table_name: str
    table_uri: str
    source_uri: str
    source_version: int
    previous_version: int | None
    launched_at: datetime
    completed_at: datetime | None = None
    rows_added: int = 0
    rows_recomputed: int = 0
    rows_removed: int = 0
    rows_chunked: int = 0
    rows_from_checkpoint: int = 0
    rows_skipped: int = 0
    fragments_total: int = 0
    fragments_done: int = 0
    versions: tuple[int, ...] = ()
    backfills: Mapping[str, BackfillJobResult] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Summary of the outcome: `DONE: 12 added, 3 removed, source version 7, version 4`."""
        rows = join_counts(
            (self.rows_added, "added"),
            (self.rows_recomputed, "made anew"),
            (self.rows_removed, "removed"),
            (self.rows_skipped, "skipped"),
        )
        versions = join_counts(f"source version {self.source_version}", _show_last_version(self.versions))
        return f"{self.status}: {rows or 'no row changed'}, {versions}"

    @property
    def rows_refreshed(self) -> int:
        """Rows added or rewritten."""
        return self.rows_added + self.rows_recomputed

    @property
    def rows_processed(self) -> int:
        """Rows added, rewritten, or removed."""
        return self.rows_refreshed + self.rows_removed

    @property
    def rows_computed(self) -> int:
        """Rows for which a UDF or the chunker returned, over all UDFs."""
        results = {result.job_id: result for result in self.backfills.values()}
        return self.rows_chunked + sum(result.rows_computed for result in results.values())


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
        return f"{self.job_type}{of} {self.status}: {_join_counts(self)} (job {self.job_id}){why}"

    @staticmethod
    def of(result: BackfillJobResult, **more: Any) -> JobRecord:  # noqa: ANN401 - fields that a result lacks
        """Returns the record of a job with a result."""
        udf = next(iter(result.columns.values()))
        names = JobRecord.__dataclass_fields__.keys()
        same = {name: getattr(source, name) for source in (udf, result) for name in names if hasattr(source, name)}
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
        check_fields(present, dict.fromkeys(present, int))
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


def progress_of(result: object) -> dict[str, int]:
    """Returns the counts of a running job for its heartbeats."""
    return {name: getattr(result, name) for name in _PROGRESS if hasattr(result, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProcess:
    """A process of a machine. A later process with the same number has another start.

    Attributes:
        host: Name of the machine.
        pid: Number of the process.
        started: Start of the process by the clock of the kernel; None if the system has no such
            clock.
        boot: Id of the machine's boot; None if the system has no such id, and in records of
            earlier releases.
        pid_namespace: The container of the process: its namespace of process numbers. None as
            for `boot`.
    """

    host: str
    pid: int
    started: str | None
    boot: str | None = None
    pid_namespace: str | None = None

    @staticmethod
    def from_json(text: str) -> DriverProcess:
        """Returns the process described by a JSON text.

        Raises:
            ValueError: The text describes no process.
        """
        values = load_object(text, {"host": str, "pid": int, "started": (str, type(None))})
        machine = {name: values.get(name) for name in ("boot", "pid_namespace")}
        check_fields(machine, dict.fromkeys(machine, (str, type(None))))
        process = DriverProcess(host=values["host"], pid=values["pid"], started=values["started"], **machine)
        if not 0 < process.pid < _PROCESS_NUMBERS:
            raise ValueError(f"{process.pid} is no number of a process")
        return process


_PROCESS_NUMBERS = 1 << 31
_TEXTS = ("job_id", "job_type", "status", "udf_name", "udf_version", "key", "staging_id", "launched_by", "process")
_COUNTS = ("rows_selected", "rows_computed", "rows_from_checkpoint", "rows_skipped", "rows_failed", "retries")
_ADDED_COUNTS = ("rows_deduplicated", "rows_remaining", "cost", "rows_carried", "rows_recomputed", "rows_nulled")
"""Counts that the history of an earlier release may lack."""

_PROGRESS = (
    *("rows_computed", "rows_from_checkpoint", "rows_skipped", "rows_failed", "rows_carried", "rows_recomputed"),
    *("fragments_done", "retries"),
)
"""Counts of a record that the heartbeats of a running job renew."""

_NUMBERS = (*_COUNTS, *_ADDED_COUNTS, "read_version", "fragments_total", "fragments_done", "batch_rows")
_NUMBERS_END = 1 << 63

_JOB_KINDS: Kinds = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys((*_COUNTS, "read_version", "fragments_total", "fragments_done"), int),
    **dict.fromkeys(("columns", "input_columns", "versions"), (list, type(None))),
    **dict.fromkeys(("launched_at", "updated_at"), datetime),
    "completed_at": (datetime, type(None)),
    **dict.fromkeys(("batch_rows", *(name for name in _ADDED_COUNTS if name != "cost")), (int, type(None))),
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
    _check_numbers("seconds", [values["seconds"].get("total"), *map(abs, values["seconds"].values())])
    _check_numbers("versions", values["versions"])
    DriverProcess.from_json(values["process"])


def _check_numbers(name: str, numbers: Iterable[float | None]) -> None:
    """Checks that numbers of a field are 0 or more, and small enough for sums as floats.

    Raises:
        ValueError: A number is negative, too large, or no number (NaN).
    """
    if not all(number is None or 0 <= number < _NUMBERS_END for number in numbers):
        raise ValueError(f"the field {name!r} holds a number below 0, or above all counts and times")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """The place and the class of an error, without values.

    Attributes:
        fragment_id: The fragment.
        row_address: The row's address, or None if only the fragment is known.
        table_version: The version of the address.
        outcome: As in :class:`ErrorRecord`.
        error_type: Qualified name of the exception.
    """

    fragment_id: int
    row_address: int | None
    table_version: int
    outcome: str
    error_type: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ErrorRecord(Displayable):
    """A failed row, or a range of failed rows.

    Attributes:
        error_id: Id of the error.
        job_id: The job.
        table_uri: The table.
        table_version: The version read by the job; the address is of this version.
        columns: The computed columns.
        udf_name: Name of the UDF.
        udf_version: Version of the UDF.
        input_columns: The UDF's inputs.
        fragment_id: The fragment.
        row_address: The row's address, or None if only the range is known.
        outcome: `skipped` by a policy, `crashed`: the row killed its process, `failed`: the row
            ended the range.
        error_type: Qualified name of the exception.
        error_message: Message of the exception.
        error_trace: Trace of the exception, or None after too many traces.
        attempt: Number of calls for the row so far.
        max_attempts: Limit of calls for the row.
        bisect_depth: How often the batch was halved to isolate the row.
        timestamp: Time of the error.

    Example:
        ```python
        import lance_spark
        from lance_spark import skip_on_error, udf


        @udf(on_error=skip_on_error())
        def invert(price: int) -> float:
            return 1 / price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"inverse": invert})
        books.backfill("inverse")
        for error in books.get_errors():
            print(error.row_address, error.error_type, error.error_message)
        ```
    """

    error_id: str
    job_id: str
    table_uri: str
    table_version: int
    columns: tuple[str, ...]
    udf_name: str
    udf_version: str
    input_columns: tuple[str, ...]
    fragment_id: int
    row_address: int | None
    outcome: str
    error_type: str
    error_message: str
    error_trace: str | None
    attempt: int
    max_attempts: int
    bisect_depth: int
    timestamp: datetime

    @property
    def text(self) -> str:
        """Summary of the error and its row."""
        row = "some rows" if self.row_address is None else f"row address {self.row_address}"
        where = f"{row} of {', '.join(self.columns)}, version {self.table_version}"
        return f"{self.error_type}: {self.error_message} ({where}, {self.outcome})"

    @property
    def column_name(self) -> str:
        """The column, or the first of several siblings."""
        return self.columns[0]

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> ErrorRecord:
        """Returns the record of a row of the table of errors.

        Raises:
            ValueError: The row is damaged or forged.
        """
        check_fields(row, _ERROR_KINDS)
        if not row["columns"] or None in (*row["columns"], *row["input_columns"]):
            raise ValueError("a list of columns is empty or holds NULL")
        return ErrorRecord(**{**row, "columns": tuple(row["columns"]), "input_columns": tuple(row["input_columns"])})


_ERROR_TEXTS = ("error_id", "job_id", "table_uri", "udf_name", "udf_version", "outcome", "error_type", "error_message")
_ERROR_KINDS: Kinds = {
    **dict.fromkeys(_ERROR_TEXTS, str),
    **dict.fromkeys(("table_version", "fragment_id", "attempt", "max_attempts", "bisect_depth"), int),
    **dict.fromkeys(("columns", "input_columns"), list),
    "row_address": (int, type(None)),
    "error_trace": (str, type(None)),
    "timestamp": datetime,
}


def _join_counts(result: BackfillJobResult | JobRecord) -> str:
    rows = join_counts(
        (result.rows_computed, "computed"),
        (result.rows_from_checkpoint, "from checkpoints"),
        (result.rows_skipped, "skipped"),
        (result.rows_failed, "failed"),
    )
    return join_counts(rows or "no row computed", _show_last_version(result.versions))


def _show_last_version(versions: tuple[int, ...]) -> str:
    return f"version {versions[-1]}" if versions else ""
