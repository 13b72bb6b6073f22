"""Driver process: `python -m tests.support.driver MASTER JOBS`.

JOBS is JSON: the folder and the settings of each backfill of a table `t`, by job id. The jobs run concurrently. A job
with the name of a point as its id stops there. Prints a line of JSON for each completed job, in order.
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
                # A blocking call, as in most programs: Ctrl-C ends the job.
                ((job_id, (home, settings)),) = orders.items()
                answers[job_id] = outcome_of(
                    partial(table_of(spark, home).backfill, "v", job_id=job_id, **settings)
                )
            else:
                started = [
                    table_of(spark, home).backfill_async("v", job_id=job_id, **settings)
                    for job_id, (home, settings) in orders.items()
                ]
                answers = {job.job_id: outcome_of(job.result) for job in started}
    except KeyboardInterrupt:
        answers["interrupted"] = True
    finally:
        spark.stop()
        print(json.dumps(answers), flush=True)


def session(master: str) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    spark: SparkSession = (
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
    return spark


def outcome_of(call: Callable[[], lance_spark.BackfillJobResult]) -> dict[str, object]:
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
