"""Measures a view beside geneva's: `python -m benchmarks.peer_views [--rows 200000] [--rounds 2] [--home FOLDER] [--show]`.

The same materialized view, of the same source, in lance-spark on Spark and in geneva, which runs on
Ray: three columns and one Arrow UDF over a text. It is created and filled, and refreshed after
nothing, appends, changes and a compaction of the source. The source is made and changed with
pylance, by this process, which also compares the rows of the view with what plain Python computes
from the source. Rows that the UDF was called with are counted in a file that all workers append to.

Each library runs on two cores, in a process of its own that has nothing beside it, and that has
filled and refreshed a tiny view before; who is first changes from round to round. geneva is
installed once, in an environment of its own below `--home`, with uv or pip; nothing is downloaded
after that. `--show` prints the results that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
from benchmarks.table_api_child import Child

RELEASE = "0.17"
TARGET = 1 / 5
"""Largest time of ours, divided by geneva's."""
COLUMNS = ("id", "title", "price")
FRAGMENTS = 10

_SEED = 20
_TINY = 2_000
_WORDS = ("lance", "spark", "column", "row", "feature", "view", "fragment", "index", "blob", "vector")

Round = dict[str, dict[str, Any]]
"""What a library did in a round, by case."""


def main() -> None:
    """Runs the rounds, prints a table, and writes `peer_views.json` and `peer_views.png`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_views", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the source")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each library")
    parser.add_argument("--home", type=Path, default=cache_folder(), help="folder of geneva's environment")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the results that are there")
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
                print(f"round {number + 1}, {name}: {json.dumps({'start': about, 'cases': cases})}", flush=True)
            # After each round: a run that is cut short leaves what it has.
            arguments.out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(as_json(rounds, abouts, arguments), indent=1) + "\n")
        plot(json.loads(file.read_text()), arguments.out / "peer_views.png")
    print_table(json.loads(file.read_text()))


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws the seconds of each refresh, with each library."""
    plot_bars({case["case"]: case["seconds"] for case in report["cases"]}, path, label="seconds, median", unit="s")


def cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lance-spark-benchmarks" / f"geneva-{RELEASE}"


def install(home: Path) -> Path:
    """Returns the interpreter of an environment with geneva, which is made where there is none."""
    python, ready = home / "bin" / "python", home / ".ready"
    if ready.exists():
        return python
    print(f"installing geneva {RELEASE} into {home}", flush=True)
    wanted = [f"geneva=={RELEASE}.*"]
    uv = shutil.which("uv")
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *wanted],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(home)],
            [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *wanted],
        ]
    home.parent.mkdir(parents=True, exist_ok=True)
    for command in commands:
        subprocess.run(command, check=True)
    ready.touch()
    return python


def run(name: str, python: str, rows: int) -> tuple[dict[str, Any], Round]:
    """Returns how a library started, and what it did in each case."""
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        began = time.perf_counter()
        child = Child(python, name, folder, f"{folder}/calls", module="benchmarks.peer_views_child")
        try:
            about = {**child.answer(), "process": round(time.perf_counter() - began, 2), "load": os.getloadavg()[0]}
            began = time.perf_counter()
            tiny = Stage(Path(folder), "tiny", _TINY, child)
            warmed = tiny.refresh(create=True)
            tiny.change_texts()
            warmed += tiny.refresh()
            about["warm_up"] = round(time.perf_counter() - began, 2)
            about["warm_up_errors"] = [attempt["error"] for attempt in warmed if "error" in attempt]
            stage = Stage(Path(folder), "books", rows, child)
            return about, stage.measure()
        finally:
            child.close()


