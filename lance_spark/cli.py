"""The command line: `lance-spark jobs|job|errors|plan|backfill|versions URI ...`.

Each command prints a table for people, or with `--json` one document for programs. It exits with 0 when all is done, with 1 when a job
is incomplete or something failed (one line on standard error says what), and with 2 when it was called wrongly.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lance_spark.backfill.request import DEFAULT_COMMIT_GRANULARITY, DEFAULT_CONCURRENCY
from lance_spark.commit.history import MESSAGE_KEY, events_between
from lance_spark.connection import open_table
from lance_spark.errors import BackfillIncompleteError, FilterError, LanceSparkError, OptionError
from lance_spark.jobs.model import BackfillJobResult, JobRecord
from lance_spark.session import make_session
from udf_runtime.errors import UdfRuntimeError

if TYPE_CHECKING:
    from rich.console import Console

    from lance_spark.table import Table

FAILED = 1
MISUSED = 2

_PIPE_COLUMNS = 200
"""Width where output goes to no terminal: nothing is cut there that a terminal of usual width would show."""

_EVERYTHING = "all"

app = typer.Typer(
    help="Lance tables with computed columns: their jobs, errors, plans, versions, and backfills on Spark.",
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
    # Lance logs each commit of column files as a warning. Read when Lance is first imported, which nothing has done yet.
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        app(arguments, prog_name="lance-spark")
    except (OptionError, FilterError) as error:
        _fail(error, MISUSED)
    except (LanceSparkError, UdfRuntimeError) as error:
        _fail(error, FAILED)
    sys.exit(0)


def _storage(texts: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or ()]
    wrong = next((key for key, sign, _ in pairs if not sign or not key), None)
    if wrong is not None:
        raise typer.BadParameter("give KEY=VALUE, as in region=eu-west-1", param_hint="--storage")
    return {key: value for key, _, value in pairs}


def _count_or(word: str) -> type[str]:
    """Returns a parser's class for a whole number or a word that stands for none."""

    class Count(str):
        def __new__(cls, text: object) -> Count:
            if str(text) != word and not str(text).isdecimal():
                raise typer.BadParameter(f"{text} is neither a whole number nor {word!r}")
            return super().__new__(cls, text)

    return Count


Uri = Annotated[str, typer.Argument(metavar="URI", help="Location of the table, such as data/images.lance")]
Column = Annotated[str, typer.Argument(metavar="COLUMN", help="The computed column; one of several siblings stands for all")]
StorageOptions = Annotated[
    list[str] | None, typer.Option("--storage", metavar="KEY=VALUE", help="Option of the object store; may be repeated")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document")]
Where = Annotated[str | None, typer.Option(help="Rows to compute, in Lance SQL; by default those without a value")]
ReadVersion = Annotated[int | None, typer.Option(help="Version to read; by default the latest")]
NumFrags = Annotated[int | None, typer.Option(help="Fragments to process; by default all")]
SkipFrags = Annotated[int, typer.Option(help="Fragments to leave out before the first")]
TaskSize = Annotated[int | None, typer.Option(help="Rows per task")]
Checkpoint = Annotated[
    str | None, typer.Option(help="Where checkpoints are kept, as in connect(checkpoint=...); by default beside the table")
]


@app.command()
def jobs(
    uri: Uri,
    limit: Annotated[int, typer.Option(help="Newest jobs to show")] = 20,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists the table's jobs, newest first."""
    found = open_table(uri, storage_options=_storage(storage)).list_jobs()[:limit]
    if as_json:
        _print_json(found)
        return
    _print_rows(
        ["job", "status", "column", "rows", "fragments", "began", "took", "by"],
        [
            [
                job.job_id,
                job.status,
                ", ".join(job.columns),
                f"{_rows_done(job):,} of {job.rows_selected:,}",
                f"{job.fragments_done:,} of {job.fragments_total:,}",
                _moment(job.launched_at),
                _took(job),
                job.launched_by,
            ]
            for job in found
        ],
        nothing="no jobs",
    )


@app.command()
def job(
    uri: Uri,
    job_id: Annotated[str, typer.Argument(metavar="JOB_ID", help="Id of the job, as `jobs` shows it")],
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Shows one job."""
    found = open_table(uri, storage_options=_storage(storage)).get_job(job_id)
    if as_json:
        _print_json(found)
        return
    _print_facts(
        {
            "job": found.job_id,
            "status": found.status,
            "message": found.message,
            "columns": ", ".join(found.columns),
            "UDF": f"{found.udf_name}({', '.join(found.input_columns)}), version {found.udf_version}",
            "rows": f"without a value, or {found.where}" if False else found.where or "without a value",
            "read version": str(found.read_version),
            "began": f"{_moment(found.launched_at)} by {found.launched_by}",
            "took": _took(found),
            **_counts(found, found.rows_selected, found.rows_failed),
        }
    )
