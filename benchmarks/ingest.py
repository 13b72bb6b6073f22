"""Measures the ingestion of a program's rows: `python -m benchmarks.ingest [--rounds 7] [--scale
1.0] [--only NAME ...] [--base CHECKOUT]`.

Rows in pandas, NumPy, Python and Arrow become columns of a declared schema, in
`create_table(schema=)`, `Table.add` and results of
UDFs. lance-spark checks each value; PyArrow and pylance alone check none. `--base` adds another
checkout of lance-spark.
Contestants take turns within each round, and the ratios are medians over the rounds, as in the
other benchmarks.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from benchmarks.measure import OURS, quotient
from benchmarks.report import (
    add_only,
    add_rounds,
    add_scale,
    describe_machine,
    is_chosen,
    make_parser,
    write_report,
)
from benchmarks.table_api_child import Child

PYARROW, BASE = "PyArrow and pylance", "base"
_ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Runs the cases, prints a line per case, and writes `ingest.json`."""
    parser = make_parser("ingest", __doc__)
    add_rounds(parser, 7)
    add_scale(parser, "300 k rows and 20 k vectors")
    add_only(parser)
    parser.add_argument(
        "--base", type=Path, metavar="CHECKOUT", help="a folder with another lance-spark to measure"
    )
    arguments = parser.parse_args()
    checkouts = {OURS: str(_ROOT), PYARROW: "-"}
    if arguments.base is not None:
        checkouts[BASE] = str(arguments.base.resolve())
    children = {
        name: Child(
            sys.executable, checkout, str(arguments.scale), module="benchmarks.ingest_child"
        )
        for name, checkout in checkouts.items()
    }
    results = []
    try:
        cases_of = {name: child.answer() for name, child in children.items()}
        for case in cases_of[OURS]:
            if is_chosen(case, arguments):
                contestants = {
                    name: child for name, child in children.items() if case in cases_of[name]
                }
                results.append(measure(case, contestants, arguments.rounds))
                print(line(results[-1]), flush=True)
    finally:
        for child in children.values():
            child.close()
    report = {
        "machine": describe_machine(),
        "versions": {"pylance": lance.__version__, "pyarrow": pa.__version__},
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "cases": results,
    }
    write_report(arguments, "ingest", report)


def measure(case: str, contestants: dict[str, Child], rounds: int) -> dict[str, Any]:
    """Returns the medians of a case, and the ratios of CPU seconds."""
    load = os.getloadavg()[0]
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, child in contestants.items():
            answer = child.ask(case=case)
            if number:
                answers[name].append(answer)
    cpu = {name: [answer["cpu"] for answer in some] for name, some in answers.items()}
    return {
        "case": case,
        "seconds": {
            name: round(statistics.median(answer["seconds"] for answer in some), 4)
            for name, some in answers.items()
        },
        "cpu": {name: round(statistics.median(some), 4) for name, some in cpu.items()},
        "cpu_ratios": {
            name: round(quotient(cpu[OURS], some), 2) for name, some in cpu.items() if name != OURS
        },
        "load": (round(load, 1), round(os.getloadavg()[0], 1)),
    }


def line(case: dict[str, Any]) -> str:
    """Formats the medians of a case as a line of text."""
    spent = "  ".join(f"{name} {cpu:.3f}" for name, cpu in case["cpu"].items())
    ratios = "  ".join(f"{ratio:.2f} x {name}" for name, ratio in case["cpu_ratios"].items())
    return f"{case['case']:48} CPU seconds: {spent}  {ratios}"


if __name__ == "__main__":
    main()
