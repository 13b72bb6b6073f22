"""Compares refreshes of a view with geneva: `python -m benchmarks.peer_views [--rows 200000]
[--rounds 2] [--home FOLDER] [--show]`.

lance-spark on Spark and geneva on Ray keep the same materialized view of the same source: three
columns, and an Arrow UDF over a text.
The view is created and filled, then refreshed after no change, appends, updates and a compaction of
the source. This process writes and
changes the source with pylance, and compares the rows of the view with results computed in plain
Python. A file shared by all workers
counts the rows of UDF calls. Each library runs alone on two cores in a separate process, after a
warm-up with a tiny view. The first
library alternates from round to round. uv or pip installs geneva once in an environment below
`--home`, without later downloads. `--show`
prints existing results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.measure import quotient
from benchmarks.peer_views_child import OURS, PEER
from benchmarks.pictures import plot_bars
from benchmarks.report import add_rounds, describe_machine, make_parser, write_report
from benchmarks.table_api_child import Child

RELEASE = "0.17"
TARGET = 1 / 5
"""Maximum ratio of lance-spark's time to geneva's."""
COLUMNS = ("id", "title", "price")
FRAGMENTS = 10

_SEED = 20
_TINY = 2_000
_WORDS = (
    "lance",
    "spark",
    "column",
    "row",
    "feature",
    "view",
    "fragment",
    "index",
    "blob",
    "vector",
)

Round = dict[str, dict[str, Any]]
"""Results of a library in a round, by case."""


def main() -> None:
    """Runs the rounds, prints a table, and writes `peer_views.json` and `peer_views.png`."""
    parser = make_parser("peer_views", __doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the source")
    add_rounds(parser, 2, "rounds of each library")
    parser.add_argument(
        "--home", type=Path, default=cache_folder(), help="folder of geneva's environment"
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results that are there"
    )
    arguments = parser.parse_args()
    file = arguments.out / "peer_views.json"
    if not arguments.show:
        pythons = {OURS: sys.executable, PEER: str(install(arguments.home.absolute()))}
        rounds: dict[str, list[Round]] = {name: [] for name in pythons}
        abouts: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
        for number in range(arguments.rounds):
            for name in (OURS, PEER) if number % 2 else (PEER, OURS):
                about, cases = run(name, pythons[name], arguments.rows)
                abouts[name].append(about)
                rounds[name].append(cases)
                print(
                    f"round {number + 1}, {name}: {json.dumps({'start': about, 'cases': cases})}",
                    flush=True,
                )
            # Written after each round, so an interrupted run keeps its results.
            write_report(arguments, "peer_views", as_json(rounds, abouts, arguments))
        plot(json.loads(file.read_text()), arguments.out / "peer_views.png")
    print_table(json.loads(file.read_text()))


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws the seconds of each refresh, with each library."""
    plot_bars(
        {case["case"]: case["seconds"] for case in report["cases"]},
        path,
        label="seconds, median",
        unit="s",
    )


def cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lance-spark-benchmarks" / f"geneva-{RELEASE}"


def install(home: Path) -> Path:
    """Returns the interpreter of the environment with geneva, and creates the environment on first
    use."""
    python, ready = home / "bin" / "python", home / ".ready"
    if ready.exists():
        return python
    print(f"installing geneva {RELEASE} into {home}", flush=True)
    requirements = [f"geneva=={RELEASE}.*"]
    uv = shutil.which("uv")
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *requirements],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(home)],
            [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *requirements],
        ]
    home.parent.mkdir(parents=True, exist_ok=True)
    for command in commands:
        subprocess.run(command, check=True)
    ready.touch()
    return python


