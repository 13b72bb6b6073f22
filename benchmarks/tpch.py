"""Compares TPC-H on Lance with Parquet: `python -m benchmarks.tpch [--scale 1] [--rounds 3] [--only
q01,q09] [--out benchmarks/results]`.

Spark writes both formats with its defaults from the same generated tables. Three configurations run
in separate processes, and Parquet and
Lance take turns in each: Spark's defaults without the planner rule, `enable_pushdown` alone, and
`configure`. With `configure`, queries
read the Lance tables by path and through a SQL catalog.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import CaseOutcome
from benchmarks.report import add_rounds, describe_machine, make_parser, write_report
from benchmarks.tpch_queries import QUERIES, generate

LABELS = {
    "defaults": "Spark's defaults, no rule",
    "enable_pushdown": "enable_pushdown alone",
    "configure": "configure",
}
"""Names of the configurations in the report."""

TARGETS = {
    "enable_pushdown": {"mean": 1.3, "worst": 2.0},
    "configure": {"mean": 0.85, "worst": 1.35},
}
BYTES_TARGET = 1.5


@dataclass(slots=True, kw_only=True)
class MeasuredConfiguration:
    """The results of a configuration.

    Attributes:
        outcomes: Times, one outcome per query.
        cpu: CPU seconds of all processes, by query and contestant, a value per round. Processes
            that ended during the query are not included.
    """

    outcomes: list[CaseOutcome] = field(default_factory=list)
    cpu: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @property
    def ratios(self) -> dict[str, float]:
        """Ratio of Lance to Parquet by query: the median of the quotients of all rounds."""
        return {outcome.case: outcome.ratios["parquet"] for outcome in self.outcomes}

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return statistics.geometric_mean(self.ratios.values())

    @property
    def catalog_mean(self) -> float | None:
        """Geometric mean of the ratios of catalog reads to `load(path)`; None without a catalog."""
        ratios = [outcome.ratios.get("catalog") for outcome in self.outcomes]
        return None if None in ratios else 1 / statistics.geometric_mean(r for r in ratios if r)

    @property
    def worst(self) -> str:
        """The query with the largest ratio."""
        return max(self.ratios, key=self.ratios.__getitem__)

    @property
    def cpu_ratio(self) -> float:
        """Ratio of Lance to Parquet in CPU seconds, over all queries."""
        lance_seconds, parquet_seconds = (
            sum(statistics.median(of[name]) for of in self.cpu.values())
            for name in ("lance-spark", "parquet")
        )
        return lance_seconds / parquet_seconds

    def add(self, line: dict) -> None:
        """Adds a query from the child's report."""
        seconds = {name: tuple(times) for name, times in line["seconds"].items()}
        self.outcomes.append(
            CaseOutcome(case=line["query"], seconds=seconds, target=None, note="", versus="parquet")
        )
        self.cpu[line["query"]] = line["cpu_seconds"]


def main() -> None:
    """Runs the configurations, prints a table, and writes `tpch.json` and `tpch.png`."""
    parser = make_parser("tpch", __doc__)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="TPC-H's scale factor, 1 = 6 M line items"
    )
    add_choices(parser, list(QUERIES))
    compare("tpch", write_inputs, parser.parse_args())


def add_choices(parser: argparse.ArgumentParser, queries: Sequence[str]) -> None:
    """Adds the rounds, the queries and the configurations."""
    add_rounds(parser, 3, "timed rounds of each query")
    parser.add_argument(
        "--only", default=",".join(queries), help="queries to run, for example q01,q09"
    )
    parser.add_argument("--configurations", default=",".join(LABELS), help="the ones to run")


def write_inputs(folder: Path, scale: float) -> None:
    """Writes the tables to `generated` and the queries to `queries`."""
    generate(folder / "generated", scale)
    (folder / "queries").mkdir()
    for name, query in QUERIES.items():
        (folder / "queries" / f"{name}.sql").write_text(query, encoding="utf-8")


def compare(
    benchmark: str, write_inputs: Callable[[Path, float], None], arguments: argparse.Namespace
) -> None:
    """Runs the configurations, prints a table, and writes the results of the benchmark."""
    measured: dict[str, MeasuredConfiguration] = {}
    with tempfile.TemporaryDirectory(prefix=f"lance-spark-{benchmark}-") as name:
        folder = Path(name)
        write_inputs(folder, arguments.scale)
        list(child("load", folder, arguments))
        sizes = {kind: stored_bytes(folder / kind) for kind in ("lance", "parquet")}
        print(f"bytes on disk: {sizes['lance'] / sizes['parquet']:.2f} x Parquet", flush=True)
        for configuration in arguments.configurations.split(","):
            measured[configuration] = MeasuredConfiguration()
            for line in child(configuration, folder, arguments):
                if "refused" in line:
                    print(
                        f"{configuration:16} {line['query']} is left out: {line['refused']}",
                        flush=True,
                    )
                    continue
                measured[configuration].add(line)
                outcome = measured[configuration].outcomes[-1]
                print(
                    f"{configuration:16} {outcome.case} {outcome.ratios['parquet']:.2f} x Parquet",
                    flush=True,
                )
                write_report(arguments, benchmark, as_json(measured, sizes, arguments))
    print(table(measured))
    plot(measured, arguments.out / f"{benchmark}.png")


