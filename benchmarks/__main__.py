"""Runs the benchmarks: `python -m benchmarks [--rounds 5] [--scale 1.0] [--only NAME] [--conf KEY=VALUE] [--out benchmarks/results]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.cases import cases
from benchmarks.measure import Outcome


def main() -> None:
    """Runs the cases, prints a table, and writes `results.json` and `results.png`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each case")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="size of the data, 1.0 = 4 M narrow and 200 k wide rows"
    )
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; repeatable"
    )
    arguments = parser.parse_args()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
    )
    for setting in arguments.conf:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        for case in cases(spark, Path(folder), arguments.scale):
            if arguments.only in case.name:
                outcomes.append(case.run(arguments.rounds))
                print(line(outcomes[-1]), flush=True)
    spark.stop()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_text(json.dumps(as_json(outcomes, arguments), indent=2) + "\n")
    plot(outcomes, arguments.out / "results.png")


def line(outcome: Outcome) -> str:
    """Returns one case as a line of text."""
    times = "  ".join(f"{name} {seconds:.3f} s" for name, seconds in outcome.medians.items())
    ratios = "  ".join(f"{ratio:.2f} x {name}" for name, ratio in outcome.ratios.items())
    verdict = {None: "", True: f"  (target {outcome.target}: met)", False: f"  (target {outcome.target}: MISSED)"}[
        outcome.met
    ]
    return f"{outcome.case:34} {ratios:34} {times}{verdict}"


def as_json(outcomes: list[Outcome], arguments: argparse.Namespace) -> dict[str, object]:
    """Returns all that is needed to compare with another run."""
    import lance
    import pyspark

    return {
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "versions": {"pyspark": pyspark.__version__, "pylance": lance.__version__},
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "conf": arguments.conf,
        "cases": [
            {
                "case": o.case,
                "note": o.note,
                "seconds": o.seconds,
                "ratios": o.ratios,
                "target": o.target,
                "versus": o.versus,
                "met": o.met,
            }
            for o in outcomes
        ],
    }


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Draws the ratios to Parquet and to pylance, with the targets."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.55 * len(outcomes)))
    for row, outcome in enumerate(outcomes):
        for offset, (name, colour) in enumerate((("parquet", "#4c78a8"), ("pylance", "#f58518"))):
            if name in outcome.ratios:
                axes.barh(
                    row + (offset - 0.5) * 0.36,
                    outcome.ratios[name],
                    height=0.34,
                    color=colour,
                    label=name if row == 0 else None,
                )
        if outcome.target is not None and outcome.versus in outcome.ratios:
            axes.plot([outcome.target] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(outcomes)), [o.case for o in outcomes])
    axes.invert_yaxis()
    axes.set_xlabel("time of lance-spark divided by the other's (less is better; black bars are targets)")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
