"""A library with a view, in a separate process: `python -m benchmarks.peer_views_child
lance-spark|geneva FOLDER LOG`.

Answers questions, a line of JSON each, until its input ends. Runs in the environment of the
library, so it imports nothing of the other
library.
"""

# Annotations are not deferred, because geneva reads them to recognize a UDF with Arrow arrays.
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

CORES = 2
OURS, PEER = "lance-spark", "geneva"

_SLOTS = 4
"""CPUs for Ray's scheduler. geneva requests 2.3 CPUs for two workers, and would wait with 2."""


def main() -> None:
    """Starts the library, reports readiness, and creates and refreshes views."""
    # Libraries print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, folder, log = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    began = time.perf_counter()
    with {OURS: _ours, PEER: _peer}[kind](folder, counted_length(log)) as (db, length, about):
        about["start"] = time.perf_counter() - began
        print(json.dumps(about), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answer(db, length, json.loads(line))), file=answers, flush=True)


def counted_length(log: str) -> Callable[[pa.Array], pa.Array]:
    """Returns the function of the view. Each call appends its row count to a file, from any
    process."""

    def length(text: pa.Array) -> pa.Array:
        file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(file, f"{len(text)}\n".encode())
        os.close(file)
        return pc.utf8_length(text)

    return length


@contextlib.contextmanager
def _ours(
    folder: str, function: Callable[[pa.Array], pa.Array]
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    import lance
    import pyspark
    from pyspark.sql import SparkSession

    import lance_spark

    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.ui.enabled", "false")
    spark = lance_spark.configure(builder).getOrCreate()
    db = lance_spark.connect(folder, spark, progress=False)
    versions = {"pyspark": pyspark.__version__, "pylance": lance.__version__}
    try:
        yield db, lance_spark.udf(function, data_type=pa.int32()), {"versions": versions}
    finally:
        spark.stop()


@contextlib.contextmanager
def _peer(
    folder: str, function: Callable[[pa.Array], pa.Array]
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    import importlib.metadata

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Disables usage reports.
    import geneva
    from geneva.runners.ray._mgr import ray_cluster

    versions = {
        name: importlib.metadata.version(name) for name in ("geneva", "ray", "lancedb", "pylance")
    }
    with ray_cluster(local=True, log_to_driver=False, ray_init_kwargs={"num_cpus": _SLOTS}):
        yield (
            geneva.connect(folder),
            geneva.udf(function, data_type=pa.int32()),
            {"versions": versions},
        )


def _answer(db: Any, length: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Creates or refreshes a view. Returns the seconds, and the error if any."""
    source, name, answer = question["source"], question["view"], {}
    # A new handle, opened before the clock starts, so no handle of a failed attempt is reused.
    opened = db.open_table(source if question["create"] else name)
    began = time.perf_counter()
    try:
        if question["create"]:
            query = opened.search(None).select(
                {**{column: column for column in question["columns"]}, "length": length}
            )
            opened = query.create_materialized_view(db, name)
        result = opened.refresh(concurrency=CORES)
        answer["stages"] = {
            stage: round(seconds, 3) for stage, seconds in getattr(result, "seconds", {}).items()
        }
    except Exception as error:  # noqa: BLE001 - what it raises is a result
        answer["error"] = f"{type(error).__name__}: {error}"[:400]
    return {"seconds": round(time.perf_counter() - began, 3), **answer}


if __name__ == "__main__":
    main()