class Stage:
    """A source, and the view over it that a library keeps.

    Writes and changes the source with pylance, and looks at the view with it.
    """

    def __init__(self, folder: Path, name: str, rows: int, child: Child) -> None:
        self._uri, self._view = f"{folder}/{name}.lance", f"{folder}/{name}_view.lance"
        self._names = {"source": name, "view": f"{name}_view", "columns": COLUMNS}
        self._log = folder / "calls"
        self._rows, self._child = rows, child
        lance.write_dataset(
            make_rows(0, rows), self._uri, max_rows_per_file=rows // FRAGMENTS, enable_stable_row_ids=True
        )

    def measure(self) -> Round:
        """Changes the source in one way after the other, with a refresh after each."""
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
        """Refreshes the view, once more where that raised; says what each attempt did."""
        attempts = []
        for again in (False, True):
            self._log.unlink(missing_ok=True)
            answer = self._child.ask(create=create and not again, **self._names)
            calls = [int(line) for line in self._log.read_text().split()] if self._log.exists() else []
            attempts.append({**answer, "calls": sum(calls), "batches": len(calls), "rows": self._compare()})
            if "error" not in answer:
                break
        return attempts

    def change_texts(self) -> None:
        """Gives 1 % of the rows another text, in all fragments."""
        self._update("text", "concat(text, ' again')", 3)

    def _append(self) -> None:
        lance.write_dataset(make_rows(self._rows, self._rows // 100), self._uri, mode="append")

    def _compact(self) -> None:
        lance.dataset(self._uri).optimize.compact_files()

    def _update(self, column: str, value: str, rest: int) -> None:
        lance.dataset(self._uri).update({column: value}, where=f"id % 100 = {rest}")

    def _compare(self) -> dict[str, int]:
        """Counts rows of the view that the query does not give, and the other way round."""
        source = lance.dataset(self._uri).to_table([*COLUMNS, "text"])
        texts = source.column("text").to_pylist()
        wanted = _by_id(source, [len(text) for text in texts])
        view = lance.dataset(self._view).to_table([*COLUMNS, "length"])
        found = _by_id(view, view.column("length").to_pylist())
        return {
            "rows": view.num_rows,
            "missing": len(wanted.keys() - found.keys()),
            "wrong": sum(row != wanted[number] for number, row in found.items() if number in wanted),
            "extra": view.num_rows - len(wanted.keys() & found.keys()),
        }


def _by_id(rows: pa.Table, lengths: Sequence[int | None]) -> dict[int, tuple[Any, ...]]:
    ids, *values = (rows.column(column).to_pylist() for column in COLUMNS)
    return dict(zip(ids, zip(*values, lengths, strict=True), strict=True))


def make_rows(first: int, count: int) -> pa.Table:
    """Returns rows of the source, the same ones whenever they are asked for."""
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
                " ".join(line[:length]) for line, length in zip(words, random.integers(3, 12, count), strict=True)
            ],
        }
    )


def as_json(
    rounds: dict[str, list[Round]], abouts: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Returns all that is needed to compare with another run."""
    cases = []
    for case in rounds[OURS][0]:
        attempts = {name: [cases[case]["attempts"] for cases in done] for name, done in rounds.items()}
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
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "versions": {name: each[0]["versions"] for name, each in abouts.items()},
        "rows": arguments.rows,
        "fragments": FRAGMENTS,
        "rounds": len(rounds[OURS]),
        "starts": {
            name: [{key: value for key, value in about.items() if key != "versions"} for about in each]
            for name, each in abouts.items()
        },
        "cases": cases,
    }


def print_table(report: dict[str, Any]) -> None:
    """Prints the Markdown table of docs/benchmarks.md; a missed target is bold."""
    print("\n| refresh after | lance-spark | geneva | lance-spark / geneva | calls | geneva: calls | geneva: outcome |")
    print("| --- " * 7 + "|")
    for case in report["cases"]:
        seconds, attempts = case["seconds"], case["attempts"]
        ratio = f"{case['ratio']:.3f}" if case["met"] else f"**{case['ratio']:.3f}**"
        times = [f"{seconds[name]:.2f} s" for name in (OURS, PEER)]
        calls = [" or ".join(sorted({f"{tried[0]['calls']:,}" for tried in attempts[name]})) for name in (OURS, PEER)]
        print(f"| {' | '.join([case['case'], *times, ratio, *calls, _outcome(attempts[PEER])])} |")
    wrong = [case["case"] for case in report["cases"] if _outcome(case["attempts"][OURS]) != "right"]
    print(f"\nlance-spark: {'rows are right in all cases' if not wrong else f'NOT RIGHT: {wrong}'}")
    for name, starts in report["starts"].items():
        middle = {key: statistics.median(start[key] for start in starts) for key in ("process", "start", "warm_up")}
        print(f"{name}: start {middle['process']:.1f} s, and a tiny view {middle['warm_up']:.1f} s")


def _outcome(rounds: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Says in some words how the attempts of all rounds ended."""
    said = []
    for attempts in rounds:
        words = []
        for attempt in attempts:
            rows = attempt["rows"]
            faults = [f"{rows[fault]:,} {fault}" for fault in ("missing", "wrong", "extra") if rows[fault]]
            state = ", ".join(faults) or "right"
            words.append(f"raised, rows {state}" if "error" in attempt else state)
        if len(attempts) > 1:
            words[1] = f"again: {words[1]}, {attempts[1]['calls']:,} calls"
        said.append("; ".join(words))
    return " / ".join(dict.fromkeys(said))


if __name__ == "__main__":
    main()
