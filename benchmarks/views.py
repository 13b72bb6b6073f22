"""Measures refreshes of a materialized view: `python -m benchmarks.views [--rows 10000000]
[--fragments 100]`.

The view has an id, an expression, and a column of an Arrow UDF. Its source is a table of an id, a
price and a text. The view is filled, then
refreshed after no change, after changing or adding one row, 10,000 rows and 1 % of the rows, and
after a compaction. The cost should grow
with the number of changed rows, not with the size of the table. UDF calls are counted, and the rows
are compared with the query at the end.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.report import make_parser, write_report
from lance_spark import UDF, Connection, Table, udf

_BATCH_ROWS = 1 << 17


def main() -> None:
    """Makes the table and the view, runs the cases in sequence, and writes `views.json`."""
    parser = make_parser("views", __doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the source")
    parser.add_argument("--fragments", type=int, default=100, help="fragments of the source")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
        cases = measure(folder, arguments.rows, arguments.fragments)
    report = {
        "rows": arguments.rows,
        "fragments": arguments.fragments,
        "cpus": os.cpu_count(),
        "cases": cases,
    }
    write_report(arguments, "views", report)


def measure(folder: str, rows: int, fragments: int) -> dict[str, dict[str, float]]:
    """Returns seconds and counts of each case."""

    @udf(data_type=pa.int32())
    def length(text: pa.Array) -> pa.Array:
        return pc.utf8_length(text)

    builder = (
        SparkSession.builder.master("local[2]").appName("views").config("spark.ui.enabled", "false")
    )
    spark = lance_spark.configure(builder).getOrCreate()
    db = lance_spark.connect(folder, spark, progress=False)
    warm, warm_view = make(db, "warm", length, 40_000, 2)
    warm_view.refresh()
    warm.to_lance().update({"price": "0"})
    warm_view.refresh()
    source, view = make(db, "source", length, rows, fragments)
    cases: dict[str, dict[str, float]] = {}

    def run(name: str, change: Callable[[], object]) -> None:
        change()
        began = time.perf_counter()
        result = view.refresh()
        cases[name] = {
            "seconds": round(time.perf_counter() - began, 3),
            "added": result.rows_added,
            "recomputed": result.rows_recomputed,
            "removed": result.rows_removed,
            "calls": result.rows_computed,
            **{
                f"{stage} s": round(value, 2)
                for stage, value in result.seconds.items()
                if stage != "total"
            },
        }
        print(f"{name:36} {cases[name]}", flush=True)

    head = source.to_lance
    run("first refresh", lambda: None)
    run("nothing changed", lambda: None)
    run("1 row changed", lambda: head().update({"price": "price + 1"}, where="id = 5"))
    run("1 row changed, again", lambda: head().update({"price": "price + 1"}, where="id = 7"))
    run(
        "10,000 rows changed",
        lambda: head().update({"price": "price + 1"}, where="id >= 20000 AND id < 30000"),
    )
    run(
        "1 % of the rows got another text",
        lambda: head().update({"text": "'x'"}, where="id % 100 = 3"),
    )
    run("1 % more rows", lambda: source.add(rows_of(np.arange(rows, rows + rows // 100))))
    run("10,000 rows deleted", lambda: head().delete("id >= 40000 AND id < 50000"))
    run("compaction of the source", head().optimize.compact_files)
    check(source, view)
    spark.stop()
    return cases


def make(db: Connection, name: str, length: UDF, rows: int, fragments: int) -> tuple[Table, Table]:
    """Returns a table, and an empty view over the table."""
    uri = f"{db.uri}/{name}.lance"
    parts = (
        rows_of(np.arange(first, min(first + _BATCH_ROWS, rows)))
        for first in range(0, rows, _BATCH_ROWS)
    )
    batches = (batch for part in parts for batch in part.to_batches())
    schema = rows_of(np.arange(1)).schema
    lance.write_dataset(
        batches, uri, schema, max_rows_per_file=rows // fragments, enable_stable_row_ids=True
    )
    source = db.open_table(name)
    query = source.search(None).select({"id": "id", "cents": "price * 100", "length": length})
    return source, query.create_materialized_view(db, f"{name}_view")


def rows_of(ids: np.ndarray) -> pa.Table:
    """Returns rows of the source."""
    return pa.table({"id": ids, "price": ids % 1000, "text": pa.array(ids).cast(pa.string())})


def check(source: Table, view: Table) -> None:
    """Compares the view with its query."""
    expected = source.to_arrow(["id", "price", "text"]).sort_by("id")
    actual = view.to_arrow(["id", "cents", "length"]).sort_by("id")
    assert actual.column("id").equals(expected.column("id"))
    assert actual.column("cents").equals(pc.multiply(expected.column("price"), 100))
    assert actual.column("length").equals(pc.utf8_length(expected.column("text")))


if __name__ == "__main__":
    main()
