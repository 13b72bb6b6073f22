"""Collects the states of tables. Bounded: each kind of part has a maximum number.

Reads metadata, the history of jobs, and records. Writes nothing and starts no Spark session.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_spark.agent.lease import find_agent
from lance_spark.changes.lag import stream_lag
from lance_spark.changes.positions import noted_positions
from lance_spark.commit.app_ledger import latest_transactions
from lance_spark.commit.app_transaction import APP_KEY
from lance_spark.commit.conflicts.history import event_of
from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, TableNotFoundError
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import ENDED
from lance_spark.report.columns import column_states
from lance_spark.report.sources import find_problem
from lance_spark.report.states import JobState, QueryState, StreamState, TableState, ViewState
from lance_spark.upkeep.results import TableStatistics
from lance_spark.versions.versions import Versions
from lance_spark.views.definition import ViewDefinition, expressions_of, is_auto_refreshed, view_of
from lance_spark.views.state import refreshed_of

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MOST_TABLES = 100
MOST_JOBS = 200
MOST_JOBS_WITH_ERRORS = 20
MOST_ERRORS = 10
MOST_VERSIONS = 10
MOST_FIELDS = 200
MOST_COLUMNS = 20
MOST_STREAMS = 20
MOST_QUERIES = 50
"""Maximum number of parts on a page; of versions, fields, columns and streams per table."""

_DIGEST_CHARS = 16


def describe_table(ref: DatasetRef, name: str, *, checkpoints: str | None) -> TableState:
    """Returns the state of a table. A part that cannot be read is a problem of the state.

    Raises:
        TableNotFoundError: The table does not exist.
    """
    parts = _Parts(ref, checkpoints)
    problems = []
    for describe in (
        parts.add_table,
        parts.add_columns,
        parts.add_view,
        parts.add_streams,
        parts.add_jobs,
        parts.add_agent,
    ):
        try:
            describe()
        except TableNotFoundError:
            raise
        except (OSError, ValueError, LanceSparkError) as error:
            problems.append(str(error))
            if parts.dataset is None:
                break
    return TableState(
        name=name, uri=ref.uri, problems=tuple(dict.fromkeys(problems)), **parts.values
    )


def jobs_of(table: TableState) -> list[JobState]:
    """Returns the jobs of a table with their table."""
    return [JobState(table=table.name, table_uri=table.uri, record=record) for record in table.jobs]


def latest_jobs(jobs: Iterable[JobState]) -> list[JobState]:
    """Returns the latest jobs: running jobs first, and then the newest."""
    return heapq.nsmallest(MOST_JOBS, jobs, key=lambda job: _job_order(job.record))


def with_errors(jobs: Iterable[JobState], refs: Mapping[str, DatasetRef]) -> list[JobState]:
    """Returns jobs with the first errors of the latest jobs that had errors.

    Args:
        jobs: The jobs, newest first.
        refs: The tables by location.
    """
    results = list(jobs)
    failed = [
        number
        for number, job in enumerate(results)
        if job.record.rows_failed or job.record.rows_skipped
    ]
    for number in failed[:MOST_JOBS_WITH_ERRORS]:
        job = results[number]
        results[number] = replace(job, errors=_read_errors(refs[job.table_uri], job.record.job_id))
    return results


def query_states(spark: SparkSession | None) -> list[QueryState]:
    """Returns the streaming queries of a session of this process; none of a stopped session."""
    if spark is None:
        return []
    try:
        return [_query_state(query) for query in spark.streams.active[:MOST_QUERIES]]
    except Exception as error:  # noqa: BLE001 - Spark and Connect raise errors of many classes
        logger.info("The streaming queries of the session are unknown: %s", error)
        return []


class _Parts:
    """The parts of a table's state, read one after the other."""

    def __init__(self, ref: DatasetRef, checkpoints: str | None) -> None:
        self._ref = ref
        self._checkpoints = checkpoints
        self.dataset: lance.LanceDataset | None = None
        self.values: dict[str, Any] = {}

    def add_table(self) -> None:
        pinned = self._ref.pin(None)
        self.dataset = dataset = pinned.open()
        fields = [(field.name, str(field.type)) for field in dataset.schema]
        self.values |= {
            "statistics": TableStatistics.of(dataset),
            "versions": tuple(reversed(Versions(pinned)[-MOST_VERSIONS:])),
            "fields": tuple(fields[:MOST_FIELDS]),
            "fields_total": len(fields),
        }

    def add_columns(self) -> None:
        assert self.dataset is not None  # the first part has opened the table
        states, total = column_states(
            self._ref, self.dataset, checkpoints=self._checkpoints, most=MOST_COLUMNS
        )
        self.values |= {"columns": tuple(states), "columns_total": total}

    def add_view(self) -> None:
        assert self.dataset is not None  # as above
        definition = view_of(self.dataset)
        if definition is not None:
            self.values["view"] = _view_state(self._ref, self.dataset, definition)

    def add_streams(self) -> None:
        assert self.dataset is not None  # as above
        self.values["streams"] = tuple(_stream_states(self._ref, self.dataset))
        self.values["readers"] = tuple(noted_positions(self._ref, MOST_STREAMS))

    def add_jobs(self) -> None:
        records = JobHistory(self._ref).jobs()
        self.values |= {
            "jobs": tuple(heapq.nsmallest(MOST_JOBS, records, key=_job_order)),
            "jobs_total": len(records),
            "jobs_running": sum(record.status not in ENDED for record in records),
        }

    def add_agent(self) -> None:
        self.values["agent"] = find_agent(self._ref)


