"""A client of Spark Connect for tables: `python -m tests.connect.table_client URL FOLDER`. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

import lance_spark
from lance_spark import BackfillIncompleteError, Job, ResourcesUnavailableError, Table
from udf_runtime import UDF, Columns, Manifest, Skip, UnpackedUDF, udf

Report = dict[str, object]


class TextSize(NamedTuple):
    length: int
    upper: str


def main(url: str, folder: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    db = lance_spark.connect(f"{folder}/db", spark, progress=False)
    table = db.create_table(
        "words", spark.range(0, 20).selectExpr("id", "concat('word ', id) AS text")
    )
    table.add(spark.range(20, 40).selectExpr("id", "concat('word ', id) AS text"))
    report: Report = {}
    for flow in (
        reading,
        columns,
        counting,
        errors,
        altering,
        running,
        cancelling,
        refusing,
        dying,
        environments,
    ):
        began = time.perf_counter()
        flow(table, folder, report)
        print(f"{flow.__name__}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    report["names"] = db.table_names()
    spark.stop()
    print(json.dumps(report))


def reading(table: Table, folder: str, report: Report) -> None:
    frame = table.to_spark(["id"], "id >= 30")
    table.add([{"id": 40, "text": "word 40"}])
    report["spark rows"] = [
        frame.count(),
        table.to_spark().count(),
        table.count_rows("id < 5"),
        table.head(3).num_rows,
    ]
    table.to_lance().delete("id = 40")


def columns(table: Table, folder: str, report: Report) -> None:
    @udf
    def double(id: int) -> int:
        return id * 2

    @udf
    def size(text: str) -> Columns[TextSize]:
        return TextSize(len(text), text.upper())

    @pandas_udf("bigint")
    def triple(id: pd.Series) -> pd.Series:
        return id * 3

    table.add_columns(
        {"sql": "id + 1", "double": double, "again": (double, ["id"]), "triple": (triple, ["id"])}
    )  # type: ignore[dict-item]
    table.add_columns(UnpackedUDF(size, prefix="text_"))
    filled = [
        table.backfill(name).rows_computed for name in ("double", "again", "triple", "text_length")
    ]
    right = "sql = id + 1 AND double = id * 2 AND again = double AND triple = id * 3 AND text_upper = upper(text)"
    report["filled"] = [*filled, table.count_rows(f"{right} AND text_length = char_length(text)")]
    table.drop_columns(["sql", "again", "triple", "text_length", "text_upper"])


def counting(table: Table, folder: str, report: Report) -> None:
    log = f"{folder}/counted"

    @udf
    def log_file_udf(id: int) -> int:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{id}\n")
        return id

    table.add_columns({"counted": log_file_udf})
    results = [
        table.backfill("counted", num_frags=1, where="id < 5").rows_computed,
        table.backfill("counted", task_size=7, checkpoint_size=3, concurrency=1).rows_computed,
    ]
    version = table.version
    began = time.perf_counter()
    results.append(table.backfill("counted").rows_computed)
    table.to_lance().optimize.compact_files()
    results.append(table.backfill("counted").rows_computed)
    called = sorted(int(line) for line in Path(log).read_text().split())
    report["counted"] = [
        *results,
        called == list(range(40)),
        table.plan_backfill("counted").has_work,
    ]
    report["quick"] = time.perf_counter() - began < 10 and version + 2 >= table.version
    jobs = [
        (job.status, job.rows_computed) for job in table.list_jobs() if job.columns == ("counted",)
    ]
    report["jobs"] = jobs


def errors(table: Table, folder: str, report: Report) -> None:
    @udf(data_type=pa.int64(), on_error=Skip(ValueError))
    def picky(id: int) -> int:
        if id % 10 == 3:
            raise ValueError(f"bad {id}")
        return id

    table.add_columns({"picky": picky})
    result = table.backfill("picky", job_id="picky")
    addresses = table.get_failed_row_addresses("picky", "picky")
    messages = [error.error_message for error in table.get_errors("picky", error_type="ValueError")]

    @udf(data_type=pa.int64())
    def mild(id: int) -> int:
        return -id

    again = table.backfill(
        "picky", where=f"_rowaddr IN ({', '.join(map(str, addresses))})", udf=mild
    )
    report["skipped"] = [result.status, result.rows_skipped, sorted(messages), again.rows_computed]
    report["repaired"] = table.count_rows("picky = -id AND id > 0")


def altering(table: Table, folder: str, report: Report) -> None:
    @udf
    def fourfold(id: int) -> int:
        return id * 4

    table.alter_columns({"path": "double", "udf": fourfold}, {"path": "text", "name": "words"})
    report["altered"] = [
        table.backfill("double").rows_computed,
        table.backfill("double").rows_computed,
    ]
    report["fourfold"] = table.count_rows("double = id * 4")


def environments(table: Table, folder: str, report: Report) -> None:
    def version_of(version: str) -> UDF:
        manifest = (
            Manifest.create_pip(version)
            .pip([f"packaging=={version}"])
            .env_vars({"KEY": f"of {version}"})
            .build()
        )

        @udf(data_type=pa.string(), manifest=manifest)
        def version_and_key(id: int) -> str:
            import packaging

            return f"{packaging.__version__} {os.environ['KEY']}"

        assert isinstance(version_and_key, UDF)
        return version_and_key

    table.add_columns({"old": version_of("23.2"), "new": version_of("24.2")})
    computed = [table.backfill(column).rows_computed for column in ("old", "new")]
    report["environments"] = [
        *computed,
        table.count_rows("old = '23.2 of 23.2' AND new = '24.2 of 24.2'"),
    ]


def gated(folder: str, name: str, first: int) -> lance_spark.Table:
    gate = f"{folder}/{name}"

    @udf(data_type=pa.int64())
    def gated(id: int) -> int:
        import os
        import time

        while id >= first and not os.path.exists(gate):
            time.sleep(0.01)
        return id

    return gated  # type: ignore[return-value]


def running(table: Table, folder: str, report: Report) -> None:
    table.add([{"id": i, "words": "x"} for i in range(40, 50)])
    table.add_columns({"slow": gated(folder, "open", 40)})  # type: ignore[dict-item]
    try:
        table.backfill(
            "slow",
            timeout=timedelta(seconds=0.2),
            commit_granularity=1,
            task_size=50,
            job_id="slow",
        )
    except TimeoutError as error:
        report["timeout"] = "job.cancel()" in str(error)
    Path(f"{folder}/open").touch()
    while table.get_job("slow").status == "RUNNING":
        time.sleep(0.05)
    report["ran"] = [table.get_job("slow").status, table.count_rows("slow = id")]


def cancelling(table: Table, folder: str, report: Report) -> None:
    table.add_columns({"never": gated(folder, "never", 40)})  # type: ignore[dict-item]
    job = table.backfill_async("never", commit_granularity=1, task_size=10, refresh_status_secs=0.1)
    assert isinstance(job, Job)
    deadline = time.monotonic() + 60
    while table.count_rows("never = id") < 40 and time.monotonic() < deadline:
        time.sleep(0.05)
    report["visible"] = [
        table.count_rows("never = id"),
        job.done(),
        job.progress().rows_computed >= 40,
    ]
    began = time.perf_counter()
    job.cancel()
    try:
        job.result(60)
    except BackfillIncompleteError:
        report["cancelled"] = [
            job.status,
            time.perf_counter() - began < 20,
            table.count_rows("never = id"),
        ]
    Path(f"{folder}/never").touch()
    report["resumed"] = [table.backfill("never").status, table.count_rows("never = id")]


def refusing(table: Table, folder: str, report: Report) -> None:
    @udf(num_gpus=1)
    def hungry(id: int) -> int:
        return id

    table.add_columns({"hungry": hungry})
    refused = []
    for options in ({}, {"where": "nope = 1"}, {"concurrency": 0}, {"task_shuffle_diversity": 8}):
        try:
            table.backfill("hungry", **options)  # type: ignore[arg-type]
        except (ResourcesUnavailableError, ValueError) as error:
            refused.append(type(error).__name__)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filled = table.backfill("hungry", _admission_strict=False).rows_computed
    report["refused"] = [refused, filled, sum("GPUs" in str(warning.message) for warning in caught)]


def dying(table: Table, folder: str, report: Report) -> None:
    """A UDF that kills its process at one row, which remains the only row without a value."""

    @udf(data_type=pa.int64())
    def deadly(id: int) -> int:
        import os

        if id == 17:
            os._exit(3)
        return id

    table.add_columns({"deadly": deadly})
    try:
        table.backfill("deadly", job_id="deadly")
    except BackfillIncompleteError as error:
        result = error.result
        assert isinstance(result, lance_spark.BackfillJobResult)
        report["deadly"] = [result.status, result.rows_failed, table.count_rows("deadly = id")]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main(*sys.argv[1:])