def run(name: str, python: str, rows: int) -> tuple[dict[str, Any], Round]:
    """Returns the start of a library, and its results for each case."""
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        began = time.perf_counter()
        child = Child(python, name, folder, f"{folder}/calls", module="benchmarks.peer_views_child")
        try:
            about = {
                **child.answer(),
                "process": round(time.perf_counter() - began, 2),
                "load": os.getloadavg()[0],
            }
            began = time.perf_counter()
            tiny = ViewUnderTest(Path(folder), "tiny", _TINY, child)
            warmed = tiny.refresh(create=True)
            tiny.change_texts()
            warmed += tiny.refresh()
            about["warm_up"] = round(time.perf_counter() - began, 2)
            about["warm_up_errors"] = [attempt["error"] for attempt in warmed if "error" in attempt]
            stage = ViewUnderTest(Path(folder), "books", rows, child)
            return about, stage.measure()
        finally:
            child.close()


class ViewUnderTest:
    """A source, and a library's view over the source.

    Writes and changes the source with pylance, and reads the view with pylance.
    """

    def __init__(self, folder: Path, name: str, rows: int, child: Child) -> None:
        self._uri, self._view = f"{folder}/{name}.lance", f"{folder}/{name}_view.lance"
        self._names = {"source": name, "view": f"{name}_view", "columns": COLUMNS}
        self._log = folder / "calls"
        self._rows, self._child = rows, child
        lance.write_dataset(
            make_rows(0, rows),
            self._uri,
            max_rows_per_file=rows // FRAGMENTS,
            enable_stable_row_ids=True,
        )

    def measure(self) -> Round:
        """Applies each change to the source, with a refresh after each."""
        changes: dict[str, Callable[[], object]] = {
            "nothing changed": lambda: None,
            "1 % more rows": self._append,
            "1 % of the rows got another text": self.change_texts,
            "1 % of the rows got another price": lambda: self._update("price", "price + 1", 7),
            "compaction of the source": self._compact,
        }
        cases: Round = {"create and first refresh": {"attempts": self.refresh(create=True)}}
        for case, change in changes.items():
            change()
            cases[case] = {"attempts": self.refresh()}
        return cases

    def refresh(self, *, create: bool = False) -> list[dict[str, Any]]:
        """Refreshes the view, and repeats a failed refresh once. Returns the results of the
        attempts."""
        attempts = []
        for again in (False, True):
            self._log.unlink(missing_ok=True)
            answer = self._child.ask(create=create and not again, **self._names)
            calls = (
                [int(line) for line in self._log.read_text().split()] if self._log.exists() else []
            )
            attempts.append(
                {**answer, "calls": sum(calls), "batches": len(calls), "rows": self._compare()}
            )
            if "error" not in answer:
                break
        return attempts

    def change_texts(self) -> None:
        """Changes the text of 1 % of the rows, in all fragments."""
        self._update("text", "concat(text, ' again')", 3)

    def _append(self) -> None:
        lance.write_dataset(make_rows(self._rows, self._rows // 100), self._uri, mode="append")

    def _compact(self) -> None:
        lance.dataset(self._uri).optimize.compact_files()

    def _update(self, column: str, value: str, rest: int) -> None:
        lance.dataset(self._uri).update({column: value}, where=f"id % 100 = {rest}")

    def _compare(self) -> dict[str, int]:
        """Counts absent, wrong and extra rows of the view."""
        source = lance.dataset(self._uri).to_table([*COLUMNS, "text"])
        texts = source.column("text").to_pylist()
        expected = _by_id(source, [len(text) for text in texts])
        view = lance.dataset(self._view).to_table([*COLUMNS, "length"])
        actual = _by_id(view, view.column("length").to_pylist())
        return {
            "rows": view.num_rows,
            "missing": len(expected.keys() - actual.keys()),
            "wrong": sum(
                row != expected[number] for number, row in actual.items() if number in expected
            ),
            "extra": view.num_rows - len(expected.keys() & actual.keys()),
        }


def _by_id(rows: pa.Table, lengths: Sequence[int | None]) -> dict[int, tuple[Any, ...]]:
    ids, *values = (rows.column(column).to_pylist() for column in COLUMNS)
    return dict(zip(ids, zip(*values, lengths, strict=True), strict=True))


def make_rows(first: int, count: int) -> pa.Table:
    """Returns rows of the source. The same arguments return the same rows."""
    random = np.random.default_rng((_SEED, first))
    words = random.choice(_WORDS, size=(count, 12))
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "title": [f"book {number}" for number in ids],
            "price": random.integers(1, 10_000, count),
            "stars": random.random(count, dtype=np.float32),
            "text": [
                " ".join(line[:length])
                for line, length in zip(words, random.integers(3, 12, count), strict=True)
            ],
        }
    )


