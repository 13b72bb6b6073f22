"""A library on a table, in a separate process: `python -m benchmarks.table_operations_child
lance-spark|geneva|lancedb|pylance FOLDER`.

Answers questions, a line of JSON each, until its input ends. Runs in the environment of the
library, so it imports nothing of the other
libraries.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

CORES = 2
_PARTITIONS = 16

OPERATIONS = (
    "20 searches, all vectors compared",
    "create_index, IVF_FLAT",
    "20 searches, with the index",
    "create_scalar_index, BTREE",
    "update of 10 % of the rows",
    "merge: 5 % updated, 5 % inserted",
    "delete of 1 %",
    "optimize",
    "20 searches, after that",
)
"""In this order. Each operation starts from the table of the previous operation."""

COMPACTION = ("compaction",)


def main() -> None:
    """Starts the library, prints its version, and runs the requested operations."""
    # Libraries print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, folder = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    connect = {
        "lance-spark": _lance_spark,
        "geneva": _geneva,
        "lancedb": _lancedb,
        "pylance": _pylance,
    }[kind]
    db = connect(folder)
    versions = {name: importlib.metadata.version(name) for name in dict.fromkeys([kind, "pylance"])}
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(db, json.loads(line))), file=answers, flush=True)


def _lance_spark(folder: str) -> Any:
    from pyspark.sql import SparkSession

    import lance_spark

    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.ui.enabled", "false")
    return lance_spark.connect(folder, lance_spark.configure(builder).getOrCreate(), progress=False)


def _geneva(folder: str) -> Any:
    import geneva

    return geneva.connect(folder)


def _lancedb(folder: str) -> Any:
    import lancedb

    return lancedb.connect(folder)


class _pylance:  # noqa: N801 - stands where the other libraries' functions stand
    """Compacts with plain pylance."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open_table(self, name: str) -> Any:
        import lance

        return lance.dataset(f"{self._folder}/{name}.lance").optimize


def _answer(db: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Runs an operation. Returns the seconds, the search results, and the error if any."""
    # Opened before the clock starts: all libraries begin with the latest version of the table.
    table = db.open_table(question["table"])
    began = time.perf_counter()
    answer: dict[str, Any] = {"found": None}
    try:
        answer["found"] = _operate(table, question["operation"], question["queries"])
    except Exception as error:  # noqa: BLE001 - what it raises is a result
        answer["error"] = f"{type(error).__name__}: {error}"[:400]
    return {"seconds": round(time.perf_counter() - began, 4), **answer}


def _operate(table: Any, operation: str, queries: list[list[float]]) -> list[list[int]] | None:
    """Runs the statements of an operation, the same for each library."""
    match operation.partition(",")[0].partition(":")[0]:
        case "20 searches":
            results = []
            for query in queries:
                search = table.search(query, vector_column_name="vec").limit(10).select(["id"])
                # All partitions, including split partitions, so the correct result is unique.
                search = search if "compared" in operation else search.nprobes(100 * _PARTITIONS)
                results.append(search.to_arrow()["id"].to_pylist())
            return results
        case "create_index":
            table.create_index(
                metric="l2",
                num_partitions=_PARTITIONS,
                vector_column_name="vec",
                index_type="IVF_FLAT",
            )
        case "create_scalar_index":
            table.create_scalar_index("id", index_type="BTREE")
        case "update of 10 % of the rows":
            table.update(where="id % 10 = 3", values={"price": 7})
        case "merge":
            merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(_source(table.count_rows()))
        case "delete of 1 %":
            table.delete("id % 100 = 5")
        case "optimize":
            table.optimize(cleanup_older_than=timedelta(days=7))
        case "compaction":
            table.compact_files()
        case _:
            raise ValueError(operation)
    return None


def _source(rows: int) -> pa.Table:
    """Returns a tenth of the number of rows of a table: half of them are updates, half are new."""
    half = rows // 20
    ids = np.concatenate([np.arange(half) * 20, rows + np.arange(half)])
    random = np.random.default_rng(3)
    vectors = random.standard_normal((2 * half, 64), dtype=np.float32)
    return pa.table(
        {
            "id": ids,
            "price": random.integers(1, 10_000, 2 * half),
            "text": [f"other product {number}" for number in ids],
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 64),
        }
    )


if __name__ == "__main__":
    main()
