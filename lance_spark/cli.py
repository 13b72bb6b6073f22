"""The command line: `lance-spark jobs|plan|backfill|versions|index|compact|... URI ...`.

Each command prints a table for people, or with `--json` one document for programs. It exits with 0
when all is done, with 1 when a job is incomplete or something failed (one line on standard error
says what), and with 2 when it was called wrongly.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from lance_spark.backfill.request import DEFAULT_COMMIT_GRANULARITY, DEFAULT_CONCURRENCY
from lance_spark.errors import BackfillIncompleteError, FilterError, LanceSparkError, OptionError
from lance_spark.integrity import check as check_table
from lance_spark.jobs.model import BackfillJobResult, JobRecord
from lance_spark.session.connect_server import serve
from lance_spark.session.sessions import make_session
from lance_spark.sql.indexes import build as build_index
from lance_spark.table.connection import connect, open_table
from lance_spark.table.table import Table
from lance_spark.words import InWords
from udf_runtime.errors import UdfRuntimeError

_FAILED = 1
_MISUSED = 2

_PIPE_COLUMNS = 200
"""Width where output goes to no terminal."""

app = typer.Typer(
    help="Lance tables with computed columns: their jobs, plans, versions and tags, and backfills and upkeep on Spark.",
    no_args_is_help=True,
    add_completion=False,
    # Local variables hold storage options, which may be secrets.
    pretty_exceptions_show_locals=False,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line, and ends the process.

    Args:
        arguments: What follows the program's name; None takes the process's own.
    """
    # Lance logs each commit of a column file as a warning. It reads this when it is imported, which
    # nothing has done yet.
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        app(None if arguments is None else list(arguments), prog_name="lance-spark")
    except (LanceSparkError, UdfRuntimeError) as error:
        print(f"lance-spark: {_one_line(error)}", file=sys.stderr)  # noqa: T201 - this is a program
        sys.exit(_MISUSED if isinstance(error, (OptionError, FilterError)) else _FAILED)
    sys.exit(0)


def _count_or_all(text: str) -> int | None:
    """Reads a number of 1 or more, or `all`."""
    if str(text) == "all":
        return None
    if not str(text).isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text} is neither a whole number, 1 or more, nor 'all'")
    return int(text)


def _storage(texts: Sequence[str] | None) -> dict[str, str]:
    return _pairs(texts, "--storage", "KEY=VALUE, as in region=eu-west-1")


def _pairs(texts: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or ()]
    if not all(key and sign for key, sign, _ in pairs):
        # Without what was given: it may be a secret.
        raise typer.BadParameter(f"give {form}", param_hint=option)
    return {key: value for key, _, value in pairs}


Uri = Annotated[str, typer.Argument(metavar="URI", help="Location of the table, such as data/images.lance")]
Column = Annotated[
    str, typer.Argument(metavar="COLUMN", help="The computed column; one sibling stands for all of them")
]
JobId = Annotated[str, typer.Argument(metavar="JOB_ID", help="Id of the job, as `jobs` shows it")]
StorageOptions = Annotated[
    list[str] | None, typer.Option("--storage", metavar="KEY=VALUE", help="Option of the object store; may be repeated")
]
Repair = Annotated[bool, typer.Option("--repair", help="Keep readable rows, move damaged files aside")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show so many, the newest")]
Where = Annotated[
    str | None, typer.Option(metavar="FILTER", help="Rows to compute, in Lance SQL (by default those without a value)")
]
Stale = Annotated[bool, typer.Option("--stale", help="Rows whose value is out of date, and rows without one")]
ReadVersion = Annotated[int | None, typer.Option(metavar="N", help="Version to read (by default the latest)")]
NumFrags = Annotated[int | None, typer.Option(metavar="N", help="Fragments to process (by default all)")]
SkipFrags = Annotated[int, typer.Option(metavar="N", help="Fragments to leave out before the first")]
TaskSize = Annotated[int | None, typer.Option(metavar="ROWS", help="Rows per task")]
Concurrency = Annotated[int | None, typer.Option(parser=_count_or_all, metavar="N|all", help="Most tasks at once")]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="LOCATION", help="What connect(checkpoint=...) had (by default beside the table)"
    ),
]


Master = Annotated[
    str | None, typer.Option(metavar="MASTER", help="Spark master, or sc://... for Connect (by default this machine)")
]


def _print_version(asked: bool) -> None:
    if asked:
        _console().print(f"lance-spark {version('lance-spark')}", highlight=False)
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit")
    ] = False,
) -> None:
    """Takes what is said before a command."""


