"""Measures everyday operations on a table: `python -m benchmarks.table_operations [--rows 200000]
[--rounds 3] [--home FOLDER] [--show]`.

lance-spark on Spark, geneva, and its base LanceDB run the same statements: search, indexes, update,
merge, deletion and optimize. Compaction
is compared with plain pylance. Each library has a separate process and a copy of the same table.
The libraries take turns for each operation,
and the first library alternates. After each operation, the tables are compared row by row, and
search results are compared with exact
results. geneva and LanceDB use the environment of `benchmarks.peer_views`. The first round is not
timed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.measure import OURS, quotient
from benchmarks.peer_views import cache_folder, install
from benchmarks.pictures import plot_bars
from benchmarks.report import add_rounds, describe_machine, make_parser, write_report
from benchmarks.table_api_child import Child
from benchmarks.table_operations_child import COMPACTION, OPERATIONS

GENEVA, LANCEDB, PYLANCE = "geneva", "lancedb", "pylance"
_FRAGMENTS, _SIZE, _QUERIES = 50, 64, 20
_MORE = 5
"""Size of the compacted table, as a multiple of the rows."""

Answers = dict[str, dict[str, Any]]


def main() -> None:
    """Runs all rounds, and writes `table_operations.json` and `table_operations.png`."""
    parser = make_parser("table_operations", __doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    add_rounds(parser, 3, "timed rounds")
    parser.add_argument(
        "--home", type=Path, default=cache_folder(), help="folder of geneva's environment"
    )
    parser.add_argument(
        "--show", action="store_true", help="measure nothing, print the results that are there"
    )
    arguments = parser.parse_args()
    file = arguments.out / "table_operations.json"
    if not arguments.show:
        peer = str(install(arguments.home.absolute()))
        report = measure(
            {OURS: sys.executable, GENEVA: peer, LANCEDB: peer, PYLANCE: sys.executable}, arguments
        )
        write_report(arguments, "table_operations", report)
        plot(report, arguments.out / "table_operations.png")
    print_table(json.loads(file.read_text()))


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws the seconds of each operation, with each library."""
    plot_bars(
        {case["case"]: case["seconds"] for case in report["cases"]},
        path,
        label="seconds, median",
        unit="s",
    )


