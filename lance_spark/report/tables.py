"""Tables on the page of a report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from lance_spark.display import join_counts
from lance_spark.errors import counted
from lance_spark.report.elements import Markup, bar, element, facts, fold, grid, join, show
from lance_spark.report.jobs import show_moment
from lance_spark.report.states import ColumnState, StreamState, TableState, ViewState
from lance_spark.versions.versions import TableVersion

_DIGEST_CHARS = 16


def table_element(table: TableState, *, is_open: bool) -> Markup:
    """Returns a table: one line, and its columns, versions and streams after a click."""
    size = table.statistics
    head = join(
        (
            element("b", show(table.name)),
            None if size is None else element("span", size.text),
            element("span", "view") if table.view is not None else None,
            *(element("span", text, class_="status partial") for text in _warnings(table)),
        )
    )
    return fold(head, *_details(table), is_open=is_open, class_="table")


def _warnings(table: TableState) -> list[str]:
    """Returns what a person may want to do something about."""
    stale = sum(state.rows_stale for state in table.columns)
    failed = sum(state.rows_failed for state in table.columns)
    pending = sum(state.rows_pending for state in table.columns)
    lag = None if table.view is None else table.view.lag
    counts = join_counts((pending, "without a value"), (failed, "failed"), (stale, "stale"))
    return [
        *(("damaged",) if table.problems else ()),
        *((counts,) if counts else ()),
        *((f"{counted(lag, 'version')} behind",) if lag else ()),
    ]


def _details(table: TableState) -> list[Markup | None]:
    size = table.statistics
    pairs: list[tuple[str, object]] = [("location", show(table.uri))]
    if size is not None:
        unindexed = ", ".join(f"{name}: {rows:,}" for name, rows in size.unindexed_rows.items())
        pairs += [
            ("versions", f"{size.versions:,}"),
            (
                "small fragments",
                f"{size.small_fragments:,} of {size.fragments:,}"
                if size.small_fragments > 1
                else None,
            ),
            ("rows outside of indexes", show(unindexed) if unindexed else None),
            (
                "jobs",
                join_counts((table.jobs_total, "in the history"), (table.jobs_running, "running"))
                or None,
            ),
        ]
    pairs.append(("agent", show(f"{table.agent} runs jobs") if table.agent else None))
    return [
        facts(pairs),
        *(element("p", show(problem, most=1000), class_="problem") for problem in table.problems),
        _part("View", None if table.view is None else _view(table.view)),
        _part("Computed columns", _columns(table)),
        _part("Latest versions", _versions(table.versions)),
        _part("Streams and applications that write", _streams(table.streams)),
        _part("Streams that read", _readers(table)),
        _fields(table),
    ]


def _part(title: str, content: Markup | None) -> Markup | None:
    return None if content is None else join((element("h3", title), content))


def _view(view: ViewState) -> Markup | None:
    version = "nothing yet" if view.shown_version is None else f"version {view.shown_version:,}"
    lag = view.lag
    behind = (
        None if lag is None else "up to date" if lag == 0 else f"{counted(lag, 'version')} behind"
    )
    return facts(
        [
            ("source", show(view.source_uri)),
            ("query", show(view.query)),
            ("shows", version),
            ("lag", behind),
            ("auto_refresh", "an agent keeps the view up to date" if view.is_kept else None),
            ("problem", None if view.problem is None else show(view.problem, most=1000)),
        ]
    )


def _columns(table: TableState) -> Markup | None:
    heads = ("column", "UDF", "computed", "", "without a value", "failed", "stale")
    rows = [_column_row(state) for state in table.columns]
    hidden = table.columns_total - len(rows)
    more = (
        element("p", f"{hidden:,} more computed columns are left out.", class_="quiet")
        if hidden
        else None
    )
    result = grid(heads, rows)
    return None if result is None else join((result, more))


def _column_row(state: ColumnState) -> Sequence[object]:
    name = join((show(", ".join(state.columns)), " (auto_backfill)" if state.is_kept else None))
    if state.problem is not None:
        return name, show(state.udf), "unknown", "", show(state.problem), "", ""
    if not state.rows:
        return name, show(state.udf), "no rows", "", "", "", ""
    about = "" if state.is_exact else "at most "
    rows = state.rows - state.rows_pending
    unverified = f" ({state.rows_unverified:,} of them perhaps)" if state.rows_unverified else ""
    return (
        name,
        show(state.udf),
        f"{'' if state.is_exact else 'at least '}{100 * rows / state.rows:.4g} %",
        bar(rows, state.rows),
        f"{about}{state.rows_pending:,}",
        f"{state.rows_failed:,}",
        f"{state.rows_stale:,}{unverified}",
    )


def _versions(versions: Sequence[TableVersion]) -> Markup | None:
    heads = (
        "version",
        "time",
        "operation",
        "by",
        "added",
        "removed",
        "rows",
        "fragments",
        "message",
    )
    rows = [
        (
            f"{version.version:,}",
            show_moment(version.timestamp),
            show(version.operation),
            show(version.user) if version.user else "",
            _show_count(version.rows_added),
            _show_count(version.rows_removed),
            f"{version.rows:,}",
            f"{version.fragments:,}",
            show(version.message) if version.message else "",
        )
        for version in versions
    ]
    return grid(heads, rows)


def _show_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _streams(streams: Sequence[StreamState]) -> Markup | None:
    rows = [
        (
            show(stream.app),
            f"{stream.batch:,}",
            "" if stream.version is None else f"{stream.version:,}",
            "committed" if stream.is_committed else "begun",
        )
        for stream in streams
    ]
    return grid(("application", "latest batch", "version", "state"), rows)


def _readers(table: TableState) -> Markup | None:
    latest = 0 if table.statistics is None else table.statistics.version
    rows = [
        (
            show(reader.stream[:_DIGEST_CHARS]),
            f"{reader.version:,}",
            f"at most {counted(max(0, latest - reader.version), 'version')}",
            show_moment(reader.noted_at.astimezone(UTC)),
        )
        for reader in table.readers
    ]
    return grid(("stream", "needs versions from", "behind", "last sign"), rows)


def _fields(table: TableState) -> Markup | None:
    content = facts([(show(name), show(type_)) for name, type_ in table.fields])
    if content is None:
        return None
    hidden = table.fields_total - len(table.fields)
    more = f", of which {len(table.fields):,} are shown" if hidden else ""
    return fold(element("span", f"{counted(table.fields_total, 'column')}{more}"), content)
