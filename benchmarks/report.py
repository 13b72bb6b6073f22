"""Options and result files of all benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a benchmark, with the folder of its results."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), help="folder of the results"
    )
    return parser


def add_rounds(
    parser: argparse.ArgumentParser, default: int, what: str = "timed rounds of each case"
) -> None:
    """Adds the number of rounds."""
    parser.add_argument("--rounds", type=int, default=default, help=what)


def add_scale(parser: argparse.ArgumentParser, size: str) -> None:
    """Adds the scale of the data. `size` is the size at scale 1."""
    parser.add_argument("--scale", type=float, default=1.0, help=f"size of the data, 1.0 = {size}")


def add_only(parser: argparse.ArgumentParser) -> None:
    """Adds the choice of cases by parts of their names, for :func:`is_chosen`."""
    parser.add_argument(
        "--only", action="append", help="run only cases whose name contains this; repeatable"
    )


def is_chosen(case: str, arguments: argparse.Namespace) -> bool:
    """Tells whether the user chose a case."""
    return any(part in case for part in arguments.only or [""])


def describe_machine() -> dict[str, Any]:
    """Returns the cores, the processor, and the release of Python."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
    }


def write_report(arguments: argparse.Namespace, name: str, content: object) -> Path:
    """Writes `NAME.json` into the folder of the results, and returns the path.

    Call this function after each case, so that an interrupted run keeps its results.
    """
    arguments.out.mkdir(parents=True, exist_ok=True)
    path: Path = arguments.out / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