def as_json(
    rounds: dict[str, list[Round]],
    abouts: dict[str, list[dict[str, Any]]],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Returns all data for a comparison with another run."""
    cases = []
    for case in rounds[OURS][0]:
        attempts = {
            name: [cases[case]["attempts"] for cases in library_rounds]
            for name, library_rounds in rounds.items()
        }
        first = {name: [tried[0]["seconds"] for tried in each] for name, each in attempts.items()}
        ratio = quotient(first[OURS], first[PEER])
        cases.append(
            {
                "case": case,
                "seconds": {name: statistics.median(times) for name, times in first.items()},
                "ratio": round(ratio, 4),
                "target": TARGET,
                "met": ratio <= TARGET,
                "attempts": attempts,
            }
        )
    return {
        "machine": describe_machine(),
        "versions": {name: each[0]["versions"] for name, each in abouts.items()},
        "rows": arguments.rows,
        "fragments": FRAGMENTS,
        "rounds": len(rounds[OURS]),
        "starts": {
            name: [
                {key: value for key, value in about.items() if key != "versions"} for about in each
            ]
            for name, each in abouts.items()
        },
        "cases": cases,
    }


def print_table(report: dict[str, Any]) -> None:
    """Prints the Markdown table of docs/benchmarks.md. A missed target is bold."""
    print(
        "\n| refresh after | lance-spark | geneva | lance-spark / geneva | calls | geneva: calls | geneva: outcome |"
    )
    print("| --- " * 7 + "|")
    for case in report["cases"]:
        seconds, attempts = case["seconds"], case["attempts"]
        ratio = f"{case['ratio']:.3f}" if case["met"] else f"**{case['ratio']:.3f}**"
        times = [f"{seconds[name]:.2f} s" for name in (OURS, PEER)]
        calls = [
            " or ".join(sorted({f"{tried[0]['calls']:,}" for tried in attempts[name]}))
            for name in (OURS, PEER)
        ]
        print(f"| {' | '.join([case['case'], *times, ratio, *calls, _outcome(attempts[PEER])])} |")
    wrong = [
        case["case"] for case in report["cases"] if _outcome(case["attempts"][OURS]) != "right"
    ]
    print(f"\nlance-spark: {'rows are right in all cases' if not wrong else f'NOT RIGHT: {wrong}'}")
    for name, starts in report["starts"].items():
        middle = {
            key: statistics.median(start[key] for start in starts)
            for key in ("process", "start", "warm_up")
        }
        print(f"{name}: start {middle['process']:.1f} s, and a tiny view {middle['warm_up']:.1f} s")


def _outcome(rounds: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Summarizes the attempts of all rounds."""
    outcomes = []
    for attempts in rounds:
        words = []
        for attempt in attempts:
            rows = attempt["rows"]
            faults = [
                f"{rows[fault]:,} {fault}" for fault in ("missing", "wrong", "extra") if rows[fault]
            ]
            state = ", ".join(faults) or "right"
            words.append(f"raised, rows {state}" if "error" in attempt else state)
        if len(attempts) > 1:
            words[1] = f"again: {words[1]}, {attempts[1]['calls']:,} calls"
        outcomes.append("; ".join(words))
    return " / ".join(dict.fromkeys(outcomes))


if __name__ == "__main__":
    main()
