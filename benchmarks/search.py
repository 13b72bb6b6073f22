"""Measures searches: `python -m benchmarks.search [--rows 200000] [--queries 2000]`.

The table has vectors of 128 elements in clusters, like embeddings. A tenth of the rows was added
after building the index. Recall is the
share of the exact nearest rows in the result of an index search. Single queries and batches of
queries take turns with pylance's own
scanner in this process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from benchmarks.measure import OURS, CaseOutcome, TimedCase
from benchmarks.pictures import plot_bars
from benchmarks.report import make_parser, write_report
from lance_spark import Search, Table

_SIZE, _K, _TURNS, _SINGLE = 128, 10, 7, 20

NPROBES, REFINE = 20, 10
"""The settings recommended in docs/search.md."""

INDEXES: dict[str, dict[str, Any]] = {
    "IVF_PQ": {"num_partitions": 256, "num_sub_vectors": 32},
    "IVF_HNSW_SQ": {"num_partitions": 4},
    "IVF_FLAT": {"num_partitions": 256},
}

Matrix = NDArray[np.float32]


def main() -> None:
    """Runs all cases in sequence, and writes `search.json` and `search.png`."""
    parser = make_parser("search", __doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table")
    parser.add_argument(
        "--queries", type=int, default=500, help="queries that are searched for at once"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        results = measure(folder, arguments.rows, arguments.queries)
    sizes = {"rows": arguments.rows, "queries": arguments.queries, "cpus": os.cpu_count()}
    write_report(arguments, "search", {**sizes, **results})
    plot(results, arguments.out / "search.png")


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draws the seconds of each case."""
    seconds = {f"{case['case']}: {case['note']}": case["medians"] for case in results["cases"]}
    plot_bars(seconds, path, label="seconds, median", unit="s")


def measure(folder: str, rows: int, queries: int) -> dict[str, object]:
    """Returns recalls and times."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("search")
        .config("spark.ui.enabled", "false")
    )
    spark = lance_spark.configure(
        builder.config("spark.ui.showConsoleProgress", "false")
    ).getOrCreate()
    db = lance_spark.connect(folder, spark, progress=False)
    vectors = clustered(rows + queries, seed=1)
    stored, queried = vectors[:rows], vectors[rows:]
    path = f"{folder}/vectors.lance"
    first = rows - rows // 10
    lance.write_dataset(
        table_of(stored[:first], 0), path, max_rows_per_file=rows // 8, enable_stable_row_ids=True
    )
    table = db.open_table("vectors")
    frame = spark.createDataFrame(
        [(n, q.tolist()) for n, q in enumerate(queried)], "n int, q array<float>"
    ).cache()
    frame.count()
    report: dict[str, object] = {}
    outcomes = [batch_case(table, frame, path, queried).run(3)]
    for kind, settings in INDEXES.items():
        table.create_index(vector_column_name="vec", index_type=kind, **settings)
        if kind == "IVF_PQ":
            lance.write_dataset(table_of(stored[first:], first), path, mode="append")
        report[f"recall, {kind}"] = recall(table, stored, queried[:200])
        print(kind, report[f"recall, {kind}"], flush=True)
        if kind == "IVF_PQ":
            outcomes += [case.run(_TURNS) for case in single_cases(table, path, queried)]
    spark.stop()
    return {**report, "cases": [report_of(outcome) for outcome in outcomes]}


def clustered(count: int, *, seed: int) -> Matrix:
    """Returns vectors around 1,000 centres."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((1000, _SIZE))
    vectors: Matrix = centres[random.integers(0, 1000, count)] + 0.5 * random.standard_normal(
        (count, _SIZE)
    )
    return vectors.astype(np.float32)


def table_of(vectors: Matrix, first: int) -> pa.Table:
    """Returns rows with vectors."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), _SIZE)
    return pa.table({"id": pa.array(np.arange(first, first + len(vectors))), "vec": column})


def search(table: Table, query: Matrix) -> Search:
    """Returns a search with the documented settings."""
    return table.search(query).nprobes(NPROBES).refine_factor(REFINE).limit(_K).select(["id"])


def recall(table: Table, stored: Matrix, queries: Matrix) -> float:
    """Returns the share of the nearest rows in the results."""
    hits = 0
    for query in queries:
        exact = np.argsort(((stored - query) ** 2).sum(axis=1))[:_K]
        hits += len(set(search(table, query).to_arrow()["id"].to_pylist()) & set(exact.tolist()))
    return round(hits / (_K * len(queries)), 4)


def single_cases(table: Table, path: str, queries: Matrix) -> list[TimedCase]:
    """Returns the cases of single queries, in this process and as DataFrames."""
    dataset = lance.dataset(path)
    nearest = {"column": "vec", "k": _K, "nprobes": NPROBES, "refine_factor": REFINE}
    some = queries[:_SINGLE]

    def pylance() -> None:
        for query in some:
            dataset.to_table(columns=["id", "_distance"], nearest={**nearest, "q": query})

    def ours() -> None:
        for query in some:
            search(table, query).to_arrow()

    def on_spark() -> None:
        for query in some:
            search(table, query).to_spark().collect()

    note = f"{_SINGLE} queries, one after the other"
    return [
        TimedCase(
            name="to_arrow",
            contestants={OURS: ours, "pylance": pylance},
            note=note,
            versus="pylance",
        ),
        TimedCase(
            name="to_spark",
            contestants={OURS: on_spark, "pylance": pylance},
            note=note,
            versus="pylance",
        ),
    ]


def batch_case(table: Table, frame: DataFrame, path: str, queries: Matrix) -> TimedCase:
    """Returns the case of all queries in a batch, compared with all rows."""

    def pylance() -> None:
        dataset = lance.dataset(path)
        for first in range(0, len(queries), 100):
            nearest = {"column": "vec", "k": _K, "q": queries[first : first + 100]}
            dataset.to_table(columns=["id", "_distance"], nearest=nearest)

    def ours() -> None:
        rows = table.search(frame).limit(_K).select(["id"]).to_spark().toArrow()
        assert len(rows) == _K * len(queries)

    note = f"{len(queries)} queries at once, before there is an index"
    return TimedCase(
        name="batch", contestants={OURS: ours, "pylance": pylance}, note=note, versus="pylance"
    )


def report_of(outcome: CaseOutcome) -> dict[str, object]:
    """Returns an outcome for the report, and prints it."""
    summary = {
        "case": outcome.case,
        "note": outcome.note,
        "medians": {name: round(value, 4) for name, value in outcome.medians.items()},
        "ratio": round(outcome.ratios["pylance"], 3),
        "cpu ratio": round(outcome.cpu_ratios.get("pylance", 0), 3),
    }
    print(summary, flush=True)
    return summary


if __name__ == "__main__":
    main()
