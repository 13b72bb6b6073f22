"""Parameters of the command line, and the program of all commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from lance_spark.session.sessions import make_session
from lance_spark.table.connections.connection import open_table
from lance_spark.table.table import Table

FAILED = 1
MISUSED = 2

app = typer.Typer(
    help="Lance tables with computed columns: their jobs, plans, versions and tags, and backfills and upkeep on Spark.",
    no_args_is_help=True,
    add_completion=False,
    # Local variables hold storage options, maybe with secrets.
    pretty_exceptions_show_locals=False,
)


def parse_count_or_all(text: str) -> int | None:
    """Reads a number of 1 or more, or `all`."""
    if str(text) == "all":
        return None
    if not re.fullmatch(r"[1-9]\d{0,18}", str(text)):
        raise typer.BadParameter(f"{text} is neither a whole number, 1 or more, nor 'all'")
    return int(text)


def parse_latency(text: str | float) -> float:
    """Reads a duration such as `30ms` or `0.03s`, and returns seconds."""
    if isinstance(text, float):
        return text  # the default
    match = re.fullmatch(r"(\d{1,5}(?:\.\d{1,6})?)(ms|s)", text)
    if match is None:
        raise typer.BadParameter(f"{text} is no time such as 30ms or 0.03s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def parse_storage(texts: Sequence[str] | None) -> dict[str, str]:
    """Reads the options of the object store."""
    return parse_pairs(texts, "--storage", "KEY=VALUE, as in region=eu-west-1")


def parse_pairs(texts: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    """Reads texts of the form `KEY=VALUE`."""
    pairs = [text.partition("=") for text in texts or ()]
    if not all(key and sign for key, sign, _ in pairs):
        # Without the given text: a secret, perhaps.
        raise typer.BadParameter(f"give {form}", param_hint=option)
    return {key: value for key, _, value in pairs}


Uri = Annotated[
    str, typer.Argument(metavar="URI", help="Location of the table, such as data/images.lance")
]
Column = Annotated[
    str,
    typer.Argument(
        metavar="COLUMN", help="The computed column; one sibling stands for all of them"
    ),
]
JobId = Annotated[str, typer.Argument(metavar="JOB_ID", help="Id of the job, as `jobs` shows it")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage", metavar="KEY=VALUE", help="Option of the object store; may be repeated"
    ),
]
Repair = Annotated[
    bool, typer.Option("--repair", help="Keep readable rows, move damaged files aside")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show so many, the newest")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER", help="Rows to compute, in Lance SQL (by default those without a value)"
    ),
]
Stale = Annotated[
    bool, typer.Option("--stale", help="Rows whose value is out of date, and rows without one")
]
ReadVersion = Annotated[
    int | None, typer.Option(metavar="N", help="Version to read (by default the latest)")
]
NumFrags = Annotated[
    int | None, typer.Option(metavar="N", help="Fragments to process (by default all)")
]
SkipFrags = Annotated[
    int, typer.Option(metavar="N", help="Fragments to leave out before the first")
]
TaskSize = Annotated[int | None, typer.Option(metavar="ROWS", help="Rows per task")]
Concurrency = Annotated[
    int | None, typer.Option(parser=parse_count_or_all, metavar="N|all", help="Most tasks at once")
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="LOCATION",
        help="What connect(checkpoint=...) had (by default beside the table)",
    ),
]


Master = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER", help="Spark master, or sc://... for Connect (by default this machine)"
    ),
]


def parse_days(text: str | timedelta) -> timedelta:
    """Reads a number of days, at most the age of the calendar."""
    if isinstance(text, timedelta):
        return text  # the default
    try:
        return timedelta(days=float(text))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text} is no number of days") from None


def open_on_master(
    uri: str, master: str | None, storage: dict[str, str], *, checkpoint: str | None = None
) -> Table:
    """Opens a table. The first job starts the session."""
    make = None if master is None else partial(make_session, master)
    return open_table(uri, make, storage, checkpoint=checkpoint)
