"""Compares reads and writes with Parquet: `python -m benchmarks.first_look [--rounds 5] [--scale
1.0] [--only NAME ...]`.

Three configurations run in separate processes: Spark's defaults, `enable_pushdown` alone, and
`configure`. The contestants take
turns within a round. The contestant `border` measures only the JVM-Python transfer: it passes
prepared batches of the same shape to
Spark, or discards rows instead of writing. Prints the tables of docs/benchmarks.md; `--show`
prints the tables of the last run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.first_look_cases import BORDER, CONFIGURATIONS
from benchmarks.first_look_data import TABLES
from benchmarks.measure import OURS, CaseOutcome
from benchmarks.report import add_only, add_rounds, add_scale, make_parser, write_report

NAME = "first_look"

Results = dict[str, dict[str, CaseOutcome]]
"""Outcomes by configuration and case."""

_COLOURS = {"defaults": "#bab0ac", "enable_pushdown": "#4c78a8", "configure": "#54a24b"}
_TITLES = {
    "defaults": "Spark's defaults",
    "enable_pushdown": "`enable_pushdown`",
    "configure": "`configure`",
}


def main() -> None:
    """Runs the configurations, prints tables, and writes `first_look.json` and `first_look.png`."""
    parser = make_parser("first_look", __doc__)
    add_rounds(parser, 5, "timed rounds of each case, at most")
    add_scale(parser, "4 M narrow and 200 k wide rows")
    add_only(parser)
    parser.add_argument(
        "--configuration",
        action="append",
        choices=CONFIGURATIONS,
        help="run only this one; repeatable",
    )
    parser.add_argument(
        "--data", type=Path, help="keep the tables in this folder, and take those that are there"
    )
    parser.add_argument(
        "--add", action="store_true", help="keep the results of other cases that are there"
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results that are there"
    )
    arguments = parser.parse_args()
    file = arguments.out / f"{NAME}.json"
    if arguments.show:
        print_tables(from_json(json.loads(file.read_text())))
        return
    results: Results = {configuration: {} for configuration in CONFIGURATIONS}
    if arguments.add and file.exists():
        results |= from_json(json.loads(file.read_text()))
    load = [os.getloadavg()[0]]
    with data_folder(arguments.data, arguments.scale, *TABLES) as folder:
        for configuration in arguments.configuration or CONFIGURATIONS:
            print(f"\n{_TITLES[configuration]}", flush=True)
            for answer in child(
                "cases",
                configuration,
                folder,
                arguments.scale,
                arguments.rounds,
                *arguments.only or [],
            ):
                outcome = results[configuration][answer["case"]] = CaseOutcome(**answer)
                print(line(outcome), flush=True)
                load.append(os.getloadavg()[0])
                write_report(arguments, NAME, as_json(results, arguments, load))
    plot(results, arguments.out / f"{NAME}.png")
    print_tables(results)


@contextlib.contextmanager
def data_folder(chosen_folder: Path | None, scale: float, *tables: str) -> Iterator[Path]:
    """Makes missing tables. Without a folder to keep, a temporary folder is used and deleted."""
    with contextlib.ExitStack() as ends:
        folder = chosen_folder or Path(
            ends.enter_context(tempfile.TemporaryDirectory(prefix="lance-spark-bench-"))
        )
        missing_tables = [table for table in tables if not (folder / f"{table}.parquet").exists()]
        if missing_tables:
            folder.mkdir(parents=True, exist_ok=True)
            list(child("data", "defaults", folder, scale, *missing_tables))
        yield folder


def child(kind: str, *arguments: object) -> Iterator[Any]:
    """Runs a child process, and yields its answers."""
    command = [sys.executable, "-m", "benchmarks.first_look_child", kind, *map(str, arguments)]
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYSPARK_", "SPARK_"))
    }
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment | {"PYSPARK_PYTHON": sys.executable},
        ) as process,
    ):
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
        if process.wait():
            errors.seek(0)
            raise RuntimeError(
                f"a process of the benchmark failed: {errors.read()[-5000:].decode(errors='replace')}"
            )


def line(outcome: CaseOutcome) -> str:
    """Formats a case as a line of text."""
    times = "  ".join(f"{name} {seconds:.3f} s" for name, seconds in outcome.medians.items())
    verdict = {
        None: "",
        True: f"  (target {outcome.target}: met)",
        False: f"  (target {outcome.target}: MISSED)",
    }
    cpu = f"  CPU {outcome.cpu_ratios['parquet']:.2f}" if "parquet" in outcome.cpu_ratios else ""
    return f"{outcome.case:34} {outcome.ratios['parquet']:.2f} x parquet{cpu}  {times}{verdict[outcome.met]}"


def as_json(
    results: Results, arguments: argparse.Namespace, load: list[float]
) -> dict[str, object]:
    """Returns all data for a comparison with another run."""
    import lance
    import pyspark

    return {
        "machine": {
            "cpus": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "load": [round(min(load), 1), round(max(load), 1)],
        },
        "versions": {"pyspark": pyspark.__version__, "pylance": lance.__version__},
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "configurations": {
            configuration: [
                {
                    "case": o.case,
                    "note": o.note,
                    "target": o.target,
                    "versus": o.versus,
                    "cpu_target": o.cpu_target,
                    "ratios": _rounded(o.ratios),
                    "cpu_ratios": _rounded(o.cpu_ratios),
                    "seconds": {
                        name: [round(value, 4) for value in values]
                        for name, values in o.seconds.items()
                    },
                    "cpu": {
                        name: [round(value, 2) for value in values]
                        for name, values in o.cpu.items()
                    },
                }
                for o in outcomes.values()
            ]
            for configuration, outcomes in results.items()
        },
    }


def _rounded(ratios: Mapping[str, float]) -> dict[str, float]:
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def from_json(content: Mapping[str, Any]) -> Results:
    """Parses the output of :func:`as_json`."""
    return {
        configuration: {
            outcome["case"]: CaseOutcome(
                **{key: value for key, value in outcome.items() if not key.endswith("ratios")}
            )
            for outcome in outcomes
        }
        for configuration, outcomes in content["configurations"].items()
    }


def print_tables(results: Results) -> None:
    """Prints the Markdown tables of docs/benchmarks.md: ratios of seconds, and of CPU seconds."""
    titles = " | ".join(
        _TITLES[name] + (", target" if name != "defaults" else "") for name in results
    )
    print(f"\n| case | {titles} |\n| --- {'| --- ' * len(results)}|")
    for rows in by_case(results).values():
        name, note = next((o.case, o.note) for o in rows if o is not None)
        print(f"| {name}: {note} | {' | '.join(_cell(o) for o in rows)} |")
    print(f"\n| CPU seconds | {titles} |\n| --- {'| --- ' * len(results)}|")
    for rows in by_case(results).values():
        if any(o is not None and o.cpu_target is not None for o in rows):
            print(
                f"| {next(o.case for o in rows if o)} | {' | '.join(_cpu_cell(o) for o in rows)} |"
            )


def by_case(results: Results) -> dict[str, list[CaseOutcome | None]]:
    """Returns the outcomes of each case, one per configuration."""
    names = dict.fromkeys(name for outcomes in results.values() for name in outcomes)
    return {name: [outcomes.get(name) for outcomes in results.values()] for name in names}


def _cell(outcome: CaseOutcome | None) -> str:
    if outcome is None:
        return ""
    border = f" ({_border(outcome.seconds):.2f})" if BORDER in outcome.seconds else ""
    return _against(outcome.ratios["parquet"], border, outcome.target)


def _cpu_cell(outcome: CaseOutcome | None) -> str:
    if outcome is None:
        return ""
    return _against(
        outcome.cpu_ratios["parquet"], f" ({_border(outcome.cpu):.2f})", outcome.cpu_target
    )


def _against(ratio: float, border: str, target: float | None) -> str:
    """Formats a ratio and its target. A ratio above its target is bold."""
    if target is None:
        return f"{ratio:.2f}{border}"
    return (
        f"{ratio:.2f}{border}, {target}"
        if ratio <= target
        else f"**{ratio:.2f}**{border}, {target}"
    )


def _border(values: Mapping[str, Any]) -> float:
    return CaseOutcome(
        case="",
        seconds={OURS: values[BORDER], "parquet": values["parquet"]},
        target=None,
        note="",
        versus="parquet",
    ).ratios["parquet"]


def plot(results: Results, path: Path) -> None:
    """Draws the ratios to Parquet, with the targets and the cost of the JVM-Python transfer alone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = by_case(results)
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.5 * len(rows)))
    marks: dict[str, Any] = {}
    for row, outcomes in enumerate(rows.values()):
        for place, (configuration, outcome) in enumerate(zip(results, outcomes, strict=True)):
            if outcome is None:
                continue
            at = row + (place - (len(results) - 1) / 2) * 0.27
            colour = _COLOURS[configuration]
            bars = axes.barh(at, outcome.ratios["parquet"] - 1, left=1, height=0.25, color=colour)
            marks.setdefault(_TITLES[configuration].replace("`", ""), bars)
            if outcome.target is not None:
                (mark,) = axes.plot(
                    [outcome.target] * 2, [at - 0.13, at + 0.13], color="black", linewidth=2
                )
                marks.setdefault("target", mark)
            if BORDER in outcome.seconds:
                (mark,) = axes.plot(
                    _border(outcome.seconds), at, "D", color="#e45756", markersize=4
                )
                marks.setdefault("the border alone", mark)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("time of lance-spark divided by that of Parquet (less is better)")
    axes.legend(marks.values(), marks.keys(), loc="best")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
