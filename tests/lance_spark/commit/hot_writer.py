"""Writer processes for the tests of starvation.

python -m tests.lance_spark.commit.hot_writer KIND TABLE NUMBER ROUNDS

Prints `ready`, waits for a line, works, and prints one line of JSON. `fill` fills its own rows in each round, like a
DataFrame write; `append` appends rows; `compact` compacts until a line arrives.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql.types import LongType

from tests.lance_spark.write.backfills import Backfill, snapshot_rows

ROWS = 6
"""Rows of each writer: a fragment, before anybody compacts."""


def value(key: int, last: int) -> int:
    return key * 100 + last


def fill(path: str, number: int, rounds: int) -> dict[str, Any]:
    longest, retries, carried, versions = 0.0, 0, 0, []
    own = range(number * ROWS, (number + 1) * ROWS)
    for last in range(rounds):
        version = lance.dataset(path).version
        job = Backfill(path, "c", LongType(), options={"input_columns": "id"}, version=version)
        rows = [
            (address, value(key, last))
            for address, key in snapshot_rows(path, version)
            if key in own
        ]
        messages = [job.task([job.batch(*zip(*rows, strict=True))])]
        began = time.monotonic()
        result = job.commit(*messages)
        longest = max(longest, time.monotonic() - began)
        assert result.rows == ROWS, result
        retries, carried = retries + result.retries, carried + result.rows_carried
        versions.append(result.version)
    return {"longest": longest, "retries": retries, "carried": carried, "versions": versions}


def append(path: str, number: int, rounds: int) -> dict[str, Any]:
    schema = lance.dataset(path).schema
    for last in range(rounds):
        row = {**dict.fromkeys(schema.names), "id": 1_000_000 + number * 1000 + last}
        lance.write_dataset(pa.Table.from_pylist([row], schema=schema), path, mode="append")
        time.sleep(0.1)
    return {"appended": rounds}


def compact(path: str) -> dict[str, Any]:
    stop, compactions, lost = threading.Event(), 0, 0
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    while not stop.wait(0.1):
        try:
            compactions += (
                lance.dataset(path)
                .optimize.compact_files(target_rows_per_fragment=3 * ROWS)
                .fragments_removed
                > 0
            )
        except OSError:
            lost += 1  # Lance gives up a compaction after a concurrent commit
    return {"compacted": compactions, "lost": lost}


def _main(kind: str, path: str, number: str, rounds: str) -> None:
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    if kind == "compact":
        print(json.dumps(compact(path)), flush=True)
    else:
        print(
            json.dumps({"fill": fill, "append": append}[kind](path, int(number), int(rounds))),
            flush=True,
        )


if __name__ == "__main__":
    _main(*sys.argv[1:])
