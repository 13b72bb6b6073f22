"""Jobs on the page of a report."""

from __future__ import annotations

from datetime import datetime

from lance_spark.agent.ledger import is_of_agent
from lance_spark.backfill.planning.cost_model import show_seconds
from lance_spark.display import join_counts
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import ENDED
from lance_spark.report.elements import Markup, bar, element, facts, fold, grid, join, show
from lance_spark.report.states import JobState

_VERSION_CHARS = 12
_MOST_VERSIONS = 20
_STAGE_CHARS = 20


def job_element(job: JobState) -> Markup:
    """Returns a job: one line, and its facts and errors after a click."""
    record = job.record
    is_running = record.status not in ENDED
    head = join(
        (
            element("span", record.status, class_=f"status {record.status.lower()}"),
            element("b", show(job.table)),
            element("span", show(", ".join(record.columns))) if record.columns else None,
            element("span", show(record.job_type), class_="quiet"),
            element("span", "by an agent", class_="quiet") if is_of_agent(record) else None,
            bar(rows_done(record), record.rows_selected) if is_running else None,
            element("span", _show_rows(record)),
            element("span", _show_losses(record), class_="partial"),
            element("span", _show_pace(record)),
            element("time", show_moment(record.launched_at)),
        )
    )
    return fold(head, *_details(job), is_open=is_running, class_="job")


def rows_done(record: JobRecord) -> int:
    """Returns the number of selected rows that need no more work of the job."""
    return record.rows_computed + record.rows_from_checkpoint + record.rows_skipped


def show_moment(moment: datetime) -> str:
    """Returns a time in UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def find_pace(record: JobRecord) -> tuple[float, float | None]:
    """Returns the computed rows per second, and the seconds left of a running job.

    A job without a computed row has the pace 0, and its time left is unknown.
    """
    end = record.completed_at or record.updated_at
    seconds = (end - record.launched_at).total_seconds()
    if seconds <= 0 or not record.rows_computed:
        return 0.0, None
    pace = record.rows_computed / seconds
    return pace, max(0, record.rows_selected - rows_done(record)) / pace


def _show_rows(record: JobRecord) -> str:
    if not record.rows_selected:
        return join_counts((record.fragments_done, f"of {record.fragments_total:,} fragments"))
    return f"{rows_done(record):,} of {record.rows_selected:,} rows"


def _show_losses(record: JobRecord) -> str:
    return join_counts((record.rows_failed, "failed"), (record.rows_skipped, "skipped"))


def _show_pace(record: JobRecord) -> str:
    pace, seconds = find_pace(record)
    rate = f"{pace:,.1f} rows/s" if pace else ""
    if record.status not in ENDED:
        return join_counts(rate, "" if seconds is None else f"about {show_seconds(seconds)} left")
    if record.completed_at is None:
        return rate
    return join_counts(
        f"took {show_seconds((record.completed_at - record.launched_at).total_seconds())}", rate
    )


def _details(job: JobState) -> list[Markup | None]:
    record = job.record
    pairs = [
        ("message", None if record.message is None else show(record.message, most=1000)),
        ("job", show(record.job_id)),
        ("table", show(job.table_uri)),
        ("UDF", _show_udf(record)),
        (
            "selection",
            show(record.where or "rows without a value") if record.rows_selected else None,
        ),
        ("started by", show(record.launched_by)),
        ("last sign", show_moment(record.updated_at) if record.status not in ENDED else None),
        ("ended", None if record.completed_at is None else show_moment(record.completed_at)),
        ("rows", _show_counts(record)),
        ("fragments", f"{record.fragments_done:,} of {record.fragments_total:,} done"),
        ("read version", f"{record.read_version:,}"),
        ("commits", _show_versions(record.versions)),
        ("retries", f"{record.retries:,}" if record.retries else None),
        ("concurrent commits", _show_concurrency(record)),
        (
            "time",
            ", ".join(
                f"{show_seconds(value)} {show_stage(stage)}" for stage, value in _times(record)
            ),
        ),
        ("cost", f"{record.cost:,.4g}" if record.cost else None),
    ]
    return [facts(pairs), _errors(job)]


def show_stage(stage: str) -> str:
    """Returns the name of a stage, if the history has a plausible name."""
    return stage if stage.isidentifier() and stage.isascii() and len(stage) <= _STAGE_CHARS else "?"


def _times(record: JobRecord) -> list[tuple[str, float]]:
    return sorted(
        ((stage, value) for stage, value in record.seconds.items() if value >= 0.05),
        key=lambda pair: -pair[1],
    )


def _show_udf(record: JobRecord) -> Markup | None:
    if not record.udf_name:
        return None
    inputs = ", ".join(record.input_columns)
    return show(f"{record.udf_name}({inputs}), version {record.udf_version[:_VERSION_CHARS]}")


def _show_counts(record: JobRecord) -> str:
    return join_counts(
        (record.rows_selected, "selected"),
        (record.rows_computed, "computed"),
        (record.rows_from_checkpoint, "from checkpoints"),
        (record.rows_skipped, "skipped"),
        (record.rows_failed, "failed"),
        (record.rows_deduplicated, "shared a call"),
        (record.rows_remaining, "remain"),
    )


def _show_versions(versions: tuple[int, ...]) -> str:
    latest = ", ".join(f"{version:,}" for version in versions[-_MOST_VERSIONS:])
    more = f"{len(versions) - _MOST_VERSIONS:,} earlier, " if len(versions) > _MOST_VERSIONS else ""
    return f"{more}version{'' if len(versions) == 1 else 's'} {latest}" if versions else ""


def _show_concurrency(record: JobRecord) -> str:
    """Returns what commits of concurrent writers cost the job."""
    return join_counts(
        (record.rows_carried, "values moved with their rows"),
        (record.rows_recomputed, "rows computed again"),
        (record.rows_nulled, "rows set to NULL"),
    )


def _errors(job: JobState) -> Markup | None:
    rows = [
        (
            "some rows"
            if error.row_address is None
            else f"{error.row_address} @{error.table_version}",
            show(error.outcome),
            show(error.error_type),
            show(error.error_message),
        )
        for error in job.errors
    ]
    table = grid(("row address @version", "outcome", "error", "message"), rows)
    other_errors = job.record.rows_failed + job.record.rows_skipped - len(rows)
    if other_errors <= 0:
        return table
    command = join(("lance-spark errors ", show(job.table_uri), " --job ", show(job.record.job_id)))
    title = "All errors: " if table is None else "More errors: "
    return join((table, element("p", title, element("code", command), class_="quiet")))
