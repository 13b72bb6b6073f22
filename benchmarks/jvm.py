"""Compares the JVM connector with lance-spark: `python -m benchmarks.jvm [--home FOLDER] [--rounds
5] [--scale 1.0] [--only NAME ...]`.

Each connector is compared with Parquet in its own session: the JVM connector on PySpark 3.5,
lance-spark on the installed PySpark.
Ratios to Parquet cancel differences between the Spark releases. All sessions read the same Lance
files. pip installs the JVM
connector's PySpark and Maven its jars, below `--home`. A named home is kept. Without Java, Maven or
a registry, the benchmark prints
a line and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.first_look import data_folder
from benchmarks.measure import quotient
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

PYSPARK = "pyspark==3.5.9"
CONNECTOR = ("org.lance", "lance-spark-3.5_2.12", "0.4.0")
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.9.2"
KINDS = ("jvm", "enable_pushdown", "configure")
LANCE, PARQUET = "lance", "parquet"

_FEW = 3
"""Rounds of cases that take seconds."""

_SLOW = ("write, wide", "whole process", "add a column")

_NEWER = ("arrow-", "flatbuffers-", "netty-")
"""Jars that the connector needs in newer versions than Spark 3.5. For other shared jars, Spark's
version is used."""

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>jvm</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>
  </dependencies>
</project>
"""

Seconds = dict[str, dict[str, list[float]]]
"""Times of a case: by connector, then `lance` or `parquet`, a value per round."""


