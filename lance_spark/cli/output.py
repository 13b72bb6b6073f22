"""Output of the command line: tables and facts for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from lance_spark.display import Displayable

_PIPE_COLUMNS = 200
"""Width of output without a terminal."""


def print_done(result: Displayable, *, as_json: bool) -> None:
    """Prints the result of a command."""
    if as_json:
        print_json(result)
    else:
        make_console().print(result.text, highlight=False)


def show_number(value: int | None) -> str:
    """Returns a number with separators; an empty text for None."""
    return "" if value is None else f"{value:,}"


def show_moment(moment: datetime) -> str:
    """Returns a moment in the local time zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def join_lines(message: object) -> str:
    """Returns a text on a single line."""
    return " ".join(str(message).split())


def make_console() -> Console:
    """Returns the console of standard output; without a terminal, lines are never cut."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """Prints a table, or `nothing` without rows."""
    if not rows:
        typer.echo(nothing)
        return
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        # Folded, never cut: users copy ids.
        grid.add_column(head, overflow="fold")
    for row in rows:
        grid.add_row(*[Text(cell) for cell in row])
    make_console().print(grid)


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Prints names and values, without the values None."""
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            grid.add_row(Text(name), Text(value))
    make_console().print(grid)


def print_json(value: object) -> None:
    """Prints a JSON document."""
    typer.echo(json.dumps(to_plain(value), indent=2, default=to_text))


def to_plain(value: object) -> object:
    """Returns a value for JSON."""
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def to_text(value: object) -> str:
    """Returns a value as text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