@app.command()
def tables(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of tables, such as data")],
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists the tables of a folder."""
    place = connect(folder, storage_options=_storage(storage))
    names = place.table_names()
    if as_json:
        _print_json(names)
        return
    sizes = [place.open_table(name).stats() for name in names]
    rows = [
        [name, str(one.version), f"{one.rows:,}", f"{one.fragments:,}", f"{one.size_bytes / 1e6:,.1f}"]
        for name, one in zip(names, sizes, strict=True)
    ]
    _print_rows(["table", "version", "rows", "fragments", "MB"], rows, nothing="no tables")


@app.command()
def jobs(uri: Uri, limit: Limit = 20, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Lists the jobs of a table, newest first. One whose driver is gone is DEAD."""
    records = open_table(uri, storage_options=_storage(storage)).list_jobs()[:limit]
    if as_json:
        _print_json(records)
        return
    rows = [
        [
            record.job_id,
            record.status,
            ", ".join(record.columns),
            f"{_rows_done(record):,} of {record.rows_selected:,}",
            f"{record.fragments_done:,} of {record.fragments_total:,}",
            _moment(record.launched_at),
            _took(record),
            record.launched_by,
        ]
        for record in records
    ]
    _print_rows(["job", "status", "column", "rows", "fragments", "began", "took", "by"], rows, nothing="no jobs")


@app.command()
def job(uri: Uri, job_id: JobId, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Shows one job."""
    record = open_table(uri, storage_options=_storage(storage)).get_job(job_id)
    if as_json:
        _print_json(record)
        return
    about = {
        "job": record.job_id,
        "status": record.status,
        "message": record.message,
        "column": ", ".join(record.columns),
        "UDF": f"{record.udf_name}({', '.join(record.input_columns)}), version {record.udf_version}",
        "selection": record.where or "rows without a value",
        "read version": str(record.read_version),
        "began": f"{_moment(record.launched_at)}, by {record.launched_by}",
        "took": _took(record),
    }
    _print_facts(about | _counts(record))


@app.command()
def errors(
    uri: Uri,
    job_id: Annotated[str | None, typer.Option("--job", metavar="JOB_ID", help="Only those of this job")] = None,
    column: Annotated[str | None, typer.Option(metavar="COLUMN", help="Only those of this column")] = None,
    error_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only those of this exception, such as ValueError")
    ] = None,
    limit: Limit = 100,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists rows and ranges of rows that a UDF failed on, newest last; traces with --json."""
    every = open_table(uri, storage_options=_storage(storage)).get_errors(job_id, column, error_type)
    shown = every[-limit:]
    if as_json:
        _print_json(shown)
        return
    rows = [
        [
            _moment(error.timestamp),
            error.job_id,
            ", ".join(error.columns),
            error.outcome,
            "" if error.row_address is None else f"{error.row_address} @{error.table_version}",
            error.error_type,
            _one_line(error.error_message),
        ]
        for error in shown
    ]
    heads = ["time", "job", "column", "outcome", "row address @version", "error", "message"]
    _print_rows(heads, rows, nothing="no errors")
    if len(every) > len(shown):
        _console().print(f"{len(every) - len(shown):,} older ones; --limit shows more", highlight=False)


@app.command()
def plan(  # noqa: PLR0913, PLR0917 - one parameter per option
    uri: Uri,
    column: Column,
    where: Where = None,
    num_frags: NumFrags = None,
    skip_frags: SkipFrags = 0,
    task_size: TaskSize = None,
    read_version: ReadVersion = None,
    stale: Stale = False,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    bounds: Annotated[bool, typer.Option("--bounds", help="Do not count rows: upper bounds, at once")] = False,
    checkpoints: Checkpoints = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Says what a backfill would do. Starts no Spark."""
    table = open_table(uri, storage_options=_storage(storage), checkpoint=checkpoints)
    made = table.plan_backfill(
        column,
        where=where,
        read_version=read_version,
        num_frags=num_frags,
        skip_frags=skip_frags,
        task_size=task_size,
        concurrency=concurrency,
        exact=not bounds,
        stale=stale,
    )
    if as_json:
        computed = {"has_work": made.has_work, "rows_to_compute": made.rows_to_compute}
        _print_json({**dataclasses.asdict(made), **computed})
    else:
        typer.echo(made.explain())


@app.command()
def backfill(  # noqa: PLR0913, PLR0917 - one parameter per option
    uri: Uri,
    column: Column,
    where: Where = None,
    num_frags: NumFrags = None,
    skip_frags: SkipFrags = 0,
    task_size: TaskSize = None,
    read_version: ReadVersion = None,
    stale: Stale = False,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads per task that call the UDF")] = 1,
    checkpoint_size: Annotated[int | None, typer.Option(metavar="ROWS", help="Most rows of a checkpoint")] = None,
    flush_interval: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Persist results after so long (by default 10)")
    ] = None,
    commit_granularity: Annotated[
        int | None, typer.Option(parser=_count_or_all, metavar="N|all", help="Finished fragments per commit")
    ] = DEFAULT_COMMIT_GRANULARITY,
    job_id: Annotated[str | None, typer.Option(metavar="ID", help="Id of the job (by default a new one)")] = None,
    master: Master = None,
    checkpoints: Checkpoints = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Fills a computed column with the UDF that is stored with it.

    Goes on where an interrupted run ended. The UDF is unpickled, which runs code that any user who
    can write the table has put there.
    """
    options = _storage(storage)
    table = open_table(uri, None, options, checkpoint=checkpoints)
    # Before a JVM is started for it: most mistakes show in a plan without counts.
    table.plan_backfill(
        column, where=where, read_version=read_version, num_frags=num_frags, skip_frags=skip_frags, exact=False
    )
    if master is not None:
        table = open_table(uri, make_session(master), options, checkpoint=checkpoints)
    try:
        result = table.backfill(
            column,
            where=where,
            stale=stale,
            num_frags=num_frags,
            skip_frags=skip_frags,
            task_size=task_size,
            read_version=read_version,
            concurrency=concurrency,
            intra_applier_concurrency=threads,
            checkpoint_size=checkpoint_size,
            batch_checkpoint_flush_interval_seconds=flush_interval,
            commit_granularity=commit_granularity,
            job_id=job_id,
        )
    except BackfillIncompleteError as error:
        if isinstance(error.result, BackfillJobResult):
            _print_result(error.result, as_json=as_json)
        raise
    _print_result(result, as_json=as_json)
    if result.status != "DONE":
        raise typer.Exit(_FAILED)


@app.command()
def versions(uri: Uri, limit: Limit = 20, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Lists the versions of a table, newest last, and what made them."""
    versions_shown = open_table(uri, storage_options=_storage(storage)).versions[-limit:]
    if as_json:
        _print_json(versions_shown)
        return
    heads = ["version", "time", "rows", "fragments", "MB", "operation", "by", "added", "removed", "message"]
    rows = [
        [
            str(version.version),
            _moment(version.timestamp),
            f"{version.rows:,}",
            f"{version.fragments:,}",
            f"{version.bytes / 1e6:,.1f}",
            version.operation,
            version.user or "",
            _number(version.rows_added),
            _number(version.rows_removed),
            version.message or "",
        ]
        for version in versions_shown
    ]
    _print_rows(heads, rows, nothing="no versions")


@app.command()
def tags(uri: Uri, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Lists the tags of a table, and their versions."""
    found = open_table(uri, storage_options=_storage(storage)).tags.list()
    if as_json:
        _print_json(found)
        return
    _print_rows(["tag", "version"], [[name, str(number)] for name, number in found.items()], nothing="no tags")


@app.command()
def branches(uri: Uri, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Lists the branches of a table, and what each was made from."""
    found = open_table(uri, storage_options=_storage(storage)).branches.list().values()
    if as_json:
        _print_json([{**dataclasses.asdict(one), "created_at": one.created_at.isoformat()} for one in found])
        return
    rows = [[one.name, f"{one.parent}:{one.parent_version}", _moment(one.created_at)] for one in found]
    _print_rows(["branch", "from", "made"], rows, nothing="no branches")


@app.command()
def restore(
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="VERSION", help="Number of a version, or a tag")],
    storage: StorageOptions = None,
) -> None:
    """Makes an older version the latest, as a new version."""
    table = open_table(uri, storage_options=_storage(storage))
    table.restore(int(to) if to.isdecimal() else to)
    _console().print(f"version {to} is the latest again, as version {table.version}", highlight=False)


@app.command()
def index(
    uri: Uri,
    create: Annotated[str | None, typer.Option(metavar="COLUMN", help="Build an index of a column")] = None,
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="BTREE, BITMAP, ..., FTS, or IVF_PQ and the like for vectors")
    ] = "BTREE",
    drop: Annotated[str | None, typer.Option(metavar="NAME", help="Drop an index")] = None,
    optimize: Annotated[bool, typer.Option("--optimize", help="Take in rows that no index serves yet")] = False,
    master: Master = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists the indexes of a table, after what the options ask for."""
    if (create is not None) + (drop is not None) + optimize > 1:
        raise typer.BadParameter("give one of --create, --drop and --optimize")
    table = _on_master(uri, master, _storage(storage))
    if create is not None:
        build_index(table, [create], kind)
    if drop is not None:
        table.drop_index(drop)
    if optimize:
        table.optimize_indices()
    found = [
        {"name": one.name, "type": one.index_type, "columns": list(one.columns)}
        | {"rows": served.num_indexed_rows, "other_rows": served.num_unindexed_rows}
        for one in table.list_indices()
        for served in [table.index_stats(one.name)]
    ]
    if as_json:
        _print_json(found)
        return
    heads = ["index", "type", "columns", "rows", "rows not in it"]
    rows = [[_as_text(", ".join(v) if isinstance(v, list) else v) for v in one.values()] for one in found]
    _print_rows(heads, rows, nothing="no indexes")


@app.command()
def compact(
    uri: Uri,
    target_rows: Annotated[int | None, typer.Option(metavar="ROWS", help="Rows that a fragment aims at")] = None,
    concurrency: Concurrency = None,
    master: Master = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Writes small fragments, and those with many deleted rows, anew."""
    table = _on_master(uri, master, _storage(storage))
    _print_done(table.compact_files(target_rows_per_fragment=target_rows, concurrency=concurrency), as_json=as_json)


@app.command()
def cleanup(
    uri: Uri,
    older_than_days: Annotated[float, typer.Option(metavar="DAYS", help="Age of versions that are removed")] = 7,
    delete_unverified: Annotated[
        bool, typer.Option("--delete-unverified", help="Delete files that no version names, at any age")
    ] = False,
    master: Master = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Removes old versions; those with tags stay."""
    result = _on_master(uri, master, _storage(storage)).cleanup_old_versions(
        timedelta(days=older_than_days), delete_unverified=delete_unverified, error_if_tagged_old_versions=False
    )
    _print_done(result, as_json=as_json)


@app.command()
def check(uri: Uri, repair: Repair = False, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Checks the files and metadata of lance-spark in a table. Exits with 1 if damage remains."""
    _print_done(result := check_table(uri, _storage(storage), repair=repair), as_json=as_json)
    raise typer.Exit(0 if result.is_intact else _FAILED)


@app.command()
def connect_server(
    catalog: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOCATION", help="Folder of tables that SQL knows by a name; may be repeated"),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of Spark; may be repeated")
    ] = None,
    allow_stored_code: Annotated[
        bool, typer.Option("--allow-stored-code", help="Let SQL run UDFs that are stored with tables of the catalogs")
    ] = False,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Spark master that runs the tasks")] = "local[*]",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen at")] = 15002,
) -> None:
    """Runs a Spark Connect server, whose clients have the planner rule and catalogs."""
    serve(
        master,
        host,
        port,
        catalogs=_pairs(catalog, "--catalog", "NAME=LOCATION, as in lance=/data/tables"),
        settings=_pairs(conf, "--conf", "KEY=VALUE"),
        allow_stored_code=allow_stored_code,
        ready=lambda url: _console().print(f"Spark Connect server at {url}", highlight=False),
    )


def _on_master(uri: str, master: str | None, storage: dict[str, str]) -> Table:
    table = open_table(uri, None, storage)
    return table if master is None else open_table(uri, make_session(master), storage)


def _print_done(result: InWords, *, as_json: bool) -> None:
    if as_json:
        _print_json(result)
    else:
        _console().print(result.text, highlight=False)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _print_result(result: BackfillJobResult, *, as_json: bool) -> None:
    if as_json:
        _print_json(result)
        return
    _print_facts({"job": result.job_id, "status": result.status} | _counts(result))


def _counts(job: JobRecord | BackfillJobResult) -> dict[str, str | None]:
    stages = ", ".join(f"{stage} {seconds:,.1f}" for stage, seconds in job.seconds.items())
    return {
        "rows": (
            f"{job.rows_selected:,} selected: {job.rows_computed:,} computed, "
            f"{job.rows_from_checkpoint:,} from checkpoints, {job.rows_skipped:,} skipped, {job.rows_failed:,} failed"
        ),
        "fragments": f"{job.fragments_done:,} of {job.fragments_total:,}",
        "versions": ", ".join(map(str, job.versions)) or "none",
        "retries": f"{job.retries:,}" if job.retries else None,
        "seconds": stages or None,
    }


def _rows_done(record: JobRecord) -> int:
    return record.rows_computed + record.rows_from_checkpoint


def _took(record: JobRecord) -> str:
    if record.completed_at is None:
        return ""
    return f"{(record.completed_at - record.launched_at).total_seconds():,.1f} s"


def _moment(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _console() -> Console:
    """Returns the console of standard output; without a terminal nothing is cut to a width."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)


def _print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    if not rows:
        typer.echo(nothing)
        return
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        # Folded, never cut: ids are there to be copied.
        grid.add_column(head, overflow="fold")
    for row in rows:
        grid.add_row(*[Text(cell) for cell in row])
    _console().print(grid)


def _print_facts(facts: Mapping[str, str | None]) -> None:
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            grid.add_row(Text(name), Text(value))
    _console().print(grid)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(_plain(value), indent=2, default=_as_text))


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


if __name__ == "__main__":
    main()