def _job_order(record: JobRecord) -> tuple[bool, float]:
    return record.status in ENDED, -record.launched_at.timestamp()


def _read_errors(ref: DatasetRef, job_id: str) -> tuple[Any, ...]:
    try:
        return tuple(JobHistory(ref).errors(job_id, most=MOST_ERRORS))
    except LanceSparkError:
        return ()  # the page of the table names the damage


def _view_state(
    ref: DatasetRef, dataset: lance.LanceDataset, definition: ViewDefinition
) -> ViewState:
    source = definition.source_of(ref)
    query = _show_query(dataset, definition)
    state = ViewState(source_uri=source.uri, query=query, is_kept=is_auto_refreshed(dataset))
    try:
        refreshed = refreshed_of(dataset)
        state = replace(state, shown_version=None if refreshed is None else refreshed.version)
        problem = find_problem(ref, definition)
        if problem is not None:
            return replace(state, problem=problem)
        return replace(state, source_version=source.open_latest().version)
    except LanceSparkError as error:
        return replace(state, problem=str(error))


def _show_query(dataset: lance.LanceDataset, definition: ViewDefinition) -> str:
    """Returns the query of a view in one line."""
    if definition.function is not None:
        what = f"{definition.function.udf_name}({', '.join(definition.function.inputs)})"
    else:
        expressions = dict(expressions_of(dataset))
        what = ", ".join(_show_column(name, expressions.get(name)) for name in definition.columns)
    return f"{what}{'' if definition.where is None else f' WHERE {definition.where}'}"


def _show_column(name: str, expression: str | None) -> str:
    return (
        name if expression is None or expression.strip("`") == name else f"{expression} AS {name}"
    )


def _stream_states(ref: DatasetRef, dataset: lance.LanceDataset) -> Iterator[StreamState]:
    for latest in latest_transactions(ref, MOST_STREAMS):
        yield StreamState(
            app=_find_app(dataset, latest.version) or latest.digest[:_DIGEST_CHARS],
            batch=latest.number,
            version=latest.version,
            is_committed=latest.is_committed,
        )


def _find_app(dataset: lance.LanceDataset, version: int | None) -> str | None:
    """Returns the id of the application that committed a version; None if unknown."""
    if version is None or version > dataset.version:
        return None
    try:
        return event_of(dataset, version).properties.get(APP_KEY)
    except (OSError, ValueError):
        return None  # the version was cleaned up


def _query_state(query: Any) -> QueryState:  # noqa: ANN401 - of Spark or of Spark Connect
    progress = query.lastProgress
    rate = None if progress is None else progress.get("processedRowsPerSecond")
    return QueryState(
        name=query.name or str(query.id),
        batch=None if progress is None else progress.get("batchId"),
        rows_per_second=rate if isinstance(rate, float | int) else None,
        lags=() if progress is None else tuple(stream_lag(progress)),
    )
