"""States of tables, as values: what a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lance_spark.changes.positions import NotedPosition
from lance_spark.display import Displayable
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.row_errors import ErrorRecord
from lance_spark.upkeep.results import TableStatistics
from lance_spark.versions.versions import TableVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnState:
    """The columns of a UDF.

    Attributes:
        columns: Names of the columns.
        udf: Name and version of the UDF.
        rows: Live rows of the table.
        rows_pending: Rows without a value that a backfill computes.
        rows_failed: Part of `rows_pending` that failed or was skipped in an earlier job.
        rows_stale: Rows with an outdated value.
        rows_unverified: Part of `rows_stale` that may be up to date.
        is_exact: Whether all counts are exact, and not upper bounds.
        is_kept: Whether an agent keeps the columns up to date.
        problem: Why nothing is known; None if the counts are known.
    """

    columns: tuple[str, ...]
    udf: str
    rows: int = 0
    rows_pending: int = 0
    rows_failed: int = 0
    rows_stale: int = 0
    rows_unverified: int = 0
    is_exact: bool = True
    is_kept: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """A materialized view and its source.

    Attributes:
        source_uri: Location of the source.
        query: The query of the view, as text.
        shown_version: Version of the source that the view shows; None before the first refresh.
        source_version: Latest version of the source; None if the source cannot be opened.
        is_kept: Whether an agent keeps the view up to date.
        problem: Why the lag is unknown.
    """

    source_uri: str
    query: str
    shown_version: int | None = None
    source_version: int | None = None
    is_kept: bool = False
    problem: str | None = None

    @property
    def lag(self) -> int | None:
        """Number of versions of the source since the shown version; None if unknown."""
        if self.shown_version is None or self.source_version is None:
            return None
        return max(0, self.source_version - self.shown_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """An application whose writes are counted: a stream into the table, or a program.

    Attributes:
        app: The application, as text: the id, or a digest of the id.
        batch: Number of the latest transaction, such as the id of a micro-batch.
        version: Version of the table with the transaction; None if the transaction changed nothing,
            or is not yet committed.
        is_committed: Whether the transaction has ended.
    """

    app: str
    batch: int
    version: int | None
    is_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """A streaming query of this process.

    Attributes:
        name: Name or id of the query.
        batch: Latest micro-batch with a progress report; None before the first.
        rows_per_second: Processed rows per second of that micro-batch.
        lags: Lags of the Lance tables that the query reads.
    """

    name: str
    batch: int | None
    rows_per_second: float | None
    lags: tuple[Displayable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job and some of its errors.

    Attributes:
        table: Name of the table.
        table_uri: Location of the table.
        record: The job.
        errors: First errors of the job.
    """

    table: str
    table_uri: str
    record: JobRecord
    errors: tuple[ErrorRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table and its latest versions.

    Attributes:
        name: Name of the table.
        uri: Location of the table.
        statistics: Size of the latest version; None if the table cannot be opened.
        versions: Latest versions, newest first.
        fields: Name and type of the first columns.
        fields_total: Number of all columns.
        columns: The computed columns.
        columns_total: Number of all groups of computed columns.
        view: The view; None for other tables.
        streams: Applications with counted writes.
        readers: Positions of streams that read the table.
        agent: The process whose agent runs jobs of the table, or no text.
        jobs: Latest jobs, newest first, running jobs before all others.
        jobs_total: Number of all jobs.
        jobs_running: Number of running jobs.
        problems: Reasons of missing parts.
    """

    name: str
    uri: str
    statistics: TableStatistics | None = None
    versions: Sequence[TableVersion] = ()
    fields: Sequence[tuple[str, str]] = ()
    fields_total: int = 0
    columns: Sequence[ColumnState] = ()
    columns_total: int = 0
    view: ViewState | None = None
    streams: Sequence[StreamState] = ()
    readers: Sequence[NotedPosition] = ()
    agent: str = ""
    jobs: Sequence[JobRecord] = ()
    jobs_total: int = 0
    jobs_running: int = 0
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceState:
    """The tables of a report.

    Attributes:
        place: Location of the table, the folder or the namespace.
        is_folder: Whether the place may hold several tables.
        tables: The shown tables.
        tables_total: Number of all tables.
        jobs: Latest jobs of the shown tables.
        queries: Streaming queries of this process.
    """

    place: str
    is_folder: bool
    tables: Sequence[TableState]
    tables_total: int
    jobs: Sequence[JobState]
    queries: Sequence[QueryState] = ()
