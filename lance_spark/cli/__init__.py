"""The command line: `lance-spark jobs|plan|backfill|versions|index|compact|... URI ...`.

Each command prints a table for people, or with `--json` a document for programs. The exit status is
0 after success, 1 after an incomplete job or an error, and 2 after a wrong call. An error is a
single line on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from pyspark.errors import PySparkException

from lance_spark.cli import agent, history, jobs, upkeep
from lance_spark.cli.output import join_lines, make_console
from lance_spark.cli.parameters import FAILED, MISUSED, app
from lance_spark.errors import FilterError, LanceSparkError, OptionError
from udf_runtime.errors import UdfRuntimeError

__all__ = ["agent", "app", "history", "jobs", "main", "upkeep"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line, and ends the process.

    Args:
        arguments: The arguments after the program's name; None takes the process's own.
    """
    # Lance logs each commit of a column file as a warning. Lance reads this variable during its
    # import, which comes later.
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        app(None if arguments is None else list(arguments), prog_name="lance-spark")
    except (LanceSparkError, UdfRuntimeError, PySparkException) as error:
        print(f"lance-spark: {join_lines(error)}", file=sys.stderr)  # noqa: T201 - this is a program
        sys.exit(MISUSED if isinstance(error, (OptionError, FilterError)) else FAILED)
    sys.exit(0)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        make_console().print(f"lance-spark {version('lance-spark')}", highlight=False)
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit"
        ),
    ] = False,
) -> None:
    """Takes the options before a command."""
