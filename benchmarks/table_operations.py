"""Measures a table's everyday operations: `python -m benchmarks.table_operations [--rows 200000] [--rounds 3] [--home FOLDER] [--show]`.

The same statements in lance-spark on Spark, in geneva, and in LanceDB, which geneva builds upon: search, indexes, update, merge, deletion, optimize; and
compaction beside pylance alone. Each has a process of its own and a copy of the same table; they take turns, operation by operation, and who is first
changes. After each operation the tables are compared row by row, and what searches find with what comparing all vectors finds. geneva and LanceDB are those of
`benchmarks.peer_views`, in their own environment. The first round is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
from benchmarks.table_api_child import Child
from benchmarks.table_operations_child import COMPACTION, OPERATIONS

GENEVA, LANCEDB, PYLANCE = "geneva", "lancedb", "pylance"
_FRAGMENTS, _SIZE, _QUERIES = 50, 64, 20
_MORE = 5
"""Rows of the table that is compacted beside pylance, as a multiple."""

Answers = dict[str, dict[str, Any]]


def main() -> None:
    """Runs all rounds, and writes `table_operations.json` and `table_operations.png`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table_operations", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--home", type=Path, default=cache_folder(), help="folder of geneva's environment")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the results that are there")
    arguments = parser.parse_args()
    file = arguments.out / "table_operations.json"
    if not arguments.show:
        peer = str(install(arguments.home.absolute()))
        report = measure({OURS: sys.executable, GENEVA: peer, LANCEDB: peer, PYLANCE: sys.executable}, arguments)
        arguments.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n")
        plot(report, arguments.out / "table_operations.png")
    print_table(json.loads(file.read_text()))


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws the seconds of each operation, with each library."""
    plot_bars({case["case"]: case["seconds"] for case in report["cases"]}, path, label="seconds, median", unit="s")


def measure(pythons: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what each operation took, and whether all found and left the same."""
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as name:
        folder = Path(name)
        write_table(folder / "base.lance", arguments.rows)
        write_table(folder / "more.lance", arguments.rows * _MORE)
        children = {
            one: Child(python, one, name, module="benchmarks.table_operations_child") for one, python in pythons.items()
        }
        try:
            versions = {one: child.answer() for one, child in children.items()}
            rounds = []
            for number in range(arguments.rounds + 1):
                before = os.getloadavg()[0]
                answers = one_round(folder, children, number)
                print(f"round {number}, load {before:.1f}: {json.dumps(answers)}", flush=True)
                rounds.append({"load": round(before, 1), "answers": answers})
        finally:
            for child in children.values():
                child.close()
    return {
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "versions": versions,
        "rows": arguments.rows,
        "rows compacted beside pylance": arguments.rows * _MORE,
        "fragments": _FRAGMENTS,
        "loads": [one["load"] for one in rounds[1:]],
        "cases": [
            case(operation, [one["answers"][operation] for one in rounds[1:]]) for operation in rounds[0]["answers"]
        ],
    }


def write_table(path: Path, rows: int) -> None:
    """Writes the table that all begin with."""
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


def one_round(folder: Path, children: dict[str, Child], number: int) -> dict[str, Answers]:
    """Has each operation done by all, one after the other."""
    queries = np.random.default_rng(2).standard_normal((_QUERIES, _SIZE), dtype=np.float32).tolist()
    found: dict[str, Answers] = {}
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
                    wanted = nearest(tables[name], queries)
                    hits = sum(len(set(some) & set(ten)) for some, ten in zip(rows, wanted, strict=True))
                    answer["recall"] = hits / sum(map(len, wanted))
            found[operation] = answers
        for place in places.values():
            shutil.rmtree(folder / f"{place}.lance")
    return found


def contents(path: Path) -> pa.Table:
    """Returns the rows of a table in the order of their ids."""
    return lance.dataset(str(path)).to_table(["id", "price", "text", "vec"]).sort_by("id").combine_chunks()


def nearest(table: pa.Table, queries: list[list[float]]) -> list[list[int]]:
    """Returns the ids of the ten nearest rows of each query, by comparing all."""
    vectors = table["vec"].combine_chunks().flatten().to_numpy().reshape(-1, _SIZE)
    ids = table["id"].to_numpy()
    lengths = (vectors**2).sum(axis=1)
    return [ids[np.argsort(lengths - 2 * vectors @ np.array(query, np.float32))[:10]].tolist() for query in queries]


def case(operation: str, rounds: list[Answers]) -> dict[str, Any]:
    """Returns what is reported of an operation: the median of the rounds' quotients is the ratio."""
    seconds = {name: [one[name]["seconds"] for one in rounds] for name in rounds[0]}
    return {
        "case": operation,
        "seconds": {name: round(statistics.median(times), 4) for name, times in seconds.items()},
        "ratios": {name: round(quotient(seconds[OURS], times), 3) for name, times in seconds.items() if name != OURS},
        "equal": all(answer["equal"] for one in rounds for answer in one.values()),
        "recall": {
            name: round(statistics.mean(one[name]["recall"] for one in rounds), 4)
            for name, answer in rounds[0].items()
            if "recall" in answer
        },
        "errors": sorted({answer["error"] for one in rounds for answer in one.values() if "error" in answer}),
        "rounds": seconds,
    }


def print_table(report: dict[str, Any]) -> None:
    """Prints the Markdown tables of docs/benchmarks.md."""
    for others in ((GENEVA, LANCEDB), (PYLANCE,)):
        print(
            f"\n| operation | {' | '.join((OURS, *others))} | {' | '.join(f'{OURS} / {one}' for one in others)} | results |"
        )
        print("| --- " * (3 + 2 * len(others)) + "|")
        for one in report["cases"]:
            if set(one["ratios"]) == set(others):
                times = [f"{one['seconds'][name]:.3f} s" for name in (OURS, *others)]
                ratios = [f"{one['ratios'][name]:.2f}" for name in others]
                found = [f"{name} found {share:.2%}" for name, share in one["recall"].items() if share < 1]
                said = "; ".join([*one["errors"], *found]) or ("equal" if one["equal"] else "NOT EQUAL")
                print(f"| {' | '.join([one['case'], *times, *ratios, said])} |")
    print(f"\nload averages: {report['loads']}")


if __name__ == "__main__":
    main()