class LeftOutError(Exception):
    """A requirement of the JVM connector is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmConnector:
    """The JVM connector on its own PySpark.

    Attributes:
        python: The interpreter with PySpark.
        classpath: Jars in front of Spark's own.
    """

    python: str
    classpath: str

    @classmethod
    def install(cls, home: Path) -> JvmConnector:
        """Installs missing parts.

        Raises:
            LeftOutError: Java or Maven is not installed, or a registry does not answer.
        """
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise LeftOutError(f"{program} is not installed")
        home.mkdir(parents=True, exist_ok=True)
        python, jars = home / "venv" / "bin" / "python", home / "jars"
        if not python.exists():
            _run("venv", [sys.executable, "-m", "venv", str(home / "venv")], home)
        _run(
            "PyPI",
            [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", PYSPARK, "psutil"],
            home,
        )
        if not jars.is_dir():
            (home / "pom.xml").write_text(_POM.format(*CONNECTOR))
            copy = [
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={home / 'jars.tmp'}",
            ]
            _run(
                "Maven Central",
                ["mvn", "-q", "-B", f"-Dmaven.repo.local={home / 'maven'}", *copy],
                home,
            )
            (home / "jars.tmp").rename(jars)
        where = "import pyspark, os; print(os.path.join(os.path.dirname(pyspark.__file__), 'jars'))"
        spark = Path(
            subprocess.run(
                [str(python), "-c", where], capture_output=True, text=True, check=True
            ).stdout.strip()
        )
        shipped = {_artifact(jar) for jar in spark.iterdir()}
        chosen = [
            jar
            for jar in sorted(jars.iterdir())
            if jar.name.startswith(_NEWER) or _artifact(jar) not in shipped
        ]
        return cls(python=str(python), classpath=os.pathsep.join(map(str, chosen)))


def install_iceberg(home: Path) -> Path:
    """Returns the jar of Iceberg, and downloads it on first use.

    Raises:
        LeftOutError: The registry does not supply the jar.
    """
    folder = home / "iceberg"
    if not folder.is_dir():
        copy = [
            "dependency:copy",
            f"-Dartifact={ICEBERG}",
            f"-DoutputDirectory={home / 'iceberg.tmp'}",
        ]
        _run(
            "Maven Central",
            ["mvn", "-q", "-B", f"-Dmaven.repo.local={home / 'maven'}", *copy],
            home,
        )
        (home / "iceberg.tmp").rename(folder)
    return next(folder.glob("*.jar"))


def _artifact(jar: Path) -> str:
    """Returns the name of a jar without its version."""
    return re.split(r"-\d", jar.name)[0]


def _run(registry: str, command: Sequence[str], folder: Path) -> None:
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        output = (process.stdout + process.stderr).strip().splitlines() or ["no reason given"]
        reason = next((line for line in output if "ERROR" in line), output[-1])
        raise LeftOutError(f"{registry} did not give what is needed: {reason[:200]}")


def main() -> None:
    """Runs the cases, prints a table, and writes `jvm.json` and `jvm.png`."""
    parser = make_parser("jvm", __doc__)
    parser.add_argument(
        "--home", type=Path, help="folder of PySpark 3.5 and the jars; a temporary one by default"
    )
    add_rounds(parser, 5, "timed rounds of each case, at most")
    add_scale(parser, "4 M narrow and 200 k wide rows")
    add_only(parser)
    parser.add_argument(
        "--data", type=Path, help="keep the tables in this folder, and take those that are there"
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results that are there"
    )
    arguments = parser.parse_args()
    file = arguments.out / "jvm.json"
    if arguments.show:
        print_table(
            {case["case"]: case["seconds"] for case in json.loads(file.read_text())["cases"]}
        )
        return
    with contextlib.ExitStack() as ends:
        home = arguments.home or Path(
            ends.enter_context(tempfile.TemporaryDirectory(prefix="lance-spark-jvm-"))
        )
        try:
            jvm = JvmConnector.install(home.absolute())
        except LeftOutError as reason:
            print(f"jvm: left out, {reason}")
            return
        folder = ends.enter_context(
            data_folder(arguments.data, arguments.scale, "narrow", "wide", "keyed")
        )
        results: dict[str, Seconds] = {}
        sessions = {kind: ends.enter_context(session(kind, folder, jvm)) for kind in KINDS}
        abouts = {kind: child.answer() for kind, child in sessions.items()}
        versions = {kind: about["pyspark"] for kind, about in abouts.items()}
        for case in abouts["jvm"]["cases"]:
            if is_chosen(case, arguments):
                rounds = min(arguments.rounds, _FEW) if case.startswith(_SLOW) else arguments.rounds
                results[case] = measure(case, sessions, rounds)
                print(row(case, results[case]), flush=True)
                write_report(arguments, "jvm", as_json(results, versions, arguments))
    plot(results, arguments.out / "jvm.png")
    print_table(results)


@contextlib.contextmanager
def session(kind: str, folder: Path, jvm: JvmConnector) -> Iterator[Child]:
    """Starts the session of a connector. The session ends with the context."""
    python, classpath = (jvm.python, [jvm.classpath]) if kind == "jvm" else (sys.executable, [])
    child = Child(python, kind, str(folder), *classpath, module="benchmarks.jvm_child")
    try:
        yield child
    finally:
        child.close()


def measure(case: str, sessions: Mapping[str, Child], rounds: int) -> Seconds:
    """Warms a case up once, then runs rounds of each connector and Parquet."""
    times: Seconds = {kind: {LANCE: [], PARQUET: []} for kind in sessions}
    for number in range(rounds + 1):
        for kind, child in sessions.items():
            for contestant in (LANCE, PARQUET):
                seconds, _ = child.ask(case=case, contestant=contestant)
                if number:
                    times[kind][contestant].append(round(seconds, 4))
    return times


def ratios(seconds: Seconds) -> dict[str, float]:
    """Returns the ratio of each connector to Parquet, and of lance-spark to the JVM connector."""
    to_parquet = {kind: quotient(times[LANCE], times[PARQUET]) for kind, times in seconds.items()}
    ours = {
        f"{kind} / jvm": quotient(seconds[kind][LANCE], seconds["jvm"][LANCE])
        for kind in seconds
        if kind != "jvm"
    }
    return {kind: round(ratio, 3) for kind, ratio in {**to_parquet, **ours}.items()}


def as_json(
    results: Mapping[str, Seconds], versions: Mapping[str, Any], arguments: argparse.Namespace
) -> object:
    """Returns all data for a comparison with another run."""
    return {
        "machine": describe_machine(),
        "versions": {**versions, "connector": ":".join(CONNECTOR)},
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "cases": [
            {"case": case, "ratios": ratios(times), "seconds": times}
            for case, times in results.items()
        ],
    }


def print_table(results: Mapping[str, Seconds]) -> None:
    """Prints the Markdown table of docs/benchmarks.md."""
    print(
        "\n| case | JVM | JVM / Parquet | ours / Parquet | `configure` / Parquet | ours / JVM | `configure` / JVM |"
    )
    print("| --- " * 7 + "|")
    for case, seconds in results.items():
        print(row(case, seconds))


def row(case: str, seconds: Seconds) -> str:
    """Formats a row of the table. Ratios in favour of the JVM connector are bold."""
    import statistics

    of = ratios(seconds)
    ours = [of[f"{kind} / jvm"] for kind in KINDS if kind != "jvm"]
    cells = [
        f"{statistics.median(seconds['jvm'][LANCE]):.2f} s",
        *(f"{of[kind]:.2f}" for kind in KINDS),
    ]
    return f"| {' | '.join([case, *cells, *(f'**{r:.2f}**' if r > 1 else f'{r:.2f}' for r in ours)])} |"


def plot(results: Mapping[str, Seconds], path: Path) -> None:
    """Draws the ratio to Parquet of each connector."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "jvm": "JVM connector",
        "enable_pushdown": "ours, enable_pushdown",
        "configure": "ours, configure",
    }
    colours = {"jvm": "#f58518", "enable_pushdown": "#4c78a8", "configure": "#54a24b"}
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.55 * len(results)))
    for place, kind in enumerate(KINDS):
        values = [ratios(seconds)[kind] - 1 for seconds in results.values()]
        at = [number + (place - 1) * 0.27 for number in range(len(results))]
        axes.barh(at, values, left=1, height=0.25, color=colours[kind], label=titles[kind])
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set_xlabel("time divided by that of Parquet in the same session (less is better)")
    axes.legend(loc="best")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