def child(configuration: str, folder: Path, arguments: argparse.Namespace) -> Iterator[dict]:
    """Runs a configuration in a separate process, and yields its reports."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [
        sys.executable,
        "-m",
        "benchmarks.tpch_child",
        configuration,
        str(folder),
        str(arguments.rounds),
    ]
    with subprocess.Popen(
        [*command, *arguments.only.split(",")], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        for line in process.stdout or ():
            yield json.loads(line)
    if process.returncode:
        raise RuntimeError(
            f"the session {configuration!r} of the benchmark failed; its errors are above"
        )


def stored_bytes(folder: Path) -> int:
    """Returns the size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def as_json(
    measured: dict[str, MeasuredConfiguration], sizes: dict[str, int], arguments: argparse.Namespace
) -> dict[str, object]:
    """Returns all data for a comparison with another run."""
    import lance
    import pyspark

    return {
        "machine": describe_machine(),
        "versions": {"pyspark": pyspark.__version__, "pylance": lance.__version__},
        "scale": arguments.scale,
        "rounds": arguments.rounds,
        "load_average": os.getloadavg()[0],
        "bytes": {**sizes, "ratio": sizes["lance"] / sizes["parquet"], "target": BYTES_TARGET},
        "configurations": {
            name: {
                "geometric_mean": of.mean,
                "worst": {"query": of.worst, "ratio": of.ratios[of.worst]},
                "cpu_ratio": of.cpu_ratio,
                "catalog_by_path": of.catalog_mean,
                "targets": TARGETS.get(name, {}),
                "queries": {
                    o.case: {
                        "ratio": o.ratios["parquet"],
                        "seconds": o.seconds,
                        "cpu_seconds": of.cpu[o.case],
                    }
                    for o in of.outcomes
                },
            }
            for name, of in measured.items()
        },
    }


def table(measured: dict[str, MeasuredConfiguration]) -> str:
    """Returns the report: ratios to Parquet, a line per query, and the targets."""

    def row(title: str, cells: list[str]) -> str:
        return f"{title:16}" + "".join(f"{cell:>28}" for cell in cells)

    def goal(name: str, key: str) -> str:
        return f" (target {TARGETS[name][key]})" if name in TARGETS else ""

    queries = [outcome.case for outcome in next(iter(measured.values())).outcomes]
    lines = [row("", [LABELS[name] for name in measured])]
    lines += [
        row(
            query,
            [f"{of.ratios[query]:.2f}" if query in of.ratios else "" for of in measured.values()],
        )
        for query in queries
    ]
    lines += [
        row(
            "geometric mean",
            [f"{of.mean:.2f}{goal(name, 'mean')}" for name, of in measured.items()],
        ),
        row(
            "worst",
            [
                f"{of.worst} {of.ratios[of.worst]:.2f}{goal(name, 'worst')}"
                for name, of in measured.items()
            ],
        ),
        row("CPU seconds", [f"{of.cpu_ratio:.2f}" for of in measured.values()]),
        row(
            "catalog / path",
            [f"{of.catalog_mean:.2f}" if of.catalog_mean else "" for of in measured.values()],
        ),
    ]
    return "\n".join(lines)


def plot(measured: dict[str, MeasuredConfiguration], path: Path) -> None:
    """Draws the ratios of all queries, a colour per configuration, with the geometric means as
    lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    colours = {"defaults": "#bab0ac", "enable_pushdown": "#4c78a8", "configure": "#f58518"}
    queries = [outcome.case for outcome in next(iter(measured.values())).outcomes]
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.3 * len(queries)))
    for name, of in measured.items():
        label = f"{LABELS[name]}: geometric mean {of.mean:.2f}"
        axes.scatter(
            list(of.ratios.values()), range(len(of.ratios)), color=colours[name], label=label
        )
        axes.axvline(of.mean, color=colours[name], linestyle="--", linewidth=0.8)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(queries)), queries)
    axes.grid(axis="y", linewidth=0.3)
    axes.invert_yaxis()
    axes.set_xlabel("time on Lance divided by time on Parquet (less is better)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
