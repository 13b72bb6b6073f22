"""Contestants of `benchmarks.models` in processes of their own: `python -m benchmarks.models_child
loop|pandas-udf|daft|geneva|service`.

Each answers questions, a line of JSON each, until its input ends. A question names a case and its
folder; the answer has the seconds of the work and the number of rows with a result.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.models_work import GPU, IN_FLIGHT, SERVICE, WORKS, Client, ModelWork, serve

Answer = Callable[[str, Path], int]


def main() -> None:
    """Runs one contestant."""
    # Libraries print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind = sys.argv[1]
    if kind == "service":
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        asyncio.run(
            serve(
                lambda port: print(json.dumps(f"http://127.0.0.1:{port}"), file=answers, flush=True)
            )
        )
        return
    prepare = {
        "loop": prepare_loop,
        "pandas-udf": prepare_spark,
        "daft": prepare_daft,
        "geneva": prepare_geneva,
    }
    run: Answer = prepare[kind]()
    for line in sys.stdin:
        question = json.loads(line)
        began = time.perf_counter()
        outcome = run(question["work"], Path(question["folder"]))
        seconds = time.perf_counter() - began
        answer = outcome if isinstance(outcome, dict) else {"seconds": seconds, "rows": outcome}
        print(json.dumps(answer), file=answers, flush=True)


# --- the model alone: a process per core, with its rows in memory


def prepare_loop() -> Any:
    context = multiprocessing.get_context("spawn")

    def run(name: str, folder: Path) -> dict[str, float]:
        work = WORKS[name]
        barrier, results = context.Barrier(work.processes), context.Queue()
        processes = [
            context.Process(target=loop, args=(name, str(folder), part, barrier, results))
            for part in range(work.processes)
        ]
        for process in processes:
            process.start()
        reports = [results.get() for _ in processes]
        for process in processes:
            process.join()
        begins, ends, rows = zip(*reports, strict=True)
        return {"seconds": max(ends) - min(begins), "rows": sum(rows)}

    return run


def loop(name: str, folder: str, part: int, barrier: Any, results: Any) -> None:
    """Computes every second batch, or every batch of a single process."""
    from udf_runtime.execute.threads import hook_imports, limit_threads

    limit_threads(1)
    hook_imports()
    work = WORKS[name]
    rows = pa.ipc.open_file(f"{folder}/rows.arrow").read_all()["value"].combine_chunks()
    size = min(work.batch_size, -(-len(rows) // work.processes))
    batches = [rows.slice(at, size) for at in range(0, len(rows), size)][part :: work.processes]
    compute = asynchronous(folder) if name == SERVICE else work.load(folder)
    compute(batches[0].slice(0, 1))  # some models load a part of themselves at the first call
    if name == SERVICE:
        batches = [pa.concat_arrays(batches)]
    barrier.wait()
    began = time.perf_counter()
    values = [compute(batch) for batch in batches]
    ended = time.perf_counter()
    results.put((began, ended, sum(len(array) for array in values)))
    file = Path(folder, f"loop-{part}.arrow")
    table = pa.table({"value": pa.concat_arrays(batches), "result": pa.concat_arrays(values)})
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)


def asynchronous(folder: str) -> Any:
    event_loop = asyncio.new_event_loop()

    async def connect() -> Client:
        return Client(folder)

    client = event_loop.run_until_complete(connect())
    return lambda value: pa.array(
        event_loop.run_until_complete(client.label_all(value.to_pylist()))
    )


# --- a pandas UDF in plain Spark


def prepare_spark() -> Answer:
    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import pandas_udf

    os.environ["PYSPARK_PYTHON"] = sys.executable
    types = {
        "text vectors": "array<float>",
        GPU: "array<float>",
        "transformer": "array<float>",
        "transformer, half": "array<float>",
        "images": "double",
        "sleeper": "bigint",
    }
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()

    identity = pandas_udf(lambda values: values, "bigint")  # type: ignore[call-overload]
    for _ in range(20):  # the jobs that lance-spark has run, too
        spark.range(1000).select(identity("id")).write.format("noop").mode("overwrite").save()

    def run(name: str, folder: Path) -> int:
        work, place = WORKS[name], str(folder)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", work.batch_size)

        def compute(batches: Any) -> Any:
            model = WORKS[name].load(place)
            for batch in batches:
                yield model(pa.array(batch, work.value_type)).to_pandas()

        # PySpark reads the annotations, which are texts in this module.
        compute.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}
        result = pandas_udf(compute, types.get(name, "string"))  # type: ignore[call-overload]
        rows = spark.read.parquet(f"{folder}/rows.parquet").coalesce(work.processes)
        rows.select("id", result("value").alias("result")).write.mode("overwrite").parquet(
            f"{folder}/spark.parquet"
        )
        return spark.read.parquet(f"{folder}/spark.parquet").where("result IS NOT NULL").count()

    return run


# --- Daft


def prepare_daft() -> Answer:
    import daft

    def run(name: str, folder: Path) -> int:
        work, target = WORKS[name], folder / "daft.parquet"
        shutil.rmtree(target, ignore_errors=True)
        model = (
            daft_service(str(folder)) if name == SERVICE else daft_model(name, str(folder), work)
        )
        rows = daft.read_parquet(f"{folder}/rows.parquet/*.parquet")
        rows.select(rows["id"], model(rows["value"]).alias("result")).write_parquet(str(target))
        return int(
            daft.read_parquet(f"{target}/*.parquet")
            .where(daft.col("result").not_null())
            .count_rows()
        )

    return run


def daft_model(name: str, folder: str, work: ModelWork) -> Any:
    import daft

    data_type = daft.DataType.from_arrow_type(work.data_type)

    @daft.cls(max_concurrency=work.processes, use_process=True)
    class ComputingModel:
        def __init__(self) -> None:
            self.compute = WORKS[name].load(folder)

        @daft.method.batch(return_dtype=data_type, batch_size=work.batch_size)
        def run(self, value: daft.Series) -> Any:
            return self.compute(value.to_arrow().cast(work.value_type))

    return ComputingModel().run


def daft_service(folder: str) -> Any:
    import daft

    @daft.cls(max_concurrency=2 * IN_FLIGHT)
    class ClientModel:
        def __init__(self) -> None:
            self.client: Client | None = None

        async def label(self, value: str) -> str:
            if self.client is None:
                self.client = Client(folder)
            return await self.client.label(value)

    return ClientModel().label


# --- geneva


def prepare_geneva() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Disables usage reports.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)  # for Ray's workers
    import geneva
    import lance
    from geneva.runners.ray._mgr import ray_cluster

    # geneva requests 2.3 CPUs for two workers, and would wait with 2.
    cluster = ExitStack()
    cluster.enter_context(
        ray_cluster(local=True, log_to_driver=False, ray_init_kwargs={"num_cpus": 4})
    )
    atexit.register(cluster.close)

    def run(name: str, folder: Path) -> dict[str, float]:
        work, home = WORKS[name], folder / "geneva"
        if not home.exists():
            lance.write_dataset(
                pa.ipc.open_file(f"{folder}/rows.arrow").read_all(), home / "rows.lance"
            )
            geneva.connect(str(home)).open_table("rows").add_columns(
                {"result": geneva_model(name, str(folder), work)}
            )
        table = geneva.connect(str(home)).open_table("rows")
        began = time.perf_counter()
        table.backfill("result", where="1=1", concurrency=work.processes)
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "rows": lance.dataset(home / "rows.lance").count_rows("result IS NOT NULL"),
        }

    return run


def geneva_model(name: str, folder: str, work: ModelWork) -> Any:
    import geneva

    class LazyModel:
        """geneva has no hook for the load of a model."""

        def __init__(self) -> None:
            self.compute: Any = None

        def __call__(self, value: Any) -> Any:
            from benchmarks.models_work import WORKS

            self.compute = self.compute or WORKS[name].load(folder)
            return self.compute(value)

    # geneva reads the annotations, which are texts in this module.
    LazyModel.__call__.__annotations__ = {"value": pa.Array, "return": pa.Array}
    # A call of geneva has the rows of a checkpoint.
    return geneva.udf(
        data_type=work.data_type, checkpoint_size=work.batch_size, input_columns=["value"]
    )(LazyModel)()


if __name__ == "__main__":
    main()
