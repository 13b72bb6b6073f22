"""Measures a driver that runs hundreds of jobs: `python -m benchmarks.long_life [--jobs 300]
[--warm 100] [--only KIND ...] [--connect]`.

The kind `mixed` runs the other kinds in turn. The report has the growth of each resource per 100
jobs after the first jobs, by the line of the least squares. Jobs, files and versions pile up in the
table, as in a real one.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.report import describe_machine, make_parser, write_report
from lance_spark import udf

ROWS, FRAGMENTS, SIZE = 300, 3, 4
_MEASUREMENTS = 20
_LOCAL = "local[2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """The resources of a driver and its descendants at a moment.

    Attributes:
        resident_mb: Resident memory of the driver's Python.
        heap_mb: Used heap of the JVM after a garbage collection.
        threads: Threads of the driver's Python.
        jvm_threads: Threads of the JVM.
        descriptors: Open file descriptors of the driver's Python.
        jvm_descriptors: Open file descriptors of the JVM.
        processes: Running descendants, with the workers of Spark.
        zombies: Ended descendants that no parent has collected. The launcher of Spark leaves one.
        temporary_files: Files in the folder for temporary files.
        temporary_views: Temporary views of the session.
        java_objects: Objects of the JVM that Python refers to.
    """

    resident_mb: float
    heap_mb: float
    threads: int
    jvm_threads: int
    descriptors: int
    jvm_descriptors: int
    processes: int
    zombies: int
    temporary_files: int
    temporary_views: int
    java_objects: int

    @staticmethod
    def measure(spark: SparkSession, temporary: Path) -> ResourceUsage:
        """Measures the resources after garbage collections in Python and in the JVM."""
        gc.collect()
        own = psutil.Process()
        states = [_state(process) for process in own.children(recursive=True)]
        java = next(
            (process for process in own.children(recursive=True) if "java" in _name(process)), own
        )
        return ResourceUsage(
            resident_mb=own.memory_info().rss / 1e6,
            heap_mb=_heap_bytes() / 1e6,
            threads=own.num_threads(),
            jvm_threads=java.num_threads(),
            descriptors=own.num_fds(),
            jvm_descriptors=java.num_fds(),
            processes=sum(state not in ("", psutil.STATUS_ZOMBIE) for state in states),
            zombies=states.count(psutil.STATUS_ZOMBIE),
            temporary_files=sum(len(files) for _, _, files in os.walk(temporary)),
            temporary_views=sum(table.isTemporary for table in spark.catalog.listTables()),
            java_objects=_count_java_objects(),
        )


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _heap_bytes() -> int:
    jvm: Any = SparkContext._jvm
    if jvm is None:
        return 0
    for _ in range(2):
        jvm.java.lang.System.gc()
        time.sleep(0.1)
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


def _count_java_objects() -> int:
    from py4j.finalizer import ThreadSafeFinalizer

    return len(ThreadSafeFinalizer.finalizers)


@udf(data_type=pa.int64())
def letters(text: pa.Array) -> pa.Array:  # type: ignore[type-arg]
    """Returns the number of letters."""
    lengths: Any = pc.utf8_length(text)  # type: ignore[call-overload]
    return pc.cast(lengths, pa.int64())


class JobLoop:
    """A table of a few small fragments, and jobs by kind.

    Attributes:
        kinds: Functions that run a job, by kind. The argument is the number of the job.
    """

    def __init__(self, spark: SparkSession, folder: Path, *, sql: bool = True) -> None:
        """Makes the table, a column of a UDF and a view.

        Args:
            spark: The session.
            folder: An empty folder.
            sql: Whether statements of SQL run, which need the classes of the jar.
        """
        self._spark = spark
        self._uri = f"{folder}/t.lance"
        ids = np.arange(ROWS)
        vectors = pa.FixedSizeListArray.from_arrays(
            pa.array(np.zeros(ROWS * SIZE, np.float32)), SIZE
        )
        rows: dict[str, Any] = {
            "id": ids,
            "x": ids * 0.5,
            "text": [f"text number {i}" for i in ids],
            "vector": vectors,
        }
        size = ROWS // FRAGMENTS
        lance.write_dataset(
            pa.table(rows), self._uri, max_rows_per_file=size, enable_stable_row_ids=True
        )
        db = lance_spark.connect(str(folder), spark, progress=False)
        self._table = db.open_table("t")
        self._table.add_columns({"letters": letters})
        self._table.backfill("letters")
        self._view = (
            self._table.search(None)
            .select({"id": "id", "y": "x * 2"})
            .create_materialized_view(db, "v")
        )
        self.kinds: dict[str, Callable[[int], object]] = {
            "backfill": lambda i: self._table.backfill("letters", where=f"id = {i % ROWS}"),
            "refresh": self._refresh,
            "read": self._read,
            "search": lambda _: self._table.search([0.1] * SIZE).limit(3).to_arrow(),
            "append": self._append,
            "load": self._load,
            "DataFrame backfill": self._backfill_by_dataframe,
        }
        if sql:
            self._catalog = f"life{os.getpid()}"
            lance_spark.catalog(spark, self._catalog, str(folder))
            self.kinds |= {"UPDATE": self._update, "MERGE": self._merge}

    def run(self, kind: str, number: int) -> None:
        """Runs a job."""
        names = list(self.kinds)
        self.kinds[names[number % len(names)] if kind == "mixed" else kind](number)

    def _refresh(self, number: int) -> None:
        lance.dataset(self._uri).update({"x": "x + 1"}, where=f"id = {number % ROWS}")
        self._view.refresh()

    def _read(self, number: int) -> None:
        self._spark.read.format("lance").load(self._uri).filter(f"id = {number % ROWS}").collect()

    def _append(self, number: int) -> None:
        frame = self._spark.createDataFrame(
            [(5000 + number, 1.0, "a")], "id long, x double, text string"
        )
        frame.write.format("lance").mode("append").save(self._uri)

    def _load(self, number: int) -> None:
        self._table.load_columns(
            pa.table({"id": [number % ROWS], "score": [1.0]}), pk="id", columns=["score"]
        )

    def _backfill_by_dataframe(self, number: int) -> None:
        frame = self._spark.read.format("lance").option("with_row_address", True).load(self._uri)
        values = frame.selectExpr("_rowaddr", f"length(text) + {number} AS size")
        values.write.format("lance").mode("append").option("mode", "backfill").save(self._uri)

    def _update(self, number: int) -> None:
        self._spark.sql(f"UPDATE {self._catalog}.t SET x = x + 1 WHERE id = {number % ROWS}")

    def _merge(self, number: int) -> None:
        self._spark.sql(
            f"MERGE INTO {self._catalog}.t a USING (SELECT {number % ROWS}L AS id, 7.0D AS x) s ON a.id = s.id "
            "WHEN MATCHED THEN UPDATE SET x = s.x WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, s.x)"
        )


def measure_slopes(
    loop: JobLoop, kind: str, measure: Callable[[], ResourceUsage], *, jobs: int, warm: int
) -> dict[str, float]:
    """Returns the growth of each resource per 100 jobs after `warm` jobs, and of the seconds per
    job in percent."""
    for number in range(warm):
        loop.run(kind, number)
    every = max(1, (jobs - warm) // _MEASUREMENTS)
    numbers, seconds, values = [], [], []
    for number in range(warm, jobs, every):
        began = time.perf_counter()
        for job in range(number, number + every):
            loop.run(kind, job)
        seconds.append((time.perf_counter() - began) / every)
        values.append(asdict(measure()))
        numbers.append(number + every)
    slopes = {name: 100 * _slope(numbers, [value[name] for value in values]) for name in values[0]}
    slopes["seconds_percent"] = 100 * 100 * _slope(numbers, seconds) / float(np.median(seconds))
    slopes["seconds"] = float(np.median(seconds))
    return {name: round(slope, 3) for name, slope in slopes.items()}


def _slope(numbers: list[int], values: list[float]) -> float:
    return float(np.polyfit(numbers, values, 1)[0]) if len(numbers) > 1 else 0.0


def make_session(*, connect: bool) -> SparkSession:
    """Returns a session of two cores, of Spark Connect if requested."""
    if connect:
        SparkContext._ensure_initialized()  # the JVM of the server then has a gateway
        return SparkSession.builder.remote(_LOCAL).getOrCreate()
    builder = (
        SparkSession.builder.master(_LOCAL).appName("long life").config("spark.driver.memory", "2g")
    )
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.ui.showConsoleProgress", "false"
    )
    session = lance_spark.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> None:
    """Runs the kinds one after another, and writes `long_life.json`."""
    parser = make_parser("long_life", __doc__)
    parser.add_argument("--jobs", type=int, default=300, help="jobs of each kind")
    parser.add_argument("--warm", type=int, default=100, help="jobs before the first measurement")
    parser.add_argument("--only", action="append", help="run only these kinds; repeatable")
    parser.add_argument(
        "--connect", action="store_true", help="run over Spark Connect, without SQL"
    )
    arguments = parser.parse_args()
    name = "long_life_connect" if arguments.connect else "long_life"
    content: dict[str, Any] = {
        "machine": describe_machine(),
        "jobs": arguments.jobs,
        "warm": arguments.warm,
        "per_100_jobs": {},
    }
    with tempfile.TemporaryDirectory(prefix="lance-spark-life-") as folder:
        temporary = Path(folder, "temporary")
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        spark = make_session(connect=arguments.connect)
        for kind in arguments.only or ["mixed", *_KINDS]:
            home = Path(folder, kind.replace(" ", "_"))
            home.mkdir()
            loop = JobLoop(spark, home, sql=not arguments.connect)
            if kind == "mixed" or kind in loop.kinds:
                content["per_100_jobs"][kind] = measure_slopes(
                    loop,
                    kind,
                    lambda: ResourceUsage.measure(spark, temporary),
                    jobs=arguments.jobs,
                    warm=arguments.warm,
                )
                print(kind, content["per_100_jobs"][kind], flush=True)
                write_report(arguments, name, content)
        spark.stop()


_KINDS = (
    "backfill",
    "refresh",
    "read",
    "search",
    "append",
    "load",
    "DataFrame backfill",
    "UPDATE",
    "MERGE",
)


if __name__ == "__main__":
    main()
