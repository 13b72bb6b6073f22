"""The page of a report: one file of HTML without scripts and without requests.

A policy in the head of the page forbids scripts, forms and requests, also for texts that would slip
through :mod:`lance_spark.report.elements`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lance_spark.errors import counted
from lance_spark.jobs.results import ENDED
from lance_spark.report.elements import Markup, element, fold, grid, join, show
from lance_spark.report.jobs import job_element
from lance_spark.report.states import PlaceState, QueryState
from lance_spark.report.style import STYLE
from lance_spark.report.tables import table_element

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_JOBS_AT_ONCE = 20


def render_page(state: PlaceState, made_at: datetime) -> str:
    """Returns the page as a document."""
    title = f"lance-spark: {state.place}"
    head = element(
        "head",
        Markup(
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        ),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="referrer" content="no-referrer">'),
        element("title", Markup(show(title).removeprefix("<bdi>").removesuffix("</bdi>"))),
        element("style", Markup(STYLE)),
    )
    body = element(
        "body",
        element(
            "header",
            element("h1", show(state.place)),
            element("p", _summarize(state, made_at)),
            _navigate(state),
        ),
        element("main", *_sections(state)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _summarize(state: PlaceState, made_at: datetime) -> str:
    tables = len(state.tables)
    of = (
        f"{tables:,} of {counted(state.tables_total, 'table')}"
        if tables < state.tables_total
        else counted(tables, "table")
    )
    return f"{of}, {counted(_count_jobs(state), 'job')}, made {made_at:%Y-%m-%d %H:%M:%S} UTC"


def _count_jobs(state: PlaceState) -> int:
    return sum(table.jobs_total for table in state.tables)


def _navigate(state: PlaceState) -> Markup:
    links = [("#running", "Running"), ("#tables", "Tables"), ("#jobs", "Jobs")]
    if state.queries:
        links.append(("#streams", "Streams"))
    return element("nav", *(element("a", text, href=href) for href, text in links))


def _sections(state: PlaceState) -> list[Markup | None]:
    running = [job_element(job) for job in state.jobs if job.record.status not in ENDED]
    tables = [table_element(table, is_open=not state.is_folder) for table in state.tables]
    return [
        _section("running", "Running jobs", running, empty="No job runs."),
        _section("tables", "Tables", [*tables, _rest_of_tables(state)], empty="No tables."),
        _section("jobs", "Ended jobs", _ended_jobs(state), empty="No job has ended."),
        _streams(state.queries),
    ]


def _ended_jobs(state: PlaceState) -> list[Markup | None]:
    """Returns the ended jobs, newest first, and older jobs after a click."""
    jobs = [job_element(job) for job in state.jobs if job.record.status in ENDED]
    latest, older = jobs[:_JOBS_AT_ONCE], jobs[_JOBS_AT_ONCE:]
    folded = fold(element("span", counted(len(older), "older job")), *older) if older else None
    return [*latest, folded, _rest_of_jobs(state)]


def _section(id_: str, title: str, parts: Sequence[Markup | None], *, empty: str) -> Markup:
    present = [part for part in parts if part is not None]
    return element(
        "section", element("h2", title), *(present or [element("p", empty, class_="quiet")]), id=id_
    )


def _rest_of_jobs(state: PlaceState) -> Markup | None:
    total = _count_jobs(state)
    if len(state.jobs) >= total:
        return None
    tables = {job.table_uri for job in state.jobs} or {table.uri for table in state.tables}
    uri = show(next(iter(tables))) if len(tables) == 1 else "URI"
    command = join(("lance-spark jobs ", uri, f" --limit {total}"))
    text = f"The page has the {len(state.jobs):,} latest of {total:,} jobs. All jobs of a table: "
    return element("p", text, element("code", command), class_="quiet")


def _rest_of_tables(state: PlaceState) -> Markup | None:
    if len(state.tables) >= state.tables_total:
        return None
    text = f"The page has the first {len(state.tables):,} of {state.tables_total:,} tables. A page of one table: "
    return element(
        "p", text, element("code", "lance-spark report TABLE --html FILE"), class_="quiet"
    )


def _streams(queries: Sequence[QueryState]) -> Markup | None:
    """Returns the streaming queries of this process."""
    if not queries:
        return None
    rows = [
        (
            show(query.name),
            "" if query.batch is None else f"{query.batch:,}",
            "" if query.rows_per_second is None else f"{query.rows_per_second:,.1f}",
            join(element("div", show(lag)) for lag in query.lags) or "no Lance table",
        )
        for query in queries
    ]
    return _section(
        "streams",
        "Streams of this process",
        [grid(("query", "batch", "rows/s", "reads"), rows)],
        empty="",
    )