def measure(pythons: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the results of each operation, and whether all libraries agree."""
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as name:
        folder = Path(name)
        write_table(folder / "base.lance", arguments.rows)
        write_table(folder / "more.lance", arguments.rows * _MORE)
        children = {
            library: Child(python, library, name, module="benchmarks.table_operations_child")
            for library, python in pythons.items()
        }
        try:
            versions = {library: child.answer() for library, child in children.items()}
            rounds = []
            for number in range(arguments.rounds + 1):
                before = os.getloadavg()[0]
                answers = run_round(folder, children, number)
                print(f"round {number}, load {before:.1f}: {json.dumps(answers)}", flush=True)
                rounds.append({"load": round(before, 1), "answers": answers})
        finally:
            for child in children.values():
                child.close()
    return {
        "machine": describe_machine(),
        "versions": versions,
        "rows": arguments.rows,
        "rows compacted beside pylance": arguments.rows * _MORE,
        "fragments": _FRAGMENTS,
        "loads": [timed_round["load"] for timed_round in rounds[1:]],
        "cases": [
            case(operation, [timed_round["answers"][operation] for timed_round in rounds[1:]])
            for operation in rounds[0]["answers"]
        ],
    }


def write_table(path: Path, rows: int) -> None:
    """Writes the initial table."""
    random = np.random.default_rng(1)
    vectors = random.standard_normal((rows, _SIZE), dtype=np.float32)
    table = pa.table(
        {
            "id": np.arange(rows),
            "price": random.integers(1, 10_000, rows),
            "text": [f"product number {number} of a shop" for number in range(rows)],
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), _SIZE),
        }
    )
    lance.write_dataset(table, str(path), max_rows_per_file=rows // _FRAGMENTS)


def run_round(folder: Path, children: dict[str, Child], number: int) -> dict[str, Answers]:
    """Runs each operation with all libraries in turn."""
    queries = np.random.default_rng(2).standard_normal((_QUERIES, _SIZE), dtype=np.float32).tolist()
    results: dict[str, Answers] = {}
    for base, operations, names in (
        ("base", OPERATIONS, (OURS, GENEVA, LANCEDB)),
        ("more", COMPACTION, (OURS, PYLANCE)),
    ):
        places = {name: f"{name.replace('-', '_')}_{base}_{number}" for name in names}
        for place in places.values():
            shutil.copytree(folder / f"{base}.lance", folder / f"{place}.lance")
        turn = number % len(names)
        for operation in operations:
            answers = {
                name: children[name].ask(operation=operation, table=places[name], queries=queries)
                for name in (*names[turn:], *names[:turn])
            }
            tables = {name: contents(folder / f"{place}.lance") for name, place in places.items()}
            for name, answer in answers.items():
                answer["equal"] = tables[name].equals(tables[OURS])
                rows = answer.pop("found")
                if rows is not None:
                    exact = nearest(tables[name], queries)
                    hits = sum(
                        len(set(some) & set(ten)) for some, ten in zip(rows, exact, strict=True)
                    )
                    answer["recall"] = hits / sum(map(len, exact))
            results[operation] = answers
        for place in places.values():
            shutil.rmtree(folder / f"{place}.lance")
    return results


def contents(path: Path) -> pa.Table:
    """Returns the rows of a table in the order of their ids."""
    return (
        lance.dataset(str(path))
        .to_table(["id", "price", "text", "vec"])
        .sort_by("id")
        .combine_chunks()
    )


def nearest(table: pa.Table, queries: list[list[float]]) -> list[list[int]]:
    """Returns the ids of the ten nearest rows of each query by exact comparison."""
    vectors = table["vec"].combine_chunks().flatten().to_numpy().reshape(-1, _SIZE)
    ids = table["id"].to_numpy()
    lengths = (vectors**2).sum(axis=1)
    return [
        ids[np.argsort(lengths - 2 * vectors @ np.array(query, np.float32))[:10]].tolist()
        for query in queries
    ]


def case(operation: str, rounds: list[Answers]) -> dict[str, Any]:
    """Returns the report of an operation. The ratio is the median of the quotients of all rounds."""
    seconds = {name: [answers[name]["seconds"] for answers in rounds] for name in rounds[0]}
    return {
        "case": operation,
        "seconds": {name: round(statistics.median(times), 4) for name, times in seconds.items()},
        "ratios": {
            name: round(quotient(seconds[OURS], times), 3)
            for name, times in seconds.items()
            if name != OURS
        },
        "equal": all(answer["equal"] for answers in rounds for answer in answers.values()),
        "recall": {
            name: round(statistics.mean(answers[name]["recall"] for answers in rounds), 4)
            for name, answer in rounds[0].items()
            if "recall" in answer
        },
        "errors": sorted(
            {
                answer["error"]
                for answers in rounds
                for answer in answers.values()
                if "error" in answer
            }
        ),
        "rounds": seconds,
    }


def print_table(report: dict[str, Any]) -> None:
    """Prints the Markdown tables of docs/benchmarks.md."""
    for peers in ((GENEVA, LANCEDB), (PYLANCE,)):
        print(
            f"\n| operation | {' | '.join((OURS, *peers))} | {' | '.join(f'{OURS} / {peer}' for peer in peers)} | results |"
        )
        print("| --- " * (3 + 2 * len(peers)) + "|")
        for entry in report["cases"]:
            if set(entry["ratios"]) == set(peers):
                times = [f"{entry['seconds'][name]:.3f} s" for name in (OURS, *peers)]
                ratios = [f"{entry['ratios'][name]:.2f}" for name in peers]
                recalls = [
                    f"{name} found {share:.2%}"
                    for name, share in entry["recall"].items()
                    if share < 1
                ]
                outcome = "; ".join([*entry["errors"], *recalls]) or (
                    "equal" if entry["equal"] else "NOT EQUAL"
                )
                print(f"| {' | '.join([entry['case'], *times, *ratios, outcome])} |")
    print(f"\nload averages: {report['loads']}")


if __name__ == "__main__":
    main()
