"""A driver in a process of its own: `python -m tests.support.driver MASTER JOBS`.

JOBS is JSON: the folder and the settings of each backfill of a table `t`, by job id. They run side by side, and a job whose id is the name of
a point is held there. Prints one line of JSON per job that ends, in order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

from pyspark.sql import SparkSession

import lance_spark
from tests.support.hooks import hooked
from tests.support.java_classes import JVM_OPTIONS


def main(master: str, jobs: str) -> None:
    spark = session(master)
    orders = json.loads(jobs)
    answers: dict[str, object] = {}
    try:
        with hooked({job_id: home for job_id, (home, _) in orders.items()}):
            if len(orders) == 1:
                # A call that waits, as most people make it: Ctrl-C ends it.
                ((job_id, (home, settings)),) = orders.items()
                answers[job_id] = seen(partial(table_of(spark, home).backfill, "v", job_id=job_id, **settings))
            else:
                started = [
                    table_of(spark, home).backfill_async("v", job_id=job_id, **settings)
                    for job_id, (home, settings) in orders.items()
                ]
                answers = {job.job_id: seen(job.result) for job in started}
    except KeyboardInterrupt:
        answers["interrupted"] = True
    finally:
        spark.stop()
        print(json.dumps(answers), flush=True)


def session(master: str) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    made: SparkSession = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "800m")
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .config("spark.executor.extraJavaOptions", JVM_OPTIONS)
        .config("spark.executor.memory", "600m")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    return made


def seen(call: Callable[[], lance_spark.BackfillJobResult]) -> dict[str, object]:
    try:
        result, complete = call(), True
    except lance_spark.BackfillIncompleteError as error:
        result, complete = cast("lance_spark.BackfillJobResult", error.result), False
    return {
        "complete": complete,
        "status": result.status,
        "processed": result.rows_processed,
        "skipped": result.rows_skipped,
        "failed": result.rows_failed,
    }


def table_of(spark: SparkSession, home: str) -> lance_spark.Table:
    return lance_spark.connect(home, spark, progress=False).open_table("t")


if __name__ == "__main__":
    main(*sys.argv[1:])
